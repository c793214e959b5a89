/** State of the page. */
const page = { data: null, axis: "macs", scale: "log", showPartial: true, historyAxis: "trials", study: 0, seen: new Set(), card: null };

const CHARTS = { front: drawFront, tested: drawTested, allocation: drawAllocation, history: drawHistory, curves: drawCurves, importances: drawImportances };

/** Draw charts again, except charts that have not been drawn yet. */
function drawCharts(names = Object.keys(CHARTS)) {
  for (const name of names) if (page.seen.has(name)) CHARTS[name]();
}

/** Draw all charts again, including charts that have not been drawn yet. */
function showAll() {
  for (const name of Object.keys(CHARTS)) page.seen.add(name);
  drawCharts();
}

/** Tell that something could not be shown. */
function showTrouble(error, what = "The page") {
  byId("trouble").hidden = false;
  byId("trouble").textContent = `${what} cannot be shown: ${error.message}`;
  console.error(error);
}

/** Draw the charts one after the other, whenever the browser is idle, so that a page of thousands of trials can be used as soon as the first one is drawn. */
function drawInTurn() {
  const next = Object.keys(CHARTS).find((name) => !page.seen.has(name));
  if (!next) {
    document.documentElement.dataset.drawn = "yes";
    return;
  }
  page.seen.add(next);
  try {
    CHARTS[next]();
  } catch (error) {  // an idle callback has nobody else to tell; the other charts can still be drawn
    showTrouble(error, `The chart "${next}"`);
  }
  if (window.requestIdleCallback) requestIdleCallback(drawInTurn, { timeout: 500 });  // a busy browser is never idle
  else setTimeout(drawInTurn);  // Safari
}

/** Tell the style sheet which tables are wider than the screen, and which have more columns to the right. */
function watchScrolling(root) {
  for (const place of root.querySelectorAll(".scroll")) {
    const mark = () => {
      const isWide = place.toggleAttribute("data-wide", place.scrollWidth > place.clientWidth + 1);
      if (isWide) place.tabIndex = 0;  // the keyboard can scroll it
      else place.removeAttribute("tabindex");
      place.toggleAttribute("data-more", place.scrollLeft + place.clientWidth < place.scrollWidth - 1);
    };
    const observer = new ResizeObserver(mark);
    observer.observe(place);
    if (place.firstElementChild) observer.observe(place.firstElementChild);
    place.addEventListener("scroll", mark, { passive: true });
  }
}

function drawOverview() {
  const { studies, remarks, tested } = page.data;
  byId("tested-section").hidden = !tested.some((one) => one.finals.length);
  byId("front-section").hidden = !studies.some((study) => study.networks.some((network) => network.is_full || network.is_partial));
  drawSummary();
  byId("remarks").replaceChildren(...remarks.map((remark) => make("p", { class: "remark" },
    ...remark.split("`").map((part, i) => (i % 2 ? make("code", {}, part) : part)))));
  const names = ["study", "space", "data", "epochs", "trained", "stopped early", "level", "on the front", "best", "hypervolume", "training", "hardware"];
  const isText = new Set(["study", "space", "data", "level", "hardware"]);
  const head = make("tr", {}, ...names.map((name) => make("th", { class: isText.has(name) ? "" : "number", scope: "col" }, name,
    ...(name === "best" ? [make("span", { class: "unit" }, studies.some((study) => study.finals.length) ? "validation accuracy, finals: mean" : "validation accuracy, one seed")] : []))));
  const rows = studies.map((study) => {
    const full = study.networks.filter((network) => network.is_full);
    const reached = study.finals.length ? study.finals.map((final) => final.mean) : full.map((network) => network.accuracy);
    const best = reached.length ? Math.max(...reached) : null;
    const levels = Object.entries(study.seconds);
    const seconds = levels.reduce((sum, [, one]) => sum + one, 0);
    const parts = levels.length > 1 ? ` (${levels.map(([level, one]) => `${level} ${duration(one)}`).join(", ")})` : "";
    const values = [study.name, study.space, study.data, study.epochs, full.length, study.counts.stopped ?? 0, study.level, study.networks.filter(isOnFront).length,
      percent(best), study.hypervolume.toFixed(4), duration(seconds) + parts, study.hardware.join("; ") || "–"];
    return make("tr", {}, ...values.map((value, i) => make("td", { class: isText.has(names[i]) ? "" : "number" }, String(value))));
  });
  byId("studies").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
  drawBest();
}

/** Draw the table of the best few networks of every study, with its dense network. */
function drawBest() {
  const { studies, axes } = page.data;
  const isTimed = axes.some((axis) => axis.name === "latency");
  const hasSeeds = studies.some((study) => study.finals.length);
  const accuracyOf = ({ final, accuracy, is_full }) => [final ? testAccuracy(final) : is_full ? percent(accuracy) : "not trained in the search", ...(hasSeeds ? [final ? String(final.accuracies.length) : is_full ? "1, short training" : "–"] : [])];
  const rowOf = (study, title, network) => [title, ...(hasSeveral() ? [study.name] : []), ...accuracyOf(network), formatShare(network.share), whole(network.macs), whole(network.params),
    ...(isTimed ? [network.latency == null ? "–" : `${network.latency.toFixed(3)} ms`] : [])];
  const rows = studies.flatMap((study) => {
    // a limit may have left it out before it was trained
    const named = study.networks.filter((network) => network.name === study.dense?.name);
    const own = named.find((network) => network.final || network.is_full) ?? named[0];
    const best = study.networks.filter((network) => study.best.includes(network.number) && network !== own).sort((a, b) => b.macs - a.macs);
    const dense = !best.length || !study.dense ? [] : [own ? rowOf(study, cardLink(own, `${titleOf(own)}, dense`), own) : rowOf(study, `${study.dense.name}, dense`, { share: 1, ...study.dense })];
    return [...dense, ...best.map((network) => rowOf(study, cardLink(network), network))];
  });
  byId("best-section").hidden = !rows.length;
  const names = [...new Set(studies.filter((study) => study.dense).map((study) => study.dense.name))];
  const whose = names.length === 1 ? names[0] : names.length ? "the dense network" : "the most expensive one";
  fillTable("best", ["network", ...(hasSeveral() ? ["study"] : []), "#accuracy", ...(hasSeeds ? ["#n"] : []), "#share", "#MACs", "#parameters", ...(isTimed ? ["#latency"] : [])], rows);
  const isMixed = hasSeeds && !studies.every((study) => study.finals.length);
  const isWhole = studies.every((study) => study.networks.every((network) => !isOnFront(network) || study.best.includes(network.number)));
  const isMore = studies.some((study) => study.networks.some((network) => !isOnFront(network) && network.number === study.headline));
  const isBeside = studies.some((study) => study.dense && !study.networks.some((network) => network.name === study.dense.name && study.best.includes(network.number)));
  byId("best-what").textContent = (isWhole ? `The networks on the front${isMixed ? " (for studies with finals, that of the full training)" : ""}${isMore ? ", and the network at the top of the page" : ""}. ` : `The most accurate networks that cost at most as much as ${whose}, or a half, a quarter, an eighth or a sixteenth of it; and the network at the top of the page. `) +
    (isBeside ? `To compare with: ${whose}. ` : "") +
    `Accuracy on validation images${hasSeeds ? ", mean ± standard deviation over n seeds" : ", one seed"}.${names.length ? ` Share: MACs relative to ${whose}.` : ""}`;
}

function setUpControls() {
  const { studies, axes } = page.data;
  fillSelect(byId("axis"), axes.map((axis) => [axis.name, axis.label]), page.axis, (value) => {
    page.axis = value;
    drawCharts(["front", "tested", "allocation"]);
  });
  makeSwitch(byId("scale"), { log: "log", linear: "linear" }, page.scale, (value) => { page.scale = value; drawCharts(["front", "tested"]); });
  makeSwitch(byId("history-axis"), { trials: "by trials", seconds: "by time" }, page.historyAxis, (value) => { page.historyAxis = value; drawCharts(["history"]); });
  byId("show-partial").addEventListener("change", (event) => { page.showPartial = event.target.checked; drawCharts(["front"]); });
  byId("study-choice").hidden = studies.length < 2;
  fillSelect(byId("study"), studies.map((study, i) => [String(i), study.name]), "0", (value) => {
    page.study = Number(value);
    drawCharts(["allocation", "curves", "importances"]);
  });
  addEventListener("hashchange", followAddress);
  byId("card").addEventListener("close", forgetAddress);
  byId("card").addEventListener("click", (event) => { if (event.target === byId("card")) byId("card").close(); });
}

function setUpTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  byId("theme").addEventListener("click", () => {
    const now = document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
    drawCharts();
  });
  dark.addEventListener("change", () => drawCharts());
}

async function start() {
  page.data = await readData();
  page.axis = page.data.axis;
  drawOverview();
  setUpControls();
  setUpTheme();
  setUpTable();
  watchScrolling(document);
  drawInTurn();
  setUpPrint();
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => drawCharts(["front", "tested"]), 250); });
  document.documentElement.dataset.ready = "yes";
  followAddress();
}

start().catch(showTrouble);

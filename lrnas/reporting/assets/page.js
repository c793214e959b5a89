/** State of the page. */
const page = { data: null, axis: "macs", scale: "log", showPartial: true, historyAxis: "trials", study: 0, seen: new Set(), card: null };

const CHARTS = { front: drawFront, finals: drawFinals, history: drawHistory, allocation: drawAllocation, curves: drawCurves, importances: drawImportances };

/** Draw charts again, except charts that have not been on the screen yet. */
function drawCharts(names = Object.keys(CHARTS)) {
  for (const name of names) if (page.seen.has(name)) CHARTS[name]();
}

/** Draw all charts again, including charts that have not been on the screen yet. */
function showAll() {
  for (const name of Object.keys(CHARTS)) page.seen.add(name);
  drawCharts();
}

/** Draw every chart when it comes near the screen, so that a page of thousands of trials opens quickly. */
function watchCharts() {
  const observer = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) show(target.dataset.chart);
  }, { rootMargin: "300px" });
  const show = (name) => {
    observer.unobserve(byId(`${name}-section`));
    if (page.seen.has(name)) return;
    page.seen.add(name);
    CHARTS[name]();
  };
  show("front");
  for (const name of Object.keys(CHARTS)) byId(`${name}-section`).dataset.chart = name;
  // show the first chart before drawing the next one
  requestAnimationFrame(() => setTimeout(() => {
    for (const name of Object.keys(CHARTS)) if (!page.seen.has(name)) observer.observe(byId(`${name}-section`));
  }));
}

function drawOverview() {
  const { studies, remarks, tested } = page.data;
  byId("finals-section").hidden = !tested.length;
  byId("front-section").hidden = !studies.some((study) => study.networks.some((network) => network.is_full || network.is_partial));
  drawSummary();
  byId("remarks").replaceChildren(...remarks.map((remark) => make("p", { class: "remark" }, remark)));
  const names = ["study", "space", "data", "epochs", "in full", "stopped", "on the front", "best", "hypervolume", "training", "hardware"];
  const isText = new Set(["study", "space", "data", "hardware"]);
  const head = make("tr", {}, ...names.map((name) => make("th", { class: isText.has(name) ? "" : "number", scope: "col" }, name,
    ...(name === "best" ? [make("span", { class: "unit" }, studies.some((study) => study.finals.length) ? "validation accuracy, finals: mean" : "validation accuracy, one seed")] : []))));
  const rows = studies.map((study) => {
    const full = study.networks.filter((network) => network.is_full);
    const reached = study.finals.length ? study.finals.map((final) => final.mean) : full.map((network) => network.accuracy);
    const best = reached.length ? Math.max(...reached) : null;
    const seconds = study.history.length ? study.history.at(-1)[1] : 0;
    const values = [study.name, study.space, study.data, study.epochs, full.length, study.counts.stopped ?? 0, frontNumbers(study).size,
      percent(best), study.hypervolume.toFixed(4), duration(seconds), study.hardware.join("; ") || "–"];
    return make("tr", {}, ...values.map((value, i) => make("td", { class: isText.has(names[i]) ? "" : "number" }, String(value))));
  });
  byId("studies").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
}

function setUpControls() {
  const { studies, axes } = page.data;
  fillSelect(byId("axis"), axes.map((axis) => [axis.name, axis.label]), page.axis, (value) => {
    page.axis = value;
    drawCharts(["front", "finals", "allocation"]);
  });
  makeSwitch(byId("scale"), { log: "log", linear: "linear" }, page.scale, (value) => { page.scale = value; drawCharts(["front", "finals"]); });
  makeSwitch(byId("history-axis"), { trials: "by trials", seconds: "by time" }, page.historyAxis, (value) => { page.historyAxis = value; drawCharts(["history"]); });
  byId("show-partial").addEventListener("change", (event) => { page.showPartial = event.target.checked; drawCharts(["front"]); });
  byId("study-choice").hidden = studies.length < 2;
  fillSelect(byId("study"), studies.map((study, i) => [String(i), study.name]), "0", (value) => {
    page.study = Number(value);
    drawCharts(["allocation", "curves", "importances"]);
  });
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
  watchCharts();
  setUpPrint();
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => drawCharts(["front", "finals"]), 250); });
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  byId("trouble").hidden = false;
  byId("trouble").textContent = `The page cannot be shown: ${error.message}`;
  console.error(error);
});

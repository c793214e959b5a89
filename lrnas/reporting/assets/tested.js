/** Indices of the study and of the network of a trial; null if the trial is not on the page. */
function placeOfTrial(studyName, number) {
  const study = page.data.studies.findIndex((one) => one.name === studyName);
  const network = study < 0 || number == null ? -1 : page.data.studies[study].networks.findIndex((one) => one.number === number);
  return network < 0 ? null : [study, network];
}

/** A name that opens the card of a trial; plain text if the trial is not on the page. */
function trialLink(studyName, number, name) {
  const place = placeOfTrial(studyName, number);
  if (!place) return name;
  return cardLink(page.data.studies[place[0]].networks[place[1]], name);
}

/** Name of a network trained again, with its trial if it has a name of its own. */
const finalTitle = ({ name, trial }) => (trial == null ? name : titleOf({ name, number: trial }));
const studyOf = (one) => page.data.studies.find((study) => study.name === one.study);
const spread = (final) => (final.deviation == null ? "" : ` ± ${fixed(100 * final.deviation, 2)}`);
const testAccuracy = (final) => (final.mean == null ? "–" : `${fixed(100 * final.mean, 2)}${spread(final)} %`);

/** Results of the runs of a network in one line. */
function describeRuns(final) {
  const number = final.accuracies.length;
  const others = ["diverged", "failed", "open"].filter((name) => final[name]).map((name) => `${final[name]} ${name}`);
  const tested = number ? [testAccuracy(final), number === 1 ? "1 seed" : `${number} seeds`] : ["not tested"];
  return [...tested, ...others].join(", ");
}

/** Test results of a network, as facts for its card. */
function testsOf(study, network) {
  return page.data.tested.filter((one) => one.study === study.name).flatMap((one) =>
    one.finals.filter((final) => final.trial === network.number).map((final) => ["test accuracy", `${describeRuns(final)} (${one.name})`]));
}

/** Number of epochs of the retrainings, in words. */
const retrainedFor = () => [...new Set(page.data.tested.map((one) => one.epochs))].join(" or ");

/** Draw the summary: a line for each reference network, or the command that tests networks. */
function drawSummary() {
  const { studies, tested } = page.data;
  const parts = tested.flatMap((one) => [
    make("p", {}, make("b", {}, one.headline), make("span", { class: "muted" }, ` ${one.head}`)),
    make("ul", { class: "verdicts" }, ...one.verdicts.map((verdict) => make("li", { "data-kind": verdict.kind }, ...sentenceParts(one, verdict)))),
  ]);
  for (const study of studies) {
    if (tested.some((one) => one.study === study.name) || !study.networks.some((network) => network.is_full)) continue;
    const whose = studies.length > 1 ? ` of ${study.name}` : "";
    if (study.retrain) parts.push(make("p", {}, make("b", {}, `No network${whose} is tested yet.`)), cardLine(...study.retrain));
    else parts.push(make("p", {}, make("b", {}, `No network${whose} is tested.`), " The study uses a custom training function, which reports no test accuracy."));
  }
  if (tested.some((one) => one.verdicts.length)) {
    parts.push(make("p", { class: "muted" }, `Verdicts are based on test accuracy over seeds, after ${retrainedFor()} of training. The first chart of this page shows what the search used: validation accuracy.`));
  }
  byId("summary-section").hidden = !parts.length;
  byId("summary").replaceChildren(...parts);
}

/** The sentence of a verdict, with the network found as a link to its card. */
function sentenceParts(one, { point, rival, trial, sentence }) {
  const rest = sentence.slice(point.length).replace(/p ([=<]) /, "p\u00a0$1\u00a0");
  const at = rival == null ? -1 : rest.indexOf(rival);
  if (at < 0) return [make("b", {}, point), rest];
  return [make("b", {}, point), rest.slice(0, at), trialLink(one.study, trial, rival), rest.slice(at + rival.length)];
}

function drawTested() {
  const { tested } = page.data;
  const isTested = tested.some((one) => one.finals.some((final) => final.mean != null));
  byId("tested-title").textContent = `Trained again for ${retrainedFor()}${isTested ? " and tested" : ", not tested yet"}`;
  byId("tested-heads").replaceChildren(...tested.map((one) => make("p", {}, one.head)));
  drawTestedChart();
  drawVerdicts();
  drawTestedTable();
}

function drawTestedChart() {
  const { tested } = page.data;
  const several = tested.length > 1;
  const isShaded = page.data.studies.length > 1;
  const isKnown = tested.every((one) => one.finals.every((final) => final[page.axis] != null));
  const axis = isKnown ? currentAxis() : page.data.axes[0];
  const ring = { mode: "markers", marker: { symbol: "circle-open", size: 17, color: colour("--ink"), line: { width: 1.3 } } };
  const every = [];
  const traces = [];
  tested.forEach((one) => {
    const places = one.finals.filter((final) => final.mean != null).map((final) => ({ x: final[axis.name] / axis.unit, y: 100 * final.mean, final, name: final.name, study: studyOf(one),
      bar: final.deviation == null ? NaN : 100 * final.deviation }));
    if (!places.length) return;
    const steps = staircase(places);
    const shade = studyColour(page.data.studies.findIndex((study) => study.name === one.study));
    const group = several ? { legendgroup: one.name } : {};
    const traceOf = (name, some, marker) => ({
      type: "scatter", mode: "markers", name: several ? `${plain(one.name)}, ${name}` : name, x: some.map((p) => p.x), y: some.map((p) => p.y), marker,
      error_y: { type: "data", array: some.map((p) => p.bar), color: marker.color, thickness: 1.2, width: 4 },
      customdata: some.map(({ final }) => placeOfTrial(one.study, final.trial)), legendgroup: name, ...group,
      text: some.map(({ final }) => `<b>${plain(finalTitle(final))}</b>, ${plain(one.name)}<br>${describeRuns(final)}<br>${describeCosts(studyOf(one), final)}`),
      hovertemplate: "%{text}<extra></extra>",
    });
    traces.push({ type: "scatter", mode: "lines", name: "best for the cost shown", legendrank: 1001, x: steps.map((p) => p.x), y: steps.map((p) => p.y), showlegend: !several,
      line: { shape: "hv", color: isShaded ? shade : colour("--ink"), width: 1.2 }, hoverinfo: "skip", ...group });
    for (const isReference of [false, true]) {
      const some = places.filter((p) => p.final.is_reference === isReference);
      const marker = { color: isShaded ? shade : colour(isReference ? "--reference" : "--found"), size: isReference ? 10 : 9 };
      const solid = some.filter((p) => p.final.accuracies.length > 1);
      const hollow = some.filter((p) => p.final.accuracies.length === 1);
      const [name, symbol] = isReference ? ["reference", "diamond"] : ["found", "circle"];
      if (solid.length) traces.push(traceOf(name, solid, { ...marker, symbol }));
      if (hollow.length) traces.push({ ...traceOf(name, hollow, { ...marker, symbol: `${symbol}-open` }), showlegend: !solid.length });
    }
    const ringed = places.filter((p) => p.final.mark);
    traces.push({ type: "scatter", name: "front by means", legendrank: 1001, x: ringed.map((p) => p.x), y: ringed.map((p) => p.y), showlegend: !several,
      hoverinfo: "skip", ...ring, ...group });
    every.push(...places);
  });
  for (const part of ["tested", "tested-caption"]) byId(part).hidden = !every.length;
  if (!every.length) return;
  if (several) traces.push(legendLine("best for the cost shown"), legendKey("front by means", ring));
  byId("tested-costs").textContent = [...new Set(tested.map((one) => ["test accuracy", ...one.costs.map(objectiveLabel)].join(", ")))].join("; ");
  const marks = markedCosts([...new Set(tested.map(studyOf))], axis, every);
  const isNamed = ({ final }) => every.length <= MOST_NAMED || final.is_reference || final.mark;
  const ranges = frontRanges(every, [], marks.map((mark) => mark.x));
  draw("tested", `Test accuracy against ${axis.label} of ${every.length} networks, mean and standard deviation over seeds. The table below has the numbers.`, traces, {
    xaxis: { title: { text: axis.label }, type: page.scale, range: ranges.x, ...costTicks("tested", ranges.x) },
    yaxis: { title: { text: "test accuracy, %" }, range: ranges.y },
    shapes: costMarks(marks).shapes,
    annotations: [...costMarks(marks).annotations, ...nameNotes("tested", every.filter(isNamed).map((p) => ({ ...p, text: p.final.name, canMiss: !p.final.is_reference })),
      every.filter((p) => !isNamed(p)), traces, ranges, marks)],
  });
}

/** Fill a table; a title that begins with "#" marks a column of numbers. */
function fillTable(id, titles, rows) {
  const kinds = titles.map((title) => (title.startsWith("#") ? "number" : ""));
  const head = make("tr", {}, ...titles.map((title, i) => make("th", { class: kinds[i], scope: "col" }, title.replace("#", ""))));
  byId(id).replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows.map((cells) => make("tr", {}, ...cells.map((cell, i) =>
    make("td", { class: kinds[i] || (titles[i] === "note" ? "wide" : "") }, cell))))));
}

function drawVerdicts() {
  const { tested } = page.data;
  const several = tested.length > 1;
  const costs = [...new Set(tested.flatMap((one) => one.costs))];
  const points = (value) => (value == null ? "–" : (value < 0 ? "−" : "+") + fixed(Math.abs(100 * value), 2));
  const rows = tested.flatMap((one) => one.verdicts.map((verdict) => {
    const own = one.finals.find((final) => final.is_reference && final.name === verdict.point);
    return [trialLink(one.study, own?.trial, verdict.point), ...(several ? [one.name] : []), verdict.kind,
      verdict.rival == null ? "–" : trialLink(one.study, verdict.trial, verdict.rival), ...costs.map((name) => formatShare(verdict.shares[name])),
      points(verdict.difference), verdict.interval == null ? "–" : verdict.interval.map(points).join(" to "),
      verdict.p == null ? "–" : verdict.p < 0.001 ? "< 0.001" : verdict.p.toFixed(3), verdict.note];
  }));
  byId("verdicts-part").hidden = !rows.length;
  fillTable("verdicts", ["reference", ...(several ? ["retraining"] : []), "verdict", "network found", ...costs.map((name) => `#share of its ${objectiveLabel(name)}`), "#difference, points", "#95 % interval", "#p", "note"], rows);
  byId("verdict-test").textContent = `The test: ${page.data.test}.`;
}

/** Draw the table of networks trained again, with everything that the terminal shows. */
function drawTestedTable() {
  const { tested } = page.data;
  const several = tested.length > 1;
  const finals = tested.flatMap((one) => one.finals.map((final) => ({ one, final })));
  const further = ["diverged", "failed", "open"].filter((name) => finals.some(({ final }) => final[name]));
  const isTimed = finals.some(({ final }) => final.latency != null);
  const rows = finals.map(({ one, final }) => {
    const notes = [final.mark, final.is_reference && "reference", final.reason && `last error: ${final.reason}`].filter(Boolean);
    return [trialLink(one.study, final.trial, finalTitle(final)), ...(several ? [one.name] : []), whole(final.macs), formatShare(final.share), whole(final.params),
      ...(isTimed ? [final.latency == null ? "–" : `${final.latency.toFixed(3)} ms`] : []), testAccuracy(final), String(final.accuracies.length), final.runs.join(", "),
      ...further.map((name) => String(final[name])), notes.join(", ")];
  });
  fillTable("tested-table", ["network", ...(several ? ["retraining"] : []), "#MACs", "#share", "#parameters", ...(isTimed ? ["#latency"] : []), "#test accuracy", "#n", "#runs", ...further.map((name) => `#${name}`), "note"], rows);
  byId("tested-note").textContent = "Share: MACs relative to the dense network. Test accuracy: mean ± standard deviation over n seeds. Runs: numbers for lrnas export STUDY@RECIPE:RUN." +
    (further.length ? " Runs that diverged, failed or are open do not count in n." : "") + " The front is computed from these means and ignores the noise between seeds." +
    (finals.some(({ final }) => final.mark === "front by fewer runs") ? " A network with fewer runs than others may be on the front, or not, by chance: train it with as many seeds." : "");
}

// the page sends nothing: Plotly's button for uploading charts is removed
const CONFIG = { responsive: true, displaylogo: false, plotlyServerURL: "", modeBarButtonsToRemove: ["sendChartToCloud", "lasso2d", "select2d", "toImage"],
  modeBarButtonsToAdd: [{ name: "picture", title: "Download plot as a PNG", icon: Plotly.Icons.camera, click: savePicture }] };
const MOST_IN_ALLOCATION = 60;
const MOST_ROWS = 24;
const MOST_PARAMETERS = 20;
const MOST_ELEMENTS = 300;
const MOST_LAYERS = 14;
// largest number of networks trained in full that all have names
const MOST_NAMED = 8;
// fewest networks of a study that fill a chart
const FEWEST = 3;
// costs that differ by at most this share are one dotted line
const SAME_COST = 0.01;
// hatches of the bars of importances, one for each objective, since colours have other meanings; the first bars are solid
const HATCHES = ["", "", "/", "."];
// largest height of a chart on paper in pixels: a sheet also has a heading and some lines of text
const MOST_ON_PAPER = 820;
// positions of a name, the preferred one first. [a, b, c]: the centre of the name is right of its point by a half widths of the name
// and b pixels (negative: left of it), and below its point by c pixels (negative: above it)
const NOTE_PLACES = [[0, 0, -17], [0, 0, 17], [-1, -10, 0], [1, 10, 0], [1, 10, -14], [-1, -10, -14], [1, 10, 14], [-1, -10, 14], [-1, 0, -32], [1, 0, 32], [-1, 0, -50], [1, 0, 50], [-1, 0, 66], [-1, 0, -68], [1, 0, 84], [-1, 0, 100]];

/** Layout of a chart in the colours of the page. */
function makeLayout(more = {}) {
  const axis = { gridcolor: colour("--line"), linecolor: colour("--line"), zeroline: false };
  const { xaxis, yaxis, ...rest } = more;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--ink"), family: "system-ui, sans-serif", size: 12.5 },
    hoverlabel: { bgcolor: colour("--panel"), bordercolor: colour("--muted"), font: { color: colour("--ink") }, align: "left" },
    margin: { l: 56, r: 16, t: 12, b: 44 }, hovermode: "closest", modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--muted"), activecolor: colour("--ink") },
    // relative to the whole chart: relative to its axes, a legend stays where it was when the chart becomes wider on paper
    legend: { orientation: "h", x: 0, xref: "container", y: 1, yref: "container", yanchor: "top" },
    xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
  };
}

/** Draw a chart, or draw it again; the label describes it for screen readers. */
function draw(id, label, traces, layout) {
  const element = byId(id);
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", label);
  const isNew = !element.data;
  // every trace has its own uid, so that it does not reuse the elements of another trace
  const named = traces.map((trace, i) => ({ ...trace, uid: (trace.marker?.maxdisplayed ? "dots" : "plain") + i }));
  Plotly.react(element, named, makeLayout({ ...layout, ...sizeOnPaper(element) }), CONFIG);
  if (isNew) {
    paintDots(element);
    element.on("plotly_afterplot", () => paintDots(element));
    element.on("plotly_legendclick", (event) => event.data[event.curveNumber].meta !== "key");
    element.on("plotly_relayout", (change) => {
      const isLog = element.layout.xaxis.type === "log";
      if (isLog && Object.keys(change).some((key) => key.startsWith("xaxis.range") || key === "xaxis.autorange")) {
        Plotly.relayout(element, { xaxis: { ...element.layout.xaxis, ...costTicks(id, element.layout.xaxis.range) } });
      }
    });
    element.on("plotly_click", (event) => {
      const network = event.points[0].customdata;
      if (Array.isArray(network)) location.hash = addressOf(page.data.studies[network[0]].networks[network[1]]);
    });
  }
}

const shadeOf = (i) => page.data.palette[i % page.data.palette.length];
const hasSeveral = () => page.data.studies.length > 1;
/** Colour of the networks that a study found, and of the reference networks in it; that of its front. */
const studyColour = (i, isReference = false) => (hasSeveral() ? shadeOf(i) : colour(isReference ? "--reference" : "--found"));
const frontColour = (i) => (hasSeveral() ? shadeOf(i) : colour("--ink"));
const objectiveLabel = (name) => ({ macs: "MACs", params: "parameters" })[name] ?? name;
const currentAxis = () => page.data.axes.find((axis) => axis.name === page.axis);

/** Ticks of the cost axis: on a log axis 1, 2 and 5 in every decade, or only 1 if it is narrow, as plain numbers. */
function costTicks(id, [from, to]) {
  if (page.scale !== "log") return { tickmode: "auto" };
  const steps = byId(id).clientWidth / (to - from) < 150 ? [1] : [1, 2, 5];
  const values = [];
  for (let decade = Math.floor(from) - 1; decade <= to + 1; decade++) values.push(...steps.map((step) => Number(`${step}e${decade}`)));
  const shown = values.filter((value) => Math.log10(value) >= from && Math.log10(value) <= to).length;
  if (shown < 3) return { tickmode: "auto", tickformat: ",~r" };  // the range is too small for these ticks
  return { tickmode: "array", tickvals: values, ticktext: values.map((value) => (value < 1 ? String(value) : whole(value))) };
}

/** Corners of the staircase of the best accuracy for every cost, from the lowest to the highest cost. */
function staircase(places) {
  const best = [];
  for (const place of [...places].sort((a, b) => a.x - b.x || b.y - a.y)) {
    if (!best.length || place.y > best.at(-1).y) best.push(place);
  }
  const dearest = Math.max(...places.map((place) => place.x));
  return best.length ? [...best, { x: dearest, y: best.at(-1).y }] : best;
}

/** Legend entry that explains lines or rings; unlike the entries of studies, it cannot be clicked. */
const legendKey = (name, look) => ({ type: "scatter", name, x: [null], y: [null], hoverinfo: "skip", meta: "key", legendrank: 1001, ...look });
const legendLine = (name) => legendKey(name, { mode: "lines", line: { color: colour("--ink"), width: 1.2 } });

/** A layer in words, computed once for all networks that have it. */
function describeLayer(layer) {
  const spell = ([rows, columns, number]) => `${rows}×${columns} ${number}`;
  layer.words ??= `${plain(layer.name)}: ${layer.groups.map(spell).join(" | ")}${layer.second ? ` → ${spell(layer.second)}` : ""}`;
  return layer.words;
}

function describe(network) {
  const layers = shapesOf(network).filter((layer) => layer.kernel > 1);
  const shown = layers.slice(0, MOST_LAYERS).map(describeLayer);
  if (layers.length > MOST_LAYERS) shown.push(`… ${layers.length - MOST_LAYERS} more`);
  const accuracy = [`${percent(network.accuracy)} after ${network.epochs} epochs`];
  if (network.final) {
    const { promised } = network.final;
    accuracy.unshift(`${describeRuns(network.final)}, in full${promised == null ? "" : `; promised: ${fixed(100 * promised[0], 2)} ± ${fixed(100 * promised[1], 2)} %`}`);
  }
  return [`<b>${plain(titleOf(network))}</b>${hasSeveral() ? ` of ${plain(network.study.name)}` : ""}`, ...accuracy, describeCosts(network.study, network), ...shown].join("<br>");
}

function placesOf(study, studyNumber, wanted) {
  const axis = currentAxis();
  const found = [];
  study.networks.forEach((network, i) => {
    if (wanted(network) && network.accuracy != null && network[axis.name] != null) {
      found.push({ x: network[axis.name] / axis.unit, y: 100 * network.accuracy, network, key: [studyNumber, i] });
    }
  });
  return found;
}

/** Places of the networks that a search trained in full, by their mean accuracy over seeds. */
function finalPlaces(study, studyNumber) {
  const axis = currentAxis();
  return study.networks.flatMap((network, i) => {
    const { final } = network;
    if (!final || final[axis.name] == null) return [];
    return [{ x: final[axis.name] / axis.unit, y: 100 * final.mean, bar: final.deviation == null ? NaN : 100 * final.deviation, network, key: [studyNumber, i] }];
  });
}

function pointTrace(places, name, marker, more = {}) {
  const bars = places.some((p) => p.bar) ? { error_y: { type: "data", array: places.map((p) => p.bar), color: marker.color, thickness: 1.2, width: 4 } } : {};
  return {
    type: "scatter", mode: "markers", name, x: places.map((p) => p.x), y: places.map((p) => p.y), marker,
    customdata: places.map((p) => p.key), text: places.map((p) => describe(p.network)),
    hovertemplate: "%{text}<extra></extra>", ...bars, ...more,
  };
}

/** A trace of points that all look the same. Plotly makes one element for each point; if there are many points, it draws only one, and paintDots draws all. */
function asDots(trace) {
  return trace.x.length > MOST_ELEMENTS ? { ...trace, marker: { ...trace.marker, maxdisplayed: 1 } } : trace;
}

/** Paint all points of a trace as one element: lines of zero length with round ends. Plotly moves it with the trace. */
function paintDots(element) {
  const { xaxis, yaxis } = element._fullLayout;
  for (const { uid, x, y, marker } of element.data) {
    const group = marker?.maxdisplayed && element.querySelector(`.trace${uid}`);
    if (!group) continue;  // its points are elements, or it is switched off in the legend
    group.querySelector(".points").style.display = "none";
    let path = group.querySelector(".dots");
    if (!path) {
      path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.classList.add("dots");
      group.querySelector(".lines").append(path);
    }
    const at = (axis, value) => axis.d2p(value).toFixed(1);
    path.setAttribute("d", x.map((value, i) => (value == null ? "" : `M${at(xaxis, value)},${at(yaxis, y[i])}h0`)).join(""));
    path.setAttribute("stroke", marker.color);
    path.setAttribute("stroke-width", marker.size);
    path.setAttribute("stroke-opacity", marker.opacity ?? 1);
  }
}

/** Save a chart as a file. For this, Plotly draws the chart again with one element for every point. */
function savePicture(element) {
  const data = element.data.map((trace) => (trace.marker?.maxdisplayed ? { ...trace, marker: { ...trace.marker, maxdisplayed: 0 } } : trace));
  const { clientWidth: width, clientHeight: height } = element;
  return Plotly.downloadImage({ data, layout: element.layout }, { format: "png", width, height, filename: element.id });
}

/** Ranges of both axes: networks that were not stopped early fill the chart, with their error bars; other networks, and marked costs, only widen it. If there are hardly any of the former, all are in the chart. */
function frontRanges(full, partial, costs = []) {
  const all = full.length < FEWEST * page.data.studies.length ? [...full, ...partial] : full;
  const ys = all.flatMap((p) => [p.y - (p.bar || 0), p.y + (p.bar || 0)]);
  const isLog = page.scale === "log";
  const [bottom, top] = [Math.min(...ys), Math.max(...ys, ...partial.map((p) => p.y))];
  const margin = 0.1 * (top - bottom) + 0.3;
  const y = [bottom - margin, Math.min(top + margin, 101)];
  const xs = [...full.map((p) => p.x), ...partial.filter((p) => isBetween(p.y, y)).map((p) => p.x), ...costs];
  const [low, high] = [Math.min(...xs), Math.max(...xs)];
  const [from, to] = isLog ? [Math.log10(low), Math.log10(high)] : [0, high];
  const gap = 0.06 * (to - from) + (isLog ? 0.02 : 0);
  return { x: [isLog ? from - gap : 0, to + gap], y };
}

const isBetween = (value, [low, high]) => value >= low && value <= high;

/** Costs to mark in a picture: those of dense networks, and of reference networks beyond a limit. A text names the studies to which the line belongs, unless it belongs to all. Networks are not marked if they are drawn by name: for the same study, or at the same cost. */
function markedCosts(studies, axis, drawn) {
  const lines = [];
  for (const study of studies) {
    const marks = new Map();
    for (const network of study.networks) if (network.is_reference && network.status === "limit") marks.set(network.name, [network[axis.name], "beyond the limit"]);
    if (study.dense && !marks.has(study.dense.name)) marks.set(study.dense.name, [study.dense[axis.name], "the dense network"]);
    for (const [name, [cost, remark]] of marks) {
      const x = cost / axis.unit;
      const isSame = (one) => one.name === name && Math.abs(one.x - x) <= SAME_COST * x;
      if (cost == null || drawn.some((one) => isSame(one) || (one.name === name && one.study === study))) continue;
      if (!lines.some(isSame)) lines.push({ name, x, owners: new Map() });
      const { owners } = lines.find(isSame);
      owners.set(remark, [...(owners.get(remark) ?? []), study.name]);
    }
  }
  const whose = (names) => (names.length === studies.length ? "" : names.length > 2 ? ` (${names.length} of ${studies.length} studies)` : ` (${names.join(", ")})`);
  return lines.map(({ name, x, owners }) => ({ x, text: `${name}, ${[...owners].map(([remark, names]) => remark + whose(names)).join("; ")}` }));
}

/** Dotted lines at marked costs, and their names, as parts of a layout. */
function costMarks(marks) {
  const at = (x) => (page.scale === "log" ? Math.log10(x) : x);
  return {
    shapes: marks.map(({ x }) => ({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, layer: "below", line: { color: colour("--muted"), dash: "dot", width: 1 } })),
    annotations: marks.map(({ x, text }) => ({ x: at(x), y: 1, yref: "paper", text: plain(text), textangle: -90, xanchor: "right", yanchor: "top", showarrow: false, font: { size: 11.5, color: colour("--muted") } })),
  };
}

function drawFront() {
  const { studies } = page.data;
  const several = studies.length > 1;
  const traces = [], faintTraces = [];
  const every = { full: [], partial: [], reference: [] };
  // accuracies of different levels of training are never in one line: either all studies show their finals, or none does
  const isFinal = studies.every((study) => study.finals.length);
  const isRinged = ({ network }) => (isFinal ? network.on_final_front : network.on_front);
  const faint = isFinal ? "after short training" : "stopped early";
  const trainings = [...new Set(studies.map((study) => study.training))].join(" or ");
  studies.forEach((study, i) => {
    const full = isFinal ? finalPlaces(study, i) : placesOf(study, i, (network) => network.is_full);
    const partial = placesOf(study, i, (network) => (isFinal ? network.is_full : network.is_partial));
    const steps = staircase(full);
    const group = { legendgroup: String(i), showlegend: false };
    if (partial.length && page.showPartial) {
      const shown = several ? group : {};
      faintTraces.push(asDots(pointTrace(partial, faint, { color: several ? studyColour(i) : colour("--muted"), size: 6, opacity: 0.35 }, shown)));
    }
    traces.push({ type: "scatter", mode: "lines", name: "best for the cost shown", legendrank: 1001, x: steps.map((p) => p.x), y: steps.map((p) => p.y),
      line: { shape: "hv", color: frontColour(i), width: 1.2 }, hoverinfo: "skip", ...(several ? group : {}) });
    const found = full.filter((p) => !p.network.is_reference);
    const references = full.filter((p) => p.network.is_reference);
    // one style for all points of a trace: Plotly draws this several times faster than one style per point
    const marker = { color: studyColour(i), size: 8 };
    traces.push(asDots(pointTrace(found.filter((p) => !isRinged(p)), isFinal ? "trained in full" : study.training, marker, several ? group : { legendgroup: String(i) })));
    // a trace without points: all networks of a study may be on the front, or reference networks
    if (several && (full.length || (partial.length && page.showPartial))) traces.push({ ...pointTrace([], plain(study.name), marker), x: [null], y: [null], legendgroup: String(i) });
    const line = { color: colour("--ink"), width: 1.3 };
    traces.push(pointTrace(found.filter(isRinged), "on the front", { ...marker, size: 10, line }, several ? group : {}));
    const diamond = { symbol: "diamond", size: 11, color: studyColour(i, true) };
    const [on, off] = [references.filter(isRinged), references.filter((p) => !isRinged(p))];
    const shown = several ? group : { legendgroup: "reference" };
    if (off.length) traces.push(pointTrace(off, "reference", diamond, shown));
    if (on.length) traces.push(pointTrace(on, "reference", { ...diamond, line }, { ...shown, showlegend: !several && !off.length }));
    every.full.push(...full); every.partial.push(...partial); every.reference.push(...references);
  });
  const isEmpty = !every.full.length && !every.partial.length;
  byId("front").hidden = byId("front-what").hidden = isEmpty;
  byId("front-empty").hidden = !isEmpty;
  byId("front-empty").textContent = `This cost is not known for any trained network: ${currentAxis().label}. Choose another cost.`;
  if (isEmpty) return;
  if (several) traces.push(legendLine("best for the cost shown"));
  const marks = markedCosts(studies, currentAxis(), every.reference.map(({ network, x }) => ({ name: network.name, study: network.study, x })));
  const rangesWith = (partial) => frontRanges(every.full, partial, marks.map((mark) => mark.x));
  const { y: height } = rangesWith(every.partial);
  const outside = every.partial.filter((p) => !isBetween(p.y, height)).length;
  const hasFaint = outside < every.partial.length;
  if (hasFaint) traces.unshift(...faintTraces);
  byId("show-partial").parentElement.hidden = !hasFaint;
  byId("front-faint").textContent = faint;
  byId("front-kind").textContent = isFinal
    ? `Validation accuracy after full training, mean and standard deviation over seeds.${hasFaint ? " Faint: all networks after the short training of the search, one seed." : ""}`
    : `Validation accuracy in the search, one seed. Solid: after ${trainings}.${hasFaint ? " Faint: stopped early, with the last accuracy." : ""}${studies.some((study) => study.finals.length) ? " For studies with finals, networks and front are those of the short training, before the finals." : ""}`;
  byId("front-objectives").textContent = [...new Set(studies.map((study) => study.objectives.map(objectiveLabel).join(", ")))].join("; ");
  byId("front-references").hidden = !every.reference.length;
  const shown = page.showPartial || !every.full.length ? every.partial : [];
  const ranges = rangesWith(shown);
  byId("front-outside").textContent = outside && (page.showPartial || !hasFaint) ? `Not shown: ${whole(outside)} of ${whole(every.partial.length)} networks ${faint}, whose accuracies are outside the axis.` : "";
  const named = [...new Map(every.reference.map((p) => [several ? p.network.name + p.x + p.y : p.network.name, p])).values()];
  const fewOf = ({ best }) => new Set(several ? [] : best);
  const isHeadline = (network) => network.number === network.study.headline;
  const isAll = isFinal && every.full.length <= MOST_NAMED;
  const few = every.full.filter((p) => !p.network.is_reference && (isAll || isHeadline(p.network) || fewOf(p.network.study).has(p.network.number)));
  const top = Math.max(...every.full.map((p) => p.y));
  const best = Math.max(...[...every.full, ...every.partial].map((p) => p.y));
  const label = `Validation accuracy against ${currentAxis().label}: ${every.full.length} networks ${isFinal ? "trained in full" : `after ${trainings}`}, ${every.partial.length} ${faint}, ` +
    `at best ${fixed(best, 2)} %. The table of all trials has the numbers.`;
  draw("front", label, traces, {
    xaxis: { title: { text: currentAxis().label }, type: page.scale, range: ranges.x, ...costTicks("front", ranges.x) },
    yaxis: { title: { text: "validation accuracy, %" }, range: ranges.y },
    shapes: costMarks(marks).shapes,
    annotations: [...costMarks(marks).annotations, ...nameNotes("front", [...named, ...few].map((p) => ({ x: p.x, y: p.y, bar: p.bar, text: p.network.name, canMiss: !p.network.is_reference && !isHeadline(p.network) && p.y < top })),
      every.full.filter((p) => !p.network.is_reference && !few.includes(p)), traces, ranges, marks)],
  });
}

/** Annotations with names beside points. They do not overlap each other or the texts of marked costs and, if there is room, they do not hide points, error bars or lines of fronts. Names that can be missed are left out where there is no room. */
function nameNotes(id, places, others, traces, ranges, marks) {
  const element = byId(id);
  const [width, height] = [element.clientWidth - 80, element.clientHeight - 90];
  const isLog = page.scale === "log";
  const at = (place) => {
    const x = isLog ? Math.log10(place.x) : place.x;
    return [width * (x - ranges.x[0]) / (ranges.x[1] - ranges.x[0]), height * (1 - (place.y - ranges.y[0]) / (ranges.y[1] - ranges.y[0]))];
  };
  const scale = height / (ranges.y[1] - ranges.y[0]);
  const boxOf = (place) => { const [x, y] = at(place); const bar = (place.bar || 0) * scale; return [x - 7, y - Math.max(7, bar), x + 7, y + Math.max(7, bar)]; };
  const texts = marks.map(({ x, text }) => [at({ x })[0] - 16, 0, at({ x })[0] + 2, 6.2 * text.length]);
  const taken = [...places.map(boxOf), ...texts];
  const steps = traces.filter(({ mode }) => mode === "lines").flatMap(({ x, y }) => x.slice(1).flatMap((_, i) => {
    const [[x0, y0], [x1, y1]] = [at({ x: x[i], y: y[i] }), at({ x: x[i + 1], y: y[i + 1] })];
    return [[x0, y0 - 1, x1, y0 + 1], [x1 - 1, Math.min(y0, y1), x1 + 1, Math.max(y0, y1)]];
  }));
  const points = [...others.map(boxOf), ...steps];
  const notes = [];
  for (const place of [...places].sort((a, b) => Boolean(a.canMiss) - Boolean(b.canMiss) || b.x - a.x)) {
    const [x, y] = at(place);
    const half = 3.4 * place.text.length + 3;
    const boxes = NOTE_PLACES.map(([across, dx, dy]) => [across * half + dx, dy]).map(([dx, dy]) => ({ dx, dy, box: [x + dx - half, y + dy - 8, x + dx + half, y + dy + 8] }))
      .filter(({ box }) => box[0] > 0 && box[2] < width + 12 && box[1] > -6 && box[3] < height);
    const isFree = (box, some) => !some.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3]);
    const free = boxes.filter(({ box }) => isFree(box, taken));
    const chosen = free.find(({ box }) => isFree(box, points)) ?? free[0];
    if (!chosen && place.canMiss) continue;
    if (chosen) taken.push(chosen.box);
    const [ax, ay] = chosen ? [chosen.dx, chosen.dy] : [0, -17];
    notes.push({ x: isLog ? Math.log10(place.x) : place.x, y: place.y, text: plain(place.text), ax, ay,
      showarrow: true, arrowhead: 0, arrowwidth: 0.6, standoff: 6,
      arrowcolor: Math.hypot(ax, ay) > 30 ? colour("--muted") : "rgba(0,0,0,0)", font: { size: 12, color: colour("--ink") } });
  }
  return notes;
}

function drawHistory() {
  const some = page.data.studies.filter((study) => study.history.length);
  byId("history-section").hidden = !some.length;
  if (!some.length) return;
  byId("history-level").textContent = some.some((study) => study.finals.length) ? " after the short training of the search" : "";
  const overTime = page.historyAxis === "seconds";
  const longest = Math.max(...some.map((study) => study.history.at(-1)[1]));
  const [unit, name] = longest > 7200 ? [3600, "hours"] : longest > 120 ? [60, "minutes"] : [1, "seconds"];
  const label = "Hypervolume of the front by " + (overTime ? "training time" : "finished trials") +
    `: ${some.map((study) => `${study.name} reaches ${study.history.at(-1)[2].toFixed(4)}`).join(", ")}.`;
  draw("history", label, some.map((study) => ({
    type: "scatter", mode: "lines", name: plain(study.name), showlegend: some.length > 1,
    x: study.history.map(([trials, seconds]) => (overTime ? seconds / unit : trials)), y: study.history.map((moment) => moment[2]),
    line: { shape: "hv", color: frontColour(page.data.studies.indexOf(study)) }, hovertemplate: "%{y:.4f}<extra>%{x}</extra>",
  })), {
    xaxis: { title: { text: overTime ? `training time, ${name}` : "finished trials" } },
    yaxis: { title: { text: "hypervolume" } },
  });
}

/** Ticks at whole epochs. */
const epochTicks = (epochs) => ({ tick0: 0, dtick: Math.max(1, Math.round(epochs / 10)) });

function drawCurves() {
  const study = page.data.studies[page.study];
  const groups = new Map();
  study.networks.forEach((network, i) => {
    if (!network.curve.length || !(network.is_full || network.is_partial)) return;
    const name = !network.is_full ? `stopped after ${network.epochs}` : network.is_reference ? "reference" : network.on_front ? "on the front" : "not stopped";
    if (!groups.has(name)) groups.set(name, { x: [], y: [], customdata: [], text: [] });
    const group = groups.get(name);
    network.curve.forEach((value, epoch) => {
      group.x.push(epoch + 1); group.y.push(100 * value); group.customdata.push([page.study, i]); group.text.push(plain(titleOf(network)));
    });
    group.x.push(null); group.y.push(null); group.customdata.push(null); group.text.push("");
  });
  byId("curves-section").hidden = !groups.size;
  if (!groups.size) return;
  const stopped = [...groups.keys()].filter((name) => name.startsWith("stopped")).sort((a, b) => a.length - b.length || (a < b ? -1 : 1));
  const order = [...stopped, "not stopped", "on the front", "reference"].filter((name) => groups.has(name));
  byId("curves-level").textContent = study.finals.length ? "Curves and front are those of the short training, before the finals." : "";
  byId("curves-rungs").hidden = !study.rungs.length;
  const styleOf = (name) => {
    if (name === "on the front") return { color: colour("--ink"), width: 1.4, opacity: 1 };
    if (name === "reference") return { color: studyColour(page.study, true), width: 1.6, dash: "dash", opacity: 1 };
    if (name === "not stopped") return { color: studyColour(page.study), width: 1, opacity: 0.5 };
    const shade = 0.35 + 0.3 * (stopped.indexOf(name) / Math.max(1, stopped.length));
    return { color: colour("--muted"), width: 0.8, opacity: shade };
  };
  draw("curves", `Validation accuracy of the networks of ${study.name} by epoch.`, order.map((name) => {
    const { opacity, ...line } = styleOf(name);
    const trace = { type: "scatter", mode: "lines", name, ...groups.get(name), line, opacity, hovertemplate: "%{text}<br>%{y:.2f} % after %{x}<extra></extra>" };
    return name === "stopped after 1" || study.epochs === 1 ? asDots({ ...trace, mode: "markers", opacity: 1, marker: { color: line.color, size: 4, opacity } }) : trace;
  }), {
    xaxis: { title: { text: study.finals.length ? "epoch of the short training" : "epoch" }, ...epochTicks(study.epochs), range: [0.9, study.epochs + 0.1] },
    yaxis: { title: { text: "validation accuracy, %" } },
    shapes: study.rungs.map((rung) => ({ type: "line", x0: rung, x1: rung, yref: "paper", y0: 0, y1: 1, line: { color: colour("--muted"), dash: "dot", width: 1 } })),
  });
}

function drawImportances() {
  const { importances, networks } = page.data.studies[page.study];
  const goals = Object.keys(importances);
  byId("importances-section").hidden = !goals.length;
  if (!goals.length) return;
  const full = networks.filter((network) => network.is_full).length;
  const every = Object.keys(importances[goals[0]]);
  const names = every.slice(0, MOST_PARAMETERS).reverse();
  byId("importances-note").textContent = `From ${full} trained networks.` +
    (names.length < every.length ? ` ${names.length} of ${every.length} parameters are shown: those with the highest importance in any objective.` : "");
  byId("importances").style.height = `${Math.max(220, 22 * names.length + 90)}px`;
  const first = every.slice(0, 3).join(", ");
  draw("importances", `Importances of parameters for ${goals.join(" and ")}: the first are ${first}.`, goals.map((goal, i) => ({
    type: "bar", orientation: "h", name: objectiveLabel(goal), y: names.map(plain), x: names.map((name) => importances[goal][name]),
    marker: { color: colour(i ? "--panel" : "--ink"), line: { color: colour("--ink"), width: 1 }, pattern: { shape: HATCHES[i], fgcolor: colour("--ink"), size: 5 } }, hovertemplate: "%{y}: %{x:.3f}<extra>%{fullData.name}</extra>",
  })), { barmode: "group", xaxis: { title: { text: "importance" } }, yaxis: { type: "category", automargin: true } });
}

function spreadOut(list, number) {
  if (list.length <= number) return list;
  return Array.from({ length: number }, (_, i) => list[Math.round(i * (list.length - 1) / (number - 1))]);
}

/** The groups of filters of a layer; for a separable layer, both halves. */
function filtersOf(layer) {
  return layer.second && layer.join == null ? [...layer.groups, layer.second] : layer.groups;
}

/** Number of filters of a layer, its width; with a kind, of this kind only. */
const widthOf = (layer, kind = null) => filtersOf(layer).filter((group) => kind == null || group[3] === kind).reduce((sum, group) => sum + group[2], 0);

/** Layers that differ in shapes or widths between networks or from the dense network, as [name, widths], in an order that agrees with all networks; if several orders do, numbers in the names decide. */
function variedLayers(networks, denseWidths) {
  const before = new Map(), widths = new Map(), isMixed = new Set();
  for (const { network } of networks) {
    const layers = shapesOf(network).filter((layer) => layer.groups.length);
    layers.forEach(({ name }, i) => before.set(name, new Set([...(before.get(name) ?? []), ...layers.slice(0, i).map((layer) => layer.name)])));
    for (const layer of layers) {
      widths.set(layer.name, (widths.get(layer.name) ?? new Set(layer.name in denseWidths ? [denseWidths[layer.name][0]] : [])).add(widthOf(layer)));
      if (layer.kernel > 1) isMixed.add(layer.name);
    }
  }
  const found = [];
  while (before.size) {
    const left = [...before.keys()], free = left.filter((name) => !before.get(name).size);
    const [next] = (free.length ? free : left).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    if (isMixed.has(next) || widths.get(next).size > 1) found.push({ name: next, most: Math.max(...widths.get(next)), size: isMixed.has(next) ? 1 : 0.6 });
    before.delete(next);
    for (const others of before.values()) others.delete(next);
  }
  return found;
}

function drawAllocation() {
  const study = page.data.studies[page.study];
  const all = study.networks.map((network, i) => ({ network, key: [page.study, i] })).filter((p) => isOnFront(p.network) && p.network.layers.shapes.length);
  const axis = all.every((p) => p.network[page.axis] != null) ? currentAxis() : page.data.axes[0];
  all.sort((a, b) => a.network[axis.name] - b.network[axis.name]);
  const front = spreadOut(all, MOST_IN_ALLOCATION);
  const varied = variedLayers(front, study.dense_widths);
  const layers = varied.length > MOST_ROWS ? varied.filter((layer) => layer.size === 1) : varied;
  byId("allocation-section").hidden = !layers.length;
  if (!layers.length) return;
  const dotted = new Set(layers.flatMap(({ name }) => study.dense_widths[name]?.slice(1) ?? []));
  const isJoined = front.some((p) => shapesOf(p.network).some((layer) => layer.join != null));
  byId("allocation-note").textContent = (dotted.size ? `Dotted: the width in ${[...dotted].join(" or ")}.` : "") + (isJoined ? " A dot above a bar: a 1×1 join follows." : "") +
    (layers.length < varied.length ? " Layers of 1×1 filters are left out." : "") +
    (front.length < all.length ? ` ${front.length} of ${all.length} networks are shown.` : "");
  const size = layers.reduce((sum, layer) => sum + layer.size, 0);
  byId("allocation").style.height = `${Math.min(64 * size + 130, onPaper ? MOST_ON_PAPER : Infinity)}px`;
  const traces = [];
  const layout = { barmode: "stack", bargap: 0.12, annotations: [], shapes: [], margin: { l: 7 * Math.max(...layers.map(({ name }) => name.length)) + 12, r: 44, t: 34, b: 70 } };
  let top = 1;
  layers.forEach(({ name, most, size: own }, row) => {
    const suffix = row ? String(row + 1) : "";
    const step = own / size, dense = study.dense_widths[name]?.[0];
    layout["yaxis" + suffix] = { domain: [Math.max(0, top - 0.86 * step), top], range: [0, 1.25 * most], side: "right", tickvals: [dense ?? most], tickfont: { size: 11 }, showline: false,
      showgrid: false, zeroline: false, fixedrange: true };
    top -= step;
    if (dense) layout.shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, yref: "y" + suffix, y0: dense, y1: dense, line: { color: colour("--muted"), dash: "dot", width: 1 } });
    layout.annotations.push({ text: plain(name), xref: "paper", yref: "y" + suffix + " domain", x: 0, y: 0.4, xanchor: "right", xshift: -6, showarrow: false, font: { size: 11.5 } });
    const found = front.map((p) => shapesOf(p.network).find((layer) => layer.name === name));
    for (const kind of Object.keys(page.data.shades)) {
      const numbers = found.map((layer) => (layer ? widthOf(layer, kind) : 0));
      if (!numbers.some(Boolean)) continue;
      traces.push({ type: "bar", name: formatShape(kind), legendgroup: kind, showlegend: !traces.some((trace) => trace.legendgroup === kind), yaxis: "y" + suffix,
        x: front.map((_, i) => i), y: numbers, marker: { color: page.data.shades[kind] }, customdata: front.map((p) => p.key),
        text: front.map((p, i) => `<b>${plain(titleOf(p.network))}</b>, ${percent(p.network.final?.mean ?? p.network.accuracy)}<br>${found[i] ? describeLayer(found[i]) : ""}`),
        textposition: "none", hovertemplate: "%{text}<extra></extra>" });
    }
    const joined = front.map((p, i) => [i, found[i]]).filter(([, layer]) => layer && layer.join != null);
    if (joined.length) {
      traces.push({ type: "scatter", mode: "markers", name: "join", legendgroup: "join", showlegend: !traces.some((trace) => trace.legendgroup === "join"), yaxis: "y" + suffix,
        x: joined.map(([i]) => i), y: joined.map(([, layer]) => widthOf(layer) + 0.13 * most), marker: { color: colour("--ink"), size: 5 }, text: joined.map(([, layer]) => `${layer.join} channels`), hovertemplate: "join: %{text}<extra></extra>" });
    }
  });
  layout.xaxis = { title: { text: axis.label }, anchor: "y" + (layers.length > 1 ? layers.length : ""), tickangle: -90, showgrid: false,
    tickvals: front.map((_, i) => i), ticktext: front.map((p) => Number((p.network[axis.name] / axis.unit).toPrecision(3))), range: [-0.6, front.length - 0.4] };
  draw("allocation", `Numbers of filters by shape in ${layers.length} layers of ${front.length} networks on the front of ${study.name}; a network's card has the numbers.`, traces, layout);
}

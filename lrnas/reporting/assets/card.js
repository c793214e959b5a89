/** Show the card that the address of the page asks for; without one, close the card. */
function followAddress() {
  const network = networkAt(location.hash);
  if (network) openCard(network);
  else if (byId("card").open) byId("card").close();
}

/** After a card is closed, the address is that of the page again. */
function forgetAddress() {
  if (networkAt(location.hash)) history.replaceState(null, "", location.href.split("#")[0]);
}

/** Open the card of a network: its facts, layers, training curve and shell commands. */
function openCard(network) {
  const card = byId("card"), { study } = network;
  page.card = network;
  const close = make("button", { type: "button", "aria-label": "close", autofocus: true, onclick: () => card.close() }, "✕");
  const copy = make("button", { type: "button", title: "copy the address of this card", onclick: () => copyText(location.href.split("#")[0] + addressOf(network), copy) }, "Copy link");
  const title = make("h2", { id: "card-title" }, titleOf(network));
  const parts = [make("div", { class: "card-head" }, title, make("div", {}, copy, " ", close)), cardFacts(study, network)];
  const layers = layersOf(network);
  if (layers.length) parts.push(make("h4", {}, isFolded(network) ? "Layers, as deployed" : "Layers"), cardLegend(), cardLayers(network, layers));
  if (network.curve.length) parts.push(make("h4", {}, "Validation accuracy by epoch"), make("div", { id: "card-curve", class: "small", role: "img", "aria-label": `Validation accuracy after each of ${network.curve.length} epochs, at the end ${percent(network.accuracy)}` }));
  const again = make("div", {});
  textsOf(network).then(({ lines }) => again.append(...lines.map(([title, line]) => cardLine(title, line))));
  card.replaceChildren(...parts, make("h4", {}, "Commands"), again);
  if (!card.open) card.showModal();
  card.scrollTop = 0;
  watchScrolling(card);
  drawCardAgain();
}

/** Draw the training curve on the open card again, if there is one. */
function drawCardAgain() {
  if (byId("card").open && page.card.curve.length) drawCardCurve(page.card.study, page.card);
}

/** Whether a network as deployed has layers that were several convolutions in training. */
const isFolded = (network) => network.macs_as_built !== network.macs;

function cardFacts(study, network) {
  const facts = [
    ...(hasSeveral() ? [["study", study.name]] : []), ["status", network.status_words + (isOnFront(network) ? ", on the front" : "")],
    ...(network.final ? [["validation accuracy, in full", describeRuns(network.final)]] : []),
    ["validation accuracy" + (network.final ? ", short" : ""), percent(network.accuracy)], ...testsOf(study, network), ["MACs", whole(network.macs)],
    ...(network.share == null ? [] : [[`share of ${study.dense.name}'s MACs`, formatShare(network.share)]]),
    ...(isFolded(network) ? [["MACs as built", whole(network.macs_as_built)]] : []), ["parameters", whole(network.params)],
    ...(network.latency == null ? [] : [["latency", network.latency.toFixed(3) + " ms"]]),
    ["epochs", network.epochs], ["training", duration(network.seconds)],
    ...Object.entries(network.metrics), ...(network.reason ? [["reason", network.reason]] : []),
  ];
  return make("dl", { class: "facts" }, ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, String(value)))));
}

function cardLegend() {
  return make("div", { class: "legend" }, ...Object.entries(page.data.shades).map(([kind, shade]) =>
    make("span", {}, make("i", { style: `background:${shade}` }), formatShape(kind))));
}

function cardLayers(network, layers) {
  const widest = Math.max(...layers.flatMap((layer) => layer.groups.length ? [layer.groups.reduce((sum, group) => sum + group[2], 0)] : [1]));
  const head = make("tr", {}, ...["layer", "filters", "output"].map((name) => make("th", {}, name)), ...["MACs", "%", "parameters"].map((name) => make("th", { class: "number" }, name)));
  const rows = layers.map((layer) => make("tr", {},
    make("td", {}, layer.name), make("td", {}, filterBar(layer, widest)), make("td", {}, layer.output.join("×")),
    make("td", { class: "number" }, whole(layer.macs)), make("td", { class: "number" }, (100 * layer.macs / network.macs).toFixed(1)),
    make("td", { class: "number" }, whole(layer.params))));
  return make("div", { class: "scroll" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
}

/** Bar of the filters of a layer, with widths proportional to their numbers, and its join or second half. */
function filterBar(layer, widest) {
  if (!layer.groups.length) return "";
  const total = layer.groups.reduce((sum, group) => sum + group[2], 0);
  const groups = layer.groups.map(([rows, columns, number, kind]) => {
    const share = number / total;
    const text = `${rows}×${columns} ${number}`;
    return make("div", { class: kind === "1x1" ? "group pale" : "group", title: `${text} filters`, style: `background:${page.data.shades[kind]};width:${100 * share}%` }, text);
  });
  const width = `width:${(70 * total / widest).toFixed(1)}%`;
  const label = layer.groups.map(([rows, columns, number]) => `${number} of ${rows}×${columns}`).join(", ");
  const bar = make("div", { class: "bar" }, make("div", { class: "groups", style: width, role: "img", "aria-label": label }, ...groups));
  if (layer.second) bar.append(make("span", { class: "join" }, `→ ${layer.second[0]}×${layer.second[1]} ${layer.second[2]}`));
  return bar;
}

function cardLine(title, line) {
  const button = make("button", { type: "button" }, "Copy");
  button.addEventListener("click", () => copyText(line, button));
  return make("div", {}, make("div", { class: "muted" }, title), make("div", { class: "line" }, make("code", { tabindex: "0" }, line), button));
}

function drawCardCurve(study, network) {
  const trace = { type: "scatter", mode: "lines+markers", x: network.curve.map((_, i) => i + 1), y: network.curve.map((value) => 100 * value),
    line: { color: studyColour(page.data.studies.indexOf(study), network.is_reference) }, hovertemplate: "%{y:.2f} % after %{x}<extra></extra>" };
  Plotly.newPlot("card-curve", [trace], makeLayout({ ...sizeOnPaper(byId("card-curve")),
    xaxis: { title: { text: "epoch" }, ...epochTicks(study.epochs), range: [0.8, Math.max(study.epochs, network.curve.length) + 0.2] }, yaxis: { title: { text: "%" } },
    shapes: study.rungs.map((rung) => ({ type: "line", x0: rung, x1: rung, yref: "paper", y0: 0, y1: 1, line: { color: colour("--muted"), dash: "dot", width: 1 } })),
  }), { ...CONFIG, displayModeBar: false });
}

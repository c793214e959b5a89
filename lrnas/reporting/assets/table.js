const AT_A_TIME = 100;
const table = { column: "number", down: false, rows: [], shown: AT_A_TIME };

/** Columns of the table: field, title, and a function that formats a value. */
function tableColumns() {
  const { studies } = page.data;
  const hasLatency = page.data.axes.some((axis) => axis.name === "latency");
  const hasFinals = studies.some((study) => study.finals.length);
  return [
    ["number", "network", null], ...(hasSeveral() ? [["study", "study", String]] : []), ["status_words", "status", String],
    ["accuracy", hasFinals ? "accuracy, short" : "accuracy", percent], ...(hasFinals ? [["final", "accuracy, in full", percent]] : []),
    ["macs", "MACs", whole], ["share", "share", formatShare], ["params", "parameters", whole],
    ...(hasLatency ? [["latency", "latency, ms", (value) => (value == null ? "–" : value.toFixed(3))]] : []),
    ["epochs", "epochs", String], ["seconds", "seconds", (value) => value.toFixed(1)],
    ["front", "front", (value) => (value ? "yes" : "")],
  ];
}

const NUMBERS = new Set(["accuracy", "final", "macs", "share", "params", "latency", "epochs", "seconds"]);

function valueOf(row, column) {
  const computed = { study: () => row.study.name, final: () => row.network.final?.mean, front: () => isOnFront(row.network) };
  return column in computed ? computed[column]() : row.network[column];
}

function chooseRows() {
  const text = byId("find").value.trim().toLowerCase();
  const status = byId("status").value;
  const onlyFront = byId("only-front").checked;
  const rows = page.data.studies.flatMap((study) => study.networks.map((network) => ({ study, network })));
  table.rows = rows.filter(({ study, network }) =>
    (!status || network.status === status) && (!onlyFront || isOnFront(network)) &&
    (!text || `${network.name} ${network.identity} ${network.reason} ${study.name} ${network.number}`.toLowerCase().includes(text)));
  const sign = table.down ? -1 : 1;
  table.rows.sort((a, b) => {
    const [one, two] = [valueOf(a, table.column), valueOf(b, table.column)];
    if (one == null || two == null) return (one == null) - (two == null);  // unknown values come last
    return sign * (typeof one === "string" ? one.localeCompare(two, undefined, { numeric: true }) : one - two);
  });
}

function drawTable() {
  chooseRows();
  const columns = tableColumns();
  const head = make("tr", {}, ...columns.map(([field, title]) => {
    const order = field !== table.column ? "none" : table.down ? "descending" : "ascending";
    return make("th", { class: NUMBERS.has(field) ? "number" : "", "aria-sort": order, scope: "col" },
      make("button", { type: "button", "data-field": field, onclick: () => sortBy(field) }, title));
  }));
  const rows = table.rows.slice(0, table.shown).map(({ study, network }) => make("tr", {}, ...columns.map(([field, , show]) => {
    const attributes = { class: NUMBERS.has(field) ? "number" : "" };
    return make("td", attributes, field === "number" ? cardLink(network) : show(valueOf({ study, network }, field)));
  })));
  byId("trials").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
  const all = page.data.studies.reduce((sum, study) => sum + study.networks.length, 0);
  byId("number").textContent = table.rows.length < all ? `${whole(table.rows.length)} of ${whole(all)} trials` : `${whole(all)} trials`;
  byId("cut").textContent = table.rows.length > table.shown ? `The first ${whole(table.shown)} trials are listed here; on the screen, the page can show all.` : "";
  byId("more").hidden = table.rows.length <= table.shown;
}

function sortBy(field) {
  table.down = field === table.column ? !table.down : ["accuracy", "final", "front"].includes(field);
  table.column = field;
  drawTable();
  byId("trials").querySelector(`button[data-field="${field}"]`).focus();
}

/** The rows of the table as CSV. `on_front` is the front by `accuracy`, and `on_final_front` that by `final`, the mean after full training. */
async function tableAsCsv() {
  const fields = ["study", "number", "status", "point", "identity", "accuracy", "final", "macs", "share", "params", "latency", "epochs", "seconds", "on_front", "on_final_front", "architecture"];
  const quote = (value) => (/[",\n\r]/.test(value) ? `"${value.replace(/"/g, '""')}"` : value);
  const lines = await Promise.all(table.rows.map(async (row) => {
    const { architecture } = await textsOf(row.network);
    return fields.map((field) => quote(String((field === "architecture" ? architecture : valueOf(row, field)) ?? ""))).join(",");
  }));
  return [fields.join(","), ...lines].join("\r\n") + "\r\n";
}

async function downloadCsv() {
  const link = make("a", { href: URL.createObjectURL(new Blob([await tableAsCsv()], { type: "text/csv" })), download: "trials.csv" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function setUpTable() {
  const statuses = [...new Set(page.data.studies.flatMap((study) => study.networks.map((network) => network.status)))].sort();
  fillSelect(byId("status"), [["", "all"], ...statuses.map((status) => [status, page.data.statuses[status]])], "", drawTable);
  byId("find").addEventListener("input", () => { table.shown = AT_A_TIME; drawTable(); });
  byId("only-front").addEventListener("change", drawTable);
  byId("download").addEventListener("click", downloadCsv);
  byId("more").addEventListener("click", () => { table.shown += 10 * AT_A_TIME; drawTable(); });
  byId("trials-section").hidden = !statuses.length;
  drawTable();
}

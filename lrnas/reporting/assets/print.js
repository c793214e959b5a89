/** What was changed for paper, until it is changed back; null on the screen. */
let onPaper = null;

/** For the layout of a chart: on the screen Plotly finds out by itself, but only later. */
const sizeOnPaper = ({ clientWidth: width, clientHeight: height }) => (onPaper ? { width, height } : {});

/** Charts that are drawn, those of an open card among them. */
const drawnCharts = () => [...document.querySelectorAll(".js-plotly-plot")];

/** Paper is light. How wide it is, only the browser knows: charts are drawn for a common page, and are made to scale. */
function turnToPaper() {
  if (onPaper) return;
  const { dataset } = document.documentElement;
  onPaper = { theme: dataset.theme };
  dataset.theme = "light";
  dataset.paper = "yes";  // in the style it makes charts as wide as a page
  showAll();
  drawCardAgain();
  for (const one of document.querySelectorAll(".scroll > table")) one.classList.toggle("tight", one.offsetWidth > one.parentElement.clientWidth);
  for (const chart of drawnCharts()) {
    const { width, height } = chart._fullLayout;
    chart.style.aspectRatio = `${width} / ${height}`;
    for (const picture of chart.querySelectorAll(".main-svg")) picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  }
}

function turnToScreen() {
  if (!onPaper) return;
  const { dataset } = document.documentElement;
  if (onPaper.theme === undefined) delete dataset.theme;
  else dataset.theme = onPaper.theme;
  delete dataset.paper;
  onPaper = null;
  for (const chart of drawnCharts()) {
    chart.style.aspectRatio = "";
    for (const picture of chart.querySelectorAll(".main-svg")) picture.removeAttribute("viewBox");
  }
  drawCharts();
  drawCardAgain();
  for (const chart of drawnCharts()) Plotly.relayout(chart, { autosize: true });
}

function setUpPrint() {
  addEventListener("beforeprint", turnToPaper);
  addEventListener("afterprint", turnToScreen);
}

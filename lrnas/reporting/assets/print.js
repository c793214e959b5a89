/** Settings to restore after printing; null when the page is on the screen. */
let onPaper = null;

/** Size of a chart on paper, for its layout; empty on the screen, where Plotly measures the size later. */
const sizeOnPaper = ({ clientWidth: width, clientHeight: height }) => (onPaper ? { width, height } : {});

/** All charts that have been drawn, including the one on an open card. */
const drawnCharts = () => [...document.querySelectorAll(".js-plotly-plot")];

/** Prepare the page for printing: light colours, all charts drawn. Only the browser knows the width of the paper, so charts are drawn for a usual page and scale with it. */
function turnToPaper() {
  if (onPaper) return;
  const { dataset } = document.documentElement;
  onPaper = { theme: dataset.theme };
  dataset.theme = "light";
  dataset.paper = "yes";  // tells the style sheet to make charts as wide as a sheet of paper
  showAll();
  drawCardAgain();
  for (const one of document.querySelectorAll(".scroll > table")) one.classList.toggle("tight", one.offsetWidth > one.parentElement.clientWidth);
  for (const chart of drawnCharts()) {
    const { width, height } = chart._fullLayout;
    chart.style.aspectRatio = `${width} / ${height}`;
    for (const picture of chart.querySelectorAll(".main-svg")) picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  }
}

/** Restore the page after printing. */
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

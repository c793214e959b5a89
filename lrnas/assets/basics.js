"use strict";

/** Make an element; text never becomes markup. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const byId = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const percent = (value, digits = 2) => (value == null ? "–" : (100 * value).toFixed(digits) + " %");
const whole = (value) => (value == null ? "–" : value.toLocaleString("en-US"));
const spelt = (shape) => shape.replace("x", "×");

/** Text for Plotly, which reads some markup. */
function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function shortNumber(value) {
  if (value == null) return "–";
  const units = [[1e9, " G"], [1e6, " M"], [1e3, " k"]];
  const [size, unit] = units.find(([size]) => value >= size) ?? [1, ""];
  return Number((value / size).toPrecision(3)) + unit;
}

function duration(seconds) {
  if (seconds < 120) return Math.round(seconds) + " s";
  if (seconds < 7200) return Math.round(seconds / 60) + " min";
  return (seconds / 3600).toFixed(1) + " h";
}

/** A group of buttons of which one is pressed. */
function makeSwitch(place, choices, chosen, change) {
  const buttons = Object.entries(choices).map(([value, label]) =>
    make("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => {
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(Object.keys(choices)[i] === value)));
      change(value);
    } }, label));
  place.replaceChildren(...buttons);
}

function fillSelect(select, choices, chosen, change) {
  select.replaceChildren(...choices.map(([value, label]) => make("option", { value, selected: value === chosen }, label)));
  select.addEventListener("change", () => change(select.value));
}

/** Copy to the clipboard, also where the browser keeps that from local files. */
async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { style: "position:fixed;opacity:0" });
    area.value = text;
    (button.closest("dialog") ?? document.body).append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  const label = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = label; }, 1200);
}

/** The data of the page: JSON, compressed. */
async function readData() {
  if (typeof DecompressionStream === "undefined") throw new Error("this page needs a browser of 2023 or later");
  const bytes = Uint8Array.from(atob(byId("data").textContent.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

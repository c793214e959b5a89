"use strict";

/** Create an element; children that are text never become markup. */
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
/** A number with some decimals. Of two that are equally near, the last digit is even, as in Python: 3.125 is 3.12. */
function fixed(value, digits) {
  const halves = Math.abs(value) * 2 ** (digits + 1);
  if (halves % 2 !== 1) return value.toFixed(digits);
  const below = Math.floor(Math.abs(value) * 10 ** digits);
  return (Math.sign(value) * (below + below % 2) / 10 ** digits).toFixed(digits);
}

const percent = (value, digits = 2) => (value == null ? "–" : fixed(100 * value, digits) + " %");
// not toLocaleString, which makes the page open about 30 ms later
const whole = (value) => (value == null ? "–" : String(value).replace(/\B(?=(\d{3})+$)/g, ","));
const formatShape = (shape) => shape.replace("x", "×");

/** Escape text for Plotly, which interprets some markup. */
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
  const [minutes, rest] = [Math.floor(Math.round(seconds) / 60), Math.round(seconds) % 60];
  if (minutes >= 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return minutes ? `${minutes} min ${rest} s` : `${rest} s`;
}

/** Fill an element with a group of buttons, one of which is pressed. */
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

/** Copy text to the clipboard, even if the browser does not allow that for local files. */
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

/** Read one part of the page's data; each part is compressed JSON. */
async function readPart(number) {
  if (typeof DecompressionStream === "undefined") throw new Error("this page needs a browser from 2023 or later");
  const letters = atob(byId("data").textContent.trim().split("\n")[number]);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

/** Read the first part: everything the page needs at once. Every network knows its study, its place and its results after full training. */
async function readData() {
  const data = await readPart(0);
  let place = 0;
  for (const study of data.studies) {
    const finals = new Map(study.finals.map((final) => [final.trial, final]));
    for (const network of study.networks) Object.assign(network, { study, place: place++, final: finals.get(network.number) });
  }
  return data;
}

/** Whether a network is on the front of its study: that of the finals, if the search trained networks in full. */
const isOnFront = (network) => (network.study.finals.length ? network.on_final_front : network.on_front);

/** Name of a network, with its trial if it has a name of its own. */
const titleOf = ({ name, number }) => (name === `trial ${number}` ? name : `${name} (trial ${number})`);

/** Address of the card of a network on this page. */
const addressOf = ({ study, number }) => `#${page.data.studies.length > 1 ? encodeURIComponent(study.name) + "/" : ""}trial-${number}`;

/** The network whose card has an address; undefined if there is none. */
function networkAt(address) {
  const [, name, number] = /^#(?:(.*)\/)?trial-(\d+)$/.exec(address) ?? [];
  const studies = page.data.studies.filter((study) => name === undefined || encodeURIComponent(study.name) === name);
  return studies.flatMap((study) => study.networks).find((network) => network.number === Number(number));
}

/** A link to the card of a network. */
const cardLink = (network, text = titleOf(network)) => make("a", { href: addressOf(network) }, text);

const formatShare = (share) => (share == null ? "–" : share.toFixed(3));

/** Costs of a network or final in words, with the share of the dense network's MACs. */
function describeCosts(study, { macs, share, params, latency }) {
  const part = share == null ? "" : ` (${formatShare(share)} of ${study.dense.name})`;
  return `${shortNumber(macs)} MACs${part}, ${shortNumber(params)} parameters${latency == null ? "" : `, ${latency.toFixed(3)} ms`}`;
}

const texts = new Map();

/** A network's description and its shell commands; they are long and rarely needed, so they are stored in separate parts. */
async function textsOf(network) {
  const number = 1 + Math.floor(network.place / page.data.at_a_time);
  if (!texts.has(number)) texts.set(number, readPart(number));
  return (await texts.get(number))[network.place % page.data.at_a_time];
}

/** Name, output and filters of every layer of a network; equal layers are the same object. */
const shapesOf = (network) => network.layers.shapes.map((number) => page.data.shapes[number]);

/** Layers of a network with their costs. */
function layersOf(network) {
  const { macs, params } = network.layers;
  return shapesOf(network).map((shape, i) => ({ ...shape, macs: macs[i], params: params[i] }));
}

// Functions for the scripts of all pages: data, elements, numbers in words, light and dark.
// Texts of models, tasks and files become text nodes. No script of a page parses HTML.

/** The JSON value that the page carries under a name. */
function read(name) {
  return JSON.parse(document.getElementById(name).textContent);
}

/** The JSON texts that the page carries under a name, not parsed. */
function lines(name) {
  const text = document.getElementById(name).textContent;
  return text ? text.split("\n") : [];
}

const SVG = "http://www.w3.org/2000/svg";

/** An element: attributes by name, `on` with listeners by event; children are nodes or texts, and null is left out. */
function make(tag, { on = {}, ...attributes } = {}, ...children) {
  return fill(document.createElement(tag), on, attributes, children);
}

/** The same in SVG. */
function draw(tag, { on = {}, ...attributes } = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), on, attributes, children);
}

function fill(element, on, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  for (const [event, listener] of Object.entries(on)) element.addEventListener(event, listener);
  element.append(...children.flat(Infinity).filter((child) => child != null));
  return element;
}

/**
 * A table. A head is its content, or an object of attributes with the content as `text`; an empty head is the corner
 * above row heads. `rows` are elements. The caption and the foot are optional.
 */
function makeTable({ caption, heads, rows, foot }) {
  const head = (content) => {
    const { text, ...attributes } = content?.text === undefined ? { text: content } : content;
    return text === "" ? make("td") : make("th", { scope: "col", ...attributes }, text);
  };
  return make(
    "table",
    {},
    caption && make("caption", {}, caption),
    make("thead", {}, make("tr", {}, heads.map(head))),
    make("tbody", {}, rows),
    foot && make("tfoot", {}, foot),
  );
}

/** A cell of a number, or the head above it. */
const number = (text) => ({ class: "number", text });

const grouped = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3, signDisplay: "negative" });
const signed = new Intl.NumberFormat("en", { maximumSignificantDigits: 3, signDisplay: "exceptZero" });

/** A count: 12,345. */
const count = (value) => (value == null ? "–" : grouped.format(value));

/** A measure of three digits: 0.125. */
const measure = (value) => (value == null ? "–" : short.format(value).replace("-", "−"));

/** A difference of three digits, with its sign: +0.125, −3. */
const difference = (value) => (value == null ? "–" : signed.format(value).replace("-", "−"));

/** Which colour a difference has. */
const sign = (value) => (value > 0 ? "positive" : value < 0 ? "negative" : "muted");

/** "1 clone", "3 clones". */
const many = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** A part of an address, decoded; unchanged if it is no valid encoding. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// In the frame of a notebook, a link to a place of this page would lead to the page around it.
const isInNotebook = location.protocol === "about:";
if (isInNotebook) {
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (!link || event.defaultPrevented) return;
    event.preventDefault();
    location.hash = link.getAttribute("href");
  });
}

// A reader cannot open details on paper, so they are opened before printing.
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
});

// Light and dark follow the system until the reader chooses.
{
  const button = document.getElementById("scheme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const now = () => document.documentElement.dataset.scheme ?? (dark.matches ? "dark" : "light");
  const show = () => {
    button.textContent = now() === "dark" ? "Light colours" : "Dark colours";
  };
  button.addEventListener("click", () => {
    document.documentElement.dataset.scheme = now() === "dark" ? "light" : "dark";
    show();
  });
  dark.addEventListener("change", show);
  show();
}

// Elements and numbers: everything that the page writes goes through here, always as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || (value === false && !name.startsWith("aria-"))) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element. */
export function h(tag, attributes = {}, ...children) {
  return build(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

export const $ = (id) => document.getElementById(id);

/** Sets a text only if it differs, to avoid a needless layout. */
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets or removes an attribute only if it differs. */
export function mark(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

/** At most three significant digits: 0, 0.25, 3.1, 42, 812. */
function digits(number) {
  const size = Math.abs(number);
  if (size >= 100 || Number.isInteger(number)) return Math.round(number).toString();
  return number.toFixed(size >= 10 ? 1 : 2).replace(/\.?0+$/, "");
}

function scaled(number, step, units) {
  let [value, at] = [number, 0];
  // 999.6 would be printed as 1000.
  while (Math.abs(value) >= step - 0.5 && at + 1 < units.length) [value, at] = [value / step, at + 1];
  return [digits(value), units[at]];
}

/** A count: 1.2k, 34M. */
export function count(number) {
  if (!Number.isFinite(number)) return "–";
  const [value, unit] = scaled(number, 1000, ["", "k", "M", "G", "T"]);
  return value + unit;
}

/** Records per second. */
export const rate = (number) => (Number.isFinite(number) ? `${count(number)}/s` : "–");

/** Bytes. */
export function bytes(number) {
  if (!Number.isFinite(number)) return "–";
  const [value, unit] = scaled(number, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
  return `${value} ${unit}`;
}

export const byteRate = (number) => (Number.isFinite(number) ? `${bytes(number)}/s` : "–");

/** A duration of the largest two units. */
export function seconds(number) {
  if (!Number.isFinite(number)) return "–";
  if (number < 1) return number <= 0 ? "0 s" : `${Math.max(1, Math.round(number * 1000))} ms`;
  if (number < 60) return `${number < 10 ? digits(number) : Math.round(number)} s`;
  const [whole, units] = [Math.round(number), [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]];
  const first = units.findIndex(([, size]) => whole >= size);
  const [name, size] = units[first];
  const rest = units[first + 1];
  const second = rest ? Math.floor((whole % size) / rest[1]) : 0;
  return `${Math.floor(whole / size)} ${name}${second ? ` ${second} ${rest[0]}` : ""}`;
}

export const percent = (share) => (Number.isFinite(share) ? `${share >= 0.0995 ? Math.round(share * 100) : digits(Math.round(share * 1000) / 10)} %` : "–");

/** The time of day, with the date if it is not today. */
export function clock(unix) {
  const time = new Date(unix * 1000);
  const today = new Date().toDateString() === time.toDateString();
  return today ? time.toLocaleTimeString() : `${time.toLocaleDateString()} ${time.toLocaleTimeString()}`;
}

/** "1 record", "2 records". */
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

/** A long name whose middle gives way if there is no room: names differ most at their ends. */
export function shortened(name) {
  const cut = name.length > 14 ? name.length - 7 : name.length;
  return h("span", { class: "short", title: name }, h("span", { class: "head" }, name.slice(0, cut)), h("span", { class: "tail" }, name.slice(cut)));
}

/** The states of nodes: a sign beside the colour, and a word. */
export const STATES = {
  running: { sign: "●", word: "running", level: "good" },
  ended: { sign: "✓", word: "ended", level: "idle" },
  // Records flow, but somebody must do something.
  degraded: { sign: "!", word: "degraded", level: "warn", flows: true },
  blocked: { sign: "‖", word: "blocked", level: "warn" },
  retrying: { sign: "↻", word: "retrying", level: "warn" },
  losing: { sign: "✖", word: "losing records", level: "bad" },
  failed: { sign: "✖", word: "failed", level: "bad" },
};

export const stateOf = (node) => STATES[node.state] ?? { sign: "?", word: node.state, level: "warn" };

/** A state as a badge. */
export function badge(node) {
  const state = stateOf(node);
  return h("span", { class: "badge", "data-level": state.level }, h("span", { "aria-hidden": "true" }, state.sign), " ", state.word);
}

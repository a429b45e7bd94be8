// The page: its views, which of them is open, and the colours. A status arrives each second and updates the page.

import { $, badge, byteRate, bytes, count, h, mark, percent, put, rate, seconds, stateOf } from "./dom.js";
import { follow, setToken } from "./feed.js";
import { graph, summary } from "./graph.js";

const LEGEND = [
  ["flow", "records flow"],
  ["idle", "nothing flows"],
  ["warn", "‖ ↻ records wait in front of it"],
  ["bad", "✖ failed, or records are lost"],
  ["rejected", "rejected records"],
];
const CONNECTIONS = { connecting: "connecting", live: "live", slow: "every 5 s", lost: "no connection" };

let status = null;
let first = null;
let node = null;
let opener = null;
const drawing = graph($("graph"), (name) => go(name === node?.name ? "#/" : `#/node/${name}`));

/* The whole pipeline. */

function figures() {
  const sum = (section, series) => status.nodes.filter((it) => it.section === section).reduce((all, it) => all + (it.now?.[series] ?? 0), 0);
  const troubled = status.nodes.filter((it) => !["good", "idle"].includes(stateOf(it).level));
  const sources = status.nodes.filter((it) => it.section === "source");
  const incoming = sources.reduce((all, it) => all + (it.now?.records_sent ?? it.now?.records_received ?? 0), 0);
  const waiting = status.nodes.filter((it) => it.section === "channel").reduce((all, it) => all + (it.now?.waiting_bytes ?? 0), 0);
  const oldest = Math.max(0, ...status.nodes.map((it) => it.now?.behind_seconds ?? 0));
  const { used_bytes: used, max_bytes: most } = status.memory;
  return [
    ["Health", status.healthy && troubled.length === 0 ? "✓ healthy" : status.healthy ? `‖ ${count(troubled.length)} waiting` : "✖ unhealthy", `up ${seconds(status.uptime_seconds)}`, status.healthy ? (troubled.length ? "warn" : "good") : "bad"],
    ["In", rate(incoming), byteRate(sum("source", "bytes"))],
    ["Delivered", rate(sum("sink", "records_sent")), `${count(status.nodes.length)} nodes`],
    ["Waiting in channels", bytes(waiting), oldest > 0 ? `${seconds(oldest)} behind` : "nothing is behind"],
    ["Memory of batches", bytes(used), `${percent(used / most)} of ${bytes(most)}`],
  ];
}

function writeFigures() {
  const all = figures();
  const box = $("figures");
  if (box.children.length !== all.length) {
    box.replaceChildren(...all.map(([name]) => h("div", { class: "figure" }, h("span", { class: "label" }, name), h("span", { class: "value" }), h("span", { class: "sub" }))));
  }
  all.forEach(([, value, sub, level], at) => {
    const [, main, small] = box.children[at].children;
    put(main, value);
    put(small, sub);
    mark(box.children[at], "data-level", level ?? null);
  });
}

let troublesKey = "";
function writeTroubles() {
  const all = status.nodes.filter((it) => !["good", "idle"].includes(stateOf(it).level));
  $("trouble-card").hidden = all.length === 0;
  const key = JSON.stringify(all.map((it) => [it.name, it.state, it.why]));
  if (key === troublesKey) return;
  troublesKey = key;
  const since = (it) => (it.seconds > 0 ? h("span", { class: "hint" }, `for ${seconds(it.seconds)}`) : null);
  $("troubles").replaceChildren(...all.map((it) => h("li", {}, h("a", { href: `#/node/${it.name}` }, it.name), badge(it), since(it), h("p", { class: "why" }, it.why ?? ""))));
}

const COLUMNS = ["Node", "State", "Received", "Sent", "Bytes", "Waiting", "Behind", "Rejected"];
let rowsKey = "";
const cells = new Map();
const SECTIONS = ["source", "processor", "channel", "sink"];
function writeTable() {
  const nodes = [...status.nodes].sort((a, b) => SECTIONS.indexOf(a.section) - SECTIONS.indexOf(b.section));
  const key = JSON.stringify(nodes.map((it) => [it.name, it.type, it.section]));
  if (key !== rowsKey) {
    rowsKey = key;
    cells.clear();
    const rows = nodes.map((it) => {
      const own = COLUMNS.slice(1).map((column) => h("td", { class: column === "State" ? "" : "number", "data-column": column }));
      cells.set(it.name, own);
      return h("tr", {}, h("th", { scope: "row" }, h("a", { href: `#/node/${it.name}` }, it.name), h("span", { class: "kind" }, `${it.type} ${it.section}`)), own);
    });
    $("nodes").replaceChildren(h("thead", {}, h("tr", {}, COLUMNS.map((name, at) => h("th", { scope: "col", class: at > 1 ? "number" : "" }, name)))), h("tbody", {}, rows));
  }
  for (const it of status.nodes) {
    const now = it.now ?? {};
    const [state, ...rest] = cells.get(it.name);
    if (state.dataset.state !== it.state) {
      state.replaceChildren(badge(it));
      state.dataset.state = it.state;
    }
    const show = (value, format) => (value === undefined ? "" : format(value));
    const texts = [show(now.records_received, rate), show(now.records_sent, rate), show(now.bytes, byteRate), show(now.waiting_bytes, bytes) || show(now.waiting_records, (value) => `${count(value)} records`), show(now.behind_seconds, seconds), show(it.meters?.records_rejected, count)];
    texts.forEach((text, at) => put(rest[at], text));
  }
}

/* The node that is open. */

async function showNode(name) {
  if (!node) {
    const { panel } = await import("./node.js");
    node ??= panel($("drawer"), () => go("#/"));
  }
  const wanted = () => location.hash === `#/node/${name}`;
  if (!wanted() || node.name === name) return;
  const about = status?.nodes.find((it) => it.name === name);
  if (!node.name) opener = document.activeElement;
  node.open(name, about);
  document.body.dataset.open = "node";
  drawing.choose(name);
}

function hideNode() {
  if (!node?.name) return;
  const name = node.name;
  node.close();
  delete document.body.dataset.open;
  drawing.choose(null);
  if (opener?.isConnected && opener !== document.body) opener.focus();
  else drawing.focus(name);
  opener = null;
}

/* The views. */

const go = (hash) => (location.hash = hash);
let openBench = null;

async function bench() {
  if (!openBench) openBench = (await import("./bench.js")).benchView($("view-bench"));
  return openBench;
}

async function route() {
  const [, view, name] = location.hash.split("/");
  const shown = view === "rejected" || view === "bench" ? view : "graph";
  for (const it of ["graph", "rejected", "bench"]) $(`view-${it}`).hidden = it !== shown;
  for (const link of document.querySelectorAll("nav a")) mark(link, "aria-current", link.dataset.view === shown ? "page" : null);
  if (view === "node") await showNode(decodeURIComponent(name ?? ""));
  else hideNode();
  if (shown === "rejected") (await import("./records.js")).rejectedView($("view-rejected"));
  if (shown === "bench") await bench();
  if (shown === "graph" && status) drawing.update(status);
}

addEventListener("hashchange", route);
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && node?.name) go("#/");
});

/* A result of millbench that is dropped on the page. */

const hasFile = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
addEventListener("dragover", (event) => {
  if (!hasFile(event)) return;
  event.preventDefault();
  $("drop").hidden = false;
});
addEventListener("dragleave", (event) => event.relatedTarget === null && ($("drop").hidden = true));
addEventListener("drop", async (event) => {
  $("drop").hidden = true;
  if (!hasFile(event)) return;
  event.preventDefault();
  const [file] = event.dataTransfer.files;
  go("#/bench");
  (await bench())(file);
});

/* Colours. */

const THEMES = { auto: "Auto", light: "Light", dark: "Dark" };
function theme(chosen) {
  if (chosen === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  put($("theme-text"), THEMES[chosen]);
  mark($("theme"), "aria-label", `Colours: ${THEMES[chosen]}`);
  try {
    localStorage.setItem("millstream-theme", chosen);
  } catch {
    // Without storage the choice lasts until the page is loaded again.
  }
}
$("theme").addEventListener("click", () => {
  const all = Object.keys(THEMES);
  const now = document.documentElement.dataset.theme ?? "auto";
  theme(all[(all.indexOf(now) + 1) % all.length]);
});
theme(document.documentElement.dataset.theme ?? "auto");

/* Events from the server. */

function write() {
  if (!first) performance.mark("first-graph");
  first ??= status.time;
  writeFigures();
  drawing.update(status);
  writeTroubles();
  writeTable();
  put($("where"), location.hostname);
  put($("foot"), `Millstream ${status.version} · process ${status.pid} · rates are those of the last second`);
  document.title = status.healthy ? "Millstream" : "✖ Millstream";
  if (node?.name) node.update(status.nodes.find((it) => it.name === node.name), status.time);
}

/** Asks for a token; returns when one was given. */
function refused(error) {
  if (error.status === 403) {
    notice(`This address shows nothing to you: ${error.message}`);
    return new Promise((done) => setTimeout(done, 10000));
  }
  const dialog = $("token");
  if (!dialog.open) dialog.showModal();
  return new Promise((done) => {
    $("token-send").onclick = () => {
      setToken($("token-text").value.trim());
      dialog.close();
      done();
    };
  });
}

function notice(text) {
  $("notice").hidden = !text;
  put($("notice"), text ?? "");
}

$("legend").replaceChildren(...LEGEND.map(([level, text]) => h("li", { "data-level": level }, h("span", { class: "swatch", "aria-hidden": "true" }), text)));
route();
follow({
  status(value) {
    status = value;
    notice("");
    write();
  },
  state(name) {
    mark($("link"), "data-state", name);
    put($("link-text"), CONNECTIONS[name]);
    if (name === "lost") notice("Millstream does not answer. The page shows what it knew last, and asks again.");
  },
  refused,
});

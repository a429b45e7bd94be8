// The page: its views, which of them is open, and the colours. A status arrives each second and updates the page.

import { $, badge, byteRate, bytes, count, h, mark, percent, put, rate, seconds } from "./dom.js";
import { follow, setToken } from "./feed.js";
import { finder, isTroubled } from "./find.js";
import { graph } from "./graph.js";
import { nodeTable } from "./table.js";

const LEGEND = [
  ["flow", "records flow"],
  ["idle", "nothing flows"],
  ["unknown", "? rate unknown"],
  ["warn", "‖ ↻ blocked or retrying: records wait in front of it"],
  ["bad", "✖ failed, or records are lost"],
  ["rejected", "rejected records"],
];
const CONNECTIONS = { connecting: "connecting", live: "live", slow: "every 5 s", lost: "no connection" };

let status = null;
let first = null;
let node = null;
let opener = null;
const find = finder(() => {
  drawing.again();
  if (status) writeTable();
});
const drawing = graph(
  $("graph"),
  (name) => go(name === node?.name ? "#/" : `#/node/${name}`),
  (nodes, edges) => find.around(nodes, edges),
);
const table = nodeTable($("nodes"), () => writeTable());

/* The whole pipeline. */

function figures() {
  const sum = (section, series) => status.nodes.filter((it) => it.section === section).reduce((all, it) => all + (it.now?.[series] ?? 0), 0);
  const troubled = status.nodes.filter(isTroubled).length;
  const sources = status.nodes.filter((it) => it.section === "source");
  const incoming = sources.reduce((all, it) => all + (it.now?.records_sent ?? it.now?.records_received ?? 0), 0);
  const waiting = status.nodes.filter((it) => it.section === "channel").reduce((all, it) => all + (it.now?.waiting_bytes ?? 0), 0);
  const oldest = Math.max(0, ...status.nodes.map((it) => it.now?.behind_seconds ?? 0));
  const { used_bytes: used, max_bytes: most } = status.memory;
  return [
    ["Health", !status.healthy ? "✖ unhealthy" : troubled ? `‖ ${count(troubled)} to look at` : "✓ healthy", `up ${seconds(status.uptime_seconds)}`, !status.healthy ? "bad" : troubled ? "warn" : "good"],
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
  const all = status.nodes.filter(isTroubled);
  put($("only-count"), all.length ? count(all.length) : "");
  // Each problem once, with the nodes that only suffer from it; then the problems of the process itself.
  const problems = [...(status.problems ?? all.map((it) => ({ ...it, node: it.name }))), ...(status.conditions ?? [])];
  $("trouble-card").hidden = problems.length === 0;
  const key = JSON.stringify(problems.map((it) => [it.node ?? it.what, it.state, it.why, (it.consequences ?? []).map((below) => below.node)]));
  if (key === troublesKey) return;
  troublesKey = key;
  const link = (name) => h("a", { href: `#/node/${name}` }, name);
  const since = (it) => (it.seconds > 0 ? h("span", { class: "hint" }, `for ${seconds(it.seconds)}`) : null);
  const below = (it) => (it.consequences?.length ? h("p", { class: "hint" }, "in consequence: ", ...it.consequences.flatMap((one, at) => (at ? [", ", link(one.node)] : [link(one.node)]))) : null);
  $("troubles").replaceChildren(...problems.map((it) => h("li", {}, it.node ? link(it.node) : it.what, badge(it), since(it), h("p", { class: "why" }, it.why ?? ""), below(it))));
}

function writeTable() {
  find.tell(status.nodes);
  table.update(status.nodes.filter((it) => find.finds(it)));
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
  put($("where"), status.host ?? location.hostname);
  put($("foot"), `Millstream ${status.version} · process ${status.pid} · rates are means of the last 5 s`);
  document.title = `${status.healthy ? "" : "✖ "}${status.host ?? location.hostname} · Millstream`;
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

$("legend").replaceChildren(...LEGEND.map(([level, text]) => h("li", { "data-level": level }, h("span", { class: "swatch", "aria-hidden": "true" }), text, level === "rejected" ? h("span", { id: "hidden" }) : null)));
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

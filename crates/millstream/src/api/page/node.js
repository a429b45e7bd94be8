// One node: its state, the charts of its last hour, its tables, its promises, its options, a live sample, its rejected records.

import { badge, byteRate, bytes, clock, count, h, percent, put, rate, seconds } from "./dom.js";
import { chart } from "./chart.js";
import { askJson } from "./feed.js";
import { rejectedOf, sample } from "./records.js";

const RANGES = { fine: { word: "5 minutes", span: 300 }, coarse: { word: "1 hour", span: 3600 } };
/** The charts: title, series with their names, and how a value is written. Only series that a node has are shown. */
const CHARTS = [
  { title: "Records", series: [["records_received", "received"], ["records_sent", "sent"]], format: rate },
  { title: "Bytes", series: [["bytes", "bytes"]], format: byteRate },
  { title: "Behind", series: [["behind_seconds", "age of the oldest record"]], format: seconds },
  { title: "Latency", series: [["latency_seconds", "mean of the batches"]], format: seconds },
  { title: "Waiting", series: [["waiting_bytes", "bytes"]], format: bytes },
  { title: "In flight", series: [["waiting_records", "records"]], format: count },
  { title: "CPU", series: [["busy", "busy"]], format: percent },
  { title: "Errors", series: [["errors", "errors"]], format: rate, onlyIfAny: true },
];
/** Seconds between two requests for the history of the open node. */
const AGAIN = 2;

/** A value of the options as lines of YAML. */
function yaml(value, depth = 0) {
  const pad = "  ".repeat(depth);
  const plain = (it) => (typeof it === "string" && !/^[\w./][\w ./*@-]*$/.test(it) ? JSON.stringify(it) : String(it));
  const isFlat = (it) => it === null || typeof it !== "object";
  if (isFlat(value)) return [pad + plain(value)];
  if (Array.isArray(value)) {
    if (value.every(isFlat)) return [`${pad}[${value.map(plain).join(", ")}]`];
    return value.flatMap((it) => yaml(it, depth + 1).map((line, at) => (at === 0 ? `${pad}- ${line.trim()}` : line)));
  }
  return Object.entries(value).flatMap(([key, it]) => {
    if (isFlat(it) || (Array.isArray(it) && it.every(isFlat))) return [`${pad}${key}: ${yaml(it)[0]}`];
    return [`${pad}${key}:`, ...yaml(it, depth + 1)];
  });
}

const section = (title, ...children) => h("section", { class: "part" }, h("h3", {}, title), ...children);

/** Bars of a table: the skew over tasks, connections by peer, the lag of files. */
function table(name, rows, unit) {
  const label = Object.keys(rows[0] ?? {}).find((key) => key !== "value") ?? "label";
  const most = Math.max(1, ...rows.map((row) => row.value));
  const format = /bytes/.test(name) ? bytes : /microseconds/.test(name) ? (value) => seconds(value / 1e6) : /seconds/.test(name) ? seconds : count;
  const bar = (row) => {
    const level = h("span", { class: "bar" });
    level.style.width = `${(row.value / most) * 100}%`;
    return h("tr", {}, h("th", { scope: "row" }, row[label]), h("td", { class: "bar-cell" }, level), h("td", { class: "number" }, format(row.value)));
  };
  return h("table", { class: "bars" }, h("caption", {}, `${name.replace("microseconds", "seconds").replace(/^task_/, "").replaceAll("_", " ")} by ${label}${unit}`), h("tbody", {}, rows.map(bar)));
}

/** How uneven tasks are: the largest compared with the mean. */
function skew(rows) {
  const mean = rows.reduce((sum, row) => sum + row.value, 0) / rows.length;
  return mean > 0 && rows.length > 1 ? `; the largest has ${count(Math.max(...rows.map((row) => row.value)) / mean)} times the mean` : "";
}

/** The panel of a node in `element`. `close` is called when the panel should close. */
export function panel(element, close) {
  let open = null;

  function head(name) {
    const parts = { state: h("p", { class: "drawer-state" }), why: h("p", { class: "why" }), kind: h("span", { class: "kind" }) };
    const title = h("h2", { id: "drawer-title", tabindex: "-1" }, name);
    const button = h("button", { type: "button", class: "quiet close", "aria-label": `Close ${name}`, onclick: close }, "✕");
    return { ...parts, title, element: h("div", { class: "drawer-head" }, h("div", {}, title, parts.kind), button) };
  }

  async function load(view) {
    const path = encodeURIComponent(view.name);
    const [, about] = await Promise.allSettled([loadHistory(view), askJson(`/nodes/${path}`)]);
    if (open === view && about.status === "fulfilled") promise(view, about.value);
  }

  /** Asks for the history. The server knows the time of each sample; the page may have been hidden, or without a connection. */
  async function loadHistory(view) {
    if (view.isLoading) return;
    view.isLoading = true;
    try {
      view.history = await askJson(`/history/${encodeURIComponent(view.name)}`);
      put(view.error, "");
    } catch (error) {
      put(view.error, `The history cannot be shown: ${error.message}`);
    }
    view.isLoading = false;
    if (open === view) draw(view);
  }

  function promise(view, about) {
    const parts = [];
    const told = about.promise;
    if (told) parts.push(h("p", {}, h("strong", {}, told.guarantee), told.condition ? `: ${told.condition}` : ""));
    if (about.answers) parts.push(h("p", {}, `Senders get their answer ${about.answers}.`));
    if (about.in_front_of) parts.push(h("p", {}, about.in_front_of.length ? `Runs in front of ${about.in_front_of.join(", ")}.` : "It leads to no channel and no sink."));
    if (about.not_repeatable) parts.push(h("p", {}, `A replay could give other records: ${about.not_repeatable}`));
    const path = (it) => h("li", {}, h("span", { class: "way" }, it.nodes.join(" → ")), h("span", { class: "chip" }, it.guarantee));
    if (about.paths?.length) parts.push(h("ul", { class: "paths" }, about.paths.map(path)));
    if (parts.length) view.promise.replaceChildren(section("Promise", ...parts));
    const text = yaml(about.options).join("\n");
    view.options.replaceChildren(section("Options", h("pre", { class: "code", tabindex: "0", role: "region", "aria-label": "Options" }, text || "none")));
  }

  function draw(view) {
    const { history } = view;
    if (!history) return;
    const data = history[view.range];
    for (const it of CHARTS) {
      const lines = it.series.filter(([name]) => data[name]);
      const values = lines.map(([name]) => data[name].map((value) => (value === null ? NaN : value)));
      const isShown = lines.length > 0 && !(it.onlyIfAny && values.flat().every((value) => !(value > 0)));
      let own = view.charts.get(it.title);
      const key = lines.map(([name]) => name).join();
      if (!isShown) {
        own?.element.remove();
        view.charts.delete(it.title);
        continue;
      }
      if (!own || own.key !== key) {
        own?.element.remove();
        own = { ...chart(it.title, lines.map(([, word]) => word), it.format), key };
        view.charts.set(it.title, own);
        view.plots.append(own.element);
      }
      own.update(values, data.seconds, history.time, RANGES[view.range].span);
    }
    changes(view);
  }

  function changes(view) {
    const all = [...(view.history.changes ?? [])].reverse();
    const key = JSON.stringify(all);
    if (key === view.changesKey) return;
    view.changesKey = key;
    const line = (it) => h("li", {}, h("time", {}, clock(it.time)), badge(it), it.why ? h("span", { class: "why" }, it.why) : null);
    const quiet = all.length <= 1 && all[0]?.state === "running";
    view.changes.replaceChildren(section("States of the last hour", quiet ? h("p", { class: "empty" }, `Running since ${clock(all[0].time)}, without a problem.`) : h("ul", { class: "changes" }, all.map(line))));
  }

  function figures(view, node) {
    const { now = {}, meters = {} } = node;
    const all = [
      ["Received", now.records_received, rate],
      ["Sent", now.records_sent, rate],
      ["Bytes", now.bytes, byteRate],
      ["Waiting", now.waiting_bytes, bytes],
      ["Behind", now.behind_seconds, seconds],
      ["Connections", meters.connections ?? meters.connections_open, count],
      ["Rejected", meters.records_rejected, count],
      ["Size", meters.used_bytes, bytes],
    ].filter(([, value]) => value !== undefined);
    const key = all.map(([name]) => name).join();
    if (view.figuresKey !== key) {
      view.figuresKey = key;
      view.figures.replaceChildren(...all.map(([name]) => h("div", {}, h("dt", {}, name), h("dd", {}))));
    }
    all.forEach(([, value, format], at) => put(view.figures.children[at].lastChild, format(value)));
  }

  function tables(view, node) {
    const all = Object.entries(node.tables ?? {}).filter(([, rows]) => rows.length);
    const key = JSON.stringify(all);
    if (key === view.tablesKey) return;
    view.tablesKey = key;
    const of = (word) => all.filter(([, rows]) => (word === "other" ? !("task" in rows[0]) && !("peer" in rows[0]) : word in rows[0]));
    const part = (title, list) => list.length && section(title, ...list.map(([name, rows]) => table(name, rows, "task" in rows[0] ? skew(rows) : "")));
    view.tables.replaceChildren(...[part("Tasks", of("task")), part("Connections by peer", of("peer")), part("Details", of("other"))].filter(Boolean));
  }

  function meters(view, node) {
    if (!view.meters.open) return;
    const row = ([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "number" }, value.toLocaleString("en").replaceAll(",", " ")));
    view.metersBody.replaceChildren(...Object.entries(node.meters ?? {}).sort().map(row));
  }

  function ranges(view) {
    const button = (range) =>
      h("button", { type: "button", "aria-pressed": view.range === range, onclick: () => (view.setRange(range)) }, RANGES[range].word);
    const all = Object.keys(RANGES).map((range) => [range, button(range)]);
    view.setRange = (range) => {
      view.range = range;
      for (const [name, element] of all) element.setAttribute("aria-pressed", name === range);
      draw(view);
    };
    return h("div", { class: "switch", role: "group", "aria-label": "Time shown" }, all.map(([, element]) => element));
  }

  return {
    /** Opens a node. */
    open(name, node) {
      open?.sample.stop();
      const view = { name, range: "fine", charts: new Map() };
      Object.assign(view, head(name), { figures: h("dl", { class: "figures" }), plots: h("div", { class: "plots" }), error: h("p", { class: "empty" }) });
      for (const part of ["changes", "tables", "promise", "options", "rejected"]) view[part] = h("div");
      view.metersBody = h("tbody");
      view.meters = h("details", { class: "part", ontoggle: () => view.node && meters(view, view.node) }, h("summary", {}, "All meters"), h("table", { class: "meters" }, view.metersBody));
      view.sample = sample(name);
      open = view;
      element.replaceChildren(view.element, view.state, view.why, view.figures, ranges(view), view.error, view.plots, view.changes, view.tables, view.promise, section("Live sample", view.sample.element), view.rejected, view.options, view.meters);
      element.hidden = false;
      if (node) this.update(node, 0);
      load(view);
      rejectedOf(name).then((part) => open === view && part && view.rejected.replaceChildren(section("Rejected records", part)));
      view.title.focus({ preventScroll: true });
      element.scrollTop = 0;
    },
    /** Shows what a status says about the node. */
    update(node, time) {
      const view = open;
      if (!view) return;
      if (!node) {
        put(view.why, "This node is not part of the graph any more.");
        return;
      }
      view.node = node;
      put(view.kind, `${node.type} ${node.section}`);
      if (view.state.dataset.state !== node.state) {
        view.state.replaceChildren(badge(node));
        view.state.dataset.state = node.state;
      }
      const causes = (node.conditions ?? []).map((it) => it.why);
      put(view.why, causes.length ? causes.join("\n") : node.why ?? "");
      figures(view, node);
      tables(view, node);
      meters(view, node);
      if (time && !(time - view.history?.time < AGAIN)) loadHistory(view);
    },
    /** The name of the open node. */
    get name() {
      return open?.name ?? null;
    },
    close() {
      open?.sample.stop();
      open = null;
      element.hidden = true;
      element.replaceChildren();
    },
  };
}

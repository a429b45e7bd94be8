// A node of the graph as a button: its name, its state, and its numbers.

import { badge, byteRate, bytes, count, h, mark, percent, put, rate, seconds, shortened, stateOf, svg } from "./dom.js";

const ICONS = {
  source: "M3 8h8M8 5l3 3-3 3M13 3v10",
  processor: "M3 5h10M3 11h10M6 3v4M10 9v4",
  channel: "M3 4v8M6 4v8M9 4v8M12 4v8",
  sink: "M3 3v10M5 8h8M10 5l3 3-3 3",
};

/** The numbers of a node, as words for its card. */
export function summary(node) {
  const now = node.now ?? {};
  const flow = node.section === "source" ? now.records_sent ?? now.records_received : now.records_received;
  const meters = node.meters ?? {};
  let note = "";
  let fill = null;
  if (node.section === "channel" && meters.size_max_bytes) {
    fill = Math.min(1, meters.used_bytes / meters.size_max_bytes);
    note = `${bytes(meters.backlog_bytes)} waiting`;
    if (now.behind_seconds > 0) note += ` · ${seconds(now.behind_seconds)}`;
  } else if (node.queue?.max_bytes && node.queue.used_bytes > 0) {
    fill = Math.min(1, node.queue.used_bytes / node.queue.max_bytes);
    note = `${bytes(node.queue.used_bytes)} in its queue`;
  } else if (node.section === "sink" && now.behind_seconds > 0) note = `${seconds(now.behind_seconds)} behind`;
  else if (now.waiting_bytes > 0) note = `${bytes(now.waiting_bytes)} waiting`;
  else if (now.errors > 0) note = `${rate(now.errors)} errors`;
  else if (now.busy !== undefined) note = `${percent(now.busy)} of a CPU`;
  else if (meters.connections !== undefined) note = `${count(meters.connections)} connection${meters.connections === 1 ? "" : "s"}`;
  else if (now.waiting_records > 0) note = `${count(now.waiting_records)} in flight`;
  return { flow, traffic: now.bytes, note, fill };
}

/** The parts of a card. `select` is called when it is chosen. */
export function card(node, select) {
  const parts = { name: h("span", { class: "name" }, shortened(node.name)), state: h("span", { class: "state" }), kind: h("span", { class: "kind" }) };
  Object.assign(parts, { flow: h("span", { class: "flow" }), traffic: h("span", { class: "traffic" }), note: h("span", { class: "note" }) });
  parts.more = h("span", { class: "only-read" });
  parts.level = h("span", { class: "level" });
  parts.fill = h("span", { class: "fill" }, parts.level);
  const icon = svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: ICONS[node.section] ?? "" }));
  parts.button = h(
    "button",
    { type: "button", class: "node", "data-section": node.section, "data-node": node.name, onclick: select },
    // The text is the name of the button for a screen reader, so its parts are apart.
    h("span", { class: "line" }, icon, parts.name, " "),
    h("span", { class: "line low" }, parts.kind, " ", parts.state, " "),
    h("span", { class: "line figures" }, parts.flow, " ", parts.traffic, " "),
    h("span", { class: "line low" }, parts.note, " "),
    parts.more,
    parts.fill,
  );
  return parts;
}

/** Writes the numbers of a node on its card. */
export function writeCard(parts, node, isChosen) {
  const { flow, traffic, note, fill } = summary(node);
  if (parts.state.dataset.state !== node.state) {
    parts.state.replaceChildren(badge(node));
    parts.state.dataset.state = node.state;
  }
  mark(parts.button, "data-level", stateOf(node).level);
  mark(parts.button, "aria-pressed", isChosen);
  put(parts.kind, `${node.type} ${node.section}`);
  put(parts.flow, rate(flow));
  put(parts.traffic, traffic === undefined ? "" : byteRate(traffic));
  put(parts.note, note);
  mark(parts.fill, "data-shown", fill !== null);
  if (fill !== null) {
    parts.level.style.width = `${fill * 100}%`;
    mark(parts.fill, "data-level", fill >= 0.95 ? "bad" : fill >= 0.8 ? "warn" : "good");
  }
  put(parts.more, [fill === null ? "" : `${percent(fill)} full`, node.why ?? ""].filter(Boolean).join(", "));
}

// The running graph: nodes are buttons, edges are drawn behind them. A change of the graph is laid out again; numbers are only written.

import { badge, byteRate, bytes, count, h, mark, percent, put, rate, seconds, stateOf, svg } from "./dom.js";
import { layout } from "./layout.js";

const ICONS = {
  source: "M3 8h8M8 5l3 3-3 3M13 3v10",
  processor: "M3 5h10M3 11h10M6 3v4M10 9v4",
  channel: "M3 4v8M6 4v8M9 4v8M12 4v8",
  sink: "M3 3v10M5 8h8M10 5l3 3-3 3",
};
/** Space for focus rings around the graph. */
const EDGE = 8;
/** The length of an arrow. */
const ARROW = 9;

/** The edges of a status, with the names of their ends. */
export function edgesOf(status) {
  // A pump has a dot in its name; otherwise the dot stands in front of a port.
  const names = new Set((status.nodes ?? []).map((node) => node.name));
  return (status.edges ?? []).map((edge) => {
    const [source, port = ""] = names.has(edge.from) ? [edge.from] : edge.from.split(".");
    return { ...edge, source, port, target: edge.to, rejected: port === "rejected", id: `${edge.from} ${edge.to} ${edge.tags ?? ""}` };
  });
}

/** The marks of edges besides their rate: `bad` if the consumer fails, `warn` if records wait in front of it. Through processors the mark leads back to the channel or source. */
export function pressure(nodes, edges) {
  const level = new Map(nodes.map((node) => [node.name, stateOf(node).level]));
  const isProcessor = new Set(nodes.filter((node) => node.section === "processor").map((node) => node.name));
  const found = new Map();
  const rank = { bad: 2, warn: 1 };
  for (let again = true; again; ) {
    again = false;
    for (const edge of edges) {
      let own = level.get(edge.target);
      if (isProcessor.has(edge.target)) {
        for (const next of edges) {
          const behind = next.source === edge.target && found.get(next);
          if (behind && (rank[behind] ?? 0) > (rank[own] ?? 0)) own = behind;
        }
      }
      if (rank[own] && found.get(edge) !== own) {
        found.set(edge, own);
        again = true;
      }
    }
  }
  return found;
}

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

function form(width) {
  // On a phone it flows down, with two nodes beside each other.
  const down = width < 620;
  if (down) return { down, width: Math.min(170, (width - 2 * EDGE - 14) / 2), height: 94, along: 50, across: 14, bend: 10, apart: 72, most: 2 };
  return { down, width: 204, height: 96, along: 104, across: 26, bend: 26, apart: 36, most: Infinity };
}

/** The graph in `element`. `select(name)` is called when a node is chosen. */
export function graph(element, select) {
  const lines = svg("svg", { class: "edges", "aria-hidden": "true", focusable: "false" });
  const cards = h("div", { class: "cards", role: "group", "aria-label": "Nodes of the running graph" });
  element.replaceChildren(lines, cards);
  let drawn = { key: null, nodes: new Map(), edges: new Map(), places: new Map() };
  let last = null;
  let chosen = null;

  function card(node) {
    const parts = { name: h("span", { class: "name", title: node.name }, node.name), state: h("span", { class: "state" }), kind: h("span", { class: "kind" }) };
    Object.assign(parts, { flow: h("span", { class: "flow" }), traffic: h("span", { class: "traffic" }), note: h("span", { class: "note" }) });
    parts.more = h("span", { class: "only-read" });
    parts.level = h("span", { class: "level" });
    parts.fill = h("span", { class: "fill" }, parts.level);
    const icon = svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: ICONS[node.section] ?? "" }));
    parts.button = h(
      "button",
      { type: "button", class: "node", "data-section": node.section, "data-node": node.name, onclick: () => select(node.name) },
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

  /** The path of an edge. It ends before the node, where the arrow begins. */
  function way({ points: all, back }, down) {
    const end = all[all.length - 1];
    const points = [...all.slice(0, -1), down ? { x: end.x, y: end.y - ARROW } : { x: end.x - ARROW, y: end.y }];
    let path = `M${points[0].x} ${points[0].y}`;
    if (back) {
      const [a, b] = points;
      return `${path}C${a.x + 70} ${a.y + 110} ${b.x - 70} ${b.y + 110} ${b.x} ${b.y}`;
    }
    for (let at = 1; at < points.length; at++) {
      const [a, b] = [points[at - 1], points[at]];
      if (at % 2 === 0) path += `L${b.x} ${b.y}`;
      else if (down) path += `C${a.x} ${(a.y + b.y) / 2} ${b.x} ${(a.y + b.y) / 2} ${b.x} ${b.y}`;
      else path += `C${(a.x + b.x) / 2} ${a.y} ${(a.x + b.x) / 2} ${b.y} ${b.x} ${b.y}`;
    }
    return path;
  }

  /** A place on the edge for its label where no other label is. */
  function spot(path, taken, width, height, limit) {
    const length = path.getTotalLength();
    const clash = (p) => taken.reduce((sum, it) => sum + (Math.abs(it.x - p.x) < (it.width + width) / 2 && Math.abs(it.y - p.y) < (it.height + height) / 2), 0);
    let best = null;
    for (const share of [0.5, 0.4, 0.6, 0.3, 0.7, 0.22, 0.78]) {
      const { x, y } = path.getPointAtLength(length * share);
      const point = { x: Math.min(Math.max(x, width / 2 - EDGE), limit - width / 2 + EDGE), y };
      const hits = clash(point);
      if (!best || hits < best.hits) best = { x: point.x, y: point.y, hits };
      if (hits === 0) break;
    }
    taken.push({ ...best, width, height });
    return best;
  }

  function build(nodes, edges, key, width) {
    const shape = form(width);
    let laid = layout(nodes, edges, shape);
    const room = width - 2 * EDGE;
    if (!shape.down && laid.width > room && laid.depth > 1) {
      // First the gaps become shorter, then the nodes; what is still too wide is scrolled.
      const surplus = (laid.width - room) / (laid.depth - 1);
      shape.along = Math.max(72, shape.along - surplus);
      const more = layout(nodes, edges, shape).width - room;
      if (more > 0) shape.width = Math.max(164, shape.width - more / laid.depth);
      laid = layout(nodes, edges, shape);
    }
    while (shape.down && laid.width > room && shape.width > 118) {
      shape.width -= 8;
      laid = layout(nodes, edges, shape);
    }
    const left = Math.max(EDGE, (width - laid.width) / 2);
    const [right, bottom] = [laid.width + left + EDGE, laid.height + 2 * EDGE];
    mark(lines, "width", right);
    mark(lines, "height", bottom);
    mark(lines, "viewBox", `${-left} ${-EDGE} ${right} ${bottom}`);
    cards.style.width = `${right}px`;
    cards.style.height = `${bottom}px`;
    const focused = document.activeElement?.dataset?.node;
    const order = [...nodes].sort((a, b) => {
      const [p, q] = [laid.places.get(a.name), laid.places.get(b.name)];
      return p.layer - q.layer || p.across - q.across;
    });
    const made = new Map();
    for (const node of order) {
      const parts = card(node);
      const corner = laid.places.get(node.name);
      Object.assign(parts.button.style, { left: `${corner.x + left}px`, top: `${corner.y + EDGE}px`, width: `${shape.width}px`, height: `${shape.height}px` });
      made.set(node.name, parts);
    }
    cards.replaceChildren(...[...made.values()].map((parts) => parts.button));
    const arrow = svg("marker", { id: "arrow", viewBox: "0 0 10 10", refX: 1, refY: 5, markerWidth: 10, markerHeight: 10, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { d: "M0 0 10 5 0 10z", class: "arrow" }));
    lines.replaceChildren(svg("defs", {}, arrow));
    const drawnEdges = new Map();
    for (const edge of edges) {
      const path = svg("path", { class: "edge", d: way(laid.ways.get(edge), shape.down), "marker-end": "url(#arrow)" });
      const label = svg("text", { class: "edge-label", "text-anchor": "middle", "dominant-baseline": "central" });
      if (edge.port) label.append(svg("tspan", { class: "edge-port" }));
      label.append(svg("tspan"));
      lines.append(path);
      drawnEdges.set(edge.id, { path, label });
    }
    const taken = [];
    for (const edge of edges) {
      const { path, label } = drawnEdges.get(edge.id);
      const at = spot(path, taken, Math.max(66, 7 * edge.port.length), edge.port ? 32 : 17, laid.width);
      // The port is above the rate.
      [...label.children].forEach((part, line) => {
        mark(part, "x", at.x);
        mark(part, "y", at.y + (label.children.length - 1) * (line - 0.5) * 15);
      });
      lines.append(label);
    }
    drawn = { key, nodes: made, edges: drawnEdges, places: laid.places };
    if (focused) made.get(focused)?.button.focus();
  }

  function write(nodes, edges) {
    const pressed = pressure(nodes, edges);
    for (const node of nodes) {
      const parts = drawn.nodes.get(node.name);
      const { flow, traffic, note, fill } = summary(node);
      const state = stateOf(node);
      if (parts.state.dataset.state !== node.state) {
        parts.state.replaceChildren(badge(node));
        parts.state.dataset.state = node.state;
      }
      mark(parts.button, "data-level", state.level);
      mark(parts.button, "aria-pressed", node.name === chosen);
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
    const most = Math.max(1, ...edges.map((edge) => edge.records_per_second ?? 0));
    for (const edge of edges) {
      const { path, label } = drawn.edges.get(edge.id);
      const value = edge.records_per_second;
      const level = pressed.get(edge) ?? (value > 0 ? "flow" : "idle");
      mark(path, "data-level", level);
      mark(path, "data-rejected", edge.rejected);
      path.style.strokeWidth = value > 0 ? (1.5 + 3 * (Math.log1p(value) / Math.log1p(most))).toFixed(1) : "1.5";
      mark(label, "data-level", level);
      mark(label, "data-edge", `${edge.from} ${edge.to}`);
      mark(label, "data-rate", value ?? null);
      const sign = level === "bad" ? "✖ " : level === "warn" ? "‖ " : "";
      const text = sign + (value === undefined ? "" : rate(value));
      if (edge.port) put(label.firstChild, edge.port);
      put(label.lastChild, text);
    }
  }

  /** Draws a status. */
  function update(status) {
    last = status;
    const known = new Set(status.nodes.map((node) => node.name));
    const edges = edgesOf(status).filter((edge) => known.has(edge.source) && known.has(edge.target));
    const width = element.clientWidth;
    if (width === 0) return;
    const key = JSON.stringify([width, status.nodes.map((node) => [node.name, node.section, node.type]), edges.map((edge) => edge.id)]);
    if (key !== drawn.key) build(status.nodes, edges, key, width);
    write(status.nodes, edges);
  }

  /** The node nearest in a direction. */
  function neighbour(from, key) {
    const box = (name) => {
      const rect = drawn.nodes.get(name).button.getBoundingClientRect();
      return { x: rect.x + rect.width / 2, y: rect.y + rect.height / 2 };
    };
    const here = box(from);
    let best = null;
    for (const name of drawn.nodes.keys()) {
      const there = box(name);
      const [dx, dy] = [there.x - here.x, there.y - here.y];
      const [ahead, aside] = { ArrowRight: [dx, dy], ArrowLeft: [-dx, dy], ArrowDown: [dy, dx], ArrowUp: [-dy, dx] }[key];
      if (name === from || ahead < 20) continue;
      const far = ahead + 2 * Math.abs(aside);
      if (!best || far < best.far) best = { name, far };
    }
    return best?.name;
  }

  cards.addEventListener("keydown", (event) => {
    const from = event.target.closest("[data-node]")?.dataset.node;
    if (!from || !event.key.startsWith("Arrow")) return;
    event.preventDefault();
    const next = neighbour(from, event.key);
    if (next) drawn.nodes.get(next).button.focus();
  });
  new ResizeObserver(() => last && update(last)).observe(element);

  return {
    update,
    choose(name) {
      chosen = name;
      if (last) update(last);
      drawn.nodes.get(name)?.button.scrollIntoView({ inline: "center", block: "nearest" });
    },
    focus: (name) => drawn.nodes.get(name)?.button.focus(),
  };
}

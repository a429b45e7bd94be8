// The edges of the graph: which there are, which are shown, how they are marked, and their lines with labels.

import { mark, put, rate, stateOf, svg } from "./dom.js";

/** The length of an arrow. */
const ARROW = 9;
/** The size of a label: its height, and the width of a character. */
const [HEIGHT, CHAR] = [19, 7.3];
/** A rate such as `‖ 1.25k/s` has about this many characters. */
const RATE_CHARS = 8;
/** A longer name of a port is shortened in its middle. */
const PORT_CHARS = 14;

/** The edges of a status, with the names of their ends. */
export function edgesOf(status) {
  // A pump has a dot in its name; otherwise the dot stands in front of a port.
  const names = new Set((status.nodes ?? []).map((node) => node.name));
  return (status.edges ?? []).map((edge) => {
    const [source, port = ""] = names.has(edge.from) ? [edge.from] : edge.from.split(".");
    const room = ARROW + CHAR * (portName(port).length + RATE_CHARS) + 6;
    return { ...edge, source, port, target: edge.to, rejected: port === "rejected", room, id: `${edge.from} ${edge.to} ${edge.tags ?? ""}` };
  });
}

/** Whether an edge is worth a line: the paths of rejected records are hidden until a record was rejected, because every node has one. */
export function isShown(edge, source) {
  return !edge.rejected || edge.records_per_second > 0 || source?.meters?.records_rejected > 0;
}

/** The marks of edges besides their rate: `bad` if the consumer fails, `warn` if records wait in front of it. Through processors the mark leads back to the channel or source. */
export function pressure(nodes, edges) {
  const level = new Map(nodes.map((node) => [node.name, stateOf(node).flows ? "good" : stateOf(node).level]));
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

/** The name of a port in a label. */
function portName(port) {
  return port.length <= PORT_CHARS ? port : `${port.slice(0, PORT_CHARS / 2 - 1)}…${port.slice(-PORT_CHARS / 2)}`;
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

/** How much two boxes, given by their middles, overlap. */
function overlap(a, b) {
  const wide = (a.width + b.width) / 2 - Math.abs(a.x - b.x);
  const high = (a.height + b.height) / 2 - Math.abs(a.y - b.y);
  return wide > 0 && high > 0 ? wide * high : 0;
}

/** A place on the edge for its label where no other label and no node is. */
function spot(path, size, taken, limit) {
  const length = path.getTotalLength();
  let best = null;
  for (const share of [0.5, 0.44, 0.56, 0.38, 0.62, 0.32, 0.68, 0.26, 0.74, 0.2, 0.8, 0.14, 0.86]) {
    const { x, y } = path.getPointAtLength(length * share);
    const box = { ...size, x: Math.min(Math.max(x, size.width / 2), limit - size.width / 2), y };
    box.hits = taken.reduce((sum, it) => sum + overlap(it, box), 0);
    if (!best || box.hits < best.hits) best = box;
    if (best.hits === 0) break;
  }
  taken.push(best);
  return best;
}

/** Draws the lines of all edges into `element`. Returns the parts of each edge by its id. `boxes`: the nodes, which labels keep clear of. */
export function drawEdges(element, edges, laid, down, boxes) {
  const arrow = svg("marker", { id: "arrow", viewBox: "0 0 10 10", refX: 1, refY: 5, markerWidth: 10, markerHeight: 10, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { d: "M0 0 10 5 0 10z", class: "arrow" }));
  element.replaceChildren(svg("defs", {}, arrow));
  const drawn = new Map();
  for (const edge of edges) {
    const path = svg("path", { class: "edge", d: way(laid.ways.get(edge), down), "marker-end": "url(#arrow)" });
    element.append(path);
    drawn.set(edge.id, { path });
  }
  const taken = [...boxes];
  for (const edge of edges) {
    const parts = drawn.get(edge.id);
    parts.port = portName(edge.port);
    const chars = parts.port.length + RATE_CHARS;
    parts.at = spot(parts.path, { width: CHAR * chars, height: HEIGHT }, taken, laid.width);
    // The plate keeps the lines of other edges away from the text.
    parts.plate = svg("rect", { class: "plate", rx: 4 });
    parts.rate = svg("tspan");
    const port = edge.port ? svg("tspan", { class: "edge-port" }, `${parts.port} `) : null;
    const text = svg("text", { x: parts.at.x, y: parts.at.y, "text-anchor": "middle", "dominant-baseline": "central" }, port, parts.rate);
    parts.label = svg("g", { class: "edge-label" }, parts.plate, text);
    element.append(parts.label);
  }
  return drawn;
}

const SIGNS = { bad: "✖ ", warn: "‖ " };

/** Writes the numbers of an edge. `level`: its mark, if it has one. `most`: the largest rate of all edges. */
export function writeEdge({ path, label, plate, port, rate: shown, at }, edge, level, most) {
  const value = edge.records_per_second;
  const own = level ?? (value === undefined ? "unknown" : value > 0 ? "flow" : "idle");
  mark(path, "data-level", own);
  mark(path, "data-rejected", edge.rejected);
  path.style.strokeWidth = value > 0 ? (1.5 + 3 * (Math.log1p(value) / Math.log1p(most))).toFixed(1) : "1.5";
  mark(label, "data-level", own);
  mark(label, "data-edge", `${edge.from} ${edge.to}`);
  mark(label, "data-rate", value ?? null);
  const text = (SIGNS[own] ?? "") + (value === undefined ? "?/s" : rate(value));
  if (shown.textContent === text) return;
  put(shown, text);
  const width = CHAR * (port.length + text.length + 1) + 4;
  mark(plate, "x", at.x - width / 2);
  mark(plate, "y", at.y - HEIGHT / 2);
  mark(plate, "width", width);
  mark(plate, "height", HEIGHT);
}

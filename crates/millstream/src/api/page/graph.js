// The running graph: nodes are buttons, edges are drawn behind them. A change of the graph is laid out again; numbers are only written.

import { $, h, mark, percent, put, svg } from "./dom.js";
import { card, writeCard } from "./card.js";
import { drawEdges, edgesOf, isShown, pressure, writeEdge } from "./edges.js";
import { layout } from "./layout.js";

/** Space for focus rings around the graph. */
const EDGE = 8;
/** The sizes of the graph that a click chooses: each is this much larger than the one before. */
const STEP = 1.25;
const [SMALLEST, LARGEST] = [0.3, 2];
/** A graph that is too wide becomes smaller until it fits. One that is too high becomes smaller at most down to this. */
const READABLE = 0.8;
/** The most that a gap between two layers and a node grow if there is space. */
const WIDER = 90;
/** What surrounds the graph on the screen, so that a high graph can be seen at once. */
const AROUND = 250;

/** The sizes of nodes and gaps, from the most spacious to the closest. */
function forms(width) {
  // On a phone it flows down, with two nodes beside each other.
  if (width < 620) return [{ down: true, width: Math.min(170, (width - 2 * EDGE - 14) / 2), height: 94, along: 64, across: 14, bend: 10, apart: 72, most: 2 }];
  const wide = { down: false, width: 204, height: 96, along: 96, across: 26, bend: 26, apart: 36, most: Infinity };
  return [wide, { ...wide, width: 180, along: 76 }, { ...wide, width: 190, along: 76, height: 54, across: 12, bend: 20, isCompact: true }];
}

/** Uses free width: first for the labels of the edges, then for the names of the nodes. */
function widen(form, { width, depth }, room) {
  const gaps = Math.max(1, depth - 1);
  const more = (free, parts) => Math.max(0, Math.min(WIDER, free / parts));
  const along = more(room - width, gaps);
  form.along += along;
  form.width += more(room - width - along * gaps, depth);
}

/** The graph in `element`. `select(name)` is called when a node is chosen, `around(nodes, edges)` returns the names that are shown (`null`: all). */
export function graph(element, select, around) {
  const lines = svg("svg", { class: "edges", "aria-hidden": "true", focusable: "false" });
  const cards = h("div", { class: "cards", role: "group", "aria-label": "Nodes of the running graph" });
  const canvas = h("div", { class: "canvas" }, lines, cards);
  const frame = h("div", { class: "frame" }, canvas);
  element.replaceChildren(frame);
  let drawn = { key: null, nodes: new Map(), edges: new Map(), width: 0, height: 0, fitting: 1 };
  let last = null;
  let chosen = null;
  /** The size that the user has chosen; `null`: it fits. */
  let size = null;

  /** The first form that fits, or the closest one. */
  function laidOut(nodes, edges, room, high) {
    const all = forms(room + 2 * EDGE);
    for (const [at, form] of all.entries()) {
      const laid = layout(nodes, edges, form);
      // Smaller cards make it less high; what is too wide is scaled.
      const fits = laid.height <= high && (at > 0 || laid.width <= room);
      if (!fits && at + 1 < all.length) continue;
      while (form.down && form.width > 118 && layout(nodes, edges, form).width > room) form.width -= 8;
      if (!form.down) widen(form, laid, room / Math.max(READABLE, Math.min(1, high / laid.height)));
      return { form, laid: layout(nodes, edges, form) };
    }
  }

  function build(nodes, edges, key, width) {
    const room = width - 2 * EDGE;
    const high = Math.max(480, innerHeight - AROUND);
    const { form, laid } = laidOut(nodes, edges, room, high);
    const wide = laid.width + 2 * EDGE;
    const tall = laid.height + 2 * EDGE;
    const byWidth = Math.min(1, width / wide);
    const fitting = form.down ? 1 : Math.max(SMALLEST, Math.min(byWidth, Math.max(READABLE, high / tall)));
    mark(lines, "width", wide);
    mark(lines, "height", tall);
    mark(lines, "viewBox", `${-EDGE} ${-EDGE} ${wide} ${tall}`);
    mark(cards, "data-compact", form.isCompact);
    const focused = document.activeElement?.dataset?.node;
    const order = [...nodes].sort((a, b) => {
      const [p, q] = [laid.places.get(a.name), laid.places.get(b.name)];
      return p.layer - q.layer || p.across - q.across;
    });
    const made = new Map();
    const boxes = [];
    for (const node of order) {
      const parts = card(node, () => select(node.name));
      const { x, y } = laid.places.get(node.name);
      Object.assign(parts.button.style, { left: `${x + EDGE}px`, top: `${y + EDGE}px`, width: `${form.width}px`, height: `${form.height}px` });
      boxes.push({ x: x + form.width / 2, y: y + form.height / 2, width: form.width, height: form.height });
      made.set(node.name, parts);
    }
    cards.replaceChildren(...[...made.values()].map((parts) => parts.button));
    drawn = { key, nodes: made, edges: drawEdges(lines, edges, laid, form.down, boxes), width: wide, height: tall, fitting };
    resize();
    if (focused) made.get(focused)?.button.focus();
  }

  /** Gives the graph the chosen size. */
  function resize() {
    const scale = size ?? drawn.fitting;
    canvas.style.transform = `scale(${scale})`;
    const left = Math.max(0, (element.clientWidth - drawn.width * scale) / 2);
    Object.assign(canvas.style, { left: `${left}px`, width: `${drawn.width}px`, height: `${drawn.height}px` });
    Object.assign(frame.style, { width: `${Math.floor(left + drawn.width * scale)}px`, height: `${Math.ceil(drawn.height * scale)}px` });
    put($("zoom-fit"), percent(scale));
    mark($("zoom-fit"), "aria-pressed", String(size === null));
    $("zoom-out").disabled = scale <= SMALLEST;
    $("zoom-in").disabled = scale >= LARGEST;
  }

  function zoom(factor) {
    size = factor && Math.min(LARGEST, Math.max(SMALLEST, (size ?? drawn.fitting) * factor));
    resize();
  }
  $("zoom-out").addEventListener("click", () => zoom(1 / STEP));
  $("zoom-in").addEventListener("click", () => zoom(STEP));
  $("zoom-fit").addEventListener("click", () => zoom(null));

  /** Draws a status. */
  function update(status) {
    last = status;
    const width = element.clientWidth;
    if (width === 0) return;
    const known = new Map(status.nodes.map((node) => [node.name, node]));
    const all = edgesOf(status).filter((edge) => known.has(edge.source) && known.has(edge.target));
    const pressed = pressure(status.nodes, all);
    const used = all.filter((edge) => isShown(edge, known.get(edge.source)));
    const near = around(status.nodes, used);
    const nodes = status.nodes.filter((node) => near?.has(node.name) ?? true);
    const names = new Set(nodes.map((node) => node.name));
    const edges = used.filter((edge) => names.has(edge.source) && names.has(edge.target));
    const high = Math.round(innerHeight / 100);
    const key = JSON.stringify([width, high, nodes.map((node) => [node.name, node.section, node.type]), edges.map((edge) => edge.id)]);
    if (key !== drawn.key) build(nodes, edges, key, width);
    for (const node of nodes) writeCard(drawn.nodes.get(node.name), node, node.name === chosen);
    const most = Math.max(1, ...edges.map((edge) => edge.records_per_second ?? 0));
    for (const edge of edges) writeEdge(drawn.edges.get(edge.id), edge, pressed.get(edge), most);
    const hidden = all.length - used.length;
    put($("hidden"), hidden === 0 ? "" : hidden === 1 ? "(one path is hidden until it carries some)" : `(${hidden} paths are hidden until they carry some)`);
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
      if (name === from || ahead < 10) continue;
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
  const again = () => last && update(last);
  new ResizeObserver(again).observe(element);
  addEventListener("resize", again);

  return {
    update,
    again,
    choose(name) {
      chosen = name;
      again();
      drawn.nodes.get(name)?.button.scrollIntoView({ inline: "center", block: "nearest" });
    },
    focus: (name) => drawn.nodes.get(name)?.button.focus(),
  };
}

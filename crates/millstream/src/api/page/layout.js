// A layered layout: sources at the start, sinks at the end, few crossings, edges around nodes. It does not depend on the page.

/** The layer of each node: behind all that feed it, with at most `most` in a layer; without such a limit sinks are at the end. Edges that close a circle are returned, and count no more. */
function layers(nodes, edges, most) {
  const out = new Map(nodes.map((node) => [node.name, []]));
  for (const edge of edges) out.get(edge.source)?.push(edge);
  // Rejected records come last, because only they lead back.
  for (const list of out.values()) list.sort((a, b) => a.rejected - b.rejected);
  const state = new Map();
  const order = [];
  const back = new Set();
  const visit = (start) => {
    const stack = [[start, 0]];
    state.set(start, "open");
    while (stack.length > 0) {
      const top = stack[stack.length - 1];
      const edge = out.get(top[0])[top[1]++];
      if (!edge) {
        state.set(top[0], "done");
        order.push(top[0]);
        stack.pop();
      } else if (state.get(edge.target) === "open") back.add(edge);
      else if (!state.has(edge.target)) {
        state.set(edge.target, "open");
        stack.push([edge.target, 0]);
      }
    }
  };
  const starts = [...nodes].sort((a, b) => (a.section !== "source") - (b.section !== "source"));
  // The order is that of the ends, backwards: so the first ones of the file come out first.
  for (const node of starts.reverse()) if (!state.has(node.name)) visit(node.name);
  const layer = new Map(nodes.map((node) => [node.name, 0]));
  const used = [];
  for (const name of order.reverse()) {
    let own = layer.get(name);
    while ((used[own] ?? 0) >= most) own += 1;
    used[own] = (used[own] ?? 0) + 1;
    layer.set(name, own);
    for (const edge of out.get(name)) {
      if (!back.has(edge)) layer.set(edge.target, Math.max(layer.get(edge.target), own + 1));
    }
  }
  const last = Math.max(0, ...layer.values());
  for (const node of nodes) {
    const leads = out.get(node.name).some((edge) => !back.has(edge));
    if (node.section === "sink" && !leads && most === Infinity) layer.set(node.name, last);
  }
  return { layer, back };
}

/** The rows of the layers: nodes, and a bend for each layer that an edge passes. */
function rows(nodes, edges, layer, back) {
  const all = [];
  const row = (at) => (all[at] ??= []);
  const cells = new Map();
  for (const node of nodes) {
    const cell = { node: node.name, before: [], behind: [] };
    cells.set(node.name, cell);
    row(layer.get(node.name)).push(cell);
  }
  const paths = new Map();
  for (const edge of edges) {
    if (back.has(edge)) continue;
    let last = cells.get(edge.source);
    const path = [last];
    for (let at = layer.get(edge.source) + 1; at < layer.get(edge.target); at++) {
      const bend = { node: null, before: [], behind: [] };
      row(at).push(bend);
      path.push(bend);
    }
    path.push(cells.get(edge.target));
    for (const cell of path.slice(1)) {
      last.behind.push(cell);
      cell.before.push(last);
      last = cell;
    }
    paths.set(edge, path);
  }
  for (let at = 0; at < all.length; at++) row(at);
  return { all, paths, cells };
}

const crossings = (all) => {
  let sum = 0;
  for (const row of all) {
    const ends = row.flatMap((cell) => cell.behind.map((to) => to.at).sort((a, b) => a - b));
    for (let a = 0; a < ends.length; a++) for (let b = a + 1; b < ends.length; b++) sum += ends[a] > ends[b];
  }
  return sum;
};

/** Puts each row in the order of what its cells are connected to, forth and back, and keeps the best. */
function arrange(all) {
  const number = (row) => row.forEach((cell, at) => (cell.at = at));
  all.forEach(number);
  const middle = (cell, side) => {
    const near = cell[side];
    return near.length ? near.reduce((sum, it) => sum + it.at, 0) / near.length : cell.at;
  };
  let best = all.map((row) => [...row]);
  let least = crossings(all);
  for (let round = 0; round < 8 && least > 0; round++) {
    const forth = round % 2 === 0;
    for (let step = 1; step < all.length; step++) {
      const row = all[forth ? step : all.length - 1 - step];
      const keys = new Map(row.map((cell) => [cell, middle(cell, forth ? "before" : "behind")]));
      row.sort((a, b) => keys.get(a) - keys.get(b) || a.at - b.at);
      number(row);
    }
    const now = crossings(all);
    if (now < least) [least, best] = [now, all.map((row) => [...row])];
  }
  best.forEach((row, at) => {
    all[at] = row;
    number(row);
  });
}

/** Gives each cell a place across the flow: near what it is connected to, without touching its neighbours. */
function place(all, size, gap, bend, isNarrow) {
  const extent = (cell) => (cell.node ? size : bend);
  for (const row of all) {
    let at = 0;
    for (const cell of row) {
      cell.across = at + extent(cell) / 2;
      at += extent(cell) + gap;
    }
  }
  const widest = Math.max(...all.map((row) => (row.length ? row[row.length - 1].across + extent(row[row.length - 1]) / 2 : 0)));
  for (const row of all) {
    const own = row.length ? row[row.length - 1].across + extent(row[row.length - 1]) / 2 : 0;
    for (const cell of row) cell.across += (widest - own) / 2;
  }
  for (let round = 0; round < 12; round++) {
    const forth = round % 2 === 0;
    for (let step = 0; step < all.length; step++) {
      const row = all[forth ? step : all.length - 1 - step];
      const wish = row.map((cell) => {
        const near = forth ? cell.before : cell.behind;
        const used = near.length ? near : [...cell.before, ...cell.behind];
        return used.length ? used.reduce((sum, it) => sum + it.across, 0) / used.length : cell.across;
      });
      settle(row, wish, (a, b) => (extent(a) + extent(b)) / 2 + gap);
    }
  }
  if (isNarrow) {
    const cells = all.flat();
    const shift = widest / 2 - cells.reduce((sum, cell) => sum + cell.across, 0) / cells.length;
    for (const cell of cells) cell.across += shift;
    for (const row of all) hold(row, widest, extent, gap);
  }
  const start = Math.min(...all.flatMap((row) => row.map((cell) => cell.across - extent(cell) / 2)));
  for (const row of all) for (const cell of row) cell.across -= start;
  return Math.max(...all.flatMap((row) => row.map((cell) => cell.across + extent(cell) / 2)));
}

/** Moves the cells of a row into the breadth of the widest one. */
function hold(row, widest, extent, gap) {
  let least = 0;
  for (const cell of row) {
    cell.across = Math.max(cell.across, least + extent(cell) / 2);
    least = cell.across + extent(cell) / 2 + gap;
  }
  let most = widest;
  for (const cell of [...row].reverse()) {
    cell.across = Math.min(cell.across, most - extent(cell) / 2);
    most = cell.across - extent(cell) / 2 - gap;
  }
}

/** The places nearest to the wishes that keep the distances: neighbours that want the same place share the difference. */
function settle(row, wish, distance) {
  const blocks = [];
  row.forEach((cell, at) => {
    let block = { cells: [cell], offsets: [0], sum: wish[at], place: wish[at] };
    let last = blocks[blocks.length - 1];
    while (last) {
      const end = last.place + last.offsets[last.offsets.length - 1];
      const need = distance(last.cells[last.cells.length - 1], block.cells[0]);
      if (end + need <= block.place) break;
      const shift = last.offsets[last.offsets.length - 1] + need;
      const all = last.cells.length + block.cells.length;
      const sum = last.sum + block.sum - shift * block.cells.length;
      block = {
        cells: [...last.cells, ...block.cells],
        offsets: [...last.offsets, ...block.offsets.map((it) => it + shift)],
        sum,
        place: sum / all,
      };
      blocks.pop();
      last = blocks[blocks.length - 1];
    }
    blocks.push(block);
  });
  for (const block of blocks) block.cells.forEach((cell, at) => (cell.across = block.place + block.offsets[at]));
}

/** How far each edge is moved aside at its ends, so that edges between the same two nodes are apart. */
function apart(edges, gap, size) {
  const pairs = new Map();
  for (const edge of edges) {
    const pair = JSON.stringify([edge.source, edge.target]);
    pairs.set(pair, [...(pairs.get(pair) ?? []), edge]);
  }
  const aside = new Map();
  for (const pair of pairs.values()) {
    const step = Math.min(gap, (0.7 * size) / pair.length);
    pair.forEach((edge, at) => aside.set(edge, step * (at - (pair.length - 1) / 2)));
  }
  return aside;
}

/** Where each layer begins. The gap behind a layer has room for the labels of the edges that lead to the next one. */
function begins(count, length, along, edges, layer) {
  const gaps = Array(count).fill(along);
  for (const edge of edges) {
    const from = layer.get(edge.source);
    if (layer.get(edge.target) === from + 1) gaps[from] = Math.max(gaps[from], edge.room ?? 0);
  }
  const starts = [0];
  for (let at = 1; at < count; at++) starts.push(starts[at - 1] + length + gaps[at - 1]);
  return starts;
}

/**
 * Lays out a graph. `nodes`: { name, section }, `edges`: { source, target, rejected, room }.
 * `room`: the gap that the label of an edge needs, if the graph flows to the right. `form`: the width and height of a node, the gaps
 * along and across the flow, the width of a bend, the space between edges that join the same nodes, the most nodes in a layer, and whether
 * it flows `down`.
 * Returns the place of each node by name, the points of each edge, and the size.
 */
export function layout(nodes, edges, form) {
  if (nodes.length === 0) return { places: new Map(), ways: new Map(), width: 0, height: 0, depth: 0 };
  const { layer, back } = layers(nodes, edges, form.most);
  const { all, paths, cells } = rows(nodes, edges, layer, back);
  arrange(all);
  const [length, size] = form.down ? [form.height, form.width] : [form.width, form.height];
  const breadth = place(all, size, form.across, form.bend, form.most < Infinity);
  const starts = begins(all.length, length, form.along, form.down ? [] : edges, layer);
  const begin = (at) => starts[at];
  const point = (along, across) => (form.down ? { x: across, y: along } : { x: along, y: across });
  const places = new Map();
  for (const node of nodes) {
    const cell = cells.get(node.name);
    const at = begin(layer.get(node.name));
    const corner = point(at, cell.across - size / 2);
    places.set(node.name, { ...corner, layer: layer.get(node.name), across: cell.across });
  }
  const ways = new Map();
  const aside = apart(edges, form.apart, size);
  for (const edge of edges) {
    const path = paths.get(edge);
    const off = aside.get(edge);
    if (!path) {
      const [from, to] = [cells.get(edge.source), cells.get(edge.target)];
      const start = point(begin(layer.get(edge.source)) + length, from.across + off);
      const end = point(begin(layer.get(edge.target)), to.across + off);
      ways.set(edge, { points: [start, end], back: true });
      continue;
    }
    const points = path.flatMap((cell, step) => {
      const at = begin(layer.get(edge.source) + step);
      // Bends are apart already.
      const across = cell.node ? cell.across + off : cell.across;
      const [enter, leave] = [point(at, across), point(at + length, across)];
      if (step === 0) return [leave];
      return step + 1 === path.length ? [enter] : [enter, leave];
    });
    ways.set(edge, { points, back: false });
  }
  const along = begin(all.length - 1) + length;
  const total = point(along, breadth);
  return { places, ways, width: total.x, height: total.y, depth: all.length };
}

// The table of all nodes. A click on the head of a column sorts it.

import { badge, byteRate, bytes, count, h, mark, put, rate, seconds, shortened, stateOf } from "./dom.js";

const SECTIONS = ["source", "processor", "channel", "sink"];
const LEVELS = ["idle", "good", "warn", "bad"];
const now = (series) => (node) => node.now?.[series];
/** The columns: head, the value of a node by which it is sorted, and how the value is written. */
const COLUMNS = [
  { head: "Node", of: (node) => node.name },
  { head: "State", of: (node) => LEVELS.indexOf(stateOf(node).level) },
  { head: "Received", of: now("records_received"), format: rate },
  { head: "Sent", of: now("records_sent"), format: rate },
  { head: "Bytes", of: now("bytes"), format: byteRate },
  { head: "Waiting", of: now("waiting_bytes"), format: bytes, or: [now("waiting_records"), (value) => `${count(value)} records`] },
  { head: "Behind", of: now("behind_seconds"), format: seconds },
  { head: "Rejected", of: (node) => node.meters?.records_rejected, format: count },
];

/** The nodes in the order of a column. Without one: by section, in the order of the configuration. */
export function sorted(nodes, column, isDown) {
  const all = [...nodes].sort((a, b) => SECTIONS.indexOf(a.section) - SECTIONS.indexOf(b.section));
  if (column === null) return all;
  const { of } = COLUMNS[column];
  const sign = isDown ? -1 : 1;
  return all.sort((a, b) => {
    const [p, q] = [of(a), of(b)];
    // Nodes without a value are last in both directions.
    if (p === undefined || q === undefined) return (p === undefined) - (q === undefined);
    return sign * (typeof p === "string" ? p.localeCompare(q) : p - q);
  });
}

/** The table in `element`. `again` is called when it must be written again. */
export function nodeTable(element, again) {
  let column = null;
  let isDown = false;
  let key = "";
  const rows = new Map();

  function sort(at) {
    // A name begins with the smallest, a number and a state with the largest. The third click restores the order of the graph.
    const first = at !== 0;
    if (column !== at) [column, isDown] = [at, first];
    else if (isDown === first) isDown = !first;
    else column = null;
    again();
  }

  const heads = COLUMNS.map(({ head }, at) =>
    h("th", { scope: "col", class: at > 1 ? "number" : "" }, h("button", { type: "button", class: "sort", onclick: () => sort(at) }, head, h("span", { class: "arrow-sign", "aria-hidden": "true" }))),
  );
  const body = h("tbody");
  element.replaceChildren(h("thead", {}, h("tr", {}, heads)), body);

  function row(node) {
    const cells = COLUMNS.slice(1).map(({ head }, at) => h("td", { class: at > 0 ? "number" : "", "data-column": head }));
    const name = h("th", { scope: "row" }, h("a", { href: `#/node/${node.name}` }, shortened(node.name)), h("span", { class: "kind" }, `${node.type} ${node.section}`));
    return { element: h("tr", {}, name, cells), cells, kind: node.type };
  }

  /** Writes these nodes. */
  function update(nodes) {
    const all = sorted(nodes, column, isDown);
    for (const node of all) if (rows.get(node.name)?.kind !== node.type) rows.set(node.name, row(node));
    const order = JSON.stringify([column, isDown, all.map((node) => [node.name, node.type])]);
    if (order !== key) {
      key = order;
      body.replaceChildren(...all.map((node) => rows.get(node.name).element));
      heads.forEach((head, at) => {
        const isSorted = at === column;
        mark(head, "aria-sort", isSorted ? (isDown ? "descending" : "ascending") : null);
        put(head.firstChild.lastChild, isSorted ? (isDown ? " ▼" : " ▲") : "");
      });
    }
    for (const node of all) {
      const [state, ...rest] = rows.get(node.name).cells;
      if (state.dataset.state !== node.state) {
        state.replaceChildren(badge(node));
        state.dataset.state = node.state;
      }
      rest.forEach((cell, at) => {
        const { of, format, or } = COLUMNS[at + 2];
        const [value, other] = [of(node), or?.[0](node)];
        put(cell, value !== undefined ? format(value) : other !== undefined ? or[1](other) : "");
      });
    }
  }

  return { update };
}

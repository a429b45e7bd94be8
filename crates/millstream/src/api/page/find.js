// Which nodes the page shows: all, those that a search finds, or only those with a problem.

import { $, mark, put, stateOf } from "./dom.js";

/** Whether a node needs attention. */
export const isTroubled = (node) => !["good", "idle"].includes(stateOf(node).level);

/** The search and the button for problems. `change` is called when another choice is made. */
export function finder(change) {
  let words = [];
  let only = false;

  function choose(text, problems) {
    words = text.toLowerCase().split(/\s+/).filter(Boolean);
    only = problems;
    mark($("only"), "aria-pressed", String(only));
    change();
  }
  $("find").addEventListener("input", () => choose($("find").value, only));
  $("only").addEventListener("click", () => choose($("find").value, !only));
  addEventListener("keydown", (event) => {
    const isTyping = event.target.matches?.("input, textarea, select");
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      $("find").focus();
    } else if (event.key === "Escape" && event.target === $("find")) {
      event.stopImmediatePropagation();
      $("find").value = "";
      choose("", only);
    }
  });

  return {
    /** Whether a node is found. */
    finds(node) {
      if (only && !isTroubled(node)) return false;
      const text = `${node.name} ${node.type} ${node.section} ${stateOf(node).word}`.toLowerCase();
      return words.every((word) => text.includes(word));
    },
    /** The names of the nodes in the graph: those that are found, with their neighbours. `null`: all. */
    around(nodes, edges) {
      if (!only && words.length === 0) return null;
      const found = new Set(nodes.filter((node) => this.finds(node)).map((node) => node.name));
      const names = new Set(found);
      for (const edge of edges) {
        if (found.has(edge.source)) names.add(edge.target);
        if (found.has(edge.target)) names.add(edge.source);
      }
      return names;
    },
    /** Says how many nodes are found. */
    tell(nodes) {
      const found = nodes.filter((node) => this.finds(node)).length;
      const isAll = !only && words.length === 0;
      const none = only && words.length === 0 ? "no node has a problem" : "no node is found";
      put($("found"), isAll ? "" : found === 0 ? none : `${found} of ${nodes.length} nodes`);
    },
  };
}

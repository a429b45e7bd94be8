// Charts of the last minutes: lines over time, with the values as text beside them and under the pointer.

import { clock, h, mark, put, seconds, svg } from "./dom.js";

const HEIGHT = 132;
const TOP = 8;
const BOTTOM = 20;
const LEFT = 4;
const RIGHT = 4;

/** A round number above the largest value. */
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 8, 10, 15].find((step) => step * size >= value * 1.02) * size;
}

/**
 * A chart with one or two lines. `format` writes a value. `update(lines, step, end)`: the values of each line, the oldest first, the
 * seconds between two of them, and the time of the last one.
 */
export function chart(title, names, format) {
  const plot = svg("svg", { class: "plot", height: HEIGHT, role: "img", "aria-label": title });
  const tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  const figures = h("span", { class: "chart-now" });
  const head = h("figcaption", {}, h("span", { class: "chart-title" }, title), figures);
  const legend = names.length > 1 ? h("div", { class: "chart-legend" }, names.map((name, at) => h("span", { "data-line": at }, name))) : null;
  const element = h("figure", { class: "chart" }, head, legend, h("div", { class: "plot-box" }, plot, tip));
  let shown = null;

  function draw() {
    if (!shown) return;
    const { lines, step, end, span } = shown;
    const width = plot.clientWidth || plot.parentElement.clientWidth || 320;
    const values = lines.flat().filter((value) => Number.isFinite(value));
    const most = ceiling(Math.max(0, ...values));
    const [wide, high] = [width - LEFT - RIGHT, HEIGHT - TOP - BOTTOM];
    const x = (back) => LEFT + wide - (back / span) * wide;
    const y = (value) => TOP + high - (value / most) * high;
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      const at = y(most * share);
      parts.push(svg("line", { class: "grid", x1: LEFT, x2: LEFT + wide, y1: at, y2: at }));
      if (share > 0) parts.push(svg("text", { class: "tick", x: LEFT + 2, y: at + 11 }, format(most * share)));
    }
    parts.push(svg("text", { class: "tick", x: LEFT, y: HEIGHT - 5 }, `${seconds(span)} ago`));
    parts.push(svg("text", { class: "tick", x: LEFT + wide, y: HEIGHT - 5, "text-anchor": "end" }, "now"));
    lines.forEach((line, number) => {
      let path = "";
      let area = "";
      let first = null;
      line.forEach((value, at) => {
        const back = (line.length - 1 - at) * step;
        if (!Number.isFinite(value) || back > span) {
          if (first !== null) area += `L${x(back + step).toFixed(1)} ${y(0)}Z`;
          first = null;
          return;
        }
        const point = `${x(back).toFixed(1)} ${y(value).toFixed(1)}`;
        // A line of no length is a dot: a value without neighbours is seen, too.
        path += first === null ? `M${point}h0` : `L${point}`;
        area += first === null ? `M${x(back).toFixed(1)} ${y(0)}L${point}` : `L${point}`;
        first = at;
      });
      if (first !== null) area += `L${x(0).toFixed(1)} ${y(0)}Z`;
      if (number === 0 && area) parts.push(svg("path", { class: "area", d: area }));
      if (path) parts.push(svg("path", { class: "line", "data-line": number, d: path }));
    });
    const cursor = svg("line", { class: "cursor", y1: TOP, y2: TOP + high, visibility: "hidden" });
    parts.push(cursor);
    plot.replaceChildren(...parts);
    mark(plot, "viewBox", `0 0 ${width} ${HEIGHT}`);
    const newest = lines.map((line) => line[line.length - 1]);
    const text = newest.map((value) => format(value ?? NaN)).join(" · ");
    put(figures, text);
    mark(plot, "aria-label", `${title}, ${seconds(span)}: now ${text}, at most ${format(Math.max(0, ...values))}`);
    plot.onpointermove = (event) => {
      const box = plot.getBoundingClientRect();
      const back = Math.round((((LEFT + wide - (event.clientX - box.left)) / wide) * span) / step) * step;
      const at = (line) => line[line.length - 1 - back / step];
      if (back < 0 || back > span || lines.every((line) => at(line) === undefined)) return leave();
      mark(cursor, "x1", x(back));
      mark(cursor, "x2", x(back));
      mark(cursor, "visibility", null);
      tip.hidden = false;
      put(tip, `${clock(end - back)}  ${lines.map((line, number) => `${names.length > 1 ? `${names[number]} ` : ""}${format(at(line) ?? NaN)}`).join("  ")}`);
      tip.style.left = `${Math.min(Math.max(0, x(back) - tip.offsetWidth / 2), width - tip.offsetWidth)}px`;
    };
    const leave = () => {
      tip.hidden = true;
      mark(cursor, "visibility", "hidden");
    };
    plot.onpointerleave = leave;
  }

  new ResizeObserver(draw).observe(plot);
  return {
    element,
    update(lines, step, end, span) {
      shown = { lines, step, end, span };
      draw();
    },
  };
}

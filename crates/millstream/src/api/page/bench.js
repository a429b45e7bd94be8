// A result of `millbench run --json`: a bar for each row, what it used, and whether its goals are reached. The file stays in this page.

import { bytes, count, h, percent, put, seconds } from "./dom.js";

/** A result is a few hundred kB. */
const FILE_MAX = 64 << 20;

const median = (all) => {
  const sorted = all.filter(Number.isFinite).sort((a, b) => a - b);
  const half = sorted.length >> 1;
  if (sorted.length === 0) return NaN;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
};

const perCpu = (run) => (run.usage.cpu_seconds > 0 ? run.records / run.usage.cpu_seconds : 0);
const FIGURES = {
  cpu: { word: "Per CPU-second", of: perCpu, format: (value) => count(value) },
  wall: { word: "Per second", of: (run) => run.records / run.seconds, format: (value) => `${count(value)}/s` },
  bytes: { word: "Bytes per second", of: (run) => run.bytes / run.seconds, format: (value) => `${bytes(value)}/s` },
  memory: { word: "Memory", of: (run) => run.usage.rss_peak, format: bytes },
};

const of = (row, figure) => median(row.runs.map(figure));

/** The slowest variant of a row, by which the row is judged. */
function slowest(row, figure) {
  const variants = new Map();
  for (const run of row.runs) variants.set(run.variant, [...(variants.get(run.variant) ?? []), figure(run)]);
  return Math.min(...[...variants.values()].map(median));
}

/** A goal in words, and whether it is reached; `null` if the result has nothing to compare with. */
function judge(goal, row, rows) {
  const [[name, value]] = Object.entries(goal);
  const latency = (key) => of(row, (run) => run.latency?.[key] ?? Infinity);
  const least = (figure, format) => ({ text: `at least ${format(value)}: ${format(figure)}`, reached: figure >= value });
  const most = (figure, format) => ({ text: `at most ${format(value)}: ${format(figure)}`, reached: figure <= value });
  switch (name) {
    case "PerCpu":
      return least(of(row, perCpu), (it) => `${count(it)} per CPU-s`);
    case "Bytes":
      return least(of(row, FIGURES.bytes.of), (it) => `${bytes(it)}/s`);
    case "Records":
      return least(of(row, FIGURES.wall.of), (it) => `${count(it)}/s`);
    case "Memory":
      return most(of(row, FIGURES.memory.of), bytes);
    case "Cpu":
      return most(of(row, (run) => run.usage.cpu_seconds), (it) => `${it.toFixed(2)} CPU-s`);
    case "Latency":
      return most(latency("median"), seconds);
    case "Times": {
      const [mean, p99] = [latency("mean"), latency("p99")];
      return { text: `mean at most ${seconds(value[0])}: ${seconds(mean)}, 99 % at most ${seconds(value[1])}: ${seconds(p99)}`, reached: mean <= value[0] && p99 <= value[1] };
    }
    case "Share": {
      const [share, other, by] = value;
      const base = rows.find((it) => it.name === other);
      if (!base?.runs.length) return null;
      const figure = by === "Cpu" ? perCpu : FIGURES.bytes.of;
      const got = slowest(row, figure) / of(base, figure);
      return { text: `at least ${percent(share)} of “${other}”: ${percent(got)}`, reached: got >= share };
    }
    // It takes the noise out of 64 variants; the table of millbench has it.
    default:
      return null;
  }
}

/** Throws with the reason if this is no result. */
function check(result) {
  if (typeof result?.scenario !== "string" || !Array.isArray(result.rows)) throw new Error("it has no scenario and no rows");
  for (const row of result.rows) {
    const good = typeof row.name === "string" && Array.isArray(row.runs) && row.runs.every((run) => run.usage && run.seconds > 0);
    if (!good) throw new Error("one of its rows has no measurements");
  }
  return result;
}

function rows(result, figure) {
  const { of: take, format } = FIGURES[figure];
  const shown = result.rows.filter((row) => row.runs.length);
  const most = Math.max(...shown.map((row) => of(row, take)).filter(Number.isFinite), 1e-9);
  return shown.map((row) => {
    const value = of(row, take);
    const bar = h("span", { class: "bar", "data-reference": row.reference });
    bar.style.width = `${(value / most) * 100}%`;
    const all = row.runs.map(take);
    const goals = (row.goals ?? []).map((goal) => judge(goal, row, result.rows)).filter(Boolean);
    const wrong = row.runs.map((run) => run.wrong).filter(Boolean);
    const goal = (it) => h("li", { "data-level": it.reached ? "good" : "bad" }, h("span", { "aria-hidden": "true" }, it.reached ? "✓ " : "✖ "), h("span", { class: "only-read" }, it.reached ? "reached: " : "missed: "), it.text);
    const latency = row.runs.some((run) => run.latency) ? `acks: median ${seconds(of(row, (run) => run.latency?.median))}, 99 % ${seconds(of(row, (run) => run.latency?.p99))}` : null;
    const used = [`${row.runs.length} runs, ${format(Math.min(...all))} to ${format(Math.max(...all))}`, `${(of(row, (run) => run.usage.cpu_seconds / run.seconds)).toFixed(2)} cores`, bytes(of(row, FIGURES.memory.of)), latency].filter(Boolean);
    return h(
      "li",
      { class: "bench-row" },
      h("div", { class: "bench-name" }, row.name, row.reference ? h("span", { class: "chip" }, "reference") : null),
      h("div", { class: "bench-bar" }, h("span", { class: "track" }, bar), h("span", { class: "number" }, format(value))),
      h("p", { class: "hint" }, used.join(" · ")),
      goals.length ? h("ul", { class: "goals" }, goals.map(goal)) : null,
      wrong.length ? h("p", { class: "why", "data-level": "bad" }, `✖ wrong: ${wrong[0]}`) : null,
    );
  });
}

function show(body, result, name) {
  let figure = result.rows.some((row) => row.runs.some((run) => run.usage.cpu_seconds > 0)) ? "cpu" : "wall";
  const list = h("ol", { class: "bench-rows" });
  const buttons = Object.entries(FIGURES).map(([key, it]) => h("button", { type: "button", onclick: () => draw(key) }, it.word));
  function draw(key) {
    figure = key;
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", Object.keys(FIGURES)[at] === key));
    list.replaceChildren(...rows(result, key));
  }
  const judged = result.rows.flatMap((row) => (row.goals ?? []).map((goal) => row.runs.length > 0 && judge(goal, row, result.rows)).filter(Boolean));
  const reached = judged.filter((it) => it.reached).length;
  const { cpu, cores, memory, kernel, load } = result.machine ?? {};
  const machine = [cpu, cores && `${cores} cores`, memory && bytes(memory), kernel, Number.isFinite(load) && `load ${load} at the start`].filter(Boolean);
  body.replaceChildren(
    h("div", { class: "bench-head" }, h("h2", {}, result.scenario), h("p", { class: "hint" }, [result.date, ...machine].join(" · ")), h("p", { class: "hint" }, `${name}: medians of ${result.runs} runs of ${result.seconds} s`)),
    judged.length ? h("p", { class: "bench-sum", "data-level": reached === judged.length ? "good" : "bad" }, `${reached === judged.length ? "✓" : "✖"} ${reached} of ${judged.length} goals reached`) : null,
    h("div", { class: "switch wide", role: "group", "aria-label": "Figure" }, buttons),
    list,
  );
  draw(figure);
}

/** The view in `element`, and a function that opens a file. */
export function benchView(element) {
  const input = h("input", { type: "file", id: "bench-file", accept: ".json,application/json", class: "only-read", onchange: () => open(input.files[0]) });
  const label = h("label", { for: "bench-file", class: "button main" }, "Choose a file");
  const status = h("p", { class: "empty", role: "status" }, "Choose a JSON result of millbench, or drop it anywhere on this page. It is read in this page and sent nowhere.");
  const body = h("div", { class: "bench" });
  element.replaceChildren(
    h("section", { class: "card" }, h("div", { class: "card-head" }, h("h1", { id: "bench-title" }, "Benchmark"), h("span", { class: "pick" }, input, label)), status, body),
  );
  async function open(file) {
    if (!file) return;
    try {
      if (file.size > FILE_MAX) throw new Error("it is too large");
      show(body, check(JSON.parse(await file.text())), file.name);
      put(status, "");
    } catch (error) {
      body.replaceChildren();
      put(status, `${file.name} is no result of millbench: ${error.message}`);
    }
  }
  return open;
}

// What the dashboard makes of a status: graphs of one to forty nodes on screens of several widths, with made-up numbers.
//
// The page comes from the running Millstream. Its status, histories and descriptions are answered here.

"use strict";
const assert = require("node:assert/strict");

const WIDTHS = [1000, 1400, 1920];
const LONG = "app-checkout-service-production-eu-central-1a";

const node = (section, type, name, more = {}) => ({
  name,
  section,
  type,
  state: "running",
  meters: { records_rejected: 0 },
  now: { records_received: 440, records_sent: 440, bytes: 52000 },
  ...more,
});
const edge = (from, to, records_per_second) => (records_per_second === undefined ? { from, to } : { from, to, records_per_second });

/** The status of a pipeline. */
function status(nodes, edges) {
  const time = Math.floor(Date.now() / 1000);
  const memory = { used_bytes: 1 << 20, max_bytes: 1 << 30 };
  return { version: "1.2.3", pid: 7, host: "agg-1.example", time, uptime_seconds: 99, healthy: true, memory, conditions: [], nodes, edges };
}

/** Six nodes behind each other, with a route whose two ports lead to the same sink. */
function chain() {
  const nodes = [
    node("source", "tail", LONG),
    node("processor", "parse", "parsed"),
    node("channel", "disk", "buffer", { meters: { size_max_bytes: 1 << 28, used_bytes: 1 << 27, backlog_bytes: 1 << 26 } }),
    node("processor", "remap", "masked"),
    node("processor", "route", "levels"),
    node("sink", "discard", "rest"),
    node("sink", "http", "pager", { state: "blocked", why: "waiting for space", seconds: 12 }),
  ];
  const edges = [
    edge(LONG, "parsed", 440),
    edge("parsed", "buffer", 440),
    edge("buffer", "masked", 440),
    edge("masked", "levels", 440),
    edge("levels.warnings", "rest"),
    edge("levels.rest", "rest"),
    edge("levels.errors", "pager", 0),
  ];
  return status(nodes, edges);
}

/** Forty nodes. Every node but the channels has a path for rejected records. */
function many() {
  const nodes = [node("channel", "disk", "buffer")];
  const edges = [];
  const number = (at) => String(at).padStart(2, "0");
  for (let at = 0; at < 12; at++) {
    nodes.push(node("source", "tail", `app-${number(at)}-checkout-service-production`), node("processor", "parse", `parse-${number(at)}`));
    edges.push(edge(`app-${number(at)}-checkout-service-production`, `parse-${number(at)}`, at * 100), edge(`parse-${number(at)}`, "buffer", at * 100));
  }
  for (let at = 0; at < 14; at++) {
    const state = at === 3 ? { state: "retrying", why: "connection refused", seconds: 40 } : {};
    nodes.push(node("sink", "file", `archive-${number(at)}`, { ...state, now: { records_received: at * 7, records_sent: at * 7, bytes: at } }));
    edges.push(edge("buffer", `archive-${number(at)}`, at * 7));
  }
  nodes.push(node("sink", "file", "rejects"));
  for (const it of nodes) if (it.section !== "channel" && it.name !== "rejects") edges.push(edge(`${it.name}.rejected`, "rejects", 0));
  return status(nodes, edges);
}

/** A page that shows a status, which `change` replaces. */
async function open(browser, url, first, options) {
  const context = await browser.newContext({ viewport: { width: 1400, height: 900 }, ...options });
  const page = await context.newPage();
  const faults = [];
  page.on("pageerror", (error) => faults.push(error.message));
  let shown = first;
  const histories = [];
  const json = (route, body) => route.fulfill({ contentType: "application/json", body: JSON.stringify(body) });
  // Without a stream, the page polls.
  await page.route("**/events", (route) => route.fulfill({ status: 503, body: "none" }));
  await page.route("**/status", (route) => json(route, shown));
  await page.route("**/rejected*", (route) => json(route, { nodes: [] }));
  await page.route("**/nodes/*", (route) => json(route, { options: {} }));
  await page.route("**/history/*", (route) => {
    histories.push(route.request().url());
    const values = [1, 2, 3, null, null, null, 7, 8];
    return json(route, { node: "x", time: shown.time, fine: { seconds: 1, samples: 8, records_received: values }, coarse: { seconds: 10, samples: 0 }, changes: [] });
  });
  await page.goto(url);
  await page.locator(".node").first().waitFor();
  return {
    page,
    histories,
    async change(next) {
      shown = next;
      await page.reload();
      await page.locator(".node").first().waitFor();
    },
    async close() {
      assert.deepEqual(faults, []);
      await context.close();
    },
  };
}

const names = (page) => page.locator(".node").evaluateAll((all) => all.map((it) => it.dataset.node));
const rows = (page) => page.locator("#nodes tbody th a").allTextContents();
const box = async (locator) => locator.evaluate((it) => it.getBoundingClientRect().toJSON());

/** Nothing is cut off: neither the page nor a node, on any of the screens. */
async function fits(browser, url) {
  for (const shown of [chain(), many()]) {
    const at = await open(browser, url, shown);
    for (const width of WIDTHS) {
      await at.page.setViewportSize({ width, height: 900 });
      for (const isOpen of [false, true]) {
        await at.page.evaluate((hash) => (location.hash = hash), isOpen ? "#/node/buffer" : "#/");
        await at.page.locator("#drawer").waitFor({ state: isOpen ? "visible" : "hidden" });
        // On a narrow screen the panel covers the graph.
        if (isOpen && width <= 1020) continue;
        await at.page.waitForFunction(() => {
          const frame = document.querySelector("#graph");
          const cards = [...document.querySelectorAll(".node")].map((it) => it.getBoundingClientRect());
          const { left, right } = frame.getBoundingClientRect();
          return frame.scrollWidth <= frame.clientWidth && cards.every((it) => it.left >= left && it.right <= right);
        }, undefined, { timeout: 20_000 });
        const [wide, seen] = await at.page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
        assert.ok(wide <= seen, `${shown.nodes.length} nodes: the page is ${wide} wide on ${seen}`);
        const table = await at.page.locator("#nodes").evaluate((it) => [it.parentElement.scrollWidth, it.parentElement.clientWidth]);
        if (!isOpen) assert.ok(table[0] <= table[1], `the table is ${table[0]} wide on ${table[1]}`);
      }
    }
    await at.close();
  }
}

/** On a phone, a long name makes no row of the table wider than the screen. */
async function fits_a_phone(browser, url) {
  const at = await open(browser, url, chain(), { viewport: { width: 390, height: 844 } });
  const [wide, seen] = await at.page.locator("#nodes").evaluate((it) => [it.parentElement.scrollWidth, it.parentElement.clientWidth]);
  assert.ok(wide <= seen, `the table is ${wide} wide on ${seen}`);
  await at.close();
}

/** The paths of rejected records are hidden until they carry something, and forty nodes are not much higher than the screen. */
async function hides_idle_paths(browser, url) {
  const shown = many();
  const at = await open(browser, url, shown);
  const rejected = at.page.locator(".edge[data-rejected]");
  assert.equal(await rejected.count(), 0);
  assert.match(await at.page.locator("#legend").textContent(), /38 paths are hidden/);
  assert.equal((await names(at.page)).length, 40);
  const { height } = await box(at.page.locator("#graph"));
  assert.ok(height < 900, `the graph is ${height} high`);
  const some = structuredClone(shown);
  some.nodes.find((it) => it.name === "parse-03").meters.records_rejected = 2;
  await at.change(some);
  assert.equal(await rejected.count(), 1);
  await at.close();
}

async function marks_unknown_rates(browser, url) {
  const at = await open(browser, url, chain());
  const label = (ends) => at.page.locator(`.edge-label[data-edge="${ends}"]`);
  assert.equal(await label("levels.rest rest").getAttribute("data-level"), "unknown");
  assert.match(await label("levels.rest rest").textContent(), /^rest \?\/s$/);
  assert.equal(await label(`${LONG} parsed`).getAttribute("data-level"), "flow");
  const stroke = (level) => at.page.locator(`.edge[data-level="${level}"]`).first().evaluate((it) => getComputedStyle(it).stroke);
  const idle = await at.page.evaluate(() => getComputedStyle(document.querySelector("#legend [data-level=idle] .swatch")).borderTopColor);
  assert.notEqual(await stroke("unknown"), idle);
  assert.match(await at.page.locator("#legend").textContent(), /rate unknown/);
  await at.close();
}

/** A degraded node needs attention, but its records flow. */
async function lets_records_flow_to_a_degraded_node(browser, url) {
  const shown = chain();
  shown.nodes.find((it) => it.name === "buffer").state = "degraded";
  const at = await open(browser, url, shown);
  assert.equal(await at.page.locator('.edge-label[data-edge="parsed buffer"]').getAttribute("data-level"), "flow");
  assert.match(await at.page.locator("#troubles").textContent(), /buffer.*degraded/s);
  await at.close();
}

/** No label lies on another one or on a node, and an opaque plate keeps lines away from its text. */
async function keeps_labels_apart(browser, url) {
  for (const shown of [chain(), many()]) {
    const at = await open(browser, url, shown);
    const wrong = await at.page.evaluate(() => {
      const inside = (a, b) => a.left >= b.left - 0.5 && a.right <= b.right + 0.5 && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
      const apart = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1 || a.bottom <= b.top + 1 || b.bottom <= a.top + 1;
      const of = (it) => it.getBoundingClientRect();
      const labels = [...document.querySelectorAll(".edge-label")];
      const found = [];
      labels.forEach((label, number) => {
        const plate = of(label.querySelector(".plate"));
        for (const line of label.querySelectorAll("text")) if (!inside(of(line), plate)) found.push(`${label.dataset.edge}: its text leaves its plate`);
        for (const other of labels.slice(number + 1)) if (!apart(plate, of(other.querySelector(".plate")))) found.push(`${label.dataset.edge} lies on ${other.dataset.edge}`);
        for (const card of document.querySelectorAll(".node")) if (!apart(plate, of(card))) found.push(`${label.dataset.edge} lies on ${card.dataset.node}`);
      });
      const lines = document.querySelectorAll(".edge");
      const plates = document.querySelectorAll(".plate");
      const isBehind = (a, b) => a.compareDocumentPosition(b) & Node.DOCUMENT_POSITION_FOLLOWING;
      if (!isBehind(lines[lines.length - 1], plates[0])) found.push("a line is drawn over a label");
      return found;
    });
    assert.deepEqual(wrong, []);
    await at.close();
  }
}

async function names_the_machine_and_shortens_names_in_the_middle(browser, url) {
  const at = await open(browser, url, chain());
  assert.equal(await at.page.locator("#where").textContent(), "agg-1.example");
  assert.match(await at.page.title(), /agg-1\.example/);
  const card = at.page.locator(`.node[data-node="${LONG}"]`);
  assert.equal(await card.locator(".name").textContent(), LONG);
  const [whole, end] = [await box(card), await box(card.locator(".tail"))];
  assert.ok(end.width > 20 && end.right <= whole.right && end.left > whole.left, "the end of the name is seen");
  const [text, room] = await card.locator(".head").evaluate((it) => [it.scrollWidth, it.clientWidth]);
  assert.ok(text > room, "the middle gives way");
  // The word of `status`, of the log and of /health.
  assert.match(await at.page.locator("#troubles").textContent(), /pager.*blocked/s);
  assert.match(await at.page.locator("#nodes").textContent(), /blocked/);
  await at.close();
}

async function finds_and_sorts(browser, url) {
  const at = await open(browser, url, many());
  const { page } = at;
  await page.keyboard.press("/");
  await page.keyboard.type("archive-0");
  assert.equal((await rows(page)).length, 10);
  assert.match(await page.locator("#found").textContent(), /10 of 40/);
  // In the graph the neighbours stay, so that a node does not hang in the air.
  assert.equal((await names(page)).length, 11);
  await page.keyboard.press("Escape");
  assert.equal((await names(page)).length, 40);
  await page.locator("#only").click();
  assert.deepEqual(await rows(page), ["archive-03"]);
  assert.deepEqual((await names(page)).sort(), ["archive-03", "buffer"]);
  await page.locator("#find").fill("parse");
  assert.match(await page.locator("#found").textContent(), /no node is found/);
  await page.locator("#find").fill("");
  await page.locator("#only").click();

  const sort = (name) => page.locator("#nodes thead").getByRole("button", { name });
  await sort("Received").click();
  const first = async () => (await rows(page))[0];
  assert.equal(await page.locator('#nodes th[aria-sort="descending"]').count(), 1);
  const [largest] = await page.locator("#nodes tbody tr").first().locator('[data-column="Received"]').allTextContents();
  assert.equal(largest, "440/s");
  await sort("Received").click();
  assert.equal(await first(), "archive-00");
  await sort("State").click();
  assert.equal(await first(), "archive-03", "the worst state is first");
  await sort("Node").click();
  assert.equal(await first(), "app-00-checkout-service-production");
  await sort("Node").click();
  await sort("Node").click();
  assert.equal(await page.locator("#nodes [aria-sort]").count(), 0);
  await at.close();
}

async function zooms(browser, url) {
  const at = await open(browser, url, many());
  const wide = async () => (await box(at.page.locator(".node").first())).width;
  const fitting = await wide();
  await at.page.locator("#zoom-in").click();
  assert.ok((await wide()) > fitting * 1.2);
  assert.equal(await at.page.locator("#zoom-fit").getAttribute("aria-pressed"), "false");
  await at.page.locator("#zoom-out").click();
  await at.page.locator("#zoom-out").click();
  assert.ok((await wide()) < fitting * 0.85);
  await at.page.locator("#zoom-fit").click();
  assert.ok(Math.abs((await wide()) - fitting) < 0.5);
  await at.close();
}

/** A gap in the history is a gap in the line, at its time. */
async function keeps_the_time_of_gaps(browser, url) {
  const at = await open(browser, url, chain());
  await at.page.locator('.node[data-node="buffer"]').click();
  const line = at.page.locator("#drawer .plot path.line").first();
  await line.waitFor();
  const starts = (await line.getAttribute("d")).match(/M[\d.]+/g).map((it) => Number(it.slice(1)));
  assert.equal(starts.length, 2, "one line before the gap and one behind it");
  const width = await at.page.locator("#drawer .plot").first().evaluate((it) => it.clientWidth);
  const second = (width - 8) / 300;
  assert.ok(Math.abs((starts[1] - starts[0]) / second - 6) < 0.2, `the lines begin ${(starts[1] - starts[0]) / second} s apart`);
  // The page was hidden for an hour: it asks for the history, and invents nothing.
  const before = at.histories.length;
  const later = chain();
  later.time += 3600;
  await at.page.route("**/status", (route) => route.fulfill({ contentType: "application/json", body: JSON.stringify(later) }));
  for (let wait = 0; at.histories.length === before; wait++) {
    assert.ok(wait < 600, "the history is not asked for again");
    await new Promise((done) => setTimeout(done, 100));
  }
  await at.close();
}

/** All of this. `accessible` checks a page with axe, `shot` takes a picture. */
async function graphs(browser, url, { accessible, shot }) {
  await fits(browser, url);
  await fits_a_phone(browser, url);
  await hides_idle_paths(browser, url);
  await marks_unknown_rates(browser, url);
  await lets_records_flow_to_a_degraded_node(browser, url);
  await keeps_labels_apart(browser, url);
  await names_the_machine_and_shortens_names_in_the_middle(browser, url);
  await finds_and_sorts(browser, url);
  await zooms(browser, url);
  await keeps_the_time_of_gaps(browser, url);
  const single = status([node("source", "generate", "orders"), node("sink", "discard", "out")], [edge("orders", "out", 440)]);
  const sizes = { 2: single, 7: chain(), 40: many() };
  for (const [size, shown] of Object.entries(sizes)) {
    for (const colorScheme of ["light", "dark"]) {
      const at = await open(browser, url, shown, { colorScheme });
      await accessible(at.page, `${size} nodes, ${colorScheme}`);
      for (const width of WIDTHS) {
        await at.page.setViewportSize({ width, height: 900 });
        await shot(at.page, `graph-${size}-${width}-${colorScheme}`);
      }
      await at.close();
    }
  }
}

module.exports = { graphs };

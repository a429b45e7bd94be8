// Drives the dashboard of a running Millstream in Chromium, by pointer and by keyboard, and checks what it shows.
//
// node dashboard.js URL SINK_PORT RESULT [DIRECTORY]: URL of the interface, the port at which the sink `http` expects its server, a result of
// millbench, and where screenshots go. The pipeline is that of `crates/millstream/tests/commands/api/dashboard.rs`.

"use strict";
const assert = require("node:assert/strict");
const fs = require("node:fs");
const http = require("node:http");
const os = require("node:os");
const path = require("node:path");
const { chromium } = require("playwright-core");
const { graphs } = require("./graph.js");

const [url, sinkPort, result, shots] = process.argv.slice(2);
const axe = fs.readFileSync(require.resolve("axe-core"), "utf8");
const NODES = ["steady", "bursts", "buffer", "levels", "http", "archive", "rest"];
const WIDE = { width: 1280, height: 800 };
const NARROW = { width: 390, height: 844 };
/** Any wait fails after this time. Not a measurement: machines differ. */
const PATIENCE = 60_000;

/** Numbers that are the same in every run. */
function random(seed) {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

/** The layout of any graph, also one with circles and separate parts: nothing overlaps, and every edge joins its nodes. */
async function lays_out_any_graph() {
  const source = await (await fetch(`${url}assets/layout.js`)).text();
  const { layout } = await import(`data:text/javascript,${encodeURIComponent(source)}`);
  const sections = ["source", "processor", "channel", "sink"];
  for (let seed = 0; seed < 500; seed++) {
    const below = random(seed);
    const nodes = Array.from({ length: 1 + below(24) }, (_, at) => ({ name: `n${at}`, section: sections[below(4)] }));
    const edges = Array.from({ length: below(40) }, () => ({ source: `n${below(nodes.length)}`, target: `n${below(nodes.length)}`, rejected: below(4) === 0 }));
    const down = seed % 2 === 0;
    const form = { down, width: 200, height: 90, along: 100, across: 20, bend: 10, apart: 30, most: down ? 2 : Infinity };
    const { places, ways, width, height } = layout(nodes, edges, form);
    const all = [...places.values()];
    for (const [at, a] of all.entries()) {
      const isInside = a.x >= -0.01 && a.y >= -0.01 && a.x + 200 <= width + 0.01 && a.y + 90 <= height + 0.01;
      assert.ok(isInside, `seed ${seed}: ${JSON.stringify(a)} is outside of ${width} x ${height}`);
      for (const b of all.slice(at + 1)) {
        assert.ok(Math.abs(a.x - b.x) >= 199.99 || Math.abs(a.y - b.y) >= 89.99, `seed ${seed}: two nodes overlap`);
      }
    }
    for (const edge of edges) {
      const { points } = ways.get(edge);
      assert.ok(points.length >= 2 && points.every((it) => Number.isFinite(it.x) && Number.isFinite(it.y)), `seed ${seed}`);
      const [from, to] = [places.get(edge.source), places.get(edge.target)];
      const [start, end] = [points[0], points[points.length - 1]];
      const near = (a, b) => Math.abs(a - b) < 0.01;
      assert.ok(down ? near(start.y, from.y + 90) && near(end.y, to.y) : near(start.x, from.x + 200) && near(end.x, to.x), `seed ${seed}`);
      const [place, size] = down ? [start.x - from.x, 200] : [start.y - from.y, 90];
      assert.ok(place > 0 && place < size, `seed ${seed}: an edge begins beside its node`);
      for (const other of edges) {
        if (other === edge || other.source !== edge.source || other.target !== edge.target) continue;
        const [its] = ways.get(other).points;
        assert.ok(!near(its.x, start.x) || !near(its.y, start.y), `seed ${seed}: two edges are drawn over each other`);
      }
    }
  }
}

/** The server behind the sink. Its answer can be changed. */
function server() {
  const state = { code: 200 };
  const listening = http.createServer((request, response) => {
    request.resume();
    request.on("end", () => {
      response.writeHead(state.code, { "Content-Length": 0 });
      response.end();
    });
  });
  return new Promise((done) => listening.listen(Number(sinkPort), "127.0.0.1", () => done(Object.assign(state, { close: () => listening.close() }))));
}

async function until(what, look) {
  const start = Date.now();
  for (;;) {
    const found = await look();
    if (found) return found;
    assert.ok(Date.now() - start < PATIENCE, `not within ${PATIENCE} ms: ${what}`);
    await new Promise((done) => setTimeout(done, 50));
  }
}

async function shot(page, name) {
  if (shots) await page.screenshot({ path: path.join(shots, `${name}.png`) });
}

/** No finding of axe that is serious or critical. */
async function accessible(page, where) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const grave = violations.filter((it) => ["serious", "critical"].includes(it.impact));
  const told = grave.map((it) => `${it.id}: ${it.help}\n  ${it.nodes.map((node) => `${node.html} ${node.failureSummary}`).join("\n  ")}`);
  assert.deepEqual(told, [], where);
}

const card = (page, name) => page.locator(`.node[data-node="${name}"]`);
const edge = (page, ends) => page.locator(`.edge-label[data-edge="${ends}"]`);

async function counter(name, component) {
  const text = await (await fetch(`${url}metrics`)).text();
  const line = text.split("\n").find((it) => it.startsWith(`millstream_${name}_total{component="${component}"}`));
  return line ? { value: Number(line.split("} ")[1]), time: performance.now() } : undefined;
}

async function shows_the_graph(page) {
  const loaded = [];
  page.on("response", (response) => loaded.push(response));
  await page.goto(url);
  await card(page, "http").waitFor();
  const drawn = await page.evaluate(() => performance.getEntriesByName("first-graph")[0].startTime);
  const names = await page.locator(".node").evaluateAll((all) => all.map((it) => it.dataset.node));
  assert.deepEqual([...names].sort(), [...NODES].sort());
  assert.equal(await page.locator("#where").textContent(), os.hostname());
  const status = await (await fetch(`${url}status`)).json();
  assert.equal(await page.locator(".edge").count(), status.edges.length);
  const x = async (name) => (await card(page, name).boundingBox()).x;
  const places = [];
  for (const name of ["steady", "buffer", "levels", "http"]) places.push(await x(name));
  assert.deepEqual(places, [...places].sort((a, b) => a - b), "from left to right");
  // Two routes lead to the same sink.
  const ways = await page.locator(".edge").evaluateAll((all) => all.map((it) => it.getAttribute("d")));
  assert.equal(new Set(ways).size, ways.length, "two edges are drawn over each other");
  const labels = [];
  for (const ends of ["levels.rest rest", "levels.eights rest"]) labels.push(await edge(page, ends).boundingBox());
  const [one, two] = labels;
  assert.ok(one.y + one.height <= two.y || two.y + two.height <= one.y || one.x + one.width <= two.x || two.x + two.width <= one.x, "two labels overlap");
  const boxes = [];
  for (const name of NODES) boxes.push(await card(page, name).boundingBox());
  for (const [at, a] of boxes.entries()) {
    for (const b of boxes.slice(at + 1)) {
      const apart = a.x + a.width <= b.x || b.x + b.width <= a.x || a.y + a.height <= b.y || b.y + b.height <= a.y;
      assert.ok(apart, "two nodes overlap");
    }
  }
  const sizes = [];
  for (const response of loaded.filter((it) => !/events|status/.test(it.url()))) sizes.push((await response.body()).length);
  const size = sizes.reduce((sum, it) => sum + it, 0);
  assert.ok(size < 200_000, `the page has ${size} bytes`);
  console.log(`page: ${size} bytes in ${sizes.length} files; first graph after ${drawn.toFixed(0)} ms`);
}

async function rates_agree_with_metrics(page) {
  // The page shows the last five seconds, so it is asked during the time that the metrics are compared over.
  await until("the rate of `steady` agrees with /metrics", async () => {
    const before = await counter("records_sent", "steady");
    const shown = [];
    for (let step = 0; step < 6; step++) {
      shown.push(Number(await edge(page, "steady buffer").getAttribute("data-rate")));
      await new Promise((done) => setTimeout(done, 500));
    }
    const now = await counter("records_sent", "steady");
    const measured = ((now.value - before.value) / (now.time - before.time)) * 1000;
    const mean = shown.reduce((sum, it) => sum + it, 0) / shown.length;
    const agrees = measured > 0 && Math.abs(mean / measured - 1) < 0.1;
    if (agrees) console.log(`rate: ${mean.toFixed(0)}/s on the page, ${measured.toFixed(0)}/s from /metrics`);
    return agrees;
  });
}

async function shows_back_pressure(page, sink) {
  const level = () => edge(page, "levels.errors http").getAttribute("data-level");
  await until("records flow to the sink", async () => (await level()) === "flow");
  sink.code = 503;
  const start = Date.now();
  await until("the sink that must wait is marked", async () => (await level()) === "warn");
  console.log(`back-pressure: visible after ${Date.now() - start} ms`);
  assert.match(await edge(page, "levels.errors http").textContent(), /‖/);
  assert.match(await card(page, "http").textContent(), /retrying.*503/s);
  // Through the processor it leads back to the channel, which keeps what comes.
  assert.equal(await edge(page, "buffer levels").getAttribute("data-level"), "warn");
  assert.equal(await edge(page, "steady buffer").getAttribute("data-level"), "flow");
  assert.match(await page.locator("#troubles").textContent(), /http.*retrying.*503/s);
  await accessible(page, "with a problem");
  await shot(page, "pressed");
  await page.setViewportSize(NARROW);
  await shot(page, "pressed-narrow");
  await page.setViewportSize(WIDE);
  sink.code = 200;
  await until("the mark is gone", async () => (await level()) === "flow");
}

/** Each value lies below the top of its chart. */
async function has_a_top_for_every_value(page) {
  const wrong = await page.evaluate(async () => {
    const { ceiling } = await import("/assets/chart.js");
    const values = Array.from({ length: 2000 }, (_, at) => (at + 1) / 100);
    return values.filter((value) => !(ceiling(value) > value && ceiling(value) < value * 2));
  });
  assert.deepEqual(wrong, []);
}

async function opens_a_node(page) {
  await card(page, "http").click();
  const drawer = page.locator("#drawer");
  await drawer.locator(".code").waitFor();
  assert.match(await drawer.locator("h2").textContent(), /http/);
  const options = await drawer.locator(".code").textContent();
  assert.match(options, /bearer: "\*\*\*"/);
  assert.ok(!(await page.content()).includes("sesame"), "a secret is on the page");
  assert.match(await drawer.textContent(), /at least once/);
  assert.match(await drawer.locator(".changes").textContent(), /retrying.*503/s, "what happened before stays");
  await drawer.locator(".plot path.line").first().waitFor();
  await drawer.getByRole("button", { name: "1 hour" }).click();
  assert.match(await drawer.locator(".plot").first().getAttribute("aria-label"), /1 h: now/);
  await drawer.getByRole("button", { name: "5 minutes" }).click();
  await accessible(page, "with an open node");
  await shot(page, "node");
  await page.setViewportSize(NARROW);
  await shot(page, "node-narrow");
  await accessible(page, "with an open node on a phone");
  await page.setViewportSize(WIDE);
  await drawer.getByRole("button", { name: "Start" }).click();
  await until("the sample says what there is", async () => /record|no samples/.test(await drawer.locator(".sample [role=status]").textContent()));
  await page.keyboard.press("Escape");
  await drawer.waitFor({ state: "hidden" });
}

async function works_with_the_keyboard_alone(page) {
  await page.goto(url);
  await card(page, "steady").waitFor();
  const focused = () => page.evaluate(() => document.activeElement.dataset.node ?? document.activeElement.id);
  await page.keyboard.press("Tab");
  assert.match(await page.evaluate(() => document.activeElement.textContent), /Skip/);
  for (let step = 0; step < 20 && !NODES.includes(await focused()); step++) await page.keyboard.press("Tab");
  assert.ok(["steady", "bursts"].includes(await focused()), "the first node is a source");
  const outline = () => page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  assert.equal(await outline(), "solid");
  await page.keyboard.press("ArrowRight");
  assert.equal(await focused(), "buffer");
  await page.keyboard.press("Enter");
  await page.locator("#drawer").waitFor();
  await until("the focus is in the panel", async () => (await focused()) === "drawer-title");
  for (let step = 0; step < 5; step++) await page.keyboard.press("Tab");
  assert.ok(await page.evaluate(() => document.querySelector("#drawer").contains(document.activeElement)), "Tab stays in the panel");
  await page.keyboard.press("Escape");
  await page.locator("#drawer").waitFor({ state: "hidden" });
  assert.equal(await focused(), "buffer", "the focus returns");
}

async function has_dark_colours(page) {
  const brightness = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).slice(0, 3).reduce((sum, it) => sum + Number(it), 0));
  await page.emulateMedia({ colorScheme: "light" });
  assert.ok((await brightness()) > 600);
  await page.emulateMedia({ colorScheme: "dark" });
  assert.ok((await brightness()) < 150, "as the system has them");
  await accessible(page, "in the dark");
  await shot(page, "dark");
  await card(page, "levels").click();
  await page.locator("#drawer .code").waitFor();
  const tasks = page.locator("#drawer table.bars", { hasText: "records by task" });
  // Two consumers behind it have two tasks each.
  await until("all tasks have records", async () => (await tasks.locator("tbody tr").count()) === 4);
  assert.match(await tasks.locator("caption").textContent(), /the largest has [\d.]+ times the mean/);
  // The page replaces the table with each event, so it may not wait for a stable position.
  await tasks.evaluate((table) => table.scrollIntoView());
  await shot(page, "tasks-dark");
  await accessible(page, "with an open node in the dark");
  await shot(page, "node-dark");
  await page.keyboard.press("Escape");
  const button = page.locator("#theme");
  await button.click();
  assert.match(await button.textContent(), /Light/);
  assert.ok((await brightness()) > 600, "as it was chosen");
  await page.reload();
  assert.ok((await brightness()) > 600, "the choice stays");
  await button.click();
  await button.click();
  assert.match(await button.textContent(), /Auto/);
  await page.emulateMedia({ colorScheme: "light" });
}

async function fits_a_phone(page) {
  await page.setViewportSize(NARROW);
  await page.goto(url);
  await card(page, "http").waitFor();
  await until("numbers are there", async () => (await edge(page, "steady buffer").getAttribute("data-rate")) > 0);
  const [wide, seen] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(wide <= seen, `the page is ${wide} wide on ${seen}`);
  const y = async (name) => (await card(page, name).boundingBox()).y;
  assert.ok((await y("steady")) < (await y("buffer")), "from top to bottom");
  await accessible(page, "on a phone");
  await shot(page, "narrow");
  if (shots) await page.screenshot({ path: path.join(shots, "narrow-whole.png"), fullPage: true });
  await page.setViewportSize(WIDE);
}

async function opens_a_result(page) {
  await page.goto(`${url}#/bench`);
  await page.locator("#bench-file").setInputFiles(result);
  await page.locator(".bench-row").first().waitFor();
  const rows = JSON.parse(fs.readFileSync(result, "utf8")).rows.filter((it) => it.runs.length);
  assert.equal(await page.locator(".bench-row").count(), rows.length);
  assert.match(await page.locator(".bench-sum").textContent(), /\d+ of \d+ goals reached/);
  await accessible(page, "with a result");
  await shot(page, "bench");
  await page.setViewportSize(NARROW);
  await shot(page, "bench-narrow");
  await page.setViewportSize(WIDE);
  await page.locator("#bench-file").setInputFiles({ name: "other.json", mimeType: "application/json", buffer: Buffer.from("{}") });
  await until("another file is refused with the reason", async () => /other.json is no result/.test(await page.locator("#view-bench [role=status]").textContent()));
  await page.goto(`${url}#/rejected`);
  await until("the view of rejected records says what there is", async () => !/Loading/.test(await page.locator("#view-rejected").textContent()));
  await accessible(page, "rejected records");
  await shot(page, "rejected");
}

/** A page of another origin can neither read nor change anything, under this name and under a name of its own for this address. */
async function keeps_other_origins_out(browser) {
  const foreign = http.createServer((_, response) => {
    response.writeHead(200, { "Content-Type": "text/html" });
    response.end("<!doctype html><title>elsewhere</title>");
  });
  await new Promise((done) => foreign.listen(0, "127.0.0.1", done));
  const page = await browser.newPage();
  await page.goto(`http://127.0.0.1:${foreign.address().port}/`);
  const read = await page.evaluate(async (base) => {
    const attempt = async (work) => {
      try {
        return await work();
      } catch {
        return "refused";
      }
    };
    const text = (path, options) => attempt(async () => (await fetch(base + path, options)).text());
    const load = (tag, set) =>
      new Promise((done) => {
        const element = document.createElement(tag);
        element.onload = () => done("loaded");
        element.onerror = () => done("refused");
        set(element);
        document.body.append(element);
      });
    const stream = new Promise((done) => {
      const events = new EventSource(`${base}events`);
      events.addEventListener("status", () => done("read"));
      events.onerror = () => done("refused");
    });
    const frame = new Promise((done) => {
      const element = document.createElement("iframe");
      element.onload = () => done(attempt(() => element.contentDocument?.body.textContent || "refused"));
      element.src = base;
      document.body.append(element);
    });
    return {
      status: await text("status"),
      nodes: await text("nodes/http"),
      history: await text("history/http"),
      reload: await text("reload", { method: "POST" }),
      quietly: await attempt(async () => (await fetch(`${base}reload`, { method: "POST", mode: "no-cors" })).type),
      script: await load("script", (it) => (it.src = `${base}status`)),
      own: await load("script", (it) => (it.src = `${base}assets/app.js`)),
      stream: await stream,
      frame: await frame,
    };
  }, url);
  for (const [way, found] of Object.entries(read)) {
    // What a page sends without reading the answer reaches the server, which refuses it.
    const wanted = way === "quietly" ? ["opaque", "refused"] : ["refused"];
    assert.ok(wanted.includes(found), `a page of another origin: ${way}: ${found}`);
  }
  await page.close();
  foreign.close();
  const port = new URL(url).port;
  const rebound = await browser.newPage();
  const answer = await rebound.goto(`http://elsewhere.example:${port}/`);
  assert.equal(answer.status(), 421, "a name of somebody else for this address");
  await rebound.close();
  const head = await fetch(url, { headers: { Accept: "text/html" } });
  assert.equal(head.headers.get("x-content-type-options"), "nosniff");
  const policy = head.headers.get("content-security-policy");
  assert.ok(policy.includes("default-src 'none'") && !policy.includes("unsafe"), policy);
}

async function main() {
  const sink = await server();
  const browser = await chromium.launch({
    executablePath: "/usr/bin/chromium",
    args: ["--no-sandbox", "--host-resolver-rules=MAP elsewhere.example 127.0.0.1"],
  });
  try {
    await lays_out_any_graph();
    const context = await browser.newContext({ viewport: WIDE, colorScheme: "light" });
    const page = await context.newPage();
    page.setDefaultTimeout(PATIENCE);
    const faults = [];
    page.on("pageerror", (error) => faults.push(error.message));
    page.on("console", (message) => {
      // An answer that is no success is logged as an error, too: routes that a server does not have.
      if (message.type() === "error" && !/status of (404|405)/.test(message.text())) faults.push(message.text());
    });
    page.on("request", (request) => {
      if (!request.url().startsWith(url)) faults.push(`asks ${request.url()}`);
    });
    await shows_the_graph(page);
    await rates_agree_with_metrics(page);
    await accessible(page, "the graph");
    await shot(page, "wide");
    await shows_back_pressure(page, sink);
    await has_a_top_for_every_value(page);
    await opens_a_node(page);
    await works_with_the_keyboard_alone(page);
    await has_dark_colours(page);
    await fits_a_phone(page);
    await opens_a_result(page);
    assert.deepEqual(faults, []);
    await graphs(browser, url, { accessible, shot });
    await keeps_other_origins_out(browser);
    console.log("good");
  } finally {
    await browser.close();
    sink.close();
  }
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});

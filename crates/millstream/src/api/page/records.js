// Records: a live sample of the records that pass a node, and rejected records, with replay. Both are answers of the server, shown as text.

import { bytes, clock, count, h, plural, put } from "./dom.js";
import { ask, askJson, failure, lines } from "./feed.js";

/** Records of a sample that stay on the page. */
const SHOWN_MAX = 100;
const SAMPLE = "records=100&seconds=60";

/** An answer that a server without this route gives. */
const isMissing = (error) => error.status === 404 || error.status === 405;

const time = (value) => (typeof value === "number" ? clock(value > 1e12 ? value / 1000 : value) : String(value ?? ""));

function recordText(record) {
  return typeof record === "string" ? record : JSON.stringify(record, null, 1).replace(/\n\s*/g, " ");
}

/** A live sample of a node: starts and stops with a button. */
export function sample(node) {
  let control = null;
  const state = h("p", { class: "empty", role: "status" }, "A sample of the records that pass this node. Nothing is read until you start it.");
  const list = h("ol", { class: "records", "aria-label": `Sample of ${node}` });
  const button = h("button", { type: "button", class: "main", onclick: () => (control ? stop() : start()) }, "Start");

  function stop() {
    control?.abort();
    control = null;
    put(button, "Start");
  }

  function add(text) {
    const line = text.startsWith("data:") ? text.slice(5).trim() : text.trim();
    if (!line.startsWith("{")) return false;
    const record = JSON.parse(line);
    if (!("record" in record)) return false;
    list.prepend(
      h("li", {}, h("div", { class: "record-head" }, h("time", {}, time(record.time)), h("span", { class: "chip" }, record.port || record.node), h("span", { class: "tag" }, record.tag)), h("code", {}, recordText(record.record))),
    );
    while (list.children.length > SHOWN_MAX) list.lastChild.remove();
    return true;
  }

  async function start() {
    const own = new AbortController();
    control = own;
    list.replaceChildren();
    put(button, "Stop");
    put(state, "Waiting for the first record …");
    let records = 0;
    try {
      const answer = await ask(`/tap/${encodeURIComponent(node)}?${SAMPLE}`, { signal: own.signal, headers: { Accept: "application/x-ndjson" } });
      if (!answer.ok) throw await failure(answer);
      await lines(answer, (line) => {
        if (line && add(line)) put(state, `${plural(++records, "record")} so far`);
      });
      put(state, records > 0 ? `${plural(records, "record")}: the sample is complete.` : "No record passed within a minute.");
    } catch (error) {
      if (own.signal.aborted) put(state, `${plural(records, "record")}, stopped.`);
      else put(state, isMissing(error) ? "This server gives no samples of this node." : `There is no sample: ${error.message}`);
    } finally {
      if (control === own) stop();
    }
  }

  return { element: h("div", { class: "sample" }, h("div", { class: "sample-head" }, button, state), list), stop };
}

/** The nodes that have rejected records. */
const nodesOf = (answer) => answer.nodes.filter((it) => it.records > 0);

function replayOf(node, status, done) {
  const button = h("button", { type: "button", class: "main" }, "Replay");
  const sure = h("span", { class: "sure", hidden: true }, h("span", {}, "Send them through the node again?"));
  const yes = h("button", { type: "button", class: "main" }, "Yes, replay");
  const no = h("button", { type: "button" }, "No");
  sure.append(yes, no);
  const ready = (asked) => {
    sure.hidden = !asked;
    button.hidden = asked;
    (asked ? yes : button).focus();
  };
  button.addEventListener("click", () => ready(true));
  no.addEventListener("click", () => ready(false));
  yes.addEventListener("click", async () => {
    yes.disabled = true;
    put(status, "Replaying …");
    try {
      const path = `/rejected/${encodeURIComponent(node)}/replay`;
      let answer = await askJson(path, { method: "POST", headers: { "X-Millstream": "1" } });
      while (answer.state === "running") {
        put(status, `${plural(answer.settled, "record")} replayed, ${count(answer.left)} left …`);
        await new Promise((wait) => setTimeout(wait, 1000));
        answer = await askJson(path);
      }
      if (answer.state !== "done") throw new Error(answer.why ?? answer.state);
      put(status, `${plural(answer.settled, "record")} replayed.`);
      done();
    } catch (error) {
      put(status, isMissing(error) ? "This server cannot replay over its interface: use `millstream rejected replay`." : `Not replayed: ${error.message}`);
    } finally {
      yes.disabled = false;
      ready(false);
    }
  });
  return h("span", { class: "replay" }, button, sure);
}

function group(entry, title = "h2") {
  const { node } = entry;
  const status = h("p", { class: "empty", role: "status" });
  const shown = h("p", { class: "hint" });
  const list = h("ol", { class: "records", "aria-label": `Rejected records of ${node}` });
  const known = [(entry.is_estimate ? "about " : "") + plural(entry.records, "record"), bytes(entry.bytes), plural(entry.files, "file"), entry.oldest && `since ${time(entry.oldest)}`].filter(Boolean);

  async function load() {
    try {
      const { records, more } = await askJson(`/rejected/${encodeURIComponent(node)}?records=50`);
      const item = (it) => {
        const body = it.record ?? it.record_base64 ?? `${it.record_bytes} bytes`;
        return h("li", {}, h("div", { class: "record-head" }, it.time !== undefined && h("time", {}, time(it.time)), it.tag && h("span", { class: "tag" }, it.tag)), it.reason && h("p", { class: "why" }, it.reason), h("code", {}, recordText(body)));
      };
      list.replaceChildren(...records.map(item));
      put(shown, records.length === 0 ? "None is left." : more ? `The oldest ${records.length} are shown.` : "");
    } catch (error) {
      put(shown, isMissing(error) ? "The records cannot be shown over this interface: use `millstream rejected cat`." : `The records cannot be shown: ${error.message}`);
    }
  }

  load();
  const head = h("div", { class: "sample-head" }, h(title, {}, node), h("span", { class: "hint" }, known.join(" · ")), replayOf(node, status, load));
  return h("section", { class: "part", "data-rejected": node }, head, status, shown, list);
}

const MISSING = "This server does not show rejected records over its interface. `millstream rejected ls` does.";

/** The rejected records of one node; nothing if there are none. */
export async function rejectedOf(node) {
  try {
    const entry = nodesOf(await askJson("/rejected")).find((it) => it.node === node);
    return entry ? group(entry, "h4") : null;
  } catch {
    return null;
  }
}

/** The view of all rejected records. */
export async function rejectedView(element) {
  const title = h("h1", { id: "rejected-title" }, "Rejected records");
  const note = h("p", { class: "hint" }, "Records that a node could not use or a destination refused permanently, and that no other node takes. They are kept in data_dir/rejected until they are replayed or removed.");
  const body = h("div", {}, h("p", { class: "empty", role: "status" }, "Loading …"));
  element.replaceChildren(h("section", { class: "card" }, h("div", { class: "card-head" }, title), note, body));
  try {
    const all = nodesOf(await askJson("/rejected"));
    body.replaceChildren(...(all.length ? all.map((it) => group(it)) : [h("p", { class: "empty" }, "There are none.")]));
  } catch (error) {
    body.replaceChildren(h("p", { class: "empty" }, isMissing(error) ? MISSING : `They cannot be shown: ${error.message}`));
  }
}


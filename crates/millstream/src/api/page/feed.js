// Data from the server: the stream of events, and single answers. Each request has the token, if one is needed.

const TOKEN = "millstream-token";
/** Waits between two attempts, in milliseconds. */
const WAITS = [500, 1000, 2000, 5000];
/** Milliseconds between two polls while no stream is available. */
const POLL = 5000;
/** A stream that is silent for this long is dead, because it normally sends an event every second. */
const SILENT = 10000;

function stored() {
  try {
    return sessionStorage.getItem(TOKEN);
  } catch {
    return null;
  }
}

let token = stored();

/** Remembers a token for this tab. */
export function setToken(text) {
  token = text;
  try {
    sessionStorage.setItem(TOKEN, text);
  } catch {
    // Without storage the token lasts until the page is loaded again.
  }
}

/** A request with the token. */
export function ask(path, options = {}) {
  const headers = { ...(options.headers ?? {}) };
  if (token) headers.Authorization = `Bearer ${token}`;
  return fetch(path, { ...options, headers, credentials: "same-origin", cache: "no-store" });
}

/** An answer as JSON; an error has the server's text. */
export async function askJson(path, options) {
  const answer = await ask(path, options);
  if (!answer.ok) throw await failure(answer);
  return answer.json();
}

/** The error of an answer, with its `status`. */
export async function failure(answer) {
  let text = (await answer.text()).trim();
  if (answer.headers.get("content-type")?.includes("json")) {
    try {
      text = JSON.parse(text).why ?? "";
    } catch {
      text = "";
    }
  }
  const error = new Error(text && !text.startsWith("<") ? text : `the server answered ${answer.status}`);
  error.status = answer.status;
  return error;
}

/** The lines of an answer as they arrive. Stops when `each` returns false. */
export async function lines(answer, each) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      for (const part of parts) if (each(part) === false) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Follows `/events` for ever. `on.status` gets each status, `on.state` the state of the connection. A hidden page closes its stream. */
export function follow(on) {
  let failures = 0;
  let stop = null;

  async function stream() {
    const control = new AbortController();
    stop = control;
    let alive = setTimeout(() => control.abort(), SILENT);
    try {
      const answer = await ask("/events", { signal: control.signal, headers: { Accept: "text/event-stream" } });
      if (!answer.ok) throw await failure(answer);
      await lines(answer, (line) => {
        clearTimeout(alive);
        alive = setTimeout(() => control.abort(), SILENT);
        if (line.startsWith("data: ")) {
          failures = 0;
          on.state("live");
          on.status(JSON.parse(line.slice(6)));
        }
      });
      throw new Error("the stream ended");
    } finally {
      clearTimeout(alive);
      stop = null;
    }
  }

  async function poll() {
    on.state("slow");
    on.status(await askJson("/status"));
    await sleep(POLL);
  }

  async function loop() {
    for (;;) {
      if (document.hidden) await shown();
      try {
        await stream();
      } catch (error) {
        if (document.hidden) continue;
        if (error.status === 401 || error.status === 403) {
          await on.refused(error);
          continue;
        }
        if (error.status === 503) {
          await poll().catch(() => sleep(POLL));
          continue;
        }
        on.state("lost");
        await sleep(WAITS[Math.min(failures++, WAITS.length - 1)]);
      }
    }
  }

  document.addEventListener("visibilitychange", () => document.hidden && stop?.abort());
  loop();
}

const sleep = (time) => new Promise((done) => setTimeout(done, time));

function shown() {
  return new Promise((done) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      done();
    };
    document.addEventListener("visibilitychange", look);
    look();
  });
}

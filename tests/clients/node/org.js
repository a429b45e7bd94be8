// Sends the records of a file with @fluent-org/logger (npm): org.js ADDRESS MODE[+ack] TAG RECORDS. The environment
// enables TLS (FORWARD_CA: the root certificate), a key (FORWARD_KEY) and a user (FORWARD_USER, FORWARD_PASSWORD).
const fs = require("fs");
const { FluentClient, EventTime } = require("@fluent-org/logger");

const [address, variant, tag, path] = process.argv.slice(2);
const [mode, ack] = variant.split("+");
const socket = address.startsWith("unix:")
  ? { path: address.slice(5), timeout: 30000 }
  : { host: address.slice(0, address.lastIndexOf(":")), port: Number(address.slice(address.lastIndexOf(":") + 1)), timeout: 30000 };
const { FORWARD_CA: ca, FORWARD_KEY: sharedKey, FORWARD_USER: username, FORWARD_PASSWORD: password } = process.env;
if (ca) socket.tls = { ca: fs.readFileSync(ca) };
const client = new FluentClient(tag, {
  eventMode: mode,
  socket,
  ...(sharedKey ? { security: { clientHostname: "client", sharedKey, username, password } } : {}),
  ...(ack ? { ack: { ackTimeout: 60000 } } : {}),
  sendQueueMaxLimit: { length: 1e6, size: 1e9 },
  sendQueueIntervalFlushLimit: undefined,
});
(async () => {
  const records = fs.readFileSync(path, "utf8").split("\n").filter(Boolean).map((line) => JSON.parse(line));
  await Promise.all(records.map((record) => client.emit(record, new EventTime(1700000000 + record.n, 123456789))));
  await client.shutdown();
})().catch((error) => {
  console.error(error);
  process.exit(1);
});

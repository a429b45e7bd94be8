// Sends the records of a file with fluent-logger (npm): logger.js ADDRESS MODE[+ack] TAG RECORDS. The environment
// enables TLS (FORWARD_CA: the root certificate), a key (FORWARD_KEY) and a user (FORWARD_USER, FORWARD_PASSWORD).
const fs = require("fs");
const logger = require("fluent-logger");
const { EventTime } = logger;

const [address, variant, tag, path] = process.argv.slice(2);
const [mode, ack] = variant.split("+");
const where = address.startsWith("unix:")
  ? { path: address.slice(5) }
  : { host: address.slice(0, address.lastIndexOf(":")), port: Number(address.slice(address.lastIndexOf(":") + 1)) };
const { FORWARD_CA: ca, FORWARD_KEY: sharedKey, FORWARD_USER: username, FORWARD_PASSWORD: password } = process.env;
const sender = logger.createFluentSender(tag, {
  ...where,
  ...(ca ? { tls: true, tlsOptions: { ca: fs.readFileSync(ca) } } : {}),
  ...(sharedKey ? { security: { clientHostname: "client", sharedKey, username, password } } : {}),
  timeout: 30.0,
  eventMode: mode,
  requireAckResponse: Boolean(ack),
  ackResponseTimeout: 60000,
});
sender.on("error", (error) => {
  console.error(error);
  process.exit(1);
});
const records = fs.readFileSync(path, "utf8").split("\n").filter(Boolean).map((line) => JSON.parse(line));
let left = records.length;
for (const record of records) {
  sender.emit(record, new EventTime(1700000000 + record.n, 123456789), (error) => {
    if (error) {
      console.error(error);
      process.exit(1);
    }
    left -= 1;
    if (left === 0) sender.end(null, null, () => process.exit(0));
  });
}

// Receives by FluentServer of @fluent-org/logger (npm): server.js PORT FILE. The text `message` of every record becomes a line of FILE.
// The environment enables TLS (FORWARD_CERT, FORWARD_CERT_KEY: files), a key (FORWARD_KEY) and a user (FORWARD_USER,
// FORWARD_PASSWORD). After each BREAK_AFTER records it closes all connections.
const fs = require("fs");
const { FluentServer } = require("@fluent-org/logger");

const [port, path] = process.argv.slice(2);
const { FORWARD_CERT: cert, FORWARD_CERT_KEY: certKey, FORWARD_KEY: sharedKey, FORWARD_USER: user, FORWARD_PASSWORD: password, BREAK_AFTER: breakAfter } =
  process.env;
const file = fs.openSync(path, "a");
const sockets = new Set();
let taken = 0;

class Server extends FluentServer {
  onEntry(tag, time, record) {
    fs.writeSync(file, `${record.message}\n`);
    taken += 1;
    if (breakAfter && taken % Number(breakAfter) === 0) sockets.forEach((socket) => socket.destroy());
  }
}

const server = new Server({
  listenOptions: { host: "127.0.0.1", port: Number(port) },
  ...(cert ? { tlsOptions: { cert: fs.readFileSync(cert), key: fs.readFileSync(certKey) } } : {}),
  ...(sharedKey ? { security: { serverHostname: "receiver", sharedKey, authorize: Boolean(user), userDict: { [user]: password } } } : {}),
});
server.server.on("connection", (socket) => {
  sockets.add(socket);
  socket.on("close", () => sockets.delete(socket));
  socket.on("error", () => {});
});
server.listen();

// Sends log records with OpenTelemetry's SDK (npm) by OTLP/HTTP in JSON: otlp.js URL VARIANT COUNT [CA]. The records, the token
// and the variants are those of otlp.py.
const fs = require("fs");
const { ROOT_CONTEXT, diag, DiagConsoleLogger, DiagLogLevel, trace } = require("@opentelemetry/api");
const { OTLPLogExporter } = require("@opentelemetry/exporter-logs-otlp-http");
const { resourceFromAttributes } = require("@opentelemetry/resources");
const { BatchLogRecordProcessor, LoggerProvider } = require("@opentelemetry/sdk-logs");

diag.setLogger(new DiagConsoleLogger(), DiagLogLevel.WARN);
const [url, variant, count, ca] = process.argv.slice(2);
const exporter = new OTLPLogExporter({
  url: `${url}/v1/logs`,
  headers: { Authorization: "Bearer s3cret" },
  compression: variant,
  httpAgentOptions: ca ? { ca: fs.readFileSync(ca) } : {},
});
const provider = new LoggerProvider({
  resource: resourceFromAttributes({ "service.name": "shop", replica: 3 }),
  processors: [new BatchLogRecordProcessor({ exporter, maxQueueSize: 100000 })],
});
const logger = provider.getLogger("test.scope", "1.2.3", { attributes: { scoped: true } });
const hex = (n, digits) => (n + 1).toString(16).padStart(digits, "0");
for (let n = 0; n < Number(count); n++) {
  logger.emit({
    timestamp: [1700000000, n],
    observedTimestamp: [1700000001, n],
    context: trace.setSpanContext(ROOT_CONTEXT, { traceId: hex(n, 32), spanId: hex(n, 16), traceFlags: 1 }),
    severityText: "WARN",
    severityNumber: 13,
    body: n % 5 === 0 ? { n, text: `line ${n}`, list: [1, "two", null] } : `line ${n}`,
    attributes: { n, half: n + 0.5, yes: true, list: ["a", "b"], bytes: Buffer.from([0, 255]), "ünï": "漢字 🦀" },
  });
}
provider.shutdown();

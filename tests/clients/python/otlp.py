"""Sends log records with OpenTelemetry's SDK by OTLP/HTTP: otlp.py URL VARIANT COUNT [CA].

VARIANT: none or gzip. The token is `s3cret`. Record n has the body `line n`, attributes of every type, and the time
1700000000 s + n ns.
"""

import logging
import sys

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import TraceFlags

logging.basicConfig(level=logging.WARNING)
url, variant, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
exporter = OTLPLogExporter(
    endpoint=url + "/v1/logs",
    headers={"Authorization": "Bearer s3cret"},
    compression=Compression.Gzip if variant == "gzip" else Compression.NoCompression,
    certificate_file=sys.argv[4] if len(sys.argv) > 4 else None,
)
provider = LoggerProvider(resource=Resource({"service.name": "shop", "replica": 3}), shutdown_on_exit=False)
provider.add_log_record_processor(BatchLogRecordProcessor(exporter, max_queue_size=100_000))
logger = provider.get_logger("test.scope", "1.2.3", attributes={"scoped": True})
for n in range(count):
    logger.emit(
        LogRecord(
            timestamp=1_700_000_000_000_000_000 + n,
            observed_timestamp=1_700_000_001_000_000_000 + n,
            trace_id=n + 1,
            span_id=n + 1,
            trace_flags=TraceFlags(1),
            severity_text="WARN",
            severity_number=SeverityNumber.WARN,
            body={"n": n, "text": f"line {n}", "list": [1, "two", None]} if n % 5 == 0 else f"line {n}",
            attributes={"n": n, "half": n + 0.5, "yes": True, "list": ["a", "b"], "bytes": b"\x00\xff", "ünï": "漢字 🦀"},
        )
    )
provider.shutdown()

"""Decodes OTLP/HTTP log requests with OpenTelemetry's own messages: otlp_receive.py PORT FILE writes a line of JSON for each record."""
import gzip
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

out = open(sys.argv[2], "a", buffering=1)


def value(any_value):
    kind = any_value.WhichOneof("value")
    if kind is None:
        return None
    held = getattr(any_value, kind)
    if kind == "array_value":
        return [value(each) for each in held.values]
    if kind == "kvlist_value":
        return pairs(held.values)
    if kind == "bytes_value":
        return {"bytes": held.hex()}
    return held


def pairs(attributes):
    return {each.key: value(each.value) for each in attributes}


def from_json(body):
    told = json.loads(body)
    # OTLP's JSON writes ids in hexadecimal; protobuf's default is base64.
    for resource in told["resourceLogs"]:
        for scope in resource["scopeLogs"]:
            for record in scope["logRecords"]:
                for name in ("traceId", "spanId"):
                    if name in record:
                        import base64

                        record[name] = base64.b64encode(bytes.fromhex(record[name])).decode()
    return json_format.ParseDict(told, ExportLogsServiceRequest())


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if self.headers["Content-Type"] == "application/json":
            request = from_json(body)
        else:
            request = ExportLogsServiceRequest.FromString(body)
        for resource in request.resource_logs:
            for scope in resource.scope_logs:
                for record in scope.log_records:
                    line = {
                        "path": self.path,
                        "resource": pairs(resource.resource.attributes),
                        "scope": [scope.scope.name, scope.scope.version, pairs(scope.scope.attributes)],
                        "time": record.time_unix_nano,
                        "observed": record.observed_time_unix_nano,
                        "severity": record.severity_number,
                        "severity_text": record.severity_text,
                        "body": value(record.body),
                        "attributes": pairs(record.attributes),
                        "dropped": record.dropped_attributes_count,
                        "flags": record.flags,
                        "trace_id": record.trace_id.hex(),
                        "span_id": record.span_id.hex(),
                        "event_name": getattr(record, "event_name", ""),
                    }
                    out.write(json.dumps(line) + "\n")
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()

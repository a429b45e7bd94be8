"""Sends the records of a file with fluent-logger (PyPI): send.py ADDRESS VARIANT TAG RECORDS.

VARIANT: seconds (integer time), nanoseconds (EventTime), handler (logging.Handler), async (the queue of asyncsender).
"""

import json
import logging
import sys

from fluent import asyncsender, handler, sender

address, variant, tag, path = sys.argv[1:5]
if address.startswith("unix:"):
    where = {"host": "unix://" + address[len("unix:"):]}
else:
    host, port = address.rsplit(":", 1)
    where = {"host": host, "port": int(port)}
with open(path, encoding="utf-8") as lines:
    records = [json.loads(line) for line in lines]

if variant == "handler":
    logger = logging.getLogger("test")
    logger.setLevel(logging.INFO)
    out = handler.FluentHandler(tag, **where)
    out.setFormatter(handler.FluentRecordFormatter({}))
    logger.addHandler(out)
    for record in records:
        logger.info(record)
    out.close()
    sys.exit(0)

kind = asyncsender.FluentSender if variant == "async" else sender.FluentSender
more = {"queue_maxsize": 0} if variant == "async" else {}
out = kind(tag, nanosecond_precision=variant == "nanoseconds", timeout=30.0, bufmax=64 * 1024 * 1024, **where, **more)
for record in records:
    seconds = 1700000000 + record["n"]
    time = sender.EventTime(seconds, 123456789) if variant == "nanoseconds" else seconds
    if not out.emit_with_time(None, time, record):
        sys.exit("emit failed: %s" % out.last_error)
out.close()

"""Writes 20,000 lines into a directory with the rotating handlers of Python's logging."""
import gzip
import logging
import logging.handlers
import os
import shutil
import sys

directory = sys.argv[1]


def compress(source, target):
    with open(source, "rb") as read, open(target, "wb") as write:
        with gzip.GzipFile(filename="", mode="wb", fileobj=write, mtime=0) as packed:
            shutil.copyfileobj(read, packed)
    os.remove(source)


plain = logging.handlers.RotatingFileHandler(f"{directory}/plain.log", maxBytes=300_000, backupCount=20)
packed = logging.handlers.RotatingFileHandler(f"{directory}/packed.log", maxBytes=300_000, backupCount=20)
packed.namer = lambda name: name + ".gz"
packed.rotator = compress
for name, handler in [("plain", plain), ("packed", packed)]:
    handler.setFormatter(logging.Formatter("%(name)s %(message)s"))
    log = logging.getLogger(name)
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    for number in range(10_000):
        log.info("%d a line of an ordinary log, which is rotated by its size %d", number, number * 7919 % 1009)
logging.shutdown()

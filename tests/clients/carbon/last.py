"""Prints the last number of each whisper file below a directory: `PATH NUMBER` a line, the path with dots."""

import os
import sys

import whisper

root = sys.argv[1]
for directory, _, files in os.walk(root):
    for name in files:
        path = os.path.join(directory, name)
        if not name.endswith(".wsp") or os.path.getsize(path) == 0:
            continue
        try:
            _, values = whisper.fetch(path, 0)
        except Exception:  # carbon is writing it
            continue
        known = [value for value in values if value is not None]
        if known:
            metric = os.path.relpath(path, root)[: -len(".wsp")].replace(os.sep, ".")
            print(metric, known[-1])

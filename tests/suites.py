#!/usr/bin/env python3
"""Runs public test suites against the built program. It fetches nothing: clone the suites into one directory and name it.

    git clone https://github.com/nst/JSONTestSuite                   (MIT)
    git clone -b data https://github.com/yaml/yaml-test-suite        (MIT)
    git clone https://github.com/vectordotdev/vrl                    (MPL-2.0)
    git clone https://github.com/fluent/fluent-bit                   (Apache-2.0)

    cargo build --release --features millstream/vrl --bins && cargo build --release -p millstream-config --example yaml_as_json
    tests/suites.py DIRECTORY [--bin target/release]

A case is `right`, `refused` (an error where the suite has a result) or `wrong` (another result, or none where the program claims
success). Refused and wrong cases are listed. The script fails if a case is wrong, or if the directory has no suite.
"""

import argparse
import json
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

RIGHT, REFUSED, WRONG = "right", "refused", "wrong"


def same(ours, theirs):
    """Whether two JSON values are equal. Unlike `==`, true is not 1."""
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return ours is theirs
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return ours == theirs


def json_suite(root, run):
    """JSONTestSuite: each text stands in a record, in front of `parse`. Records come by forward, which carries any bytes."""
    texts = {path.name: path.read_bytes() for path in sorted(root.glob("**/test_parsing/*.json"))}
    parsed = run.parse_json(texts)
    for name, text in texts.items():
        if name[0] == "i":  # The result is up to the implementation.
            yield name, RIGHT, ""
        elif name not in parsed:
            yield name, WRONG, "the record is missing"
        elif name[0] == "n":
            yield name, WRONG if "v" in parsed[name] else RIGHT, "it was accepted"
        elif "v" not in parsed[name]:
            yield name, REFUSED, "it was not parsed"
        else:
            yield name, RIGHT if same(parsed[name]["v"], json.loads(text)) else WRONG, str(parsed[name]["v"])


def yaml_suite(root, run):
    """yaml-test-suite (its branch `data`): the value of each document that has one in JSON."""
    for case in sorted(path.parent for path in root.glob("**/in.yaml")):
        expected, valid = case / "in.json", not (case / "error").exists()
        if valid and not expected.exists():
            continue  # The suite has no value for it.
        ours = run.program("examples/yaml_as_json", str(case / "in.yaml"))
        name = str(case.relative_to(root))
        if not valid:
            yield name, RIGHT if ours.returncode or case.name in YAML_LENIENT else WRONG, "it was accepted"
        elif ours.returncode:
            yield name, REFUSED, ours.stderr.decode().strip().split("\n")[0]
        else:
            value = json.loads(ours.stdout)
            yield name, RIGHT if same(value, one_json(expected.read_text())) else WRONG, ours.stdout.decode().strip()


# The bracket that closes a flow collection may stand at the beginning of a line. Most parsers accept that, and the value is clear.
YAML_LENIENT = ["9C9N"]


def one_json(text):
    """The only JSON value of a text, null if there is none; a list of them if there are several (several documents)."""
    values, decoder = [], json.JSONDecoder()
    while text := text.strip():
        value, end = decoder.raw_decode(text)
        values.append(value)
        text = text[end:]
    return values if len(values) > 1 else values[0] if values else None


def vrl_suite(root, run):
    """VRL: each program stands in a `remap` that keeps the program's result. Diagnostics are left out: their texts are the compiler's."""
    for path in sorted(root.glob("**/lib/tests/tests/**/*.vrl")):
        name = str(path.relative_to(root)).split("/lib/tests/tests/")[-1]
        case = vrl_case(path.read_text())
        if case is None or name.startswith("diagnostics/"):
            continue
        source, record, expected = case
        outcome = run.remap(source, record)
        if isinstance(outcome, str):
            yield name, REFUSED, outcome
        else:
            ours = short_times(outcome.get("result"))
            yield name, RIGHT if same(ours, expected) else WRONG, f"{ours}, not {expected}"


def short_times(value):
    """The value without the zeros at the end of its times: `json` writes all nine digits of a second."""
    return json.loads(re.sub(r"(:\d\d(?:\.\d*[1-9])?)\.?0*Z", r"\1Z", json.dumps(value)))


def vrl_case(text):
    """The program, the record and the result of a case, or None if the result is not JSON."""
    parts, part = {"object": "", "result": ""}, None
    lines = text.split("\n")
    # What the compiler knows about the types of a record, and read-only paths, differ from program to program.
    if lines[0].startswith("# SKIP") or "read_only" in text or "type_def(" in text:
        return None
    while lines and lines[0].startswith("#"):
        line = lines.pop(0)[1:].removeprefix(" ")
        for key in parts:
            if line.startswith(key + ":"):
                part, line = key, line[len(key) + 1 :]
        if part:
            parts[part] += line + "\n"
    try:
        return "\n".join(lines), json.loads(parts["object"].strip() or "{}"), json.loads(parts["result"])
    except json.JSONDecodeError:
        return None


def fluent_bit_suite(root, run):
    """Fluent Bit's stock parsers: `check` accepts each expression, or says why not."""
    for path in sorted(root.glob("**/conf/parsers*.conf")):
        for text in path.read_text().split("[PARSER]")[1:]:
            options = dict(line.strip().split(None, 1) for line in text.split("\n") if len(line.split()) > 1 and line.strip()[0] != "#")
            options = {key.lower(): value for key, value in options.items()}
            if options.get("format") != "regex":
                continue
            time_of = {"field": "." + options["time_key"], "format": options["time_format"]} if "time_format" in options and "time_key" in options else None
            parse = {"type": "parse", "inputs": ["in"], "as": "regex", "pattern": options["regex"]}
            if time_of:
                parse["time"] = time_of
            checked = run.check({"in": {"type": "stdin"}}, {"parse": parse}, {"out": {"type": "stdout", "inputs": ["parse"]}})
            yield f"{path.name}: {options['name']}", REFUSED if checked else RIGHT, checked


class Runner:
    """The built programs, and a directory for their configurations and output."""

    def __init__(self, programs, directory):
        self.programs, self.directory = programs, directory

    def program(self, name, *arguments, text=b""):
        return subprocess.run([self.programs / name, *arguments], input=text, capture_output=True, timeout=60)

    def write(self, sources, processors, sinks):
        path = self.directory / "suite.yaml"
        config = {"data_dir": str(self.directory / "data"), "api": {"listen": "127.0.0.1:0"}, "sources": sources, "processors": processors, "sinks": sinks}
        path.write_text(json.dumps(config))
        return str(path)

    def check(self, *sections):
        """The first error of `check`, or an empty text."""
        checked = self.program("millstream", "check", self.write(*sections))
        return first_error(checked.stderr + checked.stdout) if checked.returncode else ""

    def remap(self, source, record):
        """The record that a program leaves, or the error."""
        program = ". = { \"result\": {\n" + source + "\n} }"
        config = self.write(
            {"in": {"type": "stdin"}},
            {"json": {"type": "parse", "inputs": ["in"], "as": "json", "on_error": "reject"}, "run": {"type": "remap", "inputs": ["json"], "program": program}},
            {"out": {"type": "stdout", "inputs": ["run"], "add": {}}, "no": {"type": "stdout", "inputs": ["run.rejected"], "add": {}}},
        )
        ran = self.program("millstream", "run", "--once", config, text=json.dumps(record).encode() + b"\n")
        if not ran.stdout.strip():
            return first_error(ran.stderr)
        left = json.loads(ran.stdout)
        return left["reason"] if "reason" in left else left

    def parse_json(self, texts):
        """What `parse` makes of JSON texts, by their names."""
        out, port = self.directory / "out.jsonl", free_port()
        config = self.write(
            {"in": {"type": "forward", "listen": f"tcp://127.0.0.1:{port}"}},
            {"json": {"type": "parse", "inputs": ["in"], "as": "json"}},
            {"out": {"type": "file", "inputs": ["json"], "path": str(out), "add": {}}},
        )
        program = subprocess.Popen([self.programs / "millstream", "run", config], stderr=subprocess.DEVNULL)
        try:
            with connect(port) as connection:
                for name, text in texts.items():
                    # A text of its own could be no record: a list, a number. All values may stand in a field.
                    fields = b"\x82" + string(b"case") + string(name.encode()) + string(b"message") + string(b'{"v":' + text + b"}")
                    connection.sendall(b"\x94" + string(b"suite") + struct.pack(">Bi", 0xD2, 0) + fields + b"\x81" + string(b"chunk") + string(name.encode()))
                    connection.recv(4096)
        finally:
            program.send_signal(signal.SIGTERM)
            program.wait(60)
        return {record["case"]: record for record in map(json.loads, out.read_text().split("\n")[:-1])}


def string(value):
    """A MessagePack text."""
    return struct.pack(">BI", 0xDB, len(value)) + value


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def connect(port):
    """A connection to a program that may still be starting."""
    for _ in range(200):
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=30)
        except ConnectionRefusedError:
            time.sleep(0.05)
    sys.exit("millstream does not listen")


def first_error(text):
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.decode(errors="replace").split("\n")]
    return next((line for line in lines if "error" in line.lower()), lines[0])[:200]


SUITES = {"JSONTestSuite": json_suite, "yaml-test-suite": yaml_suite, "VRL": vrl_suite, "Fluent Bit's parsers": fluent_bit_suite}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("directory", type=pathlib.Path, help="the directory that holds the suites")
    arguments.add_argument("--bin", type=pathlib.Path, default="target/release", help="the directory of the built programs")
    options = arguments.parse_args()
    failed = total = 0
    for title, suite in SUITES.items():
        counts = {RIGHT: 0, REFUSED: 0, WRONG: 0}
        with tempfile.TemporaryDirectory() as directory:
            for name, verdict, detail in suite(options.directory, Runner(options.bin.resolve(), pathlib.Path(directory))):
                counts[verdict] += 1
                if verdict != RIGHT:
                    print(f"{title}: {verdict}: {name}: {detail}")
        print(f"{title}: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
        failed += counts[WRONG]
        total += sum(counts.values())
    if not total:
        sys.exit(f"{options.directory} has none of the suites: {', '.join(SUITES)}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()

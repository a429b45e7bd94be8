#!/usr/bin/env bash
# The main job on real input, with just the two programs: forward clients with acks and a growing log file in, a disk channel,
# files out. The receiver is killed once. At the end every record is accounted for.
set -euo pipefail
cd "$(dirname "$0")/.."
bin="${CARGO_TARGET_DIR:-target}/release"
work=$(mktemp -d)
port=$((20000 + RANDOM % 20000))
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] || say() { printf '\n%s\n' "$*"; }

cat >"$work/millstream.yaml" <<YAML
data_dir: $work/data
api: { listen: [] }
sources:
  fleet: { type: forward, listen: "tcp://127.0.0.1:$port" }
  app: { type: tail, paths: ["$work/app.log"], start: beginning, tag: app }
channels:
  buffer: { type: disk, inputs: [fleet, app], size_max: 1GiB }
sinks:
  files: { type: file, inputs: [buffer], format: raw, path: "$work/out/{tag}.log" }
YAML

say "1. This configuration:"
cat "$work/millstream.yaml"
say "2. Its delivery guarantees (millstream explain):"
"$bin/millstream" explain "$work/millstream.yaml"

start() { "$bin/millstream" run "$work/millstream.yaml" 2>>"$work/log" & server=$!; }
start
say "3. Two forward clients that wait for acks, and a file that grows:"
"$bin/millbench" generate --forward "127.0.0.1:$port" --acks --connections 2 --records 2M --rate 500k --ledger "$work/fleet.ledger" &
fleet=$!
"$bin/millbench" generate --file "$work/app.log" --records 500k --rate 125k &
app=$!
sleep 2
say "4. SIGKILL the receiver in the middle, and start it again:"
kill -KILL $server; wait $server 2>/dev/null || true
start
wait $fleet $app
# An ack means that a record is on disk in the channel, and a tailed file has no acks: wait until the output files are complete.
for _ in $(seq 100); do "$bin/millbench" verify "$work/out" --ledger "$work/fleet.ledger" >/dev/null 2>&1 && break; sleep 0.2; done
kill -TERM $server; wait $server
say "5. The output:"
ls -l "$work/out"
head -n 2 "$work/out/"*.log
say "6. The integrity report (millbench verify):"
"$bin/millbench" verify "$work/out" --ledger "$work/fleet.ledger"

#!/usr/bin/env bash
# Runs all tests. With the argument `build`, only builds them.
set -euo pipefail
cd "$(dirname "$0")/.."
tests() {
	cargo test --workspace --locked --no-fail-fast --features millstream/kafka,millstream/hdfs,millstream/vrl "$@"
}
tests --no-run
[ "${1:-}" != build ] || exit 0
# Most tests wait for programs, timeouts and kills: three parts run at the same time, each with more tests at a time than there are cores.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$(($(nproc) + 1))}"
others() {
	local failed=0 names
	names=$(cargo metadata --locked --no-deps --format-version 1 | python3 -c '
import json, sys
targets = [target for package in json.load(sys.stdin)["packages"] for target in package["targets"]]
names = [target["name"] for target in targets if target["kind"] == ["test"]]
print(*(f"--test={name}" for name in names if name not in ("faults", "line")))')
	# shellcheck disable=SC2086 # Several arguments.
	tests --lib --bins $names || failed=1
	tests --doc || failed=1
	return "$failed"
}
output=$(mktemp -d)
trap 'rm -rf "$output"' EXIT
# Background jobs ignore Ctrl-C, so the whole process group is ended: the jobs, the programs that they started, and the callers.
trap 'trap - TERM; kill 0' INT TERM
others >"$output/others" 2>&1 &
others=$!
tests --test=faults >"$output/faults" 2>&1 &
faults=$!
failed=0
tests --test=line || failed=1
wait "$faults" || failed=1
cat "$output/faults"
wait "$others" || failed=1
cat "$output/others"
exit "$failed"

#!/usr/bin/env bash
# Runs all tests. With the argument `build`, only builds them.
set -euo pipefail
cd "$(dirname "$0")/.."
# Most of them wait for programs, timeouts and kills: twice as many at a time as there are cores.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$(($(nproc) * 2))}"
tests() {
	cargo test --workspace --locked --no-fail-fast --features millstream/kafka,millstream/hdfs,millstream/vrl "$@"
}
tests --no-run
[ "${1:-}" != build ] || exit 0
# The tests that start the program take most of the time, and use a processor for a small part of it. All other tests run beside them.
programs=(commands faults line)
others=$(cargo metadata --locked --no-deps --format-version 1 | python3 -c '
import json, sys
targets = [target for package in json.load(sys.stdin)["packages"] for target in package["targets"]]
names = [target["name"] for target in targets if target["kind"] == ["test"]]
print(*(f"--test={name}" for name in names if name not in sys.argv[1:]))' "${programs[@]}")
beside() {
	local failed=0
	# shellcheck disable=SC2086 # Several arguments.
	tests --lib --bins $others || failed=1
	tests --doc || failed=1
	return "$failed"
}
output=$(mktemp)
beside >"$output" 2>&1 &
failed=0
tests "${programs[@]/#/--test=}" || failed=1
wait "$!" || failed=1
cat "$output"
rm "$output"
exit "$failed"

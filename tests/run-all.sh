#!/usr/bin/env bash
# Runs all tests, as CI does after the lints.
set -euo pipefail
cd "$(dirname "$0")/.."
# Most of them wait for programs, timeouts and kills: twice as many at a time as there are cores.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$(($(nproc) * 2))}"
cargo test --workspace --locked --no-fail-fast --features millstream/kafka,millstream/hdfs,millstream/vrl "$@"

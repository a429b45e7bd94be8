#!/usr/bin/env bash
# Runs all tests, as CI does after the lints.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo test --workspace --locked --no-fail-fast --features millstream/kafka,millstream/hdfs,millstream/vrl "$@"

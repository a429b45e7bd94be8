#!/usr/bin/env bash
# All tests: what CI runs after the lints. Ends with how many passed and failed.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo test --workspace --locked --no-fail-fast --features millstream/kafka,millstream/hdfs "$@"

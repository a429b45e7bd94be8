#!/usr/bin/env bash
# Runs every fuzz target for FUZZ_SECONDS (30). A finding ends the run with an error; its input is in fuzz/artifacts. The project's stable
# compiler suffices: only sanitizers, which safe code does not need, require a nightly one.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-30}
# The targets have their own lock file. It must follow the dependencies of the crates.
cargo metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null
for target in fuzz/fuzz_targets/*.rs; do
	grep -q '^#!\[no_main\]' "$target" || continue
	name=$(basename "$target" .rs)
	echo "fuzzing $name for $seconds s"
	mkdir -p "fuzz/corpus/$name"
	said=$(mktemp)
	if ! cargo fuzz run "$name" --sanitizer none "fuzz/corpus/$name" $(ls -d "fuzz/seeds/$name" 2>/dev/null) -- \
		-max_total_time="$seconds" -max_len=65536 -rss_limit_mb=1024 -timeout=10 -verbosity=0 >"$said" 2>&1; then
		tail -40 "$said"
		exit 1
	fi
	rm "$said"
done

#!/usr/bin/env bash
# Runs every fuzz target for FUZZ_SECONDS (30), as many at a time as there are cores. A finding ends the run with an error; its input is
# in fuzz/artifacts. With the argument `build`, only builds the targets. The project's stable compiler suffices: only sanitizers, which safe code does not need, require a nightly one.
set -euo pipefail
cd "$(dirname "$0")/.."
export FUZZ_SECONDS=${FUZZ_SECONDS:-30}

# Fuzzes one target. Prints its output only if it fails; 255 keeps xargs from starting another target.
fuzz() {
	name=$1
	mkdir -p "fuzz/corpus/$name" "fuzz/artifacts/$name"
	said=$(mktemp)
	seeds=()
	[ ! -d "fuzz/seeds/$name" ] || seeds=("fuzz/seeds/$name")
	if ! "$FUZZ_PROGRAMS/$name" "fuzz/corpus/$name" "${seeds[@]}" -artifact_prefix="fuzz/artifacts/$name/" \
		-max_total_time="$FUZZ_SECONDS" -max_len=65536 -rss_limit_mb=1024 -timeout=10 -verbosity=0 >"$said" 2>&1; then
		{
			echo "FAILED: $name"
			tail -40 "$said" | sed "s/^/$name: /"
		} >&2
		exit 255
	fi
	echo "fuzzed $name for $FUZZ_SECONDS s"
	rm "$said"
}
export -f fuzz

# The targets have their own lock file. It must follow the dependencies of the crates.
directory=$(cargo metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml | grep -o '"target_directory":"[^"]*"' | cut -d '"' -f 4)
# One build links all targets; `cargo fuzz run` would start cargo again for each.
cargo fuzz build --sanitizer none
[ "${1:-}" != build ] || exit 0
host=$(rustc -vV | sed -n 's/^host: //p')
export FUZZ_PROGRAMS="$directory/$host/release"
grep -l '^#!\[no_main\]' fuzz/fuzz_targets/*.rs | xargs -n 1 basename -s .rs |
	xargs -P "$(nproc)" -I '{}' bash -c 'fuzz "$1"' fuzz '{}'

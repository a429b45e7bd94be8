# Developer tasks. `make demo` and `make test` need Rust, a C compiler and a JDK; `make deps` installs everything else.

CARGO ?= cargo
# The `kafka` source needs librdkafka, which is built from C sources if its dependencies are there (`make deps` installs them).
KAFKA := $(if $(shell pkg-config --exists libssl zlib 2>/dev/null && command -v g++ >/dev/null && echo yes),--features millstream/kafka)
ALL := --features millstream/kafka,millstream/hdfs,millstream/vrl
TOOLS := $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/millstream/tools

# The crates that have optional features or depend on such a crate.
PLAIN := --locked --lib --bins -p millstream -p millstream-kafka -p millstream-processors -p millstream-sinks -p millstream-vrl

.PHONY: help build demo test test-targets storm unit plain plain-targets lint fuzz fuzz-targets suites deps

help:            ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'
build:           ## build optimised programs
	$(CARGO) build --release --locked --features millstream/hdfs,millstream/vrl $(KAFKA)
	@$(if $(KAFKA),,echo "built without the source kafka: install libssl-dev, zlib1g-dev and pkg-config for it")
demo: build      ## run the main job on real input and check the output
	@tests/demo.sh
deps:            ## install everything that the tests need
	@tests/install-deps.sh
lint: deps       ## check formatting, lints and licences
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked $(ALL) -- -D warnings
	PATH="$(TOOLS)/bin:$$PATH" $(CARGO) deny --all-features check bans licenses sources
unit:            ## run the Rust tests
	$(CARGO) test --workspace --locked --features millstream/hdfs,millstream/vrl $(KAFKA)
plain:           ## build without optional features and run the unit tests of the crates that have them
	$(CARGO) test $(PLAIN)
plain-targets:   ## build what `make plain` runs
	$(CARGO) test --no-run $(PLAIN)
fuzz: deps       ## fuzz every decoder for FUZZ_SECONDS (30) each
	@PATH="$(TOOLS)/bin:$$PATH" tests/fuzz.sh
fuzz-targets: deps  ## build what `make fuzz` runs
	@PATH="$(TOOLS)/bin:$$PATH" tests/fuzz.sh build
test: deps       ## run all tests, with real clients
	@tests/run-all.sh
test-targets: deps  ## build what `make test` runs
	@tests/run-all.sh build
suites:          ## run public test suites, which `tests/suites.py --help` names, from the directory SUITES
	$(CARGO) build --release --locked --bins $(ALL)
	$(CARGO) build --release --locked -p millstream-config --example yaml_as_json
	tests/suites.py $(SUITES)
storm: deps      ## run kills, restarts, freezes and damage at full length; `make test` runs a part of them
	$(CARGO) build --workspace --bins --locked $(ALL)
	STORM=full $(CARGO) test --workspace --locked $(ALL) --no-fail-fast --test faults --test disk_model
	STORM=full $(CARGO) test --workspace --locked $(ALL) --no-fail-fast --test line -- \
		hdfs:: http:: http_sink:: kafka_sink:: mount:: object::
	STORM=full $(CARGO) test --workspace --locked $(ALL) --lib damage

# Everything a developer does here. `make demo` and `make test` need Rust, a C compiler and a JDK; the rest is installed.

CARGO ?= cargo
# What reads from Kafka is built from C sources where what it needs is there; `make deps` installs it.
KAFKA := $(if $(shell pkg-config --exists libssl zlib 2>/dev/null && command -v g++ >/dev/null && echo yes),--features millstream/kafka)
TOOLS := $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/millstream/tools

.PHONY: help build demo test storm unit clients lint format fuzz deps bench clean

help:            ## what the targets do
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'
build:           ## build the programs, optimised
	$(CARGO) build --release --locked --features millstream/hdfs $(KAFKA)
	@$(if $(KAFKA),,echo "built without the source kafka: install libssl-dev, zlib1g-dev and pkg-config for it")
demo: build      ## run the main job on real input and check what arrived
	@tests/demo.sh
deps:            ## install what the tests need
	@tests/install-deps.sh
lint: deps       ## formatting, lints, licences
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked --features millstream/kafka,millstream/hdfs -- -D warnings
	PATH="$(TOOLS)/bin:$$PATH" $(CARGO) deny check bans licenses sources
unit:            ## the Rust tests
	$(CARGO) test --workspace --locked --features millstream/hdfs $(KAFKA)
fuzz: deps       ## every decoder against what nobody sends on purpose, FUZZ_SECONDS (30) each
	@PATH="$(TOOLS)/bin:$$PATH" tests/fuzz.sh
test: deps       ## all tests, with real clients
	@tests/run-all.sh
storm: deps      ## kill, restart, freeze and damage what `make test` does a part of, at full length
	$(CARGO) build --workspace --bins --locked --features millstream/kafka,millstream/hdfs
	STORM=full $(CARGO) test --workspace --locked --features millstream/kafka,millstream/hdfs --no-fail-fast \
		--test crowd --test damage --test disk_model --test file_kills --test hdfs --test http --test http_sink --test kafka_sink --test kills --test mount --test object
	STORM=full $(CARGO) test --workspace --locked --features millstream/kafka,millstream/hdfs --lib damage

# Everything a developer does here. `make demo` and `make test` need Rust, a C compiler and a JDK; the rest is installed.

CARGO ?= cargo

.PHONY: help build demo test unit clients lint format deps bench clean

help:            ## what the targets do
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'
build:           ## build the programs, optimised
	$(CARGO) build --release --locked
demo: build      ## run the main job on real input and check what arrived
	@tests/demo.sh
deps:            ## install what the tests need
	@tests/install-deps.sh
lint:            ## formatting, lints, licences
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
unit:            ## the Rust tests
	$(CARGO) test --workspace --locked
test: deps       ## all tests, with real clients
	@tests/run-all.sh

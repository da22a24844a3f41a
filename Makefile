# The front door.  The build itself is meson's; everything here only calls it, the set-up script and the tests.

PREFIX ?= /usr/local
BUILD  := build
PYTHON := $(BUILD)/venv/bin/python

.PHONY: run check test soak bench setup build install clean help

help:
	@echo "make run      set up, build, and take a short tour"
	@echo "make check    set up, build, and run the quick tests: two minutes"
	@echo "make test     set up, build, and run every test: what CI runs"
	@echo "make soak     the tests that take hours: sanitizers on everything, long fuzzing, a virtual machine"
	@echo "make bench    set up, build, and print the benchmark"
	@echo "make install  install to PREFIX=$(PREFIX) (DESTDIR is honoured)"

setup:
	@scripts/setup.sh run

build: setup
	@scripts/build.sh $(BUILD)

run: build
	@$(BUILD)/example-tour

test:
	@scripts/setup.sh test
	@scripts/test.sh

check soak:
	@scripts/setup.sh test
	@scripts/test.sh --tier $@

bench:
	@scripts/setup.sh bench
	@scripts/build.sh $(BUILD)
	@$(PYTHON) scripts/docker_engine.py $(BUILD)/workcell bench --python $(abspath $(PYTHON)) --json $(BUILD)/bench.json --svg $(BUILD)/bench.svg
	@$(BUILD)/bench-venv/bin/python bench/serve.py $(BUILD)
	@$(PYTHON) bench/sdk.py $(BUILD)

# A folder of its own: the prefix is compiled in, and what is installed must not look into the build folder.
install: setup
	@scripts/build.sh $(BUILD)-install --prefix=$(PREFIX) --libdir=lib --buildtype=release
	@meson install -C $(BUILD)-install --no-rebuild

clean:
	rm -rf $(BUILD) $(BUILD)-*

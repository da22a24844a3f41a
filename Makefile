# The front door.  The build itself is meson's; everything here only calls it, the set-up script, the tests and packaging/.

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
	@TARGETS="product example-tour" scripts/build.sh $(BUILD)

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

# The build of `make run`: no path is compiled into it.  Folders that are there keep their mode.
install: build
	@rm -rf $(BUILD)/stage
	@meson install -C $(BUILD) --no-rebuild --quiet --strip --destdir stage
	@mkdir -p "$(DESTDIR)$(PREFIX)"
	@tar -C $(BUILD)/stage/usr/local -cf - . | tar -C "$(DESTDIR)$(PREFIX)" --no-same-owner --no-overwrite-dir -xf -

clean:
	rm -rf $(BUILD) $(BUILD)-*

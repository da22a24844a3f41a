# The front door.  The build itself is meson's; everything here only calls it, the set-up script, the tests and packaging/.

PREFIX ?= /usr/local
BUILD  := build
PYTHON := $(BUILD)/venv/bin/python

.PHONY: run check test test-kubernetes soak bench setup build install wheel tarball deb image clean help

help:
	@echo "make run      set up, build, and take a short tour"
	@echo "make check    set up, build, and run the quick tests: two minutes"
	@echo "make test     set up, build, and run every test: what CI runs"
	@echo "make soak     the tests that take hours: sanitizers on everything, long fuzzing, a virtual machine"
	@echo "make bench    set up, build, and print the benchmark"
	@echo "make install  install to PREFIX=$(PREFIX) (DESTDIR is honoured)"
	@echo "make wheel    the Python wheel, for every Linux with glibc 2.28, in dist/ (ARCH=aarch64 for the other architecture)"
	@echo "make tarball  the same programs without Python's packaging, in dist/"
	@echo "make deb      a package for this Debian or Ubuntu, in dist/"
	@echo "make image    the container image workcell:VERSION, with Docker or Podman"

setup:
	@scripts/setup.sh run

build: setup
	@TARGETS="product example-tour" scripts/build.sh $(BUILD)

run: build
	@$(BUILD)/example-tour

test:
	@folder=$$(scripts/test-folder.sh) && cd "$$folder" && scripts/setup.sh test && scripts/test.sh

check soak:
	@folder=$$(scripts/test-folder.sh) && cd "$$folder" && scripts/setup.sh test && scripts/test.sh --tier $@

# packaging/kubernetes at a real control plane with two nodes; needs root, Go (or the programs) and Debian's packages that scripts/test_kubernetes.py names.
test-kubernetes:
	@$(PYTHON) scripts/test_kubernetes.py

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

ARCH ?= $(shell uname -m)
wheel tarball:
	@scripts/setup.sh package
	@packaging/portable.sh $@ $(ARCH)

deb: build
	@packaging/deb.sh $(BUILD)

ENGINE ?= $(shell command -v docker || command -v podman)
# IMAGE_FLAGS: for `build` of the engine, like --network=host or --build-arg BASE=...
image:
	@$(ENGINE) build $(IMAGE_FLAGS) -f packaging/Dockerfile -t workcell:$(shell cat VERSION) --build-arg VERSION=$(shell cat VERSION) \
		--build-arg REVISION=$(shell git rev-parse HEAD 2>/dev/null || echo unknown) .

clean:
	rm -rf $(BUILD) $(BUILD)-* dist

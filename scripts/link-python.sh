#!/bin/sh
# link-python.sh OUT PACKAGE: lays the Python package out in the build folder, which OUT is in, as a wheel would.
set -eu
build=$(realpath "$(dirname "$1")")
site=$1/workcell

# link TARGET NAME: a link that is right stays as it is, because programs may be using it.
link() {
	[ "$(readlink "$site/$2" || :)" = "$1" ] && return
	[ -L "$site/$2" ] || rm -rf "${site:?}/$2" # a folder of an older build, which had copies
	ln -sfn "$1" "$site/$2"
}

mkdir -p "$site"
for each in "$2"/*; do
	[ "${each##*/}" = __pycache__ ] || link "$each" "${each##*/}"
done
link "$build/_native.abi3.so" _native.abi3.so
link "$build" _lib
# What is gone from the source.
find "$site" -maxdepth 1 -xtype l -delete
touch "$1"

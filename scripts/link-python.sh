#!/bin/sh
# link-python.sh OUT PACKAGE: lays the Python package out in the build folder, which OUT is in, as a wheel would.
set -eu
build=$(realpath "$(dirname "$1")")
mkdir -p "$1/workcell"
for each in "$2"/*; do
	[ "${each##*/}" != __pycache__ ] || continue
	ln -sfn "$each" "$1/workcell/${each##*/}"
done
# What is gone from the source.
find "$1/workcell" -maxdepth 1 -xtype l -delete
ln -sfn "$build/_native.abi3.so" "$1/workcell/_native.abi3.so"
ln -sfn "$build" "$1/workcell/_lib"
touch "$1"

#!/bin/sh
# link-kernel.sh OUT KERNEL_DIR EXTENSION: lays the kernel's files out in the build folder as an install would.
set -eu
mkdir -p "$1"
ln -sfn "$2/workcell_kernel" "$1/workcell_kernel"
ln -sfn "$(realpath "$3")" "$1/_workcell.abi3.so"
touch "$1"

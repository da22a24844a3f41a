#!/bin/sh
# soname.sh PACKAGE LIBRARY COMPILER...: the name of the file that programs load which are linked with a library of a pkg-config package.
# Prints nothing where that is not a shared one.
set -eu
package=$1
library=$2
shift 2
out=$(mktemp)
trap 'rm -f "$out"' EXIT
# shellcheck disable=SC2046
echo 'int main(void) { return 0; }' | "$@" -x c - -o "$out" -Wl,--no-as-needed $(pkg-config --libs-only-L "$package") "-l$library"
readelf -d "$out" | sed -n "s/.*(NEEDED).*\[\(lib$library\.so[^]]*\)\].*/\1/p"

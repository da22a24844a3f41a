#!/bin/sh
# build.sh DIR [meson options]: configures DIR once (again when the options changed) and builds; only $TARGETS where that is set.
set -eu
dir=$1
shift
cd "$(dirname "$0")/.."
if [ -f "$dir/build.ninja" ] && [ "$(cat "$dir/.options" 2>/dev/null)" = "$*" ]; then
	:
elif [ -f "$dir/build.ninja" ]; then
	meson setup --reconfigure "$dir" "$@" >"$dir/setup.log" 2>&1 || { cat "$dir/setup.log" >&2; exit 1; }
else
	mkdir -p "$dir"
	meson setup "$dir" "$@" >"$dir/setup.log" 2>&1 || { cat "$dir/setup.log" >&2; exit 1; }
fi
printf '%s' "$*" >"$dir/.options"
# shellcheck disable=SC2086 # a list of names
ninja -C "$dir" ${TARGETS:-} >"$dir/build.log" 2>&1 || { cat "$dir/build.log" >&2; exit 1; }
if grep -q 'warning:' "$dir/build.log"; then
	cat "$dir/build.log" >&2
fi

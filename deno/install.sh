#!/bin/sh
# install.sh FOLDER: puts Deno and Pyodide, the versions and hashes of package-lock.json, into FOLDER with npm.  Does nothing
# when they are there.  Afterwards nothing of the `deno` executor asks the network.
set -eu
folder=$1
here=$(cd "$(dirname "$0")" && pwd)

have() {
	[ -x "$1/node_modules/@deno/linux-x64-glibc/deno" ] && [ -f "$1/node_modules/pyodide/pyodide.asm.wasm" ]
}

have "$folder" && exit 0
if ! command -v npm >/dev/null 2>&1; then
	echo "npm is not on PATH: install Node.js with npm and try again" >&2
	exit 1
fi
mkdir -p "$(dirname "$folder")"
temp=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$temp"' EXIT
cp "$here/package.json" "$here/package-lock.json" "$temp/"
echo "installing Deno and Pyodide into $folder"
# Nothing of the packages runs while they are installed: npm checks their hashes and unpacks them.
(cd "$temp" && npm ci --loglevel=error --no-audit --no-fund --ignore-scripts)
have "$temp" || {
	echo "npm installed no Deno for this machine (x86-64 with glibc)" >&2
	exit 1
}
# One that is half there gives way; where another process was faster, its copy stays.
have "$folder" || {
	rm -rf "$folder"
	mv -T "$temp" "$folder"
}
have "$folder"

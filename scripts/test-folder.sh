#!/bin/sh
# Prints the folder in which the tests of this tree run:  scripts/test-folder.sh
#
# Some tests run the programs as another user, and some look for the caller's home from inside a sandbox.  Where other users cannot reach
# the tree (/root is closed to them), or the tree lies below root's home, these would fail: then it is copied to /var/lib/workcell-tests,
# with what is not committed.  The copy is kept, so that the next run builds only what has changed.
set -eu
cd "$(dirname "$0")/.."
here=$(pwd -P)

is_below_home() {
	case $here/ in "$(cd "${HOME:-/root}" && pwd -P)"/*) true ;; *) false ;; esac
}

if [ "$(id -u)" != 0 ] || { ! is_below_home && setpriv --reuid 65534 --regid 65534 --clear-groups test -x "$here/scripts/setup.sh"; }; then
	echo "$here"
	exit
fi
if [ "$(git rev-parse --show-toplevel 2>/dev/null)" != "$here" ]; then
	echo "test-folder: tests run programs as another user, who cannot reach $here: unpack it elsewhere, in /srv for example" >&2
	exit 1
fi
copy=/var/lib/workcell-tests/$(printf %s "$here" | sha256sum | cut -c1-12)
umask 022
mkdir -p /var/lib/workcell-tests
[ -d "$copy/.git" ] || git clone --quiet --no-checkout "$here" "$copy"
git -C "$copy" fetch --quiet "$here" HEAD
git -C "$copy" checkout --quiet --force --detach FETCH_HEAD
git -C "$copy" clean --quiet --force -d
git diff --quiet HEAD || git diff --binary --no-ext-diff HEAD | git -C "$copy" apply --whitespace=nowarn
git ls-files -z --others --exclude-standard | tar --null --files-from - -cf - | tar -C "$copy" -xf -
echo "== other users cannot reach $here: the tests run in $copy, a copy" >&2
echo "$copy"

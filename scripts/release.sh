#!/bin/sh
# Makes a release of the version in VERSION:  scripts/release.sh [--publish] [--skip-tests]
#
# Checks that the tree is clean, that the version agrees everywhere and is not tagged yet, that CHANGELOG.md has a dated section for it
# and that its header is kept in tests/abi; runs make test; makes build/release/workcell-VERSION.tar.gz with its SHA-256.  Without
# --publish that is all: nothing outside of build/ is changed.  With it the commit is tagged (annotated, with the section of the
# changelog); pushing the tag is left to you.  --skip-tests is for tests of this script, and refused with --publish.
set -eu

cd "$(dirname "$0")/.."

publish= tests=1
for argument in "$@"; do
	case $argument in
	--publish) publish=1 ;;
	--skip-tests) tests= ;;
	*)
		echo "usage: scripts/release.sh [--publish] [--skip-tests]" >&2
		exit 2
		;;
	esac
done

fail() {
	echo "release: $*" >&2
	exit 1
}

if [ -n "$publish" ] && [ -z "$tests" ]; then
	fail "--skip-tests does not go with --publish"
fi
version=$(cat VERSION)
tag=v$version
python=build/venv/bin/python
[ -x $python ] || python=python3

[ -z "$(git status --porcelain)" ] || fail "the tree has changes that are not committed; commit or stash them"
$python scripts/check-version.py || fail "the version is not the same everywhere"
git rev-parse -q --verify "refs/tags/$tag" >/dev/null && fail "$tag exists; set the next version in VERSION"
# The lines of the section, without its heading.
notes=$(sed -n "/^## $version (20[0-9][0-9]-[0-9][0-9]-[0-9][0-9])\$/,/^## /p" CHANGELOG.md | sed '/^## /d')
[ -n "$(echo "$notes" | tr -d '[:space:]')" ] || fail "CHANGELOG.md has no section '## $version (YYYY-MM-DD)' with text"
# Programs will be compiled against this header: later ones are compared with it (scripts/check-abi.py).  It is that of the first patch.
kept=tests/abi/workcell-${version%.*}.h
case $version in
*.0) cmp -s include/workcell.h "$kept" || fail "$kept is not the header of $version; copy include/workcell.h there and commit it" ;;
*) [ -f "$kept" ] || fail "$kept is missing: the header of ${version%.*}.0" ;;
esac

if [ -n "$tests" ]; then
	make test || fail "the tests fail"
fi
mkdir -p build/release
archive=build/release/workcell-$version.tar.gz
git archive --format=tar.gz --prefix="workcell-$version/" -o "$archive" HEAD
(cd build/release && sha256sum "workcell-$version.tar.gz" >"workcell-$version.tar.gz.sha256")
echo "release: $archive"
if [ -z "$publish" ]; then
	echo "release: nothing was tagged; --publish does that"
	exit 0
fi
echo "$notes" | git tag -a "$tag" -F -
echo "release: $tag; publish it with: git push origin $tag"

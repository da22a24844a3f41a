#!/bin/sh
# deb.sh BUILD: makes dist/workcell_VERSION_ARCH.deb from what is built in BUILD, for the Debian or Ubuntu that it was built on.
#
# Program, library, header, kernel and Python package in one.  The libraries that it needs are dependencies, as dpkg-shlibdeps finds them.
set -eu

cd "$(dirname "$0")/.."
build=$1
version=$(cat VERSION)
arch=$(dpkg --print-architecture)
work=$build/deb
root=$work/debian/workcell
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date -r VERSION +%s)}
export SOURCE_DATE_EPOCH
umask 022

rm -rf "$work"
mkdir -p "$root/DEBIAN" "$root/usr"
DESTDIR=$(realpath "$work")/stage meson install -C "$build" --no-rebuild --quiet --strip
# No path is compiled in: the prefix can be changed here.
mv "$work"/stage/usr/local/* "$root/usr/"
mkdir -p "$root/usr/lib/python3/dist-packages" "$root/usr/share/doc/workcell"
ln -s ../../workcell/python/workcell "$root/usr/lib/python3/dist-packages/workcell"
cp LICENSE "$root/usr/share/doc/workcell/copyright"
gzip -9nc CHANGELOG.md >"$root/usr/share/doc/workcell/changelog.gz"
find "$root/usr/share/man" -name '*.1' -exec gzip -9n {} +
find "$root" -type f -name '*.so*' -exec chmod 644 {} +

# dpkg-shlibdeps wants to see a source package.
printf 'Source: workcell\nPackage: workcell\nArchitecture: any\n' >"$work/debian/control"
needed=$(cd "$work" && find debian/workcell/usr/bin debian/workcell/usr/lib -type f \( -perm /111 -o -name '*.so*' \) -exec dpkg-shlibdeps -O \
	-Sdebian/workcell {} + 2>"$PWD/shlibdeps.log") || { cat "$work/shlibdeps.log" >&2; exit 1; }
cat >"$root/DEBIAN/control" <<EOF
Package: workcell
Version: $version
Architecture: $arch
Maintainer: The Workcell authors <workcell@localhost>
Installed-Size: $(du -sk "$root/usr" | cut -f 1)
Depends: ${needed#shlibs:Depends=}, python3 (>= 3.9)
Recommends: ca-certificates, python3-venv, uidmap
Section: devel
Priority: optional
Description: runs the code that AI agents write
 Full CPython in sessions that keep their variables, with tools, approvals,
 reusable workflows, files and packages, and with the code confined to what
 you allow. A C library with a command line, a session server, an MCP server
 and a Python package.
EOF
echo "activate-noawait ldconfig" >"$root/DEBIAN/triggers"
# Bytecode is made once, by root, and removed again.
cat >"$root/DEBIAN/postinst" <<'EOF'
#!/bin/sh
set -e
[ "$1" != configure ] || python3 -m compileall -q /usr/lib/workcell >/dev/null || :
EOF
cat >"$root/DEBIAN/prerm" <<'EOF'
#!/bin/sh
set -e
find /usr/lib/workcell -name __pycache__ -type d -prune -exec rm -r {} +
EOF
chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/prerm"
(cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums)
mkdir -p dist
dpkg-deb --root-owner-group -Zxz --build "$root" "dist/workcell_${version}_$arch.deb"

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

# A build of developers may be without it; a package is not.
grep -q '"main.js"' "$build/console_files.c" || {
	echo "deb.sh: $build has no console; install node 18 or newer and npm, and build with -Dconsole=enabled" >&2
	exit 1
}
rm -rf "$work"
mkdir -p "$root/DEBIAN" "$root/usr"
DESTDIR=$(realpath "$work")/stage meson install -C "$build" --no-rebuild --quiet --strip
# No path is compiled in: the prefix can be changed here.
mv "$work"/stage/usr/local/* "$root/usr/"
mkdir -p "$root/usr/lib/python3/dist-packages" "$root/usr/share/doc/workcell"
ln -s ../../workcell/python/workcell "$root/usr/lib/python3/dist-packages/workcell"
cp LICENSE "$root/usr/share/doc/workcell/copyright"
gzip -9nc CHANGELOG.md >"$root/usr/share/doc/workcell/changelog.gz"
# The service, which nothing enables: it needs settings and tokens first.
install -D -m 644 -t "$root/lib/systemd/system" packaging/systemd/workcell.service packaging/systemd/workcell.socket
sed -i -e 's|/usr/local/bin/|/usr/bin/|' "$root/lib/systemd/system/workcell.service"
install -D -m 644 packaging/systemd/workcell.sysusers "$root/usr/lib/sysusers.d/workcell.conf"
install -D -m 644 packaging/systemd/workcell.tmpfiles "$root/usr/lib/tmpfiles.d/workcell.conf"
find "$root/usr/share/man" -name '*.1' -exec gzip -9n {} +
find "$root" -type f -name '*.so*' -exec chmod 644 {} +

# It is a hash of the debugging information too, which has the path of the build folder and is not in the package.
find "$root/usr" -type f \( -perm /111 -o -name '*.so*' \) -exec sh -c 'for file; do ! readelf -h "$file" >/dev/null 2>&1 ||
	strip --remove-section=.note.gnu.build-id "$file"; done' strip {} +

# dpkg-shlibdeps wants to see a source package.
printf 'Source: workcell\nPackage: workcell\nArchitecture: any\n' >"$work/debian/control"
# Libraries that are loaded when they are first needed: a library that refers to the same functions depends on the same packages.
sed -n 's/^\tX(\([A-Za-z0-9_]*\)).*/extern char \1[]; char *at_\1 = \1;/p' src/base/libraries.c |
	"${CC:-cc}" -shared -fPIC -x c - -o "$work/loaded.so" -lcurl -lmicrohttpd -lgnutls -lz -lzmq -ledit
needed=$(cd "$work" && find loaded.so debian/workcell/usr/bin debian/workcell/usr/lib -type f \( -perm /111 -o -name '*.so*' \) -exec dpkg-shlibdeps -O \
	-Sdebian/workcell {} + 2>"$PWD/shlibdeps.log") || { cat "$work/shlibdeps.log" >&2; exit 1; }
cat >"$root/DEBIAN/control" <<EOF
Package: workcell
Version: $version
Architecture: $arch
Maintainer: The Workcell authors <authors@workcell.invalid>
Installed-Size: $(find "$root" -type f -printf '%s\n' | awk '{ kib += int(($1 + 1023) / 1024) } END { print kib }')
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
install -m 755 -t "$root/DEBIAN" packaging/deb/postinst packaging/deb/prerm packaging/deb/postrm
(cd "$root" && find lib usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums)
# dpkg-deb itself changes only times after the commit's.
find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
mkdir -p dist
dpkg-deb --root-owner-group -Zxz --build "$root" "dist/workcell_${version}_$arch.deb"

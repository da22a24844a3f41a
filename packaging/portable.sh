#!/bin/sh
# portable.sh wheel|tarball [x86_64|aarch64]: makes dist/workcell-*.whl or dist/workcell-*.tar.gz, which run on any Linux with glibc 2.28.
#
# All libraries but libc are linked statically (packaging/libraries.sh); the compiler is Zig's, which has the headers and symbols of that
# libc and builds for the other architecture as well.  Both come from one build, in build/portable/ARCH/out.  Needs what
# `scripts/setup.sh package` installs.
set -eu

cd "$(dirname "$0")/.."
what=$1
arch=${2:-$(uname -m)}
triple=$arch-linux-gnu
glibc=2.28
out=$PWD/build/portable/$arch
venv=$PWD/build/portable/venv
version=$(cat VERSION)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date -r VERSION +%s)}
# What meson calls must be that of this venv, also when another is active.
PATH=$venv/bin:$PATH
export SOURCE_DATE_EPOCH PATH
unset CC CFLAGS CPPFLAGS LDFLAGS PKG_CONFIG_PATH
umask 022

say() {
	echo "portable: $*"
}

write_cross_file() {
	case $arch in
	"$(uname -m)") wrapper=false ;;
	*) wrapper=true ;;
	esac
	cat >"$out/cross.new" <<EOF
[binaries]
c = '$out/bin/$triple-cc'
cpp = '$out/bin/$triple-c++'
ar = '$out/bin/$triple-ar'
ranlib = '$out/bin/$triple-ranlib'
strip = 'true' # the linker does it
pkg-config = 'pkg-config'
python = '$venv/bin/python'
python3 = '$venv/bin/python'
[properties]
pkg_config_libdir = ['$out/sysroot/usr/lib/$triple/pkgconfig']
sys_root = '$out/sysroot'
needs_exe_wrapper = $wrapper
[built-in options]
c_args = ['-isystem', '$out/sysroot/usr/include', '-isystem', '$out/sysroot/usr/include/$triple', '-g0', '-ffile-prefix-map=$PWD=.']
c_link_args = ['-Wl,-s']
[host_machine]
system = 'linux'
cpu_family = '$arch'
cpu = '$arch'
endian = 'little'
EOF
	cmp -s "$out/cross.new" "$out/cross.ini" || mv "$out/cross.new" "$out/cross.ini"
}

# Without the fresh archives of libraries that are not found a feature would be left out silently: all are required.
options="--cross-file=$out/cross.ini -Dprefer_static=true -Dlisten=enabled -Djupyter=enabled -Dredis=enabled -Dshell=enabled -Dconsole=enabled
-Dnotices=$out/NOTICES"

make_wheel() {
	say "the wheel for $arch"
	rm -rf "$out/wheel"
	settings=
	for option in $options; do
		settings="$settings -Csetup-args=$option"
	done
	# shellcheck disable=SC2086 # a list of options
	_PYTHON_HOST_PLATFORM=linux-$arch "$venv/bin/python" -m build --wheel --no-isolation --outdir "$out/wheel" -Cbuild-dir="$out/out" $settings
	# The extensions have the stable ABI of 3.9, whatever Python the build ran with.
	"$venv/bin/python" -m wheel tags --remove --python-tag cp39 --platform-tag "manylinux_$(echo $glibc | tr . _)_$arch" "$out"/wheel/*.whl >/dev/null
	"$venv/bin/auditwheel" show "$out"/wheel/*.whl >"$out/audit.txt"
	grep -q "manylinux_$(echo $glibc | tr . _)_$arch\"" "$out/audit.txt" || { cat "$out/audit.txt" >&2; say "the wheel needs more than that" >&2; exit 1; }
	"$venv/bin/twine" check --strict "$out"/wheel/*.whl
	mkdir -p dist
	mv "$out"/wheel/*.whl dist/
	ls -l dist/*.whl
}

make_tarball() {
	say "the tarball for $arch"
	name=workcell-$version-linux-$arch
	again=
	[ ! -f "$out/out/build.ninja" ] || again=--reconfigure
	# shellcheck disable=SC2086
	meson setup $again "$out/out" --prefix=/ -Dwheel=false -Dbuildtype=debugoptimized -Db_ndebug=false $options >"$out/setup.log" 2>&1 ||
		{ cat "$out/setup.log" >&2; exit 1; }
	ninja -C "$out/out" product
	rm -rf "$out/stage"
	meson install -C "$out/out" --no-rebuild --quiet --destdir "$out/stage/$name"
	cp LICENSE docs/install.md "$out/stage/$name/"
	mkdir -p dist
	tar -C "$out/stage" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name" | gzip -9n >"dist/$name.tar.gz"
	ls -l "dist/$name.tar.gz"
}

packaging/libraries.sh "$arch"
write_cross_file
"make_$what"

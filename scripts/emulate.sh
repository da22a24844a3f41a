#!/bin/sh
# emulate.sh COMMAND...: runs a command in namespaces in which programs for aarch64 run as those for this machine do.
#
# QEMU's emulator of user programs is registered with binfmt_misc in a user namespace, which Linux 6.7 and later allow, so nothing of it is
# seen outside; the libraries and the Python of Debian 12 for arm64 lie over /usr.  There /usr/bin/python3.11 is that Python, and this
# machine's, of the same version, is native-python3.  Everything is unpacked below build/portable/aarch64/emulated: no package is installed.  The emulator is
# that of Debian's backports: the one of Debian 12 does not know PR_SET_CHILD_SUBREAPER, without which the spawner does not start.
set -eu

cd "$(dirname "$0")/.."
out=$PWD/build/portable/aarch64
made=$out/emulated
packages="libc6 libgcc-s1 libstdc++6 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libpython3.11 zlib1g libexpat1 libssl3 libffi8
libsqlite3-0 libbz2-1.0 liblzma5 libtinfo6 libreadline8 libuuid1 libncursesw6 libcrypt1 libcmocka0"
# For the environment with IPython that the conformance tests want; versions are those of scripts/test-requirements.txt.
modules="ipython matplotlib numpy pandas"
python=/usr/bin/python3.11

stamp=$(sha256sum scripts/emulate.sh scripts/test-requirements.txt)

# apt ARCHITECTURE SOURCES COMMAND...: with lists, caches and a package database of its own, as packaging/libraries.sh does.
apt() {
	arch=$1 sources=$2
	shift 2
	mkdir -p "$made/$arch/lists/partial" "$made/$arch/archives/partial"
	: >"$made/status"
	apt-get -q -o Dir::Etc::sourcelist="$sources" -o Dir::Etc::sourceparts=- -o Dir::State="$made/$arch" -o Dir::State::status="$made/status" \
		-o Dir::Cache="$made/$arch" -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o APT::Sandbox::User=root -o Debug::NoLocking=1 \
		"$@" >"$made/apt.log" 2>&1 || { cat "$made/apt.log" >&2; exit 1; }
}

make_all() {
	packaging/libraries.sh aarch64 # whose list of Debian's archives is used here
	rm -rf "$made"
	mkdir -p "$made/root" "$made/debs" "$made/usr/bin" "$made/usr/lib"
	apt arm64 "$out/apt/debian.sources" update
	# shellcheck disable=SC2086 # a list of names
	(cd "$made/debs" && apt arm64 "$out/apt/debian.sources" download $packages)
	for package in "$made"/debs/*.deb; do
		dpkg-deb -x "$package" "$made/root"
	done
	rm -rf "$made"/debs/*
	# By their own paths, not below the emulator's prefix (-L): with that it opens another folder for "/".
	cp -R "$made"/root/lib/. "$made"/root/usr/lib/. "$made/usr/lib/"
	cp "$made/root$python" "$made/usr/bin/"
	cp "$python" "$made/usr/bin/native-python3"
	rm -rf "$made/root"
	# The unit tests are linked with it; Debian has no archive of it.
	cp -P "$made"/usr/lib/aarch64-linux-gnu/libcmocka.so.* "$out/sysroot/usr/lib/aarch64-linux-gnu/"
	ln -sf libcmocka.so.0 "$out/sysroot/usr/lib/aarch64-linux-gnu/libcmocka.so"

	# The same archive's backports, in both forms of the list.
	awk 'BEGIN { RS = ""; ORS = "\n\n" } !/security/' "$out/apt/debian.sources" |
		sed -e 's/^Suites:.*/Suites: bookworm-backports/; s/^Types:.*/Types: deb/; /^deb-src/d; s/ bookworm[^ ]* / bookworm-backports /' >"$made/backports.sources"
	apt amd64 "$made/backports.sources" update
	(cd "$made/debs" && apt amd64 "$made/backports.sources" download qemu-user)
	dpkg-deb --fsys-tarfile "$made"/debs/qemu-user_*.deb | tar -xO ./usr/bin/qemu-aarch64 >"$made/qemu-aarch64"
	chmod +x "$made/qemu-aarch64"
	rm -rf "$made/debs" "$made/amd64" "$made/arm64"

	# Two environments: one for what is tested, and the tests' own for this machine's interpreter.
	site=$made/venv/lib/python3.11/site-packages
	mkdir -p "$site" "$made/venv/bin" "$made/native/bin" "$made/native/lib/python3.11"
	printf 'home = /usr/bin\nversion = 3.11\n' | tee "$made/venv/pyvenv.cfg" >"$made/native/pyvenv.cfg"
	ln -s "$python" "$made/venv/bin/python3"
	ln -s python3 "$made/venv/bin/python"
	ln -s /usr/bin/native-python3 "$made/native/bin/python"
	ln -s "$PWD/build/venv/lib/python3.11/site-packages" "$made/native/lib/python3.11/site-packages"
	for module in $modules; do
		sed -n "s/^\($module==[^;]*\).*/\1/p" scripts/test-requirements.txt
	done >"$made/requirements.txt"
	build/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input --target "$site" --python-version 3.11 --only-binary=:all: \
		--platform manylinux_2_28_aarch64 --platform manylinux2014_aarch64 -r "$made/requirements.txt"
	echo "$stamp" >"$made/.stamp"
}

[ "$(cat "$made/.stamp" 2>/dev/null)" = "$stamp" ] || make_all
exec unshare --user --map-root-user --mount --fork --kill-child sh -c '
set -e
made=$1
shift
mount --make-rprivate /
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
magic="\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
mask="\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
printf %s ":qemu-aarch64:M::$magic:$mask:$made/qemu-aarch64:POCF" >/proc/sys/fs/binfmt_misc/register
mount -t overlay -o lowerdir="$made/usr:/usr" overlay /usr
exec "$@"' emulate "$made" "$@"

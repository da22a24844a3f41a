#!/bin/sh
# libraries.sh ARCH: makes build/portable/ARCH/sysroot with the static libraries that programs for other machines are linked with.
#
# ARCH is x86_64 or aarch64.  Some are Debian's own archives, unpacked from its packages.  The others are built here from Debian's source
# packages, because a shared library cannot be linked with Debian's archive of them: its code is not position-independent, or it needs
# libraries that have no archive (Kerberos, p11-kit).  apt downloads and verifies everything, with a state of its own: this machine's
# packages stay as they are, and no root is needed.  Zig's compiler (build/portable/venv) has the headers and symbols of the oldest glibc
# that is supported.  Does nothing when all is there.
set -eu

cd "$(dirname "$0")/.."
arch=$1
case $arch in
x86_64) debian=amd64 ;;
aarch64) debian=arm64 ;;
*)
	echo "libraries: usage: packaging/libraries.sh x86_64|aarch64" >&2
	exit 2
	;;
esac
triple=$arch-linux-gnu
top=$PWD/build/portable
out=$top/$arch
root=$out/sysroot
lib=$root/usr/lib/$triple
glibc=2.28 # RHEL 8, Debian 10, Ubuntu 20.04 and later

# libbsd and libmd are libedit's, libtinfo (of ncurses; the second package has its licence) is its terminfo, nettle is GnuTLS's; of Python
# only the headers are used.
packages="libtinfo6 libyaml-dev libsqlite3-dev libssl-dev libseccomp-dev libedit-dev libbsd-dev libmd-dev libncurses-dev libhiredis-dev nettle-dev
zlib1g-dev libpython3.11-dev libcmocka-dev"
sources="libuv1 jansson gmp gnutls28 libmicrohttpd curl zeromq3"

# What the result depends on.  Debian's updates do not count: `rm -r build/portable` takes them.
stamp=$({ cat packaging/libraries.sh; grep ^ziglang packaging/requirements.txt; } | sha256sum)
[ "$(cat "$out/.stamp" 2>/dev/null)" != "$stamp" ] || exit 0

say() {
	echo "libraries: $*"
}

# apt with lists, caches and a package database of its own, which knows Debian's archives alone.
apt() {
	command=$1
	shift
	"$command" -q -o Dir::Etc::sourcelist="$out/apt/debian.sources" -o Dir::Etc::sourceparts=- -o Dir::State="$out/apt/state" \
		-o Dir::State::status="$out/apt/status" -o Dir::Cache="$out/apt/cache" -o APT::Architecture=$debian -o APT::Architectures=$debian \
		-o APT::Sandbox::User=root -o Debug::NoLocking=1 "$@"
}

fetch() {
	say "packages of Debian for $arch"
	mkdir -p "$out/apt/state/lists/partial" "$out/apt/cache/archives/partial" "$out/debs" "$out/source"
	: >"$out/apt/status"
	if [ -f /etc/apt/sources.list.d/debian.sources ]; then
		sed -e 's/^Types:.*/Types: deb deb-src/' /etc/apt/sources.list.d/debian.sources >"$out/apt/debian.sources"
	elif [ -f /etc/apt/sources.list ]; then
		mv "$out/apt/debian.sources" "$out/apt/debian.list" 2>/dev/null || :
		sed -n -e '/^deb /{p;s/^deb /deb-src /;p;}' /etc/apt/sources.list >"$out/apt/debian.list"
		ln -sf debian.list "$out/apt/debian.sources"
	fi
	apt apt-get update >"$out/apt.log" 2>&1 || { cat "$out/apt.log" >&2; exit 1; }
	# shellcheck disable=SC2086 # a list of names
	(cd "$out/debs" && apt apt-get download $packages >>"$out/apt.log" 2>&1) || { cat "$out/apt.log" >&2; exit 1; }
	# shellcheck disable=SC2086
	(cd "$out/source" && apt apt-get source $sources >>"$out/apt.log" 2>&1) || { cat "$out/apt.log" >&2; exit 1; }
}

logged() {
	log=$out/log/$1
	shift
	"$@" >"$log" 2>&1 </dev/null || { tail -40 "$log" >&2; say "failed; the whole log is $log" >&2; exit 1; }
}

unpack() {
	rm -rf "$root"
	mkdir -p "$root"
	for package in "$out"/debs/*.deb; do
		dpkg-deb -x "$package" "$root"
	done
	# Only archives: whatever is not one would be found and linked.
	find "$lib" -name '*.so*' -delete
	# By the name under which libedit asks for it.
	ln -sf libtinfo.a "$lib/libtermcap.a"
	sed -i -e 's/-lbsd/-lbsd -lmd/' "$lib/pkgconfig/libedit.pc"
	# It names a folder in which it is not.
	sed -i -e "s|^libdir=.*|libdir=/usr/lib/$triple|" "$lib/pkgconfig/hiredis.pc"
}

# The compiler under names that configure scripts understand.
make_tools() {
	zig=$("$top/venv/bin/python" -c 'import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), "zig"))')
	mkdir -p "$out/bin"
	for tool in cc c++ ar ranlib; do
		target=
		case $tool in
		c*) target="-target $triple.$glibc" ;;
		esac
		printf '#!/bin/sh\nexec "%s" %s %s "$@"\n' "$zig" "$tool" "$target" >"$out/bin/$triple-$tool"
		chmod +x "$out/bin/$triple-$tool"
	done
}

# library SOURCE OPTIONS...: the source package's folder is built with `configure` and installed over the packages' files.
library() {
	name=$1
	shift
	[ ! -e "$out/done/$name" ] || return 0
	say "$name for $arch"
	(
		cd "$out/source/$name"-*/
		if [ -x configure ] && [ "$name" != gmp ]; then # Debian's patches change gmp's
			:
		elif [ -f autogen.sh ]; then
			logged "$name-autogen" sh autogen.sh
		else
			logged "$name-autogen" autoreconf -fi
		fi
		logged "$name-configure" ./configure --host=$triple --prefix=/usr --libdir="/usr/lib/$triple" --enable-static --disable-shared \
			--with-pic --disable-dependency-tracking "$@"
		logged "$name-make" make -j"$(nproc)"
		logged "$name-install" make install DESTDIR="$root"
	)
	find "$lib" -name '*.la' -delete
	: >"$out/done/$name"
}

build_all() {
	export CC="$out/bin/$triple-cc" CXX="$out/bin/$triple-c++" AR="$out/bin/$triple-ar" RANLIB="$out/bin/$triple-ranlib"
	export CFLAGS="-O2 -fPIC -fstack-protector-strong -ffile-prefix-map=$out/source=." CXXFLAGS="-O2 -fPIC -ffile-prefix-map=$out/source=."
	export CPPFLAGS="-I$root/usr/include -I$root/usr/include/$triple" LDFLAGS="-L$lib"
	export PKG_CONFIG_LIBDIR="$lib/pkgconfig:$root/usr/share/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$root" PKG_CONFIG_PATH=
	mkdir -p "$out/log"
	library libuv1
	library jansson
	library gmp --disable-cxx
	library gnutls28 --without-p11-kit --without-idn --with-included-libtasn1 --with-included-unistring --without-tpm --without-tpm2 \
		--without-brotli --without-zstd --without-zlib --disable-cxx --disable-tools --disable-tests --disable-doc --disable-nls \
		--disable-guile --disable-libdane --disable-hardware-acceleration
	library libmicrohttpd --enable-https --disable-doc --disable-examples --disable-curl LIBS="$(pkg-config --static --libs gnutls)"
	library curl --with-openssl --without-libpsl --without-libidn2 --without-nghttp2 --without-brotli --without-zstd --without-librtmp \
		--without-libssh2 --disable-ldap --disable-manual --disable-docs --disable-ftp --disable-file --disable-dict --disable-telnet \
		--disable-tftp --disable-pop3 --disable-imap --disable-smb --disable-smtp --disable-gopher --disable-mqtt --disable-rtsp \
		--without-ca-bundle --without-ca-path --with-ca-fallback
	library zeromq3 --without-libsodium --without-pgm --without-norm --without-libgssapi_krb5 --disable-libbsd --without-docs \
		--disable-Werror --disable-perf --disable-curve --disable-curve-keygen
	# Zig has libc++ where Debian has libstdc++.
	sed -i -e 's/-lstdc++/-lc++/' "$lib/pkgconfig/libzmq.pc"
}

# The licences of all of it, as Debian has collected them.
write_notices() {
	for package in libyaml-dev libsqlite3-dev libssl-dev libseccomp-dev libedit-dev libbsd-dev libmd-dev libncurses-dev libhiredis-dev nettle-dev \
		zlib1g-dev; do
		printf '\n==== %s ====\n\n' "$package"
		cat "$root/usr/share/doc/$package/copyright"
	done
	for name in $sources; do
		printf '\n==== %s ====\n\n' "$name"
		cat "$out/source/$name"-*/debian/copyright
	done
}

# A build that was interrupted goes on after the last whole library.
if [ "$(cat "$out/.begun" 2>/dev/null)" != "$stamp" ]; then
	rm -rf "$out"
	fetch
	unpack
	make_tools
	mkdir "$out/done"
	echo "$stamp" >"$out/.begun"
fi
build_all
write_notices >"$out/NOTICES"
echo "$stamp" >"$out/.stamp"

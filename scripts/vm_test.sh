#!/bin/sh
# Tests limits by cgroup v2 in a virtual machine:  scripts/vm_test.sh [COMMAND ARGS...]
#
# For machines whose own kernel has its controllers in version 1, or that do not delegate a group.  The machine runs Debian's
# kernel; its root is this machine's own file system, read-only, with a layer in memory on top; nothing that happens in it is
# kept.  It has version 2 alone at /sys/fs/cgroup, and no systemd.  COMMAND runs in it as root, in this folder; without one,
# tests/vm/limits.py.  Ends with the command's status.
#
# Needs qemu-system-x86 and busybox-static; the kernel's package is fetched with apt-get and unpacked in build/vm, or is taken
# from $WORKCELL_VM_KERNEL: a folder with boot/ and lib/modules/.  With /dev/kvm it takes half a minute, without about two.
set -eu

cd "$(dirname "$0")/.."
parts=$PWD/build/vm
mkdir -p "$parts"

fail() {
	echo "vm_test: $*" >&2
	exit 125
}

for program in qemu-system-x86_64 busybox; do
	command -v $program >/dev/null || fail "no $program: apt-get install qemu-system-x86 busybox-static"
done
[ -x build/workcell ] || fail "no build/workcell: make first"

# ---- the kernel ----

kernel=${WORKCELL_VM_KERNEL:-$parts/kernel}
if ! ls "$kernel"/boot/vmlinuz-* >/dev/null 2>&1; then
	package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
	[ -n "$package" ] || fail "apt knows no linux-image-amd64; set WORKCELL_VM_KERNEL"
	(cd "$parts" && apt-get download "$package")
	dpkg-deb -x "$parts"/linux-image-*.deb "$kernel"
	rm "$parts"/linux-image-*.deb
fi
image=$(ls "$kernel"/boot/vmlinuz-* | head -n 1)
modules=$(ls -d "$kernel"/lib/modules/*/kernel "$kernel"/usr/lib/modules/*/kernel 2>/dev/null | head -n 1)

# ---- what it starts with ----

# In the order in which they need each other.
wanted="drivers/virtio/virtio drivers/virtio/virtio_ring drivers/virtio/virtio_pci_legacy_dev
drivers/virtio/virtio_pci_modern_dev drivers/virtio/virtio_pci fs/netfs/netfs fs/fscache/fscache net/9p/9pnet
net/9p/9pnet_virtio fs/9p/9p fs/overlayfs/overlay"
tree=$parts/initrd
rm -rf "$tree"
mkdir -p "$tree/bin" "$tree/modules" "$tree/proc" "$tree/dev" "$tree/lower" "$tree/upper" "$tree/root"
cp "$(command -v busybox)" "$tree/bin/busybox"
names=
for module in $wanted; do
	[ -f "$modules/$module.ko" ] || continue # built in, or not there in this version
	cp "$modules/$module.ko" "$tree/modules"
	names="$names ${module##*/}"
done
cat >"$tree/init" <<END
#!/bin/busybox sh
b=/bin/busybox
\$b mount -t devtmpfs dev /dev
for name in $names; do \$b insmod /modules/\$name.ko; done
\$b mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=524288 host /lower &&
\$b mount -t tmpfs -o size=1g upper /upper && \$b mkdir /upper/files /upper/work &&
\$b mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /root &&
\$b umount /dev && exec \$b switch_root /root /bin/sh $parts/start.sh
echo "vm_test: status 125"
\$b poweroff -f
END
chmod +x "$tree/init"
(cd "$tree" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >"$parts/initrd.gz"

command="/usr/bin/python3 tests/vm/limits.py"
if [ $# -gt 0 ]; then
	command=
	for word in "$@"; do
		command="$command '$(printf %s "$word" | sed "s/'/'\\\\''/g")'"
	done
fi
cat >"$parts/start.sh" <<END
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
export WORKCELL_BIN=$PWD/build/workcell WORKCELL_TEST_PYTHON=$PWD/build/venv/bin/python WORKCELL_TEST_DEADLINE=300
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs -o mode=755 run /run
mount -t cgroup2 -o nsdelegate cgroup2 /sys/fs/cgroup
busybox ip link set lo up
cd $PWD
$command
echo "vm_test: status \$?"
busybox poweroff -f
END

# ---- the machine ----

accel=tcg,thread=multi
# The device alone says little: inside of another machine it may be there and not work.
if [ -w /dev/kvm ] && grep -Eqw 'vmx|svm' /proc/cpuinfo; then accel=kvm; fi
timeout "${WORKCELL_VM_SECONDS:-900}" qemu-system-x86_64 -M pc -cpu max -accel "$accel" -smp 2 -m 2G -nodefaults -display none \
	-no-reboot -serial stdio -kernel "$image" -initrd "$parts/initrd.gz" \
	-append "console=ttyS0 quiet loglevel=1 panic=-1 mitigations=off" \
	-fsdev local,id=root,path=/,readonly=on,security_model=none,multidevs=remap \
	-device virtio-9p-pci,fsdev=root,mount_tag=host </dev/null | sed -u 's/\r//' | tee "$parts/console.txt"
status=$(sed -n 's/^vm_test: status \([0-9]*\)$/\1/p' "$parts/console.txt" | tail -n 1)
exit "${status:-125}"

"""A clean machine: Debian 12 as debootstrap makes it, with Python and without a compiler.

The root is made once, in build/packaging/; each Machine is an overlay on it, so that tests neither see each other nor pay for it again. A
command has its own mount and pid namespaces: what it mounts and starts ends with it. The root is changed with pivot_root: in a chroot the
kernel allows no user namespaces, which the sandbox needs.
"""
import os
import shutil
import subprocess

import support

FOLDER = os.path.join(support.ROOT, "build", "packaging")
ROOT = os.path.join(FOLDER, "root")
# What pip needs, and what people have.
PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
SECONDS = 600
ENTER = """set -e
root=$1; lower=$2; upper=$3; work=$4; shift 4
mount --make-rprivate /
mount -t overlay -o lowerdir="$lower",upperdir="$upper",workdir="$work" overlay "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount --bind "$DIST" "$root/dist"
cd "$root"
pivot_root . .
umount -l .
cd /
exec "$@"
"""


def make_root():
    if os.path.exists(os.path.join(FOLDER, "made")):
        return
    shutil.rmtree(ROOT, ignore_errors=True)
    os.makedirs(FOLDER, exist_ok=True)
    with open(os.path.join(FOLDER, "debootstrap.log"), "wb") as log:
        done = subprocess.run(["debootstrap", "--variant=minbase", "--include=" + PACKAGES, "bookworm", ROOT], stdout=log, stderr=log)
    assert done.returncode == 0, "debootstrap failed; its log is %s" % log.name
    shutil.copy("/etc/resolv.conf", os.path.join(ROOT, "etc", "resolv.conf"))
    os.mkdir(os.path.join(ROOT, "dist"))
    subprocess.run(["chroot", ROOT, "useradd", "--create-home", "--shell", "/bin/sh", "tester"], check=True)
    open(os.path.join(FOLDER, "made"), "w").close()


class Machine:
    def __init__(self, folder, dist):
        make_root()
        self.dist = str(dist)
        # Not below a folder that may itself be an overlay.
        self.folder = str(folder)
        for name in ("root", "upper", "work"):
            os.mkdir(os.path.join(self.folder, name))

    def run(self, command, user="root", status=0, **more):
        """A line of sh, in a login-like environment. Returns what it printed, errors too."""
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "enter", self.folder + "/root", ROOT,
                 self.folder + "/upper", self.folder + "/work"]
        home = "/root" if user == "root" else "/home/" + user
        line = ["setpriv", "--reuid", user, "--regid", user, "--init-groups"] if user != "root" else []
        clean = ["env", "-i", "HOME=" + home, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"]
        done = subprocess.run([*enter, *line, *clean, "sh", "-ec", "cd; " + command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env=dict(os.environ, DIST=self.dist), timeout=SECONDS, **more)
        text = done.stdout.decode(errors="replace")
        assert done.returncode == status, "%s\nended with %d:\n%s" % (command, done.returncode, text)
        return text

    def files(self):
        """Paths of what differs from the clean root, without what every command leaves."""
        found = set()
        for folder, _, names in os.walk(os.path.join(self.folder, "upper")):
            found.update(os.path.relpath(os.path.join(folder, name), os.path.join(self.folder, "upper")) for name in names)
        return {name for name in found if not name.startswith(("tmp/", "var/", "etc/ld.so.cache", "root/.cache", "home/tester/.cache"))}

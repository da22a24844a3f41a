"""Attempts from inside a layer to change files outside of it: at once, at a commit, at a discard, and of the layer's own parts."""
import os
import subprocess

import pytest

import support

COW = ["--executor", "sandbox", "--workspace-mode", "cow", "--python", "/usr/bin/python3"]

# What the code does, and what a commit may write; it starts in the workspace, with dir/a, text and link -> text.
ATTEMPTS = {
    "write through a link to the outside": ("os.symlink('../out', 'way'); open('way/made', 'w').write('x')", set()),
    "a folder becomes a link to the outside": ("import shutil; shutil.rmtree('dir'); os.symlink('../out', 'dir')", {"dir/a"}),  # its file is deleted, and no link made
    "a link becomes a folder": ("os.remove('link'); os.mkdir('link'); open('link/made', 'w').write('x')", {"link", "link/made"}),
    "a link of many steps": ("os.makedirs('a/b'); os.symlink('../../../out', 'a/b/c')", {"a", "a/b"}),
    "an absolute link": ("os.symlink('/etc/passwd', 'passwd')", set()),
    "a link within": ("os.symlink('dir/a', 'inner')", {"inner"}),
    "a whiteout by hand": ("import ctypes\nlibc = ctypes.CDLL(None)\nprint(libc.mknod(b'text2', 0o020644, 0))", set()),
    "a device": ("import ctypes\nlibc = ctypes.CDLL(None)\nprint(libc.mknod(b'null', 0o020666, 259))", set()),
    "a fifo and a socket": ("import socket; os.mkfifo('fifo'); s = socket.socket(socket.AF_UNIX); s.bind('sock')", set()),
    "attributes of overlayfs": ("for name in ('opaque', 'redirect', 'metacopy', 'origin', 'whiteout'):\n"
                                "    for path in ('dir', 'text', '.'):\n"
                                "        for prefix in ('user', 'trusted'):\n"
                                "            try: os.setxattr(path, prefix + '.overlay.' + name, b'y')\n"
                                "            except OSError: pass", set()),
    "a set-uid program": ("open('su', 'w').write('#!/bin/sh')\nos.chmod('su', 0o755)\nos.chmod('su', 0o4755)", {"su"}),
    "hard links to a file of the base": ("os.link('text', 'hard'); open('hard', 'a').write('more')", {"hard", "text"}),
    "names like ours": ("open('.workcell-commit-0', 'w').write('x'); os.mkdir('.workcell-restored-0')",
                        {".workcell-commit-0", ".workcell-restored-0"}),
    "a name with a line end": ("open('a\\nb', 'w').write('x')", {"a\\x0ab"}),
    "a hook": ("for act in (lambda: os.makedirs('.git/hooks'), lambda: open('Makefile', 'w'), lambda: os.rename('dir', '.vscode'), lambda: os.symlink('dir', '.git'),\n"
               "            lambda: os.link('text', 'conftest.py')):\n"
               "    try: act(); print('missed')\n"
               "    except PermissionError: print('refused')", set()),
    "the layer's own folder": ("import glob\nprint(glob.glob('/tmp/workcell-layer-*'), glob.glob('/.host*'), glob.glob('/.mapped*'))", set()),
    "a mount over the layer": ("import ctypes\nlibc = ctypes.CDLL(None)\nprint(libc.mount(b'none', %(work)r.encode(), b'tmpfs', 0, None))", set()),
}


def shell(cwd, *cells):
    return subprocess.run([support.BIN, "shell", *COW], cwd=cwd, env=support.host_environment(), capture_output=True, text=True,
                          timeout=support.DEADLINE, input="".join(cell + "\n" for cell in cells))


def tree(folder):
    found = {}
    for at, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(at, name)
            st = os.lstat(path)
            kept = os.readlink(path) if os.path.islink(path) else open(path, "rb").read() if os.path.isfile(path) else None
            found[os.path.relpath(path, folder)] = (st.st_mode, kept)
    return found


@pytest.mark.parametrize("name", list(ATTEMPTS))
def test_attempt(tmp_path, name):
    work, out = tmp_path / "work", tmp_path / "out"
    for folder in (work, out, work / "dir"):
        folder.mkdir()
    (out / "kept").write_text("k")
    (work / "dir" / "a").write_text("a")
    (work / "text").write_text("text")
    (work / "link").symlink_to("text")
    before, outside = tree(work), tree(out)
    code, written = ATTEMPTS[name]
    body = "import os\n" + (code % {"work": str(work)} if "%(work)" in code else code)
    guarded = "try: exec(%r)\nexcept BaseException as error: print('raised', error)" % body
    done = shell(work, "exec(%r)" % guarded, "%diff", "%commit", "print('alive')", "%discard",
                 "%diff")
    assert "alive" in done.stdout, done
    committed = {line[len("committed "):] for line in done.stdout.splitlines() if line.startswith("committed ")}
    assert committed == written, done
    after = tree(work)
    changed = {path for path in set(before) | set(after) if before.get(path) != after.get(path)}
    assert changed <= {path.replace("\\x0a", "\n") for path in written}, (changed, done)
    assert tree(out) == outside
    assert not any(mode & 0o6000 for mode, _ in after.values())
    if name == "a hook":
        assert done.stdout.count("refused") == 5 and "missed" not in done.stdout, done
    if name == "the layer's own folder":
        assert "[] [] []" in done.stdout, done
    if "mknod" in code or "mount" in code:
        assert "-1" in done.stdout, done


def test_racing_links_lead_nowhere(tmp_path):
    """A process flips a folder and a link to the outside while commits and discards go on."""
    work, out = tmp_path / "work", tmp_path / "out"
    work.mkdir()
    out.mkdir()
    flip = ("import os, sys, time\nend = time.time() + 6\nos.symlink('../out', 'other')\nos.mkdir('d'); open('d/made', 'w').write('x')\n"
            "while time.time() < end:\n    os.rename('d', 'tmp'); os.rename('other', 'd'); os.rename('d', 'other'); os.rename('tmp', 'd')\n")
    done = shell(work, "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', %r])" % flip,
                 *["%commit", "%commit d/made"] * 20, "p.wait()")
    assert done.stdout.count("committed") >= 1 or done.stderr, done
    assert os.listdir(out) == [], done

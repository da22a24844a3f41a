"""The pages that a reader copies from: every command on them is run, and its output is the output shown.

A page is run in a folder of its own, in the order of the page:

- a ```console block is a transcript: `$ command`, then what it prints, stdout and stderr together. `...` or `…` in it stands for
  anything. All commands of a page share one bash, so variables, background jobs and `cd` last. On pages that are followed step by step
  (README, getting started, tasks) a command must also exit with 0.
- a block below `<!-- file: NAME -->` is written to NAME.

The ports of a page (PORTS) are replaced by free ones, so that pages can be tested side by side.
"""
import collections
import glob
import os
import re
import shutil
import signal
import subprocess

import pytest

import serving
import spaces
import support

PAGES = ["README.md", "docs/getting-started.md", "docs/ffi.md"] + sorted(os.path.relpath(path, support.ROOT)
                                                          for path in glob.glob(os.path.join(support.ROOT, "docs", "tasks", "*.md")))
# Reference pages with examples, and what their folder holds.
REFERENCE = ["docs/artifacts.md", "docs/branches.md", "docs/deps.md", "docs/namespaces.md", "docs/policy.md", "docs/tools.md", "docs/workflows.md"]
BLOCK = re.compile(r"^(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```", re.M | re.S)
PORTS = re.compile(r"\b(8080|8081|8082|8443)\b")
END = "end-of-command-"


def steps(page):
    """("file", name, text) and ("run", command, expected output), in the page's order."""
    with open(os.path.join(support.ROOT, page), encoding="utf-8") as file:
        text = file.read()
    for block in BLOCK.finditer(text):
        if block["file"]:
            yield "file", block["file"], block["text"]
        elif block["language"] == "console":
            for part in re.split(r"^\$ ", block["text"], flags=re.M)[1:]:
                lines = part.split("\n")
                command = [lines.pop(0)]
                while command[-1].endswith("\\"):
                    command.append(lines.pop(0))
                yield "run", "\n".join(command), "\n".join(lines).rstrip("\n")


def matches(expected, out):
    pattern = re.escape(expected).replace(re.escape("..."), ".*").replace("…", ".*")
    return re.fullmatch(pattern, out, re.S)


class Shell:
    """One bash for a page."""

    def __init__(self, folder, env):
        self.process = support.popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=str(folder),
                                     env=env, start_new_session=True)
        self.count = 0

    def run(self, command):
        """(output, exit status)."""
        self.count += 1
        mark = "%s%d" % (END, self.count)
        self.process.stdin.write(("%s\nprintf '\\n%s %%s\\n' $?\n" % (command, mark)).encode())
        self.process.stdin.flush()
        out = b""
        while True:
            line = self.process.stdout.readline()
            assert line, "the shell ended in %s\n%s" % (command, out.decode())
            if line.startswith(mark.encode()):
                # The line break before the mark is ours.
                return out.decode()[:-1].rstrip("\n"), int(line.split()[1])
            out += line

    def close(self):
        # Servers that a page did not stop, because a command before that failed.
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.stdin.close()
        self.process.wait(support.DEADLINE)
        self.process.stdout.close()


def environment(folder):
    """A reader's machine after `make install` and `pip install .`."""
    build = os.path.dirname(support.BIN)
    programs = folder / "bin"
    programs.mkdir()
    os.symlink(support.BIN, str(programs / "workcell"))
    path = "%s:%s:%s" % (programs, os.path.dirname(support.PYTHON), os.environ.get("PATH", "/usr/bin:/bin"))
    return support.host_environment(PATH=path, PYTHONPATH=os.path.join(build, "python-site"), PKG_CONFIG_PATH=os.path.join(build, "meson-uninstalled"),
                                    LD_LIBRARY_PATH=build, CPATH=os.path.join(support.ROOT, "include"), HOME=str(folder / "home"))


def can_run(page):
    """A Python or C program that is built without sanitizers cannot load a library that has them."""
    return not support.is_asan() or not any(kind == "run" and re.match(r"python3|cc ", what) for kind, what, _ in steps(page))


def prepare(folder):
    shutil.copytree(spaces.EXAMPLE_BASE, str(folder / "base"))
    shutil.copytree(os.path.join(support.ROOT, "examples", "policies"), str(folder / "policies"))
    spaces.write_files(folder, {"poem.txt": "one two\nthree\n"})
    spaces.make_wheel(folder / "wheels", "wc-alpha", "1.0")


def run_page(page, folder, env, exits_with_0):
    ports = collections.defaultdict(serving.free_port)

    def with_ports(text):
        return PORTS.sub(lambda port: str(ports[port[0]]), text)

    todo = [(kind, with_ports(what), with_ports(text)) for kind, what, text in steps(page)]
    assert any(kind == "run" for kind, _, _ in todo), "no command on %s" % page
    shell = Shell(folder, env)
    try:
        for kind, what, text in todo:
            if kind == "file":
                spaces.write_files(folder, {what: text})
                continue
            out, status = shell.run(what)
            assert matches(text, out), "%s\n%s\n--- and not\n%s" % (what, out, text)
            assert status == 0 or not exits_with_0, "%s\nexits with %d" % (what, status)
    finally:
        shell.close()


@pytest.mark.parametrize("page", [page for page in PAGES + REFERENCE if can_run(page)])
def test_page(page, tmp_path, bare_python):
    (tmp_path / "home").mkdir()
    folder = tmp_path / "page"
    folder.mkdir()
    env = environment(tmp_path)
    if page in REFERENCE:
        prepare(folder)
        env["PATH"] = "%s:%s:%s" % (tmp_path / "bin", os.path.dirname(bare_python), os.environ.get("PATH", "/usr/bin:/bin"))
    run_page(page, folder, env, page not in REFERENCE)

"""Several sessions in one program, over the C API.  The scenarios are in library.py, each in a process of its own."""
import os
import re
import subprocess
import sys

import pytest

import support

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = ("library.py", "library_inprocess.py", "library_null.py", "library_json.py")


def scenarios():
    for program in PROGRAMS:
        with open(os.path.join(HERE, program), encoding="utf-8") as source:
            names = re.search(r"^SCENARIOS = \[([^]]*)\]", source.read(), re.M).group(1).replace(",", " ").split()
        yield from ((program, name) for name in names)


@pytest.mark.parametrize("program, name", list(scenarios()), ids=lambda value: value.replace(".py", ""))
def test_scenario(program, name, bare_python):
    env = support.host_environment(WORKCELL_BIN=support.BIN, WORKCELL_BARE_PYTHON=bare_python)
    if support.is_asan():
        # The runtime must come first, and Python's own leaks are not ours to find.
        asan = subprocess.run(["gcc", "-print-file-name=libasan.so"], stdout=subprocess.PIPE, check=True,
                              text=True).stdout
        env.update(LD_PRELOAD=asan.strip(), ASAN_OPTIONS=env["ASAN_OPTIONS"] + ":detect_leaks=0")
    process = support.popen([sys.executable, os.path.join(HERE, program), name], env=env,
                            stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        out, _ = process.communicate(timeout=2 * support.DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
        out = process.communicate()[0] + b"\nhangs"
    text = out.decode("utf-8", "replace")
    assert process.returncode == 0 and text.strip().splitlines()[-1:] == ["ok"], text

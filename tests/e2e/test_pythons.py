"""Every CPython of this machine, with and without IPython, and everything that is not one."""
import os
import stat
import subprocess

import pytest

import support
from support import run_cells

ALL = support.interpreters()
GOOD = [path for path, version in ALL if version >= (3, 9)]
OLD = [path for path, version in ALL if version < (3, 9)]
PYTHON2 = [path for path in ("/root/.pyenv/versions/2.7.18/bin/python", "/usr/bin/python2")
           if os.path.exists(path)]

ANY = object()
# One of each kind; the conformance suite goes into depth on the tests' own version.
TOUR = [
    ("x = 41\nx + 1", 42), ("x", 41),
    ("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 5\nawait f()", 5),
    ("y = !echo shell\ny[0]", "shell"), ("for i in range(2):\n    !echo {i}", None), ("%%bash\necho b", None),
    ("[i async for i in (j async for j in g())] if False else 3", 3), ("%time 1 + 1", 2), ("_", 2),
    ("import ctypes, sqlite3, ssl, json, decimal\nstr(decimal.Decimal('1.5'))", "1.5"),
    ("import os\nprint('a'); r = os.system('echo b'); print('c')", None),
    ("import sys\nlist(sys.version_info[:2])", ANY),
    ("import multiprocessing as mp\nwith mp.get_context('fork').Pool(1) as p:\n    r = p.map(abs, [-1])\nr",
     [1]),
]


def check_tour(python, **options):
    done = run_cells(*[code for code, _ in TOUR], python=python, **options)
    assert done.status == 0, done
    results = done.results
    assert len(results) == len(TOUR)
    for result, (code, want) in zip(results, TOUR):
        assert result["error"] is None, (code, result)
        if want is not ANY:
            assert result["value"] == want, (code, result)
    assert [r["stdout"] for r in results if r["stdout"]][:2] == ["0\n1\n", "b\n"]
    assert "a\nb\nc\n" in [r["stdout"] for r in results]
    return results


def test_there_is_something_to_test():
    assert GOOD


@pytest.mark.parametrize("python", GOOD)
def test_every_cpython(python):
    check_tour(python)


@pytest.mark.parametrize("python", GOOD)
def test_traceback_on_every_cpython(python):
    done = run_cells("def f():\n    return 1 / 0", "def g():\n    return f()", "g()", python=python)
    assert done.status == 1
    traceback = done.results[-1]["error"]["traceback"]
    assert traceback.index("g()") < traceback.index("return f()") < traceback.index("return 1 / 0")
    assert traceback.rstrip().endswith("ZeroDivisionError: division by zero")
    assert "workcell_kernel" not in traceback
    done = run_cells("x = 1\ny = = 2", python=python)
    assert done.result["error"]["type"] == "SyntaxError" and "line 2" in done.result["error"]["traceback"]


@pytest.mark.parametrize("python", GOOD)
def test_the_interpreter_is_the_one_asked_for(python):
    version, prefix = subprocess.run([python, "-c", "import sys; print(sys.version); print(sys.prefix)"],
                                     check=True,
                                     stdout=subprocess.PIPE, text=True).stdout.rsplit("\n", 2)[:2]
    results = run_cells("import sys\n[sys.version, sys.prefix]", "sys.executable", python=python).results
    assert results[0]["value"] == [version, prefix]
    assert os.path.samefile(results[1]["value"], python)


def test_venv_with_ipython(full_python):
    results = check_tour(full_python)
    assert results
    done = run_cells("get_ipython().__class__.__module__.split('.')[0]",
                     "import IPython\nIPython.__version__",
                     "from IPython.display import display, HTML, Markdown\ndisplay(HTML('<i>x</i>'))",
                     "HTML('<b>y</b>')", python=full_python)
    results = done.results
    assert done.status == 0
    assert results[1]["value"] == support.module_version(full_python, "IPython")
    assert results[2]["displays"][0]["text/html"] == "<i>x</i>"
    assert results[3]["mime"]["text/html"] == "<b>y</b>"


def test_venv_sees_its_own_packages(full_python):
    done = run_cells("import sys, numpy\n[sys.prefix, numpy.__version__]", python=full_python)
    prefix = os.path.dirname(os.path.dirname(full_python))
    assert done.result["value"] == [prefix, support.module_version(full_python, "numpy")]


def test_bare_venv_has_nothing_of_ours(bare_python):
    done = run_cells("import importlib.util\n[importlib.util.find_spec(m) is not None for m in ('IPython', 'numpy', 'pip')]",
                     python=bare_python)
    assert done.result["value"] == [False, False, False]


def test_the_environment_is_not_touched(bare_python, tmp_path):
    """Nothing is written below the interpreter, HOME or the working directory."""
    prefix = os.path.dirname(os.path.dirname(bare_python))

    def listing():
        return sorted((os.path.join(where, name),
                       os.stat(os.path.join(where, name), follow_symlinks=False).st_mtime_ns)
                      for where, _, names in os.walk(prefix) for name in names)
    before = listing()
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    done = run_cells("1", "!true", "%pwd", "await __import__('asyncio').sleep(0)", python=bare_python,
                     env=support.host_environment(HOME=str(home)), cwd=str(work))
    assert done.status == 0
    assert listing() == before
    assert list(home.iterdir()) == [] and list(work.iterdir()) == []


def test_ipython_leaves_home_alone(full_python, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    done = run_cells("1", "!true", "%pwd", "get_ipython()", python=full_python,
                     env=support.host_environment(HOME=str(home)),
                     cwd=str(tmp_path))
    assert done.status == 0
    assert list(home.iterdir()) == []


def test_a_wrapper_script_is_fine(tmp_path, bare_python):
    path = tmp_path / "wrapped"
    path.write_text("#!/bin/sh\nexec %s \"$@\"\n" % bare_python)
    path.chmod(0o755)
    assert run_cells("1 + 1", python=str(path)).result["value"] == 2


def test_a_name_is_found_on_the_path(bare_python):
    env = support.host_environment(PATH=os.path.dirname(bare_python) + ":/usr/bin:/bin")
    done = run_cells("import sys\nsys.prefix", python="python3", env=env)
    assert done.result["value"] == os.path.dirname(os.path.dirname(bare_python))


# ---- not an interpreter ------------------------------------------------------------------------------------


def check_unusable(done, *words):
    assert done.error_code == "python_unusable", done
    assert done.status == support.EXIT["python_unusable"] == 1
    for word in words:
        assert word in done.error_message, done


@pytest.mark.parametrize("python",
                         ["/nonexistent/python3", "/bin/true", "/bin/false", "/bin/cat", "/bin/echo",
                          "/bin/sh", "/",
                                    "/etc/passwd", "nosuchpython", ""], ids=lambda p: p or "empty")
def test_what_is_not_python(python):
    done = run_cells("1", flags=["--python", python], python=False)
    if python == "":
        assert done.error_code in ("python_unusable",
                                   "invalid") and done.status == support.EXIT[done.error_code]
    else:
        check_unusable(done, python)


@pytest.mark.parametrize("python", OLD + PYTHON2)
def test_python_that_is_too_old(python):
    check_unusable(run_cells("1", python=python), "3.9")


def test_venv_with_a_dangling_interpreter(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "pyvenv.cfg").write_text("home = /nonexistent/bin\n")
    (tmp_path / "bin" / "python3").symlink_to("/nonexistent/bin/python3.11")
    check_unusable(run_cells("1", python=str(tmp_path / "bin" / "python3")), str(tmp_path))


def test_venv_whose_base_is_gone(tmp_path, bare_python):
    """The interpreter starts, finds no standard library, and says so; what it said is in the message."""
    path = tmp_path / "python3"
    path.write_text("#!/bin/sh\nPYTHONHOME=/nonexistent exec %s -c 1\n" % bare_python)
    path.chmod(0o755)
    check_unusable(run_cells("1", python=str(path)), str(path), "encodings")


def test_interpreter_that_dies_on_the_way(tmp_path, bare_python):
    path = tmp_path / "dies"
    path.write_text("#!/bin/sh\nkill -9 $$\n")
    path.chmod(0o755)
    check_unusable(run_cells("1", python=str(path)))


def test_interpreter_that_may_not_be_executed(tmp_path):
    path = tmp_path / "python3"
    path.write_text("#!/bin/sh\n")
    path.chmod(stat.S_IRUSR)
    check_unusable(run_cells("1", python=str(path)))


def test_interpreter_that_talks_on_stdout(tmp_path, bare_python):
    """Noise on its descriptors is not the protocol."""
    path = tmp_path / "noisy"
    path.write_text("#!/bin/sh\necho noise; echo noise >&2\nexec %s \"$@\"\n" % bare_python)
    path.chmod(0o755)
    done = run_cells("1 + 1", python=str(path))
    assert done.result["value"] == 2


# ---- preload -----------------------------------------------------------------------------------------------


def test_preload(bare_python):
    done = run_cells("import sys\n['decimal' in sys.modules, 'fractions' in sys.modules, 'decimal' in dir()]",
                     flags=["--preload", "decimal,fractions"], python=bare_python)
    assert done.result["value"] == [True, True, False]


def test_preload_of_numpy_and_pandas(full_python):
    done = run_cells("import sys, pandas as pd\n['numpy' in sys.modules, int(pd.Series([1, 2]).sum())]",
                     "import pandas as pd\npd.DataFrame({'a': [1, 2]})", flags=["--preload", "numpy,pandas"],
                     python=full_python)
    results = done.results
    assert results[0]["value"] == [True, 3]
    assert "<table" in results[1]["mime"]["text/html"] and "a" in results[1]["mime"]["text/plain"]
    assert results[1]["value"] is None


@pytest.mark.parametrize("modules", ["nosuchmodule_q", "json,nosuchmodule_q", "not-a-name", "json..tool"])
def test_preload_that_fails(modules, bare_python):
    done = run_cells("1", flags=["--preload", modules], python=bare_python)
    assert done.error_code in ("preload_failed", "invalid"), done
    assert done.status == support.EXIT[done.error_code]
    if "nosuch" in modules:
        assert done.error_code == "preload_failed" and "nosuchmodule_q" in done.error_message


def test_preload_that_exits_or_prints(bare_python):
    done = run_cells("1", flags=["--preload", "this"], python=bare_python)
    assert done.result["stdout"] == "" and done.result["value"] == 1
    done = run_cells("1", flags=["--preload", "antigravity_missing"], python=bare_python)
    assert done.error_code == "preload_failed"


# ---- numbers that must differ ------------------------------------------------------------------------------

DRAWS = ("import random, uuid, secrets, os, tempfile, ssl\n"
         "[random.random(), str(uuid.uuid4()), secrets.token_hex(8), os.urandom(8).hex(), ssl.RAND_bytes(8).hex(),\n"
         " random.SystemRandom().random(), next(tempfile._get_candidate_names())]")


@pytest.mark.parametrize("pool", [0, 2])
def test_random_numbers_differ_between_kernels(drive, bare_python, pool):
    driver = drive("--preload", "random,uuid,secrets,tempfile,ssl", python=bare_python, pool=pool)
    rows = []
    for _ in range(3):
        rows.append(driver.value(DRAWS))
        driver.reset()
    for column in zip(*rows):
        assert len(set(column)) == 3, column


@pytest.mark.parametrize("pool", [0, 2])
def test_numpys_random_numbers_differ_between_kernels(drive, full_python, pool):
    driver = drive("--preload", "numpy", python=full_python, pool=pool)
    rows = []
    for _ in range(3):
        rows.append(driver.value("import numpy\n[float(numpy.random.rand()), float(numpy.random.default_rng().random()), "
                                 "float(numpy.random.RandomState().rand())]"))
        driver.reset()
    for column in zip(*rows):
        assert len(set(column)) == 3, column


def test_a_seed_still_means_the_same(drive, bare_python):
    driver = drive("--preload", "random", python=bare_python)
    first = driver.value("import random\nrandom.seed(5)\nrandom.random()")
    driver.reset()
    assert driver.value("import random\nrandom.seed(5)\nrandom.random()") == first

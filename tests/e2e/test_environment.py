"""What a kernel sees of the world: an explicit environment, its own directory, nothing of the host's."""
import os

import pytest

import support
from support import run_cells


def test_nothing_is_inherited():
    env = support.host_environment(PYTHONPATH="/nonexistent", PYTHONSTARTUP="/nonexistent", PYTHONHOME="",
                                   LD_PRELOAD="",
                                   LD_LIBRARY_PATH="/nonexistent/lib", SECRET_TOKEN="s3cret")
    done = run_cells("import os\ndict(os.environ)", "import sys\n'/nonexistent' in sys.path",
                     "open('/proc/self/environ', 'rb').read().count(b's3cret')",
                     "r = !env\n[l for l in r if 's3cret' in l or 'CANARY' in l]", env=env)
    results = done.results
    assert done.status == 0
    assert set(results[0]["value"]) == {"PATH", "HOME", "LANG"}
    assert [r["value"] for r in results[1:]] == [False, 0, []]


def test_zygote_and_spawner_hold_no_secret(drive):
    """Not even a process that forks kernels carries the host's environment."""
    driver = drive(env=support.host_environment(SECRET_TOKEN="s3cret"))
    kernel = driver.locate()
    for pid in (kernel, driver.zygote):
        with open("/proc/%d/environ" % pid, "rb") as file:
            assert b"s3cret" not in file.read()


def test_env_flag():
    done = run_cells("import os\n[os.environ['A'], os.environ['B'], os.environ['C'], sorted(os.environ)]",
                     "!echo $A",
                     flags=["--env", "A=1", "--env", "B=", "--env", "C=x=y é"])
    assert done.results[0]["value"] == ["1", "", "x=y é", ["A", "B", "C", "HOME", "LANG", "PATH"]]
    assert done.results[1]["stdout"] == "1\n"


def test_env_flag_replaces_the_defaults():
    done = run_cells("import os\n[os.environ['PATH'], os.environ['HOME'], os.path.expanduser('~')]",
                     flags=["--env", "PATH=/bin", "--env", "HOME=/tmp"])
    assert done.result["value"] == ["/bin", "/tmp", "/tmp"]


def test_pythonpath_of_the_session_counts(tmp_path):
    (tmp_path / "wc_own_module.py").write_text("V = 3\n")
    done = run_cells("import wc_own_module\nwc_own_module.V", flags=["--env", "PYTHONPATH=%s" % tmp_path])
    assert done.result["value"] == 3


def test_time_zone_of_the_session_counts():
    done = run_cells("import time\n[time.tzname[0], time.localtime(0).tm_hour]", flags=["--env", "TZ=XYZ-5"])
    assert done.result["value"] == ["XYZ", 5]


def test_cwd_is_the_callers(tmp_path):
    assert run_cells("import os\nos.getcwd()",
                     cwd=str(tmp_path)).result["value"] == os.path.realpath(str(tmp_path))


def test_cwd_flag(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "wc_local.py").write_text("V = 4\n")
    done = run_cells("import os, wc_local\n[os.getcwd(), wc_local.V]", flags=["--cwd", "sub"],
                     cwd=str(tmp_path))
    assert done.result["value"] == [os.path.realpath(str(tmp_path / "sub")), 4]


@pytest.mark.parametrize("pool", [0, 2])
def test_cwd_and_environment_survive_a_reset(drive, tmp_path, pool):
    """A kernel from the pool is forked before it knows whose it will be."""
    driver = drive("--env", "A=1", cwd=str(tmp_path), pool=pool)
    driver.run("import os\nos.chdir('/')\nos.environ['A'] = '2'")
    driver.reset()
    assert driver.value("import os\n[os.getcwd(), os.environ['A']]") == [os.path.realpath(str(tmp_path)), "1"]


def test_cwd_with_odd_characters(tmp_path):
    odd = tmp_path / "a b\n'\"é"
    odd.mkdir()
    assert run_cells("import os\nos.getcwd()",
                     flags=["--cwd", odd]).result["value"] == os.path.realpath(str(odd))


def test_stdin_is_never_the_hosts():
    done = run_cells("import os\n[os.readlink('/proc/self/fd/0'), os.isatty(0), len(os.read(0, 1))]",
                     stdin=b"data")
    assert done.result["value"][1:] == [False, 0]


def test_no_descriptor_of_the_host_reaches_a_kernel(tmp_path):
    secret = open(tmp_path / "secret", "w+b")
    os.set_inheritable(secret.fileno(), True)
    argv = [support.BIN, "run", "--json", "--python", support.bare_python(), "-e",
            "import os\n[os.readlink('/proc/self/fd/' + f) for f in os.listdir('/proc/self/fd') if os.path.lexists('/proc/self/fd/' + f)]",
            "-e", "import subprocess\nsubprocess.run('ls -l /proc/self/fd', shell=True, close_fds=False, stdout=-1).stdout.decode()"]
    process = support.popen(argv, stdout=-1, stderr=-1, env=support.host_environment(),
                            pass_fds=[secret.fileno()])
    out, err = process.communicate(timeout=support.DEADLINE)
    secret.close()
    assert process.returncode == 0, err
    assert "secret" not in out.decode()


def test_exit_handlers_run_and_files_are_flushed(drive, tmp_path):
    for how in ("close", "reset"):
        driver = drive(cwd=str(tmp_path))
        driver.run("import atexit\nf = open('%s-file', 'w')\nn = f.write('buffered')\n"
                   "atexit.register(lambda: open('%s-atexit', 'w').write('ran'))" % (how, how))
        driver.close() if how == "close" else driver.reset()
        assert (tmp_path / (how + "-file")).read_text() == "buffered"
        assert (tmp_path / (how + "-atexit")).read_text() == "ran"


def test_an_exit_handler_that_hangs_does_not_hold_the_close(drive):
    driver = drive()
    driver.run("import atexit, time\nh = atexit.register(time.sleep, 1000)")
    driver.reset()
    assert driver.value("1") == 1
    driver.run("import atexit, time\nh = atexit.register(time.sleep, 1000)")
    driver.close()

"""`workcell run --executor inprocess`: what a person sees who runs code in the program's own process."""
import json
import subprocess

import pytest

import support


def run(*cells, flags=(), python=None, **options):
    return support.run_cells(*cells, flags=["--executor", "inprocess", *flags], python=python, **options)


def test_cells_streams_and_children(full_python):
    """One program, what it prints and nothing else; the streams of children are the session's."""
    done = run("x = 20", "import os, sys, subprocess\nprint('one')\nsubprocess.run(['echo', 'two'])\nos.system('echo three')\n"
               "!echo four\nprint('five', file=sys.stderr)\nx + 1", "import matplotlib.pyplot as plt\nplt.plot([x]);",
               python=full_python)
    first, second, third = done.results
    assert (done.status, done.err) == (0, ""), done
    assert second["value"] == 21 and second["text"] == "one\ntwo\nthree\nfour\nfive\n", second
    assert second["isolation"]["level"] == "none" and second["isolation"]["executor"] == "inprocess"
    assert len(third["displays"]) == 1 and "image/png" in third["displays"][0]


def test_namespaces(tmp_path, bare_python):
    done = run("workflows.create('w', 'def run(n):\\n    return n * 2');workflows.w(n=4)", "artifacts.save('a', [1]);artifacts.load('a')",
               "deps.list()", flags=["--base", str(tmp_path)])
    assert [result["value"] for result in done.results] == [8, [1], []], done
    assert (tmp_path / "workflows" / "w.py").exists()


@pytest.mark.parametrize("flags, words", [(["--env", "A=b"], "environment"), (["--cwd", "/"], "working directory")])
def test_what_a_process_has_one_of_is_refused(flags, words):
    done = run("1", flags=flags)
    assert done.status == support.EXIT["invalid"] and done.error_code == "invalid" and words in done.error_message, done


def test_an_interpreter_without_a_library(tmp_path):
    """What says of itself that it has none, as a Python built without --enable-shared does."""
    script = tmp_path / "python3"
    script.write_text("#!/bin/sh\nprintf '%s\\n' '" + json.dumps(
        {"cpython": True, "version": "3.11.2", "name": "libpython3.11.so.1.0", "library": ""}) + "'\n")
    script.chmod(0o755)
    done = run("1", python=str(script))
    assert done.error_code == "python_unusable" and "--enable-shared" in done.error_message, done
    assert "subprocess" in done.error_message


def test_timeout_and_a_thread_that_will_not_stop(drive):
    driver = drive("--timeout", "0.3", executor="inprocess")
    result = driver.run("x = 1\nwhile True: pass")
    assert (result["error"]["code"], result["state"]) == ("timeout", "kept")
    driver = drive("--timeout", "0.3", executor="inprocess", grace=1)
    driver.run("x = 1")
    result = driver.run("import time\nprint('before')\ntime.sleep(4)\nprint('after')")
    assert (result["error"]["code"], result["state"], result["stdout"]) == ("timeout", "lost", "before\n"), result
    assert "abandoned" in result["error"]["message"]
    assert driver.run("x")["error"]["type"] == "NameError"
    assert driver.value("1 + 1") == 2
    driver.close()
    # Nothing of the abandoned thread came out anywhere.
    assert not driver.events or all("after" not in json.dumps(event) for event in driver.events)


def test_the_end_of_the_process_is_the_end_of_everything():
    """Documented: nothing can keep code from ending the process that it is in."""
    done = run("1", "import os\nos._exit(7)")
    assert done.status == 7 and len(done.results) == 1, done


def test_doctor_lists_it():
    done = support.workcell("doctor", "--json")
    executors = {each["name"]: each for each in json.loads(done.out)["executors"]}
    assert executors["inprocess"]["isolation"] == "none" and executors["inprocess"]["available"], executors


def test_no_libpython_is_linked():
    """It is loaded when it is needed, and only then."""
    linked = subprocess.run(["ldd", support.BIN], stdout=subprocess.PIPE, check=True, text=True).stdout
    assert "workcell" in linked and "libpython" not in linked

"""`workcell bench` runs the benchmark, a program of its own, from beside itself."""

import os
import shutil

import support


def test_the_flags_reach_the_program():
    done = support.workcell("bench", "--only", "nonsense")
    assert done.status == support.EXIT["invalid"] and "--only nonsense: unknown row; choose one of paused-cell, " in done.err, done
    done = support.workcell("bench", "--sessions", "0")
    assert done.status == support.EXIT["invalid"] and "give a number from 1 to" in done.err, done


def test_it_measures():
    done = support.workcell("bench", "--quick", "--no-peer", "--only", "cell", "--python", support.PYTHON)
    assert done.status == 0 and "cell" in done.out, done


def test_where_it_is_not_installed(tmp_path):
    alone = shutil.copy(support.BIN, tmp_path / "workcell")
    library = os.path.dirname(os.path.realpath(support.BIN))
    done = support.workcell("bench", "--help", bin_path=alone, env=support.host_environment(LD_LIBRARY_PATH=library))
    assert (done.status, done.error_code) == (support.EXIT["not_found"], "not_found"), done
    assert "workcell-bench is neither in %s nor in" % tmp_path in done.error_message

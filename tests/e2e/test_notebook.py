"""Notebooks: run as cells, and made of recordings; validated with Jupyter's own package."""
import json

import nbformat
import pytest

import support
from support import workcell

PYTHON = ["--python", support.PYTHON]


def notebook_file(path, *cells, language="python", form=4):
    made = nbformat.v4.new_notebook(metadata={"language_info": {"name": language}})
    made.cells = [nbformat.v4.new_markdown_cell("# title")] + [nbformat.v4.new_code_cell(each) for each in cells]
    nbformat.write(made, str(path))
    text = json.loads(path.read_text())
    text["nbformat"] = form
    path.write_text(json.dumps(text))
    return path


def test_a_notebook_runs_as_cells(tmp_path):
    file = notebook_file(tmp_path / "a.ipynb", "x = 20\nprint('set')", "", "x * 2", "%who_ls")
    done = workcell("run", *PYTHON, "--json", file)
    results = [json.loads(line) for line in done.out.splitlines()]
    assert done.status == 0 and [each["value"] for each in results] == [None, 40, ["x"]]
    assert results[0]["stdout"] == "set\n"


def test_the_first_cell_that_fails_ends_it(tmp_path):
    file = notebook_file(tmp_path / "a.ipynb", "1 / 0", "print('never')")
    done = workcell("run", *PYTHON, file)
    assert done.status == 1 and "never" not in done.out and "ZeroDivisionError" in done.err


@pytest.mark.parametrize("text, code", [
    ("{}", "invalid"), ("no", "invalid"), ('{"nbformat": 3, "worksheets": []}', "unsupported"), ('{"nbformat": 4, "cells": 5}', "unsupported"),
    ('{"nbformat": 4, "cells": [{}]}', "invalid"), ('{"nbformat": 4, "cells": [{"cell_type": "code", "source": 5}]}', "invalid"),
    ('{"nbformat": 4, "cells": [%s]}' % ",".join(['{"cell_type": "raw"}'] * 10001), "limit"),
    ('{"nbformat": 4, "metadata": {"language_info": {"name": "R"}}, "cells": []}', "unsupported"), ("[" * 50000, "invalid"),
], ids=["empty", "text", "format 3", "no cells", "no type", "no source", "too many", "R", "deep"])
def test_what_is_not_a_notebook_is_refused(tmp_path, text, code):
    file = tmp_path / "bad.ipynb"
    file.write_text(text)
    done = workcell("run", *PYTHON, file)
    assert done.status == support.EXIT[code] and done.err.startswith("workcell: %s: " % code), done.err


def test_a_recording_becomes_a_notebook_that_runs_again(tmp_path):
    file, made = tmp_path / "r.jsonl", tmp_path / "made.ipynb"
    cells = ["import sys; print('out'); print('err', file=sys.stderr); 6 * 7",
             "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()",
             "import pandas as pd; pd.DataFrame({'a': [1]})", "1 / 0"]
    done = workcell("run", *PYTHON, "--keep-going", "--record", file, *[part for each in cells for part in ("-e", each)])
    assert done.status == 1
    done = workcell("notebook", file)
    assert done.status == 0, done.err
    assert workcell("notebook", "--out", made, file).out == "" and made.read_text() == done.out
    read = nbformat.read(str(made), as_version=4)
    nbformat.validate(read)
    assert [each.source for each in read.cells] == cells and (read.nbformat, read.nbformat_minor) == (4, 5)
    first, plot, table, failed = [each.outputs for each in read.cells]
    assert [each.get("name", each.output_type) for each in first] == ["stdout", "stderr", "execute_result"]
    assert first[-1].data["text/plain"] == "42" and first[0].text == "out\n"
    assert any("image/png" in each.get("data", {}) for each in plot)
    assert "text/html" in table[-1].data
    assert (failed[-1].output_type, failed[-1].ename, failed[-1].evalue) == ("error", "ZeroDivisionError", "division by zero")
    again = workcell("run", *PYTHON, made)
    assert again.status == 1 and "42" in again.out


def test_a_notebook_of_something_else(tmp_path):
    file = tmp_path / "x.jsonl"
    file.write_text("{}")
    done = workcell("notebook", file)
    assert done.status == support.EXIT["damaged"] and "damaged" in done.err
    assert workcell("notebook").status == 2

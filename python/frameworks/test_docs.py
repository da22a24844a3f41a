"""The examples of docs/frameworks, with scripted models."""
import ast
import inspect
import os
import re

import pytest
from conftest import ROOT, run
from scripted import ELSEWHERE, MODELS

PAGES = os.path.join(ROOT, "docs", "frameworks")


def blocks(page):
    with open(os.path.join(PAGES, page + ".md"), encoding="utf-8") as file:
        return re.findall(r"```python\n(.*?)```", file.read(), re.S)


def test_every_page_has_an_agent():
    assert {name[:-3] for name in os.listdir(PAGES)} - {"README"} == set(MODELS) | ELSEWHERE


@pytest.mark.parametrize("page", sorted(MODELS))
def test_page(page, tmp_path):
    pytest.importorskip(MODELS[page].framework)
    names, check = MODELS[page].make()
    path = tmp_path / "example.py"  # some frameworks read the source of functions
    path.write_text("\n".join(blocks(page)))
    code = compile(path.read_text(), str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names["__name__"] = "example"
    if not code.co_flags & inspect.CO_COROUTINE:
        exec(code, names)
    else:
        run(eval(code, names))
    check(names)

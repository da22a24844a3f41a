"""What users read of the operations of a space is what src/calls/table.c says of them."""
import ast
import json
import os
import re
import subprocess

import pytest

import support

HELP = {
    "tools": {"list": "tools.list", "search": "tools.search", "show": "tools.describe", "call": "tools.call", "check": "tools.problems"},
    "workflows": {"list": "workflows.list", "search": "workflows.search", "show": "workflows.get", "add": "workflows.create",
                  "rm": "workflows.delete"},
    "artifacts": {"list": "artifacts.list", "put": "artifacts.save", "get": "artifacts.load", "rm": "artifacts.delete"},
    "deps": {"list": "deps.list", "add": "deps.add", "rm": "deps.remove", "sync": "deps.sync"},
}
# The methods of these classes are operations by the same name.
KERNEL = {"ns_tools.py": ("ToolsNamespace", "tools"), "ns_workflows.py": ("WorkflowsNamespace", "workflows"),
          "ns_artifacts.py": ("ArtifactsNamespace", "artifacts"), "ns_deps.py": ("DepsNamespace", "deps")}
STREAMED = {"artifacts.save", "artifacts.load"}  # of values, not of bytes: the kernel has its own words


@pytest.fixture(scope="module")
def rows():
    program = os.path.join(os.path.dirname(support.BIN), "operations")
    found = json.loads(subprocess.run([program], check=True, capture_output=True).stdout)["operations"]
    return {row["method"]: row for row in found}


def sentence(row):
    """What it does, without what its answer is: a face has its own for that."""
    return re.split(r", or null|, and returns", row["about"])[0]


@pytest.mark.parametrize("command", sorted(HELP))
def test_help_says_what_the_table_says(rows, command):
    text = support.workcell(command, "--help").out
    for verb, method in HELP[command].items():
        found = re.search(r"^  %s\b.*(?:\n {12,}.*)*" % verb, text, re.M)
        words = " ".join(found.group().split())
        assert sentence(rows[method]) in words, (command, verb, words)


@pytest.mark.parametrize("file", sorted(KERNEL))
def test_docstrings_say_what_the_table_says(rows, file):
    with open(os.path.join(support.ROOT, "kernel", "workcell_kernel", file), encoding="utf-8") as source:
        tree = ast.parse(source.read())
    name, namespace = KERNEL[file]
    made = next(each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name)
    seen = 0
    for function in made.body:
        method = "%s.%s" % (namespace, getattr(function, "name", ""))
        if method not in rows or method in STREAMED:
            continue
        seen += 1
        assert (ast.get_docstring(function) or "").startswith(sentence(rows[method])), method
    assert seen >= 2


def test_the_sdk_knows_every_operation_of_the_host(rows):
    """Typed stubs are made from the same table; that they are fresh is scripts/operations.py --check's to say."""
    with open(os.path.join(support.ROOT, "python", "workcell", "_operations.pyi"), encoding="utf-8") as stubs:
        found = re.findall(r'method: Literal\[\'([a-z_.]+)\'\]', stubs.read())
    assert found == [method for method, row in rows.items() if "host" in row["who"]]

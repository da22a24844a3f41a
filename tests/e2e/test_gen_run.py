"""Generated modules in a session: what their run() sends, and what it makes of the answer."""
import json
import os
import subprocess
import sys

import pytest

import spaces
import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))

import gen  # noqa: E402

ASKED = {"type": "object", "properties": {"method": {"type": "string"}, "path": {"type": "string"}, "body": {"type": "string"}},
         "required": ["method", "body"]}
KIND = {"type": "string", "enum": ["fast", "slow"]}
TOOLS = [
    gen.tool("echo", {"my-field": {"type": "integer"}, "class": {"type": "string"}, "kind": KIND,
                      "limit": {"type": "integer", "default": 10}, "note": {"type": ["string", "null"]}}, ["my-field"], ASKED),
    gen.tool("text"), gen.tool("json"), gen.tool("typed", output={"type": "object", "properties": {"n": {"type": "integer"}},
                                                                   "required": ["n"]}),
    gen.tool("missing"), gen.tool("broken"),
]
YAML = """\
    name: demo
    type: http
    base_url: %s
    endpoints:
      echo:
        method: POST
        path: /echo
        parameters:
          my-field: {type: integer}
          class: {type: string}
          kind: {type: string}
          limit: {type: integer}
          note: {type: string}
      text: {method: GET, path: /text}
      json: {method: GET, path: /json}
      typed: {method: GET, path: /json}
      broken: {method: GET, path: /status/500}
    """


@pytest.fixture(scope="module", params=["pydantic", "standin"])
def session(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("session")
    gen.make(folder, TOOLS)
    gen.make(folder, [gen.tool("t")], "nobody")
    with spaces.WebServer() as web:
        web.payload = {"n": 1}
        spaces.write_files(folder, {"base/tools/demo.yaml": YAML % web.url})
        python = support.PYTHON if request.param == "pydantic" else support.bare_python()
        driver = support.Driver("--base", str(folder / "base"), "--cwd", str(folder), python=python)
        support.shared_drivers.append(driver)
        try:
            uses = spaces.value(driver, "from workcell_kernel import mcpmodels\nmcpmodels.pydantic is not None")
            assert uses == (request.param == "pydantic")
            yield driver, web
        finally:
            support.shared_drivers.remove(driver)
            driver.close()


def test_run(session):
    driver, web = session
    value = spaces.value(driver, """\
        from mcptools.demo.echo import Kind, Params, Result, run
        result = run(Params(my_field=1, class_="c", kind="fast"))
        [type(result) is Result, result.method, result.body, Params(my_field=1, kind="fast").kind is Kind.fast]
        """)
    assert value[:2] == [True, "POST"] and value[3]
    assert json.loads(value[2]) == {"my-field": 1, "class": "c", "kind": "fast", "limit": 10}
    assert web.requests[-1]["path"] == "/echo"


def test_same_as_tools(session):
    driver, _ = session
    assert spaces.value(driver, """\
        from mcptools.demo.echo import Params, run
        run(Params(**{"my-field": 2})).body == tools.demo.echo(**{"my-field": 2, "limit": 10})["body"]
        """) is True


def test_run_async(session):
    driver, _ = session
    bodies = spaces.value(driver, """\
        import asyncio
        from mcptools.demo.echo import Params, run_async
        [r.body for r in await asyncio.gather(*[run_async(Params(my_field=i)) for i in range(20)])]
        """)
    assert [json.loads(body)["my-field"] for body in bodies] == list(range(20))


def test_text(session):
    driver, _ = session
    assert spaces.value(driver, "from mcptools.demo.text import Params, run\nrun(Params())") == "plain \u00e9"
    assert spaces.value(driver, "from mcptools.demo.text import run_async\nawait run_async(Params())") == "plain \u00e9"


def test_text_where_the_tool_answers_with_data(session):
    driver, web = session
    for payload in ({"a": "é"}, [1, 2], None, "plain"):
        web.payload = payload
        text = spaces.value(driver, "from mcptools.demo.json import Params, run\nrun(Params())")
        assert text == {None: "", "plain": "plain"}.get(payload if not isinstance(payload, (dict, list)) else 0,
                                                        json.dumps(payload, ensure_ascii=False))


def test_wrong_answer(session):
    """The tool has run; its answer is not lost."""
    driver, web = session
    web.payload = {"n": "no number"}
    assert spaces.value(driver, """\
        from mcptools.demo.typed import Params, run
        try:
            run(Params())
        except ToolCallError as exc:
            found = [exc.data, "output schema" in str(exc), exc.code]
        found
        """) == [{"n": "no number"}, True, "protocol"]
    web.payload = '{"n": 5}'  # JSON as text: what a server without structured content says
    assert spaces.value(driver, "run(Params()).n") == 5
    web.payload = "no JSON"
    assert "text instead of the declared structured content: no JSON" in spaces.error(driver, "run(Params())")["message"]


def test_errors(session):
    driver, _ = session
    assert spaces.error(driver, "from mcptools.demo.broken import Params, run\nrun(Params())")["type"] == "ToolCallError"
    for code in ("from mcptools.nobody.t import Params, run, run_async\nrun(Params())", "await run_async(Params())"):
        error = spaces.error(driver, code)
        assert error["type"] == "ToolNotFoundError" and error["message"].startswith("Tool 'nobody' not found")
        assert "This module calls the MCP server 'nobody'" in error["message"] and "mcp_servers=" in error["message"]
    assert spaces.error(driver, "from mcptools.demo.missing import Params, run\nrun(Params())")["code"] == "exception"
    assert spaces.error(driver, "from mcptools.demo.echo import Params, run\nrun({'my-field': 1})")["type"] == "TypeError"
    assert spaces.error(driver, "Params(my_field='x')")["type"] == "ValidationError"


def test_nothing_is_sent_that_is_wrong(session):
    driver, web = session
    before = len(web.requests)
    for code in ("Params()", "Params(my_field=1, kind='other')", "Params(my_field=1, typo=2)"):
        spaces.error(driver, "from mcptools.demo.echo import Params, run\nrun(%s)" % code)
    assert len(web.requests) == before


def test_null(session):
    driver, _ = session
    assert spaces.value(driver, """\
        from mcptools.demo.echo import Params
        from workcell_kernel.mcpmodels import plain
        [plain(Params(my_field=1, note=None, class_=None)), plain(Params(my_field=1))]
        """) == [{"my-field": 1, "note": None, "limit": 10}, {"my-field": 1, "limit": 10}]


def test_without_tools(tmp_path):
    gen.make(tmp_path, [gen.tool("t")])
    done = support.run_cells("from mcptools.demo.t import Params, run\nrun(Params())", flags=["--cwd", str(tmp_path)])
    error = done.result["error"]
    assert error["type"] == "RuntimeError" and "'demo'" in error["message"]


def test_outside(tmp_path):
    """Without Workcell the package says what it needs; with its kernel's folder on the path the classes work."""
    gen.make(tmp_path, [gen.tool("t", {"x": {"type": "integer"}})])
    code = "from mcptools.demo.t import Params, run\nprint(Params(x=1).x)\nrun(Params(x=1))"
    argv = [support.PYTHON, "-c", code]
    done = subprocess.run(argv, cwd=str(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", check=False)
    assert done.returncode == 1 and "ImportError: this package calls tools through Workcell" in done.stderr
    done = subprocess.run(argv, cwd=str(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", check=False,
                          env=dict(os.environ, PYTHONPATH=gen.KERNEL))
    assert done.stdout == "1\n" and "RuntimeError: the tools of the MCP server 'demo'" in done.stderr

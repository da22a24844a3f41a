"""Types of results that are learned from results, for tools of MCP servers without an output schema."""
import json
import os
import sys

import pytest

import spaces
import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import peers  # noqa: E402

SECRET = "s3cr3t-value-of-a-result"


@pytest.fixture
def base(tmp_path):
    """A storage whose tools have one server, `s`; its tool `args` answers with its arguments, `echo` with a text."""
    return peers.write_server(tmp_path, "s", **peers.scripted())


def observe(driver, *results):
    for result in results:
        assert driver.value("tools.s.args(**%r)" % (result,)) == result


def stored(base, workspace=None):
    folder = os.path.join(base, "workspaces", workspace) if workspace else base
    with open(os.path.join(folder, ".cache", "tool-results.json"), encoding="utf-8") as file:
        return json.load(file)


def wait_stored(base, condition, **options):
    def look():
        try:
            return condition(stored(base, **options))
        except FileNotFoundError:
            return False
    support.wait_until(look, "the learned type in the storage")


def test_a_result_becomes_a_type(drive, base, tmp_path):
    driver = drive("--base", base, cwd=str(tmp_path))
    learned = "tools.s.args.schema().get('learned')"
    observe(driver, {"id": 1, "title": SECRET}, {"id": 2, "title": "b", "tags": ["x"]})
    assert driver.value(learned) is None
    assert driver.value("tools.s.args.signature()") == "args(**kwargs)" or "->" not in driver.value("tools.s.args.signature()")
    observe(driver, {"id": 3, "title": "c"}, {"id": 4, "title": "d", "tags": []})
    schema = driver.value(learned)
    assert schema == {"type": "object", "required": ["id", "title"], "properties": {
        "id": {"type": "integer"}, "title": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}}}
    assert driver.value("tools.s.args.signature()").endswith(" -> {id: int, title: str, tags?: [str]}")
    found = driver.value("[each for each in tools.search('arguments', limit=1)[0]['callables'] if each['name'] == 'args'][0]['result']")
    assert found == "{id: int, title: str, tags?: [str]}"
    wait_stored(base, lambda book: book["s.args"]["same"] == 3)
    assert SECRET not in json.dumps(stored(base))


def test_another_process_knows_it_and_generates_it(drive, base, tmp_path):
    for number in range(3):
        done = support.workcell("tools", "call", "s.args", "--args", json.dumps({"id": number, "name": "n"}), "--base", base)
        assert done.status == 0, done
    shown = support.workcell("tools", "show", "s", "--base", base)
    assert "{id: int, name: str}" in shown.out
    done = support.workcell("gen", "mcp", "--name", "s", "--base", base, "--out", str(tmp_path / "mcptools"))
    assert done.status == 0, done
    driver = drive("--base", base, cwd=str(tmp_path))
    value = driver.value("from mcptools.s.args import Params, Result, run, run_async\n"
                         "first = run(Params(id=7, name='x'))\nsecond = await run_async(Params(id=8, name='y'))\n"
                         "[type(first) is Result, first.id, second.name]")
    assert value == [True, 7, "y"]
    # Further fields are no failure; a field of another type is one, and what the tool said is not lost.
    assert driver.value("run(Params(id=9, name='z', more=[1])).model_extra") == {"more": [1]}
    failed = driver.value("try:\n    run(Params(id=[], name='x'))\nexcept ToolCallError as error:\n    found = [error.code, str(error), error.data]\nfound")
    assert failed[0] == "protocol" and "another shape than before; run `workcell gen mcp` again" in failed[1]
    assert failed[2] == {"id": [], "name": "x"}
    # JSON in text is the same; a tool whose results were not seen answers with text.
    assert driver.value("from mcptools.s.echo import Params, run\ntype(run(Params(text='hello'))).__name__") == "str"


def test_drift_is_reported(drive, base):
    driver = drive("--base", base)
    observe(driver, *[{"id": number} for number in range(3)])
    driver.start("tools.s.args(id='%s')" % SECRET)
    log = driver.next_event(lambda event: event["event"] == "tool_log")
    assert log["tool"] == "s" and log["params"]["level"] == "warning"
    assert log["params"]["data"] == "the results of tools.s.args have changed: result.id: int became str | int"
    driver.answer()
    assert driver.value("tools.s.args.schema()['learned']['properties']") == {"id": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}
    wait_stored(base, lambda book: book["s.args"].get("drifts") == 1)
    listed = support.workcell("tools", "list", "--base", base)
    assert "result.id: int became str | int" in listed.out
    assert SECRET not in listed.out and SECRET not in json.dumps(stored(base))


def test_a_declared_schema_is_not_learned(drive, tmp_path):
    base = peers.write_server(tmp_path, "s", **peers.scripted("output_schema"))
    driver = drive("--base", base)
    for number in range(4):
        driver.value("tools.s.structured()")
    assert "learned" not in driver.value("tools.s.structured.schema()")
    assert not os.path.exists(os.path.join(base, ".cache", "tool-results.json"))


def test_text_stays_text(drive, base):
    driver = drive("--base", base)
    for text in ("plain", "[not JSON", "12", "{", "%s" % ("[" * 3000)):
        assert driver.value("tools.s.echo(text=%r)" % text) == text
    assert "->" not in driver.value("tools.s.echo.signature()")
    # Now and then JSON: a caller cannot tell one from the other, so there is no type.
    for _ in range(4):
        driver.value("tools.s.echo(text='{\"a\": 1}')")
    assert "learned" not in driver.value("tools.s.echo.schema()")


def test_json_in_text(drive, base, tmp_path):
    driver = drive("--base", base, cwd=str(tmp_path))
    for number in range(3):
        driver.value("tools.s.echo(text='%s')" % json.dumps([{"n": number, "of": None}]))
    assert driver.value("tools.s.echo.signature()").endswith(" -> [{n: int, of: None}]")
    wait_stored(base, lambda book: book["s.echo"]["same"] == 3)
    assert support.workcell("gen", "mcp", "--name", "s", "--base", base, "--out", str(tmp_path / "mcptools")).status == 0
    assert driver.value("from mcptools.s.echo import Params, run\nrun(Params(text='[{\"n\": 5, \"of\": null}]')).root[0].n") == 5


@pytest.mark.parametrize("result", [
    {"x; import os": 1}, {"a\nb": 1}, {"alice@example.com": 1}, {"\u202egnp": 1}, {"k" * 500: 1}, {"a1b2c3d4e5f6": 1},
    {"field%d" % number: number for number in range(65)}], ids=["code", "line", "mail", "bidi", "long", "id", "many"])
def test_names_that_may_be_values_are_not_kept(drive, base, tmp_path, result):
    driver = drive("--base", base)
    observe(driver, *[{"map": result, "class": 1, "_private": 2, "model_dump": 3, "my-field": 4}] * 3)
    schema = driver.value("tools.s.args.schema()['learned']['properties']")
    assert schema["map"] == {"type": "object", "additionalProperties": {"type": "integer"}}
    wait_stored(base, lambda book: book["s.args"]["same"] == 3)
    assert not any(name in json.dumps(stored(base)) for name in result)
    # Keywords and names of the model's own methods: a module that can be imported and that finds the fields.
    assert support.workcell("gen", "mcp", "--name", "s", "--base", base, "--out", str(tmp_path / "mcptools")).status == 0
    with open(str(tmp_path / "mcptools" / "s" / "args.py"), encoding="utf-8") as file:
        text = file.read()
    assert not any(name in text for name in result)
    driver = drive("--base", base, cwd=str(tmp_path))
    code = ("from mcptools.s.args import Params, run\nrun(Params.model_validate(%r)).model_dump(by_alias=True)"
            % {"map": {"q": 5}, "class": 1, "_private": 2, "model_dump": 3, "my-field": 4})
    assert driver.value(code) == {"map": {"q": 5}, "class": 1, "_private": 2, "model_dump": 3, "my-field": 4}


def test_huge_and_deep_results_are_bounded(drive, base):
    driver = drive("--base", base)
    deep = 1
    for _ in range(60):
        deep = {"next": deep}
    for result in (deep, {"rows": [{"f%d" % (n % 90): [n] * 50} for n in range(300)]}, {"text": "x" * 400000}):
        assert driver.value("tools.s.args(**%r)" % (result,)) == result
    wait_stored(base, lambda book: "s.args" in book)
    assert len(json.dumps(stored(base))) < 20000


def test_a_damaged_store_is_learned_again(drive, base):
    bad = {"s.args": {"shape": {"type": "object", "properties": {"x; import os": {}}, "required": []}, "same": 3}}
    for text in ("{", "[]", json.dumps(bad), "x" * 100):
        os.makedirs(os.path.join(base, ".cache"), exist_ok=True)
        with open(os.path.join(base, ".cache", "tool-results.json"), "w", encoding="utf-8") as file:
            file.write(text)
        driver = drive("--base", base)
        assert driver.value("'learned' in tools.s.args.schema()") is False
        observe(driver, *[{"id": number} for number in range(3)])
        assert driver.value("tools.s.args.schema()['learned']['required']") == ["id"]
        driver.close()


def test_workspaces_do_not_teach_each_other(drive, base):
    first = drive("--base", base, "--workspace", "alice")
    observe(first, *[{"alice": number} for number in range(3)])
    wait_stored(base, lambda book: book["s.args"]["same"] == 3, workspace="alice")
    first.close()
    second = drive("--base", base, "--workspace", "bob")
    assert "learned" not in second.value("tools.s.args.schema()")


def test_redis(drive, redis, base, tmp_path):
    storage = ("--storage", redis.url(tmp_path.name), "--tools", os.path.join(base, "tools"))
    for number in range(3):
        done = support.workcell("tools", "call", "s.args", "--args", json.dumps({"id": number, "name": SECRET}), *storage)
        assert done.status == 0, done
    driver = drive(*storage)
    assert driver.value("tools.s.args.schema()['learned']['required']") == ["id", "name"]
    done = support.workcell("gen", "mcp", "--name", "s", *storage, "--out", str(tmp_path / "mcptools"))
    assert done.status == 0, done
    with open(str(tmp_path / "mcptools" / "s" / "args.py"), encoding="utf-8") as file:
        text = file.read()
    assert "class Result" in text and SECRET not in text

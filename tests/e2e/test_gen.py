"""workcell gen mcp: what is made of a list of tools, and how its classes behave, with pydantic and without."""
import ast
import json
import os
import subprocess
import sys

import pytest

import support

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))

import gen  # noqa: E402
import wild  # noqa: E402

OBJECT = {"type": "object"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Every corpus in one folder: {name: report}."""
    folder = tmp_path_factory.mktemp("corpus")
    reports = {name: gen.make(folder, gen.listing(name), name) for name in gen.SERVERS + ("features",)}
    reports["hostile"] = gen.make(folder, gen.listing("hostile"), "hostile", problems=11)
    return folder, reports


def modules(reports):
    return ["mcptools.%s.%s" % (report["package"], entry["module"]) for report in reports.values()
            for entry in report["tools"]]


# ---- all of it ---------------------------------------------------------------------------------------------


def test_every_corpus_imports(corpus):
    folder, reports = corpus
    gen.ask_both(folder, [{"import": modules(reports)}])
    assert not os.path.exists("/tmp/workcell-hostile")


def test_every_interpreter(corpus):
    folder, reports = corpus
    jobs = [{"import": modules(reports)}, {"module": "mcptools.features.defaults", "class": "Params", "inputs": [{}]}]
    answers = [gen.ask(folder, jobs, python, standin=True)[1] for python in gen.modern()]
    assert len(answers) >= 2 and all(answer == answers[0] for answer in answers)
    code = ("import ast, os, sys\nfor at, _, names in os.walk(sys.argv[1]):\n for n in names:\n"
            "  if n.endswith('.py'): compile(open(os.path.join(at, n), encoding='utf-8').read(), n, 'exec')")
    for python in gen.modern():
        subprocess.run([python, "-W", "error", "-c", code, str(folder)], check=True, timeout=300)


def test_type_checks(corpus, tmp_path):
    folder, _ = corpus
    user = tmp_path / "user.py"
    user.write_text("from mcptools.everything.get_structured_content import Location, Params, Result, run\n"
                    "from mcptools.memory.create_relations import Params as Many, Relation\n"
                    "result: Result = run(Params(location=Location.New_York))\n"
                    "number: float = result.temperature\n"
                    "Many(relations=[Relation(from_='a', to='b', relationType='c')])\n"
                    "async def main() -> None:\n"
                    "    from mcptools.everything.echo import Params, run_async\n"
                    "    text: str = await run_async(Params(message='x'))\n")

    def mypy(*paths):
        return subprocess.run([support.PYTHON, "-m", "mypy", "--strict", "--namespace-packages", "--explicit-package-bases",
                               "--cache-dir", str(tmp_path / "cache"), *paths], cwd=str(folder), stdout=subprocess.PIPE,
                              env=dict(os.environ, MYPYPATH=str(folder)), encoding="utf-8", timeout=600, check=False)

    done = mypy("mcptools", str(user))
    assert done.returncode == 0, done.stdout
    user.write_text("from mcptools.everything.get_sum import Params\nParams(a=1, b='x')\nParams(a=1)\nParams(a=1, b=2, c=3)\n")
    done = mypy(str(user))
    assert done.stdout.count("error:") == 3, done.stdout


def test_random_schemas(tmp_path):
    """Whatever the schema, a module; whatever the value, the same outcome on both sides."""
    for seed in range(6):
        listing = wild.tools(seed, 25)
        folder = tmp_path / str(seed)
        report = gen.make(folder, listing)
        jobs = [{"module": "mcptools.demo." + entry["module"], "class": cls, "inputs": wild.inputs(seed, tool[key], 10)}
                for tool, entry in zip(listing["tools"], report["tools"])
                for cls, key in (("Params", "inputSchema"), ("Result", "outputSchema")) if isinstance(tool.get(key), dict)]
        answers = gen.ask_both(folder, jobs)
        fits = [("plain" in one) for answer in answers for one in answer]
        assert fits.count(True) > 30 and fits.count(False) > 30
    for seed in range(6, 60):
        gen.make(tmp_path / str(seed), wild.tools(seed, 25))


def test_same_bytes(tmp_path):
    listings = [gen.listing("features"), wild.tools(7, 20)]
    for number, listing in enumerate(listings):
        texts = []
        for again, env in enumerate(({}, {"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8", "TZ": "Asia/Tokyo"})):
            folder = tmp_path / ("%d-%d" % (number, again))
            done = gen.gen(folder, listing, env=support.host_environment(**env))
            report = json.loads(done.out)
            texts.append(sorted(gen.sources(folder, report).items()))
        assert texts[0] == texts[1] == texts[2]


def test_hostile_json(tmp_path):
    """Text that a JSON parser refuses as a whole costs only the values at fault."""
    text = """{"jsonrpc": "2.0", "id": 1, "result": {"tools": [
        {"name": "nan", "inputSchema": {"type": "object", "properties": {"x": {"type": "number", "default": NaN,
            "minimum": -Infinity, "maximum": 1e999, "exclusiveMaximum": 123456789012345678901234567890}}}},
        {"name": "half \\ud800", "description": "\\udc00 x \\ud83d\\ude00", "inputSchema": {"type": "object",
            "properties": {"\\ud800": {"type": "string"}, "a\\u0000b": {"type": "string"}}}},
        {"name": "huge", "inputSchema": {"type": "object", "properties": {"x": {"type": "integer", "default": %s,
            "minimum": -99999999999999999999, "enum": [1, 36893488147419103232]}}}},
        {"name": "deep", "inputSchema": {"type": "object", "properties": {"x": %s}}},
        {"name": "deeper", "inputSchema": {"type": "object", "properties": {"x": {"const": %s}}}},
        {"name": "fine", "inputSchema": {"type": "object", "properties": {"x": {"type": "integer", "default": 2}}}}
        ]}}""" % ("9" * 5000, '{"type": "array", "items": ' * 3000 + "{}" + "}" * 3000, "[" * 5000 + "]" * 5000)
    report = gen.make(tmp_path, text)
    assert [entry["module"] for entry in report["tools"]] == ["nan", "half__", "huge", "deep", "deeper", "fine"]
    assert gen.outcomes(tmp_path, "fine", [{}]) == [{"x": 2}]
    assert gen.outcomes(tmp_path, "nan", [{"x": 5}, {}]) == [{"x": 5}, {}]
    gen.ask_both(tmp_path, [{"import": ["mcptools.demo." + entry["module"] for entry in report["tools"]]}])
    for bad in ("", "{", "[1", "nul", '{"tools": 5}', '{"tools": [}', "\xff", '{"result": {}}', '"tools"', "\0",
                '{"tools": []}\0'):
        done = gen.gen(tmp_path, bad.encode("latin-1"), "other")
        assert (done.status, done.error_code) == (support.EXIT["invalid"], "invalid"), bad
    assert not os.path.exists(tmp_path / "mcptools" / "other")


def test_too_much(tmp_path):
    many = {"p%d" % number: {"type": "integer", "default": number} for number in range(10000)}
    wide = {"anyOf": [{"type": "object", "properties": {"k%d" % number: {"type": "string"}}} for number in range(3000)]}
    chain = {"d%d" % number: {"anyOf": [{"$ref": "#/$defs/d%d" % (number + 1)}] * 2 + [
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/d%d" % (number + 1)}}}]} for number in range(500)}
    tools = [
        gen.tool("properties", many), gen.tool("fields", dict(list(many.items())[:4096])), gen.tool("wide", {"x": wide}),
        gen.tool("enum", {"x": {"enum": ["v%d" % number for number in range(5000)]}}),
        gen.tool("chain", {"x": {"$ref": "#/$defs/d0"}}, **{"$defs": chain}),
        gen.tool("description", {"x": {"type": "string", "description": "word " * 100000}}),
        gen.tool("same", {"\u202e" * (number + 1): {"type": "string"} for number in range(500)}),
        gen.tool("default", {"x": {"type": "array", "default": list(range(100000))}}),
        gen.tool("huge", {"x%d" % number: {"type": "string", "default": "v" * 100000} for number in range(200)}),
    ]
    done = gen.gen(tmp_path, tools)
    report = json.loads(done.out)
    assert "error" not in report, report
    assert [problem["tool"] for problem in report["problems"]] == ["huge"] and done.status == 1
    texts = gen.sources(tmp_path, report)
    for name, text in texts.items():
        gen.judge(name, text)
    assert "p9999" not in texts["properties"] and "p4095" in texts["fields"]
    assert len(texts["description"]) < 30000
    gen.ask(tmp_path, [{"import": ["mcptools.demo." + name for name in texts]}], standin=True)
    assert gen.outcomes(tmp_path, "properties", [{"p1": 1}]) == [{"p1": 1}]
    done = gen.gen(tmp_path, [gen.tool("t%d" % number) for number in range(4097)], "many")
    assert done.error_code == "limit"


# ---- what the classes do -----------------------------------------------------------------------------------


def test_features(corpus):
    """What each class sends for a value, or the first thing it has against it."""
    folder, _ = corpus
    jobs, expected = [], []

    def expect(module, pairs, cls="Params"):
        jobs.append({"module": "mcptools.features." + module, "class": cls, "inputs": [value for value, _ in pairs]})
        expected.append([outcome for _, outcome in pairs])

    all_formats = {"at": "2024-01-02T03:04:05Z", "day": "2024-01-02", "hour": "10:20:30", "v4": "127.0.0.1", "v6": "::1",
                   "id": "5f6b1c3e-1c2d-4e5f-8a9b-0c1d2e3f4a5b", "lasts": "P1M"}
    tree = {"value": 1, "children": [{"value": 2, "children": [{"value": 3}]}]}
    value = {"a": [1, "x", None, {"b": True}]}
    expect("optional", [
        ({"required_nullable": None, "default_and_required": 1},
         {"required_nullable": None, "default_and_required": 1, "with_default": 3}),
        ({"required_nullable": "x", "default_and_required": 1, "nullable": None, "plain": None, "openapi": None},
         {"required_nullable": "x", "default_and_required": 1, "with_default": 3, "nullable": None, "openapi": None}),
        ({"required_nullable": "x"}, "missing"),
    ])
    expect("defaults", [
        ({},
         {"text": "a\"b\\c\n", "many": ["x"], "empty": [], "mapping": {"k": [1, None, True, 2.5]}, "color": "green",
          "when": "2024-02-03", "inner": {"x": 1, "y": 2}, "either": 5, "number": 3}),
    ])
    expect("numbers", [
        ({"range": 0}, "greater_than_equal"),
        ({"range": 10}, {"range": 10}),
        ({"open": 0}, "greater_than"),
        ({"open": 0.5}, {"open": 0.5}),
        ({"old": 0}, "greater_than"),
        ({"step": 7}, "multiple_of"),
        ({"step": 10}, {"step": 10}),
        ({"tenth": 0.3}, {"tenth": 0.3}),
        ({"tenth": 0.35}, "multiple_of"),
        ({"fraction": 1}, "greater_than_equal"),
        ({"fraction": 2}, {"fraction": 2}),
        ({"fraction": 4}, "less_than_equal"),
    ])
    expect("texts", [
        ({"length": "a"}, "string_too_short"),
        ({"length": "üüüü"}, {"length": "üüüü"}),
        ({"length": "aaaaa"}, "string_too_long"),
        ({"pattern": "a1"}, "value_error"),
        ({"pattern": "ab"}, {"pattern": "ab"}),
        ({"foreign_pattern": "1"}, {"foreign_pattern": "1"}),
        ({"named_group": "x"}, "value_error"),
        ({"named_group": "1999"}, {"named_group": "1999"}),
        ({"password": "p"}, {"password": "p"}),
        ({"uri": "http://example.com"}, {"uri": "http://example.com"}),
    ])
    expect("formats", [
        (all_formats, all_formats),
        ({"at": "2024-01-02T03:04:05.5+02:00"}, {"at": "2024-01-02T03:04:05.500000+02:00"}),
        ({"at": "soon"}, "datetime_from_date_parsing"),
        ({"day": "2024-02-30"}, "date_from_datetime_parsing"),
        ({"id": "x"}, "uuid_parsing"),
        ({"v4": "1.2.3"}, "ip_v4_address"),
        ({"v6": "x"}, "ip_v6_address"),
        ({"hour": "25:00"}, "time_parsing"),
    ])
    expect("arrays", [
        ({"numbers": []}, "too_short"),
        ({"numbers": [1, 2.5]}, {"numbers": [1, 2.5]}),
        ({"unique": [1, 1.0]}, "value_error"),
        ({"unique": [1, True, "1"]}, {"unique": [1, True, "1"]}),
        ({"unique": [{"a": 1}, {"a": 1}]}, "value_error"),
        ({"pair": ["a", 1]}, {"pair": ["a", 1]}),
        ({"pair": ["a"]}, "missing"),
        ({"pair": ["a", 1, 2]}, "too_long"),
        ({"old_pair": ["a", 1]}, {"old_pair": ["a", 1]}),
        ({"loose": []}, {"loose": []}),
        ({"nested": [[1], ["x"]]}, "int_parsing"),
    ])
    expect("enums", [
        ({"word": "New York"}, {"word": "New York"}),
        ({"word": "x"}, "enum"),
        ({"number": -1}, {"number": -1}),
        ({"number": 5}, "enum"),
        ({"mixed": 1}, {"mixed": 1}),
        ({"mixed": None}, {"mixed": None}),
        ({"mixed": "b"}, "literal_error"),
        ({"one": "only"}, {"one": "only"}),
        ({"one": "other"}, "literal_error"),
        ({"truth": True}, {"truth": True}),
        ({"truth": 1}, {"truth": 1}),
        ({"truth": 2}, "value_error"),
        ({"real": 0.5}, {"real": 0.5}),
        ({"real": 1}, "value_error"),
        ({"things": [1]}, {"things": [1]}),
        ({"things": [2]}, "value_error"),
        ({"none": None}, {"none": None}),
    ])
    expect("consts", [
        ({"text": "v", "real": 1.5, "thing": {"a": [1]}, "null": None},
         {"text": "v", "real": 1.5, "thing": {"a": [1]}, "null": None}),
        ({"text": "w"}, "literal_error"),
        ({"text": "v", "real": 2.5}, "value_error"),
        ({"text": "v", "thing": {"a": [2]}}, "value_error"),
    ])
    expect("objects", [
        ({"nested": {"deep": {"x": 1}}}, {"nested": {"deep": {"x": 1}}}),
        ({"nested": {"deep": {}}}, "missing"),
        ({"mapping": {"a": 1}}, {"mapping": {"a": 1}}),
        ({"mapping": {"a": "x"}}, "int_parsing"),
        ({"by_pattern": {"x": 1}}, "string_type"),
        ({"closed": {"a": "1", "b": 2}}, "extra_forbidden"),
        ({"open": {"a": "1", "b": 2}}, {"open": {"a": "1", "b": 2}}),
        ({"sized": {}}, "too_short"),
        ({"unknown": 1}, "extra_forbidden"),
    ])
    expect("unions", [
        ({"either": 1}, {"either": 1}),
        ({"either": "1"}, {"either": "1"}),
        ({"either": []}, "string_type"),
        ({"one": {"kind": "dog", "breed": "x"}}, {"one": {"kind": "dog", "breed": "x"}}),
        ({"one": {"kind": "cow"}}, "literal_error"),
        ({"types": None}, {"types": None}),
        ({"shared": {"id": "i", "b": "y"}}, {"shared": {"id": "i", "b": "y"}}),
        ({"shared": {"b": "y"}}, "missing"),
        ({"hint": {"b": "1"}}, {"hint": {"b": "1"}}),
    ])
    expect("references", [
        ({"point": {"x": 1, "y": 2}, "color": "red", "odd": "o", "chain": {"x": 1, "y": 1}},
         {"point": {"x": 1, "y": 2}, "color": "red", "wrapped": {"x": 1, "y": 2}, "odd": "o", "chain": {"x": 1, "y": 1}}),
    ])
    expect("recursive", [
        ({"tree": tree, "json": value, "a": {"b": {"a": {}}}}, {"tree": tree, "json": value, "a": {"b": {"a": {}}}}),
        ({"tree": {"value": 1, "children": [{}]}}, "missing"),
    ])
    expect("all_of", [
        ({"both": {"a": "xx", "b": 1}}, {"both": {"a": "xx", "b": 1}}),
        ({"both": {"a": "x", "b": 1}}, "string_too_short"),
        ({"both": {"a": "xx"}}, "missing"),
        ({"narrow": 5}, {"narrow": 5}),
        ({"narrow": 6}, "less_than_equal"),
        ({"narrow": 1.5}, "int_from_float"),
    ])
    expect("top_ref", [
        ({"x": 1, "more": {"x": 2}}, {"x": 1, "more": {"x": 2}}),
    ])
    expect("top_union", [
        ({"name": "n"}, {"name": "n"}),
        ({"id": 1}, {"id": 1}),
        ({}, "missing"),
    ])
    expect("top_map", [
        ({"a": 1}, {"a": 1}),
        ({"a": "x"}, "int_parsing"),
    ])
    expect("top_free", [
        ({"any": [1]}, {"any": [1]}),
    ])
    expect("no_schema", [
        ({"any": [1]}, {"any": [1]}),
    ])
    expect("output_text", cls="Result", pairs=[
        ("plain", "plain"),
    ])
    expect("top_ref", cls="Result", pairs=[
        ([1, 2], [1, 2]),
        (["x"], "int_parsing"),
    ])
    for job, wanted, answers in zip(jobs, expected, gen.ask_both(folder, jobs)):
        assert [gen.brief(answer) for answer in answers] == wanted, job["module"]


def test_names(corpus):
    folder, _ = corpus
    properties = gen.listing("features")["tools"]
    properties = next(tool for tool in properties if tool["name"] == "names")["inputSchema"]["properties"]
    value = {name: "2024-01-02" if name == "date" else "u" if name == "Kind" else 1 if name == "int" else "v"
             for name in properties}
    assert gen.outcomes(folder, "names", [value], package="features") == [value]
    text = (folder / "mcptools" / "features" / "names.py").read_text(encoding="utf-8")
    cls = next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == "Params")
    fields = [node.target.id for node in cls.body if isinstance(node, ast.AnnAssign)]
    assert dict(zip(properties, fields)) == {
        "my-field": "my_field", "class": "class_", "from": "from_", "@id": "field_id", "$ref ": "field_ref_",
        "_private": "field_private", "1st": "field_1st", "int": "int_", "str": "str_", "Optional": "Optional_", "List": "List_",
        "date": "date", "schema": "schema_", "json": "json_", "copy": "copy_", "model_name": "model_name",
        "model_dump": "model_dump_", "self": "self", "": "field_", "a b": "a_b_1", "a_b": "a_b", "a-b": "a_b_2", "über": "über",
        "城市": "城市", "ﬁle": "field_le", "x.y": "x_y", "__init__": "field__init__", "None": "None_", "Params": "Params_",
        "Kind": "Kind_"}


def class_names(folder, package, module):
    text = (folder / "mcptools" / package / (module + ".py")).read_text(encoding="utf-8")
    return [node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]


def test_class_names(corpus):
    folder, _ = corpus
    assert class_names(folder, "features", "class_names") == [
        "Params1", "Result1", "FieldModel", "NoneModel", "BaseModelModel", "Field1abc", "N", "Kind", "Kind1", "Entity", "Address",
        "Child", "Params", "ResultParams", "ResultEntity", "Result"]
    assert class_names(folder, "features", "params_def") == ["Params1", "Params"]
    assert class_names(folder, "features", "references") == ["Point", "Color", "Params"]
    assert class_names(folder, "features", "recursive") == ["Node", "Json", "B", "A", "Params"]


def test_module_names(corpus):
    _, reports = corpus
    names = {entry["name"]: entry["module"] for entry in reports["hostile"]["tools"]}
    for name, module in {
            "__init__": "tool__init__", "__main__": "tool__main__", "_api": "_api_1", "import": "import_", "None": "none",
            "1num": "tool_1num", "dup": "dup", "Dup": "dup_2", "DUP": "dup_3", "dup_1": "dup_1", "..": "tool__", ".": "tool_",
            "../../../tmp/workcell-hostile": "tool_________tmp_workcell_hostile", "ünï": "_n_", "a.b": "a_b_5", "class": "class_",
            "a b": "a_b_6", "~": "tool__1", "_": "tool__2", "__": "tool___1", "-rf": "_rf"}.items():
        assert names[name] == module, name
    assert len(set(names.values())) == len(names)
    for server in gen.SERVERS:
        for entry in reports[server]["tools"]:
            assert entry["module"] == entry["name"].replace("-", "_")


def test_docstrings(tmp_path):
    text = 'Says "hello".\r\n\r\n\tIndented \\ and """more""" \u202e end"'
    gen.make(tmp_path, [dict(gen.tool("t", {"x": {"type": "string", "description": text}}, description=text), description=text)])
    tree = ast.parse((tmp_path / "mcptools" / "demo" / "t.py").read_text(encoding="utf-8"))
    seen = 'Says "hello".\n\n        Indented \\ and """more""" \u202e end"'
    params = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    functions = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for value in (ast.get_docstring(functions[0], False), ast.get_docstring(params, False), params.body[-1].value.value):
        assert value.rstrip() == seen


def test_async(tmp_path):
    tools = [gen.tool("t", output=OBJECT)]
    gen.make(tmp_path / "plain", tools)
    gen.make(tmp_path / "async", tools, flags=["--async"])

    def functions(name):
        tree = ast.parse((tmp_path / name / "mcptools" / "demo" / "t.py").read_text(encoding="utf-8"))
        return [(type(node).__name__, node.name) for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]

    assert functions("plain") == [("FunctionDef", "run"), ("AsyncFunctionDef", "run_async")]
    assert functions("async") == [("AsyncFunctionDef", "run"), ("FunctionDef", "run_sync")]


# ---- defects that other generators have --------------------------------------------------------------------


def test_g1_g2_names_of_the_server(tmp_path):
    """Sent as the server spells them; given by either name."""
    gen.make(tmp_path, [gen.tool("t", {"my-field": {"type": "integer"}, "class": {"type": "string"}, "@id": {"type": "string"}},
                                 ["my-field"])])
    given = [{"my-field": 1, "class": "c", "@id": "i"}, {"my_field": 1, "class_": "c", "field_id": "i"}]
    assert gen.outcomes(tmp_path, "t", given) == [given[0], given[0]]
    assert gen.outcomes(tmp_path, "t", [{"my_feild": 1}, {"my-field": 1, "clas": "x"}]) == ["missing", "extra_forbidden"]


def test_g3_g4_descriptions_and_patterns(tmp_path):
    """gen.judge() has the last word: nothing of them is anything but a constant."""
    texts = ['"""', '"""\nimport os\nos.mkdir("%s")\n"""' % (tmp_path / "made"), "\\", 'ends with "', "'", '"', "\\\"\"\"", "a\\"]
    tools = [gen.tool("t%d" % number, {"x": {"type": "string", "description": text, "pattern": text}, "y": {"description": text}})
             for number, text in enumerate(texts)]
    report = gen.make(tmp_path, tools)
    gen.ask_both(tmp_path, [{"import": ["mcptools.demo." + entry["module"] for entry in report["tools"]]}])
    assert not (tmp_path / "made").exists()
    assert gen.outcomes(tmp_path, "t5", [{"x": 'a"b'}, {"x": "ab"}]) == [{"x": 'a"b'}, "value_error"]


def test_g5_password(tmp_path):
    gen.make(tmp_path, [gen.tool("t", {"p": {"type": "string", "format": "password"}})])
    assert gen.outcomes(tmp_path, "t", [{"p": "secret"}]) == [{"p": "secret"}]


def test_g6_params_and_result_apart(tmp_path):
    item = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    other = {"type": "object", "properties": {"y": {"type": "string"}}, "required": ["y"]}
    gen.make(tmp_path, [gen.tool("t", {"items": {"type": "array", "items": item}}, output={
        "type": "object", "properties": {"items": {"type": "array", "items": other}, "params": other}})])
    assert gen.outcomes(tmp_path, "t", [{"items": [{"x": 1}]}, {"items": [{"y": "a"}]}]) == [{"items": [{"x": 1}]}, "missing"]
    assert gen.outcomes(tmp_path, "t", [{"items": [{"y": "a"}], "params": {"y": "b"}}], "Result") == [
        {"items": [{"y": "a"}], "params": {"y": "b"}}]


def test_g7_properties_called_like_types(tmp_path):
    words = ["int", "str", "float", "bool", "Optional", "Any", "List", "Dict", "Union", "Literal", "Annotated", "Field",
             "BaseModel", "DateTime", "list", "dict", "None", "T", "Enum", "type", "object"]
    gen.make(tmp_path, [gen.tool("t", dict({word: {"type": "string"} for word in words}, n={"type": "integer"}, m={
        "type": "array", "items": {"type": "integer"}}, k={"enum": ["a", "b"]}, d={"type": "string", "format": "date"}))])
    value = dict({word: "x" for word in words}, n=5, m=[1], k="a", d="2024-01-02")
    assert gen.outcomes(tmp_path, "t", [value, {"n": "x"}, {"m": None, "int": "3"}, {"int": 3}]) == [
        value, "int_parsing", {"int": "3"}, "string_type"]


def test_g8_null(tmp_path):
    either, inner = {"type": ["string", "null"]}, {"o": {"type": ["integer", "null"]}, "p": {"type": "integer"}}
    gen.make(tmp_path, [gen.tool("t", {"r": either, "o": either, "s": {"type": "string"},
                                       "in": {"type": "object", "properties": inner}}, ["r"])])
    given = [{"r": None}, {"r": None, "o": None, "s": None}, {"r": "x", "in": {"o": None, "p": None}}]
    assert gen.outcomes(tmp_path, "t", given) == [{"r": None}, {"r": None, "o": None}, {"r": "x", "in": {"o": None}}]


def test_g9_module_names(tmp_path):
    report = gen.make(tmp_path, [gen.tool(name) for name in ("Dup", "dup", "1num", "import", "a-b", "a_b")])
    assert [entry["module"] for entry in report["tools"]] == ["dup_1", "dup", "tool_1num", "import_", "a_b_1", "a_b"]
    code = "from mcptools.demo import dup, dup_1, tool_1num, import_, a_b, a_b_1"
    subprocess.run([support.PYTHON, "-c", code], cwd=str(tmp_path), env=dict(os.environ, PYTHONPATH=gen.KERNEL), check=True)


@pytest.mark.parametrize("name, package", [("a-b", "a_b"), ("class", "class_"), ("1st", "mcp_1st"), ("GitHub", "GitHub"),
                                           ("__pycache__", "mcp__pycache__"), ("-", "mcp_")])
def test_g10_server_names(tmp_path, name, package):
    assert gen.make(tmp_path, [gen.tool("t")], name)["package"] == package
    subprocess.run([support.PYTHON, "-c", "import mcptools.%s.t" % package], cwd=str(tmp_path),
                   env=dict(os.environ, PYTHONPATH=gen.KERNEL), check=True)


@pytest.mark.parametrize("name", ["", ".", "..", "/", "../x", "/tmp/x", "a/b", "a.b", "a b", "ü", "x" * 65, "a\nb", "a\"b"])
def test_g10_server_names_refused(tmp_path, name):
    keep = tmp_path / "x"
    keep.mkdir()
    (keep / "file").write_text("kept")
    done = gen.gen(tmp_path / "deep", [gen.tool("t")], name)
    assert (done.status, done.error_code) == (support.EXIT["invalid"], "invalid")
    assert os.listdir(tmp_path) == ["x"] and (keep / "file").read_text() == "kept"


def test_g11_constants_and_references(tmp_path):
    """No const and no reference ends the generation; nothing is fetched."""
    refs = ["http://127.0.0.1:9/x.json", "file:///etc/passwd", "other.json#/x", "#nowhere", "#/a/b/c", "", "#/properties/x/properties"]
    report = gen.make(tmp_path, [gen.tool("consts", {"a": {"const": None}, "b": {"const": 1.5}, "c": {"const": [1]}})] + [
        gen.tool("ref%d" % number, {"x": {"$ref": ref}}) for number, ref in enumerate(refs)])
    assert len(report["tools"]) == 1 + len(refs)
    assert gen.outcomes(tmp_path, "consts", [{"a": None, "b": 1.5, "c": [1]}, {"b": 1}]) == [
        {"a": None, "b": 1.5, "c": [1]}, "value_error"]
    assert gen.outcomes(tmp_path, "ref0", [{"x": [{"any": 1}]}]) == [{"x": [{"any": 1}]}]

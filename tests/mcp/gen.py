"""What the tests of generated modules share: making packages, judging their text, asking interpreters about them."""
import ast
import json
import os
import subprocess

import support

HERE = os.path.dirname(os.path.abspath(__file__))
SCHEMAS = os.path.join(HERE, "schemas")
KERNEL = os.path.join(support.ROOT, "kernel")
SERVERS = ("everything", "filesystem", "memory")
MARK = "# Made by `workcell gen mcp`, which replaces it: changes will be lost.\n"


def listing(name):
    with open(os.path.join(SCHEMAS, name + ".json"), encoding="utf-8") as file:
        return json.load(file)


def tool(name="t", properties=None, required=(), output=None, **more):
    made = {"name": name, "inputSchema": dict({"type": "object", "properties": properties or {},
                                               "required": list(required)}, **more)}
    return dict(made, outputSchema=output) if output is not None else made


def gen(folder, tools, name="demo", flags=(), **options):
    """Runs `workcell gen mcp`; tools: a list, a dict, or text as it is."""
    if isinstance(tools, list):
        tools = {"tools": tools}
    text = tools if isinstance(tools, (str, bytes)) else json.dumps(tools)
    return support.workcell("gen", "mcp", "--name", name, "--schema", "-", "--out", os.path.join(str(folder), "mcptools"),
                            "--json", *flags, stdin=text if isinstance(text, bytes) else text.encode(), **options)


def make(folder, tools, name="demo", flags=(), problems=0):
    """The report of a run that must do well; every file is judged."""
    done = gen(folder, tools, name, flags)
    assert done.status == (1 if problems else 0), done
    report = json.loads(done.out)
    assert len(report["problems"]) == problems, report["problems"]
    for module, text in sources(folder, report).items():
        judge(module, text)
    return report


def sources(folder, report):
    """{module: text} of the tools."""
    found = {}
    for entry in report["tools"]:
        with open(os.path.join(str(folder), "mcptools", report["package"], entry["module"] + ".py"), encoding="utf-8",
                  newline="") as file:
            found[entry["module"]] = file.read()
    return found


# ---- is it what it should be, and nothing else? ------------------------------------------------------------


BASES = {"BaseModel", "RootModel", "StrEnum", "IntEnum"}
FROM = {"__future__", "datetime", "ipaddress", "typing", "uuid", "_api"}
CALLS = {"Field", "Pattern", "Unique", "OneOf"}
RUNS = {"run", "run_text", "run_async", "run_text_async"}


def judge(name, text):
    """Only what a generated module may consist of: data of a server can be nowhere but in constants and names."""
    assert text.startswith(MARK), name
    bad = [c for c in text if ord(c) < 32 and c != "\n" or 0x7f <= ord(c) < 0xa0 or c in "\u202a\u202b\u202d\u202e\u2066\u2067"
           "\u2068\u2069\u200e\u200f\u061c\u2028\u2029\ufeff\u200b"]
    assert not bad, (name, bad)
    classes, functions = set(), set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom):
            assert node.module in FROM and node.level == (1 if node.module == "_api" else 0), ast.dump(node)
        elif isinstance(node, ast.ClassDef):
            judge_class(node)
            assert node.name not in classes, "two classes %s" % node.name
            classes.add(node.name)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            judge_function(node)
            functions.add(node.name)
        else:
            assert isinstance(node, ast.Expr) and isinstance(node.value, ast.Call), ast.dump(node)
            call = node.value
            assert isinstance(call.func, ast.Attribute) and call.func.attr == "model_rebuild" and not call.args
            assert isinstance(call.func.value, ast.Name) and call.func.value.id in classes
    assert "Params" in classes and "run" in functions and len(functions) == 2, (name, classes, functions)


def is_text(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def judge_class(node):
    base = node.bases[0].value if isinstance(node.bases[0], ast.Subscript) else node.bases[0]
    assert len(node.bases) == 1 and base.id in BASES and not node.decorator_list, ast.dump(node)
    assert all(k.arg == "extra" and k.value.value in ("forbid", "allow") for k in node.keywords)
    names = set()
    for each in node.body:
        if is_text(each) or isinstance(each, ast.Pass):
            continue
        if isinstance(each, ast.AnnAssign):
            target = each.target
            judge_type(each.annotation)
            if each.value is not None:
                judge_value(each.value)
        else:
            assert isinstance(each, ast.Assign) and len(each.targets) == 1, ast.dump(each)
            target = each.targets[0]
            assert isinstance(ast.literal_eval(each.value), (str, int)), ast.dump(each)
        assert isinstance(target, ast.Name) and target.id not in names, ast.dump(each)
        assert not target.id.startswith("_"), target.id
        names.add(target.id)


def judge_type(node):
    for each in ast.walk(node):
        assert isinstance(each, (ast.Name, ast.Subscript, ast.Tuple, ast.Constant, ast.Load, ast.Call, ast.keyword, ast.List,
                                 ast.Dict, ast.UnaryOp, ast.USub, ast.Index if hasattr(ast, "Index") else ast.Name)), \
            ast.dump(each)
        if isinstance(each, ast.Call):
            assert isinstance(each.func, ast.Name) and each.func.id in CALLS, ast.dump(each)


def judge_value(node):
    if isinstance(node, ast.Attribute):  # a member of an enum
        assert isinstance(node.value, ast.Name)
    elif isinstance(node, ast.Call):
        assert node.func.id == "Field" and not node.args
        assert [k.arg for k in node.keywords] == ["default_factory", "validate_default"]
        assert isinstance(node.keywords[0].value, ast.Lambda)
        ast.literal_eval(node.keywords[0].value.body)
    else:
        ast.literal_eval(node)


def judge_function(node):
    assert node.name in ("run", "run_async", "run_sync") and not node.decorator_list
    body = [each for each in node.body if not is_text(each)]
    assert len(body) == 1 and isinstance(body[0], ast.Return), ast.dump(node)
    call = body[0].value.value if isinstance(body[0].value, ast.Await) else body[0].value
    assert call.func.value.id == "CLIENT" and call.func.attr in RUNS and not call.keywords
    assert isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    assert [each.id for each in call.args[1:]] in (["params"], ["params", "Result"])


# ---- asking interpreters -----------------------------------------------------------------------------------


def ask(folder, jobs, python=None, standin=False):
    """The answers of probe.py; no warning is allowed."""
    argv = [python or support.PYTHON, "-W", "error", "-I", os.path.join(HERE, "probe.py")]
    done = subprocess.run(argv + ["--standin"] * standin + [str(folder)], input="".join(json.dumps(job) + "\n" for job in jobs),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def ask_both(folder, jobs):
    """The same question to pydantic and to the stand-in: outcomes must be alike. Those of pydantic."""
    with_pydantic, without = ask(folder, jobs), ask(folder, jobs, standin=True)
    for job, ours, theirs in zip(jobs, without, with_pydantic):
        if "import" in job:
            assert theirs["pydantic"] and not ours["pydantic"]
            continue
        for value, one, other in zip(job["inputs"], ours, theirs):
            if "errors" in one and "errors" in other:
                continue
            assert one == other, (job["module"], job["class"], value)
    return with_pydantic


def outcomes(folder, module, values, cls="Params", package="demo"):
    """For each value what both sides send, or the first error's type."""
    answers = ask_both(folder, [{"module": "mcptools.%s.%s" % (package, module), "class": cls, "inputs": values}])[0]
    return list(map(brief, answers))


def brief(answer):
    return answer["plain"] if "plain" in answer else answer["errors"][0][0]


def modern():
    """Interpreters that a kernel may run on."""
    return [path for path, version in support.interpreters() if version >= (3, 9)]

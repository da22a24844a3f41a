"""workcell policy: which rule decides, what is wrong with a file, the examples and the docs."""
import json
import os
import re

import pytest

import support
from test_space_cli import fails

EXAMPLES = os.path.join(support.ROOT, "examples", "policies")
STATUS = {"allow": 0, "ask": 3, "deny": 4}


@pytest.fixture
def write(tmp_path):
    def write_policy(text):
        path = tmp_path / "policy.yaml"
        path.write_text(text)
        return path
    return write_policy


def decide(file, /, *flags, **args):
    """(decision, number of the rule) as the program tells them, in words and in JSON alike."""
    command = ["policy", "test", file, *flags]
    if args:
        command += ["--args", json.dumps(args)]
    text, found = support.workcell(*command), support.workcell(*command, "--json")
    verdict = found.objects[0]
    assert set(verdict) == {"decision", "rule", "line", "name", "reason", "doubt"}
    assert text.status == found.status == STATUS[verdict["decision"]], (text, found)
    assert text.out.split()[0] == verdict["decision"]
    if verdict["rule"]:
        assert "rule %d (%s:%d)" % (verdict["rule"], file, verdict["line"]) in text.out
    else:
        assert "the default" in text.out and verdict["line"] is None
    for key in ("name", "reason"):
        assert verdict[key] is None or verdict[key].split("\n")[0] in text.out
    assert (verdict["doubt"] is not None) == bool(re.search("^doubt ", text.out, re.M))
    return verdict["decision"], verdict["rule"]


def test_help_and_usage(write):
    done = support.workcell("policy", "--help")
    assert done.status == 0 and done.out.startswith("usage: workcell policy "), done
    assert all(len(line) <= 110 for line in done.out.splitlines())
    assert re.search(r"^  policy +\S", support.workcell("--help").out, re.M)
    path = write("default: ask\n")
    fails(support.workcell("policy"), "invalid")
    fails(support.workcell("policy", "test"), "invalid")
    fails(support.workcell("policy", "test", path, "extra", "--tool", "t"), "invalid")
    assert "--tool" in fails(support.workcell("policy", "test", path), "invalid").error_message
    fails(support.workcell("policy", "test", path, "--tool", "t", "--args", "[1]"), "invalid")
    fails(support.workcell("policy", "test", path, "--tool", "t", "--args", '{"a":1,"a":2}'), "invalid")
    fails(support.workcell("policy", "test", path, "--tool", "t", "--kind", "program"), "invalid")
    fails(support.workcell("policy", "test", str(path) + ".no", "--tool", "t"), "not_found")
    done = fails(support.workcell("policy", "test", str(path) + ".no", "--tool", "t", "--json"), "not_found")
    assert json.loads(done.out)["error"]["code"] == "not_found"


def test_verdict(write):
    path = write("default: deny\n"
                 "rules:\n"
                 "  - {name: one, decision: allow, tool: a.b, args: {x.y: 'v*'}}\n"
                 "  - {decision: ask, tool: a, reason: \"see\\nbelow\"}\n")
    assert decide(path, "--tool", "a.b", x={"y": "value"}) == ("allow", 1)
    assert decide(path, "--tool", "a.b", x={"y": 5}) == ("ask", 2)
    assert decide(path, "--tool", "a.b") == ("ask", 2)
    assert decide(path, "--tool", "a") == ("ask", 2)
    assert decide(path, "--tool", "b") == ("deny", None)
    found = support.workcell("policy", "test", path, "--tool", "a.c", "--json").objects[0]
    assert found == {"decision": "ask", "rule": 2, "line": 4, "name": None, "reason": "see\nbelow", "doubt": None}


def test_adapter_and_kinds(write):
    path = write("default: ask\n"
                 "rules:\n"
                 "  - {decision: deny, adapter: http}\n"
                 "  - {decision: allow, kind: [shell, install, workflow], tool: [shell, deps.add, workflows.create]}\n")
    assert decide(path, "--tool", "x", "--adapter", "http") == ("deny", 1)
    assert decide(path, "--tool", "x", "--adapter", "cli") == ("ask", None)
    assert decide(path, "--tool", "x") == ("ask", None)
    assert decide(path, "--tool", "shell") == ("ask", None)
    for kind in ("shell", "install", "workflow"):
        assert decide(path, "--kind", kind) == ("allow", 2)
    assert decide(path, "--kind", "shell", "--tool", "shell_magic") == ("ask", None)


def test_encodings_do_not_dodge(write):
    path = write("default: allow\nrules: [{decision: deny, tool: t, args: {path: '/etc/**', force: true}}]\n")
    for args in ('{"path": "/etc/x", "force": true}', '{"path": "\\u002fetc\\u002fx", "force": true}',
                 '{"force":true,"path":["/tmp","/etc/x"]}', '{"path": "/tmp/../etc/x", "force": 1}',
                 '{"path": "//etc/x", "force": "true"}', '{"path": "/etc", "force": [true]}', '{"path": "/etc/\\u0000", "force": null}'):
        done = support.workcell("policy", "test", path, "--tool", "t", "--args", args)
        assert done.status == 4, (args, done)
    for args in ('{"path": "/etc/x", "force": false}', '{"path": "/tmp", "force": true}'):
        assert support.workcell("policy", "test", path, "--tool", "t", "--args", args).status == 0


def test_check(write, tmp_path):
    path = write("default: ask\nrules:\n  - {decision: no, tool: t}\n  - tol: x\n")
    done = support.workcell("policy", "check", path)
    assert done.status == 1 and done.err == "", done
    lines = done.out.splitlines()
    assert [line.split(": ")[0] for line in lines] == ["%s:3" % path] + ["%s:4" % path] * 3, done
    assert "decision must be allow, ask or deny" in lines[0] and "unknown key 'tol'" in lines[1]
    listed = support.workcell("policy", "check", path, "--json").objects[0]
    assert [problem["line"] for problem in listed] == [3, 4, 4, 4] and listed[0]["file"] == str(path)
    done = fails(support.workcell("policy", "test", path, "--tool", "t"), "invalid")
    assert "%s:3: decision must be" % path in done.error_message and "(and 3 more)" in done.error_message
    done = support.workcell("policy", "check", write("default: ask\n"))
    assert (done.status, done.out) == (0, "")
    assert support.workcell("policy", "check", path, "--json").objects == [[]]
    fails(support.workcell("policy", "check", tmp_path / "none"), "not_found")
    fails(support.workcell("policy", "check", tmp_path), "io")


def test_control_characters_do_not_reach_the_terminal(write):
    path = write('rules: [{decision: ask, tool: "a\\e[31m["}]\n')
    done = support.workcell("policy", "check", path)
    assert done.status == 1 and "\x1b" not in done.out
    assert "\x1b" not in support.workcell("policy", "test", path, "--tool", "t").err


# ---- the examples and the docs -----------------------------------------------------------------------------

CALLS = [
    ("read-only.yaml", ["--tool", "grep.find"], {"file": "src/a.c", "pattern": "x"}, "allow", 1),
    ("read-only.yaml", ["--tool", "wc"], {"file": "a"}, "allow", 1),
    ("read-only.yaml", ["--tool", "wc.words"], {"file": "/etc/passwd"}, "deny", 4),
    ("read-only.yaml", ["--tool", "wc.words"], {"file": "~/.ssh/id"}, "deny", 4),
    ("read-only.yaml", ["--tool", "wc.words"], {"file": "../x"}, "deny", 4),
    ("read-only.yaml", ["--tool", "wc.words"], {"file": ["a", "/etc/passwd"]}, "deny", 4),
    ("read-only.yaml", ["--tool", "wc.words"], {"file": ["a", "b"]}, "allow", 1),
    ("read-only.yaml", ["--tool", "github.repo"], {"owner": "acme", "name": "x"}, "allow", 2),
    ("read-only.yaml", ["--tool", "github.repo"], {"owner": "acme-evil", "name": "x"}, "deny", None),
    ("read-only.yaml", ["--tool", "github.open_issue"], {"owner": "acme"}, "ask", 3),
    ("read-only.yaml", ["--kind", "shell"], {"cmd": "ls"}, "deny", None),
    ("shell.yaml", ["--tool", "anything"], {}, "allow", 1),
    ("shell.yaml", ["--kind", "shell"], {"cmd": "ls -l src"}, "allow", 3),
    ("shell.yaml", ["--kind", "shell", "--tool", "shell_magic"], {"cmd": "pwd\n"}, "allow", 3),
    ("shell.yaml", ["--kind", "shell", "--tool", "shell_magic"], {"cmd": "pwd\nmake\n"}, "ask", None),
    ("shell.yaml", ["--kind", "shell"], {"cmd": "ls $HOME"}, "ask", None),
    ("shell.yaml", ["--kind", "shell"], {"cmd": "ls > list"}, "ask", None),
    ("shell.yaml", ["--kind", "shell"], {"cmd": "sudo ls"}, "deny", 2),
    ("shell.yaml", ["--kind", "shell"], {"cmd": "true; /bin/rm -r x"}, "deny", 2),
    ("shell.yaml", ["--kind", "install"], {"package": "x"}, "ask", None),
    ("installs.yaml", ["--kind", "install"], {"package": "numpy"}, "allow", 1),
    ("installs.yaml", ["--kind", "install"], {"package": "numpy==1.26"}, "allow", 1),
    ("installs.yaml", ["--kind", "install"], {"package": ["numpy", "pandas>=2"]}, "allow", 1),
    ("installs.yaml", ["--kind", "install"], {"package": ["numpy", "evil"]}, "ask", 2),
    ("installs.yaml", ["--kind", "install"], {"package": "numpy @ https://evil.net/x.whl"}, "ask", 2),
    ("installs.yaml", ["--kind", "workflow"], {"name": "w", "source": "def run():\n    return 1\n"}, "allow", None),
    ("installs.yaml", ["--kind", "workflow"], {"name": "w", "source": "import subprocess\n"}, "deny", 3),
    ("installs.yaml", ["--tool", "shop.order"], {"amount": 100}, "allow", None),
    ("installs.yaml", ["--tool", "shop.order"], {"amount": 100.5}, "ask", 4),
    ("installs.yaml", ["--tool", "shop.order"], {"amount": [1, 200]}, "ask", 4),
    ("installs.yaml", ["--tool", "x"], {"path": "/data/x"}, "allow", None),
    ("installs.yaml", ["--tool", "x"], {"path": "/data/x/../../y"}, "deny", 5),
]


@pytest.mark.parametrize("name,flags,args,decision,rule", CALLS, ids=lambda value: str(value)[:40])
def test_examples(name, flags, args, decision, rule):
    assert decide(os.path.join(EXAMPLES, name), *flags, **args) == (decision, rule)


def test_every_example_is_tried():
    assert {call[0] for call in CALLS} == set(os.listdir(EXAMPLES))
    for name in os.listdir(EXAMPLES):
        assert support.workcell("policy", "check", os.path.join(EXAMPLES, name)).status == 0

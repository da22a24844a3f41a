"""The layer over a sandbox's workspace: diff, commit, discard, from the command line and over HTTP, and as an ordinary user."""
import json
import os
import subprocess

import pytest

import serving
import support

COW = ["--executor", "sandbox", "--workspace-mode", "cow", "--python", "/usr/bin/python3"]


@pytest.fixture
def workspace(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "text").write_text("one\ntwo\n")
    (folder / "gone").write_text("gone\n")
    (folder / "dir").mkdir()
    (folder / "dir" / "a").write_text("a\n")
    return folder


@pytest.fixture
def unprotected(tmp_path):
    """Flags of a policy that lets the code write some protected names."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("preset: untrusted\nfilesystem: {unprotect: [Makefile, .env]}\n")
    return ["--sandbox-policy", str(policy)]


def shell(cwd, *lines, flags=(), prefix=()):
    done = subprocess.run([*prefix, support.BIN, "shell", *COW, *flags], cwd=cwd, env=support.host_environment(), capture_output=True, text=True,
                          timeout=support.DEADLINE, input="".join(line + "\n" for line in lines))
    return done


def test_the_code_sees_its_changes_and_nobody_else(workspace):
    code = ("import os\nopen('text', 'a').write('three\\n'); os.remove('gone'); os.rename('dir/a', 'dir/b'); os.makedirs('new/sub')\n"
            "sorted(os.listdir('.')), open('text').read(), os.listdir('dir'), os.getcwd()")
    done = subprocess.run([support.BIN, "run", *COW, "--json", "-e", code, "-e", "import os; os.path.exists('gone')"], cwd=workspace,
                          env=support.host_environment(), capture_output=True, text=True, timeout=support.DEADLINE)
    first, second = [json.loads(line) for line in done.stdout.splitlines()]
    assert first["repr"] == repr((["dir", "new", "text"], "one\ntwo\nthree\n", ["b"], str(workspace))), first
    assert second["value"] is False
    assert (first["isolation"]["workspace"], first["isolation"]["layer"]) == ("cow", "overlay")
    assert sorted(os.listdir(workspace)) == ["dir", "gone", "text"] and (workspace / "text").read_text() == "one\ntwo\n"


def test_the_code_may_not_write_protected_names(workspace):
    """Also in a layer, also names that do not exist, and a policy lists exceptions."""
    (workspace / "Makefile").write_text("all:\n")
    done = shell(workspace, "open('Makefile', 'a')", "open('.env', 'w')", "import os; os.rename('dir', '.git')", "open('Makefile').read()", "%diff")
    assert done.stdout.count("PermissionError: ") + done.stderr.count("PermissionError: ") == 3 and "'all:\\n'" in done.stdout, done
    assert "no changes" in done.stdout, done


def test_diff_commit_discard(workspace, unprotected):
    done = shell(workspace, "import os; n = open('text', 'a').write('three\\n'); os.remove('gone'); n = open('Makefile', 'w').write('all:\\n')",
                 "%diff", "%commit text", "%discard", "%diff", "open('text').read(), os.listdir('.')", "%commit nothing", flags=unprotected)
    assert "added    Makefile  5 B  protected" in done.stdout and "+three" in done.stdout and "deleted  gone" in done.stdout, done
    assert "committed text" in done.stdout and "no changes" in done.stdout and "'gone'" in done.stdout, done
    assert (workspace / "text").read_text() == "one\ntwo\nthree\n" and (workspace / "gone").exists()
    assert not (workspace / "Makefile").exists()
    assert 'not_found: nothing was changed at "nothing"' in done.stderr, done


def test_protected_names_must_be_named(workspace, unprotected):
    done = shell(workspace, "n = open('Makefile', 'w').write('all:\\n'); n = open('plain', 'w').write('x')", "%commit", "%commit Makefile", flags=unprotected)
    assert "protected Makefile" in done.stdout and "committed plain" in done.stdout and "committed Makefile" in done.stdout, done
    assert (workspace / "Makefile").read_text() == "all:\n"


def test_a_conflict_is_refused(workspace):
    done = shell(workspace, "n = open('text', 'w').write('mine\\n')", "!true", "%commit", flags=["--preload", "json"])
    assert (workspace / "text").read_text() == "mine\n", done
    with subprocess.Popen([support.BIN, "shell", *COW], cwd=workspace, env=support.host_environment(), stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdin.write("n = open('text', 'w').write('again\\n'); print('written', flush=True)\n")
        process.stdin.flush()
        assert process.stdout.readline() == "written\n"
        (workspace / "text").write_text("theirs\n")
        out, err = process.communicate("%commit\nprint(open('text').read())\n%commit --force\n", timeout=support.DEADLINE)
    assert "conflict: 1 file was changed in the real workspace since the layer was made: text" in err and "again" in out, (out, err)
    assert (workspace / "text").read_text() == "again\n"


def test_the_layer_outlives_a_kernel(workspace):
    done = shell(workspace, "n = open('kept', 'w').write('x')", "import os; os._exit(1)", "import os; os.listdir('.')", "%reset -f",
                 "import os; os.path.exists('kept')", "%commit")
    assert done.stdout.count("'kept'") == 1 and "True" in done.stdout and "committed kept" in done.stdout, done
    assert (workspace / "kept").read_text() == "x"


def test_the_layer_counts_in_the_limit(workspace):
    done = subprocess.run([support.BIN, "run", *COW, "--disk", "20m", "--json", "--keep-going", "-e",
                           "import time\nfor i in range(60):\n    open(str(i), 'wb').write(bytes(1 << 20)); time.sleep(.05)", "-e", "1"],
                          cwd=workspace, env=support.host_environment(), capture_output=True, text=True, timeout=support.DEADLINE)
    first, second = [json.loads(line) for line in done.stdout.splitlines()]
    assert first["error"]["code"] == "limit_exceeded" and first["error"]["limit"]["name"] == "workspace", first
    assert second["error"]["code"] == "limit_exceeded", second


def test_a_confined_tool_sees_the_layer_and_cannot_write_to_it(workspace, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "look.yaml").write_text("name: look\ndescription: d\ncommand: sh\nschema:\n  options:\n    c: {type: string, short: c}\nrecipes:\n"
                                     "  go: {description: r, preset: {c: 'cat fresh; touch made || echo refused'}, params: {}}\n")
    done = shell(workspace, "n = open('fresh', 'w').write('of the code\\n')", "print(tools.look.go())", flags=["--tools", str(tools)])
    assert "of the code" in done.stdout and "refused" in done.stdout, done
    assert os.listdir(workspace).count("made") == 0


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_as_an_ordinary_user(workspace):
    os.chmod(workspace.parent, 0o755)
    for parent in workspace.parents:
        if str(parent).startswith("/tmp/") and parent.stat().st_uid == 0:
            os.chmod(parent, 0o755)
    for path in [workspace, *workspace.rglob("*")]:
        os.chown(path, 65534, 65534)
    done = shell(workspace, "import os; n = open('text', 'a').write('three\\n'); os.remove('gone')", "%diff", "%commit text", "%discard",
                 "os.listdir('.')", prefix=["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"])
    assert "committed text" in done.stdout and "'gone'" in done.stdout, done
    assert (workspace / "text").read_text() == "one\ntwo\nthree\n" and (workspace / "text").stat().st_uid == 65534


def test_other_executors_refuse(workspace):
    for executor in ("jupyter", "inprocess"):
        done = subprocess.run([support.BIN, "run", "--executor", executor, "--workspace-mode", "cow", "-e", "1"], cwd=workspace,
                              env=support.host_environment(), capture_output=True, text=True, timeout=support.DEADLINE)
        assert done.returncode == 2 and "sandbox" in done.stderr, done
    done = subprocess.run([support.BIN, "shell"], cwd=workspace, env=support.host_environment(), capture_output=True, text=True,
                          timeout=support.DEADLINE, input="%diff\n%commit\n%discard\n")
    assert done.stderr.count("unsupported: the session has no layer") == 3, done


def test_over_http(workspace, tmp_path, unprotected):
    server = serving.Server("--executor", "sandbox", "--workspace-mode", "cow", "--base", tmp_path / "base", "--cwd", str(workspace),
                            "--audit", tmp_path / "audit.jsonl", *unprotected)
    try:
        answer = server.ask("POST", "/v1/sessions")
        assert answer.status == 201, answer
        session = "/v1/sessions/" + answer.json["session_id"]
        ran = server.ask("POST", "/execute", {"code": "import os; open('text', 'a').write('3\\n'); open('.env', 'w').write('x'); os.getcwd()"},
                         headers={"X-Session-ID": answer.json["session_id"]})
        folder = ran.json["value"]
        diff = server.ask("GET", session + "/files/diff")
        assert diff.status == 200 and [(each["path"], each["change"]) for each in diff.json["files"]][0] == (".env", "added"), diff
        answer = server.ask("POST", session + "/files/commit", {"paths": ["nothing"]})
        assert (answer.status, answer.code) == (404, "not_found"), answer
        answer = server.ask("POST", session + "/files/commit")
        assert answer.status == 200 and answer.json == {"committed": ["text"], "protected": [".env"], "skipped": []}, answer
        assert server.ask("POST", session + "/files/discard").status == 204
        assert server.ask("GET", session + "/files/diff").json["files"] == []
        assert folder and server.ask("DELETE", session).status == 204
        log = tmp_path / "audit.jsonl"  # written by a thread of its own
        support.wait_until(lambda: log.exists() and log.read_text(encoding="utf-8").count("\n") >= 2, "both are recorded")
        records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        assert [(each["kind"], each["callable"], each["args"].get("files")) for each in records] == [
            ("branch", "commit", ["text"]), ("branch", "discard", None)], records
    finally:
        server.close()

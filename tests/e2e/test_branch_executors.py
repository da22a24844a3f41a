"""Branches with every executor: those that can, through a server or not, and the code of those that cannot."""
import pytest

import serving
import support

SHELL = """x = 1
%checkpoint a
x = 2
x = 3
%undo
('undone', x)
%rewind a
('back', x)
"""


def shell(*flags):
    return support.workcell("shell", "--python", support.bare_python(), *flags, stdin=SHELL.encode())


def test_a_server_branches_for_its_client(tmp_path):
    server = serving.Server("--auth-disabled", "--executor", "subprocess", "--base", tmp_path, tokens=None, listen="unix:%s/socket" % tmp_path)
    remote = ("--executor", "remote", "--remote-url", "unix:%s/socket" % tmp_path)
    done = shell(*remote, "--undo", "3")
    assert "('undone', 2)" in done.out and "('back', 1)" in done.out, done
    done = support.workcell("run", *remote, "--undo", "3", "--keep-going", "-e", "x = 41", "-e", "import os; os._exit(1)", "-e", "x + 1")
    assert done.out.endswith("42\n"), done
    done = support.workcell("run", *remote, "--undo", "1", "-e", "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
                            "-e", "1 + 1")
    assert done.out == "2\n", done
    support.wait_until(lambda: "workcell_sessions 0\n" in metrics(server), "nothing is left at the server")
    server.close()


def metrics(server):
    return server.ask("GET", "/metrics").body.decode()


@pytest.mark.parametrize("executor", ["inprocess", "deno", "jupyter"])
def test_the_others_say_that_they_cannot(executor):
    done = support.workcell("run", "--executor", executor, "--undo", "3", "-e", "1")
    assert done.status == 1 and "unsupported" in done.err, done


@pytest.mark.parametrize("executor", ["subprocess", "sandbox"])
def test_a_run_says_what_becomes_of_its_layer(tmp_path, executor):
    work, policy = tmp_path / "work", tmp_path / "policy.yaml"
    work.mkdir()
    policy.write_text("preset: untrusted\nfilesystem: {unprotect: [Makefile]}\n")
    cow = ("run", "--executor", executor, "--cwd", str(work), "--workspace-mode", "cow", "--python", support.bare_python())
    cow += ("--sandbox-policy", str(policy)) if executor == "sandbox" else ()
    write = "for name in ('a', 'Makefile'): n = open(name, 'w').write('x')"
    done = support.workcell(*cow, "-e", write)
    assert done.status == 0 and "2 changes; --commit keeps them" in done.err and not list(work.iterdir()), done
    done = support.workcell(*cow, "--commit", "-e", write, "-e", "1 / 0")
    assert done.status == 1 and "--commit keeps them" in done.err and not list(work.iterdir()), done
    done = support.workcell(*cow, "--commit", "-e", write)
    assert done.status == 0 and "Makefile was not committed" in done.err and [file.name for file in work.iterdir()] == ["a"], done
    assert support.workcell(*cow, "-e", "1").err == ""


def test_commit_needs_a_layer():
    done = support.workcell("run", "--commit", "-e", "1")
    assert done.status == 2 and "--workspace-mode cow" in done.err, done


def test_a_server_has_the_layer_and_the_children_of_its_client(tmp_path):
    """Its client sees the changes and commits them; the server alone says how many children there may be."""
    (tmp_path / "work").mkdir()
    server = serving.Server("--auth-disabled", "--executor", "subprocess", "--base", tmp_path, "--cwd", tmp_path / "work", "--workspace-mode", "cow",
                            "--allow-fork", "2", tokens=None, listen="unix:%s/socket" % tmp_path)
    remote = ("--executor", "remote", "--remote-url", "unix:%s/socket" % tmp_path)
    done = support.workcell("shell", *remote, stdin=b"n = open('a', 'w').write('text\\n')\n%diff\n%commit\n%diff\nn = open('b', 'w').write('b')\n%discard\n%diff\n"
                            b"with sessions.fork() as child: got = child.run('n + 41').value\n\ngot\n")
    assert "+text" in done.out and "42" in done.out and [file.name for file in (tmp_path / "work").iterdir()] == ["a"], done
    done = support.workcell("run", *remote, "--allow-fork", "1", "-e", "many = [sessions.fork() for _ in range(2)]")
    assert "allow_fork" in done.err and done.status == 1, done
    done = support.workcell("run", *remote, "--allow-fork", "3", "-e", "1")
    assert "forbidden" in done.err and done.status != 0, done
    done = support.workcell("run", *remote, "--allow-fork", "1", "--fork-time", "5", "-e", "1")
    assert "unsupported" in done.err and done.status != 0, done
    server.close()


def test_a_server_without_layers_says_so(tmp_path):
    server = serving.Server("--auth-disabled", "--executor", "subprocess", "--base", tmp_path, tokens=None, listen="unix:%s/socket" % tmp_path)
    done = support.workcell("shell", "--executor", "remote", "--remote-url", "unix:%s/socket" % tmp_path, stdin=b"%diff\n1 + 1\n")
    assert "no layer" in done.out + done.err and "2" in done.out, done
    server.close()

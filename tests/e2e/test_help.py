"""What the program tells of itself: help, manual pages, completions of shells, the word that was probably meant, exit status."""
import json
import os
import re
import subprocess

import pytest

import support

BUILD = os.path.dirname(support.BIN)


def commands():
    listed = support.workcell("--help").out
    return re.findall(r"^  ([a-z]+) +\S", listed.split("commands:")[1].split("\n\n")[0], re.M)


OWN_HELP = ("bench",)  # another program


@pytest.mark.parametrize("word", ["help", "--help", "-h"])
def test_overview(word):
    done = support.workcell(word)
    assert done.status == 0 and done.err == "" and "\n  run " in done.out and "\n  completion " in done.out, done


@pytest.mark.parametrize("word", ["version", "--version", "-V"])
def test_version(word):
    with open(os.path.join(support.ROOT, "VERSION")) as file:
        assert support.workcell(word).out == "workcell %s\n" % file.read().strip()


def test_help_on_a_command_is_its_whole_help():
    assert support.workcell("help", "run").out == support.workcell("run", "--help").out
    assert "did you mean run?" in support.workcell("help", "rnu").err
    for word in ("help", "version"):  # which are no commands of the table
        assert support.workcell("help", word).out == support.workcell("help").out


def test_short_help_is_a_part_of_the_whole_in_groups():
    short, whole = support.workcell("run", "-h").out, support.workcell("run", "--help").out
    assert "--timeout" in short and "--embeddings-url" not in short and len(short) * 2 < len(whole)
    headings = re.findall(r"^([a-z ]+):$", whole, re.M)
    assert headings[0] == "flags" and {"session", "approvals", "storage and tools", "packages"} <= set(headings), headings
    flags = re.findall(r"--[a-z-]+", short.split("examples:")[0])
    assert set(flags) <= set(re.findall(r"--[a-z-]+", whole))


@pytest.mark.parametrize("words, meant", [
    (("rnu",), "did you mean run?"),
    (("artefacts",), "did you mean artifacts?"),
    (("work",), "did you mean workflows?"),
    (("hepl",), "did you mean help?"),
    (("verison",), "did you mean version?"),
    (("run", "--exector", "x"), "did you mean --executor?"),
    (("run", "--time-out=3"), "did you mean --timeout?"),
    (("run", "--sandbox-polcy", "x"), "did you mean --sandbox-policy?"),
    (("run", "--executor", "sandobx", "-e", "1"), "did you mean 'sandbox'?"),
    (("shell", "--executor", "sandobx", "--memory", "1G"), "did you mean 'sandbox'?"),
    (("mcp", "--executor", "dneo"), "did you mean 'deno'?"),
    (("serve", "--executor", "sandobx", "--auth-disabled"), "did you mean 'sandbox'?"),
    (("run", "--approve", "aks", "-e", "1"), "did you mean 'ask'?"),
    (("run", "--executor", "sandbox", "--workspace-mode", "cwo", "-e", "1"), "did you mean 'cow'?"),
    (("run", "--executor", "container", "--isolation", "sesion", "-e", "1"), "did you mean 'session'?"),
    (("serve", "--zygote-per", "sesion", "--auth-disabled"), "did you mean 'session'?"),
    (("run", "--executor", "sandbox", "--sandbox-policy", "untrustd", "-e", "1"), 'did you mean "untrusted"?'),
    (("sandbox", "explain", "data_science"), 'did you mean "data-science"?'),
    (("tools", "serach", "x"), "did you mean search?"),
])
def test_the_word_that_was_probably_meant(words, meant, tmp_path):
    done = support.workcell(*words, cwd=str(tmp_path))
    assert done.status == 2 and meant in done.err, done


@pytest.mark.parametrize("words", [("xyzzy",), ("run", "--qqqq"), ("run", "--executor", "mainframe", "-e", "1"), ("q",)])
def test_no_guess_where_nothing_is_close(words, tmp_path):
    done = support.workcell(*words, cwd=str(tmp_path))
    assert done.status == 2 and "did you mean" not in done.err, done


def test_the_words_of_executor_are_the_executors():
    names = {each["name"] for each in json.loads(support.workcell("doctor", "--json").out)["executors"]}
    said = support.workcell("run", "--executor", "mainframe", "-e", "1").err
    listed = said[said.index("must be ") + len("must be "):said.index(", not 'mainframe'")]
    assert set(listed.replace(" or ", ", ").split(", ")) == names, said


@pytest.mark.parametrize("command, said", [("run", "subprocess"), ("mcp", "subprocess"), ("serve", "sandbox where it works, else subprocess")])
def test_the_default_executor_is_that_of_the_command(command, said):
    text = " ".join(support.workcell(command, "--help").out.split())
    assert "see `workcell doctor` (default %s)" % said in text, text


# ---- manual pages -----------------------------------------------------------------------------------------------

def test_every_command_has_a_manual_page():
    for name in commands():
        if name not in OWN_HELP:
            assert os.path.exists(os.path.join(BUILD, "workcell-%s.1" % name)), name


def test_manual_pages_have_no_mistakes_and_every_flag():
    for name in [""] + [name for name in commands() if name not in OWN_HELP]:
        page = support.workcell(*([name] if name else []), "--help=man").out
        checked = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-P-c"], input=page, capture_output=True, text=True)
        assert checked.returncode == 0 and checked.stderr == "", (name, checked.stderr)
        shown = re.sub(".\b", "", checked.stdout)  # bold by overstriking
        if name:
            for flag in set(re.findall(r"^ {2,6}(?:-\w, )?(--[a-z-]+)", support.workcell(name, "--help").out, re.M)) - {"--help"}:
                assert flag in shown, (name, flag)


# ---- completions ---------------------------------------------------------------------------------------------------

def bash_completes(*words):
    script = support.workcell("completion", "bash").out + """
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _workcell; printf '%s\\n' "${COMPREPLY[@]}"
"""
    done = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done
    return done.stdout.split()


def test_bash():
    assert set(commands()) <= set(bash_completes("workcell", ""))
    assert bash_completes("workcell", "sh") == ["shell"]
    assert bash_completes("workcell", "tools", "se") == ["search"]
    assert bash_completes("workcell", "run", "--exec") == ["--executor"]
    assert bash_completes("workcell", "run", "--executor", "sub") == ["subprocess"]
    assert bash_completes("workcell", "help", "do") == ["doctor"]


def fish_completes(line):
    script = "%s\ncomplete -C '%s'" % (support.workcell("completion", "fish").out, line)
    done = subprocess.run(["fish", "--no-config"], input=script, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done
    return [found.split("\t")[0] for found in done.stdout.splitlines()]


def test_fish():
    assert set(commands()) <= set(fish_completes("workcell "))
    assert "search" in fish_completes("workcell tools se")
    assert "--executor" in fish_completes("workcell run --exec")
    assert fish_completes("workcell run --executor sub") == ["subprocess"]


def test_zsh(tmp_path):
    """In a real zsh at a terminal, which is the only place where its completion works."""
    (tmp_path / "_workcell").write_text(support.workcell("completion", "zsh").out)
    (tmp_path / ".zshrc").write_text("fpath=(%s $fpath)\nautoload -U compinit\ncompinit -u -D\nPS1='ready> '\nunsetopt beep\n"
                                     "zstyle ':completion:*' list-prompt ''\n" % tmp_path)
    env = support.host_environment(HOME=str(tmp_path), ZDOTDIR=str(tmp_path), TERM="xterm")
    with support.Terminal("-i", cwd=str(tmp_path), env=env, program="zsh") as shell:
        shell.expect("ready> ")
        for typed, completed in (("workcell tools se", "search "), ("workcell run --exec", "--executor"),
                                 ("workcell run --executor sub", "subprocess ")):
            shell.send(typed + "\t")
            shell.expect(re.escape(typed.split()[-1]) + ".*" + re.escape(completed[len(typed.split()[-1]):].strip()))
            shell.send("\x15")


def test_an_unknown_shell_is_refused():
    done = support.workcell("completion", "tcsh")
    assert done.status == 2 and "bash, zsh and fish" in done.err
    assert support.workcell("completion").status == 2


# ---- colours -------------------------------------------------------------------------------------------------------

def test_colours_only_on_a_terminal_that_wants_them(tmp_path):
    assert "\x1b" not in support.workcell("run", "--help").out
    for extra, coloured in (({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        with support.Terminal("run", "-h", cwd=str(tmp_path), env=support.host_environment(**extra)) as terminal:
            assert terminal.wait_end() == 0
            text = terminal.seen
        assert ("\x1b[1m" in text) == coloured, (extra, text)


# ---- arguments of a script -----------------------------------------------------------------------------------------

def test_arguments_of_a_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.argv)\n")
    given = ["plain", "it's", "'''", '"""\\', "é \U0001f600", "line\nend", "\\", "--flag", "-e", "", "%s"]
    done = support.workcell("run", "-e", "x = 1", str(script), "--", *given)
    assert done.status == 0 and eval(done.out) == [str(script), *given], done
    assert support.workcell("run", str(script), "a", "b").out == "%r\n" % [str(script), "a", "b"]
    # Flags of the program may still follow the file.
    assert support.workcell("run", str(script), "a", "--json").objects[0]["stdout"] == "%r\n" % [str(script), "a"]
    assert support.workcell("run", str(script), "a", "-e", "len(sys.argv)").out.endswith("]\n2\n")
    assert "sys.argv" in support.workcell("run", "-h").out


def test_arguments_that_cannot_be_given(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("1\n")
    done = support.workcell("run", str(script), "--year", "2026")
    assert done.status == 2 and "unknown flag --year; arguments of FILE that begin with - go behind --" in done.err, done
    assert "go behind" not in support.workcell("run", "--year", "2026", str(script)).err
    done = subprocess.run([support.BIN, "run", str(script), b"\xff"], capture_output=True)
    assert done.returncode == 2 and b"must be UTF-8" in done.stderr, done


@pytest.mark.parametrize("how, status, said", [("", 0, ""), ("0", 0, ""), ("None", 0, ""), ("3", 1, "SystemExit: 3"), ("'why'", 1, "SystemExit: why")])
def test_a_script_that_ends_itself(how, status, said, tmp_path):
    (tmp_path / "script.py").write_text("import sys\nprint('done')\nsys.exit(%s)\n" % how)
    done = support.workcell("run", "script.py", "-e", "print('not run')", cwd=str(tmp_path))
    assert done.status == status and done.out == "done\n" and done.err.strip().endswith(said) and bool(done.err) == bool(said), done
    done = support.workcell("run", "--json", "script.py", cwd=str(tmp_path))
    assert done.status == status and done.objects[0]["error"]["type"] == "SystemExit", done


@pytest.mark.parametrize("executor", ["sandbox", "inprocess"])
def test_arguments_reach_other_executors(executor, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys; sys.argv[1:]\n")
    done = support.workcell("run", "--executor", executor, str(script), "a b", cwd=str(tmp_path))
    assert done.status == 0 and done.out == "['a b']\n", done


# ---- exit status ---------------------------------------------------------------------------------------------------

def test_125_is_a_failure_of_workcell_alone(tmp_path):
    assert support.workcell("run", str(tmp_path / "missing.py")).status == 1
    assert support.workcell("artifacts", "get", "missing", "--base", str(tmp_path)).status == 1
    assert support.workcell("run", "--preload", "no_such_module", "-e", "1").status == 1
    assert support.workcell("run", "--python", "/bin/true", "-e", "1").status == 1
    assert support.workcell("run", "--executor", "remote", "--remote-url", "http://127.0.0.1:1", "-e", "1").status == 125


@pytest.mark.parametrize("words, said", [
    (("run", "--executor", "remote", "-e", "1"), "--executor remote needs --remote-url"),
    (("run", "--executor", "sandbox", "--memory", "1", "-e", "1"), "--memory must be at least 16M"),
    (("run", "--executor", "container", "--memory", "20M", "-e", "1"), "--memory must be at least 64M"),
    (("run", "--timeout", "soon", "-e", "1"), "--timeout must be seconds"),
    (("cache", "prune", "--older-than", "-1"), "--older-than must be days"),
    (("run", "."), ". is a directory"),
    (("run", "--memory", "1G", "-e", "1"), "--memory requires --executor sandbox or container"),
    (("run",), "nothing to run"),
    (("run", "--env", "A", "-e", "1"), "--env must be K=V"),
    (("tools", "frob"), "has the subcommands"),
    (("ps", "--remote-url", "ftp://x"), "http://"),
    (("completion", "tcsh"), "bash, zsh and fish"),
], ids=lambda each: " ".join(each) if isinstance(each, tuple) else None)
def test_wrong_usage_is_status_2_in_the_words_of_the_command_line(words, said, tmp_path):
    done = support.workcell(*words, cwd=str(tmp_path))
    assert done.status == 2 and said in done.err and os.listdir(tmp_path) == [], done


# ---- typing errors in files and paths --------------------------------------------------------------------------------

@pytest.mark.parametrize("words", [("tools", "list"), ("workflows", "list"), ("artifacts", "list"), ("artifacts", "get", "x"), ("deps", "list"),
                                   ("workflows", "rm", "x"), ("artifacts", "rm", "x")], ids=" ".join)
def test_a_command_that_only_reads_creates_no_folder(words, tmp_path):
    done = support.workcell(*words, "--base", "typo", cwd=str(tmp_path))
    assert done.status == 1 and "--base %s/typo" % tmp_path in done.err, done
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("words", [("run", "-e", "1"), ("artifacts", "put", "x", "/dev/null"), ("deps", "sync")], ids=" ".join)
def test_a_storage_is_created_but_not_the_folders_above_it(words, tmp_path):
    done = support.workcell(*words, "--storage", "typo/storage", cwd=str(tmp_path))
    assert done.status == 1 and "is created, but not the folder that it is in" in done.err, done
    assert os.listdir(tmp_path) == []
    done = support.workcell(*words, "--storage", "new///", cwd=str(tmp_path))
    assert done.status == 0 and os.listdir(tmp_path) == ["new"], done


@pytest.mark.parametrize("line, words", [
    ("max-sesions: 10", "unknown key 'max-sesions'; did you mean 'max-sessions'?"),
    ("max_sesions: 10", "unknown key 'max-sesions'; did you mean 'max-sessions'?"),
    ("timeout: soon", "--timeout must be seconds"),
    ("timeout: true", "'timeout' needs a value"),
    ("auth-disabled: maybe", "'auth-disabled' must be true or false"),
    ("check-config: true", "only be given on the command line"),
])
def test_a_mistake_in_the_servers_configuration_is_named_with_its_line(line, words, tmp_path):
    (tmp_path / "serve.yaml").write_text("listen: 127.0.0.1:0\n# a comment\n%s\n" % line)
    done = support.workcell("serve", "--config", "serve.yaml", "--check-config", cwd=str(tmp_path))
    assert done.status == 2 and "serve.yaml:3: " in done.err and words in done.err, done


def test_a_mistake_in_a_tool_is_named_wherever_the_tool_is_missed(tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "bad\x1b[31m.yaml").write_text("name: bad\ncomand: echo\n")
    for words in (("tools", "list"), ("run", "-e", "1")):
        done = support.workcell(*words, "--tools", "tools", cwd=str(tmp_path))
        assert done.status == 0 and "yaml:2: unknown key 'comand' in a tool of type cli; did you mean 'command'?" in done.err, done
        assert "\x1b" not in done.err

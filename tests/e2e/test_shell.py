"""`workcell shell` as a person sees it: on the screen of tmux, with completion, indentation, colours, history and pictures."""
import base64
import os
import re
import shutil

import pytest

import serving
import spaces
import support
from support import Screen, Terminal, wait_until

PNG = b"\x89PNG\r\n\x1a\n"
PICTURE = ("class Picture:\n    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n' + b'\\x1b[31m' * 2000\n"
           "    def __repr__(self): return 'a picture'\n")


@pytest.fixture
def home(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    return tmp_path / "home"


@pytest.fixture
def open_shell(home, tmp_path):
    assert shutil.which("tmux"), "scripts/setup.sh test installs it"
    screens = []

    def make(*flags, **env):
        screen = Screen(tmp_path, support.host_environment(HOME=str(home), **env), support.BIN, "shell", "--python", support.bare_python(),
                        "--cwd", tmp_path / "work", *flags)
        screens.append(screen)
        screen.wait(r"In \[1\]:")
        return screen
    yield make
    for screen in screens:
        screen.close()


def begin_line(screen, text):
    """Types a line and waits for the next one, because the shell does not indent it if keys wait already: they may be pasted text."""
    screen.type(text)
    screen.press("Enter")
    screen.wait(".*: +" + re.escape(text), r"   \.\.\.:")


def test_lines_are_indented_and_recalled_as_one(open_shell, home):
    screen = open_shell()
    for line in ("def f(n):", "if n:", "return [n,", "n]", "return 5"):
        begin_line(screen, line)
    screen.wait(r"In \[1\]: def f\(n\):", r"   \.\.\.:     if n:", r"   \.\.\.:         return \[n,", r"   \.\.\.:         n\]",
                r"   \.\.\.:         return 5", r"   \.\.\.:")
    screen.press("Enter")
    screen.wait(r"In \[2\]:")
    screen.type("f(0), f(3)")
    screen.press("Enter")
    screen.wait(r"Out\[2\]: \(None, \[3, 3\]\)", "", r"In \[3\]:")
    screen.press("Up", "Up")
    screen.wait(r"In \[3\]: def f\(n\):", r"   \.\.\.:     if n:", r"   \.\.\.:         return \[n,", r"   \.\.\.:         n\]",
                r"   \.\.\.:         return 5")
    screen.press("C-c")
    screen.wait("KeyboardInterrupt", r"In \[3\]:")
    screen.press("C-d")
    wait_until(lambda: (home / ".local/state/workcell/history").exists(), "the history is saved")
    assert os.stat(home / ".local/state/workcell/history").st_mode & 0o777 == 0o600


def test_the_history_of_another_shell(open_shell, home):
    first = open_shell()
    begin_line(first, "for n in [1]:")
    begin_line(first, "print('n', n)")
    first.press("Enter")
    first.wait("n 1", "", r"In \[2\]:")
    first.press("C-d")
    wait_until(lambda: (home / ".local/state/workcell/history").exists(), "the history is saved")
    first.close()
    second = open_shell()
    second.press("Up")
    second.wait(r"In \[1\]: for n in \[1\]:", r"   \.\.\.:     print\('n', n\)")
    second.press("Enter")
    second.press("Enter")
    second.wait("n 1", "", r"In \[2\]:")


def test_editing_within_a_cell(open_shell):
    screen = open_shell()
    begin_line(screen, "if True:")
    screen.press("Tab", "BSpace", "BSpace")  # a level of indentation each
    screen.type("x")
    screen.wait(r"In \[1\]: if True:", r"   \.\.\.: x")
    screen.press("C-c")
    screen.wait("KeyboardInterrupt", r"In \[1\]:")
    screen.type("(1,")
    screen.press("Enter")
    screen.type("2)")
    screen.press("Up", "End", "BSpace")
    screen.type(" + 8,")
    screen.wait(r"In \[1\]: \(1 \+ 8,", r"   \.\.\.: 2\)")
    screen.press("Down", "End", "Enter")
    screen.wait(r"Out\[1\]: \(9, 2\)", "", r"In \[2\]:")


def test_pasted_text_keeps_its_indentation(open_shell):
    screen = open_shell()
    screen.paste("def g():\n    a = 1\n\n    return a + 1\n\ng()")
    screen.wait(r"In \[1\]: def g\(\):", r"   \.\.\.:     a = 1", r"   \.\.\.:", r"   \.\.\.:     return a \+ 1", r"   \.\.\.:", r"   \.\.\.: g\(\)")
    screen.press("M-Enter")
    screen.wait(r"Out\[1\]: 2", "", r"In \[2\]:")


def test_a_cell_that_is_wider_and_higher_than_the_screen(open_shell):
    screen = open_shell()
    screen.type("x = '" + "é" * 100 + "'")
    screen.wait(r"In \[1\]: x = 'é{67}", r"é{33}'")
    screen.press("Enter")
    screen.wait(r"In \[2\]:")
    screen.type("len(x)")
    screen.press("Enter")
    screen.wait(r"Out\[2\]: 100", "", r"In \[3\]:")
    screen.paste("y = [\n" + "".join("    %d,\n" % n for n in range(40)) + "]")
    screen.wait(r"   \.\.\.:     39,", r"   \.\.\.: \]")
    assert len(screen.lines()) == 24
    screen.press("Enter")
    screen.type("sum(y)")
    screen.press("Enter")
    screen.wait(r"Out\[4\]: 780", "", r"In \[5\]:")


def test_code_is_coloured_while_it_is_typed(open_shell):
    screen = open_shell()
    screen.type("return 'text' + 12 # why")
    screen.wait(r"In \[1\]: return 'text' \+ 12 # why")
    line = next(line for line in screen.coloured().split("\n") if "return" in line)
    assert "\x1b[1m\x1b[34mreturn" in line and "\x1b[32m'text'" in line and "\x1b[35m12" in line and "\x1b[90m# why" in line, repr(line)
    screen.press("C-c")
    screen.wait("KeyboardInterrupt", r"In \[1\]:")
    screen.type("1/0")
    screen.press("Enter")
    screen.wait("ZeroDivisionError: division by zero", "", r"In \[2\]:")
    # tmux repeats no attribute that is on already: the marks above are red too.
    assert re.search(r"\x1b\[31m *~\^~\n\x1b\[1mZeroDivisionError\x1b\[0m", screen.coloured()), repr(screen.coloured())


def test_without_colours(open_shell):
    screen = open_shell(NO_COLOR="1")
    screen.type("return 'text'")
    screen.press("Enter")
    screen.wait("SyntaxError.*", "", r"In \[2\]:")
    assert "\x1b[" not in screen.coloured()


def test_completion(open_shell, tmp_path):
    base = tmp_path / "base"
    (base / "tools").mkdir(parents=True)
    shutil.copy(os.path.join(support.ROOT, "examples/base/tools/wc.yaml"), str(base / "tools/greet.yaml"))
    with open(base / "tools/greet.yaml", encoding="utf-8") as file:
        text = file.read()
    (base / "tools/greet.yaml").write_text(re.sub("(?m)^name: wc$", "name: greet", text))
    spaces.write_files(base, {"workflows/report.py": "\"\"\"Reports.\"\"\"\ndef run():\n    return 1\n"})
    screen = open_shell("--base", tmp_path / "base")
    begin_line(screen, "class A:")
    begin_line(screen, "alpha = alphabet = 1")
    screen.press("Enter")
    screen.wait(r"In \[2\]:")
    screen.type("A.al")
    screen.press("Tab")
    screen.wait(r"In \[2\]: A\.alpha")
    screen.press("Tab")
    screen.wait(r"In \[2\]: A\.alpha", "alpha     alphabet", r"In \[2\]: A\.alpha")
    screen.type("b")
    screen.press("Tab")
    screen.wait(r"In \[2\]: A\.alphabet")
    screen.press("C-u")
    screen.type("workflows.rep")
    screen.press("Tab")
    screen.wait(r"In \[2\]: workflows\.report")
    screen.press("C-u")
    screen.type("artifacts.save_")
    screen.press("Tab")
    screen.wait(r"In \[2\]: artifacts\.save_file")
    screen.press("C-u")
    screen.type("tools.gr")
    screen.press("Tab")
    screen.wait(r"In \[2\]: tools\.greet")
    screen.press("C-u")
    screen.press("Tab")
    screen.type("7 * 6")
    screen.press("Enter")
    screen.wait(r"Out\[2\]: 42|IndentationError: .*", "", r"In \[3\]:")


def test_completion_behind_a_server(home, tmp_path):
    base = spaces.write_files(tmp_path / "base", {"workflows/report.py": "\"\"\"Reports.\"\"\"\ndef run():\n    return 1\n"})
    shutil.copytree(os.path.join(support.ROOT, "examples/base/tools"), tmp_path / "base" / "tools")
    server = serving.Server("--base", base, tokens=serving.TOKEN)
    screen = Screen(tmp_path, support.host_environment(HOME=str(home)), support.BIN, "shell", "--executor", "remote",
                    "--remote-url", "http://127.0.0.1:%d" % server.port, "--auth-token-file", server.tokens)
    try:
        screen.wait(r"In \[1\]:")
        screen.type("alphabet = 1")
        screen.press("Enter")
        screen.wait(r"In \[2\]:")
        for begun, whole in (("alph", "alphabet"), ("workflows.rep", "workflows.report"), ("tools.w", "tools.wc")):
            screen.type(begun)
            screen.press("Tab")
            screen.wait(r"In \[2\]: " + re.escape(whole))
            screen.press("C-u")
    finally:
        screen.close()
        server.close()


def test_hostile_completions_do_not_reach_the_terminal(home, tmp_path):
    with Terminal("shell", "--python", support.bare_python(), cwd=str(tmp_path / "work"), env=support.host_environment(HOME=str(home))) as terminal:
        terminal.expect(r"In \[1\]: $")
        terminal.send("class E:\r    def __dir__(self): return ['good1', 'good2', 'go\\x1b]0;owned\\x07', 'go\\x1b[2J', 'go\\nx', 'go\\x9b2J']\r\r")
        terminal.expect(r"In \[2\]: $")
        terminal.send("e = E()\r")
        terminal.expect(r"In \[3\]: $")
        terminal.send("e.g")
        terminal.expect(r"e\.g$")
        terminal.seen = ""
        terminal.send("\t\t")
        wait_until(lambda: terminal._fill(0.1) is not None and "good1  good2" in terminal.seen, lambda: repr(terminal.seen))
        assert not re.search("owned|2J|\x9b|\x1b\\]", terminal.seen), repr(terminal.seen)


@pytest.mark.parametrize("name", ["kitty", "iterm", "file", "sandbox", "tmux"])
def test_pictures(name, home, tmp_path):
    env = {"kitty": {"KITTY_WINDOW_ID": "1"}, "iterm": {"TERM_PROGRAM": "iTerm.app"}, "sandbox": {"KITTY_WINDOW_ID": "1"},
           "tmux": {"KITTY_WINDOW_ID": "1", "TMUX": "x"}}.get(name, {})
    flags = ["--executor", "sandbox"] if name == "sandbox" else []
    data = PNG + b"\x1b[31m" * 2000
    with Terminal("shell", "--python", support.bare_python(), "--cwd", tmp_path / "work", *flags,
                  env=support.host_environment(HOME=str(home), **env)) as terminal:
        terminal.expect(r"In \[1\]: $")
        terminal.send("\x1b[200~" + PICTURE + "\x1b[201~\x1b\r")
        terminal.expect(r"In \[2\]: $")
        raw = []
        terminal.send("display(Picture())\r")

        def ended():
            terminal._fill(0.1)
            raw[:] = [terminal.seen]
            return re.search(r"In \[3\]: $", terminal.plain)
        wait_until(ended, lambda: repr(terminal.seen[-300:]))
        seen = raw[0]
        if name == "kitty":
            chunks = re.findall("\x1b_G([^;]*);([^\x1b]*)\x1b\\\\", seen)
            assert chunks[0][0] == "a=T,f=100,q=2,m=1" and chunks[-1][0] == "m=0" and all(len(chunk) <= 4096 for _, chunk in chunks)
            assert base64.b64decode("".join(chunk for _, chunk in chunks)) == data
        elif name == "iterm":
            found = re.search("\x1b\\]1337;File=inline=1;size=%d:([^\x07]*)\x07" % len(data), seen)
            assert found and base64.b64decode(found.group(1)) == data
        else:
            path = re.search(r"image: (\S+\.png)", terminal.plain).group(1)
            assert path.startswith(str(home)) and os.stat(path).st_mode & 0o777 == 0o600
            with open(path, "rb") as file:
                assert file.read() == data
            assert "\x1b_G" not in seen and "1337" not in seen
        assert (home / ".local/state/workcell/images").exists() is (name not in ("kitty", "iterm"))


def test_cells_are_undone_and_points_kept():
    lines = ["x = 1", "x = 2", "%checkpoint p", "x = 3", "%undo", "x", "%undo 2", "x", "%rewind p", "x", "%points", "%undo z", "%rewind nope",
             "%checkpoint", "x + 40"]
    done = support.workcell("shell", "--python", support.bare_python(), "--undo", "5", stdin=("\n".join(lines) + "\n").encode())
    assert re.findall(r"Out\[\d+\]: (.*)", done.out) == ["2", "1", "2", "42"], done
    assert re.search(r"^p +after 2 cells", done.out, re.M), done
    assert "%undo takes a number of cells, not 'z'" in done.err and 'no point "nope"' in done.err, done
    assert "the name of a point" in done.err, done

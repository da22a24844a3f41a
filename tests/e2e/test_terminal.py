"""`workcell shell` on a terminal: prompt, line editing, several lines, Ctrl-C, %reset, Ctrl-D, history."""
import os
import re
import termios

import pytest

import support

PROMPT = r"In \[(\d+)\]: $"
MORE = r"\.\.\.: *$"
CTRL_A, CTRL_C, CTRL_D, CTRL_U, UP, LEFT, BACKSPACE = "\x01", "\x03", "\x04", "\x15", "\x1b[A", "\x1b[D", "\x7f"


@pytest.fixture
def home(tmp_path):
    path = tmp_path / "home"
    path.mkdir()
    return path


@pytest.fixture
def shell(home, tmp_path):
    """A shell whose first prompt has been seen."""
    work = tmp_path / "work"
    work.mkdir()
    with support.Terminal("shell", "--python", support.bare_python(), cwd=str(work),
                          env=support.host_environment(HOME=str(home))) as terminal:
        prompt(terminal)
        yield terminal


def prompt(shell):
    found = shell.expect(PROMPT)
    # The editor shows its prompt a moment before it takes the terminal; a key in between is the terminal's.
    support.wait_until(lambda: not termios.tcgetattr(shell.fd)[3] & termios.ICANON, "the editor reads")
    return found


def enter(shell, text, answer=None):
    shell.send(text + "\r")
    if answer is not None:
        shell.expect(answer)
    return prompt(shell)


def leave(shell):
    shell.send(CTRL_D)
    return shell.wait_end()


def test_value_and_state(shell):
    enter(shell, "x = 20")
    enter(shell, "x + 22", r"^(Out\[2\]: )?42$")
    enter(shell, "print('out')", "^out$")
    assert leave(shell) == 0


def test_error_goes_on(shell):
    enter(shell, "1/0", "ZeroDivisionError: division by zero")
    enter(shell, "7 * 6", r"42$")
    assert leave(shell) == 0


def test_several_lines(shell):
    shell.send("def f(n):\r")
    shell.expect(MORE)
    shell.send("    return n + 1\r")
    shell.expect(MORE)
    shell.send("\r")
    prompt(shell)
    enter(shell, "f(41)", r"42$")
    assert leave(shell) == 0


def test_open_brackets_and_strings_ask_for_more(shell):
    shell.send("sum([1,\r")
    shell.expect(MORE)
    shell.send("41])\r")
    shell.expect(r"42$")
    prompt(shell)
    shell.send('s = """a\r')
    shell.expect(MORE)
    shell.send('b"""\r')
    prompt(shell)
    enter(shell, "len(s)", r"3$")
    assert leave(shell) == 0


def test_ctrl_c_interrupts_the_cell_and_keeps_state(shell):
    enter(shell, "x = 42")
    shell.send("while True: x == 42 and print('sp' + 'in')\r")
    shell.expect("^spin$")
    shell.send(CTRL_C)
    shell.expect("KeyboardInterrupt")
    prompt(shell)
    enter(shell, "x", r"42$")
    assert leave(shell) == 0


def test_ctrl_c_interrupts_a_sleep(shell):
    shell.send("import time; print('u' + 'p'); time.sleep(1000)\r")
    shell.expect("^up$")
    shell.send(CTRL_C)
    shell.expect("KeyboardInterrupt")
    prompt(shell)
    assert leave(shell) == 0


def test_ctrl_c_at_the_prompt_drops_the_line(shell):
    shell.send("this is not python")
    shell.expect("python")
    shell.send(CTRL_C)
    prompt(shell)
    enter(shell, "6 * 7", r"42$")
    assert leave(shell) == 0


def test_ctrl_c_drops_an_unfinished_block(shell):
    shell.send("if True:\r")
    shell.expect(MORE)
    shell.send(CTRL_C)
    prompt(shell)
    enter(shell, "6 * 7", r"42$")
    assert leave(shell) == 0


def test_reset_gives_a_fresh_kernel(shell):
    enter(shell, "x = 1")
    shell.send("%reset\r")
    prompt(shell)
    enter(shell, "x", "NameError")
    assert leave(shell) == 0


def test_dead_kernel_is_replaced(shell):
    enter(shell, "import os; os._exit(3)", "kernel_died|died")
    enter(shell, "6 * 7", r"42$")
    assert leave(shell) == 0


def test_ctrl_d_and_exit_leave(shell):
    assert leave(shell) == 0


def test_line_editing(shell):
    shell.send("10 + 5" + LEFT * 5 + "0" + "\r")
    shell.expect(r"^(Out\[1\]: )?105$")
    prompt(shell)
    shell.send("1 + 2x" + BACKSPACE + "\r")
    shell.expect(r"^(Out\[2\]: )?3$")
    prompt(shell)
    shell.send("garbage" + CTRL_U + "4 * 2\r")
    shell.expect(r"^(Out\[3\]: )?8$")
    prompt(shell)
    shell.send("00" + CTRL_A + "5\r")
    shell.expect(r"^(Out\[4\]: )?500$")
    prompt(shell)
    assert leave(shell) == 0


def test_unicode_is_edited_whole(shell):
    shell.send("len('é🐍x')" + LEFT * 3 + BACKSPACE + "\r")
    shell.expect(r"^(Out\[1\]: )?2$")
    prompt(shell)
    assert leave(shell) == 0


def test_history_of_this_session(shell):
    enter(shell, "6 * 7", r"42$")
    shell.send(UP)
    shell.expect(r"6 \* 7")
    shell.send("0\r")
    shell.expect(r"420$")
    prompt(shell)
    assert leave(shell) == 0


def history_files(home):
    return sorted(os.path.relpath(os.path.join(where, name), home) for where, _, names in os.walk(home)
                  for name in names)


def test_history_is_kept_in_one_known_place(home, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    env = support.host_environment(HOME=str(home))
    with support.Terminal("shell", "--python", support.bare_python(), cwd=str(work), env=env) as terminal:
        prompt(terminal)
        enter(terminal, "'remember' + ' me'", "remember me")
        assert leave(terminal) == 0
    assert os.listdir(work) == []
    files = history_files(home)
    assert len(files) == 1 and re.fullmatch(r"(\.local/state/workcell/\w+|\.workcell\w*)", files[0]), files
    assert os.stat(home / files[0]).st_mode & 0o077 == 0
    with support.Terminal("shell", "--python", support.bare_python(), cwd=str(work), env=env) as terminal:
        prompt(terminal)
        terminal.send(UP + "\r")
        terminal.expect("^(Out.*)?'remember me'$")
        prompt(terminal)
        assert leave(terminal) == 0


def test_history_follows_xdg(home, tmp_path):
    state = tmp_path / "state"
    env = support.host_environment(HOME=str(home), XDG_STATE_HOME=str(state))
    with support.Terminal("shell", "--python", support.bare_python(), cwd="/", env=env) as terminal:
        prompt(terminal)
        enter(terminal, "1 + 1", "2$")
        assert leave(terminal) == 0
    assert history_files(home) == []
    assert all(name.startswith("workcell/") for name in history_files(state)) and history_files(state)


@pytest.mark.parametrize("value", ["/nonexistent/home", ""], ids=["missing", "empty"])
def test_without_a_home_there_is_no_history_and_no_harm(value, tmp_path):
    env = support.host_environment(HOME=value)
    with support.Terminal("shell", "--python", support.bare_python(), cwd=str(tmp_path), env=env) as terminal:
        prompt(terminal)
        enter(terminal, "6 * 7", r"42$")
        assert leave(terminal) == 0
    assert os.listdir(tmp_path) == []


def test_the_kernel_cannot_reach_the_terminal(shell):
    enter(shell, "open('/dev/tty')", "OSError")
    enter(shell, "input('? ')", r"Error")
    assert leave(shell) == 0


def test_output_is_shown_while_the_cell_runs(shell, tmp_path):
    go = tmp_path / "go"
    shell.send("import os\r")
    prompt(shell)
    shell.send("print('fir' + 'st')\r")
    shell.expect("^first$")
    prompt(shell)
    shell.send("print('sec' + 'ond'); [None for _ in iter(lambda: os.path.exists(%r), True)]; print('thi' + 'rd')\r" % str(go))
    shell.expect("^second$")
    go.write_text("")
    shell.expect("^third$")
    prompt(shell)
    assert leave(shell) == 0


def test_terminal_is_restored(shell):
    before = termios.tcgetattr(shell.fd)
    leave(shell)
    after = termios.tcgetattr(shell.fd)
    assert after[3] & termios.ECHO and after[3] & termios.ICANON, (before, after)


def test_not_a_terminal_reads_lines():
    """Piped input is run as it would be typed, without a prompt's escape codes."""
    done = support.workcell("shell", "--python", support.bare_python(), stdin=b"x = 40\nx + 2\n")
    assert done.status == 0 and "42" in done.out and "\x1b" not in done.out


def test_closed_terminal_leaves_nothing(shell):
    enter(shell, "x = 1")
    os.close(shell.fd)
    shell.process.wait(support.DEADLINE)
    shell.fd = os.open("/dev/null", os.O_RDONLY)

"""The interactive layer: get_ipython() and what it answers.

Where the environment has IPython, ipy.py makes a real InteractiveShell on the user's namespace.  Where it has
not, Interactive below does the same job: it turns `!cmd`, `%magic`, `%%magic` and `name?` into Python, and runs
commands and magics (magics.py).  In both cases the kernel compiles and runs the cells itself.

What the kernel does: it calls setup() once, sets run_cell_hook, adds the names it put into the namespace to
`protected`, asks transform() about a cell that does not compile, and calls `current.fire()` around cells when
`current` is not None.

Single-threaded throughout: children are waited for with poll() and waitpid(), never with threads.
"""

import os
import re
import sys

from . import display as _display
from . import guard, imports

# The interactive layer in use, None until somebody needs one.  It is not to be kept: `import IPython` may replace it.
current = None
# Why the bridge to IPython could not be made, although there is an IPython.
bridge_error = ""
# Runs a cell for magics and get_ipython().run_cell(): answers its value, lets its exceptions through.
run_cell_hook = None
# Puts back into a namespace, once it has been reset, what is not the user's and the user's code has overwritten.
reset_hook = None
# Streams whose bytes end where those of fds 1 and 2 do.  Those that answer 1 and 2 to fileno() are known.
own_streams = ()
# Names in the user's namespace that are not the user's: %who does not list them, %reset keeps them.
protected = {"In", "Out", "get_ipython", "exit", "quit", "display", "open", "input"}

_context = (None, None)  # user_ns, user_module
_creating = False

INTERRUPT_GRACE = 0.5  # seconds a child has after SIGINT; the host kills the kernel after 2


class UsageError(Exception):
    """A magic that does not exist or was called wrongly."""

    __module__ = 'builtins'  # so that a traceback names it without ours


# ---- from cell to Python ----------------------------------------------------------------------------------


class _Pattern:
    """A regular expression that is compiled with its first use: most sessions use none of these."""

    def __init__(self, *args):
        self.args = args

    def __getattr__(self, name):
        method = getattr(re.compile(*self.args), name)
        setattr(self, name, method)
        return method


_PROMPT_CLASSIC = _Pattern(r"\s*(>>>|\.\.\.)( |$)", re.M)
_PROMPT_IPYTHON = _Pattern(r"\s*(In \[\d+\]: |\.{3,}: ?)")
_HELP_END = _Pattern(r"(%{0,2}(?!\d)[\w*]+(?:\.(?!\d)[\w*]+|\[-?[0-9]+\])*)(\?\??)$")
_HELP_MAGIC = _Pattern(r"(%{1,2}\w+)(\?\??)$")
# A line without any of these can neither continue nor hold special syntax.
_INTERESTING = _Pattern(r'''["'()\[\]{}\\?!%]''')


def transform_cell(source):
    """IPython's syntax to Python.  Lines keep their numbers, so tracebacks fit the source as written."""
    source = source.replace("\r\n", "\n")
    if not source.endswith("\n"):
        source += "\n"
    lines = _clean([line + "\n" for line in source.split("\n")[:-1]])
    first = next((i for i, line in enumerate(lines) if not line.isspace()), None)
    if first is None:
        return "".join(lines)
    if lines[first].startswith("%%") and not _HELP_MAGIC.match(lines[first].rstrip()):
        name, _, rest = lines[first][2:].rstrip().partition(" ")
        body = "".join(lines[first + 1:])
        return "\n" * first + "get_ipython().run_cell_magic(%r, %r, %r)\n" % (name, rest, body)
    out = []
    i = 0
    while i < len(lines):
        end, text = _transform_statement(lines, i)
        if text is None:
            out.extend(lines[i:end])
        else:
            out.append(text + "\n" * (end - i - text.count("\n")))
        i = end
    return "".join(out)


def _clean(lines):
    """Without prompts and common indentation."""
    lines = _dedent(lines)
    first = next((line for line in lines if not line.isspace()), "")
    # "..." alone is Python, so it counts as a prompt only behind a ">>>".
    prompt = _PROMPT_CLASSIC if first.startswith(">>>") else _PROMPT_IPYTHON
    if not prompt.match(first):
        return lines
    return _dedent([prompt.sub("", line, count=1) for line in lines])


def _dedent(lines):
    margin = None
    for line in lines:
        if line.isspace():
            continue
        indent = line[:len(line) - len(line.lstrip(" \t"))]
        margin = indent if margin is None else os.path.commonprefix((margin, indent))
        if not margin:
            return lines
    if not margin:
        return lines
    return ["\n" if line.isspace() else line[len(margin):] for line in lines]


def _transform_statement(lines, i):
    """(index past the statement that starts at line i, its replacement without newline or None)."""
    line = lines[i]
    if not _INTERESTING.search(line):
        return i + 1, None
    stripped = line.lstrip()
    indent = line[:len(line) - len(stripped)]
    if stripped.startswith(("%", "!", "?")):
        end, text = _joined(lines, i, len(indent))
        return end, indent + _escaped_call(text)
    return _scan(lines, i)


def _joined(lines, i, col):
    """A command line with its backslash continuations: (index past it, text)."""
    parts = [lines[i][col:].rstrip("\n")]
    while parts[-1].endswith("\\"):
        i += 1
        if i >= len(lines):
            break
        parts.append(lines[i].rstrip("\n"))
    i = min(i, len(lines) - 1)
    return i + 1, " ".join([part[:-1] for part in parts[:-1]] + [parts[-1].rstrip()])


def _escaped_call(text):
    if text.startswith("!!"):
        return _output_call(text[2:])
    if text.startswith("!"):
        return "get_ipython().system(%r)" % text[1:]
    if text.startswith("%"):
        match = _HELP_MAGIC.match(text)
        return _help_call(match.group(1), match.group(2)) if match else _magic_call(text)
    target = text.lstrip("?").strip()
    return _help_call(target, text[:2]) if target else "get_ipython().show_usage()"


def _output_call(command):
    return "get_ipython().getoutput(%r)" % command


def _magic_call(text):
    name, _, rest = text[1:].partition(" ")
    return "get_ipython().run_line_magic(%r, %r)" % (name, rest)


def _help_call(target, escape):
    magic = "pinfo2" if escape == "??" else "psearch" if "*" in target else "pinfo"
    return "get_ipython().run_line_magic(%r, %r)" % (magic, target)


def _scan(lines, i):
    """Find the end of a statement of Python, or `= !cmd`, `= %magic` and `name?` in it."""
    import tokenize
    tokens = []
    depth = 0
    assigned = False  # the token before was the first = outside brackets
    seen_assignment = False
    try:
        for token in tokenize.generate_tokens(_reader(lines, i)):
            kind, text = token.type, token.string
            if assigned and text and not text.isspace():
                row, col = i + token.start[0] - 1, token.start[1]
                if text == "!" or (text == "%" and re.match(r"%[^\W\d]", lines[row][col:])):
                    end, command = _joined(lines, row, col)
                    call = _magic_call(command) if text == "%" else _output_call(command[1:])
                    return end, "".join(lines[i:row]) + lines[row][:col] + call
                assigned = False
            if kind == tokenize.NEWLINE or (kind == tokenize.NL and depth == 0):
                return _statement(lines, i, i + token.start[0], tokens)
            if kind == tokenize.OP:
                if text in "([{":
                    depth += 1
                elif text in ")]}":
                    depth = max(depth - 1, 0)
                elif text == "=" and depth == 0 and not seen_assignment:
                    assigned = seen_assignment = True
            tokens.append(token)
    except tokenize.TokenError as e:
        # Python 3.12 and later refuse what older tokenizers pass on; only the end of input swallows the rest.
        return (len(lines) if "EOF" in str(e.args[0]) or "triple" in str(e.args[0]) else i + 1), None
    except SyntaxError:
        return i + 1, None
    return len(lines), None


def _reader(lines, i):
    def readline():
        nonlocal i
        i += 1
        return lines[i - 1] if i <= len(lines) else ""
    return readline


def _statement(lines, i, end, tokens):
    if tokens and tokens[-1].string == "?" and tokens[-1].start[0] == end - i:
        content = "".join(lines[i:end]).rstrip()
        match = _HELP_END.search(content)
        if match:
            indent = content[:len(content) - len(content.lstrip())]
            return end, indent + _help_call(match.group(1), match.group(2))
    return end, None


_AUTOMAGIC = _Pattern(r"(\w+)(?:\s+([^\s=,(].*))?$")


def automagic(source, is_magic, user_ns):
    """What `pip install x` and the like mean: one line that names a magic.  None when it is not that."""
    match = _AUTOMAGIC.match(source.strip())
    if not match or not is_magic(match.group(1)):
        return None
    import builtins
    import keyword
    name = match.group(1)
    if name in user_ns or hasattr(builtins, name) or keyword.iskeyword(name):
        return None
    return "get_ipython().run_line_magic(%r, %r)\n" % (name, match.group(2) or "")


# ---- variables in command lines ----------------------------------------------------------------------------

_DOLLAR = _Pattern(r"\$(\$?[\w.]+)")


def expand(text, namespace):
    """{expression} and $name replaced by their values; $$ is a $.  What cannot be evaluated raises."""
    from _string import formatter_parser
    convert = {None: lambda x: x, "s": str, "r": repr, "a": ascii}
    out = []
    for literal, field, spec, conversion in formatter_parser(text):
        pos = 0
        for match in _DOLLAR.finditer(literal):
            if literal.count("'", match.end()) % 2:
                continue  # between single quotes it is the command's
            out.append(literal[pos:match.start()])
            pos = match.end()
            name = match.group(1)
            out.append(name if name.startswith("$") else format(eval(name, namespace), ""))
        out.append(literal[pos:])
        if field is not None:
            # The colon belongs to the expression (a slice), as in IPython.
            value = eval(field + ":" + spec if spec else field, namespace)
            out.append(format(convert[conversion](value), ""))
    return "".join(out)


def _caller_locals():
    """Variables of the innermost frame that is neither IPython's nor ours."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if name.partition(".")[0] not in ("IPython", __name__.partition(".")[0]):
            return frame.f_locals
        frame = frame.f_back
    return {}


# ---- commands ----------------------------------------------------------------------------------------------

class SList(list):
    """Lines of output, as IPython's `x = !cmd` gives them."""

    @property
    def l(self):  # noqa: E743
        return self

    @property
    def n(self):
        return "\n".join(self)

    @property
    def s(self):
        return " ".join(self)

    @property
    def p(self):
        from pathlib import Path
        return [Path(line) for line in self if os.path.exists(line)]

    list, nlstr, spstr, paths = l, n, s, p

    def grep(self, pattern, prune=False, field=None):
        """Lines that match; pattern is a regular expression or a predicate."""
        match = pattern if callable(pattern) else re.compile(pattern, re.I).search

        def wanted(line):
            if field is not None:
                parts = line.split()
                line = parts[field] if -len(parts) <= field < len(parts) else ""
            return bool(match(line)) != prune
        return SList(line for line in self if wanted(line))

    def fields(self, *columns):
        """The given whitespace-separated columns of each line."""
        if not columns:
            return [line.split() for line in self]
        rows = SList()
        for parts in (line.split() for line in self):
            row = [parts[c] for c in columns if -len(parts) <= c < len(parts)]
            if row:
                rows.append(" ".join(row))
        return rows

    def sort(self, field=None, nums=False):
        """A sorted copy; by a column, and by its digits with nums."""
        def key(line):
            if field is not None:
                parts = line.split()
                line = parts[field] if -len(parts) <= field < len(parts) else ""
            if nums:
                digits = re.sub(r"\D", "", line)
                return int(digits) if digits else 0
            return line
        return SList(sorted(self, key=key))


page = print  # page(text): shows help; a notebook has a pager for it
next_input = None  # next_input(text, replace): where a front end can be given the next cell
approve = None  # the kernel's, where somebody must agree: approve(name, args) answers the arguments to run with


def approved(name, cmd, **more):
    """The command to run: as asked, or as the person who agreed wrote it. Answers (cmd, the other arguments)."""
    if approve is None:
        return cmd, more
    args = approve(name, dict(more, cmd=cmd))
    return args["cmd"], args


def approved_argv(argv):
    """The same for a program with arguments, which is shown as a shell would take it."""
    if approve is None:
        return argv
    import shlex
    return shlex.split(approved("shell", " ".join(map(shlex.quote, argv)))[0])


def shell_argv(cmd):
    program = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    return [program, "-c", cmd]


def run_process(argv, out=None, err=None, stdin_fd=None):
    """Run and wait.  out, err: called with bytes; None inherits fd 1 or 2; err='out' joins the two.

    Answers the exit status, negative for a signal (also one that a shell reports as 128+n).
    """
    sinks = {}
    ours, started = [], []
    try:
        stdout = stderr = None
        if out is not None:
            reader, stdout = os.pipe()
            ours += [reader, stdout]
            sinks[reader] = out
        if err == "out":
            stderr = stdout if stdout is not None else 1
        elif err is not None:
            reader, stderr = os.pipe()
            ours += [reader, stderr]
            sinks[reader] = err
        _spawn(started, argv, stdin_fd, stdout, stderr)
        pid = started[0]
        for fd in {stdout, stderr} & set(ours):
            ours.remove(fd)
            os.close(fd)
        status = _pump(pid, sinks) if sinks else None
        if status is None:
            status = _reap(pid)
        started.clear()
    except KeyboardInterrupt:
        if started:
            _interrupt(started[0])
        raise
    except BaseException:
        if started:
            _interrupt(started[0], grace=0)
        raise
    finally:
        for fd in ours:
            os.close(fd)
    return -(status - 128) if status > 128 else status


def _spawn(started, argv, stdin, stdout, stderr):
    """Its process id goes into the list, in the same step of C: an interrupt between the two would leave the process alone."""
    import signal
    from functools import partial

    if not hasattr(os, "posix_spawnp"):
        raise OSError("this Python cannot start processes")
    if stdin is None:
        actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    else:
        actions = [(os.POSIX_SPAWN_DUP2, stdin, 0)]
    # Standard error first: it may be a copy of the standard output that is about to be replaced.
    if stderr is not None:
        actions.append((os.POSIX_SPAWN_DUP2, stderr, 2))
    if stdout is not None:
        actions.append((os.POSIX_SPAWN_DUP2, stdout, 1))
    with guard.opened:
        # Python ignores SIGPIPE, and the kernel may hold signals back: children start clean.
        spawn = partial(os.posix_spawnp, file_actions=actions, setsigmask=[],
                        setsigdef=[signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ])
        started.extend(map(spawn, (argv[0],), (argv,), (os.environ,)))


def _pump(pid, sinks):
    """Feed the sinks until all pipes end, or the process did and nothing more is there.

    A process left in the background may hold the pipes open for good, so their end is not waited for.
    """
    import select
    poll = select.poll()
    for fd in sinks:
        poll.register(fd, select.POLLIN)
    left = set(sinks)
    status = None
    after = 1 << 20  # bytes to read once the process is gone; more than it can have left in the pipes
    while left and after > 0:
        ready = poll.poll(50 if status is None else 0)
        if status is not None and not ready:
            break
        for fd, _ in ready:
            data = os.read(fd, 65536)
            if not data:
                poll.unregister(fd)
                left.remove(fd)
                continue
            sinks[fd](data)
            if status is not None:
                after -= len(data)
        if status is None and left:
            status = _reap(pid, os.WNOHANG)
    return status


def _reap(pid, flags=0):
    """Exit status, or None when WNOHANG was given and it still runs."""
    try:
        done, status = os.waitpid(pid, flags)
    except ChildProcessError:
        return 0  # somebody else's SIGCHLD handling took it
    if not done:
        return None
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _descendants(pid):
    children = {}
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    for p in pids:
        try:
            with open("/proc/%d/stat" % p, "rb") as f:
                parent = int(f.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        children.setdefault(parent, []).append(p)
    found, todo = [], [pid]
    while todo:
        kids = children.get(todo.pop(), [])
        found += kids
        todo += kids
    return found


def _interrupt(pid, grace=INTERRUPT_GRACE):
    """What Ctrl-C does in a terminal: SIGINT to the command and all it started; then SIGKILL to the deaf."""
    import signal
    import time
    family = [pid] + _descendants(pid)

    def send(sig):
        for p in family:
            try:
                os.kill(p, sig)
            except OSError:
                pass

    status = None
    try:
        if grace:
            send(signal.SIGINT)
        deadline = time.monotonic() + grace
        while status is None and time.monotonic() < deadline:
            status = _reap(pid, os.WNOHANG)
            if status is None:
                time.sleep(0.01)
    finally:
        if status is not None:
            family.remove(pid)
        send(signal.SIGKILL)
        if status is None:
            _reap(pid)


def _is_own(stream, fd):
    if any(stream is own for own in own_streams):
        return True
    try:
        return stream.fileno() == fd
    except Exception:
        return False


def stream_sink(stream):
    """Bytes for a text stream; characters may be split between calls."""
    if stream is None:
        return lambda data: None
    import codecs
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    return lambda data: stream.write(decode(data))


def flush_streams():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass


def run_visible(argv, stdin_fd=None):
    """Run with its output where print() goes, also when that was redirected."""
    flush_streams()
    out = None if _is_own(sys.stdout, 1) else stream_sink(sys.stdout)
    err = None if _is_own(sys.stderr, 2) else "out" if sys.stderr is sys.stdout else stream_sink(sys.stderr)
    try:
        return run_process(argv, out, err, stdin_fd)
    finally:
        flush_streams()


# ---- what both layers share --------------------------------------------------------------------------------

class ExecutionInfo:
    """What pre_run_cell callbacks get."""

    def __init__(self, raw_cell="", store_history=True, silent=False, shell_futures=True, cell_id=None):
        self.raw_cell = raw_cell
        self.transformed_cell = raw_cell
        self.store_history = store_history
        self.silent = silent
        self.shell_futures = shell_futures
        self.cell_id = cell_id
        self.cell_meta = None


class ExecutionResult:
    """What run_cell() answers and post_run_cell callbacks get."""

    error_before_exec = None

    def __init__(self, info, result=None, error=None, execution_count=None):
        self.info = info
        self.result = result
        self.error_in_exec = error
        self.execution_count = execution_count

    @property
    def success(self):
        return self.error_in_exec is None and self.error_before_exec is None

    def raise_error(self):
        if self.error_in_exec is not None:
            raise self.error_in_exec

    def __repr__(self):
        shown = self.success, self.result, self.error_in_exec
        return "<ExecutionResult success=%r result=%r error=%r>" % shown


class InteractiveBase:
    """Ours in Interactive and in the bridge alike: commands, cells run on behalf of magics, events, errors."""

    _magic_depth = 0
    _magic_error = None

    @property
    def execution_count(self):
        """The number of the running cell: the kernel appends to In before it runs one."""
        return max(len(self.user_ns.get("In", ())) - 1, 1)

    @execution_count.setter
    def execution_count(self, value):
        pass

    def var_expand(self, cmd, depth=0, formatter=None):
        if "{" not in cmd and "$" not in cmd:
            return cmd
        namespace = dict(self.user_ns)
        namespace.update(_caller_locals())
        try:
            return expand(cmd, namespace) if formatter is None else formatter.vformat(cmd, [], namespace)
        except Exception:
            return cmd  # it is for the command to make sense of

    def system(self, cmd):
        cmd = approved("shell", self.var_expand(cmd))[0]
        code = run_visible(shell_argv(cmd))
        self.user_ns["_exit_code"] = code
        if code and getattr(self, "system_raise_on_error", False):
            from subprocess import CalledProcessError
            raise CalledProcessError(code, cmd)

    system_raw = system_piped = system

    def getoutput(self, cmd, split=True, depth=0):
        """The lines a command wrote to its standard output and standard error."""
        cmd = approved("shell", self.var_expand(cmd))[0]
        flush_streams()
        chunks = []
        code = run_process(shell_argv(cmd), chunks.append, "out")
        self.user_ns["_exit_code"] = code
        if code and getattr(self, "system_raise_on_error", False):
            from subprocess import CalledProcessError
            raise CalledProcessError(code, cmd, b"".join(chunks))
        text = b"".join(chunks).decode("utf-8", "replace")
        return self._slist(text.splitlines()) if split else text

    _slist = SList

    def run_cell(self, raw_cell, store_history=False, silent=False, shell_futures=True, cell_id=None,
                 **kwargs):
        """Run a cell through the kernel.  Answers an object with .result and .error_in_exec.

        Called by a magic, an error ends the magic's cell; called by the user, it is shown and answered.
        """
        info = ExecutionInfo(raw_cell, store_history, silent, shell_futures, cell_id)
        try:
            value = self.run_source(raw_cell)
        except Exception as e:
            if self._magic_depth:
                self._magic_error = self._magic_error or e
            else:
                _display.report_error(e)
            return ExecutionResult(info, error=e, execution_count=self.execution_count)
        if value is not None and not silent:
            _display.display(value)
        return ExecutionResult(info, value, execution_count=self.execution_count)

    def run_source(self, source):
        """The value of a cell; its exceptions pass through."""
        if run_cell_hook is not None:
            return run_cell_hook(source)
        return self._run_plain(source)

    def _run_plain(self, source):
        import ast
        try:
            tree = ast.parse(source, "<cell>")
        except SyntaxError:
            tree = ast.parse(self.transform_cell(source), "<cell>")
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
            last = ast.Expression(tree.body.pop().value)
        exec(compile(tree, "<cell>", "exec"), self.user_ns)
        return None if last is None else eval(compile(last, "<cell>", "eval"), self.user_ns)

    def _in_magic(self, function, *args):
        """Call a magic.  An error that it only showed (IPython's %run and %time do) ends the cell."""
        outer = self._magic_error
        self._magic_depth += 1
        self._magic_error = None
        try:
            result = function(*args)
            if self._magic_error is not None:
                raise self._magic_error
            return result
        finally:
            self._magic_depth -= 1
            self._magic_error = outer

    def fire(self, event, source="", value=None, error=None):
        """The kernel's report of where it is: pre_execute, pre_run_cell, post_execute, post_run_cell."""
        if not self.events.callbacks.get(event):
            return
        if event == "pre_run_cell":
            self.events.trigger(event, ExecutionInfo(source))
        elif event == "post_run_cell":
            info = ExecutionInfo(source)
            self.events.trigger(event, ExecutionResult(info, value, error, self.execution_count))
        else:
            self.events.trigger(event)

    def rebind(self, user_ns, user_module):
        self.user_ns = user_ns
        self.user_module = user_module

    def set_next_input(self, s, replace=False):
        if next_input is not None:
            next_input(s, replace)

    def ask_exit(self):
        pass  # exit() in a cell is the kernel's business


# ---- the built-in interactive layer -------------------------------------------------------------------------

class Events:
    NAMES = ("pre_execute", "pre_run_cell", "post_execute", "post_run_cell", "shell_initialized")

    def __init__(self):
        self.callbacks = {name: [] for name in self.NAMES}

    def register(self, event, function):
        if not callable(function):
            raise TypeError("Need a callable, got %r" % (function,))
        if function not in self.callbacks[event]:
            self.callbacks[event].append(function)

    def unregister(self, event, function):
        if function not in self.callbacks[event]:
            raise ValueError("Function %r is not registered as a %s callback" % (function, event))
        self.callbacks[event].remove(function)

    def trigger(self, event, *args):
        for function in list(self.callbacks[event]):
            try:
                function(*args)
            except Exception as e:
                sys.stderr.write("Error in callback %r (for %s):\n" % (function, event))
                _display.report_error(e)


class DisplayPublisher:
    def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **kwargs):
        _display.emit(data, metadata, transient, update)

    def clear_output(self, wait=False):
        _display.clear_output(wait)


class DisplayFormatter:
    def format(self, obj, include=None, exclude=None):
        return _display.mime_bundle(obj, include, exclude)


class Interactive(InteractiveBase):
    """The part of IPython's InteractiveShell that code relies on, without IPython."""

    def __init__(self, user_ns, user_module=None):
        self.user_ns = user_ns
        self.user_module = user_module
        self.events = Events()
        self.history_manager = None
        self.display_pub = DisplayPublisher()
        self.display_formatter = DisplayFormatter()
        self.ast_transformers = []
        self.loaded_extensions = set()
        self.magics = {"line": {}, "cell": {}}  # registered by the user

    @property
    def user_global_ns(self):
        return self.user_ns if self.user_module is None else self.user_module.__dict__

    def get_ipython(self):
        return self

    def transform_cell(self, raw_cell):
        text = transform_cell(raw_cell)
        if len(raw_cell.strip().splitlines()) == 1 and text.strip() == raw_cell.strip():
            return automagic(raw_cell, self.find_line_magic, self.user_ns) or text
        return text

    # -- magics

    def find_magic(self, magic_name, magic_kind="line"):
        function = self.magics[magic_kind].get(magic_name)
        if function is not None:
            return function
        from . import magics
        builtin = magics.find(magic_name, magic_kind)
        if builtin is None:
            return None

        def bound(*args):
            return builtin(self, *args)
        bound.__name__, bound.__doc__, bound.builtin = magic_name, builtin.__doc__, builtin
        return bound

    def find_line_magic(self, magic_name):
        return self.find_magic(magic_name, "line")

    def find_cell_magic(self, magic_name):
        return self.find_magic(magic_name, "cell")

    def register_magic_function(self, func, magic_kind="line", magic_name=None):
        name = magic_name or func.__name__
        for kind in ("line", "cell") if magic_kind == "line_cell" else (magic_kind,):
            self.magics[kind][name] = func

    def run_line_magic(self, magic_name, line, _stack_depth=1):
        function = self.find_line_magic(magic_name)
        if function is None:
            raise UsageError(self._unknown("line", magic_name))
        if not getattr(getattr(function, "builtin", function), "verbatim", False):
            line = self.var_expand(line)
        return self._in_magic(function, line)

    def run_cell_magic(self, magic_name, line, cell):
        function = self.find_cell_magic(magic_name)
        if function is None:
            raise UsageError(self._unknown("cell", magic_name))
        if not cell:
            message = "%%%%%s is a cell magic, but the cell body is empty." % magic_name
            if self.find_line_magic(magic_name) is not None:
                message += " Did you mean the line magic %%%s (single %%)?" % magic_name
            raise UsageError(message)
        if not getattr(getattr(function, "builtin", function), "verbatim", False):
            line = self.var_expand(line)
        return self._in_magic(function, line, cell)

    def magic(self, arg_s):
        name, _, rest = arg_s.lstrip("%").partition(" ")
        return self.run_line_magic(name, rest)

    def _unknown(self, kind, name):
        from difflib import get_close_matches
        from . import magics
        other = "cell" if kind == "line" else "line"
        marks = {"line": "%", "cell": "%%"}
        what = {"line": "Line magic function", "cell": "Cell magic"}[kind]
        text = "%s `%s%s` not found" % (what, marks[kind], name)
        if name.startswith("%"):
            return text + ": a cell magic must be the first line of its cell."
        if self.find_magic(name, other) is not None:
            hint = " (But %s magic `%s%s` exists, did you mean that instead?)."
            return text + hint % (other, marks[other], name)
        close = get_close_matches(name, magics.names(kind) + list(self.magics[kind]))
        if close:
            return text + ". Did you mean %s?" % " or ".join("`%s%s`" % (marks[kind], c) for c in close)
        return text + "."

    # -- the rest of the interface

    def ev(self, expr):
        return eval(expr, self.user_global_ns, self.user_ns)

    def ex(self, cmd):
        exec(cmd, self.user_global_ns, self.user_ns)

    def push(self, variables, interactive=True):
        if isinstance(variables, dict):
            self.user_ns.update(variables)
            return
        names = variables.split() if isinstance(variables, str) else variables
        frame = sys._getframe(1)
        for name in names:
            self.user_ns[name] = eval(name, frame.f_globals, frame.f_locals)

    def showtraceback(self, exc_tuple=None, *args, **kwargs):
        error = (exc_tuple or sys.exc_info())[1]
        if error is not None:
            _display.report_error(error)

    def show_usage(self):
        print("%lsmagic lists the magics, name? describes an object, !cmd runs a command.")

    def reset(self, new_session=True, aggressive=False):
        for name in list(self.user_ns):
            if name not in protected and not (name.startswith("__") and name.endswith("__")):
                del self.user_ns[name]
        if "Out" in self.user_ns:
            self.user_ns["Out"].clear()
        if new_session and "In" in self.user_ns:
            self.user_ns["In"][:] = [""]
        was_reset(self.user_ns)


# ---- which one --------------------------------------------------------------------------------------------

def setup(user_ns, user_module=None):
    """The namespace that the interactive layer will work on when it is needed.  Makes none yet."""
    global _context
    import builtins
    _context = (user_ns, user_module)
    builtins.get_ipython = get_ipython
    user_ns["get_ipython"] = get_ipython


def get_interactive(user_ns=None, user_module=None):
    """The interactive layer of this process; made on first use."""
    global current
    if user_ns is not None:
        setup(user_ns, user_module)
    if current is None:
        current = _create()
    elif current.user_ns is not _context[0] and _context[0] is not None:
        current.rebind(*_context)
    return current


def was_reset(user_ns):
    if reset_hook is not None:
        reset_hook(user_ns)


def get_ipython():
    """The interactive layer, as in IPython."""
    return get_interactive()


def transform(source):
    """For the kernel: the Python form of a cell that is not plain Python, or the cell unchanged.

    A plain syntax error is the common case and makes none: importing IPython takes a third of a second.
    """
    if current is None:
        changed = transform_cell(source)
        if changed in (source, source + "\n") and automagic(source, _may_be_magic, {}) is None:
            return source
    return get_interactive().transform_cell(source)


def _may_be_magic(name):
    from . import magics
    more = ("alias", "conda", "load", "macro", "mamba", "rerun", "store")  # IPython's
    return magics.find(name, "line") is not None or name in more


def _create():
    global bridge_error, _creating
    user_ns, user_module = _context
    if user_ns is None:
        user_module = sys.modules["__main__"]
        user_ns = user_module.__dict__
        setup(user_ns, user_module)
    if not _creating and _ipython_spec() is not None:
        remove_import_hook()
        _creating = True
        try:
            from . import ipy
            return ipy.create(user_ns, user_module)
        except Exception as e:
            bridge_error = "%s: %s" % (type(e).__name__, e)
        finally:
            _creating = False
    return Interactive(user_ns, user_module)


def _ipython_spec():
    if "IPython" in sys.modules:
        return sys.modules["IPython"]
    from importlib.util import find_spec
    try:
        return find_spec("IPython")
    except (ImportError, ValueError):
        return None


def have_ipython():
    """Version of the environment's IPython, '' if it has none.  Does not import it."""
    spec = _ipython_spec()
    if spec is None:
        return ""
    if hasattr(spec, "__version__"):
        return spec.__version__
    # The name of the metadata directory tells; importlib.metadata costs twenty times as much to import.
    origin = getattr(spec, "origin", None)
    if origin:
        try:
            names = os.listdir(os.path.dirname(os.path.dirname(origin)))
        except OSError:
            names = []
        for name in names:
            match = re.match(r"ipython-(\d[\w.+!]*?)(?:-py[\d.]+)?\.(?:dist|egg)-info$", name, re.I)
            if match:
                return match.group(1)
    from importlib import metadata
    try:
        return metadata.version("ipython")
    except metadata.PackageNotFoundError:
        return ""


def warm_steps():
    """Callables for a zygote to call one by one while idle: after the last, the interactive layer exists and is warm."""
    if _ipython_spec() is not None:
        from . import ipy
        return ipy.warm_steps()
    return [_warm_own]


def _warm_own():
    import signal, select, codecs, tokenize  # noqa: E401, F401
    from . import magics
    transform_cell("x = !true\n%pwd")
    magics.find("time", "line")
    get_interactive()


def _load_ipython(module, exec_module):
    remove_import_hook()
    exec_module(module)
    if not _creating:
        _replace_interactive()


def _replace_interactive():
    """IPython has just been imported: from here on the bridge is the interactive layer."""
    global current
    if current is None or type(current) is Interactive:
        current = None
        get_interactive()


# Until somebody imports IPython: then it makes the bridge.
_import_hook = imports.Hook(["IPython"], _load_ipython)


def install_import_hook():
    if "IPython" not in sys.modules:
        _import_hook.install()


def remove_import_hook():
    _import_hook.remove()

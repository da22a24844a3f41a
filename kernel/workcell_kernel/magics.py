"""The magics of the built-in interactive layer.

A magic is a function (ip, line) or (ip, line, cell), registered by the decorator below.  `verbatim`
ones get their line as written; in the others {expression} and $name have been replaced.  The script magics
(%%bash and its like) serve the bridge to IPython as well, because IPython's start a thread.
"""

import os
import re
import sys

from . import display as _display
from . import interactive as _interactive
from .interactive import UsageError

_magics = {"line": {}, "cell": {}}


def find(name, kind):
    return _magics[kind].get(name)


def names(kind):
    return sorted(_magics[kind])


def magic(kinds, *aliases, verbatim=False):
    def register(function):
        function.verbatim = verbatim
        for kind in kinds.split():
            for name in aliases:
                _magics[kind][name] = function
        return function
    return register


def parse(text, short="", long=()):
    """Leading options and the untouched rest.  As with getopt, `x:` and `name=` take a value."""
    options = {}
    text = text.strip()
    while len(text) > 1 and text[0] == "-":
        word, _, rest = _partition(text)
        if word == "--":
            return options, rest
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if name + "=" in long:
                if not equals:
                    value, _, rest = _partition(rest)
                options[name] = value
            elif name in long and not equals:
                options[name] = True
            else:
                raise UsageError("option --%s not recognized" % name)
        else:
            letters = word[1:]
            while letters:
                letter, letters = letters[0], letters[1:]
                if letter + ":" in short:
                    value = letters
                    if not value:
                        value, _, rest = _partition(rest)
                    options[letter] = value
                    break
                if letter not in short or letter == ":":
                    raise UsageError("option -%s not recognized" % letter)
                options[letter] = True
        text = rest
    return options, text


def _partition(text):
    parts = text.split(None, 1)
    return (parts + ["", ""])[0], " ", (parts + ["", ""])[1]


def words(line):
    import shlex
    try:
        return shlex.split(line)
    except ValueError as e:
        raise UsageError("%s: %s" % (e, line))


# ---- timing ------------------------------------------------------------------------------------------------

def format_time(seconds, precision=3):
    if seconds >= 60:
        parts = []
        for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
            count, seconds = divmod(seconds, size)
            if count:
                parts.append("%d%s" % (count, unit))
        return " ".join(parts)
    order = 3
    if seconds > 0:
        import math
        order = min(-int(math.floor(math.log10(seconds)) // 3), 3)
    return "%.*g %s" % (precision, seconds * (1, 1e3, 1e6, 1e9)[order], ("s", "ms", "μs", "ns")[order])


def _cpu():
    try:
        import resource
    except ImportError:
        import time
        return time.process_time(), 0.0
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def _evaluate(ip, source, scope):
    """The value of `source` where the magic stands: in a function its variables are visible."""
    if scope is ip.user_ns or not scope:
        return ip.run_source(source)
    source = ip.transform_cell(source)
    try:
        code = compile(source.strip(), "<magic>", "eval")
    except SyntaxError:
        exec(compile(source, "<magic>", "exec"), ip.user_ns, scope)
        return None
    return eval(code, ip.user_ns, scope)


@magic("line cell", "time", verbatim=True)
def time(ip, line, cell=None):
    """Time the execution of a statement or of a cell."""
    from time import perf_counter
    scope = _interactive._caller_locals()
    if cell is not None and line.strip():
        raise UsageError("Can't use statement directly after '%%time'!")
    if cell is None and not line.strip():
        raise UsageError("%time: a statement is missing")
    source = line if cell is None else cell
    user, system = _cpu()
    start = perf_counter()
    value = _evaluate(ip, source, scope)
    wall = perf_counter() - start
    user, system = (max(after - before, 0.0) for after, before in zip(_cpu(), (user, system)))
    times = tuple(map(format_time, (user, system, user + system)))
    print("CPU times: user %s, sys: %s, total: %s" % times)
    print("Wall time: %s" % format_time(wall))
    return None if source.rstrip().endswith(";") else value


class TimeitResult:
    def __init__(self, loops, repeat, all_runs, precision):
        self.loops = loops
        self.repeat = repeat
        self.all_runs = all_runs
        self.timings = [t / loops for t in all_runs]
        self.best = min(self.timings)
        self.worst = max(self.timings)
        self.compile_time = 0.0
        self._precision = precision

    @property
    def average(self):
        return sum(self.timings) / len(self.timings)

    @property
    def stdev(self):
        mean = self.average
        return (sum((t - mean) ** 2 for t in self.timings) / len(self.timings)) ** 0.5

    def __str__(self):
        return "%s ± %s per loop (mean ± std. dev. of %d run%s, %s loop%s each)" % (
            format_time(self.average, self._precision), format_time(self.stdev, self._precision), self.repeat,
            "" if self.repeat == 1 else "s", format(self.loops, ","), "" if self.loops == 1 else "s")

    def __repr__(self):
        return "<TimeitResult : %s>" % self


@magic("line cell", "timeit", verbatim=True)
def timeit(ip, line, cell=None):
    """%timeit [-n LOOPS] [-r REPEATS] [-p PRECISION] [-q] [-o] [-v VAR] STATEMENT

    %%timeit SETUP times the cell.
    """
    import timeit as module
    scope = _interactive._caller_locals()
    options, statement = parse(line, "n:r:tcp:qov:")
    if not statement and cell is None:
        return None
    setup = "pass"
    if cell is not None:
        setup, statement = statement or "pass", cell
    namespace = ip.user_ns if scope is ip.user_ns else {**ip.user_ns, **scope}
    statement, setup = (ip.transform_cell(s).rstrip("\n") for s in (statement, setup))
    timer = module.Timer(statement, setup, globals=namespace)
    loops, repeat = int(options.get("n", 0)), int(options.get("r", 7))
    if repeat < 1:
        raise UsageError("%timeit: -r must be positive")
    if loops <= 0:
        for power in range(10):
            loops = 10 ** power
            if timer.timeit(loops) >= 0.2:
                break
    result = TimeitResult(loops, repeat, timer.repeat(repeat, loops), int(options.get("p", 3)))
    if "q" not in options:
        if result.worst > 4 * result.best > 0 and result.worst > 1e-6:
            print("The slowest run took %.2f times longer than the fastest. This could mean that an "
                  "intermediate result is being cached." % (result.worst / result.best))
        print(result)
    if "v" in options:
        ip.user_ns[options["v"]] = result
    return result if "o" in options else None


# ---- directories and environment ---------------------------------------------------------------------------

@magic("line", "pwd")
def pwd(ip, line):
    """The current directory."""
    return os.getcwd()


@magic("line", "cd")
def cd(ip, line):
    """Change the current directory: %cd DIR, %cd - goes back, %cd alone goes home, -q prints nothing."""
    line = line.strip()
    quiet = line == "-q" or line.startswith("-q ")
    target = (line[2:] if quiet else line).strip()
    history = ip.user_ns.setdefault("_dh", [os.getcwd()])
    if target == "-":
        if len(history) < 2:
            raise UsageError("%cd -: No previous directory to change to.")
        target = history[-2]
    if len(target) > 1 and target[0] == target[-1] and target[0] in '\'"':
        target = target[1:-1]
    try:
        os.chdir(os.path.expanduser(target or "~"))
    except OSError as e:
        print(e)
    else:
        if history[-1] != os.getcwd():
            history.append(os.getcwd())
    if not quiet:
        print(os.getcwd())


@magic("line", "env")
def env(ip, line):
    """%env lists, %env NAME reads, %env NAME=VALUE sets environment variables."""
    line = line.strip()
    if not line:
        secret = re.compile("key|token|secret|password", re.I)
        return {k: "<hidden>" if secret.search(k) else v for k, v in os.environ.items()}
    if "=" in line or " " in line:
        return set_env(ip, line)
    if line not in os.environ:
        raise UsageError("Environment does not have key: %s" % line)
    return os.environ[line]


@magic("line", "set_env")
def set_env(ip, line):
    """%set_env NAME VALUE"""
    line = line.strip()
    name, _, value = line.partition("=" if "=" in line else " ")
    name, value = name.strip(), value.strip()
    if not name or not value:
        raise UsageError("usage: %set_env NAME VALUE")
    if re.search(r"\s", name):
        raise UsageError("refusing to set env var with whitespace: %r" % name)
    os.environ[name] = value
    print("env: %s=%s" % (name, value))


def _alias(name, command):
    def run(ip, line):
        ip.user_ns["_exit_code"] = _interactive.run_visible(_interactive.shell_argv(command + " " + line))
    run.__doc__ = "Alias for `!%s`." % command
    magic("line", name)(run)


_alias("ls", "ls -F")
_alias("ll", "ls -F -o")
for _name in ("cat", "cp", "mv", "rm", "mkdir", "rmdir"):
    _alias(_name, _name)


# ---- the namespace -----------------------------------------------------------------------------------------

@magic("line", "who_ls")
def who_ls(ip, line):
    """Sorted list of the user's variables, optionally of the given types only."""
    types = line.split()
    return sorted(name for name, value in ip.user_ns.items()
                  if not name.startswith("_") and name not in _interactive.protected
                  and (not types or type(value).__name__ in types))


def _who(ip, line):
    found = who_ls(ip, line)
    if not found:
        empty = "Interactive namespace is empty."
        print("No variables match your requested type." if line.strip() else empty)
    return found


@magic("line", "who")
def who(ip, line):
    """Print the user's variables."""
    found = _who(ip, line)
    for i in range(0, len(found), 10):
        print("".join(name + "\t " for name in found[i:i + 10]))


@magic("line", "whos")
def whos(ip, line):
    """Print the user's variables with types and values."""
    found = _who(ip, line)
    if not found:
        return
    types = [type(ip.user_ns[name]).__name__ for name in found]
    name_width = max(map(len, found + ["Variable"])) + 3
    type_width = max(map(len, types + ["Type"])) + 4
    print("Variable".ljust(name_width) + "Type".ljust(type_width) + "Data/Info")
    print("-" * (name_width + type_width + 9))
    for name, kind in zip(found, types):
        print(name.ljust(name_width) + kind.ljust(type_width) + _summary(ip.user_ns[name], kind))


def _summary(value, kind):
    try:
        if kind in ("dict", "list", "tuple"):
            return "n=%d" % len(value)
        if kind == "ndarray":
            shape = "x".join(map(str, value.shape))
            return "%s: %s elems, type `%s`, %s bytes" % (shape, value.size, value.dtype, value.nbytes)
        if kind in ("DataFrame", "Series"):
            return "Shape: %s" % (value.shape,)
        text = str(value).replace("\n", "\\n")
    except Exception:
        text = "<object with id %d (str() failed)>" % id(value)
    return text if len(text) < 50 else text[:25] + "<...>" + text[-25:]


@magic("line", "reset")
def reset(ip, line):
    """Delete the user's variables and Out; with -s only the variables.

    %reset in, out or dhist clears just that.  -f is accepted; nothing is ever asked.
    """
    options, rest = parse(line, "sf", ("aggressive",))
    targets = rest.split()
    for target in targets:
        name = {"in": "In", "out": "Out", "dhist": "_dh"}.get(target)
        if name is None:
            raise UsageError("Don't know how to reset %s" % target)
        if name == "In":
            ip.user_ns["In"][:] = [""] * len(ip.user_ns["In"])
        elif name in ip.user_ns:
            ip.user_ns[name].clear()
    if "s" in options:
        for name in who_ls(ip, ""):
            del ip.user_ns[name]
        _interactive.was_reset(ip.user_ns)
    elif not targets:
        ip.reset(new_session=False)


@magic("line", "history", "hist")
def history(ip, line):
    """Print the cells run so far: %history [-n] [5] [2-4]"""
    options, rest = parse(line, "nopt")
    cells = list(ip.user_ns.get("In", ()))
    first = 1 if cells and not cells[0] else 0
    numbers = [n for n in range(first, len(cells))]
    if rest:
        numbers = []
        for word in rest.split():
            match = re.match(r"(\d+)(?:-(\d+))?$", word)
            if not match:
                raise UsageError("%%history: not a range of cells: %s" % word)
            numbers += range(int(match.group(1)), int(match.group(2) or match.group(1)) + 1)
    for n in numbers:
        if n < len(cells):
            print(("%4d: " % n if "n" in options else "") + cells[n].rstrip("\n"))


# ---- inspection --------------------------------------------------------------------------------------------

def _lookup(ip, name):
    """(found, object) for a dotted name with integer subscripts, or a magic."""
    if name.startswith("%"):
        function = ip.find_magic(name.lstrip("%"), "cell" if name.startswith("%%") else "line")
        return function is not None, getattr(function, "builtin", function)
    import builtins
    if not re.match(r"[^\W\d][\w.]*(\[-?\d+\]|\.[^\W\d]\w*)*$", name):
        return False, None
    try:
        return True, eval(name, {"__builtins__": builtins, **ip.user_ns}, dict(_interactive._caller_locals()))
    except Exception:
        function = ip.find_magic(name)
        return function is not None, getattr(function, "builtin", function)


def _describe(obj, name, source):
    """(title, text) pairs in IPython's order."""
    import inspect

    def attempt(function, *args):
        try:
            return function(*args)
        except Exception:
            return None

    is_class = inspect.isclass(obj)
    is_function = inspect.isroutine(obj)
    signature = attempt(inspect.signature, obj) if callable(obj) else None
    code = attempt(inspect.getsource, obj if is_class or is_function or inspect.ismodule(obj) else type(obj))
    fields = []
    if is_class or is_function:
        if signature is not None:
            label = "Init signature" if is_class else "Signature"
            fields.append((label, name.rpartition(".")[2] + str(signature)))
    else:
        fields.append(("Type", type(obj).__name__))
        text = attempt(str, obj)
        if text is not None:
            fields.append(("String form", text if len(text) <= 200 else text[:97] + " <...> " + text[-97:]))
        length = attempt(len, obj)
        if length is not None:
            fields.append(("Length", str(length)))
        if signature is not None:
            fields.append(("Call signature", name.rpartition(".")[2] + str(signature)))
    doc = attempt(inspect.getdoc, obj)
    if source and code:
        fields.append(("Source", "\n" + code.rstrip()))
    else:
        fields.append(("Docstring", ("\n" + doc if "\n" in doc else doc) if doc else "<no docstring>"))
    path = attempt(inspect.getfile, obj if is_class or is_function or inspect.ismodule(obj) else type(obj))
    if path:
        fields.append(("File", path))
    if is_class or is_function:
        fields.append(("Type", type(obj).__name__))
    if is_class:
        fields.append(("Subclasses", ", ".join(c.__name__ for c in type.__subclasses__(obj)[:10])))
    return fields


def _pinfo(ip, line, source):
    name = line.strip()
    if "*" in name:
        psearch(ip, name)
        return
    found, obj = _lookup(ip, name)
    if not found:
        print("Object `%s` not found." % name)
        return
    _interactive.page(description(obj, name, source))


def description(obj, name, source):
    """What ``name?`` shows, as text."""
    fields = _describe(obj, name, source)
    width = max(len(title) for title, _ in fields) + 2
    return "\n".join(((title + ":") + text) if text.startswith("\n") else (title + ":").ljust(width) + text for title, text in fields)


@magic("line", "pinfo", verbatim=True)
def pinfo(ip, line):
    """Describe an object: name?"""
    _pinfo(ip, line, False)


@magic("line", "pinfo2", verbatim=True)
def pinfo2(ip, line):
    """Describe an object with its source: name??"""
    _pinfo(ip, line, True)


@magic("line", "psearch", verbatim=True)
def psearch(ip, line):
    """Names that match a pattern: str*?, os.*path*?"""
    import builtins
    from fnmatch import fnmatchcase
    _, pattern = parse(line, "aciesl:")
    prefix, dot, last = pattern.rpartition(".")
    if dot:
        found, obj = _lookup(ip, prefix)
        candidates = dir(obj) if found else []
    else:
        candidates = set(ip.user_ns) | set(dir(builtins))
    hidden = not last.startswith("_")
    for name in sorted(candidates):
        if fnmatchcase(name, last) and not (hidden and name.startswith("_")):
            print(prefix + dot + name)


@magic("line", "lsmagic")
def lsmagic(ip, line):
    """List the magics."""
    for kind, mark in (("line", "%"), ("cell", "%%")):
        print("Available %s magics:" % kind)
        print("  ".join(mark + name for name in sorted(set(names(kind)) | set(ip.magics[kind]))))
        if kind == "line":
            print()


@magic("line", "magic")
def magic_help(ip, line):
    """Describe the magics."""
    for kind, mark in (("line", "%"), ("cell", "%%")):
        for name in names(kind):
            print("%s%s: %s" % (mark, name, (find(name, kind).__doc__ or "").strip().splitlines()[0]))


# ---- running things ----------------------------------------------------------------------------------------

@magic("line", "run")
def run(ip, line):
    """%run [-i] [-n] FILE [ARGS], %run -m MODULE [ARGS]: run a program and keep its variables.

    -i runs it in the user's namespace, -n does not call it __main__.
    """
    options, rest = parse(line, "inem:t")
    if "m" in options:
        argv = [options["m"]] + words(rest)
    else:
        argv = words(rest)
        if not argv:
            raise UsageError("%run: you must provide at least a filename.")
        argv = argv[:1] + [x for arg in argv[1:] for x in _glob(arg)]
    saved_argv, saved_path = sys.argv, list(sys.path)
    sys.argv = argv
    try:
        if "m" in options:
            import runpy
            ip.user_ns.update(_public(runpy.run_module(options["m"], run_name="__main__", alter_sys=True)))
        else:
            _run_file(ip, _find_script(argv[0]), "i" in options, None if "n" in options else "__main__")
    except SystemExit as e:
        if e.code not in (None, 0) and "e" not in options:
            raise
    finally:
        sys.argv = saved_argv
        sys.path[:] = saved_path


def _glob(arg):
    import glob
    return sorted(glob.glob(os.path.expanduser(arg))) or [arg]


def _find_script(name):
    path = os.path.expanduser(name)
    for candidate in (path, path + ".py"):
        if os.path.isfile(candidate):
            return os.path.abspath(candidate)
    raise UsageError("File `%r` not found." % name)


def _public(namespace):
    return {k: v for k, v in namespace.items() if not (k.startswith("__") and k.endswith("__"))}


def _run_file(ip, path, interactive, name):
    if path.endswith((".ipy", ".ipynb")):
        for source in _cells(path):
            ip.run_source(source)
        return
    import types
    with open(path, "rb") as f:
        code = compile(f.read(), path, "exec")
    sys.path.insert(0, os.path.dirname(path))
    name = name or os.path.splitext(os.path.basename(path))[0]
    if interactive:
        old = {key: ip.user_ns.get(key) for key in ("__name__", "__file__")}
        ip.user_ns.update(__name__=name, __file__=path)
        try:
            exec(code, ip.user_ns)
        finally:
            for key, value in old.items():
                if value is None:
                    ip.user_ns.pop(key, None)
                else:
                    ip.user_ns[key] = value
        return
    module = types.ModuleType(name)
    module.__file__ = path
    saved = sys.modules.get(name)
    sys.modules[name] = module
    try:
        exec(code, module.__dict__)
    finally:
        if saved is not None:
            sys.modules[name] = saved
        else:
            sys.modules.pop(name, None)
        ip.user_ns.update(_public(module.__dict__))


def _cells(path):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    if path.endswith(".ipy"):
        return [text]
    import json
    return ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]


def _tool(ip, argv):
    import importlib
    ip.user_ns["_exit_code"] = _interactive.run_visible(_interactive.approved_argv(argv))
    importlib.invalidate_caches()
    print("Note: you may need to restart the kernel to use updated packages.")


@magic("line", "pip")
def pip(ip, line):
    """Run pip of this interpreter."""
    _tool(ip, [sys.executable, "-m", "pip"] + words(line))


@magic("line", "uv")
def uv(ip, line):
    """Run uv; `%uv pip` works on this interpreter's environment."""
    argv = words(line)
    if argv[:1] == ["pip"] and argv[1:] and not any(arg.startswith("--python") for arg in argv):
        argv[2:2] = ["--python", sys.executable]
    _tool(ip, ["uv"] + argv)


@magic("line cell", "sx", "system", "!")
def sx(ip, line, cell=None):
    """Run a command and answer its output as a list of lines."""
    return ip.getoutput(line if cell is None else cell)


def script_argv(name, line):
    """(program and arguments, options) of a script magic's line."""
    options = {"out": None, "err": None, "raise": True}
    argv = []
    given = words(line)
    while given:
        word = given.pop(0)
        key, equals, value = word.partition("=")
        if key in ("--out", "--err"):
            if not equals:
                if not given:
                    raise UsageError("argument %s: expected one argument" % key)
                value = given.pop(0)
            options[key[2:]] = value
        elif word in ("--no-raise-error", "--raise-error"):
            options["raise"] = word == "--raise-error"
        elif word in ("--bg", "--proc"):
            raise UsageError("%s is not supported here: use `!command &`" % word)
        else:
            argv.append(word)
    if name == "script":
        if not argv:
            raise UsageError("usage: %%script PROGRAM [ARGS]")
        return argv, options
    return [sys.executable if name in ("python", "python3") else name] + argv, options


def run_script(ip, name, line, cell):
    """Feed the cell to a program.  A failure raises CalledProcessError."""
    argv, options = script_argv(name, line)
    if _interactive.approve is not None:
        import shlex
        cell, args = _interactive.approved("shell_magic", cell, program=" ".join(map(shlex.quote, argv)))
        argv = shlex.split(args.get("program", "")) or argv
    fd = _file_with(cell.encode("utf-8", "surrogateescape"))
    chunks = {"out": [], "err": []}
    try:
        _interactive.flush_streams()
        if options["out"] or options["err"]:
            sinks = {}
            for key, stream in (("out", sys.stdout), ("err", sys.stderr)):
                sinks[key] = chunks[key].append if options[key] else _interactive.stream_sink(stream)
            code = _interactive.run_process(argv, sinks["out"], sinks["err"], fd)
        else:
            code = _interactive.run_visible(argv, fd)
    except FileNotFoundError:
        raise UsageError("Couldn't find program: %r" % argv[0]) from None
    finally:
        os.close(fd)
    texts = {key: b"".join(chunks[key]).decode("utf-8", "replace") for key in chunks}
    for key in ("out", "err"):
        if options[key]:
            ip.user_ns[options[key]] = texts[key]
    ip.user_ns["_exit_code"] = code
    if code and options["raise"]:
        from subprocess import CalledProcessError
        raise CalledProcessError(code, cell, texts["out"] or None, texts["err"] or None)


def _file_with(data):
    """A descriptor that reads these bytes: a pipe would need somebody to write while the program runs."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("cell")
    else:
        import tempfile
        fd, path = tempfile.mkstemp()
        os.unlink(path)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


SCRIPTS = ("script", "bash", "sh", "python", "python3", "perl", "ruby")


def _script_magic(name):
    def run(ip, line, cell):
        run_script(ip, name, line, cell)
    run.__doc__ = "Run the cell with %s." % ("a program" if name == "script" else name)
    magic("cell", name)(run)


for _name in SCRIPTS:
    _script_magic(_name)


# ---- output ------------------------------------------------------------------------------------------------

class RichOutput:
    def __init__(self, data, metadata, transient, update):
        self.data, self.metadata, self.transient, self.update = data, metadata, transient, update

    def _repr_mimebundle_(self, include=None, exclude=None):
        return self.data, self.metadata

    def display(self):
        _display.emit(self.data, self.metadata, self.transient, self.update)


class CapturedIO:
    """What %%capture keeps."""

    def __init__(self, stdout, stderr, outputs):
        self._stdout, self._stderr, self.outputs = stdout, stderr, outputs

    @property
    def stdout(self):
        return self._stdout.getvalue() if self._stdout is not None else ""

    @property
    def stderr(self):
        return self._stderr.getvalue() if self._stderr is not None else ""

    def __str__(self):
        return self.stdout

    def show(self):
        sys.stdout.write(self.stdout)
        sys.stderr.write(self.stderr)
        for output in self.outputs:
            output.display()

    __call__ = show


@magic("cell", "capture")
def capture(ip, line, cell):
    """%%capture [--no-stdout] [--no-stderr] [--no-display] [VARIABLE]: run the cell and keep its output."""
    import io
    options, rest = {}, []
    for word in line.split():
        if word in ("--no-stdout", "--no-stderr", "--no-display"):
            options[word] = True
        elif word.startswith("-"):
            raise UsageError("unrecognized arguments: %s" % word)
        else:
            rest.append(word)
    if len(rest) > 1:
        raise UsageError("unrecognized arguments: %s" % " ".join(rest[1:]))
    outputs = []

    def keep(data, metadata, transient, update):
        outputs.append(RichOutput(data, metadata, transient, update))

    captured = CapturedIO(None if "--no-stdout" in options else io.StringIO(),
                          None if "--no-stderr" in options else io.StringIO(), outputs)
    saved = sys.stdout, sys.stderr, _display.redirect, _display.clear
    try:
        sys.stdout = captured._stdout or sys.stdout
        sys.stderr = captured._stderr or sys.stderr
        if "--no-display" not in options:
            _display.redirect = keep
            _display.clear = lambda wait: outputs.clear()
        ip.run_cell(cell)
    finally:
        sys.stdout, sys.stderr, _display.redirect, _display.clear = saved
        if rest:
            ip.user_ns[rest[0]] = captured


@magic("cell", "writefile", "file")
def writefile(ip, line, cell):
    """%%writefile [-a] FILE: write the cell to a file; -a appends."""
    options, rest = parse(line, "a", ("append",))
    target = words(rest)
    if len(target) != 1:
        raise UsageError("usage: %%writefile [-a] FILE")
    path = os.path.expanduser(target[0])
    append = bool(options)
    exists = os.path.exists(path)
    print("%s %s" % ("Appending to" if append and exists else "Overwriting" if exists else "Writing", path))
    with open(path, "a" if append else "w", encoding="utf-8") as f:
        f.write(cell)


def _show_as(mime, class_name, *aliases):
    def show(ip, line, cell):
        _display.emit({"text/plain": "<IPython.core.display.%s object>" % class_name, mime: cell})
    show.__doc__ = "Display the cell as %s." % mime
    magic("cell", *aliases)(show)


_show_as("text/html", "HTML", "html", "HTML")
_show_as("text/markdown", "Markdown", "markdown")
_show_as("text/latex", "Latex", "latex")
_show_as("application/javascript", "Javascript", "javascript", "js")
_show_as("image/svg+xml", "SVG", "svg", "SVG")


# ---- settings ----------------------------------------------------------------------------------------------

@magic("line", "matplotlib")
def matplotlib(ip, line):
    """%matplotlib inline: figures are displayed at plt.show() and at the end of a cell, as they are without it."""
    import matplotlib as module
    name = line.strip().lower()
    if name in ("-l", "--list"):
        print("Available matplotlib backends: ['agg', 'inline']")
        return
    module.use("agg")


def _extension(name):
    import importlib
    return importlib.import_module(name)


@magic("line", "load_ext")
def load_ext(ip, line):
    """Load an extension: a module with load_ipython_extension(ip)."""
    name = line.strip()
    if not name:
        raise UsageError("Missing module name.")
    if name in ip.loaded_extensions:
        print("The %s extension is already loaded. To reload it, use:\n  %%reload_ext %s" % (name, name))
        return
    load = getattr(_extension(name), "load_ipython_extension", None)
    if load is None:
        print("The %s module is not an IPython extension." % name)
        return
    load(ip)
    ip.loaded_extensions.add(name)


@magic("line", "unload_ext")
def unload_ext(ip, line):
    """Unload an extension."""
    name = line.strip()
    if not name:
        raise UsageError("Missing module name.")
    if name not in ip.loaded_extensions:
        print("The %s extension is not loaded." % name)
        return
    unload = getattr(_extension(name), "unload_ipython_extension", None)
    if unload is None:
        print('The %s extension doesn\'t define how to unload it.' % name)
        return
    unload(ip)
    ip.loaded_extensions.discard(name)


@magic("line", "reload_ext")
def reload_ext(ip, line):
    """Reload an extension."""
    import importlib
    name = line.strip()
    if name in ip.loaded_extensions and hasattr(_extension(name), "unload_ipython_extension"):
        unload_ext(ip, name)
    ip.loaded_extensions.discard(name)
    if name in sys.modules:
        importlib.reload(sys.modules[name])
    load_ext(ip, name)


@magic("line", "config")
def config(ip, line):
    """There is nothing to configure without IPython."""
    print("%config has no effect: this environment has no IPython.")


@magic("line", "xmode")
def xmode(ip, line):
    """Tracebacks have one form here."""
    print("Exception reporting mode: Plain")


@magic("line", "colors")
def colors(ip, line):
    """Output has no colours here."""


@magic("line", "precision")
def precision(ip, line):
    """%precision 3 or %precision %.3e sets how floats are shown; alone it resets."""
    from . import pretty
    text = line.strip()
    if not text:
        pretty.float_text, form, digits = None, "%r", 8
    else:
        form = text if "%" in text else None
        digits = re.search(r"\d+", text)
        if form is None:
            if not text.isdigit():
                raise UsageError("Precision must be integer or format string, not '%s'" % text)
            form = "%%.%sf" % text
        try:
            form % 3.14159
        except Exception:
            raise UsageError("Precision must be integer or format string, not '%s'" % text)
        digits = int(digits.group()) if digits else 8
        pretty.float_text = form.__mod__
    if "numpy" in sys.modules:
        sys.modules["numpy"].set_printoptions(precision=digits)
    return form

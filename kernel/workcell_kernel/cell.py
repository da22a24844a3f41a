"""Compiling and running one cell.

A cell is plain Python until the compiler says otherwise: no magic, ``!cmd`` or ``obj?`` is valid Python, so the first
try costs nothing extra, and only a SyntaxError asks the interactive layer (interactive.py) for its reading of the cell.
"""

import builtins
import linecache
import sys
import types
from json import dumps  # taken now: code in the session may replace json.dumps

import _ast
from _workcell import is_expression, remember

from . import display as display_module
from . import errors, figures, interactive, values
from .awaits import is_needed, soften
from .split import CO_COROUTINE, FUTURE_MASK, STATEMENTS, split

ONLY_AST = _ast.PyCF_ONLY_AST
AWAIT = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
SPECIAL = FUTURE_MASK | CO_COROUTINE  # code with one of these flags is for run_code()

MAX_REPR = 1024 * 1024
COMPLETE = "%%workcell_complete\n"  # as complete.py has it, which is not loaded before somebody asks
VARIABLES = "%%workcell_variables\n"  # the same of variables.py
NOTEBOOK = "%%workcell_notebook\n"  # the same of notebook.py
METADATA = "application/vnd.workcell.metadata+json"  # for notebooks: the metadata of the other parts of a value
_PLAIN = frozenset((int, str, float, bool, type(None), bytes))


class Quit:
    """exit and quit: end the cell, never the kernel."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return "Use %s() to end the cell; the session continues." % self.name

    def __call__(self, code=None):
        raise SystemExit(code)


class Cells:
    """The namespace of one session and the cells run in it."""

    def __init__(self):
        self.module = types.ModuleType("__main__")
        self.ns = self.module.__dict__
        self.count = 0
        self.name = "<cell %d>"
        self.flags = AWAIT
        self.loop = None
        self.begun = None  # how far the cell is that comes next (ext/plain.c)
        self.hooked = None  # the interactive layer that self.callbacks belong to
        self.callbacks = {}  # lists of functions that are registered for a cell's beginning or end; they stay up to date
        self.home = None  # (cwd, its real name): where each cell ends up again
        self.portable = None  # (value) -> (MIME type, bytes) or None: for values that JSON cannot say
        self.notebook = None  # (request) -> answer: what a front end of Jupyter asks besides cells (notebook.py)
        self.interrupted = bool  # the kernel's: is there an interrupt for this run?
        self.history = [""]
        self.out = {}
        ns = self.ns
        ns["__builtins__"] = builtins
        ns["In"] = self.history
        ns["Out"] = self.out
        ns["_"] = ns["__"] = ns["___"] = ""
        for name in ("exit", "quit"):
            ns[name] = Quit(name)
        ns["display"] = display_module.display
        interactive.run_cell_hook = self.run_nested
        interactive.setup(ns, self.module)
        if interactive.current is not None:
            interactive.get_interactive()  # made by the zygote: from now on it works on this namespace

    def install(self):
        """Makes this namespace the process's __main__."""
        sys.modules["__main__"] = self.module
        builtins.display = display_module.display
        for name in ("exit", "quit"):
            setattr(builtins, name, self.ns[name])

    def begin_plain(self, begin):
        """From now on ext/plain.c, whose plain_begin() this is, runs the cells that are plain expressions."""
        begin(vars(self), vars(interactive), vars(linecache), display_module.shown, STATEMENTS, compile, eval)

    # -- compiling

    def parse(self, source, name):
        try:
            return compile(source, name, "exec", self.flags | ONLY_AST, True)
        except SyntaxError as plain:
            changed = interactive.transform(source)
            if changed == source or changed == source + "\n":
                raise plain.with_traceback(None)
        try:
            return compile(changed, name, "exec", self.flags | ONLY_AST, True)
        except SyntaxError as again:
            raise again.with_traceback(None) from None

    @staticmethod
    def hides_value(source):
        """Does the cell end in a semicolon (and not in a comment or string that does)?"""
        if not source.rstrip().endswith(";"):
            # A comment may follow the semicolon.
            if ";" not in source or "#" not in source[source.rindex(";"):]:
                return False
        import io
        import tokenize

        last = None
        try:
            for token in tokenize.generate_tokens(io.StringIO(source).readline):
                if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER,
                                      tokenize.INDENT, tokenize.DEDENT):
                    last = token
        except (tokenize.TokenError, SyntaxError):
            return source.rstrip().endswith(";")
        return last is not None and last.string == ";"

    # -- running

    def execute(self, source, begun=None):
        """Runs a cell, or what is left of it; returns (has_value, value). Exceptions of the code propagate to the caller."""
        if begun:
            value, failure = begun
            if failure is not None:
                raise failure
            return value is not None, value
        if begun is None:
            self.count += 1
            self.history.append(source)
        name = self.name % self.count
        ns = self.ns
        if "__warningregistry__" in ns:
            del ns["__warningregistry__"]  # a warning is shown once a cell, not once a session
        if begun is None and is_expression(source, STATEMENTS):
            # A tuple of lines, not a list: nothing that the garbage collector would look at again and again.
            linecache.cache[name] = (len(source), None, (source + "\n",), name)
            try:
                code = compile(source, name, "eval", self.flags, True)
                if code.co_flags & CO_COROUTINE:
                    tree = soften(compile(source, name, "eval", self.flags | ONLY_AST, True), source)
                    code = compile(tree, name, "eval", self.flags, True)
            except (SyntaxError, ValueError):
                pass
            else:
                value = self.run_code(code) if code.co_flags & SPECIAL else eval(code, ns)
                return value is not None, value
        elif begun is None:
            # Not splitlines(): a form feed or U+2028 in a string does not end a line of Python.
            linecache.cache[name] = (len(source), None, [line + "\n" for line in source.split("\n")], name)
            parts = None if is_needed(source) else split(source, name, self.flags)
            if parts is not None:
                first, code, has_value = parts
                if first is not None:
                    eval(first, ns)
                value = eval(code, ns)
                return has_value and value is not None, value
        tree = soften(self.parse(source, name), source)
        body = tree.body
        if not body:
            return False, None
        last = body[-1]
        if type(last) is not _ast.Expr:
            self.run_code(compile(tree, name, "exec", self.flags, True))
            return False, None
        final = compile(_ast.Expression(last.value), name, "eval", self.flags, True)
        if len(body) > 1:
            del body[-1]
            first = compile(tree, name, "exec", self.flags, True)
            if (first.co_flags | final.co_flags) & CO_COROUTINE:
                value = self.run_coroutine(self.run_in_order(first, final))
            else:
                self.run_code(first)
                value = self.run_code(final)
        else:
            value = self.run_code(final)
        if value is None or self.hides_value(source):
            return False, None
        return True, value

    def run_code(self, code):
        flags = code.co_flags
        if flags & FUTURE_MASK:
            self.flags |= flags & FUTURE_MASK
        if flags & CO_COROUTINE:
            return self.run_coroutine(eval(code, self.ns))
        return eval(code, self.ns)

    async def run_in_order(self, first, final):
        """A cell with an await anywhere runs entirely on the loop: its plain lines may need the loop too."""
        for code in (first, final):
            self.flags |= code.co_flags & FUTURE_MASK
            value = eval(code, self.ns)
            if code.co_flags & CO_COROUTINE:
                value = await value
        return value

    def run_coroutine(self, coroutine):
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(coroutine)
        try:
            return self.loop.run_until_complete(task)
        except BaseException:
            # An interrupt comes out of the loop, not out of the task: end the task too, or it would go on
            # behind the next cell's back.
            if not task.done():
                task.cancel()
                try:
                    self.loop.run_until_complete(task)
                except BaseException:
                    pass
            raise

    def find_hooks(self):
        self.hooked, self.callbacks = interactive.current, {}
        if self.hooked is None:
            return
        self.callbacks = callbacks = self.hooked.events.callbacks
        # IPython's own is done by execute() for either interactive layer.
        callbacks["pre_execute"][:] = [
            hook for hook in callbacks["pre_execute"] if getattr(hook, "__name__", "") != "_clear_warning_registry"
        ]

    def run_nested(self, source):
        """For magics that run code: the value, exceptions pass. Figures belong to the output that %%capture takes."""
        try:
            return self.execute(source)[1]
        finally:
            figures.flush(None, self.interrupted)

    def attempt(self, source, begun=None):
        """The interruptible part of a run: interrupts are raised only while this is on the stack, or plain.c runs the cell."""
        if begun is None:
            if self.interrupted():
                raise KeyboardInterrupt  # it was faster than the cell
            display_module.shown.clear()
        has_value, value = False, None
        try:
            has_value, value = self.execute(source, begun)
        finally:
            if "matplotlib.pyplot" in sys.modules:
                figures.flush(value if has_value else None, self.interrupted)
        if not has_value:
            return None, None, (), None
        text = remember(self.ns, self.out, self.count, value)
        return self.present(value) if text is None else (text, text, (), None)

    def run(self, source):
        """Runs a cell; returns (value_json, repr, mime, error): bytes or None, bytes or None, list, dict or None."""
        if source.startswith(COMPLETE):
            return self.complete(source[len(COMPLETE):])
        if source == VARIABLES:
            return self.list_variables()
        if self.notebook is not None and source.startswith(NOTEBOOK):
            return self.answer_notebook(source[len(NOTEBOOK):])
        if interactive.current is not self.hooked:
            self.find_hooks()
        begun, self.begun = self.begun, None
        if not begun and any(self.callbacks.values()):
            interactive.current.fire("pre_execute")
            interactive.current.fire("pre_run_cell", source)
        failure = None
        try:
            return self.attempt(source, begun)
        except BaseException as exc:
            failure = exc
            figures.discard()
            return None, None, (), errors.describe(exc)
        finally:
            if interactive.current is not self.hooked:
                self.find_hooks()
            if any(self.callbacks.values()):
                interactive.current.fire("post_execute")
                interactive.current.fire("post_run_cell", source, self.ns.get("_"), failure)
            if self.home is not None:
                self.go_home()
            failure = begun = None  # a frame that holds its own exception is a cycle

    def complete(self, text):
        """Answers what could continue the text. Not a cell: it has no number, no history and no value. Interruptible as attempt() is."""
        try:
            from . import complete

            found = complete.answer(text, self.ns)
        except BaseException as exc:
            return None, None, (), errors.describe(exc)
        return found, found, (), None

    def list_variables(self):
        """Answers which variables there are. Not a cell either."""
        try:
            from . import variables

            found = variables.answer(self.ns)
        except BaseException as exc:
            return None, None, (), errors.describe(exc)
        return found, found, (), None

    def answer_notebook(self, text):
        """Answers a front end of Jupyter. A cell only where it asks for one to be run without a trace."""
        try:
            return self.notebook(text)
        except BaseException as exc:
            figures.discard()
            return None, None, (), errors.describe(exc)

    def run_unnumbered(self, source, silent):
        """A cell that leaves neither a number nor history nor a value behind."""
        count, before = self.count, len(self.history)
        display_module.shown.clear()
        try:
            has_value, value = self.execute(source)
            figures.flush(value if has_value else None, self.interrupted)
        finally:
            self.count = count
            del self.history[before:]
        return self.present(value) if has_value and not silent else (None, None, (), None)

    def go_home(self):
        """Restores the session's working directory."""
        import os

        folder, real = self.home
        try:
            if os.getcwd() == real:
                return
        except OSError:
            pass  # it is gone
        try:
            os.chdir(folder)
            sys.stdout.write("[workcell] cwd reset to %s\n" % folder)
        except OSError as exc:
            sys.stderr.write("[workcell] cwd not reset: %s\n" % exc)

    def present(self, value):
        if type(value) in _PLAIN:
            with values.any_digits():
                text = repr(value)
            # JSON cannot say bytes: they go beside the repr as they are, and by base64 where JSON is wanted.
            mime = [("application/octet-stream", value)] if type(value) is bytes else ()
        else:
            with values.any_digits():
                text = repr(value)
                try:
                    data, metadata = display_module.mime_bundle(value)
                    data = display_module.normalise(data)
                    if metadata and self.notebook is not None:
                        data = {**data, METADATA: metadata}
                except Exception as exc:
                    # A class that lies about itself: its repr() has to do.
                    display_module.report_error(exc)
                    data = {}
            plain = data.pop("text/plain", text)
            mime = [("text/plain", cut(plain))] if plain != text else []
            mime.extend((kind, part_bytes(part)) for kind, part in data.items())
        encoded = values.encode(value)
        if encoded is None and self.portable is not None:
            part = self.portable(value)
            if part is not None:
                mime = [*mime, part]
        return encoded, cut(text), mime, None


def part_bytes(part):
    """One part of a MIME bundle as it travels: bytes raw, text as UTF-8, anything else as JSON."""
    if isinstance(part, (bytes, bytearray, memoryview)):
        return bytes(part)
    if isinstance(part, str):
        return part.encode("utf-8", "backslashreplace")
    return dumps(part, default=repr).encode()


def cut(text):
    """Text as UTF-8, with its middle left out if it is too long."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= MAX_REPR:
        return data
    half = MAX_REPR // 2
    note = "\n[... %d bytes left out ...]\n" % (len(data) - 2 * half)
    head = data[:half].decode("utf-8", "ignore")
    tail = data[-half:].decode("utf-8", "ignore")
    return (head + note + tail).encode()


"""What a front end of Jupyter needs besides cells: comms, input(), displays that can be updated, help for the person who types.

The front end (src/cli/jupyter_kernel.c) asks by cells that begin with cell.NOTEBOOK, JSON behind it, and gets JSON. What goes to it
unasked is a display whose first part is of the type HEAD: which message of Jupyter's it is, with what the other parts do not say.
Nothing of this package is imported before a session has such a front end.
"""

import builtins
import codeop
import importlib.abc
import importlib.machinery
import sys
from base64 import b64decode
from json import dumps, loads

from . import complete as completion
from . import display as display_module
from . import errors, interactive, magics
from .cell import part_bytes

HEAD = "application/vnd.workcell.jupyter+json"
MAX_PROMPT = 64 * 1024

cells = channel = send = None


class StdinNotImplementedError(RuntimeError):
    """As IPython calls it."""


def install(the_cells, the_channel, publish):
    global cells, channel, send
    cells, channel, send = the_cells, the_channel, publish
    cells.notebook = answer
    display_module.publish = publish_display
    display_module.clear = lambda wait: tell("clear_output", {"wait": bool(wait)})
    interactive.page = show_page
    interactive.next_input = set_next_input
    builtins.input = read_line
    sys.meta_path.insert(0, AfterImport())


# -- to the front end

def tell(kind, content, parts=()):
    """One message for the front end; ``parts`` are (MIME type, bytes)."""
    send({HEAD: dumps({"type": kind, **content}, default=repr), **dict(parts)})


def publish_display(data, metadata=None, transient=None, update=False):
    tell("update_display_data" if update else "display_data", {"metadata": metadata or {}, "transient": transient or {}}, data.items())


def show_page(text):
    tell("page", {"text": text})


def set_next_input(text, replace=False):
    tell("set_next_input", {"text": text, "replace": bool(replace)})


def read_line(prompt="", /):
    return ask(str(prompt), False)


def read_password(prompt="Password: ", stream=None):
    return ask(str(prompt), True)


def ask(prompt, password):
    from .ns_errors import ApprovalRejectedError

    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        return channel.call("input.read", {"prompt": prompt[:MAX_PROMPT], "password": password})[0]["value"]
    except ApprovalRejectedError:
        raise StdinNotImplementedError("input() was called, but this front end does not support it") from None


# -- modules that behave differently here

class AfterImport(importlib.abc.MetaPathFinder):
    """Finds nothing, but changes a few modules when they have been loaded."""

    def __init__(self):
        self.busy = False

    def find_spec(self, name, path=None, target=None):
        change = CHANGES.get(name)
        if change is None or self.busy:
            return None
        self.busy = True
        try:
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        finally:
            self.busy = False
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return None
        load = spec.loader.exec_module

        def load_and_change(module):
            load(module)
            change(module)

        spec.loader.exec_module = load_and_change
        return spec


def change_getpass(module):
    module.getpass = read_password


def change_comm(module):
    """The package that ipywidgets and others make their comms with."""
    from comm import base_comm

    class Comm(base_comm.BaseComm):
        def publish_msg(self, msg_type, data=None, metadata=None, buffers=None, **keys):
            content = {"data": data or {}, "comm_id": self.comm_id, **{key: value for key, value in keys.items() if value is not None}}
            parts = {"application/octet-stream;n=%d" % i: bytes(part) for i, part in enumerate(buffers or ())}
            tell(msg_type, {"content": content, "metadata": metadata or {}, "buffers": len(parts)}, parts.items())

    manager = base_comm.CommManager()
    module.create_comm = lambda *args, **kwargs: Comm(*args, **kwargs)
    module.get_comm_manager = lambda: manager


def change_ipywidgets(module):
    module.register_comm_target()  # by itself only where it finds ipykernel's get_ipython()


CHANGES = {"comm": change_comm, "getpass": change_getpass, "ipywidgets": change_ipywidgets}
if "getpass" in sys.modules:
    change_getpass(sys.modules["getpass"])
if "comm" in sys.modules:
    change_comm(sys.modules["comm"])


# -- answers

def answer(text):
    request = loads(text)
    return ANSWERS[request.pop("ask")](**request)


def json_answer(value):
    text = dumps(value, default=repr).encode()
    return text, text, (), None


def describe():
    return json_answer({"version": "%d.%d.%d" % sys.version_info[:3]})


def run(code, silent):
    return cells.run_unnumbered(code, silent)


def evaluate(expressions):
    """user_expressions of an execute_request: each has a value or an error of its own."""
    found = {}
    for name, code in expressions.items():
        try:
            data, metadata = display_module.mime_bundle(eval(code, cells.ns))
            parts = {kind: part if isinstance(part, str) else part_bytes(part).decode("utf-8", "backslashreplace")
                     for kind, part in data.items() if kind.startswith("text/")}
            found[name] = {"status": "ok", "data": parts, "metadata": metadata}
        except Exception as exc:
            error = errors.describe(exc)
            found[name] = {"status": "error", "ename": error["type"], "evalue": error["message"],
                           "traceback": error["traceback"].split("\n")}
    return json_answer(found)


def complete(code, cursor_pos):
    before = code[:cursor_pos]
    found = loads(completion.answer(before, cells.ns))
    return json_answer({"matches": found["matches"], "cursor_start": len(before) - len(found["prefix"]), "cursor_end": len(before)})


def inspect(code, cursor_pos, detail_level):
    """Describes the name at the cursor, or the function whose arguments are being typed."""
    name = name_at(code, cursor_pos)
    try:
        text = magics.description(completion.resolve(name.split("."), cells.ns), name, detail_level > 0)
    except (LookupError, AttributeError):
        return json_answer({"found": False, "data": {}, "metadata": {}})
    return json_answer({"found": True, "data": {"text/plain": text}, "metadata": {}})


def name_at(code, cursor):
    start = end = cursor
    while end < len(code) and (code[end].isidentifier() or code[end].isdigit()):
        end += 1
    while start > 0 and (code[start - 1].isidentifier() or code[start - 1].isdigit() or code[start - 1] == "."):
        start -= 1
    name = code[start:end].strip(".")
    if name and not name[0].isdigit():
        return name
    depth = 0
    for at in range(start - 1, -1, -1):
        if code[at] in ")]}":
            depth += 1
        elif code[at] in "([{":
            depth -= 1
            if depth < 0:
                return name_at(code[:at], at) if code[at] == "(" and at > 0 else ""
    return ""


def is_complete(code):
    """complete, incomplete (with the indent of the next line), or invalid, as a person's next key press needs it."""
    text = code.rstrip(" \t")
    if text.lstrip().startswith("%%"):
        whole = "\n\n" in text or text.endswith("\n")
        return json_answer({"status": "complete"} if whole else {"status": "incomplete", "indent": ""})
    try:
        compiled = compile_command(code)
    except (SyntaxError, OverflowError, ValueError):
        return json_answer({"status": "invalid"})
    lines = text.split("\n")
    last = lines[-1]
    in_block = last.startswith((" ", "\t")) and last.strip() and len([line for line in lines if line.strip()]) > 1
    if compiled is not None and not in_block:
        return json_answer({"status": "complete"})
    indent = last[:len(last) - len(last.lstrip())]
    if last.rstrip().endswith(":"):
        indent += "    "
    elif last.lstrip().split(" ")[0] in ("return", "raise", "pass", "break", "continue"):
        indent = indent[:-4]
    return json_answer({"status": "incomplete", "indent": indent})


def compile_command(code):
    """None: it is not all there."""
    source = code
    try:
        compile(source, "<cell>", "exec", cells.flags, True)
        return True
    except SyntaxError:
        changed = interactive.transform(source)
        if changed != source:
            source = changed
    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= cells.flags
    return compiler(source, "<cell>", "exec")


# -- comms from the front end

def comm_message(kind, content, metadata, buffers):
    manager = comm_manager()
    if manager is not None:
        message = {"content": content, "metadata": metadata, "buffers": [memoryview(b64decode(each)) for each in buffers],
                   "header": {"msg_type": kind}, "msg_type": kind}
        getattr(manager, kind)(None, None, message)
    elif kind == "comm_open":
        tell("comm_close", {"content": {"comm_id": content.get("comm_id"), "data": {}}, "metadata": {}, "buffers": 0})
    return None, None, (), None


def comm_info(target):
    manager = comm_manager()
    comms = dict(manager.comms) if manager is not None else {}
    return json_answer({name: {"target_name": each.target_name} for name, each in comms.items() if target in (None, each.target_name)})


def comm_manager():
    """None: nothing in this session has made or can make a comm."""
    module = sys.modules.get("comm")
    return module.get_comm_manager() if module is not None else None


ANSWERS = {
    "describe": describe, "run": run, "evaluate": evaluate, "complete": complete, "inspect": inspect, "is_complete": is_complete,
    "comm": comm_message, "comm_info": comm_info,
}

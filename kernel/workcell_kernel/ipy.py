"""The bridge to the environment's own IPython, version 7 to 9.

create() makes an InteractiveShell on the user's namespace, as IPython's global instance, so that
get_ipython(), IPython.display and extensions work.  It transforms cells and runs magics; the kernel runs the
code.  Compared to a normal IPython it has no history file and thread, no profile directory, no colours, no
completer until one is asked for, and no say over sys.displayhook, sys.excepthook, sys.ps1 or the end of the
process.

Nothing here imports IPython before create() or a warm step is called.
"""

import os
import re
import sys

from . import display as _display
from . import interactive as _interactive


def create(user_ns, user_module):
    import atexit
    import builtins
    from IPython.core import interactiveshell

    if interactiveshell.InteractiveShell.initialized():
        type(interactiveshell.InteractiveShell.instance()).clear_instance()
    saved = sys.displayhook, sys.excepthook, getattr(builtins, "display", None)
    store = getattr(interactiveshell, "PickleShareDB", None)
    if store is not None:
        interactiveshell.PickleShareDB = _Store
    try:
        ip = _bridge_class().instance(user_ns=user_ns, user_module=user_module, config=_config())
    finally:
        if store is not None:
            interactiveshell.PickleShareDB = store
        sys.displayhook, sys.excepthook = saved[:2]
        builtins.display = saved[2] or _display.display
    atexit.unregister(ip.atexit_operations)
    _connect(ip)
    return ip


def _config():
    from traitlets.config import Config
    import IPython
    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "nocolor" if IPython.version_info[0] >= 9 else "NoColor"
    config.InteractiveShell.xmode = "Plain"
    config.InteractiveShell.autoindent = False
    return config


class _Store(dict):
    """Where IPython keeps bookmarks, aliases and %store: in memory, for the life of the session."""

    def __init__(self, root=None):
        super().__init__()

    def keys(self, globpat=None):
        from fnmatch import fnmatch
        return [key for key in dict.keys(self) if globpat is None or fnmatch(key, globpat)]


class _ProfileDir:
    location = ""


_class = None


def _bridge_class():
    global _class
    if _class is None:
        _class = _make_class()
    return _class


def _make_class():
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.text import SList

    class Publisher(DisplayPublisher):
        def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **kwargs):
            _display.publish(_display.normalise(data), metadata or {}, transient or {}, bool(update))

        def clear_output(self, wait=False):
            _display.clear_output(wait)

    class Hook(DisplayHook):
        def __call__(self, result=None):
            if result is not None:
                _display.display(result)

    class Bridge(_interactive.InteractiveBase, InteractiveShell):
        displayhook_class = Hook
        _slist = SList
        _db = _Store()  # IPython 9 makes its own store where this is None

        # -- steps of InteractiveShell.__init__ that would reach outside the namespace

        def init_ipython_dir(self, ipython_dir):
            pass

        def init_profile_dir(self, profile_dir):
            # Past the trait, whose class creates the directory.
            self._trait_values["profile_dir"] = _ProfileDir()

        def init_environment(self):
            pass

        def init_virtualenv(self):
            pass

        def init_sys_modules(self):
            pass

        def init_io(self):
            pass

        def init_prompts(self):
            pass

        def init_completer(self):
            pass

        def enable_gui(self, gui=None):
            pass

        def init_display_pub(self):
            # Without `shell=`: IPython 9 would register callbacks that run around every cell.
            self.display_pub = Publisher(parent=self)
            self.display_pub.shell = self
            self.configurables.append(self.display_pub)

        def init_builtins(self):
            super().init_builtins()
            for name in ("exit", "quit"):
                self.builtin_trap.auto_builtins.pop(name, None)

        def init_user_ns(self):
            """The kernel owns the namespace: share its histories, add what is missing."""
            ns, history = self.user_ns, self.history_manager
            shared = (("In", list, ("input_hist_parsed", "input_hist_raw")), ("Out", dict, ("output_hist",)))
            for name, kind, traits in shared:
                if isinstance(ns.get(name), kind):
                    for trait in traits:
                        # Past the trait, which would store a copy.
                        history._trait_values[trait] = ns[name]
                else:
                    ns[name] = getattr(history, traits[0])
            ns["_ih"], ns["_oh"] = ns["In"], ns["Out"]
            ns.setdefault("_dh", history.dir_hist)
            ns["get_ipython"] = _interactive.get_ipython
            self._hide()

        def _hide(self):
            ns = self.user_ns
            self.user_ns_hidden.update((name, ns[name]) for name in _interactive.protected if name in ns)

        def init_magics(self):
            super().init_magics()
            from . import magics
            for name in magics.SCRIPTS + ("pypy", "python2"):
                self.register_magic_function(self._script(magics.run_script, name), "cell", name)

        def _script(self, run_script, name):
            def script(line, cell):
                run_script(self, name, line, cell)
            script.__doc__ = "Run the cell with %s." % ("a program" if name == "script" else name)
            return script

        def init_alias(self):
            super().init_alias()
            for name, command in list(self.alias_manager.aliases):
                plain = command.replace(" --color", "").replace(" -G", "")
                if plain != command:
                    self.alias_manager.soft_define_alias(name, plain)

        def __getattr__(self, name):
            if name == "Completer" and "_completer_made" not in self.__dict__:
                self.__dict__["_completer_made"] = True
                InteractiveShell.init_completer(self)
                return self.__dict__["Completer"]
            raise AttributeError("%r object has no attribute %r" % (type(self).__name__, name))

        # -- magics

        def run_line_magic(self, magic_name, line, _stack_depth=1):
            if magic_name.startswith(("who", "reset")):
                self._hide()
            # Two frames are ours: this one and _in_magic.
            value = self._in_magic(super().run_line_magic, magic_name, line, _stack_depth + 2)
            if magic_name == "reset" and re.search(r"(^|\s)-[a-z]*s", line):
                _interactive.was_reset(self.user_ns)  # the soft one does not go through reset()
            return value

        def run_cell_magic(self, magic_name, line, cell):
            return self._in_magic(super().run_cell_magic, magic_name, line, cell)

        # -- errors

        def showtraceback(self, exc_tuple=None, *args, **kwargs):
            error = (exc_tuple or sys.exc_info())[1]
            if error is None:
                error = getattr(sys, "last_value", None)
                if error is None:
                    print("No traceback available to show.", file=sys.stderr)
                else:
                    _display.report_error(error)
                return
            caller = sys._getframe(1).f_globals.get("__name__")
            # A representation or a callback that fails ends nothing; what a magic shows is why it gave up.
            if self._magic_depth and caller not in ("IPython.core.formatters", "IPython.core.events"):
                self._magic_error = self._magic_error or error
            else:
                _display.report_error(error)

        def showsyntaxerror(self, filename=None, *args, **kwargs):
            self.showtraceback()

        def show_usage_error(self, exc):
            self.showtraceback()

        # -- namespace

        def rebind(self, user_ns, user_module):
            self.user_module, self.user_ns = self.prepare_user_module(user_module, user_ns)
            self.ns_table["user_global"] = self.user_module.__dict__
            self.ns_table["user_local"] = user_ns
            self.user_ns_hidden.clear()
            self.init_user_ns()

        def ask_yes_no(self, prompt, default=None, interrupt=None):
            return True  # there is nobody to ask

        def reset(self, new_session=True, aggressive=False):
            kept = {name: value for name, value in self.user_ns.items()
                    if name in _interactive.protected or (name.startswith("__") and name.endswith("__"))}
            InteractiveShell.reset(self, new_session, aggressive)
            self.user_ns.update(kept)
            self.init_user_ns()
            _interactive.was_reset(self.user_ns)

    Bridge.__name__ = Bridge.__qualname__ = "InteractiveShell"
    return Bridge


def _connect(ip):
    """Make display() and the values of cells go through what is registered with this IPython."""
    own = ip.display_pub

    def redirect(data, metadata, transient, update):
        if ip.display_pub is own:
            _display.publish(data, metadata, transient, update)
        else:  # somebody captures
            ip.display_pub.publish(data=data, metadata=metadata, transient=transient, update=update)

    formatter = ip.display_formatter
    formatter.formatters["image/png"].for_type_by_name("matplotlib.figure", "Figure", _display._figure_png)
    plain = formatter.formatters["text/plain"]
    everyone = [formatter.mimebundle_formatter, formatter.ipython_display_formatter]
    everyone += formatter.formatters.values()
    kinds = ("type_printers", "deferred_printers", "singleton_printers")
    tables = [getattr(f, kind) for f in everyone for kind in kinds]
    initial = [dict(table) for table in tables]

    def settings():
        return (plain.pprint, plain.max_width, plain.max_seq_length, plain.float_format,
                len(formatter.formatters))

    defaults = settings()

    def format(obj, include, exclude):
        # Our own algorithm gives the same answer many times faster, as long as nobody changed anything.
        if tables == initial and defaults == settings():
            return None
        return formatter.format(obj, include=include, exclude=exclude)

    def show_in_pager(self, data, start=0, screen_lines=0, pager_cmd=None):
        _interactive.page(data.get("text/plain", "") if isinstance(data, dict) else data)

    _display.redirect = redirect
    _display.formatter = format
    ip.set_hook("show_in_pager", show_in_pager, 0)


# ---- warming -----------------------------------------------------------------------------------------------

# What the import of IPython brings in, in pieces.  Only what is there is imported, and for an IPython that
# imports its terminal part later, that part is left out.
_PIECES = ("typing", "inspect", "socket", "ssl", "asyncio.base_events", "asyncio", "logging.config",
           "sqlite3", "traitlets.traitlets", "traitlets.config.application", "pdb", "pygments.lexers.python",
           "stack_data", "pygments.formatters.terminal256", "pygments.styles", "decorator", "pickleshare",
           "pexpect")
_TERMINAL_PIECES = ("unittest.mock", "importlib.metadata", "urllib.request", "cProfile", "uuid",
                    "pygments.formatters.html", "concurrent.futures.thread", "backcall", "exceptiongroup",
                    "wcwidth", "prompt_toolkit", "prompt_toolkit.patch_stdout", "parso", "jedi")


def _import(name):
    import gc
    import importlib
    # Nothing that an import makes is garbage, and looking for it takes a third of the time.
    enabled = gc.isenabled()
    gc.disable()
    try:
        importlib.import_module(name)
    except ImportError:
        pass
    finally:
        if enabled:
            gc.enable()


def _imports_terminal():
    spec = _interactive._ipython_spec()
    try:
        with open(spec.origin, encoding="utf-8") as f:
            return any(line.startswith("from .terminal") for line in f)
    except (OSError, AttributeError, TypeError):
        return True


def warm_steps():
    """Callables that import and instantiate everything, each short, for a zygote to call while idle."""
    from functools import partial
    if "IPython" in sys.modules:
        steps = []
    else:
        names = _PIECES + (_TERMINAL_PIECES if _imports_terminal() else ())
        steps = [partial(_import, name) for name in names] + [_import_ipython]
    return steps + [_interactive.get_interactive, _warm_transform, _warm_magics, _warm_display]


def _import_ipython():
    # The interactive layer is a step of its own, not part of the import.
    _interactive.remove_import_hook()
    _import("IPython")


def _warm_transform():
    _interactive.get_interactive().transform_cell("x = !true\n%pwd\nname?\nif x:\n    !true")


def _warm_magics():
    ip = _interactive.get_interactive()
    for name in ("time", "pwd", "cd", "run", "who", "pinfo"):
        ip.find_line_magic(name)
    for name in ("capture", "time", "timeit", "writefile", "html"):
        ip.find_cell_magic(name)
    import signal, select, codecs  # noqa: E401, F401


def _warm_display():
    ip = _interactive.get_interactive()
    _display.mime_bundle([1])
    if hasattr(ip.display_formatter, "formatters"):
        ip.display_formatter.format(os.environ.__class__)

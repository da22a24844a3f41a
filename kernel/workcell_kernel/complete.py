"""Completions for a person who types: names, attributes, modules and magics that could continue the code.

Nothing of the code is evaluated. Attributes are looked up without running properties or ``__getattr__`` of the session's
classes; ``__dir__`` runs, as it does for rlcompleter and IPython.
"""

import builtins
import keyword
import re
import sys
import types
from inspect import getattr_static
from json import dumps

MAX_MATCHES = 500
MAX_LENGTH = 200

PATH = re.compile(r"((?:\w+\s*\.\s*)*)(\w*)\Z")
IMPORT = re.compile(r"(?:^|[;\n])[ \t]*import\s+(?:[\w.]+(?:\s+as\s+\w+)?\s*,\s*)*([\w.]*)\Z")
FROM = re.compile(r"(?:^|[;\n])[ \t]*from\s+([\w.]*)\Z")
FROM_IMPORT = re.compile(r"(?:^|[;\n])[ \t]*from\s+([\w.]+)\s+import\s+\(?(?:\s*\w+(?:\s+as\s+\w+)?\s*,)*\s*(\w*)\Z")
MAGIC = re.compile(r"(?:^|\n)[ \t]*(%%?)(\w*)\Z")

# C descriptors that only read a field of the object.
FIELDS = (types.GetSetDescriptorType, types.MemberDescriptorType)


def answer(text, ns):
    """The completions of ``text``, the code before the cursor, as JSON: {"prefix", "matches"}.

    ``prefix`` is the end of the text that each of the matches begins with.
    """
    prefix, found = find(text, ns)
    hidden = not prefix.startswith("_")
    matches = sorted({each for each in found if type(each) is str and each.startswith(prefix) and len(each) <= MAX_LENGTH
                      and each.isprintable() and not (hidden and each.startswith("_"))})
    return dumps({"prefix": prefix, "matches": matches[:MAX_MATCHES], "more": max(len(matches) - MAX_MATCHES, 0)}).encode()


def find(text, ns):
    """(prefix, names): what was typed of the last word, and names that may or may not begin with it."""
    if is_quoted(text):
        return "", ()
    for pattern, names in ((FROM_IMPORT, members_of_module), (FROM, modules), (IMPORT, modules)):
        match = pattern.search(text)
        if match:
            return match.groups()[-1].rpartition(".")[2], names(match.group(1))
    match = MAGIC.search(text)
    if match:
        return match.group(2), magic_names("cell" if match.group(1) == "%%" else "line")
    match = PATH.search(text)
    path, prefix = match.groups()
    before = text[:match.start()].rstrip()
    if path:
        if before.endswith("."):
            return prefix, ()  # of a call's or an item's value: that would have to be evaluated
        return prefix, attributes(path, ns)
    if before.endswith("."):
        return prefix, ()
    return prefix, [*ns, *dir(builtins), *keyword.kwlist]


def attributes(path, ns):
    try:
        value = resolve([each.strip() for each in path.split(".")[:-1]], ns)
        return [each for each in dir(value) if type(each) is str and each.isidentifier()]
    except Exception:
        return ()


def resolve(names, ns):
    """The object that a dotted name means, without running any code of it. LookupError, AttributeError: it means none."""
    first, *rest = names
    value = ns[first] if first in ns else vars(builtins)[first]
    for name in rest:
        value = attribute(value, name)
    return value


def attribute(value, name):
    if type(value).__module__.partition(".")[0] == __package__:
        return getattr(value, name)  # tools, workflows and the like: ours
    found = getattr_static(value, name)
    if isinstance(found, FIELDS):
        return getattr(value, name)
    if isinstance(found, (staticmethod, classmethod)):
        return found.__func__
    if not isinstance(found, (type, types.FunctionType, types.BuiltinFunctionType)) and hasattr(type(found), "__get__"):
        raise AttributeError(name)  # a property: it would run
    return found


def members_of_module(name):
    module = sys.modules.get(name)
    return [*dir(module), *modules(name + ".")] if module is not None else modules(name + ".")


def modules(path):
    """The modules of the package that the path leads to, or those that can be imported."""
    import pkgutil

    package = path.rpartition(".")[0]
    if not package:
        loaded = [each for each in sys.modules if each.isidentifier()]
        return [*sys.builtin_module_names, *loaded, *(each.name for each in pkgutil.iter_modules())]
    module = sys.modules.get(package)
    folders = getattr(module, "__path__", None)
    return [each.name for each in pkgutil.iter_modules(folders)] if folders else ()


def magic_names(kind):
    from . import interactive, magics

    shell = interactive.current
    own = getattr(getattr(shell, "magics_manager", None), "magics", None) or getattr(shell, "magics", None) or {}
    return [*own.get(kind, ()), *magics.names(kind)]


def is_quoted(text):
    """Whether the text ends inside a string or a comment."""
    at, size = 0, len(text)
    while at < size:
        char = text[at]
        if char == "#":
            end = text.find("\n", at)
            if end < 0:
                return True
            at = end
        elif char in "'\"":
            quote = char * 3 if text.startswith(char * 3, at) else char
            at += len(quote)
            while at < size and not text.startswith(quote, at):
                if text[at] == "\n" and len(quote) == 1:
                    break
                at += 2 if text[at] == "\\" else 1
            if at >= size:
                return True
            at += len(quote) if text[at] != "\n" or len(quote) == 3 else 0
            continue
        at += 1
    return False

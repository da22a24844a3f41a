"""Writes docs/python/api.md from the docstrings of the package workcell.

    python3 scripts/python-api.py [--check]

--check writes nothing and fails when the page is not what the docstrings say. The package must be importable.
"""
import inspect
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "docs", "python", "api.md")
MODULES = ["workcell", "workcell.sync", "workcell.execution", "workcell.execution.container.client", "workcell.tools", "workcell.workflows", "workcell.artifacts",
           "workcell.deps", "workcell.storage", "workcell.events", "workcell.prompt", "workcell.approvals", "workcell.errors",
           "workcell.integrations.autogen"]


def signature(value):
    try:
        text = str(inspect.signature(value))
    except (TypeError, ValueError):
        return "(...)"
    # Types are in the source; here they are in the way. What is left is names and defaults.
    parameters = []
    for parameter in inspect.signature(value).parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        mark = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
        if parameter.kind.name == "KEYWORD_ONLY" and not any(each.startswith("*") for each in parameters):
            parameters.append("*")
        shown = mark + parameter.name
        if parameter.default is not parameter.empty:
            default = repr(parameter.default)
            shown += "=" + ("..." if " at 0x" in default or "<" in default else default)
        parameters.append(shown)
    return "(%s)" % ", ".join(parameters) if text else "()"


def first_lines(value):
    """The docstring; literal blocks and lists stay as they are."""
    doc = inspect.getdoc(value) or ""
    doc = re.sub(r":(?:class|meth|mod|func|attr|data):`~?\.?([\w.]+)`", r"`\1`", doc)
    return doc.replace("``", "`").replace("::\n", ":\n")


def members(cls):
    # What it has from a class that is nobody else's is its own.
    found = {name: value for each in reversed(cls.__mro__) if each is cls or each.__name__.startswith("_")
             for name, value in vars(each).items()}
    for name, value in sorted(found.items()):
        if name.startswith("_") or name in ("code", "type"):
            continue
        inner = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if isinstance(inner, property):
            yield name, "", inspect.getdoc(inner.fget) or ""
        elif inspect.isfunction(inner):
            words = "async " if inspect.iscoroutinefunction(inner) else ""
            yield name, words + name + signature(inner), first_lines(inner)


def render():
    import importlib

    lines = ["# API reference", "", "Made by `scripts/python-api.py` from the docstrings; do not edit.", ""]
    seen = set()
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        lines += ["## " + module_name, "", first_lines(module), ""]
        for name in module.__all__:
            value = getattr(module, name)
            if id(value) in seen or inspect.ismodule(value):
                continue
            seen.add(id(value))
            if inspect.isclass(value):
                lines += ["### class %s%s" % (name, "" if issubclass(value, BaseException) else signature(value)), "",
                          first_lines(value), ""]
                rows = [(shown or member, " ".join(about.split("\n\n")[0].split())) for member, shown, about in members(value)]
                if rows:
                    lines += ["| member | |", "|---|---|"]
                    lines += ["| `%s` | %s |" % (shown.replace("|", "\\|"), about.replace("|", "\\|")) for shown, about in rows]
                    lines.append("")
            elif inspect.isfunction(value):
                words = "async " if inspect.iscoroutinefunction(value) else ""
                lines += ["### %s%s%s" % (words, name, signature(value)), "", first_lines(value), ""]
    return "\n".join(lines).rstrip() + "\n"


def main():
    text = render()
    if "--check" in sys.argv[1:]:
        with open(PAGE, encoding="utf-8") as file:
            if file.read() != text:
                sys.exit("docs/python/api.md is not what the docstrings say: run scripts/python-api.py")
        return
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()

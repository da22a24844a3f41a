"""The model's side: what a session offers as text for a prompt, as schemas for function calling, and answers to the model's calls.

::

    async with Session("./data", "sandbox") as session:
        messages = [{"role": "system", "content": await session.prompt_text()}, ...]
        tools = await session.tool_schemas("openai")
        ...                                              # the model asks for a call
        text = await session.answer(call.function.name, call.function.arguments)
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Literal, Mapping, NamedTuple, Optional, Sequence, Union

from .types import ExecutionResult

#: Whose shape of function calling: of OpenAI's chat completions, or of Anthropic's messages.
Style = Literal["openai", "anthropic"]
RUN_CODE = "run_code"
#: Descriptions may come from MCP servers and files of others: a long one must not push the rest out of a prompt.
MAX_DESCRIPTION, MAX_ENTRIES = 400, 200
#: Of a result, for the model.
MAX_ANSWER = 20000
_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")
_WORDS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "array": "list", "object": "dict", "null": "None"}


class Rules(NamedTuple):
    """What a prompt says about a session besides its tools and workflows."""

    executor: str = "subprocess"
    timeout: Optional[float] = None
    network: Optional[str] = None
    has_storage: bool = False
    can_install: bool = False
    asks: bool = False


def plain(text: Any, limit: int = MAX_DESCRIPTION) -> str:
    """A text of somebody else on one line, without control characters."""
    words = " ".join("".join(each if each.isprintable() else " " for each in str(text or "")).split())
    return words if len(words) <= limit else words[:limit - 3] + "..."


def _type_text(kind: Any) -> str:
    """A type as a schema names it: a word, or several in a list."""
    if isinstance(kind, (list, tuple)):
        return plain(" | ".join(map(_type_text, kind[:len(_WORDS)])), 80)
    return _WORDS.get(kind, plain(kind, 40)) if isinstance(kind, str) else plain(kind, 40)


def _signature(parameters: Sequence[Mapping[str, Any]]) -> str:
    shown = []
    for each in sorted(parameters, key=lambda one: not one.get("required", True)):
        kind = each.get("type")
        text = plain(each.get("name"), 80) + (": " + _type_text(kind) if kind else "")
        shown.append(text if each.get("required", True) else "%s = %s" % (text, plain(repr(each.get("default")), 80)))
    return ", ".join(shown)


def entry_text(name: str, about: Any, parameters: Sequence[Mapping[str, Any]]) -> List[str]:
    """A function for a prompt: a line, and one for each parameter that has a description."""
    lines = ["%s(%s)%s" % (name, _signature(parameters), "  # " + plain(about) if about else "")]
    return lines + ["    %s: %s" % (plain(each.get("name"), 80), plain(each["description"])) for each in parameters if each.get("description")]


def _callables(tools: Sequence[Mapping[str, Any]]) -> List[Any]:
    """(name in code, description, parameters) of every callable."""
    found = []
    for tool in tools:
        callables = tool.get("callables") or []
        for each in callables:
            alone = each["name"] == tool["name"]
            name = tool["name"] if alone else "%s.%s" % (tool["name"], each["name"])
            found.append((name, each.get("description") or tool.get("description"), each.get("parameters") or []))
    return found


def _cut(lines: List[str], entries: Sequence[Any], what: str) -> None:
    if len(entries) > MAX_ENTRIES:
        lines.append("... and %d more: %s.search('what you need') finds them." % (len(entries) - MAX_ENTRIES, what))


def prompt_text(tools: Sequence[Mapping[str, Any]], workflows: Sequence[Mapping[str, Any]] = (), rules: Rules = Rules()) -> str:
    """Tools and workflows, as listings of a session give them, and rules, as text for a prompt."""
    lines = ["You can run Python code in a session that keeps its variables from one piece of code to the next.",
             "The value of the last expression is the result, as in IPython; `await` works at the top level, `!cmd` runs a command."]
    found = _callables(tools)
    if found:
        lines += ["", "Functions that your code can call, with keyword arguments:", ""]
        for name, about, parameters in found[:MAX_ENTRIES]:
            lines += entry_text("tools." + name, about, parameters)
        _cut(lines, found, "tools")
    if workflows:
        lines += ["", "Workflows that were kept for you:", ""]
        for each in workflows[:MAX_ENTRIES]:
            lines += entry_text("workflows." + each["name"], each.get("description"), each.get("parameters") or [])
        _cut(lines, workflows, "workflows")
    lines += ["", "Rules:", ""]
    if rules.executor in ("sandbox", "deno"):
        lines.append("- The code is confined: it sees its own folder and no other files of the host.")
    if rules.network == "none":
        lines.append("- The code has no network.")
    elif rules.network:
        lines.append("- The code's network: %s." % plain(rules.network, 200))
    if rules.timeout is not None:
        lines.append("- Each piece of code may run for %g seconds; after that it is stopped." % rules.timeout)
    if rules.has_storage:
        lines.append("- artifacts.save(name, data) keeps data beyond the session, artifacts.load(name) reads it, artifacts.list() shows what there is.")
        lines.append("- workflows.create(name, source) keeps a function for later; source defines def run(...).")
        lines.append("- deps.add('package') installs a package." if rules.can_install else "- Packages cannot be installed.")
    if rules.asks:
        lines.append("- A person may be asked before a call is made. A refused call raises ApprovalRejectedError with the reason: do not retry it unchanged.")
    lines.append("- An exception ends the piece of code; you get its traceback and may try again, and variables are kept.")
    return "\n".join(lines) + "\n"


def _property(parameter: Mapping[str, Any]) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    if parameter.get("type") in _TYPES:
        found["type"] = parameter["type"]
        if found["type"] == "array":
            found["items"] = {}
    if parameter.get("description"):
        found["description"] = plain(parameter["description"])
    if parameter.get("default") is not None:
        found["default"] = parameter["default"]
    return found


def _function(style: Style, name: str, about: str, schema: Dict[str, Any]) -> Dict[str, Any]:
    if style == "openai":
        return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}
    if style == "anthropic":
        return {"name": name, "description": about, "input_schema": schema}
    raise ValueError("style must be \"openai\" or \"anthropic\", not %r" % (style,))


def function_name(name: str) -> str:
    """The name of a tool as models may write it: letters, digits, ``_`` and ``-``."""
    return "".join(each if each.isascii() and (each.isalnum() or each in "_-") else "_" for each in name.replace(".", "__"))[:64]


def _functions(tools: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """The callables by names that models may write, each of which means one of them."""
    found: Dict[str, Any] = {}
    for each in _callables(tools):
        name = function_name(each[0])
        number = 1
        while name in found or name == RUN_CODE:
            number += 1
            name = "%s_%d" % (function_name(each[0])[:60], number)
        found[name] = each
    return found


def tool_schemas(tools: Sequence[Mapping[str, Any]], style: Style = "openai", direct: bool = False) -> List[Dict[str, Any]]:
    """``run_code`` for function calling; with ``direct``, also every tool as a function that the model calls without code."""
    code = {"type": "string", "description": "Python code. Variables persist. The value of the last expression is returned."}
    found = [_function(style, RUN_CODE, "Runs Python code in the session and returns its output, the value of its last expression, or its error.",
                       {"type": "object", "properties": {"code": code}, "required": ["code"]})]
    for name, (_, about, parameters) in _functions(tools).items() if direct else ():
        schema = {"type": "object", "properties": {each["name"]: _property(each) for each in parameters},
                  "required": [each["name"] for each in parameters if each.get("required", True)]}
        found.append(_function(style, name, plain(about), schema))
    return found


def result_text(result: ExecutionResult, limit: int = MAX_ANSWER) -> str:
    """What became of a cell, for the model: output, then the value or the error."""
    parts = [result.text.rstrip("\n")] if result.text else []
    if result.error is not None:
        parts.append("Error: " + result.error)
        if result.state != "kept":
            parts.append("All variables are lost." if result.state == "lost" else "All variables are as they were before this cell.")
    elif result.repr is not None:
        parts.append(result.repr)
    return shorten("\n".join(parts) or "(no output)", limit)


def shorten(text: str, limit: int) -> str:
    """The beginning and the end of a long text."""
    if len(text) <= limit:
        return text
    return "%s\n[... %d characters left out ...]\n%s" % (text[:limit * 3 // 4], len(text) - limit, text[-(limit - limit * 3 // 4):])


class Call(NamedTuple):
    """What the model asked for: code to run, or a tool by its name with arguments."""

    code: Optional[str]
    tool: str
    arguments: Dict[str, Any]


def read_call(name: str, arguments: Union[str, Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Call:
    """The model's call; ValueError, whose message is for the model, if there is no such function or the arguments are not valid."""
    try:
        given = json.loads(arguments) if isinstance(arguments, str) else dict(arguments)
    except (ValueError, RecursionError) as error:
        raise ValueError("the arguments are not valid JSON: %s" % error) from None
    if not isinstance(given, dict):
        raise ValueError("the arguments must be a JSON object")
    if name == RUN_CODE:
        if not isinstance(given.get("code"), str):
            raise ValueError("run_code needs the argument code, a string")
        return Call(given["code"], "", {})
    functions = _functions(tools)
    if name in functions:
        return Call(None, functions[name][0], given)
    raise ValueError("unknown function %s; the functions are: %s" % (plain(name, 80), ", ".join([RUN_CODE, *functions])))


def value_text(value: Any, limit: int = MAX_ANSWER) -> str:
    """What a tool answered, for the model."""
    if isinstance(value, str):
        return shorten(value, limit)
    try:
        return shorten(json.dumps(value, ensure_ascii=False), limit)
    except (TypeError, ValueError):
        return shorten(repr(value), limit)


__all__ = ["Style", "Rules", "prompt_text", "tool_schemas", "result_text", "function_name"]

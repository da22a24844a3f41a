"""Anthropic's own tool shapes on a Workcell session: the memory tool, and the code-execution tool with its commands and editor.

::

    memory = MemoryTool(session)
    tools = [memory.definition, *CODE_EXECUTION]
    ...
    results = await tool_results(session, message.content, memory=memory)

The memory itself is :mod:`workcell.integrations.anthropic_memory`.
"""

from __future__ import annotations

import json
from typing import Any, Awaitable, Dict, List, Mapping, Optional, Sequence

from ..errors import WorkcellError
from ..prompt import MAX_ANSWER, shorten
from ..session import Session
from ..types import ExecutionResult
from . import _shell
from ._common import drive_async, printable
from ._editor import ToolInputError, lines_of, text_of
from .anthropic_memory import MAX_FILE, MemoryTool, runnable_memory

#: Tools of a client with the names and arguments of ``code_execution_20250825``: commands, and an editor.
CODE_EXECUTION: List[Dict[str, Any]] = [
    {"name": "bash_code_execution", "description": "Runs a bash command in a sandbox whose files stay between calls.",
     "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}},
    {"name": "text_editor_code_execution", "description": "Views, creates and edits text files in the sandbox.",
     "input_schema": {"type": "object", "required": ["command", "path"], "properties": {
         "command": {"type": "string", "enum": ["view", "create", "str_replace"]}, "path": {"type": "string"}, "file_text": {"type": "string"},
         "old_str": {"type": "string"}, "new_str": {"type": "string"},
         "view_range": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}}}},
]


async def code_execution(session: Session, name: str, given: Mapping[str, Any], timeout: Optional[float] = None) -> Dict[str, Any]:
    """One call of ``bash_code_execution``, ``text_editor_code_execution`` or ``code_execution`` (Python); the result block's content.

    It happens where the session's code runs, with no more rights than that code has. Nothing that the model wrote raises here.
    """
    kind = name if name in ("bash_code_execution", "text_editor_code_execution") else "code_execution"
    try:
        if name == "bash_code_execution":
            return await _bash(session, text_of(given, "command"), timeout)
        if name == "text_editor_code_execution":
            return await _editor(session, given, timeout)
        if name == "code_execution":
            result = await session.run(text_of(given, "code"), timeout)
            if result.error_info is not None and result.error_info.code == "timeout":
                return _error(kind, "execution_time_exceeded")
            shown = result.repr + "\n" if result.repr is not None and result.error is None else ""
            errors = result.stderr + (result.error + "\n" if result.error is not None else "")
            return {"type": "code_execution_result", "stdout": _out(result.stdout + shown), "stderr": _out(errors),
                    "return_code": int(result.error is not None), "content": []}
        raise ToolInputError("unknown tool")
    except _shell.FileError as error:
        return _error(kind, "file_not_found" if error.kind == "FileNotFoundError" and kind.startswith("text") else "invalid_tool_input")
    except (ToolInputError, UnicodeError):
        return _error(kind, "invalid_tool_input")
    except WorkcellError:
        return _error(kind, "unavailable")


def _error(kind: str, code: str) -> Dict[str, Any]:
    return {"type": kind + "_tool_result_error", "error_code": code}


def _out(text: str) -> str:
    return printable(shorten(text, MAX_ANSWER))


async def _bash(session: Session, command: str, timeout: Optional[float]) -> Dict[str, Any]:
    done = _shell.done(await session.run(_shell.command(["bash", "-c", command], seconds=timeout), None if timeout is None else timeout + 5))
    if done.late:
        return _error("bash_code_execution", "execution_time_exceeded")
    return {"type": "bash_code_execution_result", "stdout": _out(done.stdout.decode("utf-8", "replace")),
            "stderr": _out(done.stderr.decode("utf-8", "replace")), "return_code": done.status, "content": []}


async def _editor(session: Session, given: Mapping[str, Any], timeout: Optional[float]) -> Dict[str, Any]:
    command, path = text_of(given, "command"), text_of(given, "path")

    def run(cell: str) -> Awaitable[ExecutionResult]:
        return session.run(cell, timeout)

    if command == "create":
        update = await drive_async(run, _shell.write(path, text_of(given, "file_text").encode("utf-8")))
        return {"type": "text_editor_code_execution_create_result", "is_file_update": update}
    if command == "view":
        content = (await drive_async(run, _shell.read(path))).decode("utf-8")
        lines, first, total = lines_of(content, given.get("view_range"), 1)
        return {"type": "text_editor_code_execution_view_result", "file_type": "text", "content": _out("\n".join(lines)),
                "start_line": first, "num_lines": len(lines), "total_lines": total}
    if command != "str_replace":
        raise ToolInputError("unknown command")
    old, new = text_of(given, "old_str"), text_of(given, "new_str")
    if not old or len(old) + len(new) > _shell.PIECE:
        raise ToolInputError("old_str is empty, or the texts are too long")
    _, line, done = await drive_async(run, _shell.edit(path, old, new))
    if not done:
        raise ToolInputError("old_str must be in the file once")
    removed, added = old.split("\n"), new.split("\n")
    return {"type": "text_editor_code_execution_str_replace_result", "old_start": line, "old_lines": len(removed), "new_start": line,
            "new_lines": len(added), "lines": ["-" + _out(each) for each in removed] + ["+" + _out(each) for each in added]}


# ---- messages


async def tool_results(session: Session, content: Sequence[Any], *, memory: Optional[MemoryTool] = None,
                       timeout: Optional[float] = None) -> List[Dict[str, Any]]:
    """The blocks that answer the calls of a message, in their order.

    A ``tool_use`` is answered with a ``tool_result``, in which the result of code execution is JSON; a ``server_tool_use``, as transcripts
    have them, with the block of its own type (``bash_code_execution_tool_result``, ...). Other tools are those of the session.
    """
    found: List[Dict[str, Any]] = []
    for block in content:
        part = block if isinstance(block, dict) else block.model_dump()
        kind, name, ident = part.get("type"), str(part.get("name")), part.get("id")
        given = part.get("input") if isinstance(part.get("input"), dict) else {}
        if kind not in ("tool_use", "server_tool_use"):
            continue
        failed = False
        if name in ("bash_code_execution", "text_editor_code_execution", "code_execution"):
            result = await code_execution(session, name, given or {}, timeout)
            if kind == "server_tool_use":
                found.append({"type": name + "_tool_result", "tool_use_id": ident, "content": result})
                continue
            text, failed = json.dumps(result, ensure_ascii=False), result["type"].endswith("_error")
        elif name == "memory" and memory is not None:
            try:
                text = await memory.call(given or {})
            except ToolInputError as error:
                text, failed = "Error: %s" % printable(str(error)), True
        else:
            text = printable(await session.answer(name, given or {}, timeout))
            failed = text.startswith("Error: ")
        found.append({"type": "tool_result", "tool_use_id": ident, "content": text, **({"is_error": True} if failed else {})})
    return found


__all__ = ["CODE_EXECUTION", "MAX_FILE", "MemoryTool", "ToolInputError", "code_execution", "runnable_memory", "tool_results"]

"""Anthropic's own tool shapes on a Workcell session: the memory tool, and the code-execution tool with its commands and editor.

::

    memory = MemoryTool(session)
    tools = [memory.definition, *CODE_EXECUTION]
    ...
    results = await tool_results(session, message.content, memory=memory)

Files of the memory are beneath one folder of the session's workspace. No link is followed, whatever the code of the session does meanwhile.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ..errors import WorkcellError
from ..prompt import MAX_ANSWER, shorten
from ..session import Session
from . import _shell
from ._common import literal, printable

#: Bytes of a file of the memory, files that one rename moves, and what a view shows.
MAX_FILE, MAX_MOVED, MAX_SHOWN = 1 << 20, 1000, 1000
_WIDTH = 6


class ToolInputError(ValueError):
    """What the model asked for cannot be done; the text is for the model."""


def _number(lines: Sequence[str], first: int) -> str:
    return "\n".join("%s\t%s" % (str(number).rjust(_WIDTH), line) for number, line in enumerate(lines, first))


def _size(size: int) -> str:
    for unit in ("B", "K", "M"):
        if size < 1024:
            break
        size, unit = size / 1024, "G"  # type: ignore[assignment]
    return "%d%s" % (size, unit) if size == int(size) else "%.1f%s" % (size, unit)


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str):
        raise ToolInputError("the argument %s must be a string" % name)
    return value


def replaced(content: str, old: str, new: str, path: str) -> "tuple[str, int]":
    """The content with one text replaced, and the number of its line."""
    if not old:
        raise ToolInputError("old_str is empty")
    count = content.count(old)
    if count == 0:
        raise ToolInputError("No replacement was performed, old_str `%s` did not appear verbatim in %s." % (old, path))
    if count > 1:
        lines, at = [], content.find(old)
        while at >= 0:
            lines.append(str(content.count("\n", 0, at) + 1))
            at = content.find(old, at + 1)
        raise ToolInputError("No replacement was performed. Multiple occurrences of old_str `%s` in lines: %s. Please ensure it is unique"
                             % (old, ", ".join(lines)))
    return content.replace(old, new), content.count("\n", 0, content.find(old)) + 1


class MemoryTool:
    """The commands of ``memory_20250818`` on the files of a session.

    Args:
        session: in whose workspace the files are.
        folder: there; ``/memories`` of the model.
    """

    definition = {"type": "memory_20250818", "name": "memory"}

    def __init__(self, session: Session, folder: str = "memories") -> None:
        self._files, self._folder = session.files, folder.strip("/")

    async def call(self, given: Mapping[str, Any]) -> str:
        """Answers one call; ToolInputError has a text for the model."""
        commands = {"view": self._view, "create": self._create, "str_replace": self._str_replace, "insert": self._insert,
                    "delete": self._delete, "rename": self._rename}
        command = commands.get(given.get("command"))  # type: ignore[arg-type]
        if command is None:
            raise ToolInputError("unknown command %r" % given.get("command"))
        try:
            return printable(await command(given))
        except FileNotFoundError:
            path = given.get("path", given.get("old_path"))
            raise ToolInputError("The path %s does not exist. Please provide a valid path." % path) from None
        except (OSError, UnicodeError, WorkcellError) as error:
            raise ToolInputError(printable(str(error))) from None

    def _inside(self, path: str) -> str:
        if path != "/memories" and not path.startswith("/memories/"):
            raise ToolInputError("Path must start with /memories, got: %s" % path)
        parts = [each for each in path.split("/")[2:] if each not in ("", ".")]
        if ".." in parts or "\0" in path:
            raise ToolInputError("Path %s would escape /memories directory" % path)
        return "/".join([self._folder, *parts])

    async def _read(self, path: str) -> str:
        inside = self._inside(path)
        info = await self._files.stat(inside)
        if info.type != "file":
            raise ToolInputError("The path %s is not a file." % path)
        if info.size > MAX_FILE:
            raise ToolInputError("The file %s has more than %d bytes." % (path, MAX_FILE))
        return (await self._files.read(inside, size=MAX_FILE)).decode("utf-8")

    async def _write(self, path: str, content: str) -> None:
        data = content.encode("utf-8")
        if len(data) > MAX_FILE:
            raise ToolInputError("The file %s would have more than %d bytes." % (path, MAX_FILE))
        await self._files.write(self._inside(path), data, mode=0o600)

    async def _exists(self, path: str) -> bool:
        try:
            await self._files.stat(self._inside(path))
        except FileNotFoundError:
            return False
        return True

    async def _view(self, given: Mapping[str, Any]) -> str:
        path = _text(given, "path")
        inside = self._inside(path)
        if inside == self._folder:
            await self._files.mkdir(inside)
        info = await self._files.stat(inside)
        if info.type == "folder":
            lines = ["%s\t%s" % (_size(info.size), path), *await self._tree(inside, path, 1)]
            return "Here're the files and directories up to 2 levels deep in %s, excluding hidden items:\n%s" % (path, "\n".join(lines[:MAX_SHOWN]))
        lines = (await self._read(path)).split("\n")
        first, wanted = 1, given.get("view_range")
        if isinstance(wanted, list) and len(wanted) == 2 and all(type(each) is int for each in wanted):
            first = max(1, wanted[0])
            lines = lines[first - 1:len(lines) if wanted[1] == -1 else max(0, wanted[1])]
        return "Here's the content of %s with line numbers:\n%s" % (path, _number(lines, first))

    async def _tree(self, inside: str, path: str, depth: int) -> List[str]:
        found: List[str] = []
        for each in await self._files.list(inside):
            name = each.path.rpartition("/")[2]
            if name.startswith(".") or each.type not in ("file", "folder"):
                continue
            shown = "%s/%s" % (path, name)
            found.append("%s\t%s%s" % (_size(each.size), shown, "/" if each.type == "folder" else ""))
            if each.type == "folder" and depth < 2 and len(found) < MAX_SHOWN:
                found += await self._tree("%s/%s" % (inside, name), shown, depth + 1)
        return found

    async def _create(self, given: Mapping[str, Any]) -> str:
        path, content = _text(given, "path"), _text(given, "file_text")
        if await self._exists(path):
            raise ToolInputError("File %s already exists" % path)
        await self._write(path, content)
        return "File created successfully at: %s" % path

    async def _str_replace(self, given: Mapping[str, Any]) -> str:
        path = _text(given, "path")
        content, line = replaced(await self._read(path), _text(given, "old_str"), _text(given, "new_str"), path)
        await self._write(path, content)
        lines, start = content.split("\n"), max(0, line - 3)
        return ("The memory file has been edited. Here is the snippet showing the change (with line numbers):\n"
                + _number(lines[start:line + 2], start + 1))

    async def _insert(self, given: Mapping[str, Any]) -> str:
        path, text, at = _text(given, "path"), _text(given, "insert_text"), given.get("insert_line")
        lines = (await self._read(path)).split("\n")
        if lines[-1] == "":
            lines.pop()
        if type(at) is not int or not 0 <= at <= len(lines):
            raise ToolInputError("Invalid `insert_line` parameter: %s. It should be within the range [0, %d]." % (at, len(lines)))
        lines.insert(at, text.rstrip("\n"))
        await self._write(path, "\n".join(lines) + "\n")
        return "The file %s has been edited." % path

    async def _delete(self, given: Mapping[str, Any]) -> str:
        path = _text(given, "path")
        inside = self._inside(path)
        if inside == self._folder:
            raise ToolInputError("Cannot delete the /memories directory itself")
        if not await self._exists(path):
            raise ToolInputError("The path %s does not exist" % path)
        await self._files.remove(inside, recursive=True)
        return "Successfully deleted %s" % path

    async def _rename(self, given: Mapping[str, Any]) -> str:
        old, new = _text(given, "old_path"), _text(given, "new_path")
        source, target = self._inside(old), self._inside(new)
        if source == self._folder:
            raise ToolInputError("Cannot rename the /memories directory itself")
        if not await self._exists(old):
            raise ToolInputError("The path %s does not exist" % old)
        if await self._exists(new):
            raise ToolInputError("The destination %s already exists" % new)
        if target.startswith(source + "/"):
            raise ToolInputError("%s is inside %s" % (new, old))
        await self._copy(source, target, [])
        await self._files.remove(source, recursive=True)
        return "Successfully renamed %s to %s" % (old, new)

    async def _copy(self, source: str, target: str, copied: List[str]) -> None:
        copied.append(source)
        if len(copied) > MAX_MOVED:
            raise ToolInputError("more than %d files cannot be moved at once" % MAX_MOVED)
        info = await self._files.stat(source)
        if info.type == "folder":
            await self._files.mkdir(target)
            for each in await self._files.list(source):
                name = each.path.rpartition("/")[2]
                await self._copy("%s/%s" % (source, name), "%s/%s" % (target, name), copied)
        elif info.type == "file":
            await self._files.write(target, await self._files.read(source, size=MAX_FILE), mode=0o600)


def runnable_memory(session: Session, folder: str = "memories") -> Any:
    """The memory as a tool of ``client.beta.messages.tool_runner()``; needs the package ``anthropic``."""
    from anthropic.lib.tools import BetaAsyncAbstractMemoryTool, ToolError

    memory = MemoryTool(session, folder)

    async def call(self: Any, command: Any) -> str:
        try:
            return await memory.call(command.model_dump())
        except ToolInputError as error:
            raise ToolError(str(error)) from None

    names = ("view", "create", "str_replace", "insert", "delete", "rename")
    return type("WorkcellMemoryTool", (BetaAsyncAbstractMemoryTool,), dict.fromkeys(names, call))()


# ---- code execution

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

_EDIT = '''
def _workcell_put(path, text):
    import os
    new = not os.path.exists(path)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    return not new
_workcell_put(%s)'''


async def code_execution(session: Session, name: str, given: Mapping[str, Any], timeout: Optional[float] = None) -> Dict[str, Any]:
    """One call of ``bash_code_execution``, ``text_editor_code_execution`` or ``code_execution`` (Python); the result block's content.

    It happens where the session's code runs, with no more rights than that code has. Nothing that the model wrote raises here.
    """
    kind = name if name in ("bash_code_execution", "text_editor_code_execution") else "code_execution"
    try:
        if name == "bash_code_execution":
            return await _bash(session, _text(given, "command"), timeout)
        if name == "text_editor_code_execution":
            return await _editor(session, given, timeout)
        if name == "code_execution":
            result = await session.run(_text(given, "code"), timeout)
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
    command, path = _text(given, "command"), _text(given, "path")
    if command == "create":
        text = _text(given, "file_text")
        update = _shell.check(await session.run(_EDIT % ", ".join(map(literal, (path, text))), timeout))
        return {"type": "text_editor_code_execution_create_result", "is_file_update": update is True}
    if command not in ("view", "str_replace"):
        raise ToolInputError("unknown command")
    reading = _shell.Reading(path)
    while reading.more:
        reading.add(await session.run(reading.cell(), timeout))
    content = reading.data.decode("utf-8")
    if command == "view":
        lines = content.split("\n")
        first, last, wanted = 1, len(lines), given.get("view_range")
        if isinstance(wanted, list) and len(wanted) == 2 and all(type(each) is int for each in wanted):
            first = min(max(1, wanted[0]), len(lines))
            last = len(lines) if wanted[1] == -1 else max(first, min(wanted[1], len(lines)))
        return {"type": "text_editor_code_execution_view_result", "file_type": "text", "content": _out("\n".join(lines[first - 1:last])),
                "start_line": first, "num_lines": last - first + 1, "total_lines": len(lines)}
    old, new = _text(given, "old_str"), _text(given, "new_str")
    changed, line = replaced(content, old, new, path)
    _shell.check(await session.run(_EDIT % ", ".join(map(literal, (path, changed))), timeout))
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


__all__ = ["CODE_EXECUTION", "MemoryTool", "ToolInputError", "code_execution", "runnable_memory", "tool_results"]

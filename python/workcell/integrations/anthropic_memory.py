"""Anthropic's memory tool on the files of a Workcell session.

::

    memory = MemoryTool(session)
    tools = [memory.definition]

The files are beneath one folder of the session's workspace. No link is followed, whatever the code of the session does meanwhile.
"""

from __future__ import annotations

from typing import Any, List, Mapping

from ..errors import WorkcellError
from ..session import Session
from ._common import printable
from ._editor import ToolInputError, lines_of, numbered, replaced, text_of

#: Bytes of a file of the memory, files that one rename moves, and what a view shows.
MAX_FILE, MAX_MOVED, MAX_SHOWN = 1 << 20, 1000, 1000


def _size(size: int) -> str:
    for unit in ("B", "K", "M"):
        if size < 1024:
            break
        size, unit = size / 1024, "G"  # type: ignore[assignment]
    return "%d%s" % (size, unit) if size == int(size) else "%.1f%s" % (size, unit)


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
        path = text_of(given, "path")
        inside = self._inside(path)
        if inside == self._folder:
            await self._files.mkdir(inside)
        info = await self._files.stat(inside)
        if info.type == "folder":
            lines = ["%s\t%s" % (_size(info.size), path), *await self._tree(inside, path, 1)]
            return "Here're the files and directories up to 2 levels deep in %s, excluding hidden items:\n%s" % (path, "\n".join(lines[:MAX_SHOWN]))
        lines, first, _ = lines_of(await self._read(path), given.get("view_range"))
        return "Here's the content of %s with line numbers:\n%s" % (path, numbered(lines, first))

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
        path, content = text_of(given, "path"), text_of(given, "file_text")
        if await self._exists(path):
            raise ToolInputError("File %s already exists" % path)
        await self._write(path, content)
        return "File created successfully at: %s" % path

    async def _str_replace(self, given: Mapping[str, Any]) -> str:
        path = text_of(given, "path")
        content, line = replaced(await self._read(path), text_of(given, "old_str"), text_of(given, "new_str"), path)
        await self._write(path, content)
        lines, start = content.split("\n"), max(0, line - 3)
        return ("The memory file has been edited. Here is the snippet showing the change (with line numbers):\n"
                + numbered(lines[start:line + 2], start + 1))

    async def _insert(self, given: Mapping[str, Any]) -> str:
        path, text, at = text_of(given, "path"), text_of(given, "insert_text"), given.get("insert_line")
        lines = (await self._read(path)).split("\n")
        if lines[-1] == "":
            lines.pop()
        if type(at) is not int or not 0 <= at <= len(lines):
            raise ToolInputError("Invalid `insert_line` parameter: %s. It should be within the range [0, %d]." % (at, len(lines)))
        lines.insert(at, text.rstrip("\n"))
        await self._write(path, "\n".join(lines) + "\n")
        return "The file %s has been edited." % path

    async def _delete(self, given: Mapping[str, Any]) -> str:
        path = text_of(given, "path")
        inside = self._inside(path)
        if inside == self._folder:
            raise ToolInputError("Cannot delete the /memories directory itself")
        if not await self._exists(path):
            raise ToolInputError("The path %s does not exist" % path)
        await self._files.remove(inside, recursive=True)
        return "Successfully deleted %s" % path

    async def _rename(self, given: Mapping[str, Any]) -> str:
        old, new = text_of(given, "old_path"), text_of(given, "new_path")
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


__all__ = ["MemoryTool", "ToolInputError", "runnable_memory"]

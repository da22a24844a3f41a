"""A registry of adapters: tools on the host, without a session."""

from __future__ import annotations

import os
from typing import Any, Dict, FrozenSet, Iterable, List, Optional, Sequence, Union

from ..errors import CodeModeError, ToolCallError, ToolNotFoundError
from .adapters import CLIAdapter, MiddlewareAdapter, ToolAdapter
from .middleware import ToolMiddleware
from .types import Tool


class ToolRegistry:
    """The tools of several adapters."""

    def __init__(self, embedder: Any = None) -> None:
        self._adapters: List[ToolAdapter] = []
        self._tags: Dict[int, FrozenSet[str]] = {}
        self._middlewares: List[ToolMiddleware] = []
        self._labels: Dict[str, Any] = {}

    @classmethod
    async def from_dir(cls, path: Union[str, "os.PathLike[str]"], embedder: Any = None) -> "ToolRegistry":
        """The tools of a folder: programs, web services, MCP servers."""
        made = cls(embedder)
        made.register_adapter(CLIAdapter(path))
        return made

    def register_adapter(self, adapter: ToolAdapter, tags: Optional[Iterable[str]] = None) -> List[Tool]:
        """Adds an adapter; raises ValueError if a name is taken."""
        tools = adapter.list_tools()
        known = {tool.name for tool in self.get_all_tools()}
        for tool in tools:
            if tool.name in known:
                raise ValueError("Tool '%s' already registered. Use unique names or different tags for scoping."
                                 % tool.name)
        self._adapters.append(adapter)
        self._tags[id(adapter)] = frozenset(tags or ())
        return [self._tagged(adapter, tool) for tool in tools]

    def add_adapter(self, adapter: ToolAdapter) -> None:
        """The same without a check of names."""
        self._adapters.append(adapter)

    def get_adapters(self) -> List[ToolAdapter]:
        """The adapters, in the order in which they were added."""
        return list(self._adapters)

    def _tagged(self, adapter: ToolAdapter, tool: Tool) -> Tool:
        extra = self._tags.get(id(adapter), frozenset())
        return Tool(tool.name, tool.description, tool.callables, tool.tags | extra) if extra else tool

    def get_all_tools(self) -> List[Tool]:
        """The tools of all adapters."""
        return [self._tagged(adapter, tool) for adapter in self._adapters for tool in adapter.list_tools()]

    def list_tools(self, scope: Optional[Iterable[str]] = None) -> List[Tool]:
        """Lists all tools, or those with one of the tags."""
        wanted = None if scope is None else frozenset(scope)
        return [tool for tool in self.get_all_tools() if wanted is None or tool.tags & wanted]

    def find_adapter_for_tool(self, name: str) -> Optional[ToolAdapter]:
        """The adapter that has the tool, or None."""
        for adapter in self._adapters:
            if any(tool.name == name for tool in adapter.list_tools()):
                return adapter
        return None

    def get_tool(self, name: str) -> Tool:
        """Raises ToolNotFoundError if it does not exist."""
        tools = self.get_all_tools()
        for tool in tools:
            if tool.name == name:
                return tool
        raise ToolNotFoundError(name, [tool.name for tool in tools])

    async def call_tool(self, name: str, callable_name: Optional[str], args: Dict[str, Any]) -> Any:
        """Calls a tool through the middlewares."""
        adapter = self.find_adapter_for_tool(name)
        if adapter is None:
            raise ToolNotFoundError(name, [tool.name for tool in self.get_all_tools()])
        try:
            return await MiddlewareAdapter(adapter, self._middlewares, **self._labels).call_tool(name, callable_name, args)
        except CodeModeError:
            raise
        except (OSError, TimeoutError, ValueError, RuntimeError) as error:
            raise ToolCallError(name, args, error) from error

    def search(self, query: str, limit: int = 10) -> List[Tool]:
        """By name (exact, then containing), description, callables and tags; best first."""
        words = query.lower()

        def score(tool: Tool) -> int:
            found = 100 if tool.name.lower() == words else 50 if words in tool.name.lower() else 0
            found += 25 if words in tool.description.lower() else 0
            found += 10 if any(words in each.name.lower() or words in each.description.lower()
                               for each in tool.callables) else 0
            return found + (10 if words in {tag.lower() for tag in tool.tags} else 0)

        ranked = sorted(((score(tool), tool) for tool in self.get_all_tools()), key=lambda pair: -pair[0])
        return [tool for points, tool in ranked if points][:limit]

    def scoped_view(self, scope: Iterable[str]) -> "ScopedToolRegistry":
        """Only the tools with one of these tags."""
        return ScopedToolRegistry(self, frozenset(scope))

    def apply_tool_middlewares(self, middlewares: Sequence[ToolMiddleware], *, executor_type: Optional[str] = None,
                               origin: Optional[str] = None) -> None:
        """Puts middlewares around every call; replaces the previous ones."""
        self._middlewares = list(middlewares)
        self._labels = {"executor_type": executor_type, "origin": origin}

    async def refresh(self) -> None:
        """Nothing to do: listings are never kept."""

    async def close(self) -> None:
        """Closes the adapters, the last one first."""
        while self._adapters:
            await self._adapters.pop().close()


class ScopedToolRegistry(ToolRegistry):
    """A view of a registry that has only tools with certain tags."""

    def __init__(self, inner: ToolRegistry, scope: FrozenSet[str]) -> None:
        super().__init__()
        self._inner, self._scope = inner, scope
        self._middlewares, self._labels = inner._middlewares, inner._labels

    @property
    def scope(self) -> FrozenSet[str]:
        """The tags of the view."""
        return self._scope

    def get_all_tools(self) -> List[Tool]:
        """The tools of the view."""
        return self._inner.list_tools(self._scope)

    def find_adapter_for_tool(self, name: str) -> Optional[ToolAdapter]:
        """The adapter of a tool of the view, or None."""
        if any(tool.name == name for tool in self.get_all_tools()):
            return self._inner.find_adapter_for_tool(name)
        return None


async def load_tools_from_path(path: Union[str, "os.PathLike[str]"]) -> ToolRegistry:
    """As :meth:`ToolRegistry.from_dir`."""
    return await ToolRegistry.from_dir(path)


__all__ = ["ToolRegistry", "ScopedToolRegistry", "load_tools_from_path"]

"""Adapters: tools of the library as objects of the host, and the other way round."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Protocol, Sequence, Union, runtime_checkable

from .._folders import remove_with
from ..types import JsonSchema
from .middleware import ToolCallContext, ToolMiddleware, compose_tool_middlewares
from .types import Tool


@runtime_checkable
class ToolAdapter(Protocol):
    """The interface of a source of tools."""

    def list_tools(self) -> List[Tool]:
        """Lists its tools."""
        ...

    async def call_tool(self, name: str, callable_name: Optional[str], args: Dict[str, Any]) -> Any:
        """Calls a tool; ``callable_name`` None: the tool itself."""
        ...

    async def describe(self, tool_name: str, callable_name: str) -> Dict[str, str]:
        """``{parameter: description}``"""
        ...

    async def close(self) -> None:
        """Ends what it started."""
        ...


class SpaceAdapter:
    """The tools of a folder, or of MCP servers, on the library."""

    def __init__(self, tools_dir: Optional[str] = None, mcp: Optional[Mapping[str, Mapping[str, Any]]] = None) -> None:
        from .._core import SpaceHandle
        from .._engine import default_engine

        self._space = SpaceHandle(default_engine(), {"tools_dir": tools_dir})
        for name, params in (mcp or {}).items():
            self._space.native.add_mcp(name, json.dumps(dict(params)))

    def list_tools(self) -> List[Tool]:
        """Lists all tools; servers that are not known yet are started."""
        return [Tool.from_dict(each) for each in self._space.call("tools.list")]

    def problems(self) -> List[Dict[str, Any]]:
        """Definitions that were skipped: ``[{file, line, message}]``."""
        return [dict(each) for each in self._space.call("tools.problems")]

    async def call_tool(self, name: str, callable_name: Optional[str], args: Dict[str, Any]) -> Any:
        """Calls a tool; raises ToolCallError, ToolTimeoutError or ToolNotFoundError."""
        from ..execution.executors import in_thread

        full = "%s.%s" % (name, callable_name) if callable_name else name
        return await in_thread(self._space.call_tool, full, args)

    async def describe(self, tool_name: str, callable_name: str) -> Dict[str, str]:
        """``{parameter: description}``"""
        callables = {each.name: each for tool in self.list_tools() if tool.name == tool_name for each in tool.callables}
        if callable_name not in callables:
            raise ValueError("Callable '%s' not found in tool '%s'. Available: %s" % (callable_name, tool_name,
                                                                                     sorted(callables)))
        return {parameter.name: parameter.description for parameter in callables[callable_name].parameters}

    async def close(self) -> None:
        """Ends the adapter's servers."""
        from ..execution.executors import in_thread

        await in_thread(self._space.close)


class CLIAdapter(SpaceAdapter):
    """The tools of a folder of definitions (docs/tools.md)."""

    def __init__(self, tools_path: Union[str, "os.PathLike[str]", None] = None) -> None:
        super().__init__(None if tools_path is None else os.path.abspath(os.fspath(tools_path)))

    @classmethod
    def from_configs(cls, configs: Sequence[Mapping[str, Any]]) -> "CLIAdapter":
        """The same from definitions as data."""
        folder = tempfile.mkdtemp(prefix="workcell-tools-")
        for number, config in enumerate(configs):
            # JSON is YAML.
            Path(folder, "%04d.yaml" % number).write_text(json.dumps(dict(config)), encoding="utf-8")
        made = cls(folder)
        remove_with(made, folder)
        return made


class MCPAdapter(SpaceAdapter):
    """The tools of one MCP server, under its name."""

    def __init__(self, params: Mapping[str, Any], namespace: str) -> None:
        super().__init__(None, {namespace: params})
        self.namespace = namespace

    @classmethod
    async def connect_stdio(cls, command: str, args: Optional[Sequence[str]] = None,
                            env: Optional[Mapping[str, str]] = None, *, namespace: str) -> "MCPAdapter":
        """A server that is a program; it starts at its first use."""
        return cls({"command": command, "args": list(args or []), "env": dict(env or {})}, namespace)

    @classmethod
    async def connect_sse(cls, url: str, headers: Optional[Mapping[str, str]] = None, timeout: float = 5.0,
                          sse_read_timeout: float = 300.0, *, namespace: str) -> "MCPAdapter":
        """A server at a URL, by the older HTTP transport."""
        return cls({"url": url, "headers": dict(headers or {}), "transport": "sse", "timeout": sse_read_timeout,
                    "start_timeout": timeout}, namespace)

    @classmethod
    async def connect_streamable_http(cls, url: str, headers: Optional[Mapping[str, str]] = None, timeout: float = 60.0,
                                      *, namespace: str) -> "MCPAdapter":
        """A server at a URL."""
        return cls({"url": url, "headers": dict(headers or {}), "transport": "streamable_http", "timeout": timeout},
                   namespace)


@dataclass(frozen=True)
class Endpoint:
    """A call of a web service; ``{name}`` in the path is a parameter."""

    name: str
    method: str
    path: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


class HTTPAdapter(SpaceAdapter):
    """A web service. Each endpoint is a tool of its own."""

    def __init__(self, base_url: str, headers: Optional[Mapping[str, str]] = None) -> None:
        self._folder = tempfile.mkdtemp(prefix="workcell-tools-")
        remove_with(self, self._folder)
        self.base_url, self.headers = base_url, dict(headers or {})
        self.endpoints: Dict[str, Endpoint] = {}
        super().__init__(self._folder)

    def add_endpoint(self, endpoint: Endpoint) -> None:
        """Adds an endpoint, or replaces one of the same name."""
        parameters = {name: spec.to_dict() if isinstance(spec, JsonSchema) else spec if isinstance(spec, Mapping) else {"type": str(spec)}
                      for name, spec in endpoint.parameters.items()}
        # A `$` in a value is a `$`: variables are resolved in files that a person wrote, not here.
        headers = {name: value.replace("${", "$${") for name, value in self.headers.items()}
        definition = {"name": endpoint.name, "type": "http", "description": endpoint.description,
                      "base_url": self.base_url, "headers": headers,
                      "endpoints": {endpoint.name: {"method": endpoint.method, "path": endpoint.path,
                                                    "description": endpoint.description,
                                                    "parameters": parameters}}}
        if not headers:
            del definition["headers"]
        Path(self._folder, endpoint.name + ".yaml").write_text(json.dumps(definition), encoding="utf-8")
        self.endpoints[endpoint.name] = endpoint


class MiddlewareAdapter:
    """An adapter with middlewares around its calls, the first outermost."""

    def __init__(self, inner: ToolAdapter, middlewares: Sequence[ToolMiddleware], *, executor_type: Optional[str] = None,
                 origin: Optional[str] = None) -> None:
        self.inner, self.middlewares = inner, list(middlewares)
        self.executor_type, self.origin = executor_type, origin
        self.list_tools, self.describe, self.close = inner.list_tools, inner.describe, inner.close

    async def call_tool(self, name: str, callable_name: Optional[str], args: Dict[str, Any]) -> Any:
        """Calls a tool through the middlewares."""
        async def terminal(ctx: ToolCallContext) -> Any:
            return await self.inner.call_tool(ctx.tool_name, ctx.callable_name, ctx.args)

        context = ToolCallContext(name, callable_name, dict(args), adapter_name=type(self.inner).__name__,
                                  executor_type=self.executor_type, origin=self.origin)
        return await compose_tool_middlewares(self.middlewares, terminal)(context)


__all__ = ["ToolAdapter", "CLIAdapter", "MCPAdapter", "HTTPAdapter", "Endpoint", "MiddlewareAdapter"]

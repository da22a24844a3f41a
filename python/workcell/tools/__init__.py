"""Tools: functions, programs and services that the host offers to the code of a session."""

from .adapters import CLIAdapter, Endpoint, HTTPAdapter, MCPAdapter, MiddlewareAdapter, ToolAdapter
from .middleware import CallNext, ToolCallContext, ToolMiddleware, compose_tool_middlewares
from .registry import ScopedToolRegistry, ToolRegistry, load_tools_from_path
from .schema import parameters_of, schema_of
from .types import Tool, ToolCallable, ToolParameter

__all__ = ["Tool", "ToolCallable", "ToolParameter", "ToolAdapter", "CLIAdapter", "MCPAdapter", "HTTPAdapter", "Endpoint",
           "MiddlewareAdapter",           "ToolRegistry", "ScopedToolRegistry", "load_tools_from_path", "ToolCallContext", "ToolMiddleware", "CallNext",
           "compose_tool_middlewares", "parameters_of", "schema_of"]

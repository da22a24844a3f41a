"""Typed Python modules for the tools of MCP servers (docs/mcp-api.md)."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any, Dict, List, Mapping, Union

from . import _native
from .errors import CodeModeError, from_native

_lock = threading.Lock()
_servers: Dict[str, Dict[str, Any]] = {}


class GenerationError(CodeModeError):
    """Tools of a server could not be described; ``problems`` is ``[{tool, message}]``. The others were made."""

    code = "invalid"

    def __init__(self, message: str, problems: List[Dict[str, Any]]) -> None:
        super().__init__(message)
        self.problems = problems


def known_servers() -> Dict[str, Dict[str, Any]]:
    """Servers that modules were generated for in this process. Nothing is read from the modules: code could change them."""
    with _lock:
        return {name: dict(params) for name, params in _servers.items()}


def _generate(server_name: str, server_params: Mapping[str, Any], root_dir: str, async_api: bool) -> List[str]:
    from ._core import SpaceHandle
    from ._engine import default_engine

    space = SpaceHandle(default_engine(), {})
    try:
        space.native.add_mcp(server_name, json.dumps(dict(server_params)))
        schema = space.call("tools.schema", name=server_name)
        made = json.loads(_native.gen_mcp(server_name, json.dumps({"tools": schema["tools"]}), root_dir, async_api))
    except _native.NativeError as error:
        raise from_native(error) from None
    finally:
        space.close()
    with _lock:
        _servers[server_name] = dict(server_params)
    if made["problems"]:
        raise GenerationError("of %s: %s" % (server_name, made["problems"][0]["message"]), made["problems"])
    return [each["module"] for each in made["tools"]]


async def generate_mcp_sources(server_name: str, server_params: Mapping[str, Any],
                               root_dir: Union[str, "os.PathLike[str]", None] = None, async_api: bool = False) -> List[str]:
    """Makes or replaces the package ``root_dir/server_name``; returns the modules' names in the server's order.

    The server is started for its list of tools, and ended. ``${VAR}`` in its parameters comes from the environment of this
    process when the server is started. Executors that are made later in this process have its tools under this name.

    Args:
        server_name: letters, digits, ``_`` and ``-``.
        server_params: ``{"command", "args", "env", "cwd"}`` or ``{"url", "headers"}``.
        root_dir: None: ``mcptools`` in the current folder.
        async_api: ``run()`` is a coroutine function.
    """
    from .execution.executors import in_thread

    folder = os.path.abspath(os.fspath(root_dir if root_dir is not None else Path("mcptools")))
    return await in_thread(_generate, server_name, server_params, folder, async_api)


__all__ = ["generate_mcp_sources", "GenerationError"]

"""Namespaces of a storage for programs that have no session."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional

from .artifacts import ArtifactStore
from .deps import DepsNamespace
from .storage import FileStorage, RedisStorage
from .tools.registry import ToolRegistry
from .workflows import WorkflowLibrary


class NamespaceBundle(NamedTuple):
    """The four namespaces."""

    tools: Optional[ToolRegistry]
    workflows: WorkflowLibrary
    artifacts: ArtifactStore
    deps: DepsNamespace

    @property
    def skills(self) -> WorkflowLibrary:
        """The older name of ``workflows``."""
        return self.workflows


async def bootstrap_namespaces(config: Mapping[str, Any]) -> NamespaceBundle:
    """From the result of ``to_bootstrap_config()``, and an optional ``tools_path``."""
    kind = config["type"]
    storage: Any
    if kind == "file":
        storage = FileStorage(config["base_path"], config.get("workspace_id"))
    elif kind == "redis":
        storage = RedisStorage(config["url"], prefix=config["prefix"], workspace_id=config.get("workspace_id"))
    else:
        raise ValueError("Unknown storage type: %r. Expected 'file' or 'redis'." % (kind,))
    tools = await ToolRegistry.from_dir(config["tools_path"]) if config.get("tools_path") else None
    return NamespaceBundle(tools, storage.get_workflow_library(), storage.get_artifact_store(), storage.get_deps())


__all__ = ["bootstrap_namespaces", "NamespaceBundle"]

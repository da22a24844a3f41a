"""The operations on tools, workflows, artifacts and deps that sessions have, blocking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Union

from .artifacts import artifact_dict
from .artifacts.tables import from_bytes, to_bytes
from .deps import remove_dict, sync_dict
from .workflows import add_workflow, workflow_dict

if TYPE_CHECKING:
    from ._core import SpaceHandle


def list_tools(space: "SpaceHandle") -> List[Dict[str, Any]]:
    return [dict(each) for each in space.call("tools.list")]


def search_tools(space: "SpaceHandle", query: str, limit: int = 10) -> List[Dict[str, Any]]:
    return [dict(each) for each in space.call("tools.search", query=query, limit=limit)]


def call_tool(space: "SpaceHandle", name: str, args: Mapping[str, Any]) -> Any:
    return space.call_tool(name, args)


def list_workflows(space: "SpaceHandle") -> List[Dict[str, Any]]:
    return [workflow_dict(each) for each in space.call("workflows.list")]


def search_workflows(space: "SpaceHandle", query: str, limit: int = 5) -> List[Dict[str, Any]]:
    return [workflow_dict(each) for each in space.call("workflows.search", query=query, limit=limit)]


def get_workflow(space: "SpaceHandle", name: str) -> Optional[Dict[str, Any]]:
    found = space.call("workflows.get", name=name)
    return None if found is None else workflow_dict(found, source=True)


def create_workflow(space: "SpaceHandle", name: str, source: str, description: str) -> Dict[str, Any]:
    return workflow_dict(add_workflow(space, name, source, description), source=True)


def remove_workflow(space: "SpaceHandle", name: str) -> bool:
    return bool(space.call("workflows.delete", name=name))


def list_artifacts(space: "SpaceHandle") -> List[Dict[str, Any]]:
    return [artifact_dict(each) for each in space.call("artifacts.list")]


def save_artifact(space: "SpaceHandle", name: str, data: Any, description: str = "",
                  metadata: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
    kind, payload = to_bytes(data)
    return artifact_dict(space.save_artifact(name, kind, payload, description, metadata or {}))


def load_artifact(space: "SpaceHandle", name: str) -> Any:
    return from_bytes(*space.load_artifact(name))


def delete_artifact(space: "SpaceHandle", name: str) -> None:
    space.call("artifacts.delete", name=name)


def list_deps(space: "SpaceHandle") -> List[str]:
    return list(space.call("deps.list"))


def add_dep(space: "SpaceHandle", package: Union[str, Sequence[str]], *more: str) -> Dict[str, List[str]]:
    packages = [*([package] if isinstance(package, str) else package), *more]
    return sync_dict(space.call("deps.add", package=packages[0] if len(packages) == 1 else packages))


def remove_dep(space: "SpaceHandle", package: str) -> Dict[str, Any]:
    return remove_dict(package, bool(space.call("deps.remove", package=package)))


def sync_deps(space: "SpaceHandle") -> Dict[str, List[str]]:
    return sync_dict(space.call("deps.sync"))


def install_deps(space: "SpaceHandle", packages: List[str]) -> Dict[str, List[str]]:
    """Installs the packages together, or each one separately where that fails; failures are listed, not raised."""
    from .errors import DepsError, InvalidError

    if len(packages) > 1:
        try:
            return add_dep(space, packages)
        except (DepsError, InvalidError):
            pass  # the loop finds out which ones
    found: Dict[str, List[str]] = {"installed": [], "already_present": [], "failed": []}
    for package in packages:
        try:
            for name, entries in add_dep(space, package).items():
                found[name] += [each for each in entries if each not in found[name]]
        except (DepsError, InvalidError):
            found["failed"].append(package)
    return found


def uninstall_deps(space: "SpaceHandle", packages: List[str]) -> Dict[str, List[str]]:
    found: Dict[str, List[str]] = {"removed": [], "not_found": [], "failed": []}
    for package in packages:
        removed = remove_dep(space, package)
        for name in found:
            found[name] += removed[name]
    return found

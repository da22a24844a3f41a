"""What an executor is, and what it can do."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, Optional, Protocol, Sequence, Set, Type, Union, runtime_checkable

from ..storage import StorageBackend
from ..types import ExecutionResult


class Capability:
    """Names of the capabilities of executors."""

    TIMEOUT = "timeout"
    PROCESS_ISOLATION = "process_isolation"
    NETWORK_ISOLATION = "network_isolation"
    NETWORK_FILTERING = "network_filtering"
    FILESYSTEM_ISOLATION = "filesystem_isolation"
    MEMORY_LIMIT = "memory_limit"
    CPU_LIMIT = "cpu_limit"
    RESET = "reset"
    DEPS_INSTALL = "deps_install"
    DEPS_UNINSTALL = "deps_uninstall"

    @classmethod
    def all(cls) -> Set[str]:
        """All of them."""
        return {value for name, value in vars(cls).items() if name.isupper()}


@runtime_checkable
class Executor(Protocol):
    """The interface of an executor: runs code. A class of your own may implement it too."""

    async def start(self, storage: Optional[StorageBackend] = None) -> None:
        """Makes it ready; ``storage`` is the session's."""
        ...

    async def run(self, code: str, timeout: Optional[float] = None) -> ExecutionResult:
        """Runs one cell."""
        ...

    async def reset(self) -> None:
        """A fresh state."""
        ...

    async def close(self) -> None:
        """Ends it. May be called more than once."""
        ...

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *exc: Any) -> Any: ...

    def supports(self, capability: str) -> bool:
        """Whether it has the capability."""
        ...

    def supported_capabilities(self) -> Set[str]:
        """Names of :class:`Capability`."""
        ...

    def get_configured_deps(self) -> List[str]:
        """Packages that its configuration lists."""
        ...

    async def install_deps(self, packages: List[str]) -> Dict[str, Any]:
        """``{installed, already_present, failed}``"""
        ...

    async def uninstall_deps(self, packages: List[str]) -> Dict[str, Any]:
        """``{removed, not_found, failed}``"""
        ...

    async def add_dep(self, package: Union[str, Sequence[str]]) -> Dict[str, Any]:
        """``{installed, already_present, failed}``; a list is resolved together."""
        ...

    async def remove_dep(self, package: str) -> Dict[str, Any]:
        """``{removed, not_found, failed, removed_from_config}``"""
        ...

    async def list_deps(self) -> List[str]:
        """``["pandas>=2", ...]``"""
        ...

    async def sync_deps(self) -> Dict[str, Any]:
        """``{installed, already_present, failed}``"""
        ...

    async def list_tools(self) -> List[Dict[str, Any]]:
        """``[{name, description, tags, callables}]``"""
        ...

    async def search_tools(self, query: str, limit: int = 10) -> List[Dict[str, Any]]:
        """The entries that match, best match first."""
        ...


_backends: Dict[str, Type[Any]] = {}


def register_backend(name: str, cls: Type[Any]) -> None:
    """Registers an executor under a name."""
    _backends[name] = cls


def get_backend(name: str) -> Optional[Type[Any]]:
    """The executor with this name, or None."""
    return _backends.get(name)


def list_backends() -> List[str]:
    """All names."""
    return sorted(_backends)


#: What every executor here can do.
COMMON: FrozenSet[str] = frozenset((Capability.TIMEOUT, Capability.RESET, Capability.DEPS_INSTALL,
                                    Capability.DEPS_UNINSTALL))
CONFINED: FrozenSet[str] = COMMON | {
    Capability.PROCESS_ISOLATION, Capability.NETWORK_ISOLATION, Capability.NETWORK_FILTERING,
    Capability.FILESYSTEM_ISOLATION, Capability.MEMORY_LIMIT, Capability.CPU_LIMIT}

__all__ = ["Capability", "Executor", "register_backend", "get_backend", "list_backends"]

"""The executors: where code runs, and what confines it.

All of them are the library's; a class here is a name there with its options. What the library does not have, or what does
not work on this machine, raises :class:`workcell.errors.ExecutorUnavailableError` with its reason when it is started.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any, AsyncGenerator, Callable, Dict, FrozenSet, List, Optional, Sequence, Set, Type, TypeVar, Union

from .. import _facade
from .._core import Core, Spec
from .._part import StoragePart
from .._runs import run_async, stream_async
from ..errors import SessionClosedError
from ..events import Event
from ..storage import FileStorageAccess, RedisStorageAccess, StorageBackend
from ..tools.registry import ToolRegistry
from ..types import ExecutionResult
from .configs import (ContainerConfig, DenoSandboxConfig, ExecutorConfig, InProcessConfig, JupyterConfig, KubernetesConfig,
                      SandboxConfig, SubprocessConfig)
from .protocol import COMMON, CONFINED, Capability, register_backend

T = TypeVar("T")
E = TypeVar("E", bound="LibraryExecutor")


async def in_thread(fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """A blocking function, off the loop. It is not cut short by a cancel: it is waited for first."""
    loop = asyncio.get_running_loop()
    future = loop.run_in_executor(None, functools.partial(fn, *args, **kwargs))
    return await asyncio.shield(future)


def _close_late(core: Core, opening: "asyncio.Future[None]") -> None:
    if opening.exception() is None:
        threading.Thread(target=core.close).start()


def _change_deps(core: Core, change: Callable[..., T], packages: Any) -> T:
    with core.deps_space() as space:
        return change(space, packages)


class LibraryExecutor:
    """What all executors have in common."""

    #: Its name in the library.
    name = "subprocess"
    config_type: Type[ExecutorConfig] = ExecutorConfig
    capabilities: FrozenSet[str] = COMMON

    def __init__(self, config: Optional[ExecutorConfig] = None) -> None:
        if config is not None and not isinstance(config, self.config_type):
            raise TypeError("%s takes a %s, not %s" % (type(self).__name__, self.config_type.__name__,
                                                       type(config).__name__))
        self.config = config if config is not None else self.config_type()
        self.extras: Dict[str, Any] = {}  # what a Session adds to the Spec
        self._core: Optional[Core] = None
        self._closed = False
        self._starting: Optional["asyncio.Lock"] = None

    # -- life

    def make_spec(self, storage: Optional[StorageBackend]) -> Spec:
        """The options for the library."""
        if isinstance(storage, (FileStorageAccess, RedisStorageAccess)):
            raise TypeError("%s.start() accepts StorageBackend, not %s. Pass the storage backend directly."
                            % (type(self).__name__, type(storage).__name__))
        extras = dict(self.extras)
        session = {**self.config.session_options(), **extras.pop("session", {})}
        space = self.config.space_options()
        if storage is not None:
            space.update(storage.space_options())
        middlewares = list(extras.pop("middlewares", [])) + list(self.config.tool_middlewares)
        space.update(extras.pop("space", {}))
        return Spec(executor=self.name, session=session, space=space, middlewares=middlewares,
                    deps=self.config.packages(), **extras)

    async def start(self, storage: Optional[StorageBackend] = None) -> None:
        """Opens the session, unless it is open already."""
        if self._starting is None:
            self._starting = asyncio.Lock()
        async with self._starting:
            if self._core is not None:
                return
            if self._closed:
                raise SessionClosedError("the executor is closed")
            core = Core(self.make_spec(storage))
            loop = asyncio.get_running_loop()
            core.go_home(loop)
            opening = loop.run_in_executor(None, core.open)
            try:
                await asyncio.shield(opening)
            except asyncio.CancelledError:
                # On a thread of its own: the loop may be closing, and takes no work then.
                opening.add_done_callback(functools.partial(_close_late, core))
                raise
            self._core = core

    async def close(self) -> None:
        """Ends the session and everything that it started. May be called more than once."""
        self._closed = True
        core, self._core = self._core, None
        if core is not None:
            await in_thread(core.close)

    async def __aenter__(self: E) -> E:
        await self.start()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.close()

    @property
    def core(self) -> Core:
        """The session of the library."""
        core = self._core
        if core is None:
            raise SessionClosedError("the executor is closed" if self._closed else "the executor was not started")
        return core

    # -- cells

    async def run(self, code: str, timeout: Optional[float] = None) -> ExecutionResult:
        """Runs one cell. A cancelled task interrupts it."""
        return await run_async(await self._started(), code, timeout)

    async def stream(self, code: str, timeout: Optional[float] = None) -> AsyncGenerator[Event, None]:
        """Runs one cell and yields its events; leaving the loop early interrupts it."""
        events = stream_async(await self._started(), code, timeout)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    async def _started(self) -> Core:
        """Starts it, without a storage, unless that was done."""
        if self._core is None:
            await self.start()
        return self.core

    async def reset(self) -> None:
        """Starts a fresh kernel: variables are lost, storage is kept."""
        await in_thread((await self._started()).reset)

    async def interrupt(self) -> None:
        """Raises KeyboardInterrupt in the running cell."""
        await in_thread(self.core.need_session().interrupt)

    # -- what it can do

    def supports(self, capability: str) -> bool:
        """Whether the executor has the capability."""
        return capability in self.capabilities

    def supported_capabilities(self) -> Set[str]:
        """The capabilities of the executor."""
        return set(self.capabilities)

    def get_configured_deps(self) -> List[str]:
        """``deps`` and the lines of ``deps_file``."""
        return self.config.configured_deps()

    # -- tools and packages

    async def list_tools(self) -> List[Dict[str, Any]]:
        """``[{name, description, tags, callables: [{name, description, parameters}]}]``"""
        return await in_thread(_facade.list_tools, (await self._started()).need_space())

    async def search_tools(self, query: str, limit: int = 10) -> List[Dict[str, Any]]:
        """The entries that match, best match first."""
        return await in_thread(_facade.search_tools, (await self._started()).need_space(), query, limit)

    async def list_deps(self) -> List[str]:
        """``["pandas>=2", ...]``"""
        return await in_thread(_facade.list_deps, (await self._started()).need_space())

    async def add_dep(self, package: Union[str, Sequence[str]]) -> Dict[str, Any]:
        """``{installed, already_present, failed}``; raises DepsError with the installer's message. A list is resolved together."""
        return await in_thread(_facade.add_dep, (await self._started()).need_space(), package)

    async def remove_dep(self, package: str) -> Dict[str, Any]:
        """``{removed, not_found, failed, removed_from_config}``"""
        return await in_thread(_facade.remove_dep, (await self._started()).need_space(), package)

    async def sync_deps(self) -> Dict[str, Any]:
        """``{installed, already_present, failed}``"""
        return await in_thread(_facade.sync_deps, (await self._started()).need_space())

    async def install_deps(self, packages: List[str]) -> Dict[str, Any]:
        """Installs each package by itself: ``{installed, already_present, failed}``. Works with ``allow_runtime_deps=False`` too, which binds the
        code and :meth:`add_dep`; the code can import them after the next reset then."""
        return await in_thread(_change_deps, await self._started(), _facade.install_deps, packages)

    async def uninstall_deps(self, packages: List[str]) -> Dict[str, Any]:
        """``{removed, not_found, failed}``"""
        return await in_thread(_change_deps, await self._started(), _facade.uninstall_deps, packages)


class SubprocessExecutor(LibraryExecutor):
    """A process forked from a warm interpreter. The default."""

    name = "subprocess"
    config_type = SubprocessConfig
    capabilities = COMMON | {Capability.PROCESS_ISOLATION}


class SandboxExecutor(LibraryExecutor):
    """The same, confined before the first byte of the code runs: for untrusted code."""

    name = "sandbox"
    config_type = SandboxConfig
    capabilities = CONFINED


class InProcessExecutor(LibraryExecutor):
    """The program's own process: no isolation.

    Args:
        config: None: the following arguments.
        registry: tools of the host.
        workflow_library, artifact_store, deps_namespace: their storage is used if ``start()`` gets none.
        default_timeout: seconds; that of a config takes precedence.
    """

    name = "inprocess"
    config_type = InProcessConfig
    capabilities = COMMON

    def __init__(self, config: Union[InProcessConfig, ToolRegistry, None] = None, workflow_library: Optional[StoragePart] = None,
                 artifact_store: Optional[StoragePart] = None, deps_namespace: Any = None,
                 default_timeout: Optional[float] = 30.0, *, registry: Optional[ToolRegistry] = None,
                 skill_library: Optional[StoragePart] = None) -> None:
        if isinstance(config, ToolRegistry):  # which was the first parameter once
            config, registry = None, config
        super().__init__(config if config is not None else InProcessConfig(default_timeout=default_timeout))
        self._registry = registry
        self._parts = [each for each in (workflow_library, skill_library, artifact_store, deps_namespace) if each is not None]

    def make_spec(self, storage: Optional[StorageBackend]) -> Spec:
        if storage is None and self._parts:
            storage = self._parts[0].storage
        spec = super().make_spec(storage)
        if self._registry is not None:
            spec.tools = [*spec.tools, self._registry]
        return spec


class ContainerExecutor(LibraryExecutor):
    """A container; with ``remote_url`` an existing session server."""

    name = "container"
    config_type = ContainerConfig
    capabilities = CONFINED

    def __init__(self, config: Optional[ContainerConfig] = None, *, remote_url: Optional[str] = None,
                 auth_token: Optional[str] = None) -> None:
        if config is None:
            config = ContainerConfig(remote_url=remote_url, auth_token=auth_token)
        elif remote_url is not None or auth_token is not None:
            raise TypeError("give a config, or remote_url and auth_token")
        super().__init__(config)
        if config.remote_url is not None:
            self.name = "remote"

    async def stop(self) -> None:
        """As :meth:`close`."""
        await self.close()

    def make_spec(self, storage: Optional[StorageBackend]) -> Spec:
        assert isinstance(self.config, ContainerConfig)
        self.config.check()
        spec = super().make_spec(storage)
        if spec.remote:
            # The storage is the server's; which workspace of it, the one that was given here says.
            spec.space = {}
            spec.session["remote_workspace"] = getattr(storage, "workspace_id", None)
        return spec


class KubernetesExecutor(LibraryExecutor):
    """A pod of a cluster, claimed from a pool."""

    name = "kubernetes"
    config_type = KubernetesConfig
    capabilities = CONFINED

    def make_spec(self, storage: Optional[StorageBackend]) -> Spec:
        assert isinstance(self.config, KubernetesConfig)
        self.config.check()
        spec = super().make_spec(storage)
        if spec.space.get("storage") is not None:
            raise ValueError("the storage of code in a pod is that of the server in the pod: give it in the pool's template")
        return spec


class DenoSandboxExecutor(LibraryExecutor):
    """Pyodide (WASM) in a Deno process."""

    name = "deno"
    config_type = DenoSandboxConfig
    capabilities = COMMON | {Capability.PROCESS_ISOLATION, Capability.NETWORK_ISOLATION, Capability.NETWORK_FILTERING,
                             Capability.FILESYSTEM_ISOLATION}


class JupyterExecutor(LibraryExecutor):
    """Any Jupyter kernel."""

    name = "jupyter"
    config_type = JupyterConfig
    capabilities = COMMON | {Capability.PROCESS_ISOLATION}


for _key, _class in (("subprocess", SubprocessExecutor), ("sandbox", SandboxExecutor), ("in-process", InProcessExecutor),
                     ("container", ContainerExecutor), ("kubernetes", KubernetesExecutor), ("deno-sandbox", DenoSandboxExecutor),
                     ("jupyter", JupyterExecutor)):
    register_backend(_key, _class)

__all__ = ["LibraryExecutor", "SubprocessExecutor", "SandboxExecutor", "InProcessExecutor", "ContainerExecutor", "KubernetesExecutor",
           "DenoSandboxExecutor", "JupyterExecutor"]

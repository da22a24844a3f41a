"""Sandboxes of the OpenAI Agents SDK on this machine, confined: a ``BaseSandboxClient`` whose sessions are Workcell sessions.

::

    from agents.run import RunConfig
    from agents.sandbox import SandboxAgent, SandboxRunConfig
    from workcell.integrations.openai_agents_sandbox import WorkcellSandboxClient

    result = await Runner.run(agent, "...", run_config=RunConfig(sandbox=SandboxRunConfig(client=WorkcellSandboxClient())))
"""

# pyright: reportMissingImports=false, reportIncompatibleVariableOverride=false
from __future__ import annotations

import asyncio
import dataclasses
import io
import os
import re
import shutil
import stat
import tarfile
import tempfile
import uuid
from pathlib import Path
from typing import Any, Dict, Literal, Optional, Tuple, Union, cast

from agents.sandbox import Manifest
from agents.sandbox.errors import (ExecTimeoutError, ExecTransportError, WorkspaceArchiveReadError, WorkspaceArchiveWriteError,
                                   WorkspaceReadNotFoundError)
from agents.sandbox.session import BaseSandboxClient, BaseSandboxSession, SandboxSession, SandboxSessionState
from agents.sandbox.session.sandbox_client import BaseSandboxClientOptions
from agents.sandbox.session.workspace_payloads import coerce_write_payload
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult, User
from agents.sandbox.util.tar_utils import UnsafeTarMemberError, safe_extract_tarfile, should_skip_tar_member

from .._session import ExecutorLike, PathLike, executor_of
from ..errors import WorkcellError
from ..execution.configs import SandboxConfig
from ..execution.executors import SandboxExecutor
from ..session import Session
from . import _shell
from ._common import executor_for

_DEFAULT_ROOT = cast(str, Manifest.model_fields["root"].default)
_NOT_HERE = ("not_found", "differs", "damaged")
_OWN_FOLDER = os.path.join(os.path.realpath(tempfile.gettempdir()), "workcell-agents-")


def _is_own(root: str) -> bool:
    """Whether a workspace is a folder of this adapter's. A state comes from outside: nothing else is made, or removed, because a state names it."""
    return re.fullmatch(re.escape(_OWN_FOLDER) + "[0-9a-f]{32}", root) is not None


def _own_root(manifest: Manifest) -> Manifest:
    folder = _OWN_FOLDER + uuid.uuid4().hex
    os.mkdir(folder, 0o700)
    return manifest.model_copy(update={"root": folder}, deep=True)


def _make_again(folder: str) -> bool:
    """A session is woken in the folder where it was. False: it is still there."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        found = os.lstat(folder)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
            return False
        raise
    return True


class WorkcellSandboxOptions(BaseSandboxClientOptions):
    """``network``: as in :class:`workcell.SandboxConfig`, ``"none"`` unless given; ``memory``: like ``"512m"``; ``timeout``: seconds of a command."""

    type: Literal["workcell"] = "workcell"
    network: Optional[str] = None
    memory: Optional[str] = None
    timeout: Optional[float] = None


class WorkcellSandboxState(SandboxSessionState):
    """What is kept of a session."""

    type: Literal["workcell"] = "workcell"
    options: WorkcellSandboxOptions = WorkcellSandboxOptions()
    saved: Optional[str] = None  # the id of the Workcell session, once its memory was saved


class WorkcellSandboxSession(BaseSandboxSession):
    """Commands and files of one Workcell session. Its workspace is a folder of this machine that nothing else is mounted beside."""

    state: WorkcellSandboxState

    def __init__(self, state: WorkcellSandboxState, session: Session, saves: bool = False) -> None:
        self.state, self.session, self._saves = state, session, saves
        self.woken = False  # with the files that were saved at the moment of the snapshot

    # -- life

    async def _ensure_backend_started(self) -> None:
        await self.session.start()

    async def _prepare_backend_workspace(self) -> None:
        await asyncio.to_thread(Path(self.state.manifest.root).mkdir, parents=True, exist_ok=True)

    async def _can_reuse_restorable_snapshot_workspace(self) -> bool:
        woken, self.woken = self.woken, False
        return woken or await super()._can_reuse_restorable_snapshot_workspace()

    async def running(self) -> bool:
        """Whether the session is open."""
        return self.session._started and not self.session._closed

    async def _persist_snapshot(self) -> None:
        """Snapshots of the SDK have the workspace; the memory is saved at the same moment, for the one who resumes this state."""
        await super()._persist_snapshot()
        if self._saves:
            self.state.saved = (await self.session.hibernate()).session_id

    async def _apply_manifest(self, **options: Any) -> Any:
        self._check_accounts()
        return await super()._apply_manifest(**options)

    async def provision_manifest_accounts(self) -> None:
        """Sandboxes have one user."""
        self._check_accounts()

    def _check_accounts(self) -> None:
        if self.state.manifest.users or self.state.manifest.groups:
            raise ValueError("a Workcell sandbox has one user: the manifest cannot have users or groups")

    # -- commands

    async def _exec_internal(self, *command: Union[str, Path], timeout: Optional[float] = None) -> ExecResult:
        words = [str(each) for each in command]
        seconds = timeout if timeout is not None else self.state.options.timeout
        environment = await self.state.manifest.environment.resolve() if self.state.manifest.environment.value else None
        cell = _shell.command(words, cwd=self.state.manifest.root, env=environment, seconds=seconds)
        try:
            done = _shell.done(await self.session.run(cell, None if seconds is None else seconds + 5))
        except WorkcellError as error:
            raise ExecTransportError(command=words, cause=error) from error
        if done.late:
            raise ExecTimeoutError(command=words, timeout_s=seconds)
        return ExecResult(stdout=done.stdout, stderr=done.stderr, exit_code=done.status)

    # -- files

    def _relative(self, path: Union[Path, str], for_write: bool = False) -> str:
        return self.normalize_path(path, for_write=for_write).relative_to(self.state.manifest.root).as_posix()

    async def read(self, path: Path, *, user: Union[str, User, None] = None) -> io.IOBase:
        """A file of the workspace; no link leads out of it."""
        self._check_user(user)
        try:
            return io.BytesIO(await self.session.files.read(self._relative(path)))
        except FileNotFoundError as error:
            raise WorkspaceReadNotFoundError(path=path, cause=error) from error
        except (OSError, WorkcellError) as error:
            raise WorkspaceArchiveReadError(path=path, cause=error) from error

    async def write(self, path: Path, data: io.IOBase, *, user: Union[str, User, None] = None) -> None:
        """Makes or replaces a file of the workspace."""
        self._check_user(user)
        payload = coerce_write_payload(path=path, data=data)
        try:
            await self.session.files.write(self._relative(path, True), payload.stream.read())
        except (OSError, WorkcellError) as error:
            raise WorkspaceArchiveWriteError(path=path, cause=error) from error

    @staticmethod
    def _check_user(user: Union[str, User, None]) -> None:
        if user is not None:
            raise ValueError("a Workcell sandbox has one user: user= cannot be given")

    async def persist_workspace(self) -> io.IOBase:
        """The workspace as a tar file."""
        skip = self._persist_workspace_skip_relpaths()
        with tempfile.TemporaryDirectory(prefix="workcell-snapshot-") as folder:
            try:
                await self.session.files.download("", folder + "/all")
            except (OSError, WorkcellError) as error:
                raise WorkspaceArchiveReadError(path=Path(self.state.manifest.root), cause=error) from error

            def pack() -> io.BytesIO:
                made = io.BytesIO()
                with tarfile.open(fileobj=made, mode="w") as tar:
                    tar.add(folder + "/all", arcname=".", filter=lambda member: None if should_skip_tar_member(
                        member.name, skip_rel_paths=skip, root_name=None) else member)
                made.seek(0)
                return made

            return await asyncio.to_thread(pack)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Fills the workspace from a tar file."""
        root = Path(self.state.manifest.root)
        with tempfile.TemporaryDirectory(prefix="workcell-snapshot-") as folder:
            def unpack() -> None:
                with tarfile.open(fileobj=cast(Any, data), mode="r:*") as tar:
                    safe_extract_tarfile(tar, root=Path(folder))

            try:
                await asyncio.to_thread(unpack)
                for entry in sorted(await asyncio.to_thread(lambda: list(Path(folder).iterdir()))):
                    await self.session.files.upload(entry, entry.name)
            except (OSError, tarfile.TarError, UnsafeTarMemberError, ValueError, WorkcellError) as error:
                raise WorkspaceArchiveWriteError(path=root, cause=error) from error

    # -- what other sandboxes do not have

    async def checkpoint(self, name: str) -> None:
        """Keeps the state, also that of files where the workspace is a layer; :meth:`rewind` goes back to it."""
        await self.session.checkpoint(name)

    async def rewind(self, name: str) -> None:
        """Goes back to a kept state."""
        await self.session.rewind(name)


class WorkcellSandboxClient(BaseSandboxClient[Optional[WorkcellSandboxOptions]]):
    """Sandboxes on this machine, without Docker: namespaces, seccomp, Landlock, no network unless it is given.

    Args:
        executor: of the sessions: a :class:`workcell.SandboxConfig` with options, or an executor object; None: ``sandbox``.
        saved: a folder for saved sessions, or Redis: when the SDK persists a session, its memory is saved there and its process ends. Any client
            with the same ``saved`` resumes it with its variables.
        instrumentation, dependencies: as of the SDK's other clients.
        options: of the Workcell sessions: ``policy``, ``gate``, ``audit``, ``llm``, ``saved_key``.
    """

    backend_id = "workcell"
    supports_default_options = True

    def __init__(self, *, executor: ExecutorLike = None, saved: Optional[PathLike] = None, instrumentation: Any = None, dependencies: Any = None,
                 **options: Any) -> None:
        if isinstance(executor, str) and executor != "sandbox":
            executor = executor_of(executor_for(executor)[0])  # a wrong name must fail here
        self._executor, self._instrumentation, self._dependencies = executor, instrumentation, dependencies
        self._saved, self._options = saved, {"saved": saved, **options}
        self._live: Dict[uuid.UUID, WorkcellSandboxSession] = {}

    def _open(self, state: WorkcellSandboxState, resume: Optional[str] = None) -> WorkcellSandboxSession:
        chosen: Any = self._executor
        if chosen is None or chosen == "sandbox":
            chosen = SandboxConfig()
        if isinstance(chosen, SandboxConfig):
            given: Dict[str, Any] = {name: value for name, value in (("network", state.options.network), ("memory", state.options.memory)) if value is not None}
            # In a layer, forks and rewinds take the files along; a folder of the caller's is worked in itself.
            mode = "cow" if chosen.workspace_mode is None and _is_own(state.manifest.root) else chosen.workspace_mode
            chosen = SandboxExecutor(dataclasses.replace(chosen, cwd=state.manifest.root, workspace_mode=mode, **given))
        made = WorkcellSandboxSession(state, Session(None, chosen, resume=resume, **self._options), self._saved is not None)
        self._live[state.session_id] = made
        return made

    def _wrap(self, inner: WorkcellSandboxSession) -> SandboxSession:
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    async def create(self, *, snapshot: Union[SnapshotSpec, SnapshotBase, None] = None, manifest: Optional[Manifest] = None,
                     options: Optional[WorkcellSandboxOptions] = None) -> SandboxSession:
        """A new sandbox with an empty workspace, or in the folder that the manifest names as its root."""
        ident = uuid.uuid4()
        manifest = self._validate_manifest_for_create(manifest if manifest is not None else Manifest())
        if manifest.root == _DEFAULT_ROOT:
            manifest = _own_root(manifest)
        state = WorkcellSandboxState(session_id=ident, manifest=manifest, snapshot=resolve_snapshot(snapshot, str(ident)),
                                     options=options or WorkcellSandboxOptions())
        return self._wrap(self._open(state))

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Ends the Workcell session and removes its workspace, unless the folder was given."""
        inner = self._inner(session)
        self._live.pop(inner.state.session_id, None)
        await inner.session.close()
        root = inner.state.manifest.root
        if _is_own(root) and all(each.state.manifest.root != root for each in self._live.values()):  # a fork has it as well
            await asyncio.to_thread(shutil.rmtree, root, True)
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """The same live session with its variables, where this client still has it; a saved one, woken; else a new one, filled from the snapshot."""
        if not isinstance(state, WorkcellSandboxState):
            raise TypeError("this is the state of another client's session, not a WorkcellSandboxState")
        state.assert_path_grants_rebound()
        live = self._live.get(state.session_id)
        if live is not None and await live.running():
            live._set_start_state_preserved(True)
            return self._wrap(live)
        woken = await self._wake(state) if state.saved is not None else None
        if woken is not None:
            return self._wrap(woken)
        if _is_own(state.manifest.root):  # it may be another session's by now
            state = state.model_copy(update={"manifest": _own_root(state.manifest), "workspace_root_ready": False})
        return self._wrap(self._open(state))

    async def _wake(self, state: WorkcellSandboxState) -> Optional[WorkcellSandboxSession]:
        """The saved session; None if it cannot be woken here and the snapshot has the workspace."""
        has_files = await state.snapshot.restorable(dependencies=self._resolve_dependencies())
        if self._saved is None:
            if has_files:
                return None
            raise ValueError("the session was saved with its memory, and has no snapshot: this client needs saved=, the folder that it was saved in")
        made = _is_own(state.manifest.root) and _make_again(state.manifest.root)
        inner = self._open(state, state.saved)
        try:
            await inner.session.start()
        except BaseException as error:
            self._live.pop(state.session_id, None)
            await inner.session.close()
            if made:
                os.rmdir(state.manifest.root)
            if has_files and isinstance(error, WorkcellError) and error.code in _NOT_HERE:
                return None
            raise
        inner._set_start_state_preserved(True)
        inner.woken = True
        return inner

    async def fork(self, session: SandboxSession) -> SandboxSession:
        """A second sandbox that goes on from the state of this one, with its variables and its files, which are copied when they change."""
        inner = self._inner(session)
        if getattr(inner.session.executor.config, "workspace_mode", None) != "cow":
            raise ValueError("forks would write to the same files: the workspace must be a layer, as it is unless the manifest has a root "
                             "(SandboxConfig(workspace_mode='cow'))")
        state = inner.state.model_copy(update={"session_id": uuid.uuid4(), "saved": None})
        made = WorkcellSandboxSession(state, await inner.session.fork(), inner._saves)
        made._set_start_state_preserved(True)
        self._live[state.session_id] = made
        return self._wrap(made)

    @staticmethod
    def _inner(session: SandboxSession) -> WorkcellSandboxSession:
        inner = session._inner
        if not isinstance(inner, WorkcellSandboxSession):
            raise TypeError("this is a session of another client")
        return inner

    def deserialize_session_state(self, payload: Dict[str, object]) -> SandboxSessionState:
        """From what ``serialize_session_state()`` gave."""
        return self._deserialize_session_state_payload(payload, WorkcellSandboxState)

    async def close(self) -> None:
        """Ends all sessions of this client."""
        for inner in list(self._live.values()):
            await self.delete(self._wrap(inner))


__all__ = ["WorkcellSandboxClient", "WorkcellSandboxOptions", "WorkcellSandboxSession", "WorkcellSandboxState"]

"""The session of ``openai_agents_sandbox``: what the OpenAI Agents SDK does in a sandbox, in a Workcell session."""

# pyright: reportMissingImports=false, reportIncompatibleVariableOverride=false
from __future__ import annotations

import asyncio
import io
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Literal, Optional, Union, cast

from agents.sandbox.errors import (ExecTimeoutError, ExecTransportError, WorkspaceArchiveReadError, WorkspaceArchiveWriteError,
                                   WorkspaceReadNotFoundError)
from agents.sandbox.session import BaseSandboxSession, SandboxSessionState
from agents.sandbox.session.sandbox_client import BaseSandboxClientOptions
from agents.sandbox.session.workspace_payloads import coerce_write_payload
from agents.sandbox.types import ExecResult, User
from agents.sandbox.util.tar_utils import UnsafeTarMemberError, safe_extract_tarfile, should_skip_tar_member

from ..errors import WorkcellError
from ..session import Session
from . import _shell


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

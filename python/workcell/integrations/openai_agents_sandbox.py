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
import os
import re
import shutil
import stat
import tempfile
import uuid
from typing import Any, Dict, Optional, Union, cast

from agents.sandbox import Manifest
from agents.sandbox.session import BaseSandboxClient, SandboxSession, SandboxSessionState
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot

from .._session import ExecutorLike, executor_of
from ..errors import WorkcellError
from ..execution.configs import PathLike, SandboxConfig
from ..execution.executors import SandboxExecutor
from ..session import Session
from ._common import Here, executor_for
from ._openai_agents_session import WorkcellSandboxOptions, WorkcellSandboxSession, WorkcellSandboxState

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


class WorkcellSandboxClient(Here, BaseSandboxClient[Optional[WorkcellSandboxOptions]]):
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
        chosen: Manifest = self._validate_manifest_for_create(manifest if manifest is not None else Manifest())
        if chosen.root == _DEFAULT_ROOT:
            chosen = _own_root(chosen)
        state = WorkcellSandboxState(session_id=ident, manifest=chosen, snapshot=resolve_snapshot(snapshot, str(ident)),
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

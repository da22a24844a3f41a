"""Workcell runs the code that AI agents write.

Two APIs, both on libworkcell: :class:`Session` with storages and executors, and :class:`CodeExecutor` with
approvals and plots. :mod:`workcell.sync` has the session for programs without an event loop.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # importing typing takes longer than all of this file
if TYPE_CHECKING:
    from typing import Any

    from ._engine import Engine, ExecutorInfo, default_engine
    from ._branch import Child, Point, Race
    from ._commands import Command, CommandChunk, CommandInfo, CommandResult, Commands
    from ._durable import Hibernated, NotCarried, SavedSession, Variable, remove_saved, saved_sessions
    from ._files import Commit, Diff, FileChange
    from ._notebook import export_notebook, notebook_cells
    from ._replay import Difference, Replay, replay
    from .approvals import ApprovalGoneError, ApprovalRequest, Approvals, Rejection
    from .audit import AuditLog
    from .bootstrap import NamespaceBundle, bootstrap_namespaces
    from .code_executor import CodeExecutionChunk, CodeExecutionResult, CodeExecutor
    from .errors import (ApprovalRejectedError, ApprovalTimeoutError, ArtifactNotFoundError, ArtifactWriteError, AuthError, BusyError,
                         CodeExecutionError, CodeModeError, ConflictError, ForkError, PointNotFoundError, ServerError, SessionExpiredError, UnsupportedError, WakeError,
                         ConfigurationError, DependencyError, ExecutorUnavailableError, RuntimeDepsDisabledError,
                         SessionClosedError, SkillExecutionError, SkillNotFoundError, SkillValidationError, StorageError,
                         StorageReadError, StorageWriteError, ToolCallError, ToolNotFoundError, ToolTimeoutError, WorkcellError,
                         WorkflowExecutionError, WorkflowNotFoundError, WorkflowValidationError)
    from .events import (ApprovalEnded, ApprovalEvent, CallEnded, CallStarted, Chunk, Display, Event, ImageEvent, KernelDied,
                         BranchEvent, ResultEvent)
    from .execution import (CONTAINER_AVAILABLE, DENO_SANDBOX_AVAILABLE, SUBPROCESS_AVAILABLE, Capability, ContainerConfig,
                            ContainerExecutor, DenoSandboxConfig, DenoSandboxExecutor, Executor, InProcessConfig,
                            InProcessExecutor, JupyterConfig, JupyterExecutor, KubernetesConfig, KubernetesExecutor, SandboxConfig,
                            SandboxExecutor, SubprocessConfig, SubprocessExecutor)
    from .llm import LlmAnswer, LlmBudget, LlmRequest, LlmUsage
    from .mcp import generate_mcp_sources
    from .policy import Policy, check_policy
    from .session import Session
    from .storage import FileStorage, RedisStorage, StorageBackend
    from .tools import ToolCallContext, ToolMiddleware, compose_tool_middlewares
    from ._workspace import FileInfo, Files
    from .types import ErrorInfo, ExecutionResult, Image, JsonSchema, ToolDefinition

    __version__: str

# Which module has which name. They are imported when they are asked for: a program that wants one class, or only the command, does not wait
# for asyncio and the rest.
_HOMES = {
    "_branch": "Child Point Race",
    "_commands": "Command CommandChunk CommandInfo CommandResult Commands",
    "_durable": "Hibernated NotCarried SavedSession Variable remove_saved saved_sessions",
    "_files": "Commit Diff FileChange",
    "_notebook": "export_notebook notebook_cells",
    "_replay": "Difference Replay replay",
    "_workspace": "FileInfo Files",
    "_engine": "Engine ExecutorInfo default_engine",
    "approvals": "ApprovalGoneError ApprovalRequest Approvals Rejection",
    "audit": "AuditLog",
    "bootstrap": "NamespaceBundle bootstrap_namespaces",
    "code_executor": "CodeExecutionChunk CodeExecutionResult CodeExecutor",
    "errors": "ApprovalRejectedError ApprovalTimeoutError ArtifactNotFoundError ArtifactWriteError AuthError BusyError "
              "ConflictError WakeError ForkError PointNotFoundError UnsupportedError "
              "CodeExecutionError CodeModeError ServerError SessionExpiredError ConfigurationError DependencyError "
              "ExecutorUnavailableError RuntimeDepsDisabledError SessionClosedError SkillExecutionError "
              "SkillNotFoundError SkillValidationError StorageError StorageReadError StorageWriteError "
              "ToolCallError ToolNotFoundError ToolTimeoutError WorkcellError WorkflowExecutionError "
              "WorkflowNotFoundError WorkflowValidationError",
    "events": "ApprovalEnded ApprovalEvent CallEnded CallStarted Chunk Display Event ImageEvent KernelDied ResultEvent BranchEvent",
    "execution": "CONTAINER_AVAILABLE DENO_SANDBOX_AVAILABLE SUBPROCESS_AVAILABLE Capability ContainerConfig "
                 "ContainerExecutor DenoSandboxConfig DenoSandboxExecutor Executor InProcessConfig InProcessExecutor "
                 "JupyterConfig JupyterExecutor KubernetesConfig KubernetesExecutor SandboxConfig SandboxExecutor SubprocessConfig SubprocessExecutor",
    "llm": "LlmAnswer LlmBudget LlmRequest LlmUsage",
    "mcp": "generate_mcp_sources",
    "policy": "Policy check_policy",
    "session": "Session",
    "storage": "FileStorage RedisStorage StorageBackend",
    "tools": "ToolCallContext ToolMiddleware compose_tool_middlewares",
    "types": "ErrorInfo ExecutionResult Image JsonSchema ToolDefinition",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Session", "bootstrap_namespaces", "NamespaceBundle", "ExecutionResult", "ErrorInfo", "Image", "JsonSchema",
    "ToolDefinition", "StorageBackend", "FileStorage", "RedisStorage", "Executor", "Capability", "InProcessExecutor",
    "InProcessConfig", "SubprocessExecutor", "SubprocessConfig", "SandboxExecutor", "SandboxConfig", "ContainerExecutor",
    "ContainerConfig", "DenoSandboxExecutor", "DenoSandboxConfig", "JupyterExecutor", "JupyterConfig",
    "KubernetesExecutor", "KubernetesConfig", "SUBPROCESS_AVAILABLE", "CONTAINER_AVAILABLE", "DENO_SANDBOX_AVAILABLE", "CodeModeError", "WorkcellError",
    "ToolNotFoundError", "ToolCallError", "ToolTimeoutError", "ArtifactNotFoundError", "ArtifactWriteError",
    "WorkflowNotFoundError", "WorkflowValidationError", "WorkflowExecutionError", "SkillNotFoundError",
    "SkillValidationError", "SkillExecutionError", "DependencyError", "RuntimeDepsDisabledError", "StorageError",
    "StorageReadError", "StorageWriteError", "ConfigurationError", "SessionClosedError", "SessionExpiredError",
    "AuthError", "BusyError", "ConflictError", "WakeError", "ForkError", "PointNotFoundError", "ServerError", "UnsupportedError", "ExecutorUnavailableError",
    "CodeExecutor", "CodeExecutionChunk", "CodeExecutionResult", "CodeExecutionError", "ApprovalRejectedError", "ApprovalTimeoutError",
    "ApprovalRequest", "ApprovalGoneError", "Approvals", "Rejection", "generate_mcp_sources", "Engine", "ExecutorInfo", "default_engine",
    "AuditLog", "Policy", "check_policy", "ToolCallContext", "ToolMiddleware", "compose_tool_middlewares", "Event", "Chunk",
    "Display", "ImageEvent", "CallStarted", "CallEnded", "ApprovalEvent", "ApprovalEnded", "KernelDied", "ResultEvent", "BranchEvent",
    "Hibernated", "NotCarried", "SavedSession", "remove_saved", "saved_sessions", "Variable", "Difference", "Replay", "replay",
    "export_notebook", "notebook_cells",
    "Child", "Point", "Race", "Diff", "FileChange", "Commit", "FileInfo", "Files",
    "LlmAnswer", "LlmBudget", "LlmRequest", "LlmUsage",
    "Command", "CommandChunk", "CommandInfo", "CommandResult", "Commands",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value = importlib.import_module("._native", __name__).version()
    elif name in _HOME_OF:
        value = getattr(importlib.import_module("." + _HOME_OF[name], __name__), name)
    elif name.startswith("__"):
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    else:
        try:
            value = importlib.import_module("." + name, __name__)
        except ModuleNotFoundError as error:
            if error.name != "%s.%s" % (__name__, name):
                raise
            raise AttributeError("module %r has no attribute %r" % (__name__, name)) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})

"""Workcell runs the code that AI agents write.

Two APIs, both on libworkcell: :class:`Session` with storages and executors, and :class:`CodeExecutor` with
approvals and plots. :mod:`workcell.sync` has the session for programs without an event loop.
"""

from . import _native
from ._engine import Engine, ExecutorInfo, default_engine
from .approvals import ApprovalGoneError, ApprovalRequest, Approvals
from .audit import AuditLog
from .bootstrap import NamespaceBundle, bootstrap_namespaces
from .code_executor import CodeExecutionChunk, CodeExecutionResult, CodeExecutor
from .errors import (ApprovalRejectedError, ArtifactNotFoundError, ArtifactWriteError, AuthError, BusyError,
                     CodeExecutionError, CodeModeError, ServerError, SessionExpiredError,
                     ConfigurationError, DependencyError, ExecutorUnavailableError, RuntimeDepsDisabledError,
                     SessionClosedError, SkillExecutionError, SkillNotFoundError, SkillValidationError, StorageError,
                     StorageReadError, StorageWriteError, ToolCallError, ToolNotFoundError, ToolTimeoutError, WorkcellError,
                     WorkflowExecutionError, WorkflowNotFoundError, WorkflowValidationError)
from .events import (ApprovalEnded, ApprovalEvent, CallEnded, CallStarted, Chunk, Display, Event, ImageEvent, KernelDied,
                     ResultEvent)
from .execution import (CONTAINER_AVAILABLE, DENO_SANDBOX_AVAILABLE, SUBPROCESS_AVAILABLE, Capability, ContainerConfig,
                        ContainerExecutor, DenoSandboxConfig, DenoSandboxExecutor, Executor, InProcessConfig,
                        InProcessExecutor, JupyterConfig, JupyterExecutor, SandboxConfig, SandboxExecutor, SubprocessConfig,
                        SubprocessExecutor)
from .mcp import generate_mcp_sources
from .policy import Policy, check_policy
from .session import Session
from .storage import FileStorage, RedisStorage, StorageBackend
from .tools import ToolCallContext, ToolMiddleware, compose_tool_middlewares
from .types import ErrorInfo, ExecutionResult, Image, JsonSchema, ToolDefinition

__version__ = _native.version()

__all__ = [
    "Session", "bootstrap_namespaces", "NamespaceBundle", "ExecutionResult", "ErrorInfo", "Image", "JsonSchema",
    "ToolDefinition", "StorageBackend", "FileStorage", "RedisStorage", "Executor", "Capability", "InProcessExecutor",
    "InProcessConfig", "SubprocessExecutor", "SubprocessConfig", "SandboxExecutor", "SandboxConfig", "ContainerExecutor",
    "ContainerConfig", "DenoSandboxExecutor", "DenoSandboxConfig", "JupyterExecutor", "JupyterConfig",
    "SUBPROCESS_AVAILABLE", "CONTAINER_AVAILABLE", "DENO_SANDBOX_AVAILABLE", "CodeModeError", "WorkcellError",
    "ToolNotFoundError", "ToolCallError", "ToolTimeoutError", "ArtifactNotFoundError", "ArtifactWriteError",
    "WorkflowNotFoundError", "WorkflowValidationError", "WorkflowExecutionError", "SkillNotFoundError",
    "SkillValidationError", "SkillExecutionError", "DependencyError", "RuntimeDepsDisabledError", "StorageError",
    "StorageReadError", "StorageWriteError", "ConfigurationError", "SessionClosedError", "SessionExpiredError",
    "AuthError", "BusyError", "ServerError", "ExecutorUnavailableError",
    "CodeExecutor", "CodeExecutionChunk", "CodeExecutionResult", "CodeExecutionError", "ApprovalRejectedError",
    "ApprovalRequest", "ApprovalGoneError", "Approvals", "generate_mcp_sources", "Engine", "ExecutorInfo", "default_engine",
    "AuditLog", "Policy", "check_policy", "ToolCallContext", "ToolMiddleware", "compose_tool_middlewares", "Event", "Chunk",
    "Display", "ImageEvent", "CallStarted", "CallEnded", "ApprovalEvent", "ApprovalEnded", "KernelDied", "ResultEvent",
]

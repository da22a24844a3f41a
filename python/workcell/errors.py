"""Every error that Workcell raises.

A failure of the agent's code raises nothing on the host: it is in the result
(:attr:`workcell.ExecutionResult.error`). These exceptions mean misuse, or a failure of Workcell.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Type


class CodeModeError(Exception):
    """The base of all errors of Workcell.

    ``code`` is a word of the library's table (``invalid``, ``closed``, ``executor_unavailable``, ...), or ``""``.
    """

    code: str = ""


#: The same class by the name of this package.
WorkcellError = CodeModeError


# ---- tools


class ToolNotFoundError(CodeModeError):
    """The tool does not exist."""

    code = "not_found"

    def __init__(self, tool_name: str, available_tools: Optional[Sequence[str]] = None) -> None:
        self.tool_name = tool_name
        self.available_tools = list(available_tools or [])
        message = "Tool '%s' not found" % tool_name
        if self.available_tools:
            message += ". Available: " + ", ".join(self.available_tools[:5])
            if len(self.available_tools) > 5:
                message += " (and %d more)" % (len(self.available_tools) - 5)
        super().__init__(message)


class ToolCallError(CodeModeError):
    """A tool was called and failed."""

    code = "tool_failed"

    def __init__(self, tool_name: str, tool_args: Optional[Mapping[str, Any]] = None, cause: object = None) -> None:
        self.tool_name = tool_name
        self.tool_args: Dict[str, Any] = dict(tool_args or {})
        self.cause = cause
        super().__init__("Tool '%s' failed: %s" % (tool_name, cause))


class ToolTimeoutError(CodeModeError, TimeoutError):
    """A tool did not answer in time."""

    code = "tool_timeout"

    def __init__(self, tool_name: str, timeout_seconds: Optional[float] = None, message: str = "") -> None:
        self.tool_name = tool_name
        self.timeout_seconds = timeout_seconds
        text = "Tool '%s' timed out" % tool_name
        if timeout_seconds is not None:
            text += " after %gs" % timeout_seconds
        super().__init__(text + (": " + message if message else ""))


# ---- storage


class ArtifactNotFoundError(CodeModeError, LookupError):
    """The artifact does not exist."""

    code = "not_found"

    def __init__(self, artifact_name: str) -> None:
        self.artifact_name = artifact_name
        super().__init__("Artifact '%s' not found" % artifact_name)


class ArtifactWriteError(CodeModeError):
    """An artifact could not be written."""

    code = "io"

    def __init__(self, artifact_name: str, reason: str) -> None:
        self.artifact_name = artifact_name
        self.reason = reason
        super().__init__("Cannot write artifact '%s': %s" % (artifact_name, reason))


class _Named:
    name: str

    @property
    def workflow_name(self) -> str:
        """Another name of ``name``."""
        return self.name

    skill_name = workflow_name


class WorkflowNotFoundError(_Named, CodeModeError, LookupError):
    """The workflow does not exist."""

    code = "not_found"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__("Workflow '%s' not found" % name)


class WorkflowValidationError(_Named, CodeModeError, ValueError):
    """The source is not a valid workflow."""

    code = "invalid"

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__("Invalid workflow '%s': %s" % (name, reason))


class WorkflowExecutionError(_Named, CodeModeError):
    """A workflow was run and raised."""

    code = "exception"

    def __init__(self, name: str, cause: object) -> None:
        self.name = name
        self.cause = cause
        super().__init__("Workflow '%s' execution failed: %s" % (name, cause))


SkillNotFoundError = WorkflowNotFoundError
SkillValidationError = WorkflowValidationError
SkillExecutionError = WorkflowExecutionError


class StorageError(CodeModeError):
    """The storage could not be used."""

    code = "io"

    def __init__(self, message: str, path: object = None) -> None:
        self.path = path
        super().__init__(message + (" (path: %s)" % path if path is not None else ""))


class StorageReadError(StorageError):
    """The storage could not be read."""


class StorageWriteError(StorageError):
    """The storage could not be written."""


class DependencyError(CodeModeError):
    """A package is not available."""

    code = "install_failed"

    def __init__(self, package: str, required_by: Optional[str] = None, message: str = "") -> None:
        self.package = package
        self.required_by = required_by
        text = message or "Package '%s' is not available" % package
        super().__init__(text + (" (required by %s)" % required_by if required_by else ""))


class RuntimeDepsDisabledError(CodeModeError):
    """Packages cannot be changed by code: ``allow_runtime_deps=False``."""

    code = "disabled"


# ---- the library


class ConfigurationError(CodeModeError):
    """The configuration is not possible."""

    code = "invalid"


class InvalidError(ConfigurationError, ValueError):
    """An argument, a name or a file is invalid."""


class LimitError(CodeModeError):
    """A limit was exceeded."""

    code = "limit"


class EngineError(CodeModeError, RuntimeError):
    """The library itself failed; ``code`` says how."""


class KernelError(EngineError):
    """A kernel could not be started, or the spawner has died."""

    code = "kernel_failed"


class SandboxError(EngineError):
    """A step of the confinement failed, so nothing was run."""

    code = "sandbox_failed"


class SessionClosedError(CodeModeError, RuntimeError):
    """The session, or its engine, is closed; or it belongs to the process that this one was forked from."""

    code = "closed"


class SessionExpiredError(SessionClosedError):
    """The session server has ended the session."""

    code = "session_expired"


class ExecutorUnavailableError(CodeModeError, RuntimeError):
    """The executor is not part of this build, or does not work on this machine; the message says why."""

    code = "executor_unavailable"


class AuthError(CodeModeError, PermissionError):
    """A session server does not know the token (``unauthorized``), or the token does not allow the request (``forbidden``)."""

    code = "unauthorized"


class BusyError(CodeModeError):
    """The maximum number of sessions, cells or workspaces is in use: try again later."""

    code = "busy"


class ForkError(CodeModeError):
    """The session has threads, child processes, connections or locks that a fork would not have; the message names them."""

    code = "cannot_fork"


class UnsupportedError(CodeModeError, NotImplementedError):
    """The executor cannot do this; the message names one that can."""

    code = "unsupported"


class WakeError(CodeModeError):
    """A saved session cannot be woken here: something differs from what it was saved with (code ``differs``), or its files were changed
    (code ``damaged``)."""


class ConflictError(CodeModeError):
    """Files were changed in the real workspace since the layer was made; the message names them, and nothing was committed."""

    code = "conflict"


class PointNotFoundError(CodeModeError, LookupError):
    """The session has no such point."""

    code = "not_found"


class ServerError(CodeModeError, ConnectionError):
    """A session server could not be reached, or sent an invalid answer."""

    code = "io"


class StartTimeoutError(CodeModeError, TimeoutError):
    """A process did not start in time."""

    code = "start_timeout"


# ---- namespaces, as code in sessions sees them


class RPCError(CodeModeError):
    """A call between a session and its host failed."""


class RPCTransportError(RPCError):
    """A call could not be made."""


class NamespaceError(RPCError):
    """An operation of a namespace failed."""

    def __init__(self, namespace: str, operation: str, message: str, original_type: str = "RuntimeError") -> None:
        self.namespace = namespace
        self.operation = operation
        self.original_type = original_type
        super().__init__("%s.%s: [%s] %s" % (namespace, operation, original_type, message))


class WorkflowError(NamespaceError):
    """Of ``workflows``."""

    def __init__(self, operation: str, message: str, original_type: str = "RuntimeError") -> None:
        super().__init__("workflows", operation, message, original_type)


class ToolError(NamespaceError):
    """Of ``tools``."""

    def __init__(self, operation: str, message: str, original_type: str = "RuntimeError") -> None:
        super().__init__("tools", operation, message, original_type)


class ArtifactError(NamespaceError):
    """Of ``artifacts``."""

    def __init__(self, operation: str, message: str, original_type: str = "RuntimeError") -> None:
        super().__init__("artifacts", operation, message, original_type)


class DepsError(NamespaceError):
    """Of ``deps``."""

    code = "install_failed"

    def __init__(self, operation: str, message: str, original_type: str = "RuntimeError") -> None:
        super().__init__("deps", operation, message, original_type)


SkillError = WorkflowError


# ---- outcomes of cells, for the second family


class CodeExecutionError(Exception):
    """The code raised, a call was refused, or its kernel died.

    ``args[0]`` is ``"Type: message"`` and the traceback. ``output`` is the output before the error.
    """

    def __init__(self, message: str, output: str = "", code: str = "exception") -> None:
        super().__init__(message)
        self.output = output
        self.code = code


class ApprovalRejectedError(CodeExecutionError):
    """A call was rejected and the code did not catch the exception."""


class ApprovalTimeoutError(ApprovalRejectedError):
    """Nobody answered the request in time, and the code did not catch the exception."""


_BY_WORD: Dict[str, Type[CodeModeError]] = {
    "invalid": InvalidError,
    "limit": LimitError,
    "kernel_failed": KernelError,
    "spawner_failed": KernelError,
    "sandbox_failed": SandboxError,
    "closed": SessionClosedError,
    "executor_unavailable": ExecutorUnavailableError,
    "start_timeout": StartTimeoutError,
    "disabled": RuntimeDepsDisabledError,
    "io": StorageError,
    "storage_unavailable": StorageError,
    "protocol": ServerError,
    "version_mismatch": ServerError,
    "unauthorized": AuthError,
    "forbidden": AuthError,
    "busy": BusyError,
    "session_expired": SessionExpiredError,
    "cannot_fork": ForkError,
    "unsupported": UnsupportedError,
    "conflict": ConflictError, "differs": WakeError, "damaged": WakeError,
}


#: Flags of the command line in the library's advice, where the parameter has another name.
_PARAMETERS = {"base": "storage", "tools": "tools_path", "sandbox-policy": "policy", "venv": "venv_dir", "no-runtime-deps": "allow_runtime_deps",
               "approve": "policy"}
_SAME = ("memory", "cpus", "pids", "disk", "cwd", "workspace-mode", "storage", "python", "network", "timeout", "env", "preload", "images-dir", "remote-url", "remote-ca", "kernel",
         "python-version", "venv-dir", "cache-venv", "policy", "audit", "image",
         "auth-token", "auth-disabled", "workspace")
_FLAG = re.compile(r"(?<![\w-])--(%s)(?![\w-])" % "|".join([*_PARAMETERS, *_SAME]))
#: Fields of the library's options that are parameters of another name.
_FIELDS = {"memory_limit": "memory", "cpu_quota": "cpus", "pids_limit": "pids", "disk_limit": "disk"}
_FIELD = re.compile(r"\b(%s)\b" % "|".join(_FIELDS))


def _in_python(message: str) -> str:
    if _FIELD.search(message):
        message = _FIELD.sub(lambda field: _FIELDS[field[1]], message).replace("-1 for no limit", "0 for no limit")
    return _FLAG.sub(lambda flag: _PARAMETERS.get(flag[1], flag[1].replace("-", "_")) + "=", message)


def from_native(error: BaseException) -> Exception:
    """The error of this module for a NativeError (message, word, code, errno)."""
    message, word = str(error.args[0]), str(error.args[1])
    if word in ("invalid", "executor_unavailable", "sandbox_failed", "kernel_failed", "storage_unavailable"):
        message = _in_python(message)
    if word == "no_memory":
        return MemoryError(message)
    made: CodeModeError = _BY_WORD.get(word, EngineError)(message)
    made.code = word
    return made


def from_operation(error: BaseException, method: str, args: Mapping[str, Any]) -> Exception:
    """The same for an operation of a space: what was not found has a name."""
    message, word = str(error.args[0]), str(error.args[1])
    namespace, _, operation = method.partition(".")
    name = str(args.get("name", ""))
    if word == "not_found" and namespace == "artifacts":
        return ArtifactNotFoundError(name)
    if word == "not_found" and namespace == "workflows":
        return WorkflowNotFoundError(name)
    if namespace == "tools":
        if word == "not_found":
            return ToolNotFoundError(name.partition(".")[0]) if "callable" not in message else ToolError(
                operation, message, "AttributeError")
        if word == "tool_timeout":
            return ToolTimeoutError(name, message=message)
        if word == "tool_failed":
            tool = name.partition(".")[0]
            prefix = "Tool '%s' failed: " % tool  # the library's, which the class below adds itself
            return ToolCallError(tool, args.get("args"), message[len(prefix):] if message.startswith(prefix) else message)
    if word == "install_failed":
        return DepsError(operation, message, "DependencyError")
    return from_native(error)


__all__: List[str] = [
    "CodeModeError", "WorkcellError", "ToolNotFoundError", "ToolCallError", "ToolTimeoutError",
    "ArtifactNotFoundError", "ArtifactWriteError", "WorkflowNotFoundError", "WorkflowValidationError",
    "WorkflowExecutionError", "SkillNotFoundError", "SkillValidationError", "SkillExecutionError", "StorageError",
    "StorageReadError", "StorageWriteError", "DependencyError", "RuntimeDepsDisabledError", "ConfigurationError",
    "InvalidError", "LimitError", "EngineError", "KernelError", "SandboxError", "SessionClosedError",
    "SessionExpiredError", "AuthError", "BusyError", "ForkError", "ConflictError", "WakeError", "PointNotFoundError", "UnsupportedError", "ServerError", "ExecutorUnavailableError", "StartTimeoutError", "RPCError", "RPCTransportError", "NamespaceError",
    "WorkflowError", "SkillError", "ToolError", "ArtifactError", "DepsError", "CodeExecutionError",
    "ApprovalRejectedError", "ApprovalTimeoutError",
]

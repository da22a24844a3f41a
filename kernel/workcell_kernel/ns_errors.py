"""The exceptions that calls of tools, workflows, artifacts and deps raise, and how a host's error becomes one.

The classes stand in the session's namespace under their names, so that code can write ``except ToolError``.
"""

import builtins


class CodeModeError(Exception):
    """Base of what the namespaces raise. ``original_type`` is the host's name for the error, ``code`` its word."""

    def __init__(self, message="", namespace=None, operation=None, original_type=None, code=None):
        super().__init__(message)
        self.namespace = namespace
        self.operation = operation
        self.original_type = original_type or type(self).__name__
        self.code = code

    def __str__(self):
        return str(self.args[0]) if self.args else ""  # KeyError, a base of some, would show the repr


class RPCError(CodeModeError):
    """A call to the host failed."""


class RPCTransportError(RPCError):
    """A call to the host could not be made."""


class NamespaceError(RPCError):
    """A call of a namespace failed. Made by code: ``NamespaceError(namespace, operation, message)``."""

    def __init__(self, *args, **kwargs):
        if type(self) is NamespaceError and len(args) in (3, 4) and all(isinstance(each, str) for each in args):
            namespace, operation, message = args[:3]
            args, kwargs = (message,), dict(kwargs, namespace=namespace, operation=operation)
        super().__init__(*args, **kwargs)


class ToolError(NamespaceError):
    """A call of ``tools`` failed."""


class ToolNotFoundError(ToolError, AttributeError):
    """The tool or callable does not exist."""


class ToolCallError(ToolError):
    """The tool ran and failed."""


class ToolTimeoutError(ToolError, TimeoutError):
    """The tool did not end in time and was stopped."""


class ApprovalRejectedError(ToolError):
    """The call was refused: a person rejected the request, or the policy denies it."""


class ApprovalTimeoutError(ApprovalRejectedError, TimeoutError):
    """Nobody answered the request in time."""


class WorkflowError(NamespaceError):
    """A call of ``workflows`` failed."""


class ArtifactError(NamespaceError):
    """A call of ``artifacts`` failed."""


class ArtifactNotFoundError(ArtifactError, KeyError):
    """No artifact has this name."""


class DepsError(NamespaceError):
    """A call of ``deps`` failed."""


class RuntimeDepsDisabledError(DepsError):
    """This session may not change its packages."""


class ChildError(NamespaceError):
    """A call of ``sessions`` failed, or a cell of a child did: ``result`` is then its result."""

    result = None


class LlmError(NamespaceError):
    """A query of ``llm`` failed."""


class LlmBudgetError(LlmError):
    """The budget of ``llm`` is spent."""


SkillError = WorkflowError

EXPORTED = {
    cls.__name__: cls
    for cls in (CodeModeError, RPCError, RPCTransportError, NamespaceError, ToolError, ToolNotFoundError, ToolCallError, ToolTimeoutError,
                ApprovalRejectedError, ApprovalTimeoutError, WorkflowError, ArtifactError, ArtifactNotFoundError, DepsError, RuntimeDepsDisabledError,
                ChildError, LlmError, LlmBudgetError)
}
for _cls in EXPORTED.values():
    _cls.__module__ = "__main__"  # where code finds them, and no module name in front of the message
EXPORTED["SkillError"] = SkillError

_NAMESPACES = {
    "tools": ToolError,
    "workflows": WorkflowError,
    "skills": WorkflowError,
    "artifacts": ArtifactError,
    "deps": DepsError,
    "sessions": ChildError,
    "llm": LlmError,
}
# For hosts that give only a code.
_CODES = {
    ("tools", "not_found"): ToolNotFoundError,
    ("tools", "timeout"): ToolTimeoutError,
    ("artifacts", "not_found"): ArtifactNotFoundError,
    ("deps", "deps_disabled"): RuntimeDepsDisabledError,
}
_BUILTIN = frozenset((
    "ValueError", "TypeError", "KeyError", "LookupError", "OSError", "FileNotFoundError", "FileExistsError",
    "PermissionError", "IsADirectoryError", "NotADirectoryError", "TimeoutError", "ConnectionError",
    "NotImplementedError", "MemoryError", "SyntaxError",
))
_combined = {}


def combined(base, name):
    """A class that is caught both as the namespace's error and as the built-in one, and shows the latter's name."""
    key = base, name
    if key not in _combined:
        _combined[key] = type(name, (base, getattr(builtins, name)), {"__module__": "builtins"})
    return _combined[key]


def from_reply(error):
    """The exception for the ``error`` of a REPLY."""
    if type(error) is not dict:
        error = {"message": str(error)}
    kind, code = error.get("type") or "", error.get("code")
    namespace, operation = error.get("namespace"), error.get("operation")
    message = str(error.get("message") or kind or code or "the call failed")
    base = _NAMESPACES.get(namespace, NamespaceError)
    cls = EXPORTED.get(kind) or _CODES.get((namespace, code) if not kind else None)
    if cls is None and not kind and code == "invalid":
        kind = "ValueError"
    if cls is None and kind in _BUILTIN:
        cls = combined(base, kind)
    if cls is None:
        cls = base
        where = ".".join(word for word in (namespace, operation) if word)
        message = "%s%s%s" % (where + ": " if where else "", "[%s] " % kind if kind else "", message)
    return cls(message, namespace, operation, kind, code)

"""The namespaces ``tools``, ``workflows``, ``skills``, ``artifacts``, ``deps``, ``sessions`` and ``llm`` of code in a session.

One file each: ns_tools.py, ns_workflows.py, ns_artifacts.py, ns_deps.py, ns_sessions.py, ns_llm.py; their exceptions are in ns_errors.py, the way
to the host is rpc.py. Here they are put together. Only a channel with call(), call_async(), transfer() and notify() is
needed, so they serve every kind of kernel.
"""

from . import interactive
from .ns_artifacts import ArtifactMeta, ArtifactsNamespace
from .ns_deps import DepsNamespace, SyncResult
from .ns_errors import EXPORTED
from .ns_llm import LlmNamespace
from .ns_sessions import SessionsNamespace
from .ns_tools import ToolsNamespace
from .ns_workflows import WorkflowsNamespace

NAMES = ("tools", "workflows", "skills", "artifacts", "deps", "sessions", "llm")

_installed = None  # (channel, run_coroutine, only_sessions), for restore()


def make(channel, run_coroutine=None):
    """Fresh namespace objects and the exceptions they raise, by name."""
    workflows = WorkflowsNamespace(channel, run_coroutine)
    spaces = {
        "tools": ToolsNamespace(channel),
        "workflows": workflows,
        "skills": workflows,
        "artifacts": ArtifactsNamespace(channel),
        "deps": DepsNamespace(channel),
        "llm": LlmNamespace(channel),
        **make_sessions(channel),
    }
    spaces.update(EXPORTED)
    workflows._injected.update(spaces)
    return spaces


def make_sessions(channel):
    return {"sessions": SessionsNamespace(channel), "ChildError": EXPORTED["ChildError"]}


def install(ns, channel, run_coroutine=None, only_sessions=False):
    """Puts them into a session's namespace. ``run_coroutine`` runs a coroutine to its end on the session's loop.

    ``only_sessions``: the session has no space, and so none of the others.
    """
    global _installed
    _installed = channel, run_coroutine, only_sessions
    spaces = make_sessions(channel) if only_sessions else make(channel, run_coroutine)
    ns.update(spaces)
    interactive.protected.update(spaces)
    interactive.reset_hook = restore


def channel():
    """The channel to the host, for our modules that the code imports; None: the session has no namespaces."""
    return _installed[0] if _installed is not None else None


def restore(ns):
    """After a reset of the namespace: fresh namespaces, whatever the code had assigned to their names."""
    if _installed is not None:
        install(ns, *_installed)


__all__ = ["NAMES", "ArtifactMeta", "SyncResult", "install", "make", "restore"]

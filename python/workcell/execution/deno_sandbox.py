"""One executor, at the place that it has in the first family."""

from .configs import DenoSandboxConfig
from .executors import DenoSandboxExecutor

__all__ = ["DenoSandboxConfig", "DenoSandboxExecutor"]

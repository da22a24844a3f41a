"""Executors and their configurations."""

from ..storage import FileStorageAccess, RedisStorageAccess, StorageAccess
from .configs import (ContainerConfig, DenoSandboxConfig, ExecutorConfig, InProcessConfig, JupyterConfig, KubernetesConfig,
                      SandboxConfig, SubprocessConfig)
from .executors import (ContainerExecutor, DenoSandboxExecutor, InProcessExecutor, JupyterExecutor, KubernetesExecutor,
                        LibraryExecutor, SandboxExecutor, SubprocessExecutor)
from .protocol import Capability, Executor, get_backend, list_backends, register_backend

#: The classes are always here; whether an executor works is asked when it is started, or of ``Engine.executors()``.
SUBPROCESS_AVAILABLE = CONTAINER_AVAILABLE = DENO_SANDBOX_AVAILABLE = True

__all__ = [
    "Capability", "Executor", "ExecutorConfig", "LibraryExecutor", "InProcessExecutor", "InProcessConfig",
    "SubprocessExecutor", "SubprocessConfig", "SandboxExecutor", "SandboxConfig", "ContainerExecutor", "ContainerConfig",
    "DenoSandboxExecutor", "DenoSandboxConfig", "JupyterExecutor", "JupyterConfig", "KubernetesExecutor", "KubernetesConfig", "FileStorageAccess",
    "RedisStorageAccess", "StorageAccess", "get_backend", "list_backends", "register_backend", "SUBPROCESS_AVAILABLE",
    "CONTAINER_AVAILABLE", "DENO_SANDBOX_AVAILABLE",
]

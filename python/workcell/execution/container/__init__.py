"""One executor, at the place that it has in the first family, and a client for session servers."""

from ..configs import ContainerConfig
from ..executors import ContainerExecutor
from .client import SessionClient

__all__ = ["ContainerConfig", "ContainerExecutor", "SessionClient"]

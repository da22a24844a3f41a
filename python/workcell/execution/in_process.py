"""One executor, at the place that it has in the first family."""

from .configs import InProcessConfig
from .executors import InProcessExecutor

__all__ = ["InProcessConfig", "InProcessExecutor"]

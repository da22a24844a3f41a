"""One executor, at the place that it has in the first family."""

from .configs import SubprocessConfig
from .executors import SubprocessExecutor

__all__ = ["SubprocessConfig", "SubprocessExecutor"]

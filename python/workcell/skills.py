"""The older name of :mod:`workcell.workflows`."""

from .workflows import *  # noqa: F401,F403
from .workflows import __all__  # noqa: F401

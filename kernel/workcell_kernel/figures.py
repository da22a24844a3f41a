"""matplotlib without a display server and without the code doing anything special.

When pyplot is imported and nobody has chosen a backend, ours is chosen (display.py): plt.show() displays the open
figures, and what is still open at the end of a cell is displayed then. Not by MPLBACKEND in the environment: programs the
session starts would inherit a backend that only lives in here.
"""

import os
import sys

from . import display

_MODULE = "matplotlib.pyplot"


class _Finder:
    """First on sys.meta_path until somebody imports pyplot, then gone."""

    def find_spec(self, name, path=None, target=None):
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        choose_backend()
        return None


def choose_backend():
    matplotlib = sys.modules.get("matplotlib")
    if matplotlib is None or "MPLBACKEND" in os.environ:
        return
    # A string: matplotlib.use() or a matplotlibrc has chosen. Reading it by [] would choose one itself.
    if isinstance(dict.__getitem__(matplotlib.rcParams, "backend"), str):
        return
    display.FigureCanvas  # made on first use; older releases look into the module's dict only
    matplotlib.rcParams["backend"] = "module://" + display.__name__


def install_hook():
    if _MODULE not in sys.modules:
        sys.meta_path.insert(0, _Finder())


def flush():
    """At the end of a cell."""
    if _MODULE in sys.modules:
        display.flush_figures()

"""Pictures without a display server and without the code doing anything special.

matplotlib: where no window can be had the backend is Agg. plt.show() and fig.show() display the figure and take it from
pyplot; what pyplot still holds open at the end of a cell is displayed and closed then, so that no cell draws into
another's figure. That holds for every backend without windows, also one that the code has chosen: programs write
matplotlib.use("Agg") because there is no screen, not because nobody is to see the figure. IPython's inline backend is
left alone only where it was told to keep figures open. Not by MPLBACKEND in the environment: programs that the
session starts would inherit what is meant for this process.

Pillow: Image.show() displays the image instead of looking for a program to do it.

Pictures that Pillow saves to a path are displayed where the session's client expects that (show_saved_images()).

plotly: without IPython it would start a browser to show a figure; it is displayed instead, as a page and as data.

Nothing here is imported by a cell that draws nothing.
"""

import functools
import os
import sys

from . import display, imports

_PYPLOT = "matplotlib.pyplot"
_FIGURE = "matplotlib.figure"
_IMAGE = "PIL.Image"
_VIEWERS = "PIL.ImageShow"
_RENDERERS = "plotly.io._renderers"
_WINDOWS = ("gtk", "macosx", "qt", "tk", "wx")
_INLINE = ("inline", "module://matplotlib_inline.backend_inline")

# Seconds for the figures of a cell that was interrupted: it has the host's grace, 2 s, to come to its end.
INTERRUPTED_BUDGET = 0.5


# -- when the libraries are imported

def _load(module, exec_module):
    name = module.__name__
    if name == _PYPLOT:
        _choose_backend()  # before it looks for one
    exec_module(module)
    _HOOKS[name](module)


def install_hook():
    for name, hook in _HOOKS.items():
        if name in sys.modules:
            hook(sys.modules[name])
    imports.Hook(_HOOKS, _load).install()


def show_saved_images():
    """A picture that Pillow saves to a path, given as a text, is displayed first, as E2B's interpreter does it."""
    hooks = {_IMAGE: _display_saved}

    def load(module, exec_module):
        exec_module(module)
        _display_saved(module)

    if _IMAGE in sys.modules:  # preloaded
        _display_saved(sys.modules[_IMAGE])
    imports.Hook(hooks, load).install()


def _display_saved(module):
    original = module.Image.save

    @functools.wraps(original)
    def save(self, fp, *args, **options):
        if isinstance(fp, str):
            display.display(self)
        return original(self, fp, *args, **options)

    module.Image.save = save


def _choose_backend(pyplot=None):
    import matplotlib

    # Reading it by [] would choose a backend. A string: matplotlib.use(), MPLBACKEND or a matplotlibrc has chosen.
    chosen = dict.__getitem__(matplotlib.rcParams, "backend")
    if not isinstance(chosen, str):
        # It may have been imported before the session had its environment.
        chosen = os.environ.get("MPLBACKEND") or "agg"
        matplotlib.rcParams["backend"] = chosen
    if chosen.lower().startswith(_WINDOWS) and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        matplotlib.rcParams["backend"] = "agg"


def _take_over_show(module):
    from matplotlib.backend_bases import FigureManagerBase

    if FigureManagerBase.show is not _show_manager:
        FigureManagerBase.show = _show_manager
        module.Figure.show = _figure_show(module.Figure.show)


def _add_viewer(module):
    class Viewer(module.Viewer):
        format = "PNG"

        def show_image(self, image, **options):
            display.display(image)
            return 1

    module.register(Viewer(), 0)


def _add_renderer(module):
    class Renderer(module.ExternalRenderer):
        def render(self, figure):
            from . import charts
            display.emit(charts.plotly_bundle(figure))

    module.renderers["workcell"] = Renderer()
    # What the code or the environment has chosen stays, and so does what plotly chose for IPython.
    if module.renderers.default in ("browser", "", None) and not os.environ.get("PLOTLY_RENDERER"):
        module.renderers.default = "workcell"


_HOOKS = {_PYPLOT: _choose_backend, _FIGURE: _take_over_show, _VIEWERS: _add_viewer, _RENDERERS: _add_renderer}


# -- showing

def _show_manager(manager):
    """FigureManagerBase.show, which managers with a window override: plt.show() calls it for every open figure."""
    try:
        display.display(manager.canvas.figure)
    finally:
        _close(manager)


def _figure_show(original):
    def show(self, warn=True):
        """Display the figure."""
        manager = self.canvas.manager
        if manager is not None and type(manager).show is not _show_manager:
            return original(self, warn)
        try:
            display.display(self)
        finally:
            if manager is not None:
                _close(manager)
        return None

    return show


def _close(manager):
    sys.modules["matplotlib._pylab_helpers"].Gcf.destroy(manager)


def _open_managers():
    helpers = sys.modules.get("matplotlib._pylab_helpers")
    if helpers is None:
        return []
    return [manager for manager in helpers.Gcf.get_all_fig_managers() if type(manager).show is _show_manager]


def _are_kept():
    """Whether the code told the inline backend not to close figures; then it shows them itself."""
    matplotlib = sys.modules["matplotlib"]
    config = sys.modules.get("matplotlib_inline.config")
    if config is None or dict.__getitem__(matplotlib.rcParams, "backend") not in _INLINE:
        return False
    return config.InlineBackend.initialized() and not config.InlineBackend.instance().close_figures


def flush(value=None, interrupted=bool):
    """At the end of a cell. What is its value is shown as that. interrupted(): is the cell to end quickly?"""
    if _PYPLOT not in sys.modules:
        return
    managers = _open_managers()
    if not managers or _are_kept():
        return
    left = 0
    end = _now() + INTERRUPTED_BUDGET if interrupted() else None
    try:
        for manager in managers:
            figure = manager.canvas.figure
            if figure is value or display.is_shown(figure):
                continue
            if end is not None and _now() > end:
                left += 1
            else:
                display.display(figure)
    finally:
        for manager in managers:
            _close(manager)
    if left:
        print("[%d figure%s not shown: the cell was interrupted]" % (left, "" if left == 1 else "s"), file=sys.stderr)


def discard():
    """After a cell that failed, where nothing can interrupt: nothing of it is left for the next one."""
    if _PYPLOT in sys.modules and not _are_kept():
        for manager in _open_managers():
            _close(manager)


def _now():
    import time

    return time.monotonic()

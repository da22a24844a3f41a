"""Rich representations of objects for display() and of the value of a cell.

mime_bundle() follows IPython's DisplayFormatter.  Everything shown goes through emit() to `publish`, which
the kernel sets.  Binary types are bytes there, never base64.  When figures are shown is figures.py's business.
"""

import sys
import types

from .pretty import pretty


def _print_plain(data, metadata, transient, update):
    if "text/plain" in data:
        print(data["text/plain"])


def _print_error(exc):
    from .errors import describe
    sys.stderr.write(describe(exc)["traceback"] + "\n")


# Set by the kernel.
publish = _print_plain      # publish(data, metadata, transient, update)
clear = None                # clear(wait): clear_output() was called
report_error = _print_error  # report_error(exc): an exception that ends nothing

# Set while output is captured, or by the IPython bridge; gets what publish would get.
redirect = None
# Set by the IPython bridge: formatter(obj, include, exclude) answers (data, metadata), or None where nothing
# is registered that we would not find ourselves.
formatter = None
# Set by the kernel: DataFrames as data, too.
tables = False

_METHODS = (
    ("text/html", "_repr_html_", str),
    ("text/markdown", "_repr_markdown_", str),
    ("image/svg+xml", "_repr_svg_", str),
    ("image/png", "_repr_png_", (bytes, str)),
    ("application/pdf", "_repr_pdf_", bytes),
    ("image/jpeg", "_repr_jpeg_", (bytes, str)),
    ("text/latex", "_repr_latex_", str),
    ("application/json", "_repr_json_", (dict, list, str)),
    ("application/javascript", "_repr_javascript_", str),
)

# Modules of objects that have a form as data (charts.py).
_CHARTED = ("matplotlib.figure", "plotly.basedatatypes", "altair", "pandas")
# Values of exactly these types have no representation but text.
_TEXT_ONLY = frozenset((int, str, float, bool, type(None), bytes, complex, range,
                        list, tuple, dict, set, frozenset))


def mime_bundle(obj, include=None, exclude=None):
    """(data, metadata) by MIME type; ({}, {}) when the object displayed itself."""
    bundle = None if formatter is None else formatter(obj, include, exclude)
    data, metadata = bundle or ({}, {})
    if bundle is not None:
        if not data:
            return {}, {}
        if _is_figure(obj):
            _mark_shown(obj)
    elif type(obj) not in _TEXT_ONLY and not _answers_everything(obj):
        method = _real_method(obj, "_ipython_display_")
        if method is not None and _attempt(method)[0]:
            return {}, {}
        _add_bundle(obj, data, metadata, include, exclude)
        for mime, name, kind in _METHODS:
            if mime in data or not _wanted(mime, include, exclude):
                continue
            if mime == "image/jpeg" and "image/png" in data and not include:
                continue  # the same picture again, as of PIL's images
            method = _real_method(obj, name)
            if method is not None:
                _add_part(mime, kind, _attempt(method)[1], data, metadata)
        if "image/png" not in data and _wanted("image/png", include, exclude) and _is_figure(obj):
            _add_part("image/png", bytes, _attempt(_figure_png, obj)[1], data, metadata)
    if type(obj) not in _TEXT_ONLY:
        for module in _CHARTED:
            if module in sys.modules:
                _add_forms(obj, data, include, exclude)
                break
    if "text/plain" not in data and _wanted("text/plain", include, exclude):
        data = {"text/plain": pretty(obj), **data}
    if "text/html" in data and type(obj).__name__ == "Audio":
        _add_sound(obj, data)
    return normalise(data), metadata


def _add_sound(obj, data):
    """IPython.display.Audio shows a page with the sound in it: the sound itself is for readers that have no browser."""
    kind, sound = getattr(obj, "mimetype", None), getattr(obj, "data", None)
    if isinstance(kind, str) and kind.startswith("audio/") and isinstance(sound, bytes):
        data[kind] = sound


def _add_forms(obj, data, include, exclude):
    """Charts and tables as data. A figure without a picture has no other form either."""
    from . import charts

    is_figure = _is_figure(obj)
    if is_figure and "image/png" not in data:
        return
    try:
        forms = charts.forms(obj, tables)
    except Exception:  # the libraries' own internals: the picture has to do
        forms = []
    for mime, value in forms:
        if _wanted(mime, include, exclude):
            data.setdefault(mime, value)
    if is_figure and is_drawn(obj):
        _mark_shown(obj)  # reading ticks may have changed it again


def _wanted(mime, include, exclude):
    return not (include and mime not in include) and not (exclude and mime in exclude)


def _answers_everything(obj):
    try:
        return getattr(obj, "_ipython_canary_method_should_not_exist_", None) is not None
    except Exception:
        return True


def _real_method(obj, name):
    try:
        method = getattr(obj, name, None)
    except Exception:
        return None
    if isinstance(obj, type) and not isinstance(method, types.MethodType):
        return None
    return method if callable(method) else None


def _attempt(method, *args, **kwargs):
    """(worked, result).  An error in a representation is shown and does not end the cell."""
    try:
        return True, method(*args, **kwargs)
    except NotImplementedError:
        return False, None
    except Exception as e:
        report_error(e)
        return False, None


def _add_bundle(obj, data, metadata, include, exclude):
    method = _real_method(obj, "_repr_mimebundle_")
    if method is None:
        return
    bundle = _attempt(method, include=include, exclude=exclude)[1]
    extra = {}
    if isinstance(bundle, tuple) and len(bundle) == 2:
        bundle, extra = bundle
    if isinstance(bundle, dict):
        data.update((k, v) for k, v in bundle.items() if _wanted(k, include, exclude))
    if isinstance(extra, dict):
        metadata.update((k, v) for k, v in extra.items() if _wanted(k, include, exclude))


def _add_part(mime, kind, value, data, metadata):
    extra = None
    if isinstance(value, tuple) and len(value) == 2:
        value, extra = value
    if value is None:
        return
    if not isinstance(value, kind):
        import warnings
        text = "%s representation has type %s, which is not usable: ignored"
        warnings.warn(text % (mime, type(value).__name__), stacklevel=4)
        return
    if mime == "application/json" and isinstance(value, str):
        import json
        value = json.loads(value)
    data[mime] = value
    if extra is not None:
        metadata[mime] = extra


def normalise(data):
    """The same bundle with binary types as bytes: IPython's own classes give base64 text."""
    for mime, value in data.items():
        if isinstance(value, str) and _is_binary(mime):
            break
    else:
        return data
    import binascii
    result = {}
    for mime, value in data.items():
        if isinstance(value, str) and _is_binary(mime):
            try:
                value = binascii.a2b_base64(value.encode("ascii"))
            except (binascii.Error, UnicodeEncodeError):
                pass
        result[mime] = value
    return result


def _is_binary(mime):
    return mime in ("application/pdf", "application/zip") or mime.startswith(("audio/", "video/")) or (mime.startswith("image/") and not mime.endswith("+xml"))


# -- showing

def emit(data, metadata=None, transient=None, update=False):
    (redirect or publish)(normalise(data), metadata or {}, transient or {}, bool(update))


def _new_id():
    import os
    return os.urandom(16).hex()


def _merge(target, extra):
    for key, value in extra.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = value


def display(*objs, include=None, exclude=None, metadata=None, transient=None, display_id=None, raw=False,
            clear=False, **kwargs):
    """Show objects in the richest form they have.  With display_id, answers a handle that can update them."""
    transient = dict(transient or {})
    if display_id:
        if display_id is True:
            display_id = _new_id()
        transient["display_id"] = display_id
    update = kwargs.pop("update", False)
    if update and "display_id" not in transient:
        raise TypeError("display_id required for update_display")
    if not objs and display_id:
        objs, raw = ({},), True
    if clear:
        clear_output(wait=True)
    for obj in objs:
        if raw:
            if not isinstance(obj, dict):
                raise TypeError("data must be a dict, got: %r" % (obj,))
            emit(obj, metadata, transient, update)
            continue
        data, extra = mime_bundle(obj, include, exclude)
        if not data:
            continue
        if metadata:
            extra = dict(extra)
            _merge(extra, metadata)
        emit(data, extra, transient, update)
    if display_id:
        return DisplayHandle(display_id)
    return None


def update_display(obj, *, display_id, **kwargs):
    """Replace what was displayed under display_id."""
    display(obj, display_id=display_id, update=True, **kwargs)


def clear_output(wait=False):
    """Ask the host to forget the output of this cell; a host that keeps a transcript does nothing."""
    if clear is not None:
        clear(wait)


class DisplayHandle:
    """The return value of display(display_id=...)."""

    def __init__(self, display_id=None):
        self.display_id = display_id or _new_id()

    def __repr__(self):
        return "<DisplayHandle display_id=%s>" % self.display_id

    def display(self, obj, **kwargs):
        display(obj, display_id=self.display_id, **kwargs)

    def update(self, obj, **kwargs):
        update_display(obj, display_id=self.display_id, **kwargs)


# -- matplotlib

_FIGURE_PARTS = ("axes", "lines", "texts", "images", "patches", "artists", "legends", "subfigs")


def _is_figure(obj):
    module = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(obj, getattr(module, "Figure", ()))


# Figures that were drawn for display in this cell, with `stale` set back: matplotlib sets it when they change.
shown = set()


def _mark_shown(figure):
    figure.stale = False
    shown.add(figure)


def is_drawn(figure):
    return figure in shown


def is_shown(figure):
    return figure in shown and not figure.stale


def _figure_png(fig):
    if not any(getattr(fig, name, ()) for name in _FIGURE_PARTS):
        return None
    import io
    buf = io.BytesIO()
    fig.canvas.print_figure(buf, format="png", dpi=fig.dpi, facecolor=fig.get_facecolor(),
                            edgecolor=fig.get_edgecolor(), bbox_inches="tight")
    _mark_shown(fig)
    return buf.getvalue()

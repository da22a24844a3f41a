"""mime_bundle() and display(): IPython's rules, with and without IPython."""

import base64
import contextlib
import io
import os
import sys
import warnings

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "kernel")))

from workcell_kernel import display as d  # noqa: E402

PNG = b"\x89PNG\r\n\x1a\nrest"


@contextlib.contextmanager
def published():
    saved = d.publish, d.redirect, d.clear
    got = []
    d.redirect = None
    d.publish = lambda *args: got.append(args)
    try:
        yield got
    finally:
        d.publish, d.redirect, d.clear = saved


class Rich:
    def __repr__(self):
        return "Rich()"

    def _repr_html_(self):
        return "<b>x</b>"

    def _repr_png_(self):
        return PNG, {"width": 10}

    def _repr_jpeg_(self):
        return base64.b64encode(b"\xff\xd8jpeg").decode()

    def _repr_latex_(self):
        return None

    def _repr_markdown_(self):
        raise NotImplementedError

    def _repr_json_(self):
        return '{"a": [1]}'


class Bundle:
    def __repr__(self):
        return "Bundle()"

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": "own text", "text/html": "from bundle", "application/x-own": {"k": 1}}, {
            "text/html": {"m": 1}
        }

    def _repr_html_(self):
        raise AssertionError("the bundle has it already")


def test_plain():
    for value in (1, "a", None, [1, 2], {"a": 1}, {2, 1}, object):
        data, metadata = d.mime_bundle(value)
        assert list(data) == ["text/plain"] and metadata == {}
    assert d.mime_bundle("a")[0]["text/plain"] == "'a'"
    assert d.mime_bundle({2, 1})[0]["text/plain"] == "{1, 2}"


def test_methods():
    data, metadata = d.mime_bundle(Rich())
    assert data == {
        "text/plain": "Rich()",
        "text/html": "<b>x</b>",
        "image/png": PNG,  # which the JPEG would only repeat
        "application/json": {"a": [1]},
    }
    assert d.mime_bundle(Rich(), include=["image/png", "image/jpeg"])[0]["image/jpeg"] == b"\xff\xd8jpeg"
    assert metadata == {"image/png": {"width": 10}}
    assert next(iter(data)) == "text/plain"


def test_include_exclude():
    assert set(d.mime_bundle(Rich(), include=["text/html"])[0]) == {"text/html"}
    assert set(d.mime_bundle(Rich(), exclude=["image/png", "text/plain"])[0]) == {
        "text/html",
        "image/jpeg",
        "application/json",
    }
    assert set(d.mime_bundle(Bundle(), include=["application/x-own"])[0]) == {"application/x-own"}
    data, metadata = d.mime_bundle(Bundle(), exclude=["text/html"])
    assert "text/html" not in data or data["text/html"] != "from bundle"


def test_bundle():
    data, metadata = d.mime_bundle(Bundle())
    assert data == {"text/plain": "own text", "text/html": "from bundle", "application/x-own": {"k": 1}}
    assert metadata == {"text/html": {"m": 1}}


def test_classes_and_proxies():
    class Everything:
        def __getattr__(self, name):
            return lambda *args, **kwargs: "made up"

    class Raising:
        def __getattr__(self, name):
            raise RuntimeError(name)

    class OfClass:
        @classmethod
        def _repr_html_(cls):
            return "class method"

    class NotCallable:
        _repr_html_ = "text"

    assert list(d.mime_bundle(Rich)[0]) == ["text/plain"]
    assert list(d.mime_bundle(Everything())[0]) == ["text/plain"]
    assert list(d.mime_bundle(Raising())[0]) == ["text/plain"]
    assert list(d.mime_bundle(NotCallable())[0]) == ["text/plain"]
    assert d.mime_bundle(OfClass)[0]["text/html"] == "class method"


def test_failing_method_is_reported():
    class Bad:
        def __repr__(self):
            return "Bad()"

        def _repr_html_(self):
            raise ZeroDivisionError("in html")

        def _repr_svg_(self):
            return "<svg/>"

    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        data, _ = d.mime_bundle(Bad())
    assert data == {"text/plain": "Bad()", "image/svg+xml": "<svg/>"}
    assert "ZeroDivisionError: in html" in err.getvalue() and "_repr_html_" in err.getvalue()
    assert "workcell_kernel" not in err.getvalue()


def test_failing_repr_propagates():
    class Bad:
        def __repr__(self):
            raise ZeroDivisionError

    for call in (d.mime_bundle, d.display):
        try:
            call(Bad())
        except ZeroDivisionError:
            continue
        raise AssertionError("expected ZeroDivisionError")


def test_wrong_type_is_ignored():
    class Wrong:
        def _repr_html_(self):
            return 3

        def _repr_png_(self):
            return "not base64 \u20ac"

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data, _ = d.mime_bundle(Wrong())
    assert "text/html" not in data and len(caught) == 1
    assert data["image/png"] == "not base64 \u20ac"


def test_displays_itself():
    class Self:
        shown = 0

        def _ipython_display_(self):
            Self.shown += 1

    class Refuses:
        def __repr__(self):
            return "Refuses()"

        def _ipython_display_(self):
            raise NotImplementedError

    assert d.mime_bundle(Self()) == ({}, {}) and Self.shown == 1
    with published() as got:
        d.display(Self())
        d.display(Refuses())
    assert Self.shown == 2
    assert got == [({"text/plain": "Refuses()"}, {}, {}, False)]


def test_display():
    with published() as got:
        assert d.display(1, "a") is None
        d.display(Rich(), include=["image/png"], metadata={"image/png": {"height": 5}, "x": 1})
        d.display(
            {"text/html": "raw", "image/png": base64.b64encode(PNG).decode()}, raw=True, transient={"t": 1}
        )
    assert [g[0] for g in got[:2]] == [{"text/plain": "1"}, {"text/plain": "'a'"}]
    assert got[2] == ({"image/png": PNG}, {"image/png": {"width": 10, "height": 5}, "x": 1}, {}, False)
    assert got[3] == ({"text/html": "raw", "image/png": PNG}, {}, {"t": 1}, False)


def test_display_ids():
    with published() as got:
        handle = d.display(1, display_id="me")
        assert isinstance(handle, d.DisplayHandle) and handle.display_id == "me"
        handle.update(2)
        handle.display(3)
        d.update_display(4, display_id="me")
        fresh = d.display(display_id=True)
    assert [(g[2], g[3]) for g in got[:4]] == [({"display_id": "me"}, u) for u in (False, True, False, True)]
    assert len(fresh.display_id) == 32 and got[4] == ({}, {}, {"display_id": fresh.display_id}, False)
    try:
        d.display(1, update=True)
    except TypeError:
        pass
    else:
        raise AssertionError("update needs an id")


def test_clear_output():
    with published():
        cleared = []
        d.clear_output()  # nobody listens
        d.clear = cleared.append
        d.clear_output(wait=True)
        d.display(1, clear=True)
        assert cleared == [True, True]


def test_default_prints():
    saved = d.publish, d.redirect
    d.publish, d.redirect = d._print_plain, None
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            d.display([1, 2])
    finally:
        d.publish, d.redirect = saved
    assert out.getvalue() == "[1, 2]\n"


def test_ipython_classes():
    try:
        from IPython.display import HTML, JSON, SVG, Image, Markdown
    except ImportError:
        return
    assert d.mime_bundle(HTML("<i>"))[0]["text/html"] == "<i>"
    assert d.mime_bundle(Markdown("# x"))[0]["text/markdown"] == "# x"
    assert d.mime_bundle(JSON({"a": 1}))[0]["application/json"] == {"a": 1}
    assert "image/svg+xml" in d.mime_bundle(SVG('<svg xmlns="http://www.w3.org/2000/svg"/>'))[0]
    png = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    assert d.mime_bundle(Image(data=png))[0]["image/png"] == png


def test_pil():
    try:
        from PIL import Image
    except ImportError:
        return
    assert d.mime_bundle(Image.new("RGB", (2, 2)))[0]["image/png"].startswith(b"\x89PNG")


def test_pandas():
    try:
        import pandas
    except ImportError:
        return
    data, _ = d.mime_bundle(pandas.DataFrame({"a": [1]}))
    assert "<table" in data["text/html"] and data["text/plain"].splitlines()[0].strip() == "a"


def test_matplotlib():
    try:
        import matplotlib
    except ImportError:
        return
    from workcell_kernel import figures

    figures.install_hook()
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    assert matplotlib.get_backend().lower() == "agg"
    with published() as got, warnings.catch_warnings():
        warnings.simplefilter("error")
        plt.plot([1, 2])
        plt.show()
        assert len(got) == 1 and got[0][0]["image/png"].startswith(b"\x89PNG") and plt.get_fignums() == []
        plt.figure()
        plt.plot([1])
        plt.figure()
        plt.plot([2])
        figures.flush()
        assert len(got) == 3 and plt.get_fignums() == []
        figures.flush()
        assert len(got) == 3
        # Only one of these is new to whoever looks: the value is shown as that, the other was displayed.
        value, shown = plt.figure(), plt.figure()
        for figure in (value, shown):
            figure.add_subplot()
        d.display(shown)
        figures.flush(value)
        assert len(got) == 4 and plt.get_fignums() == []
        # Changed after it was displayed.
        d.shown.clear()
        shown = plt.figure()
        shown.add_subplot()
        d.display(shown)
        shown.suptitle("more")
        figures.flush()
        assert len(got) == 6
        # Kept in a variable: shown again by itself, also when pyplot does not know it any more.
        shown.show()
        Figure().show()
        assert len(got) == 8 and "image/png" not in got[7][0]
        plt.figure()
        figures.discard()
        assert len(got) == 8 and plt.get_fignums() == []
    fig = Figure()
    assert "image/png" not in d.mime_bundle(fig)[0]
    fig.add_subplot()
    assert d.mime_bundle(fig)[0]["image/png"].startswith(b"\x89PNG")
    lone = Figure()
    lone.text(0.5, 0.5, "words")
    assert d.mime_bundle(lone)[0]["image/png"].startswith(b"\x89PNG")
    # A backend of the code's own choice without windows shows its figures too.
    for backend in ("svg", "pdf", "agg"):
        plt.switch_backend(backend)
        with published() as got:
            plt.plot([1, 2])
            plt.show()
            plt.plot([1, 2])
            figures.flush()
        assert len(got) == 2 and plt.get_fignums() == [], backend


def test_figures_of_an_interrupted_cell():
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        return
    from workcell_kernel import figures

    figures.install_hook()
    saved, figures.INTERRUPTED_BUDGET = figures.INTERRUPTED_BUDGET, -1
    stderr, sys.stderr = sys.stderr, io.StringIO()
    try:
        with published() as got:
            for _ in range(3):
                plt.figure().add_subplot()
            figures.flush(None, lambda: True)
        assert got == [] and plt.get_fignums() == []
        assert sys.stderr.getvalue() == "[3 figures not shown: the cell was interrupted]\n"
    finally:
        figures.INTERRUPTED_BUDGET, sys.stderr = saved, stderr


def test_backend_without_a_screen():
    """What a matplotlibrc or the code asks for cannot be had without a screen."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return
    code = """
import os, sys
sys.path.insert(0, %r)
from workcell_kernel import figures
figures.install_hook()
import matplotlib
%s
import matplotlib.pyplot as plt
plt.figure()
print(matplotlib.get_backend().lower())
assert matplotlib.figure.Figure.show.__module__ == "workcell_kernel.figures"
"""
    import subprocess

    asked = "from importlib.util import find_spec\nassert find_spec('matplotlib.pyplot') and find_spec('matplotlib.figure')"
    for choice, wanted in (("", "agg"), (asked, "agg"), ("matplotlib.use('TkAgg')", "agg"), ("matplotlib.use('svg')", "svg"),
                           ("os.environ['MPLBACKEND'] = 'pdf'", "pdf")):
        done = subprocess.run([sys.executable, "-c", code % (os.path.dirname(os.path.dirname(d.__file__)), choice)],
                              stdout=subprocess.PIPE, env={"HOME": os.environ.get("HOME", "/"), "PATH": "/usr/bin:/bin"},
                              timeout=120)
        assert done.stdout.decode().split() == [wanted], (choice, done.stdout)


def test_pillow_show():
    try:
        from PIL import Image
    except ImportError:
        return
    from workcell_kernel import figures

    figures.install_hook()
    with published() as got:
        Image.new("RGB", (2, 2)).show()
        Image.new("F", (2, 2)).show()
    assert [part[0]["image/png"][:4] for part in got] == [b"\x89PNG"] * 2


def main():
    for name, test in sorted(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok", name)


if __name__ == "__main__":
    main()

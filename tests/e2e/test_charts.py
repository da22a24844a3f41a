"""Charts as data: what stands beside the pictures of matplotlib, plotly and altair (docs/plots.md), and classes that lie about themselves."""
import contextlib
import json

import pytest

import serving
import support

CHART, PLOTLY = "application/vnd.workcell.chart+json", "application/vnd.plotly.v1+json"
PLOT = "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\n"
# matplotlib looks for its fonts in the first process that has a home of its own.
WARM = "import matplotlib.pyplot as plt\nplt.plot([1])\nplt.show()"

pytestmark = [pytest.mark.skipif(not support.module_version(support.PYTHON, name), reason="scripts/test-requirements.txt has %s" % name)
              for name in ("matplotlib", "plotly", "altair")]


@contextlib.contextmanager
def shared(python):
    made = support.Driver(python=python, executor="subprocess")
    support.shared_drivers.append(made)
    try:
        made.locate()
        made.run(WARM)
        yield made
    finally:
        support.shared_drivers.remove(made)
        made.close()


@pytest.fixture(scope="module")
def driver():
    with shared(support.plain_python()) as made:
        yield made


@pytest.fixture(scope="module")
def notebook():
    """A kernel with IPython, whose formatters go first."""
    with shared(support.PYTHON) as made:
        yield made


def shown(driver, code, **options):
    result = driver.run(code, **options)
    assert result["error"] is None, result["error"]
    return [each for each in [*result["displays"], result["mime"]] if set(each) - {"text/plain"}]


def described(driver, draw):
    """The description of one figure, whose picture is there."""
    bundle, = shown(driver, PLOT + draw + "\nplt.show()")
    assert bundle["image/png"] and bundle["text/plain"].startswith("<Figure")
    return bundle.get(CHART)


# ---- matplotlib ----

def test_line(driver):
    chart = described(driver, "ax.plot([1, 2, 3], [4, 5, float('nan')], label='speed')\nax.plot([1, 2], [0, 9])\nax.axhline(3)\nax.set_title('T')\n"
                              "ax.set_xlabel('Time (s)')\nax.set_ylabel('Way [m]')")
    assert [chart[key] for key in ("type", "title", "x_label", "x_unit", "x_scale", "y_label", "y_unit", "y_scale")] == [
        "line", "T", "Time (s)", "s", "linear", "Way [m]", "m", "linear"]
    assert chart["elements"] == [{"label": "speed", "points": [[1.0, 4.0], [2.0, 5.0], [3.0, None]]}, {"label": "Line 1", "points": [[1.0, 0.0], [2.0, 9.0]]}]
    assert len(chart["x_ticks"]) == len(chart["x_tick_labels"]) > 2 and len(chart["y_ticks"]) == len(chart["y_tick_labels"]) > 2


def test_bar_grouped_and_lying(driver):
    chart = described(driver, "ax.bar([-0.2, 0.8], [3, 4], width=0.4, label='old')\nax.bar([0.2, 1.2], [5, 6], width=0.4, label='new')\nax.set_xticks([0, 1], ['a', 'b'])")
    assert chart["type"] == "bar" and [(each["group"], each["value"]) for each in chart["elements"]] == [("old", 3.0), ("old", 4.0), ("new", 5.0), ("new", 6.0)]
    chart = described(driver, "ax.barh(['a', 'b'], [3, 4])\nax.set_xlabel('count')")
    assert chart["elements"] == [{"label": "a", "group": "Group 0", "value": 3.0}, {"label": "b", "group": "Group 0", "value": 4.0}]
    # Bars that stand as those that lie: the values are on y.
    assert chart["y_label"] == "count" and chart["x_label"] is None


def test_a_line_that_comes_back_is_not_a_box(driver):
    assert described(driver, "ax.plot([0, 1, 0, 1, 0], [1, 2, 3, 4, 1])")["elements"][0]["points"][2] == [0.0, 3.0]


def test_scatter(driver):
    chart = described(driver, "ax.scatter([1, 2], [3, 4], label='s')\nax.set_yscale('log')")
    assert chart["type"] == "scatter" and chart["elements"] == [{"label": "s", "points": [[1.0, 3.0], [2.0, 4.0]]}] and chart["y_scale"] == "log"


def test_pie(driver):
    chart = described(driver, "ax.pie([1, 3], labels=['a', 'b'])\nax.set_title('P')")
    assert chart == {"type": "pie", "title": "P", "elements": [{"label": "a", "angle": 90.0, "radius": 1.0}, {"label": "b", "angle": 270.0, "radius": 1.0}]}


@pytest.mark.parametrize("how", ["", ", orientation='horizontal'", ", notch=True", ", patch_artist=True, showmeans=True, meanline=True"])
def test_boxes(driver, how):
    chart = described(driver, "ax.boxplot([[1, 2, 3, 4, 50], [5, 5, 5, 5], []], tick_labels=['a', 'b', 'c']%s)" % how)
    first, second = chart["elements"]  # a box of nothing is left out
    assert chart["type"] == "box_and_whisker"
    assert first == {"label": "a", "min": 1.0, "first_quartile": 2.0, "median": 3.0, "third_quartile": 4.0, "max": 4.0, "outliers": [50.0]}
    assert (second["label"], second["median"], second["outliers"]) == ("b", 5.0, [])


def test_subplots(driver):
    bundle, = shown(driver, "import matplotlib.pyplot as plt\nimport datetime\nfig, axes = plt.subplots(2, 2)\nfig.suptitle('All')\naxes[0][0].plot([1, 2])\n"
                            "axes[0][1].bar(['x'], [1])\naxes[1][0].plot([datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)], [1, 2])\naxes[1][1].imshow([[1]])\nfig")
    chart = bundle[CHART]
    assert bundle["image/png"] and (chart["type"], chart["title"]) == ("superchart", "All")
    assert [each["type"] for each in chart["elements"]] == ["line", "bar", "line", "unknown"]
    assert chart["elements"][2]["x_scale"] == "datetime" and chart["elements"][2]["elements"][0]["points"][0] == ["2024-01-01", 1.0]


def test_three_dimensions_and_nothing(driver):
    assert described(driver, "plt.close(fig)\nfig = plt.figure()\nfig.add_subplot(projection='3d').plot([1], [2], [3])")["type"] == "unknown"
    assert described(driver, "") is None, "axes without data"


def test_with_ipython(notebook):
    assert described(notebook, "ax.plot([1, 2])")["type"] == "line"


# ---- plotly and altair ----

BARS = "import plotly.graph_objects as go\nfig = go.Figure(data=[go.Bar(x=['a', 'b'], y=[1, 2])])\n"
ALTAIR = "import altair, pandas\nc = altair.Chart(pandas.DataFrame({'a': ['x', 'y'], 'b': [1, 2]})).mark_bar().encode(x='a', y='b')\n"


def traces(bundle):
    chart = bundle[PLOTLY]
    chart = json.loads(chart) if isinstance(chart, str) else chart
    return [(each["type"], each["x"], each["y"]) for each in chart["data"]]


@pytest.mark.parametrize("show", ["fig", "fig.show()", "display(fig)"])
def test_plotly_without_ipython_opens_no_browser(driver, show):
    bundle, = shown(driver, "import webbrowser\nwebbrowser.get = webbrowser.open = webbrowser.register = None\n" + BARS + show)
    assert traces(bundle) == [("bar", ["a", "b"], [1, 2])] and "plotly" in bundle["text/html"] and bundle["text/plain"] == "<plotly Figure: bar>"


def test_plotly_with_ipython(notebook):
    *_, bundle = shown(notebook, BARS + "fig")
    assert traces(bundle) == [("bar", ["a", "b"], [1, 2])] and "plotly" in bundle["text/html"]


def test_plotly_keeps_the_renderer_that_was_chosen(driver):
    bundle, = shown(driver, BARS + "import plotly.io\nplotly.io.renderers.default = 'workcell'\n"
                                   "class Mine(plotly.io.base_renderers.ExternalRenderer):\n    def render(self, fig): display({'text/html': 'mine'}, raw=True)\n"
                                   "plotly.io.renderers['mine'] = Mine()\nfig.show('mine')")
    assert bundle == {"text/html": "mine"}


@pytest.mark.parametrize("show", ["c", "display(c)"])
def test_altair(driver, show):
    bundle, = shown(driver, ALTAIR + show)
    kind, = (key for key in bundle if key.startswith("application/vnd.vegalite.v"))
    chart = json.loads(bundle[kind]) if isinstance(bundle[kind], str) else bundle[kind]
    assert chart["mark"] == {"type": "bar"} and chart["encoding"]["x"]["field"] == "a" and "vega" in bundle["text/html"]
    assert [each["b"] for data in chart["datasets"].values() for each in data] == [1, 2]


# ---- everywhere ----

@contextlib.contextmanager
def target(executor, cwd):
    flags, server = [], None
    if executor == "remote":
        server = serving.Server("--executor", "subprocess", tokens=serving.TOKEN, python=support.PYTHON, pool=0)
        flags = ["--remote-url", "http://127.0.0.1:%d" % server.port, "--auth-token-file", server.tokens]
    driver = support.Driver(*flags, python=support.PYTHON, executor=executor, cwd=cwd)
    try:
        yield driver
    finally:
        driver.close()
        if server:
            server.close()


# Pyodide comes without these libraries, and so does the image of the tests of containers.
@pytest.mark.parametrize("executor", [name for name in support.EXECUTORS if name not in ("deno", "container")])
def test_on_each_executor(executor, tmp_path):
    with target(executor, tmp_path) as driver:
        chart = described(driver, "ax.bar(['a', 'b'], [3, 4], label='g')")
        assert chart["elements"] == [{"label": "a", "group": "g", "value": 3.0}, {"label": "b", "group": "g", "value": 4.0}]
        *_, bundle = shown(driver, BARS + "fig")
        assert traces(bundle) == [("bar", ["a", "b"], [1, 2])]
        bundle, = shown(driver, ALTAIR + "c")
        assert any(key.startswith("application/vnd.vegalite.v") for key in bundle)


# ---- classes that lie ----

LIAR = """
from matplotlib.figure import Figure
import itertools
class Text(str):
    def __len__(self): return 1
    def __getitem__(self, at): raise RuntimeError('index')
    def __str__(self): return self
    def __repr__(self): raise RuntimeError('repr')
class Odd:
    def __repr__(self): raise RuntimeError('repr')
    def __str__(self): raise RuntimeError('str')
    def __bool__(self): raise RuntimeError('bool')
class Liar(Figure):
    pass
fig = Liar()
ax = fig.subplots()
line, = ax.plot([1, 2], [3, 4])
"""
LIES = {
    "axes without end": "Liar.get_axes = lambda self: itertools.repeat(ax)",
    "axes that are none": "Liar.get_axes = lambda self: [5, None, object()]",
    "an odd title": "ax.get_title = lambda *a: Odd()",
    "an error": "ax.get_title = lambda *a: 1 / 0",
    "recursion": "def again(*a): return again()\nax.get_title = again",
    "points without end": "line.get_xdata = line.get_ydata = lambda orig=True: type('L', (), {'__len__': lambda s: 3, '__iter__': lambda s: itertools.repeat(1)})()",
    "ticks without end": "ax.xaxis.get_majorticklocs = lambda *a: itertools.count()",
    "labels without end": "ax.xaxis.get_ticklabels = lambda *a, **k: itertools.repeat(ax.title)",
    "a unit of its own": "ax.xaxis.units = type('U', (), {'_mapping': type('M', (dict,), {'items': lambda s: itertools.repeat(('a', 1))})()})()",
    "an artist that is none": "ax._children.append(Odd())\nax.get_title = lambda *a: Odd()",
}


@pytest.mark.parametrize("lie", LIES.values(), ids=list(LIES))
def test_a_figure_that_lies_costs_its_description_alone(driver, lie):
    # Drawn before it begins to lie: the picture is the library's business.
    code = LIAR + "import io\nfig.savefig(io.BytesIO())\nfig.canvas.print_figure = lambda out, **k: out.write(b'picture')\n" + lie + "\nfig"
    bundle, = shown(driver, code, timeout=20)
    assert bundle["image/png"] and CHART not in bundle
    assert driver.run("6 * 7")["value"] == 42


def test_texts_of_any_length_are_cut(driver):
    chart, = shown(driver, LIAR + "fig.canvas.print_figure = lambda out, **k: out.write(b'picture')\nax.get_title = lambda *a: 'x' * 50_000_000\n"
                                  "line.get_label = lambda: Text('y' * 5000)\nax.xaxis.get_label_text = lambda: '\\ud800<b>'\nfig", timeout=20)
    chart = chart[CHART]
    assert chart["title"] == "x" * 1000 and chart["elements"][0]["label"] == "y" * 1000 and chart["x_label"] == "\\ud800<b>"


def test_many_axes_share_one_limit(driver):
    bundle, = shown(driver, "from matplotlib.figure import Figure\nfig = Figure()\nfor ax in fig.subplots(1, 3): ax.plot(range(7000))\nfig")
    assert bundle["image/png"] and CHART not in bundle
    bundle, = shown(driver, "fig = Figure()\nfor ax in fig.subplots(1, 2): ax.plot(range(7000))\nfig")
    assert len(bundle[CHART]["elements"][1]["elements"][0]["points"]) == 7000


def test_many_bars_and_boxes_take_no_time(driver):
    """Both were quadratic."""
    code = ("import time\nfrom matplotlib.figure import Figure\nfrom workcell_kernel.charts import describe_figure\nfig = Figure()\nax = fig.subplots()\n%s\n"
            "fig.draw_without_rendering()\nbegin = time.process_time()\nchart = describe_figure(fig)\n[chart['type'], len(chart['elements']), time.process_time() - begin]")
    kind, n, seconds = driver.value(code % "ax.bar(range(1500), range(1500))")
    assert (kind, n) == ("bar", 1500) and seconds < 1
    kind, n, seconds = driver.value(code % "ax.boxplot([[i, i + 1, i + 2] for i in range(150)])")
    assert (kind, n) == ("box_and_whisker", 150) and seconds < 1


@pytest.mark.parametrize("where", ["fig", "plt.show()", ""])
def test_a_loop_ends_with_the_cells_time(driver, where):
    result = driver.run(PLOT + "ax.plot([1, 2])\ndef forever(*a):\n    while True: pass\nax.has_data = forever\n" + where, timeout=2)
    assert result["error"]["code"] == "timeout" and result["state"] == "kept", result
    assert driver.run("6 * 7")["value"] == 42


def test_plotly_and_altair_that_lie(driver):
    bundle, = shown(driver, BARS + "fig.update_layout(title='x' * 4_000_000)\nfig")
    assert PLOTLY not in bundle and bundle["text/html"], "larger than a description may be"
    for lie in ("lambda self, **k: 5", "lambda self, **k: 1 / 0", "lambda self, **k: '{'", "lambda self, **k: '[' * 100_000", "lambda self, **k: ' ' * 5_000_000"):
        bundle, = shown(driver, ALTAIR + "class Liar(altair.Chart):\n    to_json = %s\n    def _repr_mimebundle_(self, *a, **k): return {'text/html': 'page'}\nLiar()" % lie)
        assert bundle["text/html"] == "page" and not any("vega" in key for key in bundle), lie
    result = driver.run(BARS + "class Liar(go.Figure):\n    def to_dict(self): return 1 / 0\n    def __repr__(self): return 'liar'\nLiar()")
    assert (result["error"], result["repr"]) == (None, "liar") and "ZeroDivisionError" in result["stderr"] and driver.run("6 * 7")["value"] == 42

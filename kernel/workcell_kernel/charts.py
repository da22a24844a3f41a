"""Charts and tables as data, beside their pictures: what a program can read instead of looking at pixels.

    a figure of matplotlib     application/vnd.workcell.chart+json: type, title, labels, scales, ticks and the points, bars, wedges or boxes
    a figure of plotly         application/vnd.plotly.v1+json, plotly's own description
    a chart of altair          application/vnd.vegalite.vN+json, Vega-Lite's
    a DataFrame of pandas      application/vnd.workcell.table+json: the columns, where the host asks for tables

Charts have the shape that clients of E2B parse (docs/plots.md). Imported only by a cell that shows a figure, a chart or a table; objects
of these libraries exist only where the library has been imported.
"""

import math
import re
import sys
from json import loads

CHART = "application/vnd.workcell.chart+json"
TABLE = "application/vnd.workcell.table+json"
PLOTLY = "application/vnd.plotly.v1+json"

MAX_POINTS = 20000   # of all elements of a figure; a larger one has its picture alone
MAX_CELLS = 100000   # of a table
MAX_SPEC = 4000000   # bytes of another library's description

_UNIT = re.compile(r"\s\((.*?)\)|\[(.*?)\]")


class TooLarge(Exception):
    pass


def _plain(value):
    """A number, a date or another label as JSON has it."""
    if isinstance(value, (bool, str)) or value is None:
        return value
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if type(value).__name__ == "datetime64":
        return str(value.astype("datetime64[s]"))
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return number if math.isfinite(number) else None


def _rounded(value):
    """Nine significant digits: what drawing adds in the last ones is not part of the data."""
    return float("%.9g" % value)


# -- axes of matplotlib

class _Axis:
    """One axis: its label and unit, and how its numbers read."""

    def __init__(self, axis):
        from matplotlib import dates

        self.dates = dates
        converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
        self.is_date = isinstance(converter, (dates.DateConverter, dates._SwitchableDateConverter))
        mapping = getattr(axis.units, "_mapping", None)
        self.names = {float(at): str(name) for name, at in mapping.items()} if isinstance(mapping, dict) else None
        self.label = axis.get_label_text() or None
        found = _UNIT.search(self.label or "")
        self.unit = (found.group(1) or found.group(2)) if found else None
        ticks = axis.get_majorticklocs()
        self.tick_labels = [label.get_text() for label in axis.get_ticklabels()]
        self.positions = [float(tick) for tick in ticks]
        self.ticks = [self.read(tick) if self.is_date else _plain(tick) for tick in ticks]
        self.scale = self._scale(axis.get_scale())

    def _scale(self, name):
        if self.is_date:
            return "datetime"
        if name != "linear":
            return name
        if self.names is not None:
            return "categorical"
        if not self.tick_labels or len(self.positions) != len(self.tick_labels):
            return name
        # Ticks that were set by hand, 0, 1, 2 ..., with words.
        named = all(at == i and label != str(i) for i, (at, label) in enumerate(zip(self.positions, self.tick_labels)))
        return "categorical" if named else name

    def read(self, value):
        """A position on the axis, or the value that the code gave."""
        if not isinstance(value, (int, float)) and not hasattr(value, "dtype"):
            return _plain(value)
        if self.is_date and not str(getattr(value, "dtype", "")).startswith("datetime64"):
            return self.dates.num2date(float(value)).isoformat()
        if self.names is not None and not isinstance(value, str):
            return self.names.get(float(value), _plain(value))
        return _plain(value)

    def name(self, at):
        """The word at a position: of a bar or a box."""
        if self.names is not None and at in self.names:
            return self.names[at]
        for position, label in zip(self.positions, self.tick_labels):
            if label and math.isclose(position, at, rel_tol=1e-9, abs_tol=1e-9):
                return label
        return self.read(at) if self.is_date else "%g" % at


def _is_straight(line):
    """A line of two points along an axis: part of a grid, or a mark, and not data."""
    x, y = line.get_xdata(), line.get_ydata()
    return len(x) == 2 and len(y) == 2 and (bool(x[0] == x[1]) or bool(y[0] == y[1]))


def _box_of(artist):
    """(x0, y0, x1, y1) of the outline of a box in a box plot, a patch or a closed line, else None."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import PathPatch

    if isinstance(artist, PathPatch):
        points = artist.get_path().vertices
        x, y = points[:, 0], points[:, 1]
    elif isinstance(artist, Line2D) and len(artist.get_xdata()) >= 5 and artist.get_linestyle() != "None":
        x, y = artist.get_xdata(orig=False), artist.get_ydata(orig=False)
        if len(x) not in (5, 11) or x[0] != x[-1] or y[0] != y[-1] or (len(x) == 5 and len({float(v) for v in x}) != 2):
            return None
    else:
        return None
    if len(x) > 10:  # with a notch, which may reach beyond the quartiles: their corners are the first and the sixth point
        x, y = (x[0], x[1], x[5], x[6]), (y[0], y[1], y[5], y[6])
    return tuple(_rounded(v) for v in (min(x), min(y), max(x), max(y)))


def _name(artist, word):
    """Its label; the ones that matplotlib makes, _child0 and _container0, mean that it has none."""
    label = str(artist.get_label())
    found = re.fullmatch("_(?:child|container)([0-9]+)", label)
    return "%s %s" % (word, found.group(1)) if found else label


class _Chart:
    def __init__(self, axes):
        self.axes = axes
        self.x, self.y = _Axis(axes.xaxis), _Axis(axes.yaxis)
        self.left = MAX_POINTS

    def count(self, n):
        self.left -= n
        if self.left < 0:
            raise TooLarge

    def described(self, kind, elements):
        return {"type": kind, "title": self.axes.get_title() or None, "elements": elements}

    def planar(self, kind, elements, swapped=False):
        x, y = (self.y, self.x) if swapped else (self.x, self.y)
        return dict(self.described(kind, elements), x_label=x.label, y_label=y.label, x_unit=x.unit, y_unit=y.unit)

    def points(self, kind, elements):
        x, y = self.x, self.y
        return dict(self.planar(kind, elements), x_ticks=x.ticks, x_tick_labels=x.tick_labels, x_scale=x.scale, y_ticks=y.ticks,
                    y_tick_labels=y.tick_labels, y_scale=y.scale)

    def series(self, label, x, y):
        self.count(len(x))
        return {"label": str(label), "points": [[self.x.read(a), self.y.read(b)] for a, b in zip(x, y)]}

    def lines(self):
        elements = []
        for line in self.axes.get_lines():
            if _is_straight(line):
                continue
            elements.append(self.series(_name(line, "Line"), line.get_xdata(orig=True), line.get_ydata(orig=True)))
        return self.points("line", elements)

    def scatter(self):
        elements = []
        for one in self.axes.collections:
            at = one.get_offsets().tolist()
            elements.append(self.series(_name(one, "Series"), [x for x, _ in at], [y for _, y in at]))
        return self.points("scatter", elements)

    def bars(self):
        elements, lying = [], False
        for container in self.axes.containers:
            rects = [rect for rect in container if hasattr(rect, "get_height")]
            group = _name(container, "Group")
            lying = getattr(container, "orientation", None) == "horizontal"
            self.count(len(rects))
            for rect in rects:
                if lying:
                    label, value = self.y.name(rect.get_y() + rect.get_height() / 2), rect.get_width()
                else:
                    label, value = self.x.name(rect.get_x() + rect.get_width() / 2), rect.get_height()
                elements.append({"label": str(label), "group": group, "value": _plain(value)})
        return self.planar("bar", elements, lying)

    def pie(self):
        wedges = self.axes.patches
        self.count(len(wedges))
        return self.described("pie", [{"label": str(wedge.get_label()), "angle": _rounded(abs(wedge.theta2 - wedge.theta1)),
                                       "radius": _plain(wedge.r)} for wedge in wedges])

    def boxes(self, outlines):
        lines = [line for line in self.axes.get_lines() if _box_of(line) is None]
        # The median lies across its box: it tells boxes that stand from boxes that lie.
        lying = not any(_median(outline, line, False) is not None for outline in outlines for line in lines)
        elements = []
        for outline in outlines:
            x0, y0, x1, y1 = (outline[1], outline[0], outline[3], outline[2]) if lying else outline
            axis = self.y if lying else self.x
            element = {"label": str(axis.name(_rounded((x0 + x1) / 2))), "min": y0, "first_quartile": y0, "median": None, "third_quartile": y1,
                       "max": y1, "outliers": []}
            for line in lines:
                middle = _median(outline, line, lying)
                if middle is not None:
                    element["median"] = middle
                else:
                    _add_whisker(element, (x0, y0, x1, y1), line, lying)
            self.count(1 + len(element["outliers"]))
            elements.append(element)
        return self.planar("box_and_whisker", elements, lying)


def _ends(line, lying):
    """Its positions along the row of boxes, and along the values."""
    x, y = line.get_xdata(orig=False), line.get_ydata(orig=False)
    x, y = [_rounded(v) for v in x], [_rounded(v) for v in y]
    return (y, x) if lying else (x, y)


def _median(outline, line, lying):
    x0, y0, x1, y1 = (outline[1], outline[0], outline[3], outline[2]) if lying else outline
    along, values = _ends(line, lying)
    # As wide as the box, or as its notch.
    if len(values) == 2 and values[0] == values[1] and along[0] != along[1] and x0 <= min(along) and max(along) <= x1 and y0 <= values[0] <= y1 \
            and line.get_linestyle() != "None" and max(along) - min(along) >= (x1 - x0) / 2 - 1e-9:
        return values[0]
    return None


def _add_whisker(element, box, line, lying):
    x0, y0, x1, y1 = box
    along, values = _ends(line, lying)
    if not along or min(along) < x0 or max(along) > x1:
        return
    if line.get_linestyle() == "None":  # fliers, a marker each
        element["outliers"].extend(value for value in values if value < element["first_quartile"] or value > element["third_quartile"])
    elif len(values) == 2 and along[0] == along[1]:
        if max(values) == y0:
            element["min"] = min(values)
        elif min(values) == y1:
            element["max"] = max(values)


def _of_axes(axes):
    from matplotlib.collections import PathCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import PathPatch, Rectangle, Wedge
    from matplotlib.text import Text

    if axes.name == "3d":  # its artists hold the projection
        return {"type": "unknown", "title": axes.get_title() or None, "elements": []}
    chart = _Chart(axes)
    drawn = [artist for artist in axes.get_children() if artist in axes._children and not isinstance(artist, Text)]
    outlines = [box for box in map(_box_of, drawn) if box is not None]
    if outlines and all(isinstance(artist, (PathPatch, Line2D)) for artist in drawn):
        return chart.boxes(outlines)
    if all(isinstance(artist, Line2D) for artist in drawn):
        return chart.lines()
    data = [artist for artist in drawn if not (isinstance(artist, Line2D) and _is_straight(artist))]
    for kind, describe in ((PathCollection, chart.scatter), (Wedge, chart.pie), (Rectangle, chart.bars)):
        if all(isinstance(artist, kind) for artist in data):
            return describe()
    return chart.described("unknown", [])


def describe_figure(figure):
    """The description of a figure that has been drawn; None: there is nothing in it, or too much."""
    axes = figure.get_axes()
    if not any(one.has_data() for one in axes):
        return None
    try:
        if len(axes) == 1:
            return _of_axes(axes[0])
        return {"type": "superchart", "title": figure.get_suptitle() or None, "elements": [_of_axes(one) for one in axes]}
    except TooLarge:
        return None


# -- other libraries

def _is_of(obj, module, *names):
    """Whether obj is an instance of one of these classes of a module that has been imported."""
    found = sys.modules.get(module)
    return found is not None and isinstance(obj, tuple(kind for kind in (getattr(found, name, None) for name in names) if isinstance(kind, type)))


def _plotly(figure):
    text = figure.to_json()
    return (PLOTLY, loads(text)) if len(text) <= MAX_SPEC else None


def _altair(chart):
    altair = sys.modules["altair"]
    text = chart.to_json(indent=None)
    major = str(getattr(altair, "SCHEMA_VERSION", "v5")).lstrip("v").split(".")[0]
    return ("application/vnd.vegalite.v%s+json" % major, loads(text)) if len(text) <= MAX_SPEC else None


def describe_table(frame):
    """The columns of a DataFrame; None: it is too large."""
    if frame.shape[0] * max(frame.shape[1], 1) > MAX_CELLS:
        return None
    columns = {}
    for at, name in enumerate(frame.columns):
        column = frame.iloc[:, at]
        columns[str(name)] = [_cell(value) for value in column.tolist()]
    return columns


def _cell(value):
    if isinstance(value, (bool, str, int)) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [_cell(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _cell(one) for key, one in value.items()}
    if type(value).__name__ == "NaTType":
        return None
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def forms(obj, tables):
    """[(MIME type, value)] that an object has besides its own."""
    if _is_of(obj, "matplotlib.figure", "Figure"):
        chart = describe_figure(obj)
        return [] if chart is None else [(CHART, chart)]
    if _is_of(obj, "plotly.basedatatypes", "BaseFigure"):
        return [form for form in (_plotly(obj),) if form]
    if _is_of(obj, "altair", "TopLevelMixin"):
        return [form for form in (_altair(obj),) if form]
    if tables and _is_of(obj, "pandas", "DataFrame"):
        table = describe_table(obj)
        return [] if table is None else [(TABLE, table)]
    return []

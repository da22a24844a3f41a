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
from bisect import bisect_left, bisect_right
from itertools import islice
from json import loads

CHART = "application/vnd.workcell.chart+json"
TABLE = "application/vnd.workcell.table+json"
PLOTLY = "application/vnd.plotly.v1+json"

MAX_POINTS = 20000   # of all elements of a figure; a larger one has its picture alone
MAX_PARTS = 50000    # of a figure: axes, artists, ticks and names
MAX_TEXT = 1000      # characters of a label or a title; longer ones are cut
MAX_CELLS = 100000   # of a table
MAX_SPEC = 4000000   # bytes of another library's description

_UNIT = re.compile(r"\s\((.*?)\)|\[(.*?)\]")


class TooLarge(Exception):
    pass


class _Room:
    """How many things may still come. The code's objects answer as they like: without end, for one."""

    def __init__(self, most):
        self.left = most

    def count(self, n):
        self.left -= n
        if self.left < 0:
            raise TooLarge

    def listed(self, values):
        """Those of an iterable that may be endless, counted."""
        found = list(islice(values, self.left + 1))
        self.count(len(found))
        return found


def _text(value):
    """A label: a plain string of bounded length, whatever the code's object says of itself."""
    return str.__getitem__(str(value), slice(MAX_TEXT)).encode("utf-8", "backslashreplace").decode()


def _plain(value):
    """A number, a date or another label as JSON has it."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return _text(value)
    if hasattr(value, "isoformat"):
        return _text(value.isoformat())
    if type(value).__name__ == "datetime64":
        return _text(value.astype("datetime64[s]"))
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return _text(value)
    return number if math.isfinite(number) else None


def _rounded(value):
    """Nine significant digits: what drawing adds in the last ones is not part of the data."""
    return float("%.9g" % value)


def _place(value):
    """A position as a key: where a bar stands is computed, and may miss its tick by the last digit."""
    return round(_rounded(value), 9)


# -- axes of matplotlib

class _Axis:
    """One axis: its label and unit, and how its numbers read."""

    def __init__(self, axis, parts):
        from matplotlib import dates

        self.dates = dates
        converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
        self.is_date = isinstance(converter, (dates.DateConverter, dates._SwitchableDateConverter))
        mapping = getattr(axis.units, "_mapping", None)
        self.names = {float(at): _text(name) for name, at in parts.listed(mapping.items())} if isinstance(mapping, dict) else None
        self.label = _text(axis.get_label_text()) or None
        found = _UNIT.search(self.label or "")
        self.unit = (found.group(1) or found.group(2)) if found else None
        ticks = parts.listed(axis.get_majorticklocs())
        self.tick_labels = [_text(label.get_text()) for label in parts.listed(axis.get_ticklabels())]
        self.positions = [float(tick) for tick in ticks]
        self.ticks = [self.read(tick) if self.is_date else _plain(tick) for tick in ticks]
        self.named_ticks = {_place(at): label for at, label in zip(reversed(self.positions), reversed(self.tick_labels)) if label}
        self.scale = self._scale(_text(axis.get_scale()))

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
        found = self.named_ticks.get(_place(at))
        if found is not None:
            return found
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
        if len(x) not in (5, 11) or x[0] != x[-1] or y[0] != y[-1]:
            return None
        sides = sorted(len({float(v) for v in along}) for along in (x, y))
        if len(x) == 5 and sides not in ([2, 2], [1, 2]):  # the quartiles may be one
            return None
    else:
        return None
    if len(x) > 10:  # with a notch, which may reach beyond the quartiles: their corners are the first and the sixth point
        x, y = (x[0], x[1], x[5], x[6]), (y[0], y[1], y[5], y[6])
    return tuple(_rounded(v) for v in (min(x), min(y), max(x), max(y)))


def _name(artist, word):
    """Its label; the ones that matplotlib makes, _child0 and _container0, mean that it has none."""
    label = _text(artist.get_label())
    found = re.fullmatch("_(?:child|container)([0-9]+)", label)
    return "%s %s" % (word, found.group(1)) if found else label


class _Chart:
    def __init__(self, axes, points, parts):
        self.axes, self.points_left, self.parts = axes, points, parts
        self.x, self.y = _Axis(axes.xaxis, parts), _Axis(axes.yaxis, parts)

    def described(self, kind, elements):
        return {"type": kind, "title": _text(self.axes.get_title()) or None, "elements": elements}

    def planar(self, kind, elements, swapped=False):
        x, y = (self.y, self.x) if swapped else (self.x, self.y)
        return dict(self.described(kind, elements), x_label=x.label, y_label=y.label, x_unit=x.unit, y_unit=y.unit)

    def points(self, kind, elements):
        x, y = self.x, self.y
        return dict(self.planar(kind, elements), x_ticks=x.ticks, x_tick_labels=x.tick_labels, x_scale=x.scale, y_ticks=y.ticks,
                    y_tick_labels=y.tick_labels, y_scale=y.scale)

    def series(self, label, x, y):
        pairs = self.points_left.listed(zip(x, y))
        return {"label": _text(label), "points": [[self.x.read(a), self.y.read(b)] for a, b in pairs]}

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
            at = [place.tolist() for place in self.points_left.listed(one.get_offsets())]
            elements.append({"label": _name(one, "Series"), "points": [[self.x.read(x), self.y.read(y)] for x, y in at]})
        return self.points("scatter", elements)

    def bars(self):
        elements, lying = [], False
        for container in self.axes.containers:
            rects = [rect for rect in self.points_left.listed(container) if hasattr(rect, "get_height")]
            group = _name(container, "Group")
            lying = getattr(container, "orientation", None) == "horizontal"
            for rect in rects:
                if lying:
                    label, value = self.y.name(rect.get_y() + rect.get_height() / 2), rect.get_width()
                else:
                    label, value = self.x.name(rect.get_x() + rect.get_width() / 2), rect.get_height()
                elements.append({"label": _text(label), "group": group, "value": _plain(value)})
        return self.planar("bar", elements, lying)

    def pie(self):
        wedges = self.points_left.listed(self.axes.patches)
        return self.described("pie", [{"label": _text(wedge.get_label()), "angle": _plain(_rounded(abs(wedge.theta2 - wedge.theta1))),
                                       "radius": _plain(wedge.r)} for wedge in wedges])

    def boxes(self, outlines):
        lines = [line for line in self.axes.get_lines() if _box_of(line) is None]
        outlines = [outline for outline in outlines if math.isfinite(sum(outline))]  # a box of nothing
        # The median lies across its box: it tells boxes that stand from boxes that lie.
        standing = _Strokes(lines, False, self.parts)
        lying = not any(standing.median(outline) is not None for outline in outlines)
        strokes = _Strokes(lines, True, self.parts) if lying else standing
        axis, elements = self.y if lying else self.x, []
        for outline in outlines:
            x0, y0, x1, y1 = box = (outline[1], outline[0], outline[3], outline[2]) if lying else outline
            element = {"label": _text(axis.name(_rounded((x0 + x1) / 2))), "min": y0, "first_quartile": y0, "median": strokes.median(box),
                       "third_quartile": y1, "max": y1, "outliers": []}
            strokes.add_whiskers(element, box)
            self.points_left.count(1 + len(element["outliers"]))
            elements.append(element)
        return self.planar("box_and_whisker", elements, lying)


class _Strokes:
    """The lines of a box plot beside its boxes: medians, whiskers, caps and fliers, in the order of their place in the row of boxes."""

    def __init__(self, lines, lying, parts):
        strokes = []
        for line in lines:
            x, y = ([_rounded(v) for v in parts.listed(values)] for values in (line.get_xdata(orig=False), line.get_ydata(orig=False)))
            along, values = (y, x) if lying else (x, y)
            if along and math.isfinite(sum(along)):
                strokes.append((min(along), max(along), along, values, line.get_linestyle()))
        self.strokes = sorted(strokes, key=lambda stroke: stroke[0])
        self.starts = [stroke[0] for stroke in self.strokes]

    def within(self, x0, x1):
        """Those that lie over or under a box."""
        return (stroke for stroke in self.strokes[bisect_left(self.starts, x0):bisect_right(self.starts, x1)] if stroke[1] <= x1)

    def median(self, box):
        """The widest line across the box, as wide as it or as its notch; of equal ones the last drawn, caps come before. Means are dashed."""
        x0, y0, x1, y1 = box
        found, width = None, (x1 - x0) / 2 - 1e-9
        for low, high, along, values, style in self.within(x0, x1):
            if len(values) == 2 and values[0] == values[1] and along[0] != along[1] and y0 <= values[0] <= y1 and style not in ("None", "--") \
                    and high - low >= width - 1e-9:
                found, width = values[0], high - low
        return found

    def add_whiskers(self, element, box):
        x0, y0, x1, y1 = box
        for _, _, along, values, style in self.within(x0, x1):
            if style == "None":  # fliers, a marker each
                element["outliers"].extend(value for value in values if value < y0 or value > y1)
            elif len(values) == 2 and along[0] == along[1]:
                if max(values) == y0:
                    element["min"] = min(values)
                elif min(values) == y1:
                    element["max"] = max(values)


def _of_axes(axes, points, parts):
    from matplotlib.collections import PathCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import PathPatch, Rectangle, Wedge
    from matplotlib.text import Text

    if axes.name == "3d":  # its artists hold the projection
        return {"type": "unknown", "title": _text(axes.get_title()) or None, "elements": []}
    chart = _Chart(axes, points, parts)
    drawn = [artist for artist in parts.listed(axes._children) if not isinstance(artist, Text)]
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
    points, parts = _Room(MAX_POINTS), _Room(MAX_PARTS)
    try:
        axes = parts.listed(figure.get_axes())
        if not any(one.has_data() for one in axes):
            return None
        if len(axes) == 1:
            return _of_axes(axes[0], points, parts)
        return {"type": "superchart", "title": _text(figure.get_suptitle()) or None, "elements": [_of_axes(one, points, parts) for one in axes]}
    except TooLarge:
        return None


# -- other libraries

def _is_of(obj, module, *names):
    """Whether obj is an instance of one of these classes of a module that has been imported."""
    found = sys.modules.get(module)
    return found is not None and isinstance(obj, tuple(kind for kind in (getattr(found, name, None) for name in names) if isinstance(kind, type)))


def _loaded(text):
    """What another library wrote, None where that is too large. A class of the code's may have written it."""
    text = str.__str__(text)
    return loads(text) if len(text) <= MAX_SPEC else None


def _plotly(figure):
    return PLOTLY, _loaded(figure.to_json())


def plotly_bundle(figure):
    """The MIME bundle of a figure of plotly's, as the dict that its renderers get."""
    from plotly.io import to_html, to_json

    kinds = {_text(trace.get("type")) for trace in figure.get("data") or ()}
    data = {"text/plain": "<plotly Figure: %s>" % (_text(", ".join(sorted(kinds))) or "empty"),
            "text/html": to_html(figure, full_html=False, include_plotlyjs="cdn", validate=False)}
    described = _loaded(to_json(figure, validate=False))
    return data if described is None else {**data, PLOTLY: described}


def _altair(chart):
    altair = sys.modules["altair"]
    major = str(getattr(altair, "SCHEMA_VERSION", "v5")).lstrip("v").split(".")[0]
    return "application/vnd.vegalite.v%s+json" % major, _loaded(chart.to_json(indent=None))


def describe_table(frame):
    """The columns of a DataFrame; None: it is too large."""
    if frame.shape[0] * frame.shape[1] > MAX_CELLS:
        return None
    cells, names = _Room(MAX_CELLS), _Room(MAX_CELLS)
    try:
        return {_text(name): [_cell(value) for value in cells.listed(frame.iloc[:, at])] for at, name in enumerate(names.listed(frame.columns))}
    except TooLarge:
        return None


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
    return str(value.isoformat() if hasattr(value, "isoformat") else value)


def forms(obj, tables):
    """[(MIME type, value)] that an object has besides its own."""
    if _is_of(obj, "matplotlib.figure", "Figure"):
        form = CHART, describe_figure(obj)
    elif _is_of(obj, "plotly.basedatatypes", "BaseFigure"):
        form = _plotly(obj)
    elif _is_of(obj, "altair", "TopLevelMixin"):
        form = _altair(obj)
    elif tables and _is_of(obj, "pandas", "DataFrame"):
        form = TABLE, describe_table(obj)
    else:
        return []
    return [form] if form[1] is not None else []

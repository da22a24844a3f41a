"""Makes the benchmark's report: percentiles, ratios, what was asked for and whether it was met.

    report.py --workcell FILE [--peer FILE] [--mcp-peer FILE] [--json FILE] [--svg FILE]

FILE are the values as `workcell bench`, peer_ipykernel.py and peer_mcp.py measured them.  Prints the table, writes the
summary as JSON and draws the plot.  Needs only the standard library, Python 3.9 or later.
"""
import argparse
import datetime
import json
import math
import os
import platform
import sys
from xml.sax.saxutils import escape

MB = 1_000_000
# Fifty opens at either end of the row are compared.  Their medians wobble by some ten percent from run to
# run; a cost that grew with the number of sessions would show as a multiple.
GROWTH_WINDOW = 50
GROWTH_LIMIT = 1.5
BUSY_LOAD = 0.7  # load average of the last minute


class Ask:
    """One demand on a measure.  `value(measure)` is None where the other side was not measured."""

    def __init__(self, text, value, limit, at_least):
        self.text, self.value, self.limit, self.at_least = text, value, limit, at_least

    def judge(self, measure):
        got = self.value(measure)
        if got is None:
            return {"asked": self.text, "got": None, "met": None}
        met = got >= self.limit if self.at_least else got <= self.limit
        return {"asked": self.text, "got": got, "met": met}


def times_peer(limit):
    return Ask(f"{limit}× ipykernel", lambda m: m.get("ratio_to_peer"), limit, True)


def times_floor(limit):
    return Ask(f"≤ {limit}× floor", lambda m: m.get("ratio_to_floor"), limit, False)


def share_of_floor(limit):
    return Ask(f"≥ {limit}× floor", lambda m: m.get("ratio_to_floor"), limit, True)


def at_most_ms(limit):
    return Ask(f"≤ {limit} ms", lambda m: m["workcell"]["p50"] / 1e6, limit, False)


def at_most_mb(limit):
    return Ask(f"≤ {limit} MB", lambda m: m["workcell"]["p50"] / MB, limit, False)


def times_less_overhead(limit):
    """What is above the floor is the client's own: the rest is the server's time.

    A floor that came out slower than what stands on it was disturbed, and says nothing.
    """
    def value(measure):
        if not measure.get("peer") or not measure.get("floor"):
            return None
        floor = measure["floor"]["p50"]
        ours, theirs = measure["workcell"]["p50"] - floor, measure["peer"]["p50"] - floor
        return theirs / ours if ours > 0 else None

    return Ask(f"{limit}× less above the floor than the SDK", value, limit, True)


def at_most_over_ms(limit, what="subprocess"):
    return Ask(f"≤ {limit} ms over {what}", lambda m: (m["workcell"]["p50"] - m["floor"]["p50"]) / 1e6, limit, False)


def at_most_over_mb(limit):
    return Ask(f"≤ {limit} MB over subprocess", lambda m: (m["workcell"]["p50"] - m["floor"]["p50"]) / MB, limit, False)


def times_subprocess(limit):
    return Ask(f"≤ {limit}× subprocess", lambda m: m.get("ratio_to_floor"), limit, False)


def times_bare(limit):
    return Ask(f"≤ {limit}× compile+eval", lambda m: m.get("ratio_to_floor"), limit, False)


def at_most_over_us(limit):
    return Ask(f"≤ {limit} µs over the function", lambda m: (m["workcell"]["p50"] - m["floor"]["p50"]) / 1e3, limit, False)


def times_and_ms(times, ms):
    """At most so many times the floor and so many milliseconds more."""
    return Ask(f"≤ {times}× fork + {ms} ms", lambda m: (m["workcell"]["p50"] - ms * 1e6) / m["floor"]["p50"], times, False)


HUNDREDTH_OF_DOCKER = Ask("100× faster than docker run", lambda m: 1 / m["ratio_to_floor"], 100, True)
TWENTIETH_OF_DOCKER = Ask("20× faster than docker run", lambda m: 1 / m["ratio_to_floor"], 20, True)
TWENTIETH_OF_BWRAP = Ask("20× faster than bwrap", lambda m: 1 / m["ratio_to_floor"], 20, True)
THIRD_OF_BWRAP = Ask("3× faster than bwrap", lambda m: 1 / m["ratio_to_floor"], 3, True)
QUARTER_OF_PLAIN = Ask("≤ ¼ of a plain start", lambda m: m.get("ratio_to_floor"), 0.25, False)
NOT_STARVED = Ask("p99 ≤ 20× quiet p50", lambda m: m["workcell"]["p99"] / m["floor"]["p50"], 20, False)
ALL_ANSWER = Ask("all answer", lambda m: m["answered_share"], 1, True)
NONE_LEFT = Ask("none left", lambda m: m["left_behind"], 0, False)
NO_GROWTH = Ask("no growth", lambda m: m["growth"], GROWTH_LIMIT, False)

# name, label, unit, the peer's row, what the floor is, what is asked for
MEASURES = (
    ("paused-cell", "cell after a pause of 100 ms", "ns", "paused-cell", "socket", [at_most_ms(0.25)]),
    ("paused-chunk", "first chunk after a pause", "ns", "paused-chunk", "socket", []),
    ("paused-call", "host function after a pause", "ns", None, "socket", []),
    ("paused-approval", "the same, asked for and accepted", "ns", None, "socket", []),
    ("open", "open to first result, no pool", "ns", "open", "fork", [times_peer(100)]),
    ("open-pool", "open to first result, pool", "ns", "open", "socket", [times_peer(500)]),
    ("cell", "cell round trip, 1+1", "ns", "cell", "socket", [times_peer(50), times_floor(3)]),
    ("reset", "reset to first result", "ns", "reset", "fork", [times_peer(100)]),
    ("fork", "fork to first result, 30 MB of data", "ns", None, "same fork", [times_and_ms(1.5, 0.5)]),
    ("fork-layer", "the same in a sandbox with a layer", "ns", None, "same fork", [times_and_ms(4.5, 1.5)]),
    ("fork-many", "100 forks at once, each", "ns", None, "same fork", [times_floor(1.5)]),
    ("rewind", "rewind to first result, 30 MB", "ns", None, "same fork", [times_and_ms(2, 0.5)]),
    ("undo", "a cell with undo, more than without", "ns", None, "same fork", [times_floor(1.2)]),
    ("undo-same", "the same, a cell that changes nothing", "ns", None, "subprocess", []),
    ("memory", "memory of one more session", "bytes", "memory", None, [at_most_mb(4), times_peer(10)]),
    ("stdout", "stdout, 100 MB in lines", "bytes_per_s", "stdout", None, [times_peer(20)]),
    ("first-chunk", "first chunk of a cell that goes on", "ns", "first-chunk", "socket", [times_peer(20)]),
    ("sessions", "{sessions} sessions at once, open", "ns", None, "fork", [ALL_ANSWER, NO_GROWTH, NONE_LEFT]),
    ("tool-call", "host function from a cell", "ns", None, "socket", [times_floor(2)]),
    ("approval", "host function, asked for and accepted", "ns", None, "socket", [times_floor(3)]),
    ("tool-gather", "1,000 of them by asyncio.gather", "ns", None, None, []),
    ("tool-cli", "command-line tool, true", "ns", None, "spawn", [times_floor(1.5)]),
    ("artifact", "artifact, 100 MB saved and loaded", "bytes_per_s", None, "disk", [share_of_floor(0.5)]),
    ("search", "search of 10,000 workflows", "ns", None, None, [at_most_ms(10)]),
    ("mcp", "MCP tool, stdio (peer: Python SDK)", "ns", "mcp", "bare", []),
    ("mcp-one-cpu", "MCP tool, all held on one CPU", "ns", "mcp-one-cpu", "bare", [times_less_overhead(5)]),
    ("gen", "modules for 100 MCP tools", "ns", None, None, [at_most_ms(50)]),
    ("sandbox-open", "sandbox, open to first result", "ns", None, "subprocess", [at_most_over_ms(1.5)]),
    ("sandbox-pool", "sandbox, the same from the pool", "ns", None, "subprocess", [times_subprocess(1.3)]),
    ("sandbox-cell", "sandbox, cell round trip", "ns", None, "subprocess", [times_subprocess(1.2)]),
    ("sandbox-call", "sandbox, host function from a cell", "ns", None, "subprocess", []),
    ("sandbox-tool", "sandbox, command-line tool", "ns", None, "host", [at_most_over_ms(1.5, "one on the host")]),
    ("sandbox-reset", "sandbox, reset to first result", "ns", None, "subprocess", []),
    ("sandbox-bwrap", "sandbox against bwrap python3 -c", "ns", None, "bwrap", [THIRD_OF_BWRAP]),
    ("sandbox-bwrap-bare", "the same without a pool", "ns", None, "bwrap", [THIRD_OF_BWRAP]),
    ("sandbox-script", "program in a fresh process of a sandbox against bwrap python3 -c", "ns", None, "bwrap", [TWENTIETH_OF_BWRAP]),
    ("sandbox-docker", "sandbox against docker run python3 -c", "ns", None, "docker", [HUNDREDTH_OF_DOCKER]),
    ("sandbox-docker-bare", "the same without a pool", "ns", None, "docker", [HUNDREDTH_OF_DOCKER]),
    ("container-open", "container that is up, open to first result", "ns", None, "docker", [TWENTIETH_OF_DOCKER]),
    ("sandbox-memory", "sandbox, private memory", "bytes", None, "subprocess", [at_most_over_mb(0.5)]),
    ("sandbox-many", "300 sandboxes at once, open", "ns", None, None, []),
    ("layer-open", "sandbox with a layer over 10,000 files", "ns", None, "rw", [at_most_over_ms(1, "rw")]),
    ("layer-diff", "diff of 100 of them", "ns", None, None, [at_most_ms(50)]),
    ("sandbox-starved", "cell beside five offenders", "ns", None, "quiet", [NOT_STARVED]),
    ("jupyter-open", "jupyter, open to first result", "ns", None, "subprocess", []),
    ("jupyter-cell", "jupyter, cell round trip", "ns", None, "subprocess", []),
    ("jupyter-call", "jupyter, host function from a cell", "ns", None, "subprocess", [times_subprocess(1.5)]),
    ("jupyter-reset", "jupyter, reset with a pool of one", "ns", None, "subprocess", []),
    ("jupyter-memory", "jupyter, private memory", "bytes", None, "subprocess", []),
    ("inprocess-open", "inprocess, open to first result", "ns", None, None, []),
    ("inprocess-cell", "inprocess, cell 1+1", "ns", None, "bare", [times_bare(5)]),
    ("inprocess-lines", "inprocess, cell of ten lines", "ns", None, "bare", [times_bare(5)]),
    ("inprocess-call", "inprocess, host function from a cell", "ns", None, "function", [at_most_over_us(3)]),
    ("inprocess-reset", "inprocess, reset to first result", "ns", None, None, []),
    ("inprocess-memory", "inprocess, memory of one more session", "bytes", None, None, []),
    ("deno-open", "deno, open to first result, snapshot", "ns", None, "plain", [QUARTER_OF_PLAIN]),
    ("deno-cell", "deno, cell round trip", "ns", None, "subprocess", []),
    ("deno-call", "deno, host function from a cell", "ns", None, "subprocess", []),
    ("deno-reset", "deno, reset to first result", "ns", None, "subprocess", []),
    ("deno-memory", "deno, private memory", "bytes", None, "subprocess", []),
    ("cell-one-cpu", "cell, all held on one CPU", "ns", None, "socket", []),
    ("cell-two-cpus", "cell, kernel on another CPU", "ns", None, "socket", []),
    ("tool-call-one-cpu", "host function, all on one CPU", "ns", None, "socket", []),
    ("tool-call-two-cpus", "host function, kernel on another", "ns", None, "socket", []),
    ("approval-one-cpu", "approved call, all on one CPU", "ns", None, "socket", []),
    ("approval-two-cpus", "approved call, kernel on another", "ns", None, "socket", []),
    ("sandbox-tool-burst", "sandbox, such tools without a pause", "ns", None, "host", [at_most_over_ms(1.5, "one on the host")]),
    ("tool-gather-each", "1,000 calls at once, each", "ns", None, None, []),
    ("search-open", "open with 10,000 workflows", "ns", None, "fork", []),
    ("search-first", "first search, makes the index", "ns", None, None, []),
)


def percentile(ordered, q):
    """Nearest rank: always a value that was measured.  Of few values, p99 is the worst."""
    return ordered[max(math.ceil(len(ordered) * q / 100), 1) - 1]


def summarise(values, unit):
    """p99 is the bad end: the slowest one in a hundred, for rates as well as for times."""
    if not values:
        return None
    ordered = sorted(values, reverse=unit == "bytes_per_s")
    return {
        "p50": percentile(ordered, 50),
        "p99": percentile(ordered, 99),
        "best": ordered[0],
        "worst": ordered[-1],
        "mean": sum(values) / len(values),
        "n": len(values),
    }


def machine_facts():
    cpu = platform.processor() or platform.machine()
    with open("/proc/cpuinfo") as info:
        for line in info:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    return {
        "cpu": cpu,
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "arch": platform.machine(),
    }


def judge_sessions(measure, row, facts):
    """What this row asks for is not a ratio to somebody else.  Growth is the median of the rounds'."""
    asked, rounds = facts["asked"], facts["rounds"]
    window = min(GROWTH_WINDOW, max(asked // 2, 1))

    def middle_growth(values):
        ends = []
        for i in range(rounds):
            part = values[i * asked:(i + 1) * asked]
            ends.append((summarise(part[:window], "ns")["p50"], summarise(part[-window:], "ns")["p50"]))
        first, last = sorted(ends, key=lambda pair: pair[1] / pair[0])[rounds // 2]
        return {"first_p50": first, "last_p50": last, "growth": last / first}

    measure.update(facts, window=window, **middle_growth(row["values"]))
    measure["floor_growth"] = middle_growth(row["floor"])["growth"]
    measure["answered_share"] = facts["answered"] / (asked * rounds)
    measure["left_behind"] = facts["left_processes"] + facts["left_fds"]


def build(workcell, peer, mcp_peer=None):
    measures = []
    for name, label, unit, peer_row, floor_kind, asks in MEASURES:
        row = workcell["rows"].get(name, {})
        ours = summarise(row.get("values"), unit)
        floor = summarise(row.get("floor"), unit)
        side = mcp_peer if name.startswith("mcp") else peer
        theirs = summarise(side["rows"].get(peer_row), unit) if side and peer_row else None
        if not ours and not floor:
            continue
        measure = {"name": name, "unit": unit, "label": label.format(sessions=workcell["sessions"]["asked"])}
        measure.update({"workcell": ours, "peer": theirs, "floor": floor, "floor_kind": floor_kind})
        if ours and theirs:
            ratio = theirs["p50"] / ours["p50"]
            measure["ratio_to_peer"] = 1 / ratio if unit == "bytes_per_s" else ratio
        if ours and floor:
            measure["ratio_to_floor"] = ours["p50"] / floor["p50"]
        if name == "sessions":
            judge_sessions(measure, row, workcell["sessions"])
        measure["asks"] = [ask.judge(measure) for ask in asks]
        measures.append(measure)
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine_facts(),
        "workcell": {k: v for k, v in workcell.items() if k not in ("rows", "sessions")},
        "peer": {k: v for k, v in peer.items() if k != "rows"} if peer else None,
        "mcp_peer": {k: v for k, v in mcp_peer.items() if k != "rows"} if mcp_peer else None,
        "skipped": {n: r["skipped"] for n, r in workcell["rows"].items() if "skipped" in r},
        "measures": measures,
    }


# ---- the table


def three_digits(value):
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def show(value, unit):
    if unit == "bytes":
        return f"{three_digits(value / MB)} MB"
    if unit == "bytes_per_s":
        return f"{three_digits(value / MB)} MB/s"
    for limit, name in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if value >= limit:
            return f"{three_digits(value / limit)} {name}"
    return f"{value:.0f} ns"


def show_part(measure, side, key):
    return show(measure[side][key], measure["unit"]) if measure[side] else "–"


def show_ratio(measure, key):
    return f"{three_digits(measure[key])}×" if key in measure else "–"


def verdict(measure):
    met = [ask["met"] for ask in measure["asks"]]
    if not met:
        return ""
    if False in met:
        return "no"
    if None in met:
        return "not judged" if measure["peer"] else "no peer"
    return "yes"


HEADINGS = ("measure", "Workcell p50", "p99", "ipykernel p50", "p99", "floor p50", "vs ipykernel", "vs floor",
            "asked for", "met")


def table(report):
    lines = [HEADINGS]
    for measure in report["measures"]:
        lines.append((
            measure["label"],
            show_part(measure, "workcell", "p50"), show_part(measure, "workcell", "p99"),
            show_part(measure, "peer", "p50"), show_part(measure, "peer", "p99"),
            show_part(measure, "floor", "p50"),
            show_ratio(measure, "ratio_to_peer"), show_ratio(measure, "ratio_to_floor"),
            ", ".join(ask["asked"] for ask in measure["asks"]), verdict(measure),
        ))
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    words = (0, 8, 9)  # columns of words stand left, figures right
    out = []
    for line in lines:
        cells = [c.ljust(w) if i in words else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))]
        out.append("  ".join(cells).rstrip())
    out.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(out)


EXECUTORS = ("subprocess", "sandbox", "inprocess", "jupyter", "deno")
PARTS = (("open", "open"), ("cell", "cell"), ("tool call", "call"), ("reset", "reset"), ("memory", "memory"))


def executor_table(report):
    """The same five things in each executor; "" where fewer than two were measured."""
    measures = {measure["name"]: measure for measure in report["measures"]}
    # The plain rows are subprocess's.
    own = {"call": "tool-call"}
    lines = [("executor",) + tuple(words for words, _ in PARTS)]
    for executor in EXECUTORS:
        names = [own.get(part, part) if executor == "subprocess" else executor + "-" + part for _, part in PARTS]
        figures = [show_part(measures[name], "workcell", "p50") if name in measures else "" for name in names]
        if any(figures):
            lines.append((executor, *figures))
    if len(lines) < 3:
        return ""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    out = ["  ".join([line[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]) for line in lines]
    out.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(out)


def facts_line(report):
    machine, workcell, peer = report["machine"], report["workcell"], report["peer"]
    parts = [f"Workcell {workcell['version']}", f"Python {workcell['python_version']}",
             f"IPython {workcell['ipython']}" if workcell["ipython"] else "no IPython"]
    if peer and peer["ok"]:
        parts.append(f"ipykernel {peer['ipykernel']}, jupyter_client {peer['jupyter_client']}")
    if report["mcp_peer"] and report["mcp_peer"]["ok"]:
        parts.append(f"mcp {report['mcp_peer']['mcp']}")
    parts.append(f"{machine['cpu']}, {machine['cpus']} CPUs, Linux {machine['kernel']}")
    parts.append(report["date"][:10])
    return " · ".join(parts)


def remarks(report):
    out = []
    for measure in report["measures"]:
        for ask in measure["asks"]:
            if ask["met"] is False:
                out.append(f"falls short: {measure['label']}: asked for {ask['asked']}, got "
                           f"{three_digits(ask['got'])}")
        if measure["name"] == "sessions":
            first, last = show(measure["first_p50"], "ns"), show(measure["last_p50"], "ns")
            grown, floor = measure["growth"], measure["floor_growth"]
            out.append(
                f"{measure['asked']} sessions, rounds: {measure['rounds']}, answered: {measure['answered']}; "
                f"open p50 {first} for the first {measure['window']}, {last} for the last "
                f"({grown:.2f}×, a bare fork meanwhile {floor:.2f}×; growth is more than {GROWTH_LIMIT}×); "
                f"left behind: {measure['left_processes']} processes, {measure['left_fds']} descriptors")
    for name, reason in report["skipped"].items():
        advice = "; give one that has both with --python" if name == "memory" else ""
        out.append(f"{name}: not measured, {reason}{advice}")
    peer = report["peer"]
    if peer is None and any(ask["met"] is None for m in report["measures"] for ask in m["asks"]):
        out.append("ipykernel was left out: ratios to it are not judged")
    elif peer and not peer["ok"]:
        out.append(
            f"ipykernel was not measured: {report['workcell']['python']} has no {peer['missing']}.  "
            "For the full comparison:\n    python3 -m venv /tmp/bench-venv\n"
            "    /tmp/bench-venv/bin/pip install ipykernel numpy pandas\n"
            "    workcell bench --python /tmp/bench-venv/bin/python")
    mcp_peer = report["mcp_peer"]
    if mcp_peer and not mcp_peer["ok"]:
        out.append(f"the MCP SDK was not measured: {report['workcell']['python']} has no {mcp_peer['missing']} (pip install mcp)")
    load = report["workcell"]["load_percent"] / 100
    if load > BUSY_LOAD:
        out.append(f"the machine was busy when the benchmark began (load {load:.1f}): figures may be worse")
    if report["workcell"]["quick"]:
        out.append("--quick: few rounds, the figures wobble")
    return out


# ---- the plot

SIDES = (("workcell", "Workcell", "#2563eb"), ("peer", "ipykernel", "#f59e0b"), ("floor", "floor", "#9ca3af"))
WIDTH, LEFT, RIGHT = 960, 250, 110
BAR, GAP, GROUP = 15, 3, 16
PANELS = (
    ("ns", "time (shorter is better)"),
    ("bytes", "private memory of one more idle session, numpy and pandas loaded (shorter is better)"),
    ("bytes_per_s", "rate (longer is better)"),
)


class Svg:
    def __init__(self):
        self.parts, self.y = [], 0

    def text(self, x, y, words, size=12, anchor="start", fill="#111827", weight="normal"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
                          f'fill="{fill}" font-weight="{weight}">{escape(words)}</text>')

    def rect(self, x, y, width, height, fill):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
                          f'fill="{fill}" rx="1.5"/>')

    def line(self, x1, y1, x2, y2, stroke, width=1.0):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
                          f'stroke="{stroke}" stroke-width="{width}"/>')

    def document(self):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.y:.0f}" width="{WIDTH}" '
                f'height="{self.y:.0f}" font-family="system-ui, sans-serif">\n'
                f'<rect width="{WIDTH}" height="{self.y:.0f}" fill="#ffffff"/>\n'
                + "\n".join(self.parts) + "\n</svg>\n")


def draw_panel(svg, title, measures, unit):
    figures = [m[s][k] for m in measures for s, _, _ in SIDES if m[s] for k in ("p50", "p99")]
    low, high = math.floor(math.log10(min(figures))), math.ceil(math.log10(max(figures)))
    # A bar of a log scale has no natural start: one decade below the smallest keeps it visible.
    low, high = low - (10 ** low > 0.7 * min(figures)), max(high, low + 1)
    span = WIDTH - LEFT - RIGHT

    def x_of(value):
        return LEFT + (math.log10(value) - low) / (high - low) * span

    svg.text(20, svg.y + 14, title, 13, weight="bold")
    top = svg.y + 28
    height = sum(sum(BAR + GAP for s, _, _ in SIDES if m[s]) + GROUP for m in measures)
    for decade in range(low, high + 1):
        x = x_of(10 ** decade)
        svg.line(x, top, x, top + height, "#e5e7eb")
        svg.text(x, top + height + 14, show(10 ** decade, unit).replace(".00", "").replace(".0", ""), 11,
                 "middle", "#6b7280")
    y = top + GROUP / 2
    for measure in measures:
        sides = [side for side in SIDES if measure[side[0]]]
        svg.text(LEFT - 12, y + len(sides) * (BAR + GAP) / 2 + 3, measure["label"], 12, "end")
        for side, _, colour in sides:
            part = measure[side]
            end, whisker = x_of(part["p50"]), x_of(part["p99"])
            svg.rect(LEFT, y, max(end - LEFT, 2), BAR, colour)
            svg.line(end, y + BAR / 2, whisker, y + BAR / 2, "#374151", 1.2)
            svg.line(whisker, y + 4, whisker, y + BAR - 4, "#374151", 1.2)
            words = show(part["p50"], unit)
            if side == "workcell" and "ratio_to_peer" in measure:
                words += f"  ({show_ratio(measure, 'ratio_to_peer')})"
            svg.text(max(end, whisker) + 6, y + BAR - 3.5, words, 11)
            y += BAR + GAP
        y += GROUP
    svg.y = top + height + 36


def plot(report):
    svg = Svg()
    svg.text(20, 28, "Workcell, ipykernel and the machine's floor", 17, weight="bold")
    svg.text(20, 46, facts_line(report), 11, fill="#6b7280")
    x = 20
    for _, name, colour in SIDES:
        svg.rect(x, 58, 12, 12, colour)
        svg.text(x + 17, 68, name, 12)
        x += 110
    svg.text(x, 68, "p50, whisker to p99, log scale; (n×): so many times better than ipykernel", 12,
             fill="#6b7280")
    svg.y = 92
    for unit, title in PANELS:
        measures = [m for m in report["measures"] if m["unit"] == unit and m["workcell"]]
        if measures:
            draw_panel(svg, title, measures, unit)
    return svg.document()


def main():
    parser = argparse.ArgumentParser(description="Reports what the benchmark measured.")
    parser.add_argument("--workcell", required=True, metavar="FILE")
    parser.add_argument("--peer", metavar="FILE")
    parser.add_argument("--mcp-peer", metavar="FILE")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--svg", metavar="FILE")
    args = parser.parse_args()
    sys.stdout.reconfigure(encoding="utf-8")  # × and µ, whatever the locale

    with open(args.workcell) as file:
        workcell = json.load(file)
    peer = None
    if args.peer:
        with open(args.peer) as file:
            peer = json.load(file)
    mcp_peer = None
    if args.mcp_peer:
        with open(args.mcp_peer) as file:
            mcp_peer = json.load(file)
    report = build(workcell, peer, mcp_peer)
    print(*filter(None, (facts_line(report), table(report), executor_table(report), *remarks(report))), sep="\n\n")
    try:
        if args.json:
            with open(args.json, "w", encoding="utf-8") as file:
                json.dump(report, file, indent=1, ensure_ascii=False)
                file.write("\n")
        if args.svg:
            with open(args.svg, "w", encoding="utf-8") as file:
                file.write(plot(report))
    except OSError as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Chart of a report: traces and layout for Plotly, and the same numbers as a table."""

import html
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lengthwise.core.json_parsing import non_finite_to_null
from lengthwise.core.progress_line import escape_control_characters

# Maximum number of lines of a chart; more lines could not be told apart.
MAX_LINES = 12
# Shapes of the points, so that lines differ without colors too, with their outline in the legend.
SYMBOLS = {
    "circle": "M-4 0A4 4 0 1 0 4 0A4 4 0 1 0-4 0Z",
    "square": "M-4-4H4V4H-4Z",
    "diamond": "M0-5L5 0L0 5L-5 0Z",
    "triangle-up": "M0-5L5 4H-5Z",
    "x": "M-4-2L-2-4L0-2L2-4L4-2L2 0L4 2L2 4L0 2L-2 4L-4 2L-2 0Z",
    "star": "M0-5L1.4-1.6L5-1.5L2.2.7L3.1 4.2L0 2.2L-3.1 4.2L-2.2.7L-5-1.5L-1.4-1.6Z",
    "triangle-down": "M0 5L5-4H-5Z",
}
# Maximum number of cells of a table, and of characters of a cell, which limit the size of the page.
MAX_CELLS, MAX_CELL_LENGTH = 50_000, 300
# Maximum number of characters of a name in a tick label, and in a line of a hover text.
MAX_TICK_LENGTH, MAX_HOVER_LENGTH = 28, 60
# Dash of a line that did not fit its training lengths, which report.js draws in gray.
UNFIT_DASH = "dot"
# Line break inside a name, which report.js does not read as the end of a value.
SOFT_BREAK = "<br />"


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Table of text cells. A cell in ``marked``, as (row, column), is highlighted."""

    title: str
    header: Sequence[str]
    body: Sequence[Sequence[str]]
    marked: frozenset[tuple[int, int]] = frozenset()

    @property
    def num_rows(self) -> int:
        """Return the number of lines that the page shows, with at most ``MAX_CELLS`` cells in total."""
        return min(len(self.body), max(1, MAX_CELLS // max(1, len(self.header))))

    @property
    def shown_rows(self) -> list[list[str]]:
        """Return the lines that the page shows; long cells are cut."""
        return [[truncate_text(cell, MAX_CELL_LENGTH) for cell in cells] for cells in self.body[: self.num_rows]]

    @property
    def omission_note(self) -> str:
        """Return a sentence about the omitted lines, or an empty string."""
        if self.num_rows == len(self.body):
            return ""
        return f"The table shows the first {self.num_rows:,} of {len(self.body):,} lines; the others are in the files."


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Chart with its title, a description for screen readers, notes below it, and its numbers as a table.

    The ``meta`` of a trace is the index of its line in ``lines``, or None. ``switches`` are the names of the switches
    next to the chart: ``log x``, ``log y`` and ``seeds``. ``tick_names`` maps tick labels to the texts that they cut.
    ``unfit`` contains the lines that did not fit their training lengths; they are gray and dotted.
    """

    title: str
    description: str
    traces: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    table: ReportTable
    lines: Sequence[str] = ()
    switches: Sequence[str] = ()
    notes: Sequence[str] = field(default=())
    tick_names: dict[str, str] = field(default_factory=dict)
    unfit: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the values that report.js reads; numbers that are not finite become null, which leaves a gap."""
        values: dict[str, Any] = non_finite_to_null(
            {"data": list(self.traces), "layout": self.layout, "ticks": self.tick_names}
        )
        return values


def escape_chart_text(text: str) -> str:
    """Escape a text for Plotly, which interprets some tags of HTML in labels."""
    return html.escape(escape_control_characters(text), quote=False)


def hover_text(*lines: str) -> str:
    """Return the text that is visible when the pointer is on a point, from unescaped lines; long lines wrap."""
    wrapped = (textwrap.wrap(escape_control_characters(line), MAX_HOVER_LENGTH) for line in lines)
    return "<br>".join(SOFT_BREAK.join(map(escape_chart_text, parts)) for parts in wrapped)


def number_text(value: int | float | None) -> str:
    """Return a number with three decimals, a large number in scientific notation, and a dash for no number."""
    if value is None:
        return "-"
    return f"{value:.3e}" if math.isfinite(value) and abs(value) >= 1e6 else f"{value:.3f}"


def interval_text(low: int | float | None, high: int | float | None) -> str:
    """Return an interval, or a dash if it has no bounds."""
    return "-" if low is None or high is None else f"{number_text(low)} to {number_text(high)}"


def truncate_text(text: str, length: int, num_last: int = 0) -> str:
    """Return a text of at most this length; an ellipsis replaces what is before the ``num_last`` last characters."""
    return text if len(text) <= length else f"{text[: length - 1 - num_last]}…{text[len(text) - num_last :]}"


def truncate_labels(labels: Sequence[str]) -> list[str]:
    """Return tick labels of at most ``MAX_TICK_LENGTH`` characters; different labels stay different."""
    for num_last in (0, (MAX_TICK_LENGTH - 1) // 2, MAX_TICK_LENGTH - 1):
        names = [truncate_text(label, MAX_TICK_LENGTH, num_last) for label in labels]
        if len(set(names)) == len(set(labels)):
            return names
    return [truncate_text(f"{number}: {label}", MAX_TICK_LENGTH) for number, label in enumerate(labels, start=1)]


def line_trace(
    line: int, x: Sequence[int | float], y: Sequence[float | None], texts: Sequence[str], *, fits: bool = True
) -> dict[str, Any]:
    """Return a trace of the line with this index; ``texts`` contains the ``hover_text`` of each point.

    report.js draws a dotted line in gray; it did not fit its training lengths.
    """
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": list(x),
        "y": list(y),
        "text": list(texts),
        "hovertemplate": "%{text}<extra></extra>",
        "meta": line,
        "marker": {"symbol": symbol_name(line), "size": 7},
        "line": {"dash": ("dash" if is_dashed(line) else "solid") if fits else UNFIT_DASH},
    }


def symbol_name(line: int) -> str:
    """Return the shape of the points of a line."""
    return list(SYMBOLS)[line % len(SYMBOLS)]


def is_dashed(line: int) -> bool:
    """Return True for the lines after all shapes are in use once."""
    return line >= len(SYMBOLS)


def error_bars(y: Sequence[float], ranges: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return error bars from absolute lower and upper bounds."""
    lows, highs = zip(*ranges, strict=True)
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(0.0, high - value) for value, high in zip(y, highs, strict=True)],
        "arrayminus": [max(0.0, value - low) for value, low in zip(y, lows, strict=True)],
        "thickness": 1.2,
        "width": 3,
    }


class ChartPoint(NamedTuple):
    """Point of a line: its coordinates, the lines of its hover text below the name, and its interval or None."""

    x: int | float
    y: float
    texts: Sequence[str]
    interval: Sequence[float] | None = None


def line_chart(
    title: str,
    lines: Sequence[tuple[str, Sequence[ChartPoint]]],
    *,
    subject: str,
    x: dict[str, Any],
    y: dict[str, Any],
    table: ReportTable,
    switch: str = "log x",
    notes: Sequence[str] = (),
) -> Chart:
    """Return a chart of ``subject`` with one trace per line (name and points); ``x`` and ``y`` are its axes."""
    traces = []
    for index, (name, points) in enumerate(lines):
        values, ranges = [point.y for point in points], [point.interval for point in points if point.interval]
        texts = [hover_text(name, *point.texts) for point in points]
        trace = line_trace(index, [point.x for point in points], values, texts)
        traces.append(trace | {"error_y": error_bars(values, ranges)} if ranges else trace)
    return Chart(
        title=title,
        description=f"Line chart of {subject}, {len(lines)} lines.",
        traces=traces,
        layout={"xaxis": x, "yaxis": y},
        table=table,
        lines=[name for name, _ in lines],
        switches=(switch,),
        notes=notes,
    )


def axis_layout(title: str, *, log: bool = False, **settings: Any) -> dict[str, Any]:
    """Return the layout of an axis."""
    return {"title": {"text": escape_chart_text(title)}, "type": "log" if log else "linear", **settings}

"""Chart of a report: traces and layout for Plotly, and the same numbers as a table."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# Maximum number of lines of a chart; more lines could not be told apart.
MAX_LINES = 12
# Shapes of the points, so that lines differ without colors too.
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "triangle-down")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Table of text cells. A cell in ``marked``, as (row, column), is highlighted."""

    title: str
    header: Sequence[str]
    body: Sequence[Sequence[str]]
    marked: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Chart with its title, a description for screen readers, notes below it, and its numbers as a table.

    The ``meta`` of a trace is the index of its line in ``lines``, or None. ``switches`` are the names of the switches
    next to the chart: ``log x``, ``log y`` and ``seeds``.
    """

    title: str
    description: str
    traces: Sequence[dict[str, Any]]
    layout: dict[str, Any]
    table: Table
    lines: Sequence[str] = ()
    switches: Sequence[str] = ()
    notes: Sequence[str] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Return the values that report.js reads."""
        return {"data": list(self.traces), "layout": self.layout}


def chart_text(text: str) -> str:
    """Escape a text for Plotly, which interprets some tags of HTML in labels."""
    return html.escape(text, quote=False)


def hover(*lines: str) -> str:
    """Return the text that is visible when the pointer is on a point, from unescaped lines."""
    return "<br>".join(map(chart_text, lines))


def line_trace(line: int, x: Sequence[int | float], y: Sequence[float | None], texts: Sequence[str]) -> dict[str, Any]:
    """Return a trace of the line with this index; ``texts`` contains the ``hover`` text of each point."""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": list(x),
        "y": list(y),
        "text": list(texts),
        "hovertemplate": "%{text}<extra></extra>",
        "meta": line,
        "marker": {"symbol": SYMBOLS[line % len(SYMBOLS)], "size": 7},
        "line": {"dash": "solid" if line < len(SYMBOLS) else "dash"},
    }


def error_bars(y: Sequence[float], ranges: Sequence[tuple[float, float]]) -> dict[str, Any]:
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


def axis(title: str, *, log: bool = False, **settings: Any) -> dict[str, Any]:
    """Return the layout of an axis."""
    return {"title": {"text": chart_text(title)}, "type": "log" if log else "linear", **settings}

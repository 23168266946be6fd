"""Page of an examination, which loads no other file."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from lengthwise.core.html_page import render_page

# Text at the start of each page, which a later examination may replace.
MARK = '<meta name="generator" content="lengthwise doctor">'
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 260, 56, 46, 14


def render_examination(result: Mapping[str, Any]) -> str:
    """Return the page for the content of the JSON file."""
    boxes = result["boxes"]
    # The name may be a path; its last part is enough.
    name = Path(result["model"]["name"]).name or result["model"]["name"]
    chart = _chart(boxes["works"])
    return render_page(
        Path(__file__).parent / "page.html", mark=Markup(MARK), name=name, result=result, boxes=boxes, chart=chart
    )


def _chart(box: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return points, bars and ticks of the change of the loss in pixels, or None for fewer than two points."""
    rows = [row for row in box["changes"] if row["value"] is not None]
    if len(rows) < 2:
        return None
    values = [value for row in rows for value in (row[name] for name in ("value", "low", "high")) if value is not None]
    low, high = min(values), max(values)
    span = max(high - low, 1e-6)
    first, last = math.log(rows[0]["length"]), math.log(rows[-1]["length"])

    def x(length: int) -> float:
        return round(LEFT + 24 + (WIDTH - LEFT - 60) * (math.log(length) - first) / (last - first), 1)

    def y(loss: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / span, 1)

    points = [
        {
            "x": x(row["length"]),
            "y": y(row["value"]),
            "low": None if row["low"] is None else y(row["low"]),
            "high": None if row["high"] is None else y(row["high"]),
            "label": f"{row['length']:,}",
        }
        for row in rows
    ]
    inside = rows[0]["length"] <= box["trained"] <= rows[-1]["length"]
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "bottom": HEIGHT - BOTTOM,
        "left": LEFT,
        "points": points,
        "line": " ".join(f"{point['x']},{point['y']}" for point in points),
        "trained": x(box["trained"]) if inside else None,
        "ticks": [
            {"y": y(value), "label": f"{value:+.2f}" if value else "0"}
            for value in (low, 0.0, high)
            if value == 0 or abs(value) > span / 10
        ],
    }

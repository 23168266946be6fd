"""Style of the influence figures, and functions that draw their parts."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from lengthwise.core.errors import RunFolderError

Numbers = Sequence[int | float]

# Colorblind-safe palette of Okabe and Ito. Controls are also dashed, and every line has a different marker.
BLUE, GREEN, ORANGE, PURPLE, GREY, BLACK = "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#777777", "#000000"
ESTIMATE_KEYS = ("value", "low", "high")


def extract_values(estimates: Sequence[Mapping[str, Any]], key: str) -> Numbers:
    """Return ``value``, ``low`` or ``high`` (``key``) of each estimate. Missing numbers are NaN, drawn as gaps."""
    return [math.nan if estimate[key] is None else estimate[key] for estimate in estimates]


def annotate(axes: Any, text: str, point: Numbers, offset: Numbers, **style: Any) -> None:
    """Write small text at a point (x in data units, y as a fraction of the panel) plus an offset in points."""
    coordinates = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points"}
    text_box = {"facecolor": "white", "linewidth": 0, "pad": 0.5}
    axes.annotate(text, point, offset, parse_math=False, bbox=text_box, **coordinates, **{"fontsize": 7, **style})


def shorten_names(models: Sequence[str]) -> list[str]:
    """Return the shortest endings of the model paths that distinguish all models."""
    parts = [PurePath(model).parts for model in models]
    num_parts = 1
    while len({path_parts[-num_parts:] for path_parts in parts}) < len(set(parts)):
        num_parts += 1
    return [str(PurePath(*path_parts[-num_parts:])) for path_parts in parts]


def format_count(number: int, noun: str) -> str:
    """Format a number with a singular or plural noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def set_title(figure: Any, *lines: str) -> None:
    """Write a title above all panels, with lines wrapped to the width of the figure."""
    text = "\n".join(textwrap.fill(line, int(13 * figure.get_figwidth())) for line in lines)
    # Without parse_math=False, a $ in a path starts a formula.
    figure.suptitle(text, fontsize=9, parse_math=False)


def make_panels(width: float, columns: int, height: float = 4.6) -> tuple[Any, Sequence[Any]]:
    """Return a figure and its panels in one row."""
    # This import takes a second, so it runs only if a figure is needed.
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(1, columns, squeeze=False)[0]
    for axes in panels:
        axes.grid(alpha=0.3)
    return figure, list(panels)


def save_figure(figure: Any, folder: Path, name: str) -> Path:
    """Write a figure as PNG and SVG. Return the path of the PNG."""
    try:
        for extension in ("svg", "png"):
            figure.savefig(folder / f"{name}.{extension}", dpi=160)
    except OSError as error:
        raise RunFolderError(
            f"cannot write a figure to {folder} ({error.strerror}); choose a folder that exists and is writable"
        ) from None
    return folder / f"{name}.png"


def interval_note(estimates: Sequence[Mapping[str, Any]]) -> str:
    """Return the part of a title that describes the intervals."""
    has_intervals = any(estimate["low"] is not None for estimate in estimates)
    return "95% intervals over documents" if has_intervals else "no intervals: too few documents"

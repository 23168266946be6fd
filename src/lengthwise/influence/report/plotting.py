"""What all figures of influence share: colours, panels, small text, files."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from lengthwise.core.errors import RunFolderError

Numbers = Sequence[int | float]

# Okabe and Ito's colours, which all readers tell apart; controls are dashed as well, and each line has its marker.
BLUE, GREEN, ORANGE, PURPLE, GREY, BLACK = "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#777777", "#000000"
BOUNDS = ("value", "low", "high")
INTERVALS = "95% intervals over documents"
NO_INTERVALS = "no intervals: too few documents"


def numbers(estimates: Sequence[Mapping[str, Any]], name: str) -> Numbers:
    """What there is, and gaps in the line where there is none."""
    return [math.nan if each[name] is None else each[name] for each in estimates]


def annotate(axes: Any, text: str, at: Numbers, offset: Numbers, **style: Any) -> None:
    """Small text, ``offset`` points from an x of the data and a part of the panel's height."""
    units = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points"}
    ground = {"facecolor": "white", "linewidth": 0, "pad": 0.5}
    axes.annotate(text, at, offset, fontsize=7, parse_math=False, bbox=ground, **units, **style)


def short_names(models: Sequence[str]) -> list[str]:
    """The last parts of each model's path, as many as tell the models apart."""
    parts = [PurePath(model).parts for model in models]
    depth = 1
    while len({each[-depth:] for each in parts}) < len(set(parts)):
        depth += 1
    return [str(PurePath(*each[-depth:])) for each in parts]


def many(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def title(figure: Any, *lines: str) -> None:
    """Write lines above all panels."""
    # As many letters as fit: a wider title is cut at both ends. A $ in a path is no formula.
    text = "\n".join(textwrap.fill(line, int(13 * figure.get_figwidth())) for line in lines)
    figure.suptitle(text, fontsize=9, parse_math=False)


def panels(width: float, columns: int, height: float = 4.6) -> tuple[Any, Sequence[Any]]:
    """A figure with panels side by side."""
    # Imported here: it takes a second, and most commands draw nothing.
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(1, columns, squeeze=False)[0]
    for axes in panels:
        axes.grid(alpha=0.3)
    return figure, list(panels)


def save(figure: Any, folder: Path, name: str) -> Path:
    """Write a figure as PNG and SVG; return the path of the first."""
    try:
        for ending in ("svg", "png"):
            figure.savefig(folder / f"{name}.{ending}", dpi=160)
    except OSError as error:
        raise RunFolderError(f"cannot draw into {folder} ({error.strerror}); choose a folder to write in") from None
    return folder / f"{name}.png"


def intervals(estimates: Sequence[Mapping[str, Any]]) -> str:
    """What a title says of the intervals of its estimates."""
    return INTERVALS if any(each["low"] is not None for each in estimates) else NO_INTERVALS

"""The figure of several models: what they use of their far tokens, against their size."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lengthwise.core.errors import SettingError
from lengthwise.influence.report.answer_sentence import own_selections
from lengthwise.influence.report.plotting import (
    BLACK,
    BOUNDS,
    GREEN,
    GREY,
    PURPLE,
    Numbers,
    annotate,
    intervals,
    numbers,
    panels,
    save,
    short_names,
    title,
)

Summary = Mapping[str, Any]
Estimate = Mapping[str, Any]
NAME = 40  # letters of a model's name beside its points


def draw_scale(summaries: Sequence[Summary], parameters: Sequence[int], folder: Path) -> Path:
    """The headline of several models against their parameters as ``scale.png`` and ``scale.svg``; the first's path."""
    ks = summaries[0]["ks"] if summaries else []
    if len(summaries) < 2 or any(summary["ks"] != ks for summary in summaries):
        asked = "; ".join(",".join(map(str, summary["ks"])) for summary in summaries)
        raise SettingError(
            f"{len(summaries)} summaries with k {asked} show no scale; give two or more measured with the same k"
        )
    order = sorted(range(len(summaries)), key=lambda place: parameters[place])
    sizes, ordered = [parameters[place] for place in order], [summaries[place] for place in order]
    names = short_names([summary["model"] for summary in ordered])
    figure, (left, right) = panels(10.0, 2, height=4.8 + 0.13 * len(names))
    shares = [_prediction(summary) for summary in ordered]
    drawn = [*_draw_differences(left, sizes, ordered), *(share for each in shares for share in each)]
    for place, k in enumerate(ks):
        # From dark to light: k is ordered, and the order survives a copy in grey.
        style = {"color": _shade(place / max(1, len(ks) - 1)), "marker": "os^DvXP"[place % 7], "label": f"k = {k:,}"}
        _draw_bars(right, sizes, [each[place] for each in shares], style, 1 - place / len(ks))
    right.set_ylabel("prediction given by k far tokens\n1 - KL(k) / KL(short)")
    for axes in (left, right):
        axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4)
        _draw_sizes(axes, sizes, names)
    named = zip(names, ordered, strict=True)
    counts = ", ".join(f"{name} {summary['targets']:,} in {summary['documents']:,}" for name, summary in named)
    title(figure, f"targets in documents: {counts}", intervals(drawn))
    return save(figure, folder, "scale")


def _draw_differences(axes: Any, sizes: Numbers, summaries: Sequence[Summary]) -> list[Estimate]:
    """By how much own far tokens gain more than those of other sources."""
    axes.axhline(0, color=BLACK, linewidth=0.8)
    drawn = []
    for place, (source, color) in enumerate((("other", PURPLE), ("elsewhere", GREEN))):
        found = [each["own_minus"] for summary in summaries for each in summary["far"] if each["from"] == source]
        if any(each["value"] is not None for each in found):
            label = {"other": "minus another text", "elsewhere": "minus elsewhere in the document"}[source]
            style = {"color": color, "marker": "os"[place], "linestyle": "-:"[place], "label": label}
            _draw_bars(axes, sizes, found, style, 1 - place / 2)
            drawn += found
    axes.set_ylabel("lower loss with own far tokens\n(nats a target, all targets)")
    return drawn


def _prediction(summary: Summary) -> Sequence[Estimate]:
    own = own_selections(summary)
    if not own:
        raise SettingError(f"{summary['model']} has no selection of its own far tokens; measure one to compare models")
    found: Sequence[Estimate] = own[0]["all_targets"]["prediction"]["shares"]
    return found


def _draw_sizes(axes: Any, sizes: Sequence[int], names: Sequence[str]) -> None:
    """The axis of parameters, and each model's name above its points, in a row of its own: they never overlap."""
    axes.set(xscale="log", xlabel="model parameters (log scale)")
    low, high = axes.get_xlim()
    ticks = [part * 10**power for power in range(15) for part in ((1, 3) if high < 30 * low else (1,))]
    shown = [tick for tick in ticks if low <= tick <= high]
    axes.set_xticks(shown, [_short(tick) for tick in shown], fontsize=7)
    axes.minorticks_off()
    axes.grid(visible=False, axis="x")
    # The highest row first: its line passes behind the names of the lower ones.
    for place, (size, name) in enumerate(zip(sizes, names, strict=True)):
        axes.axvline(size, color=GREY, linewidth=0.6, alpha=0.5, zorder=0)
        # Points of equal sizes bear their model's number.
        number = f"{place + 1}: " if sizes.count(size) > 1 else ""
        short = name if len(name) <= NAME else f"…{name[-NAME:]}"
        side = int(size**2 > sizes[0] * sizes[-1])
        line = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "relpos": (side, 0), "shrinkA": 0, "shrinkB": 0}
        style = {"ha": ("left", "right")[side], "arrowprops": line}
        annotate(axes, f"{number}{short} ({size:,})", (size, 1), (0, 3 + 9 * (len(names) - 1 - place)), **style)


def _short(number: int) -> str:
    """A round number in thousands, millions or billions."""
    power = min((len(str(number)) - 1) // 3, 3)
    return f"{number // 1000**power:,}{('', 'K', 'M', 'B')[power]}"


def _draw_bars(axes: Any, x: Numbers, found: Sequence[Estimate], style: Mapping[str, Any], width: float) -> None:
    """Values joined by a line, each with its interval as a bar; later ones are narrower, so that all show."""
    value, low, high = (numbers(found, name) for name in BOUNDS)
    axes.plot(x, value, linewidth=1 + width, markersize=4 + 5 * width, markerfacecolor="none", **style)
    axes.vlines(x, low, high, color=style["color"], linewidth=1 + 6 * width, alpha=0.35)
    for place, (size, each) in enumerate(zip(x, value, strict=True)):
        if x.count(size) > 1 and not math.isnan(each):
            offset = (7 + 7 * (place - x.index(size)), -2)
            axes.annotate(f"{place + 1}", (size, each), offset, textcoords="offset points", fontsize=7)


def _shade(part: float) -> Any:
    from matplotlib import colormaps  # noqa: PLC0415

    return colormaps["viridis"](0.85 * part)

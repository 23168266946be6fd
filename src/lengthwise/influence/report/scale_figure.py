"""Figure of several models by size: the gain from far tokens, and the share of the prediction that k tokens recover."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from lengthwise.core.errors import SettingError
from lengthwise.influence.report import plotting
from lengthwise.influence.report.answer_sentence import own_selections
from lengthwise.influence.report.plotting import BLACK, ESTIMATE_KEYS, GREEN, GREY, PURPLE, Numbers

Summary = Mapping[str, Any]
Estimate = Mapping[str, Any]
MAX_NAME_LENGTH = 40  # maximum length of a displayed model name


def draw_scale(summaries: Sequence[Summary], num_parameters: Sequence[int], folder: Path) -> Path:
    """Draw the results of several models against their size. Write ``scale.png`` and ``scale.svg``.

    ``num_parameters`` contains the number of parameters of each model. Return the path of the PNG.
    """
    ks = summaries[0]["ks"] if summaries else []
    if len(summaries) < 2 or any(summary["ks"] != ks for summary in summaries):
        all_ks = "; ".join(",".join(map(str, summary["ks"])) for summary in summaries)
        raise SettingError(
            f"cannot compare {len(summaries)} summaries with k {all_ks}; use two or more summaries with the same k"
        )
    models = sorted(zip(num_parameters, summaries, strict=True), key=lambda model: model[0])
    sizes, summaries = [size for size, _ in models], [summary for _, summary in models]
    names = plotting.shorten_names([summary["model"] for summary in summaries])
    figure, (difference_axes, share_axes) = plotting.make_panels(10.0, 2, height=4.8 + 0.13 * len(names))
    shares_by_model = [_shares(summary) for summary in summaries]
    differences = _draw_differences(difference_axes, sizes, summaries)
    for index, k in enumerate(ks):
        # Colors are ordered from dark to light, so the order of k is visible in grayscale.
        style = {"color": _color(index / max(1, len(ks) - 1)), "marker": "os^DvXP"[index % 7], "label": f"k = {k:,}"}
        _draw_bars(share_axes, sizes, [shares[index] for shares in shares_by_model], style, 1 - index / len(ks))
    share_axes.set_ylabel("prediction recovered by k far tokens\n1 - KL(k) / KL(short)")
    for axes in (difference_axes, share_axes):
        axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4)
        _draw_sizes(axes, sizes, names)
    pairs = zip(names, summaries, strict=True)
    target_counts = ", ".join(f"{name} {summary['targets']:,} in {summary['documents']:,}" for name, summary in pairs)
    note = plotting.interval_note([*differences, *chain(*shares_by_model)])
    plotting.set_title(figure, f"targets in documents: {target_counts}", note)
    return plotting.save_figure(figure, folder, "scale")


def _draw_differences(axes: Any, sizes: Numbers, summaries: Sequence[Summary]) -> list[Estimate]:
    """Draw the gain from own far tokens minus the gain from other sources. Return all estimates."""
    axes.axhline(0, color=BLACK, linewidth=0.8)
    all_estimates = []
    for index, (source, color) in enumerate((("other", PURPLE), ("elsewhere", GREEN))):
        results = chain(*(summary["far"] for summary in summaries))
        estimates = [result["own_minus"] for result in results if result["from"] == source]
        if any(estimate["value"] is not None for estimate in estimates):
            label = {"other": "minus another text", "elsewhere": "minus elsewhere in the document"}[source]
            style = {"color": color, "marker": "os"[index], "linestyle": "-:"[index], "label": label}
            _draw_bars(axes, sizes, estimates, style, 1 - index / 2)
            all_estimates += estimates
    axes.set_ylabel("loss reduction by own far tokens\n(nats per target, all targets)")
    return all_estimates


def _shares(summary: Summary) -> Sequence[Estimate]:
    own_groups = own_selections(summary)
    if not own_groups:
        raise SettingError(
            f"the study of {summary['model']} has no results for far tokens of the same text, except random tokens; "
            "repeat the study with a measure other than random"
        )
    shares: Sequence[Estimate] = own_groups[0]["all_targets"]["prediction"]["shares"]
    return shares


def _draw_sizes(axes: Any, sizes: Sequence[int], names: Sequence[str]) -> None:
    """Draw the axis of model sizes, and model names above it on separate lines, so that they do not overlap."""
    axes.set(xscale="log", xlabel="model parameters (log scale)")
    smallest, largest = axes.get_xlim()
    ticks = [digit * 10**power for power in range(15) for digit in ((1, 3) if largest < 30 * smallest else (1,))]
    ticks = [tick for tick in ticks if smallest <= tick <= largest]
    axes.set_xticks(ticks, [_format_size(tick) for tick in ticks], fontsize=7)
    axes.minorticks_off()
    axes.grid(visible=False, axis="x")
    # Draw the highest name first, so that lower names cover its line.
    for index, (size, name) in enumerate(zip(sizes, names, strict=True)):
        axes.axvline(size, color=GREY, linewidth=0.6, alpha=0.5, zorder=0)
        # Models of equal size have numbers to distinguish their points.
        number_prefix = f"{index + 1}: " if sizes.count(size) > 1 else ""
        short_name = name if len(name) <= MAX_NAME_LENGTH else f"…{name[-MAX_NAME_LENGTH:]}"
        side = int(size**2 > sizes[0] * sizes[-1])
        line_style = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0}
        style = {"ha": ("left", "right")[side], "arrowprops": line_style | {"relpos": (side, 0)}}
        offset = (0, 3 + 9 * (len(names) - 1 - index))
        plotting.annotate(axes, f"{number_prefix}{short_name} ({size:,})", (size, 1), offset, **style)


def _format_size(size: int) -> str:
    power = min((len(str(size)) - 1) // 3, 3)
    return f"{size // 1000**power:,}{('', 'K', 'M', 'B')[power]}"


def _draw_bars(axes: Any, sizes: Numbers, estimates: Sequence[Estimate], style: dict[str, Any], width: float) -> None:
    """Draw values as a line and intervals as bars. Later series are narrower, so that all bars stay visible."""
    values, lows, highs = (plotting.extract_values(estimates, name) for name in ESTIMATE_KEYS)
    axes.plot(sizes, values, markerfacecolor="none", linewidth=1 + width, markersize=4 + 5 * width, **style)
    axes.vlines(sizes, lows, highs, color=style["color"], linewidth=1 + 6 * width, alpha=0.35)
    for index, (size, value) in enumerate(zip(sizes, values, strict=True)):
        if sizes.count(size) > 1 and not math.isnan(value):
            offset = (7 + 7 * (index - sizes.index(size)), -2)
            axes.annotate(f"{index + 1}", (size, value), offset, textcoords="offset points", fontsize=7)


def _color(fraction: float) -> Any:
    from matplotlib import colormaps  # noqa: PLC0415

    return colormaps["viridis"](0.85 * fraction)

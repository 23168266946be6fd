"""Figure of several models by size: the gain from far tokens, and the share of the prediction that k tokens recover."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from lengthwise.core.errors import SettingError
from lengthwise.influence.report.answer_sentence import own_selections
from lengthwise.influence.report.plotting import (
    BLACK,
    ESTIMATE_KEYS,
    GREEN,
    GREY,
    PURPLE,
    Numbers,
    annotate,
    extract_values,
    interval_note,
    make_panels,
    save_figure,
    set_title,
    shorten_names,
)

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
    sorted_indices = sorted(range(len(summaries)), key=lambda index: num_parameters[index])
    sorted_num_parameters = [num_parameters[index] for index in sorted_indices]
    sorted_summaries = [summaries[index] for index in sorted_indices]
    names = shorten_names([summary["model"] for summary in sorted_summaries])
    figure, (difference_axes, share_axes) = make_panels(10.0, 2, height=4.8 + 0.13 * len(names))
    shares_by_model = [_shares(summary) for summary in sorted_summaries]
    differences = _draw_differences(difference_axes, sorted_num_parameters, sorted_summaries)
    for index, k in enumerate(ks):
        # Colors are ordered from dark to light, so the order of k is visible in grayscale.
        style = {"color": _color(index / max(1, len(ks) - 1)), "marker": "os^DvXP"[index % 7], "label": f"k = {k:,}"}
        _draw_bars(
            share_axes,
            sorted_num_parameters,
            [model_shares[index] for model_shares in shares_by_model],
            style,
            1 - index / len(ks),
        )
    share_axes.set_ylabel("prediction recovered by k far tokens\n1 - KL(k) / KL(short)")
    for axes in (difference_axes, share_axes):
        axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4)
        _draw_sizes(axes, sorted_num_parameters, names)
    pairs = zip(names, sorted_summaries, strict=True)
    target_counts = ", ".join(f"{name} {summary['targets']:,} in {summary['documents']:,}" for name, summary in pairs)
    set_title(figure, f"targets in documents: {target_counts}", interval_note([*differences, *chain(*shares_by_model)]))
    return save_figure(figure, folder, "scale")


def _draw_differences(axes: Any, sorted_num_parameters: Numbers, summaries: Sequence[Summary]) -> list[Estimate]:
    """Draw the gain from own far tokens minus the gain from other sources. Return all estimates."""
    axes.axhline(0, color=BLACK, linewidth=0.8)
    all_estimates = []
    for index, (source, color) in enumerate((("other", PURPLE), ("elsewhere", GREEN))):
        estimates = [
            source_result["own_minus"]
            for summary in summaries
            for source_result in summary["far"]
            if source_result["from"] == source
        ]
        if any(estimate["value"] is not None for estimate in estimates):
            label = {"other": "minus another text", "elsewhere": "minus elsewhere in the document"}[source]
            style = {"color": color, "marker": "os"[index], "linestyle": "-:"[index], "label": label}
            _draw_bars(axes, sorted_num_parameters, estimates, style, 1 - index / 2)
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


def _draw_sizes(axes: Any, sorted_num_parameters: Sequence[int], names: Sequence[str]) -> None:
    """Draw the axis of model sizes, and model names above it on separate lines, so that they do not overlap."""
    axes.set(xscale="log", xlabel="model parameters (log scale)")
    min_parameters, max_parameters = axes.get_xlim()
    ticks = [
        digit * 10**power for power in range(15) for digit in ((1, 3) if max_parameters < 30 * min_parameters else (1,))
    ]
    visible_ticks = [tick for tick in ticks if min_parameters <= tick <= max_parameters]
    axes.set_xticks(visible_ticks, [_format_size(tick) for tick in visible_ticks], fontsize=7)
    axes.minorticks_off()
    axes.grid(visible=False, axis="x")
    # Draw the highest name first, so that lower names cover its line.
    for index, (num_parameters, name) in enumerate(zip(sorted_num_parameters, names, strict=True)):
        axes.axvline(num_parameters, color=GREY, linewidth=0.6, alpha=0.5, zorder=0)
        # Models of equal size have numbers to distinguish their points.
        number_prefix = f"{index + 1}: " if sorted_num_parameters.count(num_parameters) > 1 else ""
        short_name = name if len(name) <= MAX_NAME_LENGTH else f"…{name[-MAX_NAME_LENGTH:]}"
        alignment_index = int(num_parameters**2 > sorted_num_parameters[0] * sorted_num_parameters[-1])
        line_style = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0}
        line_style["relpos"] = (alignment_index, 0)
        style = {"ha": ("left", "right")[alignment_index], "arrowprops": line_style}
        annotate(
            axes,
            f"{number_prefix}{short_name} ({num_parameters:,})",
            (num_parameters, 1),
            (0, 3 + 9 * (len(names) - 1 - index)),
            **style,
        )


def _format_size(num_parameters: int) -> str:
    """Format a round number in thousands, millions or billions."""
    thousand_power = min((len(str(num_parameters)) - 1) // 3, 3)
    return f"{num_parameters // 1000**thousand_power:,}{('', 'K', 'M', 'B')[thousand_power]}"


def _draw_bars(
    axes: Any,
    sorted_num_parameters: Numbers,
    estimates: Sequence[Estimate],
    style: Mapping[str, Any],
    relative_width: float,
) -> None:
    """Draw values as a line and intervals as bars. Later series are narrower, so that all bars stay visible."""
    values, interval_lows, interval_highs = (extract_values(estimates, name) for name in ESTIMATE_KEYS)
    line_sizes = {"linewidth": 1 + relative_width, "markersize": 4 + 5 * relative_width}
    axes.plot(sorted_num_parameters, values, markerfacecolor="none", **line_sizes, **style)
    axes.vlines(
        sorted_num_parameters,
        interval_lows,
        interval_highs,
        color=style["color"],
        linewidth=1 + 6 * relative_width,
        alpha=0.35,
    )
    for index, (num_parameters, value) in enumerate(zip(sorted_num_parameters, values, strict=True)):
        if sorted_num_parameters.count(num_parameters) > 1 and not math.isnan(value):
            offset = (7 + 7 * (index - sorted_num_parameters.index(num_parameters)), -2)
            axes.annotate(f"{index + 1}", (num_parameters, value), offset, textcoords="offset points", fontsize=7)


def _color(fraction: float) -> Any:
    from matplotlib import colormaps  # noqa: PLC0415

    return colormaps["viridis"](0.85 * fraction)

"""Figures of one model's influence: what k far tokens give, own beside other ones, and how far back they lie."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from lengthwise.influence.report.answer_sentence import own_selections
from lengthwise.influence.report.plotting import (
    BLACK,
    BLUE,
    BOUNDS,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    annotate,
    intervals,
    many,
    numbers,
    panels,
    save,
    short_names,
    title,
)

Summary = Mapping[str, Any]
Group = Mapping[str, Any]

# What a selection knows and where its tokens come from: label, colour, line, marker.
LINES = {
    ("prediction", "own"): ("own text, knows the prediction", GREEN, "-", "s"),
    ("target", "own"): ("own text, knows the target", BLUE, "-", "o"),
    ("prediction", "other"): ("control: other text, knows the prediction", PURPLE, "--", "^"),
    ("target", "other"): ("control: other text, knows the target", ORANGE, "--", "v"),
    ("prediction", "elsewhere"): ("control: elsewhere in the document, knows the prediction", BLACK, ":", "P"),
    ("target", "elsewhere"): ("control: elsewhere in the document, knows the target", GREY, ":", "d"),
    ("nothing", "own"): ("control: random tokens", GREY, "--", "X"),
}
MODES = {"strict": "strict: the model sees near + k tokens alone", "masked": "masked: near tokens attend to k far ones"}
# Shares below this would flatten all others.
LOWEST = -1.0


def draw_recovery(summary: Summary, folder: Path) -> Path:
    """The effect of k far tokens as ``recovery.png`` and ``recovery.svg``, two panels per mode; the path of the first.

    Left, the share of the whole context's prediction that they give; right, what own ones gain more than others.
    """
    modes = list(dict.fromkeys(group["mode"] for group in summary["groups"])) or ["strict"]
    figure, axes = panels(5.2 * 2 * len(modes), 2 * len(modes))
    drawn: list[Mapping[str, Any]] = []
    for place, mode in enumerate(modes):
        groups = [group for group in summary["groups"] if group["mode"] == mode]
        pairs = [pair for pair in summary["paired"] if pair["mode"] == mode]
        shares = [group["all_targets"]["prediction"]["shares"] for group in groups]
        left, right = axes[2 * place : 2 * place + 2]
        _draw_shares(left, summary["ks"], groups)
        _draw_differences(right, summary, pairs)
        drawn += [*chain(*shares), *chain(*(pair["difference"] for pair in pairs))]
        for each, what in ((left, "prediction given by k tokens"), (right, "own text minus control")):
            each.set_title(f"{what}\n{MODES.get(mode, mode)}", fontsize=9)
            each.set_xscale("log", base=2)
            # A panel without a line has no limits of its own.
            each.set_xlim(0.85 * summary["ks"][0], summary["ks"][-1] / 0.85)
            each.set_xticks(summary["ks"], [f"{k:,}" for k in summary["ks"]])
            each.set_xlabel("far tokens shown, k (log scale)")
            if each.get_legend_handles_labels()[0]:
                each.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16))
        _tell_outside(left)
    counts = f"all {many(summary['targets'], 'target')} ({summary['measured']:,} measured)"
    documents = f"in {many(summary['documents'], 'document')}"
    title(figure, f"{short_names([summary['model']])[0]}: {counts} {documents}", intervals(drawn))
    return save(figure, folder, "recovery")


def _draw_shares(axes: Any, ks: Sequence[int], groups: Sequence[Group]) -> None:
    """Shares of the prediction; those below the panel are told at its edge."""
    lowest = 0.0
    for group in groups:
        shares = group["all_targets"]["prediction"]["shares"]
        _draw_line(axes, ks, shares, (group["knows"], group["from"]), group["measure"])
        lowest = min([lowest, *(each for each in numbers(shares, "value") if each >= LOWEST)])
    axes.set_ylim(lowest - 0.1, 1.1)
    axes.set_ylabel("1 - KL(k) / KL(short)\n(1: the prediction of the whole context)")


def _draw_differences(axes: Any, summary: Summary, pairs: Sequence[Mapping[str, Any]]) -> None:
    """Paired differences at each k, and with all far tokens as a level with its interval."""
    axes.axhline(0, color=BLACK, linewidth=0.8)
    for far in summary["far"]:
        if far["own_minus"] is not None and far["own_minus"]["value"] is not None:
            color = {"other": PURPLE}.get(far["from"], BLACK)
            value, low, high = (numbers([far["own_minus"]], name)[0] for name in BOUNDS)
            label = f"all far tokens, minus {far['from']} (n={far['targets']:,})"
            axes.axhline(value, color=color, linestyle="-.", linewidth=1, label=label)
            if not math.isnan(low):
                axes.axhspan(low, high, color=color, alpha=0.07, linewidth=0)
    for pair in pairs:
        _draw_line(
            axes, summary["ks"], pair["difference"], (pair["knows"], pair["against"]), f"{pair['measure']}, paired"
        )
    axes.set_ylabel("lower loss with own tokens\n(nats a target, all targets)")


def _draw_line(
    axes: Any, ks: Sequence[int], estimates: Sequence[Mapping[str, Any]], name: tuple[str, str], how: str
) -> None:
    label, color, line, marker = LINES.get(name, (" ".join(name), BLACK, "-.", "d"))
    values, low, high = (numbers(estimates, bound) for bound in BOUNDS)
    if all(map(math.isnan, values)):
        axes.plot([], [], color=color, label=f"{label} (undefined)")
        return
    axes.plot(ks, values, line, color=color, marker=marker, markersize=4, linewidth=1.6, label=f"{label} ({how})")
    axes.fill_between(ks, low, high, color=color, alpha=0.15, linewidth=0)
    if len(ks) == 1:
        # A band over one k has no width.
        axes.vlines(ks, low, high, color=color, alpha=0.4, linewidth=3)


def _tell_outside(axes: Any) -> None:
    """Where points of a line lie beyond the edge, their value in the line's colour, one below the other."""
    lowest, highest = axes.get_ylim()
    rows = Counter[tuple[float, int]]()
    for line in axes.get_lines():
        for k, share in line.get_xydata().tolist():
            # Gaps in a line are NaN, which is on neither side.
            if share < lowest or share > highest:
                edge = int(share > highest)
                offset = (0, (1 - 2 * edge) * (2 + 8 * rows[k, edge]))
                style = {"ha": "center", "va": ("bottom", "top")[edge], "color": line.get_color()}
                annotate(axes, f"{'▼▲'[edge]} {share:,.4g}", (k, edge), offset, **style)
                rows[k, edge] += 1


def draw_distances(summary: Summary, folder: Path, *, near: int, far: int) -> Path:
    """Distances of the tokens that gain most as ``distances.png`` and ``distances.svg``; the path of the first.

    Bins are equally wide on the log scale; the dashed line is what tokens drawn evenly from the far ones would give.
    """
    figure, (axes,) = panels(7.0, 1)
    own = own_selections(summary)
    shown = [group for group in own if group["knows"] == own[0]["knows"] and group["distances"]["gain"]]
    for place, group in enumerate(shown):
        chosen, color, clear = group["distances"], (BLUE, ORANGE)[place % 2], group["selected"]["own"]
        counts = f"{many(clear['targets'], 'clear target')} in {many(clear['documents'], 'document')}"
        label = f"{group['mode']}, knows the {group['knows']}: {many(chosen['chosen'], 'token')} chosen for {counts}"
        shares = [each["gain_share"] for each in chosen["bins"]]
        # One filled, the other as a line above it.
        axes.stairs(shares, _edges(chosen["bins"]), fill=not place, color=color, alpha=0.6, linewidth=2, label=label)
        (middle,) = (each["distance"] for each in chosen["quantiles"] if each["share"] == 0.5)
        # Dashes between those of the other: medians are often equal.
        axes.axvline(middle, color=color, linestyle=(2 * place, (2, 2)), label=f"{group['mode']}: median {middle:,}")
    if shown:
        bins = shown[0]["distances"]["bins"]
        even = [max(0, min(each["to"], near + far) - max(each["from"], near + 1) + 1) / far for each in bins]
        axes.stairs(even, _edges(bins), color=BLACK, linestyle="--", label="drawn evenly from the far tokens")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda distance, _: f"{distance:,.0f}")
        axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    else:
        axes.text(0.5, 0.5, "no chosen token gained anything", ha="center", transform=axes.transAxes)
    axes.set(xlabel="distance to the target (tokens, log scale)", ylabel="share of the chosen tokens' gain")
    title(figure, f"{short_names([summary['model']])[0]}: distances of the chosen tokens, near {near:,}, far {far:,}")
    return save(figure, folder, "distances")


def _edges(bins: Sequence[Mapping[str, Any]]) -> list[float]:
    # Halfway between whole numbers, so that a bin of one distance has a width.
    return [bins[0]["from"] - 0.5, *(each["to"] + 0.5 for each in bins)]

"""Figures of one study: effect of k far tokens compared with controls, and distances of selected tokens."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from lengthwise.influence.report import plotting
from lengthwise.influence.report.answer_sentence import own_selections
from lengthwise.influence.report.plotting import BLACK, BLUE, ESTIMATE_KEYS, GREEN, GREY, ORANGE, PURPLE

Summary = Mapping[str, Any]
Group = Mapping[str, Any]

# Label, color, line style and marker by objective and source.
LINE_STYLES = {
    ("prediction", "own"): ("own text, prediction objective", GREEN, "-", "s"),
    ("target", "own"): ("own text, target objective", BLUE, "-", "o"),
    ("prediction", "other"): ("control: other text, prediction objective", PURPLE, "--", "^"),
    ("target", "other"): ("control: other text, target objective", ORANGE, "--", "v"),
    ("prediction", "elsewhere"): ("control: elsewhere in the document, prediction objective", BLACK, ":", "P"),
    ("target", "elsewhere"): ("control: elsewhere in the document, target objective", GREY, ":", "d"),
    ("nothing", "own"): ("control: random tokens", GREY, "--", "X"),
}
MODE_TITLES = {
    "strict": "strict: the model reads only near + k tokens",
    "masked": "masked: near tokens attend to k far ones",
}
# Lower limit of the vertical axis. Without a limit, very low shares would flatten all lines.
MIN_SHARE = -1.0


def draw_recovery(summary: Summary, folder: Path) -> Path:
    """Draw the effect of k far tokens as ``recovery.png`` and ``recovery.svg``. Return the path of the PNG.

    For each mode, the left panel shows the recovered share of the prediction with the whole context. The right panel
    shows the loss reduction by own far tokens compared with control tokens.
    """
    modes = list(dict.fromkeys(group["mode"] for group in summary["groups"])) or ["strict"]
    figure, panels = plotting.make_panels(5.2 * 2 * len(modes), 2 * len(modes))
    estimates: list[Mapping[str, Any]] = []
    for index, mode in enumerate(modes):
        groups = [group for group in summary["groups"] if group["mode"] == mode]
        pairs = [pair for pair in summary["paired"] if pair["mode"] == mode]
        shares_by_group = [group["all_targets"]["prediction"]["shares"] for group in groups]
        share_axes, difference_axes = panels[2 * index : 2 * index + 2]
        _draw_shares(share_axes, summary["ks"], groups)
        _draw_differences(difference_axes, summary, pairs)
        estimates += [*chain(*shares_by_group), *chain(*(pair["difference"] for pair in pairs))]
        titles = ("prediction recovered by k tokens", "own text minus control")
        for axes, title in zip((share_axes, difference_axes), titles, strict=True):
            axes.set_title(f"{title}\n{MODE_TITLES.get(mode, mode)}", fontsize=9)
            axes.set_xscale("log", base=2)
            # The limits are necessary because a panel may have no lines.
            axes.set_xlim(0.85 * summary["ks"][0], summary["ks"][-1] / 0.85)
            axes.set_xticks(summary["ks"], [f"{k:,}" for k in summary["ks"]])
            axes.set_xlabel("visible far tokens, k (log scale)")
            if axes.get_legend_handles_labels()[0]:
                axes.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16))
        _annotate_clipped_points(share_axes)
    target_counts = f"all {plotting.format_count(summary['targets'], 'target')} ({summary['measured']:,} measured)"
    documents = f"in {plotting.format_count(summary['documents'], 'document')}"
    name, note = plotting.shorten_names([summary["model"]])[0], plotting.interval_note(estimates)
    plotting.set_title(figure, f"{name}: {target_counts} {documents}", note)
    return plotting.save_figure(figure, folder, "recovery")


def _draw_shares(axes: Any, ks: Sequence[int], groups: Sequence[Group]) -> None:
    min_share = 0.0
    for group in groups:
        shares = group["all_targets"]["prediction"]["shares"]
        _draw_line(axes, ks, shares, (group["knows"], group["from"]), group["measure"])
        values = plotting.extract_values(shares, "value")
        min_share = min([min_share, *(value for value in values if value >= MIN_SHARE)])
    axes.set_ylim(min_share - 0.1, 1.1)
    axes.set_ylabel("1 - KL(k) / KL(short)\n(1: prediction with the whole context)")


def _draw_differences(axes: Any, summary: Summary, pairs: Sequence[Mapping[str, Any]]) -> None:
    """Draw the loss with control tokens minus the loss with own tokens, at each k and for all far tokens (lines)."""
    axes.axhline(0, color=BLACK, linewidth=0.8)
    for source in summary["far"]:
        if source["own_minus"] is not None and source["own_minus"]["value"] is not None:
            color = {"other": PURPLE}.get(source["from"], BLACK)
            mean, low, high = (plotting.extract_values([source["own_minus"]], name)[0] for name in ESTIMATE_KEYS)
            label = f"all far tokens, minus {source['from']} (n={source['targets']:,})"
            axes.axhline(mean, color=color, linestyle="-.", linewidth=1, label=label)
            if not math.isnan(low):
                axes.axhspan(low, high, color=color, alpha=0.07, linewidth=0)
    for pair in pairs:
        name = pair["knows"], pair["against"]
        _draw_line(axes, summary["ks"], pair["difference"], name, f"{pair['measure']}, paired")
    axes.set_ylabel("loss reduction by own tokens\n(nats per target, all targets)")


def _draw_line(axes: Any, ks: Sequence[int], estimates: Sequence[Group], name: tuple[str, str], note: str) -> None:
    label, color, line_style, marker = LINE_STYLES.get(name, (" ".join(name), BLACK, "-.", "d"))
    values, lows, highs = (plotting.extract_values(estimates, estimate_key) for estimate_key in ESTIMATE_KEYS)
    if all(map(math.isnan, values)):
        axes.plot([], [], color=color, label=f"{label} (undefined)")
        return
    label = f"{label} ({note})"
    axes.plot(ks, values, line_style, color=color, marker=marker, markersize=4, linewidth=1.6, label=label)
    axes.fill_between(ks, lows, highs, color=color, alpha=0.15, linewidth=0)
    if len(ks) == 1:
        # A band at a single k has no width, so draw a bar.
        axes.vlines(ks, lows, highs, color=color, alpha=0.4, linewidth=3)


def _annotate_clipped_points(axes: Any) -> None:
    """Write the value of each point above or below the plot at its upper or lower edge, in the color of the line."""
    min_share, max_share = axes.get_ylim()
    num_labels = Counter[tuple[float, int]]()
    for line in axes.get_lines():
        for k, share in line.get_xydata().tolist():
            # Both comparisons are false for NaN.
            if share < min_share or share > max_share:
                is_above = int(share > max_share)
                offset = (0, (1 - 2 * is_above) * (2 + 8 * num_labels[k, is_above]))
                style = {"ha": "center", "va": ("bottom", "top")[is_above], "color": line.get_color()}
                plotting.annotate(axes, f"{'▼▲'[is_above]} {share:,.4g}", (k, is_above), offset, **style)
                num_labels[k, is_above] += 1


def draw_distances(summary: Summary, folder: Path, *, near: int, far: int) -> Path:
    """Draw the distribution of gain over the distances of selected tokens. Return the path of the PNG.

    The files are ``distances.png`` and ``distances.svg``. Bins have equal width on the log scale. The dashed line is
    the uniform distribution.
    """
    figure, (axes,) = plotting.make_panels(7.0, 1)
    own_groups = own_selections(summary)
    groups = [group for group in own_groups if group["knows"] == own_groups[0]["knows"] and group["distances"]["gain"]]
    for index, group in enumerate(groups):
        distances, color, sample_sizes = group["distances"], (BLUE, ORANGE)[index % 2], group["selected"]["own"]
        targets = f"{plotting.format_count(sample_sizes['targets'], 'target')} with a clear gain"
        documents = f"in {plotting.format_count(sample_sizes['documents'], 'document')}"
        tokens = f"{plotting.format_count(distances['chosen'], 'token')} selected for {targets} {documents}"
        label = f"{group['mode']}, {group['knows']} objective: {tokens}"
        gain_shares, edges = [entry["gain_share"] for entry in distances["bins"]], _edges(distances["bins"])
        # Fill the first distribution, and draw the second distribution as a line.
        axes.stairs(gain_shares, edges, fill=not index, color=color, alpha=0.6, linewidth=2, label=label)
        (median,) = (quantile["distance"] for quantile in distances["quantiles"] if quantile["share"] == 0.5)
        # The dashes are shifted so that both lines are visible if the medians are equal.
        style = {"color": color, "linestyle": (2 * index, (2, 2))}
        axes.axvline(median, **style, label=f"{group['mode']}: median {median:,}")
    if groups:
        bins = groups[0]["distances"]["bins"]
        overlaps = [min(entry["to"], near + far) - max(entry["from"], near + 1) + 1 for entry in bins]
        uniform_shares = [max(0, overlap) / far for overlap in overlaps]
        axes.stairs(uniform_shares, _edges(bins), color=BLACK, linestyle="--", label="uniform over the far tokens")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda distance, _: f"{distance:,.0f}")
        axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    else:
        axes.text(0.5, 0.5, "no selected token has a gain", ha="center", transform=axes.transAxes)
    axes.set(xlabel="distance to the target (tokens, log scale)", ylabel="share of the gain of selected tokens")
    name = plotting.shorten_names([summary["model"]])[0]
    plotting.set_title(figure, f"{name}: distances of selected tokens, near {near:,}, far {far:,}")
    return plotting.save_figure(figure, folder, "distances")


def _edges(bins: Sequence[Mapping[str, Any]]) -> list[float]:
    # Edges between whole numbers, so that a bin with one distance has a width.
    return [bins[0]["from"] - 0.5, *(distance_bin["to"] + 0.5 for distance_bin in bins)]

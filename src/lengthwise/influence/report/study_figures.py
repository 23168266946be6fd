"""Figures of one study: effect of k far tokens compared with controls, and distances of selected tokens."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from lengthwise.evaluation.figure_layout import FONT_SIZE, LINE_COLORS, MAX_LINES, LineLabel, label_lines, make_panels
from lengthwise.influence.report import plotting
from lengthwise.influence.report.answer_sentence import own_selections
from lengthwise.influence.report.plotting import BLACK, BLUE, ESTIMATE_KEYS, ORANGE

Summary = Mapping[str, Any]
Group = Mapping[str, Any]

# Label, color, line style and marker by objective and source. If a panel has too many lines, the last are omitted.
LINE_STYLES = {
    ("prediction", "own"): ("own text, by prediction", LINE_COLORS[0], "-", "s"),
    ("target", "own"): ("own text, by target", LINE_COLORS[5], "-", "o"),
    ("prediction", "other"): ("other text, by prediction", LINE_COLORS[1], "--", "^"),
    ("target", "other"): ("other text, by target", LINE_COLORS[4], "--", "v"),
    ("nothing", "own"): ("random tokens, own text", LINE_COLORS[8], "--", "X"),
    ("prediction", "elsewhere"): ("elsewhere in the document, by prediction", LINE_COLORS[3], ":", "P"),
    ("target", "elsewhere"): ("elsewhere in the document, by target", LINE_COLORS[7], ":", "d"),
}
# Label and color of the line of all far tokens by source.
SOURCE_STYLES = {
    "other": ("other text, all far tokens", LINE_COLORS[6]),
    "elsewhere": ("elsewhere in the document, all far tokens", BLACK),
}
MODE_NOTES = {
    "strict": "Strict: the model reads only near + k tokens",
    "masked": "Masked: near tokens attend to k far ones",
}
# Lower limit of the vertical axis. Without a limit, very low shares would flatten all lines.
MIN_SHARE = -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """Line of a panel; a line without a marker has a single estimate for all k."""

    label: str
    color: str
    style: str
    marker: str
    estimates: Sequence[Mapping[str, Any]]

    @property
    def defined_values(self) -> list[float]:
        """Values of the estimates that are not missing."""
        return [value for value in plotting.extract_values(self.estimates, "value") if not math.isnan(value)]


def draw_recovery(summary: Summary, folder: Path) -> Path:
    """Draw the effect of k far tokens as ``recovery.png`` and ``recovery.svg``. Return the path of the PNG.

    For each mode, the first panel shows the recovered share of the prediction with the whole context. The second panel
    shows the loss reduction by own far tokens compared with control tokens.
    """
    modes = list(dict.fromkeys(group["mode"] for group in summary["groups"])) or ["strict"]
    name = plotting.shorten_names([summary["model"]])[0]
    documents = plotting.format_count(summary["documents"], "document")
    titles, lines_by_panel = [], []
    for mode in modes:
        ending = f"{f' ({mode})' if len(modes) > 1 else ''}, {documents}"
        titles.append(f"{name}: prediction recovered by k far tokens{ending}")
        titles.append(f"{name}: loss with control minus own text{ending}")
        lines_by_panel += [_share_lines(summary, mode), _difference_lines(summary, mode)]
    drawn_lines = [[line for line in lines if line.defined_values][:MAX_LINES] for lines in lines_by_panel]
    labels = [[line.label for line in lines] for lines in drawn_lines]
    figure, panels = make_panels(titles, labels, _caption(summary, modes, list(chain(*lines_by_panel)), labels))
    for index, (axes, lines) in enumerate(zip(panels, drawn_lines, strict=True)):
        _draw_panel(axes, summary["ks"], lines, is_difference=index % 2 == 1)
    return plotting.save_figure(figure, folder, "recovery")


def _share_lines(summary: Summary, mode: str) -> list[_Line]:
    """Return a line per selection of tokens in the order of ``LINE_STYLES``."""
    groups = [group for group in summary["groups"] if group["mode"] == mode]
    lines = [
        _styled_line((group["knows"], group["from"]), group["all_targets"]["prediction"]["shares"]) for group in groups
    ]
    labels = [label for label, *_ in LINE_STYLES.values()]
    return sorted(lines, key=lambda line: labels.index(line.label))


def _difference_lines(summary: Summary, mode: str) -> list[_Line]:
    """Return a line per control: all far tokens of another source, and k selected tokens."""
    lines = []
    for source in summary["far"]:
        if source["own_minus"] is not None and source["own_minus"]["value"] is not None:
            label, color = SOURCE_STYLES[source["from"]]
            label += "" if source["targets"] == summary["targets"] else f" (n={source['targets']:,})"
            lines.append(_Line(label=label, color=color, style="-.", marker="", estimates=[source["own_minus"]]))
    pairs = [pair for pair in summary["paired"] if pair["mode"] == mode]
    return lines + [_styled_line((pair["knows"], pair["against"]), pair["difference"]) for pair in pairs]


def _styled_line(name: tuple[str, str], estimates: Sequence[Mapping[str, Any]]) -> _Line:
    label, color, style, marker = LINE_STYLES[name]
    return _Line(label=label, color=color, style=style, marker=marker, estimates=estimates)


def _caption(summary: Summary, modes: Sequence[str], lines: Sequence[_Line], labels: Sequence[Sequence[str]]) -> str:
    counts = f"All {plotting.format_count(summary['targets'], 'target')} ({summary['measured']:,} measured)"
    interval_note = plotting.interval_note([estimate for line in lines for estimate in line.estimates])
    measures = dict.fromkeys(group["measure"] for group in summary["groups"] if group["knows"] != "nothing")
    selection = f", with the measure {' or '.join(measures)}" if measures else ""
    sentences = [
        f"{counts}; {interval_note}",
        "Recovered share: 1 - KL(k) / KL(short); 1 is the prediction with the whole context",
        f"By prediction, by target: the objective that selects the k tokens{selection}",
        *(MODE_NOTES[mode] for mode in modes),
    ]
    undefined = dict.fromkeys(line.label for line in lines if not line.defined_values)
    sentences += [f"Undefined: {'; '.join(undefined)}"] if undefined else []
    num_omitted = sum(bool(line.defined_values) for line in lines) - sum(map(len, labels))
    sentences += [f"Only in the table: {plotting.format_count(num_omitted, 'more line')}"] if num_omitted else []
    return " ".join(f"{sentence}." for sentence in sentences)


def _draw_panel(axes: Any, ks: Sequence[int], lines: Sequence[_Line], *, is_difference: bool) -> None:
    for line in lines:
        _draw_line(axes, ks, line)
    axes.set_xscale("log", base=2)
    # The limits are necessary because a panel may have no lines.
    axes.set_xlim(0.85 * ks[0], ks[-1] / 0.85)
    axes.set_xticks(ks, [f"{k:,}" for k in ks])
    axes.set_xlabel("visible far tokens, k (log scale)")
    if is_difference:
        axes.axhline(0, color=BLACK, linewidth=0.8)
        axes.set_ylabel("nats per target")
    else:
        shares = [share for line in lines for share in line.defined_values if share >= MIN_SHARE]
        axes.set(ylim=(min([0.0, *shares]) - 0.1, 1.1), ylabel="recovered share")
        _annotate_clipped_points(axes)
    ends = [(line.label, line.color, line.defined_values[-1]) for line in lines]
    label_lines(axes, [LineLabel(text=label, color=color, value=value) for label, color, value in ends])


def _draw_line(axes: Any, ks: Sequence[int], line: _Line) -> None:
    values, lows, highs = (plotting.extract_values(line.estimates, key) for key in ESTIMATE_KEYS)
    if not line.marker:
        axes.axhline(values[0], color=line.color, linestyle=line.style, linewidth=1)
        if not math.isnan(lows[0]):
            axes.axhspan(lows[0], highs[0], color=line.color, alpha=0.07, linewidth=0)
        return
    style = {"color": line.color, "marker": line.marker, "markersize": 4, "linewidth": 1.6}
    axes.plot(ks, values, line.style, label=line.label, **style)
    axes.fill_between(ks, lows, highs, color=line.color, alpha=0.15, linewidth=0)
    if len(ks) == 1:
        # A band at a single k has no width, so draw a bar.
        axes.vlines(ks, lows, highs, color=line.color, alpha=0.4, linewidth=3)


def _annotate_clipped_points(axes: Any) -> None:
    """Write the value of each point above or below the plot at its upper or lower edge, in the color of the line."""
    min_share, max_share = axes.get_ylim()
    num_labels = Counter[tuple[float, int]]()
    for line in axes.get_lines():
        for k, share in line.get_xydata().tolist():
            # Both comparisons are false for NaN.
            if share < min_share or share > max_share:
                is_above = int(share > max_share)
                offset = (0, (1 - 2 * is_above) * (2 + 10 * num_labels[k, is_above]))
                style = {
                    "ha": "center",
                    "va": ("bottom", "top")[is_above],
                    "color": line.get_color(),
                    "fontsize": FONT_SIZE,
                }
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

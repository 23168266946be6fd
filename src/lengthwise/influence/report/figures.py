"""Figures of influence studies: effect of k far tokens, distances of selected tokens, and models by size."""

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from lengthwise.core.errors import SettingError
from lengthwise.evaluation.figure_layout import (
    FONT_SIZE,
    LINE_COLORS,
    MAX_LINES,
    LineLabel,
    label_lines,
    make_panels,
    save_figure,
)
from lengthwise.influence.report.summary import own_selections
from lengthwise.influence.units import name_units

Summary = Mapping[str, Any]
Estimate = Mapping[str, Any]
Numbers = Sequence[int | float]

# Colorblind-safe palette of Okabe and Ito. Controls are also dashed, and every line has a different marker.
BLUE, GREEN, ORANGE, PURPLE, GREY, BLACK = "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#777777", "#000000"
ESTIMATE_KEYS = ("value", "low", "high")
MAX_NAME_LENGTH = 40  # maximum length of a displayed model name
# Label, color, line style and marker by objective (without one: measure) and source. If a panel has too many lines, the
# last are omitted.
LINE_STYLES = {
    ("prediction", "own"): ("own text, by prediction", LINE_COLORS[0], "-", "s"),
    ("target", "own"): ("own text, by target", LINE_COLORS[5], "-", "o"),
    ("prediction", "other"): ("other text, by prediction", LINE_COLORS[1], "--", "^"),
    ("target", "other"): ("other text, by target", LINE_COLORS[4], "--", "v"),
    ("random", "own"): ("random, own text", LINE_COLORS[8], "--", "X"),
    ("nearest", "own"): ("nearest, own text", LINE_COLORS[2], "--", "D"),
    ("prediction", "elsewhere"): ("elsewhere in the document, by prediction", LINE_COLORS[3], ":", "P"),
    ("target", "elsewhere"): ("elsewhere in the document, by target", LINE_COLORS[7], ":", "d"),
}
# Label and color of the line of all far tokens by source.
SOURCE_STYLES = {
    "other": ("other text, all far tokens", LINE_COLORS[6]),
    "elsewhere": ("elsewhere in the document, all far tokens", BLACK),
}
MODE_NOTES = {
    "strict": "Strict: the model reads only the near and the selected tokens",
    "masked": "Masked: near tokens attend to the selected far tokens",
    "decode": "Decode: the last token attends to the selected far tokens",
}
# Source, color and label of the differences in the figure of several models.
SCALE_SOURCES = (("other", PURPLE, "minus another text"), ("elsewhere", GREEN, "minus elsewhere in the document"))
# Legend below a panel.
LEGEND = {"fontsize": 8, "frameon": False, "loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}
# Lower limit of the vertical axis. Without a limit, very low shares would flatten all lines.
MIN_SHARE = -1.0


class _Line(NamedTuple):
    """Line of a panel; a line without a marker has a single estimate for all k."""

    label: str
    color: str
    style: str
    marker: str
    estimates: Sequence[Estimate]

    @property
    def defined_values(self) -> list[float]:
        """Values of the estimates that are not missing."""
        return [estimate["value"] for estimate in self.estimates if estimate["value"] is not None]


def plot_recovered_share(summary: Summary, folder: Path) -> Path:
    """Draw the effect of k far tokens as ``recovery.png`` and ``recovery.svg``. Return the path of the PNG.

    For each mode, the first panel shows the recovered share of the prediction with the whole context. The second panel
    shows the loss reduction by own far tokens compared with control tokens.
    """
    modes = list(dict.fromkeys(group["mode"] for group in summary["groups"])) or ["strict"]
    name = _shorten_names([summary["model"]])[0]
    documents, units = _count(summary["documents"], "document"), name_units(summary["unit"], 2)
    titles, lines_by_panel = [], []
    for mode in modes:
        ending = f"{f' ({mode})' if len(modes) > 1 else ''}, {documents}"
        titles.append(f"{name}: prediction recovered by k far {units}{ending}")
        titles.append(f"{name}: loss with control minus own text{ending}")
        lines_by_panel += [_share_lines(summary, mode), _difference_lines(summary, mode)]
    drawn_lines = [[line for line in lines if line.defined_values][:MAX_LINES] for lines in lines_by_panel]
    labels = [[line.label for line in lines] for lines in drawn_lines]
    figure, panels = make_panels(titles, labels, _caption(summary, modes, list(chain(*lines_by_panel)), labels))
    for index, (axes, lines) in enumerate(zip(panels, drawn_lines, strict=True)):
        _draw_panel(axes, summary["ks"], lines, is_difference=index % 2 == 1)
    return save_figure(figure, folder, "recovery")


def _share_lines(summary: Summary, mode: str) -> list[_Line]:
    """Return a line per selection of tokens in the order of ``LINE_STYLES``."""
    groups = {
        (group["measure"] if group["knows"] == "nothing" else group["knows"], group["from"]): group
        for group in summary["groups"]
        if group["mode"] == mode
    }
    shares = {key: group["all_targets"]["prediction"]["shares"] for key, group in groups.items()}
    return [_Line(*style, shares[key]) for key, style in LINE_STYLES.items() if key in shares]


def _difference_lines(summary: Summary, mode: str) -> list[_Line]:
    """Return a line per control: all far tokens of another source, and k selected tokens."""
    lines = []
    for source in summary["far"]:
        if source["own_minus"] is not None and source["own_minus"]["value"] is not None:
            label, color = SOURCE_STYLES[source["from"]]
            label += "" if source["targets"] == summary["targets"] else f" (n={source['targets']:,})"
            lines.append(_Line(label, color, "-.", "", [source["own_minus"]]))
    pairs = [pair for pair in summary["paired"] if pair["mode"] == mode]
    return lines + [_Line(*LINE_STYLES[pair["knows"], pair["against"]], pair["difference"]) for pair in pairs]


def _caption(summary: Summary, modes: Sequence[str], lines: Sequence[_Line], labels: Sequence[Sequence[str]]) -> str:
    counts = f"All {_count(summary['targets'], 'target')} ({summary['measured']:,} measured)"
    interval_note = _interval_note([estimate for line in lines for estimate in line.estimates])
    measures = dict.fromkeys(group["measure"] for group in summary["groups"] if group["knows"] != "nothing")
    selection = f", with the measure {' or '.join(measures)}" if measures else ""
    sentences = [
        f"{counts}; {interval_note}",
        "Recovered share: 1 - KL(k) / KL(short); 1 is the prediction with the whole context",
        f"By prediction, by target: the objective of the selection{selection}",
        *(MODE_NOTES[mode] for mode in modes),
    ]
    undefined = dict.fromkeys(line.label for line in lines if not line.defined_values)
    sentences += [f"Undefined: {'; '.join(undefined)}"] if undefined else []
    num_omitted = sum(bool(line.defined_values) for line in lines) - sum(map(len, labels))
    sentences += [f"Only in the table: {_count(num_omitted, 'more line')}"] if num_omitted else []
    return " ".join(f"{sentence}." for sentence in sentences)


def _draw_panel(axes: Any, ks: Sequence[int], lines: Sequence[_Line], *, is_difference: bool) -> None:
    for line in lines:
        _draw_line(axes, ks, line)
    axes.set_xscale("log", base=2)
    # The limits are necessary because a panel may have no lines.
    axes.set_xlim(0.85 * ks[0], ks[-1] / 0.85)
    axes.set_xticks(ks, [f"{k:,}" for k in ks])
    axes.set_xlabel("visible units of far tokens, k (log scale)")
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
    values, lows, highs = (_values(line.estimates, key) for key in ESTIMATE_KEYS)
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
                _annotate(axes, f"{'▼▲'[is_above]} {share:,.4g}", (k, is_above), offset, **style)
                num_labels[k, is_above] += 1


def plot_token_distances(summary: Summary, folder: Path, *, near: int, far: int) -> Path:
    """Draw the distribution of gain over the distances of selected tokens. Return the path of the PNG.

    The files are ``distances.png`` and ``distances.svg``. Bins have equal width on the log scale. The dashed line is
    the uniform distribution.
    """
    figure, (axes,) = _legend_panels(7.0, 1)
    own_groups = own_selections(summary)
    groups = [group for group in own_groups if group["knows"] == own_groups[0]["knows"] and group["distances"]["gain"]]
    for index, group in enumerate(groups):
        distances, color, sample_sizes = group["distances"], (BLUE, ORANGE)[index % 2], group["selected"]["own"]
        targets = f"{_count(sample_sizes['targets'], 'target')} with a clear gain"
        documents = f"in {_count(sample_sizes['documents'], 'document')}"
        tokens = f"{_count(distances['chosen'], 'unit')} selected for {targets} {documents}"
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
        axes.legend(**LEGEND)
    else:
        axes.text(0.5, 0.5, "no selected token has a gain", ha="center", transform=axes.transAxes)
    axes.set(xlabel="distance to the target (tokens, log scale)", ylabel="share of the gain of selected tokens")
    name = _shorten_names([summary["model"]])[0]
    _set_title(figure, f"{name}: distances of selected tokens, near {near:,}, far {far:,}")
    return save_figure(figure, folder, "distances")


def _edges(bins: Sequence[Estimate]) -> list[float]:
    # Edges between whole numbers, so that a bin with one distance has a width.
    return [bins[0]["from"] - 0.5, *(distance_bin["to"] + 0.5 for distance_bin in bins)]


def plot_model_sizes(summaries: Sequence[Summary], num_parameters: Sequence[int], folder: Path) -> Path:
    """Draw the results of several models against their size. Write ``scale.png`` and ``scale.svg``.

    ``num_parameters`` contains the number of parameters of each model. Return the path of the PNG.
    """
    from matplotlib import colormaps  # noqa: PLC0415

    ks = summaries[0]["ks"] if summaries else []
    if len(summaries) < 2 or any(summary["ks"] != ks for summary in summaries):
        all_ks = "; ".join(",".join(map(str, summary["ks"])) for summary in summaries)
        raise SettingError(
            f"cannot compare {len(summaries)} summaries with k {all_ks}; use two or more summaries with the same k"
        )
    models = sorted(zip(num_parameters, summaries, strict=True), key=lambda model: model[0])
    sizes, summaries = [size for size, _ in models], [summary for _, summary in models]
    names = _shorten_names([summary["model"] for summary in summaries])
    shares_by_model = [_shares(summary) for summary in summaries]
    figure, (difference_axes, share_axes) = _legend_panels(10.0, 2, height=4.8 + 0.13 * len(names))
    all_estimates = list(chain(*shares_by_model))
    difference_axes.axhline(0, color=BLACK, linewidth=0.8)
    difference_axes.set_ylabel("loss reduction by own far tokens\n(nats per target, all targets)")
    for index, (source, color, label) in enumerate(SCALE_SOURCES):
        results = chain(*(summary["far"] for summary in summaries))
        estimates = [result["own_minus"] for result in results if result["from"] == source]
        if any(estimate["value"] is not None for estimate in estimates):
            style: dict[str, Any] = {"color": color, "marker": "os"[index], "linestyle": "-:"[index], "label": label}
            _draw_bars(difference_axes, sizes, estimates, style, 1 - index / 2)
            all_estimates += estimates
    share_axes.set_ylabel("recovered share of the prediction\n1 - KL(k) / KL(short)")
    for index, k in enumerate(ks):
        # Colors are ordered from dark to light, so the order of k is visible in grayscale.
        shade = colormaps["viridis"](0.85 * index / max(1, len(ks) - 1))
        style = {"color": shade, "marker": "os^DvXP"[index % 7], "label": f"k = {k:,}"}
        _draw_bars(share_axes, sizes, [shares[index] for shares in shares_by_model], style, 1 - index / len(ks))
    for axes in (difference_axes, share_axes):
        axes.legend(**LEGEND, ncols=4)
        _draw_sizes(axes, sizes, names)
    pairs = zip(names, summaries, strict=True)
    target_counts = ", ".join(f"{name} {summary['targets']:,} in {summary['documents']:,}" for name, summary in pairs)
    _set_title(figure, f"targets in documents: {target_counts}", _interval_note(all_estimates))
    return save_figure(figure, folder, "scale")


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
        _annotate(axes, f"{number_prefix}{short_name} ({size:,})", (size, 1), offset, **style)


def _format_size(size: int) -> str:
    power = min((len(str(size)) - 1) // 3, 3)
    return f"{size // 1000**power:,}{('', 'K', 'M', 'B')[power]}"


def _draw_bars(axes: Any, sizes: Numbers, estimates: Sequence[Estimate], style: dict[str, Any], width: float) -> None:
    """Draw values as a line and intervals as bars. Later series are narrower, so that all bars stay visible."""
    values, lows, highs = (_values(estimates, name) for name in ESTIMATE_KEYS)
    axes.plot(sizes, values, markerfacecolor="none", linewidth=1 + width, markersize=4 + 5 * width, **style)
    axes.vlines(sizes, lows, highs, color=style["color"], linewidth=1 + 6 * width, alpha=0.35)
    for index, (size, value) in enumerate(zip(sizes, values, strict=True)):
        if sizes.count(size) > 1 and not math.isnan(value):
            offset = (7 + 7 * (index - sizes.index(size)), -2)
            axes.annotate(f"{index + 1}", (size, value), offset, textcoords="offset points", fontsize=7)


def _values(estimates: Sequence[Estimate], key: str) -> Numbers:
    """Return ``value``, ``low`` or ``high`` (``key``) of each estimate. Missing numbers are NaN, drawn as gaps."""
    return [math.nan if estimate[key] is None else estimate[key] for estimate in estimates]


def _annotate(axes: Any, text: str, point: Numbers, offset: Numbers, **style: Any) -> None:
    """Write small text at a point (x in data units, y as a fraction of the panel) plus an offset in points."""
    coordinates = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points"}
    text_box = {"facecolor": "white", "linewidth": 0, "pad": 0.5}
    axes.annotate(text, point, offset, parse_math=False, bbox=text_box, **coordinates, **{"fontsize": 7, **style})


def _shorten_names(models: Sequence[str]) -> list[str]:
    """Return the shortest endings of the model paths that distinguish all models."""
    parts = [PurePath(model).parts for model in models]
    num_parts = 1
    while len({path_parts[-num_parts:] for path_parts in parts}) < len(set(parts)):
        num_parts += 1
    return [str(PurePath(*path_parts[-num_parts:])) for path_parts in parts]


def _count(number: int, noun: str) -> str:
    """Format a number with a singular or plural noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _set_title(figure: Any, *lines: str) -> None:
    """Write a title above all panels, with lines wrapped to the width of the figure."""
    text = "\n".join(textwrap.fill(line, int(13 * figure.get_figwidth())) for line in lines)
    # Without parse_math=False, a $ in a path starts a formula.
    figure.suptitle(text, fontsize=9, parse_math=False)


def _legend_panels(width: float, columns: int, height: float = 4.6) -> tuple[Any, Sequence[Any]]:
    """Return a figure and its panels in one row."""
    # This import takes a second, so it runs only if a figure is needed.
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(1, columns, squeeze=False)[0]
    for axes in panels:
        axes.grid(alpha=0.3)
    return figure, list(panels)


def _interval_note(estimates: Sequence[Estimate]) -> str:
    """Return the part of a title that describes the intervals."""
    has_intervals = any(estimate["low"] is not None for estimate in estimates)
    return "95% intervals over documents" if has_intervals else "no intervals: too few documents"

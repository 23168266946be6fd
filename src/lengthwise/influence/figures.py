"""Figures of influence: recovered share against k, distances of influential tokens, and both against model size."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lengthwise.errors import RunFolderError, SettingError
from lengthwise.influence.recovery import HEADLINE

Summary = Mapping[str, Any]
Group = Mapping[str, Any]
Numbers = Sequence[int | float]

# Okabe and Ito's colours, which all readers tell apart; controls are dashed as well, and each line has its marker.
BLUE, GREEN, ORANGE, PURPLE, GREY, BLACK = "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#777777", "#000000"
# What a selection knows and where its tokens come from: label, colour, line, marker.
LINES = {
    ("target", "own"): ("knows the target", BLUE, "-", "o"),
    ("prediction", "own"): ("knows the full prediction", GREEN, "-", "s"),
    ("target", "other"): ("control: knows the target, other document", ORANGE, "--", "v"),
    ("prediction", "other"): ("control: knows the full prediction, other document", PURPLE, "--", "^"),
    ("nothing", "own"): ("control: random tokens", GREY, "--", "X"),
    ("nothing", "other"): ("control: random tokens, other document", BLACK, "--", "P"),
}
MODES = {"strict": "strict: the model sees near + k tokens alone", "masked": "masked: near tokens attend to k far ones"}
LOWEST, HIGHEST = -1.0, 2.0


def draw_recovery(summary: Summary, folder: Path) -> Path:
    """Recovered share against k as ``recovery.png`` and ``recovery.svg``, a panel per mode; the path of the first.

    Bands are 95% intervals over documents; dotted lines are the shares of all targets, clear or not.
    """
    modes = list(dict.fromkeys(group["mode"] for group in summary["groups"]))
    figure, panels = _figure(5.2 * max(1, len(modes)), max(1, len(modes)))
    for axes, mode in zip(panels, modes, strict=False):
        axes.set_title(MODES.get(mode, mode), fontsize=9)
        for group in summary["groups"]:
            if group["mode"] == mode:
                _draw_group(axes, summary["ks"], group)
        axes.set_xscale("log", base=2)
        axes.set_xticks(summary["ks"], [f"{k:,}" for k in summary["ks"]])
        axes.set_xlabel("far tokens shown, k (log scale)")
        axes.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    lows, highs = zip(*(axes.get_ylim() for axes in panels), strict=True)
    for axes in panels:
        # One scale for all; a control that does great harm must not flatten the rest.
        axes.set_ylim(max(LOWEST, min(*lows, -0.05)), min(HIGHEST, max(*highs, 1.05)))
    panels[0].set_ylabel("recovered share of the loss gap\n(1: all of the far context's gain)")
    figure.suptitle(
        f"{summary['model']}: {summary['clear']:,} targets with a clear gap of {summary['targets']:,}, "
        f"{summary['documents']:,} documents; 95% intervals over documents",
        fontsize=9,
    )
    return _save(figure, folder, "recovery")


def _draw_group(axes: Any, ks: Sequence[int], group: Group) -> None:
    name = (group["knows"], group["from"])
    label, color, line, marker = LINES.get(name, (" ".join(name), BLACK, "-.", "d"))
    estimates = group["ratio_of_sums"]
    shares = _numbers(estimates, "value")
    if all(map(math.isnan, shares)):
        axes.plot([], [], color=color, label=f"{label} (undefined)")
        return
    heavy = 2.2 if (group["mode"], *name) == HEADLINE else 1.3
    style = {"color": color, "marker": marker, "markersize": 4}
    axes.plot(ks, shares, line, linewidth=heavy, label=f"{label} ({group['measure']}, n={group['targets']:,})", **style)
    axes.fill_between(ks, _numbers(estimates, "low"), _numbers(estimates, "high"), color=color, alpha=0.15, linewidth=0)
    everywhere = _numbers(group["all_targets"]["ratio_of_sums"], "value")
    if line == "-" and not all(map(math.isnan, everywhere)):
        number = group["all_targets"]["targets"]
        axes.plot(ks, everywhere, ":", linewidth=1, label=f"{label}, all targets (n={number:,})", **style)


def draw_distances(summary: Summary, folder: Path, *, near: int, far: int) -> Path:
    """Distances of the tokens that gain most as ``distances.png`` and ``distances.svg``; the path of the first.

    Bins are equally wide on the log scale; the dashed line is what tokens drawn evenly from the far ones would give.
    """
    figure, (axes,) = _figure(7.0, 1)
    shown = [group for group in summary["groups"] if (group["knows"], group["from"]) == HEADLINE[1:]]
    shown = [group for group in shown if group["distances"]["gain"]]
    for place, group in enumerate(shown):
        chosen, color = group["distances"], (BLUE, ORANGE)[place % 2]
        label = f"{group['mode']}, knows the target (chosen: {chosen['chosen']:,})"
        shares = [each["gain_share"] for each in chosen["bins"]]
        # One filled, the other as a line above it.
        axes.stairs(shares, _edges(chosen["bins"]), fill=not place, color=color, alpha=0.6, linewidth=2, label=label)
        (middle,) = (each["distance"] for each in chosen["quantiles"] if each["share"] == 0.5)
        axes.axvline(middle, color=color, linestyle=":", label=f"{group['mode']}: median {middle:,}")
    if shown:
        bins = shown[0]["distances"]["bins"]
        even = [max(0, min(each["to"], near + far) - max(each["from"], near + 1) + 1) / far for each in bins]
        axes.stairs(even, _edges(bins), color=BLACK, linestyle="--", label="drawn evenly from the far tokens")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda distance, _: f"{distance:,.0f}")
        axes.legend(fontsize=8, frameon=False)
    else:
        axes.text(0.5, 0.5, "no chosen token gained anything", ha="center", transform=axes.transAxes)
    axes.set(xlabel="distance to the target (tokens, log scale)", ylabel="share of the chosen tokens' gain")
    axes.set_title(
        f"{summary['model']}: {summary['clear']:,} targets with a clear gap, {summary['documents']:,} documents, "
        f"near {near:,}, far {far:,}",
        fontsize=9,
    )
    return _save(figure, folder, "distances")


def _edges(bins: Sequence[Mapping[str, Any]]) -> list[float]:
    # Halfway between whole numbers, so that a bin of one distance has a width.
    return [bins[0]["from"] - 0.5, *(each["to"] + 0.5 for each in bins)]


def draw_scale(summaries: Sequence[Summary], parameters: Sequence[int], folder: Path) -> Path:
    """The headline of several models against their parameters as ``scale.png`` and ``scale.svg``; the first's path."""
    ks = summaries[0]["ks"] if summaries else []
    if len(summaries) < 2 or any(summary["ks"] != ks for summary in summaries):
        asked = "; ".join(",".join(map(str, summary["ks"])) for summary in summaries)
        raise SettingError(
            f"{len(summaries)} summaries with k {asked} show no scale; give two or more measured with the same k"
        )
    order = sorted(range(len(summaries)), key=lambda place: parameters[place])
    sizes, groups = [parameters[place] for place in order], [_headline(summaries[place]) for place in order]
    figure, (left, right) = _figure(10.0, 2)
    for place, k in enumerate(ks):
        estimates = [group["ratio_of_sums"][place] for group in groups]
        # From dark to light: k is ordered, and the order survives a copy in grey.
        style = {"color": _shade(place / max(1, len(ks) - 1)), "marker": "os^DvXP"[place % 7], "label": f"k = {k:,}"}
        _draw_bars(left, sizes, [_numbers(estimates, name) for name in ("value", "low", "high")], style)
    left.set_ylabel("recovered share of the loss gap")
    for place, color in enumerate((BLUE, ORANGE, GREEN)):
        levels = [group["smallest_k"][place] for group in groups]
        style = {"color": color, "marker": "os^"[place], "label": f"{levels[0]['share']:.0%} recovered"}
        # Side by side: several shares are often reached by the same k.
        aside = [size * 1.04 ** (place - 1) for size in sizes]
        _draw_bars(right, aside, [_smallest(levels, name, 2 * max(ks)) for name in ("k", "low", "high")], style)
    right.set_yscale("log", base=2)
    right.set_yticks([*ks, 2 * max(ks)], [*(f"{k:,}" for k in ks), f"> {max(ks):,}"])
    right.set_ylabel("smallest k that recovers (log scale)")
    for axes in (left, right):
        axes.set(xscale="log", xlabel="model parameters (log scale)")
        axes.legend(fontsize=8, frameon=False)
    right.margins(y=0.08)
    counts = ", ".join(f"{group['targets']:,} in {group['documents']:,}" for group in groups)
    figure.suptitle(
        f"{', '.join(summaries[place]['model'] for place in order)}: {counts} (clear targets in documents); "
        "95% intervals over documents",
        fontsize=9,
    )
    return _save(figure, folder, "scale")


def _headline(summary: Summary) -> Group:
    for group in summary["groups"]:
        if (group["mode"], group["knows"], group["from"]) == HEADLINE:
            return group
    raise SettingError(
        f"{summary['model']} has no strict selection that knows the target; measure one to compare models"
    )


def _numbers(estimates: Sequence[Mapping[str, Any]], name: str) -> Numbers:
    """What there is, and gaps in the line where there is none."""
    return [math.nan if each[name] is None else each[name] for each in estimates]


def _smallest(levels: Sequence[Mapping[str, Any]], name: str, beyond: int) -> Numbers:
    """The smallest ks or their bounds; ``beyond`` where the largest k is not enough."""
    found: list[int | float] = []
    for each in levels:
        is_beyond = each["beyond"] if name == "k" else each["reason"] is None
        found.append(each[name] if each[name] is not None else beyond if is_beyond else math.nan)
    return found


def _draw_bars(axes: Any, x: Numbers, bounds: Sequence[Numbers], style: Mapping[str, Any]) -> None:
    """Values joined by a line, each with its interval as a bar."""
    value, low, high = bounds
    axes.plot(x, value, linewidth=1.2, markersize=5, **style)
    axes.vlines(x, low, high, color=style["color"], linewidth=1.2, alpha=0.7)


def _shade(part: float) -> Any:
    from matplotlib import colormaps  # noqa: PLC0415

    return colormaps["viridis"](0.85 * part)


def _figure(width: float, columns: int) -> tuple[Any, Sequence[Any]]:
    # Imported here: it takes a second, and most commands draw nothing.
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, 4.4), layout="constrained")
    panels = figure.subplots(1, columns, squeeze=False)[0]
    for axes in panels:
        axes.grid(alpha=0.3)
    return figure, list(panels)


def _save(figure: Any, folder: Path, name: str) -> Path:
    try:
        for ending in ("svg", "png"):
            figure.savefig(folder / f"{name}.{ending}", dpi=160)
    except OSError as error:
        raise RunFolderError(f"cannot draw into {folder} ({error.strerror}); choose a folder to write in") from None
    return folder / f"{name}.png"

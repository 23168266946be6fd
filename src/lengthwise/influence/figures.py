"""Figures of influence: recovered share against k, distances of influential tokens, and both against model size."""

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path, PurePath
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
# Shares and bounds beyond these would flatten all others.
LOWEST, HIGHEST = -1.0, 3.0
BOUNDS = ("value", "low", "high")
NAME = 40  # letters of a model's name beside its points


def draw_recovery(summary: Summary, folder: Path) -> Path:
    """Recovered share against k as ``recovery.png`` and ``recovery.svg``, a panel per mode; the path of the first.

    Bands are 95% intervals over documents; dotted lines are the shares of all targets, clear or not.
    """
    modes = list(dict.fromkeys(group["mode"] for group in summary["groups"]))
    figure, panels = _figure(5.2 * max(1, len(modes)), max(1, len(modes)))
    lowest, highest, is_cut = _limits(summary["groups"])
    for axes, mode in zip(panels, modes, strict=False):
        axes.set_title(MODES.get(mode, mode), fontsize=9)
        for group in summary["groups"]:
            if group["mode"] == mode:
                _draw_group(axes, summary["ks"], group)
        axes.set_xscale("log", base=2)
        axes.set_xticks(summary["ks"], [f"{k:,}" for k in summary["ks"]])
        axes.set_xlabel("far tokens shown, k (log scale)")
        axes.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16))
        axes.set_ylim(lowest, highest)
        axes.margins(x=0.1)
        _tell_outside(axes)
    panels[0].set_ylabel("recovered share of the loss gap\n(1: all of the far context's gain)")
    counts = f"{summary['clear']:,} of {_many(summary['targets'], 'target')} with a clear gap"
    cut = "; cut at the edges, ▲▼: shares beyond" if is_cut else ""
    _title(figure, f"{_names([summary['model']])[0]}: {counts}", f"95% intervals over documents{cut}")
    return _save(figure, folder, "recovery")


def _limits(groups: Sequence[Group]) -> tuple[float, float, bool]:
    """One scale for all panels, and whether it leaves any share or bound out."""
    bounds = [_numbers(group["ratio_of_sums"], name) for group in groups for name in BOUNDS]
    found = [each for each in chain(*bounds, *map(_everywhere, groups)) if not math.isnan(each)]
    shown = [0.0, 1.0, *(each for each in found if LOWEST <= each <= HIGHEST)]
    space = 0.1 * (max(shown) - min(shown))
    low, high = min(shown) - space, max(shown) + space
    return low, high, not all(low <= each <= high for each in found)


def _everywhere(group: Group) -> Numbers:
    """The shares of all targets, where they are drawn: not for controls."""
    is_drawn = group["from"] == "own" and group["knows"] != "nothing"
    return _numbers(group["all_targets"]["ratio_of_sums"], "value") if is_drawn else []


def _draw_group(axes: Any, ks: Sequence[int], group: Group) -> None:
    name = (group["knows"], group["from"])
    label, color, line, marker = LINES.get(name, (" ".join(name), BLACK, "-.", "d"))
    shares, low, high = (_numbers(group["ratio_of_sums"], name) for name in BOUNDS)
    if all(map(math.isnan, shares)):
        axes.plot([], [], color=color, label=f"{label} (undefined)")
        return
    heavy = 2.2 if (group["mode"], *name) == HEADLINE else 1.3
    style = {"color": color, "marker": marker, "markersize": 4}
    counts = f"n={group['targets']:,} in {_many(group['documents'], 'document')}"
    axes.plot(ks, shares, line, linewidth=heavy, label=f"{label} ({group['measure']}, {counts})", **style)
    axes.fill_between(ks, low, high, color=color, alpha=0.15, linewidth=0)
    if len(ks) == 1:
        # A band over one k has no width.
        axes.vlines(ks, low, high, color=color, alpha=0.4, linewidth=3)
    everywhere, found = _everywhere(group), group["all_targets"]
    if not all(map(math.isnan, everywhere)):
        label += f", all {_many(found['targets'], 'target')} ({found['measured']:,} measured)"
        axes.plot(ks, everywhere, ":", linewidth=1, markerfacecolor="none", label=label, **style)


def _tell_outside(axes: Any) -> None:
    """Where points of a line lie beyond the edge, their share in the line's colour, one below the other."""
    lowest, highest = axes.get_ylim()
    rows = Counter[tuple[float, int]]()
    for line in axes.get_lines():
        ending = " (all)" if line.get_linestyle() == ":" else ""
        for k, share in line.get_xydata().tolist():
            # Gaps in a line are NaN, which is on neither side.
            if share < lowest or share > highest:
                edge = int(share > highest)
                offset = (0, (1 - 2 * edge) * (2 + 8 * rows[k, edge]))
                style = {"ha": "center", "va": ("bottom", "top")[edge], "color": line.get_color()}
                _write(axes, f"{'▼▲'[edge]} {share:,.4g}{ending}", (k, edge), offset, **style)
                rows[k, edge] += 1


def draw_distances(summary: Summary, folder: Path, *, near: int, far: int) -> Path:
    """Distances of the tokens that gain most as ``distances.png`` and ``distances.svg``; the path of the first.

    Bins are equally wide on the log scale; the dashed line is what tokens drawn evenly from the far ones would give.
    """
    figure, (axes,) = _figure(7.0, 1)
    shown = [group for group in summary["groups"] if (group["knows"], group["from"]) == HEADLINE[1:]]
    shown = [group for group in shown if group["distances"]["gain"]]
    for place, group in enumerate(shown):
        chosen, color = group["distances"], (BLUE, ORANGE)[place % 2]
        counts = f"{_many(group['targets'], 'clear target')} in {_many(group['documents'], 'document')}"
        label = f"{group['mode']}, knows the target: {_many(chosen['chosen'], 'token')} chosen for {counts}"
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
    _title(figure, f"{_names([summary['model']])[0]}: distances of the chosen tokens, near {near:,}, far {far:,}")
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
    names = _names([summaries[place]["model"] for place in order])
    figure, (left, right) = _figure(10.0, 2, height=4.8 + 0.13 * len(names))
    for place, k in enumerate(ks):
        estimates = [group["ratio_of_sums"][place] for group in groups]
        # From dark to light: k is ordered, and the order survives a copy in grey.
        style = {"color": _shade(place / max(1, len(ks) - 1)), "marker": "os^DvXP"[place % 7], "label": f"k = {k:,}"}
        _draw_bars(left, sizes, [_numbers(estimates, name) for name in BOUNDS], style, 1 - place / len(ks))
    left.set_ylabel("recovered share of the loss gap")
    for place, (color, line) in enumerate(((BLUE, "-"), (ORANGE, "--"), (GREEN, ":"))):
        levels = [group["smallest_k"][place] for group in groups]
        label = f"{levels[0]['share']:.0%} recovered"
        style = {"color": color, "marker": "os^"[place], "linestyle": line, "label": label}
        bounds = [_smallest(levels, name, 2 * max(ks)) for name in ("k", "low", "high")]
        _draw_bars(right, sizes, bounds, style, 1 - place / 3)
    right.set_yscale("log", base=2)
    right.set_yticks([*ks, 2 * max(ks)], [*(f"{k:,}" for k in ks), f"> {max(ks):,}"])
    right.set_ylabel("smallest k that recovers (log scale)")
    right.margins(y=0.08)
    for axes in (left, right):
        axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4)
        _draw_sizes(axes, sizes, names)
    named = zip(names, groups, strict=True)
    counts = ", ".join(f"{name} {group['targets']:,} in {group['documents']:,}" for name, group in named)
    _title(figure, f"clear targets in documents: {counts}", "95% intervals over documents")
    return _save(figure, folder, "scale")


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
        _write(axes, f"{number}{short} ({size:,})", (size, 1), (0, 3 + 9 * (len(names) - 1 - place)), **style)


def _short(number: int) -> str:
    """A round number in thousands, millions or billions."""
    power = min((len(str(number)) - 1) // 3, 3)
    return f"{number // 1000**power:,}{('', 'K', 'M', 'B')[power]}"


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


def _draw_bars(axes: Any, x: Numbers, bounds: Sequence[Numbers], style: Mapping[str, Any], width: float) -> None:
    """Values joined by a line, each with its interval as a bar; later ones are narrower, so that all show."""
    value, low, high = bounds
    axes.plot(x, value, linewidth=1 + width, markersize=4 + 5 * width, markerfacecolor="none", **style)
    axes.vlines(x, low, high, color=style["color"], linewidth=1 + 6 * width, alpha=0.35)
    for place, (size, each) in enumerate(zip(x, value, strict=True)):
        if x.count(size) > 1 and not math.isnan(each):
            offset = (7 + 7 * (place - x.index(size)), -2)
            axes.annotate(f"{place + 1}", (size, each), offset, textcoords="offset points", fontsize=7)


def _write(axes: Any, text: str, at: Numbers, offset: Numbers, **style: Any) -> None:
    """Small text, ``offset`` points from an x of the data and a part of the panel's height."""
    units = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points"}
    ground = {"facecolor": "white", "linewidth": 0, "pad": 0.5}
    axes.annotate(text, at, offset, fontsize=7, parse_math=False, bbox=ground, **units, **style)


def _names(models: Sequence[str]) -> list[str]:
    """The last parts of each model's path, as many as tell the models apart."""
    parts = [PurePath(model).parts for model in models]
    depth = 1
    while len({each[-depth:] for each in parts}) < len(set(parts)):
        depth += 1
    return [str(PurePath(*each[-depth:])) for each in parts]


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _title(figure: Any, *lines: str) -> None:
    # As many letters as fit: a wider title is cut at both ends. A $ in a path is no formula.
    text = "\n".join(textwrap.fill(line, int(13 * figure.get_figwidth())) for line in lines)
    figure.suptitle(text, fontsize=9, parse_math=False)


def _shade(part: float) -> Any:
    from matplotlib import colormaps  # noqa: PLC0415

    return colormaps["viridis"](0.85 * part)


def _figure(width: float, columns: int, height: float = 4.6) -> tuple[Any, Sequence[Any]]:
    # Imported here: it takes a second, and most commands draw nothing.
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height), layout="constrained")
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

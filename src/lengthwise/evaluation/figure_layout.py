"""Layout of figures: panels of one width in one or more columns, each line with a label at its right end.

All sizes suit a figure that is shown 600 pixels wide.
"""

import math
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lengthwise.core.errors import RunFolderError

# Sizes in inches. Text of FONT_SIZE points is about 11 pixels high if the figure is 600 pixels wide.
FIGURE_WIDTH, LEFT_MARGIN, LABEL_GAP, RIGHT_MARGIN = 7.0, 0.75, 0.3, 0.1
FONT_SIZE, LINE_HEIGHT = 9, 9 * 1.25 / 72
# Maximum number of characters in a line of a label, a title (by number of columns) and a caption.
LABEL_CHARACTERS, TITLE_CHARACTERS, CAPTION_CHARACTERS = 26, {1: 72, 2: 42}, 98
MAX_LINES = 6
# Dark colors, because labels have the color of their line.
LINE_COLORS = (
    *("#1f5fa8", "#c0392b", "#1e7d32", "#7d3c98", "#b35900"),
    *("#00808a", "#c2187a", "#6b5b00", "#5d4037", "#1a237e"),
)
# Gray of lines that did not fit their training lengths.
UNFIT_COLOR = "#757575"
# Width of a character of a tick label, and minimum gap between tick labels, in inches.
DIGIT_WIDTH, TICK_GAP = 0.08, 0.08


@dataclass(frozen=True, slots=True)
class LineLabel:
    """Label of a line with its color, and the value at the right end of the line."""

    text: str
    color: str
    value: float


def make_panels(
    titles: Sequence[str], labels: Sequence[Collection[str]], caption: str, *, num_columns: int = 1
) -> tuple[Any, list[Any]]:
    """Return a figure and its panels row by row, with a title each, and with a caption below the last row.

    ``num_columns`` is 1 or 2. ``labels`` has the line labels of each panel, which determine the right margin and the
    minimum height of a panel.
    """
    # Importing matplotlib takes a second, and most commands draw no figure.
    from matplotlib.figure import Figure  # noqa: PLC0415

    titles = [textwrap.fill(title, TITLE_CHARACTERS[num_columns]) for title in titles]
    caption = textwrap.fill(caption, CAPTION_CHARACTERS)
    starts = range(0, len(titles), num_columns)
    min_height = {1: 3.4, 2: 2.4, 3: 2.2}.get(len(titles), 1.8) if num_columns == 1 else 1.4
    label_heights = [sum(map(_label_height, panel_labels)) for panel_labels in labels]
    heights = [max(min_height, *label_heights[start : start + num_columns]) for start in starts]
    # The name of the training range is between title and panel, the ticks and the name of the axis are below.
    title_lines = [max(title.count("\n") + 1 for title in titles[start : start + num_columns]) for start in starts]
    tops, bottom = [0.4 + LINE_HEIGHT * lines for lines in title_lines], 0.55
    caption_height = LINE_HEIGHT * (caption.count("\n") + 1) + 0.15
    total_height = sum(heights) + sum(tops) + bottom * len(starts) + caption_height
    column_width = FIGURE_WIDTH / num_columns
    label_margin = max(
        (LABEL_GAP + _label_width(label) for panel_labels in labels for label in panel_labels), default=0.0
    )
    width = column_width - LEFT_MARGIN - RIGHT_MARGIN - label_margin
    figure, panels, y = Figure(figsize=(FIGURE_WIDTH, total_height)), [], total_height
    for start, height, top in zip(starts, heights, tops, strict=True):
        y -= top + height
        for column, title in enumerate(titles[start : start + num_columns]):
            left = LEFT_MARGIN + column * column_width
            size = (width / FIGURE_WIDTH, height / total_height)
            axes = figure.add_axes((left / FIGURE_WIDTH, y / total_height, *size))
            title_style: dict[str, Any] = {"loc": "left", "fontsize": FONT_SIZE + 1, "pad": 20, "parse_math": False}
            axes.set_title(title, x=0.1 / width - LEFT_MARGIN / width, **title_style)
            axes.tick_params(labelsize=FONT_SIZE)
            axes.grid(alpha=0.3)
            for axis in (axes.xaxis, axes.yaxis):
                axis.label.set_fontsize(FONT_SIZE)
            panels.append(axes)
        y -= bottom
    caption_style: dict[str, Any] = {"fontsize": FONT_SIZE, "color": "0.3", "va": "bottom", "parse_math": False}
    figure.text(0.1 / FIGURE_WIDTH, 0.08 / total_height, caption, **caption_style)
    return figure, panels


def _wrap_label(label: str) -> str:
    # No line break within the note of a line that did not fit.
    unbroken = label.replace("(did not fit)", "(did\xa0not\xa0fit)")
    return textwrap.fill(unbroken, LABEL_CHARACTERS).replace("\xa0", " ")


def _label_height(label: str) -> float:
    """Return the height of a label in inches, with the gap between two labels."""
    return LINE_HEIGHT * (_wrap_label(label).count("\n") + 1) + 0.04


def _label_width(label: str) -> float:
    from matplotlib.textpath import TextPath  # noqa: PLC0415

    lines = _wrap_label(label).split("\n")
    return max(float(TextPath((0, 0), line, size=FONT_SIZE).get_extents().x1) for line in lines) / 72


def label_lines(axes: Any, labels: Sequence[LineLabel]) -> None:
    """Write each label to the right of the panel, at the height of the last value of its line, without overlaps.

    The limits of the vertical axis must be final, because they determine the places. At equal heights, the first label
    is on top. A short stroke in the margin connects a label with its value.
    """
    from matplotlib.lines import Line2D  # noqa: PLC0415

    if not labels:
        return
    box, (figure_width, figure_height) = axes.get_position(), axes.figure.get_size_inches()
    width, height = box.width * figure_width, box.height * figure_height
    points = axes.transData.transform([(axes.get_xlim()[0], label.value) for label in labels])
    values = [min(max(float(y), 0.0), 1.0) for _, y in axes.transAxes.inverted().transform(points)]
    order = sorted(range(len(labels)), key=lambda index: (values[index], -index))
    label_heights = [_label_height(labels[index].text) for index in order]
    centers = spread_labels([values[index] * height for index in order], label_heights, 0.0, height)
    for index, center in zip(order, centers, strict=True):
        label, y = labels[index], center / height
        stroke = [[1 + inches / width for inches in (0, LABEL_GAP - 0.05)], [values[index], y]]
        outside = {"transform": axes.transAxes, "color": label.color, "clip_on": False}
        axes.add_line(Line2D(*stroke, alpha=0.6, linewidth=0.8, **outside))
        text = _wrap_label(label.text)
        axes.text(1 + LABEL_GAP / width, y, text, fontsize=FONT_SIZE, linespacing=1.0, va="center", **outside)


def spread_labels(desired: Sequence[float], heights: Sequence[float], low: float, high: float) -> list[float]:
    """Return centers of boxes of these heights, as near as possible to increasing ``desired`` centers.

    The boxes do not overlap and lie between ``low`` and ``high``, which must have enough room (least squares).
    """
    # Subtracting the heights of the boxes below turns the problem into an isotonic regression.
    starts = [sum(heights[:index]) + height / 2 for index, height in enumerate(heights)]
    blocks: list[tuple[float, int]] = []
    for center, start in zip(desired, starts, strict=True):
        blocks.append((center - start, 1))
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            (mean, count), (last_mean, last_count) = blocks[-2:]
            blocks[-2:] = [((mean * count + last_mean * last_count) / (count + last_count), count + last_count)]
    shifts = [min(max(mean, low), high - sum(heights)) for mean, count in blocks for _ in range(count)]
    return [shift + start for shift, start in zip(shifts, starts, strict=True)]


def set_length_axis(
    axes: Any, lengths: Collection[int], train_lengths: Sequence[int] | None, name: str = "trained on"
) -> None:
    """Set a logarithmic axis of the test lengths; shade the training range and call it ``name``, if there is one.

    Ticks are at test lengths whose labels do not overlap; the longest training length comes first. The axis shows only
    a part of a long training range below the shortest test length.
    """
    from matplotlib.ticker import NullLocator  # noqa: PLC0415

    min_length, max_length = (min(lengths), max(lengths)) if train_lengths is None else train_lengths
    low, high = max(min(min_length, *lengths), min(lengths) / 3), max(max_length, *lengths)
    ratio = max(high / low, 1.5)
    axes.set_xscale("log")
    axes.set_xlim(low / ratio**0.03, high * ratio**0.03)
    decade_width = axes.get_position().width * FIGURE_WIDTH / math.log10(ratio**1.06)
    ticks: list[int] = []
    for length in sorted(lengths, key=lambda length: (length != max_length, -length)):
        text_widths = [DIGIT_WIDTH * len(f"{length:,}{tick:,}") / 2 + TICK_GAP for tick in ticks]
        distances = [decade_width * abs(math.log10(tick / length)) for tick in ticks]
        if all(distance >= width for distance, width in zip(distances, text_widths, strict=True)):
            ticks.append(length)
    axes.set_xticks(ticks, [f"{length:,}" for length in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    if train_lengths is None:
        return
    # The edge shows a range of one length.
    axes.axvspan(max(min_length, low), max_length, facecolor="0.9", edgecolor="0.9", linewidth=2, zorder=0)
    shown = " to ".join(f"{length:,}" for length in dict.fromkeys(train_lengths))
    is_left = max(min_length, low) * max_length <= low * high
    x, side = (max(min_length, low), "left") if is_left else (max_length, "right")
    text = {"fontsize": FONT_SIZE, "color": "0.35", "va": "bottom", "ha": side}
    axes.text(x, 1.02, f"{name} {shown}", transform=axes.get_xaxis_transform(), **text)


def set_logarithmic_values(axes: Any, name: str) -> None:
    """Set a logarithmic vertical axis with plain numbers at its ticks."""
    from matplotlib.ticker import LogLocator, StrMethodFormatter  # noqa: PLC0415

    axes.set(yscale="log", ylabel=name)
    low, high = axes.get_ylim()
    steps = (1.0, 2.0, 5.0) if high / low > 10 else (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    axes.yaxis.set_major_locator(LogLocator(subs=steps))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.minorticks_off()


def assign_colors(all_labels: Sequence[str], labels: Sequence[str]) -> dict[str, str]:
    """Return a color for each of ``labels``: its place in ``all_labels`` decides, if there are enough colors."""
    order = list(dict.fromkeys(all_labels))
    order = order if len(order) <= len(LINE_COLORS) else list(labels)
    return {label: LINE_COLORS[order.index(label)] for label in labels}


def count_seeds(counts: Collection[int]) -> str:
    """Return a number of seeds as text, as a range if lines have different numbers of seeds."""
    fewest, most = min(counts), max(counts)
    return ("1 seed" if most == 1 else f"{most} seeds") if fewest == most else f"{fewest} to {most} seeds"


def save_figure(figure: Any, folder: Path, name: str = "figure") -> Path:
    """Save a figure as SVG and PNG with this name to a folder, and return the path of the PNG."""
    try:
        for extension in ("svg", "png"):
            figure.savefig(folder / f"{name}.{extension}", dpi=160)
    except OSError as error:
        raise RunFolderError(f"cannot save figures in {folder} ({error.strerror}); choose a writable folder") from None
    return folder / f"{name}.png"

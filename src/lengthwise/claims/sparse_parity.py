"""The claim about sparse parity (section 5.1): how far it holds falls with the number of bits trained on."""

from collections.abc import Mapping
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

from lengthwise.claims.claim import Claim, Size, Table
from lengthwise.encodings import Rotary
from lengthwise.experiment import Experiment
from lengthwise.positions import Skipwise
from lengthwise.recipes.sparse_parity import sparse_parity_up_to
from lengthwise.report import FITTED, Rows, pooled, save_figure

TRAINED = (4, 6, 8, 10, 12)
# Where the paper's figure has no known length, ours shows ten times the longest trained one.
SHOWN = 500
# One for each number of bits trained on.
COLORS = ("#2471a3", "#c0392b", "#1e8449", "#b9770e", "#7d3c98")


def _experiments() -> dict[str, Experiment]:
    rotary = replace(sparse_parity_up_to(6), encoding=Rotary())
    return {
        **{f"up to {most} bits": sparse_parity_up_to(most) for most in TRAINED},
        **{f"up to {most} bits among letters": sparse_parity_up_to(most, coding="letters") for most in TRAINED},
        "up to 6 bits within 16": sparse_parity_up_to(6, window=16),
        "up to 6 bits, rotary": rotary,
        "up to 6 bits, rotary + PoSE": replace(rotary, scheme=Skipwise(num_position_ids=8192)),
    }


def _tables(rows: Rows) -> list[Table]:
    """The heat map: bits trained on by bits tested, at the longest training length and ten times beyond."""
    trained = max(int(row["train_lengths"][1]) for row in rows)
    return [_heat_map(rows, length, trained) for length in dict.fromkeys((min(_lengths(rows)), _shown(rows)))]


def _heat_map(rows: Rows, length: int, trained: int) -> Table:
    body = []
    for label in _labels(rows):
        fits = {row["seed"]: row["fitted"] >= FITTED for row in rows if _label(row) == label}
        cells = [_cell(rows, label, length, {number}) for number in _tested(rows)]
        shares = [f"{pooled(cell)[0]:.3f}" if cell else "-" for cell in cells]
        body.append([label, f"{sum(fits.values())} of {len(fits)}", *shares])
    title = f"exact match at length {length:,}, by bits flagged; trained up to {trained}"
    return title, ["row", "seeds that fit", *map(str, _tested(rows))], body


def _draw(rows: Rows, folder: Path, title: str) -> Path:
    """Exact match by length over all numbers of bits that were trained on, and the heat map."""
    # Imported here: it takes a second, and most commands draw nothing.
    from matplotlib.figure import Figure  # noqa: PLC0415

    labels, tested, shown = _labels(rows), _tested(rows), _shown(rows)
    figure = Figure(figsize=(13, 1.5 + 0.5 * max(8, len(labels))), layout="constrained")
    by_length, heat = figure.subplots(1, 2)
    for place, label in enumerate(labels):
        known = {number for number in tested if number <= _most(label)}
        lengths = [length for length in _lengths(rows) if _cell(rows, label, length, known)]
        shares = [pooled(_cell(rows, label, length, known))[0] for length in lengths]
        by_length.plot(
            lengths, shares, "-" if place < len(COLORS) else "--", color=COLORS[place % len(COLORS)], label=label
        )
    by_length.set(
        xscale="log", xlabel="length (log scale)", ylabel="exact match, bits as in training", ylim=(0.45, 1.02)
    )
    by_length.grid(alpha=0.3)
    by_length.legend(fontsize=7)
    squares = [
        [pooled(cell)[0] if (cell := _cell(rows, label, shown, {number})) else nan for number in tested]
        for label in labels
    ]
    image = heat.imshow(squares, vmin=0.5, vmax=1.0, cmap="viridis", aspect="auto")
    heat.set_xticks(range(len(tested)), map(str, tested))
    heat.set_yticks(range(len(labels)), labels, fontsize=7)
    heat.set(xlabel=f"bits flagged at length {shown:,}")
    figure.colorbar(image, ax=heat, label="exact match")
    figure.suptitle(title)
    return save_figure(figure, folder)


def _label(row: Mapping[str, Any]) -> str:
    """A row's label without its variant."""
    return str(row["row"]).rpartition(", ")[0]


def _labels(rows: Rows) -> list[str]:
    return list(dict.fromkeys(map(_label, rows)))


def _lengths(rows: Rows) -> list[int]:
    return sorted({int(row["length"]) for row in rows})


def _shown(rows: Rows) -> int:
    """Ten times the longest trained length or, where that is not tested, the longest one that is."""
    return SHOWN if SHOWN in _lengths(rows) else max(_lengths(rows))


def _tested(rows: Rows) -> list[int]:
    return sorted({_number(row) for row in rows})


def _number(row: Mapping[str, Any]) -> int:
    return int(str(row["variant"]).removeprefix("flagged-"))


def _most(label: str) -> int:
    """The number that stands in ``up to 6 bits, rotary``."""
    return int(label.split()[2])


def _cell(rows: Rows, label: str, length: int, numbers: set[int]) -> Rows:
    return [row for row in rows if _label(row) == label and row["length"] == length and _number(row) in numbers]


SPARSE_PARITY = Claim(
    name="sparse_parity",
    summary="sparse parity without scratchpad: bits trained on by bits tested, to 100 times the length",
    paper="section 5.1",
    experiments=_experiments,
    laptop=Size(num_seeds=2, rows=("up to 4 bits", "up to 6 bits"), longest=500),
    tables=_tables,
    draw=_draw,
)

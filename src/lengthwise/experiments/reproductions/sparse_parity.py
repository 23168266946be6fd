"""Claim on sparse parity (section 5.1): extrapolation decreases with the number of bits in training."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import Any

from lengthwise.core.randomness import stream
from lengthwise.encodings import Rotary
from lengthwise.evaluation.tables_and_figures import FIT_THRESHOLD, Rows, label_of, pool_seeds, save_figure
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes.few_tokens import TEST_BITS, sparse_parity_up_to
from lengthwise.experiments.reproductions.excess_risk import Cell, Factor, growth
from lengthwise.experiments.reproductions.reproduction import Claim, SizePreset, Table
from lengthwise.positions import Skipwise

# Maximal numbers of flagged bits in training; the first three train in minutes in every variation.
TRAIN_BITS = (4, 6, 8, 10, 12)
FEWER = TRAIN_BITS[:3]
# Numbers of flagged bits in the tests of the plain runs; the other runs have fewer.
ALL_TEST_BITS = tuple(range(1, 17))
# Length of the figure's heat maps: ten times the longest training length. The paper does not state its length.
FIGURE_LENGTH = 500
# A color per number of bits in training.
COLORS = ("#2471a3", "#c0392b", "#1e8449", "#b9770e", "#7d3c98")


@dataclass(frozen=True, slots=True)
class _Variation:
    """Runs that differ only in the maximal number of bits in training."""

    name: str
    train_bits: tuple[int, ...]

    def label(self, most: int) -> str:
        return f"up to {most} bits{self.name}"


PLAIN, LETTERS = _Variation("", TRAIN_BITS), _Variation(" among letters", TRAIN_BITS)
WINDOW, COUNTING = _Variation(" within 16", FEWER), _Variation(", counting", FEWER)
ROTARY, SKIPWISE = _Variation(", rotary", FEWER), _Variation(", rotary + PoSE", FEWER)
# The second one differs from the plain runs only in the dilution.
UNDILUTED, ONLY_UNDILUTED = _Variation(", undiluted", FEWER), _Variation(", undiluted alone", TRAIN_BITS[:1])
VARIATIONS = (PLAIN, UNDILUTED, ONLY_UNDILUTED, LETTERS, WINDOW, ROTARY, SKIPWISE, COUNTING)
MOST = {variation.label(most): most for variation in VARIATIONS for most in variation.train_bits}


def _experiments() -> dict[str, Experiment]:
    return {
        variation.label(most): _experiment(variation, most) for variation in VARIATIONS for most in variation.train_bits
    }


def _experiment(variation: _Variation, most: int) -> Experiment:
    experiment = sparse_parity_up_to(
        most,
        coding="letters" if variation is LETTERS else "flags",
        window=16 if variation is WINDOW else None,
        test_bits=ALL_TEST_BITS if variation is PLAIN else TEST_BITS,
    )
    if variation in (ROTARY, SKIPWISE):
        experiment = replace(experiment, encoding=Rotary())
    if variation is SKIPWISE:
        experiment = replace(experiment, scheme=Skipwise(num_position_ids=8192))
    if variation in (UNDILUTED, ONLY_UNDILUTED, COUNTING):
        weights = "count" if variation is COUNTING else "softmax"
        experiment = replace(experiment, decoder=replace(experiment.decoder, weights=weights, dilution=0.0))
    if variation is UNDILUTED:
        # Settings tuned without dilution: training must stop soon after the run fits.
        training = replace(experiment.training, stage_loss=0.05, fit_threshold=0.99, cooldown_steps=600)
        experiment = replace(experiment, training=training)
    return experiment


def _tables(rows: Rows, readings: Rows) -> list[Table]:
    """Return exact match by bits in training and in the test, near and far, and the growth of the far loss."""
    longest = max(int(row["train_lengths"][1]) for row in rows)
    near, *beyond = dict.fromkeys((min(_lengths(rows)), _figure_length(rows), max(_lengths(rows))))
    maps = [_heat_map(rows, length, longest) for length in (near, *beyond)]
    return maps + [_excess(rows, near, far) for far in beyond]


def _heat_map(rows: Rows, length: int, longest: int) -> Table:
    body = []
    for label in _labels(rows):
        fits = {row["seed"]: row["fitted"] >= FIT_THRESHOLD for row in rows if label_of(row) == label}
        cells = [_cell(rows, label, length, {number}) for number in _test_bits(rows)]
        exact = [f"{pool_seeds(cell)[0]:.3f}" if cell else "-" for cell in cells]
        body.append([label, f"{sum(fits.values())} of {len(fits)}", *exact])
    title = f"exact match at length {length:,}, by number of flagged bits; training length up to {longest}"
    return title, ["row", "seeds that fit", *map(str, _test_bits(rows))], body


def _excess(rows: Rows, near: int, far: int) -> Table:
    """Return the growth of the loss at ``far``, for runs and numbers of bits in training that fit at ``near``."""
    body = []
    for variation in VARIATIONS:
        labels = list(map(variation.label, variation.train_bits))
        trained_rows = [row for row in rows if label_of(row) in labels and _bits(row) <= _most(row)]
        if not trained_rows:
            continue
        near_rows = {(label_of(row), row["seed"], _bits(row)): row for row in trained_rows if row["length"] == near}
        pairs = [
            (near_rows[label_of(row), row["seed"], _bits(row)], row)
            for row in trained_rows
            if row["length"] == far and row["answer_loss"] is not None
        ]
        fit = [pair for pair in pairs if pair[0]["exact_match"] >= FIT_THRESHOLD and pair[0]["fitted"] >= FIT_THRESHOLD]
        cells = [
            Cell(
                seed=near_row["seed"],
                train_bits=_most(near_row),
                test_bits=_bits(near_row),
                near_loss=near_row["answer_loss"],
                far_loss=far_row["answer_loss"],
            )
            for near_row, far_row in fit
        ]
        fitted = growth(cells, stream(0, "seeds drawn again", variation.name))
        if fitted is None:
            factors = ["-", "-", "-"]
        else:
            factors = [_factor_text(fitted.per_train_bit), _factor_text(fitted.per_test_bit), f"{fitted.power:.2f}"]
        body.append([f"up to K bits{variation.name}", f"{len(fit)} of {len(pairs)}", *factors])
    title = f"growth of the loss at {far:,}, at equal loss at {near}: factors with 95% intervals over seeds"
    by = ["factor per bit in training", "factor per bit in the test", f"power of the loss at {near}"]
    return title, ["rows", "cells that fit", *by], body


def _factor_text(factor: Factor) -> str:
    if factor.interval is None:
        return f"{factor.value:.2f}"
    return f"{factor.value:.2f} [{factor.interval[0]:.2f}, {factor.interval[1]:.2f}]"


def _draw(rows: Rows, readings: Rows, folder: Path, title: str) -> Path:
    """Draw two panels per variation: exact match by length on bits in training, and by bits at one long length."""
    # Imported here because it takes a second and most commands draw nothing.
    from matplotlib.figure import Figure  # noqa: PLC0415

    far = _figure_length(rows)
    groups = {
        each: [label for label in _labels(rows) if label in map(each.label, each.train_bits)] for each in VARIATIONS
    }
    groups = {variation: labels for variation, labels in groups.items() if labels}
    figure = Figure(figsize=(13, 1 + 2.8 * len(groups)), layout="constrained")
    panels = figure.subplots(len(groups), 2, squeeze=False)
    for (by_length, heat), (variation, labels) in zip(panels, groups.items(), strict=True):
        for label in labels:
            _draw_by_length(by_length, rows, label)
        name = f"up to K bits{variation.name}"
        by_length.set(xscale="log", xlabel="length (log scale)", ylabel="exact match", ylim=(-0.03, 1.03), title=name)
        by_length.grid(alpha=0.3)
        by_length.legend(fontsize=8, title="K", loc="lower left")
        image = _draw_heat(heat, rows, labels, far)
        heat.set(xlabel="flagged bits", ylabel="K", title=f"{name}: length {far:,}")
    figure.colorbar(image, ax=panels[:, 1], label="exact match, mean of seeds", shrink=0.5)
    figure.suptitle(f"{title}; left: numbers of bits as in training, bands from the lowest to the highest seed")
    return save_figure(figure, folder)


def _draw_by_length(axes: Any, rows: Rows, label: str) -> None:
    numbers = {number for number in _test_bits(rows) if number <= MOST[label]}
    cells = {length: cell for length in _lengths(rows) if (cell := _cell(rows, label, length, numbers))}
    color = COLORS[TRAIN_BITS.index(MOST[label])]
    axes.plot(list(cells), [pool_seeds(cell)[0] for cell in cells.values()], "-o", color=color, label=str(MOST[label]))
    by_seed = [
        [pool_seeds([row for row in cell if row["seed"] == seed])[0] for seed in {row["seed"] for row in cell}]
        for cell in cells.values()
    ]
    axes.fill_between(list(cells), list(map(min, by_seed)), list(map(max, by_seed)), color=color, alpha=0.15)


def _draw_heat(axes: Any, rows: Rows, labels: list[str], length: int) -> Any:
    columns = _test_bits([row for row in rows if label_of(row) in labels])
    squares = [
        [pool_seeds(cell)[0] if (cell := _cell(rows, label, length, {number})) else nan for number in columns]
        for label in labels
    ]
    image = axes.imshow(squares, vmin=0.5, vmax=1.0, cmap="viridis", aspect="auto")
    axes.set_xticks(range(len(columns)), map(str, columns))
    axes.set_yticks(range(len(labels)), [str(MOST[label]) for label in labels])
    return image


def _most(row: Mapping[str, Any]) -> int:
    """Return the maximal number of bits in training."""
    return MOST[label_of(row)]


def _labels(rows: Rows) -> list[str]:
    return list(dict.fromkeys(map(label_of, rows)))


def _lengths(rows: Rows) -> list[int]:
    return sorted({int(row["length"]) for row in rows})


def _figure_length(rows: Rows) -> int:
    """Return ten times the longest training length, or the longest test length if that was not tested."""
    return FIGURE_LENGTH if FIGURE_LENGTH in _lengths(rows) else max(_lengths(rows))


def _test_bits(rows: Rows) -> list[int]:
    return sorted({_bits(row) for row in rows})


def _bits(row: Mapping[str, Any]) -> int:
    return int(str(row["variant"]).removeprefix("flagged-"))


def _cell(rows: Rows, label: str, length: int, numbers: set[int]) -> Rows:
    return [row for row in rows if label_of(row) == label and row["length"] == length and _bits(row) in numbers]


SPARSE_PARITY = Claim(
    name="sparse_parity",
    summary="sparse parity without scratchpad to 100 times the length, by bits in training and in the test",
    paper="section 5.1",
    experiments=_experiments,
    laptop=SizePreset(num_seeds=2, labels=(PLAIN.label(4), PLAIN.label(6)), max_length=500),
    tables=_tables,
    draw=_draw,
)

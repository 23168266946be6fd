"""Claim on sparse parity (section 5.1): extrapolation decreases with the number of bits in training."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import Any

from claims.sparse_parity.excess_risk import GrowthFactor, LossPair, fit_growth

from lengthwise.core.randomness import random_stream
from lengthwise.encodings import Rotary
from lengthwise.evaluation.figure_layout import (
    FIGURE_WIDTH,
    FONT_SIZE,
    LINE_COLORS,
    LineLabel,
    count_seeds,
    label_lines,
    save_figure,
    set_length_axis,
)
from lengthwise.evaluation.result_rows import (
    FIT_THRESHOLD,
    Rows,
    find_given_knowledge,
    label_without_variant,
    pool_seeds,
)
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes.recipe_table import TEST_BITS, sparse_parity_up_to
from lengthwise.experiments.reproduction import Claim, SizePreset, Table
from lengthwise.positions import Skipwise

# Maximum numbers of flagged bits in training; the first three train in minutes in every variation.
TRAIN_BITS = (4, 6, 8, 10, 12)
FEWER_TRAIN_BITS = TRAIN_BITS[:3]
# Numbers of flagged bits in the tests of the plain runs; other runs have fewer tests.
ALL_TEST_BITS = tuple(range(1, 17))
# Length of the figure's heat maps: ten times the longest training length. The paper does not state its length.
FIGURE_LENGTH = 500


@dataclass(frozen=True, slots=True)
class _Variation:
    """Experiments that differ only in the maximum number of flagged bits in training."""

    name: str
    train_bits: tuple[int, ...]

    def label(self, max_bits: int) -> str:
        return f"up to {max_bits} bits{self.name}"


BASELINE, LETTER_CODING = _Variation("", TRAIN_BITS), _Variation(" among letters", TRAIN_BITS)
WINDOW, COUNT_WEIGHTS = _Variation(" within 16", FEWER_TRAIN_BITS), _Variation(", counting", FEWER_TRAIN_BITS)
ROTARY, SKIPWISE = _Variation(", rotary", FEWER_TRAIN_BITS), _Variation(", rotary + PoSE", FEWER_TRAIN_BITS)
# ONLY_UNDILUTED differs from the plain runs only in the dilution.
UNDILUTED, ONLY_UNDILUTED = _Variation(", undiluted", FEWER_TRAIN_BITS), _Variation(", undiluted alone", TRAIN_BITS[:1])
VARIATIONS = (BASELINE, UNDILUTED, ONLY_UNDILUTED, LETTER_CODING, WINDOW, ROTARY, SKIPWISE, COUNT_WEIGHTS)
MAX_BITS_BY_LABEL = {variation.label(bits): bits for variation in VARIATIONS for bits in variation.train_bits}


def _build_experiments() -> dict[str, Experiment]:
    return {kind.label(bits): _build_experiment(kind, bits) for kind in VARIATIONS for bits in kind.train_bits}


def _build_experiment(variation: _Variation, max_bits: int) -> Experiment:
    experiment = sparse_parity_up_to(
        max_bits,
        coding="letters" if variation is LETTER_CODING else "flags",
        window=16 if variation is WINDOW else None,
        test_bits=ALL_TEST_BITS if variation is BASELINE else TEST_BITS,
    )
    if variation in (ROTARY, SKIPWISE):
        experiment = replace(experiment, encoding=Rotary())
    if variation is SKIPWISE:
        experiment = replace(experiment, scheme=Skipwise(num_position_ids=8192))
    if variation in (UNDILUTED, ONLY_UNDILUTED, COUNT_WEIGHTS):
        weights = "count" if variation is COUNT_WEIGHTS else "softmax"
        experiment = replace(experiment, decoder=replace(experiment.decoder, weights=weights, dilution=0.0))
    if variation is UNDILUTED:
        # Settings tuned without dilution: training must stop soon after the run fits.
        training = replace(experiment.training, stage_threshold=0.05, fit_threshold=0.99, cooldown_steps=600)
        experiment = replace(experiment, training=training)
    return experiment


def _build_tables(rows: Rows, measurements: Rows) -> list[Table]:
    max_train_length = max(int(row["train_lengths"][1]) for row in rows)
    near, *far_lengths = dict.fromkeys((min(_test_lengths(rows)), _figure_length(rows), max(_test_lengths(rows))))
    heat_map_tables = [_exact_match_table(rows, length, max_train_length) for length in (near, *far_lengths)]
    return heat_map_tables + [_growth_table(rows, near, far_length) for far_length in far_lengths]


def _exact_match_table(rows: Rows, length: int, max_train_length: int) -> Table:
    body = []
    for label in _labels(rows):
        fits_by_seed = {
            row["seed"]: row["fitted"] >= FIT_THRESHOLD for row in rows if label_without_variant(row) == label
        }
        cells = [_select_rows(rows, label, length, {num_bits}) for num_bits in _test_bits(rows)]
        exact_match_cells = [f"{pool_seeds(cell)[0]:.3f}" if cell else "-" for cell in cells]
        given = find_given_knowledge([row for row in rows if label_without_variant(row) == label])
        body.append([label, given, f"{sum(fits_by_seed.values())} of {len(fits_by_seed)}", *exact_match_cells])
    title = f"exact match at length {length:,}, by number of flagged bits; training length up to {max_train_length}"
    return title, ["row", "given", "seeds that fit", *map(str, _test_bits(rows))], body


def _growth_table(rows: Rows, near: int, far: int) -> Table:
    """Return the growth of the loss from ``near`` to ``far``, for runs and numbers of bits that fit at ``near``."""
    body = []
    for variation in VARIATIONS:
        labels = list(map(variation.label, variation.train_bits))
        trained_rows = [
            row for row in rows if label_without_variant(row) in labels and _num_bits(row) <= _train_bits(row)
        ]
        if not trained_rows:
            continue
        near_rows = {
            (label_without_variant(row), row["seed"], _num_bits(row)): row
            for row in trained_rows
            if row["length"] == near
        }
        pairs = [
            (near_rows[label_without_variant(row), row["seed"], _num_bits(row)], row)
            for row in trained_rows
            if row["length"] == far and row["answer_loss"] is not None
        ]
        fit_pairs = [pair for pair in pairs if min(pair[0]["exact_match"], pair[0]["fitted"]) >= FIT_THRESHOLD]
        loss_pairs = [
            LossPair(
                seed=near_row["seed"],
                train_bits=_train_bits(near_row),
                test_bits=_num_bits(near_row),
                near_loss=near_row["answer_loss"],
                far_loss=far_row["answer_loss"],
            )
            for near_row, far_row in fit_pairs
        ]
        growth = fit_growth(loss_pairs, random_stream(0, "seeds drawn again", variation.name))
        if growth is None:
            factors = ["-", "-", "-"]
        else:
            factors = [_factor_text(growth.per_train_bit), _factor_text(growth.per_test_bit), f"{growth.power:.2f}"]
        body.append([f"up to K bits{variation.name}", f"{len(fit_pairs)} of {len(pairs)}", *factors])
    title = f"growth of the loss at {far:,}, at equal loss at {near}: factors with 95% intervals over seeds"
    factor_headers = ["factor per bit in training", "factor per bit in the test", f"power of the loss at {near}"]
    return title, ["rows", "cells that fit", *factor_headers], body


def _factor_text(factor: GrowthFactor) -> str:
    if factor.interval is None:
        return f"{factor.value:.2f}"
    return f"{factor.value:.2f} [{factor.interval[0]:.2f}, {factor.interval[1]:.2f}]"


def _draw_figure(rows: Rows, measurements: Rows, folder: Path, title: str) -> Path:
    """Draw two panels per variation: exact match by test length, and by number of flagged bits at one long length."""
    # Importing matplotlib takes a second, and most commands draw no figure.
    from matplotlib.figure import Figure  # noqa: PLC0415

    far_length = _figure_length(rows)
    labels_by_variation = {
        variation: labels
        for variation in VARIATIONS
        if (labels := [label for label in _labels(rows) if label in map(variation.label, variation.train_bits)])
    }
    num_panels = len(labels_by_variation)
    height = 1.7 + 2.3 * num_panels
    figure = Figure(figsize=(FIGURE_WIDTH, height))
    sides = {"left": 0.09, "right": 0.97, "top": 1 - 0.8 / height, "bottom": 1.2 / height}
    panels = figure.subplots(num_panels, 2, squeeze=False, gridspec_kw={**sides, "wspace": 0.38, "hspace": 0.65})
    for (length_axes, heat_map_axes), (variation, labels) in zip(panels, labels_by_variation.items(), strict=True):
        ends = [_draw_by_length(length_axes, rows, label) for label in labels]
        train_lengths = next(row["train_lengths"] for row in rows if label_without_variant(row) in labels)
        length_axes.set(ylim=(-0.03, 1.03), xlabel="length (log scale)")
        set_length_axis(length_axes, _test_lengths(rows), train_lengths)
        label_lines(length_axes, ends)
        length_axes.grid(alpha=0.3)
        length_axes.set_title(f"up to K bits{variation.name}", fontsize=FONT_SIZE, pad=18, loc="left")
        image = _draw_heat_map(heat_map_axes, rows, labels, far_length)
        heat_map_axes.set(xlabel="flagged bits", ylabel="K")
        heat_map_axes.set_title(f"length {far_length:,}", fontsize=FONT_SIZE, loc="left")
        for axes in (length_axes, heat_map_axes):
            axes.tick_params(labelsize=FONT_SIZE)
    color_bar = figure.colorbar(
        image, cax=figure.add_axes((0.6, 0.62 / height, 0.37, 0.1 / height)), orientation="horizontal"
    )
    color_bar.ax.tick_params(labelsize=FONT_SIZE)
    seeds = [len({row["seed"] for row in rows if label_without_variant(row) == label}) for label in _labels(rows)]
    caption = (
        "Left: exact match by length, for numbers of bits as in training; labels: K; bands: range over seeds.\n"
        "Right: exact match, mean over seeds (colors)."
    )
    figure.suptitle(f"{title}, {count_seeds(seeds)}", x=0.015, y=1 - 0.08 / height, ha="left", fontsize=FONT_SIZE + 1)
    figure.text(0.015, 0.05 / height, caption, fontsize=FONT_SIZE, color="0.3", va="bottom")
    return save_figure(figure, folder)


def _draw_by_length(axes: Any, rows: Rows, label: str) -> LineLabel:
    """Draw the line and the band of one label, and return its text, color and last value."""
    test_bits = {num_bits for num_bits in _test_bits(rows) if num_bits <= MAX_BITS_BY_LABEL[label]}
    cells = {length: cell for length in _test_lengths(rows) if (cell := _select_rows(rows, label, length, test_bits))}
    color = LINE_COLORS[TRAIN_BITS.index(MAX_BITS_BY_LABEL[label])]
    mean_exact_match = [pool_seeds(cell)[0] for cell in cells.values()]
    axes.plot(list(cells), mean_exact_match, "-o", color=color, markersize=4)
    seed_means = [
        [pool_seeds([row for row in cell if row["seed"] == seed])[0] for seed in {row["seed"] for row in cell}]
        for cell in cells.values()
    ]
    axes.fill_between(list(cells), list(map(min, seed_means)), list(map(max, seed_means)), color=color, alpha=0.15)
    return LineLabel(text=str(MAX_BITS_BY_LABEL[label]), color=color, value=mean_exact_match[-1])


def _draw_heat_map(axes: Any, rows: Rows, labels: list[str], length: int) -> Any:
    bit_counts = _test_bits([row for row in rows if label_without_variant(row) in labels])
    exact_match_rows = [
        [pool_seeds(cell)[0] if (cell := _select_rows(rows, label, length, {bits})) else nan for bits in bit_counts]
        for label in labels
    ]
    image = axes.imshow(exact_match_rows, vmin=0.5, vmax=1.0, cmap="viridis", aspect="auto")
    # Labels of more than ten numbers would overlap.
    step = 1 if len(bit_counts) <= 10 else 3
    axes.set_xticks(range(0, len(bit_counts), step), map(str, bit_counts[::step]))
    axes.set_yticks(range(len(labels)), [str(MAX_BITS_BY_LABEL[label]) for label in labels])
    return image


def _train_bits(row: Mapping[str, Any]) -> int:
    return MAX_BITS_BY_LABEL[label_without_variant(row)]


def _labels(rows: Rows) -> list[str]:
    return list(dict.fromkeys(map(label_without_variant, rows)))


def _test_lengths(rows: Rows) -> list[int]:
    return sorted({int(row["length"]) for row in rows})


def _figure_length(rows: Rows) -> int:
    return FIGURE_LENGTH if FIGURE_LENGTH in _test_lengths(rows) else max(_test_lengths(rows))


def _test_bits(rows: Rows) -> list[int]:
    return sorted({_num_bits(row) for row in rows})


def _num_bits(row: Mapping[str, Any]) -> int:
    return int(str(row["variant"]).removeprefix("flagged-"))


def _select_rows(rows: Rows, label: str, length: int, bits: set[int]) -> Rows:
    return [
        row
        for row in rows
        if label_without_variant(row) == label and row["length"] == length and _num_bits(row) in bits
    ]


CLAIM = Claim(
    summary="sparse parity without scratchpad to 100 times the length, by bits in training and in the test",
    paper="section 5.1",
    experiments=_build_experiments,
    laptop=SizePreset(num_seeds=2, labels=(BASELINE.label(4), BASELINE.label(6)), max_length=500),
    tables=_build_tables,
    draw=_draw_figure,
)

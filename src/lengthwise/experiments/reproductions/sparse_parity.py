"""The claim about sparse parity (section 5.1): how far it holds falls with the number of bits trained on."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import Any

from lengthwise.core.randomness import stream
from lengthwise.encodings import Rotary
from lengthwise.evaluation.tables_and_figures import FITTED, Rows, label_of, pooled, save_figure
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes.sparse_parity import TESTED, sparse_parity_up_to
from lengthwise.experiments.reproductions.claim import Claim, Size, Table
from lengthwise.experiments.reproductions.excess_risk import Cell, Factor, growth
from lengthwise.positions import Skipwise

TRAINED = (4, 6, 8, 10, 12)
# With fewer ways to place and code them, as many as train in minutes.
FEWER = TRAINED[:3]
# Numbers of flagged bits that the plain rows are tested on; the others on fewer.
EVERY = tuple(range(1, 17))
# Where the paper's figure has no known length, ours shows ten times the longest trained one.
SHOWN = 500
# One for each number of bits trained on.
COLORS = ("#2471a3", "#c0392b", "#1e8449", "#b9770e", "#7d3c98")


@dataclass(frozen=True, slots=True)
class _Kind:
    """Rows that differ in the number of bits trained on."""

    name: str
    trained: tuple[int, ...]

    def label(self, most: int) -> str:
        return f"up to {most} bits{self.name}"


PLAIN, LETTERS, WINDOW = _Kind("", TRAINED), _Kind(" among letters", TRAINED), _Kind(" within 16", FEWER)
ROTARY, SKIPWISE = _Kind(", rotary", FEWER), _Kind(", rotary + PoSE", FEWER)
UNDILUTED, COUNTING = _Kind(", undiluted", FEWER), _Kind(", counting", FEWER)
# Undiluted, and nothing else changed.
ONLY_UNDILUTED = _Kind(", undiluted alone", TRAINED[:1])
KINDS = (PLAIN, UNDILUTED, ONLY_UNDILUTED, LETTERS, WINDOW, ROTARY, SKIPWISE, COUNTING)
MOST = {kind.label(most): most for kind in KINDS for most in kind.trained}


def _experiments() -> dict[str, Experiment]:
    return {kind.label(most): _experiment(kind, most) for kind in KINDS for most in kind.trained}


def _experiment(kind: _Kind, most: int) -> Experiment:
    made = sparse_parity_up_to(
        most,
        coding="letters" if kind is LETTERS else "flags",
        window=16 if kind is WINDOW else None,
        tested=EVERY if kind is PLAIN else TESTED,
    )
    if kind in (ROTARY, SKIPWISE):
        made = replace(made, encoding=Rotary())
    if kind is SKIPWISE:
        made = replace(made, scheme=Skipwise(num_position_ids=8192))
    if kind in (UNDILUTED, ONLY_UNDILUTED, COUNTING):
        weights = "count" if kind is COUNTING else "softmax"
        made = replace(made, decoder=replace(made.decoder, weights=weights, dilution=0.0))
    if kind is UNDILUTED:
        # What was tuned without: it has to stop soon after it fits.
        before = replace(made.training, stage_loss=0.05, fit_threshold=0.99, cooldown_steps=600)
        made = replace(made, training=before)
    return made


def _tables(rows: Rows, readings: Rows) -> list[Table]:
    """Heat maps of bits trained on by bits tested, near and far, and how the loss far out grows with both."""
    trained = max(int(row["train_lengths"][1]) for row in rows)
    near, *beyond = dict.fromkeys((min(_lengths(rows)), _shown(rows), max(_lengths(rows))))
    maps = [_heat_map(rows, length, trained) for length in (near, *beyond)]
    return maps + [_excess(rows, near, far) for far in beyond]


def _heat_map(rows: Rows, length: int, trained: int) -> Table:
    body = []
    for label in _labels(rows):
        fits = {row["seed"]: row["fitted"] >= FITTED for row in rows if label_of(row) == label}
        cells = [_cell(rows, label, length, {number}) for number in _tested(rows)]
        shares = [f"{pooled(cell)[0]:.3f}" if cell else "-" for cell in cells]
        body.append([label, f"{sum(fits.values())} of {len(fits)}", *shares])
    title = f"exact match at length {length:,}, by bits flagged; trained up to {trained}"
    return title, ["row", "seeds that fit", *map(str, _tested(rows))], body


def _excess(rows: Rows, near: int, far: int) -> Table:
    """Only models that fit, on as many bits as they were trained on or fewer, where they are right at ``near``."""
    body = []
    for kind in KINDS:
        own = [row for row in rows if label_of(row) in map(kind.label, kind.trained) and _number(row) <= _most(row)]
        if not own:
            continue
        known = {(label_of(row), row["seed"], _number(row)): row for row in own if row["length"] == near}
        pairs = [
            (known[label_of(row), row["seed"], _number(row)], row)
            for row in own
            if row["length"] == far and row["answer_loss"] is not None
        ]
        fit = [pair for pair in pairs if pair[0]["exact_match"] >= FITTED and pair[0]["fitted"] >= FITTED]
        cells = [
            Cell(
                seed=home["seed"],
                trained=_most(home),
                tested=_number(home),
                home=home["answer_loss"],
                far=away["answer_loss"],
            )
            for home, away in fit
        ]
        found = growth(cells, stream(0, "seeds drawn again", kind.name))
        if found is None:
            factors = ["-", "-", "-"]
        else:
            factors = [_shown_factor(found.trained), _shown_factor(found.tested), f"{found.power:.2f}"]
        body.append([f"up to K bits{kind.name}", f"{len(fit)} of {len(pairs)}", *factors])
    title = f"loss at {far:,}, at the same loss at {near}: multiplied by, with 95% interval over seeds"
    by = ["for one more bit trained on", "for one more bit tested", f"power of the loss at {near}"]
    return title, ["rows", "cells that fit", *by], body


def _shown_factor(factor: Factor) -> str:
    if factor.interval is None:
        return f"{factor.value:.2f}"
    return f"{factor.value:.2f} [{factor.interval[0]:.2f}, {factor.interval[1]:.2f}]"


def _draw(rows: Rows, readings: Rows, folder: Path, title: str) -> Path:
    """A line of panels for each kind: exact match by length of bits as in training, and by bits far out."""
    # Imported here: it takes a second, and most commands draw nothing.
    from matplotlib.figure import Figure  # noqa: PLC0415

    shown = _shown(rows)
    kinds = {kind: [label for label in _labels(rows) if label in map(kind.label, kind.trained)] for kind in KINDS}
    kinds = {kind: labels for kind, labels in kinds.items() if labels}
    figure = Figure(figsize=(13, 1 + 2.8 * len(kinds)), layout="constrained")
    panels = figure.subplots(len(kinds), 2, squeeze=False)
    for (by_length, heat), (kind, labels) in zip(panels, kinds.items(), strict=True):
        for label in labels:
            _draw_by_length(by_length, rows, label)
        name = f"up to K bits{kind.name}"
        by_length.set(xscale="log", xlabel="length (log scale)", ylabel="exact match", ylim=(-0.03, 1.03), title=name)
        by_length.grid(alpha=0.3)
        by_length.legend(fontsize=8, title="K", loc="lower left")
        image = _draw_heat(heat, rows, labels, shown)
        heat.set(xlabel="bits flagged", ylabel="K", title=f"{name}: length {shown:,}")
    figure.colorbar(image, ax=panels[:, 1], label="exact match, mean of seeds", shrink=0.5)
    figure.suptitle(f"{title}; on the left no more bits than trained on, bands from the lowest to the highest seed")
    return save_figure(figure, folder)


def _draw_by_length(axes: Any, rows: Rows, label: str) -> None:
    known = {number for number in _tested(rows) if number <= MOST[label]}
    cells = {length: cell for length in _lengths(rows) if (cell := _cell(rows, label, length, known))}
    color = COLORS[TRAINED.index(MOST[label])]
    axes.plot(list(cells), [pooled(cell)[0] for cell in cells.values()], "-o", color=color, label=str(MOST[label]))
    of_seeds = [
        [pooled([row for row in cell if row["seed"] == seed])[0] for seed in {row["seed"] for row in cell}]
        for cell in cells.values()
    ]
    axes.fill_between(list(cells), list(map(min, of_seeds)), list(map(max, of_seeds)), color=color, alpha=0.15)


def _draw_heat(axes: Any, rows: Rows, labels: list[str], length: int) -> Any:
    tested = _tested([row for row in rows if label_of(row) in labels])
    squares = [
        [pooled(cell)[0] if (cell := _cell(rows, label, length, {number})) else nan for number in tested]
        for label in labels
    ]
    image = axes.imshow(squares, vmin=0.5, vmax=1.0, cmap="viridis", aspect="auto")
    axes.set_xticks(range(len(tested)), map(str, tested))
    axes.set_yticks(range(len(labels)), [str(MOST[label]) for label in labels])
    return image


def _most(row: Mapping[str, Any]) -> int:
    """The number of bits it was trained on."""
    return MOST[label_of(row)]


def _labels(rows: Rows) -> list[str]:
    return list(dict.fromkeys(map(label_of, rows)))


def _lengths(rows: Rows) -> list[int]:
    return sorted({int(row["length"]) for row in rows})


def _shown(rows: Rows) -> int:
    """Ten times the longest trained length or, where that is not tested, the longest one that is."""
    return SHOWN if SHOWN in _lengths(rows) else max(_lengths(rows))


def _tested(rows: Rows) -> list[int]:
    return sorted({_number(row) for row in rows})


def _number(row: Mapping[str, Any]) -> int:
    return int(str(row["variant"]).removeprefix("flagged-"))


def _cell(rows: Rows, label: str, length: int, numbers: set[int]) -> Rows:
    return [row for row in rows if label_of(row) == label and row["length"] == length and _number(row) in numbers]


SPARSE_PARITY = Claim(
    name="sparse_parity",
    summary="sparse parity without scratchpad: bits trained on by bits tested, to 100 times the length",
    paper="section 5.1",
    experiments=_experiments,
    laptop=Size(num_seeds=2, rows=(PLAIN.label(4), PLAIN.label(6)), longest=500),
    tables=_tables,
    draw=_draw,
)

"""Plot docs/theory.png and docs/position_coupling.png with ``python benchmarks/theory_figure.py``, in a few seconds.

The first figure shows the exact risk of the learned head and of the witness, a better head of the same class, by length
in every counterexample. The second figure shows the exact risk before and after position coupling. Training lengths
are shaded. The figures are deterministic.
"""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from lengthwise.evaluation.figure_layout import LINE_COLORS, LineLabel, label_lines, make_panels, set_length_axis
from lengthwise.theory.attention.position_coupling import CoupledAttention, HalfLengthPlacement, couple_sequence_halves
from lengthwise.theory.counterexamples import (
    COUNTEREXAMPLES,
    FILLER,
    Counterexample,
    build_pair_attention,
    build_pair_task,
    make_bit_pair_score,
)
from lengthwise.theory.risk.exact_risk import TotalVariationLoss, enumerated_risk

FIGURE = Path("docs/theory.png")
COUPLING_FIGURE = Path("docs/position_coupling.png")
# Smaller risks are plotted at this value, because a logarithmic axis has no 0.
FLOOR = 1e-17
# Additional lengths that are quick to enumerate.
MORE_LENGTHS = {
    "new background token": (8, 9),
    "canceling errors": (2, 3, 7, 8, 9),
    "small leak": (15, 20),
    "heavy cuts": (6,),
}
# Second half of a title, if it is not "without" and the name of the assumption.
TITLE_ENDINGS = {"canceling errors": "with one training length", "small leak": "although all assumptions hold"}
# Name, style and color of each curve.
CURVES = (("learned", "o-", LINE_COLORS[1]), ("witness", "s--", LINE_COLORS[0]))
CAPTION = (
    f"Exact risks (log scale), without random seeds; risks below {FLOOR:g} are drawn at {FLOOR:g}. Learned: a head "
    "that is about as good as the witness on the training lengths (shaded). Witness: a head of the same class with a "
    "small risk at all lengths."
)
# Lengths before and after coupling; both halves have the same number of tokens. Training ends at TRAIN_LENGTH.
COUPLED_LENGTHS = (2, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64)
TRAIN_LENGTH = 8
# Score that the learned head gives to two fillers with the same ID, if the score of planted pairs is 1.
LEAK = 1e-3
COUPLING_FLOOR = 1e-5
# Points of a curve: length and risk.
Curve = list[tuple[int, float]]
COUPLING_CAPTION = (
    f"Exact risks (log scale) of a law whose planted pair is half the length apart; risks below {COUPLING_FLOOR:g} are "
    f"drawn at {COUPLING_FLOOR:g}. Before: scores depend on distances between token indexes. After: both tokens of the "
    f"pair have the same position ID, and the bound is (M - 1) / (M' - 1) times the risk at length {TRAIN_LENGTH}, for "
    f"M IDs at a length and M' IDs at length {TRAIN_LENGTH}."
)


def title(example: Counterexample) -> str:
    """Return the name of a counterexample and the assumption that does not hold."""
    ending = TITLE_ENDINGS.get(example.name, f"without {example.assumption.split(':')[0]}")
    return f"{example.name}, {ending}"


def plot(axes: Axes, example: Counterexample) -> None:
    """Plot the two curves of one counterexample with the training lengths shaded."""
    more_lengths = MORE_LENGTHS.get(example.name, ())
    risks = example.compute_risks((*example.train_lengths, *example.test_lengths, *more_lengths))
    lengths, labels = [each.length for each in risks], []
    for name, style, color in CURVES:
        values = np.maximum([getattr(each, name) for each in risks], FLOOR)
        axes.plot(lengths, values, style, color=color, markersize=4)
        labels.append(LineLabel(text=name, color=color, value=float(values[-1])))
    axes.set(yscale="log", ylim=(FLOOR / 5, 5), ylabel="exact risk", xlabel="length (log scale)")
    axes.yaxis.set_major_locator(LogLocator(base=1e5))
    axes.minorticks_off()
    set_length_axis(axes, lengths, (min(example.train_lengths), max(example.train_lengths)))
    label_lines(axes, labels)


def coupled_head() -> CoupledAttention:
    """Return the learned head over IDs: it reads pairs with the same ID, and leaks ``LEAK`` to pairs of fillers."""

    def score(gap: int, first: int, second: int) -> float:
        return make_bit_pair_score([gap])(gap, first, second) + LEAK * (first == second == FILLER)

    tables = build_pair_attention(score, [1])
    return CoupledAttention(
        num_tokens=tables.num_tokens,
        coupling=couple_sequence_halves,
        offsets=np.array([[0, 0]]),
        log_scores=tables.log_scores,
        values=tables.values,
        default=tables.default,
    )


def coupling_curves() -> tuple[dict[str, Curve], dict[str, Curve]]:
    """Return lengths and risks by name, before and after coupling; the bound starts at the longest training length."""
    risks = COUNTEREXAMPLES["growing gap"].compute_risks(COUPLED_LENGTHS)
    before = {name: [(each.length, getattr(each, name)) for each in risks] for name in ("learned", "witness")}
    law, head = build_pair_task(HalfLengthPlacement()), coupled_head()
    after = [(length, enumerated_risk(law, head, length, TotalVariationLoss()).mean) for length in COUPLED_LENGTHS]
    test_lengths = [length for length in COUPLED_LENGTHS if length >= TRAIN_LENGTH]
    growth = [(length // 2 - 1) / (TRAIN_LENGTH // 2 - 1) for length in test_lengths]
    bound = [(length, factor * dict(after)[TRAIN_LENGTH]) for length, factor in zip(test_lengths, growth, strict=True)]
    return before, {"learned": after, "bound": bound}


def plot_coupling() -> None:
    """Plot the risk before and after coupling into two panels with the same axes."""
    curves = coupling_curves()
    titles = ["before: distances between token indexes", "after: differences of coupled IDs"]
    figure, panels = make_panels(titles, [list(each) for each in curves], COUPLING_CAPTION, num_columns=2)
    for axes, risks in zip(panels, curves, strict=True):
        labels = []
        for (name, points), (_, style, color) in zip(risks.items(), CURVES, strict=True):
            lengths, values = zip(*points, strict=True)
            drawn = np.maximum(values, COUPLING_FLOOR)
            axes.plot(lengths, drawn, style, color=color, markersize=4)
            labels.append(LineLabel(text=name, color=color, value=float(drawn[-1])))
        axes.set(yscale="log", ylim=(COUPLING_FLOOR / 2, 2), ylabel="exact risk", xlabel="length (log scale)")
        axes.minorticks_off()
        set_length_axis(axes, COUPLED_LENGTHS, (min(COUPLED_LENGTHS), TRAIN_LENGTH))
        label_lines(axes, labels)
    figure.savefig(COUPLING_FIGURE, dpi=110)
    print(f"wrote {COUPLING_FIGURE}")


def plot_counterexamples() -> None:
    """Plot all counterexamples into one figure."""
    examples = list(COUNTEREXAMPLES.values())
    labels = [[name for name, _, _ in CURVES]] * len(examples)
    figure, panels = make_panels([title(example) for example in examples], labels, CAPTION, num_columns=2)
    for axes, example in zip(panels, examples, strict=True):
        plot(axes, example)
    figure.savefig(FIGURE, dpi=160)
    print(f"wrote {FIGURE}")


def main() -> None:
    """Plot both figures."""
    plot_counterexamples()
    plot_coupling()


if __name__ == "__main__":
    main()

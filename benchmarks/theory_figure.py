"""Plot the counterexamples to docs/theory.png with ``python benchmarks/theory_figure.py``, in a few seconds.

The curves show the exact risk of the learned head and of the witness, a better head of the same class, by length.
Training lengths are shaded. The figure is deterministic.
"""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from lengthwise.evaluation.figure_layout import LINE_COLORS, LineLabel, label_lines, make_panels, set_length_axis
from lengthwise.theory.counterexamples import COUNTEREXAMPLES
from lengthwise.theory.counterexamples.counterexample import Counterexample

FIGURE = Path("docs/theory.png")
# Smaller risks are plotted at this value, because a logarithmic axis has no 0.
FLOOR = 1e-17
# Additional lengths that are quick to enumerate.
MORE_LENGTHS = {
    "new background token": (8, 9),
    "canceling errors": (2, 3, 7, 8, 9),
    "small leak": (15, 20),
    "heavy joints": (6,),
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


def title(example: Counterexample) -> str:
    """Return the name of a counterexample and the assumption that does not hold."""
    ending = TITLE_ENDINGS.get(example.name, f"without {example.assumption.split(':')[0]}")
    return f"{example.name}, {ending}"


def plot(axes: Axes, example: Counterexample) -> None:
    """Plot the two curves of one counterexample with the training lengths shaded."""
    more_lengths = MORE_LENGTHS.get(example.name, ())
    risks = example.run((*example.train_lengths, *example.test_lengths, *more_lengths))
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


def main() -> None:
    """Plot all counterexamples into one figure."""
    examples = list(COUNTEREXAMPLES.values())
    labels = [[name for name, _, _ in CURVES]] * len(examples)
    figure, panels = make_panels([title(example) for example in examples], labels, CAPTION, num_columns=2)
    for axes, example in zip(panels, examples, strict=True):
        plot(axes, example)
    figure.savefig(FIGURE, dpi=160)
    print(f"wrote {FIGURE}")


if __name__ == "__main__":
    main()

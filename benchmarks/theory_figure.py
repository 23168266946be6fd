"""Plot the counterexamples to docs/theory.png with ``python benchmarks/theory_figure.py``, in a few seconds.

The curves show the exact risk of the learned head and of the witness, a better head of the same class, by length.
Training lengths are shaded. The figure is deterministic.
"""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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


def plot(axes: Axes, example: Counterexample) -> None:
    """Plot the two curves of one counterexample with the training lengths shaded."""
    more_lengths = MORE_LENGTHS.get(example.name, ())
    risks = example.run((*example.train_lengths, *example.test_lengths, *more_lengths))
    lengths = [each.length for each in risks]
    axes.axvspan(min(example.train_lengths) - 0.5, max(example.train_lengths) + 0.5, color="0.92")
    learned, witness = (np.maximum([getattr(each, head) for each in risks], FLOOR) for head in ("learned", "witness"))
    axes.plot(lengths, learned, "o-", color="#c0392b", label="learned")
    axes.plot(lengths, witness, "s--", color="#2471a3", label="witness", markersize=4)
    axes.set(yscale="log", ylim=(FLOOR / 3, 3), title=f"{example.name}\n({example.assumption.split(':')[0]})")
    axes.title.set_fontsize(8)
    axes.tick_params(labelsize=8)


def main() -> None:
    """Plot all counterexamples into one figure."""
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    grid = figure.subplots(3, 3)
    for axes, example in zip(grid.flat, COUNTEREXAMPLES.values(), strict=True):
        plot(axes, example)
    for axes in grid[:, 0]:
        axes.set_ylabel("exact risk", fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("length (shaded: training lengths)", fontsize=8)
    grid[0, 0].legend(fontsize=8, loc="center left")
    figure.savefig(FIGURE, dpi=110)
    print(f"wrote {FIGURE}")


if __name__ == "__main__":
    main()

"""The counterexamples as curves: ``python benchmarks/theory_figure.py`` draws docs/theory.png in a few seconds.

Exact risk by length of what was learned and of the witness, a better head of the same class; the trained lengths are
shaded. Nothing is random.
"""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lengthwise.theory.counterexamples import COUNTEREXAMPLES
from lengthwise.theory.counterexamples.counterexample import Counterexample, columns

FIGURE = Path("docs/theory.png")
# Below this a risk is drawn as this: 0 has no place on a logarithmic axis.
FLOOR = 1e-17
# Where enumeration is quick, beyond what the table tests.
ALSO = {"C5": (8, 9), "C6": (2, 3, 7, 8, 9), "C7": (15, 20), "C8": (6,)}


def draw(axes: Axes, example: Counterexample) -> None:
    """One counterexample: two curves, the trained lengths shaded."""
    data = columns(example.run((*example.trained, *example.tested, *ALSO.get(example.name, ()))))
    trained = data["length"][data["trained"]]
    axes.axvspan(trained.min() - 0.5, trained.max() + 0.5, color="0.92")
    axes.plot(data["length"], np.maximum(data["learned"], FLOOR), "o-", color="#c0392b", label="learned")
    axes.plot(data["length"], np.maximum(data["witness"], FLOOR), "s--", color="#2471a3", label="witness", markersize=4)
    axes.set(yscale="log", ylim=(FLOOR / 3, 3), title=f"{example.name}: {example.assumption.split(':')[0]}")
    axes.title.set_fontsize(8)
    axes.tick_params(labelsize=8)


def main() -> None:
    """Draw all into one figure."""
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    grid = figure.subplots(3, 3)
    for axes, example in zip(grid.flat, COUNTEREXAMPLES.values(), strict=True):
        draw(axes, example)
    for axes in grid[:, 0]:
        axes.set_ylabel("exact risk", fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("length (shaded: trained)", fontsize=8)
    grid[0, 0].legend(fontsize=8, loc="center left")
    figure.savefig(FIGURE, dpi=110)
    print(f"wrote {FIGURE}")


if __name__ == "__main__":
    main()

"""The contract of a claim: which runs show it, at which sizes, and what is read off their rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lengthwise.core.errors import unknown_name
from lengthwise.evaluation.tables_and_figures import Rows, draw
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import quick
from lengthwise.experiments.run import Run

# A title, a header and rows of a table.
Table = tuple[str, list[str], list[list[str]]]
SIZES = ("quick", "laptop", "full", "gpu")
# Settings were chosen on seeds below this one.
FIRST_SEED = 9000


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of a claim is run: which rows (None: all), how many seeds, and where it ends early.

    ``longest`` is the longest length tested, ``most_steps`` the most that a row is trained for.
    """

    num_seeds: int
    rows: tuple[str, ...] | None = None
    longest: int | None = None
    most_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement of the paper, or one that goes on from it, and the experiments that show it.

    ``experiments`` are the rows at full size. ``read``, where there is one, looks at a trained run and its rows, and
    answers with values to be written down, beside the ``row`` and the ``seed``. ``tables`` are read off the results and
    these readings, besides exact match by length; ``draw`` makes a figure of both in a folder, and says where.
    """

    name: str
    summary: str
    paper: str
    experiments: Callable[[], dict[str, Experiment]]
    laptop: Size
    full: Size = Size(num_seeds=5)
    read: Callable[[Run, Rows], Mapping[str, Any]] | None = None
    tables: Callable[[Rows, Rows], list[Table]] = lambda rows, readings: []
    draw: Callable[[Rows, Rows, Path, str], Path] = lambda rows, readings, folder, title: draw(rows, folder, title)

    def experiments_at(self, size: str, first_seed: int = FIRST_SEED) -> tuple[dict[str, Experiment], int]:
        """The experiments of a size and with how many seeds each, counted from ``first_seed``.

        ``quick`` has every row, and only shows that they run; ``gpu`` is ``full``.
        """
        if size not in SIZES:
            raise unknown_name("size", size, SIZES)
        known = {label: replace(each, seed=first_seed) for label, each in self.experiments().items()}
        asked = self.full if size in ("full", "gpu") else self.laptop
        if size == "quick":
            return {label: quick(each) for label, each in known.items()}, 1
        labels = known if asked.rows is None else asked.rows
        return {label: _within(known[label], asked) for label in labels}, asked.num_seeds

    def default_labels(self, size: str) -> tuple[str, ...] | None:
        """The rows that are run where none are asked for; None: all of them. For ``quick``, those of ``laptop``."""
        return self.laptop.rows if size == "quick" else None


def _within(experiment: Experiment, size: Size) -> Experiment:
    training, tests = experiment.training, experiment.evaluation
    if size.most_steps is not None and training.steps > size.most_steps:
        training = replace(training, steps=size.most_steps)
    if size.longest is not None:
        kept = [place for place, length in enumerate(tests.lengths) if length <= size.longest]
        lengths = tuple(tests.lengths[place] for place in kept)
        tests = replace(tests, lengths=lengths, num_examples=tuple(tests.examples_at(place) for place in kept))
    return replace(experiment, training=training, evaluation=tests)

"""Pairs of a position scheme and an encoding that the comparisons which_parity, which_copy and which_addition omit."""

from itertools import product

from lengthwise.encodings import ENCODINGS
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes.comparisons import GRID_TASKS, SCHEME_NAMES, scheme_encoding_grid
from lengthwise.positions import SCHEMES


def remaining_pairs_grid(task: str) -> dict[str, Experiment]:
    """Return experiments for the valid pairs of a scheme and an encoding that are not in the grid of the task."""
    table_pairs = set(product(SCHEME_NAMES, GRID_TASKS[task][2]))
    # With one level, multilevel equals coupled.
    all_pairs = product([name for name in SCHEMES if name != "multilevel"], ENCODINGS)
    return scheme_encoding_grid(task, (pair for pair in all_pairs if pair not in table_pairs))

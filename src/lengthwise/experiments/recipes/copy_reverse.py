"""Copy and reverse, trained on up to 20 symbols: parity's recipe on other tasks."""

from dataclasses import replace

from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes.parity import MAX_GAPS, parity
from lengthwise.positions import Predicted
from lengthwise.tasks import Copy, Reverse

# IDs up to 2,000 symbols and some room; declared in every table.
ID_RANGE = 4096


def copy() -> Experiment:
    """PPC on copying."""
    return replace(parity(), task=Copy(), scheme=Predicted(num_position_ids=ID_RANGE, max_gaps=MAX_GAPS))


def reverse() -> Experiment:
    """PPC on writing backwards."""
    return replace(copy(), task=Reverse())

"""Settings for PPC with a coupling that is found in examples of the task."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lengthwise.encodings import Rotary
from lengthwise.experiments.coupling_methods import find_coupling
from lengthwise.experiments.experiment import Experiment, build_sampler
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Discovered
from lengthwise.tasks import JSONLTask
from lengthwise.tasks.task import lengths_between
from lengthwise.training.training_settings import TrainingSettings

# Fast angles separate neighboring IDs, such as those of the digits that make a carry.
SHARP_ROTARY = Rotary(base=100.0, fastest=3.0)
# Number of IDs for a task file, whose longest test is unknown.
NUM_POSITION_IDS = 4096
# Smallest number of heads, and number of components of each.
MIN_HEADS, HEAD_SIZE = 4, 32


def with_found_coupling(experiment: Experiment, report: Callable[[dict[str, Any]], None] | None = None) -> Experiment:
    """Return an experiment with a coupling that is found in its task; raise ``CouplingError`` if none is found.

    In a task file, the search reads the records with training lengths only, so that longer records remain a test.
    """
    num_position_ids = experiment.scheme.num_position_ids
    # The sampler checks the training lengths, whose records the search reads.
    build_sampler(experiment, experiment.train_lengths)
    is_file = isinstance(experiment.task, JSONLTask)
    if num_position_ids is None or is_file:
        num_position_ids = NUM_POSITION_IDS
    lengths = lengths_between(experiment.task, *experiment.train_lengths) if is_file else None
    rule = find_coupling(experiment.task, lengths, report=report).rule
    return with_rule(experiment, rule.texts, num_position_ids=num_position_ids)


def with_rule(experiment: Experiment, rule: Sequence[str], *, num_position_ids: int) -> Experiment:
    """Return an experiment with a found coupling; ``rule`` has the texts of ``PointerRule.texts``."""
    scheme = Discovered(rule=tuple(rule), num_position_ids=num_position_ids, max_gaps=10)
    # Each head attends by the distance to one pointer, and all pointers have equally many heads.
    num_heads = scheme.num_levels * math.ceil(MIN_HEADS / scheme.num_levels)
    return replace(
        experiment,
        scheme=scheme,
        encoding=SHARP_ROTARY,
        decoder=DecoderSettings(
            num_layers=1,
            d_model=num_heads * HEAD_SIZE,
            num_heads=num_heads,
            level_per_head=True,
            head="wide_pointer",
            previous_token_mix=True,
            length_scaling="none",
            temperature=9.0,
        ),
        training=TrainingSettings(
            steps=4000, batch_size=128, learning_rate=2e-3, weight_decay=0.1, fit_every=100, cooldown_steps=800
        ),
    )

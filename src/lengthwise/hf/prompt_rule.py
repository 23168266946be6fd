"""The rule by which a run gives a prompt its position IDs, where it has one: counting up."""

import numpy as np

from lengthwise.core.randomness import stream
from lengthwise.encodings import NoPE
from lengthwise.experiments.experiment import Experiment
from lengthwise.positions import SCHEMES
from lengthwise.tasks import KeepsFiles
from lengthwise.tasks.examples import Examples

# Examples that are looked at for each length.
EXAMPLES = 16


def counted_from(experiment: Experiment) -> int | None:
    """Return the first ID of prompts whose IDs count up at evaluation, or None where they do anything else.

    Of a decoder that predicts no IDs, those of the response have to count on as well.
    """
    scheme = experiment.scheme
    if isinstance(experiment.encoding, NoPE) and not scheme.predicts_ids:
        # It reads no ID at all.
        return 0
    if scheme.draws_at_evaluation or scheme.real_valued:
        return None
    first: set[int] = set()
    for examples in _looked_at(experiment):
        rng = stream(experiment.seed, "IDs of prompts")
        ids = scheme.assign(examples, rng, training=False).position_ids
        index = np.arange(ids.shape[-1])
        last = examples.prompt_length - 1 if scheme.predicts_ids else examples.response_end
        if (((ids - index) != ids[..., :1]) & (index <= last[:, None])).any():
            return None
        first |= set(np.unique(ids[..., 0]).tolist())
    return first.pop() if len(first) == 1 else None


def _looked_at(experiment: Experiment) -> list[Examples]:
    task, lengths = experiment.task, experiment.train_lengths
    if isinstance(task, KeepsFiles):
        # Its files may be gone, and say of some examples nothing about the others.
        counts = experiment.scheme.needs is None and type(experiment.scheme) in SCHEMES.values()
        return [task.sketch()] if counts else []
    chosen = sorted({lengths[0], lengths[len(lengths) // 2], lengths[-1]})
    return [task.sample(length=length, size=EXAMPLES, rng=stream(experiment.seed, "prompts")) for length in chosen]

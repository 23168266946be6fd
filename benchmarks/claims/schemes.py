"""Position schemes that several claims compare with PPC."""

from dataclasses import replace

from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes.tuned_encodings import train_longer_until_fit
from lengthwise.positions import Coupled, Predicted, Randomized, RandomStart, Skipwise


def compare_with_schemes(
    ppc_experiment: Experiment, rotary_experiment: Experiment, *, ids_factor: int
) -> dict[str, Experiment]:
    """Return other position schemes by label: coupled IDs with the settings of PPC, the others with those of rotary.

    The others have up to three times the steps of rotary, and stop when they fit. ``skipwise``, ``randomized`` and
    ``random_start`` have ``ids_factor`` times as many IDs as PPC, because all their tokens have different IDs.
    """
    assert isinstance(ppc_experiment.scheme, Predicted)
    num_ids, max_gaps = ppc_experiment.scheme.num_position_ids, ppc_experiment.scheme.max_gaps
    coupled = Coupled(num_position_ids=num_ids, max_gaps=max_gaps)
    num_own_ids = ids_factor * num_ids
    rotary_experiment = replace(rotary_experiment, training=train_longer_until_fit(rotary_experiment.training))
    return {
        "coupled, IDs given": replace(ppc_experiment, scheme=coupled),
        "coupled, no gaps": replace(ppc_experiment, scheme=replace(coupled, max_gaps=0)),
        "rotary + PoSE": replace(rotary_experiment, scheme=Skipwise(num_position_ids=num_own_ids)),
        "rotary, randomized": replace(rotary_experiment, scheme=Randomized(num_position_ids=num_own_ids)),
        "rotary, random start": replace(rotary_experiment, scheme=RandomStart(num_position_ids=num_own_ids)),
    }

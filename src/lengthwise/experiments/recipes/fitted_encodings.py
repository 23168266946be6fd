"""Comparisons of PPC with common encodings, each with its own settings, which fit the training lengths of the task."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lengthwise.encodings import ALiBi, EncodingSettings, Learned, NoPE, Rotary, Sinusoidal
from lengthwise.experiments.experiment import Experiment
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Coupled, Predicted, Randomized, RandomStart, Sequential, Skipwise
from lengthwise.training.training_settings import TrainingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedEncoding:
    """Common encoding with the settings that ``benchmarks/fit_sweep.py`` found for a task.

    ``max_test_length`` is the longest test length that the encoding has position IDs for (None: any length).
    """

    encoding: EncodingSettings
    decoder: DecoderSettings
    training: TrainingSettings
    max_test_length: int | None = None


# The base settings of the search. Rotary has the published angles.
SMALL = DecoderSettings(num_layers=2, d_model=64, num_heads=4, length_scaling="none", temperature=1.0)
SMALL_WITH_PREVIOUS_TOKEN = replace(SMALL, previous_token_mix=True)
LARGE = DecoderSettings(num_layers=3, d_model=128, num_heads=4, length_scaling="none", temperature=1.0)

# The best settings of the search for copying up to 10 symbols. ALiBi has half as many steps again: with 1,000 steps, it
# fitted on 2 of 5 new seeds.
COPY_ENCODINGS = {
    "rotary": FittedEncoding(
        encoding=Rotary(), decoder=replace(SMALL, num_heads=2), training=TrainingSettings(steps=1000)
    ),
    "ALiBi": FittedEncoding(
        encoding=ALiBi(), decoder=SMALL_WITH_PREVIOUS_TOKEN, training=TrainingSettings(steps=1500, batch_size=128)
    ),
    "NoPE": FittedEncoding(encoding=NoPE(), decoder=SMALL_WITH_PREVIOUS_TOKEN, training=TrainingSettings(steps=3000)),
}

# The best settings of the search for parity of up to 10 bits.
FOUR_LAYERS = replace(LARGE, num_layers=4)
LARGE_TRAINING = TrainingSettings(steps=500, learning_rate=2e-3 / 3, batch_size=128)
PARITY_ENCODINGS = {
    "rotary": FittedEncoding(encoding=Rotary(), decoder=FOUR_LAYERS, training=LARGE_TRAINING),
    "sinusoidal": FittedEncoding(encoding=Sinusoidal(), decoder=FOUR_LAYERS, training=LARGE_TRAINING),
    "learned": FittedEncoding(
        encoding=Learned(),
        decoder=LARGE,
        training=TrainingSettings(steps=1500, learning_rate=1e-3, batch_size=128),
        max_test_length=100,
    ),
}
# The same decoder fits addition of up to 3 digits.
ADDITION_TRAINING = replace(LARGE_TRAINING, steps=1200)
ADDITION_ENCODINGS = {
    "rotary": FittedEncoding(encoding=Rotary(), decoder=FOUR_LAYERS, training=ADDITION_TRAINING),
    "sinusoidal": FittedEncoding(encoding=Sinusoidal(), decoder=FOUR_LAYERS, training=ADDITION_TRAINING),
    "learned": FittedEncoding(encoding=Learned(), decoder=FOUR_LAYERS, training=ADDITION_TRAINING, max_test_length=100),
}
# The best settings of the search for variable assignment with up to 5 assignments of 256 names.
ASSIGNMENT_TRAINING = TrainingSettings(steps=400, learning_rate=1e-3, batch_size=256)
ASSIGNMENT_ENCODINGS = {
    "rotary": FittedEncoding(encoding=Rotary(), decoder=LARGE, training=ASSIGNMENT_TRAINING),
    "sinusoidal": FittedEncoding(
        encoding=Sinusoidal(),
        decoder=replace(LARGE, d_model=256),
        training=TrainingSettings(steps=1200, learning_rate=2e-3 / 3, batch_size=256),
    ),
    "learned": FittedEncoding(encoding=Learned(), decoder=LARGE, training=ASSIGNMENT_TRAINING, max_test_length=100),
}


def compare_with_encodings(
    ppc_experiment: Experiment, fitted_encodings: Mapping[str, FittedEncoding]
) -> dict[str, Experiment]:
    """Return the PPC experiment and the same task with common encodings and sequential IDs, by label."""
    experiments = {f"{ppc_experiment.scheme.name} (PPC)": ppc_experiment}
    for label, fitted in fitted_encodings.items():
        evaluation, max_length = ppc_experiment.evaluation, fitted.max_test_length
        experiments[label] = replace(
            ppc_experiment,
            scheme=Sequential(),
            encoding=fitted.encoding,
            decoder=fitted.decoder,
            training=fitted.training,
            evaluation=evaluation if max_length is None else evaluation.up_to(max_length),
        )
    return experiments


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
    num_own_ids, rotary_training = ids_factor * num_ids, rotary_experiment.training
    training = replace(
        rotary_training, steps=3 * rotary_training.steps, fit_every=100, cooldown_steps=rotary_training.steps // 2
    )
    rotary_experiment = replace(rotary_experiment, training=training)
    return {
        "coupled, IDs given": replace(ppc_experiment, scheme=coupled),
        "coupled, no gaps": replace(ppc_experiment, scheme=replace(coupled, max_gaps=0)),
        "rotary + PoSE": replace(rotary_experiment, scheme=Skipwise(num_position_ids=num_own_ids)),
        "rotary, randomized": replace(rotary_experiment, scheme=Randomized(num_position_ids=num_own_ids)),
        "rotary, random start": replace(rotary_experiment, scheme=RandomStart(num_position_ids=num_own_ids)),
    }

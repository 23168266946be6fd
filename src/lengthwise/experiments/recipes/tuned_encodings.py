"""Settings of common encodings and of found couplings, which fit their training lengths, and comparisons of both."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from lengthwise.encodings import ALiBi, EncodingSettings, Learned, NoPE, Rotary, Sinusoidal
from lengthwise.experiments.experiment import Experiment
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import DiscoveredCoupling, PositionScheme, Sequential
from lengthwise.tasks import Addition, Copy, Parity, Task, VariableAssignment
from lengthwise.tasks.coupling.answer_steps import SPLITS
from lengthwise.training.training_settings import TrainingSettings


@dataclass(frozen=True, slots=True)
class TunedEncoding:
    """Common encoding with the settings that ``benchmarks/fit_sweep.py`` found for a task.

    ``max_test_length`` is the longest test length that the encoding has position IDs for (None: any length).
    """

    encoding: EncodingSettings
    decoder: DecoderSettings
    training: TrainingSettings
    max_test_length: int | None = None


# Fast angles separate neighboring IDs, such as those of the digits that make a carry.
SHARP_ROTARY = Rotary(base=100.0, fastest=3.0)
# Smallest number of heads, and number of components of each.
MIN_HEADS, HEAD_SIZE = 4, 32

# The base settings of the search. Rotary has the published angles.
SMALL = DecoderSettings(num_layers=2, d_model=64, num_heads=4, length_scaling="none", temperature=1.0)
SMALL_WITH_PREVIOUS_TOKEN = replace(SMALL, previous_token_mix=True)
LARGE = DecoderSettings(num_layers=3, d_model=128, num_heads=4, length_scaling="none", temperature=1.0)
# Decoder of tasks in which a step attends to several tokens.
SHARP_DECODER = DecoderSettings(previous_token_mix=True, length_scaling="none", temperature=9.0)


def until_fit_settings(steps: int) -> TrainingSettings:
    """Return training that stops once the run fits, after at most this number of steps."""
    return TrainingSettings(steps=steps, weight_decay=0.1, fit_every=100, cooldown_steps=300)


# The best settings of the search for copying up to 10 symbols. ALiBi has half as many steps again: with 1,000 steps, it
# fitted on 2 of 5 new seeds.
COPY_ENCODINGS = {
    "rotary": TunedEncoding(Rotary(), replace(SMALL, num_heads=2), TrainingSettings(steps=1000)),
    "ALiBi": TunedEncoding(ALiBi(), SMALL_WITH_PREVIOUS_TOKEN, TrainingSettings(steps=1500, batch_size=128)),
    "NoPE": TunedEncoding(NoPE(), SMALL_WITH_PREVIOUS_TOKEN, TrainingSettings(steps=3000)),
}

# The best settings of the search for parity of up to 10 bits.
FOUR_LAYERS = replace(LARGE, num_layers=4)
LARGE_TRAINING = TrainingSettings(steps=500, learning_rate=2e-3 / 3, batch_size=128)
LEARNED_TRAINING = TrainingSettings(steps=1500, learning_rate=1e-3, batch_size=128)
PARITY_ENCODINGS = {
    "rotary": TunedEncoding(Rotary(), FOUR_LAYERS, LARGE_TRAINING),
    "sinusoidal": TunedEncoding(Sinusoidal(), FOUR_LAYERS, LARGE_TRAINING),
    "learned": TunedEncoding(Learned(), LARGE, LEARNED_TRAINING, max_test_length=100),
}
# The same decoder fits addition of up to 3 digits.
ADDITION_TRAINING = replace(LARGE_TRAINING, steps=1200)
ADDITION_ENCODINGS = {
    "rotary": TunedEncoding(Rotary(), FOUR_LAYERS, ADDITION_TRAINING),
    "sinusoidal": TunedEncoding(Sinusoidal(), FOUR_LAYERS, ADDITION_TRAINING),
    "learned": TunedEncoding(Learned(), FOUR_LAYERS, ADDITION_TRAINING, max_test_length=100),
}
# The best settings of the search for variable assignment with up to 5 assignments of 256 names.
ASSIGNMENT_TRAINING = TrainingSettings(steps=400, learning_rate=1e-3, batch_size=256)
WIDE_TRAINING = TrainingSettings(steps=1200, learning_rate=2e-3 / 3, batch_size=256)
ASSIGNMENT_ENCODINGS = {
    "rotary": TunedEncoding(Rotary(), LARGE, ASSIGNMENT_TRAINING),
    "sinusoidal": TunedEncoding(Sinusoidal(), replace(LARGE, d_model=256), WIDE_TRAINING),
    "learned": TunedEncoding(Learned(), LARGE, ASSIGNMENT_TRAINING, max_test_length=100),
}


@dataclass(frozen=True, slots=True)
class TunedTask:
    """Task with the settings of the encodings that fit it, and with the default decoder and training of the others.

    ``train_length`` is the longest training length that these encodings fit. Longer ones may fit with more steps.
    """

    task: Task
    train_length: int
    encodings: Mapping[str, TunedEncoding]
    decoder: DecoderSettings = FOUR_LAYERS
    training: TrainingSettings = ADDITION_TRAINING

    def settings(self, encoding: str) -> TunedEncoding | None:
        """Return the settings of an encoding by its name; None if there are none."""
        return next((fitted for fitted in self.encodings.values() if fitted.encoding.name == encoding), None)


def with_found_coupling(experiment: Experiment, rule: Sequence[str], *, num_position_ids: int) -> Experiment:
    """Return an experiment with a found coupling; ``rule`` has the texts of ``PointerRule.saved_texts``."""
    scheme = DiscoveredCoupling(rule=tuple(rule), num_position_ids=num_position_ids, max_gaps=10)
    # Each head attends by the distance to one pointer, and all pointers have equally many heads.
    num_heads = scheme.num_levels * math.ceil(MIN_HEADS / scheme.num_levels)
    return replace(
        experiment,
        scheme=scheme,
        encoding=SHARP_ROTARY,
        decoder=replace(
            SHARP_DECODER,
            d_model=num_heads * HEAD_SIZE,
            num_heads=num_heads,
            level_per_head=True,
            # Only the hidden state says when the pointer of the second part of a response starts to move.
            head="state_pointer" if scheme.parsed_rule.division in SPLITS else "wide_pointer",
        ),
        training=replace(until_fit_settings(4000), batch_size=128, learning_rate=2e-3, cooldown_steps=800),
    )


@cache
def tuned_tasks() -> dict[str, TunedTask]:
    """Return the tasks with fitted encodings by name; the defaults are those of the task's slowest encoding."""
    slowest = COPY_ENCODINGS["NoPE"]
    tasks = (
        TunedTask(Copy(), 10, COPY_ENCODINGS, slowest.decoder, slowest.training),
        TunedTask(Parity(), 10, PARITY_ENCODINGS),
        TunedTask(Addition(), 3, ADDITION_ENCODINGS),
        TunedTask(VariableAssignment(num_names=256), 5, ASSIGNMENT_ENCODINGS),
    )
    return {fitted.task.name: fitted for fitted in tasks}


# Largest number of steps for a task, scheme or training length that the settings were not found for, as a multiple.
MAX_STEPS_FACTOR = 3


def is_baseline_scheme(scheme: PositionScheme) -> bool:
    """Return True for a scheme that uses no coupling: it needs other settings than PPC."""
    return isinstance(scheme, PositionScheme) and scheme.needs != "coupling" and not scheme.predicts_ids


def with_tuned_settings(experiment: Experiment) -> Experiment:
    """Return a baseline with the decoder and the training that were found for its encoding, or with the defaults.

    For another scheme than ``sequential``, for longer training lengths and for the defaults, training has more steps,
    and stops when the run fits.
    """
    fitted_task = tuned_tasks().get(experiment.task.name)
    found = None if fitted_task is None else fitted_task.settings(experiment.encoding.name)
    settings = found or fitted_task
    decoder, training = (settings.decoder, settings.training) if settings else (FOUR_LAYERS, ADDITION_TRAINING)
    if found is None or _limits_of_fit(experiment):
        training = train_longer_until_fit(training)
    return replace(experiment, decoder=decoder, training=training)


def train_longer_until_fit(training: TrainingSettings) -> TrainingSettings:
    """Return the training with more steps, which stops when the run fits."""
    steps = MAX_STEPS_FACTOR * training.steps
    return replace(training, steps=steps, fit_every=100, cooldown_steps=training.steps // 2)


def _limits_of_fit(experiment: Experiment) -> list[str]:
    """Return the differences to the task, the scheme and the training lengths that the settings were found for."""
    fitted_task, max_length = tuned_tasks()[experiment.task.name], experiment.train_lengths[1]
    differences = {
        f"up to {max_length}": max_length > fitted_task.train_length,
        f"the scheme {experiment.scheme.name}": experiment.scheme.name != Sequential.name,
        "other settings of the task": experiment.task != fitted_task.task,
    }
    return [difference for difference, is_present in differences.items() if is_present]


def describe_settings(experiment: Experiment) -> str | None:
    """Return where the settings of a baseline come from, and whether they are known to fit; None for other settings."""
    task, encoding, decoder = experiment.task.name, experiment.encoding.name, experiment.decoder
    if not is_baseline_scheme(experiment.scheme) or with_tuned_settings(experiment).decoder != decoder:
        return None
    fitted_task = tuned_tasks().get(task)
    layers = f"{decoder.num_layers} layers of {decoder.d_model}, at most {experiment.training.steps:,} steps"
    if fitted_task is None or fitted_task.settings(encoding) is None:
        return f"{layers}: the default, because no settings of {encoding} are known to fit {task}; it may not fit"
    found_for = f"{layers}: settings that fit {task} up to {fitted_task.train_length}"
    limits = [*_limits_of_fit(experiment), *_limits_of_training(experiment)]
    return f"{found_for}; not known to fit {' and '.join(limits)}" if limits else found_for


def _limits_of_training(experiment: Experiment) -> list[str]:
    """Return the settings of training that differ from those that were found, or fewer steps than they have."""
    training, found = experiment.training, with_tuned_settings(experiment).training
    limits = [f"with {training.steps:,} instead of {found.steps:,} steps"] if training.steps < found.steps else []
    others = replace(training, steps=found.steps, fit_every=found.fit_every, cooldown_steps=found.cooldown_steps)
    return limits if others == found else [*limits, "with other settings of training"]


def compare_ppc_with_encodings(
    ppc_experiment: Experiment, fitted_encodings: Mapping[str, TunedEncoding]
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
            evaluation=evaluation if max_length is None else evaluation.with_max_length(max_length),
        )
    return experiments

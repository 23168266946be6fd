"""Settings for PPC with a coupling that is found in examples of the task."""

from dataclasses import replace

from lengthwise.experiments.coupling_methods import find_coupling
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes.arithmetic import SHARP_ROTARY
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Discovered
from lengthwise.tasks import JSONLTask
from lengthwise.training.trainer import TrainingSettings

# Number of IDs for a task file, whose longest test is unknown.
NUM_POSITION_IDS = 4096


def with_found_coupling(experiment: Experiment) -> Experiment:
    """Return an experiment with a coupling that is found in its task; raise ``CouplingError`` if none is found."""
    num_position_ids = experiment.scheme.num_position_ids
    if num_position_ids is None or isinstance(experiment.task, JSONLTask):
        num_position_ids = NUM_POSITION_IDS
    return replace(
        experiment,
        scheme=Discovered(
            rule=find_coupling(experiment.task).rule.texts, num_position_ids=num_position_ids, max_gaps=10
        ),
        encoding=SHARP_ROTARY,
        # A head attends by the distance to one pointer, so several pointers need several heads. With a smaller MLP,
        # addition does not fit on some seeds (benchmarks/coupling.md).
        decoder=DecoderSettings(
            num_layers=1,
            d_model=128,
            num_heads=4,
            mlp_factor=8,
            head="wide_pointer",
            previous_token_mix=True,
            length_scaling="none",
            temperature=9.0,
        ),
        training=TrainingSettings(
            steps=4000, batch_size=128, learning_rate=2e-3, weight_decay=0.1, fit_every=100, cooldown_steps=800
        ),
    )

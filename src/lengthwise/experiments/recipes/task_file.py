"""Recipe for PPC on a task file whose coupling is found in its records."""

from dataclasses import replace

from lengthwise.core.errors import SettingError
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes.arithmetic import SHARP_ROTARY
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Predicted
from lengthwise.tasks import JSONLTask, Task, default_lengths
from lengthwise.tasks.coupling.found_coupling import find_coupling
from lengthwise.training.trainer import TrainingSettings

# Name of the scheme predicted with a coupling that is found in the records of a file.
DISCOVERED = "discovered"
NUM_POSITION_IDS = 4096


def with_found_coupling(task: Task) -> Experiment:
    """Return the recipe for PPC on the records of a task file; raise ``CouplingError`` if no coupling is found."""
    if not isinstance(task, JSONLTask):
        raise SettingError(
            f"scheme {DISCOVERED} needs a task file, not task {task.name}; write one with: "
            f"lengthwise couple {task.name} --out FILE.jsonl"
        )
    lengths = default_lengths(task)
    return Experiment(
        task=replace(task, rule=find_coupling(task).rule.texts),
        scheme=Predicted(num_position_ids=NUM_POSITION_IDS, max_gaps=10),
        encoding=SHARP_ROTARY,
        # A head attends by the distance to one pointer, so several pointers need several heads.
        decoder=DecoderSettings(
            num_layers=1,
            d_model=128,
            num_heads=4,
            head="wide_pointer",
            previous_token_mix=True,
            length_scaling="none",
            temperature=9.0,
        ),
        training=TrainingSettings(steps=1000, batch_size=128, weight_decay=0.1),
        train_lengths=(task.available_lengths[0], task.available_lengths[-1]),
        evaluation=EvaluationSettings(lengths=lengths, num_examples=(256,)),
    )

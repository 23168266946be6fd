"""Parity with a scratchpad, trained on up to 20 bits."""

from dataclasses import replace

from lengthwise.encodings import Rotary
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes.baselines import with_baselines
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Coupled, Predicted
from lengthwise.tasks import Parity
from lengthwise.training.trainer import TrainingSettings

# IDs up to 20,000 bits and their separator; declared in every table.
ID_RANGE = 20_480
# Gaps nearly everywhere: an example shows distances of every size. With three, one seed of five failed at 2,000 bits.
MAX_GAPS = 10
DEMO = ("predicted (PPC)", "coupled, IDs given", "coupled, no gaps", "NoPE", "rotary", "rotary + PoSE", "ALiBi")


def parity() -> Experiment:
    """PPC: only the prompt's IDs are given, the decoder predicts the others."""
    return Experiment(
        task=Parity(),
        scheme=Predicted(num_position_ids=ID_RANGE, max_gaps=MAX_GAPS),
        # Fast angles tell neighbouring IDs apart: 8 of 8 tuning seeds fit, 4 of 8 with the published ones.
        encoding=Rotary(base=100.0, fastest=3.0),
        decoder=DecoderSettings(num_layers=1, d_model=64, num_heads=2),
        training=TrainingSettings(steps=1000, weight_decay=0.1),
        train_lengths=(1, 20),
        evaluation=EvaluationSettings(lengths=(20, 200, 2000), num_examples=(512,)),
    )


def parity_rank() -> Experiment:
    """PPC with the cheaper head that only counts ranks."""
    return replace(parity(), decoder=replace(parity().decoder, head="rank"))


def parity_coupled() -> Experiment:
    """The same with all IDs given."""
    return replace(parity(), scheme=Coupled(num_position_ids=ID_RANGE, max_gaps=MAX_GAPS))


def demo() -> dict[str, Experiment]:
    """PPC beside given IDs and the usual encodings; all with the same decoder options."""
    tests = EvaluationSettings(lengths=(10, 20, 30, 200, 2000, 20_000), num_examples=(512, 512, 512, 512, 64, 1))
    predicted = replace(parity(), training=replace(parity().training, steps=750), evaluation=tests)
    rows = with_baselines(predicted)
    return {label: rows[label] for label in DEMO}


def parity_id_range() -> dict[str, Experiment]:
    """What the range of IDs met in training does: 0.1, 1 and 4 times the largest one that is tested."""
    tests = EvaluationSettings(lengths=(20, 200, 2000, 20_000), num_examples=(128, 128, 32, 4))
    return {
        f"IDs to {factor:g}x": replace(
            parity(),
            scheme=Predicted(num_position_ids=round(factor * ID_RANGE), max_gaps=MAX_GAPS),
            evaluation=tests,
        )
        for factor in (0.1, 1, 4)
    }

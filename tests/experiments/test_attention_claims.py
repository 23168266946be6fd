"""Claims on attention options and encodings: their rows, the distances of weave, and the tables of reach."""

import pytest

from lengthwise.core.randomness import stream
from lengthwise.encodings import Weave
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.reproductions import CLAIMS
from lengthwise.training.training_settings import TrainingSettings

CLAIM_NAMES = ("recall_attention", "dape_and_weave")
WOVEN = {
    label: experiment
    for name in CLAIM_NAMES
    for label, experiment in CLAIMS[name].experiments().items()
    if isinstance(experiment.encoding, Weave)
}


def num_tokens(experiment: Experiment, length: int) -> int:
    """Return the largest number of tokens of 16 examples of a length."""
    return experiment.task.sample(length=length, size=16, rng=stream(0, "tokens")).tokens.shape[1]


@pytest.mark.parametrize("label", WOVEN)
def test_weave_keeps_the_longest_test_within_the_distances_of_training(label):
    experiment = WOVEN[label]
    weave, (_, longest) = experiment.encoding, experiment.train_lengths
    distance = num_tokens(experiment, max(experiment.evaluation.lengths)) - 1
    steps = -(-(distance - weave.window) // weave.width)
    assert weave.window + steps <= num_tokens(experiment, longest) - 1 < distance


@pytest.mark.parametrize("name", CLAIM_NAMES)
def test_all_rows_of_a_task_have_the_same_task_size_and_training(name):
    groups: dict[str, set[tuple[object, TrainingSettings, tuple[int, int], int]]] = {}
    for label, each in CLAIMS[name].experiments().items():
        facts = (each.task, each.training, each.train_lengths, each.decoder.num_layers * each.decoder.d_model)
        groups.setdefault(label.partition(", ")[0], set()).add(facts)
    assert all(len(group) == 1 for group in groups.values())


def reading(row: str, seed: int, reached: float, *, fits: bool = True) -> dict[str, object]:
    return {"row": row, "seed": seed, "trained_on": 10, "steps": 1000, "fits": fits, "reached": reached}


def test_the_table_of_recall_has_the_reach_of_every_seed():
    readings = [reading("one of four, NoPE", 0, 16), reading("one of four, NoPE", 1, 0, fits=False)]
    ((_, header, body),) = CLAIMS["recall_attention"].tables([], readings)
    assert header == ["row", "steps", "reach"]
    assert body == [["one of four, NoPE", "1,000, 1,000", "16x, 0x (does not fit)"]]


def test_the_table_of_dape_and_weave_has_a_column_per_task_and_a_dash_for_runs_that_are_not_measured():
    readings = [
        reading("copy, rotary", 0, 1),
        reading("copy, rotary, weave", 0, 1.5),
        reading("addition, rotary", 0, 0, fits=False),
    ]
    ((_, header, body),) = CLAIMS["dape_and_weave"].tables([], readings)
    assert header == ["encoding", "copy, up to 10", "parity, up to 5", "addition, up to 2"]
    assert body == [["rotary", "1x", "-", "0x (no fit)"], ["rotary, weave", "1.5x", "-", "-"]]

"""Claims on attention options and encodings: their rows, the distances of weave, and the tables of reach."""

import pytest
import torch
from claims.dape_and_weave.claim import weaves

from lengthwise.core.randomness import random_stream
from lengthwise.encodings import EncodingSize, Weave
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.reproduction import load_claim, reproduce
from lengthwise.training.training_settings import TrainingSettings

CLAIMS = {name: load_claim(name) for name in ("recall_attention", "dape_and_weave")}
WOVEN = {
    label: experiment
    for label, experiment in CLAIMS["recall_attention"].experiments().items()
    if isinstance(experiment.encoding, Weave)
}


def num_tokens(experiment: Experiment, length: int) -> int:
    """Return the largest number of tokens of 16 examples of a length."""
    return experiment.task.sample(length=length, size=16, rng=random_stream(0, "tokens")).tokens.shape[1]


@pytest.mark.parametrize("label", WOVEN)
def test_weave_keeps_the_longest_test_within_the_distances_of_training(label):
    experiment = WOVEN[label]
    weave, (_, longest) = experiment.encoding, experiment.train_lengths
    distance = num_tokens(experiment, max(experiment.evaluation.lengths)) - 1
    steps = -(-(distance - weave.window) // weave.width)
    assert weave.window + steps <= num_tokens(experiment, longest) - 1 < distance


@pytest.mark.parametrize("name", CLAIMS)
def test_all_rows_of_a_task_have_the_same_task_size_and_training(name):
    groups: dict[str, set[tuple[object, TrainingSettings, tuple[int, int], int]]] = {}
    for label, each in CLAIMS[name].experiments().items():
        facts = (each.task, each.training, each.train_lengths, each.decoder.num_layers * each.decoder.d_model)
        groups.setdefault(label.partition(", ")[0], set()).add(facts)
    assert all(len(group) == 1 for group in groups.values())


def measurement(row: str, seed: int, longest_exact: float, *, fits: bool = True) -> dict[str, object]:
    return {"row": row, "seed": seed, "trained_on": 10, "steps": 1000, "fits": fits, "longest_exact": longest_exact}


def test_the_table_of_recall_has_the_reach_of_every_seed():
    measurements = [measurement("one of four, NoPE", 0, 16), measurement("one of four, NoPE", 1, 0, fits=False)]
    ((_, header, body),) = CLAIMS["recall_attention"].tables([], measurements)
    assert header == ["row", "steps", "longest exact"]
    assert body == [["one of four, NoPE", "1,000, 1,000", "16x, 0x (does not fit)"]]


@pytest.mark.parametrize("trained", [1, 2, 11, 22])
def test_one_step_of_weave_gives_all_larger_distances_the_largest_trained_distance(trained):
    encoding = weaves(trained)["all trained distances, one step"].build(EncodingSize(d_model=8, num_heads=2, d_head=4))
    query_ids, key_ids = torch.tensor([[500]]), 500 - torch.arange(500)[None]
    distances = encoding.distances(query_ids, key_ids)[0, 0]
    assert distances.tolist() == [min(distance, max(2, trained)) for distance in range(500)]


@pytest.mark.parametrize("trained", [2, 11, 22])
def test_a_window_over_all_trained_distances_leaves_them_as_they_are(trained):
    encoding = weaves(trained)["all trained distances"].build(EncodingSize(d_model=8, num_heads=2, d_head=4))
    query_ids, key_ids = torch.tensor([[trained]]), trained - torch.arange(trained + 1)[None]
    assert encoding.distances(query_ids, key_ids)[0, 0].tolist() == list(range(trained + 1))


def test_the_measurement_of_a_rotary_run_has_its_weights_with_weave(tmp_path):
    result = reproduce(CLAIMS["dape_and_weave"], "quick", tmp_path, workers=1, only=["copy, rotary", "copy, DAPE V2"])
    rotary, dape = result.measurements
    assert "weave" not in dape
    assert list(rotary["weave"]) == list(weaves(10))
    # Within the window, weave is rotary.
    (first, *_) = rotary["weave"]["all trained distances"]
    row = next(row for row in result.comparison.rows if row["row"] == "copy, rotary")
    names = ("length", "num_examples", "exact_match", "low", "high")
    assert [first[name] for name in names] == [row[name] for name in names]


def test_the_table_of_dape_and_weave_has_a_column_per_task_and_a_dash_for_runs_that_are_not_measured():
    measurements = [
        {
            **measurement("copy, rotary", 0, 1),
            "weave": {"all": [{"length": 10, "exact_match": 0.5, "low": 0.4, "high": 0.6}]},
        },
        measurement("copy, DAPE V2", 0, 1.5),
        measurement("addition, rotary", 0, 0, fits=False),
    ]
    (_, header, body), (_, _, woven) = CLAIMS["dape_and_weave"].tables([], measurements)
    assert header == ["encoding", "copy, up to 10", "parity, up to 5", "addition, up to 2"]
    assert body == [["rotary", "1x", "-", "0x (does not fit)"], ["DAPE V2", "1.5x", "-", "-"]]
    assert woven == [["copy, rotary", "0", "all", "10: 0.500 [0.40, 0.60]"]]

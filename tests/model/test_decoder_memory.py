"""Memory estimate of a decoder: equal to the weights that it has, for all schemes, encodings, heads and options."""

from dataclasses import replace
from itertools import chain

import pytest
from tests.support.small_runs import small_experiment

from lengthwise.core.errors import SettingError
from lengthwise.encodings import ENCODINGS, Learned
from lengthwise.experiments.experiment import Experiment, build_decoder
from lengthwise.model import decoder as decoder_module
from lengthwise.model.position_heads import POSITION_HEADS
from lengthwise.positions import SCHEMES, Predicted, Sequential
from lengthwise.tasks import Addition, Multiplication

# Without segments, learned length scaling or an output layer, and with several layers that loops repeat.
OPTIONS = [
    {"tied_output": False, "segments": True, "length_scaling": "learned"},
    {"num_layers": 3, "loops": 2, "mlp_factor": 1, "previous_token_mix": True, "d_model": 64},
    {"weights": "entmax"},
]
EXPERIMENTS: dict[str, Experiment] = {
    **{f"encoding {name}": small_experiment(scheme=Sequential(), encoding=ENCODINGS[name]()) for name in ENCODINGS},
    **{f"scheme {name}": small_experiment(task=Addition(), scheme=SCHEMES[name]()) for name in SCHEMES},
    **{f"head {name}": small_experiment(head=name) for name in POSITION_HEADS},
    "levels": small_experiment(task=Multiplication(), scheme=SCHEMES["multilevel"](), encoding=Learned()),
    **{
        f"options {index}": replace(small_experiment(), decoder=replace(small_experiment().decoder, **options))
        for index, options in enumerate(OPTIONS)
    },
}


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_the_memory_estimate_is_within_20_percent_of_the_memory_of_the_weights(experiment, monkeypatch):
    estimates: list[int] = []
    monkeypatch.setattr(decoder_module, "check_memory", lambda num_bytes, *text: estimates.append(num_bytes))
    decoder = build_decoder(experiment)
    tensors = chain(decoder.parameters(), decoder.buffers())
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    # Training has four numbers per weight.
    assert estimates == [pytest.approx(4 * num_bytes, rel=0.2)]


HUGE = 10**9


@pytest.mark.parametrize(
    "experiment",
    [
        small_experiment(scheme=Predicted(num_position_ids=HUGE), head="class"),
        small_experiment(scheme=Sequential(), encoding=Learned(num_position_ids=HUGE)),
        small_experiment(scheme=Sequential(), encoding=ENCODINGS["t5"](num_buckets=10 * HUGE, max_distance=20 * HUGE)),
        small_experiment(scheme=Sequential(), encoding=ENCODINGS["cope"](num_positions=10 * HUGE)),
    ],
    ids=lambda experiment: experiment.encoding.name,
)
def test_a_table_larger_than_the_memory_raises_an_error_before_it_is_allocated(experiment):
    with pytest.raises(SettingError, match="GiB"):
        build_decoder(experiment)

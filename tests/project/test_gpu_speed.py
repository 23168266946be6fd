"""Measurements for one GPU, on a CPU with small sizes: their rows are complete, and their formulas are right."""

import importlib.util
from dataclasses import replace

import gpu_speed
import million_tokens
import peer_decoding
import peer_experiments
import peer_models
import pytest
import rounds
import step_speed
import torch
from peer_experiments import experiment_of, sample_batch, shape_of
from peer_models import gpt_neox_model, gpt_neox_steps
from peer_trainer import times_with_trainer
from tests.support.small_runs import small_experiment
from torch.utils.flop_counter import FlopCounterMode

import lengthwise as lw
from lengthwise.encodings import Rotary
from lengthwise.model.decoder import Decoder
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.training.loss import compute_answer_loss

CPU = torch.device("cpu")
SMALL_STEP = gpu_speed.LargeStep(
    decoder=DecoderSettings(num_layers=2, d_model=32, num_heads=2, length_scaling="none", segments=False),
    vocabulary_size=64,
    seq=8,
    batch_sizes=(1, 2),
    product_size=16,
)


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch):
    for name, value in (("WARM_UP_ROUNDS", 1), ("SELECTION_ROUNDS", 1), ("BATCH", 4)):
        monkeypatch.setattr(gpu_speed, name, value)
    monkeypatch.setitem(peer_experiments.SIZES, "1 x 32", (1, 32))


@pytest.mark.slow
def test_a_training_step_is_compared_with_both_peers_in_both_precisions():
    result = gpu_speed.training_steps(1, CPU, ["1 x 32"])
    assert [row["precision"] for row in result["rows"]] == ["float32", "bf16"]
    for row in result["rows"]:
        assert set(row["median_wall_ms"]) == {
            "lengthwise plain",
            "lengthwise PPC",
            "GPT-NeoX loop",
            "GPT-NeoX Trainer",
        }
        assert row["missing"] is None
    assert result["reached"] == (result["smallest_speedup"] >= gpu_speed.MIN_SPEEDUP)


def test_a_training_step_without_accelerate_names_what_is_missing(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = gpu_speed.training_steps(1, CPU, ["1 x 32"])
    assert all("accelerate is not installed" in row["missing"] for row in result["rows"])
    assert all("GPT-NeoX loop" in row["median_wall_ms"] for row in result["rows"])
    assert result["reached"] is None


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_peers_train_in_the_given_precision(precision, dtype, monkeypatch):
    experiment = experiment_of("plain", "1 x 32")
    batch, shape = sample_batch(experiment, 4, 2), shape_of(experiment)
    types = []

    def recorded_model(*given, **options):
        model = gpt_neox_model(*given, **options)
        model.get_output_embeddings().register_forward_hook(lambda _, __, output: types.append(output.dtype))
        return model

    monkeypatch.setattr(peer_models, "gpt_neox_model", recorded_model)
    for step in gpt_neox_steps(shape, batch, precision).values():
        step()
    times_with_trainer({}, recorded_model(shape, attention="sdpa"), batch, 1, precision)
    assert types == [dtype] * 4


def test_a_large_step_has_a_row_per_batch_size_and_the_share_of_the_best():
    result = gpu_speed.large_step(SMALL_STEP, 1, CPU)
    assert [row["batch_size"] for row in result["rows"]] == [1, 2]
    assert result["largest_share"] == max(row["share"] for row in result["rows"])
    assert result["reached"] == (result["largest_share"] >= gpu_speed.MIN_PRODUCT_SHARE)


def test_a_large_step_that_does_not_fit_into_memory_ends_the_measurement(monkeypatch):
    measure = gpu_speed.large_step_row

    def fail(decoder, sizes, batch_size, *given):
        if batch_size == 2:
            raise torch.OutOfMemoryError
        return measure(decoder, sizes, batch_size, *given)

    monkeypatch.setattr(gpu_speed, "large_step_row", fail)
    result = gpu_speed.large_step(replace(SMALL_STEP, batch_sizes=(1, 2, 4)), 1, CPU)
    assert result["rows"][1:] == [{"batch_size": 2, "error": "out of memory"}]
    assert result["largest_share"] == result["rows"][0]["share"]


def test_the_formula_counts_the_operations_of_a_step():
    decoder = Decoder(SMALL_STEP.decoder, Rotary(), vocabulary_size=SMALL_STEP.vocabulary_size)
    batch = gpu_speed.random_batch(SMALL_STEP.vocabulary_size, 3, SMALL_STEP.seq + 1)
    with FlopCounterMode(display=False) as counter:
        compute_answer_loss(decoder, [batch], 1.0).loss.backward()
    tokens, settings = 3 * SMALL_STEP.seq, decoder.settings
    # The counter sees all pairs of a query and a key; the formula sees half of them, and also vectors.
    all_pairs = 6 * settings.num_layers * settings.d_model * SMALL_STEP.seq * tokens
    matrices = sum(p.numel() for p in decoder.parameters() if sum(size > 1 for size in p.shape) >= 2)
    vectors = sum(p.numel() for p in decoder.parameters()) - matrices
    formula = gpu_speed.step_flop(decoder, 3, SMALL_STEP.seq)
    assert formula + all_pairs - 6 * vectors * tokens == counter.get_total_flops()


def test_the_decoder_of_the_large_step_has_about_125_million_parameters():
    sizes = gpu_speed.DECODER_125M
    with torch.device("meta"):
        decoder = Decoder(sizes.decoder, Rotary(), vocabulary_size=sizes.vocabulary_size)
    assert 110e6 < sum(parameter.numel() for parameter in decoder.parameters()) < 140e6


def test_free_decoding_is_compared_with_generate():
    result = gpu_speed.free_decoding(3, 1, CPU, (4,))
    (row,) = result["rows"]
    assert set(row["median_wall_ms"]) == {"lengthwise plain", "lengthwise PPC", "GPT-NeoX generate"}
    assert row["unusable_settings"] == []
    assert result["reached"] == (result["smallest_speedup"] >= gpu_speed.MIN_SPEEDUP)


def test_a_setting_of_generate_that_fails_is_named_and_left_out():
    def fail():
        raise RuntimeError("no compiler")

    working, errors = peer_decoding.usable({"eager": torch.Tensor, "static": fail})
    assert list(working) == ["eager"]
    assert errors == ["static: RuntimeError('no compiler')"]


@pytest.mark.parametrize("decode", ["forced", "free"])
def test_a_long_evaluation_has_a_row_per_length(decode, monkeypatch, tmp_path):
    monkeypatch.setattr(million_tokens, "MIN_FIT_LENGTH", 1)
    run = lw.train(lw.quick_version(lw.recipe("parity_long")), tmp_path / "run", device="cpu")
    result = gpu_speed.long_evaluation("parity_long", run, decode, (20, 40))
    assert [(row["length"], row["decode"]) for row in result["rows"]] == [(20, decode), (40, decode)]
    assert all(row.get("same_as_dense", True) for row in result["rows"])
    assert result["reached"] == (result["exponent"] <= gpu_speed.MAX_EXPONENT)


@pytest.mark.slow
def test_seeds_train_at_once_in_their_own_processes():
    result = gpu_speed.parallel_seeds(small_experiment(), 2, 1, CPU)
    assert [len(train_s) for train_s in result["train_s"][0]] == [1, 2]
    assert result["ratio"] == round(result["all_wall_s"][0] / result["one_wall_s"][0], 2)


def test_functions_take_turns_and_the_first_round_is_left_out():
    calls = []
    times = rounds.time_in_rounds({name: lambda name=name: calls.append(name) for name in "ab"}, 2)
    assert calls == ["a", "b"] * 3
    assert [len(seconds) for seconds in times.values()] == [2, 2]


def test_the_operations_of_a_product_are_counted():
    assert step_speed.count_flop([(torch.zeros(2, 3), torch.zeros(3, 5), 4)]) == 2 * 2 * 3 * 5 * 4

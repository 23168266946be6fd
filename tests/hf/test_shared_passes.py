"""Threads that share forward passes get the results of separate passes."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from shared_passes import SharedPasses
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import lengthwise as lw
from lengthwise.hf.causal_lm import CausalLM
from lengthwise.influence.target_evaluator import TargetEvaluator
from lengthwise.influence.targets import sample_targets
from lengthwise.tasks import TokenizedDocument

VOCABULARY, FAR, NEAR = 97, 40, 8
# Largest difference that another order of additions causes.
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def model() -> CausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    return CausalLM(LlamaForCausalLM(config).eval(), "tiny")


def call_every_method(model: CausalLM, seed: int) -> list[Tensor]:
    """Return results of all methods on sequences whose lengths depend on the seed."""
    generator, batch = torch.Generator().manual_seed(seed), 1 + seed % 3
    draw = partial(torch.rand, generator=generator)
    tokens, ids = torch.randint(0, VOCABULARY, (FAR + NEAR,), generator=generator), torch.arange(FAR + NEAR)
    lengths = torch.randint(5, 70, (3,), generator=generator).tolist()
    batches = [torch.randint(0, VOCABULARY, (batch, length), generator=generator) for length in lengths]
    # Gaps between the IDs, so that they are not the token indexes.
    results = [model.log_probs(each, 2 * torch.arange(each.shape[1]).expand(batch, -1)) for each in batches]
    states, mask = model.prefill(tokens, ids, FAR), (draw(FAR + NEAR, FAR + NEAR) < 0.5).tril().fill_diagonal_(True)
    masked_states = model.prefill(tokens, ids, FAR, mask)
    extended = model.extend_states(masked_states, tokens[FAR:-1], ids[FAR:-1], draw(FAR) < 0.5)
    masks = draw(5 + 20 * (seed % 2), FAR + NEAR - 1) < 0.5
    results.append(model.log_probs_with_mask(extended, tokens[-1:], ids[-1:], masks))
    results.append(model.log_probs_with_mask(states, tokens[FAR:], ids[FAR:], masks[:, :FAR]))
    queries = torch.cat([torch.tensor([3, 9], dtype=torch.long).repeat(seed % 3), torch.arange(FAR, FAR + NEAR)])
    gates = -draw(FAR)
    hidden_gates = gates.expand(len(queries), -1).clone()
    hidden_gates[:, 5] = -torch.inf
    objective: Callable[[Tensor], Tensor] = lambda log_probs: -log_probs[3]  # noqa: E731
    results.append(model.attention_gate_gradient(states, tokens[FAR:], ids[FAR:], gates, objective))
    results.append(model.attention_gate_gradient(masked_states, tokens[queries], ids[queries], hidden_gates, objective))
    results.append(model.log_probs(tokens[None, -4:], ids[None, -4:], states))
    results.append(model.last_log_probs(tokens, ids, 3))
    results.append(model.attention_weights(states, tokens[FAR:], ids[FAR:]))
    return results


def test_threads_get_the_results_of_separate_passes(model: CausalLM) -> None:
    shared = SharedPasses(model)
    jobs = [partial(call_every_method, shared, seed) for seed in range(12)]
    for seed, results in enumerate(shared.run_together(jobs, num_threads=5)):
        for result, expected in zip(results, call_every_method(model, seed), strict=True):
            torch.testing.assert_close(result, expected, rtol=ROUNDING, atol=ROUNDING)


def test_threads_share_passes(model: CausalLM) -> None:
    shared, sizes = SharedPasses(model), list[int]()
    hook = shared.model.register_forward_pre_hook(
        lambda module, args, inputs: sizes.append(len(inputs["input_ids"])), with_kwargs=True
    )
    tokens = torch.ones(1, 9, dtype=torch.long)
    try:
        shared.run_together([partial(shared.log_probs, tokens, torch.arange(9)[None])] * 8, num_threads=4)
    finally:
        hook.remove()
    # The jobs of a thread follow each other, so at most four share a pass.
    assert sum(sizes) == 8
    assert max(sizes) > 1


def test_an_error_ends_all_threads(model: CausalLM) -> None:
    shared = SharedPasses(model)

    def fail() -> list[Tensor]:
        raise ValueError("no result")

    jobs = [fail, *[partial(call_every_method, shared, seed) for seed in range(6)]]
    with pytest.raises(ValueError, match="no result"):
        shared.run_together(jobs, num_threads=3)
    tokens = torch.full((1, 4), VOCABULARY)
    with pytest.raises(IndexError):
        shared.run_together([partial(shared.log_probs, tokens, torch.arange(4)[None])] * 3, num_threads=3)
    # The queue is empty again.
    (result,) = shared.run_together([partial(call_every_method, shared, 1)], num_threads=1)
    assert len(result) == len(call_every_method(model, 1))


@pytest.mark.slow
def test_a_study_has_the_rows_of_separate_passes(model: CausalLM, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    texts = [
        TokenizedDocument(name=f"text {index}", tokens=rng.integers(0, VOCABULARY, 120).astype(np.int32))
        for index in range(4)
    ]
    settings = lw.InfluenceSettings(
        near=4, far=24, ks=(1, 2), unit="span:4", modes=("strict", "masked", "decode"), num_targets=8, searched=None
    )
    evaluators = [
        TargetEvaluator(model=each, texts=texts, settings=settings, token_text=str)
        for each in (model, SharedPasses(model))
    ]
    targets = sample_targets(texts, context=settings.context, num_targets=8, seed=0, block=4)
    blocks = [(start, targets[start : start + 4]) for start in (0, 4)]
    expected, found = (list(evaluator.rows_of_blocks(blocks)) for evaluator in evaluators)
    assert [len(rows) for rows in found] == [4, 4]
    for rows, expected_rows in zip(found, expected, strict=True):
        for row, expected_row in zip(rows, expected_rows, strict=True):
            assert row["loss_short"] == pytest.approx(expected_row["loss_short"], abs=ROUNDING)
            for selection, expected_selection in zip(row["selections"], expected_row["selections"], strict=True):
                assert selection["mode"] == expected_selection["mode"]
                assert selection["from"] == expected_selection["from"]
                assert [each["text"] for each in selection["chosen"]] == [
                    each["text"] for each in expected_selection["chosen"]
                ]
                assert selection["divergences"] == pytest.approx(expected_selection["divergences"], abs=ROUNDING)

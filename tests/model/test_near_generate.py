"""Decoding from near keys gives the same tokens and IDs as decoding from all keys."""

import pytest
import torch
from tests.model.test_near_attention import SHARP, random_decoder

from lengthwise.encodings import ALiBi
from lengthwise.experiments.recipes import quick_version, recipe
from lengthwise.experiments.run import train
from lengthwise.model import generate as generation
from lengthwise.model.fast import near_attention
from lengthwise.model.fast import near_key_generation as near_generate
from lengthwise.model.generate import generate
from lengthwise.model.position_heads import POSITION_HEADS

PROMPT, NEW, END = 20, 10, 1
HEADS = [name for name in POSITION_HEADS if name != "class"]


@pytest.fixture
def calls(monkeypatch) -> list[bool]:
    """Let short prompts use drafts in small blocks; return whether each of them was completed."""
    monkeypatch.setattr(near_attention, "WIDTHS", (2, 4, 8))
    monkeypatch.setattr(near_generate, "WIDTHS", (2,))
    monkeypatch.setattr(near_generate, "FIRST_BLOCK", 4)
    monkeypatch.setattr(near_generate, "MAX_FAILED_CHECKS", 100)
    completed = []
    actual = near_generate.generate_with_near_keys

    def generate_with_near_keys(*given, **how):
        result = actual(*given, **how)
        completed.append(result is not None)
        return result

    monkeypatch.setattr(generation, "generate_with_near_keys", generate_with_near_keys)
    return completed


def both(decoder, prompt, ids, monkeypatch):
    """Return the tokens and IDs of dense decoding and of drafts."""
    results = []
    for limit in (10**9, 1):
        monkeypatch.setattr(generation, "MAX_DENSE_PROMPT", limit)
        results.append(generate(decoder, prompt, ids, end=END, max_new_tokens=NEW))
    return results


@pytest.mark.covering(1)
@pytest.mark.parametrize("num_levels", [1, 2])
@pytest.mark.parametrize("encoding", [SHARP, ALiBi()], ids=lambda each: each.name)
@pytest.mark.parametrize("head", HEADS)
def test_drafts_lead_to_the_same_tokens_and_ids(head, encoding, num_levels, calls, monkeypatch):
    for temperature in (0.3, 20.0):
        decoder = random_decoder(encoding, num_levels, 100, head=head, temperature=temperature, previous_token_mix=True)
        prompt, ids = torch.randint(2, 5, (2, PROMPT)), torch.arange(1, PROMPT + 1).expand(num_levels, 2, -1)
        dense, near = both(decoder, prompt, ids, monkeypatch)
        assert torch.equal(near.tokens, dense.tokens)
        assert torch.equal(near.position_ids, dense.position_ids)
    assert calls == [True] * 4


def test_drafts_that_fail_too_often_lead_to_dense_decoding(calls, monkeypatch):
    monkeypatch.setattr(near_generate, "MAX_FAILED_CHECKS", -1)
    decoder = random_decoder(num_predicted_ids=100)
    prompt, ids = torch.randint(2, 5, (1, PROMPT)), torch.arange(1, PROMPT + 1)[None]
    dense, near = both(decoder, prompt, ids, monkeypatch)
    assert torch.equal(near.tokens, dense.tokens)
    assert calls == [False]


def test_given_ids_are_used_densely(calls, monkeypatch):
    decoder = random_decoder(num_predicted_ids=100)
    prompt, ids = torch.randint(2, 5, (1, PROMPT)), torch.arange(1, PROMPT + NEW + 1)[None]
    dense, near = both(decoder, prompt, ids, monkeypatch)
    assert torch.equal(near.position_ids, dense.position_ids)
    assert calls == []


def test_a_trained_run_continues_a_long_prompt_with_few_checks(calls, monkeypatch, tmp_path):
    run = train(quick_version(recipe("parity_rank")), tmp_path / "run", device="cpu")
    assert run is not None
    prompt = torch.randint(2, (1, PROMPT))
    ids = torch.arange(1, PROMPT + 1)[None]
    dense, near = both(run.decoder, prompt, ids, monkeypatch)
    assert torch.equal(near.tokens, dense.tokens)
    assert torch.equal(near.position_ids, dense.position_ids)
    assert calls == [True]


def test_blocks_double_until_a_draft_is_wrong(monkeypatch):
    # All keys are near, so all drafts are right, except for one that is changed.
    monkeypatch.setattr(near_generate, "WIDTHS", (1000,))
    monkeypatch.setattr(near_generate, "FIRST_BLOCK", 2)
    blocks = []
    actual = near_generate._Sequence.draft

    def draft(sequence, num_tokens):
        blocks.append(num_tokens)
        actual(sequence, num_tokens)
        if len(blocks) == 3:
            sequence.tokens[0, sequence.length - 1] += 1

    monkeypatch.setattr(near_generate._Sequence, "draft", draft)
    decoder = random_decoder(SHARP, num_predicted_ids=200, temperature=1.0)
    prompt, ids = torch.randint(2, 5, (1, PROMPT)), torch.arange(1, PROMPT + 1)[None, None]
    assert near_generate.generate_with_near_keys(decoder, prompt, ids, end=-1, max_new_tokens=60) is not None
    assert blocks[:5] == [2, 4, 8, 2, 4]

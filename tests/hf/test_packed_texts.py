"""Tests of rows packed by the data collators of other libraries: no text reads another text."""

import pytest
import torch
from tests.hf.test_predictive_model import shared_model
from tests.support.causal_models import SUPPORTED
from tests.support.small_runs import small_experiment
from transformers import DataCollatorWithFlattening

from lengthwise.core.errors import SettingError
from lengthwise.hf.lengthwise_model import LengthwiseForCausalLM, build_config

TEXTS = [[5, 6, 7, 8, 9], [10, 11, 12], [13], [14, 15, 16, 17]]
# The four kinds of text boundaries that `transformers` writes.
COLLATORS = {
    "position_ids": DataCollatorWithFlattening(),
    "position_ids_from_3": DataCollatorWithFlattening(position_ids_start=3),
    "seq_idx": DataCollatorWithFlattening(return_seq_idx=True),
    "cu_seq_lens_q": DataCollatorWithFlattening(return_flash_attn_kwargs=True),
}


def flatten(boundaries: str) -> dict:
    return COLLATORS[boundaries]([{"input_ids": text, "labels": text} for text in TEXTS], return_tensors="pt")


@pytest.mark.covering(1)
@pytest.mark.parametrize("scaling", ["none", "log"])
@pytest.mark.parametrize("boundaries", COLLATORS)
@pytest.mark.parametrize("architecture", SUPPORTED)
def test_packed_texts_have_the_logits_and_the_loss_of_separate_texts(architecture, boundaries, scaling):
    model = shared_model(architecture, head=None, segments=False, length_scaling=scaling)
    batch = flatten(boundaries)
    ids = batch["position_ids"].split([len(text) for text in TEXTS], dim=1)
    with torch.no_grad():
        packed = model(**batch)
        apart = [
            model(torch.tensor([text]), position_ids=text_ids).logits[0]
            for text, text_ids in zip(TEXTS, ids, strict=True)
        ]
    torch.testing.assert_close(packed.logits[0], torch.cat(apart), atol=1e-5, rtol=1e-5)
    losses = [
        torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(text[1:], dtype=torch.long), reduction="sum")
        for logits, text in zip(apart, TEXTS, strict=True)
    ]
    torch.testing.assert_close(packed.loss, sum(losses) / sum(len(text) - 1 for text in TEXTS), atol=1e-5, rtol=1e-5)


def test_a_mask_of_ones_keeps_restarting_ids_in_one_text():
    model, ids = shared_model("llama", head=None, segments=False), torch.tensor([[0, 1, 2, 0, 1, 2]])
    tokens = torch.tensor([[5, 6, 7, 8, 9, 10]])
    with torch.no_grad():
        one_text, packed, prompt = (
            model(tokens, mask, ids, labels=labels).logits[0, 3]
            for mask, labels in ((torch.ones_like(ids), tokens), (None, tokens), (None, None))
        )
    assert not torch.allclose(one_text, packed, atol=1e-3)
    # The IDs of a coupled prompt may restart.
    assert torch.equal(one_text, prompt)


def test_restarting_ids_without_a_mask_raise_an_error_in_a_model_with_a_head():
    model, batch = shared_model("llama"), flatten("position_ids")
    with pytest.raises(SettingError, match="packed texts"):
        model(**batch)
    boundaries = flatten("seq_idx")
    del boundaries["labels"]
    with torch.no_grad():
        logits = model(**boundaries).logits[:, 5:8]
        alone = model(torch.tensor([TEXTS[1]]), position_ids=torch.tensor([[0, 1, 2]])).logits
    torch.testing.assert_close(logits, alone, atol=1e-5, rtol=1e-5)


def test_restarting_ids_without_a_mask_raise_an_error_in_a_decoder():
    model = LengthwiseForCausalLM(build_config(small_experiment(), {})).eval()
    tokens, ids = torch.tensor([[0, 1, 1, 0, 1, 1]]), torch.tensor([[1, 2, 3, 1, 2, 3]])
    with pytest.raises(SettingError, match="packed texts"):
        model(tokens, position_ids=ids, labels=tokens)
    assert model(tokens, torch.ones_like(ids), ids, labels=tokens).logits.shape[1] == 6

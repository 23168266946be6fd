"""Tests of causal masks, entry by entry and in eager and sdpa attention."""

import pytest
import torch
from tests.support.causal_models import CONFIGS, VOCABULARY, causal_model

from lengthwise.hf.model_inputs import causal_mask

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])


@DTYPES
@pytest.mark.parametrize("past", [0, 3])
def test_a_token_attends_to_itself_and_earlier_tokens_of_its_sequence(past, dtype):
    is_token = torch.rand(4, 9) < 0.7
    sequence_ids = torch.randint(0, 3, (4, 9))
    mask = causal_mask(is_token, sequence_ids=sequence_ids, past=past, dtype=dtype)
    assert mask.shape == (4, 1, 9 - past, 9)
    assert mask.dtype == dtype
    for row in range(4):
        for query in range(past, 9):
            for key in range(9):
                same = bool(sequence_ids[row, query] == sequence_ids[row, key])
                visible = key == query or (key < query and same and bool(is_token[row, key]))
                assert mask[row, 0, query - past, key] == (0 if visible else torch.finfo(dtype).min)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_padding_changes_no_logits_and_causes_no_nan(attention):
    model = causal_model(CONFIGS["llama"]())
    model.set_attn_implementation(attention)
    tokens = torch.randint(3, VOCABULARY, (1, 10))
    ids = torch.tensor([[1, 2, 3, 30, 31, 2, 2, 40, 41, 9]])
    alone = model(input_ids=tokens, position_ids=ids, attention_mask=causal_mask(torch.ones(1, 10, dtype=torch.bool)))
    is_token = torch.arange(13)[None] >= 3
    padded = model(
        input_ids=torch.nn.functional.pad(tokens, (3, 0)),
        position_ids=torch.nn.functional.pad(ids, (3, 0)),
        attention_mask=causal_mask(is_token),
    )
    assert padded.logits.isfinite().all()
    torch.testing.assert_close(padded.logits[:, 3:], alone.logits, atol=1e-4, rtol=1e-4)

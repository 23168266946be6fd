"""Tests of `transformers` behavior with custom IDs on which this library depends.

They hold for the version in constraints.txt. If one fails with a newer version, its message names the code to check.
"""

import pytest
import torch
import transformers
from tests.support.causal_models import CONFIGS, causal_model
from transformers import DynamicCache

VERSION = f"transformers {transformers.__version__}"


def ids_per_call(model, **options) -> list[list[int]]:
    """Return the IDs of the first sequence in each call of `generate`."""
    ids = []
    handle = model.register_forward_pre_hook(
        lambda module, args, kwargs: ids.append(kwargs["position_ids"][0].tolist()), with_kwargs=True
    )
    tokens = torch.tensor([[5, 6, 7, 8]])
    model.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=3, do_sample=False, eos_token_id=None, **options
    )
    handle.remove()
    return ids


@pytest.mark.parametrize("ids", [[3, 3, 3, 3], [9, 2, 2, 30]])
def test_generate_continues_with_the_last_id_plus_one(ids):
    # Issues 33938 (repeated IDs crashed) and 36510 (IDs were not advanced) of transformers.
    calls = ids_per_call(causal_model(CONFIGS["llama"]()), position_ids=torch.tensor([ids]))
    assert calls == [ids, [ids[-1] + 1], [ids[-1] + 2]], (
        f"{VERSION} continues custom IDs differently ({calls}); check hf/position_id_generation.py"
    )


def test_generate_assigns_ids_independent_of_tokens():
    # Issue 33548 of transformers, open.
    model = causal_model(CONFIGS["llama"]())
    first, other = (ids_per_call(model, bad_words_ids=[[token]] if token else None) for token in (None, 3))
    assert first == other, f"{VERSION} lets IDs depend on tokens; simplify hf/position_id_generation.py"


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gpt_neox"])
@pytest.mark.parametrize("masked", [False, True])
def test_a_jump_of_ids_starts_another_text_without_a_mask(architecture, masked):
    model = causal_model(CONFIGS[architecture]())
    embedded = model.get_input_embeddings()(torch.tensor([[5, 6, 7, 8]])).detach().requires_grad_()
    mask = torch.ones(1, 4, dtype=torch.long) if masked else None
    model(
        inputs_embeds=embedded, position_ids=torch.tensor([[0, 1, 5, 6]]), attention_mask=mask, use_cache=False
    ).logits[0, -1].logsumexp(0).backward()
    visible = bool((embedded.grad[0, :2].abs().sum(dim=-1) > 0).all())
    assert visible == masked, f"{VERSION} treats jumps of IDs differently; check the masks in hf/model_inputs.py"


def test_crop_takes_a_negative_number_of_tokens():
    cache = DynamicCache()
    cache.update(torch.zeros(1, 1, 5, 2), torch.zeros(1, 1, 5, 2), 0)
    cache.crop(-2)
    assert cache.get_seq_length() == 3, f"{VERSION} crops differently; check PositionCache.crop"
    with pytest.raises(ValueError, match="positive value"):
        cache.crop(2)

"""What `transformers` does with IDs of one's own, as far as our code is built around it.

These hold with the version in constraints.txt. When one fails with a newer version, its message says what of ours to
look at: it may be simpler now.
"""

import pytest
import torch
import transformers
from tests.support.causal_models import CONFIGS, causal_model
from transformers import DynamicCache

VERSION = f"transformers {transformers.__version__}"


def ids_read_by(model, **asked) -> list[list[int]]:
    """The IDs that each call of a `generate` is given, of the first row."""
    read = []
    handle = model.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(kwargs["position_ids"][0].tolist()), with_kwargs=True
    )
    tokens = torch.tensor([[5, 6, 7, 8]])
    model.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=3, do_sample=False, eos_token_id=None, **asked
    )
    handle.remove()
    return read


@pytest.mark.parametrize("ids", [[3, 3, 3, 3], [9, 2, 2, 30]])
def test_generate_goes_on_with_the_last_id_plus_one(ids):
    # Issues 33938 (repeated IDs crashed) and 36510 (IDs were not advanced) of its tracker.
    read = ids_read_by(causal_model(CONFIGS["llama"]()), position_ids=torch.tensor([ids]))
    assert read == [ids, [ids[-1] + 1], [ids[-1] + 2]], (
        f"{VERSION} goes on otherwise with given IDs ({read}); see hf/id_generation.py, which takes them over"
    )


def test_generate_cannot_choose_an_id_by_the_token():
    # Issue 33548, open: what is prepared for a step knows the token; the model within has no say.
    model = causal_model(CONFIGS["llama"]())
    first, other = (ids_read_by(model, bad_words_ids=[[token]] if token else None) for token in (None, 3))
    assert first == other, f"{VERSION} lets IDs depend on tokens; see hf/id_generation.py, which may be simpler now"


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gpt_neox"])
@pytest.mark.parametrize("masked", [False, True])
def test_a_jump_of_ids_is_taken_for_another_text_without_a_mask(architecture, masked):
    model = causal_model(CONFIGS[architecture]())
    embedded = model.get_input_embeddings()(torch.tensor([[5, 6, 7, 8]])).detach().requires_grad_()
    mask = torch.ones(1, 4, dtype=torch.long) if masked else None
    model(
        inputs_embeds=embedded, position_ids=torch.tensor([[0, 1, 5, 6]]), attention_mask=mask, use_cache=False
    ).logits[0, -1].logsumexp(0).backward()
    seen = bool((embedded.grad[0, :2].abs().sum(dim=-1) > 0).all())
    assert seen == masked, (
        f"{VERSION} reads IDs that jump otherwise; see hf/model_inputs.py, whose masks may not be needed now"
    )


def test_crop_takes_the_number_of_tokens_to_remove_below_zero():
    cache = DynamicCache()
    cache.update(torch.zeros(1, 1, 5, 2), torch.zeros(1, 1, 5, 2), 0)
    cache.crop(-2)
    assert cache.get_seq_length() == 3, f"{VERSION} crops otherwise; see PositionCache.crop in hf/position_cache.py"
    with pytest.raises(ValueError, match="positive value"):
        cache.crop(2)

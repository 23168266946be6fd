"""Tests of the options of `wrap`: each has its effect, and invalid values raise errors."""

import dataclasses
import inspect

import numpy as np
import pytest
import torch
from tests.hf.test_predictive_model import IDS, MASK, TOKENS, make_batch, run_generate, shared_model, wrap_model
from tests.support.causal_models import CONFIGS, MAX_POSITIONS, causal_model
from transformers import AutoConfig, AutoModelForCausalLM

from lengthwise.core.errors import ModelError, SettingError, UnknownNameError
from lengthwise.hf import PredictivePositionConfig, PredictivePositionModel
from lengthwise.hf.collators import PositionCollator
from lengthwise.hf.predictive_model import OPTIONS
from lengthwise.model.position_heads import POSITION_HEADS
from lengthwise.positions import Predicted
from lengthwise.tasks import Parity

# A non-default value of each option, with the options it needs.
OTHERS = {
    "head": {"head": "rank"},
    "num_position_ids": {"num_position_ids": 40},
    "segments": {"segments": True},
    "length_scaling": {"length_scaling": "log"},
    "log_length_from": {"length_scaling": "log", "log_length_from": 4},
    "condition_on_token": {"condition_on_token": False},
    "id_weight": {"id_weight": 3.0},
    "count_prompt_from": {"count_prompt_from": 3},
}


def effects(options: dict) -> dict[str, torch.Tensor | int | str]:
    """Return the parts of the output of a model with these options."""
    model = shared_model("llama", **{"segments": False} | options)
    with torch.no_grad():
        output = model(**make_batch())
    parts: dict = {"logits": output.logits, "token": output.token_loss, "ids": output.position_loss, "all": output.loss}
    for name, call in {
        "largest ID": lambda: model(TOKENS, None, torch.full_like(TOKENS, 60)).logits,
        "without IDs": lambda: model(TOKENS).logits,
    }.items():
        try:
            with torch.no_grad():
                parts[name] = call()
        except SettingError:
            parts[name] = "error"
    return parts


# Parts that each option changes. The pointer head reads tokens and IDs, but no hidden states.
EFFECTS = {
    "head": {"ids", "all"},
    "num_position_ids": {"largest ID"},
    "segments": {"logits", "token", "all"},
    "length_scaling": {"logits", "token", "all", "largest ID"},
    "log_length_from": {"logits", "token", "all", "largest ID"},
    "condition_on_token": {"ids", "all"},
    "id_weight": {"all"},
    "count_prompt_from": {"without IDs"},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_changes_only_its_part_of_the_output(option):
    needed = {name: value for name, value in OTHERS[option].items() if name != option}
    before, after = effects(needed), effects(OTHERS[option])
    changed = {
        name
        for name, value in before.items()
        if type(value) is not type(after[name])
        or (isinstance(value, torch.Tensor) and not torch.allclose(value, after[name], atol=1e-5))
    }
    assert changed == EFFECTS[option]


def test_a_separator_belongs_to_the_segment_of_the_prompt_in_training_and_generation():
    model = shared_model("llama", segments=True)
    examples = Parity().sample(length=4, size=2, rng=np.random.default_rng(0))
    batch = PositionCollator(Predicted(num_position_ids=40), 0)(
        [
            {"input_ids": tokens.tolist(), "prompt_length": int(prompt_length), "coupling": examples.coupling[0, 0]}
            for tokens, prompt_length in zip(examples.tokens, examples.prompt_length, strict=True)
        ]
    )
    masks: list[torch.Tensor] = []
    hook = model.segment.register_forward_hook(lambda module, inputs, output: masks.append(inputs[1]))
    with torch.no_grad():
        model(**batch)
        prompts = {name: batch[name][:, : int(examples.prompt_length[0])] for name in ("input_ids", "position_ids")}
        attention_mask = torch.ones_like(prompts["input_ids"])
        model.generate(**prompts, attention_mask=attention_mask, max_new_tokens=2, do_sample=False)
    hook.remove()
    separator = Parity().vocabulary.index("=")
    expected = torch.arange(batch["input_ids"].shape[1]).expand_as(batch["input_ids"]) < examples.prompt_length[0]
    assert bool(expected[batch["input_ids"] == separator].all())
    assert torch.equal(masks[0], expected)
    # Generation reads the prompt first, and then one token at a time.
    assert bool(masks[1].all())
    assert not bool(torch.cat(masks[2:], dim=1).any())


@pytest.mark.parametrize("head", POSITION_HEADS)
def test_condition_on_token_lets_every_head_read_the_token(head):
    equal = []
    for condition_on_token in (True, False):
        model = shared_model("llama", head=head, condition_on_token=condition_on_token)
        ids = []
        for token in (5, 60):
            state = model(TOKENS, MASK, IDS, use_cache=True).past_key_values
            tokens = torch.full_like(TOKENS[:, :1], token)
            assert state.prompts is None
            model.next_position_ids(state, tokens)
            inputs = state.last_hidden().float(), state.last_ids(), model._embed_next(tokens)
            ids.append(model.position_head(*inputs, state.prompts[0]).log_probs)
        equal.append(torch.equal(*ids))
    assert equal == [False, True]


def untyped_wrap(model, **options) -> PredictivePositionModel:
    """Call `wrap` without the type checks of these tests."""
    return inspect.unwrap(PredictivePositionModel.wrap.__func__)(PredictivePositionModel, model, **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"segments": "yes"}, SettingError, r"^segments 'yes' has the wrong type; use True or False$"),
        ({"segments": 1}, SettingError, r"^segments 1 has the wrong type"),
        ({"head": 3}, SettingError, r"^head 3 has the wrong type"),
        ({"num_position_ids": "12"}, SettingError, r"^num_position_ids '12' has the wrong type"),
        ({"num_position_ids": True}, SettingError, r"^num_position_ids True has the wrong type"),
        ({"id_weight": "3"}, SettingError, r"^id_weight '3' has the wrong type"),
        ({"id_weight": -1.0}, SettingError, r"^invalid id_weight -1\.0; use a finite number, 0 or more$"),
        ({"id_weight": float("nan")}, SettingError, r"^id_weight nan is not finite"),
        ({"length_scaling": True}, SettingError, r"^length_scaling True has the wrong type"),
        ({"length_scaling": "log", "log_length_from": 0}, SettingError, r"^invalid log_length_from 0 with"),
        ({"head": None, "id_weight": 2.0}, SettingError, r"^head=None predicts no IDs, so id_weight and cond"),
        ({"head": None, "condition_on_token": False}, SettingError, r"^head=None predicts no IDs"),
        (
            {"count_prompt_from": MAX_POSITIONS},
            SettingError,
            rf"from {MAX_POSITIONS}; use an ID from 0 to {MAX_POSITIONS - 1}$",
        ),
        ({"count_prompt_from": -1}, SettingError, r"^invalid count_prompt_from -1"),
    ],
)
def test_an_invalid_value_raises_a_one_line_error(options, error, message):
    with pytest.raises(error, match=message):
        untyped_wrap(causal_model(CONFIGS["llama"]()), **options)


def test_an_unknown_option_raises_an_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'segements'"):
        PredictivePositionModel.wrap(causal_model(CONFIGS["llama"]()), length_scaling="log", segements=True)
    inner = CONFIGS["llama"]()
    for wrong in ({"segements": True}, {"vocab_size": 3}):
        with pytest.raises(UnknownNameError, match=f"unknown option '{next(iter(wrong))}'; .*known: .*segments"):
            PredictivePositionConfig(text_config=inner, **wrong)
    assert {*OPTIONS} < {part.name for part in dataclasses.fields(PredictivePositionConfig)}


def test_id_weight_may_be_an_integer():
    assert untyped_wrap(causal_model(CONFIGS["llama"]()), id_weight=3).config.id_weight == 3.0


def test_loading_with_other_options_raises_an_error(tmp_path):
    model = wrap_model("llama")
    # Attributes that trainers add to a configuration are kept.
    model.config.added_by_trainer = 7
    model.save_pretrained(tmp_path)
    for kind in (PredictivePositionModel, AutoModelForCausalLM):
        with pytest.raises(ModelError, match=r"the saved model has segment.weight, so it was saved with other options"):
            kind.from_pretrained(tmp_path, segments=False)
        with pytest.raises(TypeError, match="unexpected keyword argument 'segements'"):
            kind.from_pretrained(tmp_path, segements=True)
    assert PredictivePositionModel.from_pretrained(tmp_path).config.added_by_trainer == 7


def test_log_scaling_of_loaded_weights_needs_a_reference_length(tmp_path):
    config = CONFIGS["llama"]()
    causal_model(config).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).float()
    with torch.no_grad():
        before = loaded(TOKENS).logits
    with pytest.raises(SettingError, match=rf"log_length_from={config.max_position_embeddings}$"):
        PredictivePositionModel.wrap(loaded, length_scaling="log")
    # The refused call has not changed the model.
    with torch.no_grad():
        assert torch.equal(loaded(TOKENS).logits, before)
    PredictivePositionModel.wrap(loaded, head=None, length_scaling="log", log_length_from=TOKENS.shape[1])
    with torch.no_grad():
        torch.testing.assert_close(loaded(TOKENS).logits, before)


def test_log_scaling_of_random_weights_needs_no_reference_length(tmp_path):
    wrap_model("llama", length_scaling="log").save_pretrained(tmp_path)
    PredictivePositionModel.wrap(AutoModelForCausalLM.from_config(CONFIGS["llama"]()), length_scaling="log")
    # Loaded weights that were trained with log scaling.
    loaded = PredictivePositionModel.from_pretrained(tmp_path)
    PredictivePositionModel.wrap(loaded.model, head="rank", length_scaling="log")
    # Random weights of the sizes of a saved model.
    causal_model(CONFIGS["llama"]()).save_pretrained(tmp_path / "plain")
    config = AutoConfig.from_pretrained(tmp_path / "plain")
    PredictivePositionModel.wrap(AutoModelForCausalLM.from_config(config), length_scaling="log")


def test_another_attention_of_the_wrapped_model_raises_an_error():
    model = wrap_model("llama", length_scaling="log")
    model.model.set_attn_implementation("sdpa")
    text = r"the wrapped model uses the attention sdpa, which disables length_scaling='log'; call"
    with pytest.raises(SettingError, match=text):
        run_generate(model)
    # Wrapping the inner model again also changes its attention.
    model.model.set_attn_implementation("lengthwise_log")
    run_generate(model)
    PredictivePositionModel.wrap(model.model)
    with pytest.raises(SettingError, match=text):
        run_generate(model)


def test_an_unknown_argument_raises_an_error():
    model = shared_model("llama")
    with pytest.raises(SettingError, match=r"unknown arguments position_label, postion_ids; leave them out \(forward"):
        model(TOKENS, None, IDS, postion_ids=IDS, position_label=IDS)
    model(TOKENS, None, IDS, output_hidden_states=True, output_attentions=False)

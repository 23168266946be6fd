"""Options of `wrap`: each one has an effect, and what is none is refused."""

import dataclasses
import inspect

import pytest
import torch
from tests.hf.test_predictive_model import IDS, INSIDE, TOKENS, batch, shared, wrapped, written
from tests.support.causal_models import CONFIGS, POSITIONS, causal_model
from transformers import AutoModelForCausalLM

from lengthwise.core.errors import ModelError, SettingError, UnknownNameError
from lengthwise.hf import PredictivePositionConfig, PredictivePositionModel
from lengthwise.hf.predictive_config import OPTIONS
from lengthwise.model.position_heads import POSITION_HEADS

# A value of each option that is not its default, with what else it needs.
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
    """What a model with these options answers, part by part."""
    model = shared("llama", **{"segments": False} | options)
    with torch.no_grad():
        made = model(**batch())
    found: dict = {"logits": made.logits, "token": made.token_loss, "ids": made.position_loss, "all": made.loss}
    for name, ask in {
        "largest ID": lambda: model(TOKENS, None, torch.full_like(TOKENS, 60)).logits,
        "without IDs": lambda: model(TOKENS).logits,
    }.items():
        try:
            with torch.no_grad():
                found[name] = ask()
        except SettingError:
            found[name] = "refused"
    return found


# What each option is to change, and nothing else. The pointer head reads tokens and IDs, and no hidden states.
CHANGED = {
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
def test_each_option_changes_what_it_is_for_and_nothing_else(option):
    needed = {name: value for name, value in OTHERS[option].items() if name != option}
    before, after = effects(needed), effects(OTHERS[option])
    changed = {
        name
        for name, value in before.items()
        if type(value) is not type(after[name])
        or (isinstance(value, torch.Tensor) and not torch.allclose(value, after[name], atol=1e-5))
    }
    assert changed == CHANGED[option]


@pytest.mark.parametrize("head", POSITION_HEADS)
def test_every_head_reads_the_token_that_was_chosen_unless_told_not_to(head):
    losses = []
    for reads in (True, False):
        model = shared("llama", head=head, condition_on_token=reads)
        ids = []
        for token in (5, 60):
            state = model(TOKENS, INSIDE, IDS, use_cache=True).past_key_values
            chosen = torch.full_like(TOKENS[:, :1], token)
            prompt = state.prompts
            assert prompt is None
            model.next_position_ids(state, chosen)
            head_in_use, hidden = model.position_head, state.last_hidden().float()
            ids.append(head_in_use(hidden, state.last_ids(), model._embed_next(chosen), state.prompts[0]).log_probs)
        losses.append(torch.equal(*ids))
    assert losses == [False, True]


def untyped_wrap(model, **options) -> PredictivePositionModel:
    """`wrap` as users call it, whose types nothing checks but itself."""
    return inspect.unwrap(PredictivePositionModel.wrap.__func__)(PredictivePositionModel, model, **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"segments": "yes"}, SettingError, r"^segments is 'yes' \(str\); use True or False$"),
        ({"segments": 1}, SettingError, r"^segments is 1 \(int\); use True or False$"),
        ({"head": 3}, SettingError, r"^head is 3 \(int\); use a name, or None$"),
        ({"num_position_ids": "12"}, SettingError, r"^num_position_ids is '12' \(str\); use a whole number$"),
        ({"num_position_ids": True}, SettingError, r"^num_position_ids is True \(bool\)"),
        ({"id_weight": "3"}, SettingError, r"^id_weight is '3' \(str\); use a number$"),
        ({"id_weight": -1.0}, SettingError, r"^id_weight -1\.0 is no weight of a loss; use 0 or more$"),
        ({"id_weight": float("nan")}, SettingError, r"^id_weight nan is no weight"),
        ({"length_scaling": True}, SettingError, r"^length_scaling is True \(bool\); use 'none' or 'log'$"),
        ({"length_scaling": "log", "log_length_from": 0}, SettingError, r"^log_length_from 0 scales nothing"),
        ({"head": None, "id_weight": 2.0}, SettingError, r"^head=None predicts no IDs, so id_weight and cond"),
        ({"head": None, "condition_on_token": False}, SettingError, r"^head=None predicts no IDs"),
        ({"count_prompt_from": POSITIONS}, SettingError, rf"no ID of this model; use 0 to {POSITIONS - 1}$"),
        ({"count_prompt_from": -1}, SettingError, r"^count_prompt_from -1 is no ID of this model"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(options, error, message):
    with pytest.raises(error, match=message):
        untyped_wrap(causal_model(CONFIGS["llama"]()), **options)


def test_an_option_that_does_not_exist_is_refused_by_wrap_and_by_the_configuration():
    with pytest.raises(TypeError, match="unexpected keyword argument 'segements'"):
        PredictivePositionModel.wrap(causal_model(CONFIGS["llama"]()), length_scaling="log", segements=True)
    inner = CONFIGS["llama"]()
    for wrong in ({"segements": True}, {"vocab_size": 3}):
        with pytest.raises(UnknownNameError, match=f"unknown option '{next(iter(wrong))}'; .*known: .*segments"):
            PredictivePositionConfig(text_config=inner, **wrong)
    assert {*OPTIONS} < {part.name for part in dataclasses.fields(PredictivePositionConfig)}


def test_a_whole_number_is_a_weight():
    assert untyped_wrap(causal_model(CONFIGS["llama"]()), id_weight=3).config.id_weight == 3.0


def test_a_saved_option_cannot_be_left_out_when_loading(tmp_path):
    model = wrapped("llama")
    # What trainers leave in a configuration is no option, and stays.
    model.config.left_by_a_trainer = 7
    model.save_pretrained(tmp_path)
    for kind in (PredictivePositionModel, AutoModelForCausalLM):
        with pytest.raises(ModelError, match=r"the saved model has a segment.weight: it was saved with other options"):
            kind.from_pretrained(tmp_path, segments=False)
        with pytest.raises(TypeError, match="unexpected keyword argument 'segements'"):
            kind.from_pretrained(tmp_path, segements=True)
    assert PredictivePositionModel.from_pretrained(tmp_path).config.left_by_a_trainer == 7


def test_scaling_that_was_switched_off_behind_the_wrapper_is_noticed():
    model = wrapped("llama", length_scaling="log")
    model.model.set_attn_implementation("sdpa")
    text = (
        r"length_scaling='log' is off: the model within was set to the attention sdpa; undo it with model\.model\.set"
    )
    with pytest.raises(SettingError, match=text):
        written(model)
    # As where the same model is wrapped a second time.
    model.model.set_attn_implementation("lengthwise_log")
    written(model)
    PredictivePositionModel.wrap(model.model)
    with pytest.raises(SettingError, match=text):
        written(model)


def test_an_argument_that_the_model_within_would_swallow_is_refused():
    model = shared("llama")
    with pytest.raises(SettingError, match=r"this model takes no position_label, postion_ids; leave it out \(forward"):
        model(TOKENS, None, IDS, postion_ids=IDS, position_label=IDS)
    model(TOKENS, None, IDS, output_hidden_states=True, output_attentions=False)

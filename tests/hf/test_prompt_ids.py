"""Tests of prompt IDs at inference, training without IDs, and model cards."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from tests.hf.test_hf_loading import byte_level_tokenizer
from tests.hf.test_predictive_model import IDS, MASK, TOKENS, make_batch, wrap_model
from tests.support.causal_models import CONFIGS, MAX_POSITIONS, causal_model
from tests.support.small_runs import small_experiment
from transformers import pipeline

from lengthwise.core.errors import ModelError, PositionRangeError, SettingError
from lengthwise.encodings import NoPE, Rotary
from lengthwise.hf import PositionCollator, PredictivePositionModel
from lengthwise.hf.causal_lm import CausalLM
from lengthwise.hf.lengthwise_model import find_first_prompt_position_id
from lengthwise.positions import Coupled, Predicted, Randomized, Sequential
from lengthwise.tasks import Copy

ROWS = [
    {"input_ids": [5, 6, 7, 8, 9], "labels": [-100, -100, -100, 8, 9], "coupling": [0, 1, 2, 1, 2]},
    {"input_ids": [5, 6, 8], "labels": [-100, -100, 8], "coupling": [0, 1, 1]},
]
NO_RULE = r"position_ids are missing, and this model has no default prompt IDs; pass position_ids, .*=0"


def run_generate(model, **options):
    return model.generate(TOKENS, **{"attention_mask": MASK, "max_new_tokens": 3, "do_sample": False} | options)


def test_a_prompt_without_ids_raises_an_error_in_every_call():
    model = wrap_model("llama")
    generator = pipeline("text-generation", model=model, tokenizer=byte_level_tokenizer(has_start=True))
    for call in (lambda: run_generate(model), lambda: model(TOKENS), lambda: generator("abc", max_new_tokens=3)):
        with pytest.raises(SettingError, match=NO_RULE):
            call()


@pytest.mark.parametrize("first", [0, 3])
def test_prompts_that_count_up_need_no_ids(first):
    model = wrap_model("llama", count_prompt_from=first)
    ids = (MASK.cumsum(dim=1) - 1).clamp(min=0) + first
    assert torch.equal(run_generate(model), run_generate(model, position_ids=ids))
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS, MASK).logits, model(TOKENS, MASK, ids).logits)
    plain = wrap_model("llama")
    plain.config.count_prompt_from = first
    assert torch.equal(run_generate(plain), run_generate(model))


def test_generate_takes_a_batch_of_prompts_and_no_training_batch():
    model = wrap_model("llama")
    collator = PositionCollator(Predicted(num_position_ids=64), pad_token_id=0, training=False)
    prompts = collator.prompts(ROWS)
    written = model.generate(**prompts, max_new_tokens=2, do_sample=False)
    assert written.shape == (2, prompts["input_ids"].shape[1] + 2)
    alone = collator.prompts(ROWS[1:])
    assert torch.equal(model.generate(**alone, max_new_tokens=2, do_sample=False)[0, -2:], written[1, -2:])
    with pytest.raises(SettingError, match=r"generate received labels, position_labels, so the batch already"):
        model.generate(**collator(ROWS), max_new_tokens=2)
    right = MASK.flip(1)
    assert not right[:, -1].all()
    with pytest.raises(SettingError, match=r"a prompt ends with padding, so generate would continue"):
        run_generate(model, attention_mask=right, position_ids=IDS)


def test_position_ids_in_a_list_raise_an_error():
    with pytest.raises(SettingError, match=r"position_ids have the type list; use a tensor, such as torch.tensor"):
        run_generate(wrap_model("llama"), position_ids=IDS.tolist())


def test_a_collator_has_the_id_bound_of_the_wrapped_model():
    tokenizer = byte_level_tokenizer(has_start=True)
    tokenizer.pad_token = "<s>"
    for num_ids in (MAX_POSITIONS // 2, 2 * MAX_POSITIONS):
        model = wrap_model("llama", num_position_ids=num_ids)
        assert model.config.max_position_embeddings == num_ids
        assert PositionCollator.for_model(model, Predicted(num_position_ids=num_ids), tokenizer)
        with pytest.raises(PositionRangeError, match=f"supports IDs below {num_ids}; set the scheme's"):
            PositionCollator.for_model(model, Predicted(num_position_ids=num_ids + 1), tokenizer)


def test_training_without_an_id_loss_raises_an_error():
    base, tokenizer = causal_model(CONFIGS["llama"]()), byte_level_tokenizer(has_start=True)
    tokenizer.pad_token = "<s>"
    with pytest.raises(
        ModelError, match=r"needs a model that predicts IDs, but llama predicts no IDs .* wrap it first"
    ):
        PositionCollator.for_model(base, Predicted(num_position_ids=64), tokenizer)
    PositionCollator.for_model(base, Coupled(num_position_ids=64), tokenizer)
    PositionCollator.for_model(wrap_model("llama"), Predicted(num_position_ids=64), tokenizer)
    model = wrap_model("llama").train()
    inputs = make_batch()
    without = {name: value for name, value in inputs.items() if name != "position_labels"}
    with pytest.raises(SettingError, match=r"training with labels but without position_labels does not train the pos"):
        model(**without)
    model.position_head.requires_grad_(requires_grad=False)
    model(**without)
    with pytest.raises(SettingError, match=r"position_labels need a position head, but this model has no head"):
        wrap_model("llama", head=None)(**inputs)


def test_wrapping_or_measuring_a_wrapped_model_raises_an_error():
    model = wrap_model("llama")
    with pytest.raises(ModelError, match=r"^this PredictivePositionModel is wrapped already, .*; use it without"):
        PredictivePositionModel.wrap(model)
    with pytest.raises(ModelError, match=r"^ppc is a wrapped model or predicts its position IDs, .*; use a causal"):
        CausalLM(model, "ppc")


@pytest.mark.slow
def test_a_model_card_explains_installation_and_loading(tmp_path):
    for first, text in (
        (None, "`generate` needs the `position_ids` of the prompt"),
        (2, "Without `position_ids`, prompts get the position IDs 2"),
    ):
        wrap_model("llama", count_prompt_from=first).save_pretrained(tmp_path / str(first))
        card = (tmp_path / str(first) / "README.md").read_text()
        assert "pip install 'lengthwise[hf]'" in card
        assert "import lengthwise.hf" in card
        assert text in card
    loads = "from transformers import AutoModelForCausalLM as Auto; Auto.from_pretrained({!r})"
    folder = str(tmp_path / "None")
    alone = subprocess.run([sys.executable, "-c", loads.format(folder)], capture_output=True, text=True, check=False)
    assert alone.returncode != 0
    assert "predictive_position" in alone.stderr
    both = f"from lengthwise.hf import PredictivePositionModel; {loads.format(folder)}"
    assert subprocess.run([sys.executable, "-c", both], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"scheme": Sequential(), "encoding": Rotary()}, 0),
        # In copy, the last prompt token has the ID of the first one.
        ({"scheme": Predicted()}, None),
        ({"scheme": Coupled()}, None),
        ({"scheme": Coupled(), "encoding": NoPE()}, 0),
        ({"scheme": Randomized(), "encoding": Rotary()}, None),
    ],
    ids=["sequential", "predicted", "coupled", "no IDs read", "random"],
)
def test_the_rule_of_prompt_ids_is_found_for_runs(changed, expected):
    experiment = replace(small_experiment(), task=Copy(), **changed)
    assert find_first_prompt_position_id(experiment) == expected

"""IDs of prompts at inference, training without IDs, and saved models: what is made by a rule, and what is refused."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from tests.hf.test_hf_loading import byte_level_tokenizer
from tests.hf.test_predictive_model import IDS, INSIDE, TOKENS, batch, wrapped
from tests.support.causal_models import CONFIGS, causal_model
from tests.support.small_runs import small_experiment
from transformers import pipeline

from lengthwise.core.errors import ModelError, SettingError
from lengthwise.encodings import NoPE, Rotary
from lengthwise.hf import PositionCollator, PredictivePositionModel
from lengthwise.hf.causal_lm import CausalLM
from lengthwise.hf.lengthwise_config import find_first_counted_id
from lengthwise.positions import Coupled, Predicted, Randomized, Sequential
from lengthwise.tasks import Copy

ROWS = [
    {"input_ids": [5, 6, 7, 8, 9], "labels": [-100, -100, -100, 8, 9], "coupling": [0, 1, 2, 1, 2]},
    {"input_ids": [5, 6, 8], "labels": [-100, -100, 8], "coupling": [0, 1, 1]},
]
NO_RULE = r"was not told how the IDs of a prompt are made, and position_ids are missing; give position_ids .*\n?.*=0"


def ask(model, **options):
    return model.generate(TOKENS, **{"attention_mask": INSIDE, "max_new_tokens": 3, "do_sample": False} | options)


def test_a_prompt_without_ids_is_refused_wherever_it_enters():
    model = wrapped("llama")
    talk = pipeline("text-generation", model=model, tokenizer=byte_level_tokenizer(has_start=True))
    for call in (lambda: ask(model), lambda: model(TOKENS), lambda: talk("abc", max_new_tokens=3)):
        with pytest.raises(SettingError, match=NO_RULE):
            call()


@pytest.mark.parametrize("first", [0, 3])
def test_prompts_that_count_up_need_no_ids(first):
    model = wrapped("llama", count_prompt_from=first)
    counted = (INSIDE.cumsum(dim=1) - 1).clamp(min=0) + first
    assert torch.equal(ask(model), ask(model, position_ids=counted))
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS, INSIDE).logits, model(TOKENS, INSIDE, counted).logits)
    plain = wrapped("llama")
    plain.config.count_prompt_from = first
    assert torch.equal(ask(plain), ask(model))


def test_a_batch_of_prompts_is_continued_and_one_of_training_is_refused():
    model = wrapped("llama")
    collator = PositionCollator(Predicted(num_position_ids=64), pad_token_id=0, training=False)
    prompts = collator.prompts(ROWS)
    written = model.generate(**prompts, max_new_tokens=2, do_sample=False)
    assert written.shape == (2, prompts["input_ids"].shape[1] + 2)
    alone = collator.prompts(ROWS[1:])
    assert torch.equal(model.generate(**alone, max_new_tokens=2, do_sample=False)[0, -2:], written[1, -2:])
    with pytest.raises(SettingError, match=r"generate got labels, position_labels, so its rows hold answers already"):
        model.generate(**collator(ROWS), max_new_tokens=2)
    right = INSIDE.flip(1)
    assert not right[:, -1].all()
    with pytest.raises(SettingError, match=r"a prompt ends with padding, and generate would continue the padding"):
        ask(model, attention_mask=right, position_ids=IDS)


def test_training_that_would_learn_no_id_is_refused():
    base, tokenizer = causal_model(CONFIGS["llama"]()), byte_level_tokenizer(has_start=True)
    tokenizer.pad_token = "<s>"
    with pytest.raises(ModelError, match=r"asks the model to predict IDs, and llama predicts none, .* wrap it first"):
        PositionCollator.for_model(base, Predicted(num_position_ids=64), tokenizer)
    PositionCollator.for_model(base, Coupled(num_position_ids=64), tokenizer)
    PositionCollator.for_model(wrapped("llama"), Predicted(num_position_ids=64), tokenizer)
    model = wrapped("llama").train()
    given = batch()
    without = {name: value for name, value in given.items() if name != "position_labels"}
    with pytest.raises(SettingError, match=r"labels came without position_labels, so the position head would learn"):
        model(**without)
    model.position_head.requires_grad_(requires_grad=False)
    model(**without)
    with pytest.raises(SettingError, match=r"position_labels came to a model without a position head, so no ID would"):
        wrapped("llama", head=None)(**given)


def test_what_is_wrapped_is_not_wrapped_again_and_not_measured_for_influence():
    model = wrapped("llama")
    with pytest.raises(ModelError, match=r"^this PredictivePositionModel is wrapped already, .*; use it as it is"):
        PredictivePositionModel.wrap(model)
    with pytest.raises(ModelError, match=r"^ppc predicts its position IDs .*; give a plain causal model, or the run"):
        CausalLM(model, "ppc")


def test_a_saved_model_says_in_its_card_what_to_install(tmp_path):
    for first, told in (
        (None, "`generate` needs the `position_ids` of the prompt"),
        (2, "Prompts get the position IDs 2"),
    ):
        wrapped("llama", count_prompt_from=first).save_pretrained(tmp_path / str(first))
        card = (tmp_path / str(first) / "README.md").read_text()
        assert "pip install 'lengthwise[hf]'" in card
        assert "import lengthwise" in card
        assert told in card
    loads = "from transformers import AutoModelForCausalLM as Auto; Auto.from_pretrained({!r})"
    folder = str(tmp_path / "None")
    alone = subprocess.run([sys.executable, "-c", loads.format(folder)], capture_output=True, text=True, check=False)
    assert alone.returncode != 0
    assert "predictive_position" in alone.stderr
    both = f"import lengthwise; {loads.format(folder)}"
    assert subprocess.run([sys.executable, "-c", both], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"scheme": Sequential(), "encoding": Rotary()}, 0),
        # The last token of a prompt of copy has the ID of the first.
        ({"scheme": Predicted()}, None),
        ({"scheme": Coupled()}, None),
        ({"scheme": Coupled(), "encoding": NoPE()}, 0),
        ({"scheme": Randomized(), "encoding": Rotary()}, None),
    ],
    ids=["sequential", "predicted", "coupled", "no IDs read", "drawn"],
)
def test_a_run_knows_whether_its_prompts_count_up(changed, expected):
    experiment = replace(small_experiment(), task=Copy(), **changed)
    assert find_first_counted_id(experiment) == expected

"""Tests of a few steps of `Trainer` and of TRL's `SFTTrainer`: columns, position IDs and losses."""

import math
from dataclasses import replace

import pytest
import torch
from datasets import Dataset
from tests.support.causal_models import CONFIGS, causal_model
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments

from lengthwise.core.errors import TokenizedRowError
from lengthwise.hf.collators import PositionCollator
from lengthwise.hf.predictive_model import PredictivePositionModel
from lengthwise.positions import Coupled, Predicted

EXAMPLES = {
    "input_ids": [[5, 6, 7, 8], [9, 10, 11, 12, 13], [14, 15, 16], [17, 18, 19, 20]],
    "coupling": [[1, 2, 1, 2], [1, 2, 3, 2, 1], [4, 5, 4], [1, 2, 1, 2]],
    "completion_mask": [[0, 0, 1, 1], [0, 0, 0, 1, 1], [0, 0, 1], [0, 0, 1, 1]],
}
COLLATOR = PositionCollator(Coupled(num_position_ids=96), 0, num_position_ids=96)
SETTINGS = {
    "max_steps": 2,
    "per_device_train_batch_size": 2,
    "remove_unused_columns": False,
    "report_to": [],
    "use_cpu": True,
    "save_strategy": "no",
    "disable_tqdm": True,
}
TOKENIZER = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0, "<end>": 1}, unk_token="<pad>")),
    pad_token="<pad>",
    eos_token="<end>",
)
over_packs = pytest.mark.parametrize("pack_to", [None, 9])


def record_inputs(model) -> list[dict]:
    """Return a list to which every call of the model appends its inputs."""
    calls: list[dict] = []
    model.register_forward_pre_hook(lambda _, args, kwargs: calls.append(kwargs), with_kwargs=True)
    return calls


def check(collator: PositionCollator, calls: list[dict], trainer) -> None:
    """Train on every example once with jumping IDs and a mask, and evaluate with another collator."""
    assert math.isfinite(trainer.train().training_loss)
    assert len(calls) == 2
    for inputs in calls:
        assert inputs["attention_mask"].dim() == (2 if collator.pack_to is None else 4)
        assert set(inputs["position_ids"].diff().unique().tolist()) - {0, 1}
        assert inputs["position_ids"].max() < 96
    scored = torch.cat([inputs["labels"][inputs["labels"] >= 0] for inputs in calls])
    assert sorted(scored.tolist()) == [7, 8, 12, 13, 16, 19, 20]
    trainer.data_collator = replace(collator, training=False)
    assert math.isfinite(trainer.evaluate()["eval_loss"])
    assert {number for inputs in calls[2:] for number in inputs["position_ids"].unique().tolist()} <= set(range(6))


@over_packs
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_trainer_passes_the_ids_of_the_collator_to_the_model(pack_to, tmp_path):
    model, examples = causal_model(CONFIGS["llama"]()), Dataset.from_dict(EXAMPLES)
    calls = record_inputs(model)
    collator = replace(COLLATOR, pack_to=pack_to)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(str(tmp_path), **SETTINGS),
        train_dataset=examples,
        eval_dataset=examples,
        data_collator=collator,
    )
    check(collator, calls, trainer)


@over_packs
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_sft_trainer_passes_the_ids_of_the_collator_to_the_model(pack_to, tmp_path):
    trl = pytest.importorskip("trl")
    model, examples = causal_model(CONFIGS["llama"]()), Dataset.from_dict(EXAMPLES)
    calls = record_inputs(model)
    collator = replace(COLLATOR, pack_to=pack_to)
    trainer = trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(str(tmp_path), dataset_kwargs={"skip_prepare_dataset": True}, **SETTINGS),
        train_dataset=examples,
        eval_dataset=examples,
        data_collator=collator,
        processing_class=TOKENIZER,
    )
    check(collator, calls, trainer)


@pytest.mark.slow
@over_packs
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_sft_trainer_and_trainer_train_the_same_position_head(pack_to, tmp_path):
    trl = pytest.importorskip("trl")

    class JointSFTTrainer(trl.SFTTrainer):
        compute_loss = Trainer.compute_loss

    kinds = {
        Trainer: (TrainingArguments, {}, {}),
        JointSFTTrainer: (
            trl.SFTConfig,
            {"dataset_kwargs": {"skip_prepare_dataset": True}},
            {"processing_class": TOKENIZER},
        ),
    }
    collator = PositionCollator(Predicted(num_position_ids=96), 0, pack_to=pack_to, num_position_ids=96)
    heads = []
    for trainer, (arguments, options, more) in kinds.items():
        shared = {"learning_rate": 1e-3, "weight_decay": 0.0, "lr_scheduler_type": "linear", "logging_steps": 1}
        args = arguments(str(tmp_path / trainer.__name__), **SETTINGS, **options, **shared, bf16=False)
        model = PredictivePositionModel.wrap(causal_model(CONFIGS["llama"]()))
        examples = Dataset.from_dict(EXAMPLES)
        trainer(model=model, args=args, train_dataset=examples, data_collator=collator, **more).train()
        heads.append(model.position_head.state_dict())
    assert all(torch.equal(weight, heads[1][name]) for name, weight in heads[0].items())
    before = PredictivePositionModel.wrap(causal_model(CONFIGS["llama"]())).position_head.state_dict()
    assert not torch.equal(before["shift.weight"], heads[0]["shift.weight"])


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_column_removed_by_trainer_raises_a_one_line_error(tmp_path):
    trainer = Trainer(
        model=causal_model(CONFIGS["llama"]()),
        args=TrainingArguments(str(tmp_path), **{**SETTINGS, "remove_unused_columns": True}),
        train_dataset=Dataset.from_dict(EXAMPLES),
        data_collator=COLLATOR,
    )
    with pytest.raises(
        TokenizedRowError, match=r"^example 0 .*: the column coupling is missing; .*unused_columns=False"
    ):
        trainer.train()

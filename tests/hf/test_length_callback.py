"""Tests of exact match by length while `Trainer` trains."""

import json
from dataclasses import replace

import peft
import pytest
import torch
import transformers
from datasets import Dataset
from tests.hf.test_export import EXPERIMENTS
from tests.support.small_runs import small_experiment
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from lengthwise.core.errors import SettingError, TokenizedRowError, UnsupportedTaskError
from lengthwise.core.randomness import random_stream
from lengthwise.evaluation.exact_match import EvaluationSettings, evaluate_by_length
from lengthwise.experiments.run import load_run, train
from lengthwise.hf.collators import PositionCollator
from lengthwise.hf.export import export_hf
from lengthwise.hf.length_callback import EvaluateByLength
from lengthwise.hf.predictive_model import PredictivePositionModel
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Coupled, Predicted, Sequential
from lengthwise.tasks import Parity

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:'pin_memory' argument:UserWarning")
SETTINGS = EvaluationSettings(lengths=(2, 4), num_examples=(16, 8))
SCHEME = Predicted(num_position_ids=48)


def llama() -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return AutoModelForCausalLM.from_config(
        transformers.LlamaConfig(vocab_size=16, max_position_embeddings=48, pad_token_id=None, **sizes)
    )


def examples_of(lengths=(2, 4), each=4):
    result = []
    for length in lengths:
        examples = Parity().sample(length=length, size=each, rng=random_stream(0, "rows", length))
        columns = {"input_ids": examples.tokens, "coupling": examples.coupling[0]}
        for row, prompt_length in enumerate(examples.prompt_length.tolist()):
            values = {name: column[row].tolist() for name, column in columns.items()}
            result.append({**values, "prompt_length": prompt_length, "length": length})
    return result


def trainer_of(model, folder, **options) -> Trainer:
    arguments = TrainingArguments(
        str(folder),
        remove_unused_columns=False,
        max_steps=4,
        per_device_train_batch_size=4,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=7,
        **options,
    )
    data = Dataset.from_list(examples_of())
    return Trainer(
        model=model,
        args=arguments,
        train_dataset=data,
        eval_dataset=data,
        data_collator=PositionCollator(SCHEME, 3, num_position_ids=48),
    )


def results(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_rows_are_written_and_logged_every_n_steps_and_at_the_end(tmp_path):
    trainer = trainer_of(PredictivePositionModel.wrap(llama()), tmp_path)
    trainer.add_callback(EvaluateByLength.from_task(trainer, Parity(), SCHEME, SETTINGS, every_steps=3))
    trainer.train()
    rows = results(tmp_path)
    assert [(row["steps"], row["length"], row["num_examples"]) for row in rows] == [
        (3, 2, 16), (3, 4, 8), (4, 2, 16), (4, 4, 8)
    ]  # fmt: skip
    assert {(row["task"], row["scheme"], row["seed"]) for row in rows} == {("parity", "predicted", 7)}
    logged = [entry for entry in trainer.state.log_history if "eval_exact_match_4" in entry]
    assert [entry["eval_exact_match_4"] for entry in logged] == [
        row["exact_match"] for row in rows if row["length"] == 4
    ]
    assert trainer.model.training


def test_the_last_rows_are_logged_before_training_ends_with_the_keys_of_runs(tmp_path):
    events = []

    class Tracker(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            events.extend(name for name in logs if name == "eval_exact_match_4")

        def on_train_end(self, args, state, control, **kwargs):
            events.append("end")

    trainer = trainer_of(PredictivePositionModel.wrap(llama()), tmp_path)
    trainer.add_callback(Tracker())
    trainer.add_callback(EvaluateByLength.from_task(trainer, Parity(), SCHEME, SETTINGS))
    trainer.train()
    assert events == ["eval_exact_match_4", "end"]
    keys = {"task", "scheme", "encoding", "seed", "length", "num_examples", "decode", "exact_match", "token_accuracy"}
    keys |= {"low", "high", "first_error", "train_lengths", "id_range", "steps", "fitted", "wall_s", "id_accuracy"}
    assert keys <= set(results(tmp_path)[0])


def test_measuring_stops_after_a_length_without_exact_match(tmp_path):
    trainer = trainer_of(PredictivePositionModel.wrap(llama()), tmp_path)
    settings = replace(SETTINGS, lengths=(2, 4, 8), num_examples=(16, 8, 8), stop_at_zero=True)
    rows = EvaluateByLength.from_task(trainer, Parity(), SCHEME, settings).measure(trainer.state)
    assert [(row["length"], row["exact_match"], row["skipped"]) for row in rows] == [
        (2, 0, False),
        (4, 0, True),
        (8, 0, True),
    ]
    assert results(tmp_path) == rows
    logged = trainer.state.log_history[-1]
    assert [logged[f"eval_exact_match_{length}"] for length in settings.lengths] == [0, 0, 0]


def test_the_callback_measures_when_the_trainer_evaluates(tmp_path):
    trainer = trainer_of(llama(), tmp_path, eval_strategy="steps", eval_steps=2)
    trainer.add_callback(EvaluateByLength.from_task(trainer, Parity(), Sequential(), SETTINGS))
    trainer.data_collator = PositionCollator(Sequential(), 3)
    trainer.train()
    assert [row["steps"] for row in results(tmp_path)] == [2, 2, 4, 4]
    # The model predicts no IDs.
    assert {row["id_accuracy"] for row in results(tmp_path)} == {None}


@pytest.mark.slow
def test_exact_match_can_select_the_best_model(tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    trainer = trainer_of(llama(), tmp_path, **options, metric_for_best_model="eval_exact_match_4")
    trainer.data_collator = PositionCollator(Sequential(), 3)
    # The callback may have measured this step before.
    trainer.add_callback(EvaluateByLength.from_task(trainer, Parity(), Sequential(), SETTINGS, every_steps=2))
    trainer.train()
    assert trainer.state.best_metric is not None


def test_only_the_first_process_writes(tmp_path):
    trainer = trainer_of(llama(), tmp_path)
    callback = EvaluateByLength.from_examples(trainer, examples_of(), PositionCollator(Sequential(), 0))
    trainer.state.is_world_process_zero = False
    assert [row["length"] for row in callback.measure(trainer.state)] == [2, 4]
    assert not (tmp_path / "results.jsonl").exists()


@pytest.mark.slow
def test_an_exported_run_has_the_results_of_the_run(tmp_path):
    # After this training, some answers are correct.
    experiment = replace(small_experiment(steps=150), decoder=DecoderSettings(d_model=32))
    train(experiment, tmp_path / "run")
    export_hf(tmp_path / "run", tmp_path / "hf")
    run = load_run(tmp_path / "run")
    settings = EvaluationSettings(lengths=(8, 30), num_examples=(16, 8))
    expected = tuple(evaluate_by_length(run.decoder, experiment.task, experiment.scheme, settings))
    trainer = trainer_of(AutoModelForCausalLM.from_pretrained(tmp_path / "hf"), tmp_path / "out")
    measured = EvaluateByLength.from_task(trainer, experiment.task, experiment.scheme, settings).measure(trainer.state)
    for ours, theirs in zip(expected, measured, strict=True):
        assert 0 < ours.token_accuracy < 1
        for name in ("length", "num_examples", "exact_match", "exact_tokens", "low", "high", "id_accuracy"):
            assert theirs[name] == getattr(ours, name)
        assert theirs["token_accuracy"] == pytest.approx(ours.token_accuracy)
        assert theirs["answer_loss"] == pytest.approx(ours.answer_loss, rel=1e-5)
        if ours.first_error is not None:
            assert theirs["first_error"]["median_index"] == ours.first_error.median_index


@pytest.mark.slow
def test_free_and_forced_decoding_have_the_same_exact_match(tmp_path):
    experiment = replace(small_experiment(steps=150), decoder=DecoderSettings(d_model=32))
    train(experiment, tmp_path / "run")
    export_hf(tmp_path / "run", tmp_path / "hf")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    # The model's own generation settings are ignored.
    model.generation_config.suppress_tokens = [0, 1]
    trainer = trainer_of(model, tmp_path / "out")
    settings = EvaluationSettings(lengths=(8, 20), num_examples=(16, 16))
    task, scheme = experiment.task, experiment.scheme
    forced, free = (
        EvaluateByLength.from_task(trainer, task, scheme, replace(settings, decode=decode)).measure(trainer.state)
        for decode in ("forced", "free")
    )
    assert [row["exact_match"] for row in free] == [row["exact_match"] for row in forced]
    assert [row["decode"] for row in free] == ["free", "free"]
    assert 0 < sum(row["exact_match"] for row in forced) < 2
    assert model.generation_config.suppress_tokens == [0, 1]
    # A bare model counts the IDs up.
    bare = trainer_of(llama(), tmp_path / "bare")
    rows = EvaluateByLength.from_task(bare, Parity(), Sequential(), replace(SETTINGS, decode="free"))
    assert [row["num_examples"] for row in rows.measure(bare.state)] == [16, 8]
    coupled = EvaluateByLength.from_task(bare, Parity(), Coupled(), replace(SETTINGS, decode="free"))
    bare.state.global_step = 1
    with pytest.raises(SettingError, match="decode='free' needs a model that predicts IDs, or consecutive prompt IDs"):
        coupled.measure(bare.state)


def test_examples_are_grouped_by_their_length(tmp_path):
    trainer = trainer_of(PredictivePositionModel.wrap(llama()), tmp_path)
    examples = examples_of(lengths=(3, 2))
    callback = EvaluateByLength.from_examples(trainer, examples, trainer.data_collator, extra_fields={"task": "mine"})
    rows = callback.measure(trainer.state)
    assert [(row["length"], row["num_examples"], row["task"]) for row in rows] == [(2, 4, "mine"), (3, 4, "mine")]
    free = EvaluateByLength.from_examples(trainer, examples, trainer.data_collator, decode="free")
    assert [row["decode"] for row in free.measure(trainer.state)] == ["free", "free"]
    first = EvaluateByLength.from_examples(trainer, examples, trainer.data_collator, stop_at_zero=True)
    assert [(row["exact_match"], row["skipped"]) for row in first.measure(trainer.state)] == [(0, False), (0, True)]
    # A step is measured once; a second call returns the same rows.
    assert callback.measure(trainer.state) == rows


def test_token_ids_replace_the_symbols_of_the_task(tmp_path):
    trainer = trainer_of(PredictivePositionModel.wrap(llama()), tmp_path)
    callback = EvaluateByLength.from_task(trainer, Parity(), SCHEME, SETTINGS, token_ids=[5, 6, 7, 8])
    batch = next(callback.batches[2]())
    assert set(batch["input_ids"].unique().tolist()) <= {5, 6, 7, 8}
    assert bool((batch["labels"][batch["labels"] != -100] >= 5).all())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("task_type", [None, "CAUSAL_LM"])
def test_a_model_with_adapters_is_measured(task_type, tmp_path):
    options = {"target_modules": ["q_proj", "v_proj"], "modules_to_save": ["position_head"], "task_type": task_type}
    model = peft.get_peft_model(PredictivePositionModel.wrap(llama()), peft.LoraConfig(r=2, **options))
    trainer = trainer_of(model, tmp_path)
    trainer.add_callback(EvaluateByLength.from_task(trainer, Parity(), SCHEME, SETTINGS))
    before = model.get_base_model().model.lm_head.weight.clone()
    trainer.train()
    assert [row["steps"] for row in results(tmp_path)] == [4, 4]
    assert torch.equal(model.get_base_model().model.lm_head.weight, before)
    tokens, ids = torch.tensor([[0, 1, 2]]), torch.tensor([[1, 2, 3]])
    outputs = [
        model.generate(input_ids=tokens, position_ids=ids, max_new_tokens=4, do_sample=False, use_cache=use)
        for use in (True, False)
    ]
    assert torch.equal(*outputs)


def test_invalid_arguments_raise_an_error(tmp_path):
    trainer = trainer_of(PredictivePositionModel.wrap(llama()), tmp_path)
    with pytest.raises(SettingError, match="got 2 token_ids for 4 symbols of parity; pass one token ID per"):
        EvaluateByLength.from_task(trainer, Parity(), SCHEME, SETTINGS, token_ids=[1, 2])
    for unknown in (None, 5):
        with pytest.raises(SettingError, match=r"no token of its own for (0, 1|1) of parity; use a tokenizer with one"):
            EvaluateByLength.from_task(trainer, Parity(), SCHEME, SETTINGS, token_ids=[5, unknown, 7, 8])
    with pytest.raises(TokenizedRowError, match="example 1 has no length; add a column length"):
        EvaluateByLength.from_examples(trainer, [{"length": 2}, {}], trainer.data_collator)
    with pytest.raises(SettingError, match="invalid every_steps 0; use at least 1, or None"):
        EvaluateByLength.from_task(trainer, Parity(), SCHEME, SETTINGS, every_steps=0)
    with pytest.raises(SettingError, match="there are no lengths to evaluate; pass at least one"):
        EvaluateByLength.from_examples(trainer, [], trainer.data_collator)
    with pytest.raises(SettingError, match="variants uniform are not supported; create one callback per variant"):
        EvaluateByLength.from_task(trainer, Parity(), SCHEME, replace(SETTINGS, variants=("uniform",)))
    with pytest.raises(UnsupportedTaskError, match="multi_addition has IDs on several levels"):
        next(EvaluateByLength.from_task(trainer, EXPERIMENTS["two levels"].task, SCHEME, SETTINGS).batches[2]())

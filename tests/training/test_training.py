"""Tests of the answer loss, the settings and resuming; ``--write`` writes the golden loss curve."""

import io
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from tests.support.cases import randomize
from tests.support.small_runs import (
    equal_tensors,
    run_weights,
    sampler_of,
    small_experiment,
    stop_after,
    trainer_of,
    training_facts,
)

from lengthwise.core.checkpoint import load_tensors, save_tensors
from lengthwise.core.errors import DivergedError, RunFolderError, SettingError
from lengthwise.core.progress_line import ProgressLine
from lengthwise.experiments import run as run_module
from lengthwise.experiments.experiment import Experiment, build_decoder
from lengthwise.experiments.run import train
from lengthwise.experiments.run_states import read_run_states
from lengthwise.model.decoder import Decoder
from lengthwise.model.position_heads import POSITION_HEADS, IncrementHead
from lengthwise.positions import Coupled, Sequential
from lengthwise.tasks import Addition, MultiAddition, Parity, SparseParity
from lengthwise.training.batch import Batch
from lengthwise.training.loss import compute_answer_loss, mix_predicted_ids
from lengthwise.training.training_settings import TrainingSettings

GOLDEN = {
    number: Path(__file__).parents[1] / "golden" / name
    for number, name in ((1, "loss_curve.json"), (4, "loss_curve_mixed_lengths.json"))
}
RAGGED = Addition(zero_padding=False, unequal=True)
TWO_LEVELS = MultiAddition(operands=(2, 2))


@pytest.fixture(autouse=True, scope="module")
def _quick_fit() -> Iterator[None]:
    """Evaluate the fit of a run on few examples, because these tests do not depend on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "NUM_FIT_EXAMPLES", 16)
        yield


def train_run(folder: Path, experiment: Experiment) -> Path:
    """Train a run to its end and return its folder."""
    train(experiment, folder, device="cpu")
    return folder


def same_run(one: Path, other: Path) -> bool:
    """Return whether weights, facts and metrics of two runs are bitwise equal."""
    return (
        equal_tensors(run_weights(one), run_weights(other))
        and training_facts(one) == training_facts(other)
        and (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    )


EXPERIMENTS = {
    "predicted": small_experiment(),
    "increment": small_experiment(head="increment"),
    "sequential": small_experiment(scheme=Sequential()),
    "ragged": small_experiment(RAGGED, log_every=5, checkpoint_every=3),
    "two levels": small_experiment(TWO_LEVELS),
    "mixed lengths": small_experiment(lengths_per_batch=3, scheduled_sampling=0.3),
    "tilted": small_experiment(lengths_per_batch=3, length_tilt=3.0),
    # A new stage every few steps, after some steps on the first.
    "staged": small_experiment(SparseParity(most=6), Sequential(), stage_threshold=1.02),
}


@pytest.fixture(scope="module")
def uninterrupted_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folder of an uninterrupted run of every experiment."""
    folder = tmp_path_factory.mktemp("whole")
    return {name: train_run(folder / name, experiment) for name, experiment in EXPERIMENTS.items()}


def test_the_same_seed_gives_the_same_weights(uninterrupted_runs, tmp_path):
    torch.randn(7)
    assert same_run(train_run(tmp_path / "again", EXPERIMENTS["predicted"]), uninterrupted_runs["predicted"])


def test_another_seed_gives_other_weights(uninterrupted_runs, tmp_path):
    other = train_run(tmp_path / "other", replace(EXPERIMENTS["predicted"], seed=1))
    assert not equal_tensors(run_weights(other), run_weights(uninterrupted_runs["predicted"]))


@pytest.mark.covering(1)
@pytest.mark.parametrize("stops", [(4,), (1, 3, 7, 11)], ids=str)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_resumed_run_ends_like_an_uninterrupted_one(uninterrupted_runs, name, stops, tmp_path):
    done = 0
    for stop in stops:
        run = train(EXPERIMENTS[name], tmp_path, resume=True, device="cpu", stop=stop_after(stop - done))
        assert run is None
        done = stop
    assert train(EXPERIMENTS[name], tmp_path, resume=True, device="cpu") is not None
    assert same_run(tmp_path, uninterrupted_runs[name])


@pytest.mark.parametrize("stops", [(), (1,), (1, 4)], ids=str)
def test_rows_after_the_newest_checkpoint_are_not_logged_twice(uninterrupted_runs, stops, tmp_path):
    def fail_at_6(row: dict[str, float]) -> None:
        if row["step"] == 6:
            # Each row is on disk as soon as it is logged.
            lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
            assert [json.loads(line)["step"] for line in lines] == [2, 4, 6]
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        train(EXPERIMENTS["predicted"], tmp_path, device="cpu", report=fail_at_6)
    # Stop again before the next row, and later.
    for steps in stops:
        train(EXPERIMENTS["predicted"], tmp_path, resume=True, device="cpu", stop=stop_after(steps))
    train(EXPERIMENTS["predicted"], tmp_path, resume=True, device="cpu")
    assert same_run(tmp_path, uninterrupted_runs["predicted"])


DAMAGE = {
    "emptied": lambda content: b"",
    "cut short": lambda content: content[: len(content) // 2],
    "cut by one byte": lambda content: content[:-1],
    "altered in its data": lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    "altered in its facts": lambda content: content.replace(b'\\"step\\": 9', b'\\"step\\": 8'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_skipped_for_the_previous_one(uninterrupted_runs, damage, tmp_path):
    train(EXPERIMENTS["predicted"], tmp_path, device="cpu", stop=stop_after(9))
    newest = max((tmp_path / "checkpoints").iterdir())
    before = newest.read_bytes()
    newest.write_bytes(DAMAGE[damage](before))
    assert newest.name == "step-00000009.safetensors"
    assert newest.read_bytes() != before

    logged = []
    run = train(EXPERIMENTS["predicted"], tmp_path, resume=True, device="cpu", report=logged.append)
    assert run is not None
    assert [row["step"] for row in logged] == [10, 12]
    assert same_run(tmp_path, uninterrupted_runs["predicted"])


def _narrower(tensors: dict, facts: dict) -> None:
    name = next(name for name in tensors if name.startswith("exp_avg_sq.") and tensors[name].dim() == 2)
    tensors[name] = tensors[name][:1].clone()


FALSE_CHECKPOINTS = {
    "an optimizer state of another shape": (_narrower, r"exp_avg_sq\..* is float32 \(1, .*\), not float32 \("),
    "weights of another type": (
        lambda tensors, facts: tensors.update({"model.embedding": tensors["model.embedding"].double()}),
        r"model\.embedding is float64 .*, not float32 ",
    ),
    "a missing state": (
        lambda tensors, facts: tensors.pop("step.embedding"),
        r"step\.embedding is missing, not",
    ),
    "an extra tensor": (
        lambda tensors, facts: tensors.update(other=torch.zeros(1)),
        r"\(tensor other is float32 \(1,\), not missing\)",
    ),
    "a step that is a string": (
        lambda tensors, facts: facts.update(step="9"),
        r"invalid training facts \(step '9' has the wrong",
    ),
    "a negative step": (lambda tensors, facts: facts.update(step=-1), r"invalid training facts \(counts \(-1, "),
    "an unknown stage": (lambda tensors, facts: facts.update(stage=3), r"invalid training facts"),
    "an extra fact": (lambda tensors, facts: facts.update(other=1), r"invalid training facts .*other"),
    "sums of the wrong type": (lambda tensors, facts: facts.update(sums=["x"]), r"invalid training facts"),
}


@pytest.mark.parametrize("fault", FALSE_CHECKPOINTS)
def test_a_checkpoint_of_another_run_raises_a_one_line_error(fault, tmp_path):
    train(EXPERIMENTS["predicted"], tmp_path, device="cpu", stop=stop_after(9))
    change, text = FALSE_CHECKPOINTS[fault]
    newest = max((tmp_path / "checkpoints").iterdir())
    tensors, facts = load_tensors(newest)
    change(tensors, facts)
    save_tensors(newest, tensors, facts)
    with pytest.raises(RunFolderError, match=text) as caught:
        train(EXPERIMENTS["predicted"], tmp_path, resume=True, device="cpu")
    assert "\n" not in str(caught.value)
    assert "step-00000009.safetensors" in str(caught.value)


def test_training_restarts_if_every_checkpoint_is_damaged(uninterrupted_runs, tmp_path):
    train(EXPERIMENTS["predicted"], tmp_path, device="cpu", stop=stop_after(9))
    paths = list((tmp_path / "checkpoints").iterdir())
    assert len(paths) == 2
    for path in paths:
        path.write_bytes(path.read_bytes()[:100])
    train(EXPERIMENTS["predicted"], tmp_path, resume=True, device="cpu")
    assert same_run(tmp_path, uninterrupted_runs["predicted"])


# The first update is so large that the loss of the second step is NaN.
@pytest.mark.parametrize(("log_every", "logged_steps", "stops"), [(1, [1], 2), (5, [], 5)])
def test_a_nan_loss_ends_training_at_the_next_logged_step_and_keeps_earlier_rows(
    log_every, logged_steps, stops, tmp_path
):
    diverging = small_experiment(learning_rate=1e30, log_every=log_every, checkpoint_every=50)
    logged: list[dict[str, float]] = []
    text = (
        rf"^training diverged: the loss is nan at step {stops}; "
        r"use a smaller learning_rate \(now 1e\+30\) or a smaller clip \(now 1.0\)$"
    )
    for resume in (False, True):
        with pytest.raises(DivergedError, match=text):
            train(diverging, tmp_path, resume=resume, device="cpu", report=logged.append)
        rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows] == logged_steps
        assert all(math.isfinite(row["loss"]) for row in (*rows, *logged))
        assert not (tmp_path / "model.safetensors").exists()


def test_a_diverged_decoder_is_not_saved(tmp_path):
    # No row is logged before the end.
    diverging = small_experiment(learning_rate=1e30, log_every=50, checkpoint_every=4, fit_every=6, fit_threshold=0.0)
    with pytest.raises(DivergedError, match=r"at step \d+;"):
        train(diverging, tmp_path, device="cpu")
    names = [path.name for path in (tmp_path / "checkpoints").glob("*")]
    assert names == []
    assert not (tmp_path / "model.safetensors").exists()


def test_only_the_newest_two_checkpoints_remain(uninterrupted_runs):
    names = sorted(path.name for path in (uninterrupted_runs["predicted"] / "checkpoints").iterdir())
    assert names == ["step-00000008.safetensors", "step-00000012.safetensors"]


def test_resuming_a_finished_run_changes_nothing(uninterrupted_runs, tmp_path):
    train_run(tmp_path, EXPERIMENTS["sequential"])
    before = (tmp_path / "model.safetensors").read_bytes()
    run = train(EXPERIMENTS["sequential"], tmp_path, resume=True, device="cpu", report=pytest.fail)
    assert run is not None
    assert (tmp_path / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("settings", "step", "rate"),
    [
        ({}, 0, 0.1),
        ({}, 4, 0.5),
        ({}, 9, 1.0),
        ({}, 10, 1.0),
        ({}, 55, 0.55),
        ({}, 99, 0.1 + 0.9 / 90),
        ({}, 100, 0.1),
        ({"warmup_steps": 0}, 0, 1.0),
        ({"warmup_steps": 0}, 50, 0.55),
        ({"steps": 10}, 9, 1.0),
        ({"steps": 5}, 4, 0.5),
        ({"steps": 1, "warmup_steps": 0}, 0, 1.0),
        ({"final_share": 1.0}, 99, 1.0),
        ({"final_share": 0.0}, 100, 0.0),
        ({"cooldown_steps": 20}, 80, 1.0),
        ({"cooldown_steps": 20}, 90, 0.55),
        # A cooldown longer than the training is the usual decay.
        ({"cooldown_steps": 300}, 10, 1.0),
        ({"cooldown_steps": 300}, 55, 0.55),
        ({"cooldown_steps": 300, "steps": 5}, 4, 0.5),
    ],
)
def test_the_learning_rate_rises_to_its_maximum_and_falls_to_its_final_share(settings, step, rate):
    budget = TrainingSettings(
        **{"steps": 100, "warmup_steps": 10, "learning_rate": 1.0, "final_share": 0.1, **settings}
    )
    assert budget.learning_rate_at(step) == pytest.approx(rate, abs=1e-12)


def test_the_logged_learning_rate_equals_that_of_the_optimizer(tmp_path):
    experiment = small_experiment(steps=4, log_every=1)
    trainer = trainer_of(experiment, tmp_path)
    used, rows = [], []
    trainer.optimizer.register_step_pre_hook(
        lambda optimizer, *rest: used.append([group["lr"] for group in optimizer.param_groups])
    )
    trainer.run(report=rows.append)
    assert used == [[row["learning_rate"]] * 2 for row in rows]
    assert [row["learning_rate"] for row in rows] == [experiment.training.learning_rate_at(step) for step in range(4)]


MEANS = ("loss", "token_accuracy", "id_accuracy", "ids_in_reach")


def test_a_logged_mean_covers_all_steps_since_the_previous_row(tmp_path):
    logged: dict[int, list[dict[str, float]]] = {}
    for log_every in (1, 5):
        rows = logged[log_every] = []
        experiment = small_experiment(steps=12, log_every=log_every)
        (tmp_path / str(log_every)).mkdir()
        trainer_of(experiment, tmp_path / str(log_every)).run(report=rows.append)
    assert [row["step"] for row in logged[5]] == [5, 10, 12]
    for name in MEANS:
        single = [row[name] for row in logged[1]]
        assert [row[f"mean_{name}"] for row in logged[1]] == pytest.approx(single, abs=1e-6)
        expected = [np.mean(single[:5]), np.mean(single[5:10]), np.mean(single[10:])]
        assert [row[f"mean_{name}"] for row in logged[5]] == pytest.approx(expected, abs=1e-6)
        assert [row[name] for row in logged[5]] == [single[4], single[9], single[11]]


def test_exact_match_in_training_is_measured_at_the_longest_length_and_changes_no_weight(
    uninterrupted_runs, tmp_path, monkeypatch
):
    experiment, measured = EXPERIMENTS["predicted"], []

    def evaluate_together(*inputs):
        measured.append(inputs[3])
        return run_evaluation(*inputs)

    run_evaluation = run_module.evaluate_together
    monkeypatch.setattr(run_module, "evaluate_together", evaluate_together)
    rows: list[dict[str, float]] = []
    run = train(experiment, tmp_path / "watched", device="cpu", report=rows.append)
    assert [row["step"] for row in rows if "exact_match" in row] == [8, 12]
    assert {settings.lengths for settings in measured} == {(4,)}
    fit = run_module.measure_training_fit(experiment, run.decoder, run_module.NUM_PROGRESS_EXAMPLES)
    assert rows[-1]["exact_match"] == fit.exact_match
    # Training without measurements ends with the same weights.
    trainer = trainer_of(experiment, tmp_path)
    trainer.run()
    assert equal_tensors(dict(trainer.decoder.state_dict()), run_weights(tmp_path / "watched"))


def test_weight_decay_applies_only_to_matrices(tmp_path):
    experiment = small_experiment(weight_decay=0.25)
    experiment = replace(experiment, decoder=replace(experiment.decoder, length_scaling="learned"))
    trainer = trainer_of(experiment, tmp_path)
    matrices, others = ({id(p) for p in group["params"]} for group in trainer.optimizer.param_groups)
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.25, 0.0]
    block = trainer.decoder.blocks[0]
    assert {id(block.project.weight), id(block.widen.weight), id(trainer.decoder.embedding)} <= matrices
    numbers = (block.log_temperature, block.length_scale.offset, block.length_scale.power)
    assert {id(p) for p in (*numbers, block.widen.bias, block.mlp_norm.weight)} <= others
    assert matrices.isdisjoint(others)
    assert matrices | others == {id(p) for p in trainer.decoder.parameters()}


def decoder_and_batch(experiment: Experiment, length: int = 4, size: int = 6) -> tuple[Decoder, Batch]:
    """Return a decoder with random parameters and one training batch."""
    sampler = replace(sampler_of(experiment), lengths=(length, length), batch_size=size)
    decoder = build_decoder(experiment)
    randomize(decoder)
    return decoder, sampler.batches(0)[0]


def answer_indexes(experiment: Experiment, batch: Batch) -> list[tuple[int, int]]:
    """Return (sequence, token index) of every response token up to the first end token, found in the tokens."""
    end = experiment.task.vocabulary.index("end")
    separator = experiment.task.vocabulary.index(experiment.task.separators[-1])
    indexes = []
    for sequence, tokens in enumerate(batch.tokens.tolist()):
        # The first token of parity's scratchpad is a 0 of the prompt, that of addition is an answer.
        start = tokens.index(separator) + (1 if isinstance(experiment.task, Addition) else 2)
        indexes += [(sequence, index) for index in range(start, tokens.index(end) + 1)]
    return indexes


def reference_token_losses(decoder: Decoder, batch: Batch, indexes: list[tuple[int, int]]) -> tuple[list[float], float]:
    """Return the cross-entropy of each token in double precision, and the token accuracy."""
    with torch.no_grad():
        logits = decoder.token_logits(decoder(batch.tokens, batch.position_ids)[0]).double().numpy()
    losses, correct = [], []
    for sequence, index in indexes:
        scores = logits[sequence, index - 1]
        target = int(batch.tokens[sequence, index])
        losses.append(math.log(sum(math.exp(score - scores[target]) for score in scores)))
        correct.append(int(np.argmax(scores)) == target)
    return losses, float(np.mean(correct))


def reference_id_losses(
    decoder: Decoder, batch: Batch, indexes: list[tuple[int, int]]
) -> tuple[list[list[float | None]], float]:
    """Return for each level the cross-entropy of each response ID (None if unreachable), and the ID accuracy.

    Each ID is evaluated in a batch of one.
    """
    losses: list[list[float | None]] = [[] for _ in batch.position_ids]
    correct = []
    ends = dict(indexes)
    for sequence, index in indexes:
        if index == ends[sequence]:
            continue
        tokens, ids = batch.tokens[sequence : sequence + 1], batch.position_ids[:, sequence : sequence + 1]
        with torch.no_grad():
            hidden, _ = decoder(tokens[:, :index], ids[:, :, :index])
            prompt = decoder.build_prompt_keys(tokens, ids, batch.prompt_length[sequence : sequence + 1])
            current_ids, next_tokens = ids[:, :, index - 1 : index], tokens[:, index : index + 1]
            answers = decoder.next_id_distributions(hidden[:, -1:], current_ids, next_tokens, prompt)
        correct.append(True)
        for level, answer in enumerate(answers):
            candidates = answer.candidates.expand(answer.log_probs.shape)[0, 0].tolist()
            log_probs = dict(zip(candidates, answer.log_probs[0, 0].tolist(), strict=True))
            target = int(ids[level, 0, index])
            losses[level].append(-log_probs[target] if target in log_probs else None)
            correct[-1] &= max(log_probs, key=log_probs.__getitem__) == target
    return losses, float(np.mean(correct))


@pytest.mark.parametrize("task", [Parity(), RAGGED], ids=["parity", "ragged"])
def test_the_loss_is_the_mean_cross_entropy_of_the_answer_tokens(task):
    experiment = small_experiment(task, Coupled(num_position_ids=48))
    decoder, batch = decoder_and_batch(experiment)
    outcome = compute_answer_loss(decoder, [batch], id_weight=3.0)
    losses, correct = reference_token_losses(decoder, batch, answer_indexes(experiment, batch))
    assert outcome.loss.item() == pytest.approx(np.mean(losses), rel=1e-5)
    assert outcome.token_accuracy.item() == pytest.approx(correct)
    assert 0 < correct < 1
    assert (outcome.id_accuracy.item(), outcome.ids_in_reach.item()) == (1.0, 1.0)


@pytest.mark.parametrize("task", [Parity(), RAGGED, TWO_LEVELS], ids=["parity", "ragged", "two levels"])
@pytest.mark.parametrize("head", POSITION_HEADS)
def test_the_loss_with_predicted_ids_adds_their_weighted_cross_entropy(head, task):
    experiment = small_experiment(task, head=head)
    decoder, batch = decoder_and_batch(experiment)
    outcome = compute_answer_loss(decoder, [batch], id_weight=0.7)
    indexes = answer_indexes(experiment, batch)
    token_losses, _ = reference_token_losses(decoder, batch, indexes)
    id_losses, correct = reference_id_losses(decoder, batch, indexes)
    by_level = [np.mean([loss for loss in level if loss is not None]) for level in id_losses]
    assert outcome.loss.item() == pytest.approx(np.mean(token_losses) + 0.7 * sum(by_level), rel=1e-5)
    assert outcome.id_accuracy.item() == pytest.approx(correct)
    reachable = [None not in levels for levels in zip(*id_losses, strict=True)]
    assert outcome.ids_in_reach.item() == pytest.approx(np.mean(reachable))


@pytest.mark.parametrize("task", [Parity(), RAGGED, TWO_LEVELS], ids=["parity", "ragged", "two levels"])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_mixed_ids_are_predicted_from_correct_ones_in_a_share_of_the_examples(share, task):
    experiment = small_experiment(task)
    decoder, batch = decoder_and_batch(experiment)
    (mixed,) = mix_predicted_ids(decoder, [batch], share)
    changed = 0
    for sequence, index in (batch.id_scored | batch.token_scored).nonzero().tolist():
        correct = batch.position_ids[:, sequence, index]
        if sequence >= round(share * len(batch.tokens)) or not batch.id_scored[sequence, index]:
            assert torch.equal(mixed[:, sequence, index], correct)
            continue
        tokens, ids = batch.tokens[sequence : sequence + 1], batch.position_ids[:, sequence : sequence + 1]
        with torch.no_grad():
            hidden, _ = decoder(tokens[:, :index], ids[:, :, :index])
            prompt = decoder.build_prompt_keys(tokens, ids, batch.prompt_length[sequence : sequence + 1])
            answers = decoder.next_id_distributions(
                hidden[:, -1:], ids[:, :, index - 1 : index], tokens[:, index : index + 1], prompt
            )
        expected = torch.stack([answer.most_likely_ids()[0, 0] for answer in answers])
        assert torch.equal(mixed[:, sequence, index], expected)
        changed += int(not torch.equal(expected, correct))
    assert bool(changed) == (share > 0)
    scored = batch.id_scored | batch.token_scored
    assert torch.equal(mixed[:, ~scored], batch.position_ids[:, ~scored])


def test_scheduled_sampling_changes_the_loss(tmp_path):
    losses = []
    for share in (0.0, 1.0):
        (folder := tmp_path / str(share)).mkdir()
        trainer = trainer_of(small_experiment(scheduled_sampling=share), folder)
        losses.append([trainer.step().loss.item() for _ in range(4)])
    assert losses[0][0] != losses[1][0]


def test_the_increment_heads_loss_leaves_out_and_reports_ids_after_a_gap(tmp_path):
    experiment = small_experiment(head="increment", log_every=1, steps=8)
    decoder, batch = decoder_and_batch(experiment)
    ids = batch.position_ids[0].tolist()
    ends = dict(answer_indexes(experiment, batch))
    steps = [
        ids[sequence][index] - ids[sequence][index - 1]
        for sequence, index in answer_indexes(experiment, batch)
        if index != ends[sequence]
    ]
    share = np.mean([step in IncrementHead.OFFSETS for step in steps])
    outcome = compute_answer_loss(decoder, [batch], id_weight=1.0)
    assert 0 < share < 1
    assert outcome.ids_in_reach.item() == pytest.approx(share)
    assert math.isfinite(outcome.loss.item())

    rows: list[dict[str, float]] = []
    trainer_of(experiment, tmp_path).run(report=rows.append)
    assert min(row["ids_in_reach"] for row in rows) < 1


def test_a_batch_with_only_unreachable_ids_has_a_finite_loss():
    experiment = small_experiment(head="increment")
    decoder, batch = decoder_and_batch(experiment)
    far = replace(batch, position_ids=7 * torch.arange(batch.tokens.shape[1]).expand_as(batch.position_ids).clone())
    outcome = compute_answer_loss(decoder, [far], id_weight=1.0)
    token_losses, _ = reference_token_losses(decoder, far, answer_indexes(experiment, far))
    assert outcome.ids_in_reach.item() == 0
    assert outcome.loss.item() == pytest.approx(np.mean(token_losses), rel=1e-5)


def test_targets_in_the_prompt_or_after_the_end_token_do_not_change_the_loss(monkeypatch):
    experiment = small_experiment(RAGGED, Coupled(num_position_ids=48))
    decoder, batch = decoder_and_batch(experiment)
    before = compute_answer_loss(decoder, [batch], id_weight=1.0)
    # Only the targets change: the hidden states are those of the original tokens.
    hidden, _ = decoder(batch.tokens[:, :-1], batch.position_ids[:, :, :-1])
    monkeypatch.setattr(decoder, "forward_batches", lambda tokens, ids, starts, places: [hidden[:, starts[0] :]])
    answered = torch.zeros_like(batch.tokens, dtype=torch.bool)
    for sequence, index in answer_indexes(experiment, batch):
        answered[sequence, index] = True
    other = (batch.tokens + 1) % len(experiment.task.vocabulary)
    masked = replace(batch, tokens=torch.where(answered, batch.tokens, other))
    assert len(set(batch.prompt_length.tolist())) > 1
    assert not answered[:, -1].all()
    after = compute_answer_loss(decoder, [masked], id_weight=1.0)
    assert torch.equal(after.loss, before.loss)
    assert torch.equal(after.token_accuracy, before.token_accuracy)
    wrong = replace(batch, tokens=torch.where(answered, other, batch.tokens))
    assert not torch.equal(compute_answer_loss(decoder, [wrong], id_weight=1.0).loss, before.loss)


@pytest.mark.parametrize("head", POSITION_HEADS)
def test_tokens_and_ids_after_the_end_token_do_not_change_the_loss(head):
    experiment = small_experiment(RAGGED, head=head)
    decoder, batch = decoder_and_batch(experiment)
    fill = torch.ones_like(batch.tokens, dtype=torch.bool)
    for sequence, index in answer_indexes(experiment, batch):
        fill[sequence, : index + 1] = False
    assert fill.any()
    other = replace(
        batch,
        tokens=torch.where(fill, 3, batch.tokens),
        position_ids=torch.where(fill, 17, batch.position_ids),
    )
    assert compute_answer_loss(decoder, [other], 1.0).loss.item() == pytest.approx(
        compute_answer_loss(decoder, [batch], 1.0).loss.item(), rel=1e-6
    )


def test_only_logits_of_answer_tokens_have_a_gradient(monkeypatch):
    experiment = small_experiment(RAGGED, Coupled(num_position_ids=48))
    decoder, batch = decoder_and_batch(experiment)
    logits = []

    def remember(hidden: torch.Tensor) -> torch.Tensor:
        logits.append(Decoder.token_logits(decoder, hidden))
        logits[0].retain_grad()
        return logits[0]

    monkeypatch.setattr(decoder, "token_logits", remember)
    torch.autograd.backward(compute_answer_loss(decoder, [batch], id_weight=1.0).loss)
    gradients = logits[0].grad.abs().sum(dim=-1).view(len(batch.tokens), -1)
    first = batch.tokens.shape[1] - gradients.shape[1]
    with_gradient = {(sequence, index + first) for sequence, index in gradients.nonzero().tolist()}
    assert with_gradient == set(answer_indexes(experiment, batch))


def test_fit_every_stops_training_at_the_first_fit(tmp_path):
    run = train(small_experiment(fit_every=5, fit_threshold=0.0), tmp_path, device="cpu")
    assert run is not None
    assert run.facts["steps"] == 5


def test_rows_after_the_fit_have_the_step_at_which_training_ends(tmp_path):
    rows: list[dict[str, Any]] = []
    experiment = small_experiment(fit_every=5, fit_threshold=0.0, cooldown_steps=3, log_every=1)
    train(experiment, tmp_path / "run", device="cpu", report=rows.append)
    assert [(row["step"], row.get("last_step")) for row in rows] == [
        *((step, None) for step in range(1, 6)),
        *((step, 8) for step in range(6, 9)),
    ]
    (state,) = read_run_states(tmp_path / "run")
    assert (state.step, state.num_steps) == (8, 8)
    output = io.StringIO()
    with ProgressLine(Console(file=output, width=200), experiment.training.steps, fit_lengths="length 4") as progress:
        progress.show_training(rows[-1])
    assert "8/8" in output.getvalue()


def test_a_curriculum_advances_when_a_stage_is_learned_and_ends_with_the_task(uninterrupted_runs, tmp_path):
    rows = [json.loads(line) for line in (uninterrupted_runs["staged"] / "metrics.jsonl").read_text().splitlines()]
    stages = [row["stage"] for row in rows]
    assert stages == sorted(stages)
    assert len(set(stages)) > 2
    task = SparseParity(most=3)
    assert [stage.most for stage in task.curriculum_stages()] == [1, 2, 3]
    trainer = trainer_of(small_experiment(task, Sequential(), stage_threshold=100.0), tmp_path)
    shapes = [[batch.tokens.shape for batch in sampler.batches(0)] for sampler in trainer.samplers]
    assert shapes[0] == shapes[2]
    assert [sampler.task for sampler in trainer.samplers] == list(task.curriculum_stages())
    trainer.run()
    assert trainer.progress.stage == 2


def test_an_unlearned_stage_is_neither_left_nor_tested_for_a_fit(tmp_path):
    experiment = small_experiment(SparseParity(), Sequential(), stage_threshold=1e-9, fit_every=2, fit_threshold=0.0)
    run = train(experiment, tmp_path, device="cpu")
    assert run is not None
    assert run.facts["steps"] == 12


def test_scheduled_sampling_needs_predicted_ids_and_a_share(tmp_path):
    unsupported = small_experiment(scheme=Coupled(num_position_ids=48), scheduled_sampling=0.5)
    with pytest.raises(SettingError, match="scheduled_sampling needs predicted IDs, but coupled predicts no IDs; use"):
        train(unsupported, tmp_path, device="cpu")
    with pytest.raises(SettingError, match=r"scheduled_sampling 1.5 is out of range; use 0 to 1"):
        TrainingSettings(scheduled_sampling=1.5)


@pytest.mark.parametrize(
    ("setting", "values", "error"),
    [
        ("learning_rate", (0.0, -1.0), "is not positive; use a number above 0"),
        ("clip", (0.0, -1.0), "is not positive; use a number above 0"),
        ("betas", ((1.0, 0.9), (0.9, -0.1)), "are out of range; use 0 or more and less than 1"),
        ("final_share", (-0.1, 1.1), "is out of range; use 0 to 1"),
        ("fit_threshold", (-0.1, 1.5), "is out of range; use 0 to 1"),
        ("weight_decay", (-0.1,), "is negative; use 0 or more"),
        ("id_weight", (-1.0,), "is negative; use 0 or more"),
        ("warmup_steps", (-1,), "is negative; use 0 or more"),
        ("fit_every", (0, -5), "is too small; use at least 1, or None"),
        ("stage_threshold", (0.0, -1.0), "is not positive; use a number above 0, or None"),
    ],
)
def test_settings_out_of_range_raise_an_error(setting, values, error):
    for value in values:
        with pytest.raises(SettingError, match=f"^{setting} .* {error}$"):
            TrainingSettings(**{setting: value})


def test_stage_loss_needs_a_task_with_stages_and_a_positive_value(tmp_path):
    with pytest.raises(
        SettingError,
        match="stage_threshold needs a task with stages, but parity has no stages; leave out stage_threshold",
    ):
        train(small_experiment(stage_threshold=0.1), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
    with pytest.raises(SettingError, match=r"stage_threshold 0\.0 is not positive; use a number above 0, or None"):
        TrainingSettings(stage_threshold=0.0)


def test_testing_for_a_fit_does_not_change_the_weights(uninterrupted_runs, tmp_path):
    settings_with_fit = replace(EXPERIMENTS["predicted"].training, fit_every=2, fit_threshold=1.0)
    train_run(tmp_path, replace(EXPERIMENTS["predicted"], training=settings_with_fit))
    assert same_run(tmp_path, uninterrupted_runs["predicted"])


def test_resuming_a_run_that_stopped_at_a_fit_does_not_train_it(tmp_path):
    experiment = small_experiment(fit_every=5, fit_threshold=0.0)
    train_run(tmp_path, experiment)
    before = run_weights(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    run = train(experiment, tmp_path, resume=True, device="cpu", report=pytest.fail)
    assert run is not None
    assert run.facts["steps"] == 5
    assert equal_tensors(run_weights(tmp_path), before)


# Torch warns of a slower kernel for norms once per process.
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_bf16_trains_float32_weights_with_finite_gradients(tmp_path):
    experiment = small_experiment(precision="bf16", steps=6)
    trainer = trainer_of(experiment, tmp_path)
    dtypes = set()
    trainer.decoder.blocks[0].widen.register_forward_hook(lambda module, inputs, out: dtypes.add(out.dtype))
    trainer.run()
    parameters = dict(trainer.decoder.named_parameters())
    assert dtypes == {torch.bfloat16}
    assert {parameter.dtype for parameter in parameters.values()} == {torch.float32}
    assert all(torch.isfinite(parameter.grad).all() for parameter in parameters.values())
    assert all(torch.isfinite(parameter).all() for parameter in parameters.values())


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_the_loss_in_bf16_is_close_to_that_in_float32():
    decoder, batch = decoder_and_batch(small_experiment())
    exact = compute_answer_loss(decoder, [batch], 1.0).loss.item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = compute_answer_loss(decoder, [batch], 1.0).loss.item()
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=0.03)


def loss_curve(lengths_per_batch: int) -> list[dict[str, float]]:
    """Return the rounded losses of a short run."""
    rows: list[dict[str, float]] = []
    experiment = small_experiment(steps=10, batch_size=8, lengths_per_batch=lengths_per_batch)
    with tempfile.TemporaryDirectory() as folder:
        trainer_of(experiment, Path(folder)).run(report=rows.append)
    return [{"step": row["step"], "loss": round(row["loss"], 6)} for row in rows]


@pytest.mark.parametrize("lengths_per_batch", GOLDEN)
def test_the_loss_curve_is_the_golden_one(lengths_per_batch):
    golden = json.loads(GOLDEN[lengths_per_batch].read_text())
    curve = loss_curve(lengths_per_batch)
    assert [row["step"] for row in curve] == [row["step"] for row in golden]
    assert [row["loss"] for row in curve] == pytest.approx([row["loss"] for row in golden], abs=1e-4)


LONG_RUN = """
import sys
from pathlib import Path

import torch

sys.path.insert(0, {tests!r})
torch.set_num_threads(1)
from lengthwise.experiments.run import train
from tests.support.small_runs import small_experiment

experiment = small_experiment(steps={steps}, batch_size=8, log_every=3, checkpoint_every=10)
train(experiment, Path(sys.argv[1]), resume=True, device="cpu")
"""


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_like_an_uninterrupted_one(tmp_path):
    script = tmp_path / "long_run.py"
    script.write_text(LONG_RUN.format(tests=str(Path(__file__).parents[2]), steps=1500))
    draw = random.Random(0)

    def start(folder: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(script), str(folder)], env=os.environ)

    killed = tmp_path / "killed"
    newest = []
    for attempt in range(10):
        before = checkpoints(killed)
        process = start(killed)
        if attempt % 4 == 0:
            # During start-up, imports or restoring.
            time.sleep(draw.uniform(0.02, 4.0))
        else:
            while process.poll() is None and checkpoints(killed) == before:
                time.sleep(0.002)
            time.sleep(draw.uniform(0.0, 0.3))
        process.kill()
        assert process.wait() == -9, "the run ended before it was killed: raise its steps"
        newest.append(max(checkpoints(killed), default=""))
    assert len(set(newest)) > 5
    assert start(killed).wait() == 0
    assert start(tmp_path / "whole").wait() == 0
    assert same_run(killed, tmp_path / "whole")


def checkpoints(folder: Path) -> set[str]:
    """Return the names of a run's checkpoints."""
    return {path.name for path in (folder / "checkpoints").glob("step-*")}


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    torch.set_num_threads(1)
    for number, path in GOLDEN.items():
        path.write_text(json.dumps(loss_curve(number), indent=2) + "\n")

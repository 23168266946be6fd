"""Comparisons: every row for every seed, in one folder, gone on with and never mixed up."""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.small_runs import small_experiment, tree

from lengthwise.cli import app as cli
from lengthwise.cli import options
from lengthwise.cli.commands import compare as compare_verb
from lengthwise.core.errors import DivergedError, PositionRangeError, RunFolderError, SettingError, UnknownNameError
from lengthwise.encodings import Learned, NoPE
from lengthwise.evaluation import exact_match as evaluation
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments import comparison as comparison_module
from lengthwise.experiments import run as run_module
from lengthwise.experiments.comparison import COMPARED, Comparison, compare
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.run import FIT_EXAMPLES, evaluate, load_run
from lengthwise.experiments.run_folder import seal_rows
from lengthwise.positions import Sequential
from lengthwise.tasks import Addition
from lengthwise.training.trainer import Trainer

ROWS = {
    "PPC": small_experiment(steps=6),
    "NoPE, a control": small_experiment(scheme=Sequential(), encoding=NoPE(), steps=4),
}


@pytest.fixture(autouse=True, scope="module")
def _quick_fit() -> Iterator[None]:
    """What decides whether a run fitted is no matter here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "FIT_EXAMPLES", 16)
        yield


@pytest.fixture(autouse=True)
def _one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads on busy cores wait for each other for seconds."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Trainer, **given: Any) -> bool:
        raise AssertionError("trained again")

    monkeypatch.setattr(Trainer, "run", run)


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in ("wall_s", "train_s", "time")} for row in rows]


def compared(folder: Path, rows: dict[str, Experiment] = ROWS, **given: Any) -> Comparison:
    return compare(rows, folder, **{"num_seeds": 2, "jobs": 1, "device": "cpu", **given})


def test_every_row_is_measured_for_every_seed_at_every_length(tmp_path):
    told = []
    answer = compared(tmp_path, report=told.append)
    cells = [(row["row"], row["seed"], row["length"]) for row in answer.rows]
    assert cells == [(label, seed, length) for label in ROWS for seed in (0, 1) for length in (4, 8)]
    assert answer.finished
    assert answer.rows == [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line.split(" in ")[0] for line in told] == [
        "[1/4] PPC, seed 0: 6 steps",
        "[2/4] PPC, seed 1: 6 steps",
        "[3/4] NoPE, a control, seed 0: 4 steps",
        "[4/4] NoPE, a control, seed 1: 4 steps",
    ]


def test_a_comparisons_rows_are_those_of_its_runs(tmp_path):
    answer = compared(tmp_path)
    folders = sorted(path.parent for path in tmp_path.rglob("model.safetensors"))
    assert len(folders) == 4
    for folder in folders:
        run = load_run(folder, device="cpu")
        label = next(label for label, row in ROWS.items() if row.encoding == run.experiment.encoding)
        assert run.experiment == replace(ROWS[label], seed=run.experiment.seed)
        again = [{"row": label, **row} for row in evaluate(run, run.experiment.evaluation)]
        rows = [row for row in answer.rows if row["row"] == label and row["seed"] == run.experiment.seed]
        assert untimed(again) == untimed(rows)


def test_seeds_are_counted_from_the_experiments_own(tmp_path):
    answer = compared(tmp_path, {"PPC": replace(ROWS["PPC"], seed=5)})
    assert {row["seed"] for row in answer.rows} == {5, 6}


def test_what_is_finished_is_not_run_again(tmp_path, monkeypatch):
    first = compared(tmp_path)
    before = (tmp_path / "results.jsonl").read_bytes()
    no_training(monkeypatch)
    assert compared(tmp_path).rows == first.rows
    assert (tmp_path / "results.jsonl").read_bytes() == before


def test_rows_can_be_run_a_few_at_a_time_and_end_as_if_run_at_once(tmp_path):
    whole = compared(tmp_path / "whole")
    parts, told = tmp_path / "parts", []
    (first, second) = ROWS
    begun = compared(parts, only=[second], report=told.append)
    assert begun.finished
    assert len(told) == 2
    assert {row["row"] for row in begun.rows} == {second}
    ended = compared(parts, only=[first], report=told.append)
    assert len(told) == 4
    assert untimed(ended.rows) == untimed(whole.rows)
    with pytest.raises(UnknownNameError, match="unknown row 'PPZ'; did you mean 'PPC'"):
        compared(parts, only=["PPZ"])


def test_an_unfinished_row_is_gone_on_with_and_the_others_are_not_run_again(tmp_path, monkeypatch):
    first = compared(tmp_path)
    (lost,) = tmp_path.glob("nope*/seed-1")
    for name in ("model.safetensors", "results.jsonl", "compared.jsonl"):
        (lost / name).unlink(missing_ok=True)
    steps = []
    step = Trainer.step

    def counted(self: Trainer) -> Any:
        steps.append(self.folder)
        return step(self)

    (lost / "checkpoints" / "step-00000004.safetensors").write_bytes(b"")
    monkeypatch.setattr(Trainer, "step", counted)
    assert untimed(compared(tmp_path).rows) == untimed(first.rows)
    assert steps == [lost] * 4


def test_an_evaluation_of_one_of_its_runs_adds_no_row_to_a_comparison(tmp_path):
    first = compared(tmp_path)
    run = load_run(next(tmp_path.glob("*/seed-1")), device="cpu")
    evaluate(run, EvaluationSettings(lengths=(3,), num_examples=(5,)))
    assert untimed(compared(tmp_path).rows) == untimed(first.rows)


def test_a_worker_that_outlived_its_parent_adds_no_rows_to_those_of_the_next_one(tmp_path, monkeypatch):
    measure = comparison_module.iter_result_rows

    def measured_twice(run: Any, *given: Any, **named: Any) -> list[dict[str, Any]]:
        rows = list(measure(run, *given, **named))
        seal_rows(run.folder / COMPARED, rows)
        return rows

    monkeypatch.setattr(comparison_module, "iter_result_rows", measured_twice)
    compared = compare({"PPC": ROWS["PPC"]}, tmp_path, num_seeds=1, jobs=1)
    monkeypatch.undo()
    assert len(compared.rows) == len(ROWS["PPC"].evaluation.lengths)
    assert compare({"PPC": ROWS["PPC"]}, tmp_path, num_seeds=1, jobs=1).rows == compared.rows


def test_ctrl_c_keeps_what_is_finished_and_the_same_call_goes_on(tmp_path):
    def interrupt(line: str) -> None:
        if line.startswith("[2/4]"):
            signal.raise_signal(signal.SIGINT)

    whole = compared(tmp_path / "whole")
    stopped = tmp_path / "stopped"
    with suppress(KeyboardInterrupt):
        compared(stopped, report=interrupt)
    assert len(list(stopped.glob("*/*/model.safetensors"))) == 2
    assert untimed(compared(stopped).rows) == untimed(whole.rows)


def test_a_row_that_is_stopped_leaves_the_comparison_unfinished(tmp_path, monkeypatch):
    step = Trainer.step

    def interrupted(self: Trainer) -> Any:
        if self.settings.steps == 4 and self.progress.step == 2:
            signal.raise_signal(signal.SIGINT)
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted)
        answer = compared(tmp_path)
    assert not answer.finished
    assert {row["row"] for row in answer.rows} == {"PPC"}
    whole = compared(tmp_path)
    assert whole.finished
    assert len(whole.rows) == 8


def interrupt_in_evaluation(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """Ctrl-C in the first batch of an evaluation; the lengths of all batches that are graded."""
    graded, grade = [], evaluation.grade

    def interrupted(decoder: Any, batch: Any, **given: Any) -> Any:
        graded.append(batch.length)
        if graded.count(8) == 1 and batch.length == 8:
            signal.raise_signal(number)
        return grade(decoder, batch, **given)

    monkeypatch.setattr(evaluation, "grade", interrupted)
    return graded


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_in_an_evaluation_stops_at_the_next_batch_and_loses_that_cell_alone(number, tmp_path, monkeypatch):
    # Length 8 is no training length: only the evaluation has it.
    settings = EvaluationSettings(lengths=(8,), num_examples=(80,))
    rows = {label: replace(row, evaluation=settings) for label, row in ROWS.items()}
    whole = compared(tmp_path / "whole", rows)
    with monkeypatch.context() as patch:
        graded = interrupt_in_evaluation(patch, number)
        answer = compared(tmp_path / "stopped", rows)
    assert graded.count(8) == 1
    assert not answer.finished
    assert answer.rows == []
    # What was trained is not lost.
    assert len(list(tmp_path.glob("stopped/*/*/model.safetensors"))) == 1
    again = compared(tmp_path / "stopped", rows)
    assert again.finished
    assert untimed(again.rows) == untimed(whole.rows)


def test_ctrl_c_in_the_last_batch_of_an_evaluation_begins_no_other_row(tmp_path, monkeypatch):
    rows = {
        label: replace(row, evaluation=EvaluationSettings(lengths=(8,), num_examples=(1,)))
        for label, row in ROWS.items()
    }
    graded = interrupt_in_evaluation(monkeypatch, signal.SIGINT)
    answer = compared(tmp_path, rows)
    assert graded.count(8) == 1
    assert not answer.finished
    assert len(list(tmp_path.glob("*/*/model.safetensors"))) == 1


DIVERGING = small_experiment(scheme=Sequential(), learning_rate=1e30, steps=4)
WHY = (
    "training diverged: the loss is nan at step 4; use a smaller learning_rate (now 1e+30) or a smaller clip (now 1.0)"
)


def test_a_row_that_diverges_is_empty_says_why_and_ends_no_other(tmp_path):
    told = []
    for _ in range(2):
        answer = compared(tmp_path, {"too fast": DIVERGING, **ROWS}, report=told.append)
        assert answer.finished
        assert {row["row"] for row in answer.rows} == set(ROWS)
        expected = {"row": "too fast", "task": "parity", "reason": WHY}
        assert answer.diverged == [{**expected, "seed": seed} for seed in (0, 1)]
        assert answer.warnings[:2] == [f"too fast, seed {seed}: {WHY}" for seed in (0, 1)]
    assert [line for line in told if "too fast" in line][:2] == [
        f"[1/6] too fast, seed 0: {WHY}",
        f"[2/6] too fast, seed 1: {WHY}",
    ]


def test_of_a_row_that_diverges_every_variant_is_named(tmp_path):
    settings = EvaluationSettings(lengths=(4,), num_examples=(4,), variants=("uniform", "carry"))
    sums = {"too fast": replace(DIVERGING, task=Addition(), evaluation=settings)}
    sums["slow"] = replace(sums["too fast"], training=ROWS["PPC"].training)
    answer = compared(tmp_path, sums, num_seeds=1)
    assert [cell["row"] for cell in answer.diverged] == ["too fast, uniform", "too fast, carry"]
    assert len([warning for warning in answer.warnings if "diverged" in warning]) == 1


def test_a_comparison_whose_rows_all_diverge_ends_with_the_reason(tmp_path):
    with pytest.raises(DivergedError, match=rf"^every run diverged, such as too fast, seed 0: {re.escape(WHY)}$"):
        compared(tmp_path, {"too fast": DIVERGING})


def test_the_command_line_shows_a_row_that_diverged(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compare_verb, "rows_of", lambda *asked: {"too fast": DIVERGING, **ROWS})
    flags = ["compare", "parity", "--jobs", "1", "--device", "cpu", "--out", str(tmp_path)]
    cli.main(flags)
    printed = capsys.readouterr()
    assert "1 diverged" in next(line for line in printed.out.splitlines() if "too fast" in line)
    assert f"warning: too fast, seed 0: {WHY}" in printed.err.replace("\n", " ")
    cli.main([*flags, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["diverged"] == [{"row": "too fast", "task": "parity", "seed": 0, "reason": WHY}]


def test_a_comparison_does_not_change_how_many_threads_its_caller_computes_with(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    before = torch.get_num_threads()
    try:
        compared(tmp_path, {"PPC": small_experiment(steps=1)}, num_seeds=1)
        assert torch.get_num_threads() == before
    finally:
        torch.set_num_threads(before)


def test_untrained_distances_are_told_once_per_row_also_when_nothing_is_left_to_run(tmp_path):
    text = "counted: length 8 used ID distances up to 18, but training only up to 10"
    counted = {"counted": small_experiment(scheme=Sequential(), steps=4)}
    for _ in range(2):
        # NoPE reads no distances.
        answer = compared(tmp_path, ROWS | counted)
        assert [warning for warning in answer.warnings if not warning.startswith("PPC")] == [text]


def test_another_comparison_in_the_same_folder_is_refused(tmp_path):
    compared(tmp_path)
    before = tree(tmp_path)
    renamed = dict(zip(["one", "two"], ROWS.values(), strict=True))
    others = {
        "experiments.NoPE, a control": lambda: compared(tmp_path, {"PPC": ROWS["PPC"]}),
        "num_seeds": lambda: compared(tmp_path, num_seeds=1),
        "experiments.PPC.training.steps": lambda: compared(tmp_path, {**ROWS, "PPC": small_experiment(steps=7)}),
        "experiments.NoPE, a control, experiments.PPC, experiments.one and 1 more": lambda: compared(tmp_path, renamed),
    }
    for names, other in others.items():
        text = rf"contains another comparison: different {names}; choose another"
        with pytest.raises(RunFolderError, match=text):
            other()
    assert tree(tmp_path) == before


@pytest.mark.parametrize("content", [b"", b"[]", b'{"comparison": ', b"\xff"], ids=repr)
def test_a_damaged_comparison_file_is_refused_by_name(content, tmp_path):
    (tmp_path / "comparison.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"comparison\.json"):
        compared(tmp_path)
    assert tree(tmp_path) == {"comparison.json": content}


def test_lengths_that_an_encoding_cannot_hold_are_refused_before_any_row_is_trained(tmp_path):
    learned = small_experiment(scheme=Sequential(), encoding=Learned(num_position_ids=18))
    text = r"length 8 reaches ID 18 but the encoding holds IDs up to 17; set its num_position_ids to at least 19"
    with pytest.raises(PositionRangeError, match=text):
        compared(tmp_path, {**ROWS, "learned": learned})
    assert tree(tmp_path) == {}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"num_seeds": 0}, r"^invalid num_seeds 0; use at least 1$"),
        ({"jobs": 0}, r"^invalid jobs 0; use at least 1$"),
    ],
)
def test_numbers_that_run_nothing_are_refused(given, text, tmp_path):
    with pytest.raises(SettingError, match=text):
        compared(tmp_path, **given)
    assert tree(tmp_path) == {}


FLAGS = ["compare", "parity", "parity_rank", "--quick", "--seeds", "2", "--jobs", "1", "--device", "cpu"]


def test_the_command_line_writes_a_comparison_its_rows_and_its_figure_and_goes_on(tmp_path, monkeypatch, capsys):
    cli.main([*FLAGS, "--out", str(tmp_path)])
    printed = capsys.readouterr()
    assert "parity_rank" in printed.out
    assert printed.out.splitlines()[-1] == f"figure: {tmp_path / 'figure.png'}"
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {
        "comparison.json",
        "results.jsonl",
        "figure.png",
        "figure.svg",
    }
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "figure.svg").read_text()
    saved = json.loads((tmp_path / "comparison.json").read_text())
    assert set(saved["comparison"]["experiments"]) == {"parity", "parity_rank"}
    assert saved["comparison"]["num_seeds"] == 2
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(row["row"], row["seed"], row["length"]) for row in rows] == [
        (label, seed, length) for label in ("parity", "parity_rank") for seed in (0, 1) for length in (4, 8)
    ]

    no_training(monkeypatch)
    cli.main([*FLAGS, "--out", str(tmp_path), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document == {"results": rows, "diverged": [], "figure": str(tmp_path / "figure.png")}


@pytest.mark.slow
def test_two_processes_give_the_rows_of_one(tmp_path, monkeypatch):
    # Processes of their own know nothing of a patch.
    monkeypatch.setattr(run_module, "FIT_EXAMPLES", FIT_EXAMPLES)
    experiments = {**ROWS, "too fast": DIVERGING}
    one, two = compared(tmp_path / "one", experiments), compared(tmp_path / "two", experiments, jobs=2)
    assert untimed(two.rows) == untimed(one.rows)
    assert two.warnings == one.warnings
    assert two.finished
    assert two.diverged == one.diverged
    assert compared(tmp_path / "two", experiments, jobs=2).rows == two.rows


def test_some_rows_of_a_named_comparison_are_those_of_the_whole():
    whole = choices.rows_of(["which_copy"], None, None)
    assert choices.rows_of(["which_copy"], None, "coupled/rotary, sequential/nope") == {
        label: whole[label] for label in ("coupled/rotary", "sequential/nope")
    }


def test_what_was_measured_is_in_the_results_of_its_run_once_wherever_a_comparison_was_killed(tmp_path):
    whole = compared(tmp_path)
    folder = next(tmp_path.glob("*/seed-1"))
    before = (folder / "results.jsonl").read_bytes()
    assert before.count(b"\n") == 2
    (folder / "results.jsonl").unlink()
    assert compared(tmp_path).rows == whole.rows
    assert (folder / "results.jsonl").read_bytes() == before


@pytest.mark.parametrize("kept", [1, 4])
def test_measured_rows_that_were_cut_or_doubled_are_not_used(kept, tmp_path):
    compared(tmp_path)
    path = next(tmp_path.glob("*/seed-1")) / COMPARED
    rows, seal = path.read_bytes().splitlines(keepends=True)[:-1], path.read_bytes().splitlines(keepends=True)[-1]
    path.write_bytes(b"".join((rows * 2)[:kept]) + seal)
    with pytest.raises(
        RunFolderError, match=r"has changed since it was written \(digest differs\); delete it to measure"
    ):
        compared(tmp_path)
    path.unlink()
    assert compared(tmp_path).finished


@pytest.mark.parametrize("labels", [("PPC", "ppc"), ("a b", "a_b"), ("a", "a!"), ("rows", "!!"), ("", "b")])
def test_labels_that_share_a_folder_or_have_none_are_refused(labels, tmp_path):
    with pytest.raises(SettingError, match=r"gives no unique folder name .*; use labels that differ in letters"):
        compared(tmp_path, dict.fromkeys(labels, ROWS["PPC"]))
    assert not list(tmp_path.iterdir())

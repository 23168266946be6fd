"""Comparisons: every experiment with every seed in one folder, resumable and separate from other comparisons."""

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
from tests.support.small_runs import folder_contents, small_experiment

from lengthwise.cli import app as cli
from lengthwise.cli import experiment_options
from lengthwise.core.errors import DivergedError, PositionRangeError, RunFolderError, SettingError, UnknownNameError
from lengthwise.encodings import Learned, NoPE
from lengthwise.evaluation import exact_match as evaluation
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments import run as run_module
from lengthwise.experiments import runner as jobs_module
from lengthwise.experiments.executors import LocalExecutor
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes.comparisons import demo
from lengthwise.experiments.run import NUM_FIT_EXAMPLES, load_run
from lengthwise.experiments.run_evaluation import evaluate
from lengthwise.experiments.run_folder import COMPARISON_ROWS, write_rows_with_digest
from lengthwise.experiments.runner import Comparison, ExperimentJob, compare, longest_jobs_first
from lengthwise.positions import Sequential
from lengthwise.tasks import Addition
from lengthwise.training.trainer import Trainer

EXPERIMENTS = {
    "PPC": small_experiment(steps=6),
    "NoPE, a control": small_experiment(scheme=Sequential(), encoding=NoPE(), steps=4),
}


@pytest.fixture(autouse=True, scope="module")
def _quick_fit() -> Iterator[None]:
    """Use few examples to measure the fit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "NUM_FIT_EXAMPLES", 16)
        yield


@pytest.fixture(autouse=True)
def _one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use one thread, because threads on busy cores wait for each other."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Trainer, **arguments: Any) -> bool:
        raise AssertionError("trained again")

    monkeypatch.setattr(Trainer, "run", run)


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in ("wall_s", "train_s", "time")} for row in rows]


def compare_two_seeds(folder: Path, experiments: dict[str, Experiment] = EXPERIMENTS, **settings: Any) -> Comparison:
    return compare(experiments, folder, **{"seeds": 2, "workers": 1, "device": "cpu", **settings})


def test_rows_cover_every_experiment_seed_and_length(tmp_path):
    messages = []
    comparison = compare_two_seeds(tmp_path, report=messages.append)
    cells = [(row["row"], row["seed"], row["length"]) for row in comparison.rows]
    assert cells == [(label, seed, length) for label in EXPERIMENTS for seed in (0, 1) for length in (4, 8)]
    assert comparison.is_complete
    assert comparison.rows == [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line.split(" in ")[0] for line in messages] == [
        "[1/4] PPC, seed 0: 6 steps",
        "[2/4] PPC, seed 1: 6 steps",
        "[3/4] NoPE, a control, seed 0: 4 steps",
        "[4/4] NoPE, a control, seed 1: 4 steps",
    ]


def test_rows_of_a_comparison_equal_evaluations_of_its_runs(tmp_path):
    comparison = compare_two_seeds(tmp_path)
    folders = sorted(path.parent for path in tmp_path.rglob("model.safetensors"))
    assert len(folders) == 4
    for folder in folders:
        run = load_run(folder, device="cpu")
        label = next(label for label, row in EXPERIMENTS.items() if row.encoding == run.experiment.encoding)
        assert run.experiment == replace(EXPERIMENTS[label], seed=run.experiment.seed)
        again = [{"row": label, **row} for row in evaluate(run, run.experiment.evaluation)]
        rows = [row for row in comparison.rows if row["row"] == label and row["seed"] == run.experiment.seed]
        assert untimed(again) == untimed(rows)


def test_seeds_count_from_the_seed_of_the_experiment(tmp_path):
    comparison = compare_two_seeds(tmp_path, {"PPC": replace(EXPERIMENTS["PPC"], seed=5)})
    assert {row["seed"] for row in comparison.rows} == {5, 6}


def test_finished_runs_are_not_repeated(tmp_path, monkeypatch):
    first = compare_two_seeds(tmp_path)
    before = (tmp_path / "results.jsonl").read_bytes()
    no_training(monkeypatch)
    assert compare_two_seeds(tmp_path).rows == first.rows
    assert (tmp_path / "results.jsonl").read_bytes() == before


def test_running_some_labels_at_a_time_gives_the_same_rows(tmp_path):
    whole = compare_two_seeds(tmp_path / "whole")
    parts, messages = tmp_path / "parts", []
    (first, second) = EXPERIMENTS
    partial = compare_two_seeds(parts, only=[second], report=messages.append)
    assert partial.is_complete
    assert len(messages) == 2
    assert {row["row"] for row in partial.rows} == {second}
    complete = compare_two_seeds(parts, only=[first], report=messages.append)
    assert len(messages) == 4
    assert untimed(complete.rows) == untimed(whole.rows)
    with pytest.raises(UnknownNameError, match="unknown row 'PPZ'; did you mean 'PPC'"):
        compare_two_seeds(parts, only=["PPZ"])


def test_only_an_unfinished_run_is_resumed(tmp_path, monkeypatch):
    first = compare_two_seeds(tmp_path)
    (lost,) = tmp_path.glob("nope*/seed-1")
    for name in ("model.safetensors", "results.jsonl", "compared.jsonl"):
        (lost / name).unlink(missing_ok=True)
    steps = []
    step = Trainer.step

    def count(self: Trainer) -> Any:
        steps.append(self.folder)
        return step(self)

    (lost / "checkpoints" / "step-00000004.safetensors").write_bytes(b"")
    monkeypatch.setattr(Trainer, "step", count)
    assert untimed(compare_two_seeds(tmp_path).rows) == untimed(first.rows)
    assert steps == [lost] * 4


def test_a_run_that_stops_has_a_marked_row_at_every_longer_length(tmp_path):
    # These steps are too few for any exact match.
    settings = EvaluationSettings(lengths=(8, 16, 32), num_examples=(5,), stop_at_zero=True)
    experiments = {"NoPE": replace(EXPERIMENTS["NoPE, a control"], evaluation=settings)}
    comparison = compare_two_seeds(tmp_path, experiments)
    assert [(row["length"], row["skipped"]) for row in comparison.rows] == [(8, False), (16, True), (32, True)] * 2
    assert all(row.keys() == comparison.rows[0].keys() for row in comparison.rows)
    assert [row["exact_match"] for row in comparison.rows] == [0.0] * 6
    # The rows are saved, and a second call reads them.
    assert compare_two_seeds(tmp_path, experiments).rows == comparison.rows


def test_another_evaluation_of_a_run_does_not_change_the_comparison(tmp_path):
    first = compare_two_seeds(tmp_path)
    run = load_run(next(tmp_path.glob("*/seed-1")), device="cpu")
    evaluate(run, EvaluationSettings(lengths=(3,), num_examples=(5,)))
    assert untimed(compare_two_seeds(tmp_path).rows) == untimed(first.rows)


def test_a_worker_that_outlives_its_parent_adds_no_duplicate_rows(tmp_path, monkeypatch):
    measure = jobs_module.iter_result_rows

    def measure_twice(run: Any, *arguments: Any, **settings: Any) -> list[dict[str, Any]]:
        rows = list(measure(run, *arguments, **settings))
        write_rows_with_digest(run.folder / COMPARISON_ROWS, rows)
        return rows

    monkeypatch.setattr(jobs_module, "iter_result_rows", measure_twice)
    comparison = compare({"PPC": EXPERIMENTS["PPC"]}, tmp_path, seeds=1, workers=1)
    monkeypatch.undo()
    assert len(comparison.rows) == len(EXPERIMENTS["PPC"].evaluation.lengths)
    assert compare({"PPC": EXPERIMENTS["PPC"]}, tmp_path, seeds=1, workers=1).rows == comparison.rows


def test_the_same_call_continues_after_ctrl_c(tmp_path):
    def interrupt(line: str) -> None:
        if line.startswith("[2/4]"):
            signal.raise_signal(signal.SIGINT)

    whole = compare_two_seeds(tmp_path / "whole")
    stopped = tmp_path / "stopped"
    with suppress(KeyboardInterrupt):
        compare_two_seeds(stopped, report=interrupt)
    assert len(list(stopped.glob("*/*/model.safetensors"))) == 2
    assert untimed(compare_two_seeds(stopped).rows) == untimed(whole.rows)


def test_a_stopped_run_leaves_the_comparison_unfinished(tmp_path, monkeypatch):
    step = Trainer.step

    def interrupt(self: Trainer) -> Any:
        if self.settings.steps == 4 and self.progress.step == 2:
            signal.raise_signal(signal.SIGINT)
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupt)
        comparison = compare_two_seeds(tmp_path)
    assert not comparison.is_complete
    assert {row["row"] for row in comparison.rows} == {"PPC"}
    whole = compare_two_seeds(tmp_path)
    assert whole.is_complete
    assert len(whole.rows) == 8


def interrupt_in_evaluation(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """Send a signal in the first batch of an evaluation; return a list of the lengths of graded batches."""
    lengths, grade = [], evaluation.grade

    def interrupt(decoder: Any, batch: Any, **settings: Any) -> Any:
        lengths.append(batch.length)
        if lengths.count(8) == 1 and batch.length == 8:
            signal.raise_signal(number)
        return grade(decoder, batch, **settings)

    monkeypatch.setattr(evaluation, "grade", interrupt)
    return lengths


@pytest.mark.slow
@pytest.mark.linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_evaluation_stops_at_the_next_batch_and_loses_only_that_evaluation(
    number, tmp_path, monkeypatch
):
    # Length 8 occurs only in the evaluation.
    settings = EvaluationSettings(lengths=(8,), num_examples=(80,))
    rows = {label: replace(row, evaluation=settings) for label, row in EXPERIMENTS.items()}
    whole = compare_two_seeds(tmp_path / "whole", rows)
    with monkeypatch.context() as patch:
        graded = interrupt_in_evaluation(patch, number)
        comparison = compare_two_seeds(tmp_path / "stopped", rows)
    assert graded.count(8) == 1
    assert not comparison.is_complete
    assert comparison.rows == []
    # The trained model is not lost.
    assert len(list(tmp_path.glob("stopped/*/*/model.safetensors"))) == 1
    again = compare_two_seeds(tmp_path / "stopped", rows)
    assert again.is_complete
    assert untimed(again.rows) == untimed(whole.rows)


def test_ctrl_c_in_the_last_batch_of_an_evaluation_starts_no_other_run(tmp_path, monkeypatch):
    rows = {
        label: replace(row, evaluation=EvaluationSettings(lengths=(8,), num_examples=(1,)))
        for label, row in EXPERIMENTS.items()
    }
    graded = interrupt_in_evaluation(monkeypatch, signal.SIGINT)
    comparison = compare_two_seeds(tmp_path, rows)
    assert graded.count(8) == 1
    assert not comparison.is_complete
    assert len(list(tmp_path.glob("*/*/model.safetensors"))) == 1


DIVERGING = small_experiment(scheme=Sequential(), learning_rate=1e30, steps=4)
REASON = (
    "training diverged: the loss is nan at step 4; use a smaller learning_rate (now 1e+30) or a smaller clip (now 1.0)"
)


def test_a_diverged_run_is_reported_and_stops_no_other_run(tmp_path):
    messages = []
    for _ in range(2):
        comparison = compare_two_seeds(tmp_path, {"too fast": DIVERGING, **EXPERIMENTS}, report=messages.append)
        assert comparison.is_complete
        assert {row["row"] for row in comparison.rows} == set(EXPERIMENTS)
        expected = {"row": "too fast", "task": "parity", "reason": REASON}
        assert comparison.diverged == [{**expected, "seed": seed} for seed in (0, 1)]
        assert comparison.warnings[:2] == [f"too fast, seed {seed}: {REASON}" for seed in (0, 1)]
    assert [line for line in messages if "too fast" in line][:2] == [
        f"[1/6] too fast, seed 0: {REASON}",
        f"[2/6] too fast, seed 1: {REASON}",
    ]


def test_a_diverged_run_is_listed_with_every_variant(tmp_path):
    settings = EvaluationSettings(lengths=(4,), num_examples=(4,), variants=("uniform", "carry"))
    sums = {"too fast": replace(DIVERGING, task=Addition(), evaluation=settings)}
    sums["slow"] = replace(sums["too fast"], training=EXPERIMENTS["PPC"].training)
    comparison = compare_two_seeds(tmp_path, sums, seeds=1)
    assert [cell["row"] for cell in comparison.diverged] == ["too fast, uniform", "too fast, carry"]
    assert len([warning for warning in comparison.warnings if "diverged" in warning]) == 1


def test_an_error_is_raised_if_every_run_diverges(tmp_path):
    with pytest.raises(DivergedError, match=rf"^all runs diverged, for example too fast, seed 0: {re.escape(REASON)}$"):
        compare_two_seeds(tmp_path, {"too fast": DIVERGING})


def test_the_command_line_prints_a_diverged_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        experiment_options, "experiments_from_names", lambda *names: {"too fast": DIVERGING, **EXPERIMENTS}
    )
    flags = ["compare", "parity", "--workers", "1", "--device", "cpu", "--out", str(tmp_path)]
    cli.main(flags)
    printed = capsys.readouterr()
    assert "1 diverged" in next(line for line in printed.out.splitlines() if "too fast" in line)
    assert f"warning: too fast, seed 0: {REASON}" in printed.err.replace("\n", " ")
    cli.main([*flags, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["diverged"] == [{"row": "too fast", "task": "parity", "seed": 0, "reason": REASON}]


def test_a_comparison_restores_the_number_of_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    before = torch.get_num_threads()
    try:
        compare_two_seeds(tmp_path, {"PPC": small_experiment(steps=1)}, seeds=1)
        assert torch.get_num_threads() == before
    finally:
        torch.set_num_threads(before)


def test_a_run_uses_no_more_threads_than_torch_is_set_to(tmp_path, monkeypatch):
    # OMP_NUM_THREADS sets this number. On busy cores, threads wait for each other.
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    used = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    compare_two_seeds(tmp_path, {"PPC": small_experiment(steps=1)}, seeds=1)
    # The small model trains on one thread.
    assert set(used) == {1, 3}


def test_untrained_distances_cause_one_warning_per_experiment_also_on_a_repeated_call(tmp_path):
    text = "sequential: length 8 used ID distances up to 18, but training only up to 10"
    sequential = {"sequential": small_experiment(scheme=Sequential(), steps=4)}
    for _ in range(2):
        # NoPE uses no distances.
        comparison = compare_two_seeds(tmp_path, EXPERIMENTS | sequential)
        assert [warning for warning in comparison.warnings if not warning.startswith("PPC")] == [text]


def test_another_comparison_in_the_same_folder_raises_an_error(tmp_path):
    compare_two_seeds(tmp_path)
    before = folder_contents(tmp_path)
    renamed = dict(zip(["one", "two"], EXPERIMENTS.values(), strict=True))
    others = {
        "experiments.NoPE, a control": lambda: compare_two_seeds(tmp_path, {"PPC": EXPERIMENTS["PPC"]}),
        "num_seeds": lambda: compare_two_seeds(tmp_path, seeds=1),
        "experiments.PPC.training.steps": lambda: compare_two_seeds(
            tmp_path, {**EXPERIMENTS, "PPC": small_experiment(steps=7)}
        ),
        "experiments.NoPE, a control, experiments.PPC, experiments.one and 1 more": lambda: compare_two_seeds(
            tmp_path, renamed
        ),
    }
    for names, other in others.items():
        text = rf"contains another comparison \(different values: {names}\); choose another"
        with pytest.raises(RunFolderError, match=text):
            other()
    assert folder_contents(tmp_path) == before


@pytest.mark.parametrize("content", [b"", b"[]", b'{"comparison": ', b"\xff"], ids=repr)
def test_a_damaged_comparison_file_is_named_in_the_error(content, tmp_path):
    (tmp_path / "comparison.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"comparison\.json"):
        compare_two_seeds(tmp_path)
    assert folder_contents(tmp_path) == {"comparison.json": content}


def test_lengths_beyond_the_id_range_of_an_encoding_raise_an_error_before_training(tmp_path):
    learned = small_experiment(scheme=Sequential(), encoding=Learned(num_position_ids=18))
    text = r"length 8 requires ID 18, but the encoding supports IDs up to 17; set its num_position_ids to at least 19"
    with pytest.raises(PositionRangeError, match=text):
        compare_two_seeds(tmp_path, {**EXPERIMENTS, "learned": learned})
    assert folder_contents(tmp_path) == {}


@pytest.mark.parametrize(
    ("settings", "text"),
    [({"seeds": 0}, "number of seeds 0"), ({"workers": 0}, "number of workers 0")],
)
def test_invalid_numbers_of_seeds_and_jobs_raise_an_error(settings, text, tmp_path):
    with pytest.raises(SettingError, match=text):
        compare_two_seeds(tmp_path, **settings)
    assert folder_contents(tmp_path) == {}


FLAGS = ["compare", "parity", "parity_rank", "--quick", "--seeds", "2", "--workers", "1", "--device", "cpu"]


@pytest.mark.slow
def test_the_command_line_writes_rows_and_figure_and_does_not_repeat_runs(tmp_path, monkeypatch, capsys):
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
def test_two_processes_give_the_same_rows_as_one(tmp_path, monkeypatch):
    # Worker processes do not see patches.
    monkeypatch.setattr(run_module, "NUM_FIT_EXAMPLES", NUM_FIT_EXAMPLES)
    experiments = {**EXPERIMENTS, "too fast": DIVERGING}
    one, two = (
        compare_two_seeds(tmp_path / "one", experiments),
        compare_two_seeds(tmp_path / "two", experiments, workers=2),
    )
    assert untimed(two.rows) == untimed(one.rows)
    assert two.warnings == one.warnings
    assert two.is_complete
    assert two.diverged == one.diverged
    assert compare_two_seeds(tmp_path / "two", experiments, workers=2).rows == two.rows


def test_selected_rows_of_a_named_comparison_equal_those_of_the_whole():
    whole = experiment_options.experiments_from_names(["which_copy"], None, None, None)
    assert experiment_options.experiments_from_names(["which_copy"], None, "coupled/rotary, sequential/nope", None) == {
        label: whole[label] for label in ("coupled/rotary", "sequential/nope")
    }


def test_two_workers_of_the_demo_end_at_nearly_the_same_time():
    """Each run takes the mean time of its row in the published results."""
    seconds: dict[str, list[float]] = {}
    for line in (Path(__file__).parents[2] / "benchmarks/results/demo.jsonl").read_text().splitlines():
        row = json.loads(line)
        by_seed = seconds.setdefault(row["row"], [])
        by_seed += [row["train_s"]] if row["length"] == 5 else []
        by_seed[-1] += row["wall_s"]
    jobs = [
        ExperimentJob(label=label, experiment=experiment, folder=Path(label), device="cpu", threads=1)
        for label, experiment in demo().items()
        for _ in range(3)
    ]
    durations = {label: sum(by_seed) / len(by_seed) for label, by_seed in seconds.items()}
    ends = [0.0, 0.0]
    for job in longest_jobs_first(jobs, LocalExecutor(workers=2, threads=1)):
        ends[ends.index(min(ends))] += durations[job.label]
    assert max(ends) <= 1.05 * sum(ends) / 2


def test_deleted_results_of_a_run_are_restored_without_duplicates(tmp_path):
    whole = compare_two_seeds(tmp_path)
    folder = next(tmp_path.glob("*/seed-1"))
    before = (folder / "results.jsonl").read_bytes()
    assert before.count(b"\n") == 2
    (folder / "results.jsonl").unlink()
    assert compare_two_seeds(tmp_path).rows == whole.rows
    assert (folder / "results.jsonl").read_bytes() == before


@pytest.mark.first(1)
@pytest.mark.parametrize("num_rows", [1, 4])
def test_missing_or_duplicate_saved_rows_raise_an_error(num_rows, tmp_path):
    compare_two_seeds(tmp_path)
    path = next(tmp_path.glob("*/seed-1")) / COMPARISON_ROWS
    rows, seal = path.read_bytes().splitlines(keepends=True)[:-1], path.read_bytes().splitlines(keepends=True)[-1]
    path.write_bytes(b"".join((rows * 2)[:num_rows]) + seal)
    with pytest.raises(
        RunFolderError, match=r"has changed since it was written \(its digest differs\); delete the file to measure"
    ):
        compare_two_seeds(tmp_path)
    path.unlink()
    assert compare_two_seeds(tmp_path).is_complete


@pytest.mark.parametrize("labels", [("PPC", "ppc"), ("a b", "a_b"), ("a", "a!"), ("rows", "!!"), ("", "b")])
def test_labels_without_a_unique_folder_name_raise_an_error(labels, tmp_path):
    with pytest.raises(SettingError, match=r"its folder name .*; use labels that differ in letters"):
        compare_two_seeds(tmp_path, dict.fromkeys(labels, EXPERIMENTS["PPC"]))
    assert not list(tmp_path.iterdir())

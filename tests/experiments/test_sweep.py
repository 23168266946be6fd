"""Sweeps: grids of experiments and seeds, in folders that are named by their content."""

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.support.small_runs import folder_contents, small_experiment

import lengthwise as lw
from lengthwise.cli import app as cli
from lengthwise.core.errors import RunFolderError, WorkerError
from lengthwise.core.folder_lock import exclusive_lock
from lengthwise.encodings import ALiBi, NoPE, Rotary
from lengthwise.experiments import run as run_module
from lengthwise.experiments.executors import LocalExecutor
from lengthwise.experiments.experiment import to_dict
from lengthwise.experiments.recipes import recipe
from lengthwise.experiments.run_folder import COMPARISON_ROWS, experiment_folder_name
from lengthwise.experiments.run_states import read_run_states
from lengthwise.experiments.runner import ExperimentJob, compare, run_job, sweep
from lengthwise.experiments.sweep_file import read_sweep_file
from lengthwise.positions import Predicted, Sequential
from lengthwise.tasks import JSONLTask
from lengthwise.training.trainer import Trainer

EXPERIMENTS = {
    "PPC": small_experiment(steps=6),
    "NoPE": small_experiment(scheme=Sequential(), encoding=NoPE(), steps=4),
}
DIVERGING = small_experiment(scheme=Sequential(), learning_rate=1e30, steps=4)
# Settings of a sweep file that make its runs small.
SMALL_BASE = {
    "task": "parity",
    "scheme": "sequential",
    "training.steps": 4,
    "training.batch_size": 4,
    "training.lengths_per_batch": 1,
    "train_lengths": [1, 4],
    "decoder": {"num_layers": 1, "d_model": 16, "num_heads": 2},
    "evaluation": {"lengths": [4, 8], "num_examples": [16]},
}


@pytest.fixture(autouse=True, scope="module")
def _quick_fit() -> Iterator[None]:
    """Use few examples to measure the fit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "NUM_FIT_EXAMPLES", 16)
        yield


@pytest.fixture
def _import_path() -> Iterator[None]:
    """Restore the import path and forget the modules of sweep files."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    sys.modules.pop("grid_of_mine", None)


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in ("wall_s", "train_s", "time")} for row in rows]


def small_sweep(folder: Path, experiments: Any = EXPERIMENTS, **settings: Any) -> Any:
    return sweep(experiments, folder, **{"seeds": 2, "workers": 1, "device": "cpu", **settings})


def trained_folders(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return a set that receives the name of each folder in which training starts."""
    folders, run = set(), Trainer.run

    def count(self: Trainer, **arguments: Any) -> bool:
        folders.add(self.folder.name)
        return run(self, **arguments)

    monkeypatch.setattr(Trainer, "run", count)
    return folders


def write_sweep(folder: Path, document: Any) -> Path:
    path = folder / "sweep.json"
    path.write_text(json.dumps(document))
    return path


def test_the_rows_of_a_sweep_equal_those_of_a_comparison(tmp_path):
    reports: list[tuple[int, int, str]] = []
    swept = small_sweep(tmp_path / "sweep", report=lambda *progress: reports.append(progress))
    compared = compare(EXPERIMENTS, tmp_path / "compare", seeds=2, workers=1, device="cpu")
    assert untimed(swept.rows) == untimed(compared.rows)
    assert (swept.warnings, swept.diverged, swept.failed) == (compared.warnings, [], [])
    assert swept.is_complete
    saved = (tmp_path / "sweep" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in saved] == swept.rows
    assert [progress[:2] for progress in reports] == [(number, 4) for number in range(5)]
    assert reports[1][2].startswith("PPC, seed 0: 6 steps in ")


def test_a_repeated_sweep_trains_nothing(tmp_path, monkeypatch):
    first = small_sweep(tmp_path)
    before = folder_contents(tmp_path)
    folders, reports = trained_folders(monkeypatch), []
    assert small_sweep(tmp_path, report=lambda *progress: reports.append(progress)).rows == first.rows
    assert folders == set()
    assert reports == [(4, 4, "runs are finished")]
    assert folder_contents(tmp_path) == before


# Files of a sweep folder about its last call.
REWRITTEN = ("planned.json", "results.jsonl")


def test_another_sweep_trains_only_its_new_runs_and_changes_no_other_run(tmp_path, monkeypatch):
    small_sweep(tmp_path)
    before = folder_contents(tmp_path)
    folders = trained_folders(monkeypatch)
    longer = small_experiment(steps=8)
    second = small_sweep(tmp_path, {"renamed": EXPERIMENTS["PPC"], "longer": longer}, seeds=[1, 2])
    new = [replace(EXPERIMENTS["PPC"], seed=2), replace(longer, seed=1), replace(longer, seed=2)]
    assert folders == {experiment_folder_name(experiment) for experiment in new}
    assert [(row["row"], row["seed"]) for row in second.rows if row["length"] == 4] == [
        ("renamed", 1),
        ("renamed", 2),
        ("longer", 1),
        ("longer", 2),
    ]
    after = folder_contents(tmp_path)
    assert {name: after[name] for name in before if name not in REWRITTEN} == {
        name: content for name, content in before.items() if name not in REWRITTEN
    }


def test_a_folder_name_depends_on_every_setting():
    changed = [
        small_experiment(),
        small_experiment(steps=13),
        small_experiment(encoding=ALiBi()),
        small_experiment(scheme=Predicted(num_position_ids=49)),
        replace(small_experiment(), train_lengths=(1, 5)),
        replace(small_experiment(), seed=1),
    ]
    assert len({experiment_folder_name(experiment) for experiment in changed}) == len(changed)
    assert experiment_folder_name(small_experiment()) == experiment_folder_name(small_experiment())
    assert experiment_folder_name(small_experiment()).startswith("parity-predicted-rotary-seed-0-")


def test_without_seeds_each_experiment_keeps_its_seed(tmp_path):
    swept = small_sweep(tmp_path, {"PPC": replace(EXPERIMENTS["PPC"], seed=5)}, seeds=None)
    assert {row["seed"] for row in swept.rows} == {5}


def test_a_stopped_sweep_continues(tmp_path, monkeypatch):
    def interrupt(num_done: int, num_total: int, line: str) -> None:
        if num_done == 2:
            signal.raise_signal(signal.SIGINT)

    whole = small_sweep(tmp_path / "whole")
    stopped = small_sweep(tmp_path / "stopped", report=interrupt)
    assert not stopped.is_complete
    assert len({(row["row"], row["seed"]) for row in stopped.rows}) == 2
    folders = trained_folders(monkeypatch)
    continued = small_sweep(tmp_path / "stopped")
    assert untimed(continued.rows) == untimed(whole.rows)
    assert len(folders) == 2


def fail_for_nope(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Trainer.step

    def fail(self: Trainer) -> Any:
        if self.settings.steps == EXPERIMENTS["NoPE"].training.steps and self.settings.learning_rate < 1:
            raise ValueError("the disk\nis gone")
        return step(self)

    monkeypatch.setattr(Trainer, "step", fail)


def test_failed_runs_are_reported_and_stop_no_other_run(tmp_path, monkeypatch):
    fail_for_nope(monkeypatch)
    reports: list[tuple[int, int, str]] = []
    experiments = {"NoPE": EXPERIMENTS["NoPE"], "too fast": DIVERGING, "PPC": EXPERIMENTS["PPC"]}
    swept = small_sweep(tmp_path, experiments, seeds=1, report=lambda *progress: reports.append(progress))
    assert swept.is_complete
    assert {row["row"] for row in swept.rows} == {"PPC"}
    failed = {"row": "NoPE", "task": "parity", "seed": 0, "reason": "ValueError: the disk is gone"}
    assert swept.failed == [failed]
    assert [run["row"] for run in swept.diverged] == ["too fast"]
    assert "NoPE, seed 0: ValueError: the disk is gone" in swept.warnings
    assert reports[1][2] == "NoPE, seed 0: ValueError: the disk is gone"
    assert sorted(state.state for state in read_run_states(tmp_path)) == ["failed", "failed", "finished"]


def test_a_lost_worker_is_a_failed_run(tmp_path, monkeypatch):
    def lose_first(self: LocalExecutor, run: Any, jobs: list[ExperimentJob], on_result: Any) -> bool:
        on_result(jobs[0], WorkerError("its worker died"))
        for job in jobs[1:]:
            on_result(job, run(job, lambda: False))
        return True

    monkeypatch.setattr(LocalExecutor, "run", lose_first)
    swept = small_sweep(tmp_path, seeds=1)
    assert [(run["row"], run["reason"]) for run in swept.failed] == [("PPC", "its worker died")]
    assert {row["row"] for row in swept.rows} == {"NoPE"}
    with pytest.raises(WorkerError, match="its worker died"):
        compare(EXPERIMENTS, tmp_path / "compare", workers=1, device="cpu")


def test_a_damaged_run_is_a_failed_run(tmp_path):
    small_sweep(tmp_path, seeds=1)
    path = tmp_path / experiment_folder_name(EXPERIMENTS["PPC"]) / COMPARISON_ROWS
    path.write_bytes(path.read_bytes().replace(b"parity", b"purity"))
    swept = small_sweep(tmp_path, seeds=1)
    assert {row["row"] for row in swept.rows} == {"NoPE"}
    assert "its digest differs); delete the file to measure its rows again" in swept.failed[0]["reason"]


def test_a_run_waits_while_another_process_writes_into_its_folder(tmp_path):
    folder = tmp_path / experiment_folder_name(EXPERIMENTS["PPC"])
    job = ExperimentJob(label="PPC", experiment=EXPERIMENTS["PPC"], folder=folder, device="cpu", threads=1)
    is_locked, swept = threading.Event(), []

    def hold() -> None:
        with exclusive_lock(folder):
            is_locked.set()
            time.sleep(1)
            swept.append("free")

    holder = threading.Thread(target=hold)
    holder.start()
    is_locked.wait()
    # A signal ends the wait.
    assert run_job(job, iter([False, True, True]).__next__) is None
    assert swept == []
    rows = small_sweep(tmp_path, {"PPC": EXPERIMENTS["PPC"]}, seeds=1).rows
    assert swept == ["free"]
    assert len(rows) == 2
    holder.join()


def test_a_folder_with_other_results_raises_an_error(tmp_path):
    compare({"NoPE": EXPERIMENTS["NoPE"]}, tmp_path / "compare", workers=1, device="cpu")
    with pytest.raises(RunFolderError, match="already contains a comparison; choose another --out for the sweep"):
        small_sweep(tmp_path / "compare")
    small_sweep(tmp_path / "sweep", {"NoPE": EXPERIMENTS["NoPE"]}, seeds=1)
    with pytest.raises(RunFolderError, match="already contains a sweep; choose another --out for the comparison"):
        compare(EXPERIMENTS, tmp_path / "sweep", workers=1, device="cpu")


def test_a_grid_contains_every_combination(tmp_path):
    grid = {"training.learning_rate": [0.001, 0.01], "encoding": ["rotary", "alibi"], "decoder.head": ["rank"]}
    document = {"base": {"task": "parity", "scheme": "predicted", "training.steps": 7}, "grid": grid, "seeds": [3, 1]}
    source = read_sweep_file(write_sweep(tmp_path, document))
    assert source.seeds == (3, 1)
    base = lw.experiment("parity", "predicted")
    expected = {
        f"learning_rate={rate}, encoding={encoding}, head=rank": replace(
            lw.experiment("parity", "predicted", encoding),
            training=replace(base.training, steps=7, learning_rate=rate),
            decoder=replace(base.decoder, head="rank"),
        )
        for rate in (0.001, 0.01)
        for encoding in ("rotary", "alibi")
    }
    assert source.experiments == expected
    assert list(source.experiments) == list(expected)


@pytest.mark.parametrize(
    ("base", "grid", "expected"),
    [
        ({"recipe": "parity"}, {}, {"parity/predicted/rotary": recipe("parity")}),
        ({}, {"recipe": ["parity"]}, {"recipe=parity": recipe("parity")}),
        ({"task": "copy"}, {"scheme": ["sequential"]}, {"scheme=sequential": lw.experiment("copy", "sequential")}),
        (
            {"recipe": "parity"},
            {"scheme": [{"name": "predicted", "num_position_ids": 64}]},
            {
                'scheme={"name": "predicted", "num_position_ids": 64}': replace(
                    recipe("parity"),
                    scheme=replace(recipe("parity").scheme, num_position_ids=64),  # type: ignore[type-var]
                )
            },
        ),
        (
            {"task": "parity"},
            {"scheme.num_position_ids": [64]},
            {
                "num_position_ids=64": replace(
                    lw.experiment("parity", "predicted"),
                    scheme=replace(lw.experiment("parity", "predicted").scheme, num_position_ids=64),  # type: ignore[type-var]
                )
            },
        ),
        (
            {"recipe": "parity"},
            {"training.steps": [5], "evaluation.lengths": [[3, 4]]},
            {
                "steps=5, lengths=[3, 4]": replace(
                    recipe("parity"),
                    training=replace(recipe("parity").training, steps=5),
                    evaluation=replace(recipe("parity").evaluation, lengths=(3, 4)),
                )
            },
        ),
    ],
)
def test_base_and_grid_accept_names_objects_and_paths(base, grid, expected, tmp_path):
    source = read_sweep_file(write_sweep(tmp_path, {"base": base, "grid": grid}))
    assert source.experiments == expected
    assert source.seeds is None


def test_every_path_of_an_experiment_is_a_setting(tmp_path):
    experiment = lw.experiment("parity", "predicted")
    tree = json.loads(json.dumps(to_dict(experiment)))
    paths = {
        f"{part}.{name}": value
        for part, settings in tree.items()
        if isinstance(settings, dict)
        for name, value in settings.items()
        if name != "name"
    }
    assert len(paths) > 30
    source = read_sweep_file(write_sweep(tmp_path, {"base": {"task": "parity", **paths}}))
    assert list(source.experiments.values()) == [experiment]


@dataclass(frozen=True, slots=True, kw_only=True)
class MyRotary(Rotary):
    """Custom encoding for the test below."""

    name: ClassVar[str] = "my_rotary"


def test_custom_classes_and_task_files_have_settings_too(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a b", "response": "b a"}\n{"prompt": "a", "response": "a"}\n')
    file = str(tmp_path / "rows.jsonl")
    base = {"task": file, "scheme": "sequential", "encoding": "test_sweep:MyRotary"}
    document = {"base": base, "grid": {"encoding.base": [50.0], "training.steps": [5]}}
    (experiment,) = read_sweep_file(write_sweep(tmp_path, document)).experiments.values()
    # The other settings are those of a baseline.
    assert experiment.encoding == MyRotary(base=50.0)
    (unchanged,) = read_sweep_file(write_sweep(tmp_path, {**document, "grid": {}})).experiments.values()
    (longer,) = read_sweep_file(
        write_sweep(tmp_path, {**document, "grid": {"training.steps": [5]}})
    ).experiments.values()
    assert longer.encoding == unchanged.encoding == MyRotary()
    assert isinstance(experiment.task, JSONLTask)
    assert (experiment.task.file, experiment.training.steps) == (file, 5)


PYTHON_SWEEP = """
from dataclasses import dataclass, replace

import lengthwise as lw
from lengthwise.tasks import Parity


@dataclass(frozen=True)
class Mine(Parity):
    name = "mine"


EXPERIMENTS = {"mine": replace(lw.quick_version(lw.recipe("parity")), task=Mine(), seed=SEED)}
SEEDS = [4]
"""


@pytest.mark.usefixtures("_import_path")
def test_a_python_file_defines_experiments_and_is_read_again_after_a_change(tmp_path):
    path = tmp_path / "grid_of_mine.py"
    for seed in (1, 22):
        path.write_text(PYTHON_SWEEP.replace("SEED)", f"{seed})"))
        source = read_sweep_file(path)
        (experiment,) = source.experiments.values()
        assert (experiment.task.name, experiment.seed, source.seeds) == ("mine", seed, (4,))


@pytest.mark.slow
@pytest.mark.usefixtures("_import_path")
def test_worker_processes_import_the_classes_of_a_python_file(tmp_path):
    path = tmp_path / "grid_of_mine.py"
    path.write_text(PYTHON_SWEEP.replace("SEED)", "1)"))
    swept = sweep(path, tmp_path / "out", seeds=2, workers=2, device="cpu")
    assert (swept.failed, {row["seed"] for row in swept.rows}) == ([], {0, 1})


@pytest.mark.slow
def test_two_processes_give_the_same_rows_as_one(tmp_path, monkeypatch):
    # Worker processes do not see patches.
    monkeypatch.setattr(run_module, "NUM_FIT_EXAMPLES", 256)
    one, two = (small_sweep(tmp_path / str(workers), workers=workers) for workers in (1, 2))
    assert untimed(two.rows) == untimed(one.rows)


def status_of(arguments: list[str]) -> Any:
    """Return the exit status of a command."""
    try:
        cli.main(arguments)
    except SystemExit as error:
        return error.code
    return 0


def test_the_command_prints_a_table_and_a_line_per_run(tmp_path, capsys):
    path = write_sweep(tmp_path, {"base": SMALL_BASE, "grid": {"encoding": ["rotary", "nope"]}, "seeds": 2})
    flags = ["sweep", str(path), "--workers", "1", "--device", "cpu", "--out", str(tmp_path / "out")]
    assert status_of(flags) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == f"rows: {tmp_path / 'out' / 'results.jsonl'}"
    assert "encoding=nope" in printed.out
    lines = printed.err.splitlines()
    assert lines[0] == "[0/4] runs are finished"
    assert [line.split("]")[0] for line in lines[:5]] == [f"[{number}/4" for number in range(5)]
    assert lines[1].endswith("; about 0 min left")
    assert status_of([*flags, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.keys() == {"results", "diverged", "failed", "folder"}
    assert [(row["row"], row["seed"]) for row in document["results"] if row["length"] == 8] == [
        (f"encoding={encoding}", seed) for encoding in ("rotary", "nope") for seed in (0, 1)
    ]


def test_the_exit_status_is_1_if_a_run_fails(tmp_path, monkeypatch, capsys):
    def fail(self: Trainer) -> Any:
        raise ValueError("no disk")

    path = write_sweep(tmp_path, {"base": SMALL_BASE})
    flags = ["sweep", str(path), "--workers", "1", "--device", "cpu", "--out", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", fail)
        assert status_of([*flags, "--json"]) == 1
    printed = capsys.readouterr()
    assert [run["reason"] for run in json.loads(printed.out)["failed"]] == ["ValueError: no disk"]
    last_line = "some runs diverged or failed (see the warnings); repeat the command to train them again"
    assert printed.err.splitlines()[-1] == last_line
    assert "warning: parity/sequential/rotary, seed 0: ValueError: no disk" in printed.err
    assert status_of(flags) == 0

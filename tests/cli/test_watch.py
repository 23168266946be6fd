"""The states of runs that other processes write, and the command that shows them."""

import json
import math
import os
import time

import pytest
from tests.support.small_runs import folder_contents, small_experiment

from lengthwise.cli import app as cli
from lengthwise.cli.commands import watch as watch_command
from lengthwise.cli.commands.watch import TrainingSpeedMeter
from lengthwise.core.errors import DivergedError
from lengthwise.experiments.run import train
from lengthwise.experiments.run_folder import record_failure
from lengthwise.experiments.run_states import MAX_RUNS, STALE_S, read_run_states
from lengthwise.positions import Sequential

SETTINGS = {"seed": 3, "training": {"steps": 100}}


def write_run(folder, *, rows=(), results=(), files=()):
    """Write the files of a run as a trainer does."""
    folder.mkdir(parents=True)
    (folder / "experiment.json").write_text(json.dumps({"experiment": SETTINGS}))
    for name, lines in (("metrics.jsonl", rows), ("results.jsonl", results)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in files:
        (folder / name).touch()
    return folder


ROWS = [{"step": 10, "mean_loss": 0.5, "exact_match": 0.25}, {"step": 20, "mean_loss": 0.375}]


@pytest.fixture
def watched(tmp_path):
    """Return a folder with one run in each state."""
    write_run(tmp_path / "a", rows=ROWS, files=["model.safetensors"], results=[{"length": 8, "exact_match": 0.5}])
    write_run(tmp_path / "b", rows=ROWS, files=[".lock"])
    write_run(tmp_path / "c", rows=ROWS, files=[".lock"])
    past = time.time() - 2 * STALE_S
    for path in (tmp_path / "c").iterdir():
        os.utime(path, (past, past))
    write_run(tmp_path / "d", rows=ROWS)
    write_run(tmp_path / "e")
    write_run(tmp_path / "f", rows=ROWS, files=["failure.json"])
    write_run(tmp_path / "a/earlier/10-steps", rows=ROWS)
    return tmp_path


def test_each_run_has_its_state_steps_loss_and_results(watched):
    states = read_run_states(watched)
    assert [state.name for state in states] == ["a", "b", "c", "d", "e", "f"]
    assert [state.state for state in states] == ["finished", "running", "stale", "stopped", "waiting", "failed"]
    assert (states[0].step, states[0].num_steps, states[0].loss, states[0].exact_match) == (20, 100, 0.375, 0.25)
    assert states[0].results == {"8": 0.5}


def test_a_comparison_has_waiting_runs_before_their_folders_exist(tmp_path):
    comparison = {"comparison": {"experiments": {"predicted/rotary": SETTINGS}, "num_seeds": 2}}
    (tmp_path / "comparison.json").write_text(json.dumps(comparison))
    write_run(tmp_path / "predicted-rotary/seed-3", rows=ROWS, files=["model.safetensors"])
    states = {state.name: state.state for state in read_run_states(tmp_path)}
    assert states == {"predicted-rotary/seed-3": "finished", "predicted-rotary/seed-4": "waiting"}


def test_a_sweep_has_waiting_runs_before_their_folders_exist(tmp_path):
    (tmp_path / "planned.json").write_text(json.dumps({"first": SETTINGS, "second": SETTINGS}))
    write_run(tmp_path / "first", rows=ROWS, files=["model.safetensors"])
    states = {state.name: (state.state, state.num_steps) for state in read_run_states(tmp_path)}
    assert states == {"first": ("finished", 100), "second": ("waiting", 100)}


def test_a_failed_run_has_its_error_until_it_is_trained_again(tmp_path):
    with pytest.raises(DivergedError):
        train(small_experiment(scheme=Sequential(), learning_rate=1e30, steps=4), tmp_path / "run")
    assert [state.state for state in read_run_states(tmp_path)] == ["failed"]
    failure = json.loads((tmp_path / "run/failure.json").read_text())
    assert failure["error"] == "DivergedError"
    assert failure["message"].startswith("training diverged: the loss is nan at step 4")
    with record_failure(tmp_path / "run"):
        assert not (tmp_path / "run/failure.json").exists()


def test_incomplete_files_and_missing_folders_stop_nothing(watched):
    for name in ("metrics.jsonl", "results.jsonl", "experiment.json"):
        path = watched / "a" / name
        path.write_bytes(path.read_bytes() + b'{"step": 3\xff')
    assert read_run_states(watched)[0].step == 20
    assert read_run_states(watched / "missing") == []


def test_watch_once_prints_a_table_and_writes_nothing(watched, capsys):
    before = folder_contents(watched)
    cli.main(["watch", str(watched), "--once"])
    out = capsys.readouterr().out
    assert all(
        word in out for word in ("finished", "running", "stale", "stopped", "waiting", "failed", "20/100", "8:0.500")
    )
    assert folder_contents(watched) == before
    cli.main(["watch", str(watched), "--json"])
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 6


def test_without_a_terminal_a_line_is_printed_when_a_run_changes_until_ctrl_c(watched, capsys, monkeypatch):
    calls = []

    def pause(seconds):
        calls.append(seconds)
        if len(calls) == 2:
            (watched / "e/metrics.jsonl").write_text(json.dumps({"step": 5, "mean_loss": 0.125}) + "\n")
        if len(calls) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(watch_command.time, "sleep", pause)
    cli.main(["watch", str(watched)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["a", "b", "c", "d", "e", "f", "e"]
    assert "5/100" in lines[-1]


def test_the_speed_is_the_number_of_steps_since_the_run_was_first_seen(watched):
    speedometer = TrainingSpeedMeter()
    assert speedometer.update(read_run_states(watched), now=10.0) == {}
    (watched / "b/metrics.jsonl").write_text(json.dumps({"step": 50, "mean_loss": 0.1}) + "\n")
    assert speedometer.update(read_run_states(watched), now=12.0) == {"b": 15.0}


WRONG_VALUES = ["x", None, 10**399, math.nan, [1], {}, True, "a\0b", "x" * 3000, -1]


@pytest.mark.parametrize("value", WRONG_VALUES, ids=lambda value: repr(value)[:8])
def test_a_wrong_value_in_a_file_hides_this_value_and_no_run(value, watched, capsys):
    row = {"step": 30, "mean_loss": value, "exact_match": value, "last_step": value}
    (watched / "a/metrics.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({**row, "step": value}) + "\n")
    result = {"length": 4, "exact_match": value}
    named = {"length": value, "exact_match": 0.5, "variant": value}
    (watched / "a/results.jsonl").write_text(json.dumps(result) + "\n" + json.dumps(named) + "\n")
    (watched / "b/experiment.json").write_text(json.dumps({"experiment": {"training": value, "train_lengths": value}}))
    (watched / "c/experiment.json").write_text(json.dumps({"experiment": {"training": {"steps": value}}}))
    (watched / "planned.json").write_text(json.dumps({str(value): value, "..": {}, "../x": {}}))
    comparison = {"experiments": {"y": {"seed": value}, str(value): {"seed": 1}}, "num_seeds": value}
    (watched / "comparison.json").write_text(json.dumps({"comparison": comparison}))
    cli.main(["watch", str(watched), "--once"])
    cli.main(["watch", str(watched), "--json"])
    out = capsys.readouterr().out
    runs = {run["name"]: run for run in json.loads(out[out.rindex('{\n  "runs"') :])["runs"]}
    assert {"a", "b", "c", "d", "e", "f"} <= set(runs)
    assert not [name for name in runs if name.startswith("..") or "\0" in name]
    assert runs["a"]["step"] == 30
    assert isinstance(runs["a"]["loss"], float | int | None)


def test_a_small_file_cannot_plan_millions_of_runs(tmp_path):
    experiments = {f"run {number}": {"seed": 0} for number in range(200)}
    comparison = {"comparison": {"experiments": experiments, "num_seeds": 10_000}}
    (tmp_path / "comparison.json").write_text(json.dumps(comparison))
    assert len(read_run_states(tmp_path)) <= MAX_RUNS

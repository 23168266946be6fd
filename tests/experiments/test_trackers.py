"""Trackers of training: each step once after a resumption, and no effect of their failures on the run."""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.small_runs import equal_tensors, folder_contents, run_weights, small_experiment

from lengthwise.cli import app as cli
from lengthwise.core.errors import TrackerWarning
from lengthwise.experiments import run as run_module
from lengthwise.experiments.progress_reports import TRACKERS, TrackedRun
from lengthwise.experiments.run import train
from lengthwise.experiments.run_folder import experiment_folder_name, read_rows
from lengthwise.experiments.runner import compare, sweep
from lengthwise.positions import Sequential

SWEEP = Path(__file__).parents[2] / "docs" / "sweep.json"
# Stands for the library of a tracker, which must be installed.
FAKE = "json"


@pytest.fixture(autouse=True)
def _quick_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few examples to measure the fit."""
    monkeypatch.setattr(run_module, "NUM_FIT_EXAMPLES", 16)


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Add a tracker to the table that records its calls in a list."""
    calls: list[Any] = []

    class Recorder:
        def __init__(self, run: TrackedRun) -> None:
            calls.append(run)

        def log(self, metrics: Mapping[str, float], step: int) -> None:
            calls.append({"step": step, **metrics})

        def close(self) -> None:
            calls.append("closed")

    monkeypatch.setitem(TRACKERS, FAKE, Recorder)
    return calls


def interrupt_after(step: int) -> Any:
    """Return a report that stops the training like a killed process, without a checkpoint."""

    def report(row: dict[str, Any]) -> None:
        if row["step"] == step:
            raise KeyboardInterrupt

    return report


def train_interrupted(folder: Path, tracker: str) -> None:
    """Train to step 6, with a checkpoint at step 4, and resume; rows are logged every 2 steps."""
    with pytest.raises(KeyboardInterrupt):
        train(small_experiment(), folder, device="cpu", trackers=[tracker], report=interrupt_after(6))
    train(small_experiment(), folder, device="cpu", trackers=[tracker], resume=True)


def test_a_tracker_receives_the_rows_of_the_log_and_is_closed(received, tmp_path):
    run = train(small_experiment(), tmp_path, device="cpu", trackers=[FAKE])
    tracked_run, *rows, end = received
    assert rows == read_rows(tmp_path / "metrics.jsonl")
    assert end == "closed"
    assert (tracked_run.first_step, tracked_run.tracked_step) == (1, 0)
    assert tracked_run.name.endswith(tmp_path.name)
    assert tracked_run.settings == json.loads((tmp_path / "experiment.json").read_text())["experiment"]
    assert run is not None


def test_a_tracker_receives_no_id_accuracy_of_a_decoder_without_a_position_head(received, tmp_path):
    train(small_experiment(scheme=Sequential()), tmp_path, device="cpu", trackers=[FAKE])
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert {row[name] for row in rows for name in ("id_accuracy", "mean_id_accuracy", "ids_in_reach")} == {None}
    for tracked in (call for call in received if isinstance(call, dict)):
        assert "mean_loss" in tracked
        assert not {"id_accuracy", "mean_id_accuracy", "mean_ids_in_reach"} & tracked.keys()


def test_a_resumed_run_continues_its_tracked_run(received, tmp_path):
    train_interrupted(tmp_path, FAKE)
    before, after = (call for call in received if isinstance(call, TrackedRun))
    assert before.id == after.id
    # The checkpoint is at step 4, and the tracker already has step 6.
    assert (after.first_step, after.tracked_step) == (5, 6)


def test_a_tracker_added_later_has_no_steps_yet(received, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(small_experiment(), tmp_path, device="cpu", report=interrupt_after(6))
    train(small_experiment(), tmp_path, device="cpu", trackers=[FAKE], resume=True)
    assert (received[0].first_step, received[0].tracked_step) == (5, 0)


def test_training_an_experiment_again_is_another_tracked_run(received, tmp_path):
    for name in ("one", "other"):
        train(small_experiment(steps=2), tmp_path / name, device="cpu", trackers=[FAKE])
    one, other = (call for call in received if isinstance(call, TrackedRun))
    assert one.id != other.id


def test_a_finished_run_is_not_tracked_again(received, tmp_path):
    for resume in (False, True):
        train(small_experiment(steps=2), tmp_path, device="cpu", trackers=[FAKE], resume=resume)
    assert received.count("closed") == 1


@pytest.mark.parametrize("failing", ["__init__", "log", "close"])
def test_a_failing_tracker_gives_one_warning_and_changes_nothing(failing, tmp_path, monkeypatch, capsys):
    class Failing:
        def __init__(self, run: TrackedRun) -> None:
            sys.stdout.write("connected")
            self.fail("__init__")

        def fail(self, place: str) -> None:
            if place == failing:
                raise OSError(28, "No space left\non device")

        def log(self, metrics: Mapping[str, float], step: int) -> None:
            self.fail("log")

        def close(self) -> None:
            self.fail("close")

    monkeypatch.setitem(TRACKERS, FAKE, Failing)
    train(small_experiment(), tmp_path / "alone", device="cpu")
    with pytest.warns(TrackerWarning) as caught:
        train(small_experiment(), tmp_path / "tracked", device="cpu", trackers=[FAKE])
    text = "tracker json failed (OSError: [Errno 28] No space left on device); training continues without it"
    assert [str(warning.message) for warning in caught] == [text]
    assert capsys.readouterr().out == ""
    assert equal_tensors(run_weights(tmp_path / "tracked"), run_weights(tmp_path / "alone"))
    assert (tmp_path / "tracked/metrics.jsonl").read_bytes() == (tmp_path / "alone/metrics.jsonl").read_bytes()


def test_the_model_is_saved_before_a_tracker_can_wait_for_its_network(tmp_path, monkeypatch):
    class Waiting:
        def __init__(self, run: TrackedRun) -> None:
            self.folder = run.folder

        def log(self, metrics: Mapping[str, float], step: int) -> None:
            assert not (self.folder / "model.safetensors").exists()

        def close(self) -> None:
            assert (self.folder / "model.safetensors").exists()

    monkeypatch.setitem(TRACKERS, FAKE, Waiting)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(small_experiment(steps=2), tmp_path, device="cpu", trackers=[FAKE])


TWO_EXPERIMENTS = {"one": small_experiment(steps=2), "other": small_experiment(steps=2, batch_size=2)}


def test_every_run_of_a_comparison_is_tracked(received, tmp_path):
    compare(TWO_EXPERIMENTS, tmp_path, workers=1, device="cpu", trackers=[FAKE])
    runs = [call for call in received if isinstance(call, TrackedRun)]
    assert [run.name for run in runs] == ["one/seed-0", "other/seed-0"]
    assert received.count("closed") == 2


def test_every_run_of_a_sweep_is_tracked(received, tmp_path):
    sweep(TWO_EXPERIMENTS, tmp_path / "all", workers=1, device="cpu", trackers=[FAKE])
    names = [f"all/{experiment_folder_name(experiment)}" for experiment in TWO_EXPERIMENTS.values()]
    assert sorted(call.name for call in received if isinstance(call, TrackedRun)) == sorted(names)
    assert received.count("closed") == 2
    before = len(received)
    sweep(TWO_EXPERIMENTS, tmp_path / "all", workers=1, device="cpu", trackers=[FAKE])
    assert len(received) == before


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the steps and values of every metric in the TensorBoard files of a run, as TensorBoard shows them."""
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    files = accumulators.EventAccumulator(str(folder / "tensorboard"))
    files.Reload()
    return {name: [(event.step, event.value) for event in files.Scalars(name)] for name in files.Tags()["scalars"]}


@pytest.fixture
def _tensorboard() -> Iterator[None]:
    """Skip a test without the library, whose import gives warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("tensorboard")
        pytest.importorskip("torch.utils.tensorboard")
        yield


@pytest.mark.usefixtures("_tensorboard")
def test_tensorboard_shows_each_step_of_a_resumed_run_once(tmp_path):
    train_interrupted(tmp_path, "tensorboard")
    rows, shown = read_rows(tmp_path / "metrics.jsonl"), scalars(tmp_path)
    assert set(shown) == {name for row in rows for name in row} - {"step"}
    for name, points in shown.items():
        expected = [(row["step"], row[name]) for row in rows if name in row]
        assert [step for step, _ in points] == [step for step, _ in expected]
        assert [value for _, value in points] == pytest.approx([value for _, value in expected])


@pytest.mark.slow
@pytest.mark.usefixtures("_tensorboard")
def test_worker_processes_track_their_runs(tmp_path):
    experiments = {"one": small_experiment(), "other": small_experiment(batch_size=2)}
    compare(experiments, tmp_path, workers=2, device="cpu", trackers=["tensorboard"])
    for label in experiments:
        steps = [row["step"] for row in read_rows(tmp_path / label / "seed-0" / "metrics.jsonl")]
        assert [step for step, _ in scalars(tmp_path / label / "seed-0")["loss"]] == steps


@pytest.mark.usefixtures("_tensorboard")
def test_the_flag_tracks_a_run_and_keeps_standard_output_for_json(tmp_path, capsys):
    folder = tmp_path / "run"
    flags = ["--quick", "--device", "cpu", "--tracker", "tensorboard", "--json", "--out", str(folder)]
    cli.main(["train", "parity", *flags])
    assert json.loads(capsys.readouterr().out)["folder"] == str(folder)
    assert scalars(folder)["loss"]


@pytest.mark.parametrize("command", ["train parity --quick", "compare parity --quick", f"sweep {SWEEP}"])
def test_an_unknown_tracker_is_an_error_before_anything_is_written(command, tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main([*command.split(), "--tracker", "wanbd", "--out", str(tmp_path / "run")])
    assert exit_info.value.code == 2
    text = "error: unknown tracker 'wanbd'; did you mean 'wandb'? known: tensorboard, trackio, wandb"
    assert capsys.readouterr().err.splitlines() == [text]
    assert folder_contents(tmp_path) == {}


TRACK = """
import sys
from tests.support.small_runs import small_experiment
from lengthwise.experiments.run import train

is_resumed = sys.argv[3] == "resume"

def report(row):
    if row["step"] == 6 and not is_resumed:
        raise SystemExit

train(small_experiment(), sys.argv[1], device="cpu", trackers=[sys.argv[2]], report=report, resume=is_resumed)
"""
READ_TRACKIO = """
import json
from trackio.sqlite_storage import SQLiteStorage
import trackio

(run,) = trackio.Api().runs("lengthwise")
print(json.dumps([[row["step"], row["loss"]] for row in SQLiteStorage.get_logs("lengthwise", run.name)]))
"""


def run_script(script: str, *arguments: str, folder: Path) -> str:
    """Run a script in a process with local storage of the trackers; return its standard output."""
    storage = {"WANDB_MODE": "offline", "TRACKIO_DIR": str(folder / "trackio"), "HOME": str(folder)}
    command = [sys.executable, "-c", script, *arguments]
    process = subprocess.run(command, env=os.environ | storage, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout


def logged_losses(folder: Path) -> list[list[float]]:
    """Return the steps and losses in the log of a run."""
    return [[row["step"], row["loss"]] for row in read_rows(folder / "metrics.jsonl")]


@pytest.mark.slow
def test_trackio_has_each_step_of_a_resumed_run_once(tmp_path):
    pytest.importorskip("trackio")
    for part in ("start", "resume"):
        assert run_script(TRACK, str(tmp_path / "run"), "trackio", part, folder=tmp_path) == ""
    assert json.loads(run_script(READ_TRACKIO, folder=tmp_path)) == logged_losses(tmp_path / "run")


@pytest.mark.slow
def test_metrics_that_trackio_cannot_save_give_a_warning(tmp_path):
    pytest.importorskip("trackio")
    (tmp_path / "trackio").write_text("a file, not a folder")
    arguments = [sys.executable, "-m", "lengthwise", "train", "parity", "--quick", "--tracker", "trackio", "--json"]
    process = subprocess.run(
        [*arguments, "--device", "cpu", "--out", str(tmp_path / "run")],
        env=os.environ | {"TRACKIO_DIR": str(tmp_path / "trackio" / "inner")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(process.stdout)["steps"] == 20
    assert (
        len([line for line in process.stderr.splitlines() if line.startswith("warning: tracker trackio failed")]) == 1
    )


def wandb_records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file of wandb, which has the format of a LevelDB log after 7 bytes."""
    content, position, record = path.read_bytes(), 7, b""
    while position + 7 <= len(content):
        # A header of 7 bytes (checksum, size, kind) is never divided between two blocks of 32 KiB.
        if (room := 32768 - position % 32768) < 7:
            position += room
            continue
        size, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        record += content[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):
            yield record
            record = b""


@pytest.mark.slow
def test_wandb_has_each_step_of_a_resumed_run_once(tmp_path):
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record  # noqa: PLC0415

    for part in ("start", "resume"):
        assert run_script(TRACK, str(tmp_path / "run"), "wandb", part, folder=tmp_path) == ""
    paths = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    records = [Record.FromString(record) for path in paths for record in wandb_records(path)]
    assert len(paths) == 2
    assert len({record.run.run_id for record in records if record.WhichOneof("record_type") == "run"}) == 1
    losses = [
        [record.history.step.num, json.loads(item.value_json)]
        for record in records
        if record.WhichOneof("record_type") == "history"
        for item in record.history.item
        if list(item.nested_key) == ["loss"]
    ]
    assert losses == logged_losses(tmp_path / "run")

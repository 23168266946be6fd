"""Extension of a run by more steps: what the longer run equals, what remains of the earlier run, and interruptions."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.small_runs import (
    equal_tensors,
    folder_contents,
    run_weights,
    small_experiment,
    stop_after,
    trainer_of,
    training_facts,
)

from lengthwise.core.checkpoint import load_tensors
from lengthwise.core.errors import RunFolderError
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments import run as run_module
from lengthwise.experiments import run_folder as folder_module
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.run import load_run, train
from lengthwise.experiments.run_evaluation import evaluate
from lengthwise.experiments.run_folder import read_rows, run_folder
from lengthwise.experiments.runner import compare
from lengthwise.positions import Sequential
from lengthwise.tasks import SparseParity

SETTINGS = EvaluationSettings(lengths=(2, 4), num_examples=(16,))


@pytest.fixture(autouse=True, scope="module")
def _quick_fit() -> Iterator[None]:
    """Use few examples to measure the fit, and one thread."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "NUM_FIT_EXAMPLES", 16)
        yield


def with_steps(experiment: Experiment, steps: int) -> Experiment:
    return replace(experiment, training=replace(experiment.training, steps=steps))


def trained(folder: Path, experiment: Experiment, **settings: Any) -> Path:
    """Train or resume a run and return its folder."""
    assert train(experiment, folder, device="cpu", **settings) is not None
    return folder


def extensions(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "experiment.json").read_text())["provenance"].get("extensions", [])


def logged_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the logged rows without exact match, which is also measured at the last step of each part."""
    rows = read_rows(folder / "metrics.jsonl")
    return [{name: value for name, value in row.items() if name != "exact_match"} for row in rows]


EXPERIMENTS = {
    "predicted": small_experiment(),
    "mixed lengths": small_experiment(lengths_per_batch=3, scheduled_sampling=0.3),
    "staged": small_experiment(SparseParity(most=6), Sequential(), stage_threshold=1.02),
}


@pytest.mark.first(1)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_with_a_constant_learning_rate_an_extended_run_equals_the_longer_run(name, tmp_path):
    experiment = EXPERIMENTS[name]
    experiment = replace(experiment, training=replace(experiment.training, final_share=1.0))
    trained(tmp_path / "run", experiment)
    trained(tmp_path / "run", with_steps(experiment, 18), resume=True)
    trained(tmp_path / "run", with_steps(experiment, 22), resume=True)
    longer = trained(tmp_path / "longer", with_steps(experiment, 22))
    assert equal_tensors(run_weights(tmp_path / "run"), run_weights(longer))
    assert training_facts(tmp_path / "run") == training_facts(longer)
    assert logged_rows(tmp_path / "run") == logged_rows(longer)
    assert load_run(tmp_path / "run", device="cpu").experiment == with_steps(experiment, 22)


def test_an_extended_run_continues_with_the_learning_rates_of_the_longer_run(tmp_path):
    experiment = small_experiment(log_every=1)
    trained(tmp_path / "run", experiment)
    trained(tmp_path / "run", with_steps(experiment, 20), resume=True)
    short, long = experiment.training, with_steps(experiment, 20).training
    rows = read_rows(tmp_path / "run/metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 21))
    rates = [
        *(short.learning_rate_at(step) for step in range(12)),
        *(long.learning_rate_at(step) for step in range(12, 20)),
    ]
    assert [row["learning_rate"] for row in rows] == rates

    # The same in one process, without checkpoints.
    (tmp_path / "once").mkdir()
    trainer = trainer_of(experiment, tmp_path / "once")
    for settings, steps in ((short, 12), (long, 8)):
        trainer.settings = settings
        for _ in range(steps):
            trainer.step()
    weights = run_weights(tmp_path / "run")
    assert equal_tensors(dict(trainer.decoder.state_dict()), weights)
    assert not equal_tensors(run_weights(trained(tmp_path / "longer", with_steps(experiment, 20))), weights)


def test_a_stopped_extension_resumes_like_an_uninterrupted_one(tmp_path):
    short, long = small_experiment(), small_experiment(steps=24)
    trained(tmp_path / "whole", short)
    trained(tmp_path / "whole", long, resume=True)
    trained(tmp_path / "stopped", short)
    for steps in (2, 7):
        assert train(long, tmp_path / "stopped", resume=True, device="cpu", stop=stop_after(steps)) is None
    trained(tmp_path / "stopped", long, resume=True)
    assert equal_tensors(run_weights(tmp_path / "stopped"), run_weights(tmp_path / "whole"))
    assert (tmp_path / "stopped/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()
    assert len(extensions(tmp_path / "stopped")) == 1


def test_an_unfinished_run_can_be_extended(tmp_path):
    short, long = small_experiment(final_share=1.0), small_experiment(final_share=1.0, steps=24)
    train(short, tmp_path / "run", device="cpu", stop=stop_after(5))
    trained(tmp_path / "run", long, resume=True)
    assert equal_tensors(run_weights(tmp_path / "run"), run_weights(trained(tmp_path / "longer", long)))
    assert not (tmp_path / "run/earlier").exists()
    assert [each["from_step"] for each in extensions(tmp_path / "run")] == [5]


def test_the_provenance_counts_extensions_and_has_the_step_of_each(tmp_path):
    trained(tmp_path, small_experiment())
    before = json.loads((tmp_path / "experiment.json").read_text())
    for steps in (16, 17):
        trained(tmp_path, small_experiment(steps=steps), resume=True)
    after = json.loads((tmp_path / "experiment.json").read_text())
    assert [(each["from_step"], each["earlier_steps"], each["steps"]) for each in extensions(tmp_path)] == [
        (12, 12, 16),
        (16, 16, 17),
    ]
    assert {"versions", "commit", "hardware"} <= set(extensions(tmp_path)[0])
    del after["provenance"]["extensions"]
    assert after["experiment"]["training"].pop("steps") == 17
    assert before["experiment"]["training"].pop("steps") == 12
    assert after == before


def test_the_earlier_run_remains_with_its_model_and_results(tmp_path):
    run = train(small_experiment(), tmp_path, device="cpu")
    rows = evaluate(run, SETTINGS)
    before = folder_contents(tmp_path)
    trained(tmp_path, small_experiment(steps=24), resume=True)
    assert not (tmp_path / "results.jsonl").exists()
    earlier = load_run(tmp_path / "earlier/12-steps", device="cpu")
    assert equal_tensors(earlier.decoder.state_dict(), run.decoder.state_dict())
    assert (earlier.experiment, earlier.facts) == (run.experiment, run.facts)
    assert read_rows(tmp_path / "earlier/12-steps/results.jsonl") == rows
    copies = folder_contents(tmp_path / "earlier/12-steps")
    assert copies == {name: content for name, content in before.items() if "checkpoints" not in name}
    # Results of the longer run are separate.
    assert [row["steps"] for row in evaluate(load_run(tmp_path, device="cpu"), SETTINGS)] == [24, 24]
    trained(tmp_path, small_experiment(steps=24), resume=True)
    assert [row["steps"] for row in read_rows(tmp_path / "results.jsonl")] == [24, 24]


def test_a_run_that_ended_because_it_fits_trains_on_when_extended(tmp_path):
    experiment = small_experiment(fit_every=4, fit_threshold=0.0)
    assert train(experiment, tmp_path, device="cpu").facts["steps"] == 4
    # It fits at the next measurement.
    assert train(with_steps(experiment, 30), tmp_path, device="cpu", resume=True).facts["steps"] == 8


LONGER = small_experiment(steps=16)


class PowerCut(BaseException):
    """End of the process at some moment."""


class CutAfter:
    """Patch of a file operation that ends the process before or after one of its calls."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def wrap(self, operation: Any) -> Any:
        """Return the operation with a count before and after it."""

        def patched(*arguments: Any, **settings: Any) -> Any:
            self._count()
            result = operation(*arguments, **settings)
            self._count()
            return result

        return patched

    def _count(self) -> None:
        self.calls -= 1
        if self.calls == 0:
            raise PowerCut


def interrupted_extension(finished: dict[str, bytes | None], folder: Path, calls: int) -> bool:
    """Extend a run, but end at a renamed or deleted file; return False if the extension ended before that."""
    restore(finished, folder)
    with pytest.MonkeyPatch.context() as patch:
        cut = CutAfter(calls)
        for name in ("replace", "unlink"):
            patch.setattr(Path, name, cut.wrap(getattr(Path, name)))
        try:
            train(LONGER, folder, device="cpu", resume=True)
        except PowerCut:
            return True
    return False


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes | None]:
    """Return the content of a finished and evaluated run."""
    folder = tmp_path_factory.mktemp("finished")
    evaluate(train(small_experiment(), folder, device="cpu"), SETTINGS)
    return folder_contents(folder)


def restore(contents: dict[str, bytes | None], folder: Path) -> None:
    folder.mkdir()
    for name, content in contents.items():
        if content is None:
            (folder / name).mkdir(parents=True, exist_ok=True)
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


@pytest.fixture(scope="module")
def extended(finished: dict[str, bytes | None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the same run after an uninterrupted extension."""
    folder = tmp_path_factory.mktemp("extended") / "run"
    restore(finished, folder)
    return trained(folder, LONGER, resume=True)


def check_interrupted(folder: Path, finished: dict[str, bytes | None], extended: Path) -> None:
    """Check that an interrupted extension lost nothing, and that the same command completes it."""
    steps = json.loads((folder / "experiment.json").read_text())["experiment"]["training"]["steps"]
    kept = folder if steps == 12 else folder / "earlier/12-steps"
    for name in ("model.safetensors", "results.jsonl"):
        assert (kept / name).read_bytes() == finished[name]
    if steps == 12:
        # Without the extension, the run is still finished.
        trained(folder, small_experiment(), resume=True)
        assert (folder / "results.jsonl").read_bytes() == finished["results.jsonl"]
    trained(folder, LONGER, resume=True)
    contents, expected = folder_contents(folder), folder_contents(extended)
    # A cut after a checkpoint is saved can leave an older one.
    assert {name for name in contents.keys() ^ expected.keys() if "checkpoints" not in name} == set()
    assert equal_tensors(run_weights(folder), run_weights(extended))
    assert contents["metrics.jsonl"] == expected["metrics.jsonl"]
    for name in ("model.safetensors", "results.jsonl", "experiment.json"):
        assert contents[f"earlier/12-steps/{name}"] == finished[name]


@pytest.mark.slow
def test_an_extension_that_ends_at_any_file_operation_loses_nothing(finished, extended, tmp_path):
    calls = 1
    while interrupted_extension(finished, tmp_path / str(calls), calls):
        check_interrupted(tmp_path / str(calls), finished, extended)
        calls += 1
    assert calls > 20


@pytest.mark.parametrize("function", ["_copy_run", "write_description_file", "_delete_outdated"])
def test_an_extension_that_ends_before_a_write_loses_nothing(function, finished, extended, tmp_path, monkeypatch):
    restore(finished, tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(folder_module, function, CutAfter(1).wrap(None))
        with pytest.raises(PowerCut):
            train(LONGER, tmp_path / "run", device="cpu", resume=True)
    check_interrupted(tmp_path / "run", finished, extended)


ERRORS = {
    "fewer steps": (
        {"steps": 11},
        r"is a run of up to 12 steps, more than 11; use more than 12 steps to extend it, or choose another --out$",
    ),
    "more steps and another setting": (
        {"steps": 24, "clip": 2.0},
        r"contains another run \(different values: training\.clip\); choose another --out$",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_invalid_extension_raises_an_error_and_changes_nothing(name, tmp_path):
    trained(tmp_path, small_experiment())
    before = folder_contents(tmp_path)
    settings, text = ERRORS[name]
    with pytest.raises(RunFolderError, match=text):
        train(small_experiment(**settings), tmp_path, device="cpu", resume=True)
    with pytest.raises(RunFolderError, match="already contains a run; add --resume"):
        train(small_experiment(steps=24), tmp_path, device="cpu")
    assert folder_contents(tmp_path) == before


def test_a_run_without_checkpoints_cannot_be_extended_and_the_error_names_from(tmp_path):
    trained(tmp_path, small_experiment())
    for path in (tmp_path / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-9])
    text = r"has no complete checkpoint to continue from; train a new run from its weights: --from "
    with pytest.raises(RunFolderError, match=text):
        train(small_experiment(steps=24), tmp_path, device="cpu", resume=True)


def test_a_checkpoint_of_another_run_is_not_extended(tmp_path):
    trained(tmp_path / "run", small_experiment())
    other = trained(tmp_path / "other", replace(small_experiment(), seed=1))
    name = "checkpoints/step-00000012.safetensors"
    (tmp_path / "run" / name).write_bytes((other / name).read_bytes())
    before = folder_contents(tmp_path)
    with pytest.raises(RunFolderError, match="belongs to another experiment; train that one, or choose another --out"):
        train(small_experiment(steps=24), tmp_path / "run", device="cpu", resume=True)
    assert folder_contents(tmp_path) == before


@pytest.mark.parametrize("record", [{"from_step": "x"}, [], 3, {"from_step": 12, "earlier_steps": 12, "steps": 16}])
def test_damaged_extensions_raise_a_one_line_error(record, tmp_path):
    trained(tmp_path, small_experiment())
    path = tmp_path / "experiment.json"
    tree = json.loads(path.read_text())
    tree["provenance"]["extensions"] = [record] if record != 3 else 3
    path.write_text(json.dumps(tree))
    with pytest.raises(RunFolderError, match=r"experiment\.json has invalid extensions \(.*\); restore the original"):
        train(small_experiment(steps=24), tmp_path, device="cpu", resume=True)


def test_a_comparison_never_extends_a_run(tmp_path):
    experiment = replace(small_experiment(), evaluation=SETTINGS)
    trained(run_folder(tmp_path, "PPC", 0), experiment)
    with pytest.raises(RunFolderError, match=r"contains another run \(different values: training\.steps\)"):
        compare({"PPC": with_steps(experiment, 24)}, tmp_path, workers=1, device="cpu")


def test_checkpoints_of_the_longer_run_belong_to_it(tmp_path):
    trained(tmp_path, small_experiment())
    trained(tmp_path, small_experiment(steps=20), resume=True)
    model = load_tensors(tmp_path / "model.safetensors")[1]
    newest = load_tensors(max((tmp_path / "checkpoints").iterdir()))[1]
    assert newest["belongs_to"] == model["belongs_to"] != extensions(tmp_path)[0]["belongs_to"]
    assert (newest["step"], newest["finished"]) == (20, True)

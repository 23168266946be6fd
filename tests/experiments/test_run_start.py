"""Start of a run from another run's weights: what begins anew, what must agree, and how the run resumes."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
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

from lengthwise.core.errors import LengthwiseError, RunFolderError, SettingError
from lengthwise.encodings import ENCODINGS, Learned, Rotary
from lengthwise.experiments import run as run_module
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.run import load_run, train
from lengthwise.positions import Coupled, Predicted, Sequential
from lengthwise.tasks import Copy, MultiAddition, Parity


@pytest.fixture(autouse=True, scope="module")
def _quick_fit() -> Iterator[None]:
    """Use few examples to measure the fit, and one thread."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "NUM_FIT_EXAMPLES", 16)
        yield


SHORT = small_experiment()
LONG = replace(small_experiment(steps=8, learning_rate=1e-3), train_lengths=(1, 7), seed=3)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run on short sequences."""
    folder = tmp_path_factory.mktemp("short")
    assert train(SHORT, folder, device="cpu") is not None
    return folder


def test_a_run_starts_from_the_weights_of_another_run_with_a_new_optimizer(short, tmp_path):
    run = train(LONG, tmp_path / "run", start=short, device="cpu")
    (tmp_path / "same").mkdir()
    trainer = trainer_of(LONG, tmp_path / "same")
    trainer.decoder.load_state_dict(run_weights(short))
    trainer.run()
    assert equal_tensors(dict(trainer.decoder.state_dict()), run_weights(tmp_path / "run"))
    assert run.facts["steps"] == 8
    assert run.experiment == LONG
    loaded = load_run(tmp_path / "run", device="cpu")
    assert equal_tensors(loaded.decoder.state_dict(), run.decoder.state_dict())
    # Without the start, training gives other weights.
    train(LONG, tmp_path / "alone", device="cpu")
    assert not equal_tensors(run_weights(tmp_path / "alone"), run_weights(tmp_path / "run"))


def test_experiment_json_has_the_path_and_digest_of_the_start(short, tmp_path):
    train(LONG, tmp_path, start=load_run(short, device="cpu"), device="cpu")
    saved = json.loads((tmp_path / "experiment.json").read_text())
    digest = hashlib.sha256((short / "model.safetensors").read_bytes()).hexdigest()
    assert saved["provenance"]["start"] == {"run": str(short), "sha256": digest, "steps": 12}
    assert saved["files"] == {"start.safetensors": digest}


@pytest.mark.parametrize("stops", [(1,), (4, 6)], ids=str)
def test_a_stopped_run_with_a_start_resumes_without_the_run_that_it_started_from(stops, short, tmp_path):
    shutil.copytree(short, tmp_path / "short")
    train(LONG, tmp_path / "whole", start=tmp_path / "short", device="cpu")
    done = 0
    for stop in stops:
        start = None if done else tmp_path / "short"
        resumed = {"resume": True, "stop": stop_after(stop - done)}
        assert train(LONG, tmp_path / "stopped", start=start, device="cpu", **resumed) is None
        done = stop
    # The same command with --resume works too.
    assert (
        train(LONG, tmp_path / "stopped", start=tmp_path / "short", device="cpu", resume=True, stop=lambda: True)
        is None
    )
    shutil.rmtree(tmp_path / "short")
    train(LONG, tmp_path / "stopped", device="cpu", resume=True)
    assert equal_tensors(run_weights(tmp_path / "stopped"), run_weights(tmp_path / "whole"))
    assert training_facts(tmp_path / "stopped") == training_facts(tmp_path / "whole")


def test_a_run_killed_before_its_first_checkpoint_starts_from_the_same_weights(short, tmp_path):
    train(LONG, tmp_path / "whole", start=short, device="cpu")
    train(LONG, tmp_path / "killed", start=short, device="cpu", stop=stop_after(3))
    shutil.rmtree(tmp_path / "killed/checkpoints")
    train(LONG, tmp_path / "killed", device="cpu", resume=True)
    assert equal_tensors(run_weights(tmp_path / "killed"), run_weights(tmp_path / "whole"))


def test_a_run_with_a_start_can_be_extended(short, tmp_path):
    constant = replace(LONG, training=replace(LONG.training, final_share=1.0))
    longer = replace(constant, training=replace(constant.training, steps=14))
    train(constant, tmp_path / "run", start=short, device="cpu")
    train(longer, tmp_path / "run", resume=True, device="cpu")
    train(longer, tmp_path / "longer", start=short, device="cpu")
    assert equal_tensors(run_weights(tmp_path / "run"), run_weights(tmp_path / "longer"))
    assert load_run(tmp_path / "run/earlier/8-steps", device="cpu").experiment == constant
    saved = json.loads((tmp_path / "run/experiment.json").read_text())["provenance"]
    assert (saved["start"]["run"], len(saved["extensions"])) == (str(short), 1)


def with_decoder(experiment: Experiment, **settings: Any) -> Experiment:
    return replace(experiment, decoder=replace(experiment.decoder, **settings))


LEARNED = small_experiment(scheme=Sequential(), encoding=Learned(num_position_ids=40))
# Experiment of the start, experiment of the new run, and the error.
DISAGREEMENTS: dict[str, tuple[Experiment, Experiment, str]] = {
    "width": (
        SHORT,
        with_decoder(LONG, d_model=32),
        r"has decoder\.d_model 16, but the new run has 32; use the value of .*, or train without --from$",
    ),
    "head": (SHORT, with_decoder(LONG, head="rank"), r"has decoder\.head 'pointer', but the new run has 'rank'; use"),
    "encoding": (
        SHORT,
        replace(LONG, encoding=ENCODINGS["nope"]()),
        r"has encoding\.name 'rotary', but the new run has 'nope'; use",
    ),
    "angles": (
        SHORT,
        replace(LONG, encoding=Rotary(base=500.0)),
        r"has encoding\.base 10000\.0, but the new run has 500\.0; use",
    ),
    "learned IDs": (
        LEARNED,
        replace(LEARNED, encoding=Learned(num_position_ids=60)),
        r"has encoding\.num_position_ids 40, but the new run has 60; use",
    ),
    "vocabulary": (SHORT, replace(LONG, task=Copy()), r"has vocabulary \('0', '1', .*\), but the new run has \('0', "),
    "no head": (
        small_experiment(scheme=Coupled(num_position_ids=48)),
        LONG,
        r"has predicts_ids False, but the new run has True; use",
    ),
    "levels": (
        small_experiment(MultiAddition(operands=(2, 2)), scheme=Sequential()),
        small_experiment(MultiAddition(operands=(2, 2)), scheme=Predicted(num_position_ids=48)),
        r"has predicts_ids False, but",
    ),
    "classes": (
        small_experiment(head="class"),
        small_experiment(scheme=Predicted(num_position_ids=50), head="class"),
        r"has num_position_ids 48, but the new run has 50; use",
    ),
}


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_a_start_with_other_settings_raises_an_error_that_names_the_first_one(name, tmp_path):
    source, experiment, text = DISAGREEMENTS[name]
    train(replace(source, training=replace(source.training, steps=1)), tmp_path / "start", device="cpu")
    before = folder_contents(tmp_path)
    with pytest.raises(SettingError, match=text) as caught:
        train(experiment, tmp_path / "run", start=tmp_path / "start", device="cpu")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert folder_contents(tmp_path) == before


def test_settings_that_decide_no_weights_can_differ(short, tmp_path):
    # A pointer head works with any number of IDs.
    longer = replace(LONG, scheme=Predicted(num_position_ids=200, max_gaps=9))
    assert train(longer, tmp_path, start=short, device="cpu").experiment == longer


def test_a_run_loaded_with_another_encoding_starts_a_run_with_this_encoding(tmp_path):
    experiment = small_experiment(scheme=Sequential())
    train(experiment, tmp_path / "start", device="cpu")
    start = load_run(tmp_path / "start", overrides={"encoding": ENCODINGS["weave"]}, device="cpu")
    assert train(start.experiment, tmp_path / "run", start=start, device="cpu") is not None


@dataclass(frozen=True)
class CustomParity(Parity):
    """Custom task equal to parity."""

    name = "custom_parity"


def test_a_custom_task_of_the_start_is_not_imported_but_taken_from_the_experiment(tmp_path):
    experiment = replace(SHORT, task=CustomParity())
    train(experiment, tmp_path / "start", device="cpu")
    assert train(replace(LONG, task=CustomParity()), tmp_path / "run", start=tmp_path / "start", device="cpu")
    with pytest.raises(LengthwiseError, match=r"unknown saved task 'custom_parity'"):
        train(LONG, tmp_path / "other", start=tmp_path / "start", device="cpu")


def test_an_unfinished_start_raises_an_error(tmp_path):
    train(SHORT, tmp_path / "start", device="cpu", stop=stop_after(3))
    with pytest.raises(RunFolderError, match=r"because training is unfinished; run train --resume --out"):
        train(LONG, tmp_path / "run", start=tmp_path / "start", device="cpu")
    assert not (tmp_path / "run").exists()


def test_another_start_or_a_start_added_later_raises_an_error(short, tmp_path):
    train(replace(SHORT, seed=1), tmp_path / "other", device="cpu")
    train(LONG, tmp_path / "run", start=short, device="cpu")
    train(LONG, tmp_path / "alone", device="cpu")
    before = folder_contents(tmp_path)
    for folder, start in (("run", tmp_path / "other"), ("alone", short)):
        with pytest.raises(RunFolderError, match=r"another run \(different values: start\.safetensors\); choose"):
            train(LONG, tmp_path / folder, start=start, resume=True, device="cpu")
    with pytest.raises(RunFolderError, match="already contains a run; add --resume"):
        train(LONG, tmp_path / "run", start=short, device="cpu")
    assert folder_contents(tmp_path) == before


def test_changed_start_weights_raise_an_error(short, tmp_path):
    train(LONG, tmp_path, start=short, device="cpu", stop=stop_after(3))
    path = tmp_path / "start.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunFolderError, match=r"start\.safetensors has changed since training"):
        train(LONG, tmp_path, device="cpu", resume=True)

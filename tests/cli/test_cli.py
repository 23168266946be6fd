"""The command line: every command at its smallest size, and a one-line error with status 2 for invalid input."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from tests.support.small_runs import equal_tensors, folder_contents, run_weights, training_facts

import lengthwise as lw
from lengthwise.cli import app as cli
from lengthwise.cli.experiment_options import describe_run
from lengthwise.cli.terminal import print_table
from lengthwise.core import progress_line
from lengthwise.core.errors import DefaultSettingsWarning, UntrainedDistanceWarning
from lengthwise.core.progress_line import ProgressLine
from lengthwise.encodings import ENCODINGS, NoPE
from lengthwise.evaluation import result_rows
from lengthwise.experiments.experiment import to_dict
from lengthwise.experiments.recipes import COMPARISONS, RECIPES
from lengthwise.experiments.recipes.tuned_encodings import COPY_ENCODINGS
from lengthwise.experiments.run import load_run
from lengthwise.positions import SCHEMES, Assignment, PositionScheme, Sequential
from lengthwise.tasks import TASKS, Parity, Task
from lengthwise.tasks.examples import Examples
from lengthwise.theory.counterexamples import COUNTEREXAMPLES

QUICK = ["--quick", "--device", "cpu"]


class Uncoupled(Parity):
    """Custom task: parity without a coupling."""

    name = "uncoupled"

    def __init__(self) -> None:
        super().__init__(coupling="none")


class Borrowed(Sequential):
    """Custom scheme with the name of a built-in scheme."""


class NoDataclass(PositionScheme):
    """Custom scheme that is not a dataclass."""

    name = "no_dataclass"

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """Return token indices."""
        return Sequential().assign(examples, rng, training=training)


@dataclass(frozen=True)
class AssignsNothing(PositionScheme):
    """Custom scheme without ``assign``."""

    name = "assigns_nothing"


@dataclass(frozen=True)
class OnlyAssign:
    """Custom scheme without base class that has only ``assign``."""

    name = "only_assign"

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """Return token indices."""
        return Sequential().assign(examples, rng, training=training)


@dataclass(frozen=True)
class CustomScheme(Sequential):
    """Custom scheme equal to sequential."""

    name = "custom_scheme"


@dataclass(frozen=True)
class OwnNoPE(NoPE):
    """Custom encoding equal to NoPE."""

    name = "own_nope"


class NeedsArguments(Parity):
    """Custom task with a required argument."""

    def __init__(self, bits: int) -> None:
        super().__init__()


@pytest.fixture(autouse=True)
def _one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use one thread, because threads on busy cores wait for each other."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with quick runs (PPC, learned positions, unfinished) and a comparison."""
    folder = tmp_path_factory.mktemp("trained")
    cli.main(["train", "parity", *QUICK, "--out", str(folder / "run")])
    cli.main(["train", "addition", *QUICK, "--out", str(folder / "addition")])
    learned = ["--task", "parity", "--scheme", "sequential", "--encoding", "learned"]
    cli.main(["train", *learned, *QUICK, "--out", str(folder / "learned")])
    shutil.copytree(folder / "run", folder / "unfinished")
    (folder / "unfinished" / "model.safetensors").unlink()
    for name in ("addition", "learned"):
        shutil.rmtree(folder / name / "checkpoints")
    (folder / "comparison").mkdir()
    (folder / "comparison" / "comparison.json").write_text('{"comparison": {}}')
    (folder / "empty").mkdir()
    (folder / "file").write_text("a file")
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the quick runs and make the copy the working folder."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def output_of(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Return standard output and standard error of a successful command."""
    capsys.readouterr()
    cli.main(list(arguments))
    printed = capsys.readouterr()
    return printed.out, printed.err


def misfit_of(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return standard output of a command that saves a run that does not fit, and exits with status 1."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_info:
        cli.main(list(arguments))
    assert exit_info.value.code == 1
    return capsys.readouterr().out


def error_of(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one-line error of a command that exits with status 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_info:
        cli.main(list(arguments))
    printed = capsys.readouterr()
    assert exit_info.value.code == 2
    assert printed.out == ""
    # Lines of progress may precede the error, which is the last line.
    *progress, error = printed.err.splitlines()
    assert error.startswith("error: "), printed.err
    assert not any(line.startswith("error: ") for line in progress), printed.err
    return error.removeprefix("error: ").strip()


def test_list_prints_every_entry_of_every_table(capsys):
    out, err = output_of(["list"], capsys)
    for name in (*TASKS, *SCHEMES, *ENCODINGS, *RECIPES, *COMPARISONS):
        assert name in out
    assert err == ""


TABLES: dict[str, Any] = {
    "tasks": TASKS,
    "schemes": SCHEMES,
    "encodings": ENCODINGS,
    "counterexamples": COUNTEREXAMPLES,
    "recipes": {**RECIPES, **COMPARISONS},
}


@pytest.mark.parametrize("kind", TABLES)
def test_list_of_one_table_has_one_summary_line_per_entry(kind, capsys):
    (document,) = json.loads(output_of(["list", kind, "--json"], capsys)[0]).items()
    assert document[0] == kind
    assert [entry["name"] for entry in document[1]] == list(TABLES[kind])
    assert all(entry["summary"] and "\n" not in entry["summary"] for entry in document[1])
    table = output_of(["list", kind], capsys)[0]
    assert all(name in table for name in TABLES[kind])


def test_train_prints_one_line_with_steps_exact_match_and_folder(runs, capsys):
    out, _ = output_of(["train", "parity", *QUICK, "--seed", "3", "--out", "new"], capsys)
    run = load_run(Path("new"), device="cpu")
    assert out.count("\n") == 1
    assert out.startswith("20 steps in ")
    assert "; saved in new" in out
    assert f"exact match {run.facts['fitted']:.3f} at length 4" in out
    assert run.experiment.seed == 3
    ended_early = replace(run, facts={**run.facts, "steps": 5})
    assert describe_run(ended_early, 1, is_quick=True).startswith("5 of at most 20 steps in ")


def test_train_flags_set_the_experiment(runs, capsys):
    flags = "--task copy --scheme predicted --encoding alibi --head rank --steps 3 --batch-size 5 --lengths-per-batch 2"
    ranges = "--num-position-ids 60 --train-lengths 2:6 --seed 1 --device cpu --out new --json"
    document = json.loads(misfit_of(["train", *flags.split(), *ranges.split()], capsys))
    run = load_run(Path("new"), device="cpu")
    experiment = run.experiment
    assert document == {"folder": "new", **run.facts}
    assert (experiment.task.name, experiment.scheme.name, experiment.encoding.name) == ("copy", "predicted", "alibi")
    training = experiment.training
    assert (experiment.decoder.head, training.steps, training.batch_size) == ("rank", 3, 5)
    assert training.lengths_per_batch == 2
    assert (experiment.scheme.num_position_ids, experiment.train_lengths, experiment.seed) == (60, (2, 6), 1)


def test_train_without_out_writes_into_runs(runs, capsys):
    output_of(["train", "parity", *QUICK], capsys)
    (folder,) = (runs / "runs").iterdir()
    assert (folder / "model.safetensors").is_file()


def test_flags_override_the_quick_size(runs, capsys):
    output_of(["train", "parity", *QUICK, "--steps", "3", "--train-lengths", "1:2", "--out", "new"], capsys)
    experiment = load_run(Path("new"), device="cpu").experiment
    assert (experiment.training.steps, experiment.train_lengths) == (3, (1, 2))


@pytest.mark.slow
def test_a_run_of_a_custom_task_needs_the_task_flag_in_every_command(runs, capsys):
    custom = ["--task", "test_cli:Uncoupled"]
    output_of(["train", *custom, "--scheme", "sequential", "--encoding", "nope", *QUICK, "--out", "new"], capsys)
    document = json.loads(output_of(["evaluate", "new", *custom, "--device", "cpu", "--json"], capsys)[0])
    assert {row["task"] for row in document["results"]} == {"uncoupled"}
    for verb in (["evaluate"], ["diagnose", "--length", "8"], ["certify"], ["export", "--format", "hf", "--out", "hf"]):
        named = [verb[0], "new", *verb[1:]]
        assert "unknown saved task 'uncoupled'; if it is custom, pass --task" in error_of(named, capsys)
    # Every command that asks for the flag accepts it.
    document = json.loads(
        output_of(["diagnose", "new", "--length", "8", "--num-examples", "4", *custom, "--json"], capsys)[0]
    )
    assert (document["task"], document["num_examples"]) == ("uncoupled", 4)
    output_of(["export", "new", *custom, "--format", "hf", "--out", "hf"], capsys)
    assert (runs / "hf" / "config.json").is_file()
    assert "verdict" in output_of(["certify", "new", *custom, "--lengths", "8", "--json"], capsys)[0]


def test_flags_for_runs_raise_an_error_without_a_run(runs, capsys):
    custom = ["--task", "test_cli:Uncoupled"]
    message = "--task test_cli:Uncoupled needs a run folder; leave out --task"
    assert message in error_of(["certify", "parity", *custom], capsys)
    message = "--task test_cli:Uncoupled needs a run and --format hf or onnx; leave out --task"
    assert message in error_of(["export", "parity", *custom, "--format", "lm-eval", "--out", "new"], capsys)


def test_exporting_a_custom_encoding_raises_an_error(runs, capsys):
    custom = ["--encoding", "test_cli:OwnNoPE"]
    output_of(["train", "--task", "parity", "--scheme", "sequential", *custom, *QUICK, "--out", "new"], capsys)
    message = "the custom encoding own_nope cannot be exported; export a run with one of: "
    assert message in error_of(["export", "new", *custom, "--format", "hf", "--out", "hf"], capsys)
    assert not (runs / "hf").exists()


def interrupt_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C at the report of a training step."""

    def report(self: ProgressLine, row: dict[str, Any]) -> None:
        if row["step"] == step:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ProgressLine, "show_training", report)


@pytest.mark.parametrize(("task", "warns"), [("copy", False), ("test_cli:Uncoupled", True)])
def test_a_task_without_a_recipe_is_trained_with_a_warning(task, warns, runs, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always", DefaultSettingsWarning)
        _, err = output_of(["train", "--task", task, "--scheme", "sequential", *QUICK, "--out", "new"], capsys)
    assert ("warning: " in err and "no recipe" in err) == warns


@pytest.mark.slow
@pytest.mark.parametrize("task", ["copy", "test_cli:Uncoupled"])
def test_a_stopped_run_with_custom_classes_prints_the_command_that_resumes_it(task, runs, capsys, monkeypatch):
    custom = ["--scheme", "test_cli:CustomScheme", "--encoding", "test_cli:OwnNoPE"]
    settings = ["--train-lengths", "2:3", "--seed", "5"]
    flags = ["train", "--task", task, *custom, *settings, *QUICK, "--out"]
    output_of([*flags, "whole"], capsys)
    with monkeypatch.context() as patch:
        interrupt_at(10, patch)
        with pytest.raises(SystemExit):
            cli.main([*flags, "stopped"])
    command = capsys.readouterr().err.splitlines()[-1].split("lengthwise ")[1]
    named = [] if task == "copy" else ["--task", task]
    assert command.split() == ["train", "--resume", "--out", "stopped", *named, *custom, "--quick"]
    output_of([*command.split(), "--device", "cpu"], capsys)
    assert equal_tensors(run_weights(runs / "stopped"), run_weights(runs / "whole"))
    # Without the custom classes, the error names them.
    assert "; if it is custom, pass --" in error_of(["train", "--resume", "--out", "stopped"], capsys)


@pytest.mark.slow
def test_compare_trains_every_row_with_the_settings_of_its_encoding(runs, capsys):
    labels = ("predicted/rotary", "sequential/rotary")
    command = ["compare", "--task", "copy", "--rows", ",".join(labels), *QUICK, "--workers", "1"]
    out, err = output_of([*command, "--out", "new", "--json"], capsys)
    assert [row["num_layers"] for row in json.loads(out)["results"] if row["length"] == 4] == [1, 2]
    saved = json.loads(Path("new/comparison.json").read_text(encoding="utf-8"))["comparison"]["experiments"]
    lines: list[str] = []
    experiments = {label: lw.experiment("copy", *label.split("/"), quick=True) for label in labels}
    lw.compare(experiments, "python", workers=1, device="cpu", report=lines.append)
    for label, decoder in zip(labels, (lw.recipe("copy").decoder, COPY_ENCODINGS["rotary"].decoder), strict=True):
        assert experiments[label].decoder == decoder
        assert saved[label] == to_dict(experiments[label])
    # A line about the settings of the baseline comes before the results.
    for line in (lines[0], next(line for line in err.splitlines() if line.startswith("sequential"))):
        assert line.startswith("sequential/rotary: 2 layers")
    table = output_of([*command, "--out", "new"], capsys)[0]
    assert "1 layer " in table
    assert "2 layers" in table


def test_resuming_with_the_task_flags_keeps_the_other_saved_settings(runs, capsys):
    flags = ["train", "--task", "parity", "--scheme", "sequential", "--encoding", "nope"]
    output_of([*flags, *QUICK, "--steps", "3", "--resume", "--out", "new"], capsys)
    before = folder_contents(runs)
    output_of([*flags, "--quick", "--resume", "--out", "new"], capsys)
    assert folder_contents(runs) == before


def test_resuming_a_finished_run_changes_nothing(runs, capsys):
    before = folder_contents(runs)
    document = json.loads(output_of(["train", "--quick", "--resume", "--out", "run", "--json"], capsys)[0])
    assert document["steps"] == 20
    assert folder_contents(runs) == before


def test_a_run_that_does_not_fit_is_saved_and_ends_with_status_1(runs, capsys, monkeypatch):
    flags = ["train", "parity", "--steps", "2", "--batch-size", "2", "--train-lengths", "1:4", "--device", "cpu"]
    misfit = load_run(runs / "run", device="cpu").facts["misfit"]
    line = misfit_of([*flags, "--out", "new"], capsys).splitlines()[-1]
    facts = load_run("new", device="cpu").facts
    assert facts["fitted"] < 0.99
    assert facts["misfit"] in line
    document = json.loads(misfit_of(["train", "--resume", "--out", "new", "--json"], capsys))
    assert document["misfit"] == facts["misfit"]
    rows = json.loads(output_of(["evaluate", "new", "--lengths", "4", "--num-examples", "4", "--json"], capsys)[0])
    assert rows["results"][0]["misfit"] == facts["misfit"]
    # A quick run reports that it does not fit, and exits with 0; a run that fits has no misfit.
    quick, _ = output_of(["train", *QUICK, "--resume", "--out", "run"], capsys)
    assert misfit in quick
    monkeypatch.setattr(result_rows, "FIT_THRESHOLD", 0.0)
    document = json.loads(output_of([*flags, "--out", "fits", "--json"], capsys)[0])
    assert document["misfit"] is None


def test_resuming_an_unfinished_run_finishes_it(runs, capsys):
    output_of(["train", "--resume", "--out", "unfinished", *QUICK], capsys)
    assert equal_tensors(run_weights(runs / "unfinished"), run_weights(runs / "run"))


@pytest.mark.parametrize("damage", [lambda content: content[:-200], lambda content: b""], ids=["truncated", "emptied"])
def test_resuming_a_run_with_a_damaged_model_restores_it(damage, runs, capsys):
    model = runs / "run" / "model.safetensors"
    whole, saved_facts = run_weights(runs / "run"), training_facts(runs / "run")
    model.write_bytes(damage(model.read_bytes()))
    assert "--resume" in error_of(["evaluate", "run"], capsys)
    output_of(["train", "--resume", "--out", "run", *QUICK], capsys)
    assert equal_tensors(run_weights(runs / "run"), whole)
    assert training_facts(runs / "run") == saved_facts


def test_evaluate_prints_a_row_per_length_and_appends_it_to_the_results(runs, capsys):
    out, err = output_of(["evaluate", "run", "--lengths", "2,8", "--num-examples", "5,7", "--device", "cpu"], capsys)
    # One plain line for each length.
    assert [line.split()[1] for line in err.splitlines() if "exact match" in line] == ["2:", "8:"]
    rows = [json.loads(line) for line in (runs / "run" / "results.jsonl").read_text().splitlines()]
    assert [(row["length"], row["num_examples"], row["decode"]) for row in rows] == [(2, 5, "forced"), (8, 7, "forced")]
    assert all(f"{row['exact_match']:.3f}" in out for row in rows)
    assert out.splitlines()[0].strip() == "run, teacher forcing"


def test_evaluate_json_is_one_document_with_the_result_rows(runs, capsys):
    flags = ["--lengths", "2,3", "--num-examples", "4", "--decode", "free", "--seed", "9", "--device", "cpu", "--json"]
    out, _ = output_of(["evaluate", "run", *flags], capsys)
    document = json.loads(out)
    assert [row["length"] for row in document["results"]] == [2, 3]
    assert {row["decode"] for row in document["results"]} == {"free"}
    assert document["results"] == [
        json.loads(line) for line in (runs / "run" / "results.jsonl").read_text().splitlines()
    ]


def test_evaluate_measures_each_variant(runs, capsys):
    flags = ["--variants", "uniform,carry", "--num-examples", "4", "--device", "cpu", "--json"]
    document = json.loads(output_of(["evaluate", "addition", *flags], capsys)[0])
    cells = [(row["variant"], row["length"]) for row in document["results"]]
    assert cells == [("uniform", 4), ("uniform", 8), ("carry", 4), ("carry", 8)]


@pytest.mark.filterwarnings("always::lengthwise.core.errors.UntrainedDistanceWarning")
def test_untrained_distances_cause_a_one_line_warning_on_standard_error(runs, capsys):
    flags = ["--lengths", "4,8", "--num-examples", "2", "--device", "cpu", "--json"]
    out, err = output_of(["evaluate", "learned", *flags], capsys)
    json.loads(out)
    warnings = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert warnings == [
        "warning: length 8 uses ID distances up to 18, beyond the trained maximum of 10; "
        "train on longer sequences, or with gaps between IDs (max_gaps of skipwise, coupled or predicted)"
    ]
    assert issubclass(UntrainedDistanceWarning, UserWarning)


def test_generate_prints_each_token_with_its_id(runs, capsys):
    flags = ["generate", "run", "--prompt", "0110", "--device", "cpu"]
    document = json.loads(output_of([*flags, "--json"], capsys)[0])
    assert len(document["tokens"]) == len(document["position_ids"])
    assert set(document) == {"prompt", "tokens", "position_ids", "right", "expected"}
    assert document["expected"] == ["0", "1", "0", "0", "end"]
    lines = output_of(flags, capsys)[0].splitlines()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.count("│") == 3]
    pairs = zip(document["tokens"], map(str, document["position_ids"]), strict=True)
    # No token uses the ID of the end token.
    assert cells == [[token, "" if token == "end" else number] for token, number in pairs]
    assert lines[-1] == ("correct" if document["right"] else "incorrect; expected 0 1 0 0 end")


def test_generate_stops_at_max_new_tokens(runs, capsys):
    flags = ["--prompt", "011", "--max-new-tokens", "1", "--device", "cpu", "--json"]
    document = json.loads(output_of(["generate", "run", *flags], capsys)[0])
    assert len(document["tokens"]) == 1
    assert document["right"] is (None if document["tokens"] == ["0"] else False)
    last = output_of(["generate", "run", *flags[:-1]], capsys)[0].splitlines()[-1]
    assert last == f"{'incorrect' if document['right'] is False else 'correct so far'}; expected 0 1 0 end"


def test_compare_json_is_one_document_with_results_and_figure(runs, capsys):
    flags = ["--task", "parity", "--rows", "predicted/rotary, sequential/nope", "--workers", "1", "--lengths", "3"]
    out, _ = output_of(["compare", *flags, "--num-examples", "4", *QUICK, "--out", "new", "--json"], capsys)
    document = json.loads(out)
    assert [row["row"] for row in document["results"]] == ["predicted/rotary", "sequential/nope"]
    assert {row["length"] for row in document["results"]} == {3}
    assert Path(document["figure"]).is_file()


@pytest.mark.parametrize(
    "verb", ["list", "prepare", "train", "evaluate", "compare", "generate", "certify", "diagnose", "show"]
)
def test_every_command_has_help(verb, capsys):
    out, err = output_of([verb, "--help"], capsys)
    assert "Usage" in out
    assert err == ""


TRAIN = ["train", "--task", "parity"]
# Arguments, and a part of the error: the value, the limit and the advice.
INVALID: list[tuple[list[str], str]] = [
    (["train", "--task", "adition"], "unknown task 'adition'; did you mean 'addition'? known: addition, copy"),
    (
        [*TRAIN, "--scheme", "couple"],
        "unknown scheme 'couple'; did you mean 'coupled'? known: abacus, coupled, discovered, multilevel",
    ),
    (
        [*TRAIN, "--encoding", "rotar"],
        "unknown encoding 'rotar'; did you mean 'rotary'? known: alibi, ",
    ),
    (["train", "addition_couple"], "unknown recipe 'addition_couple'; did you mean 'addition_coupled'? known: "),
    (["train", "parity", "--head", "pointr"], "unknown head 'pointr'; did you mean 'pointer'? known: class"),
    (["train", "parity", "--device", "cud"], "unknown device 'cud'; did you mean 'cuda'? known: auto, cpu, cuda"),
    (["train", "parity", "--device", "cuda"], "torch cannot use device 'cuda' on this machine; use"),
    (["train", "--task", "words.csv"], "'words.csv' is not a task file; write one record per line, such as {"),
    (["evaluate", "run", "--task", "words.csv"], "'words.csv' is not a task file; write one record per line"),
    (
        ["train", "words.jsonl", "--scheme", "discovered"],
        "'words.jsonl' is a task file, not a recipe; use --task words",
    ),
    (["compare", "words.jsonl"], "'words.jsonl' is a task file, not a recipe; use --task words.jsonl"),
    (["train"], "no experiment to train; add the name of a recipe (parity"),
    (["train", "demo"], "compare demo"),
    (["train", "parity", "--task", "parity"], "recipe 'parity' sets task, scheme and encoding; leave out"),
    ([*TRAIN, "--train-lengths", "0:4"], "training length 0 is too small; lengths start at 1"),
    ([*TRAIN, "--train-lengths=-3:4"], "training length -3 is too small; lengths start at 1"),
    ([*TRAIN, "--train-lengths", "4:1"], "training lengths 4:1 are reversed; put the smaller one first"),
    ([*TRAIN, "--train-lengths", "abc"], "invalid range of lengths 'abc'; use shortest:longest"),
    ([*TRAIN, "--train-lengths", "3"], "invalid range of lengths '3'; use shortest:longest, such as 1:20"),
    ([*TRAIN, "--batch-size", "0"], "batch_size 0 is too small; use at least 1"),
    ([*TRAIN, "--lengths-per-batch", "0"], "lengths_per_batch 0 is too small; use at least 1"),
    ([*TRAIN, "--steps", "0"], "steps 0 is too small; use at least 1"),
    ([*TRAIN, "--steps", "-5"], "steps -5 is too small; use at least 1"),
    ([*TRAIN, "--num-position-ids", "0"], "num_position_ids 0 is too small; use at least 1"),
    (
        [*TRAIN, "--num-position-ids", "5"],
        "has ID 22 but the largest ID of the scheme is 4; set num_position_ids to at least 23",
    ),
    (
        [*TRAIN, "--scheme", "sequential", "--num-position-ids", "9"],
        "--num-position-ids 9: scheme sequential has no settings",
    ),
    (
        [*TRAIN, "--scheme", "sequential", "--encoding", "learned", "--train-lengths", "1:300"],
        "IDs up to 602 but encoding learned has only 512 IDs; set its num_position_ids to at least 603",
    ),
    (["train", "--task", "test_cli:Uncoupled"], "this task declares no coupling; use the scheme sequential"),
    (["train", "--task", "no_such_module:Task"], "task 'no_such_module:Task' cannot be imported (No module named"),
    (["train", "--task", "test_cli:NoTask"], "task 'test_cli:NoTask' cannot be imported (module 'test_cli' has no"),
    (["train", "--task", "os:path"], "task 'os:path'"),
    (["train", "--task", "json:dumps"], "task 'json:dumps'"),
    (["train", "--task", ":"], "task ':'"),
    (["train", "--task", "test_cli:NeedsArguments"], "test_cli:NeedsArguments"),
    (
        ["train", "--task", "copy", "--scheme", "test_cli:Borrowed"],
        "scheme 'test_cli:Borrowed' has the name 'sequential' of a built-in scheme; choose another name",
    ),
    (
        ["train", "--task", "copy", "--scheme", "test_cli:OwnNoPE"],
        "scheme 'test_cli:OwnNoPE' lacks needs, predicts_ids, random_at_evaluation, assign; "
        "add these members (see PositionScheme)",
    ),
    (
        ["train", "--task", "copy", "--encoding", "test_cli:AssignsNothing"],
        "encoding 'test_cli:AssignsNothing' lacks shift_invariant, reads_order, build; "
        "add these members (see EncodingSettings)",
    ),
    (
        ["train", "--task", "test_cli:OwnNoPE"],
        "task 'test_cli:OwnNoPE' lacks version, vocabulary, separators, given, min_length, sample, example_from_prompt",
    ),
    (
        ["train", "--task", "copy", "--scheme", "test_cli:AssignsNothing"],
        "scheme 'test_cli:AssignsNothing' lacks assign; add these members",
    ),
    (
        ["train", "--task", "copy", "--scheme", "test_cli:OnlyAssign"],
        "scheme 'test_cli:OnlyAssign' lacks needs, real_valued, predicts_ids, ",
    ),
    (
        ["train", "--task", "copy", "--scheme", "test_cli:NoDataclass"],
        "scheme 'test_cli:NoDataclass' is not a dataclass, so its settings cannot be saved; add @dataclass",
    ),
    (["evaluate", "run", "--scheme", "test_cli:OwnNoPE"], "scheme 'test_cli:OwnNoPE' lacks needs, "),
    (["compare", "--task", "copy", "--rows", "test_cli:OwnNoPE/rotary"], "scheme 'test_cli:OwnNoPE' lacks needs, "),
    (["train", "--resume", "--out", "nowhere"], "nowhere does not exist; pass a run folder"),
    (
        ["train", "--resume", "--out", "empty"],
        "empty is not a run folder (it has no experiment.json); pass a run folder",
    ),
    (
        ["train", "--resume", "--out", "run", "--steps", "9"],
        "run is a run of up to 20 steps, more than 9; use more than 20",
    ),
    (["train", "--resume", "--out", "run", "--encoding", "nope"], "run contains another run (different values: "),
    (
        ["train", "--resume", "--out", "run", "--task", "copy", "--scheme", "sequential"],
        "run contains another run (different values: ",
    ),
    (["train", "--resume", "--out", "nowhere", "--scheme", "coupled"], "nowhere does not exist; pass a run folder"),
    (["train", "--resume", "--out", "run", "--seed", "99"], "run contains another run (different values: "),
    (["train", "parity", *QUICK, "--out", "run"], "run already contains a run; add --resume to continue it, or choose"),
    (["train", "copy", *QUICK, "--resume", "--out", "run"], "run contains another run (different values: "),
    (
        ["train", "parity", *QUICK, "--out", "comparison"],
        "comparison already contains a comparison; choose another --out",
    ),
    (["train", "parity", *QUICK, "--out", "file"], "file is a file, but a run needs a folder; choose another --out"),
    (["train", "parity", *QUICK, "--out", "file/below"], "cannot write file/below/experiment.json (Not a directory);"),
    (["evaluate", "nowhere"], "nowhere is not a run folder (it has no experiment.json), and a model needs a task"),
    (["evaluate", "empty"], "empty is not a run folder (it has no experiment.json), and a model needs a task"),
    (["evaluate", "file"], "pass the output folder of lengthwise train, or add a task such as --task parity"),
    (
        ["evaluate", "empty", "--task", "parity"],
        "empty contains no model (no config.json); use a folder written by save",
    ),
    (["evaluate", "run", "--shots", "4"], "--shots 4 needs a model, not a run; leave out --shots"),
    (["evaluate", "run", "--out", "new"], "--out new needs a model, not a run; leave out --out"),
    (["evaluate", "unfinished"], "because training is unfinished; run train --resume --out unfinished"),
    (["evaluate", "run", "--lengths", "0"], "invalid length 0; use at least 1"),
    (["evaluate", "run", "--lengths", "-4"], "invalid length -4; use at least 1"),
    (
        ["evaluate", "run", "--lengths", "8:4"],
        "invalid --lengths '8:4'; use whole numbers separated by commas, such as 20,200",
    ),
    (
        ["evaluate", "run", "--lengths", "x"],
        "invalid --lengths 'x'; use whole numbers separated by commas, such as 20,200",
    ),
    (["evaluate", "run", "--num-examples", "0"], "invalid number of examples 0; use at least 1"),
    (["evaluate", "run", "--num-examples", "4.5"], "invalid --num-examples '4.5'; use whole numbers"),
    (["evaluate", "run", "--num-examples", "1,2,3"], "num_examples has 3 values for 2 lengths; give one value"),
    (["evaluate", "run", "--decode", "fre"], "unknown decode mode 'fre'; use forced or free"),
    (["evaluate", "run", "--device", "gpu"], "unknown device 'gpu'; did you mean 'cpu'? known: auto, cpu, cuda"),
    (["evaluate", "run", "--device", "cuda"], "torch cannot use device 'cuda' on this machine; use --device cpu"),
    (["evaluate", "run", "--task", "adition"], "unknown task 'adition'; did you mean 'addition'? known: addition"),
    (["evaluate", "run", "--task", "copy"], "the weights in run do not fit the new task"),
    (
        ["evaluate", "addition", "--variants", "cary"],
        "unknown variant of addition 'cary'; did you mean 'carry'? known: ",
    ),
    (["evaluate", "run", "--variants", "carry"], "'carry'"),
    (
        ["evaluate", "learned", "--lengths", "4,300", "--num-examples", "1"],
        "length 300 requires ID 602, but the encoding supports IDs up to 511; set its num_position_ids to at least 603",
    ),
    (["generate", "nowhere", "--prompt", "0"], "nowhere does not exist; pass a run folder"),
    (["generate", "unfinished", "--prompt", "0"], "because training is unfinished; run train --resume"),
    (["generate", "run", "--prompt", "0120"], "write bits such as 0110"),
    (["generate", "run", "--prompt", ""], "the prompt is empty; parity needs bits such as 0110"),
    (["generate", "addition", "--prompt", "57+"], "number 2 of the sum '57+' is missing; write a sum such as 57+68"),
    (["generate", "run", "--prompt", "0", "--max-new-tokens", "0"], "invalid max_new_tokens 0; use at least 1 token"),
    (["compare"], "no experiments to compare; add names of recipes (parity"),
    (["compare", "party"], "unknown recipe 'party'; did you mean 'parity'? known: addition"),
    (["compare", "demo", "parity"], "comparison 'demo'"),
    (
        ["compare", "which_copy", "--rows", "coupled/rotry"],
        "unknown row of which_copy 'coupled/rotry'; did you mean 'coupled",
    ),
    (["compare", "parity", "--rows", "predicted/rotary"], "recipes cannot be combined with --task and --rows; use"),
    (["compare", "parity", "--task", "parity"], "recipes cannot be combined with --task and --rows; use only"),
    (["compare", "--task", "parity"], "no experiments to compare; add names of recipes (parity"),
    (
        ["compare", "--task", "parity", "--rows", "predicted"],
        "invalid row 'predicted'; use a scheme and an encoding, such as",
    ),
    (
        ["compare", "--task", "parity", "--rows", "predictd/rotary"],
        "unknown scheme 'predictd'; did you mean 'predicted'?",
    ),
    (["compare", "--task", "parity", "--rows", "predicted/rotry"], "unknown encoding 'rotry'; did you mean 'rotary'?"),
    (
        ["compare", "--task", "test_cli:Uncoupled", "--rows", "coupled/rotary"],
        "this task declares no coupling; use the",
    ),
    (["compare", "parity", "--seeds", "0"], "invalid number of seeds 0; use at least 1"),
    (["compare", "parity", "--workers", "0"], "invalid number of workers 0; use at least 1"),
    (["compare", "parity", "--lengths", "0"], "invalid length 0; use at least 1"),
    (["compare", "parity", "--num-examples", "0"], "invalid number of examples 0; use at least 1"),
    (["compare", "parity", "--variants", "carry"], "'carry'"),
    (["compare", "parity", "--device", "cuda"], "torch cannot use device 'cuda' on this machine; use --device cpu"),
    (
        ["compare", "--task", "parity", "--rows", "sequential/learned", *QUICK, "--lengths", "4,300", "--workers", "1"],
        "length 300 requires ID 602, but the encoding supports IDs up to 511; set its num_position_ids to at least 603",
    ),
    (
        ["compare", "parity", *QUICK, "--out", "run"],
        "run already contains a run; choose another --out for the comparison",
    ),
    (["compare", "parity", *QUICK, "--out", "comparison"], "comparison contains another comparison (different values:"),
    (
        ["compare", "parity", *QUICK, "--out", "file"],
        "file is a file, but a comparison needs a folder; choose another --out",
    ),
    (
        ["compare", "parity", *QUICK, "--out", "file/below"],
        "cannot write file/below/comparison.json (Not a directory);",
    ),
    (
        ["list", "taks"],
        "'taks'; did you mean 'tasks'? known: claims, counterexamples, encodings, measures, recipes, schemes, tasks",
    ),
    # Errors of the argument parser.
    ([*TRAIN, "--steps", "x"], "'x'"),
    ([*TRAIN, "--seed", "1.5"], "'1.5'"),
    (["compare", "parity", "--seeds", "many"], "'many'"),
    ([*TRAIN, "--stpes", "3"], "--stpes"),
    ([*TRAIN, "--steps"], "--steps"),
    (["evaluate"], "RUN"),
    (["generate", "run"], "--prompt"),
    (["diagnose", "run"], "--length"),
    (["diagnose", "run", "--length", "many"], "'many'"),
    (["show", "parity"], "--length"),
    (["show", "parity", "--length", "5", "--out", "picture.png"], "'picture.png' is not an SVG file; use a name that"),
    (["show", "parity", "--length", "5", "--encoding", "nope"], "--encoding nope needs a run folder; leave out"),
    (["show", "parity", "--length", "900"], "has 1,803 tokens, and a picture has at most 128; use a shorter length"),
    (["show", "recal", "--length", "5"], "unknown task 'recal'; did you mean 'recall'?"),
    (["evaluate", "run", "unfinished"], "unfinished"),
    (["trian"], "'trian'; did you mean 'train'? known: certify, compare, couple, diagnose, doctor, evaluate"),
    (["--verbose"], "--verbose"),
]


@pytest.mark.parametrize(("arguments", "text"), INVALID, ids=[" ".join(arguments) for arguments, _ in INVALID])
def test_invalid_input_prints_one_line_and_changes_no_file(arguments, text, runs, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = folder_contents(runs)
    assert text in error_of(arguments, capsys)
    assert folder_contents(runs) == before


def header_end(content: bytes) -> int:
    """Return the offset of the tensors in a safetensors file."""
    return 8 + int.from_bytes(content[:8], "little")


def flipped(content: bytes, place: int) -> bytes:
    place %= len(content)
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda content: b"",
    "cut in the header": lambda content: content[:200],
    "cut in the data": lambda content: content[:-200],
    "longer": lambda content: content + b"\0",
    "first byte of the data": lambda content: flipped(content, header_end(content)),
    "last byte of the data": lambda content: flipped(content, -1),
    "size of the header": lambda content: flipped(content, 0),
    "start of the header": lambda content: flipped(content, 8),
    "a fact": lambda content: content.replace(b'\\"steps\\": 20', b'\\"steps\\": 21'),
    "a tensor's name": lambda content: content.replace(b'"blocks.0.widen.bias"', b'"blocks.0.widen.bios"'),
    "not safetensors": lambda content: b"\x80\x02}q\x00." * 50,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    "verb", [["evaluate", "run"], ["generate", "run", "--prompt", "01"]], ids=["evaluate", "generate"]
)
def test_a_damaged_model_is_named_in_the_error(verb, damage, runs, capsys):
    model = runs / "run" / "model.safetensors"
    content = DAMAGE[damage](model.read_bytes())
    assert content != model.read_bytes()
    model.write_bytes(content)
    before = folder_contents(runs)
    line = error_of(verb, capsys)
    assert line.startswith("run/model.safetensors ")
    assert "--resume" in line
    assert folder_contents(runs) == before


def test_a_changed_byte_in_the_header_of_a_model_raises_an_error(runs):
    model = runs / "run" / "model.safetensors"
    content = model.read_bytes()
    places = range(0, header_end(content), 13)
    for place in places:
        model.write_bytes(flipped(content, place))
        with pytest.raises(cli.LengthwiseError, match=r"run/model\.safetensors"):
            load_run(Path("run"), device="cpu")
    assert len(places) > 100


EXPERIMENT_DAMAGE: dict[str, tuple[Callable[[str], str], str]] = {
    "emptied": (lambda text: "", "run/experiment.json cannot be read"),
    "cut": (lambda text: text[:300], "run/experiment.json cannot be read"),
    "another tree": (lambda text: "[]", "run/experiment.json cannot be read"),
    "a part missing": (lambda text: text.replace('"scheme"', '"shceme"'), "the saved experiment cannot be read"),
    "an unknown setting": (lambda text: text.replace('"d_model"', '"dmodel"'), "the saved experiment cannot be read"),
    "a setting of another kind": (
        lambda text: text.replace('"steps": 20', '"steps": "x"'),
        "the saved experiment has an invalid setting: steps 'x' has the wrong type; use a whole number; or train",
    ),
    "an unknown task": (lambda text: text.replace('"parity"', '"party"'), "unknown saved task 'party'"),
    "a class to import": (
        lambda text: text.replace('"name": "parity"', '"name": "test_cli:Uncoupled"'),
        "unknown saved task 'test_cli:Uncoupled'",
    ),
    "another size": (lambda text: text.replace('"d_model": 64', '"d_model": 32'), "does not belong to"),
}


@pytest.mark.parametrize("damage", EXPERIMENT_DAMAGE)
def test_a_damaged_experiment_raises_an_error(damage, runs, capsys):
    change, text = EXPERIMENT_DAMAGE[damage]
    path = runs / "run" / "experiment.json"
    changed = change(path.read_text())
    assert changed != path.read_text()
    path.write_text(changed)
    before = folder_contents(runs)
    assert text in error_of(["evaluate", "run"], capsys)
    assert folder_contents(runs) == before


def test_a_custom_task_satisfies_the_protocol():
    assert isinstance(Uncoupled(), Task)


def test_the_package_runs_as_a_module():
    ran = subprocess.run([sys.executable, "-m", "lengthwise", "list", "tasks"], check=True, capture_output=True)
    assert b"parity" in ran.stdout


def test_the_training_progress_shows_means_and_the_latest_exact_match():
    output = io.StringIO()
    # Values of the last batch are not shown.
    batch = {"loss": 0.5, "token_accuracy": 0.25, "id_accuracy": 0.125}
    means = {"mean_loss": 1.5, "mean_token_accuracy": 0.75, "mean_id_accuracy": 0.625}
    with ProgressLine(Console(file=output, width=200), 9, fit_lengths="length 20") as progress:
        progress.show_training({"step": 8, **batch, **means, "exact_match": 0.375})
        progress.show_training({"step": 9, **batch, **means})
    assert "mean loss 1.5000  tokens 0.750  IDs 0.625  exact match 0.375 at length 20" in output.getvalue()
    # A decoder without a position head predicts no IDs.
    with ProgressLine(Console(file=output, width=200)) as progress:
        progress.show_training({"step": 1, **batch, **means, "mean_id_accuracy": None})
    assert "tokens 0.750  IDs -" in output.getvalue()


def test_a_finished_progress_bar_in_a_terminal_ends_with_a_line_break():
    output = io.StringIO()
    with ProgressLine(Console(file=output, force_terminal=True, width=100)) as progress:
        progress.show_count("targets", 5, 5)
    assert "\n" in output.getvalue()[output.getvalue().rindex("5/5") :]


def test_without_a_terminal_progress_is_a_plain_line_every_few_seconds(monkeypatch):
    times = iter([0.0, 0.0, 4.0, 11.0, 11.0, 12.0, 13.0, 13.0])
    monkeypatch.setattr(progress_line, "time", SimpleNamespace(monotonic=lambda: next(times)))
    output = io.StringIO()
    with ProgressLine(Console(file=output, width=20)) as progress:
        for num_done in range(1, 6):
            progress.show_count("reading [bold]a\tlong name", 1000 * num_done, 9000)
    # At 0, 4, 11, 12 and 13 seconds; the last state is always printed.
    assert output.getvalue().splitlines() == [f"reading [bold]a\\tlong name  {num},000/9,000" for num in (1, 3, 5)]


def test_no_cell_of_a_table_is_cut(capsys):
    cells = [f"column {index} " + 10 * "x" for index in range(20)]
    print_table("wide", cells, [cells])
    assert capsys.readouterr().out.count(cells[-1]) == 2

"""Runs: saving and loading, the fields of result rows, generation from a prompt, and interruption by Ctrl-C."""

import json
import shlex
import signal
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.support.cases import randomize
from tests.support.small_runs import (
    equal_tensors,
    folder_contents,
    run_weights,
    small_experiment,
    stop_after,
    training_facts,
)

import lengthwise as lw
from lengthwise.cli import app as cli
from lengthwise.core.checkpoint import load_tensors, save_tensors
from lengthwise.core.errors import LengthwiseError, PositionRangeError, RunFolderError, UnknownNameError
from lengthwise.core.progress_line import ProgressLine
from lengthwise.encodings import ENCODINGS, Learned, NoPE, Rotary
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments import run as run_module
from lengthwise.experiments import run_evaluation as prompt_module
from lengthwise.experiments.experiment import Experiment, from_dict, to_dict
from lengthwise.experiments.recipes import COMPARISONS, RECIPES, quick_version
from lengthwise.experiments.run import Run, load_run, train
from lengthwise.experiments.run_evaluation import evaluate, generate_from_prompt
from lengthwise.experiments.run_folder import read_rows
from lengthwise.model.generate import GeneratedTokens
from lengthwise.model.position_heads import POSITION_HEADS
from lengthwise.positions import SCHEMES, Coupled, Predicted, Sequential, Skipwise
from lengthwise.tasks import (
    PLACEMENTS,
    TASKS,
    Addition,
    IndexHints,
    JSONLTask,
    MultiAddition,
    Parity,
    Placement,
    PlantedCorrelations,
)
from lengthwise.tasks.planted.placement import LengthDependentPlacement, LocalPlacement, SubsetPlacement
from lengthwise.training.training_settings import TrainingSettings

SETTINGS = EvaluationSettings(lengths=(2, 4), num_examples=(16, 20))
RESULT = {
    "length",
    "num_examples",
    "decode",
    "exact_match",
    "exact_tokens",
    "low",
    "high",
    "first_error",
    "wall_s",
    "skipped",
}
ACCURACIES = {"token_accuracy", "id_accuracy", "answer_loss", "largest_distance", "omitted_weight"}
RUN = {"task", "scheme", "encoding", "given", "seed", "variant", "train_lengths", "id_range", "trained_distance"}
TRAINING = {"num_layers", "steps", "fitted", "misfit", "train_s", "time"}
FIELDS = RESULT | ACCURACIES | RUN | TRAINING


@pytest.fixture(autouse=True, scope="module")
def _quick_fit() -> Iterator[None]:
    """Use few examples to measure the fit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "NUM_FIT_EXAMPLES", 16)
        yield


def trained(folder: Path, **changes: Any) -> Run:
    run = train(small_experiment(**changes), folder, device="cpu")
    assert run is not None
    return run


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in ("wall_s", "train_s", "time")} for row in rows]


def test_a_loaded_run_has_the_weights_facts_and_results_of_the_trained_run(tmp_path):
    run = trained(tmp_path)
    loaded = load_run(tmp_path, device="cpu")
    assert equal_tensors(loaded.decoder.state_dict(), run.decoder.state_dict())
    assert loaded.experiment == run.experiment
    assert loaded.facts == run.facts
    assert untimed(evaluate(loaded, SETTINGS)) == untimed(evaluate(run, SETTINGS))


def test_the_repr_of_a_run_is_one_short_line(tmp_path):
    run = trained(tmp_path / "run")
    start = f"Run({str(tmp_path / 'run')!r}, parity/predicted/rotary, 12 steps"
    assert repr(run) == f"{start}, does not fit its training lengths)"
    assert repr(replace(run, facts=run.facts | {"misfit": None})) == f"{start})"


def test_evaluate_appends_rows_to_the_results_of_the_run(tmp_path):
    run = trained(tmp_path)
    rows = [*evaluate(run, SETTINGS), *evaluate(run, replace(SETTINGS, decode="free"))]
    assert [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()] == rows
    assert [(row["length"], row["decode"]) for row in rows] == [(2, "forced"), (4, "forced"), (2, "free"), (4, "free")]


@pytest.mark.parametrize(("scheme", "more"), [(Predicted(num_position_ids=48), {"head"}), (Sequential(), set())])
def test_rows_have_exactly_the_documented_fields(scheme, more, tmp_path):
    run = trained(tmp_path, scheme=scheme)
    for row in evaluate(run, SETTINGS):
        assert set(row) == FIELDS | more
        assert json.loads(json.dumps(row)) == row
        assert set(row["first_error"]) == {"median_index", "token", "id", "end"}
        assert (row["task"], row["encoding"], row["seed"], row["train_lengths"]) == ("parity", "rotary", 0, [1, 4])
        assert 0 <= row["low"] <= row["exact_match"] <= row["high"] <= 1
        assert row["steps"] == 12


def test_facts_have_the_id_range_and_largest_distance_of_training(tmp_path):
    run = trained(tmp_path, scheme=Sequential(), batch_size=2)
    # Parities of up to 4 bits are 11 tokens.
    assert (run.facts["id_range"], run.facts["trained_distance"]) == ([0, 10], 10)
    assert set(run.facts) == {"steps", "fitted", "misfit", "id_range", "trained_distance", "train_s"}


def test_a_resumed_run_has_the_facts_of_an_uninterrupted_run(tmp_path):
    experiment = small_experiment(scheme=Skipwise(num_position_ids=40))
    train(experiment, tmp_path / "whole", device="cpu")
    train(experiment, tmp_path / "stopped", device="cpu", stop=stop_after(6))
    train(experiment, tmp_path / "stopped", device="cpu", resume=True)
    assert training_facts(tmp_path / "stopped") == training_facts(tmp_path / "whole")


def test_evaluate_measures_and_names_a_variant(tmp_path):
    run = trained(tmp_path, task=Addition())
    plain, carry = evaluate(run, SETTINGS), evaluate(run, replace(SETTINGS, variants=("carry",)))
    assert [row["variant"] for row in plain + carry] == [None, None, "carry", "carry"]
    assert [row["token_accuracy"] for row in plain] != [row["token_accuracy"] for row in carry]
    with pytest.raises(UnknownNameError, match=r"unknown variant of addition 'cary'; did you mean 'carry'\? known: "):
        evaluate(run, replace(SETTINGS, variants=("cary",)))


def saved_and_restored(experiment: Experiment) -> Experiment:
    return from_dict(json.loads(json.dumps(to_dict(experiment))))


ALL_RECIPES = {
    **{name: make() for name, make in RECIPES.items()},
    **{f"{name}: {label}": row for name, make in COMPARISONS.items() for label, row in make().items()},
}


@pytest.mark.parametrize("name", ALL_RECIPES)
def test_every_recipe_equals_its_restored_copy(name):
    assert saved_and_restored(ALL_RECIPES[name]) == ALL_RECIPES[name]
    assert saved_and_restored(quick_version(ALL_RECIPES[name])) == quick_version(ALL_RECIPES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_RECIPES)
def test_every_recipe_runs_at_its_quick_size(name, tmp_path):
    experiment = quick_version(ALL_RECIPES[name])
    rows = evaluate(train(experiment, tmp_path / "run", device="cpu"), experiment.evaluation)
    assert {row["length"] for row in rows} <= set(experiment.evaluation.lengths)
    assert min(row["length"] for row in rows) == min(experiment.evaluation.lengths)


PARTS = {
    **{f"task {name}": {"task": task()} for name, task in TASKS.items()},
    **{
        f"task {name}, {variant}": {"task": task}
        for name in TASKS
        for variant, task in TASKS[name]().variants().items()
    },
    **{f"scheme {name}": {"scheme": scheme()} for name, scheme in SCHEMES.items()},
    **{f"encoding {name}": {"encoding": encoding()} for name, encoding in ENCODINGS.items()},
    **{f"head {name}": {"decoder": replace(Experiment().decoder, head=name)} for name in POSITION_HEADS},
    **{
        f"placement {name}": {"task": PlantedCorrelations(placement=placement())}
        for name, placement in PLACEMENTS.items()
        if placement() != PlantedCorrelations().placement
    },
    "laws within a placement": {
        "task": PlantedCorrelations(
            background=(0.25, 0.75),
            tuples=((0, 1, 1), (1, 0, 1)),
            probabilities=(0.5, 0.5),
            labels=((0.1, 0.9), (0.6, 0.4)),
            placement=LengthDependentPlacement(
                until=(5, 9),
                laws=tuple(LocalPlacement(shapes=((0, gap, gap + 1),), weights=(1.0,), widest=5) for gap in (1, 2, 3)),
            ),
        )
    },
    "task within a task": {"task": IndexHints(task=Addition(order="most", unequal=True), num_hints=40)},
    "settings": {
        "task": Addition(order="most", zero_padding=False),
        "scheme": Coupled(num_position_ids=99, max_gaps=1),
        "encoding": Rotary(base=7.0, fastest=2.0),
        "training": TrainingSettings(betas=(0.8, 0.9), fit_every=3, precision="bf16"),
        "train_lengths": (3, 5),
        "evaluation": EvaluationSettings(
            lengths=(2, 3), num_examples=(4, 5), seed=6, decode="free", variants=("carry",)
        ),
        "seed": 11,
    },
}


@pytest.mark.parametrize("name", PARTS)
def test_every_table_entry_equals_its_restored_copy(name):
    experiment = Experiment(**PARTS[name])
    assert saved_and_restored(experiment) == experiment


def test_an_unknown_nested_task_name_raises_an_error():
    saved = to_dict(Experiment(task=IndexHints(task=Addition())))
    saved["task"]["task"]["name"] = "adition"
    with pytest.raises(UnknownNameError, match=r"unknown saved task 'adition'"):
        from_dict(saved)


def test_an_unknown_nested_placement_or_law_name_raises_an_error():
    saved = to_dict(Experiment(task=PlantedCorrelations(placement=LengthDependentPlacement())))
    saved["task"]["placement"]["laws"][1]["name"] = "locl"
    with pytest.raises(UnknownNameError, match=r"unknown saved laws 'locl'; if it is custom, pass --task"):
        from_dict(saved)
    saved["task"]["placement"]["name"] = "by_lenth"
    with pytest.raises(UnknownNameError, match=r"unknown saved placement 'by_lenth'; if it is custom"):
        from_dict(saved)


@dataclass(frozen=True, kw_only=True)
class CustomPlacement(SubsetPlacement):
    """Placement that is not in the table."""

    name: ClassVar[str] = "custom"


@dataclass(frozen=True, kw_only=True)
class CustomPlanted(PlantedCorrelations):
    """Planted task with a custom placement."""

    placement: Placement = field(default_factory=CustomPlacement)


def test_a_task_override_can_build_a_custom_placement():
    experiment = Experiment(task=CustomPlanted(background=(0.25, 0.75, 0.0, 0.0)))
    assert from_dict(json.loads(json.dumps(to_dict(experiment))), overrides={"task": CustomPlanted}) == experiment


def test_different_experiments_have_different_saved_forms():
    trees = [json.dumps(to_dict(Experiment(**part))) for part in PARTS.values()]
    # Defaults and variants that equal their task occur several times.
    assert len(set(trees)) == len({Experiment(**part) for part in PARTS.values()})
    assert len(set(trees)) > 50


def test_experiment_json_has_the_experiment_and_its_provenance(tmp_path):
    trained(tmp_path)
    saved = json.loads((tmp_path / "experiment.json").read_text())
    assert from_dict(saved["experiment"]) == small_experiment()
    assert saved["provenance"]["versions"]["torch"] == metadata.version("torch")
    assert set(saved["provenance"]) == {"versions", "commit", "hardware"}
    assert saved["provenance"]["hardware"]["threads"] == torch.get_num_threads()


@pytest.mark.parametrize("name", ["weave", "rotary_dynamic_ntk"])
def test_a_scaled_rotary_override_changes_nothing_within_training_lengths(name, tmp_path):
    trained(tmp_path / "run", encoding=Rotary(base=100.0, fastest=3.0), scheme=Sequential())
    original, scaled = load_run(tmp_path / "run"), load_run(tmp_path / "run", overrides={"encoding": ENCODINGS[name]})
    assert scaled.experiment.encoding == ENCODINGS[name](base=100.0, fastest=3.0)
    randomize(original.decoder)
    scaled.decoder.load_state_dict(original.decoder.state_dict())
    tokens = torch.arange(30)[None] % 4
    with torch.no_grad():
        hidden = [run.decoder(tokens, torch.arange(30)[None])[0] for run in (original, scaled)]
    torch.testing.assert_close(hidden[1], hidden[0], atol=1e-5, rtol=1e-5)


def test_an_encoding_override_with_other_weights_raises_an_error(tmp_path):
    trained(tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"do not fit the new encoding; the weights of each replacement need"):
        load_run(tmp_path / "run", overrides={"encoding": ENCODINGS["t5"]})


@pytest.mark.parametrize("scheme", ["randomized", "random_floats"])
def test_a_scheme_with_random_ids_at_evaluation_causes_no_distance_warning(scheme, tmp_path):
    # Among many examples, some have a larger distance than any training example.
    run = trained(tmp_path / "run", scheme=SCHEMES[scheme](num_position_ids=4096), steps=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = evaluate(run, EvaluationSettings(lengths=(8,), num_examples=(64,)))
    assert rows[0]["largest_distance"] > run.facts["trained_distance"]


@pytest.mark.parametrize("encoding", ["yarn", "weave", "rotary_ntk", "partial_rotary"])
def test_every_rotary_encoding_keeps_the_angles_of_the_recipe(encoding):
    recipe_encoding = lw.experiment("copy", "predicted", "rotary").encoding
    encoding_settings = lw.experiment("copy", "predicted", encoding).encoding
    assert (
        (encoding_settings.base, encoding_settings.fastest)
        == (recipe_encoding.base, recipe_encoding.fastest)
        == (100.0, 3.0)
    )


def test_training_into_the_folder_of_another_run_raises_an_error(tmp_path):
    trained(tmp_path)
    before = folder_contents(tmp_path)
    with pytest.raises(RunFolderError, match=r"already contains a run; add --resume to continue it, or choose another"):
        train(small_experiment(), tmp_path, device="cpu")
    with pytest.raises(RunFolderError, match=r"contains another run \(different values: training.clip\); choose"):
        train(small_experiment(clip=2.0), tmp_path, device="cpu", resume=True)
    assert folder_contents(tmp_path) == before


@pytest.mark.parametrize(("file", "word"), [("comparison.json", "comparison"), ("influence.json", "study")])
def test_training_into_the_folder_of_a_comparison_or_study_raises_an_error(file, word, tmp_path):
    (tmp_path / file).write_text("{}")
    with pytest.raises(RunFolderError, match=rf"already contains a {word}; choose another --out for the run"):
        train(small_experiment(), tmp_path, device="cpu", resume=True)
    assert set(folder_contents(tmp_path)) == {file}


INVALID: dict[str, tuple[Experiment, type[LengthwiseError], str]] = {
    "encoding below the training range": (
        small_experiment(scheme=Sequential(), encoding=Learned(num_position_ids=10)),
        PositionRangeError,
        r"uses IDs up to 10 but encoding learned has only 10 IDs; set its num_position_ids to at least 11",
    ),
    "encoding below the scheme's range": (
        small_experiment(scheme=Coupled(num_position_ids=48), encoding=Learned(num_position_ids=47)),
        PositionRangeError,
        r"uses IDs up to 47 but encoding learned has only 47 IDs; set its num_position_ids to at least 48",
    ),
    "scheme below the longest training length": (
        small_experiment(scheme=Predicted(num_position_ids=5)),
        PositionRangeError,
        r"has ID 6 but the largest ID of the scheme is 4; set num_position_ids to at least 7",
    ),
    "task without coupling": (
        small_experiment(Parity(coupling="none")),
        LengthwiseError,
        r"declares no coupling; use the scheme sequential",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_experiment_raises_an_error_before_anything_is_written(name, tmp_path):
    experiment, error, text = INVALID[name]
    with pytest.raises(error, match=text):
        train(experiment, tmp_path / "run", device="cpu")
    assert folder_contents(tmp_path) == {}


def test_an_encoding_with_exactly_enough_ids_trains(tmp_path):
    trained(tmp_path, scheme=Sequential(), encoding=Learned(num_position_ids=11), steps=1)


@pytest.mark.parametrize("scheme", [Predicted(num_position_ids=48), Coupled(num_position_ids=48)], ids=str)
def test_a_completion_is_correct_if_and_only_if_tokens_and_ids_are_correct(scheme, tmp_path):
    run = trained(tmp_path, scheme=scheme, steps=80, batch_size=16, learning_rate=1e-2)
    results = []
    for number in range(8):
        prompt = f"{number:03b}"
        completion = generate_from_prompt(run, prompt)
        parities = [str(prompt[: place + 1].count("1") % 2) for place in range(3)]
        assert completion.expected == [*parities, "end"]
        assert len(completion.tokens) == len(completion.position_ids) <= 4
        same_ids = completion.position_ids[:3] == [2, 3, 4] or not isinstance(scheme, Predicted)
        assert completion.correct == (completion.tokens == completion.expected and same_ids)
        results.append(completion.correct)
        # With a limit of tokens, a correct beginning gives None.
        beginning = generate_from_prompt(run, prompt, 2)
        is_correct = beginning.tokens == completion.expected[:2] and (
            beginning.position_ids[:2] == [2, 3] or not isinstance(scheme, Predicted)
        )
        assert beginning.correct is (None if is_correct and len(beginning.tokens) == 2 else False)
    assert any(results)


@pytest.mark.parametrize(
    ("tokens", "position_ids", "correct"),
    [
        ([0, 1, 3], [2, 3, 5], True),
        # The ID of the end token is never used.
        ([0, 1, 3], [2, 3, 9], True),
        ([0, 1, 3], [2, 9, 5], False),
        ([1, 1, 3], [2, 3, 5], False),
        ([0, 1], [2, 3], False),
    ],
)
def test_correct_needs_every_token_and_every_id_before_the_end_token(
    tokens, position_ids, correct, tmp_path, monkeypatch
):
    def generate(*arguments: Any, **settings: Any) -> GeneratedTokens:
        output, ids = torch.tensor([tokens]), torch.tensor([[position_ids]])
        return GeneratedTokens(tokens=output, position_ids=ids, is_written=torch.ones_like(output, dtype=torch.bool))

    run = trained(tmp_path, steps=1)
    monkeypatch.setattr(prompt_module, "generate", generate)
    assert generate_from_prompt(run, "01").correct == correct


@pytest.mark.parametrize("wrong_level", [None, 0, 1])
def test_correct_on_two_levels_needs_every_id_of_both(wrong_level, tmp_path, monkeypatch):
    task = MultiAddition(operands=(2, 2))
    examples = task.example_from_prompt("4+8")
    assert examples.coupling is not None
    length = int(examples.prompt_length[0])
    tokens, ids = torch.tensor(examples.tokens[:, length:]), torch.tensor(examples.coupling[:, :, length:])
    if wrong_level is not None:
        ids[wrong_level, 0, 1] += 1

    def generate(*arguments: Any, **settings: Any) -> GeneratedTokens:
        return GeneratedTokens(tokens=tokens, position_ids=ids, is_written=torch.ones_like(tokens, dtype=torch.bool))

    run = trained(tmp_path, task=task, steps=1)
    monkeypatch.setattr(prompt_module, "generate", generate)
    completion = generate_from_prompt(run, "4+8")
    assert completion.correct == (wrong_level is None)
    assert completion.position_ids == ids[:, 0].tolist()
    assert len(completion.position_ids[1]) == len(completion.tokens)


def test_a_run_on_two_levels_can_be_loaded_evaluated_and_prompted(tmp_path):
    task = MultiAddition(operands=(2, 2))
    run = trained(tmp_path, task=task, steps=4)
    loaded = load_run(tmp_path, device="cpu")
    assert loaded.experiment.task == task
    assert equal_tensors(loaded.decoder.state_dict(), run.decoder.state_dict())
    forced, free = (untimed(evaluate(run, replace(SETTINGS, decode=decode))) for decode in ("forced", "free"))
    assert [row["exact_match"] for row in forced] == [row["exact_match"] for row in free]
    assert generate_from_prompt(loaded, "12+7") == generate_from_prompt(run, "12+7")


def test_a_token_limit_gives_the_beginning_of_the_completion(tmp_path):
    run = trained(tmp_path, steps=40, batch_size=16, learning_rate=1e-2)
    whole, start = generate_from_prompt(run, "0110"), generate_from_prompt(run, "0110", 2)
    assert (start.tokens, start.position_ids) == (whole.tokens[:2], whole.position_ids[:2])
    assert not start.correct


@pytest.fixture
def _ctrl_c_interrupts() -> Iterator[None]:
    """Enable Ctrl-C, which shells disable for background processes."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Press Ctrl-C at the report of a training step."""

    def report(self: ProgressLine, row: dict[str, Any]) -> None:
        if row["step"] == step:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ProgressLine, "show_training", report)


@pytest.mark.usefixtures("_ctrl_c_interrupts")
def test_ctrl_c_saves_the_run_and_prints_the_command_that_resumes_it(tmp_path, monkeypatch, capsys):
    flags = ["train", "parity", "--quick", "--device", "cpu", "--out"]
    cli.main([*flags, str(tmp_path / "whole")])
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    stopped = tmp_path / "stopped"
    capsys.readouterr()
    with monkeypatch.context() as patch:
        interrupt_at(patch, 15)
        with pytest.raises(SystemExit) as exit_info:
            cli.main([*flags, str(stopped)])
    assert exit_info.value.code == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    resume = f"lengthwise train --resume --out {stopped} --quick"
    assert printed.err.splitlines()[-1] == f"stopped and saved; continue with: {resume}"
    assert sorted(path.name for path in (stopped / "checkpoints").iterdir())[-1] == "step-00000015.safetensors"
    assert not (stopped / "model.safetensors").exists()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers

    cli.main([*shlex.split(printed.err.splitlines()[-1].split("lengthwise ")[1]), "--device", "cpu"])
    assert equal_tensors(run_weights(stopped), run_weights(tmp_path / "whole"))
    assert training_facts(stopped) == training_facts(tmp_path / "whole")
    assert (stopped / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


@pytest.mark.usefixtures("_ctrl_c_interrupts")
def test_a_second_ctrl_c_exits_immediately_with_status_1(tmp_path, monkeypatch, capsys):
    def report(self: ProgressLine, row: dict[str, Any]) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ProgressLine, "show_training", report)
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["train", "parity", "--quick", "--device", "cpu", "--out", str(tmp_path / "run")])
    assert exit_info.value.code == 1
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"


@pytest.mark.usefixtures("_ctrl_c_interrupts")
def test_ctrl_c_during_evaluation_exits_with_status_1(tmp_path, monkeypatch, capsys):
    trained(tmp_path)

    def report(self: ProgressLine, length: int, done: int, total: int) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ProgressLine, "show_example_count", report)
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["evaluate", str(tmp_path), "--device", "cpu"])
    assert exit_info.value.code == 1
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"
    assert not (tmp_path / "results.jsonl").exists()


def test_nope_trains_with_any_ids(tmp_path):
    run = trained(tmp_path, scheme=Skipwise(num_position_ids=4000), encoding=NoPE(), steps=2)
    assert run.facts["id_range"][1] > 100


def test_an_interrupted_evaluation_keeps_its_finished_rows(tmp_path):
    run = trained(tmp_path)

    def interrupt(length: int, done: int, total: int) -> None:
        if length == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(run, SETTINGS, report=interrupt)
    (row,) = read_rows(tmp_path / "results.jsonl")
    assert untimed([row]) == untimed(evaluate(run, replace(SETTINGS, lengths=(2,), num_examples=(16,))))
    assert not run.decoder.training


def test_rows_are_appended_after_an_incomplete_line_and_reading_names_that_line(tmp_path):
    run = trained(tmp_path)
    evaluate(run, SETTINGS)
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    rows = evaluate(run, SETTINGS)
    assert [json.loads(line) for line in path.read_text().splitlines()[2:]] == rows
    with pytest.raises(RunFolderError, match=r"results.jsonl line 2 is damaged .*; delete this line, or the whole"):
        read_rows(path)


def change_setting(folder: Path) -> None:
    path = folder / "experiment.json"
    path.write_text(path.read_text().replace('"temperature": 3.0', '"temperature": 5.0'))


def replace_model(folder: Path) -> None:
    assert train(replace(small_experiment(), seed=1), folder / "other", device="cpu") is not None
    (folder / "model.safetensors").write_bytes((folder / "other" / "model.safetensors").read_bytes())


def remove_digest(folder: Path) -> None:
    tensors, facts = load_tensors(folder / "model.safetensors")
    del facts["belongs_to"]
    save_tensors(folder / "model.safetensors", tensors, facts)


@pytest.mark.parametrize("change", [change_setting, replace_model, remove_digest])
def test_loading_weights_with_another_experiment_raises_an_error(change, tmp_path):
    trained(tmp_path)
    before = (tmp_path / "experiment.json").read_bytes(), (tmp_path / "model.safetensors").read_bytes()
    change(tmp_path)
    assert before != ((tmp_path / "experiment.json").read_bytes(), (tmp_path / "model.safetensors").read_bytes())
    with pytest.raises(RunFolderError, match=r"does not belong to .*experiment\.json, or one of them"):
        load_run(tmp_path)


def test_a_checkpoint_of_another_seed_raises_an_error(tmp_path):
    for seed in (0, 1):
        train(replace(small_experiment(), seed=seed), tmp_path / str(seed), device="cpu", stop=stop_after(3))
    (original,), (other,) = (list((tmp_path / str(seed)).rglob("step-*.safetensors")) for seed in (0, 1))
    original.write_bytes(other.read_bytes())
    with pytest.raises(RunFolderError, match="belongs to another experiment; train that one, or choose another --out"):
        train(small_experiment(), tmp_path / "0", device="cpu", resume=True)


def test_a_run_of_another_version_is_named_with_what_its_file_lacks(tmp_path):
    train(small_experiment(), tmp_path, device="cpu")
    tensors, facts = load_tensors(tmp_path / "model.safetensors")
    del facts["misfit"], facts["train_s"]
    save_tensors(tmp_path / "model.safetensors", tensors, facts)
    with pytest.raises(RunFolderError, match=r"version.*without misfit, train_s; ") as error:
        load_run(tmp_path)
    assert f"the run in {tmp_path} " in str(error.value)


def test_the_fit_of_a_file_uses_shorter_lengths_if_the_longest_has_few_records(tmp_path):
    file = tmp_path / "rows.jsonl"
    prompts = [f"{number:0{length}b}" for length in range(2, 6) for number in range(2**length if length < 5 else 1)]
    file.write_text("".join(json.dumps({"prompt": list(bits), "response": list(bits)}) + "\n" for bits in prompts))
    task = JSONLTask(file=str(file)).read()
    experiment = replace(small_experiment(task, Sequential()), train_lengths=(3, 5))
    # One record of length 5, 16 of length 4, 8 of length 3.
    assert run_module.fit_lengths(experiment) == (4, 5)
    fit = run_module.measure_training_fit(experiment, run_module.build_decoder(experiment))
    assert (fit.length, fit.num_examples) == (5, 17)
    assert run_module.fit_lengths(small_experiment()) == (4,)

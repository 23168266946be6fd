"""Runs: what is saved is what is loaded, rows have the contract's fields, and Ctrl-C loses nothing."""

import json
import os
import shlex
import signal
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.support.cases import randomize
from tests.support.small_runs import facts, same_tensors, small_experiment, stop_after, tree, weights

from lengthwise.cli import app as cli
from lengthwise.cli.terminal import ProgressLine
from lengthwise.core.checkpoint import load_tensors, save_tensors
from lengthwise.core.errors import LengthwiseError, PositionRangeError, RunFolderError, UnknownNameError
from lengthwise.encodings import ENCODINGS, Learned, NoPE, Rotary
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments import generate_from_prompt as answer_module
from lengthwise.experiments import run as run_module
from lengthwise.experiments.experiment import Experiment, from_dict, to_dict
from lengthwise.experiments.generate_from_prompt import generate_from_prompt
from lengthwise.experiments.recipes import COMPARISONS, RECIPES, experiment_for, quick
from lengthwise.experiments.run import Run, evaluate, load_run, train
from lengthwise.experiments.run_folder import read_rows
from lengthwise.model.generate import Generation
from lengthwise.model.position_heads import POSITION_HEADS
from lengthwise.positions import SCHEMES, Coupled, Predicted, Sequential, Skipwise
from lengthwise.tasks import PLACEMENTS, TASKS, Addition, IndexHints, MultiAddition, Parity, Placement, Planted
from lengthwise.tasks.planted.placement import ByLength, Local, Subsets
from lengthwise.training.trainer import TrainingSettings

SETTINGS = EvaluationSettings(lengths=(2, 4), num_examples=(16, 20))
CELL = {"length", "num_examples", "decode", "exact_match", "exact_tokens", "low", "high", "first_error", "wall_s"}
ACCURACIES = {"token_accuracy", "id_accuracy", "answer_loss", "largest_distance"}
RUN = {"task", "scheme", "encoding", "seed", "variant", "train_lengths", "id_range", "trained_distance"}
TRAINING = {"steps", "fitted", "train_s", "time"}
FIELDS = CELL | ACCURACIES | RUN | TRAINING


@pytest.fixture(autouse=True, scope="module")
def _quick_fit() -> Iterator[None]:
    """What decides whether a run fitted is no matter here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "FIT_EXAMPLES", 16)
        yield


def trained(folder: Path, **changes: Any) -> Run:
    run = train(small_experiment(**changes), folder, device="cpu")
    assert run is not None
    return run


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in ("wall_s", "train_s", "time")} for row in rows]


def test_a_loaded_run_has_the_weights_the_facts_and_the_rows_of_the_trained_one(tmp_path):
    run = trained(tmp_path)
    loaded = load_run(tmp_path, device="cpu")
    assert same_tensors(loaded.decoder.state_dict(), run.decoder.state_dict())
    assert loaded.experiment == run.experiment
    assert loaded.facts == run.facts
    assert untimed(evaluate(loaded, SETTINGS)) == untimed(evaluate(run, SETTINGS))


def test_rows_are_added_to_the_results_of_the_run(tmp_path):
    run = trained(tmp_path)
    rows = [*evaluate(run, SETTINGS), *evaluate(run, replace(SETTINGS, decode="free"))]
    assert [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()] == rows
    assert [(row["length"], row["decode"]) for row in rows] == [
        (2, "forced"),
        (4, "forced"),
        (2, "free"),
        (4, "free"),
    ]


@pytest.mark.parametrize(("scheme", "more"), [(Predicted(num_position_ids=48), {"head"}), (Sequential(), set())])
def test_rows_have_the_fields_of_the_contract_and_no_others(scheme, more, tmp_path):
    run = trained(tmp_path, scheme=scheme)
    for row in evaluate(run, SETTINGS):
        assert set(row) == FIELDS | more
        assert json.loads(json.dumps(row)) == row
        assert set(row["first_error"]) == {"median_index", "token", "id", "end"}
        assert (row["task"], row["encoding"], row["seed"], row["train_lengths"]) == ("parity", "rotary", 0, [1, 4])
        assert 0 <= row["low"] <= row["exact_match"] <= row["high"] <= 1
        assert row["steps"] == 12


def test_facts_tell_the_ids_and_the_distances_that_training_showed(tmp_path):
    run = trained(tmp_path, scheme=Sequential(), batch_size=2)
    # Parities of up to 4 bits are 11 tokens.
    assert (run.facts["id_range"], run.facts["trained_distance"]) == ([0, 10], 10)
    assert set(run.facts) == {"steps", "fitted", "id_range", "trained_distance", "train_s"}


def test_facts_survive_a_stop(tmp_path):
    experiment = small_experiment(scheme=Skipwise(num_position_ids=40))
    train(experiment, tmp_path / "whole", device="cpu")
    train(experiment, tmp_path / "stopped", device="cpu", stop=stop_after(6))
    train(experiment, tmp_path / "stopped", device="cpu", resume=True)
    assert facts(tmp_path / "stopped") == facts(tmp_path / "whole")


def test_a_variant_is_measured_and_named(tmp_path):
    run = trained(tmp_path, task=Addition())
    plain, carry = evaluate(run, SETTINGS), evaluate(run, replace(SETTINGS, variants=("carry",)))
    assert [row["variant"] for row in plain + carry] == [None, None, "carry", "carry"]
    assert [row["token_accuracy"] for row in plain] != [row["token_accuracy"] for row in carry]
    with pytest.raises(UnknownNameError, match=r"unknown variant of addition 'cary'; did you mean 'carry'\? known: "):
        evaluate(run, replace(SETTINGS, variants=("cary",)))


def saved(experiment: Experiment) -> Experiment:
    return from_dict(json.loads(json.dumps(to_dict(experiment))))


ALL_RECIPES = {
    **{name: make() for name, make in RECIPES.items()},
    **{f"{name}: {label}": row for name, make in COMPARISONS.items() for label, row in make().items()},
}


@pytest.mark.parametrize("name", ALL_RECIPES)
def test_every_recipe_is_the_same_after_it_is_saved(name):
    assert saved(ALL_RECIPES[name]) == ALL_RECIPES[name]
    assert saved(quick(ALL_RECIPES[name])) == quick(ALL_RECIPES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_RECIPES)
def test_every_recipe_runs_at_its_quick_size(name, tmp_path):
    experiment = quick(ALL_RECIPES[name])
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
        f"placement {name}": {"task": Planted(placement=placement())}
        for name, placement in PLACEMENTS.items()
        if placement() != Planted().placement
    },
    "laws within a placement": {
        "task": Planted(
            background=(0.25, 0.75),
            tuples=((0, 1, 1), (1, 0, 1)),
            probabilities=(0.5, 0.5),
            labels=((0.1, 0.9), (0.6, 0.4)),
            placement=ByLength(
                until=(5, 9),
                laws=tuple(Local(shapes=((0, gap, gap + 1),), weights=(1.0,), widest=5) for gap in (1, 2, 3)),
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
def test_every_entry_of_every_table_is_the_same_after_it_is_saved(name):
    experiment = Experiment(**PARTS[name])
    assert saved(experiment) == experiment


def test_a_task_within_a_task_is_looked_up_by_its_name_as_well():
    written = to_dict(Experiment(task=IndexHints(task=Addition())))
    written["task"]["task"]["name"] = "adition"
    with pytest.raises(UnknownNameError, match=r"unknown saved task 'adition'"):
        from_dict(written)


def test_a_placement_within_a_task_is_looked_up_by_its_name_and_so_are_the_laws_within_a_placement():
    written = to_dict(Experiment(task=Planted(placement=ByLength())))
    written["task"]["placement"]["laws"][1]["name"] = "locl"
    with pytest.raises(UnknownNameError, match=r"unknown saved laws 'locl'; if it is custom, pass --task"):
        from_dict(written)
    written["task"]["placement"]["name"] = "by_lenth"
    with pytest.raises(UnknownNameError, match=r"unknown saved placement 'by_lenth'; if it is custom"):
        from_dict(written)


@dataclass(frozen=True, kw_only=True)
class OwnPlacement(Subsets):
    """In no table."""

    name: ClassVar[str] = "own"


@dataclass(frozen=True, kw_only=True)
class OwnPlanted(Planted):
    """Builds its own placement."""

    placement: Placement = field(default_factory=OwnPlacement)


def test_a_brought_task_builds_a_placement_that_no_table_has():
    experiment = Experiment(task=OwnPlanted(background=(0.25, 0.75, 0.0, 0.0)))
    assert from_dict(json.loads(json.dumps(to_dict(experiment))), overrides={"task": OwnPlanted}) == experiment


def test_two_experiments_that_differ_are_saved_differently():
    trees = [json.dumps(to_dict(Experiment(**part))) for part in PARTS.values()]
    # A default, or a variant that a task is anyway, is there several times.
    assert len(set(trees)) == len({Experiment(**part) for part in PARTS.values()})
    assert len(set(trees)) > 50


def test_the_experiment_is_saved_with_versions_commit_and_hardware(tmp_path):
    trained(tmp_path)
    written = json.loads((tmp_path / "experiment.json").read_text())
    assert from_dict(written["experiment"]) == small_experiment()
    assert written["provenance"]["versions"]["torch"] == torch.__version__
    assert set(written["provenance"]) == {"versions", "commit", "hardware"}
    assert written["provenance"]["hardware"]["threads"] == torch.get_num_threads()


@pytest.mark.parametrize("name", ["weave", "rotary_dynamic_ntk"])
def test_a_scaling_within_what_was_trained_changes_nothing_of_a_run_that_it_is_brought_to(name, tmp_path):
    trained(tmp_path / "run", encoding=Rotary(base=100.0, fastest=3.0), scheme=Sequential())
    own, scaled = load_run(tmp_path / "run"), load_run(tmp_path / "run", overrides={"encoding": ENCODINGS[name]})
    assert scaled.experiment.encoding == ENCODINGS[name](base=100.0, fastest=3.0)
    randomize(own.decoder)
    scaled.decoder.load_state_dict(own.decoder.state_dict())
    tokens = torch.arange(30)[None] % 4
    with torch.no_grad():
        hidden = [run.decoder(tokens, torch.arange(30)[None])[0] for run in (own, scaled)]
    torch.testing.assert_close(hidden[1], hidden[0], atol=1e-5, rtol=1e-5)


def test_an_encoding_with_other_weights_cannot_take_the_place_of_the_runs(tmp_path):
    trained(tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"are not those of the encoding overrides to it; only what has the same"):
        load_run(tmp_path / "run", overrides={"encoding": ENCODINGS["t5"]})


@pytest.mark.parametrize("scheme", ["randomized", "random_floats"])
def test_a_scheme_that_draws_at_evaluation_is_not_warned_of_its_own_range(scheme, tmp_path):
    # Wide draws are rare on short sequences: some of many go beyond all that training drew.
    run = trained(tmp_path / "run", scheme=SCHEMES[scheme](num_position_ids=4096), steps=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = evaluate(run, EvaluationSettings(lengths=(8,), num_examples=(64,)))
    assert rows[0]["largest_distance"] > run.facts["trained_distance"]


@pytest.mark.parametrize("encoding", ["yarn", "weave", "rotary_ntk", "partial_rotary"])
def test_what_a_recipe_settled_about_its_angles_holds_for_every_rotary_encoding(encoding):
    settled = experiment_for("copy", "predicted", "rotary").encoding
    built = experiment_for("copy", "predicted", encoding).encoding
    assert (built.base, built.fastest) == (settled.base, settled.fastest) == (100.0, 3.0)


def test_a_folder_with_a_run_is_not_trained_over(tmp_path):
    trained(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(RunFolderError, match=r"already contains a run; add --resume to continue it, or choose another"):
        train(small_experiment(), tmp_path, device="cpu")
    with pytest.raises(RunFolderError, match=r"contains another run: different training.steps; choose"):
        train(small_experiment(steps=13), tmp_path, device="cpu", resume=True)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(("file", "word"), [("comparison.json", "comparison"), ("influence.json", "study")])
def test_a_folder_with_something_else_is_not_trained_over(file, word, tmp_path):
    (tmp_path / file).write_text("{}")
    with pytest.raises(RunFolderError, match=rf"already contains a {word}; choose another --out for the run"):
        train(small_experiment(), tmp_path, device="cpu", resume=True)
    assert set(tree(tmp_path)) == {file}


REFUSED: dict[str, tuple[Experiment, type[LengthwiseError], str]] = {
    "encoding below the training range": (
        small_experiment(scheme=Sequential(), encoding=Learned(num_position_ids=10)),
        PositionRangeError,
        r"uses IDs up to 10 but the encoding learned holds 10; set its num_position_ids to at least 11",
    ),
    "encoding below the scheme's range": (
        small_experiment(scheme=Coupled(num_position_ids=48), encoding=Learned(num_position_ids=47)),
        PositionRangeError,
        r"uses IDs up to 47 but the encoding learned holds 47; set its num_position_ids to at least 48",
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


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(name, tmp_path):
    experiment, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        train(experiment, tmp_path / "run", device="cpu")
    assert tree(tmp_path) == {}


def test_an_encoding_that_holds_just_enough_ids_is_trained(tmp_path):
    trained(tmp_path, scheme=Sequential(), encoding=Learned(num_position_ids=11), steps=1)


@pytest.mark.parametrize("scheme", [Predicted(num_position_ids=48), Coupled(num_position_ids=48)], ids=str)
def test_an_answer_is_right_if_and_only_if_its_tokens_and_ids_are(scheme, tmp_path):
    run = trained(tmp_path, scheme=scheme, steps=80, batch_size=16, learning_rate=1e-2)
    right = []
    for number in range(8):
        prompt = f"{number:03b}"
        answer = generate_from_prompt(run, prompt)
        parities = [str(prompt[: place + 1].count("1") % 2) for place in range(3)]
        assert answer.expected == [*parities, "end"]
        assert len(answer.tokens) == len(answer.position_ids) <= 4
        same_ids = answer.position_ids[:3] == [2, 3, 4] or not isinstance(scheme, Predicted)
        assert answer.correct == (answer.tokens == answer.expected and same_ids)
        right.append(answer.correct)
        # Cut off, a right answer is neither right nor wrong, and a wrong one is as wrong as it was.
        cut = generate_from_prompt(run, prompt, 2)
        so_far = cut.tokens == answer.expected[:2] and (
            cut.position_ids[:2] == [2, 3] or not isinstance(scheme, Predicted)
        )
        assert cut.correct is (None if so_far and len(cut.tokens) == 2 else False)
    assert any(right)


@pytest.mark.parametrize(
    ("symbols", "position_ids", "right"),
    [
        ([0, 1, 3], [2, 3, 5], True),
        # The end token's ID is never asked for.
        ([0, 1, 3], [2, 3, 9], True),
        ([0, 1, 3], [2, 9, 5], False),
        ([1, 1, 3], [2, 3, 5], False),
        ([0, 1], [2, 3], False),
    ],
)
def test_a_right_answer_has_every_token_and_every_id_before_the_end(
    symbols, position_ids, right, tmp_path, monkeypatch
):
    def generate(*given: Any, **how: Any) -> Generation:
        tokens, ids = torch.tensor([symbols]), torch.tensor([[position_ids]])
        return Generation(tokens=tokens, position_ids=ids, is_written=torch.ones_like(tokens, dtype=torch.bool))

    run = trained(tmp_path, steps=1)
    monkeypatch.setattr(answer_module, "generate", generate)
    assert generate_from_prompt(run, "01").correct == right


@pytest.mark.parametrize("wrong_level", [None, 0, 1])
def test_a_right_answer_on_two_levels_has_every_id_of_both(wrong_level, tmp_path, monkeypatch):
    task = MultiAddition(operands=(2, 2))
    examples = task.from_prompt("4+8")
    assert examples.coupling is not None
    length = int(examples.prompt_length[0])
    tokens, ids = torch.tensor(examples.tokens[:, length:]), torch.tensor(examples.coupling[:, :, length:])
    if wrong_level is not None:
        ids[wrong_level, 0, 1] += 1

    def generate(*given: Any, **how: Any) -> Generation:
        return Generation(tokens=tokens, position_ids=ids, is_written=torch.ones_like(tokens, dtype=torch.bool))

    run = trained(tmp_path, task=task, steps=1)
    monkeypatch.setattr(answer_module, "generate", generate)
    answer = generate_from_prompt(run, "4+8")
    assert answer.correct == (wrong_level is None)
    assert answer.position_ids == ids[:, 0].tolist()
    assert len(answer.position_ids[1]) == len(answer.tokens)


def test_a_run_on_two_levels_is_loaded_evaluated_and_asked(tmp_path):
    task = MultiAddition(operands=(2, 2))
    run = trained(tmp_path, task=task, steps=4)
    loaded = load_run(tmp_path, device="cpu")
    assert loaded.experiment.task == task
    assert same_tensors(loaded.decoder.state_dict(), run.decoder.state_dict())
    forced, free = (untimed(evaluate(run, replace(SETTINGS, decode=decode))) for decode in ("forced", "free"))
    assert [row["exact_match"] for row in forced] == [row["exact_match"] for row in free]
    assert generate_from_prompt(loaded, "12+7") == generate_from_prompt(run, "12+7")


def test_a_shorter_answer_is_the_beginning_of_the_whole_one(tmp_path):
    run = trained(tmp_path, steps=40, batch_size=16, learning_rate=1e-2)
    whole, start = generate_from_prompt(run, "0110"), generate_from_prompt(run, "0110", 2)
    assert (start.tokens, start.position_ids) == (whole.tokens[:2], whole.position_ids[:2])
    assert not start.correct


@pytest.fixture
def _ctrl_c_interrupts() -> Iterator[None]:
    """A shell starts what runs in the background with Ctrl-C switched off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Press Ctrl-C when a training step is reported."""

    def report(self: ProgressLine, row: dict[str, Any]) -> None:
        if row["step"] == step:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ProgressLine, "trained", report)


@pytest.mark.usefixtures("_ctrl_c_interrupts")
def test_ctrl_c_saves_says_how_to_go_on_and_loses_nothing(tmp_path, monkeypatch, capsys):
    flags = ["train", "parity", "--quick", "--device", "cpu", "--out"]
    cli.main([*flags, str(tmp_path / "whole")])
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    stopped = tmp_path / "stopped"
    capsys.readouterr()
    with monkeypatch.context() as patch:
        interrupt_at(patch, 15)
        with pytest.raises(SystemExit) as left:
            cli.main([*flags, str(stopped)])
    assert left.value.code == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[-1] == (f"stopped and saved; go on with: lengthwise train --resume --out {stopped}")
    assert sorted(path.name for path in (stopped / "checkpoints").iterdir())[-1] == "step-00000015.safetensors"
    assert not (stopped / "model.safetensors").exists()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers

    cli.main([*shlex.split(printed.err.splitlines()[-1].split("lengthwise ")[1]), "--device", "cpu"])
    assert same_tensors(weights(stopped), weights(tmp_path / "whole"))
    assert facts(stopped) == facts(tmp_path / "whole")
    assert (stopped / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


@pytest.mark.usefixtures("_ctrl_c_interrupts")
def test_a_second_ctrl_c_leaves_at_once_with_status_1(tmp_path, monkeypatch, capsys):
    def report(self: ProgressLine, row: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ProgressLine, "trained", report)
    with pytest.raises(SystemExit) as left:
        cli.main(["train", "parity", "--quick", "--device", "cpu", "--out", str(tmp_path / "run")])
    assert left.value.code == 1
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"


@pytest.mark.usefixtures("_ctrl_c_interrupts")
def test_ctrl_c_while_evaluating_leaves_with_status_1(tmp_path, monkeypatch, capsys):
    trained(tmp_path)

    def report(self: ProgressLine, length: int, done: int, total: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ProgressLine, "evaluated", report)
    with pytest.raises(SystemExit) as left:
        cli.main(["evaluate", str(tmp_path), "--device", "cpu"])
    assert left.value.code == 1
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"
    assert not (tmp_path / "results.jsonl").exists()


def test_nope_needs_no_range_and_trains_on_any_ids(tmp_path):
    run = trained(tmp_path, scheme=Skipwise(num_position_ids=4000), encoding=NoPE(), steps=2)
    assert run.facts["id_range"][1] > 100


def test_an_evaluation_that_ends_early_keeps_what_it_has_measured(tmp_path):
    run = trained(tmp_path)

    def interrupt(length: int, done: int, total: int) -> None:
        if length == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(run, SETTINGS, report=interrupt)
    (row,) = read_rows(tmp_path / "results.jsonl")
    assert untimed([row]) == untimed(evaluate(run, replace(SETTINGS, lengths=(2,), num_examples=(16,))))
    assert not run.decoder.training


def test_rows_are_added_behind_a_line_that_was_cut_and_the_reader_names_it(tmp_path):
    run = trained(tmp_path)
    evaluate(run, SETTINGS)
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    rows = evaluate(run, SETTINGS)
    assert [json.loads(line) for line in path.read_text().splitlines()[2:]] == rows
    with pytest.raises(RunFolderError, match=r"results.jsonl line 2 is damaged .*; delete that line, or the file"):
        read_rows(path)


def edited(folder: Path) -> None:
    path = folder / "experiment.json"
    path.write_text(path.read_text().replace('"temperature": 3.0', '"temperature": 5.0'))


def of_another_seed(folder: Path) -> None:
    assert train(replace(small_experiment(), seed=1), folder / "other", device="cpu") is not None
    (folder / "model.safetensors").write_bytes((folder / "other" / "model.safetensors").read_bytes())


def unbound(folder: Path) -> None:
    tensors, facts = load_tensors(folder / "model.safetensors")
    del facts["belongs_to"]
    save_tensors(folder / "model.safetensors", tensors, facts)


@pytest.mark.parametrize("change", [edited, of_another_seed, unbound])
def test_weights_are_used_with_the_experiment_that_they_were_trained_in_alone(change, tmp_path):
    trained(tmp_path)
    before = (tmp_path / "experiment.json").read_bytes(), (tmp_path / "model.safetensors").read_bytes()
    change(tmp_path)
    assert before != ((tmp_path / "experiment.json").read_bytes(), (tmp_path / "model.safetensors").read_bytes())
    with pytest.raises(RunFolderError, match=r"does not belong to .*experiment\.json, or one of them"):
        load_run(tmp_path)


def test_a_checkpoint_of_another_seed_is_refused(tmp_path):
    for seed in (0, 1):
        train(replace(small_experiment(), seed=seed), tmp_path / str(seed), device="cpu", stop=stop_after(3))
    (own,), (other,) = (list((tmp_path / str(seed)).rglob("step-*.safetensors")) for seed in (0, 1))
    own.write_bytes(other.read_bytes())
    with pytest.raises(RunFolderError, match="belongs to another experiment; train that one, or choose another --out"):
        train(small_experiment(), tmp_path / "0", device="cpu", resume=True)

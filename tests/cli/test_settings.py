"""Settings by name: ``--set``, ``--config``, their order, the lines in errors, and the flags --resume and --from."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_cli import QUICK, error_of, misfit_of, output_of
from tests.support.small_runs import folder_contents

from lengthwise.cli.config_file import parse_assignment, read_config, read_setting_changes
from lengthwise.encodings import ENCODINGS
from lengthwise.experiments.experiment import Experiment, SettingChange, change_settings, to_dict
from lengthwise.experiments.recipes import RECIPES
from lengthwise.experiments.run import load_run
from lengthwise.experiments.run_folder import read_experiment
from lengthwise.positions import SCHEMES
from lengthwise.tasks import TASKS, IndexHints, Parity, PlantedCorrelations, Text
from lengthwise.tasks.planted.placement import LengthDependentPlacement, LocalPlacement


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an empty folder the working folder, with one thread."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.cpu_count", lambda: 1)


def changed(*assignments: str, experiment: Experiment | None = None) -> Experiment:
    changes = [parse_assignment(assignment) for assignment in assignments]
    return change_settings(Experiment() if experiment is None else experiment, changes)


PARTS = {
    **{f"recipe {name}": recipe() for name, recipe in RECIPES.items()},
    **{f"task {name}": Experiment(task=task()) for name, task in TASKS.items()},
    **{f"scheme {name}": Experiment(scheme=scheme()) for name, scheme in SCHEMES.items()},
    **{f"encoding {name}": Experiment(encoding=encoding()) for name, encoding in ENCODINGS.items()},
    "laws": Experiment(task=PlantedCorrelations(placement=LengthDependentPlacement())),
    "hints": Experiment(task=IndexHints(task=Parity(coupling="same"), num_hints=99)),
}


@pytest.mark.parametrize("name", PARTS)
def test_setting_every_saved_value_again_changes_nothing(name):
    experiment = PARTS[name]
    tree = json.loads(json.dumps(to_dict(experiment)))
    changes = [SettingChange(path=key, value=value, source=key) for key, value in tree.items()]
    assert change_settings(experiment, changes) == experiment
    Path("config.json").write_text(json.dumps(tree), encoding="utf-8")
    assert change_settings(experiment, read_config(Path("config.json"))) == experiment


@pytest.mark.parametrize(
    ("assignment", "read", "value"),
    [
        ("training.learning_rate=1e-3", lambda each: each.training.learning_rate, 1e-3),
        ("training.learning_rate = 1", lambda each: each.training.learning_rate, 1.0),
        ("training.betas=[0.5, 0.75]", lambda each: each.training.betas, (0.5, 0.75)),
        ("training.betas=[0, 0]", lambda each: each.training.betas, (0.0, 0.0)),
        ("training.stage_threshold=1", lambda each: each.training.stage_threshold, 1.0),
        ("train_lengths=(2, 9)", lambda each: each.train_lengths, (2, 9)),
        ("training.fit_every=5", lambda each: each.training.fit_every, 5),
        ("training.fit_every=null", lambda each: each.training.fit_every, None),
        ("training.fit_every=None", lambda each: each.training.fit_every, None),
        ("decoder.segments=false", lambda each: each.decoder.segments, False),
        ("decoder.segments=False", lambda each: each.decoder.segments, False),
        ("training.precision=bf16", lambda each: each.training.precision, "bf16"),
        ('training.precision="bf16"', lambda each: each.training.precision, "bf16"),
        ("task.coupling=same", lambda each: each.task.coupling, "same"),
        ("encoding.base=50", lambda each: each.encoding.base, 50.0),
        ("scheme.num_position_ids=77", lambda each: each.scheme.num_position_ids, 77),
        (
            'decoder={"d_model": 12, "num_heads": 3}',
            lambda each: (each.decoder.d_model, each.decoder.num_heads),
            (12, 3),
        ),
        ("seed=4", lambda each: each.seed, 4),
    ],
)
def test_an_assignment_sets_one_setting(assignment, read, value):
    experiment = changed(assignment)
    assert read(experiment) == value
    assert repr(read(experiment)) == repr(value)
    # All other settings are unchanged.
    tree, before = to_dict(experiment), to_dict(Experiment())
    assert sum(tree[name] != before[name] for name in tree) <= 1


def test_settings_that_are_valid_only_together_are_set_together():
    decoder = changed("decoder.d_model=15", "decoder.num_heads=3").decoder
    assert (decoder.d_model, decoder.num_heads) == (15, 3)


def test_nested_parts_keep_their_class():
    task = changed("task.task.coupling=same", experiment=Experiment(task=IndexHints(task=Parity()))).task
    assert task == IndexHints(task=Parity(coupling="same"))
    laws = json.dumps([{"name": "local", "shapes": [[0, gap]], "weights": [1.0]} for gap in (2, 1)])
    task = changed(f"task.placement.laws={laws}", "task.placement.until=[5]", experiment=PARTS["laws"]).task
    expected = tuple(LocalPlacement(shapes=((0, gap),), weights=(1.0,)) for gap in (2, 1))
    assert task.placement == LengthDependentPlacement(until=(5,), laws=expected)


def test_a_change_keeps_fields_that_are_not_saved():
    task = changed("task.split=held_out", experiment=Experiment(task=Text(run_folder="somewhere"))).task
    assert (task.split, task.run_folder) == ("held_out", "somewhere")


def test_the_last_assignment_wins_and_assignments_win_over_the_file():
    Path("config.toml").write_text("seed = 1\n[training]\nsteps = 2\nclip = 3.0\n", encoding="utf-8")
    changes = read_setting_changes(
        {"config": Path("config.toml"), "assignments": ["training.steps=4", "training.steps=5"], "steps": None}
    )
    experiment = change_settings(Experiment(), changes)
    assert (experiment.seed, experiment.training.steps, experiment.training.clip) == (1, 5, 3.0)


TOML = """\
# A comment with [brackets] and a = b.
train_lengths = [1, 9]
decoder.d_model = 32

[training]
steps = 7
"batch_size" = 5
betas = [
  0.5,
  0.75,
]

[ task ]
coupling = "same"

[evaluation]
lengths = [4]
"""
JSON = """\
{
  "train_lengths": [1, 9],
  "training": {"steps": 7, "batch_size": 5,
    "betas": [0.5, 0.75]},
  "decoder": {
    "d_model": 32
  }, "task": {"coupling": "same"},
  "evaluation": {

    "lengths": [4]}
}
"""
LINES = {
    "train_lengths": (2, 2),
    "decoder.d_model": (3, 6),
    "training.steps": (6, 3),
    "training.batch_size": (7, 3),
    "training.betas": (8, 4),
    "task.coupling": (14, 7),
    "evaluation.lengths": (17, 10),
}


@pytest.mark.parametrize(("name", "content", "column"), [("a.toml", TOML, 0), ("b.json", JSON, 1)])
def test_a_file_sets_settings_and_its_lines_are_known(name, content, column):
    Path(name).write_text(content, encoding="utf-8")
    changes = read_config(Path(name))
    assert {change.path: change.source for change in changes} == {
        path: f"{name} line {lines[column]}" for path, lines in LINES.items()
    }
    experiment = change_settings(Experiment(), changes)
    assert (experiment.train_lengths, experiment.decoder.d_model, experiment.training.betas) == (
        (1, 9),
        32,
        (0.5, 0.75),
    )
    assert (experiment.training.steps, experiment.training.batch_size) == (7, 5)
    assert (experiment.task, experiment.evaluation.lengths) == (Parity(coupling="same"), (4,))


def test_an_inline_table_and_an_unknown_empty_table_are_named_by_their_line():
    Path("a.toml").write_text("seed = 1\ntraining = { steps = 7, clipp = 1 }\n", encoding="utf-8")
    assert "a.toml line 2: unknown setting of training 'clipp'" in config_error("a.toml")
    Path("a.toml").write_text("seed = 1\n\n[trainin]\n", encoding="utf-8")
    assert "a.toml line 3: unknown setting of experiment 'trainin'" in config_error("a.toml")


def config_error(name: str) -> str:
    with pytest.raises(Exception, match=r".") as caught:
        change_settings(Experiment(), read_config(Path(name)))
    return str(caught.value)


@pytest.mark.parametrize("value", ["1979-05-27", "nan", "inf", "[[1]]", "99999999999999999999", "{a = 1}"])
def test_a_toml_value_of_another_type_raises_an_error_with_its_line(value):
    Path("a.toml").write_text(f"[training]\nsteps = {value}\n", encoding="utf-8")
    assert "a.toml line 2: steps" in config_error("a.toml")


@pytest.mark.parametrize("text", ["[" * 5000, "a = " + "[" * 5000, "\\xff", "a = 1\na = 2"])
@pytest.mark.parametrize("name", ["a.toml", "a.json"])
def test_a_damaged_file_raises_a_one_line_error(name, text):
    Path(name).write_bytes(text.encode().replace(b"\\xff", b"\xff"))
    assert f"--config {name} is not valid" in config_error(name)


def test_train_uses_the_file_then_set_then_the_flags(capsys):
    Path("config.toml").write_text(
        "[task]\nname = 'copy'\n[scheme]\nname = 'sequential'\n[training]\nsteps = 9\nclip = 3.0\nbatch_size = 3\n",
        encoding="utf-8",
    )
    flags = ["--config", "config.toml", "--set", "training.clip=4", "--steps", "2", "--set", "decoder.d_model=16"]
    output_of(["train", *flags, *QUICK, "--out", "run"], capsys)
    experiment = load_run("run", device="cpu").experiment
    assert (experiment.task.name, experiment.scheme.name) == ("copy", "sequential")
    training = experiment.training
    assert (training.steps, training.clip, training.batch_size, experiment.decoder.d_model) == (2, 4, 3, 16)
    # The flags choose another scheme, and the same command resumes.
    assert "the scheme is 'random_start', not 'sequential'" in error_of(
        ["train", *flags, "--scheme", "random_start", *QUICK, "--out", "new"], capsys
    )
    before = folder_contents(Path())
    output_of(["train", *flags, *QUICK, "--resume", "--out", "run"], capsys)
    assert folder_contents(Path()) == before
    assert not Path("new").exists()


def test_compare_sets_settings_of_every_row(capsys):
    Path("config.json").write_text(
        '{"seed": 5, "training": {"steps": 9}, "evaluation": {"lengths": [3]}}', encoding="utf-8"
    )
    rows = ["--task", "parity", "--rows", "predicted/rotary,sequential/nope", "--workers", "1"]
    flags = ["--config", "config.json", "--set", "training.steps=2", "--set", "evaluation.num_examples=[4]"]
    document = json.loads(output_of(["compare", *rows, *flags, *QUICK, "--out", "new", "--json"], capsys)[0])
    assert [(row["steps"], row["seed"], row["length"], row["num_examples"]) for row in document["results"]] == [
        (2, 5, 3, 4)
    ] * 2
    message = error_of(["compare", *rows, "--set", "encoding.base=50", *QUICK, "--out", "other"], capsys)
    assert message.startswith("--set encoding.base=50: encoding nope has no settings")
    assert "--set seed=3 and --seed 4 set the same setting" in error_of(
        ["compare", *rows, "--set", "seed=3", "--seed", "4", *QUICK], capsys
    )


def test_train_extends_a_run_and_starts_a_run_from_its_weights(capsys):
    output_of(["train", "parity", *QUICK, "--out", "run"], capsys)
    out, _ = output_of(["train", "--resume", "--steps", "25", "--out", "run", *QUICK], capsys)
    assert out.startswith("25 steps in ")
    assert load_run("run/earlier/20-steps", device="cpu").facts["steps"] == 20
    flags = ["--from", "run", "--train-lengths", "1:6", "--steps", "3", "--device", "cpu"]
    misfit_of(["train", *flags, "--out", "longer"], capsys)
    run = load_run("longer", device="cpu")
    expected: Any = read_experiment(Path("run"))
    expected = replace(expected, train_lengths=(1, 6), training=replace(expected.training, steps=3))
    assert run.experiment == expected
    before = folder_contents(Path())
    output_of(["train", "--quick", "--resume", "--out", "longer"], capsys)
    for arguments, message in (
        (
            ["--from", "run", "--set", "decoder.d_model=32", "--out", "new"],
            "run has decoder.d_model 64, but the new run",
        ),
        (["--from", "run", "--task", "copy", "--out", "new"], "run has vocabulary ("),
        (["--from", "nowhere", "--out", "new"], "nowhere does not exist; pass a run folder"),
        (["parity", "--from", "nowhere", "--out", "new"], "nowhere does not exist; pass a run folder"),
        (
            ["--resume", "--steps", "24", "--out", "run"],
            "run is a run of up to 25 steps, more than 24; use more than 25 steps",
        ),
    ):
        assert message in error_of(["train", *arguments, "--device", "cpu"], capsys)
    assert folder_contents(Path()) == before


DEEP = ".".join("a" * 1500)


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.toml", f"{DEEP} = 1"), ("a.toml", f"[{DEEP}]\nb = 1"), ("a.toml", f"a = {'[' * 60}{']' * 60}")],
    ids=["key", "table", "list"],
)
def test_settings_that_are_nested_too_deep_raise_an_error(name, content):
    Path(name).write_text(content, encoding="utf-8")
    assert "levels deep" in config_error(name)


def test_a_value_on_the_command_line_is_not_nested_deeper_than_a_saved_one():
    text = "[" * 60 + "]" * 60
    assert parse_assignment(f"a={text}").value == text

"""Tasks for lm-evaluation-harness: what is written, and that the harness reads it."""

import json

import pytest
import yaml
from tests.cli.test_cli import asked, refused
from tests.support.text_models import asked_in_bytes, bytewise, learned_by_heart

from lengthwise.core.errors import SettingError
from lengthwise.evaluation.exact_match import EvaluationSettings, drawn
from lengthwise.hf.export import export_to_harness
from lengthwise.positions import Sequential
from lengthwise.tasks import Copy, Parity, Text
from lengthwise.tasks.text_format import format_examples

SETTINGS = EvaluationSettings(lengths=(4, 6), num_examples=(5, 7))


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def settings_of(path):
    return yaml.safe_load(path.read_text())


def test_each_length_is_a_task_of_the_group_with_what_evaluation_draws(tmp_path):
    group = export_to_harness(Parity(), tmp_path, SETTINGS)
    whole = settings_of(tmp_path / "parity.yaml")
    assert whole["group"] == group == "lengthwise_parity"
    for name, length, number in zip(whole["task"], SETTINGS.lengths, SETTINGS.num_examples, strict=True):
        one = settings_of(tmp_path / f"parity_{length}.yaml")
        assert (one["task"], one["metadata"]["length"]) == (name, length)
        assert one["dataset_kwargs"]["data_files"]["test"] == str(tmp_path / f"parity_{length}.jsonl")
        expected = [
            {"prompt": text.prompt, "response": text.answer, "length": length}
            for examples, _ in drawn(Parity(), Sequential(), length, number, 0)
            for text in format_examples(Parity(), examples)
        ]
        assert rows_of(tmp_path / f"parity_{length}.jsonl") == expected
        assert one["generation_kwargs"]["until"] == ["\n"]
        # As many tokens as the answer has bytes, of which each is one.
        assert one["generation_kwargs"]["max_gen_toks"] == 2 * length + 1


def test_what_is_shown_is_in_a_split_of_its_own_and_is_not_tested(tmp_path):
    export_to_harness(Parity(), tmp_path, SETTINGS, shots=3)
    for length in SETTINGS.lengths:
        one = settings_of(tmp_path / f"parity_{length}.yaml")
        assert (one["num_fewshot"], one["fewshot_split"], one["test_split"]) == (3, "shots", "test")
        tested, shown = (
            {row["prompt"] for row in rows_of(tmp_path / f"parity_{length}{end}.jsonl")} for end in ("", "_shots")
        )
        assert shown
        assert tested.isdisjoint(shown)


def test_without_shots_there_is_no_split_to_show(tmp_path):
    export_to_harness(Parity(), tmp_path, SETTINGS, shots=0)
    one = settings_of(tmp_path / "parity_4.yaml")
    assert (one["num_fewshot"], "fewshot_split" in one) == (0, False)
    assert not (tmp_path / "parity_4_shots.jsonl").exists()


@pytest.mark.parametrize(
    ("task", "settings", "shots", "message"),
    [
        (Text(), SETTINGS, 4, r"^task text is graded by loss and asks no question"),
        (Parity(), SETTINGS, 99, r"^99 shots are not to be had; use 0 to 31$"),
        (Parity(), EvaluationSettings(lengths=(1,), num_examples=(64,)), 4, r"^length 1 of parity has too few prompts"),
    ],
)
def test_what_cannot_be_exported_leaves_no_file(task, settings, shots, message, tmp_path):
    with pytest.raises(SettingError, match=message):
        export_to_harness(task, tmp_path / "out", settings, shots=shots)
    assert not (tmp_path / "out").exists()


def test_export_says_how_what_it_wrote_is_used(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["export", "copy", "--format", "lm-eval", "--lengths", "4", "--num-examples", "3", "--seed", "2"]
    use = "lm_eval --include_path new --tasks lengthwise_copy"
    assert asked([*flags, "--out", "new"], capsys)[0] == f"saved in new; {use}\n"
    assert json.loads(asked([*flags, "--out", "new", "--json"], capsys)[0]) == {"folder": "new", "use": use}
    assert len(rows_of(tmp_path / "new/copy_4.jsonl")) == 3


WRONG = [
    (["copy", "--format", "lm-evl"], "unknown format 'lm-evl'; did you mean 'lm-eval'? known: hf, lm-eval, run"),
    (["cpy", "--format", "lm-eval"], "unknown task 'cpy'; did you mean 'copy'?"),
    (["copy", "--format", "lm-eval", "--lengths", "x"], "--lengths 'x' is no list of whole numbers"),
    (["copy", "--format", "lm-eval", "--shots", "-1"], "-1 shots are not to be had; use 0 to 31"),
    (["copy"], "--format"),
]


@pytest.mark.parametrize(("arguments", "text"), WRONG, ids=[" ".join(arguments) for arguments, _ in WRONG])
def test_what_cannot_be_exported_is_answered_in_one_line(arguments, text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert text in refused(["export", *arguments, "--out", "new"], capsys)
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_harness_finds_a_model_right_that_is(tmp_path, monkeypatch):
    lm_eval = pytest.importorskip("lm_eval")
    tasks = pytest.importorskip("lm_eval.tasks")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    settings = EvaluationSettings(lengths=(4,), num_examples=(8,))
    export_to_harness(Copy(), tmp_path / "tasks", settings, shots=0)
    asking = asked_in_bytes()
    known = rows_of(tmp_path / "tasks/copy_4.jsonl")
    by_heart = learned_by_heart([asking.question(row["prompt"], f" {row['response']}\n") for row in known[:6]])
    by_heart.save_pretrained(tmp_path / "model")
    bytewise().save_pretrained(tmp_path / "model")
    found = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(tmp_path / "model"), "dtype": "float32"},
        device="cpu",
        tasks=["lengthwise_copy"],
        task_manager=tasks.TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False),
        batch_size=3,
    )
    known_share = found["results"]["lengthwise_copy_4"]["exact_match,line"]
    assert 6 / 8 <= known_share < 1
    assert found["results"]["lengthwise_copy"]["exact_match,line"] == known_share
    assert found["configs"]["lengthwise_copy_4"]["metadata"]["length"] == 4
    shown = export_to_harness(Copy(), tmp_path / "shown", settings, shots=2)
    found = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(tmp_path / "model"), "dtype": "float32"},
        device="cpu",
        tasks=[shown],
        task_manager=tasks.TaskManager(include_path=str(tmp_path / "shown"), include_defaults=False),
        batch_size=3,
    )
    for sample in found["samples"]["lengthwise_copy_4"]:
        lines = sample["arguments"][0][0].split("\n")
        assert lines[-1] == sample["doc"]["prompt"]
        pool = [f"{row['prompt']} {row['response']}" for row in rows_of(tmp_path / "shown/copy_4_shots.jsonl")]
        assert len(lines) == 3
        assert set(lines[:-1]) <= set(pool)

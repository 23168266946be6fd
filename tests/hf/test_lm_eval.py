"""Tests of the export of tasks to lm-evaluation-harness."""

import json

import pytest
import yaml
from tests.cli.test_cli import error_of, output_of
from tests.support.small_runs import small_experiment
from tests.support.text_models import byte_text_model, byte_tokenizer, memorize

from lengthwise.core.errors import SettingError
from lengthwise.evaluation.exact_match import EvaluationSettings, iter_examples
from lengthwise.experiments.run import train
from lengthwise.hf.export import export_to_lm_eval
from lengthwise.positions import Sequential
from lengthwise.tasks import Copy, Parity, Text
from lengthwise.tasks.text_format import format_examples

SETTINGS = EvaluationSettings(lengths=(4, 6), num_examples=(5, 7))


def records_in(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_yaml(path):
    return yaml.safe_load(path.read_text())


def test_each_length_is_a_task_with_the_examples_of_evaluation(tmp_path):
    group = export_to_lm_eval(Parity(), tmp_path, SETTINGS)
    whole = read_yaml(tmp_path / "parity.yaml")
    assert whole["group"] == group == "lengthwise_parity"
    for name, length, number in zip(whole["task"], SETTINGS.lengths, SETTINGS.num_examples, strict=True):
        one = read_yaml(tmp_path / f"parity_{length}.yaml")
        assert (one["task"], one["metadata"]["length"]) == (name, length)
        assert one["dataset_kwargs"]["data_files"]["test"] == str(tmp_path / f"parity_{length}.jsonl")
        expected = [
            {"prompt": text.prompt, "response": text.answer, "length": length}
            for examples, _ in iter_examples(Parity(), Sequential(), length, number, 0)
            for text in format_examples(Parity(), examples)
        ]
        assert records_in(tmp_path / f"parity_{length}.jsonl") == expected
        assert one["generation_kwargs"]["until"] == ["\n"]
        # One token per byte of the answer.
        assert one["generation_kwargs"]["max_gen_toks"] == 2 * length + 1


def test_shots_are_in_a_separate_split_without_test_prompts(tmp_path):
    export_to_lm_eval(Parity(), tmp_path, SETTINGS, shots=3)
    for length in SETTINGS.lengths:
        one = read_yaml(tmp_path / f"parity_{length}.yaml")
        assert (one["num_fewshot"], one["fewshot_split"], one["test_split"]) == (3, "shots", "test")
        prompts, shots = (
            {row["prompt"] for row in records_in(tmp_path / f"parity_{length}{end}.jsonl")} for end in ("", "_shots")
        )
        assert shots
        assert prompts.isdisjoint(shots)


def test_without_shots_there_is_no_split_of_shots(tmp_path):
    export_to_lm_eval(Parity(), tmp_path, SETTINGS, shots=0)
    one = read_yaml(tmp_path / "parity_4.yaml")
    assert (one["num_fewshot"], "fewshot_split" in one) == (0, False)
    assert not (tmp_path / "parity_4_shots.jsonl").exists()


@pytest.mark.parametrize(
    ("task", "settings", "shots", "message"),
    [
        (Text(), SETTINGS, 4, r"^task text is graded by loss and has no prompts"),
        (Parity(), SETTINGS, 99, r"^invalid number of shots 99; use 0 to 31$"),
        (Parity(), EvaluationSettings(lengths=(1,), num_examples=(64,)), 4, r"^length 1 of parity has too few prompts"),
    ],
)
def test_a_failed_export_leaves_no_file(task, settings, shots, message, tmp_path):
    with pytest.raises(SettingError, match=message):
        export_to_lm_eval(task, tmp_path / "out", settings, shots=shots)
    assert not (tmp_path / "out").exists()


def test_export_prints_the_command_to_use_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["export", "copy", "--format", "lm-eval", "--lengths", "4", "--num-examples", "3", "--seed", "2"]
    use = "lm_eval --include_path new --tasks lengthwise_copy"
    assert output_of([*flags, "--out", "new"], capsys)[0] == f"saved in new; {use}\n"
    assert json.loads(output_of([*flags, "--out", "new", "--json"], capsys)[0]) == {"folder": "new", "use": use}
    assert len(records_in(tmp_path / "new/copy_4.jsonl")) == 3


WRONG = [
    (["copy", "--format", "lm-evl"], "unknown format 'lm-evl'; did you mean 'lm-eval'? known: hf, lm-eval, onnx, run"),
    (["cpy", "--format", "lm-eval"], "unknown task 'cpy'; did you mean 'copy'?"),
    (["copy", "--format", "lm-eval", "--lengths", "x"], "invalid --lengths 'x'; use whole numbers"),
    (["copy", "--format", "lm-eval", "--shots", "-1"], "invalid number of shots -1; use 0 to 31"),
    (["copy"], "--format"),
]


@pytest.mark.parametrize(("arguments", "text"), WRONG, ids=[" ".join(arguments) for arguments, _ in WRONG])
def test_a_failed_export_prints_a_one_line_error(arguments, text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert text in error_of(["export", *arguments, "--out", "new"], capsys)
    assert not (tmp_path / "new").exists()


def test_the_tasks_of_a_run_have_no_shots(tmp_path, capsys):
    train(small_experiment(), tmp_path / "run")
    flags = ["--format", "lm-eval", "--lengths", "4", "--num-examples", "3", "--out", str(tmp_path / "tasks")]
    printed = " ".join(output_of(["export", str(tmp_path / "run"), *flags], capsys))
    assert "python -m lengthwise.hf lm_eval" in printed
    assert "num_fewshot: 0" in (tmp_path / "tasks" / "parity_4.yaml").read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_harness_reports_the_exact_match_of_a_model(tmp_path, monkeypatch):
    lm_eval = pytest.importorskip("lm_eval")
    tasks = pytest.importorskip("lm_eval.tasks")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    settings = EvaluationSettings(lengths=(4,), num_examples=(8,))
    export_to_lm_eval(Copy(), tmp_path / "tasks", settings, shots=0)
    model = byte_text_model()
    records = records_in(tmp_path / "tasks/copy_4.jsonl")
    questions = [model.tokenize_question(record["prompt"], f" {record['response']}\n") for record in records[:6]]
    memorize(questions).save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")

    def run_harness(folder, group):
        return lm_eval.simple_evaluate(
            model="hf",
            model_args={"pretrained": str(tmp_path / "model"), "dtype": "float32"},
            device="cpu",
            tasks=[group],
            task_manager=tasks.TaskManager(include_path=str(folder), include_defaults=False),
            batch_size=3,
        )

    output = run_harness(tmp_path / "tasks", "lengthwise_copy")
    exact_match = output["results"]["lengthwise_copy_4"]["exact_match,line"]
    assert 6 / 8 <= exact_match < 1
    assert output["results"]["lengthwise_copy"]["exact_match,line"] == exact_match
    assert output["configs"]["lengthwise_copy_4"]["metadata"]["length"] == 4
    output = run_harness(tmp_path / "shots", export_to_lm_eval(Copy(), tmp_path / "shots", settings, shots=2))
    for sample in output["samples"]["lengthwise_copy_4"]:
        lines = sample["arguments"][0][0].split("\n")
        assert lines[-1] == sample["doc"]["prompt"]
        pool = [f"{each['prompt']} {each['response']}" for each in records_in(tmp_path / "shots/copy_4_shots.jsonl")]
        assert len(lines) == 3
        assert set(lines[:-1]) <= set(pool)

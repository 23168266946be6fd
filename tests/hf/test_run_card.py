"""Tests of the model card of an exported run."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from huggingface_hub import ModelCard
from tests.support.small_runs import small_experiment
from transformers import AutoModelForCausalLM

from lengthwise.core.errors import PromptWarning
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.run import load_run, train
from lengthwise.experiments.run_evaluation import evaluate
from lengthwise.hf.export import export_hf
from lengthwise.hf.model_card import NO_RESULTS, build_model_card
from lengthwise.tasks import JSONLTask, Parity

SETTINGS = EvaluationSettings(lengths=(4, 8), num_examples=(16, 8))


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("card") / "run"
    assert train(small_experiment(), folder) is not None
    return folder


def test_the_card_of_a_run_has_its_settings_and_latest_results(run_folder, tmp_path):
    run = load_run(run_folder)
    evaluate(run, replace(SETTINGS, num_examples=(4, 4)))
    rows = evaluate(run, SETTINGS)
    export_hf(run_folder, tmp_path / "hf")
    card = ModelCard.load(tmp_path / "hf" / "README.md")
    results = [(each.dataset_args["length"], each.metric_type, each.metric_value) for each in card.data.eval_results]
    assert results == [(row["length"], "exact_match", row["exact_match"]) for row in rows]
    assert card.data.library_name == "lengthwise"
    assert {"parity", "predicted", "rotary"} <= set(card.data.tags)
    for row in rows:
        assert f"| {row['length']} | {row['num_examples']} | {row['exact_match']:.3f} |" in card.text
    assert "import lengthwise.hf" in card.text
    assert f"Lengths above {run.experiment.train_lengths[1]} were not in training" in card.text


def test_a_skipped_length_is_no_published_result(run_folder):
    run = load_run(run_folder)
    settings = replace(SETTINGS, lengths=(16, 32), stop_at_zero=True)
    measured, skipped = evaluate(run, settings)
    assert (measured["exact_match"], skipped["skipped"]) == (0.0, True)
    card = ModelCard(build_model_card(run.experiment, run.facts, [measured, skipped]))
    assert [each.dataset_args["length"] for each in card.data.eval_results] == [16]
    assert "| 32 | 0 |" in card.text


def test_rows_with_another_encoding_are_not_results_of_the_model(run_folder):
    run = load_run(run_folder)
    rows = [{**row, "encoding": "alibi"} for row in evaluate(run, SETTINGS)]
    assert NO_RESULTS in build_model_card(run.experiment, run.facts, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileTask(Parity):
    """Parity with a name that is markup in Markdown, HTML and YAML."""

    name: ClassVar[str] = "a: |b\n--- <script>*x*"
    summary: ClassVar[str] = "[link](javascript:alert) `code`"


def test_markup_in_names_stays_text(run_folder):
    run = load_run(run_folder)
    text = build_model_card(replace(run.experiment, task=HostileTask()), run.facts, [])
    card = ModelCard(text)
    assert HostileTask.name in card.data.tags
    assert "<script>" not in card.text
    assert "[link](" not in card.text
    lines = [line for line in card.text.splitlines() if line.startswith("| task")]
    assert len(lines) == 1


def test_the_example_of_a_card_gives_the_tokens_it_shows(run_folder, tmp_path, capsys):
    export_hf(run_folder, tmp_path / "hf")
    text = (tmp_path / "hf" / "README.md").read_text()
    code = text.split("## An example")[1].split("```python\n")[1].split("```")[0]
    exec(code, {"model": AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()})
    assert f"# {capsys.readouterr().out}" in code
    assert "with 0 shots" in text


def test_the_card_of_a_run_on_a_file_names_the_end_of_a_prompt(tmp_path):
    assert train(small_experiment(JSONLTask()), tmp_path / "run") is not None
    export_hf(tmp_path / "run", tmp_path / "hf")
    assert "Every prompt ends with `<mark> <start>`." in (tmp_path / "hf/README.md").read_text()


def test_a_prompt_without_its_separator_warns(run_folder, tmp_path):
    export_hf(run_folder, tmp_path / "hf")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    end = [model.config.symbols.index(symbol) for symbol in model.config.prompt_end]
    assert end
    options = {"max_new_tokens": 1, "do_sample": False}
    ids = torch.arange(1, 3 + len(end))[None]
    with pytest.warns(PromptWarning, match="does not end with"):
        model.generate(torch.tensor([[0, 1]]), position_ids=ids[:, :2], **options)
    # A warning is an error in these tests.
    model.generate(torch.tensor([[0, 1, *end]]), position_ids=ids, **options)

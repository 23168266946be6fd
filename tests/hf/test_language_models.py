"""Tests of loading language models by name: runs on text, and errors."""

from dataclasses import replace

import pytest
from tests.hf.test_hf_loading import folders  # noqa: F401  (a fixture)
from tests.support.small_runs import small_experiment

from lengthwise.core.errors import ModelError, UnknownNameError
from lengthwise.encodings import Rotary
from lengthwise.experiments.run import train
from lengthwise.hf.language_models import check_model_exists, load_language_model
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Sequential
from lengthwise.tasks import Text


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Train a run on text and one on another task."""
    root = tmp_path_factory.mktemp("runs")
    on_parity = small_experiment()
    decoder = DecoderSettings(num_layers=1, d_model=16, num_heads=2, segments=False)
    on_text = replace(on_parity, task=Text(), scheme=Sequential(), encoding=Rotary(), decoder=decoder)
    for name, experiment in (("parity", on_parity), ("text", on_text)):
        training = replace(experiment.training, steps=2, fit_every=None)
        assert train(replace(experiment, training=training), root / name) is not None
    return root


def test_a_run_on_text_loads_with_its_tokenizer_and_held_out_texts(runs):
    loaded = load_language_model(str(runs / "text"))
    assert loaded.model.vocabulary_size == 257
    assert "".join(map(loaded.codec.token_text, loaded.codec.encode("a b\n"))) == "a b\n"
    assert [text.name for text in loaded.held_out_documents()] == [text.name for text in Text().held_out()]


def test_a_run_on_another_task_raises_an_error(runs):
    with pytest.raises(ModelError, match=r"parity was trained on parity, not on text; use a run of the task text"):
        load_language_model(str(runs / "parity"))


def test_a_run_with_another_tokenizer_raises_an_error(runs):
    with pytest.raises(ModelError, match=r"text has its own tokenizer; leave out --tokenizer"):
        load_language_model(str(runs / "text"), tokenizer="another")


def test_a_run_with_another_precision_raises_an_error(runs):
    with pytest.raises(ModelError, match=r"is a run, which has a fixed precision; leave out --dtype bfloat16"):
        load_language_model(str(runs / "text"), dtype="bfloat16")


def test_an_unknown_kind_of_text_raises_an_error(runs):
    with pytest.raises(ModelError, match=r"text has no held-out texts of kind 'code'; known kinds: none"):
        load_language_model(str(runs / "text")).held_out_documents("code")


def test_a_model_of_transformers_has_no_held_out_texts(folders):  # noqa: F811
    loaded = load_language_model(str(folders / "llama"))
    assert loaded.codec.start == (0,)
    with pytest.raises(ModelError, match=r"llama has no held-out texts, because it is not a run; pass texts"):
        loaded.held_out_documents()


@pytest.mark.parametrize("load", [check_model_exists, load_language_model])
def test_a_misspelled_run_raises_an_error_without_asking_the_hub(runs, load, monkeypatch):
    monkeypatch.chdir(runs.parent)
    with pytest.raises(UnknownNameError, match=rf"unknown run '{runs.name}/txt'; did you mean '{runs.name}/text'\?"):
        load(f"{runs.name}/txt")

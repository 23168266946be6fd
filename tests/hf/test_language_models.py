"""Language models by name: runs of this package on text, and what is refused."""

from dataclasses import replace

import pytest
from tests.hf.test_hf_loading import folders  # noqa: F401  (a fixture)
from tests.support.small_runs import small_experiment

from lengthwise.core.errors import ModelError, UnknownNameError
from lengthwise.encodings import Rotary
from lengthwise.experiments.run import train
from lengthwise.hf.language_models import check_exists, load_language_model
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Sequential
from lengthwise.tasks import Text


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One run on text, one on another task."""
    root = tmp_path_factory.mktemp("runs")
    on_parity = small_experiment()
    decoder = DecoderSettings(num_layers=1, d_model=16, num_heads=2, segments=False)
    on_text = replace(on_parity, task=Text(), scheme=Sequential(), encoding=Rotary(), decoder=decoder)
    for name, experiment in (("parity", on_parity), ("text", on_text)):
        training = replace(experiment.training, steps=2, fit_every=None)
        assert train(replace(experiment, training=training), root / name) is not None
    return root


def test_a_run_on_text_comes_with_its_tokenizer_and_its_held_out_text(runs):
    loaded = load_language_model(str(runs / "text"))
    assert loaded.model.vocabulary_size == 257
    assert "".join(map(loaded.codec.token_text, loaded.codec.encode("a b\n"))) == "a b\n"
    assert [text.name for text in loaded.held_out()] == [text.name for text in Text().held_out()]


def test_a_run_on_anything_else_is_refused(runs):
    with pytest.raises(
        ModelError, match=r"parity was trained on parity, which is no text; give a run of the task text"
    ):
        load_language_model(str(runs / "parity"))


def test_a_run_takes_no_other_tokenizer(runs):
    with pytest.raises(ModelError, match=r"text has a tokenizer of its own; leave --tokenizer out"):
        load_language_model(str(runs / "text"), tokenizer="another")


def test_a_run_is_measured_as_it_was_trained(runs):
    with pytest.raises(ModelError, match=r"is a run, which is measured as it was trained; leave --dtype bfloat16 out"):
        load_language_model(str(runs / "text"), dtype="bfloat16")


def test_a_kind_of_text_that_a_run_does_not_have_is_refused(runs):
    with pytest.raises(ModelError, match=r"text has no kind of text 'code'; it has one only"):
        load_language_model(str(runs / "text")).held_out("code")


def test_what_a_model_of_transformers_was_not_trained_on_is_unknown(folders):  # noqa: F811
    loaded = load_language_model(str(folders / "llama"))
    assert loaded.codec.start == (0,)
    with pytest.raises(ModelError, match=r"llama was not trained on is unknown; name texts to measure on"):
        loaded.held_out()


@pytest.mark.parametrize("asked", [check_exists, load_language_model])
def test_a_mistyped_run_is_not_looked_for_on_the_hub(runs, asked, monkeypatch):
    monkeypatch.chdir(runs.parent)
    with pytest.raises(UnknownNameError, match=rf"unknown run '{runs.name}/txt'; did you mean '{runs.name}/text'\?"):
        asked(f"{runs.name}/txt")

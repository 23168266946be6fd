"""Hostile model folders: large numbers, files outside the folder, and tokenizers that fail or expand a text."""

import json
import os
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tests.hf.test_hf_loading import byte_level_tokenizer
from tests.support.causal_models import CONFIGS, causal_model
from tests.tasks.test_corpus import PROSE

from lengthwise.core.errors import ModelError, TextSourceError
from lengthwise.hf.loading import check_model_exists, load_causal_lm, load_tokenizer_adapter
from lengthwise.tasks.text.corpus import prepare_corpus, read_tokenizer

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """Return a folder with one saved model per type, each with a tokenizer."""
    root = tmp_path_factory.mktemp("models")
    for name in ("llama", "gpt2"):
        causal_model(CONFIGS[name]()).save_pretrained(root / name)
        byte_level_tokenizer(has_start=True).save_pretrained(root / name)
    return root


@pytest.fixture
def models(saved, tmp_path) -> Path:
    """Return a copy of the folder with the models."""
    return Path(shutil.copytree(saved, tmp_path / "models"))


def change(file: Path, **values: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **values}), encoding="utf-8")


NUMBERS = [
    ("gpt2", {"num_labels": 20_000_000}),
    ("gpt2", {"n_layer": 300_000}),
    ("llama", {"num_hidden_layers": 100_000}),
    ("llama", {"text_config": {"decoder_layers": 300_000}}),
    ("llama", {"num_local_experts": 10**7}),
    ("gpt2", {"n_positions": 10**8}),
    ("llama", {"vocab_size": 10**8}),
    ("llama", {"intermediate_size": 10**9}),
]


@pytest.mark.parametrize(("name", "values"), NUMBERS)
def test_a_configuration_with_large_numbers_raises_an_error_before_the_model_is_built(
    name, values, models, monkeypatch
):
    change(models / name / "config.json", **values)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", lambda *args, **settings: 1 / 0)
    (number,) = (str(each) for each in values.values()) if "text_config" not in values else ("300000",)
    with pytest.raises(ModelError, match=rf"config.json has .*({number}|parameters|{int(number):,} layers)"):
        load_causal_lm(str(models / name))


@pytest.mark.parametrize("value", [{"a": 1}, [1], "x", 1.5])
def test_a_window_that_is_no_number_raises_an_error(value, models):
    change(models / "llama" / "config.json", sliding_window=value)
    with pytest.raises(ModelError, match="sliding_window"):
        load_causal_lm(str(models / "llama"))


@pytest.mark.parametrize(
    "name", ["model.safetensors", "tokenizer.json", "generation_config.json", "additional_chat_templates/tool.jinja"]
)
@pytest.mark.parametrize("load", [check_model_exists, load_causal_lm, load_tokenizer_adapter])
def test_a_named_pipe_in_a_model_folder_raises_an_error(name, load, models):
    (models / "llama" / name).unlink(missing_ok=True)
    (models / "llama" / name).parent.mkdir(exist_ok=True)
    os.mkfifo(models / "llama" / name)
    with pytest.raises(ModelError, match=f"{name}.*not a regular file|not a regular file.*{name}"):
        load(str(models / "llama"))


def test_the_layers_are_compared_with_the_shards_of_an_index(models):
    folder = models / "llama"
    causal_model(CONFIGS["llama"]()).save_pretrained(folder, max_shard_size="20KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    assert (folder / INDEX).is_file()
    load_causal_lm(str(folder))
    change(folder / "config.json", num_hidden_layers=900)
    with pytest.raises(ModelError, match="900 layers, but the weights have only"):
        load_causal_lm(str(folder))


@pytest.mark.parametrize("place", ["../victim.safetensors", "part/model.safetensors", "{outside}", "..", 5, None])
def test_an_index_names_only_files_of_its_folder(place, models):
    folder, outside = models / "llama", models / "victim.safetensors"
    (folder / "part").mkdir()
    tensors = load_file(folder / "model.safetensors")
    for path in (outside, folder / "part" / "model.safetensors"):
        save_file(tensors, path, {"format": "pt"})
    (folder / "model.safetensors").unlink()
    name = place.format(outside=outside) if isinstance(place, str) else place
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(tensors, name)}))
    with pytest.raises(ModelError, match="must be safetensors files in the folder itself"):
        load_causal_lm(str(folder))


def test_no_other_key_of_a_model_folder_names_a_file_outside(models):
    folder = models / "llama"
    change(folder / "config.json", transformers_weights="../gpt2/model.safetensors")
    with pytest.raises(ModelError, match="in the folder itself"):
        check_model_exists(str(folder))
    (models / "gpt2" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folder)}))
    with pytest.raises(ModelError, match="names another model"):
        load_causal_lm(str(models / "gpt2"))


RULES = {
    "nested replacements": {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000},
    "a replacement of a rare text": {"type": "Replace", "pattern": {"String": "xyzzy"}, "content": "y" * 10_000},
}
SLOW = {"type": "Split", "pattern": {"Regex": "(a+)+$|(a|aa)+c"}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize("rule", RULES)
def test_a_tokenizer_that_expands_a_text_raises_an_error(rule, models):
    normalizer = {"type": "Sequence", "normalizers": [RULES[rule]] * 3}
    change(models / "llama" / "tokenizer.json", normalizer=normalizer)
    with pytest.raises(ModelError, match="expands"):
        load_tokenizer_adapter(str(models / "llama"))


def test_a_tokenizer_with_a_slow_regular_expression_raises_an_error(models):
    change(models / "llama" / "tokenizer.json", pre_tokenizer=SLOW)
    with pytest.raises(ModelError, match="takes too long"):
        load_tokenizer_adapter(str(models / "llama"))


def test_a_tokenizer_that_is_slow_for_one_text_only_raises_an_error(models):
    pattern = {"Regex": "(?:(?:q1)+)+$|(?:q1|q1q1)+c"}
    change(models / "llama" / "tokenizer.json", pre_tokenizer={**SLOW, "pattern": pattern})
    codec = load_tokenizer_adapter(str(models / "llama"))
    with pytest.raises(ModelError, match="the tokenizer failed"):
        codec.encode("q1" * 64 + "!")


@pytest.mark.parametrize(
    "rules",
    [
        {"normalizer": RULES["nested replacements"]},
        {"pre_tokenizer": SLOW},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [SLOW]}},
        {"pre_tokenizer": None},
        {"added_tokens": [{"id": 1 << 30, "content": "a", "special": False}]},
    ],
)
def test_the_tokenizer_of_a_corpus_has_only_the_rules_of_prepare(rules, tmp_path):
    (tmp_path / "text.txt").write_text(PROSE["tale 3"])
    prepare_corpus([str(tmp_path / "text.txt")], tmp_path / "corpus", vocabulary_size=300)
    read_tokenizer(tmp_path / "corpus").encode("a")
    change(tmp_path / "corpus" / "tokenizer.json", **rules)
    with pytest.raises(TextSourceError, match=r"is not from a prepared corpus|is damaged"):
        read_tokenizer(tmp_path / "corpus")

"""Tests of loading models and tokenizers from folders, and of the errors."""

from pathlib import Path

import pytest
import torch
import transformers
from tests.support.causal_models import CONFIGS, VOCABULARY_SIZE, causal_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoTokenizer

from lengthwise.core.errors import ModelError, UnknownNameError
from lengthwise.hf.loading import (
    HFTokenizerAdapter,
    check_model_exists,
    load_causal_lm,
    load_text_model,
    load_tokenizer_adapter,
)


def byte_level_tokenizer(*, has_start: bool) -> transformers.PreTrainedTokenizerFast:
    """Return a tokenizer with one token per byte; ``has_start`` puts ``<s>`` before each text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({"<s>": 0, **{byte: i + 1 for i, byte in enumerate(alphabet)}}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if has_start:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("models")
    llama = causal_model(CONFIGS["llama"]())
    llama.save_pretrained(root / "llama")
    byte_level_tokenizer(has_start=True).save_pretrained(root / "llama")
    llama.model.save_pretrained(root / "headless")
    sizes = {"vocab_size": 50, "d_model": 8, "d_kv": 4, "num_layers": 1, "num_heads": 1, "d_ff": 8}
    transformers.T5Model(transformers.T5Config(**sizes)).save_pretrained(root / "t5")
    small = {"vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    transformers.BertForMaskedLM(transformers.BertConfig(**small, intermediate_size=8)).save_pretrained(root / "bert")
    (root / "empty").mkdir()
    (root / "trainer" / "checkpoint-2").mkdir(parents=True)
    (root / "trainer" / "checkpoint-2" / "config.json").write_text("{}")
    (root / "damaged").mkdir()
    (root / "damaged" / "config.json").write_text("{")
    return root


def test_a_loaded_model_has_the_predictions_of_the_saved_one(folders):
    loaded, model = load_causal_lm(str(folders / "llama")), causal_model(CONFIGS["llama"]())
    tokens = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        expected = model(tokens, attention_mask=torch.ones_like(tokens)).logits[:, -1].log_softmax(dim=-1)
    torch.testing.assert_close(loaded.log_probs(tokens, torch.arange(4)[None]), expected)
    assert (loaded.vocabulary_size, loaded.name) == (VOCABULARY_SIZE, str(folders / "llama"))


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("empty", r"contains no model \(no config.json\); use a folder written by save_pretrained"),
        ("trainer", r"contains no model \(no config.json\); use a model in it, such as \S*checkpoint-2$"),
        ("llama/config.json", r"config.json is a file; use a folder written by save_pretrained, such as \S*llama$"),
        ("missing", r"does not exist; use a folder written by save_pretrained, or a name on the Hub"),
        (
            "headless",
            r"was saved without a language-modelling head; use a model with an architecture such as LlamaForCausalLM",
        ),
        ("t5", r"is not a causal model with a language-modelling head; use a model"),
        ("bert", r"is not causal: a token changes earlier predictions"),
        ("damaged", r"cannot be loaded \(.*\); use a folder"),
    ],
)
def test_loading_anything_but_a_causal_language_model_raises_a_one_line_error(folders, folder, message):
    with pytest.raises(ModelError, match=message) as caught:
        load_causal_lm(str(folders / folder))
    assert "\n" not in str(caught.value)


def test_a_missing_folder_without_a_path_is_named_before_the_hub(monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("no connection")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", fail)
    with pytest.raises(ModelError, match=r"^there is no folder nowhere, and a model of this name on the Hub cannot be"):
        load_causal_lm("nowhere")


def test_another_tokenizer_replaces_the_tokenizer_of_a_model(folders, tmp_path):
    causal_model(CONFIGS["llama"]()).save_pretrained(tmp_path)
    assert load_text_model(str(tmp_path), tokenizer=str(folders / "llama")).codec.encode("a")


def test_loading_a_missing_tokenizer_raises_an_error(folders):
    with pytest.raises(ModelError, match=r"the tokenizer of \S*headless cannot be loaded .*; choose a tokenizer with"):
        load_tokenizer_adapter(str(folders / "headless"))


def test_a_token_after_every_text_is_not_a_start_token():
    tokenizer = byte_level_tokenizer(has_start=False)
    processor = processors.TemplateProcessing(single="$A <s>", special_tokens=[("<s>", 0)])
    tokenizer.backend_tokenizer.post_processor = processor
    assert tokenizer("a")["input_ids"][-1] == 0
    assert HFTokenizerAdapter(tokenizer, "bytes").start == ()


def test_half_precision_weights_load_as_float32_by_default(tmp_path):
    causal_model(CONFIGS["llama"]()).bfloat16().save_pretrained(tmp_path)
    assert load_causal_lm(str(tmp_path)).model.dtype == torch.float32
    assert load_causal_lm(str(tmp_path), dtype="bfloat16").model.dtype == torch.bfloat16
    with pytest.raises(UnknownNameError, match=r"unknown dtype 'float64'"):
        load_causal_lm(str(tmp_path), dtype="float64")


@pytest.mark.parametrize("has_start", [True, False])
def test_the_codec_separates_start_tokens_from_the_text(has_start):
    codec = HFTokenizerAdapter(byte_level_tokenizer(has_start=has_start), "bytes")
    assert codec.start == ((0,) if has_start else ())
    tokens = codec.encode("ab é <s>")
    assert 0 not in tokens[:2]
    assert "".join(codec.token_text(token) for token in tokens[:3]) == "ab "


def test_tokenizing_a_long_text_prints_no_warning(folders, capfd):
    codec = load_tokenizer_adapter(str(folders / "llama"))
    assert len(codec.encode("a" * 3000)) == 3000
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("load", [load_causal_lm, check_model_exists, load_tokenizer_adapter])
@pytest.mark.parametrize("name", ["runs/shift", "texts/shift", "shift/", "./a", "~/a", "a/b/c", "a\\b", "/a"])
def test_the_path_of_a_missing_folder_is_never_sent_to_the_hub(name, load, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    for kind in (AutoConfig, AutoTokenizer):
        monkeypatch.setattr(kind, "from_pretrained", lambda *args, **options: pytest.fail("a request"))
    with pytest.raises(ModelError):
        load(name)


@pytest.mark.parametrize("name", ["gpt2", "meta-llama/Llama-3.2-1B"])
def test_a_name_of_the_hub_is_looked_up_there(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = []
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda name, **options: names.append(name))
    check_model_exists(name)
    assert names == [name]

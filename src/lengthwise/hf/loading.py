"""Loading of causal `transformers` language models and tokenizers, from a folder or from the Hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

# These imports register the model types with the Auto classes.
import lengthwise.hf.lengthwise_model  # noqa: F401
import lengthwise.hf.predictive_model  # noqa: F401
from lengthwise.core.errors import ModelError, unknown_name
from lengthwise.hf.causal_lm import CausalLM
from lengthwise.hf.model_folder import check_model_folder, check_model_size
from lengthwise.hf.text_model import TextModel
from lengthwise.hf.tokenization import HFCodec
from lengthwise.hf.tokenizer_check import TOKENIZER_FILE, check_tokenizer

# Names of the weights of a language-modelling head.
HEAD_WEIGHTS = ("lm_head.weight", "embed_out.weight")
# Folder in which commands save runs by default.
RUNS = "runs"
DTYPES = ("float32", "bfloat16", "float16")


def load_causal_lm(name: str, *, device: torch.device | None = None, dtype: str = "float32") -> CausalLM:
    """Load a model for an influence study. Raises the same errors as `load_pretrained`."""
    return CausalLM(load_pretrained(name, device=device, dtype=dtype), name)


def load_text_model(
    name: str, *, tokenizer: str | None = None, device: torch.device | None = None, dtype: str = "float32"
) -> TextModel:
    """Load a model and a tokenizer for evaluation in plain text. Raises the same errors as `load_pretrained`."""
    model = load_pretrained(name, device=device, dtype=dtype)
    return TextModel(model, load_codec(name if tokenizer is None else tokenizer), name)


def load_pretrained(name: str, *, device: torch.device | None = None, dtype: str = "float32") -> PreTrainedModel:
    """Load a causal model for inference. Raises ``ModelError`` for a missing, damaged or unsupported model.

    ``dtype`` is one of ``DTYPES``. Half precision halves the memory and changes a loss by a few hundredths of a nat.
    Loading never runs code from the model's folder.
    """
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES)
    _check_folder(name)
    with _suppress_loading_output():
        try:
            config = _load_config(name)
            if Path(name).is_dir():
                check_model_size(Path(name), config)
            result: Any = AutoModelForCausalLM.from_pretrained(
                name,
                config=config,
                dtype=getattr(torch, dtype),
                trust_remote_code=False,
                # Other formats use pickle.
                use_safetensors=True,
                output_loading_info=True,
            )
        except Exception as error:  # a damaged file can raise any type of error
            raise ModelError(_describe_error(name, error)) from None
    model, loading_info = result
    if missing := sorted(set(loading_info["missing_keys"])):
        part = "a language-modelling head" if set(missing) & set(HEAD_WEIGHTS) else f"weights such as {missing[0]}"
        raise ModelError(f"{name} was saved without {part}; use a model with an architecture such as LlamaForCausalLM")
    model.eval()
    return model if device is None else model.to(device)


def check_model_exists(name: str) -> None:
    """Raise ``ModelError`` unless a model of this name exists. The weights are not loaded."""
    _check_folder(name)
    with _suppress_loading_output():
        try:
            _load_config(name)
        except Exception as error:  # see load_pretrained
            raise ModelError(_describe_error(name, error)) from None


def _load_config(name: str) -> Any:
    _check_files(Path(name))
    return AutoConfig.from_pretrained(name, trust_remote_code=False)


def _check_files(folder: Path) -> None:
    if folder.is_dir():
        check_model_folder(folder)


def load_codec(name: str) -> HFCodec:
    """Load the tokenizer of a model. Raises ``ModelError`` for a model without a tokenizer."""
    _check_path(name)
    with _suppress_loading_output():
        try:
            _check_files(Path(name))
            check_tokenizer(Path(name) / TOKENIZER_FILE)
            return HFCodec(AutoTokenizer.from_pretrained(name, trust_remote_code=False), name)
        except Exception as error:  # see load_pretrained
            raise ModelError(
                f"the tokenizer of {name} cannot be loaded ({_first_line(error)}); choose a tokenizer with --tokenizer"
            ) from None


def _check_folder(name: str) -> None:
    path = Path(name)
    if path.is_file():
        raise ModelError(f"{name} is a file; use a folder written by save_pretrained, such as {path.parent}")
    if path.is_dir() and not (path / "config.json").is_file():
        checkpoints = list(path.glob("*/config.json"))
        newest = max(checkpoints, key=lambda file: file.stat().st_mtime).parent if checkpoints else None
        advice = "a folder written by save_pretrained" if newest is None else f"a model in it, such as {newest}"
        raise ModelError(f"{name} contains no model (no config.json); use {advice}")
    _check_path(name)


def _check_path(name: str) -> None:
    """Raise ``ModelError`` for the path of a missing folder, which must not be sent to the Hub as a name."""
    path = Path(name)
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name
    if "/" in name and (path.parts[0] == RUNS or path.parent.exists()):
        is_path = True
    if is_path and not path.exists():
        raise ModelError(f"{name} does not exist; use a folder written by save_pretrained, or a name on the Hub")


def _describe_error(name: str, error: Exception) -> str:
    first_line = _first_line(error)
    if "Unrecognized configuration class" in first_line:
        return f"{name} is not a causal model with a language-modelling head; use a model such as Llama or GPT-2"
    if "trust_remote_code" in str(error):
        return f"{name} needs code from its folder, which is never executed; use a model that transformers supports"
    subject = name if Path(name).exists() else f"there is no folder {name}, and a model of this name on the Hub"
    return f"{subject} cannot be loaded ({first_line}); use a folder written by save_pretrained, or a name on the Hub"


def _first_line(error: Exception) -> str:
    line = str(error).strip().split("\n")[0][:200]
    return line if isinstance(error, OSError | ValueError | ImportError) and line else f"{type(error).__name__}: {line}"


@contextmanager
def _suppress_loading_output() -> Iterator[None]:
    # Loading prints warnings and progress bars.
    verbosity, has_progress_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_progress_bar:
            logging.enable_progress_bar()

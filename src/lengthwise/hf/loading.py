"""Loading of causal `transformers` language models and tokenizers, from a folder, a GGUF file or the Hub.

Loading runs no code of a model folder, reads no other files, and allocates little memory for a damaged configuration.
"""

import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import CONFIG_NAME, logging
from transformers.utils.hub import CHAT_TEMPLATE_DIR

# These imports register the model types with the Auto classes.
import lengthwise.hf.lengthwise_model  # noqa: F401
import lengthwise.hf.predictive_model  # noqa: F401
from lengthwise.core.errors import ModelError, unknown_name_error
from lengthwise.core.files import check_regular_file
from lengthwise.core.json_parsing import parse_json
from lengthwise.hf.causal_lm import CausalLM
from lengthwise.hf.gguf_file import find_gguf_file, is_gguf_path, read_tensor_sizes
from lengthwise.hf.text_evaluation import PlainTextModel
from lengthwise.hf.tokenization import HFTokenizerAdapter

# Names of the weights of a language-modelling head.
HEAD_WEIGHTS = ("lm_head.weight", "embed_out.weight")
# Folder in which commands save runs by default.
RUNS = "runs"
DTYPES = ("float32", "bfloat16", "float16")
# Largest numbers in a configuration, by a part of their name. Larger ones take minutes before any weight is read.
LIMITS = {"layer": 1_000, "expert": 10_000, "label": 100_000}
# Key of a configuration that names the file with the weights, and file that makes the library load another model.
WEIGHTS_KEY, ADAPTER_FILE = "transformers_weights", "adapter_config.json"
# Largest number of parameters of a model for each saved number, because quantized weights pack several, and for all.
MAX_PARAMETER_RATIO, MAX_EXTRA_PARAMETERS = 16, 1 << 24
TOKENIZER_FILE = "tokenizer.json"
# Limits of the process that tries the rules of a tokenizer, because they run in native code: memory in bytes, memory
# beyond that of the loaded tokenizer, processor time and total time in seconds.
MAX_MEMORY, MAX_TEXT_MEMORY, MAX_CPU_SECONDS, MAX_SECONDS = 2 << 30, 256 << 20, 30, 120
# Largest number of characters or tokens for each character of the sample.
MAX_EXPANSION = 32
# A slow regular expression needs many repeats of a character, and a rule of replacement its own text.
CHECK = """
import contextlib, json, sys
with contextlib.suppress(ImportError):
    resource = __import__("resource")
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
    resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[3]), int(sys.argv[3])))
from tokenizers import Tokenizer
def replaced(value):
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    texts = [value["String"]] if isinstance(value, dict) and isinstance(value.get("String"), str) else []
    return texts + [text for item in items for text in replaced(item)]
with open(sys.argv[1], "rb") as file:
    content = file.read()
rules = {name: value for name, value in json.loads(content).items() if name != "model"}
tokenizer = Tokenizer.from_buffer(content)
# A short text needs little more than the tokenizer itself; filling all of the first limit takes many seconds.
with contextlib.suppress(Exception):
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (min(int(sys.argv[2]), size + int(sys.argv[5])), int(sys.argv[2])))
repeats = [chr(code) * 64 for code in range(9, 256) if chr(code).isprintable() or chr(code).isspace()]
mixed = [text[0] + text + "!" for text in repeats]
for text in [
    *repeats, *mixed, *replaced(rules), "The quick brown fox, it's 3.14.", "\u4e1c\u4eac caf\u00e9 \U0001f600"
]:
    normalizer = tokenizer.normalizer
    results = [normalizer.normalize_str(text) if normalizer else ""]
    # A small vocabulary may lack symbols of the sample.
    with contextlib.suppress(Exception):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        results += [ids, tokenizer.decode(ids)]
    if max(map(len, results)) > int(sys.argv[4]) * (len(text) + 1):
        raise ValueError
"""


def load_causal_lm(name: str, *, device: torch.device | None = None, dtype: str = "float32") -> CausalLM:
    """Load a model for an influence study. Raises the same errors as `load_pretrained`."""
    return CausalLM(load_pretrained(name, device=device, dtype=dtype), name)


def load_text_model(
    name: str, *, tokenizer: str | None = None, device: torch.device | None = None, dtype: str = "float32"
) -> PlainTextModel:
    """Load a model and a tokenizer for evaluation in plain text. Raises the same errors as `load_pretrained`."""
    model = load_pretrained(name, device=device, dtype=dtype)
    return PlainTextModel(model, load_tokenizer_adapter(name if tokenizer is None else tokenizer), name)


def load_pretrained(name: str, *, device: torch.device | None = None, dtype: str = "float32") -> PreTrainedModel:
    """Load a causal model for inference. Raises ``ModelError`` for a missing, damaged or unsupported model.

    ``dtype`` is one of ``DTYPES``. Half precision halves the memory and changes a loss by a few hundredths of a nat.
    Quantized weights of a GGUF file become weights of this type. Loading never runs code from the model's folder.
    """
    if dtype not in DTYPES:
        raise unknown_name_error("dtype", dtype, DTYPES)
    _check_folder(name)
    with _open_source(name, _describe_error) as (source, gguf_file, arguments):
        config = AutoConfig.from_pretrained(source, trust_remote_code=False, **arguments)
        if gguf_file is not None:
            _check_model_size("its header", read_tensor_sizes(gguf_file), config)
            # The library could otherwise download code that computes with quantized weights.
            arguments["quantization_config"] = GgufConfig(dequantize=True)
        elif Path(name).is_dir():
            sizes = [size for path in Path(name).glob("*.safetensors") for size in _tensor_sizes(path)]
            _check_model_size(CONFIG_NAME, sizes, config)
        result: Any = AutoModelForCausalLM.from_pretrained(
            source,
            config=config,
            dtype=getattr(torch, dtype),
            trust_remote_code=False,
            # Other formats use pickle.
            use_safetensors=True,
            output_loading_info=True,
            **arguments,
        )
    model, loading_info = result
    if gguf_file is not None:
        model.config.name_or_path = name
    if missing := sorted(set(loading_info["missing_keys"])):
        part = "a language-modelling head" if set(missing) & set(HEAD_WEIGHTS) else f"weights such as {missing[0]}"
        raise ModelError(f"{name} was saved without {part}; use a model with an architecture such as LlamaForCausalLM")
    model.eval()
    return model if device is None else model.to(device)


def check_model_exists(name: str) -> None:
    """Raise ``ModelError`` unless a model of this name exists. The weights are not loaded."""
    _check_folder(name)
    with _open_source(name, _describe_error) as (source, _, arguments):
        AutoConfig.from_pretrained(source, trust_remote_code=False, **arguments)


def load_tokenizer_adapter(name: str) -> HFTokenizerAdapter:
    """Load the tokenizer of a model. Raises ``ModelError`` for a model without a tokenizer."""
    _check_path(name)

    def describe(source_name: str, error: Exception) -> str:
        advice = "choose a tokenizer with --tokenizer"
        return f"the tokenizer of {name} cannot be loaded ({_first_line(error)}); {advice}"

    with _open_source(name, describe) as (source, gguf_file, arguments):
        if gguf_file is None:
            _check_tokenizer(Path(name) / TOKENIZER_FILE)
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **arguments)
        if gguf_file is not None:
            tokenizer.backend_tokenizer.save(str(Path(source) / TOKENIZER_FILE))
            _check_tokenizer(Path(source) / TOKENIZER_FILE)
        return HFTokenizerAdapter(tokenizer, name)


@contextmanager
def _open_source(
    name: str, describe: Callable[[str, Exception], str]
) -> Iterator[tuple[str, Path | None, dict[str, Any]]]:
    """Check the files of a model; yield where `transformers` loads it from, its GGUF file if any, and more arguments.

    Hides warnings and progress bars. An error becomes a ``ModelError`` with its description.
    """
    gguf_file = find_gguf_file(name)
    verbosity, has_progress_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        if gguf_file is None:
            if Path(name).is_dir():
                _check_model_folder(Path(name))
            yield name, None, {}
            return
        read_tensor_sizes(gguf_file)
        # An empty folder, because the library also reads other files beside a GGUF file.
        with TemporaryDirectory() as folder:
            yield folder, gguf_file, {"gguf_file": str(gguf_file.absolute())}
    except Exception as error:  # a damaged file can raise any type of error
        raise ModelError(describe(name if gguf_file is None else str(gguf_file), error)) from None
    finally:
        logging.set_verbosity(verbosity)
        if has_progress_bar:
            logging.enable_progress_bar()


def _check_folder(name: str) -> None:
    path = Path(name)
    if find_gguf_file(name) is not None:
        return
    if path.is_file():
        is_in_model = (path.parent / CONFIG_NAME).is_file()
        advice = f", such as {path.parent}" if is_in_model else ", or a GGUF file, whose name ends in .gguf"
        raise ModelError(f"{name} is a file; use a folder written by save_pretrained{advice}")
    if path.is_dir() and not (path / "config.json").is_file():
        checkpoints = list(path.glob("*/config.json"))
        newest = max(checkpoints, key=lambda file: file.stat().st_mtime).parent if checkpoints else None
        advice = "a folder written by save_pretrained" if newest is None else f"a model in it, such as {newest}"
        raise ModelError(f"{name} contains no model (no config.json); use {advice}")
    _check_path(name)


def _check_path(name: str) -> None:
    """Raise ``ModelError`` for the path of a missing folder, which must not be sent to the Hub as a name."""
    path = Path(name)
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name or is_gguf_path(name)
    if "/" in name and (path.parts[0] == RUNS or path.parent.exists()):
        is_path = True
    if is_path and not path.exists():
        kinds = "a GGUF file" if is_gguf_path(name) else "a folder written by save_pretrained"
        raise ModelError(f"{name} does not exist; use {kinds}, or a name on the Hub")


def _describe_error(name: str, error: Exception) -> str:
    first_line = _first_line(error)
    if "Unrecognized configuration class" in first_line:
        return f"{name} is not a causal model with a language-modelling head; use a model such as Llama or GPT-2"
    if "trust_remote_code" in str(error):
        return f"{name} needs code from its folder, which is never executed; use a model that transformers supports"
    if is_gguf_path(name):
        return f"{name} cannot be loaded ({first_line}); use another GGUF file, or a folder written by save_pretrained"
    subject = name if Path(name).exists() else f"there is no folder {name}, and a model of this name on the Hub"
    return f"{subject} cannot be loaded ({first_line}); use a folder written by save_pretrained, or a name on the Hub"


def _first_line(error: Exception) -> str:
    line = str(error).strip().split("\n")[0][:200]
    return line if isinstance(error, OSError | ValueError | ImportError) and line else f"{type(error).__name__}: {line}"


def _check_model_folder(folder: Path) -> None:
    """Raise ``ValueError`` for a configuration with too large numbers, and for names of files outside the folder.

    Raises ``OSError`` for a named pipe or a device among the files.
    """
    for path in filter(Path.exists, chain(folder.iterdir(), (folder / CHAT_TEMPLATE_DIR).glob("*"))):
        check_regular_file(path)
    if (folder / ADAPTER_FILE).exists():
        raise ValueError(f"it has an adapter ({ADAPTER_FILE}), which names another model; merge and save the model")
    config_file = folder / CONFIG_NAME
    for name, value in _entries(parse_json(config_file.read_bytes()) if config_file.exists() else {}):
        limits = [limit for part, limit in LIMITS.items() if part in name]
        if type(value) is int and limits and value > limits[0]:
            raise ValueError(f"{CONFIG_NAME} has the {name} {value}; at most {limits[0]:,} is supported")
        if name == WEIGHTS_KEY:
            _check_file_name(value)
    for index in folder.glob("*.safetensors.index.json"):
        weight_map = parse_json(index.read_bytes()).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ValueError(f"{index.name} has no weight_map")
        for file_name in set(map(str, weight_map.values())):
            _check_file_name(file_name)


def _check_model_size(source: str, sizes: list[int], config: PreTrainedConfig) -> None:
    """Raise ``ValueError`` for a configuration with far more parameters than tensors of the saved ``sizes`` have."""
    num_layers, num_saved = getattr(config.get_text_config(), "num_hidden_layers", None), sum(sizes)
    if isinstance(num_layers, int) and num_layers > len(sizes):
        raise ValueError(f"{source} has {num_layers:,} layers, but the weights have only {len(sizes):,} tensors")
    with torch.device("meta"):
        model: torch.nn.Module = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    if num_parameters > MAX_PARAMETER_RATIO * num_saved + MAX_EXTRA_PARAMETERS:
        raise ValueError(f"{source} has {num_parameters:,} parameters, but the weights have only {num_saved:,}")


def _tensor_sizes(path: Path) -> list[int]:
    with safe_open(path, framework="pt") as file:
        return [math.prod(file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118


def _entries(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the numbers and texts of a document, each with the innermost name around it."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _entries(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from _entries(item, name)
    else:
        yield name, value


def _check_file_name(name: Any) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"[^/\\\0]+\.safetensors(\.index\.json)?", name):
        raise ValueError(f"it names the file {name!r}; weights must be safetensors files in the folder itself")


def _check_tokenizer(path: Path) -> None:
    """Raise ``ValueError`` for a file whose rules fail, take too long, or expand a short text; else return."""
    if not path.is_file():
        return
    arguments = [str(path), *map(str, (MAX_MEMORY, MAX_CPU_SECONDS, MAX_EXPANSION, MAX_TEXT_MEMORY))]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    try:
        subprocess.run(
            [sys.executable, "-c", CHECK, *arguments],
            check=True,
            capture_output=True,
            timeout=MAX_SECONDS,
            env=environment,
        )
    except subprocess.SubprocessError:
        raise ValueError(f"{TOKENIZER_FILE} fails, takes too long or expands a short sample of text") from None

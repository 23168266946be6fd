"""Checks of a `transformers` model folder, which make loading it read no other files and allocate little memory."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.utils import CONFIG_NAME

from lengthwise.core.files import check_regular
from lengthwise.core.json_parsing import parse_json

# Largest numbers in a configuration, by a part of their name. Larger ones take minutes before any weight is read.
LIMITS = {"layer": 1_000, "expert": 10_000, "label": 100_000}
# Key of a configuration that names the file with the weights, and file that makes the library load another model.
WEIGHTS_KEY, ADAPTER_FILE = "transformers_weights", "adapter_config.json"
# Largest number of parameters of a model for each saved number, because quantized weights pack several, and for all.
MAX_PARAMETER_RATIO, MAX_EXTRA_PARAMETERS = 16, 1 << 24


def check_model_folder(folder: Path) -> None:
    """Raise ``ValueError`` for a configuration with too large numbers, and for names of files outside the folder.

    Raises ``OSError`` for a named pipe or a device among the files.
    """
    for path in filter(Path.exists, folder.iterdir()):
        check_regular(path)
    if (folder / ADAPTER_FILE).exists():
        raise ValueError(f"it has an adapter ({ADAPTER_FILE}), which names another model; merge and save the model")
    for name, value in _entries(_read_config(folder)):
        limits = [limit for part, limit in LIMITS.items() if part in name]
        if type(value) is int and limits and value > limits[0]:
            raise ValueError(f"{CONFIG_NAME} has the {name} {value}; at most {limits[0]:,} is supported")
        if name == WEIGHTS_KEY:
            _check_file_name(value)
    for index in folder.glob("*.safetensors.index.json"):
        for file_name in _shard_names(index):
            _check_file_name(file_name)


def check_model_size(folder: Path, config: PreTrainedConfig) -> None:
    """Raise ``ValueError`` for a configuration with far more parameters than the folder has saved."""
    sizes = [size for path in folder.glob("*.safetensors") for size in _tensor_sizes(path)]
    num_layers, num_saved = getattr(config.get_text_config(), "num_hidden_layers", None), sum(sizes)
    if isinstance(num_layers, int) and num_layers > len(sizes):
        raise ValueError(f"{CONFIG_NAME} has {num_layers:,} layers, but the weights have only {len(sizes):,} tensors")
    with torch.device("meta"):
        model: torch.nn.Module = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    if num_parameters > MAX_PARAMETER_RATIO * num_saved + MAX_EXTRA_PARAMETERS:
        raise ValueError(f"{CONFIG_NAME} has {num_parameters:,} parameters, but the weights have only {num_saved:,}")


def _read_config(folder: Path) -> Any:
    path = folder / CONFIG_NAME
    return parse_json(path.read_bytes()) if path.exists() else {}


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


def _shard_names(index: Path) -> set[Any]:
    weight_map = parse_json(index.read_bytes()).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ValueError(f"{index.name} has no weight_map")
    return set(map(str, weight_map.values()))


def _check_file_name(name: Any) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"[^/\\\0]+\.safetensors(\.index\.json)?", name):
        raise ValueError(f"it names the file {name!r}; weights must be safetensors files in the folder itself")

"""Checkpoints without pickle: one safetensors file with tensors, JSON metadata and a digest that loading verifies."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from lengthwise.core.errors import RunFolderError
from lengthwise.core.files import check_regular_file, write_atomically
from lengthwise.core.json_parsing import parse_json

# Values per weight tensor in ``weights_digest``: all of a smaller tensor, fewer than twice this of a larger tensor.
DIGEST_SAMPLES = 4096


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Save tensors, JSON metadata about them, and the SHA-256 digest of both."""
    cpu_tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata_json = json.dumps(metadata, sort_keys=True)
    header = {"facts": metadata_json, "sha256": _digest(cpu_tensors, metadata_json)}
    write_atomically(path, save(cpu_tensors, metadata=header))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load a file that ``save_tensors`` wrote; raise ``RunFolderError`` if it is missing, truncated or altered."""
    try:
        check_regular_file(path)
        # With framework "pt", the path must be valid UTF-8.
        with safe_open(path, framework="np"):
            pass  # Opening the file checks the header and the file size before the whole file is read.
        content = path.read_bytes()
        # safe_open.get_tensor never frees the name of a tensor (safetensors 0.8.0).
        tensors, header_metadata = load(content), _read_header_metadata(content)
    except FileNotFoundError:
        raise RunFolderError(f"{path} does not exist; train first, or resume the run with --resume") from None
    except (SafetensorError, OSError, KeyError) as error:  # KeyError: torch does not support the dtype.
        raise RunFolderError(f"{path} is damaged ({error}); train the run again or resume it with --resume") from None
    metadata_json = header_metadata.get("facts", "")
    if header_metadata.get("sha256") != _digest(tensors, metadata_json):
        raise RunFolderError(
            f"{path} was modified after training (its digest differs); train the run again or use --resume"
        )
    try:
        return tensors, parse_json(metadata_json)
    except ValueError as error:
        raise RunFolderError(f"{path} has invalid metadata ({error}); train the run again") from None


def _read_header_metadata(content: bytes) -> dict[str, str]:
    header_size = int.from_bytes(content[:8], "little")
    # The safetensors library accepts null as metadata.
    return dict(json.loads(content[8 : 8 + header_size]).get("__metadata__") or {})


def check_tensors(path: Path, tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise ``RunFolderError`` unless the tensors have the expected names, shapes and dtypes."""
    for name in sorted({*tensors, *expected}):
        actual, needed = (_describe_tensor(group.get(name)) for group in (tensors, expected))
        if actual != needed:
            raise RunFolderError(
                f"{path} belongs to another experiment (tensor {name} is {actual}, not {needed}); choose another --out"
            )


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the name, shape, dtype and about ``DIGEST_SAMPLES`` evenly spaced values of each tensor."""
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {_describe_tensor(weight)}".encode())
        if weight.device.type != "meta":
            sample = weight.detach().reshape(-1)[:: max(1, weight.numel() // DIGEST_SAMPLES)]
            digest.update(sample.to("cpu", torch.float64).numpy().tobytes())
    return digest.hexdigest()


def _describe_tensor(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _digest(tensors: Mapping[str, Tensor], metadata_json: str) -> str:
    digest = hashlib.sha256(metadata_json.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        # View the tensor as bytes, because NumPy does not support some torch dtypes.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

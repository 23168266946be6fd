"""Tensors and facts in one file that is either whole or refused: safetensors, no pickle."""

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
from lengthwise.core.files import write_atomically
from lengthwise.core.json_parsing import parse_json

# Numbers of a weight that its digest is made of.
SAMPLED = 4096


def save_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Save tensors with JSON facts about them and a digest of both."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(facts, sort_keys=True)
    write_atomically(path, save(whole, metadata={"facts": text, "sha256": _digest(whole, text)}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what ``save_tensors`` wrote; ``RunFolderError`` when the file is missing, truncated or altered."""
    try:
        with safe_open(path, framework="pt"):
            pass  # Its header and its size are right: all of it can be read.
        content = path.read_bytes()
        # Not with get_tensor, which keeps the name of each tensor for ever (safetensors 0.8.0).
        tensors, metadata = load(content), _metadata(content)
    except FileNotFoundError:
        raise RunFolderError(f"{path} does not exist; train first, or resume the run with --resume") from None
    except (SafetensorError, OSError, KeyError) as error:  # A KeyError is a type that torch does not have.
        raise RunFolderError(f"{path} is damaged ({error}); train the run again or resume it with --resume") from None
    text = metadata.get("facts", "")
    if metadata.get("sha256") != _digest(tensors, text):
        raise RunFolderError(f"{path} is not what training wrote (its digest differs); train or --resume the run again")
    try:
        return tensors, parse_json(text)
    except ValueError as error:
        raise RunFolderError(f"{path} has facts that cannot be read ({error}); train the run again") from None


def _metadata(content: bytes) -> dict[str, str]:
    size = int.from_bytes(content[:8], "little")
    # A null there is no fault to safetensors.
    return dict(json.loads(content[8 : 8 + size]).get("__metadata__") or {})


def check_tensors(path: Path, tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """``RunFolderError`` unless a file has tensors of these names, shapes and types, and no others."""
    for name in sorted({*tensors, *expected}):
        found, wanted = (_form(each.get(name)) for each in (tensors, expected))
        if found != wanted:
            raise RunFolderError(
                f"{path} is of another experiment ({name} is {found}, not {wanted}); train into another --out"
            )


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Digest of the form and of up to ``SAMPLED`` evenly spaced numbers of each weight: fast for any size of model."""
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {_form(weight)}".encode())
        if weight.device.type != "meta":
            flat = weight.detach().reshape(-1)
            digest.update(flat[:: max(1, flat.numel() // SAMPLED)].to("cpu", torch.float64).numpy().tobytes())
    return digest.hexdigest()


def _form(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _digest(tensors: Mapping[str, Tensor], facts: str) -> str:
    digest = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        # As bytes: numpy has not every type of torch.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

"""Where to compute, by name."""

import torch

from lengthwise.errors import DeviceError, unknown_name

DEVICES = ("auto", "cpu", "cuda")


def pick_device(name: str = "auto") -> torch.device:
    """The device by name; ``auto`` takes CUDA where there is one."""
    if name not in DEVICES:
        raise unknown_name("device", name, DEVICES)
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError("device 'cuda' was asked for but torch sees no CUDA device; use --device cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")

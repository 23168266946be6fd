"""Where to compute, by name, and how much memory is there."""

import os
from functools import cache
from pathlib import Path

import torch

from lengthwise.core.errors import DeviceError, SettingError, unknown_name

DEVICES = ("auto", "cpu", "cuda")
# Tokens of one forward on a processor, where more gain nothing, and the most on an accelerator.
FEW_TOKENS, MANY_TOKENS = 1 << 11, 1 << 16
# The sequence length for which the scores of a forward have room, and the activations of a token, in its widths.
SCORED, WIDTHS = 4096, 20
# The limit of a container, in bytes.
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def pick_device(name: str = "auto") -> torch.device:
    """The device by name; ``auto`` takes CUDA where there is one."""
    if name not in DEVICES:
        raise unknown_name("device", name, DEVICES)
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError("device 'cuda' was asked for but torch sees no CUDA device; use --device cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def forward_token_budget(device: torch.device, width: int, num_heads: int) -> int:
    """Return about how many tokens a forward may read: few on a CPU, as many as half of the free memory holds on CUDA.

    An estimate in float32, for a layer of ``width`` and ``num_heads``: whoever asks halves what memory cannot hold.
    """
    if device.type != "cuda":
        return FEW_TOKENS
    free, _ = torch.cuda.mem_get_info(device)
    per_token = 4 * (2 * num_heads * SCORED + WIDTHS * width)
    return max(FEW_TOKENS, min(MANY_TOKENS, free // (2 * per_token)))


def check_memory(num_bytes: int, what: str, change: str) -> None:
    """``SettingError`` where ``what`` takes more bytes than the machine has: a lower bound, before any is taken."""
    there = machine_memory()
    if there is not None and num_bytes > there:
        needed = f"{num_bytes / 2**30:,.0f}" if num_bytes < 2**60 else "over a billion"
        raise SettingError(f"{what} needs {needed} GiB or more, and this machine has {there / 2**30:,.0f}; {change}")


@cache
def machine_memory() -> int | None:
    """Bytes of memory that this machine, or container, has; None where it does not say."""
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    try:
        return min(there, int(CONTAINER_LIMIT.read_text()))
    except (OSError, ValueError):
        return there

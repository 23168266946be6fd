"""Where to compute, by name."""

import torch

from lengthwise.errors import DeviceError, unknown_name

DEVICES = ("auto", "cpu", "cuda")
# Tokens of one forward on a processor, where more gain nothing, and the most on an accelerator.
FEW_TOKENS, MANY_TOKENS = 1 << 11, 1 << 16
# The sequence length for which the scores of a forward have room, and the activations of a token, in its widths.
SCORED, WIDTHS = 4096, 20


def pick_device(name: str = "auto") -> torch.device:
    """The device by name; ``auto`` takes CUDA where there is one."""
    if name not in DEVICES:
        raise unknown_name("device", name, DEVICES)
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError("device 'cuda' was asked for but torch sees no CUDA device; use --device cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def tokens_at_once(device: torch.device, width: int, num_heads: int) -> int:
    """Return about how many tokens a forward may read: few on a CPU, as many as half of the free memory holds on CUDA.

    An estimate in float32, for a layer of ``width`` and ``num_heads``: whoever asks halves what memory cannot hold.
    """
    if device.type != "cuda":
        return FEW_TOKENS
    free, _ = torch.cuda.mem_get_info(device)
    per_token = 4 * (2 * num_heads * SCORED + WIDTHS * width)
    return max(FEW_TOKENS, min(MANY_TOKENS, free // (2 * per_token)))

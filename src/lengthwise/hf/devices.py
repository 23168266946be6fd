"""Where a model takes its inputs, its weights offloaded or not."""

import torch
from torch import nn

from lengthwise.core.errors import ModelError


def device_of(model: nn.Module) -> torch.device:
    """Of its first weights that are in memory; offloaded ones are fetched to it when they are used."""
    here = (weight.device for weight in model.parameters() if weight.device.type != "meta")
    return next(here, torch.device("cpu"))


def check_one_device(name: str, model: nn.Module) -> None:
    """Raise ``ModelError`` for a model whose layers are on several devices."""
    used = sorted({str(weight.device) for weight in model.parameters() if weight.device.type != "meta"})
    if len(used) > 1:
        raise ModelError(
            f"{name} is spread over {', '.join(used)}, and a position head reads it at both ends; load it onto one "
            "of them (what has no room there can be offloaded to the CPU or to disk)"
        )

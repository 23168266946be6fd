"""The effect of rounding on a prediction, measured by adding rounding errors of random size (stochastic arithmetic)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lengthwise.influence.probing.exactness import difference

# Passes with random errors, and by how much another order of the same sums may differ from all of them.
DRAWS, MARGIN = 5, 2.0
# Nats that are no fault in any precision: far below every result of a study.
LEAST = 1e-3


@torch.no_grad()
def rounding_error(model: nn.Module, ask: Callable[[], Float[Tensor, " vocab"]]) -> float:
    """Return the largest difference (nats) of the answer that rounding explains, and ``LEAST`` at least.

    Every layer's output is changed by a random share of up to the precision of its type, as in Vignes 1993 (A
    stochastic arithmetic for reliable scientific computation).
    """
    expected = ask()
    found = []
    for seed in range(DRAWS):
        with _random_rounding(model, seed):
            found.append(difference(ask(), expected))
    return max(LEAST, MARGIN * max(found))


@contextmanager
def _random_rounding(model: nn.Module, seed: int) -> Iterator[None]:
    generators: dict[torch.device, torch.Generator] = {}

    def disturb(layer: nn.Module, given: Any, made: Any) -> Any:
        if not isinstance(made, Tensor) or not made.is_floating_point():
            return made
        if made.device not in generators:
            generators[made.device] = torch.Generator(made.device).manual_seed(seed)
        share = torch.rand(made.shape, generator=generators[made.device], device=made.device) * 2 - 1
        return (made.double() * (1 + torch.finfo(made.dtype).eps * share)).to(made.dtype)

    layers = [layer for layer in model.modules() if not list(layer.children()) and not isinstance(layer, nn.Dropout)]
    hooks = [layer.register_forward_hook(disturb) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()

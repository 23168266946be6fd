"""What a wrapped model gets besides a position head."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class Tap:
    """Keeps what a module is given, for whoever takes it next."""

    def __init__(self) -> None:
        self.seen: Tensor | None = None
        self.at: nn.Module | None = None

    def watch(self, module: nn.Module) -> None:
        """From now on this one; at first, and when adapters have put another module in its place."""
        if self.at is not module:
            module.register_forward_pre_hook(self)
            self.at = module

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """The hook: before the module runs."""
        self.seen = args[0]

    def take(self) -> Tensor:
        """What came last, once."""
        taken, self.seen = self.seen, None
        assert taken is not None
        return taken


class KeepsPrecision(nn.Module):
    """A model whose parts named in ``_keep_in_fp32_modules_strict`` move to a device and change no precision."""

    _keep_in_fp32_modules_strict: ClassVar[list[str]]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        kept = {name: self._modules[name] for name in self._keep_in_fp32_modules_strict if name in self._modules}
        self._modules.update(dict.fromkeys(kept))
        try:
            super()._apply(fn, recurse)
        finally:
            self._modules.update(kept)

        def moved(tensor: Tensor) -> Tensor:
            found = fn(tensor)
            return tensor.to(found.device) if found.dtype != tensor.dtype else found

        for part in kept.values():
            if part is not None and recurse:
                part._apply(moved)
        return self


class Segment(nn.Module):
    """One learned vector for the tokens of the response."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(d_model))

    def forward(self, embedded: Tensor, is_prompt: Tensor) -> Tensor:
        """Added to the embeddings of what is no prompt."""
        return embedded + (~is_prompt)[..., None] * self.weight

"""What a wrapped model gets besides a position head."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel


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


class EmbedsWithin(nn.Module):
    """Embeddings are those of the model within, ``self.model``."""

    config: Any
    model: PreTrainedModel
    segment: Segment | None

    def get_input_embeddings(self) -> nn.Module:
        """Return the embeddings of the model within."""
        embeddings: nn.Module = self.model.get_input_embeddings()
        return embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embeddings of the model within."""
        self.model.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        """Return the output layer of the model within."""
        embeddings: nn.Module = self.model.get_output_embeddings()
        return embeddings

    def set_output_embeddings(self, value: nn.Module) -> None:
        """Replace the output layer of the model within."""
        self.model.set_output_embeddings(value)

    def _embedded(self, tokens: Tensor, is_prompt: Tensor) -> Float[Tensor, "batch new d_model"]:
        embedded: Tensor = self.get_input_embeddings()(tokens)
        return embedded if self.segment is None else self.segment(embedded, is_prompt)

    def _chosen(self, tokens: Int[Tensor, "batch query"]) -> Float[Tensor, "batch query d_model"]:
        """Return what a head reads of the token whose ID is asked for."""
        embedded = self._known_tokens(tokens)
        return embedded if self.config.condition_on_token else torch.zeros_like(embedded)

    def _known_tokens(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq d_model"]:
        """Return embeddings as a head compares them, in its own precision."""
        embedded: Tensor = self.get_input_embeddings()(tokens)
        return embedded.float()

"""Training of sparse functional attention on a planted law with log loss: new short sequences at every step."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from lengthwise.core.errors import DivergedError, SettingError
from lengthwise.core.randomness import stream
from lengthwise.tasks.planted.placement import check_length
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.sparse_attention import ZERO_THRESHOLD, SparseFunctionalAttention
from lengthwise.theory.attention.tabular import PositionFreeAttention, TabularAttention


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """Settings of AdamW with a cosine schedule to learning rate 0; ``weight_decay`` applies to all logits."""

    batch_size: int = 64
    learning_rate: float = 0.05
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.learning_rate <= 0 or self.weight_decay < 0:
            raise SettingError(
                f"invalid batch_size {self.batch_size}, learning_rate {self.learning_rate} or weight_decay "
                f"{self.weight_decay}; use positive values, or 0 for weight_decay"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FitHistory:
    """Sequence length and loss (nats per label, before the update) of each training step."""

    length: Int[np.ndarray, " steps"]
    loss: Float[np.ndarray, " steps"]


def fit_attention(
    module: SparseFunctionalAttention,
    law: Planted,
    *,
    lengths: tuple[int, int],
    steps: int,
    seed: int,
    settings: FitSettings | None = None,
) -> FitHistory:
    """Train ``module`` in place; each step samples a length from ``lengths`` (inclusive) and new sequences.

    The sequences depend only on the seed. Raises ``SettingError`` if module, law and lengths do not fit together,
    and ``DivergedError`` if the loss is not finite.
    """
    _check_match(module, law, lengths, steps)
    settings = FitSettings() if settings is None else settings
    rate, decay = settings.learning_rate, settings.weight_decay
    optimizer = torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=decay, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    step_lengths = stream(seed, "fit", "lengths").integers(lengths[0], lengths[1] + 1, size=steps)
    history = FitHistory(length=step_lengths, loss=np.zeros(steps))
    rng = stream(seed, "fit", "sequences")
    for step, length in enumerate(step_lengths):
        loss = _sample_loss(module, law, int(length), settings.batch_size, rng)
        history.loss[step] = loss.item()
        if not np.isfinite(history.loss[step]):
            raise DivergedError(f"the loss is {history.loss[step]} at step {step}; use a smaller learning rate")
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        scheduler.step()
    return history


@torch.no_grad()
def held_out_loss(module: SparseFunctionalAttention, law: Planted, *, length: int, size: int, seed: int) -> float:
    """Return the mean log loss of the label, in nats, on ``size`` sequences from a separate random stream."""
    _check_match(module, law, (length, length), 1)
    return _sample_loss(module, law, length, size, stream(seed, "held out", length)).item()


def _sample_loss(
    module: SparseFunctionalAttention, law: Planted, length: int, num_sequences: int, rng: np.random.Generator
) -> Float[Tensor, ""]:
    tokens, _, labels = law.sample_arrays(length, num_sequences, rng)
    return functional.nll_loss(module(torch.from_numpy(tokens)), torch.from_numpy(labels))


def _check_match(module: SparseFunctionalAttention, law: Planted, lengths: tuple[int, int], num_steps: int) -> None:
    if (module.num_tokens, module.num_outputs) != (law.num_tokens, law.num_labels):
        raise SettingError(
            f"the attention has {module.num_tokens} tokens and {module.num_outputs} outputs, but the law has "
            f"{law.num_tokens} tokens and {law.num_labels} labels; build the attention with the numbers of the law"
        )
    if lengths[0] > lengths[1] or num_steps < 1:
        raise SettingError(
            f"invalid {num_steps} steps on lengths {lengths}; use at least 1 step, and lengths (shortest, longest)"
        )
    check_length(law.placement, lengths[0])


def fit_tables(
    law: Planted, lengths: tuple[int, int], steps: int, seed: int
) -> TabularAttention | PositionFreeAttention:
    """Train an attention on ``law`` and return its tables: local if the law has a span, otherwise without positions."""
    span = law.placement.span
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(seed, "initial weights").integers(2**63)))
        module = SparseFunctionalAttention(
            num_tokens=law.num_tokens,
            k=law.k,
            num_outputs=law.num_labels,
            span=span,
            local=span is not None,
            score="product" if span is None else "table",
        )
    fit_attention(module, law, lengths=lengths, steps=steps, seed=seed)
    return module.to_tabular() if span is not None else _to_position_free(module)


@torch.no_grad()
def _to_position_free(module: SparseFunctionalAttention) -> PositionFreeAttention:
    double_module = module.double()
    num_codes = module.num_tokens**module.k
    tuples = torch.tensor(np.indices((module.num_tokens,) * module.k).reshape(module.k, -1).T.copy())
    token_indexes = torch.arange(module.k).expand(1, num_codes, -1)
    scores = double_module.sets.log_scores(token_indexes, tuples[None])[0]
    codes = torch.arange(num_codes)[None]
    values = double_module.values.log_values(codes, torch.zeros_like(codes))[0]
    return PositionFreeAttention(
        num_tokens=module.num_tokens,
        k=module.k,
        log_scores=scores.where(scores > ZERO_THRESHOLD, -torch.inf).numpy(),
        values=values.exp().numpy(),
        default=double_module.default.softmax(dim=-1).numpy(),
    )

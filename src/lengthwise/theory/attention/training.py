"""Training of a sparse functional attention on a planted law: fresh sequences, short lengths, the label's log loss."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from lengthwise.core.errors import DivergedError, SettingError
from lengthwise.core.randomness import stream
from lengthwise.tasks.planted.placement import check_fits
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.sparse_attention import ZERO, SparseFunctionalAttention
from lengthwise.theory.attention.tabular import PositionFreeAttention, TabularAttention


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How to train: Adam, its rate falling to 0 along a cosine; ``weight_decay`` pulls all logits to 0, decoupled."""

    batch_size: int = 64
    learning_rate: float = 0.05
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.learning_rate <= 0 or self.weight_decay < 0:
            raise SettingError(
                f"batch_size {self.batch_size}, learning_rate {self.learning_rate} and weight_decay "
                f"{self.weight_decay} train nothing; the first two are above 0, the last at least 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The length and the loss of every step, the loss in nats per label, before that step's change."""

    length: Int[np.ndarray, " steps"]
    loss: Float[np.ndarray, " steps"]


def fit(
    module: SparseFunctionalAttention,
    law: Planted,
    *,
    lengths: tuple[int, int],
    steps: int,
    seed: int,
    schedule: Schedule | None = None,
) -> History:
    """Train ``module`` in place; each step draws one length of ``lengths``, both ends counted, and fresh sequences.

    The same seed draws the same sequences for every module. ``SettingError`` where module, law and lengths do not fit;
    ``DivergedError`` where the loss is no number.
    """
    _check(module, law, lengths, steps)
    schedule = Schedule() if schedule is None else schedule
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=schedule.learning_rate, weight_decay=schedule.weight_decay, fused=True
    )
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    history = History(
        length=stream(seed, "fit", "lengths").integers(lengths[0], lengths[1] + 1, size=steps), loss=np.zeros(steps)
    )
    rng = stream(seed, "fit", "sequences")
    for step, length in enumerate(history.length):
        loss = _loss(module, law, int(length), schedule.batch_size, rng)
        history.loss[step] = loss.item()
        if not np.isfinite(history.loss[step]):
            raise DivergedError(f"the loss is {history.loss[step]} at step {step}; use a smaller learning rate")
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        falling.step()
    return history


@torch.no_grad()
def held_out_loss(module: SparseFunctionalAttention, law: Planted, *, length: int, size: int, seed: int) -> float:
    """The mean log loss of the label in nats, on ``size`` sequences that no training with this seed draws."""
    _check(module, law, (length, length), 1)
    return _loss(module, law, length, size, stream(seed, "held out", length)).item()


def _loss(
    module: SparseFunctionalAttention, law: Planted, length: int, size: int, rng: np.random.Generator
) -> Float[Tensor, ""]:
    tokens, _, labels = law.draw(length, size, rng)
    return functional.nll_loss(module(torch.from_numpy(tokens)), torch.from_numpy(labels))


def _check(module: SparseFunctionalAttention, law: Planted, lengths: tuple[int, int], steps: int) -> None:
    if (module.num_tokens, module.num_outputs) != (law.num_tokens, law.num_labels):
        raise SettingError(
            f"the attention has {module.num_tokens} tokens and {module.num_outputs} outputs, the law {law.num_tokens} "
            f"tokens and {law.num_labels} labels; build the attention with the numbers of the law"
        )
    if lengths[0] > lengths[1] or steps < 1:
        raise SettingError(f"{steps} steps on lengths {lengths} train nothing; write (shortest, longest) and steps")
    check_fits(law.placement, lengths[0])


def fitted(law: Planted, trained: tuple[int, int], steps: int, seed: int) -> TabularAttention | PositionFreeAttention:
    """A trained attention, as tables: local where the law is, else one without positions."""
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
    fit(module, law, lengths=trained, steps=steps, seed=seed)
    return module.tabular() if span is not None else position_free(module)


@torch.no_grad()
def position_free(module: SparseFunctionalAttention) -> PositionFreeAttention:
    """A product without locality as one table over tuples."""
    exact = module.double()
    number = module.num_tokens**module.k
    tuples = torch.tensor(np.indices((module.num_tokens,) * module.k).reshape(module.k, -1).T.copy())
    places = torch.arange(module.k).expand(1, number, -1)
    scores = exact.sets.at(places, tuples[None])[0]
    values = exact.values.of(torch.arange(number)[None], torch.zeros(1, number, dtype=torch.long))[0]
    return PositionFreeAttention(
        num_tokens=module.num_tokens,
        k=module.k,
        log_scores=scores.where(scores > ZERO, -torch.inf).numpy(),
        values=values.exp().numpy(),
        default=exact.default.softmax(dim=-1).numpy(),
    )

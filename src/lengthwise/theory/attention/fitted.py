"""Attentions trained on a planted law, as tables: what bounds and exact risks are computed of."""

import numpy as np
import torch

from lengthwise.core.randomness import stream
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.fitting import fit
from lengthwise.theory.attention.position_free import PositionFreeAttention
from lengthwise.theory.attention.sparse_attention import ZERO, SparseFunctionalAttention
from lengthwise.theory.attention.tabular import TabularAttention


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

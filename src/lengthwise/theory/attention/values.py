"""Values of sets of tokens, read token by token, and the sequences that all sums over sets read."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, runtime_checkable

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from lengthwise.core.errors import SettingError

# The log of a weight that counts as zero: finite, because minus infinity makes gradients that are no numbers.
NEVER = -1e30

# Scores and values are listed for at most so many tuples of tokens.
MOST_ROWS = 1 << 24

# How far the first scores and values are from all alike.
FIRST_SPREAD = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """What is read, and what the sequence adds to scores: ``starts`` by the first token of a set, then a ``power``.

    ``position_ids`` are those of a position coupling, None where each token's ID is its index.
    """

    tokens: Int[Tensor, "batch seq"]
    starts: Float[Tensor, " seq"]
    position_ids: Int[Tensor, "batch seq"] | None = None
    power: float = 1.0


@runtime_checkable
class Values(Protocol):
    """``h``: a distribution over the outputs for every tuple of k tokens."""

    def read(
        self, slot: int, sums: Float[Tensor, "batch seq offsets states"], tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq offsets after"]:
        """Carry log sums over tuples on by one token; behind the last slot the states are the outputs."""
        ...

    def of(self, codes: Int[Tensor, "*many"], shape: Int[Tensor, "*many"]) -> Float[Tensor, "*many outputs"]:
        """``log h`` of tuples by their codes, in sets of the given shapes."""
        ...


class TableValues(nn.Module):
    """A distribution over the outputs for every tuple: one for all shapes, or one for each of ``num_shapes``."""

    def __init__(self, num_tokens: int, k: int, num_outputs: int, num_shapes: int = 1) -> None:
        super().__init__()
        check_rows(num_shapes * num_tokens**k, f"values of {k} of {num_tokens} tokens in {num_shapes} shapes")
        self.num_tokens = num_tokens
        self.k = k
        self.logits = nn.Parameter(FIRST_SPREAD * torch.randn(num_shapes, num_tokens**k, num_outputs))

    def read(
        self, slot: int, sums: Float[Tensor, "batch seq offsets states"], tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq offsets after"]:
        """The states are words: a word grows by the token at hand, and a whole one is worth its value.

        The last token needs no state of its own, so k tokens cost ``|V|^(k - 1)`` states.
        """
        assert len(self.logits) == 1, "values by shape are looked up, not read"
        if slot < self.k - 1:
            here = functional.one_hot(tokens, self.num_tokens).bool()[:, :, None, None]
            return torch.where(here, sums[..., None], NEVER).flatten(-2)
        worth = rearrange(self.logits[0].log_softmax(-1), "(words v) outputs -> v (words outputs)", v=self.num_tokens)
        return contracted(sums, functional.embedding(tokens, worth))

    def of(self, codes: Int[Tensor, "*many"], shape: Int[Tensor, "*many"]) -> Float[Tensor, "*many outputs"]:
        """Look them up."""
        rows = codes if len(self.logits) == 1 else shape * self.logits.shape[1] + codes
        return functional.embedding(rows, self.logits.log_softmax(-1).flatten(0, 1))


class AutomatonValues(nn.Module):
    """A stochastic automaton reads the k tokens in order; its last step goes to the outputs.

    One table of steps per slot, logits over the next state by token and state: any value that is a tensor train of
    rank ``num_states`` and has positive factors. With k = 1 this is a table.
    """

    def __init__(self, num_tokens: int, k: int, num_outputs: int, num_states: int = 2) -> None:
        super().__init__()
        if num_states < 1:
            raise SettingError(f"an automaton of {num_states} states reads nothing; use num_states of at least 1")
        sizes = (1, *(num_states,) * (k - 1), num_outputs)
        self.num_tokens = num_tokens
        self.steps = nn.ParameterList([torch.randn(num_tokens, before, after) for before, after in pairwise(sizes)])

    def read(
        self, slot: int, sums: Float[Tensor, "batch seq offsets states"], tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq offsets after"]:
        """One step."""
        return contracted(sums, functional.embedding(tokens, self.steps[slot].log_softmax(-1).flatten(1)))

    def of(self, codes: Int[Tensor, "*many"], shape: Int[Tensor, "*many"]) -> Float[Tensor, "*many outputs"]:
        """Read each tuple; shapes do not matter."""
        tuples = digits(codes.reshape(1, -1), self.num_tokens, len(self.steps))
        sums = self.steps[0].new_zeros(1, codes.numel(), 1, 1)
        for slot in range(len(self.steps)):
            sums = self.read(slot, sums, tuples[..., slot])
        return sums.view(*codes.shape, sums.shape[-1])


def contracted(
    sums: Float[Tensor, "batch seq offsets states"], steps: Float[Tensor, "batch seq steps"]
) -> Float[Tensor, "batch seq offsets after"]:
    """``log sum_state exp(sums[state] + steps[state, after])``; ``steps`` are the two axes in one."""
    by_state = rearrange(steps, "b s (states after) -> b s 1 states after", states=sums.shape[-1])
    if sums.shape[-1] == 1:
        return sums + by_state[..., 0, :]
    return (sums[..., None] + by_state).logsumexp(dim=-2)


def digits(codes: Int[Tensor, "*many"], num_tokens: int, k: int) -> Int[Tensor, "*many k"]:
    """The tuples of codes: the first token is the leading digit."""
    places = num_tokens ** torch.arange(k - 1, -1, -1, device=codes.device)
    return codes[..., None] // places % num_tokens


def check_rows(rows: int, what: str) -> None:
    """Refuse tables that are too large to list."""
    if rows > MOST_ROWS:
        raise SettingError(
            f"{what} make {rows:,} entries, more than the {MOST_ROWS:,} that are listed; use fewer, or score "
            "'chain' or 'product' with value 'automaton'"
        )

"""Sums over all sets of k tokens, however far apart, of scores that are products: one cumulative sum per slot.

Also what all sums over sets share: the sequences they read, and values that are read token by token.
"""

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


@runtime_checkable
class SetScores(Protocol):
    """``g`` as a structure over which it can be summed exactly without listing all sets."""

    def ending(self, values: Values, sequences: Sequences) -> Float[Tensor, "batch seq outputs"]:
        """``log sum g(S, x_S) h(x_S)`` over the sets whose last token is each token; ``NEVER`` where there is none."""
        ...

    def at(self, ids: Int[Tensor, "batch sets k"], tuples: Int[Tensor, "batch sets k"]) -> Float[Tensor, "batch sets"]:
        """``log g`` of given sets by the IDs and the tokens in them, in the order of the tokens."""
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


def counting(num_tokens: int, k: int, modulus: int, counted: tuple[int, ...]) -> AutomatonValues:
    """The automaton whose output is how many of the k tokens are in ``counted``, modulo ``modulus``; 2 is parity."""
    if not all(0 <= token < num_tokens for token in counted):
        raise SettingError(f"counted tokens {counted} reach beyond the {num_tokens} there are; leave those out")
    values = AutomatonValues(num_tokens, k, modulus, modulus)
    states = torch.arange(modulus)
    more = torch.isin(torch.arange(num_tokens), torch.tensor(counted)).long()
    after = (states + more[:, None]) % modulus
    for steps in values.steps:
        goal = functional.one_hot(after[:, : steps.shape[1]], modulus)
        steps.data = torch.where(goal.bool(), 0.0, NEVER)
    return values


class ProductScores(nn.Module):
    """``g = prod_j u_j(x_(i_j))`` for all sets of k tokens in order, at any distance.

    The sums are ordered elementary symmetric polynomials: ``E_j(i) = E_j(i - 1) + u_j(x_i) E_(j-1)(i - 1)``, here one
    cumulative log-sum-exp per slot over all tokens. Time ``O(seq k states)``. Reconstructed.
    """

    def __init__(self, num_tokens: int, k: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(FIRST_SPREAD * torch.randn(k, num_tokens))

    def ending(self, values: Values, sequences: Sequences) -> Float[Tensor, "batch seq outputs"]:
        """Slot by slot; a set may go on behind any token before."""
        sums = sequences.starts[None, :, None, None].expand(len(sequences.tokens), -1, 1, 1) * sequences.power
        own = functional.embedding(sequences.tokens, sequences.power * self.tokens.T)  # batch seq k
        for slot in range(len(self.tokens)):
            if slot > 0:
                sums = functional.pad(sums.logcumsumexp(1), (0, 0, 0, 0, 1, 0), value=NEVER)[:, :-1]
            sums = values.read(slot, sums + own[:, :, None, slot, None], sequences.tokens)
        return sums[:, :, 0]

    def at(self, ids: Int[Tensor, "batch sets k"], tuples: Int[Tensor, "batch sets k"]) -> Float[Tensor, "batch sets"]:
        """IDs do not matter."""
        return by_slot(self.tokens, tuples)


def by_slot(scores: Float[Tensor, "k tokens"], tuples: Int[Tensor, "batch sets k"]) -> Float[Tensor, "batch sets"]:
    """The sum of each token's score in its slot."""
    return scores[torch.arange(len(scores)), tuples].sum(dim=-1)


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

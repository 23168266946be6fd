"""Trainable values of sets of tokens, evaluated token by token, and the inputs of the sums over sets."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, runtime_checkable

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from lengthwise.core.errors import SettingError

# The log of a weight that counts as zero; finite, because minus infinity gives NaN gradients.
LOG_ZERO = -1e30
# Maximum number of entries of a table of scores or values.
MAX_TABLE_ENTRIES = 1 << 24
# The standard deviation of initial log scores and value logits.
INIT_STD = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionInputs:
    """Inputs of the sums: tokens, the log score added at the start of a set, and the power of all scores.

    ``position_ids`` come from a position coupling; they are None if the ID of each token is its index.
    """

    tokens: Int[Tensor, "batch seq"]
    starts: Float[Tensor, " seq"]
    position_ids: Int[Tensor, "batch seq"] | None = None
    power: float = 1.0


@runtime_checkable
class Values(Protocol):
    """Value function ``h`` with a distribution over the outputs for every tuple of k tokens."""

    def extend_sums(
        self, tuple_index: int, sums: Float[Tensor, "batch seq offsets states"], tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq offsets next_states"]:
        """Extend log sums over tuples by one token; after the last token, the states are the outputs."""

    def log_values(
        self, codes: Int[Tensor, "*shape"], shapes: Int[Tensor, "*shape"]
    ) -> Float[Tensor, "*shape outputs"]:
        """Return ``log h`` for tuple codes and shape indexes."""


class TableValues(nn.Module):
    """Table of distributions over the outputs by tuple, shared by all shapes or separate for ``num_shapes`` shapes."""

    def __init__(self, num_tokens: int, k: int, num_outputs: int, num_shapes: int = 1) -> None:
        super().__init__()
        check_table_size(num_shapes * num_tokens**k, f"values of {k} of {num_tokens} tokens in {num_shapes} shapes")
        self.num_tokens, self.k = num_tokens, k
        self.logits = nn.Parameter(INIT_STD * torch.randn(num_shapes, num_tokens**k, num_outputs))

    def extend_sums(
        self, tuple_index: int, sums: Float[Tensor, "batch seq offsets states"], tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq offsets next_states"]:
        """Append the token to the state, which is the prefix of the tuple; for the last token, look up the value.

        The last token needs no state, so k tokens cost ``|V|^(k - 1)`` states.
        """
        assert len(self.logits) == 1, "values by shape need a look-up of whole tuples"
        if tuple_index < self.k - 1:
            is_token = functional.one_hot(tokens, self.num_tokens).bool()[:, :, None, None]
            return torch.where(is_token, sums[..., None], LOG_ZERO).flatten(-2)
        log_values = self.logits[0].log_softmax(-1)
        by_token = rearrange(log_values, "(prefixes v) outputs -> v (prefixes outputs)", v=self.num_tokens)
        return log_matmul(sums, functional.embedding(tokens, by_token))

    def log_values(
        self, codes: Int[Tensor, "*shape"], shapes: Int[Tensor, "*shape"]
    ) -> Float[Tensor, "*shape outputs"]:
        """Look up ``log h`` in the table."""
        table_entries = codes if len(self.logits) == 1 else shapes * self.logits.shape[1] + codes
        return functional.embedding(table_entries, self.logits.log_softmax(-1).flatten(0, 1))


class AutomatonValues(nn.Module):
    """Stochastic automaton that reads the k tokens in order; its last transition leads to the outputs.

    Each index in the tuple has its own table of transition logits by token and state. The automaton represents every
    tensor train of rank ``num_states`` with positive factors. With k = 1 it is a table.
    """

    def __init__(self, num_tokens: int, k: int, num_outputs: int, num_states: int = 2) -> None:
        super().__init__()
        if num_states < 1:
            raise SettingError(f"num_states {num_states} is too small; use at least 1")
        state_counts = (1, *(num_states,) * (k - 1), num_outputs)
        self.num_tokens = num_tokens
        self.steps = nn.ParameterList([torch.randn(num_tokens, *counts) for counts in pairwise(state_counts)])

    def extend_sums(
        self, tuple_index: int, sums: Float[Tensor, "batch seq offsets states"], tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq offsets next_states"]:
        """Apply one transition of the automaton."""
        return log_matmul(sums, functional.embedding(tokens, self.steps[tuple_index].log_softmax(-1).flatten(1)))

    def log_values(
        self, codes: Int[Tensor, "*shape"], shapes: Int[Tensor, "*shape"]
    ) -> Float[Tensor, "*shape outputs"]:
        """Run the automaton on every tuple; shapes have no effect."""
        tuples = decode_tuples(codes.reshape(1, -1), self.num_tokens, len(self.steps))
        log_sums = self.steps[0].new_zeros(1, codes.numel(), 1, 1)
        for tuple_index in range(len(self.steps)):
            log_sums = self.extend_sums(tuple_index, log_sums, tuples[..., tuple_index])
        return log_sums.view(*codes.shape, log_sums.shape[-1])


def log_matmul(
    sums: Float[Tensor, "batch seq offsets states"], steps: Float[Tensor, "batch seq steps"]
) -> Float[Tensor, "batch seq offsets next_states"]:
    """Return ``log sum_state exp(sums[state] + steps[state, next])``; ``steps`` flattens both state axes into one."""
    by_state = rearrange(steps, "b s (states after) -> b s 1 states after", states=sums.shape[-1])
    return sums + by_state[..., 0, :] if sums.shape[-1] == 1 else (sums[..., None] + by_state).logsumexp(dim=-2)


def log_sum_by_bin(
    log_terms: Float[Tensor, "batch sets outputs"], bins: Int[Tensor, "batch sets"], size: int
) -> Float[Tensor, "batch size outputs"]:
    """Return the log of the sum of ``exp(log_terms)`` in each bin, and ``LOG_ZERO`` for empty bins."""
    batch, _, num_outputs = log_terms.shape
    indexes, zeros = bins[..., None].expand_as(log_terms), log_terms.new_zeros(batch, size, num_outputs)
    max_terms = torch.full_like(zeros, LOG_ZERO).scatter_reduce(1, indexes, log_terms.detach(), "amax")
    scaled_sums = zeros.scatter_add(1, indexes, (log_terms - max_terms.gather(1, indexes)).exp())
    return torch.where(scaled_sums == 0, LOG_ZERO, max_terms + scaled_sums.clamp(min=1).log())


def decode_tuples(codes: Int[Tensor, "*shape"], num_tokens: int, k: int) -> Int[Tensor, "*shape k"]:
    """Return the k tokens of each code; the first token is the leading digit."""
    radix_powers = num_tokens ** torch.arange(k - 1, -1, -1, device=codes.device)
    return codes[..., None] // radix_powers % num_tokens


def check_table_size(num_entries: int, description: str) -> None:
    """Raise ``SettingError`` if a table is too large to hold in memory."""
    if num_entries > MAX_TABLE_ENTRIES:
        raise SettingError(
            f"{description} make a table of {num_entries:,} entries, more than the {MAX_TABLE_ENTRIES:,} allowed; "
            "reduce num_tokens, k or span, or use score 'chain' or 'product' with value 'automaton'"
        )

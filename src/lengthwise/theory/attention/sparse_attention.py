"""Trainable sparse functional attention with exact sums over all sets, and its training on a planted law."""

from copy import deepcopy
from itertools import combinations
from math import comb
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from lengthwise.core.errors import DivergedError, SettingError
from lengthwise.core.randomness import random_stream
from lengthwise.tasks.planted.placement import check_length, check_number_of_placements
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.theory.attention.tabular import PositionFreeAttention, TabularAttention

# The log of a weight that counts as zero; finite, because minus infinity gives NaN gradients.
LOG_ZERO = -1e30
# Log weights below this threshold count as zero. It exceeds LOG_ZERO because scores are added to LOG_ZERO.
ZERO_THRESHOLD = LOG_ZERO / 2
# Maximum number of entries of a table of scores or values.
MAX_TABLE_ENTRIES = 1 << 24
# The standard deviation of initial log scores and value logits.
INIT_STD = 0.1
# Number of sets per block; it limits memory and affects results only by rounding.
BLOCK = 1 << 22


class ValueTable(nn.Module):
    """Table of distributions over the outputs by tuple."""

    def __init__(self, num_tokens: int, k: int, num_outputs: int) -> None:
        super().__init__()
        check_table_size(num_tokens**k, f"values of {k} of {num_tokens} tokens")
        self.num_tokens, self.k = num_tokens, k
        self.logits = nn.Parameter(INIT_STD * torch.randn(1, num_tokens**k, num_outputs))

    def extend_log_sums(
        self, tuple_index: int, sums: Float[Tensor, "batch seq offsets states"], tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq offsets next_states"]:
        """Extend log sums over tuples by one token: append it to the state, which is the prefix of the tuple.

        After the last token, the states are the outputs. The last token needs no state, so k tokens cost
        ``|V|^(k - 1)`` states.
        """
        if tuple_index < self.k - 1:
            is_token = functional.one_hot(tokens, self.num_tokens).bool()[:, :, None, None]
            return torch.where(is_token, sums[..., None], LOG_ZERO).flatten(-2)
        log_values = self.logits[0].log_softmax(-1)
        by_token = rearrange(log_values, "(prefixes v) outputs -> v (prefixes outputs)", v=self.num_tokens)
        return log_matmul(sums, functional.embedding(tokens, by_token))

    def log_values(self, codes: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape outputs"]:
        """Return ``log h`` for tuple codes."""
        return functional.embedding(codes, self.logits.log_softmax(-1).flatten(0, 1))


@runtime_checkable
class ValueFunction(Protocol):
    """Value function ``h`` that extends log sums over tuples token by token."""

    def extend_log_sums(
        self, tuple_index: int, sums: Float[Tensor, "batch seq offsets states"], tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq offsets next_states"]:
        """Return the log sums after the next token of each tuple; after the last token, the states are the outputs."""
        ...


class ProductScores(nn.Module):
    """Product scores ``g = prod_j u_j(x_(i_j))`` of all sets of k tokens, at any distance.

    The sums are ordered elementary symmetric polynomials, ``E_j(i) = E_j(i - 1) + u_j(x_i) E_(j-1)(i - 1)``, computed
    as one cumulative log-sum-exp for each j. The time is ``O(seq k states)``. Reconstructed.
    """

    def __init__(self, num_tokens: int, k: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(INIT_STD * torch.randn(k, num_tokens))

    def sum_sets_by_last_token(
        self, values: ValueFunction, tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq outputs"]:
        """Return ``log sum g(S, x_S) h(x_S)`` over sets that end at each token; ``LOG_ZERO`` if no set ends there."""
        log_sums = self.tokens.new_zeros(*tokens.shape, 1, 1)
        token_scores = functional.embedding(tokens, self.tokens.T)  # batch seq k
        for tuple_index in range(len(self.tokens)):
            if tuple_index > 0:
                log_sums = functional.pad(log_sums.logcumsumexp(1), (0, 0, 0, 0, 1, 0), value=LOG_ZERO)[:, :-1]
            log_sums = values.extend_log_sums(
                tuple_index, log_sums + token_scores[:, :, None, tuple_index, None], tokens
            )
        return log_sums[:, :, 0]

    def log_scores(
        self, shapes: Int[Tensor, "shapes k"], tuples: Int[Tensor, "codes k"]
    ) -> Float[Tensor, "shapes codes"]:
        """Return ``log g`` of every shape and tuple; shapes have no effect."""
        scores = self.tokens[torch.arange(len(self.tokens)), tuples].sum(dim=-1)
        return scores.expand(len(shapes), -1)


class ScoreTable(nn.Module):
    """One log score per shape and tuple, for all shapes within a span. The time is ``O(seq shapes (k + outputs))``."""

    shapes: Int[Tensor, "shapes k"]

    def __init__(self, shapes: Int[np.ndarray, "shapes k"], num_tokens: int) -> None:
        super().__init__()
        self.num_tokens, self.span, num_codes = num_tokens, int(shapes.max()) + 1, num_tokens ** shapes.shape[1]
        check_table_size(len(shapes) * num_codes, f"scores of {len(shapes)} shapes of {num_codes:,} tuples each")
        self.logits = nn.Parameter(INIT_STD * torch.randn(len(shapes), num_codes))
        self.register_buffer("shapes", torch.from_numpy(shapes), persistent=False)

    def sum_sets_by_last_token(
        self, values: ValueTable, tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq outputs"]:
        """Return ``log sum g(S, x_S) h(x_S)`` over sets that end at each token; ``LOG_ZERO`` if no set ends there."""
        block_size = max(1, BLOCK // tokens.numel())
        window_tokens = functional.pad(tokens, (self.span - 1, 0)).unfold(1, self.span, 1)  # batch seq span
        token_indexes = torch.arange(tokens.shape[1], device=tokens.device)[:, None]
        log_total = None
        for shape_block in torch.split(torch.arange(len(self.shapes), device=tokens.device), block_size):
            shapes = self.shapes[shape_block]
            codes = torch.zeros_like(tokens)[..., None]
            for offset in shapes.T:
                codes = codes * self.num_tokens + window_tokens[..., self.span - 1 - shapes[:, -1] + offset]
            log_products = self._log_products(values, shape_block.expand_as(codes), codes)
            fits = token_indexes >= shapes[:, -1]  # seq block
            block_sum = (log_products + torch.where(fits, 0.0, LOG_ZERO)[..., None]).logsumexp(dim=2)
            log_total = block_sum if log_total is None else log_total.logaddexp(block_sum)
        assert log_total is not None
        return log_total

    def log_scores(
        self, shapes: Int[Tensor, "shapes k"], tuples: Int[Tensor, "codes k"]
    ) -> Float[Tensor, "shapes codes"]:
        """Return ``log g`` of every shape and tuple, which are those of the table."""
        return self.logits

    def _log_products(
        self, values: ValueTable, shape_indexes: Int[Tensor, "*shape"], codes: Int[Tensor, "*shape"]
    ) -> Float[Tensor, "*shape outputs"]:
        """Return ``log g h``; with fewer pairs of shape and tuple than sets, compute each pair only once."""
        num_codes, scores = self.logits.shape[1], self.logits.flatten()[:, None]
        entries = shape_indexes * num_codes + codes
        if len(scores) >= codes.numel():
            return functional.embedding(entries, scores) + values.log_values(codes)
        tuples = torch.arange(len(scores), device=codes.device) % num_codes
        return functional.embedding(entries, scores + values.log_values(tuples))


class SparseFunctionalAttention(nn.Module):
    """Attention ``f(x) = sum_S g(S, x_S) h(x_S) / sum_S g(S, x_S)`` over sets of k tokens; their start has no effect.

    With a ``span``, sets span at most ``span`` tokens, and g is a table by shape and tuple. Without one, sets have any
    distance, and g is a product of one score per token. The table h has a distribution over the outputs by tuple.
    Outputs are uniform if no set has weight. Golowich et al. 2025 (arXiv 2502.16792), section 3; parameters and
    algorithms are reconstructed. Raises ``SettingError`` for sizes without a set, and for tables that are too large.
    """

    default: Float[Tensor, " outputs"]

    def __init__(self, *, num_tokens: int, k: int, num_outputs: int, span: int | None = None) -> None:
        super().__init__()
        sizes = num_tokens, k, num_outputs
        if min(sizes) < 1:
            raise SettingError(f"num_tokens, k and num_outputs are {sizes}; set each to at least 1")
        if span is not None and span < k:
            raise SettingError(f"{k} tokens do not fit a span of {span}; use a span of at least {k}")
        self.num_tokens, self.k, self.num_outputs, self.span = num_tokens, k, num_outputs, span
        self.sets = ProductScores(num_tokens, k) if span is None else ScoreTable(list_set_shapes(span, k), num_tokens)
        self.values = ValueTable(num_tokens, k, num_outputs)
        self.register_buffer("default", torch.zeros(num_outputs))

    def forward(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch outputs"]:
        """Return ``log f`` after the last token; values near ``LOG_ZERO`` mean probability 0."""
        if not tokens.numel() or not 0 <= int(tokens.min()) <= int(tokens.max()) < self.num_tokens:
            raise SettingError(f"invalid tokens; pass at least one token, each from 0 to {self.num_tokens - 1}")
        log_sums = self.sets.sum_sets_by_last_token(self.values, tokens).logsumexp(dim=1)
        # Values sum to 1 over the outputs, so this sum is the sum of the scores. NaN remains NaN.
        has_no_weight = log_sums.logsumexp(dim=-1, keepdim=True) <= ZERO_THRESHOLD
        return torch.where(has_no_weight, self.default.log_softmax(dim=-1), log_sums.log_softmax(dim=-1))

    @torch.no_grad()
    def to_tabular(self) -> TabularAttention | PositionFreeAttention:
        """Convert to double-precision tables; without a span, they apply to sets at any distance."""
        double_module = deepcopy(self).double().cpu()
        shapes = np.arange(self.k)[None] if self.span is None else list_set_shapes(self.span, self.k)
        num_codes = self.num_tokens**self.k
        check_table_size(len(shapes) * num_codes, f"scores of {len(shapes)} shapes of {num_codes:,} tuples each")
        codes = torch.arange(num_codes)
        tuples = decode_tuple_codes(codes, self.num_tokens, self.k)
        scores = double_module.sets.log_scores(torch.from_numpy(shapes), tuples)
        log_scores = scores.where(scores > ZERO_THRESHOLD, -torch.inf).numpy()
        values = double_module.values.log_values(codes.expand(len(shapes), -1)).exp().numpy()
        default = double_module.default.softmax(dim=-1).numpy()
        if self.span is None:
            return PositionFreeAttention(
                num_tokens=self.num_tokens, k=self.k, log_scores=log_scores[0], values=values[0], default=default
            )
        return TabularAttention(
            num_tokens=self.num_tokens, shapes=shapes, log_scores=log_scores, values=values, default=default
        )


def list_set_shapes(span: int, k: int) -> Int[np.ndarray, "shapes k"]:
    """Return all shapes within a span, as distances from the first token."""
    check_number_of_placements(comb(span - 1, k - 1), f"span {span}")
    return np.array([(0, *others) for others in combinations(range(1, span), k - 1)])


def log_matmul(
    sums: Float[Tensor, "batch seq offsets states"], steps: Float[Tensor, "batch seq steps"]
) -> Float[Tensor, "batch seq offsets next_states"]:
    """Return ``log sum_state exp(sums[state] + steps[state, next])``; ``steps`` flattens both state axes into one."""
    by_state = rearrange(steps, "b s (states after) -> b s 1 states after", states=sums.shape[-1])
    return sums + by_state[..., 0, :] if sums.shape[-1] == 1 else (sums[..., None] + by_state).logsumexp(dim=-2)


def decode_tuple_codes(codes: Int[Tensor, "*shape"], num_tokens: int, k: int) -> Int[Tensor, "*shape k"]:
    """Return the k tokens of each code; the first token is the leading digit."""
    radix_powers = num_tokens ** torch.arange(k - 1, -1, -1, device=codes.device)
    return codes[..., None] // radix_powers % num_tokens


def check_table_size(num_entries: int, description: str) -> None:
    """Raise ``SettingError`` if a table is too large to hold in memory."""
    if num_entries > MAX_TABLE_ENTRIES:
        raise SettingError(
            f"{description} make a table of {num_entries:,} entries, more than the {MAX_TABLE_ENTRIES:,} allowed; "
            "reduce num_tokens, k or span"
        )


def fit_attention(
    module: SparseFunctionalAttention,
    law: PlantedCorrelations,
    *,
    lengths: tuple[int, int],
    steps: int,
    seed: int,
    batch_size: int = 64,
    learning_rate: float = 0.05,
) -> Float[np.ndarray, " steps"]:
    """Train ``module`` in place and return the loss of each step before its update, in nats per label.

    Each step samples a length from ``lengths`` (inclusive) and new sequences, which depend only on the seed. AdamW has
    a cosine schedule to learning rate 0. Raises ``SettingError`` if module, law and lengths do not fit together, and
    ``DivergedError`` if the loss is not finite.
    """
    if (module.num_tokens, module.num_outputs) != (law.num_tokens, law.num_labels):
        raise SettingError(
            f"the attention has {module.num_tokens} tokens and {module.num_outputs} outputs, but the law has "
            f"{law.num_tokens} tokens and {law.num_labels} labels; build the attention with the numbers of the law"
        )
    if lengths[0] > lengths[1] or steps < 1:
        raise SettingError(
            f"invalid {steps} steps on lengths {lengths}; use at least 1 step, and lengths (shortest, longest)"
        )
    check_length(law.placement, lengths[0])
    optimizer = torch.optim.AdamW(module.parameters(), lr=learning_rate, weight_decay=0.0, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    step_lengths = random_stream(seed, "fit", "lengths").integers(lengths[0], lengths[1] + 1, size=steps)
    losses = np.zeros(steps)
    rng = random_stream(seed, "fit", "sequences")
    for step, length in enumerate(step_lengths.tolist()):
        tokens, _, labels = law.sample_arrays(length, batch_size, rng)
        loss = functional.nll_loss(module(torch.from_numpy(tokens)), torch.from_numpy(labels))
        losses[step] = loss.item()
        if not np.isfinite(losses[step]):
            raise DivergedError(f"the loss is {losses[step]} at step {step}; use a smaller learning rate")
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        scheduler.step()
    return losses


def fit_tabular_attention(
    law: PlantedCorrelations, lengths: tuple[int, int], steps: int, seed: int
) -> TabularAttention | PositionFreeAttention:
    """Train an attention on ``law`` and return its tables: local if the law has a span, otherwise without positions."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(random_stream(seed, "initial weights").integers(2**63)))
        module = SparseFunctionalAttention(
            num_tokens=law.num_tokens, k=law.k, num_outputs=law.num_labels, span=law.placement.max_span
        )
    fit_attention(module, law, lengths=lengths, steps=steps, seed=seed)
    return module.to_tabular()

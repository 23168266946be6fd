"""Trainable scores and values of sets of tokens, with exact sums over all sets."""

from dataclasses import dataclass
from itertools import combinations, pairwise, product
from math import comb

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.placement import check_num_shapes

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


# A value function ``h``: a distribution over the outputs for every tuple of k tokens.
Values = TableValues | AutomatonValues


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


# Number of sets per block; it limits memory and affects results only by rounding.
BLOCK = 1 << 22
# The largest number of sets to list for tokens with coupled position IDs.
MAX_COUPLED_SETS = 1 << 24
# The largest number of codes; more codes would not fit 64-bit integers.
MAX_NUM_CODES = 1 << 62


class ProductScores(nn.Module):
    """Product scores ``g = prod_j u_j(x_(i_j))`` of all sets of k tokens, at any distance.

    The sums are ordered elementary symmetric polynomials, ``E_j(i) = E_j(i - 1) + u_j(x_i) E_(j-1)(i - 1)``, computed
    as one cumulative log-sum-exp for each j. The time is ``O(seq k states)``. Reconstructed.
    """

    def __init__(self, num_tokens: int, k: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(INIT_STD * torch.randn(k, num_tokens))

    def sum_by_last_token(self, values: Values, inputs: AttentionInputs) -> Float[Tensor, "batch seq outputs"]:
        """Return ``log sum g(S, x_S) h(x_S)`` over sets that end at each token; ``LOG_ZERO`` if no set ends there."""
        tokens, power = inputs.tokens, inputs.power
        log_sums = inputs.starts[None, :, None, None].expand(len(tokens), -1, 1, 1) * power
        token_scores = functional.embedding(tokens, power * self.tokens.T)  # batch seq k
        for tuple_index in range(len(self.tokens)):
            if tuple_index > 0:
                log_sums = functional.pad(log_sums.logcumsumexp(1), (0, 0, 0, 0, 1, 0), value=LOG_ZERO)[:, :-1]
            log_sums = values.extend_sums(tuple_index, log_sums + token_scores[:, :, None, tuple_index, None], tokens)
        return log_sums[:, :, 0]

    def log_scores(
        self, ids: Int[Tensor, "batch sets k"], tuples: Int[Tensor, "batch sets k"]
    ) -> Float[Tensor, "batch sets"]:
        """Return ``log g`` of sets from their tokens; IDs have no effect."""
        return sum_token_scores(self.tokens, tuples)


class ChainScores(nn.Module):
    """Chain scores ``g = prod_j u_j(x_(i_j)) prod_j t_j(gap_j, x_(i_(j-1)), x_(i_j))`` within ``span`` and ``max_gap``.

    The time is ``O(seq k max_gap states)``, multiplied by ``span`` if the span is smaller than k - 1 gaps. Without
    ``use_links``, all t are 1, so the scores are local products. Reconstructed.
    """

    def __init__(self, num_tokens: int, k: int, span: int, *, max_gap: int, use_links: bool = True) -> None:
        super().__init__()
        self.span, self.max_gap = span, max_gap
        self.tokens = nn.Parameter(INIT_STD * torch.randn(k, num_tokens))
        self.links = nn.Parameter(INIT_STD * torch.randn(k - 1, max_gap, num_tokens, num_tokens)) if use_links else None

    @property
    def span_excludes_sets(self) -> bool:
        """True if the span excludes sets that ``max_gap`` allows."""
        return (len(self.tokens) - 1) * self.max_gap + 1 > self.span

    def sum_by_last_token(self, values: Values, inputs: AttentionInputs) -> Float[Tensor, "batch seq outputs"]:
        """Return ``log sum g(S, x_S) h(x_S)`` over sets that end at each token; ``LOG_ZERO`` if no set ends there."""
        tokens, power = inputs.tokens, inputs.power
        log_sums = inputs.starts[None, :, None, None].expand(len(tokens), -1, 1, 1) * power
        if self.span_excludes_sets:
            log_sums = functional.pad(log_sums, (0, 0, 0, self.span - 1), value=LOG_ZERO)
        token_scores = functional.embedding(tokens, power * self.tokens.T)  # batch seq k
        link_scores = self._link_scores(tokens, power)
        for tuple_index in range(len(self.tokens)):
            if tuple_index > 0:
                log_sums = self._advance(log_sums, link_scores[..., tuple_index - 1])
            if tuple_index == len(self.tokens) - 1 and self.span_excludes_sets:
                log_sums = log_sums.logsumexp(dim=2, keepdim=True)
            log_sums = values.extend_sums(tuple_index, log_sums + token_scores[:, :, None, tuple_index, None], tokens)
        return log_sums[:, :, 0]

    def log_scores(
        self, ids: Int[Tensor, "batch sets k"], tuples: Int[Tensor, "batch sets k"]
    ) -> Float[Tensor, "batch sets"]:
        """Return ``log g`` of sets from their IDs and tokens; ``LOG_ZERO`` beyond ``max_gap`` or the span."""
        gaps, scores = ids.diff(dim=-1), sum_token_scores(self.tokens, tuples)
        if self.links is not None:
            link_indexes, gap_indexes = torch.arange(gaps.shape[-1]), gaps.clamp(1, self.max_gap) - 1
            scores = scores + self.links[link_indexes, gap_indexes, tuples[..., :-1], tuples[..., 1:]].sum(dim=-1)
        is_excluded = (gaps > self.max_gap).any(dim=-1) | (ids[..., -1] - ids[..., 0] >= self.span)
        return torch.where(is_excluded, LOG_ZERO, scores)

    def _link_scores(self, tokens: Int[Tensor, "batch seq"], power: float) -> Float[Tensor, "gaps batch seq links"]:
        """Return link scores by gap; the scores of links that would start before the first token are arbitrary."""
        seq, max_gap = tokens.shape[1], self.max_gap
        if self.links is None:
            return self.tokens.new_zeros(1, 1, 1, 1).expand(max_gap, *tokens.shape, len(self.tokens) - 1)
        padded = functional.pad(tokens, (max_gap, 0))
        previous = torch.stack([padded[:, max_gap - gap : max_gap - gap + seq] for gap in range(1, max_gap + 1)])
        gaps = torch.arange(max_gap, device=tokens.device)[:, None, None]
        codes = (gaps * self.tokens.shape[1] + previous) * self.tokens.shape[1] + tokens
        # One look-up for all links, because the backward pass of each look-up is expensive.
        return functional.embedding(codes, power * self.links.flatten(1).T)

    def _advance(
        self, log_sums: Float[Tensor, "batch seq offsets states"], link_scores: Float[Tensor, "gaps batch seq"]
    ) -> Float[Tensor, "batch seq offsets states"]:
        """Return, for each token, the log sum over partial sets that end before it, including their links to it."""
        (seq, num_offsets), max_gap = log_sums.shape[1:3], self.max_gap
        # Each step of the gap is one step of the offset from the first token.
        max_offset = max_gap if self.span_excludes_sets else 0
        padded = functional.pad(log_sums, (0, 0, max_offset, 0, max_gap, 0), value=LOG_ZERO)
        shifted_sums = []
        for shift in range(max_gap - 1, -1, -1):
            offset = shift if self.span_excludes_sets else 0
            shifted_sums.append(padded[:, shift : shift + seq, offset : offset + num_offsets])
        return (torch.stack(shifted_sums) + link_scores[..., None, None]).logsumexp(dim=0)


class TableScores(nn.Module):
    """Table with one trainable log score per shape and tuple."""

    def __init__(self, num_shapes: int, num_codes: int) -> None:
        super().__init__()
        check_table_size(num_shapes * num_codes, f"scores of {num_shapes} shapes of {num_codes:,} tuples each")
        self.logits = nn.Parameter(INIT_STD * torch.randn(num_shapes, num_codes))

    def forward(self, shapes: Int[Tensor, "*shape"], codes: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Look up the log score of each pair of shape index and tuple code."""
        return functional.embedding(shapes * self.logits.shape[1] + codes, self.logits.flatten()[:, None])[..., 0]


class PerceptronScores(nn.Module):
    """Perceptron that computes log scores from the sum of an embedding of the shape and embeddings of the k tokens."""

    def __init__(self, num_shapes: int, num_tokens: int, k: int, width: int = 32) -> None:
        super().__init__()
        self.num_tokens, self.k = num_tokens, k
        self.shape = nn.Embedding(num_shapes, width)
        self.token = nn.Embedding(k * num_tokens, width)
        self.read = nn.Sequential(nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, shapes: Int[Tensor, "*shape"], codes: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the log score of each pair of shape index and tuple code."""
        row_offsets = self.num_tokens * torch.arange(self.k, device=codes.device)
        token_embeddings = self.token(decode_tuples(codes, self.num_tokens, self.k) + row_offsets).sum(dim=-2)
        return self.read(self.shape(shapes) + token_embeddings)[..., 0]


class WindowScores(nn.Module):
    """Scores ``g(shape, x)`` of all shapes within a span; ``scores`` maps shape indexes and tuple codes to log scores.

    The time is ``O(seq shapes (k + outputs))``. Coupled position IDs may be equal or decrease, so they have more
    shapes; ``_list_candidate_sets`` finds their sets among the tokens sorted by ID.
    """

    shapes: Int[Tensor, "shapes k"]

    def __init__(self, shapes: Int[np.ndarray, "shapes k"], num_tokens: int, scores: nn.Module) -> None:
        super().__init__()
        self.num_tokens, self.span, k = num_tokens, int(shapes.max()) + 1, shapes.shape[1]
        if max(len(shapes) * num_tokens**k, self.span**k) > MAX_NUM_CODES:
            raise SettingError(
                f"the codes of {k}-token sets ({num_tokens} tokens, span {self.span}) exceed 64 bits; "
                "reduce num_tokens, k or span, or use score 'chain' or 'product' with value 'automaton'"
            )
        self.scores = scores
        self.register_buffer("shapes", torch.from_numpy(shapes), persistent=False)

    def sum_by_last_token(self, values: Values, inputs: AttentionInputs) -> Float[Tensor, "batch seq outputs"]:
        """Return ``log sum g(S, x_S) h(x_S)`` over sets that end at each token; ``LOG_ZERO`` if no set ends there."""
        if inputs.position_ids is not None:
            return self._sum_coupled(values, inputs, inputs.position_ids)
        tokens, block_size = inputs.tokens, max(1, BLOCK // inputs.tokens.numel())
        window_tokens = functional.pad(tokens, (self.span - 1, 0)).unfold(1, self.span, 1)  # batch seq span
        token_indexes = torch.arange(tokens.shape[1], device=tokens.device)[:, None]
        log_total = None
        for shape_block in torch.split(torch.arange(len(self.shapes), device=tokens.device), block_size):
            shapes = self.shapes[shape_block]
            set_start = token_indexes - shapes[:, -1]  # seq block
            codes = torch.zeros_like(tokens)[..., None]
            for offset in shapes.T:
                codes = codes * self.num_tokens + window_tokens[..., self.span - 1 - shapes[:, -1] + offset]
            log_products = self._log_products(values, shape_block.expand_as(codes), codes, inputs.power)
            start_scores = torch.where(set_start >= 0, inputs.power * inputs.starts[set_start.clamp(min=0)], LOG_ZERO)
            block_sum = (log_products + start_scores[..., None]).logsumexp(dim=2)
            log_total = block_sum if log_total is None else log_total.logaddexp(block_sum)
        assert log_total is not None
        return log_total

    def log_scores(
        self, ids: Int[Tensor, "batch sets k"], tuples: Int[Tensor, "batch sets k"]
    ) -> Float[Tensor, "batch sets"]:
        """Return ``log g`` of sets from their IDs and tokens; ``LOG_ZERO`` beyond the span."""
        shape_indexes, is_listed = self._find_shape_indexes(ids)
        return torch.where(is_listed, self.scores(shape_indexes, self._encode_tuples(tuples)), LOG_ZERO)

    def _log_products(
        self, values: Values, shape_indexes: Int[Tensor, "*shape"], codes: Int[Tensor, "*shape"], power: float
    ) -> Float[Tensor, "*shape outputs"]:
        """Return ``log g^power h``; with fewer pairs of shape and tuple than sets, compute each pair only once."""
        num_codes = self.num_tokens ** self.shapes.shape[1]
        num_entries = len(self.shapes) * num_codes
        if num_entries >= codes.numel():
            return power * self.scores(shape_indexes, codes)[..., None] + values.log_values(codes, shape_indexes)
        entries = torch.arange(num_entries, device=codes.device)
        shapes, tuples = entries // num_codes, entries % num_codes
        log_table = power * self.scores(shapes, tuples)[..., None] + values.log_values(tuples, shapes)
        return functional.embedding(shape_indexes * num_codes + codes, log_table)

    def _sum_coupled(
        self, values: Values, inputs: AttentionInputs, position_ids: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq outputs"]:
        tokens, seq = inputs.tokens, inputs.tokens.shape[1]
        id_order = position_ids.argsort(dim=1, stable=True)
        sets = self._list_candidate_sets(id_order, position_ids.gather(1, id_order))
        is_inside, sets = sets[..., -1] < seq, sets.clamp(max=seq - 1)
        tuples, ids = (sequence.gather(1, sets.flatten(1)).view_as(sets) for sequence in (tokens, position_ids))
        shape_indexes, is_listed = self._find_shape_indexes(ids)
        log_products = self._log_products(values, shape_indexes, self._encode_tuples(tuples), inputs.power)
        log_products = torch.where((is_inside & is_listed)[..., None], log_products, LOG_ZERO)
        return log_sum_by_bin(log_products, sets[..., -1], seq)

    def _list_candidate_sets(
        self, id_order: Int[Tensor, "batch seq"], ids: Int[Tensor, "batch seq"]
    ) -> Int[Tensor, "batch sets k"]:
        """List each set that may fit the span once, as sorted token indexes; the index ``seq`` means no token.

        ``ids`` are the sorted IDs, and ``id_order`` is the permutation that sorts them.
        """
        (batch, seq), k = id_order.shape, self.shapes.shape[1]
        window_starts = torch.searchsorted(ids, ids - self.span, right=True)
        width = int((torch.arange(seq, device=ids.device) - window_starts).max()) + 1
        num_sets = batch * seq * comb(width - 1, k - 1)
        if num_sets > MAX_COUPLED_SETS:
            raise SettingError(
                f"{width} tokens within a span of {self.span} IDs make {num_sets:,} sets, more than the "
                f"{MAX_COUPLED_SETS:,} allowed; use a smaller span or batch, or a coupling with fewer tokens per ID"
            )
        members = np.array([(*others, width - 1) for others in combinations(range(width - 1), k - 1)], dtype=np.int64)
        windows = functional.pad(id_order, (width - 1, 0), value=seq).unfold(1, width, 1)
        sets = windows[..., torch.from_numpy(members.reshape(-1, k)).to(id_order.device)]
        return sets.sort(dim=-1).values.flatten(1, 2)

    def _find_shape_indexes(
        self, ids: Int[Tensor, "batch sets k"]
    ) -> tuple[Int[Tensor, "batch sets"], Bool[Tensor, "batch sets"]]:
        """Return the shape index of each set from its IDs, and a flag that is True if ``shapes`` contains it."""
        relative_ids = ids - ids.amin(dim=-1, keepdim=True)
        radix_powers = self.span ** torch.arange(ids.shape[-1] - 1, -1, -1, device=ids.device)
        # Beyond the span, two shapes could have the same code.
        is_within_span = relative_ids.amax(dim=-1) < self.span
        codes = (relative_ids * radix_powers).sum(dim=-1).where(is_within_span, -1)
        sorted_codes, shape_order = (self.shapes * radix_powers).sum(dim=-1).sort()
        sorted_index = torch.searchsorted(sorted_codes, codes).clamp(max=len(sorted_codes) - 1)
        return shape_order[sorted_index], sorted_codes[sorted_index] == codes

    def _encode_tuples(self, tuples: Int[Tensor, "batch sets k"]) -> Int[Tensor, "batch sets"]:
        radix_powers = self.num_tokens ** torch.arange(tuples.shape[-1] - 1, -1, -1, device=tuples.device)
        return (tuples * radix_powers).sum(dim=-1)


def list_shapes(span: int, k: int, *, coupled: bool) -> Int[np.ndarray, "shapes k"]:
    """Return all shapes within a span as distances from the smallest ID; coupled IDs may be equal or decrease."""
    if coupled:
        check_num_shapes(span**k, f"span {span} in coupled IDs")
        return np.array([ids for ids in product(range(span), repeat=k) if min(ids) == 0])
    check_num_shapes(comb(span - 1, k - 1), f"span {span}")
    return np.array([(0, *others) for others in combinations(range(1, span), k - 1)])


def sum_token_scores(
    scores: Float[Tensor, "k tokens"], tuples: Int[Tensor, "batch sets k"]
) -> Float[Tensor, "batch sets"]:
    """Return the sum of the token scores of each tuple; row j of ``scores`` belongs to token j of the tuple."""
    return scores[torch.arange(len(scores)), tuples].sum(dim=-1)

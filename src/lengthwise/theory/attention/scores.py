"""Exact sums over sets of tokens, by the structure of the scores: products, chains, and all shapes within a span."""

from itertools import combinations, product
from math import comb
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.distribution import check_listed
from lengthwise.theory.attention.values import FIRST_SPREAD, NEVER, Sequences, Values, check_rows, digits

# Sets that are weighed in one go: bounds memory, changes no result but for rounding.
BLOCK = 1 << 22

# Sets that tokens under shared position IDs may make.
MOST_COUPLED = 1 << 24

# Beyond, numbers of tuples and shapes would not fit an integer of 64 bits.
MOST_NUMBERED = 1 << 62


@runtime_checkable
class SetScores(Protocol):
    """``g`` as a structure over which it can be summed exactly without listing all sets."""

    def ending(self, values: Values, sequences: Sequences) -> Float[Tensor, "batch seq outputs"]:
        """``log sum g(S, x_S) h(x_S)`` over the sets whose last token is each token; ``NEVER`` where there is none."""
        ...

    def at(self, ids: Int[Tensor, "batch sets k"], tuples: Int[Tensor, "batch sets k"]) -> Float[Tensor, "batch sets"]:
        """``log g`` of given sets by the IDs and the tokens in them, in the order of the tokens."""
        ...


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


class ChainScores(nn.Module):
    """``g = prod_j u_j(x_(i_j)) prod_j t_j(gap_j, x_(i_(j-1)), x_(i_j))``, with ``max_gap`` and within ``span``.

    Summed slot by slot over all tokens at once: time ``O(seq k max_gap states)``. A span below what k - 1 gaps can
    reach is one more axis, the offset from the first token: times ``span``. Without ``linked`` all t are 1: products,
    made local. Reconstructed.
    """

    def __init__(self, num_tokens: int, k: int, span: int, *, max_gap: int, linked: bool = True) -> None:
        super().__init__()
        self.span = span
        self.max_gap = max_gap
        self.tokens = nn.Parameter(FIRST_SPREAD * torch.randn(k, num_tokens))
        self.links = (
            nn.Parameter(FIRST_SPREAD * torch.randn(k - 1, max_gap, num_tokens, num_tokens)) if linked else None
        )

    @property
    def tight(self) -> bool:
        """Whether the span forbids what the gaps allow."""
        return (len(self.tokens) - 1) * self.max_gap + 1 > self.span

    def ending(self, values: Values, sequences: Sequences) -> Float[Tensor, "batch seq outputs"]:
        """Slot by slot; a set goes on behind any token within the largest gap."""
        tokens, power = sequences.tokens, sequences.power
        sums = sequences.starts[None, :, None, None].expand(len(tokens), -1, 1, 1) * power
        if self.tight:
            sums = functional.pad(sums, (0, 0, 0, self.span - 1), value=NEVER)
        own = functional.embedding(tokens, power * self.tokens.T)  # batch seq k
        links = self._links(tokens, power)
        for slot in range(len(self.tokens)):
            if slot > 0:
                sums = self._later(sums, links[..., slot - 1])
            if slot == len(self.tokens) - 1 and self.tight:
                sums = sums.logsumexp(dim=2, keepdim=True)
            sums = values.read(slot, sums + own[:, :, None, slot, None], tokens)
        return sums[:, :, 0]

    def at(self, ids: Int[Tensor, "batch sets k"], tuples: Int[Tensor, "batch sets k"]) -> Float[Tensor, "batch sets"]:
        """Zero weight, ``NEVER``, beyond the largest gap and beyond the span."""
        gaps = ids.diff(dim=-1)
        scores = by_slot(self.tokens, tuples)
        if self.links is not None:
            slots = torch.arange(gaps.shape[-1])
            near = gaps.clamp(1, self.max_gap) - 1
            scores = scores + self.links[slots, near, tuples[..., :-1], tuples[..., 1:]].sum(dim=-1)
        far = (gaps > self.max_gap).any(dim=-1) | (ids[..., -1] - ids[..., 0] >= self.span)
        return torch.where(far, NEVER, scores)

    def _links(self, tokens: Int[Tensor, "batch seq"], power: float) -> Float[Tensor, "gaps batch seq slots"]:
        """The score of the step to each token, by gap from 1; before the first token stands anything."""
        seq, most = tokens.shape[1], self.max_gap
        if self.links is None:
            return self.tokens.new_zeros(1, 1, 1, 1).expand(most, *tokens.shape, len(self.tokens) - 1)
        padded = functional.pad(tokens, (most, 0))
        before = torch.stack([padded[:, most - gap : most - gap + seq] for gap in range(1, most + 1)])
        gaps = torch.arange(most, device=tokens.device)[:, None, None]
        num_tokens = self.tokens.shape[1]
        # All slots in one look-up: each look-up has a costly backward pass.
        return functional.embedding((gaps * num_tokens + before) * num_tokens + tokens, power * self.links.flatten(1).T)

    def _later(
        self, sums: Float[Tensor, "batch seq offsets states"], link: Float[Tensor, "gaps batch seq"]
    ) -> Float[Tensor, "batch seq offsets states"]:
        """Log sums over tuples that end before each token, the step to it counted."""
        seq, offsets = sums.shape[1:3]
        padded = functional.pad(sums, (0, 0, self.max_gap if self.tight else 0, 0, self.max_gap, 0), value=NEVER)
        moved = []
        for early in range(self.max_gap - 1, -1, -1):
            # One gap further on is one offset further from the first token.
            offset = early if self.tight else 0
            moved.append(padded[:, early : early + seq, offset : offset + offsets])
        return (torch.stack(moved) + link[..., None, None]).logsumexp(dim=0)


class TableScores(nn.Module):
    """A log score for every shape and tuple."""

    def __init__(self, num_shapes: int, num_codes: int) -> None:
        super().__init__()
        check_rows(num_shapes * num_codes, f"scores of {num_shapes} shapes of {num_codes:,} tuples each")
        self.logits = nn.Parameter(FIRST_SPREAD * torch.randn(num_shapes, num_codes))

    def forward(self, shape: Int[Tensor, "*many"], codes: Int[Tensor, "*many"]) -> Float[Tensor, "*many"]:
        """Look them up."""
        return functional.embedding(shape * self.logits.shape[1] + codes, self.logits.flatten()[:, None])[..., 0]


class PerceptronScores(nn.Module):
    """A log score from an embedding of the shape and one of the token in each slot, by one hidden layer."""

    def __init__(self, num_shapes: int, num_tokens: int, k: int, width: int = 32) -> None:
        super().__init__()
        self.num_tokens = num_tokens
        self.k = k
        self.shape = nn.Embedding(num_shapes, width)
        self.token = nn.Embedding(k * num_tokens, width)
        self.read = nn.Sequential(nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, shape: Int[Tensor, "*many"], codes: Int[Tensor, "*many"]) -> Float[Tensor, "*many"]:
        """The first layer is a sum of embeddings: a matrix for each part of what is read."""
        slots = self.num_tokens * torch.arange(self.k, device=codes.device)
        parts = self.token(digits(codes, self.num_tokens, self.k) + slots).sum(dim=-2)
        return self.read(self.shape(shape) + parts)[..., 0]


class WindowScores(nn.Module):
    """``g(shape, x)`` for all shapes within a span; ``scores`` is a module from shapes and codes to log scores.

    Time ``O(seq shapes (k + outputs))``. The IDs of a position coupling make more shapes, because they may be equal or
    fall; there, sets are looked for among tokens in the order of their IDs: within w of those lie at most w times the
    largest number of tokens under one ID.
    """

    shapes: Int[Tensor, "shapes k"]

    def __init__(self, shapes: Int[np.ndarray, "shapes k"], num_tokens: int, scores: nn.Module) -> None:
        super().__init__()
        self.num_tokens = num_tokens
        self.span = int(shapes.max()) + 1
        if max(len(shapes) * num_tokens ** shapes.shape[1], self.span ** shapes.shape[1]) > MOST_NUMBERED:
            raise SettingError(
                f"sets of {shapes.shape[1]} of {num_tokens} tokens within span {self.span} are too many to number; "
                "use fewer, or score 'chain' or 'product' with value 'automaton'"
            )
        self.scores = scores
        self.register_buffer("shapes", torch.from_numpy(shapes), persistent=False)

    def ending(self, values: Values, sequences: Sequences) -> Float[Tensor, "batch seq outputs"]:
        """Shape by shape, a block of them in one go."""
        if sequences.position_ids is not None:
            return self._coupled(values, sequences, sequences.position_ids)
        tokens = sequences.tokens
        before = functional.pad(tokens, (self.span - 1, 0)).unfold(1, self.span, 1)  # batch seq span
        places = torch.arange(tokens.shape[1], device=tokens.device)[:, None]
        total = None
        for block in torch.split(torch.arange(len(self.shapes), device=tokens.device), max(1, BLOCK // tokens.numel())):
            shapes = self.shapes[block]
            first = places - shapes[:, -1]  # seq block
            codes = torch.zeros_like(tokens)[..., None]
            for slot in shapes.T:
                codes = codes * self.num_tokens + before[..., self.span - 1 - shapes[:, -1] + slot]
            log = self._weighed(values, block.expand_as(codes), codes, sequences.power)
            starts = torch.where(first >= 0, sequences.power * sequences.starts[first.clamp(min=0)], NEVER)
            ending = (log + starts[..., None]).logsumexp(dim=2)
            total = ending if total is None else total.logaddexp(ending)
        assert total is not None
        return total

    def at(self, ids: Int[Tensor, "batch sets k"], tuples: Int[Tensor, "batch sets k"]) -> Float[Tensor, "batch sets"]:
        """Zero weight, ``NEVER``, beyond the span."""
        shape, known = self._shape_of(ids)
        return torch.where(known, self.scores(shape, self._codes(tuples)), NEVER)

    def _weighed(
        self, values: Values, shape: Int[Tensor, "*many"], codes: Int[Tensor, "*many"], power: float
    ) -> Float[Tensor, "*many outputs"]:
        """``log g^power h``; from a table of all where that is shorter than the list of what is asked."""
        num_codes = self.num_tokens ** self.shapes.shape[1]
        number = len(self.shapes) * num_codes
        if number >= codes.numel():
            return power * self.scores(shape, codes)[..., None] + values.of(codes, shape)
        every = torch.arange(number, device=codes.device)
        table = power * self.scores(every // num_codes, every % num_codes)[..., None]
        table = table + values.of(every % num_codes, every // num_codes)
        return functional.embedding(shape * num_codes + codes, table)

    def _coupled(
        self, values: Values, sequences: Sequences, position_ids: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq outputs"]:
        """Sets among tokens that are neighbours in the order of their IDs; each is binned by its last token."""
        tokens, seq = sequences.tokens, sequences.tokens.shape[1]
        order = position_ids.argsort(dim=1, stable=True)
        sets = self._neighbours(order, position_ids.gather(1, order))
        inside = sets[..., -1] < seq
        sets = sets.clamp(max=seq - 1)
        tuples, ids = (each.gather(1, sets.flatten(1)).view_as(sets) for each in (tokens, position_ids))
        shape, known = self._shape_of(ids)
        log = self._weighed(values, shape, self._codes(tuples), sequences.power)
        log = torch.where((inside & known)[..., None], log, NEVER)
        return binned(log, sets[..., -1], seq)

    def _neighbours(
        self, order: Int[Tensor, "batch seq"], ids: Int[Tensor, "batch seq"]
    ) -> Int[Tensor, "batch sets k"]:
        """Each set that may be within the span once, token indexes in order; ``seq`` where it would begin too early.

        ``ids`` are in the order ``order``.
        """
        (batch, seq), k = order.shape, self.shapes.shape[1]
        first = torch.searchsorted(ids, ids - self.span, right=True)
        width = int((torch.arange(seq, device=ids.device) - first).max()) + 1
        number = batch * seq * comb(width - 1, k - 1)
        if number > MOST_COUPLED:
            raise SettingError(
                f"{width} tokens within a span of {self.span} IDs make {number:,} sets, more than the {MOST_COUPLED:,} "
                "that are weighed; use a smaller span or batch, or IDs that fewer tokens share"
            )
        chosen = np.array([(*rest, width - 1) for rest in combinations(range(width - 1), k - 1)], dtype=np.int64)
        before = functional.pad(order, (width - 1, 0), value=seq).unfold(1, width, 1)  # batch seq width
        sets = before[..., torch.from_numpy(chosen.reshape(-1, k)).to(order.device)]
        return sets.sort(dim=-1).values.flatten(1, 2)

    def _shape_of(
        self, ids: Int[Tensor, "batch sets k"]
    ) -> tuple[Int[Tensor, "batch sets"], Bool[Tensor, "batch sets"]]:
        """The number of the shape of each set by its IDs, and whether it is any of the shapes."""
        relative = ids - ids.amin(dim=-1, keepdim=True)
        places = self.span ** torch.arange(ids.shape[-1] - 1, -1, -1, device=ids.device)
        # Beyond the span a number could stand for another shape.
        near = relative.amax(dim=-1) < self.span
        numbers = (relative * places).sum(dim=-1).where(near, -1)
        listed, number_of = (self.shapes * places).sum(dim=-1).sort()
        found = torch.searchsorted(listed, numbers).clamp(max=len(listed) - 1)
        return number_of[found], listed[found] == numbers

    def _codes(self, tuples: Int[Tensor, "batch sets k"]) -> Int[Tensor, "batch sets"]:
        places = self.num_tokens ** torch.arange(tuples.shape[-1] - 1, -1, -1, device=tuples.device)
        return (tuples * places).sum(dim=-1)


def shapes_within(span: int, k: int, *, coupled: bool) -> Int[np.ndarray, "shapes k"]:
    """Every shape within a span: distances from the smallest ID. IDs that are coupled may be equal, or fall."""
    if coupled:
        check_listed(span**k, f"span {span} in coupled IDs")
        return np.array([ids for ids in product(range(span), repeat=k) if min(ids) == 0])
    check_listed(comb(span - 1, k - 1), f"span {span}")
    return np.array([(0, *rest) for rest in combinations(range(1, span), k - 1)])


def binned(
    log: Float[Tensor, "batch sets outputs"], where: Int[Tensor, "batch sets"], size: int
) -> Float[Tensor, "batch size outputs"]:
    """The log of the sum of ``exp(log)`` in each bin; ``NEVER`` where a bin is empty."""
    batch, _, outputs = log.shape
    index = where[..., None].expand_as(log)
    top = log.new_full((batch, size, outputs), NEVER).scatter_reduce(1, index, log.detach(), "amax")
    total = log.new_zeros(batch, size, outputs).scatter_add(1, index, (log - top.gather(1, index)).exp())
    return torch.where(total == 0, NEVER, top + total.clamp(min=1).log())


def by_slot(scores: Float[Tensor, "k tokens"], tuples: Int[Tensor, "batch sets k"]) -> Float[Tensor, "batch sets"]:
    """The sum of each token's score in its slot."""
    return scores[torch.arange(len(scores)), tuples].sum(dim=-1)

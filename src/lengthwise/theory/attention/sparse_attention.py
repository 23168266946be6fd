"""Sparse functional attention as a module: trainable, exact, and summed by the fastest algorithm its scores allow."""

from copy import deepcopy
from dataclasses import dataclass, field
from math import log

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lengthwise.core.errors import SettingError, unknown_name
from lengthwise.tasks.planted.placement import Placement, Subsets, UniformShapes
from lengthwise.theory.attention.scores import (
    ChainScores,
    PerceptronScores,
    ProductScores,
    TableScores,
    WindowScores,
    shapes_within,
)
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.attention.values import NEVER, AutomatonValues, Sequences, TableValues, check_rows, digits

SCORES = ("table", "mlp", "chain", "product")
VALUES = ("table", "automaton")
# Log weights below this count as zero: some way above NEVER, for what is added to it.
ZERO = NEVER / 2
# How far the probabilities of a table of values may be from adding up to one.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Temperature:
    """Scores sharpen with the length: ``g^tau`` with ``tau = 1 + ln(length / trained_length) / log_gap``, at least 1.

    With ``log_gap`` the log ratio of the score of what is planted to that of the background, the share of the whole
    background stays about what it is at ``trained_length``. Derived here.
    """

    trained_length: int
    log_gap: float

    def __post_init__(self) -> None:
        if self.trained_length < 1 or self.log_gap <= 0:
            raise SettingError(
                f"trained_length {self.trained_length} and log_gap {self.log_gap} make no temperature; "
                "use positive ones"
            )

    def power(self, length: int) -> float:
        """The power of the scores of a sequence."""
        return 1 + max(0.0, log(length / self.trained_length)) / self.log_gap


@dataclass(eq=False, repr=False, kw_only=True)
class SparseFunctionalAttention(nn.Module):
    """``f(x) = sum_S g(S, x_S) h(x_S) / sum_S g(S, x_S)`` over all sets of k tokens that the structure allows.

    ``score`` says what g is: a ``table`` by shape and tuple, an ``mlp`` of both, a ``chain`` of tokens and of steps up
    to ``max_gap``, a ``product`` of tokens. ``local``: no set reaches over more than ``span`` tokens, the first and the
    last counted; only a product can do without. ``relative``: where a set starts does not matter; otherwise each of
    the first ``num_places`` tokens adds a score of its own to the sets that it starts. ``value`` says what h is: a
    ``table`` of distributions over the outputs, ``by_shape`` where each shape has its own, or an ``automaton`` of
    ``num_states``. ``coupled``: sets are formed over position IDs, which may be equal or fall. Outputs are uniform
    where no set has weight. Golowich et al. 2025 (arXiv 2502.16792), section 3; parameters and algorithms are
    reconstructed. ``SettingError`` for settings that no exact algorithm serves.
    """

    num_tokens: int
    k: int
    num_outputs: int
    span: int | None = None
    score: str = "table"
    value: str = "table"
    relative: bool = True
    local: bool = True
    coupled: bool = False
    by_shape: bool = False
    max_gap: int | None = None
    num_places: int = 0
    num_states: int = 2
    temperature: Temperature | None = None
    sets: WindowScores | ChainScores | ProductScores = field(init=False)
    values: TableValues | AutomatonValues = field(init=False)
    places: Float[Tensor, " places"] = field(init=False)
    default: Float[Tensor, " outputs"] = field(init=False)

    def __post_init__(self) -> None:
        super().__init__()
        self._check()
        self.sets = self._scores()
        if self.value == "automaton":
            self.values = AutomatonValues(self.num_tokens, self.k, self.num_outputs, self.num_states)
        else:
            num_shapes = len(self.shapes()) if self.by_shape else 1
            self.values = TableValues(self.num_tokens, self.k, self.num_outputs, num_shapes)
        self.places = nn.Parameter(torch.zeros(self.num_places))
        self.register_buffer("default", torch.zeros(self.num_outputs))

    def forward(
        self,
        tokens: Int[Tensor, "batch seq"],
        position_ids: Int[Tensor, "batch seq"] | None = None,
        all_prefixes: bool = False,
    ) -> Float[Tensor, "batch outputs"] | Float[Tensor, "batch seq outputs"]:
        """``log f`` after the last token, or after every token; an output of probability 0 is near ``NEVER``.

        ``position_ids`` are those of a position coupling: scores then depend on the IDs in a set, up to a shift of all,
        and the order of its tokens is that of their indexes.
        """
        if all_prefixes and self.temperature is not None:
            raise SettingError("a temperature by length gives every prefix scores of its own; ask for one at a time")
        ending = self.sets.ending(self.values, self._read(tokens, position_ids))
        sums = ending.logcumsumexp(dim=1) if all_prefixes else ending.logsumexp(dim=1)
        # The values are distributions: the sum over the outputs is that of the scores. What is no number stays so.
        unweighed = sums.logsumexp(dim=-1, keepdim=True) <= ZERO
        return torch.where(unweighed, self.default.log_softmax(dim=-1), sums.log_softmax(dim=-1))

    def leakage(
        self,
        tokens: Int[Tensor, "batch seq"],
        planted_sets: Int[Tensor, "batch k"],
        position_ids: Int[Tensor, "batch seq"] | None = None,
    ) -> Float[Tensor, " batch"]:
        """One minus the attention weight of a set, token indexes from 0; 1 where no set has weight."""
        read = self._read(tokens, position_ids)
        total = self.sets.ending(self.values, read).logsumexp(dim=(1, 2))
        own = self._log_scores(read, planted_sets.sort(dim=-1).values[:, None])[:, 0]
        return torch.where(total <= ZERO, 1.0, -torch.expm1((own - total).clamp(max=0)))

    def log_weights(
        self, tokens: Int[Tensor, "batch seq"], position_ids: Int[Tensor, "batch seq"] | None = None
    ) -> tuple[Int[Tensor, "sets k"], Float[Tensor, "batch sets"]]:
        """All sets of k tokens, within the span unless IDs are coupled, and the log of the attention weight of each.

        ``NEVER``, and what is near it, is no weight. ``SettingError`` where there are too many sets to list.
        """
        read = self._read(tokens, position_ids)
        listing: Placement = Subsets(num_planted=self.k)
        if self.span is not None and not self.coupled:
            listing = UniformShapes(num_planted=self.k, widest=self.span)
        sets = torch.from_numpy(listing.law(tokens.shape[1]).sets()[0]).to(tokens.device)
        scores = self._log_scores(read, sets.expand(len(tokens), -1, -1))
        total = scores.logsumexp(dim=-1, keepdim=True)
        return sets, torch.where(total <= ZERO, NEVER, scores - total)

    def shapes(self) -> Int[np.ndarray, "shapes k"]:
        """The shapes of ``scores``: distances from the smallest ID. ``SettingError`` without locality."""
        if self.span is None:
            raise SettingError("a product without locality has a shape for every distance; give it a span")
        return shapes_within(self.span, self.k, coupled=self.coupled)

    def scores(self) -> Float[Tensor, "shapes codes"]:
        """``log g`` of every shape and tuple, by the code of the tuple, whatever the structure; ``NEVER`` is g = 0."""
        shapes = torch.from_numpy(self.shapes()).to(self.default.device)
        number = self.num_tokens**self.k
        check_rows(len(shapes) * number, f"scores of {len(shapes)} shapes of {number:,} tuples each")
        tuples = digits(torch.arange(number, device=shapes.device), self.num_tokens, self.k)
        return self.sets.at(shapes[:, None].expand(-1, number, -1), tuples.expand(len(shapes), -1, -1))

    @torch.no_grad()
    def tabular(self) -> TabularAttention:
        """The same function as tables in double precision; ``SettingError`` where it is not relative and local."""
        if self.span is None or self.coupled or not self.relative or self.temperature is not None:
            raise SettingError(
                "only a local and relative attention without coupling and temperature is one table for all lengths; "
                "build it so"
            )
        exact = deepcopy(self).double().cpu()
        scores = exact.scores()
        shape, codes = (torch.arange(size) for size in scores.shape)
        values = exact.values.of(codes.expand_as(scores), shape[:, None].expand_as(scores))
        return TabularAttention(
            num_tokens=self.num_tokens,
            shapes=self.shapes(),
            log_scores=scores.where(scores > ZERO, -torch.inf).numpy(),
            values=values.exp().numpy(),
            default=exact.default.softmax(dim=-1).numpy(),
        )

    @classmethod
    def from_tabular(cls, attention: TabularAttention) -> "SparseFunctionalAttention":
        """The module, in double precision, that computes a tabular attention; scores of 0 stay 0 in training.

        ``SettingError`` where the default, or a value that has weight, is no distribution.
        """
        weighed = np.isfinite(attention.log_scores)
        checked = np.concatenate([attention.values[weighed], attention.default[None]])
        if (checked < 0).any() or (np.abs(checked.sum(axis=1) - 1) > ROUNDING).any():
            raise SettingError(
                "values and default of a module are distributions over the outputs; scale them to be such"
            )
        module = cls(
            num_tokens=attention.num_tokens,
            k=attention.k,
            num_outputs=attention.values.shape[2],
            span=attention.span,
            by_shape=True,
        ).double()
        rows = {tuple(shape): row for row, shape in enumerate(module.shapes())}
        places = [rows[tuple(shape)] for shape in attention.shapes]
        assert isinstance(module.sets, WindowScores)
        assert isinstance(module.sets.scores, TableScores)
        assert isinstance(module.values, TableValues)
        logits = module.sets.scores.logits.detach().fill_(NEVER)
        logits[places] = torch.from_numpy(np.maximum(attention.log_scores, NEVER))
        with np.errstate(divide="ignore"):
            values = np.maximum(np.log(np.where(weighed[..., None], attention.values, 1.0)), NEVER)
            module.default.copy_(torch.from_numpy(np.maximum(np.log(attention.default), NEVER)))
        module.values.logits.detach()[places] = torch.from_numpy(values)
        return module

    def _log_scores(self, read: Sequences, sets: Int[Tensor, "batch sets k"]) -> Float[Tensor, "batch sets"]:
        """``log g`` of given sets of token indexes."""
        ids = sets
        if read.position_ids is not None:
            ids = read.position_ids.gather(1, sets.flatten(1)).view_as(sets)
        tuples = read.tokens.gather(1, sets.flatten(1)).view_as(sets)
        return read.power * (self.sets.at(ids, tuples) + read.starts[sets[..., 0]])

    def _read(self, tokens: Int[Tensor, "batch seq"], position_ids: Int[Tensor, "batch seq"] | None) -> Sequences:
        seq = tokens.shape[1]
        if not tokens.numel() or not 0 <= int(tokens.min()) <= int(tokens.max()) < self.num_tokens:
            raise SettingError(f"tokens are numbers from 0 to {self.num_tokens - 1}, at least one; give such")
        if position_ids is not None and not self.coupled:
            raise SettingError("position IDs were given to an attention over token indexes; build it with coupled=True")
        if self.coupled and position_ids is None:
            position_ids = torch.arange(seq, device=tokens.device).expand_as(tokens)
        if not self.relative and seq > self.num_places:
            raise SettingError(f"{seq} tokens are more than the {self.num_places} places; set num_places to that")
        starts = self.default.new_zeros(seq) if self.relative else self.places[:seq]
        power = 1.0 if self.temperature is None else self.temperature.power(seq)
        return Sequences(tokens=tokens, starts=starts, position_ids=position_ids, power=power)

    def _scores(self) -> WindowScores | ChainScores | ProductScores:
        if self.span is None:
            return ProductScores(self.num_tokens, self.k)
        if self.score in ("chain", "product"):
            max_gap = max(1, self.span - 1) if self.max_gap is None else self.max_gap
            return ChainScores(self.num_tokens, self.k, self.span, max_gap=max_gap, linked=self.score == "chain")
        shapes = self.shapes()
        if self.score == "mlp":
            return WindowScores(shapes, self.num_tokens, PerceptronScores(len(shapes), self.num_tokens, self.k))
        return WindowScores(shapes, self.num_tokens, TableScores(len(shapes), self.num_tokens**self.k))

    def _check(self) -> None:
        if self.score not in SCORES:
            raise unknown_name("score", self.score, SCORES)
        if self.value not in VALUES:
            raise unknown_name("value", self.value, VALUES)
        for refused, why in (*self._sizes(), *self._combinations()):
            if refused:
                raise SettingError(why)

    def _sizes(self) -> tuple[tuple[bool, str], ...]:
        """What is too small, and how to mend it."""
        smallest = 1 if self.coupled else self.k
        sizes = (self.num_tokens, self.k, self.num_outputs)
        return (
            (min(sizes) < 1, f"num_tokens, k and num_outputs are {sizes}; each has to be at least 1"),
            (self.local and self.span is None, "a local attention has no span; give one, or local=False"),
            (not self.local and self.span is not None, f"span {self.span} has no use with local=False; leave it out"),
            (
                self.span is not None and self.span < smallest,
                f"{self.k} tokens do not fit a span of {self.span}; use at least {smallest}",
            ),
            (
                self.relative != (self.num_places == 0),
                f"relative is {self.relative} with {self.num_places} places; set num_places where it is not",
            ),
        )

    def _combinations(self) -> tuple[tuple[bool, str], ...]:
        """What no exact algorithm serves, and what does."""
        window = self.score in ("table", "mlp")
        return (
            (
                not self.local and self.score != "product",
                f"score '{self.score}' cannot be summed over sets of any span; give a span, or use score 'product'",
            ),
            (
                self.coupled and not (window and self.relative and self.temperature is None),
                "coupled IDs need a relative score 'table' or 'mlp' without temperature; change these or leave coupled",
            ),
            (
                self.by_shape and not (window and self.value == "table"),
                "values by shape need score 'table' or 'mlp' and value 'table'; change these or leave by_shape",
            ),
            (
                self.max_gap is not None and (window or not self.local or self.max_gap < 1),
                f"max_gap {self.max_gap} is for local chains and products, and at least 1; change it or leave it out",
            ),
        )

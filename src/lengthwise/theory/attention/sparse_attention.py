"""Trainable sparse functional attention with exact sums, and its training on a planted law with log loss."""

from copy import deepcopy
from dataclasses import dataclass, field
from math import log

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from lengthwise.core.errors import DivergedError, SettingError, unknown_name
from lengthwise.core.randomness import stream
from lengthwise.tasks.planted.placement import Placement, Subsets, UniformShapes, check_length
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.scores import (
    LOG_ZERO,
    AttentionInputs,
    AutomatonValues,
    ChainScores,
    PerceptronScores,
    ProductScores,
    TableScores,
    TableValues,
    WindowScores,
    check_table_size,
    decode_tuples,
    list_shapes,
)
from lengthwise.theory.attention.tabular import PositionFreeAttention, TabularAttention

SCORE_FORMS = ("table", "mlp", "chain", "product")
VALUE_FORMS = ("table", "automaton")
# Log weights below this threshold count as zero. It exceeds LOG_ZERO because scores are added to LOG_ZERO.
ZERO_THRESHOLD = LOG_ZERO / 2
# Tolerance for probabilities that add up to one.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Temperature:
    """Power of all scores that grows with the length: ``tau = 1 + ln(length / train_length) / log_gap``, at least 1.

    ``log_gap`` is the log ratio of planted to background scores. The power keeps the total weight of the background
    close to its value at ``train_length``. Derived here.
    """

    train_length: int
    log_gap: float

    def __post_init__(self) -> None:
        length, gap = self.train_length, self.log_gap
        if length < 1 or gap <= 0:
            raise SettingError(f"invalid train_length {length} or log_gap {gap}; use positive numbers")

    def power(self, length: int) -> float:
        """Return the power of the scores at a length."""
        return 1 + max(0.0, log(length / self.train_length)) / self.log_gap


@dataclass(eq=False, repr=False, kw_only=True)
class SparseFunctionalAttention(nn.Module):
    """Attention ``f(x) = sum_S g(S, x_S) h(x_S) / sum_S g(S, x_S)`` over all sets of k tokens that the settings allow.

    ``score`` is the form of g: a ``table`` by shape and tuple, an ``mlp`` of both, a ``chain`` of tokens with links up
    to ``max_gap``, or a ``product`` of tokens. With ``local``, sets span at most ``span`` tokens; only a ``product``
    allows ``local=False``. With ``relative``, the start of a set has no effect; otherwise each of the first
    ``num_places`` token indexes adds a score to the sets that start there. ``value`` is the form of h: a ``table`` of
    distributions over the outputs (with ``by_shape``, one table per shape), or an ``automaton`` of ``num_states``. With
    ``coupled``, sets are formed over position IDs, which may be equal or decrease. Outputs are uniform if no set has
    weight. Golowich et al. 2025 (arXiv 2502.16792), section 3; parameters and algorithms are reconstructed. Raises
    ``SettingError`` if the settings have no exact algorithm.
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
        self._check_settings()
        self.sets = self._build_scores()
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
        """Return ``log f`` after the last token or after every token; values near ``LOG_ZERO`` mean probability 0.

        ``position_ids`` come from a position coupling. Scores then depend on the differences of the IDs in a set; the
        tokens of a set remain in index order.
        """
        if all_prefixes and self.temperature is not None:
            raise SettingError("all_prefixes does not support a temperature; call the module on one prefix at a time")
        sums_by_token = self.sets.sum_by_last_token(self.values, self._build_inputs(tokens, position_ids))
        log_sums = sums_by_token.logcumsumexp(dim=1) if all_prefixes else sums_by_token.logsumexp(dim=1)
        # Values sum to 1 over the outputs, so this sum is the sum of the scores. NaN remains NaN.
        has_no_weight = log_sums.logsumexp(dim=-1, keepdim=True) <= ZERO_THRESHOLD
        return torch.where(has_no_weight, self.default.log_softmax(dim=-1), log_sums.log_softmax(dim=-1))

    def leakage(
        self,
        tokens: Int[Tensor, "batch seq"],
        planted_sets: Int[Tensor, "batch k"],
        position_ids: Int[Tensor, "batch seq"] | None = None,
    ) -> Float[Tensor, " batch"]:
        """Return one minus the attention weight of the planted token indexes, or 1 if no set has weight."""
        inputs = self._build_inputs(tokens, position_ids)
        log_total = self.sets.sum_by_last_token(self.values, inputs).logsumexp(dim=(1, 2))
        planted_score = self._log_scores(inputs, planted_sets.sort(dim=-1).values[:, None])[:, 0]
        return torch.where(log_total <= ZERO_THRESHOLD, 1.0, -torch.expm1((planted_score - log_total).clamp(max=0)))

    def log_weights(
        self, tokens: Int[Tensor, "batch seq"], position_ids: Int[Tensor, "batch seq"] | None = None
    ) -> tuple[Int[Tensor, "sets k"], Float[Tensor, "batch sets"]]:
        """Return all sets (within the span unless coupled) and their log weights, near ``LOG_ZERO`` for weight 0."""
        inputs = self._build_inputs(tokens, position_ids)
        placement: Placement = Subsets(num_planted=self.k)
        if self.span is not None and not self.coupled:
            placement = UniformShapes(num_planted=self.k, widest=self.span)
        sets = torch.from_numpy(placement.law(tokens.shape[1]).sets()[0]).to(tokens.device)
        scores = self._log_scores(inputs, sets.expand(len(tokens), -1, -1))
        log_total = scores.logsumexp(dim=-1, keepdim=True)
        return sets, torch.where(log_total <= ZERO_THRESHOLD, LOG_ZERO, scores - log_total)

    def shapes(self) -> Int[np.ndarray, "shapes k"]:
        """Return the shapes (distances from the smallest ID) of ``scores``; raise ``SettingError`` if not local."""
        if self.span is None:
            raise SettingError("an attention with local=False has no finite list of shapes; build it with a span")
        return list_shapes(self.span, self.k, coupled=self.coupled)

    def scores(self) -> Float[Tensor, "shapes codes"]:
        """Return ``log g`` of every shape and tuple code; ``LOG_ZERO`` means g = 0."""
        shape_array = np.arange(self.k)[None] if self.span is None else self.shapes()
        shapes = torch.from_numpy(shape_array).to(self.default.device)
        num_codes = self.num_tokens**self.k
        check_table_size(len(shapes) * num_codes, f"scores of {len(shapes)} shapes of {num_codes:,} tuples each")
        tuples = decode_tuples(torch.arange(num_codes, device=shapes.device), self.num_tokens, self.k)
        return self.sets.log_scores(shapes[:, None].expand(-1, num_codes, -1), tuples.expand(len(shapes), -1, -1))

    @torch.no_grad()
    def to_tabular(self) -> TabularAttention | PositionFreeAttention:
        """Convert to double-precision tables; without a span, they apply to sets at any distance.

        Raises ``SettingError`` if the attention is not relative.
        """
        if self.coupled or not self.relative or self.temperature is not None:
            raise SettingError(
                "only a relative attention has one table for all lengths; build it without coupled, num_places and "
                "temperature"
            )
        double_module = deepcopy(self).double().cpu()
        scores = double_module.scores()
        shape_indexes, codes = (torch.arange(axis_size) for axis_size in scores.shape)
        log_values = double_module.values.log_values(codes.expand_as(scores), shape_indexes[:, None].expand_as(scores))
        log_scores = scores.where(scores > ZERO_THRESHOLD, -torch.inf).numpy()
        values, default = log_values.exp().numpy(), double_module.default.softmax(dim=-1).numpy()
        if self.span is None:
            return PositionFreeAttention(
                num_tokens=self.num_tokens, k=self.k, log_scores=log_scores[0], values=values[0], default=default
            )
        return TabularAttention(
            num_tokens=self.num_tokens, shapes=self.shapes(), log_scores=log_scores, values=values, default=default
        )

    @classmethod
    def from_tabular(cls, attention: TabularAttention) -> "SparseFunctionalAttention":
        """Build a double-precision module that computes a tabular attention; scores of 0 stay 0 in training.

        Raises ``SettingError`` if the default, or the value of a tuple with positive score, is not a distribution.
        """
        has_weight = np.isfinite(attention.log_scores)
        distributions = np.concatenate([attention.values[has_weight], attention.default[None]])
        if (distributions < 0).any() or (np.abs(distributions.sum(axis=1) - 1) > ROUNDING).any():
            raise SettingError(
                "values or default are not distributions over the outputs; use values of at least 0 with a sum of 1"
            )
        num_tokens, k, num_outputs = attention.num_tokens, attention.k, attention.values.shape[2]
        module = cls(num_tokens=num_tokens, k=k, num_outputs=num_outputs, span=attention.span, by_shape=True).double()
        index_by_shape = {tuple(shape): index for index, shape in enumerate(module.shapes())}
        shape_indexes = [index_by_shape[tuple(shape)] for shape in attention.shapes]
        assert isinstance(module.sets, WindowScores)
        assert isinstance(module.sets.scores, TableScores)
        assert isinstance(module.values, TableValues)
        logits = module.sets.scores.logits.detach().fill_(LOG_ZERO)
        logits[shape_indexes] = torch.from_numpy(np.maximum(attention.log_scores, LOG_ZERO))
        with np.errstate(divide="ignore"):
            log_values = np.maximum(np.log(np.where(has_weight[..., None], attention.values, 1.0)), LOG_ZERO)
            module.default.copy_(torch.from_numpy(np.maximum(np.log(attention.default), LOG_ZERO)))
        module.values.logits.detach()[shape_indexes] = torch.from_numpy(log_values)
        return module

    def _log_scores(self, inputs: AttentionInputs, sets: Int[Tensor, "batch sets k"]) -> Float[Tensor, "batch sets"]:
        position_ids, indexes = inputs.position_ids, sets.flatten(1)
        ids = sets if position_ids is None else position_ids.gather(1, indexes).view_as(sets)
        tuples = inputs.tokens.gather(1, indexes).view_as(sets)
        return inputs.power * (self.sets.log_scores(ids, tuples) + inputs.starts[sets[..., 0]])

    def _build_inputs(
        self, tokens: Int[Tensor, "batch seq"], position_ids: Int[Tensor, "batch seq"] | None
    ) -> AttentionInputs:
        seq = tokens.shape[1]
        if not tokens.numel() or not 0 <= int(tokens.min()) <= int(tokens.max()) < self.num_tokens:
            raise SettingError(f"invalid tokens; pass at least one token, each from 0 to {self.num_tokens - 1}")
        if position_ids is not None and not self.coupled:
            raise SettingError("position_ids need an attention with coupling; build it with coupled=True")
        if self.coupled and position_ids is None:
            position_ids = torch.arange(seq, device=tokens.device).expand_as(tokens)
        if not self.relative and seq > self.num_places:
            raise SettingError(f"{seq} tokens exceed num_places {self.num_places}; set num_places to at least {seq}")
        start_scores = self.default.new_zeros(seq) if self.relative else self.places[:seq]
        power = 1.0 if self.temperature is None else self.temperature.power(seq)
        return AttentionInputs(tokens=tokens, starts=start_scores, position_ids=position_ids, power=power)

    def _build_scores(self) -> WindowScores | ChainScores | ProductScores:
        if self.span is None:
            return ProductScores(self.num_tokens, self.k)
        if self.score in ("chain", "product"):
            max_gap = max(1, self.span - 1) if self.max_gap is None else self.max_gap
            return ChainScores(self.num_tokens, self.k, self.span, max_gap=max_gap, use_links=self.score == "chain")
        shapes = self.shapes()
        if self.score == "mlp":
            return WindowScores(shapes, self.num_tokens, PerceptronScores(len(shapes), self.num_tokens, self.k))
        return WindowScores(shapes, self.num_tokens, TableScores(len(shapes), self.num_tokens**self.k))

    def _check_settings(self) -> None:
        if self.score not in SCORE_FORMS:
            raise unknown_name("score", self.score, SCORE_FORMS)
        if self.value not in VALUE_FORMS:
            raise unknown_name("value", self.value, VALUE_FORMS)
        span, gap, places, relative = self.span, self.max_gap, self.num_places, self.relative
        sizes, min_span = (self.num_tokens, self.k, self.num_outputs), 1 if self.coupled else self.k
        lists_shapes = self.score in ("table", "mlp")
        checks = (
            (min(sizes) < 1, f"num_tokens, k and num_outputs are {sizes}; set each to at least 1"),
            (self.local and span is None, "a local attention needs a span; set span or local=False"),
            (not self.local and span is not None, f"span {span} needs local=True; set local=True or remove span"),
            (
                span is not None and span < min_span,
                f"{self.k} tokens do not fit a span of {span}; use a span of at least {min_span}",
            ),
            (
                relative != (places == 0),
                f"num_places {places} is invalid with relative={relative}; use 0 only if relative",
            ),
            (
                not self.local and self.score != "product",
                f"score '{self.score}' needs local=True; set local=True and a span, or use score 'product'",
            ),
            (
                self.coupled and not (lists_shapes and relative and self.temperature is None),
                "coupled needs relative, score 'table' or 'mlp', and no temperature; change these or remove coupled",
            ),
            (
                self.by_shape and not (lists_shapes and self.value == "table"),
                "by_shape needs score 'table' or 'mlp' and value 'table'; change these or remove by_shape",
            ),
            (
                gap is not None and (lists_shapes or not self.local or gap < 1),
                f"invalid max_gap {gap}; use at least 1, with local and score 'chain' or 'product'",
            ),
        )
        for is_invalid, message in checks:
            if is_invalid:
                raise SettingError(message)


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
    return module.to_tabular()

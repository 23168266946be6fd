"""Measures of the influence of far tokens, the scores of subsets that they read, and a table of measures."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.influence.hidden_context import Predictions, WindowEvaluator, predict_in_batches

# target: the loss of the true next token. prediction: the divergence from the prediction with the whole context, which
# is also available to a method that drops keys and values.
OBJECTIVES = ("target", "prediction")
# Gradients at gates of e^-3 predict the gains of whole units better than those at open or closed gates.
LOG_GATE_OF_CANDIDATES = -3.0


@dataclass(frozen=True, slots=True)
class TargetLoss:
    """Objective ``target``: the loss (nats) of the true next token."""

    target: int

    def __call__(self, log_probs: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
        """Return the loss of the target for each prediction."""
        return -log_probs[..., self.target]

    def token_probabilities(self, tokens: Int[np.ndarray, " seq"]) -> Float[np.ndarray, " seq"]:
        """Return the probability of each token in the best prediction: 1 for the target."""
        return (tokens == self.target).astype(float)


@dataclass(frozen=True, slots=True)
class KLDivergence:
    """Objective ``prediction``: the Kullback-Leibler divergence (nats) from the prediction with the whole context."""

    log_probs_long: Float[Tensor, " vocab"]

    def __call__(self, log_probs: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
        """Return the divergence for each prediction, in nats."""
        probabilities = self.log_probs_long.exp()
        # A token of probability 0 adds nothing, even if its log-probability is -inf in both predictions.
        return torch.where(probabilities > 0, probabilities * (self.log_probs_long - log_probs), 0.0).sum(dim=-1)

    def token_probabilities(self, tokens: Int[np.ndarray, " seq"]) -> Float[np.ndarray, " seq"]:
        """Return the probability of each token in the prediction with the whole context."""
        return self.log_probs_long[torch.from_numpy(tokens).to(self.log_probs_long.device)].exp().double().cpu().numpy()


Objective = TargetLoss | KLDivergence


@dataclass(frozen=True, kw_only=True)
class SubsetScorer:
    """Scorer of sets of units of the far tokens of one window, for one objective and one of ``MODES``.

    ``units`` has the indices of the far tokens of each unit, and ``candidates`` the numbers of the units that a measure
    may select.
    """

    evaluator: WindowEvaluator
    mode: str
    objective: Objective
    units: Sequence[Int[np.ndarray, " _"]]
    candidates: Int[np.ndarray, " candidates"]

    def visibility_mask(self, indices: Sequence[int]) -> Bool[np.ndarray, " far"]:
        """Return a visibility mask of the far tokens, which is True in the units ``indices`` and False elsewhere."""
        return self.evaluator.window.visibility_mask([int(token) for index in indices for token in self.units[index]])

    def with_candidates(self, candidates: Int[np.ndarray, " candidates"]) -> "SubsetScorer":
        """Return a copy with other candidates."""
        return replace(self, candidates=np.sort(candidates))

    def scores_of_sets(self, sets: Sequence[Sequence[int]]) -> Float[np.ndarray, " queries"]:
        """Return the exact value of the objective for each set of visible units; the other units are hidden."""
        return self.scores(np.stack(list(map(self.visibility_mask, sets)))) if sets else np.zeros(0)

    def scores(self, visibility_masks: Bool[np.ndarray, "queries far"]) -> Float[np.ndarray, " queries"]:
        """Return the exact value of the objective for each visibility mask; lower values are better."""
        return self._collect(self.evaluator.log_probs(visibility_masks, self.mode), len(visibility_masks))

    def quick_scores(self, selected: Sequence[int]) -> Float[np.ndarray, " units"]:
        """Return the approximate value of the objective with each unit added to ``selected``.

        One query of the last near token reads the unit, so all units together cost about as much as one exact query.
        The other near tokens read the selected units only. In strict mode, each unit is read without the other units.
        """
        if self.mode == "decode":
            return self.scores_of_sets([[*selected, unit] for unit in range(len(self.units))])
        evaluator, model, start = self.evaluator, self.evaluator.model, len(self.evaluator.window.start)
        states = self._unit_states if self.mode == "strict" else evaluator.states
        is_visible = evaluator.window.expand_mask(self.visibility_mask(selected))
        if len(evaluator.near) > 1:
            visible = torch.from_numpy(is_visible[: evaluator.num_prefix])
            states = model.extend_states(states, evaluator.near[:-1], evaluator.near_ids[..., :-1], visible)
        masks = np.tile(is_visible[:-1], (len(self.units), 1))
        for mask, unit in zip(masks, self.units, strict=True):
            mask[start + unit] = True
        predict = partial(model.log_probs_with_mask, states, evaluator.near[-1:], evaluator.near_ids[..., -1:])
        return self._collect(predict_in_batches(model, predict, torch.from_numpy(masks), num_queries=1), len(masks))

    def _collect(self, predictions: Iterator[Predictions], number: int) -> Float[np.ndarray, " queries"]:
        """Return the objective of each of ``number`` queries."""
        scores = np.empty(number)
        for queries, log_probs in predictions:
            scores[queries] = self.objective(log_probs).double().cpu().numpy()
        return scores

    @property
    def _unit_states(self) -> Any:
        """States of the start and far tokens; a far token reads the start tokens and its own unit."""
        return self.evaluator.prefill("single units", self.evaluator.num_prefix, self._unit_mask)

    def _unit_mask(self) -> Bool[Tensor, "seq seq"]:
        start, seq = len(self.evaluator.window.start), len(self.evaluator.tokens)
        group = np.full(seq, -1)
        for number, unit in enumerate(self.units):
            group[start + unit] = number
        return torch.from_numpy(np.tril((group[:, None] == group) | (np.arange(seq) < start)))

    def gradient(self, *, context: str) -> Float[np.ndarray, " units"]:
        """Return the negative gradient of the objective with respect to a gate on the attention to each unit.

        With ``context`` "all", the gates are open. With "none", they reduce the attention weight of all far tokens
        together to about the weight of one token. Far tokens attend to each other, so the gradient is an approximation
        in strict mode. In decode mode, only the last near token has gates.
        """
        evaluator, num_far = self.evaluator, self.evaluator.window.num_far_tokens
        states, num_states = evaluator.states, evaluator.num_prefix
        if self.mode == "decode":
            states, num_states = evaluator.states_before_last_token, len(evaluator.tokens) - 1
        gates = self._log_gates(np.full(num_far, 0.0 if context == "all" else -math.log(num_far)), num_states)
        return self._gate_gradient(states, torch.arange(num_states, len(evaluator.tokens)), gates)

    def quick_gains(self, selected: Sequence[int]) -> Float[np.ndarray, " units"]:
        """Return the gain of each unit to first order, from one backward pass.

        The gates of the selected units are open, and the others are almost closed. All near tokens read a unit. In
        strict mode, the selected tokens after it read it too, and each other unit is read without other units.
        """
        evaluator, is_selected = self.evaluator, self.visibility_mask(selected)
        gates = self._log_gates(np.where(is_selected, 0.0, LOG_GATE_OF_CANDIDATES), evaluator.num_prefix)
        indexes = torch.arange(evaluator.num_prefix, len(evaluator.tokens))
        if self.mode != "strict":
            return self._gate_gradient(evaluator.states, indexes, gates)
        chosen = torch.from_numpy(np.flatnonzero(is_selected)) + len(evaluator.window.start)
        queries = torch.cat([chosen, indexes])
        # The selected tokens are queries now, and not states.
        hidden = torch.arange(evaluator.num_prefix) >= queries[:, None]
        hidden[:, chosen] = True
        return self._gate_gradient(
            self._unit_states, queries, gates.expand(hidden.shape).masked_fill(hidden, -math.inf)
        )

    def expected_tokens(self) -> Float[np.ndarray, " units"]:
        """Return the sum of the probabilities of the tokens of each unit in the prediction to be recovered."""
        far = self.evaluator.window.far
        return np.add.reduceat(self.objective.token_probabilities(far), [unit[0] for unit in self.units])

    def _log_gates(self, far: Float[np.ndarray, " far"], num_states: int) -> Float[Tensor, " states"]:
        """Return the logarithms of the gates on the first ``num_states`` tokens; those on start and near are 0."""
        evaluator, gates = self.evaluator, torch.zeros(num_states)
        gates[len(evaluator.window.start) : evaluator.num_prefix] = torch.from_numpy(far).float()
        return gates

    def _gate_gradient(
        self, states: Any, queries: Int[Tensor, " query"], log_gates: Float[Tensor, "*query states"]
    ) -> Float[np.ndarray, " units"]:
        """Return the negative gradient for gates on the attention of ``queries`` (token indexes) to each unit."""
        evaluator = self.evaluator
        gradient = evaluator.model.attention_gate_gradient(
            states, evaluator.tokens[queries], evaluator.position_ids[..., queries], log_gates, self.objective
        )
        far = slice(len(evaluator.window.start), evaluator.num_prefix)
        return self._sum_by_unit(-gradient.reshape(-1, gradient.shape[-1]).sum(dim=0)[far])

    def attention(self) -> Float[np.ndarray, " units"]:
        """Return the attention weights of the last near token on each unit, averaged over layers and heads."""
        evaluator = self.evaluator
        weights = evaluator.model.attention_weights(evaluator.states, evaluator.near, evaluator.near_ids)
        return self._sum_by_unit(weights[len(evaluator.window.start) :])

    def _sum_by_unit(self, values: Float[Tensor, " far"]) -> Float[np.ndarray, " units"]:
        return np.add.reduceat(values.double().cpu().numpy(), [unit[0] for unit in self.units])


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRanking:
    """Numbers and gains of units of far tokens, in the order of selection.

    Gains of an exact measure are in nats of the objective. Other measures have other units.
    """

    indices: tuple[int, ...]
    gains: tuple[float, ...]


@runtime_checkable
class InfluenceMeasure(Protocol):
    """Measure that ranks units of far tokens. The first k units of a ranking are the selection of k units.

    A subclass must set ``name``, and the other class variables if they differ from these defaults. ``exact`` is True if
    forward passes compute the gains, and False for an approximation. ``gradient_context`` is the context of the
    gradient that prefilters candidates for this measure; see ``SubsetScorer.gradient``.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    exact: ClassVar[bool] = True
    gradient_context: ClassVar[str] = "none"

    def select_tokens(self, scorer: SubsetScorer, k: int, rng: np.random.Generator) -> UnitRanking:
        """Return the best k candidates of the scorer, best first."""
        ...


def top_k_candidates(scorer: SubsetScorer, gains: Float[np.ndarray, " candidates"], k: int) -> UnitRanking:
    """Return the k candidates with the largest gains. Ties are broken in favor of the earlier token."""
    sorted_positions = np.argsort(-gains, kind="stable")[:k]
    return UnitRanking(
        indices=tuple(int(index) for index in scorer.candidates[sorted_positions]),
        gains=tuple(float(gain) for gain in gains[sorted_positions]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOneIn(InfluenceMeasure):
    """Measure of the gain ``score(near) - score(near + i)`` from far token i alone.

    It misses joint effects of several tokens, and it selects redundant copies of a token.
    """

    name: ClassVar[str] = "add_one_in"
    summary: ClassVar[str] = "gain of each far token added alone to the near tokens; misses joint effects"
    paper: ClassVar[str] = "Golowich et al. 2025, arXiv:2502.16792 (short context and k more tokens)"

    def select_tokens(self, scorer: SubsetScorer, k: int, rng: np.random.Generator) -> UnitRanking:
        """Score the near tokens without and with each candidate."""
        subsets = [[], *([index] for index in scorer.candidates.tolist())]
        scores = scorer.scores_of_sets(subsets)
        return top_k_candidates(scorer, scores[0] - scores[1:], k)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOneOut(InfluenceMeasure):
    """Measure of the score increase ``score(all without i) - score(all)`` if far token i is hidden.

    It misses tokens with a copy in the context.
    """

    name: ClassVar[str] = "leave_one_out"
    summary: ClassVar[str] = "loss increase when one far token of the whole context is hidden; misses copies"
    paper: ClassVar[str] = "Cook 1977 (deletion); Li et al. 2016, arXiv:1612.08220"
    gradient_context: ClassVar[str] = "all"

    def select_tokens(self, scorer: SubsetScorer, k: int, rng: np.random.Generator) -> UnitRanking:
        """Score the whole context, and the context without each candidate."""
        subsets = [[], *([index] for index in scorer.candidates.tolist())]
        scores = scorer.scores(np.stack([~scorer.visibility_mask(indices) for indices in subsets]))
        return top_k_candidates(scorer, scores[1:] - scores[0], k)


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedySelection(InfluenceMeasure):
    """Greedy search that adds the far token with the largest gain, k times.

    It misses tokens that only help together. Gains can be negative.
    """

    name: ClassVar[str] = "greedy"
    summary: ClassVar[str] = "greedy search: adds the far token with the largest gain, k times; k times the cost"
    paper: ClassVar[str] = "Nemhauser, Wolsey, Fisher 1978 (greedy choice of a set)"

    def select_tokens(self, scorer: SubsetScorer, k: int, rng: np.random.Generator) -> UnitRanking:
        """Score every remaining candidate in each of k steps."""
        indices, gains, remaining = list[int](), list[float](), scorer.candidates.tolist()
        current_score = float(scorer.scores_of_sets([[]])[0])
        for _ in range(min(k, len(remaining))):
            scores = scorer.scores_of_sets([[*indices, index] for index in remaining])
            best_index = int(scores.argmin())
            indices.append(remaining.pop(best_index))
            gains.append(current_score - float(scores[best_index]))
            current_score = float(scores[best_index])
        return UnitRanking(indices=tuple(indices), gains=tuple(gains))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedGreedy(InfluenceMeasure):
    """Greedy search that scores only proposed units, and adds several units at once.

    Three lists propose units in turn: quick scores, quick gains, and the units with the most expected tokens. None is
    reliable alone: quick scores miss units that act through other near tokens, and quick gains are of first order. A
    step adds at most twice as many units as the last step, and has ``extra`` more proposals. Exact queries rank the
    proposals, and decide how many are best together. ``tolerance`` is a share of the objective with near tokens only:
    of several numbers of units, the search takes the largest whose objective is at most this much worse than the best.
    If no more than this is left to gain, it adds the rest without queries.
    """

    name: ClassVar[str] = "proposed"
    summary: ClassVar[str] = "greedy search among units that three cheap lists propose; adds several at once"
    paper: ClassVar[str] = "Nemhauser, Wolsey, Fisher 1978 (greedy choice of a set); the proposals are derived here"

    extra: int = 5
    tolerance: float = 0.005

    def __post_init__(self) -> None:
        if self.extra < 0:
            raise SettingError(f"invalid extra {self.extra}; use 0 or more proposals")
        if not 0 <= self.tolerance < 1:
            raise SettingError(f"invalid tolerance {self.tolerance}; use at least 0 and less than 1")

    def select_tokens(self, scorer: SubsetScorer, k: int, rng: np.random.Generator) -> UnitRanking:
        """Add up to twice as many units as the last step added: 1, 2, 4 ... of the best proposals."""
        indices, gains, num_added = list[int](), list[float](), 1
        score = float(scorer.scores_of_sets([[]])[0])
        tolerance, expected = self.tolerance * abs(score), scorer.expected_tokens()
        while len(indices) < k and len(indices) < len(scorer.candidates):
            remaining = np.setdiff1d(scorer.candidates, indices)
            proposals = remaining[self._propose(scorer, indices, remaining, expected)]
            if score <= tolerance:
                indices += proposals[: k - len(indices)].tolist()
                break
            most = min(num_added, k - len(indices), len(remaining))
            proposals = proposals[: most + self.extra]
            scores = scorer.scores_of_sets([[*indices, index] for index in proposals.tolist()])
            order = np.argsort(scores, kind="stable")
            sizes = [*(2**power for power in range(1, (most - 1).bit_length())), most] if most > 1 else []
            together = scorer.scores_of_sets([[*indices, *proposals[order[:size]].tolist()] for size in sizes])
            scores_by_size = {1: float(scores[order[0]]), **dict(zip(sizes, together.tolist(), strict=True))}
            acceptable = min(scores_by_size.values()) + tolerance
            num_added = max(size for size, each in scores_by_size.items() if each <= acceptable)
            added = order[:num_added]
            indices += proposals[added].tolist()
            gains += (score - scores[added]).tolist()
            score, num_added = scores_by_size[num_added], 2 * num_added
        return UnitRanking(indices=tuple(indices), gains=(*gains, *[0.0] * (len(indices) - len(gains))))

    def _propose(
        self,
        scorer: SubsetScorer,
        selected: Sequence[int],
        remaining: Int[np.ndarray, " remaining"],
        expected: Float[np.ndarray, " units"],
    ) -> Int[np.ndarray, " remaining"]:
        """Return the positions of the remaining units, from the three lists in turn."""
        losses = [scorer.quick_scores(selected)]
        # In decode mode, the quick scores are exact.
        if scorer.mode != "decode":
            losses += [-scorer.quick_gains(selected), -expected]
        orders = [np.argsort(each[remaining], kind="stable") for each in losses]
        return np.array(list(dict.fromkeys(np.stack(orders, axis=1).ravel().tolist())))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefilteredMeasure(InfluenceMeasure):
    """Prefilter by gradient for the measure ``then``.

    ``then`` scores only the candidates with the largest gradients: a fraction ``share`` of them, but at least k.
    """

    name: ClassVar[str] = "screened"
    summary: ClassVar[str] = "a gradient prefilters a tenth of the far tokens; greedy or another measure scores them"
    paper: ClassVar[str] = "Michel et al. 2019, arXiv:1905.10650 (gates and their gradients)"

    then: InfluenceMeasure = field(default_factory=GreedySelection)
    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise SettingError(f"invalid share {self.share} of far tokens; use a number above 0 and at most 1")

    def select_tokens(self, scorer: SubsetScorer, k: int, rng: np.random.Generator) -> UnitRanking:
        """Run one backward pass, then the measure ``then`` on the remaining candidates."""
        gradients = scorer.gradient(context=self.then.gradient_context)[scorer.candidates]
        num_candidates = max(k, math.ceil(self.share * len(scorer.candidates)))
        candidates = scorer.candidates[np.argsort(-gradients, kind="stable")[:num_candidates]]
        return self.then.select_tokens(scorer.with_candidates(candidates), k, rng)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientMeasure(InfluenceMeasure):
    """Gradient of the score with respect to a gate on the attention to each far token."""

    name: ClassVar[str] = "gradient"
    summary: ClassVar[str] = "gradient with respect to attention gates, one per far token; one backward pass for all"
    paper: ClassVar[str] = "Michel et al. 2019, arXiv:1905.10650 (gates and their gradients)"
    exact: ClassVar[bool] = False

    def select_tokens(self, scorer: SubsetScorer, k: int, rng: np.random.Generator) -> UnitRanking:
        """Rank all candidates with one backward pass."""
        return top_k_candidates(scorer, scorer.gradient(context=self.gradient_context)[scorer.candidates], k)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeight(InfluenceMeasure):
    """Mean attention weight (over layers and heads) of the last near token on each far token.

    It ignores the attention values and the target.
    """

    name: ClassVar[str] = "attention"
    summary: ClassVar[str] = "mean attention weight of the last near token; ignores values and the target"
    paper: ClassVar[str] = "Abnar, Zuidema 2020, arXiv:2005.00928 (raw attention and its limits)"
    exact: ClassVar[bool] = False
    gradient_context: ClassVar[str] = "all"

    def select_tokens(self, scorer: SubsetScorer, k: int, rng: np.random.Generator) -> UnitRanking:
        """Rank all candidates with one forward pass."""
        return top_k_candidates(scorer, scorer.attention()[scorer.candidates], k)


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestSelection(InfluenceMeasure):
    """Selection of the k nearest candidates without a forward pass. All gains are 0."""

    name: ClassVar[str] = "nearest"
    summary: ClassVar[str] = "the nearest far tokens: the control for recency"
    exact: ClassVar[bool] = False

    def select_tokens(self, scorer: SubsetScorer, k: int, rng: np.random.Generator) -> UnitRanking:
        """Return the last k candidates, the nearest one first."""
        indices = scorer.candidates[::-1][:k].tolist()
        return UnitRanking(indices=tuple(indices), gains=(0.0,) * len(indices))


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomSelection(InfluenceMeasure):
    """Random selection of k distinct candidates without a forward pass. All gains are 0."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "random far tokens: the control"
    exact: ClassVar[bool] = False

    def select_tokens(self, scorer: SubsetScorer, k: int, rng: np.random.Generator) -> UnitRanking:
        """Return the first k candidates of a random permutation."""
        indices = rng.permutation(scorer.candidates)[:k]
        return UnitRanking(indices=tuple(int(index) for index in indices), gains=(0.0,) * len(indices))


MEASURES: dict[str, type[InfluenceMeasure]] = {
    entry.name: entry
    for entry in (
        AddOneIn,
        LeaveOneOut,
        GreedySelection,
        ProposedGreedy,
        PrefilteredMeasure,
        GradientMeasure,
        AttentionWeight,
        NearestSelection,
        RandomSelection,
    )
}

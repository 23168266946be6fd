"""Evaluator that predicts each target with all far tokens, then with only k selected far tokens."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lengthwise.core.randomness import random_stream
from lengthwise.evaluation.language_model import NextTokenModel, max_log_prob_difference
from lengthwise.influence.hidden_context import TargetWindow, VisibilityMask, WindowEvaluator, strict_log_probs
from lengthwise.influence.measures import (
    InfluenceMeasure,
    KLDivergence,
    NearestSelection,
    Objective,
    RandomSelection,
    SubsetScorer,
    TargetLoss,
    UnitRanking,
)
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.influence.targets import ELSEWHERE_SOURCE, OTHER_SOURCE, PlaceboSampler, TargetToken
from lengthwise.influence.token_kinds import NUM_NEIGHBORS, token_kinds
from lengthwise.influence.units import split_into_units
from lengthwise.tasks import TokenizedDocument

FORWARD_METHODS = (
    "log_probs",
    "last_log_probs",
    "log_probs_without_cache",
    "prefill",
    "extend_states",
    "log_probs_with_mask",
    "attention_gate_gradient",
    "attention_weights",
)
# Largest difference (nats) that a longer sequence may cause in earlier predictions by rounding.
STABLE_DIFFERENCE, HALF_PRECISION_DIFFERENCE = 1e-3, 0.1
# Share of the searched targets that are drawn with equal probability; the others are drawn by their divergence.
UNIFORM_SHARE = 0.2
# Number of decimal digits of a saved loss, the resolution of float32.
NUM_LOSS_DIGITS = 6
# Number of blocks of targets, and of their searches, that share forward passes on a GPU.
NUM_SHARED, NUM_THREADS = 16, 48
LogProbs = Float[Tensor, " vocab"]
T = TypeVar("T")
# States of far tokens by kind, for each sequence of start and far tokens.
SharedStates = defaultdict[bytes, dict[str, Any]]


class StopRequestedError(Exception):
    """Exception that ends a study before a forward pass, at the user's request."""


def stop_before_forward_passes(model: NextTokenModel, stop: Callable[[], bool]) -> NextTokenModel:
    """Return a copy of the model that raises ``StopRequestedError`` before a forward pass if ``stop()`` is True."""

    def run_unless_stopped(method: Callable[..., T], *inputs: Any, **more_inputs: Any) -> T:
        if stop():
            raise StopRequestedError
        return method(*inputs, **more_inputs)

    new_model = copy(model)
    for name in FORWARD_METHODS:
        setattr(new_model, name, partial(run_unless_stopped, getattr(model, name)))
    return new_model


@dataclass(frozen=True, slots=True, kw_only=True)
class FullContextLosses:
    """Windows of one target and its losses with all far tokens visible, for each source of the far tokens.

    ``target_index`` is the index of the target in the study. ``log_probs_long`` is the prediction with all original far
    tokens. ``log_probs_short`` is the prediction with near tokens only.
    """

    target_index: int
    windows: Mapping[str, TargetWindow]
    losses: Mapping[str, float]
    log_probs_long: LogProbs
    log_probs_short: LogProbs

    def loss_and_divergence(self, log_probs: LogProbs) -> tuple[float, float]:
        """Return the loss of a prediction and its divergence from the prediction with all far tokens, in nats."""
        return _loss(log_probs, self.windows["own"]), max(float(KLDivergence(self.log_probs_long)(log_probs)), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSelection:
    """Units of far tokens that a measure selected in one window, for one mode, objective and source."""

    contexts: FullContextLosses
    scorer: SubsetScorer
    objective: str
    source: str
    measure: str
    # Random selections have several rankings, and their scores are averaged.
    rankings: tuple[UnitRanking, ...]

    def visibility_masks(self, ks: Sequence[int]) -> list[VisibilityMask]:
        """Return one mask per ranking and k, in which only the first k units of the ranking are visible."""
        return [self.scorer.visibility_mask(ranking.indices[:k]) for ranking in self.rankings for k in ks]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProbability:
    """Probability that a target is searched: a mixture of equal shares and shares in proportion to the divergence.

    Each target is drawn independently (Poisson sampling), so 1 / probability is its weight in unbiased sums (Horvitz
    and Thompson 1952). ``mean_divergence`` is an estimate for all targets; an error in it changes only the number of
    searched targets.
    """

    searched: int
    num_targets: int
    mean_divergence: float

    def __call__(self, divergence: float) -> float:
        """Return the probability for a target with this divergence, in nats."""
        relative = divergence / self.mean_divergence if self.mean_divergence > 0 else 1.0
        return min(1.0, self.searched / self.num_targets * (UNIFORM_SHARE + (1 - UNIFORM_SHARE) * relative))


@dataclass(frozen=True, kw_only=True)
class TargetEvaluator:
    """Evaluator that returns one result row per target. Rows do not depend on previous calls.

    ``start`` contains the ID of the model's start token, or is empty.
    """

    model: NextTokenModel
    texts: Sequence[TokenizedDocument]
    settings: InfluenceSettings
    token_text: Callable[[int], str]
    start: tuple[int, ...] = ()

    @cached_property
    def placebo_sampler(self) -> PlaceboSampler:
        """Sampler of far tokens from another document, or from another part of the same document."""
        return PlaceboSampler(self.texts, self.settings.context - self.settings.far, self.settings.far)

    def rows(
        self, targets: Sequence[TargetToken], first_target_index: int, probability: SearchProbability | None = None
    ) -> list[dict[str, Any]]:
        """Return one result row per target. ``first_target_index`` is the index of ``targets[0]`` in the study.

        ``probability`` decides which targets are searched (None: all).
        """
        return next(self.rows_of_blocks([(first_target_index, targets)], probability))

    def rows_of_blocks(
        self, blocks: Sequence[tuple[int, Sequence[TargetToken]]], probability: SearchProbability | None = None
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield the result rows of each block of targets, which comes with the index of its first target.

        Searches of several blocks share forward passes if the model can do this.
        """
        for first in range(0, len(blocks), self.num_shared):
            group, jobs = blocks[first : first + self.num_shared], list[Callable[[], UnitSelection]]()
            rows_by_block, rows, numbers = list[list[dict[str, Any]]](), list[dict[str, Any]](), list[int]()
            shared_states: SharedStates = defaultdict(dict)
            for target_index, targets in group:
                contexts = self._full_contexts(targets, target_index)
                pairs = zip(targets, contexts, strict=True)
                rows_by_block.append([self._row_without_selections(*pair, probability) for pair in pairs])
                for row, context in zip(rows_by_block[-1], contexts, strict=True):
                    row_jobs = self._selection_jobs(context, shared_states) if row["weight"] else []
                    rows.append(row)
                    numbers.append(len(row_jobs))
                    jobs += row_jobs
            selections = self._run(jobs)
            pairs_left = zip(selections, self._score_selections(selections), strict=True)
            for row, number in zip(rows, numbers, strict=True):
                row["selections"] = [self._selection_entry(*pair) for pair in islice(pairs_left, number)]
            yield from rows_by_block

    @property
    def num_shared(self) -> int:
        """Number of blocks, or of targets of a pilot, whose searches share forward passes."""
        return NUM_SHARED if hasattr(self.model, "run_together") else 1

    def _run(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """Return the results of jobs, which share forward passes if the model can do this."""
        run_together = getattr(self.model, "run_together", None)
        return [job() for job in jobs] if run_together is None else run_together(jobs, NUM_THREADS)

    def mean_divergence(self, targets: Sequence[TargetToken]) -> float:
        """Return the mean divergence between the predictions with near tokens and with all tokens, in nats."""
        contexts = chain.from_iterable(
            self._full_contexts(block, 0, sources=()) for block in split_target_blocks(targets)
        )
        mean = np.mean([context.loss_and_divergence(context.log_probs_short)[1] for context in contexts])
        # Rounding errors of another machine must not change the weights of a study that it continues.
        return float(f"{mean:.3g}")

    def _full_contexts(
        self,
        targets: Sequence[TargetToken],
        first_target_index: int,
        sources: Sequence[str] = (OTHER_SOURCE, ELSEWHERE_SOURCE),
    ) -> list[FullContextLosses]:
        """Return the full contexts of targets, from one forward pass per block and source if this is exact."""
        contexts = list[FullContextLosses]()
        for block in split_target_blocks(targets):
            index, settings = first_target_index + len(contexts), self.settings
            near = [
                target.window(settings.near, settings.far, self.start, settings.num_sink_tokens) for target in block
            ]
            far_tokens = self._far_tokens_by_source(block, index, sources)
            windows = [
                {source: window if far is None else replace(window, far=far) for source, far in far_tokens.items()}
                for window in near
            ]
            predictions = {source: self._predict_block([each[source] for each in windows]) for source in far_tokens}
            short = self._predict_block(near, is_short=True)
            contexts += [
                FullContextLosses(
                    target_index=index + place,
                    windows=windows[place],
                    losses={source: _loss(log_probs[place], near[place]) for source, log_probs in predictions.items()},
                    log_probs_long=predictions["own"][place],
                    log_probs_short=short[place],
                )
                for place in range(len(block))
            ]
        return contexts

    def _predict_block(
        self, windows: Sequence[TargetWindow], *, is_short: bool = False
    ) -> Float[Tensor, "targets vocab"]:
        """Return the predictions of a block, with near tokens only or with all far tokens."""
        window, hidden = windows[-1], np.zeros(windows[-1].num_far_tokens, bool)
        if len(windows) == 1 or not self._has_stable_ids:
            queries = [(window, hidden if is_short else ~hidden) for window in windows]
            by_index = dict(self._predictions(queries))
            return torch.stack([by_index[index] for index in range(len(windows))])
        tokens, ids = torch.from_numpy(window.tokens), self.model.assign_position_ids(torch.from_numpy(window.tokens))
        is_visible = torch.from_numpy(window.expand_mask(hidden if is_short else ~hidden))
        return self.model.last_log_probs(tokens[is_visible], ids[..., is_visible], len(windows))

    @cached_property
    def _has_stable_ids(self) -> bool:
        """True if the predictions of a sequence do not change when it becomes longer, as random IDs would do."""
        settings = self.settings
        text = next(text for text in self.texts if len(text.tokens) > settings.context)
        tokens = np.concatenate([np.array(self.start, np.int64), text.tokens[: settings.context + 1].astype(np.int64)])
        short, long = torch.from_numpy(tokens[:-1]), torch.from_numpy(tokens)
        ids, longer_ids = self.model.assign_position_ids(short), self.model.assign_position_ids(long)
        if not torch.equal(ids, longer_ids[..., :-1]):
            return False
        expected = self.model.last_log_probs(short, ids, 1)[0]
        found = self.model.last_log_probs(long, longer_ids, 2)[0]
        tolerance = STABLE_DIFFERENCE if self.model.dtype in ("float32", "float64") else HALF_PRECISION_DIFFERENCE
        return max_log_prob_difference(found, expected) <= tolerance

    def _far_tokens_by_source(
        self, block: Sequence[TargetToken], index: int, sources: Sequence[str]
    ) -> dict[str, Int[np.ndarray, " far"] | None]:
        """Return the far tokens of a block by source: None for its own tokens; sources without tokens are missing."""
        sampler, seed = self.placebo_sampler, self.settings.seed
        found: dict[str, Int[np.ndarray, " far"] | None] = {"own": None}
        for source in sources:
            purpose = "other text" if source == OTHER_SOURCE else source
            far = sampler.sample(source, block[-1], random_stream(seed, purpose, index))
            if far is not None:
                found[source] = far
        return found

    def _predictions(self, queries: Sequence[tuple[TargetWindow, VisibilityMask]]) -> Iterator[tuple[int, LogProbs]]:
        for query_indices, log_probs in strict_log_probs(self.model, queries):
            yield from zip(query_indices, log_probs, strict=True)

    def _row_without_selections(
        self, target: TargetToken, contexts: FullContextLosses, probability: SearchProbability | None
    ) -> dict[str, Any]:
        """Return the result row of a target, except for the entry ``"selections"``."""
        gap_rule, window, losses = self.settings.rule, contexts.windows["own"], contexts.losses
        loss_short, divergence = contexts.loss_and_divergence(contexts.log_probs_short)
        clear_gains = {source: gap_rule.is_clear(loss_short, loss) for source, loss in losses.items()}
        clear_losses = {source: gap_rule.is_clear(loss, loss_short) for source, loss in losses.items()}
        return {
            "model": self.model.name,
            "document": target.text.name,
            "place": target.text.start_index + target.place,
            "target": window.target,
            "text": self.token_text(window.target),
            "kinds": self.classify_target(target),
            "loss_short": _round(loss_short),
            "loss_long": _round(losses["own"]),
            "divergence_short": _round(divergence),
            "clear": clear_gains["own"],
            "loses": clear_losses["own"],
            "controls": {
                source: {"loss": _round(losses[source]), "gains": clear_gains[source], "loses": clear_losses[source]}
                for source in (OTHER_SOURCE, ELSEWHERE_SOURCE)
                if source in losses
            },
            "near": len(window.near),
            "weight": self._weight(contexts.target_index, probability(_round(divergence)) if probability else 1.0),
        }

    def _weight(self, target_index: int, probability: float) -> float:
        """Return 1 / the probability that a target is searched, or 0 if it is not."""
        is_searched = random_stream(self.settings.seed, "searched", target_index).random() < probability
        return round(1 / probability, NUM_LOSS_DIGITS) if is_searched else 0.0

    def _selection_jobs(
        self, contexts: FullContextLosses, shared_states: SharedStates
    ) -> list[Callable[[], UnitSelection]]:
        """Return one function per selection of a target. Targets of a block share the states of their far tokens."""
        settings, seed, max_k = self.settings, self.settings.seed, self.settings.ks[-1]
        evaluators, units = dict[str, WindowEvaluator](), dict[str, list[Int[np.ndarray, " _"]]]()
        for source in ("own", *(control for control in settings.controls if control in contexts.windows)):
            window = contexts.windows[source]
            shared = shared_states[np.r_[window.start, window.far].tobytes()] if self._has_stable_ids else None
            evaluators[source] = WindowEvaluator(self.model, window, shared)
            units[source] = split_into_units(settings.unit, window.far, self.token_text)
        objectives: dict[str, Objective] = {
            "target": TargetLoss(contexts.windows["own"].target),
            "prediction": KLDivergence(contexts.log_probs_long),
        }

        def run_measure(
            mode: str, objective: str, source: str, measure: InfluenceMeasure, draws: int = 1
        ) -> UnitSelection:
            scorer = SubsetScorer(
                evaluator=evaluators[source],
                mode=mode,
                objective=objectives.get(objective, objectives["target"]),
                units=units[source],
                candidates=np.arange(len(units[source])),
            )
            streams = (random_stream(seed, measure.name, source, contexts.target_index, draw) for draw in range(draws))
            return UnitSelection(
                contexts=contexts,
                scorer=scorer,
                objective=objective,
                source=source,
                measure=measure.name,
                rankings=tuple(measure.select_tokens(scorer, max_k, rng) for rng in streams),
            )

        selections: list[Callable[[], UnitSelection]] = [
            partial(run_measure, mode, objective, source, settings.measure)
            for mode in settings.modes
            for source in evaluators
            for objective in settings.objectives
        ]
        for control, draws in ((RandomSelection(), settings.random_draws), (NearestSelection(), 1)):
            if control.name in settings.controls:
                selections += [partial(run_measure, mode, "nothing", "own", control, draws) for mode in settings.modes]
        return selections

    def _score_selections(self, selections: Sequence[UnitSelection]) -> Iterator[Float[np.ndarray, "2 k"]]:
        """Yield the loss and divergence at each k for every selection. All strict selections share forward passes."""
        ks = self.settings.ks
        strict = [selection for selection in selections if selection.scorer.mode == "strict"]
        strict_queries = [(selection, mask) for selection in strict for mask in selection.visibility_masks(ks)]
        scores_by_query = [(0.0, 0.0)] * len(strict_queries)
        queries = [(selection.scorer.evaluator.window, mask) for selection, mask in strict_queries]
        for query_index, log_probs in self._predictions(queries):
            scores_by_query[query_index] = strict_queries[query_index][0].contexts.loss_and_divergence(log_probs)
        others = [selection for selection in selections if selection.scorer.mode != "strict"]
        strict_scores = iter(scores_by_query)
        other_scores = iter(self._run([partial(_score_selection, each, ks) for each in others]))
        for selection in selections:
            if selection.scorer.mode == "strict":
                scores = list(islice(strict_scores, len(selection.visibility_masks(ks))))
            else:
                scores = next(other_scores)
            yield np.reshape(scores, (-1, len(ks), 2)).mean(axis=0).T

    def _selection_entry(self, selection: UnitSelection, scores: Float[np.ndarray, "2 k"]) -> dict[str, Any]:
        window, ranking, units = selection.scorer.evaluator.window, selection.rankings[0], selection.scorer.units
        # Several random rankings have no common list of units.
        selected_units = zip(ranking.indices, ranking.gains, strict=True) if len(selection.rankings) == 1 else ()
        seq, (losses, divergences) = window.num_far_tokens + len(window.near), scores.tolist()
        num_tokens = [int(mask.sum()) for mask in selection.visibility_masks(self.settings.ks)]
        return {
            "mode": selection.scorer.mode,
            "knows": selection.objective,
            "from": selection.source,
            "measure": selection.measure,
            "chosen": [
                {
                    "distance": seq - int(units[index][-1]),
                    "tokens": len(units[index]),
                    "text": "".join(self.token_text(int(token)) for token in window.far[units[index]]),
                    "gain": _round(gain),
                }
                for index, gain in selected_units
            ],
            "tokens": np.reshape(num_tokens, (-1, len(self.settings.ks))).mean(axis=0).tolist(),
            "losses": [_round(loss) for loss in losses],
            "divergences": [_round(divergence) for divergence in divergences],
        }

    def classify_target(self, target: TargetToken) -> list[str]:
        """Return the kinds of a target, in the order of ``KINDS``."""
        settings, tokens, end = self.settings, target.text.tokens, target.place + 1
        context = tokens[target.place - target.index_in_block - settings.context : end]
        neighbors = context[-1 - NUM_NEIGHBORS :], tokens[end : end + NUM_NEIGHBORS]
        previous_texts, next_texts = ([self.token_text(int(token)) for token in part] for part in neighbors)
        near = settings.near + target.index_in_block
        return token_kinds(previous_texts, near=near, tokens=context, next_texts=next_texts)


def _score_selection(selection: UnitSelection, ks: Sequence[int]) -> list[tuple[float, float]]:
    """Return the loss and divergence of each visibility mask of a selection."""
    masks = selection.visibility_masks(ks)
    scores = [(0.0, 0.0)] * len(masks)
    scorer = selection.scorer
    for mask_indices, mask_log_probs in scorer.evaluator.log_probs(np.stack(masks), scorer.mode):
        for query_index, log_probs in zip(mask_indices, mask_log_probs, strict=True):
            scores[query_index] = selection.contexts.loss_and_divergence(log_probs)
    return scores


def split_target_blocks(targets: Sequence[TargetToken]) -> Iterator[list[TargetToken]]:
    """Yield runs of targets of the same block, in order."""
    block: list[TargetToken] = []
    for target in targets:
        if block and target.index_in_block != block[-1].index_in_block + 1:
            yield block
            block = []
        block.append(target)
    if block:
        yield block


def _round(nats: float) -> float:
    return round(nats, NUM_LOSS_DIGITS)


def _loss(log_probs: LogProbs, window: TargetWindow) -> float:
    return float(-log_probs[window.target])

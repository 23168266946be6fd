"""Evaluator that predicts each target with all far tokens, then with only k selected far tokens."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lengthwise.core.randomness import random_stream
from lengthwise.evaluation.language_model import NextTokenModel
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
    "log_probs_without_cache",
    "prefill",
    "extend_states",
    "log_probs_with_mask",
    "attention_gate_gradient",
    "attention_weights",
)
# Cost of a forward and backward pass, in units of a forward pass.
BACKWARD_COST = 3
# Number of queries that measure the speed of a model.
NUM_TIMED_QUERIES = 64
# Number of decimal digits of a saved loss, the resolution of float32.
NUM_LOSS_DIGITS = 6
LogProbs = Float[Tensor, " vocab"]


class StopRequestedError(Exception):
    """Exception that ends a study before a forward pass, at the user's request."""


def stop_before_forward_passes(model: NextTokenModel, stop: Callable[[], bool]) -> NextTokenModel:
    """Return a copy of the model that raises ``StopRequestedError`` before a forward pass if ``stop()`` is True."""

    def add_stop_check(method: Callable[..., Any]) -> Callable[..., Any]:
        def run_unless_stopped(*inputs: Any, **more_inputs: Any) -> Any:
            if stop():
                raise StopRequestedError
            return method(*inputs, **more_inputs)

        return run_unless_stopped

    return _replace_methods(model, {name: add_stop_check(getattr(model, name)) for name in FORWARD_METHODS})


class TokenCounter:
    """Counter of the tokens that a model would read.

    ``model`` is a copy of the model that counts tokens and returns uniform predictions without a forward pass.
    """

    def __init__(self, model: NextTokenModel) -> None:
        self.num_tokens, self.vocabulary_size = 0, model.vocabulary_size
        methods: dict[str, Callable[..., Any]] = {
            "log_probs": lambda tokens, ids, states=None: self._uniform(tokens.numel(), len(tokens)),
            "prefill": lambda tokens, ids, num_prefix, mask=None: self._count(len(tokens), num_prefix),
            "extend_states": lambda states, tokens, ids, mask: self._count(len(tokens), states + len(tokens)),
            "log_probs_with_mask": lambda states, near, ids, masks: self._uniform(len(near) * len(masks), len(masks)),
            "attention_gate_gradient": lambda states, near, ids, log_gates, objective: self._count(
                BACKWARD_COST * len(near), torch.zeros(len(log_gates))
            ),
            "attention_weights": lambda states, near, ids: self._count(len(near), torch.full((states,), 1 / states)),
        }
        self.model = _replace_methods(model, methods)

    def _count(self, num_tokens: int, result: Any) -> Any:
        self.num_tokens += num_tokens
        return result

    def _uniform(self, num_tokens: int, num_predictions: int) -> Float[Tensor, "batch vocab"]:
        uniform_log_prob = -torch.tensor(float(self.vocabulary_size)).log()
        return self._count(num_tokens, uniform_log_prob.expand(num_predictions, self.vocabulary_size))


def _replace_methods(model: NextTokenModel, methods: Mapping[str, Callable[..., Any]]) -> NextTokenModel:
    new_model = copy(model)
    for name, method in methods.items():
        setattr(new_model, name, method)
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

    @property
    def evaluator(self) -> WindowEvaluator:
        """Evaluator of the window."""
        return self.scorer.evaluator

    @property
    def mode(self) -> str:
        """One of ``MODES``."""
        return self.scorer.mode

    def visibility_masks(self, ks: Sequence[int]) -> list[VisibilityMask]:
        """Return one mask per ranking and k, in which only the first k units of the ranking are visible."""
        return [self.scorer.visibility_mask(ranking.indices[:k]) for ranking in self.rankings for k in ks]


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

    def rows(self, targets: Sequence[TargetToken], first_target_index: int) -> list[dict[str, Any]]:
        """Return one result row per target. ``first_target_index`` is the index of ``targets[0]`` in the study."""
        contexts = self._full_contexts(targets, first_target_index)
        rows = [self._row_without_selections(*pair) for pair in zip(targets, contexts, strict=True)]
        pairs = zip(contexts, rows, strict=True)
        selections_by_target = [self._select_tokens(context) if row["weight"] else [] for context, row in pairs]
        scores = self._score_selections(list(chain(*selections_by_target)))
        for row, selections in zip(rows, selections_by_target, strict=True):
            row["selections"] = [self._selection_entry(selection, next(scores)) for selection in selections]
        return rows

    def count_tokens(self, target: TargetToken, counter: TokenCounter) -> tuple[int, int]:
        """Return the numbers of tokens that the model reads for a target: for full contexts, and for selections."""
        start = counter.num_tokens
        (contexts,) = self._full_contexts([target], 0)
        middle = counter.num_tokens
        list(self._score_selections(self._select_tokens(contexts)))
        return middle - start, counter.num_tokens - middle

    def _full_contexts(self, targets: Sequence[TargetToken], first_target_index: int) -> list[FullContextLosses]:
        windows = [self._windows_by_source(target, first_target_index + index) for index, target in enumerate(targets)]
        own_windows = [windows_by_source["own"] for windows_by_source in windows]
        log_probs_short = dict(self._predictions([(window, window.visibility_mask([])) for window in own_windows]))
        log_probs_long = dict(self._predictions([(window, ~window.visibility_mask([])) for window in own_windows]))
        losses = [{"own": _loss(log_probs_long[index], window)} for index, window in enumerate(own_windows)]
        controls = [(index, source) for index, sources in enumerate(windows) for source in sources if source != "own"]
        queries = [(windows[index][source], ~own_windows[index].visibility_mask([])) for index, source in controls]
        # Predictions have one number per entry of the vocabulary, so only the losses are stored.
        for query_index, log_probs in self._predictions(queries):
            index, source = controls[query_index]
            losses[index][source] = _loss(log_probs, own_windows[index])
        return [
            FullContextLosses(
                target_index=first_target_index + index,
                windows=windows[index],
                losses=losses[index],
                log_probs_long=log_probs_long[index],
                log_probs_short=log_probs_short[index],
            )
            for index in range(len(targets))
        ]

    def _windows_by_source(self, target: TargetToken, target_index: int) -> dict[str, TargetWindow]:
        """Return the windows of a target by source of the far tokens. All windows have the same near tokens."""
        settings, seed = self.settings, self.settings.seed
        own_window = target.window(settings.near, settings.far, self.start, settings.sink)
        other_tokens = self.placebo_sampler.sample_other_document(
            target, random_stream(seed, "other text", target_index)
        )
        elsewhere_tokens = self.placebo_sampler.sample_same_document(
            target, random_stream(seed, "elsewhere", target_index)
        )
        windows = {"own": own_window, OTHER_SOURCE: own_window.with_far_tokens(other_tokens)}
        if elsewhere_tokens is not None:
            windows[ELSEWHERE_SOURCE] = own_window.with_far_tokens(elsewhere_tokens)
        return windows

    def _predictions(self, queries: Sequence[tuple[TargetWindow, VisibilityMask]]) -> Iterator[tuple[int, LogProbs]]:
        for query_indices, log_probs in strict_log_probs(self.model, queries):
            yield from zip(query_indices, log_probs, strict=True)

    def _row_without_selections(self, target: TargetToken, contexts: FullContextLosses) -> dict[str, Any]:
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
            "weight": self._weight(contexts.target_index, is_clear=clear_gains["own"] or clear_gains[OTHER_SOURCE]),
        }

    def _weight(self, target_index: int, *, is_clear: bool) -> float:
        """Return 1 / the probability that a target is sampled for selections, or 0 if the target is not sampled."""
        background_fraction = self.settings.background_fraction
        if is_clear:
            return 1.0
        if (
            background_fraction == 0
            or random_stream(self.settings.seed, "rest", target_index).random() >= background_fraction
        ):
            return 0.0
        return 1 / background_fraction

    def _select_tokens(self, contexts: FullContextLosses) -> list[UnitSelection]:
        settings, seed, max_k = self.settings, self.settings.seed, self.settings.ks[-1]
        sources = ["own", *(control for control in settings.controls if control in contexts.windows)]
        evaluators = {source: WindowEvaluator(self.model, contexts.windows[source]) for source in sources}
        units = {
            source: split_into_units(settings.unit, contexts.windows[source].far, self.token_text) for source in sources
        }
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

        selections = [
            run_measure(mode, objective, source, settings.measure)
            for mode in settings.modes
            for source in evaluators
            for objective in settings.objectives
        ]
        if "random" in settings.controls:
            draws = settings.random_draws
            selections += [run_measure(mode, "nothing", "own", RandomSelection(), draws) for mode in settings.modes]
        if "nearest" in settings.controls:
            selections += [run_measure(mode, "nothing", "own", NearestSelection()) for mode in settings.modes]
        return selections

    def _score_selections(self, selections: Sequence[UnitSelection]) -> Iterator[Float[np.ndarray, "2 k"]]:
        """Yield the loss and divergence at each k for every selection. All strict selections share forward passes."""
        ks = self.settings.ks
        strict = [selection for selection in selections if selection.mode == "strict"]
        strict_queries = [(selection, mask) for selection in strict for mask in selection.visibility_masks(ks)]
        scores_by_query = [(0.0, 0.0)] * len(strict_queries)
        queries = [(selection.evaluator.window, mask) for selection, mask in strict_queries]
        for query_index, log_probs in self._predictions(queries):
            scores_by_query[query_index] = strict_queries[query_index][0].contexts.loss_and_divergence(log_probs)
        strict_scores = iter(scores_by_query)
        for selection in selections:
            masks = selection.visibility_masks(ks)
            if selection.mode == "strict":
                scores = [next(strict_scores) for _ in masks]
            else:
                scores = [(0.0, 0.0)] * len(masks)
                for mask_indices, mask_log_probs in selection.evaluator.log_probs(np.stack(masks), selection.mode):
                    for query_index, log_probs in zip(mask_indices, mask_log_probs, strict=True):
                        scores[query_index] = selection.contexts.loss_and_divergence(log_probs)
            yield np.reshape(scores, (-1, len(ks), 2)).mean(axis=0).T

    def _selection_entry(self, selection: UnitSelection, scores: Float[np.ndarray, "2 k"]) -> dict[str, Any]:
        window, ranking, units = selection.evaluator.window, selection.rankings[0], selection.scorer.units
        # Several random rankings have no common list of units.
        selected_units = zip(ranking.indices, ranking.gains, strict=True) if len(selection.rankings) == 1 else ()
        seq, (losses, divergences) = window.num_far_tokens + len(window.near), scores.tolist()
        num_tokens = [int(mask.sum()) for mask in selection.visibility_masks(self.settings.ks)]
        return {
            "mode": selection.mode,
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
        context = tokens[target.place - settings.context : end]
        neighbors = context[-1 - NUM_NEIGHBORS :], tokens[end : end + NUM_NEIGHBORS]
        previous_texts, next_texts = ([self.token_text(int(token)) for token in part] for part in neighbors)
        return token_kinds(previous_texts, near=settings.near, tokens=context, next_texts=next_texts)


def _round(nats: float) -> float:
    return round(nats, NUM_LOSS_DIGITS)


def _loss(log_probs: LogProbs, window: TargetWindow) -> float:
    return float(-log_probs[window.target])


def estimate_seconds(evaluator: TargetEvaluator, targets: Sequence[TargetToken]) -> tuple[float, float]:
    """Return the minimum and maximum duration of a study in seconds.

    The study selects far tokens for a fraction ``background_fraction`` of the targets (minimum), or for all (maximum).
    """
    counter = TokenCounter(evaluator.model)
    full_context_tokens, selection_tokens = replace(evaluator, model=counter.model).count_tokens(targets[0], counter)
    seconds_per_token = len(targets) / _tokens_per_second(evaluator, targets[0])
    min_tokens = full_context_tokens + evaluator.settings.background_fraction * selection_tokens
    return min_tokens * seconds_per_token, (full_context_tokens + selection_tokens) * seconds_per_token


def _tokens_per_second(evaluator: TargetEvaluator, target: TargetToken) -> float:
    """Measure the tokens per second of the model on queries with all far tokens hidden."""
    settings = evaluator.settings
    window = target.window(settings.near, settings.far, evaluator.start, settings.sink)
    start_time = time.perf_counter()
    for _ in strict_log_probs(evaluator.model, [(window, window.visibility_mask([]))] * NUM_TIMED_QUERIES):
        pass
    return NUM_TIMED_QUERIES * (len(window.start) + settings.near) / (time.perf_counter() - start_time)

"""Evaluation of targets in blocks: full contexts first, then k far tokens for every selection."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from lengthwise.core.randomness import stream
from lengthwise.influence.measures.measure import InfluenceMeasure, TokenRanking
from lengthwise.influence.measures.random_choice import RandomChoice
from lengthwise.influence.placebo import ELSEWHERE, OTHER, PlaceboSampler
from lengthwise.influence.probing.hidden_context import Visible, WindowEvaluator, strict_log_probs
from lengthwise.influence.probing.model_wrapping import TokenCounter
from lengthwise.influence.probing.next_token_model import NextTokenModel
from lengthwise.influence.probing.subset_scoring import Divergence, Objective, SubsetScorer, TargetLoss
from lengthwise.influence.probing.window import Window
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.influence.targets import Target
from lengthwise.influence.token_kinds import AROUND, token_kinds
from lengthwise.tasks import TokenizedDocument

# Digits of a saved loss: the resolution of float32.
DIGITS = 6
LogProbs = Float[Tensor, " vocab"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FullContexts:
    """Results of one target with full contexts, by source of the far tokens.

    ``number`` is the index of the target in the study. ``long`` and ``short`` are the predictions with all own far
    tokens and with near tokens only.
    """

    number: int
    windows: Mapping[str, Window]
    losses: Mapping[str, float]
    long: LogProbs
    short: LogProbs

    def score(self, log_probs: LogProbs) -> tuple[float, float]:
        """Return the loss of the target and the divergence from the prediction with the whole context, in nats."""
        return _loss(log_probs, self.windows["own"]), max(float(Divergence(self.long)(log_probs)), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Far tokens that a measure selected in one window, given a mode, an objective and a source."""

    contexts: FullContexts
    evaluator: WindowEvaluator
    mode: str
    objective: str
    source: str
    measure: str
    # Several for random selections; their scores are averaged.
    rankings: tuple[TokenRanking, ...]

    def visible(self, ks: Sequence[int]) -> list[Visible]:
        """Return the visibility mask for each ranking and k."""
        window = self.evaluator.window
        return [window.only(ranking.indices[:k]) for ranking in self.rankings for k in ks]


@dataclass(frozen=True, kw_only=True)
class TargetEvaluator:
    """Evaluator of blocks of targets. The rows of a block do not depend on earlier blocks.

    ``start`` is the start token of the model, if any. ``labels`` are added to every row.
    """

    model: NextTokenModel
    texts: Sequence[TokenizedDocument]
    settings: InfluenceSettings
    token_text: Callable[[int], str]
    start: tuple[int, ...] = ()
    labels: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def placebo(self) -> PlaceboSampler:
        """Sampler of far tokens from other places."""
        return PlaceboSampler(self.texts, self.settings.context - self.settings.far, self.settings.far)

    def rows(self, targets: Sequence[Target], first: int) -> list[dict[str, Any]]:
        """Return a row per target; ``first`` is the index of the first target in the study."""
        contexts = self._full_contexts(targets, first)
        rows = [self._row(target, each) for target, each in zip(targets, contexts, strict=True)]
        selections = [self._select(each) if row["weight"] else [] for each, row in zip(contexts, rows, strict=True)]
        scores = self._scores([selection for each in selections for selection in each])
        for row, each in zip(rows, selections, strict=True):
            row["selections"] = [self._selection_entry(selection, next(scores)) for selection in each]
        return rows

    def count_tokens(self, target: Target, counter: TokenCounter) -> tuple[int, int]:
        """Return the tokens that ``counter`` counts for the full contexts of a target, and for its selections."""
        start = counter.tokens
        (contexts,) = self._full_contexts([target], 0)
        full = counter.tokens
        for _ in self._scores(self._select(contexts)):
            pass
        return full - start, counter.tokens - full

    def _full_contexts(self, targets: Sequence[Target], first: int) -> list[FullContexts]:
        windows = [self._windows(target, first + index) for index, target in enumerate(targets)]
        own = [each["own"] for each in windows]
        short = dict(self._predictions([(window, window.only([])) for window in own]))
        long = dict(self._predictions([(window, ~window.only([])) for window in own]))
        losses = [{"own": _loss(long[index], window)} for index, window in enumerate(own)]
        controls = [(index, source) for index, each in enumerate(windows) for source in each if source != "own"]
        control_windows = [windows[index][source] for index, source in controls]
        # Only the losses are stored: a prediction has one number per entry of the vocabulary.
        for number, log_probs in self._predictions([(window, ~window.only([])) for window in control_windows]):
            index, source = controls[number]
            losses[index][source] = _loss(log_probs, own[index])
        return [
            FullContexts(number=first + n, windows=windows[n], losses=losses[n], long=long[n], short=short[n])
            for n in range(len(targets))
        ]

    def _windows(self, target: Target, number: int) -> dict[str, Window]:
        """Return the context of the target by source of its far tokens; the near tokens are the same."""
        settings, seed = self.settings, self.settings.seed
        own = target.window(settings.near, settings.far, self.start, settings.sink)
        other = self.placebo.sample_other(target, stream(seed, "other text", number))
        elsewhere = self.placebo.sample_elsewhere(target, stream(seed, "elsewhere", number))
        windows = {"own": own, OTHER: own.with_far(other)}
        return windows if elsewhere is None else windows | {ELSEWHERE: own.with_far(elsewhere)}

    def _predictions(self, queries: Sequence[tuple[Window, Visible]]) -> Iterator[tuple[int, LogProbs]]:
        """Yield the index of each query with its log-probabilities."""
        for indices, log_probs in strict_log_probs(self.model, queries):
            yield from zip(indices, log_probs, strict=True)

    def _row(self, target: Target, contexts: FullContexts) -> dict[str, Any]:
        """Return a row without its selections."""
        rule, window, losses = self.settings.rule, contexts.windows["own"], contexts.losses
        short, divergence = contexts.score(contexts.short)
        gains = {source: rule.is_clear(short, loss) for source, loss in losses.items()}
        loses = {source: rule.is_clear(loss, short) for source, loss in losses.items()}
        return {
            **self.labels,
            "document": target.text.name,
            "place": target.text.first + target.place,
            "target": window.target,
            "text": self.token_text(window.target),
            "kinds": self._kinds(target),
            "loss_short": _rounded(short),
            "loss_long": _rounded(losses["own"]),
            "divergence_short": _rounded(divergence),
            "clear": gains["own"],
            "loses": loses["own"],
            "controls": {
                source: {"loss": _rounded(losses[source]), "gains": gains[source], "loses": loses[source]}
                for source in (OTHER, ELSEWHERE)
                if source in losses
            },
            "weight": self._weight(contexts.number, certain=gains["own"] or gains[OTHER]),
        }

    def _weight(self, number: int, *, certain: bool) -> float:
        """Return the inverse of the probability that a target is measured at every k; 0 for an unmeasured target."""
        fraction = self.settings.background_fraction
        if certain:
            return 1.0
        if fraction == 0 or stream(self.settings.seed, "rest", number).random() >= fraction:
            return 0.0
        return 1 / fraction

    def _select(self, contexts: FullContexts) -> list[Selection]:
        settings, seed = self.settings, self.settings.seed
        sources = ["own", *(each for each in settings.controls if each in contexts.windows)]
        evaluators = {source: WindowEvaluator(self.model, contexts.windows[source]) for source in sources}
        objectives: dict[str, Objective] = {
            "target": TargetLoss(contexts.windows["own"].target),
            "prediction": Divergence(contexts.long),
        }

        def select(mode: str, objective: str, source: str, measure: InfluenceMeasure, draws: int = 1) -> Selection:
            scorer = SubsetScorer(
                evaluator=evaluators[source],
                mode=mode,
                objective=objectives.get(objective, objectives["target"]),
                candidates=np.arange(settings.far),
            )
            rankings = tuple(
                measure.select(scorer, settings.ks[-1], stream(seed, measure.name, source, contexts.number, draw))
                for draw in range(draws)
            )
            return Selection(
                contexts=contexts,
                evaluator=evaluators[source],
                mode=mode,
                objective=objective,
                source=source,
                measure=measure.name,
                rankings=rankings,
            )

        selections = [
            select(mode, objective, source, settings.measure)
            for mode in settings.modes
            for source in evaluators
            for objective in settings.objectives
        ]
        if "random" in settings.controls:
            selections += [
                select(mode, "nothing", "own", RandomChoice(), settings.random_draws) for mode in settings.modes
            ]
        return selections

    def _scores(self, selections: Sequence[Selection]) -> Iterator[Float[np.ndarray, "2 k"]]:
        """Yield loss and divergence at each k per selection; strict selections of all targets share forward passes."""
        ks = self.settings.ks
        strict = [
            (selection, visible)
            for selection in selections
            if selection.mode == "strict"
            for visible in selection.visible(ks)
        ]
        by_query = [(0.0, 0.0)] * len(strict)
        for query, log_probs in self._predictions([(each.evaluator.window, visible) for each, visible in strict]):
            by_query[query] = strict[query][0].contexts.score(log_probs)
        strict_scores = iter(by_query)
        for selection in selections:
            masks = selection.visible(ks)
            if selection.mode == "strict":
                scores = [next(strict_scores) for _ in masks]
            else:
                scores = [(0.0, 0.0)] * len(masks)
                for queries, batch in selection.evaluator.log_probs(np.stack(masks), selection.mode):
                    for query, log_probs in zip(queries, batch, strict=True):
                        scores[query] = selection.contexts.score(log_probs)
            yield np.reshape(scores, (-1, len(ks), 2)).mean(axis=0).T

    def _selection_entry(self, selection: Selection, scores: Float[np.ndarray, "2 k"]) -> dict[str, Any]:
        window, ranking = selection.evaluator.window, selection.rankings[0]
        # Several random selections have no common list of tokens.
        tokens = zip(ranking.indices, ranking.gains, strict=True) if len(selection.rankings) == 1 else ()
        end = window.num_far + len(window.near)
        losses, divergences = scores.tolist()
        return {
            "mode": selection.mode,
            "knows": selection.objective,
            "from": selection.source,
            "measure": selection.measure,
            "chosen": [
                {"distance": end - index, "text": self.token_text(int(window.far[index])), "gain": _rounded(gain)}
                for index, gain in tokens
            ],
            "losses": [_rounded(loss) for loss in losses],
            "divergences": [_rounded(divergence) for divergence in divergences],
        }

    def _kinds(self, target: Target) -> list[str]:
        settings, tokens = self.settings, target.text.tokens
        context = tokens[target.place - settings.context : target.place + 1]
        before, after = (
            [self.token_text(int(token)) for token in part]
            for part in (context[-1 - AROUND :], tokens[target.place + 1 : target.place + 1 + AROUND])
        )
        return token_kinds(before, near=settings.near, tokens=context, after=after)


def _rounded(number: float) -> float:
    return round(number, DIGITS)


def _loss(log_probs: LogProbs, window: Window) -> float:
    return float(-log_probs[window.target])

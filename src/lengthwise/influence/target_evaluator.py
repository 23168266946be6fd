"""One block of targets measured: losses with near, own and other far tokens, then with k of them by every selection."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from lengthwise.core.randomness import stream
from lengthwise.influence.measures.measure import Choice, InfluenceMeasure
from lengthwise.influence.measures.random_choice import RandomChoice
from lengthwise.influence.placebo import ELSEWHERE, OTHER, Placebo
from lengthwise.influence.probing.hidden_context import strict
from lengthwise.influence.probing.next_token_model import NextTokenModel
from lengthwise.influence.probing.objective import Divergence, Objective, TargetLoss
from lengthwise.influence.probing.subset_scoring import Probe, Reading
from lengthwise.influence.probing.window import Window
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.influence.targets import Target
from lengthwise.influence.token_kinds import AROUND, kinds
from lengthwise.tasks import TokenizedDocument

# Digits kept of a loss: what float32 resolves.
DIGITS = 6
Visible = Bool[np.ndarray, " far"]
LogProbs = Float[Tensor, " vocab"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A target by its number in the study, and what is known of it before far tokens are chosen.

    ``windows`` has its own context and the same with far tokens of other sources, ``losses`` the loss with all of each;
    ``whole`` and ``short`` are the predictions from the whole own context and from the near tokens.
    """

    number: int
    windows: Mapping[str, Window]
    losses: Mapping[str, float]
    whole: LogProbs
    short: LogProbs

    def score(self, log_probs: LogProbs) -> tuple[float, float]:
        """The target's loss, and the divergence from the prediction with the whole context; nats."""
        return _loss(log_probs, self.windows["own"]), max(float(Divergence(self.whole)(log_probs)), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Far tokens chosen in one window; ``objective`` and ``source`` say what the choice was allowed to use."""

    case: Case
    reading: Reading
    mode: str
    objective: str
    source: str
    measure: str
    # More than one for random draws, whose scores are averaged.
    choices: tuple[Choice, ...]

    def asked(self, ks: Sequence[int]) -> list[Visible]:
        """What is visible at each k, draw by draw."""
        window = self.reading.window
        return [window.only(choice.chosen[:k]) for choice in self.choices for k in ks]


@dataclass(frozen=True, kw_only=True)
class TargetRows:
    """Measures targets block by block; the same block gives the same rows, whatever was measured before it."""

    model: NextTokenModel
    texts: Sequence[TokenizedDocument]
    settings: InfluenceSettings
    token_text: Callable[[int], str]
    # What every text begins with for this model: none, or one token.
    start: tuple[int, ...] = ()
    labels: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def placebo(self) -> Placebo:
        """Where far tokens come from that are not the target's own."""
        return Placebo(self.texts, self.settings.context - self.settings.far, self.settings.far)

    def rows(self, targets: Sequence[Target], first: int) -> list[dict[str, Any]]:
        """A row per target; ``first`` is the number of the first among all targets of the study."""
        cases = self._cases(targets, first)
        rows = [self._row(target, case) for target, case in zip(targets, cases, strict=True)]
        selections = [self._selections(case) if row["weight"] else [] for case, row in zip(cases, rows, strict=True)]
        scores = self._scores([selection for each in selections for selection in each])
        for row, chosen in zip(rows, selections, strict=True):
            row["selections"] = [self._selection_row(selection, next(scores)) for selection in chosen]
        return rows

    def count(self, target: Target, counted: Callable[[], int]) -> tuple[int, int]:
        """Measure one target, whatever its weight; return what ``counted`` grew by: for losses, and for selections."""
        begun = counted()
        (case,) = self._cases([target], 0)
        read = counted()
        for _ in self._scores(self._selections(case)):
            pass
        return read - begun, counted() - read

    def _cases(self, targets: Sequence[Target], first: int) -> list[Case]:
        windows = [self._windows(target, first + place) for place, target in enumerate(targets)]
        own = [each["own"] for each in windows]
        short = dict(self._predictions([(window, window.only([])) for window in own]))
        whole = dict(self._predictions([(window, ~window.only([])) for window in own]))
        losses = [{"own": _loss(whole[place], window)} for place, window in enumerate(own)]
        controls = [(place, source) for place, each in enumerate(windows) for source in each if source != "own"]
        read = [windows[place][source] for place, source in controls]
        # Only the losses of these are kept: a prediction is as long as the vocabulary.
        for number, log_probs in self._predictions([(window, ~window.only([])) for window in read]):
            place, source = controls[number]
            losses[place][source] = _loss(log_probs, own[place])
        return [
            Case(number=first + n, windows=windows[n], losses=losses[n], whole=whole[n], short=short[n])
            for n in range(len(targets))
        ]

    def _windows(self, target: Target, number: int) -> dict[str, Window]:
        """The target's own context, and the same with another text's far tokens and with those of elsewhere."""
        settings, seed = self.settings, self.settings.seed
        own = target.window(settings.near, settings.far, self.start, settings.sink)
        found = {"own": own, OTHER: own.with_far(self.placebo.other(target, stream(seed, "other text", number)))}
        elsewhere = self.placebo.elsewhere(target, stream(seed, "elsewhere", number))
        return found if elsewhere is None else found | {ELSEWHERE: own.with_far(elsewhere)}

    def _predictions(self, asked: Sequence[tuple[Window, Visible]]) -> Iterator[tuple[int, LogProbs]]:
        """Which of the asked, and its log-probabilities."""
        for places, made in strict(self.model, asked):
            yield from zip(places, made, strict=True)

    def _row(self, target: Target, case: Case) -> dict[str, Any]:
        """All of a row but its selections."""
        rule, window, losses = self.settings.rule, case.windows["own"], case.losses
        short, divergence = case.score(case.short)
        gains = {source: rule.clear(short, loss) for source, loss in losses.items()}
        loses = {source: rule.clear(loss, short) for source, loss in losses.items()}
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
            "weight": self._weight(case.number, certain=gains["own"] or gains[OTHER]),
        }

    def _weight(self, number: int, *, certain: bool) -> float:
        """One over the probability of being measured; 0 for a target that is not."""
        if certain:
            return 1.0
        if self.settings.background_fraction == 0:
            return 0.0
        drawn = stream(self.settings.seed, "rest", number).random() < self.settings.background_fraction
        return 1 / self.settings.background_fraction if drawn else 0.0

    def _selections(self, case: Case) -> list[Selection]:
        settings, seed = self.settings, self.settings.seed
        sources = ["own", *(each for each in settings.controls if each in case.windows)]
        readings = {source: Reading(self.model, case.windows[source]) for source in sources}
        objectives: dict[str, Objective] = {
            "target": TargetLoss(case.windows["own"].target),
            "prediction": Divergence(case.whole),
        }

        def select(mode: str, objective: str, source: str, measure: InfluenceMeasure, draws: int = 1) -> Selection:
            probe = Probe(
                reading=readings[source],
                mode=mode,
                objective=objectives.get(objective, objectives["target"]),
                candidates=np.arange(settings.far),
            )
            choices = tuple(
                measure.choose(probe, settings.ks[-1], stream(seed, measure.name, source, case.number, draw))
                for draw in range(draws)
            )
            return Selection(
                case=case,
                reading=readings[source],
                mode=mode,
                objective=objective,
                source=source,
                measure=measure.name,
                choices=choices,
            )

        found = [
            select(mode, objective, source, settings.measure)
            for mode in settings.modes
            for source in readings
            for objective in settings.objectives
        ]
        if "random" in settings.controls:
            found += [select(mode, "nothing", "own", RandomChoice(), settings.random_draws) for mode in settings.modes]
        return found

    def _scores(self, selections: Sequence[Selection]) -> Iterator[Float[np.ndarray, "2 k"]]:
        """Loss and divergence at each k, selection by selection; strict ones of all targets are asked together."""
        ks = self.settings.ks
        together = [
            (selection, visible)
            for selection in selections
            if selection.mode == "strict"
            for visible in selection.asked(ks)
        ]
        found = [(0.0, 0.0)] * len(together)
        for place, log_probs in self._predictions([(each.reading.window, visible) for each, visible in together]):
            found[place] = together[place][0].case.score(log_probs)
        strict_scores = iter(found)
        for selection in selections:
            visible = selection.asked(ks)
            if selection.mode == "strict":
                scores = [next(strict_scores) for _ in visible]
            else:
                scores = [(0.0, 0.0)] * len(visible)
                for places, made in selection.reading.masked.log_probs(np.stack(visible)):
                    for place, log_probs in zip(places, made, strict=True):
                        scores[place] = selection.case.score(log_probs)
            yield np.reshape(scores, (-1, len(ks), 2)).mean(axis=0).T

    def _selection_row(self, selection: Selection, scores: Float[np.ndarray, "2 k"]) -> dict[str, Any]:
        window, choice = selection.reading.window, selection.choices[0]
        shown = zip(choice.chosen, choice.gains, strict=True) if len(selection.choices) == 1 else ()
        behind = window.num_far + len(window.near)
        losses, divergences = scores.tolist()
        return {
            "mode": selection.mode,
            "knows": selection.objective,
            "from": selection.source,
            "measure": selection.measure,
            "chosen": [
                {"distance": behind - place, "text": self.token_text(int(window.far[place])), "gain": _rounded(gain)}
                for place, gain in shown
            ],
            "losses": [_rounded(loss) for loss in losses],
            "divergences": [_rounded(divergence) for divergence in divergences],
        }

    def _kinds(self, target: Target) -> list[str]:
        settings, tokens = self.settings, target.text.tokens
        context = tokens[target.place - settings.context : target.place + 1]
        beside = [
            [self.token_text(int(token)) for token in part]
            for part in (context[-1 - AROUND :], tokens[target.place + 1 : target.place + 1 + AROUND])
        ]
        return kinds(beside[0], near=settings.near, tokens=context, after=beside[1])


def _rounded(number: float) -> float:
    return round(number, DIGITS)


def _loss(log_probs: LogProbs, window: Window) -> float:
    return float(-log_probs[window.target])

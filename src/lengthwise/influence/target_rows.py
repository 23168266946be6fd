"""One block of targets measured: losses with short and long context, then with k far tokens by every selection."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lengthwise.influence.context import strict
from lengthwise.influence.kinds import AROUND, kinds
from lengthwise.influence.measure import Choice, InfluenceMeasure
from lengthwise.influence.next_token_model import NextTokenModel
from lengthwise.influence.objective import Divergence, Objective, TargetLoss
from lengthwise.influence.probe import Probe, Reading
from lengthwise.influence.random_choice import RandomChoice
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.influence.targets import Target, other_far
from lengthwise.influence.window import Window
from lengthwise.randomness import stream
from lengthwise.tasks import TokenizedDocument

# Digits kept of a loss: what float32 resolves.
DIGITS = 6
Visible = Bool[np.ndarray, " far"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Far tokens chosen in one window; ``knows`` and ``source`` say what the choice was allowed to use."""

    reading: Reading
    mode: str
    knows: str
    source: str
    measure: str
    # More than one for random draws, whose losses are averaged.
    choices: tuple[Choice, ...]

    def asked(self, ks: Sequence[int]) -> list[Visible]:
        """What is visible at each k, draw by draw."""
        window = self.reading.window
        return [window.only(choice.chosen[:k]) for choice in self.choices for k in ks]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRows:
    """Measures targets block by block; the same block gives the same rows, whatever was measured before it."""

    model: NextTokenModel
    texts: Sequence[TokenizedDocument]
    settings: InfluenceSettings
    token_text: Callable[[int], str]
    # What every text begins with for this model: none, or one token.
    start: tuple[int, ...] = ()
    labels: dict[str, Any] = field(default_factory=dict)

    def rows(self, targets: Sequence[Target], first: int) -> list[dict[str, Any]]:
        """A row per target; ``first`` is the number of the first among all targets of the study."""
        settings = self.settings
        windows = [target.window(settings.near, settings.far, self.start) for target in targets]
        short = self._ends([(window, window.only([])) for window in windows])
        log_probs: list[Tensor] = [torch.empty(0)] * len(windows)
        long = self._ends([(window, ~window.only([])) for window in windows], log_probs)
        weights = [self._weight(first + place, short[place], long[place]) for place in range(len(targets))]
        selections = [
            self._selections(first + place, targets[place], windows[place], log_probs[place]) if weight else []
            for place, weight in enumerate(weights)
        ]
        losses = self._losses([selection for each in selections for selection in each])
        return [
            {
                **self.labels,
                "document": target.text.name,
                "place": target.text.first + target.place,
                "target": window.target,
                "text": self.token_text(window.target),
                "kinds": self._kinds(target),
                "loss_short": _rounded(short[place]),
                "loss_long": _rounded(long[place]),
                "clear": settings.rule.clear(short[place], long[place]),
                "weight": weights[place],
                "selections": [self._selection_row(selection, next(losses)) for selection in selections[place]],
            }
            for place, (target, window) in enumerate(zip(targets, windows, strict=True))
        ]

    def _ends(self, asked: Sequence[tuple[Window, Visible]], kept: list[Tensor] | None = None) -> list[float]:
        """Each target's loss, nats; ``kept`` gets the log-probabilities that it comes from."""
        losses = [0.0] * len(asked)
        for places, made in strict(self.model, asked):
            for place, row in zip(places, made, strict=True):
                losses[place] = float(-row[asked[place][0].target])
                if kept is not None:
                    kept[place] = row
        return losses

    def _weight(self, number: int, short: float, long: float) -> float:
        if self.settings.rule.clear(short, long):
            return 1.0
        if self.settings.rest == 0:
            return 0.0
        drawn = stream(self.settings.seed, "rest", number).random() < self.settings.rest
        return 1 / self.settings.rest if drawn else 0.0

    def _selections(
        self, number: int, target: Target, window: Window, log_probs_long: Float[Tensor, " vocab"]
    ) -> list[Selection]:
        settings, seed = self.settings, self.settings.seed
        readings = {"own": Reading(self.model, window)}
        if "other" in settings.controls:
            far = other_far(self.texts, target, settings.far, stream(seed, "other text", number))
            readings["other"] = Reading(self.model, window.with_far(far))
        objectives: dict[str, Objective] = {
            "target": TargetLoss(window.target),
            "prediction": Divergence(log_probs_long),
        }

        def select(mode: str, knows: str, source: str, measure: InfluenceMeasure, draws: int = 1) -> Selection:
            probe = Probe(
                reading=readings[source],
                mode=mode,
                objective=objectives.get(knows, objectives["target"]),
                candidates=np.arange(settings.far),
            )
            choices = tuple(
                measure.choose(probe, settings.ks[-1], stream(seed, measure.name, source, number, draw))
                for draw in range(draws)
            )
            return Selection(
                reading=readings[source], mode=mode, knows=knows, source=source, measure=measure.name, choices=choices
            )

        found = [
            select(mode, knows, source, settings.measure)
            for mode in settings.modes
            for source in readings
            for knows in settings.knows
        ]
        if "random" in settings.controls:
            found += [select(mode, "nothing", "own", RandomChoice(), settings.random_draws) for mode in settings.modes]
        return found

    def _losses(self, selections: Sequence[Selection]) -> Iterator[list[float]]:
        """The target's loss at each k, selection by selection; strict ones of all targets are asked together."""
        ks = self.settings.ks
        asked = [
            (selection.reading.window, visible)
            for selection in selections
            if selection.mode == "strict"
            for visible in selection.asked(ks)
        ]
        strict_losses = iter(self._ends(asked))
        for selection in selections:
            visible = selection.asked(ks)
            if selection.mode == "strict":
                losses = [next(strict_losses) for _ in visible]
            else:
                losses = [0.0] * len(visible)
                for places, made in selection.reading.masked.log_probs(np.stack(visible)):
                    for place, row in zip(places, made, strict=True):
                        losses[place] = float(-row[selection.reading.window.target])
            yield [float(loss) for loss in np.reshape(losses, (-1, len(ks))).mean(axis=0)]

    def _selection_row(self, selection: Selection, losses: list[float]) -> dict[str, Any]:
        window, choice = selection.reading.window, selection.choices[0]
        shown = zip(choice.chosen, choice.gains, strict=True) if len(selection.choices) == 1 else ()
        behind = window.num_far + len(window.near)
        return {
            "mode": selection.mode,
            "knows": selection.knows,
            "from": selection.source,
            "measure": selection.measure,
            "chosen": [
                {"distance": behind - place, "text": self.token_text(int(window.far[place])), "gain": _rounded(gain)}
                for place, gain in shown
            ],
            "losses": [_rounded(loss) for loss in losses],
        }

    def _kinds(self, target: Target) -> list[str]:
        settings, tokens = self.settings, target.text.tokens
        context = tokens[target.place - settings.near - settings.far : target.place + 1]
        beside = [
            [self.token_text(int(token)) for token in part]
            for part in (context[-1 - AROUND :], tokens[target.place + 1 : target.place + 1 + AROUND])
        ]
        return kinds(beside[0], near=settings.near, tokens=context, after=beside[1])


def _rounded(number: float) -> float:
    return round(number, DIGITS)

"""Estimates over all targets where far tokens were chosen only for some: the rest are weighted by their probability."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from lengthwise.influence.report.bootstrap import (
    Bootstrap,
    Found,
    Statistic,
    Sums,
    by_document,
    missing,
    ratio,
    ratio_of_sums,
    smallest_k,
)
from lengthwise.influence.report.row_columns import Columns, Measured, PerTarget, Targets

NO_SAMPLE = "of the targets that are not clear none is measured; measure a random share of them"
NO_CHANGE = "the far context changes no prediction: there is nothing to recover"
Totals = Float[np.ndarray, "resamples sums"]
# Nats a target: below this a divergence is rounding.
ROUNDING = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """The targets ``within`` that an estimate is about."""

    table: Columns
    within: Targets
    bootstrap: Bootstrap

    @property
    def counts(self) -> Found:
        """How many targets and documents there are."""
        return {
            "targets": int(self.within.sum()),
            "documents": len(np.unique(self.table.document[self.within])),
        }

    def among(self, some: Targets) -> "Population":
        """Those of its targets that are among ``some``."""
        return Population(table=self.table, within=self.within & some, bootstrap=self.bootstrap)

    def mean(self, values: PerTarget, undefined: str) -> Found:
        """The mean over targets of what is known of each."""
        sums = self._by_document(np.stack([values, np.ones(len(values))], axis=1))
        return self.bootstrap(ratio_of_sums(sums), len(sums), undefined)[0]

    def share(self, counted: Targets, undefined: str) -> Found:
        """The share of targets that are ``counted``."""
        found = self.mean(counted.astype(float), undefined)
        # Documents that all agree do not show how far others would.
        alike = {"low": None, "high": None, "reason": "all targets are alike"}
        return found | alike if found["value"] in (0, 1) else found

    def regressed(
        self,
        sample: Measured,
        values: Float[np.ndarray, "measured k"],
        known: PerTarget,
        below: PerTarget,
        undefined: str,
    ) -> list[Found]:
        """Sums of values, which a sample has, divided by sums of ``below``, which all targets have.

        The generalized regression estimate (Sarndal, Swensson and Wretman 1992): a line of the values on what is
        ``known`` of all targets, fitted to the sample by its weights. It errs far less than weighted sums, which also
        vary with how many targets a sample happens to hold.
        """
        if lack := self._lack(sample):
            return missing(values.shape[1], lack)
        known = np.where(self.within, known, 0.0)
        every, rest, weight = self._spread(sample, values)
        scalars = np.stack([below, rest, rest * known, weight, weight * known, weight * known**2], axis=1)
        weighted = weight[:, None] * every
        columns = [~rest[:, None] * every, weighted, weighted * known[:, None], scalars]
        sums = self._by_document(np.concatenate(columns, axis=1))
        return self.bootstrap(lambda counts: _regressed(counts @ sums), len(sums), undefined)

    def divergences(self, samples: Sequence[Measured]) -> "Divergences | str":
        """Total divergences at each k of samples of the same targets; or why there are none."""
        for sample in samples:
            if lack := self._lack(sample):
                return lack
        spread = [self._spread(sample, sample.divergences) for sample in samples]
        _, rest, weight = spread[0]
        known = self.table.divergence
        every = np.concatenate([each for each, _, _ in spread], axis=1)
        scalars = np.stack([known, rest * known, weight * known, np.ones(len(known))], axis=1)
        sums = self._by_document(np.concatenate([~rest[:, None] * every, weight[:, None] * every, scalars], axis=1))
        return Divergences(sums=sums, num_ks=self.table.num_ks, bootstrap=self.bootstrap)

    def _spread(
        self, sample: Measured, values: Float[np.ndarray, "measured k"]
    ) -> tuple[Float[np.ndarray, "targets k"], Targets, PerTarget]:
        """The values at the places of their targets, which targets are sampled at all, and their weights."""
        every = np.zeros((len(self.within), values.shape[1]))
        every[sample.target] = values
        every[~self.within] = 0.0
        rest = self.within & (self.table.weight != 1)
        return every, rest, np.where(rest, self.table.weight, 0.0)

    def _lack(self, sample: Measured) -> str | None:
        measured = self.within & (self.table.weight > 0)
        has = np.zeros(len(self.within), dtype=bool)
        has[sample.target] = True
        if lacking := int((measured & ~has).sum()):
            return f"{lacking} of the measured targets lack this selection"
        rest = self.within & (self.table.weight != 1)
        return NO_SAMPLE if rest.any() and not (rest & measured).any() else None

    def _by_document(self, values: Float[np.ndarray, "targets values"]) -> Sums:
        return by_document(self.table.document[self.within], values[self.within])


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergences:
    """Divergences from the whole context's prediction, summed over all targets, with the shares that they give.

    Of the targets that are sampled only, a sum is that of the sample times the ratio of both sums with near tokens
    alone: never negative, so that no share exceeds 1.
    """

    sums: Sums
    num_ks: int
    bootstrap: Bootstrap

    def recovered(self, ks: Sequence[int], levels: Sequence[float]) -> Found:
        """``1 - KL(k) / KL(short)`` at each k, and the smallest k that reaches each level."""

        def shares(totals: Totals) -> Float[np.ndarray, "resamples k"]:
            short, _, _, targets = totals[:, -4:].T[:, :, None]
            found = 1 - ratio(self._totals(totals)[:, : self.num_ks], short)
            return np.where(short > ROUNDING * targets, found, np.nan)

        return self._found(lambda counts: shares(counts @ self.sums), ks, levels)

    def beyond(self, ks: Sequence[int], levels: Sequence[float]) -> Found:
        """``1 - KL(k) / KL(control's k)`` of the first sample and the second, the control's."""

        def shares(totals: Totals) -> Float[np.ndarray, "resamples k"]:
            own, control = np.split(self._totals(totals), 2, axis=1)
            return np.where(control > ROUNDING * totals[:, -1:], 1 - ratio(own, control), np.nan)

        return self._found(lambda counts: shares(counts @ self.sums), ks, levels)

    def _totals(self, totals: Totals) -> Float[np.ndarray, "resamples k"]:
        certain, weighted = np.split(totals[:, :-4], 2, axis=1)
        _, rest, sampled, _ = totals[:, -4:].T[:, :, None]
        return certain + np.where(rest > 0, rest * ratio(weighted, sampled), 0.0)

    def _found(self, shares: Statistic, ks: Sequence[int], levels: Sequence[float]) -> Found:
        documents = len(self.sums)
        return {
            "shares": self.bootstrap(shares, documents, NO_CHANGE),
            "smallest_k": smallest_k(shares, ks, levels, documents, NO_CHANGE, self.bootstrap),
        }


def _regressed(sums: Totals) -> Float[np.ndarray, "resamples k"]:
    certain, wy, wxy = np.split(sums[:, :-6], 3, axis=1)
    below, number, x, w, wx, wxx = sums[:, -6:].T[:, :, None]
    # Sampled values of x that are all alike give no slope: their mean then stands for all.
    spread = np.broadcast_to(w * wxx - wx**2, wy.shape)
    slope = np.divide(w * wxy - wx * wy, spread, out=np.zeros_like(wy), where=spread > 1e-9 * w * wxx)
    level = ratio(wy - slope * wx, w)
    return ratio(certain + np.where(number > 0, number * level + slope * x, 0.0), below)

"""Estimates over all targets when far tokens were selected for a weighted sample of them only."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from lengthwise.influence.report.bootstrap import (
    JSON,
    Bootstrap,
    Statistic,
    Sums,
    ratio,
    ratio_of_sums,
    smallest_k,
    sums_by_document,
    undefined_estimates,
)
from lengthwise.influence.report.row_columns import PerTarget, RowColumns, SelectionColumns, TargetMask

NO_SAMPLE = "no target without a clear gap was measured; use a background fraction above 0"
NO_CHANGE = "far context does not change the predictions, so there is nothing to recover"
Totals = Float[np.ndarray, "resamples sums"]
# Nats per target: a smaller divergence is rounding.
ROUNDING = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """Targets in ``mask``, over which estimates are made."""

    columns: RowColumns
    mask: TargetMask
    bootstrap: Bootstrap

    @property
    def counts(self) -> JSON:
        """Number of targets and documents."""
        return {
            "targets": int(self.mask.sum()),
            "documents": len(np.unique(self.columns.document[self.mask])),
        }

    def restrict(self, mask: TargetMask) -> "Population":
        """Return the targets that are also in ``mask``."""
        return Population(columns=self.columns, mask=self.mask & mask, bootstrap=self.bootstrap)

    def mean(self, values: PerTarget, undefined: str) -> JSON:
        """Estimate the mean of values that all targets have."""
        sums = self._sums_by_document(np.stack([values, np.ones(len(values))], axis=1))
        return self.bootstrap(ratio_of_sums(sums), len(sums), undefined)[0]

    def share(self, mask: TargetMask, undefined: str) -> JSON:
        """Estimate the share of targets in ``mask``."""
        estimate = self.mean(mask.astype(float), undefined)
        # If all documents agree, their resamples have no spread, which says nothing about other documents.
        no_interval = {"low": None, "high": None, "reason": "all targets agree"}
        return estimate | no_interval if estimate["value"] in (0, 1) else estimate

    def regressed(
        self,
        sample: SelectionColumns,
        values: Float[np.ndarray, "measured k"],
        covariate: PerTarget,
        denominator: PerTarget,
        undefined: str,
    ) -> list[JSON]:
        """Estimate a sum of values known for the sample, divided by the sum of ``denominator``, known for all targets.

        Generalized regression estimator (Sarndal, Swensson and Wretman 1992): a weighted linear regression of the
        values on ``covariate``, which all targets have, predicts the targets outside the sample. Its error is far
        smaller than that of weighted sums, which also vary with the size of the sample.
        """
        if reason := self._missing_sample(sample):
            return undefined_estimates(values.shape[1], reason)
        covariate = np.where(self.mask, covariate, 0.0)
        dense, rest, weight = self._spread(sample, values)
        scalars = np.stack([denominator, rest, rest * covariate, weight, weight * covariate, weight * covariate**2], 1)
        weighted = weight[:, None] * dense
        columns = [~rest[:, None] * dense, weighted, weighted * covariate[:, None], scalars]
        sums = self._sums_by_document(np.concatenate(columns, axis=1))
        return self.bootstrap(lambda counts: _regression_ratio(counts @ sums), len(sums), undefined)

    def divergences(self, samples: Sequence[SelectionColumns]) -> "Divergences | str":
        """Return the total divergences at each k of samples of the same targets, or why they are undefined."""
        for sample in samples:
            if reason := self._missing_sample(sample):
                return reason
        spread = [self._spread(sample, sample.divergences) for sample in samples]
        _, rest, weight = spread[0]
        short = self.columns.divergence
        dense = np.concatenate([each for each, _, _ in spread], axis=1)
        scalars = np.stack([short, rest * short, weight * short, np.ones(len(short))], axis=1)
        columns = [~rest[:, None] * dense, weight[:, None] * dense, scalars]
        sums = self._sums_by_document(np.concatenate(columns, axis=1))
        return Divergences(sums=sums, num_ks=self.columns.num_ks, bootstrap=self.bootstrap)

    def _spread(
        self, sample: SelectionColumns, values: Float[np.ndarray, "measured k"]
    ) -> tuple[Float[np.ndarray, "targets k"], TargetMask, PerTarget]:
        """Return the values (0 for other targets), the mask of targets subject to sampling, and their weights."""
        dense = np.zeros((len(self.mask), values.shape[1]))
        dense[sample.target] = values
        dense[~self.mask] = 0.0
        rest = self.mask & (self.columns.weight != 1)
        return dense, rest, np.where(rest, self.columns.weight, 0.0)

    def _missing_sample(self, sample: SelectionColumns) -> str | None:
        measured = self.mask & (self.columns.weight > 0)
        in_sample = np.zeros(len(self.mask), dtype=bool)
        in_sample[sample.target] = True
        if missing := int((measured & ~in_sample).sum()):
            return f"{missing} of the measured targets lack this selection"
        rest = self.mask & (self.columns.weight != 1)
        return NO_SAMPLE if rest.any() and not (rest & measured).any() else None

    def _sums_by_document(self, values: Float[np.ndarray, "targets values"]) -> Sums:
        return sums_by_document(self.columns.document[self.mask], values[self.mask])


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergences:
    """Divergences from the prediction with the whole context, summed over all targets.

    For targets subject to sampling, the sample's sum is scaled by the ratio of two divergences with near tokens only:
    over all targets, and over the sample. The result is never negative, so no share exceeds 1.
    """

    sums: Sums
    num_ks: int
    bootstrap: Bootstrap

    def recovered(self, ks: Sequence[int], levels: Sequence[float]) -> JSON:
        """Estimate ``1 - KL(k) / KL(short)`` at each k, and the smallest k that reaches each level."""

        def shares(totals: Totals) -> Float[np.ndarray, "resamples k"]:
            short, _, _, targets = totals[:, -4:].T[:, :, None]
            values = 1 - ratio(self._totals(totals)[:, : self.num_ks], short)
            return np.where(short > ROUNDING * targets, values, np.nan)

        return self._estimates(lambda counts: shares(counts @ self.sums), ks, levels)

    def beyond(self, ks: Sequence[int], levels: Sequence[float]) -> JSON:
        """Estimate ``1 - KL(k) / KL(k of the control)``; the second sample is the control."""

        def shares(totals: Totals) -> Float[np.ndarray, "resamples k"]:
            own, control = np.split(self._totals(totals), 2, axis=1)
            return np.where(control > ROUNDING * totals[:, -1:], 1 - ratio(own, control), np.nan)

        return self._estimates(lambda counts: shares(counts @ self.sums), ks, levels)

    def _totals(self, totals: Totals) -> Float[np.ndarray, "resamples k"]:
        certain, weighted = np.split(totals[:, :-4], 2, axis=1)
        _, rest, sample, _ = totals[:, -4:].T[:, :, None]
        return certain + np.where(rest > 0, rest * ratio(weighted, sample), 0.0)

    def _estimates(self, shares: Statistic, ks: Sequence[int], levels: Sequence[float]) -> JSON:
        documents = len(self.sums)
        return {
            "shares": self.bootstrap(shares, documents, NO_CHANGE),
            "smallest_k": smallest_k(shares, ks, levels, documents, NO_CHANGE, self.bootstrap),
        }


def _regression_ratio(sums: Totals) -> Float[np.ndarray, "resamples k"]:
    certain, wy, wxy = np.split(sums[:, :-6], 3, axis=1)
    denominator, number, x, w, wx, wxx = sums[:, -6:].T[:, :, None]
    # Equal values of x in the sample give no slope; the mean of the sample then predicts the rest.
    spread = np.broadcast_to(w * wxx - wx**2, wy.shape)
    slope = np.divide(w * wxy - wx * wy, spread, out=np.zeros_like(wy), where=spread > 1e-9 * w * wxx)
    intercept = ratio(wy - slope * wx, w)
    return ratio(certain + np.where(number > 0, number * intercept + slope * x, 0.0), denominator)

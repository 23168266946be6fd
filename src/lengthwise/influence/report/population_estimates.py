"""Estimates over all targets from a weighted sample of targets with selected far tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from lengthwise.influence.report.bootstrap import (
    Bootstrap,
    JSONObject,
    Statistic,
    Sums,
    ratio,
    ratio_of_sums,
    smallest_k,
    sums_by_document,
    undefined_estimates,
)
from lengthwise.influence.report.row_columns import RowColumns, SelectionColumns, TargetMask, TargetValues, ValuesByK

NO_SAMPLE = "the study measured no target without a clear gain; use a background fraction above 0"
NO_EFFECT = "far context does not change the predictions, so there is nothing to recover"
Totals = Float[np.ndarray, "resamples sums"]
# Divergences (nats per target) below this value may be rounding errors.
MAX_ROUNDING_ERROR = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """Set of targets in ``mask``, and estimates over these targets."""

    columns: RowColumns
    mask: TargetMask
    bootstrap: Bootstrap

    @property
    def counts(self) -> JSONObject:
        """Number of targets and documents."""
        return {"targets": int(self.mask.sum()), "documents": len(np.unique(self.columns.target_documents[self.mask]))}

    def restrict(self, mask: TargetMask) -> "Population":
        """Return the population of targets that are also in ``mask``."""
        return Population(columns=self.columns, mask=self.mask & mask, bootstrap=self.bootstrap)

    def estimate_mean(self, values: TargetValues, nan_reason: str) -> JSONObject:
        """Estimate the mean of values that are known for all targets."""
        sums = self._sums_by_document(np.stack([values, np.ones(len(values))], axis=1))
        return self.bootstrap(ratio_of_sums(sums), len(sums), nan_reason)[0]

    def estimate_share(self, mask: TargetMask, nan_reason: str) -> JSONObject:
        """Estimate the share of targets that are in ``mask``."""
        estimate = self.estimate_mean(mask.astype(float), nan_reason)
        # If all targets agree, resamples have no variance, although other documents may differ.
        no_interval = {"low": None, "high": None, "reason": "all targets agree"}
        return estimate | no_interval if estimate["value"] in (0, 1) else estimate

    def estimate_by_regression(
        self,
        sample: SelectionColumns,
        values: ValuesByK,
        covariate: TargetValues,
        denominator: TargetValues,
        nan_reason: str,
    ) -> list[JSONObject]:
        """Estimate the sum of values over all targets, divided by the sum of ``denominator`` over all targets.

        The values are known for the sample only. A weighted linear regression on ``covariate`` predicts the values
        of other targets (generalized regression estimator: Sarndal, Swensson and Wretman 1992). Its error is far
        smaller than the error of weighted sums, which also vary with the size of the sample.
        """
        if reason := self._missing_sample(sample):
            return undefined_estimates(values.shape[1], reason)
        covariate = np.where(self.mask, covariate, 0.0)
        values_by_target, background, weight = self._expand_sample(sample, values)
        moments = [weight, weight * covariate, weight * covariate**2]
        scalars = np.stack([denominator, background, background * covariate, *moments], axis=1)
        weighted_values = weight[:, None] * values_by_target
        weighted = [weighted_values, weighted_values * covariate[:, None]]
        columns = [~background[:, None] * values_by_target, *weighted, scalars]
        sums = self._sums_by_document(np.concatenate(columns, axis=1))
        return self.bootstrap(lambda document_counts: _regression_ratio(document_counts @ sums), len(sums), nan_reason)

    def divergences(self, samples: Sequence[SelectionColumns]) -> "Divergences | str":
        """Return the divergences at each k for samples of the same targets, or the reason why they are undefined."""
        for sample in samples:
            if reason := self._missing_sample(sample):
                return reason
        expanded = [self._expand_sample(sample, sample.divergences) for sample in samples]
        _, background, weight = expanded[0]
        values_by_target = np.concatenate([values for values, _, _ in expanded], axis=1)
        factors = np.stack([np.ones(len(weight)), background, weight], axis=1)
        scalars = np.concatenate([factors * self.columns.divergence_short[:, None], factors[:, :1]], axis=1)
        columns = [~background[:, None] * values_by_target, weight[:, None] * values_by_target, scalars]
        sums = self._sums_by_document(np.concatenate(columns, axis=1))
        return Divergences(sums=sums, num_ks=self.columns.num_ks, bootstrap=self.bootstrap)

    def _expand_sample(
        self, sample: SelectionColumns, measured_values: ValuesByK
    ) -> tuple[Float[np.ndarray, "targets k"], TargetMask, TargetValues]:
        """Return the values of all targets (0 if not measured), the mask of background targets, and their weights."""
        values_by_target = np.zeros((len(self.mask), measured_values.shape[1]))
        values_by_target[sample.target] = measured_values
        values_by_target[~self.mask] = 0.0
        background = self.mask & (self.columns.weight != 1)
        return values_by_target, background, np.where(background, self.columns.weight, 0.0)

    def _missing_sample(self, sample: SelectionColumns) -> str | None:
        is_measured = self.mask & (self.columns.weight > 0)
        in_sample = np.isin(np.arange(len(self.mask)), sample.target)
        if num_missing := int((is_measured & ~in_sample).sum()):
            return f"this selection is missing for {num_missing} of the measured targets"
        background = self.mask & (self.columns.weight != 1)
        return NO_SAMPLE if background.any() and not (background & is_measured).any() else None

    def _sums_by_document(self, target_values: Float[np.ndarray, "targets values"]) -> Sums:
        return sums_by_document(self.columns.target_documents[self.mask], target_values[self.mask])


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergences:
    """Divergences from the prediction with the whole context, summed over all targets.

    The study measures a sample of the background targets. The sum over this sample is multiplied by a ratio: the
    divergence with near tokens only of all background targets, divided by that of the sample. Shares are therefore at
    most 1.
    """

    sums: Sums
    num_ks: int
    bootstrap: Bootstrap

    def recovered_shares(self, ks: Sequence[int], levels: Sequence[float]) -> JSONObject:
        """Estimate ``1 - KL(k) / KL(short)`` at each k, and the smallest k that reaches each level."""

        def compute_shares(column_totals: Totals) -> Float[np.ndarray, "resamples k"]:
            divergence_short, _, _, targets = column_totals[:, -4:].T[:, :, None]
            shares = 1 - ratio(self._divergences_by_k(column_totals)[:, : self.num_ks], divergence_short)
            return np.where(divergence_short > MAX_ROUNDING_ERROR * targets, shares, np.nan)

        return self._estimates(lambda document_counts: compute_shares(document_counts @ self.sums), ks, levels)

    def shares_beyond_control(self, ks: Sequence[int], levels: Sequence[float]) -> JSONObject:
        """Estimate ``1 - KL(k) / KL(k of the control)`` at each k; the second sample is the control."""

        def compute_shares(column_totals: Totals) -> Float[np.ndarray, "resamples k"]:
            own_sums, control_sums = np.split(self._divergences_by_k(column_totals), 2, axis=1)
            shares = 1 - ratio(own_sums, control_sums)
            return np.where(control_sums > MAX_ROUNDING_ERROR * column_totals[:, -1:], shares, np.nan)

        return self._estimates(lambda document_counts: compute_shares(document_counts @ self.sums), ks, levels)

    def _divergences_by_k(self, column_totals: Totals) -> Float[np.ndarray, "resamples k"]:
        exact_sum, weighted_sum = np.split(column_totals[:, :-4], 2, axis=1)
        _, background, sample, _ = column_totals[:, -4:].T[:, :, None]
        return exact_sum + np.where(background > 0, background * ratio(weighted_sum, sample), 0.0)

    def _estimates(self, share_statistic: Statistic, ks: Sequence[int], levels: Sequence[float]) -> JSONObject:
        num_documents = len(self.sums)
        return {
            "shares": self.bootstrap(share_statistic, num_documents, NO_EFFECT),
            "smallest_k": smallest_k(share_statistic, ks, levels, num_documents, NO_EFFECT, self.bootstrap),
        }


def undefined_shares(reason: str, ks: Sequence[int], levels: Sequence[float]) -> JSONObject:
    """Return shares without a value, for the same reason, in the format of the methods of ``Divergences``."""
    unknown = {"beyond": False, "reason": reason, "k": None, "low": None, "high": None}
    smallest_k = [{"share": level, **unknown} for level in levels]
    return {"shares": undefined_estimates(len(ks), reason), "smallest_k": smallest_k}


def _regression_ratio(sums: Totals) -> Float[np.ndarray, "resamples k"]:
    exact_sum, wy, wxy = np.split(sums[:, :-6], 3, axis=1)
    denominator, num_background, x, w, wx, wxx = sums[:, -6:].T[:, :, None]
    # If all x (covariate) in the sample are equal, the slope is 0, and the mean of y (values) is the prediction.
    variance = np.broadcast_to(w * wxx - wx**2, wy.shape)
    slope = np.divide(w * wxy - wx * wy, variance, out=np.zeros_like(wy), where=variance > 1e-9 * w * wxx)
    intercept = ratio(wy - slope * wx, w)
    return ratio(exact_sum + np.where(num_background > 0, num_background * intercept + slope * x, 0.0), denominator)

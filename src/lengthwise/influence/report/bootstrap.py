"""Estimates over all targets from a weighted sample of targets with selected far tokens.

Intervals resample documents, or omit one document at a time, because tokens of one document are not independent.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.confidence_intervals import t_critical_value
from lengthwise.core.randomness import random_stream
from lengthwise.influence.report.row_columns import SelectionColumns, StudyColumns, TargetMask, TargetValues, ValuesByK

ROUNDING_SHARE = 1e-9  # larger than the rounding error of a sum of weights, relative to the sum
MAX_BLOCK_VALUES = 1 << 22  # maximum number of values in one block of resamples
# With fewer documents, bootstrap intervals contain the true value far less often than their level.
MIN_DOCUMENTS = 5
# With more documents, resamples and the jackknife agree, and the jackknife needs more memory.
MAX_JACKKNIFE_DOCUMENTS = 100
TOO_FEW_DOCUMENTS = f"fewer than {MIN_DOCUMENTS} documents, too few for an interval; measure more documents"

# Smallest and largest possible value of a statistic.
Limits = tuple[float, float]
NO_LIMITS = (-math.inf, math.inf)
Counts = Int[np.ndarray, "resamples documents"]
Values = Float[np.ndarray, "resamples values"]
Statistic = Callable[[Counts], Values]
# Object of summary.json. An estimate has the keys value, low, high, and reason (the reason for a missing number).
JSONObject = dict[str, Any]
Sums = Float[np.ndarray, "documents values"]
Totals = Float[np.ndarray, "resamples sums"]
NO_SAMPLE = "the study searched too few targets; use a larger --searched"
NO_EFFECT = "far context does not change the predictions, so there is nothing to recover"
# Divergences (nats per target) below this value may be rounding errors.
MAX_ROUNDING_ERROR = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentBootstrap:
    """Bootstrap over documents. Statistics over the same number of documents use the same resamples."""

    seed: int
    num_resamples: int

    def __call__(
        self,
        statistic: Statistic,
        num_documents: int,
        nan_reason: str,
        num_values: int = 0,
        limits: Limits | None = None,
    ) -> list[JSONObject]:
        """Return one estimate per value of a statistic. A value of NaN becomes None with the reason ``nan_reason``.

        ``num_values`` is the number of values per resample that the statistic keeps in memory. Pass ``limits`` for a
        smooth statistic, such as a ratio of sums: its intervals then contain the jackknife interval with Student's t.
        If few documents have most of the effect, resamples alone give intervals that are too narrow.
        """
        values = np.concatenate([statistic(counts) for counts in self.counts(num_documents, num_values)])
        estimates = [estimate(column, num_documents, nan_reason) for column in values.T]
        if limits is None or not MIN_DOCUMENTS <= num_documents <= MAX_JACKKNIFE_DOCUMENTS:
            return estimates
        # Standard error of each value from the values without one document (Tukey 1958).
        values_without_one = statistic(1 - np.eye(num_documents, dtype=np.int64))
        deviations = values_without_one - values_without_one.mean(axis=0)
        errors = np.sqrt((num_documents - 1) * (deviations**2).mean(axis=0))
        margins = t_critical_value(num_documents - 1) * errors
        for each, margin in zip(estimates, margins.tolist(), strict=True):
            if each["low"] is not None and not math.isnan(margin):
                each["low"] = min(each["low"], max(limits[0], each["value"] - margin))
                each["high"] = max(each["high"], min(limits[1], each["value"] + margin))
        return estimates

    def counts(self, num_documents: int, num_values: int) -> Iterator[Counts]:
        """Yield the number of copies of each document: first 1 for the original sample, then blocks of resamples."""
        yield np.ones((1, num_documents), dtype=np.int64)
        rng = random_stream(self.seed, "influence documents", num_documents)
        block_size = max(1, MAX_BLOCK_VALUES // max(num_documents, num_values, 1))
        for num_sampled in range(0, self.num_resamples if num_documents >= MIN_DOCUMENTS else 0, block_size):
            shape = min(block_size, self.num_resamples - num_sampled), num_documents
            samples = rng.integers(0, num_documents, size=shape) + num_documents * np.arange(shape[0])[:, None]
            yield np.bincount(samples.ravel(), minlength=math.prod(shape)).reshape(shape)


def estimate(values: Float[np.ndarray, " resamples"], num_documents: int, nan_reason: str) -> JSONObject:
    """Return the estimate ``values[0]`` with the 95% interval of the resamples ``values[1:]``.

    A correction with Student's t widens the interval for few documents (Hesterberg 2015).
    """
    value, resamples = float(values[0]), values[1:]
    result: JSONObject = {"value": value, "low": None, "high": None, "reason": None}
    if math.isnan(value):
        return result | {"value": None, "reason": nan_reason}
    if num_documents < MIN_DOCUMENTS:
        return result | {"reason": TOO_FEW_DOCUMENTS}
    if num_undefined := int(np.isnan(resamples).sum()):
        return result | {"reason": f"in {num_undefined:,} of {len(resamples):,} resamples, {nan_reason}"}
    z = t_critical_value(num_documents - 1) * math.sqrt(num_documents / (num_documents - 1))
    tail_probability = NormalDist().cdf(-z)
    low = np.quantile(resamples, tail_probability, method="lower")
    high = np.quantile(resamples, 1 - tail_probability, method="higher")
    return result | {"low": float(low), "high": float(high)}


def undefined_estimates(number: int, reason: str) -> list[JSONObject]:
    """Return estimates without a value, for the same reason."""
    return [{"value": None, "low": None, "high": None, "reason": reason} for _ in range(number)]


def sums_by_document(
    document_indices: Int[np.ndarray, " targets"], values: Float[np.ndarray, "targets values"]
) -> Sums:
    """Return the sum of the values for each document that has targets."""
    documents, rows = np.unique(document_indices, return_inverse=True)
    sums = np.zeros((len(documents), values.shape[1]))
    np.add.at(sums, rows, values)
    return sums


def divide_or_nan(numerator: Values, denominator: Float[np.ndarray, "resamples _"]) -> Values:
    """Return the quotients, or NaN where the denominator is not positive."""
    denominator = np.broadcast_to(denominator, numerator.shape)
    return np.divide(numerator, denominator, out=np.full_like(numerator, math.nan), where=denominator > 0)


def ratio_of_sums(sums: Sums) -> Statistic:
    """Return a statistic that divides the sum of each column over documents by the sum of the last column."""
    return lambda document_counts: divide_or_nan((totals := document_counts @ sums)[:, :-1], totals[:, -1:])


def median_over_targets(
    document_indices: Int[np.ndarray, " targets"], values: Float[np.ndarray, " targets"], weights: TargetValues
) -> Statistic:
    """Return a statistic that is the weighted median over the targets of all resampled documents."""
    sorted_indices = values.argsort(kind="stable")
    sorted_values, sorted_documents = values[sorted_indices], document_indices[sorted_indices]
    sorted_weights = weights[sorted_indices]

    def statistic(document_counts: Counts) -> Float[np.ndarray, "resamples 1"]:
        if not len(sorted_values):
            return np.full((len(document_counts), 1), math.nan)
        cumulative = (document_counts[:, sorted_documents] * sorted_weights).cumsum(axis=1)
        # If one half of the weight ends exactly between two values, the median is their mean.
        margins = np.array([1 - ROUNDING_SHARE, 1 + ROUNDING_SHARE])
        middle_indices = [np.searchsorted(row, row[-1] / 2 * margins) for row in cumulative]
        return sorted_values[np.array(middle_indices)].mean(axis=1, keepdims=True)

    return statistic


def smallest_k(
    shares: Statistic,
    ks: Sequence[int],
    levels: Sequence[float],
    num_documents: int,
    nan_reason: str,
    bootstrap: DocumentBootstrap,
) -> list[JSONObject]:
    """Return, for each level, the smallest of ``ks`` at which the share is at least the level.

    ``beyond`` is True if the share is below the level for all ``ks``.
    """

    def statistic(document_counts: Counts) -> Float[np.ndarray, "resamples levels"]:
        share_values = shares(document_counts)
        is_reached = share_values[:, :, None] >= np.array(levels)  # resamples k levels
        first_indices = np.where(is_reached.any(axis=1), is_reached.argmax(axis=1), len(ks))
        return np.where(np.isnan(share_values).any(axis=1, keepdims=True), math.nan, first_indices)

    # The index after the largest k has no k.
    k_of_index, keys = dict(enumerate([*ks, None])), (("k", "value"), ("low", "low"), ("high", "high"))
    return [
        {"share": level, "beyond": index["value"] == len(ks), "reason": index["reason"]}
        | {key: k_of_index.get(index[estimate_key]) for key, estimate_key in keys}
        for level, index in zip(levels, bootstrap(statistic, num_documents, nan_reason), strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPopulation:
    """Set of targets in ``mask``, and estimates over these targets."""

    columns: StudyColumns
    mask: TargetMask
    bootstrap: DocumentBootstrap

    @property
    def counts(self) -> JSONObject:
        """Number of targets and documents."""
        return {"targets": int(self.mask.sum()), "documents": len(np.unique(self.columns.target_documents[self.mask]))}

    def select_targets(self, mask: TargetMask) -> "TargetPopulation":
        """Return the population of targets that are also in ``mask``."""
        return TargetPopulation(columns=self.columns, mask=self.mask & mask, bootstrap=self.bootstrap)

    def estimate_mean(self, values: TargetValues, nan_reason: str, limits: Limits = NO_LIMITS) -> JSONObject:
        """Estimate the mean of values that are known for all targets."""
        sums = self._sums_by_document(np.stack([values, np.ones(len(values))], axis=1))
        return self.bootstrap(ratio_of_sums(sums), len(sums), nan_reason, limits=limits)[0]

    def estimate_share(self, mask: TargetMask, nan_reason: str) -> JSONObject:
        """Estimate the share of targets that are in ``mask``."""
        estimate = self.estimate_mean(mask.astype(float), nan_reason, limits=(0.0, 1.0))
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
        return self.bootstrap(
            lambda document_counts: _regression_ratio(document_counts @ sums), len(sums), nan_reason, limits=NO_LIMITS
        )

    def estimate_shares(
        self, samples: Sequence[SelectionColumns], ks: Sequence[int], levels: Sequence[float]
    ) -> JSONObject:
        """Estimate the share of the divergence that k units remove, and the smallest k that reaches each level.

        Divergences are those from the prediction with the whole context, summed over all targets. With one sample, the
        share is ``1 - KL(k) / KL(short)``. With two samples of the same targets, it is
        ``1 - KL(k) / KL(k of the control)``, and the second sample is the control. The study measures a sample of the
        background targets. The sum over this sample is multiplied by a ratio: the divergence with near tokens only of
        all background targets, divided by that of the sample. Shares are therefore at most 1.
        """
        if reason := next(filter(None, map(self._missing_sample, samples)), None):
            unknown = {"beyond": False, "reason": reason, "k": None, "low": None, "high": None}
            undefined_ks = [{"share": level, **unknown} for level in levels]
            return {"shares": undefined_estimates(len(ks), reason), "smallest_k": undefined_ks}
        expanded = [self._expand_sample(sample, sample.divergences) for sample in samples]
        _, background, weight = expanded[0]
        values_by_target = np.concatenate([values for values, _, _ in expanded], axis=1)
        factors = np.stack([np.ones(len(weight)), background, weight], axis=1)
        scalars = np.concatenate([factors * self.columns.divergence_short[:, None], factors[:, :1]], axis=1)
        columns = [~background[:, None] * values_by_target, weight[:, None] * values_by_target, scalars]
        sums = self._sums_by_document(np.concatenate(columns, axis=1))

        def statistic(document_counts: Counts) -> Float[np.ndarray, "resamples k"]:
            return _recovered_shares(document_counts @ sums, len(samples))

        return {
            "shares": self.bootstrap(statistic, len(sums), NO_EFFECT, limits=(-math.inf, 1.0)),
            "smallest_k": smallest_k(statistic, ks, levels, len(sums), NO_EFFECT, self.bootstrap),
        }

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


def _recovered_shares(sums: Totals, num_samples: int) -> Float[np.ndarray, "resamples k"]:
    exact_sum, weighted_sum = np.split(sums[:, :-4], 2, axis=1)
    divergence_short, background, sample, targets = sums[:, -4:].T[:, :, None]
    divergences = exact_sum + np.where(background > 0, background * divide_or_nan(weighted_sum, sample), 0.0)
    own, *controls = np.split(divergences, num_samples, axis=1)
    whole = controls[0] if controls else divergence_short
    return np.where(whole > MAX_ROUNDING_ERROR * targets, 1 - divide_or_nan(own, whole), np.nan)


def _regression_ratio(sums: Totals) -> Float[np.ndarray, "resamples k"]:
    exact_sum, wy, wxy = np.split(sums[:, :-6], 3, axis=1)
    denominator, num_background, x, w, wx, wxx = sums[:, -6:].T[:, :, None]
    # If all x (covariate) in the sample are equal, the slope is 0, and the mean of y (values) is the prediction.
    variance = np.broadcast_to(w * wxx - wx**2, wy.shape)
    slope = np.divide(w * wxy - wx * wy, variance, out=np.zeros_like(wy), where=variance > 1e-9 * w * wxx)
    intercept = divide_or_nan(wy - slope * wx, w)
    return divide_or_nan(
        exact_sum + np.where(num_background > 0, num_background * intercept + slope * x, 0.0), denominator
    )

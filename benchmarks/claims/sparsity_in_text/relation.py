"""Relation between the recovered share of a target and its change in longer contexts, with controls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from claims.sparsity_in_text.paired_contexts import ContextSettings, PairedTarget
from claims.sparsity_in_text.rank_correlation import partial_rank_correlation, rank_correlation
from jaxtyping import Bool, Float, Int

from lengthwise.core.randomness import random_stream
from lengthwise.influence.report.bootstrap import (
    DocumentBootstrap,
    JSONObject,
    Statistic,
    ratio_of_sums,
    sums_by_document,
    undefined_estimates,
)
from lengthwise.influence.token_kinds import KINDS

# A share is defined only if far tokens change the prediction (nats), or lower the loss, by at least this amount.
MIN_DIVERGENCE, MIN_GAIN = 0.02, 0.1
# A rank correlation or mean of fewer targets is not computed.
MIN_TARGETS = 30
TOO_FEW_TARGETS = f"fewer than {MIN_TARGETS} targets; measure more targets"
NO_VARIATION = "all values of a variable are equal"
NUM_DECIMALS = 5

Values = Float[np.ndarray, " targets"]
Mask = Bool[np.ndarray, " targets"]
# Function of the document index of each target.
StatisticOfDocuments = Callable[[Int[np.ndarray, " targets"]], Statistic]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetColumns:
    """Columns of the measured targets: document index, effect of all far tokens (nats), shares and changes.

    ``shares`` has the share of the prediction, ``1 - KL(k) / KL(short)``, for each k. It does not contain the loss of
    the target, so the loss in the first context cannot relate it to a change. ``gain_share`` is the share of the lower
    loss for the largest k, which does contain it. ``is_used`` and ``has_gain`` mark the targets with a defined share.
    """

    documents: Int[np.ndarray, " targets"]
    effect: Values
    shares: Float[np.ndarray, "targets k"]
    gain_share: Values
    changes: Float[np.ndarray, "targets longer"]
    drifts: Float[np.ndarray, "targets longer"]
    is_used: Mask
    has_gain: Mask


def target_columns(targets: Sequence[PairedTarget]) -> TargetColumns:
    """Return the columns of measured targets; undefined shares are NaN."""
    _, documents = np.unique([target.document for target in targets], return_inverse=True)
    effect = np.array([target.divergence_short for target in targets])
    gain = np.array([target.loss_short - target.losses[0] for target in targets])
    is_used, has_gain = effect >= MIN_DIVERGENCE, gain >= MIN_GAIN
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = 1 - np.array([target.divergences_k for target in targets]) / effect[:, None]
        gain_share = np.array([target.loss_short - target.losses_k[-1] for target in targets]) / gain
    return TargetColumns(
        documents=documents,
        effect=effect,
        shares=np.where(is_used[:, None], shares, np.nan),
        gain_share=np.where(has_gain, gain_share, np.nan),
        changes=np.array([target.changes for target in targets]),
        drifts=np.array([target.drifts for target in targets]),
        is_used=is_used,
        has_gain=has_gain,
    )


def summarize_relation(
    targets: Sequence[PairedTarget], settings: ContextSettings, bootstrap: DocumentBootstrap
) -> JSONObject:
    """Return the rank correlations of the recovered share with the changes, as JSON values.

    An estimate has the keys ``value``, ``low`` and ``high`` (95% interval over resampled documents), and ``reason``
    (the reason for a missing number). ``change`` has one estimate per longer context, all other correlations are for
    the longest. ``partial`` removes the effect of all far tokens (``TargetColumns.effect``), ``permuted`` uses the
    shares in random order, and ``drift`` uses the change of the prediction instead of the loss. ``first_k`` uses the
    smallest k, and ``gain`` the share of the lower loss. ``kinds`` has the correlation of the ``targets`` of each kind
    with a share, and the mean change of ``all_targets`` of this kind. ``columns`` has the values of every target.
    """
    columns = target_columns(targets)
    used, share = columns.is_used, columns.shares[:, -1]
    permuted = share.copy()
    permuted[used] = random_stream(settings.seed, "permuted shares").permutation(share[used])
    correlate = partial(_correlate, columns, bootstrap)
    longest = columns.changes[:, -1]

    def given_effect(documents: Int[np.ndarray, " targets"]) -> Statistic:
        return partial_rank_correlation(documents, share[used], longest[used], columns.effect[used])

    return {
        "lengths": list(settings.lengths),
        "near": settings.near,
        "ks": list(settings.ks),
        "measured": len(targets),
        "used": int(used.sum()),
        "with_gain": int(columns.has_gain.sum()),
        "documents": len(np.unique(columns.documents[used])),
        "mean_share": float(share[used].mean()) if used.any() else None,
        "mean_change": [_estimate_mean(columns.documents, bootstrap, change) for change in columns.changes.T],
        "change": [correlate(used, share, change) for change in columns.changes.T],
        "partial": _estimate(columns, bootstrap, used, given_effect),
        "permuted": correlate(used, permuted, longest),
        "drift": correlate(used, share, columns.drifts[:, -1]),
        "first_k": correlate(used, columns.shares[:, 0], longest),
        "gain": correlate(columns.has_gain, columns.gain_share, longest),
        "kinds": [
            {
                "kind": kind,
                "targets": int((used & mask).sum()),
                "change": correlate(used & mask, share, longest),
                "all_targets": int(mask.sum()),
                "mean_change": _estimate_mean(columns.documents[mask], bootstrap, longest[mask]),
            }
            for kind in KINDS
            if (mask := np.array([kind in target.kinds for target in targets])).any()
        ],
        "columns": {
            "document": columns.documents.tolist(),
            "share": [None if np.isnan(value) else round(float(value), NUM_DECIMALS) for value in share],
            "change": [round(float(value), NUM_DECIMALS) for value in longest],
        },
    }


def correlate_columns(
    documents: Sequence[int],
    first: Sequence[float | None],
    second: Sequence[float | None],
    bootstrap: DocumentBootstrap,
) -> JSONObject:
    """Return the rank correlation of two columns, over the targets with a value in both."""
    first_values, second_values = (np.array(values, dtype=np.float64) for values in (first, second))
    is_used = ~np.isnan(first_values) & ~np.isnan(second_values)
    document_array = np.array(documents, dtype=np.int64)
    return _estimate_subset(
        document_array[is_used],
        bootstrap,
        lambda indices: rank_correlation(indices, first_values[is_used], second_values[is_used]),
    )


def _correlate(
    columns: TargetColumns, bootstrap: DocumentBootstrap, mask: Mask, first: Values, second: Values
) -> JSONObject:
    return _estimate(columns, bootstrap, mask, lambda indices: rank_correlation(indices, first[mask], second[mask]))


def _estimate(
    columns: TargetColumns, bootstrap: DocumentBootstrap, mask: Mask, make_statistic: StatisticOfDocuments
) -> JSONObject:
    return _estimate_subset(columns.documents[mask], bootstrap, make_statistic)


def _estimate_subset(
    documents: Int[np.ndarray, " targets"], bootstrap: DocumentBootstrap, make_statistic: StatisticOfDocuments
) -> JSONObject:
    """Return the estimate of a statistic over a subset of the targets; only its documents are resampled."""
    if len(documents) < MIN_TARGETS:
        return undefined_estimates(1, TOO_FEW_TARGETS)[0]
    names, indices = np.unique(documents, return_inverse=True)
    return bootstrap(make_statistic(indices), len(names), NO_VARIATION, len(indices))[0]


def _estimate_mean(documents: Int[np.ndarray, " targets"], bootstrap: DocumentBootstrap, values: Values) -> JSONObject:
    columns = np.stack([values, np.ones(len(values))], axis=1)
    return _estimate_subset(documents, bootstrap, lambda indices: ratio_of_sums(sums_by_document(indices, columns)))

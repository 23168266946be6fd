"""Comparison of the IDs and ID distances in failed examples with those seen in training."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.randomness import stream
from lengthwise.evaluation.forecast.probed_model import ProbedModel
from lengthwise.evaluation.forecast.sparse_queries import Queries

# Number of training examples that determine the distances between answers and their support.
NUM_EXAMPLES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeShift:
    """Maximum of a quantity (an ID or an ID distance) in training and in the failed examples.

    ``fraction_beyond`` is the fraction of failed examples with a value above ``train_max``.
    """

    quantity: str
    train_max: float
    test_max: float
    fraction_beyond: float


def measure_range_shifts(model: ProbedModel, errors: list[Queries]) -> Iterator[RangeShift]:
    """Yield one range shift per quantity; ``errors`` contains the first error of each failed example.

    Quantities of the support are measured only if the task declares a support.
    """
    trained_distance = model.trained_distance
    assert trained_distance is not None, "a finished run has a trained distance"
    largest_ids, distances, id_spans = [], [], []
    for queries in errors:
        ids = queries.batch.position_ids.numpy().astype(np.float64)
        id_spans.append(np.ptp(ids, axis=-1).max(axis=0))
        if (support := queries.examples.support) is not None:
            example_indices = np.arange(len(queries.answer))
            largest_id, distance = _support_range(ids, support)
            largest_ids.append(largest_id[example_indices, queries.answer])
            distances.append(distance[example_indices, queries.answer])
    quantities = (
        ("ID in the support of an answer", model.id_range[1], largest_ids),
        ("distance of an answer to its support", _max_train_support_distance(model) if distances else 0, distances),
        ("distance between any two tokens", trained_distance, id_spans),
    )
    for quantity, train_max, values_by_batch in quantities:
        if values_by_batch:
            values, limit = np.concatenate(values_by_batch), float(train_max)
            beyond, test_max = float((values > limit).mean()), float(values.max())
            yield RangeShift(quantity=quantity, train_max=limit, test_max=test_max, fraction_beyond=beyond)


def _support_range(
    ids: Float[np.ndarray, "level batch seq"], support: Int[np.ndarray, "batch seq k"]
) -> tuple[Float[np.ndarray, "batch seq"], Float[np.ndarray, "batch seq"]]:
    """Return, for each token, the largest ID in its support, and the largest distance from it to the previous token.

    With several levels, the distance comes from the level on which it is smallest.
    """
    query_ids = np.roll(ids, 1, axis=2)
    example_indices = np.arange(len(support))[:, None, None]
    support_ids = np.where(support >= 0, ids[:, example_indices, support], query_ids[..., None])
    distances = np.abs(support_ids - query_ids[..., None]).max(axis=3).min(axis=0)
    return support_ids.max(axis=(0, 3)), distances


def _max_train_support_distance(model: ProbedModel) -> float:
    rng = stream(model.seed, "diagnosis training", model.max_train_length)
    examples = model.task.sample(length=model.max_train_length, size=NUM_EXAMPLES, rng=rng)
    assert examples.support is not None
    ids = model.scheme.assign(examples, rng, training=True).position_ids.astype(np.float64)
    return float(_support_range(ids, examples.support)[1][examples.is_answer].max())

"""IDs and distances of failed examples, compared with those of training."""

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
    """The maximum of a quantity in training and at the tested length.

    ``fraction_beyond`` is the fraction of first errors with a value beyond the training maximum.
    """

    quantity: str
    train_max: float
    test_max: float
    fraction_beyond: float


def measure_range_shifts(model: ProbedModel, errors: list[Queries]) -> Iterator[RangeShift]:
    """Yield the range shifts of full examples and, if the task declares it, of the support of first errors."""
    trained_distance = model.trained_distance
    assert trained_distance is not None, "a finished run has a trained distance"
    ids = [each.batch.position_ids.numpy().astype(np.float64) for each in errors]
    if errors[0].examples.support is not None:
        values = [_values_at_errors(*pair) for pair in zip(ids, errors, strict=True)]
        largest_id, distance = (np.concatenate([each[part] for each in values]) for part in range(2))
        yield _range_shift("ID in the support of an answer", model.id_range[1], largest_id)
        yield _range_shift("distance of an answer to its support", _max_train_distance(model), distance)
    widest = np.concatenate([np.ptp(each, axis=-1).max(axis=0) for each in ids])
    yield _range_shift("distance between any two tokens", trained_distance, widest)


def _range_shift(quantity: str, train_max: int | float, values: Float[np.ndarray, " failed"]) -> RangeShift:
    return RangeShift(
        quantity=quantity,
        train_max=float(train_max),
        test_max=float(values.max()),
        fraction_beyond=float((values > train_max).mean()),
    )


def _values_at_errors(
    ids: Float[np.ndarray, "level batch seq"], errors: Queries
) -> tuple[Float[np.ndarray, " batch"], Float[np.ndarray, " batch"]]:
    assert errors.examples.support is not None
    every = np.arange(len(errors.answer))
    largest_id, distance = _support_range(ids, errors.examples.support)
    return largest_id[every, errors.answer], distance[every, errors.answer]


def _support_range(
    ids: Float[np.ndarray, "level batch seq"], support: Int[np.ndarray, "batch seq k"]
) -> tuple[Float[np.ndarray, "batch seq"], Float[np.ndarray, "batch seq"]]:
    """Return the largest ID in the support of each token, and the largest distance from the token before to it.

    The distance is that of the level where it is smallest.
    """
    query_ids = np.roll(ids, 1, axis=2)
    example = np.arange(len(support))[:, None, None]
    support_ids = np.where(support >= 0, ids[:, example, support], query_ids[..., None])
    distance = np.abs(support_ids - query_ids[..., None]).max(axis=3).min(axis=0)
    return support_ids.max(axis=(0, 3)), distance


def _max_train_distance(model: ProbedModel) -> float:
    """Return the largest distance between an answer and its support, with training IDs at the longest length."""
    rng = stream(model.seed, "diagnosis training", model.max_train_length)
    examples = model.task.sample(length=model.max_train_length, size=NUM_EXAMPLES, rng=rng)
    assert examples.support is not None
    ids = model.scheme.assign(examples, rng, training=True).position_ids.astype(np.float64)
    return float(_support_range(ids, examples.support)[1][examples.is_answer].max())

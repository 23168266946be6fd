"""Which IDs and distances a length uses, beside those that training showed."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.randomness import stream
from lengthwise.evaluation.diagnosis.failures import Answers
from lengthwise.evaluation.forecast.probed_model import Subject

# Training examples that tell how far answers lie from what they need.
LOOKED_AT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The largest number of a kind in training and at the tested length; ``beyond``: first errors with a larger one."""

    what: str
    trained: float
    tested: float
    beyond: float


def compare_with_training(subject: Subject, failed: list[Answers]) -> Iterator[Shown]:
    """Of what the first wrong answers need, as far as the task says it, and of whole examples."""
    trained_distance = subject.trained_distance
    assert trained_distance is not None, "a finished run knows its trained distance"
    ids = [each.batch.position_ids.numpy().astype(np.float64) for each in failed]
    if failed[0].examples.support is not None:
        needed = [_needed(*pair) for pair in zip(ids, (_supports(each) for each in failed), strict=True)]
        largest, distance = (
            np.concatenate(
                [
                    which[part][np.arange(len(each.answer)), each.answer]
                    for which, each in zip(needed, failed, strict=True)
                ]
            )
            for part in range(2)
        )
        yield _shown("ID of what an answer needs", subject.id_range[1], largest)
        yield _shown("distance of an answer to what it needs", _trained_distance(subject), distance)
    yield _shown(
        "distance between any two tokens",
        trained_distance,
        np.concatenate([np.ptp(each, axis=-1).max(axis=0) for each in ids]),
    )


def _shown(what: str, trained: int | float, tested: Float[np.ndarray, " failed"]) -> Shown:
    return Shown(what=what, trained=float(trained), tested=float(tested.max()), beyond=float((tested > trained).mean()))


def _supports(failed: Answers) -> Int[np.ndarray, "batch seq k"]:
    assert failed.examples.support is not None
    return failed.examples.support


def _needed(
    ids: Float[np.ndarray, "level batch seq"], support: Int[np.ndarray, "batch seq k"]
) -> tuple[Float[np.ndarray, "batch seq"], Float[np.ndarray, "batch seq"]]:
    """For the answer at each place: the largest ID of what it needs, and the distance of the token before it to that.

    The distance is on the level where it is least.
    """
    asking = np.roll(ids, 1, axis=2)
    row = np.arange(len(support))[:, None, None]
    of_support = np.where(support >= 0, ids[:, row, support], asking[..., None])
    return of_support.max(axis=(0, 3)), np.abs(of_support - asking[..., None]).max(axis=3).min(axis=0)


def _trained_distance(subject: Subject) -> float:
    """The largest at the longest trained length, with the IDs of training."""
    rng = stream(subject.seed, "diagnosis training", subject.longest)
    examples = subject.task.sample(length=subject.longest, size=LOOKED_AT, rng=rng)
    assert examples.support is not None
    ids = subject.scheme.assign(examples, rng, training=True).position_ids.astype(np.float64)
    return float(_needed(ids, examples.support)[1][examples.is_answer].max())

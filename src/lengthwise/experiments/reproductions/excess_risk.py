"""Growth of the loss beyond the training lengths with k, at equal loss within them."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

# Number of bootstrap resamples of the seeds, and a lower limit of losses, because float32 cannot resolve smaller ones.
RESAMPLES, FLOOR = 2000, 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Losses (nats) of one run on one number of bits: at the longest training length and at a longer length."""

    seed: int
    train_bits: int
    test_bits: int
    near_loss: float
    far_loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """Factor of the far loss per additional bit, with a 95% interval over seeds (None for fewer than three seeds)."""

    value: float
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Factors of the far loss per bit in training and per bit in the test, and its power law in the near loss.

    The far loss is proportional to the near loss to the ``power``; a power near 0 means that they are unrelated.
    """

    per_train_bit: Factor
    per_test_bit: Factor
    power: float


def growth(cells: list[Cell], rng: np.random.Generator) -> Growth | None:
    """Fit the growth of the far loss; return None if the cells do not determine all three coefficients.

    The fit is a linear regression of the log far loss on both numbers of bits and the log near loss, which compares
    cells at equal near loss. The intervals resample seeds with replacement.
    """
    estimate = _fit(cells)
    if estimate is None:
        return None
    seeds = sorted({cell.seed for cell in cells})
    resamples = []
    for _ in range(RESAMPLES if len(seeds) > 2 else 0):
        sample = [cell for seed in rng.choice(seeds, len(seeds)) for cell in cells if cell.seed == seed]
        if (coefficients := _fit(sample)) is not None:
            resamples.append(coefficients)
    return Growth(
        per_train_bit=_factor_with_interval(estimate, resamples, 1),
        per_test_bit=_factor_with_interval(estimate, resamples, 2),
        power=float(estimate[3]),
    )


def _factor_with_interval(
    estimate: Float[np.ndarray, " 4"], resamples: list[Float[np.ndarray, " 4"]], index: int
) -> Factor:
    value = float(np.exp(estimate[index]))
    if not resamples:
        return Factor(value=value, interval=None)
    low, high = np.quantile([each[index] for each in resamples], [0.025, 0.975])
    return Factor(value=value, interval=(float(np.exp(low)), float(np.exp(high))))


def _fit(cells: list[Cell]) -> Float[np.ndarray, " 4"] | None:
    """Return the coefficients of a constant, bits in training, bits in the test, and log near loss."""
    x = np.array(
        [[1.0, cell.train_bits, cell.test_bits, np.log(max(cell.near_loss, FLOOR))] for cell in cells]
    ).reshape(-1, 4)
    y = np.log([max(cell.far_loss, FLOOR) for cell in cells])
    if np.linalg.matrix_rank(x) < x.shape[1]:
        return None
    return np.asarray(np.linalg.lstsq(x, y, rcond=None)[0])

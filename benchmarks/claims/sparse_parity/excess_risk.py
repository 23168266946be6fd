"""Growth of the loss at a longer length with the number of bits, at equal loss at the longest training length."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

# Number of bootstrap resamples of the seeds, and the lower limit of losses, because of the precision of float32.
NUM_RESAMPLES, MIN_LOSS = 2000, 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPair:
    """Losses of one run on examples with ``test_bits`` bits, in nats per answer token.

    ``near_loss`` is at the longest training length, ``far_loss`` at a longer length. The run was trained on up to
    ``train_bits`` bits.
    """

    seed: int
    train_bits: int
    test_bits: int
    near_loss: float
    far_loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthFactor:
    """Factor by which one more bit multiplies the far loss, with a 95% interval over seeds (None below three seeds)."""

    value: float
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossGrowth:
    """Growth factors of the far loss per additional training bit and test bit, and its exponent in the near loss.

    The far loss is proportional to ``near_loss ** power``. With a power of 0, it does not depend on the near loss.
    """

    per_train_bit: GrowthFactor
    per_test_bit: GrowthFactor
    power: float


def fit_growth(loss_pairs: list[LossPair], rng: np.random.Generator) -> LossGrowth | None:
    """Fit the growth of the far loss; return None if the data do not determine all three coefficients.

    The fit is a linear regression of the logarithm of the far loss on ``train_bits``, ``test_bits`` and the logarithm
    of the near loss, so the factors compare runs with equal near loss. The intervals resample seeds with replacement.
    """
    if (fitted := _fit_coefficients(loss_pairs)) is None:
        return None
    seeds = sorted({pair.seed for pair in loss_pairs})
    resampled = []
    for _ in range(NUM_RESAMPLES if len(seeds) > 2 else 0):
        resampled_pairs = [pair for seed in rng.choice(seeds, len(seeds)) for pair in loss_pairs if pair.seed == seed]
        if (coefficients := _fit_coefficients(resampled_pairs)) is not None:
            resampled.append(coefficients)
    return LossGrowth(
        per_train_bit=_factor(fitted, resampled, 1), per_test_bit=_factor(fitted, resampled, 2), power=float(fitted[3])
    )


def _factor(fitted: Float[np.ndarray, " 4"], resampled: list[Float[np.ndarray, " 4"]], index: int) -> GrowthFactor:
    factor = float(np.exp(fitted[index]))
    if not resampled:
        return GrowthFactor(value=factor, interval=None)
    log_low, log_high = np.quantile([each[index] for each in resampled], [0.025, 0.975])
    return GrowthFactor(value=factor, interval=(float(np.exp(log_low)), float(np.exp(log_high))))


def _fit_coefficients(loss_pairs: list[LossPair]) -> Float[np.ndarray, " 4"] | None:
    """Return the coefficients of a constant, ``train_bits``, ``test_bits`` and the logarithm of the near loss."""
    features = np.array(
        [[1.0, pair.train_bits, pair.test_bits, np.log(max(pair.near_loss, MIN_LOSS))] for pair in loss_pairs]
    ).reshape(-1, 4)
    log_far_losses = np.log([max(pair.far_loss, MIN_LOSS) for pair in loss_pairs])
    if np.linalg.matrix_rank(features) < features.shape[1]:
        return None
    return np.asarray(np.linalg.lstsq(features, log_far_losses, rcond=None)[0])

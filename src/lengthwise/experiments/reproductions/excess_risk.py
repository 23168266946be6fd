"""Whether what is lost beyond the training lengths grows with k, at the same loss within them."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

# Resamples of the seeds; losses below this are as good as none in float32.
RESAMPLES, FLOOR = 2000, 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run on one number of bits: its loss (nats) at the longest trained length, and at the length far beyond."""

    seed: int
    trained: int
    tested: int
    home: float
    far: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """What the loss far beyond is multiplied by, for one more of something; with a 95% interval over seeds.

    The interval is None of fewer than three seeds.
    """

    value: float
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """By what the far loss is multiplied for one more bit trained on, and for one more bit tested.

    ``power``: it goes as the loss within the training lengths to this power; near 0, the two have little in common.
    """

    trained: Factor
    tested: Factor
    power: float


def growth(cells: list[Cell], rng: np.random.Generator) -> Growth | None:
    """How the far loss grows.

    Least squares of ``log far`` on both numbers and on ``log home``: two cells are compared as if they had lost the
    same within the training lengths. Seeds are drawn again with replacement. None where the cells do not tell these
    three apart.
    """
    fitted = _fit(cells)
    if fitted is None:
        return None
    seeds = sorted({cell.seed for cell in cells})
    drawn = []
    for _ in range(RESAMPLES if len(seeds) > 2 else 0):
        again = [cell for seed in rng.choice(seeds, len(seeds)) for cell in cells if cell.seed == seed]
        if (found := _fit(again)) is not None:
            drawn.append(found)
    return Growth(trained=_factor(fitted, drawn, 1), tested=_factor(fitted, drawn, 2), power=float(fitted[3]))


def _factor(fitted: Float[np.ndarray, " 4"], drawn: list[Float[np.ndarray, " 4"]], place: int) -> Factor:
    if not drawn:
        return Factor(value=float(np.exp(fitted[place])), interval=None)
    low, high = np.quantile([found[place] for found in drawn], [0.025, 0.975])
    return Factor(value=float(np.exp(fitted[place])), interval=(float(np.exp(low)), float(np.exp(high))))


def _fit(cells: list[Cell]) -> Float[np.ndarray, " 4"] | None:
    """Of a constant, bits trained on, bits tested and log home."""
    known = np.array([[1.0, cell.trained, cell.tested, np.log(max(cell.home, FLOOR))] for cell in cells]).reshape(-1, 4)
    wanted = np.log([max(cell.far, FLOOR) for cell in cells])
    if np.linalg.matrix_rank(known) < known.shape[1]:
        return None
    return np.asarray(np.linalg.lstsq(known, wanted, rcond=None)[0])

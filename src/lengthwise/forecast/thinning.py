"""Which tokens of a long sequence stay, and how many of the others each of them stands for."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

# Neighbours stay together, so that what a layer reads from the tokens around another one is still there.
STRETCH = 4
NEIGHBOURS = 2

Row = tuple[Int[np.ndarray, " kept"], Float[np.ndarray, " kept"], Float[np.ndarray, " kept"], Int[np.ndarray, " kept"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinned:
    """Sequences with most of their tokens left out, one per row, each ending before the answer that is asked for.

    ``kept`` are the token indexes that stay, rising up to ``last``, the place in the row of the token before the
    answer; what follows repeats it. ``stands_for``: how many tokens of the whole sequence each stands for, 1 for those
    that the answer needs; ``among``: the same for who looks from another run that was drawn, and so knows one.
    ``counted``: how many tokens of the whole sequence there are up to each. ``stretch``: the number of the run of
    neighbours that it belongs to.
    """

    kept: Int[np.ndarray, "questions kept"]
    stands_for: Float[np.ndarray, "questions kept"]
    among: Float[np.ndarray, "questions kept"]
    counted: Float[np.ndarray, "questions kept"]
    stretch: Int[np.ndarray, "questions kept"]
    last: Int[np.ndarray, " questions"]

    def added_scores(self) -> Float[np.ndarray, "questions kept kept"]:
        """The logarithm of how many tokens a key stands for; of its own run a token sees each once."""
        others = self.stretch[:, :, None] != self.stretch[:, None, :]
        drawn = self.stands_for[:, :, None] > 1
        weight = np.where(drawn, self.among[:, None, :], self.stands_for[:, None, :])
        return np.where(others, np.log(weight), 0.0)

    def alone(self) -> "Thinned":
        """The same tokens, each standing for itself: as short a sequence as it looks."""
        ones = np.ones_like(self.stands_for)
        return replace(self, stands_for=ones, among=ones, counted=ones.cumsum(axis=1))


def thin(
    needed: list[Int[np.ndarray, " _"]],
    before: Int[np.ndarray, " questions"],
    room: int,
    rng: np.random.Generator,
    units: Int[np.ndarray, "questions seq"] | None = None,
    stretch: int = STRETCH,
) -> Thinned:
    """Leave out all but about ``room`` tokens of those up to ``before``, the token before each answer.

    ``needed`` stay, with ``NEIGHBOURS`` neighbours on both sides; of the others, runs of ``stretch`` drawn without
    replacement, two at least, each standing for as many as there are per run drawn. A sum over the others, each kept
    token counted as often as it stands for, has the sum over all of them as its expectation (Horvitz and Thompson
    1952), from a token that was drawn as from one that had to stay.

    ``units`` numbers what stays or goes as one, such as the tokens that a task couples: runs and ``room`` are of units,
    and what is left is laid out as a shorter sequence is. Without, each token is one.
    """
    rows = []
    for row, (tokens, end) in enumerate(zip(needed, before.tolist(), strict=True)):
        unit = np.arange(end + 1) if units is None else units[row, : end + 1]
        rows.append(_row(tokens, unit, room, rng, stretch))
    longest = max(len(row[0]) for row in rows)
    kept, stands_for, among, run = (
        np.stack([np.pad(row[part], (0, longest - len(row[part])), mode="edge") for row in rows]) for part in range(4)
    )
    last = np.array([len(row[0]) - 1 for row in rows])
    return Thinned(kept=kept, stands_for=stands_for, among=among, counted=kept + 1.0, stretch=run, last=last)


def crowd(needed: list[Int[np.ndarray, " _"]], before: Int[np.ndarray, " questions"], times: float) -> Thinned:
    """Leave out nothing, and let what is not needed stand for as much as a text ``times`` as long has of it."""
    length = int(before.max()) + 1
    index = np.broadcast_to(np.arange(length), (len(before), length))
    kept, stretch = np.minimum(index, before[:, None]), index // STRETCH
    stands_for = np.ones(index.shape)
    for row, (tokens, end) in enumerate(zip(needed, before.tolist(), strict=True)):
        others = ~np.isin(stretch[row], _near(tokens, end) // STRETCH)
        if number := int(others[: end + 1].sum()):
            stands_for[row, others] = (times * (end + 1) - (end + 1 - number)) / number
    return Thinned(
        kept=kept,
        stands_for=stands_for,
        among=stands_for,
        counted=stands_for.cumsum(axis=1),
        stretch=stretch,
        last=before,
    )


def _near(needed: Int[np.ndarray, " _"], end: int) -> Int[np.ndarray, "_ near"]:
    """What is needed and the last token, with the neighbours of each."""
    return (np.append(needed, end)[:, None] + np.arange(-NEIGHBOURS, NEIGHBOURS + 1)).clip(0, end)


def _row(
    needed: Int[np.ndarray, " _"], unit: Int[np.ndarray, " tokens"], room: int, rng: np.random.Generator, size: int
) -> Row:
    index = np.arange(len(unit))
    if len(np.unique(unit)) <= room:
        return index, np.ones(len(index)), np.ones(len(index)), np.zeros_like(index)
    # Where runs start is random, so that no token is always the first of its run.
    stretch = (unit + int(rng.integers(size))) // size
    stays = np.zeros(stretch.max() + 1, dtype=bool)
    stays[stretch[_near(needed, len(unit) - 1)]] = True
    others = np.setdiff1d(stretch, np.flatnonzero(stays))
    drawn = min(len(others), max(2, room // size - int(stays.sum())))
    weight = np.where(stays, 1.0, len(others) / max(1, drawn))
    among = np.where(stays, 1.0, (len(others) - 1) / max(1, drawn - 1))
    stays[rng.choice(others, size=drawn, replace=False)] = True
    kept = index[stays[stretch]]
    return kept, weight[stretch[kept]], among[stretch[kept]], stretch[kept]

"""Which tokens of a long sequence stay, and how many of the others each of them stands for."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

# Neighbours stay together, so that what a layer reads from the tokens around another one is still there.
STRETCH = 4
MARGIN = 2

Row = tuple[Int[np.ndarray, " kept"], Float[np.ndarray, " kept"], Int[np.ndarray, " kept"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinned:
    """Sequences with most of their tokens left out, one per row, each ending before the answer that is asked for.

    ``kept`` are the token indexes that stay, rising up to ``last``, the place in the row of the token before the
    answer; what follows repeats it. ``stands_for``: how many tokens of the whole sequence each stands for, 1 for those
    that the answer needs. ``stretch``: the number of the run of neighbours that it belongs to.
    """

    kept: Int[np.ndarray, "questions kept"]
    stands_for: Float[np.ndarray, "questions kept"]
    stretch: Int[np.ndarray, "questions kept"]
    last: Int[np.ndarray, " questions"]

    def added_scores(self) -> Float[np.ndarray, "questions kept kept"]:
        """The logarithm of how many tokens a key stands for; of its own run a token sees each once."""
        others = self.stretch[:, :, None] != self.stretch[:, None, :]
        return np.where(others, np.log(self.stands_for)[:, None, :], 0.0)


def thin(
    needed: list[Int[np.ndarray, " _"]], before: Int[np.ndarray, " questions"], room: int, rng: np.random.Generator
) -> Thinned:
    """Leave out all but about ``room`` tokens of those up to ``before``, the token before each answer.

    ``needed`` stay, with ``MARGIN`` neighbours on both sides; of the others, runs of ``STRETCH`` drawn without
    replacement, each standing for as many as there are per run drawn. A sum over the others, each kept token counted
    as often as it stands for, has the sum over all of them as its expectation (Horvitz and Thompson 1952).
    """
    rows = [_row(tokens, int(end), room, rng) for tokens, end in zip(needed, before, strict=True)]
    longest = max(len(kept) for kept, _, _ in rows)
    kept, stands_for, stretch = (
        np.stack([np.pad(row[part], (0, longest - len(row[part])), mode="edge") for row in rows]) for part in range(3)
    )
    last = np.array([len(kept) - 1 for kept, _, _ in rows])
    return Thinned(kept=kept, stands_for=stands_for, stretch=stretch, last=last)


def crowd(needed: list[Int[np.ndarray, " _"]], before: Int[np.ndarray, " questions"], times: float) -> Thinned:
    """Leave out nothing, and let every token that is not needed stand for ``times`` tokens."""
    length = int(before.max()) + 1
    index = np.broadcast_to(np.arange(length), (len(before), length))
    stretch = index // STRETCH
    stays = np.stack(
        [np.isin(stretch[0], _near(tokens, int(end)) // STRETCH) for tokens, end in zip(needed, before, strict=True)]
    )
    return Thinned(
        kept=np.minimum(index, before[:, None]),
        stands_for=np.where(stays, 1.0, times),
        stretch=stretch,
        last=before,
    )


def _near(needed: Int[np.ndarray, " _"], end: int) -> Int[np.ndarray, "_ near"]:
    """What is needed and the last token, with the neighbours of each."""
    return (np.append(needed, end)[:, None] + np.arange(-MARGIN, MARGIN + 1)).clip(0, end)


def _row(needed: Int[np.ndarray, " _"], end: int, room: int, rng: np.random.Generator) -> Row:
    index = np.arange(end + 1)
    if len(index) <= room:
        return index, np.ones(len(index)), np.zeros_like(index)
    # Where runs start is random, so that no token is always the first of its run.
    stretch = (index + int(rng.integers(STRETCH))) // STRETCH
    stays = np.zeros(stretch[-1] + 1, dtype=bool)
    stays[stretch[_near(needed, end)]] = True
    others = np.flatnonzero(~stays)
    drawn = min(len(others), max(1, room // STRETCH - int(stays.sum())))
    weight = np.where(stays, 1.0, len(others) / max(1, drawn))
    stays[rng.choice(others, size=drawn, replace=False)] = True
    kept = index[stays[stretch]]
    return kept, weight[stretch[kept]], stretch[kept]

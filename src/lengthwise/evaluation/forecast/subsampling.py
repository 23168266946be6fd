"""Which tokens of a long sequence stay, and how many of the others each of them stands for."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

# Neighbours stay together, so that what a layer reads from the tokens around another one is still there.
STRETCH = 4
NEIGHBOURS = 2

Row = tuple[Int[np.ndarray, " _"], Float[np.ndarray, " _"], Float[np.ndarray, " _"], Int[np.ndarray, " _"]]


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
    return _stacked(rows)


def _stacked(rows: list[Row]) -> Thinned:
    longest = max(len(row[0]) for row in rows)
    kept, stands_for, among, run = (
        np.stack([np.pad(row[part], (0, longest - len(row[part])), mode="edge") for row in rows]) for part in range(4)
    )
    last = np.array([len(row[0]) - 1 for row in rows])
    return Thinned(kept=kept, stands_for=stands_for, among=among, counted=kept + 1.0, stretch=run, last=last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The parts of each sequence that together cover it, ``number`` rows of ``thinned`` per question.

    ``covered``: the share of the tokens of a sequence that are in one of its pieces, the least over questions.
    """

    thinned: Thinned
    number: int
    covered: float


def split(
    needed: list[Int[np.ndarray, " _"]],
    before: Int[np.ndarray, " questions"],
    room: int,
    rng: np.random.Generator,
    most: int,
) -> Pieces:
    """Split each sequence into at most ``most`` pieces of about ``room`` tokens.

    All pieces keep what the answer needs; every other run of ``STRETCH`` neighbours is in one of them, in random order.
    A sequence that needs fewer pieces than the longest one repeats some of its runs.
    """
    cuts = [
        _cut(tokens, np.arange(end + 1), room, STRETCH, int(rng.integers(STRETCH)))
        for tokens, end in zip(needed, before.tolist(), strict=True)
    ]
    wanted = [1 if cut is None else -(-len(cut.others) // max(1, cut.drawn)) for cut in cuts]
    number = min(most, max(wanted))
    rows: list[Row] = []
    for cut, end in zip(cuts, before.tolist(), strict=True):
        if cut is None:
            rows += [_whole(end + 1)] * number
        else:
            order = np.resize(rng.permutation(cut.others), number * cut.drawn)
            rows += cut.rows(order.reshape(number, cut.drawn))
    return Pieces(thinned=_stacked(rows), number=number, covered=min(1.0, number / max(wanted)))


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


@dataclass(frozen=True, slots=True)
class _Runs:
    """One sequence cut into runs of neighbours: ``stays`` marks those that every row keeps, ``others`` are the rest.

    ``drawn``: the number of others that one row has room for.
    """

    run: Int[np.ndarray, " tokens"]
    stays: Bool[np.ndarray, " runs"]
    others: Int[np.ndarray, " others"]
    drawn: int

    def rows(self, choices: Int[np.ndarray, "rows chosen"]) -> list[Row]:
        """Return a row for each choice of others, each of which stands for as many as there are per run chosen."""
        chosen = choices.shape[1]
        weight = np.where(self.stays, 1.0, len(self.others) / max(1, chosen))
        among = np.where(self.stays, 1.0, (len(self.others) - 1) / max(1, chosen - 1))
        rows = []
        for choice in choices:
            here = self.stays.copy()
            here[choice] = True
            kept = np.flatnonzero(here[self.run])
            run = self.run[kept]
            rows.append((kept, weight[run], among[run], run))
        return rows


def _cut(
    needed: Int[np.ndarray, " _"], unit: Int[np.ndarray, " tokens"], room: int, size: int, shift: int
) -> _Runs | None:
    """The runs of one sequence; None where it has room as it is."""
    if len(np.unique(unit)) <= room:
        return None
    run = (unit + shift) // size
    stays = np.zeros(run.max() + 1, dtype=bool)
    stays[run[_near(needed, len(unit) - 1)]] = True
    others = np.setdiff1d(run, np.flatnonzero(stays))
    return _Runs(run, stays, others, min(len(others), max(2, room // size - int(stays.sum()))))


def _whole(tokens: int) -> Row:
    return np.arange(tokens), np.ones(tokens), np.ones(tokens), np.zeros(tokens, dtype=int)


def _row(
    needed: Int[np.ndarray, " _"], unit: Int[np.ndarray, " tokens"], room: int, rng: np.random.Generator, size: int
) -> Row:
    # Where runs start is random, so that no token is always the first of its run.
    shift = int(rng.integers(size)) if len(np.unique(unit)) > room else 0
    cut = _cut(needed, unit, room, size, shift)
    if cut is None:
        return _whole(len(unit))
    return cut.rows(rng.choice(cut.others, size=(1, cut.drawn), replace=False))[0]

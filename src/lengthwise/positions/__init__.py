"""Which ID a token gets: one file per scheme, one table of all."""

from lengthwise.positions.coupled import Coupled
from lengthwise.positions.predicted import Predicted
from lengthwise.positions.random_start import RandomStart
from lengthwise.positions.scheme import Assignment, PositionScheme
from lengthwise.positions.sequential import Sequential
from lengthwise.positions.skipwise import Skipwise

SCHEMES: dict[str, type[PositionScheme]] = {
    scheme.name: scheme for scheme in (Sequential, RandomStart, Skipwise, Coupled, Predicted)
}

__all__ = [
    "SCHEMES",
    "Assignment",
    "Coupled",
    "PositionScheme",
    "Predicted",
    "RandomStart",
    "Sequential",
    "Skipwise",
]

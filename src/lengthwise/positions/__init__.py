"""Position schemes assign position IDs to tokens. Each scheme has its own file; ``SCHEMES`` lists all schemes."""

from lengthwise.positions.abacus import Abacus
from lengthwise.positions.coupled import Coupled
from lengthwise.positions.discovered import DiscoveredCoupling
from lengthwise.positions.multi_level import MultiLevel
from lengthwise.positions.predicted import Predicted
from lengthwise.positions.random_floats import RandomFloats
from lengthwise.positions.random_start import RandomStart
from lengthwise.positions.randomized import Randomized
from lengthwise.positions.scheme import (
    Assignment,
    PositionScheme,
    describe_given_information,
    given_knowledge_of_scheme,
    make_assignment,
)
from lengthwise.positions.sequential import Sequential
from lengthwise.positions.skipwise import Skipwise

SCHEMES: dict[str, type[PositionScheme]] = {
    scheme.name: scheme
    for scheme in (
        Sequential,
        RandomStart,
        Skipwise,
        Randomized,
        RandomFloats,
        Abacus,
        Coupled,
        MultiLevel,
        Predicted,
        DiscoveredCoupling,
    )
}

__all__ = [
    "SCHEMES",
    "Abacus",
    "Assignment",
    "Coupled",
    "DiscoveredCoupling",
    "MultiLevel",
    "PositionScheme",
    "Predicted",
    "RandomFloats",
    "RandomStart",
    "Randomized",
    "Sequential",
    "Skipwise",
    "describe_given_information",
    "given_knowledge_of_scheme",
    "make_assignment",
]

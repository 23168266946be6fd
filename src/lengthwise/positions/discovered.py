"""PPC with a coupling that ``find_coupling`` has found, so that no task has to supply one."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.positions.scheme import RandomGapScheme
from lengthwise.tasks.coupling.pointers import PointerRule, compute_coupling, parse_pointer_rule
from lengthwise.tasks.examples import Examples


@dataclass(frozen=True, kw_only=True)
class DiscoveredCoupling(RandomGapScheme):
    """Position coupling by a found rule, for a decoder that learns to predict the response IDs.

    The prompt counts 1, 2, 3, ... Each response token has, on each level, the ID of a prompt token that the next step
    needs. ``rule`` has the texts of ``FoundCoupling.rule``; the default rule moves one pointer along the prompt. The
    scheme never reads the coupling of a task. At evaluation, the decoder receives only the prompt IDs; grading also
    checks the predicted response IDs.
    """

    rule: tuple[str, ...] = ("one", "rising: prompt first +1 +0")

    name: ClassVar[str] = "discovered"
    summary: ClassVar[str] = "a coupling found in examples; the decoder predicts the response IDs (PPC)"
    paper: ClassVar[str] = "rules by lengthwise; PPC by Golowich et al. 2025 (arXiv 2502.16792), section 5.2"
    predicts_ids: ClassVar[bool] = True

    def __post_init__(self) -> None:
        RandomGapScheme.__post_init__(self)
        _ = self.parsed_rule

    @cached_property
    def parsed_rule(self) -> PointerRule:
        """The parsed rule; ``SettingError`` for an invalid one."""
        return parse_pointer_rule(self.rule)

    @property
    def num_levels(self) -> int:
        """Number of ID levels, one per pointer."""
        return len(self.parsed_rule.levels)

    def ids_before_gaps(self, examples: Examples) -> Int[np.ndarray, "level batch seq"]:
        """Return the IDs without gaps that the rule gives."""
        return compute_coupling(self.parsed_rule, examples)

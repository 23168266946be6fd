"""Find the tokens that each answer depends on, from examples alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from lengthwise.core.randomness import stream
from lengthwise.tasks.coupling.addresses import (
    LocatedAddress,
    iter_fixed_addresses,
    iter_match_addresses,
    locate,
    without_duplicates,
)
from lengthwise.tasks.coupling.answer_steps import AnswerSteps
from lengthwise.tasks.coupling.dependence import MAX_TOKENS, DependenceSearch, Explanation, SearchResult
from lengthwise.tasks.coupling.phases import DIVISIONS, FIRST_APART, Phases, divide

# Share of steps with equal tokens from which two addresses count as the same.
SAME_TOKENS = 0.999


@dataclass(frozen=True, kw_only=True)
class PhaseRule:
    """Addresses that determine the answers of one phase, and other sets that explain them equally well."""

    name: str
    mask: Bool[np.ndarray, " step"]
    addresses: tuple[LocatedAddress, ...]
    explanation: Explanation
    alternatives: tuple[tuple[LocatedAddress, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Search with one division into phases; ``rules`` is empty unless every phase is explained.

    ``closest`` is the search of the first phase without an explanation.
    """

    phases: Phases
    rules: tuple[PhaseRule, ...]
    closest: SearchResult

    @property
    def is_ambiguous(self) -> bool:
        """True if two sets of tokens explain the answers of a phase."""
        return any(rule.alternatives for rule in self.rules)


def search_rules(steps: AnswerSteps, *, max_tokens: int = MAX_TOKENS, seed: int = 0) -> list[Attempt]:
    """Return all attempts, from simple to complex, up to the first one that explains all answers in only one way.

    If two sets of tokens explain the answers, only a separate rule for the first answer can decide between them: other
    divisions may have no address for one of the sets. Without a decision, the ambiguous attempt is the last one.
    """
    attempts: list[Attempt] = []
    matches: list[LocatedAddress] = []
    ambiguous: Attempt | None = None
    for with_matches in (False, True):
        if with_matches:
            matches = without_duplicates(locate(each, steps, steps.number) for each in iter_match_addresses(steps))
        for division in DIVISIONS:
            phases = divide(steps, division)
            if len(np.unique(phases.phase)) < len(phases.names) or (ambiguous and division != FIRST_APART):
                continue
            attempts.append(_attempt(steps, phases, matches, max_tokens, seed))
            if attempts[-1].rules and not attempts[-1].is_ambiguous:
                return attempts
            if attempts[-1].rules and ambiguous is None:
                ambiguous = attempts[-1]
        if ambiguous is not None:
            return [*attempts, ambiguous]
    return attempts


def _attempt(
    steps: AnswerSteps, phases: Phases, matches: Sequence[LocatedAddress], max_tokens: int, seed: int
) -> Attempt:
    fixed = [locate(each, steps, phases.place) for each in iter_fixed_addresses(steps, len(phases.names))]
    rules: list[PhaseRule] = []
    for number, name in enumerate(phases.names):
        mask = phases.phase == number
        addresses = without_duplicates(located.where(mask) for located in (*fixed, *matches))
        rng = stream(seed, "coupling search", number)
        search = DependenceSearch(addresses, steps.target[mask], steps.sequence[mask], rng)
        result = search.run(max_tokens)
        if not result.explanations:
            return Attempt(phases=phases, rules=(), closest=result)
        rules.append(_rule(name, mask, addresses, result))
    return Attempt(phases=phases, rules=tuple(rules), closest=result)


def _rule(
    name: str, mask: Bool[np.ndarray, " step"], addresses: Sequence[LocatedAddress], result: SearchResult
) -> PhaseRule:
    sets = [tuple(addresses[index] for index in each.addresses) for each in result.explanations]
    return PhaseRule(
        name=name,
        mask=mask,
        addresses=sets[0],
        explanation=result.explanations[0],
        alternatives=tuple(each for each in sets[1:] if not _is_same(sets[0], each)),
    )


def _is_same(first: Sequence[LocatedAddress], second: Sequence[LocatedAddress]) -> bool:
    """Return True if every address of one set has the tokens of an address of the other set."""
    return len(first) == len(second) and all(
        any((located.tokens == other.tokens).mean() >= SAME_TOKENS for other in second) for located in first
    )

"""Find the tokens that each answer depends on, from examples alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.defaults import MAX_COUPLED_TOKENS
from lengthwise.core.randomness import stream
from lengthwise.tasks.coupling.addresses import (
    Address,
    LocatedAddress,
    iter_fixed_addresses,
    iter_match_addresses,
    locate,
    without_duplicates,
)
from lengthwise.tasks.coupling.answer_steps import FIRST_APART, ONE, AnswerSteps, Phases, divide, iter_divisions
from lengthwise.tasks.coupling.dependence import (
    FEWER_ERRORS,
    PERIODS,
    DependenceSearch,
    Explanation,
    SearchProgress,
    SearchResult,
)

# Share of steps with equal tokens from which two addresses count as the same.
SAME_TOKENS = 0.999
# A token can follow from another one if the other address has at most this number of tokens per step.
MAX_TOKEN_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class PhaseRule:
    """Addresses that determine the answers of one phase, and other sets that explain them equally well.

    ``error_addresses`` are two addresses whose tokens change the error rate, so the errors are not random. A number N
    stands for the number of the answer modulo N.
    """

    name: str
    mask: Bool[np.ndarray, " step"]
    addresses: tuple[LocatedAddress, ...]
    explanation: Explanation
    alternatives: tuple[tuple[LocatedAddress, ...], ...]
    error_addresses: tuple[Address | int, ...]

    @property
    def tokens(self) -> Int[np.ndarray, "address step"]:
        """Tokens at the addresses of each answer; one constant row for a rule without addresses."""
        if not self.addresses:
            return np.zeros((1, int(self.mask.sum())), dtype=np.int64)
        return np.stack([located.tokens for located in self.addresses])


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

    @property
    def has_error_pattern(self) -> bool:
        """True if a rule has errors that are not random."""
        return any(rule.error_addresses for rule in self.rules)

    @property
    def num_tokens(self) -> int:
        """Largest number of tokens that a rule has."""
        return max(len(rule.addresses) for rule in self.rules)

    @property
    def num_unexplained(self) -> float:
        """Number of answers that the rules predict wrong, or that nothing confirms; infinite without rules."""
        if not self.rules:
            return math.inf
        return sum((1 - rule.explanation.score) * int(rule.mask.sum()) for rule in self.rules)

    def at(self, steps: AnswerSteps) -> "Attempt":
        """Return the attempt with the addresses of other steps."""
        phases = divide(steps, self.phases.division)
        rules = []
        for number, rule in enumerate(self.rules):
            mask = phases.phase == number
            addresses = tuple(locate(located.address, steps, phases).where(mask) for located in rule.addresses)
            rules.append(replace(rule, mask=mask, addresses=addresses, alternatives=()))
        return replace(self, phases=phases, rules=tuple(rules))


def search_rules(
    steps: AnswerSteps,
    *,
    max_tokens: int = MAX_COUPLED_TOKENS,
    seed: int = 0,
    progress: SearchProgress | None = None,
) -> list[Attempt]:
    """Return all attempts, from simple to complex, up to the first one that explains all answers in only one way.

    Of the divisions of a group, the one that explains the most answers counts. If two sets of tokens explain the
    answers, only a separate rule for the first answer, or one with fewer tokens that looks something up, can decide
    between them: other divisions may have no address for one of the sets. Without a decision, the ambiguous attempt is
    the last one. Look-ups also compete with a rule whose errors are not random. After the time limit of ``progress``,
    the attempts so far count.
    """
    attempts: list[Attempt] = []
    progress = SearchProgress() if progress is None else progress
    fixed = _search_divisions(steps, [], attempts, max_tokens, seed, progress)
    if fixed is not None and not fixed.is_ambiguous and not fixed.has_error_pattern:
        return [*attempts, fixed]
    if progress.is_over:
        return attempts if fixed is None else [*attempts, fixed]
    matches = without_duplicates(locate(address, steps, divide(steps, ONE)) for address in iter_match_addresses(steps))
    num_tokens = fixed.num_tokens - 1 if fixed is not None and fixed.is_ambiguous else max_tokens
    found = _search_divisions(steps, matches, attempts, num_tokens, seed, progress) if matches and num_tokens else None
    best = found if fixed is None or (found is not None and _is_better(found, fixed)) else fixed
    return attempts if best is None else [*attempts, best]


def _is_better(found: Attempt, simple: Attempt) -> bool:
    """Return True for an attempt that decides, or that leaves far fewer errors than a simpler one."""
    is_right = simple.is_ambiguous or found.num_unexplained < FEWER_ERRORS * simple.num_unexplained
    return is_right and not found.is_ambiguous


def _search_divisions(
    steps: AnswerSteps,
    matches: Sequence[LocatedAddress],
    attempts: list[Attempt],
    max_tokens: int,
    seed: int,
    progress: SearchProgress,
) -> Attempt | None:
    """Add attempts with all divisions; return the first one with only one explanation, or else an ambiguous one.

    Further divisions compete with a rule whose errors are not random.
    """
    ambiguous: Attempt | None = None
    with_errors: Attempt | None = None
    for group in iter_divisions(steps):
        divisions = [division for division in group if ambiguous is None or division == FIRST_APART]
        divided = [phases for phases in (divide(steps, division) for division in divisions) if phases.is_complete]
        if not divided or (progress.is_over and attempts):
            continue
        attempts += [_attempt(steps, phases, matches, max_tokens, seed, progress) for phases in divided]
        best = min(attempts[-len(divided) :], key=lambda attempt: attempt.num_unexplained)
        if with_errors is not None:
            with_errors = best if best.rules and _is_better(best, with_errors) else with_errors
        elif best.rules and not best.is_ambiguous:
            if not best.has_error_pattern:
                return best
            with_errors = best
        elif best.rules and ambiguous is None:
            ambiguous = best
    return with_errors or ambiguous


def _attempt(
    steps: AnswerSteps,
    phases: Phases,
    matches: Sequence[LocatedAddress],
    max_tokens: int,
    seed: int,
    progress: SearchProgress,
) -> Attempt:
    fixed = [locate(address, steps, phases) for address in iter_fixed_addresses(steps, phases)]
    rules: list[PhaseRule] = []
    for number, name in enumerate(phases.names):
        mask = phases.phase == number
        addresses = without_duplicates(located.where(mask) for located in (*fixed, *matches))
        rng = stream(seed, "coupling search", number)
        search = DependenceSearch(
            addresses, steps.target[mask], steps.sequence[mask], rng, progress=progress, name=name
        )
        result = search.run(max_tokens)
        if not result.explanations:
            return Attempt(phases=phases, rules=(), closest=result)
        first, *others = [tuple(addresses[index] for index in found.addresses) for found in result.explanations]
        rule = PhaseRule(
            name=name,
            mask=mask,
            addresses=first,
            explanation=result.explanations[0],
            alternatives=tuple(other for other in others if not _is_same(first, other)),
            error_addresses=tuple(
                addresses[index].address if index < len(addresses) else PERIODS[index - len(addresses)]
                for index in result.error_addresses
            ),
        )
        rules.append(rule)
    return Attempt(phases=phases, rules=tuple(rules), closest=result)


def _is_same(first: Sequence[LocatedAddress], second: Sequence[LocatedAddress]) -> bool:
    """Return True if every address of the first set has the tokens of an address of the second set.

    An answer token can also follow from another answer token, such as a carry from a digit with its carry.
    """
    return len(first) == len(second) and all(
        any((located.tokens == other.tokens).mean() >= SAME_TOKENS or _follows(located, other) for other in second)
        for located in first
    )


def _follows(first: LocatedAddress, second: LocatedAddress) -> bool:
    """Return True if each answer token at the second address always comes with the same one at the first address."""
    if first.address.is_prompt or second.address.is_prompt:
        return False
    num_tokens = len(np.unique(second.tokens))
    num_pairs = np.unique(np.stack([first.tokens, second.tokens]), axis=1).shape[1]
    # Tokens that rarely occur twice say nothing.
    return num_pairs == num_tokens <= MAX_TOKEN_SHARE * len(second.tokens)

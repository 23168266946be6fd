"""Find the tokens that each answer depends on, from examples alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.defaults import MAX_COUPLED_TOKENS
from lengthwise.core.randomness import random_stream
from lengthwise.tasks.coupling.answer_steps import (
    FIRST_APART,
    ONE,
    SPLITS,
    AnswerSteps,
    PeriodicAnswers,
    divide_into_phases,
    iter_phase_divisions,
)
from lengthwise.tasks.coupling.dependence_search import (
    FEWER_ERRORS,
    PERIODS,
    AnswerExplanation,
    DependenceSearch,
    DependenceSearchResult,
    SearchProgress,
)
from lengthwise.tasks.coupling.locators import (
    LocatedTokens,
    TokenLocator,
    drop_duplicate_locators,
    iter_match_locators,
    iter_place_locators,
    locate_tokens,
    separators_of,
)

# Share of steps with equal tokens from which two locators count as the same.
SAME_TOKENS = 0.999
# Largest set of tokens in a part of a response. Larger ones would make three more divisions slow.
MAX_TOKENS_OF_PART = 2
# Locators that stop at separators must leave at most this share of the errors of pairs of other locators.
MAX_SHARE_OF_ERRORS = 0.9
# A token can follow from another one if the other locator has at most this number of tokens per step.
MAX_TOKEN_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class PeriodicRule:
    """Locators that determine the answers of one phase, and other sets that explain them equally well.

    ``error_locators`` are two locators whose tokens change the error rate, so the errors are not random. A number N
    stands for the number of the answer modulo N.
    """

    name: str
    mask: Bool[np.ndarray, " step"]
    locators: tuple[LocatedTokens, ...]
    explanation: AnswerExplanation
    alternatives: tuple[tuple[LocatedTokens, ...], ...]
    error_locators: tuple[TokenLocator | int, ...]

    @property
    def tokens(self) -> Int[np.ndarray, "locator step"]:
        """Tokens at the locators of each answer; one constant row for a rule without locators."""
        if not self.locators:
            return np.zeros((1, int(self.mask.sum())), dtype=np.int64)
        return np.stack([located.tokens for located in self.locators])


@dataclass(frozen=True, kw_only=True)
class RuleSearchAttempt:
    """Search with one division into phases; ``rules`` is empty unless every phase is explained.

    ``closest`` is the search of the first phase without an explanation.
    """

    phases: PeriodicAnswers
    rules: tuple[PeriodicRule, ...]
    closest: DependenceSearchResult

    @property
    def is_ambiguous(self) -> bool:
        """True if two sets of tokens explain the answers of a phase."""
        return any(rule.alternatives for rule in self.rules)

    @property
    def has_error_pattern(self) -> bool:
        """True if a rule has errors that are not random."""
        return any(rule.error_locators for rule in self.rules)

    @property
    def num_tokens(self) -> int:
        """Largest number of tokens that a rule has."""
        return max(len(rule.locators) for rule in self.rules)

    @property
    def num_unexplained(self) -> float:
        """Number of answers that the rules predict wrong, or that nothing confirms; infinite without rules."""
        if not self.rules:
            return math.inf
        return sum((1 - rule.explanation.share_of_explained_answers) * int(rule.mask.sum()) for rule in self.rules)

    def apply_to(self, steps: AnswerSteps) -> "RuleSearchAttempt":
        """Return the attempt with the locators of other steps."""
        phases = divide_into_phases(steps, self.phases.division)
        rules = []
        for number, rule in enumerate(self.rules):
            mask = phases.phase == number
            locators = tuple(locate_tokens(located.locator, steps, phases).select(mask) for located in rule.locators)
            rules.append(replace(rule, mask=mask, locators=locators, alternatives=()))
        return replace(self, phases=phases, rules=tuple(rules))


def search_rules(
    steps: AnswerSteps,
    *,
    max_tokens: int = MAX_COUPLED_TOKENS,
    seed: int = 0,
    progress: SearchProgress | None = None,
) -> list[RuleSearchAttempt]:
    """Return all attempts, from simple to complex, up to the first one that explains all answers in only one way.

    Of the divisions of a group, the one that explains the most answers counts. If two sets of tokens explain the
    answers, only a separate rule for the first answer, or one with fewer tokens that looks something up, can decide
    between them: other divisions may have no locator for one of the sets. Without a decision, the ambiguous attempt is
    the last one. Look-ups also compete with a rule whose errors are not random. After the time limit of ``progress``,
    the attempts so far count.
    """
    attempts: list[RuleSearchAttempt] = []
    progress = SearchProgress() if progress is None else progress
    fixed = _search_divisions(steps, [], attempts, max_tokens, seed, progress)
    if fixed is not None and not fixed.is_ambiguous and not fixed.has_error_pattern:
        return [*attempts, fixed]
    if progress.is_limit_reached:
        return attempts if fixed is None else [*attempts, fixed]
    matches = drop_duplicate_locators(
        locate_tokens(locator, steps, divide_into_phases(steps, ONE)) for locator in iter_match_locators(steps)
    )
    num_tokens = fixed.num_tokens - 1 if fixed is not None and fixed.is_ambiguous else max_tokens
    found = _search_divisions(steps, matches, attempts, num_tokens, seed, progress) if matches and num_tokens else None
    best = found if fixed is None or (found is not None and _is_better(found, fixed)) else fixed
    return attempts if best is None else [*attempts, best]


def _is_better(found: RuleSearchAttempt, simple: RuleSearchAttempt) -> bool:
    """Return True for an attempt that decides, or that leaves far fewer errors than a simpler one."""
    is_right = simple.is_ambiguous or found.num_unexplained < FEWER_ERRORS * simple.num_unexplained
    return is_right and not found.is_ambiguous


def _search_divisions(
    steps: AnswerSteps,
    matches: Sequence[LocatedTokens],
    attempts: list[RuleSearchAttempt],
    max_tokens: int,
    seed: int,
    progress: SearchProgress,
) -> RuleSearchAttempt | None:
    """Add attempts with all divisions; return the first one with only one explanation, or else an ambiguous one.

    Further divisions compete with a rule whose errors are not random. Locators of the first division stop at separators
    if that helps.
    """
    ambiguous: RuleSearchAttempt | None = None
    with_errors: RuleSearchAttempt | None = None
    for group in iter_phase_divisions(steps):
        divisions = [division for division in group if ambiguous is None or division == FIRST_APART]
        divided = [
            phases for phases in (divide_into_phases(steps, division) for division in divisions) if phases.is_complete
        ]
        if not divided or (progress.is_limit_reached and attempts):
            continue
        limit = min(max_tokens, MAX_TOKENS_OF_PART) if group == SPLITS else max_tokens
        found: list[RuleSearchAttempt] = []
        if divisions == [ONE] and not matches and _stops_help(steps, divided[0], seed, progress):
            found = [_attempt(steps, divided[0], matches, limit, seed, progress, bounded=True)]
        if not found or not found[0].rules:
            found += [_attempt(steps, phases, matches, limit, seed, progress) for phases in divided]
        attempts += found
        best = min(found, key=lambda attempt: attempt.num_unexplained)
        if with_errors is not None:
            with_errors = best if best.rules and _is_better(best, with_errors) else with_errors
        elif best.rules and not best.is_ambiguous:
            if not best.has_error_pattern:
                return best
            with_errors = best
        elif best.rules and ambiguous is None:
            ambiguous = best
    return with_errors or ambiguous


def _stops_help(steps: AnswerSteps, phases: PeriodicAnswers, seed: int, progress: SearchProgress) -> bool:
    """Return True if pairs of locators that stop at separators leave fewer errors: operands can end there."""
    if not separators_of(steps):
        return False
    errors = []
    for bounded in (False, True):
        locators = [locate_tokens(each, steps, phases) for each in iter_place_locators(steps, phases, bounded=bounded)]
        rng = random_stream(seed, "coupling search", 0)
        distinct = drop_duplicate_locators(locators)
        search = DependenceSearch(distinct, steps.target, steps.sequence, rng, progress=progress, name=phases.names[0])
        errors.append(1 - search.measure_pairs())
    return errors[1] < MAX_SHARE_OF_ERRORS * errors[0]


def _attempt(
    steps: AnswerSteps,
    phases: PeriodicAnswers,
    matches: Sequence[LocatedTokens],
    max_tokens: int,
    seed: int,
    progress: SearchProgress,
    *,
    bounded: bool = False,
) -> RuleSearchAttempt:
    places = iter_place_locators(steps, phases, bounded=bounded)
    fixed = [locate_tokens(locator, steps, phases) for locator in places]
    rules: list[PeriodicRule] = []
    for number, name in enumerate(phases.names):
        mask = phases.phase == number
        locators = drop_duplicate_locators(located.select(mask) for located in (*fixed, *matches))
        rng = random_stream(seed, "coupling search", number)
        search = DependenceSearch(locators, steps.target[mask], steps.sequence[mask], rng, progress=progress, name=name)
        result = search.run(max_tokens)
        if not result.explanations:
            return RuleSearchAttempt(phases=phases, rules=(), closest=result)
        first, *others = [tuple(locators[index] for index in found.locators) for found in result.explanations]
        rule = PeriodicRule(
            name=name,
            mask=mask,
            locators=first,
            explanation=result.explanations[0],
            alternatives=tuple(other for other in others if not _is_same(first, other)),
            error_locators=tuple(
                locators[index].locator if index < len(locators) else PERIODS[index - len(locators)]
                for index in result.error_locators
            ),
        )
        rules.append(rule)
    return RuleSearchAttempt(phases=phases, rules=tuple(rules), closest=result)


def _is_same(first: Sequence[LocatedTokens], second: Sequence[LocatedTokens]) -> bool:
    """Return True if every locator of the first set has the tokens of a locator of the second set.

    An answer token can also follow from another answer token, such as a carry from a digit with its carry.
    """
    return len(first) == len(second) and all(
        any((located.tokens == other.tokens).mean() >= SAME_TOKENS or _follows(located, other) for other in second)
        for located in first
    )


def _follows(first: LocatedTokens, second: LocatedTokens) -> bool:
    """Return True if each answer token at the second locator always comes with the same one at the first locator."""
    if first.locator.is_prompt or second.locator.is_prompt:
        return False
    num_tokens = len(np.unique(second.tokens))
    num_pairs = np.unique(np.stack([first.tokens, second.tokens]), axis=1).shape[1]
    # Tokens that rarely occur twice say nothing.
    return num_pairs == num_tokens <= MAX_TOKEN_SHARE * len(second.tokens)

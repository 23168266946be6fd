"""Search for the smallest set of locators that determines every answer (functional dependence).

A set explains the answers if the tokens at its locators always come with the same answer. Each answer is predicted
from all other answers with the same tokens, so a set that only memorizes its examples scores low.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int

from lengthwise.tasks.coupling.answer_steps import NO_TOKEN
from lengthwise.tasks.coupling.locators import LocatedTokens, TokenLocator

# All sets up to this size are compared. Larger ones grow from the best smaller sets, while the accuracy improves.
EXHAUSTIVE_SIZE, MIN_GAIN = 2, 0.002
# Number of steps for a first comparison of pairs and of larger sets, and number of sets that are kept.
PAIR_STEPS, SET_STEPS, BEAM = 4000, 20_000, 24
# Smallest share of the answers that other answers with the same tokens can confirm.
MIN_COVERAGE = 0.5
# The same in a sample, which confirms fewer answers than all steps.
MIN_SAMPLE_COVERAGE = 0.2
# Largest error rate of an explanation, as a share of the error rate of the most frequent answer. Many tokens can
# approximate a rule that no few tokens determine, so sets of at least MANY_TOKENS tokens need fewer errors.
MAX_RELATIVE_ERROR, MANY_TOKENS, MAX_RELATIVE_ERROR_OF_MANY = 0.1, 4, 0.05
# Number of confirmed answers that make a set with low coverage worth a mention.
MIN_CONFIRMED = 100
# An extension that leaves less than this share of the errors shows a dependence on one more token, not noise.
FEWER_ERRORS = 0.5
# Number of sets with a lower coverage that are extended.
NUM_SPARSE = 4
# Largest table of codes and answers that is counted without sorting, in cells per step.
TABLE_CELLS_PER_STEP = 3
# Time of a set beside its answers, in answers.
WORK_PER_SET = 1000
# A copied token is copied in at least this share of its occurrences.
MIN_COPY_SHARE = 0.9

# Test for errors that depend on other tokens than the rule:
# Number of wrong and of right answers that the test uses at most, and smallest number of wrong ones.
MAX_WRONG, MAX_RIGHT, MIN_WRONG = 2000, 4000, 20
# Pairs of tokens with fewer expected errors than this say too little.
MIN_EXPECTED = 2.0
# Standard deviations of the chi-square statistic above its mean. Dependences on three or four tokens have 60 to 700,
# noise up to 25: tens of thousands of pairs are compared, and short examples with noise are less often duplicates.
NUM_DEVIATIONS = 40.0
# A sequence with at least this share of wrong answers is wrong as a whole.
WRONG_SEQUENCE_SHARE = 1 / 3
# Rates of errors need this many answers with the same tokens of the rule, on average.
MIN_STRATUM_SIZE = 10
# Rules can alternate between answers: the number of an answer modulo these numbers counts as a locator.
PERIODS = (2, 3)

# Time between two reports of one stage, in seconds.
SECONDS_PER_REPORT = 0.2
# Largest work of a search, in answers that are compared, which does not depend on the speed of a machine.
MAX_WORK = 5e8

Item = TypeVar("Item")


@dataclass(kw_only=True)
class SearchProgress:
    """Reports of a search, and the time at which it ends without a result.

    ``report`` receives a dictionary with the ``stage`` in words, the number of sets that are ``done``, and their
    ``total``. ``deadline`` is a time of ``time.monotonic``. ``work`` counts the compared answers, up to ``max_work``.
    """

    report: Callable[[dict[str, Any]], None] | None = None
    deadline: float = math.inf
    max_work: float = MAX_WORK
    work: float = 0
    last_report: float = -math.inf

    @property
    def is_limit_reached(self) -> bool:
        """True after the limit of time or work."""
        return time.monotonic() > self.deadline or self.work > self.max_work

    def track(self, items: Sequence[Item], stage: str) -> Iterator[Item]:
        """Yield the items of a stage with reports, up to the limit of time or work."""
        for done, item in enumerate(items):
            if self.is_limit_reached:
                return
            now = time.monotonic()
            if self.report is not None and now - self.last_report >= SECONDS_PER_REPORT:
                self.last_report = now
                self.report({"stage": stage, "done": done, "total": len(items)})
            yield item


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerExplanation:
    """Set of locators with its score.

    ``accuracy`` is the share of right predictions among the answers that other answers confirm; ``coverage`` is the
    share of these answers.
    """

    locators: tuple[int, ...]
    accuracy: float
    coverage: float

    @property
    def share_of_explained_answers(self) -> float:
        """Share of all answers that are predicted right."""
        return self.accuracy * self.coverage


@dataclass(frozen=True, slots=True, kw_only=True)
class DependenceSearchResult:
    """Equally good explanations of the smallest size, simplest first; the tuple can be empty.

    ``closest`` is the set with the best score, and ``closest_tokens`` has its locators. ``too_sparse`` is an accurate
    set that too few answers confirm.
    ``error_locators`` are two locators whose tokens change the error rate of the first explanation (see
    ``find_error_pattern``).
    """

    explanations: tuple[AnswerExplanation, ...]
    closest: AnswerExplanation
    closest_tokens: tuple[TokenLocator, ...] = ()
    too_sparse: AnswerExplanation | None = None
    error_locators: tuple[int, ...] = ()


class DependenceSearch:
    """Search over sets of locators of one group of steps."""

    def __init__(
        self,
        locators: Sequence[LocatedTokens],
        target: Int[np.ndarray, " step"],
        sequence: Int[np.ndarray, " step"],
        rng: np.random.Generator,
        *,
        progress: SearchProgress,
        name: str = "",
    ) -> None:
        """Number the tokens at each locator and the answers; ``sequence`` is the sequence of each step.

        ``progress`` shows the sets that are tried for the answers with this name.
        """
        self.progress, self.name, self.sequence = progress, name, sequence
        self.locators, self.target_tokens = locators, target
        self.codes = [_numbered(locator.tokens) for locator in locators]
        self.target = np.unique(target, return_inverse=True)[1]
        self.rng = rng
        order = rng.permutation(len(target))
        self.pair_sample, self.set_sample = order[:PAIR_STEPS], order[:SET_STEPS]
        # Codes and answers of each sample, by its size.
        self._sampled: dict[int, tuple[list[Int[np.ndarray, " step"]], Int[np.ndarray, " step"]]] = {}
        self.base_accuracy = float(np.bincount(self.target).max() / len(target))

    def run(self, max_tokens: int) -> DependenceSearchResult:
        """Return the smallest sets that explain the answers."""
        constant = AnswerExplanation(locators=(), accuracy=self.base_accuracy, coverage=1.0)
        frontier, closest = [constant], constant
        if self.base_accuracy == 1:
            return DependenceSearchResult(explanations=(constant,), closest=constant)
        accepted: tuple[AnswerExplanation, ...] = ()
        too_sparse: AnswerExplanation | None = None
        best_accuracy = self.base_accuracy
        for size in range(1, max_tokens + 1):
            frontier = self._best_sets(_extendable(frontier), size)
            closest = max([closest, *frontier], key=lambda explanation: explanation.share_of_explained_answers)
            max_error = self._max_error(size)
            enough = self._confirmed(frontier, max_error)
            # After the time limit, the sets of this size are incomplete.
            if self.progress.is_limit_reached or (
                accepted and not (enough and self._has_fewer_errors(frontier, accepted))
            ):
                break
            best_before = best_accuracy
            best_accuracy = _best_accuracy(frontier)
            if not accepted and size > EXHAUSTIVE_SIZE and best_accuracy < best_before + MIN_GAIN:
                # Sets grow from the best smaller sets, so they do not improve later either.
                break
            if not enough:
                too_sparse = too_sparse or self._accurate_but_sparse(frontier, max_error)
                continue
            accepted = _most_accurate(enough)
            if _best_accuracy(accepted) == 1:
                break
        if not accepted:
            tokens = tuple(self.locators[index].locator for index in closest.locators)
            return DependenceSearchResult(
                explanations=(), closest=closest, closest_tokens=tokens, too_sparse=too_sparse
            )
        accepted = self._with_tokens_of_errors(accepted[0], max_tokens) or accepted
        pruned = {smaller.locators: smaller for smaller in map(self._prune, accepted)}.values()
        size = min(len(explanation.locators) for explanation in pruned)
        explanations = sorted(
            (explanation for explanation in pruned if len(explanation.locators) == size), key=self._cost
        )
        return DependenceSearchResult(
            explanations=tuple(explanations),
            closest=closest,
            error_locators=self._error_pattern(explanations[0], only_first=True),
        )

    def measure_pairs(self) -> float:
        """Return the largest accuracy of a pair of locators."""
        return _best_accuracy(self._best_sets((), 2))

    def _cost(self, explanation: AnswerExplanation) -> int:
        return sum(self.locators[locator].locator.complexity for locator in explanation.locators)

    def _codes_of(self, explanation: AnswerExplanation) -> Int[np.ndarray, " step"]:
        """Return the tokens of the set at each step as one number, from 0."""
        codes: np.ndarray = np.unique(
            _combine([self.codes[locator] for locator in explanation.locators]), return_inverse=True
        )[1]
        return codes

    def _error_pattern(self, explanation: AnswerExplanation, *, only_first: bool) -> tuple[int, ...]:
        """Return the two locators whose tokens change the error rate of an explanation; empty without such tokens."""
        if explanation.accuracy == 1 or not explanation.locators:
            return ()
        codes = self._codes_of(explanation)
        is_wrong = most_frequent_answers(codes, self.target, int(codes.max()) + 1)[codes] != self.target
        return find_error_pattern(self.codes, codes, is_wrong, self.sequence, self.rng, only_first=only_first)

    def _with_tokens_of_errors(self, explanation: AnswerExplanation, max_tokens: int) -> tuple[AnswerExplanation, ...]:
        """Return an explanation with two or three more tokens that the errors depend on; empty if none is better.

        Larger sets grow by one token at a time, so they miss tokens that only matter together.
        """
        if self.progress.is_limit_reached:
            return ()
        pair = self._error_pattern(explanation, only_first=False)
        larger = frozenset((*explanation.locators, *(index for index in pair if index < len(self.locators))))
        if not pair or len(larger) > max_tokens:
            return ()
        more = {larger | {index} for index in range(len(self.locators))} if len(larger) < max_tokens else {larger}
        better = self._confirmed(
            [self.measure_explanation(tuple(sorted(locators))) for locators in more],
            FEWER_ERRORS * (1 - explanation.accuracy),
        )
        best = max((candidate.accuracy for candidate in better), default=0.0)
        return tuple(candidate for candidate in better if candidate.accuracy == best)

    def _max_error(self, size: int) -> float:
        share = MAX_RELATIVE_ERROR if size < MANY_TOKENS else MAX_RELATIVE_ERROR_OF_MANY
        return share * (1 - self.base_accuracy)

    def _confirmed(self, explanations: Iterable[AnswerExplanation], max_error: float) -> list[AnswerExplanation]:
        enough = [found for found in explanations if found.coverage >= MIN_COVERAGE and 1 - found.accuracy <= max_error]
        return [found for found in enough if self._share_in_several_sequences(found) >= MIN_COVERAGE]

    def _accurate_but_sparse(self, frontier: Sequence[AnswerExplanation], max_error: float) -> AnswerExplanation | None:
        min_coverage = MIN_CONFIRMED / len(self.target)
        accurate = [found for found in frontier if found.coverage >= min_coverage and 1 - found.accuracy <= max_error]
        return max(accurate, key=lambda found: found.coverage, default=None)

    def measure_explanation(
        self, locators: tuple[int, ...], sample: Int[np.ndarray, " sample"] | None = None
    ) -> AnswerExplanation:
        """Return the explanation by a set of locators, measured on all steps or on a sample."""
        codes, target = self._codes_and_target(sample)
        self.progress.work += len(target) + WORK_PER_SET
        copies = None
        if len(locators) == 1:
            copies = self.locators[locators[0]].tokens == self.target_tokens
            copies = copies if sample is None else copies[sample]
        score = count_agreeing_answers(_combine([codes[locator] for locator in locators]), target, copies)
        return _explanation(locators, *score, len(target))

    def _codes_and_target(
        self, sample: Int[np.ndarray, " sample"] | None
    ) -> tuple[list[Int[np.ndarray, " step"]], Int[np.ndarray, " step"]]:
        """Return the codes of each locator and the answers, of all steps or of a sample."""
        if sample is None or len(sample) == len(self.target):
            return self.codes, self.target
        if len(sample) not in self._sampled:
            self._sampled[len(sample)] = [codes[sample] for codes in self.codes], self.target[sample]
        return self._sampled[len(sample)]

    def _share_in_several_sequences(self, explanation: AnswerExplanation) -> float:
        """Return the share of the answers whose tokens occur in at least two sequences, or that are copies.

        Answers of one sequence do not confirm each other: a token that names the sequence would explain all of them.
        """
        codes, max_sequences = self._codes_of(explanation), int(self.sequence.max()) + 1
        pairs = np.unique(codes.astype(np.int64) * max_sequences + self.sequence)
        num_sequences = np.bincount(pairs // max_sequences)
        is_confirmed = num_sequences[codes] > 1
        if len(explanation.locators) == 1:
            is_confirmed |= self.locators[explanation.locators[0]].tokens == self.target_tokens
        return float(is_confirmed.mean())

    def _prune(self, explanation: AnswerExplanation) -> AnswerExplanation:
        """Return the explanation without locators that do not make it more accurate."""
        for locator in explanation.locators:
            rest = tuple(found for found in explanation.locators if found != locator)
            smaller = self.measure_explanation(rest) if rest else None
            if (
                smaller is not None
                and smaller.share_of_explained_answers >= explanation.share_of_explained_answers
                and smaller.accuracy >= explanation.accuracy
            ):
                return self._prune(smaller)
        return explanation

    def _best_sets(self, frontier: Sequence[AnswerExplanation], size: int) -> list[AnswerExplanation]:
        """Return the best sets of a size: of all sets, or of those that add a locator to a set of the frontier."""
        is_small, what = size <= EXHAUSTIVE_SIZE, "single tokens" if size == 1 else f"sets of {size} tokens"
        stage = f"trying {what} of {len(self.locators)} for {self.name}"
        sample = self.pair_sample if is_small else self.set_sample
        if is_small:
            sets = list(combinations(range(len(self.locators)), size))
            measured = [self.measure_explanation(locators, sample) for locators in self.progress.track(sets, stage)]
        else:
            measured = self._measure_extensions(frontier, stage, sample)
        kept = _keep_best(measured, 4 * BEAM if is_small else BEAM)
        if len(sample) == len(self.target):
            return kept
        return sorted(
            (self.measure_explanation(found.locators) for found in kept),
            key=lambda found: -found.share_of_explained_answers,
        )

    def _measure_extensions(
        self, frontier: Sequence[AnswerExplanation], stage: str, sample: Int[np.ndarray, " sample"]
    ) -> list[AnswerExplanation]:
        """Return all sets with one more locator than a set of the frontier, measured on a sample, in order."""
        codes, target = self._codes_and_target(sample)
        measured: dict[tuple[int, ...], AnswerExplanation] = {}
        for kept in self.progress.track(frontier, stage):
            base = np.unique(_combine([codes[locator] for locator in kept.locators]), return_inverse=True)[1]
            # Steps with tokens of their own keep them with one more locator.
            (shared,) = np.nonzero(np.bincount(base)[base] > 1)
            if not len(shared):
                continue
            base, shared_target = np.unique(base[shared], return_inverse=True)[1], target[shared]
            for index in range(len(self.locators)):
                locators = tuple(sorted((*kept.locators, index)))
                if index in kept.locators or locators in measured:
                    continue
                self.progress.work += len(shared) + WORK_PER_SET
                score = count_agreeing_answers(_combine([base, codes[index][shared]]), shared_target)
                measured[locators] = _explanation(locators, *score, len(target))
        return [measured[locators] for locators in sorted(measured)]

    def _has_fewer_errors(self, frontier: Sequence[AnswerExplanation], accepted: Sequence[AnswerExplanation]) -> bool:
        errors = 1 - accepted[0].accuracy
        return any(found.coverage >= MIN_COVERAGE and 1 - found.accuracy < FEWER_ERRORS * errors for found in frontier)


def _explanation(locators: tuple[int, ...], right: float, covered: int, size: int) -> AnswerExplanation:
    return AnswerExplanation(locators=locators, accuracy=right / covered if covered else 0.0, coverage=covered / size)


def count_agreeing_answers(
    codes: Int[np.ndarray, " step"],
    target: Int[np.ndarray, " step"],
    copies: np.ndarray | None = None,
) -> tuple[float, int]:
    """Return the number of answers that the others with the same code predict, and the number that have such others.

    With ``copies`` (answers that equal the only token of the code), a code whose answers are nearly always copies
    counts with all its copies as right, also if there is only one: copying needs no table.
    """
    num_answers = int(target.max()) + 1
    num_codes = int(codes.max()) + 1
    if num_codes * num_answers > TABLE_CELLS_PER_STEP * len(codes):
        codes = np.unique(codes, return_inverse=True)[1] if copies is not None else codes
        totals, largest, second = _counts_of_sorted(codes, target, num_answers, has_singles=copies is not None)
    else:
        table = np.bincount(target * num_codes + codes, minlength=num_codes * num_answers)
        table = table.reshape(num_answers, num_codes)
        totals, largest = table.sum(axis=0), table.max(axis=0)
        table[table.argmax(axis=0), np.arange(num_codes)] = 0
        second = table.max(axis=0)
    # Without the answer itself, its own count is one lower.
    right = np.where(largest - 1 > second, largest, np.where(largest - 1 == second, largest / 2, 0.0))
    right = np.where(largest > 1, right, 0.0)
    covered = np.where(totals > 1, totals, 0)
    if copies is not None:
        num_copies = np.bincount(codes, weights=copies, minlength=len(totals))
        is_copied = num_copies >= np.maximum(MIN_COPY_SHARE * totals, 1)
        right = np.where(is_copied, np.maximum(right, num_copies), right)
        covered = np.where(is_copied, totals, covered)
    return float(right.sum()), int(covered.sum())


def most_frequent_answers(
    codes: Int[np.ndarray, " step"], target: Int[np.ndarray, " step"], num_codes: int
) -> Int[np.ndarray, " code"]:
    """Return the most frequent answer of each code, the smallest one of several; ``NO_TOKEN`` without an answer."""
    # A table of all codes and answers would be too large.
    num_answers = int(target.max(initial=0)) + 1
    pairs, counts = np.unique(codes.astype(np.int64) * num_answers + target, return_counts=True)
    order = np.lexsort((-pairs, counts, pairs // num_answers))
    answers = np.full(num_codes, NO_TOKEN)
    answers[pairs[order] // num_answers] = pairs[order] % num_answers
    return answers


def _counts_of_sorted(
    codes: Int[np.ndarray, " step"], target: Int[np.ndarray, " step"], num_answers: int, *, has_singles: bool
) -> tuple[Int[np.ndarray, " code"], Int[np.ndarray, " code"], Int[np.ndarray, " code"]]:
    """Return how often each code occurs, and how often with its most frequent and its second most frequent answer.

    Without ``has_singles``, codes that occur once are left out.
    """
    keys = codes * num_answers + target
    if int(codes.max()) * num_answers < np.iinfo(np.int32).max - num_answers:
        # Small integers are sorted faster.
        keys = keys.astype(np.int32)
    keys = np.sort(keys)
    if not has_singles:
        sorted_codes = keys // num_answers
        is_same = sorted_codes[1:] == sorted_codes[:-1]
        keys = keys[np.append(is_same, False) | np.append(False, is_same)]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    counts = np.diff(first, append=len(keys))
    starts = np.flatnonzero(np.diff(keys[first] // num_answers, prepend=-1))
    totals, largest = np.add.reduceat(counts, starts), np.maximum.reduceat(counts, starts)
    is_largest = counts == np.repeat(largest, np.diff(starts, append=len(counts)))
    num_largest = np.add.reduceat(is_largest, starts, dtype=np.int64)
    second = np.where(num_largest > 1, largest, np.maximum.reduceat(np.where(is_largest, 0, counts), starts))
    return totals, largest, second


def _combine(codes: Sequence[Int[np.ndarray, " step"]]) -> Int[np.ndarray, " step"]:
    combined = codes[0].astype(np.int64)
    limit = int(combined.max()) + 1
    for code in codes[1:]:
        size = int(code.max()) + 1
        if limit * size > 1 << 40:
            combined = np.unique(combined, return_inverse=True)[1]
            limit = int(combined.max()) + 1
        combined, limit = combined * size + code, limit * size
    return combined


def _numbered(tokens: Int[np.ndarray, " step"]) -> Int[np.ndarray, " step"]:
    """Return the tokens numbered from 0, in order."""
    is_token = np.bincount(tokens - NO_TOKEN) > 0
    numbers: np.ndarray = (np.cumsum(is_token, dtype=np.int32) - 1)[tokens - NO_TOKEN]
    return numbers


def _most_accurate(explanations: Sequence[AnswerExplanation]) -> tuple[AnswerExplanation, ...]:
    best = max(found.accuracy for found in explanations)
    return tuple(found for found in explanations if found.accuracy >= best - 0.1 * (1 - best) - 1e-9)


def _best_accuracy(explanations: Iterable[AnswerExplanation]) -> float:
    return max((found.accuracy for found in explanations if found.coverage >= MIN_SAMPLE_COVERAGE), default=0.0)


def _keep_best(explanations: list[AnswerExplanation], number: int) -> list[AnswerExplanation]:
    """Return the sets with the best score, and those with the best accuracy, which a sample may cover too little."""
    by_score = sorted(explanations, key=lambda found: -found.share_of_explained_answers)[:number]
    covering = [found for found in explanations if found.coverage >= MIN_SAMPLE_COVERAGE]
    by_accuracy = sorted(covering, key=lambda found: (-found.accuracy, -found.coverage))[:number]
    return list({found.locators: found for found in [*by_score, *by_accuracy]}.values())


def _extendable(frontier: Sequence[AnswerExplanation]) -> list[AnswerExplanation]:
    """Return the sets whose extensions can be confirmed, and a few others, which show that examples are too few.

    One more token never lets more answers confirm each other.
    """
    sparse = [found for found in frontier if found.coverage < MIN_COVERAGE]
    best = sorted(sparse, key=lambda found: (-found.accuracy, -found.coverage))[:NUM_SPARSE]
    return [found for found in frontier if found.coverage >= MIN_COVERAGE or found in best]


def find_error_pattern(
    codes: Sequence[Int[np.ndarray, " step"]],
    rule_code: Int[np.ndarray, " step"],
    is_wrong: Bool[np.ndarray, " step"],
    sequence: Int[np.ndarray, " step"],
    rng: np.random.Generator,
    *,
    only_first: bool,
) -> tuple[int, ...]:
    """Return the indexes of the two locators whose tokens change the error rate most; empty if errors look random.

    ``codes`` has the tokens at each locator, and ``rule_code`` those of the rule, numbered from 0. Errors may be more
    frequent for some tokens of the rule. Among steps with the same tokens of the rule, random errors depend on no other
    token. With ``only_first``, only the first error of each sequence counts, because a wrong answer can make later ones
    wrong, and sequences that are wrong as a whole do not count. Indexes after those of ``codes`` stand for the number
    of an answer modulo ``PERIODS``.
    """
    starts = np.flatnonzero(np.diff(sequence, prepend=-1))
    sizes = np.diff(np.r_[starts, len(sequence)])
    number = np.arange(len(sequence)) - np.repeat(starts, sizes)
    is_counted = _up_to_first_error(is_wrong, starts, sizes) if only_first else np.ones(len(sequence), dtype=bool)
    wrong, right = (rng.permutation(np.flatnonzero(is_counted & mask)) for mask in (is_wrong, ~is_wrong))
    if len(wrong) < MIN_WRONG:
        return ()
    sample = np.concatenate([wrong[:MAX_WRONG], right[:MAX_RIGHT]])
    error = is_wrong[sample].astype(float)
    rate = _expected_rate(rule_code[sample], error)
    periods = [number % period for period in PERIODS]
    sampled = [np.unique(code[sample], return_inverse=True)[1] for code in (*codes, *periods)]
    num_codes = [int(code.max()) + 1 for code in sampled]
    best = NUM_DEVIATIONS
    pair: tuple[int, ...] = ()
    for first, second in combinations(range(len(sampled)), 2):
        deviation = _deviation(sampled[first] * num_codes[second] + sampled[second], error - rate, rate * (1 - rate))
        if deviation > best:
            best, pair = deviation, (first, second)
    return pair


def _up_to_first_error(
    is_wrong: Bool[np.ndarray, " step"], starts: Int[np.ndarray, " sequence"], sizes: Int[np.ndarray, " sequence"]
) -> Bool[np.ndarray, " step"]:
    num_wrong_before = np.cumsum(is_wrong) - is_wrong
    share = np.add.reduceat(is_wrong, starts) / sizes
    is_wrong_sequence = np.repeat((share >= WRONG_SEQUENCE_SHARE) & (sizes > 2), sizes)
    return (num_wrong_before == np.repeat(num_wrong_before[starts], sizes)) & ~is_wrong_sequence


def _expected_rate(
    rule_code: Int[np.ndarray, " step"], error: Float[np.ndarray, " step"]
) -> Float[np.ndarray, " step"]:
    """Return the error rate of the steps with the same tokens of the rule, or of all steps if these are few."""
    stratum = np.unique(rule_code, return_inverse=True)[1]
    if len(error) < MIN_STRATUM_SIZE * (int(stratum.max()) + 1):
        return np.full(len(error), error.mean())
    rate: np.ndarray = (np.bincount(stratum, weights=error) / np.bincount(stratum))[stratum]
    return rate


def _deviation(
    code: Int[np.ndarray, " step"], excess: Float[np.ndarray, " step"], variance: Float[np.ndarray, " step"]
) -> float:
    """Return how many standard deviations the chi-square statistic of the errors lies above its mean."""
    excess_by_code, variance_by_code = np.bincount(code, weights=excess), np.bincount(code, weights=variance)
    is_counted = variance_by_code >= MIN_EXPECTED
    freedom = int(is_counted.sum()) - 1
    if freedom < 1:
        return 0.0
    statistic = (excess_by_code[is_counted] ** 2 / variance_by_code[is_counted]).sum()
    return float((statistic - freedom) / np.sqrt(2 * freedom))

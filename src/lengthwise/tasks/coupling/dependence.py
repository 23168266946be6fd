"""Search for the smallest set of addresses that determines every answer (functional dependence).

A set explains the answers if the tokens at its addresses always come with the same answer. Each answer is predicted
from all other answers with the same tokens, so a set that only memorizes its examples scores low.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Int

from lengthwise.tasks.coupling.addresses import LocatedAddress
from lengthwise.tasks.coupling.error_pattern import find_error_pattern

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
# A copied token is copied in at least this share of its occurrences.
MIN_COPY_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Set of addresses with its score.

    ``accuracy`` is the share of right predictions among the answers that other answers confirm; ``coverage`` is the
    share of these answers.
    """

    addresses: tuple[int, ...]
    accuracy: float
    coverage: float

    @property
    def score(self) -> float:
        """Share of all answers that are predicted right."""
        return self.accuracy * self.coverage


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Equally good explanations of the smallest size, simplest first; the tuple can be empty.

    ``closest`` is the set with the best score. ``too_sparse`` is an accurate set that too few answers confirm.
    ``error_addresses`` are two addresses whose tokens change the error rate of the first explanation (see
    ``find_error_pattern``).
    """

    explanations: tuple[Explanation, ...]
    closest: Explanation
    too_sparse: Explanation | None = None
    error_addresses: tuple[int, ...] = ()


class DependenceSearch:
    """Search over sets of addresses of one group of steps."""

    def __init__(
        self,
        addresses: Sequence[LocatedAddress],
        target: Int[np.ndarray, " step"],
        sequence: Int[np.ndarray, " step"],
        rng: np.random.Generator,
    ) -> None:
        """Number the tokens at each address and the answers; ``sequence`` is the sequence of each step."""
        self.sequence = sequence
        self.addresses, self.target_tokens = addresses, target
        self.codes = [np.unique(address.tokens, return_inverse=True)[1] for address in addresses]
        self.target = np.unique(target, return_inverse=True)[1]
        self.rng = rng
        order = rng.permutation(len(target))
        self.pair_sample, self.set_sample = order[:PAIR_STEPS], order[:SET_STEPS]
        self.base_accuracy = float(np.bincount(self.target).max() / len(target))

    def run(self, max_tokens: int) -> SearchResult:
        """Return the smallest sets that explain the answers."""
        constant = Explanation(addresses=(), accuracy=self.base_accuracy, coverage=1.0)
        frontier, closest = [constant], constant
        if self.base_accuracy == 1:
            return SearchResult(explanations=(constant,), closest=constant)
        accepted: tuple[Explanation, ...] = ()
        too_sparse: Explanation | None = None
        best_accuracy = self.base_accuracy
        for size in range(1, max_tokens + 1):
            frontier = self._best_sets(self._candidates(frontier, size), size)
            max_error = self._max_error(size)
            enough = self._confirmed(frontier, max_error)
            if accepted and not (enough and self._has_fewer_errors(frontier, accepted)):
                break
            closest = max([closest, *frontier], key=lambda each: each.score)
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
            return SearchResult(explanations=(), closest=closest, too_sparse=too_sparse)
        return self._result(self._with_tokens_of_errors(accepted[0], max_tokens) or accepted, closest)

    def _result(self, accepted: Sequence[Explanation], closest: Explanation) -> SearchResult:
        pruned = {each.addresses: each for each in map(self._prune, accepted)}.values()
        smallest = min(len(each.addresses) for each in pruned)
        explanations = self._simplest_first(tuple(each for each in pruned if len(each.addresses) == smallest))
        return SearchResult(
            explanations=explanations,
            closest=closest,
            error_addresses=self._error_pattern(explanations[0], only_first=True),
        )

    def _error_pattern(self, explanation: Explanation, *, only_first: bool) -> tuple[int, ...]:
        """Return the two addresses whose tokens change the error rate of an explanation; empty without such tokens."""
        if explanation.accuracy == 1 or not explanation.addresses:
            return ()
        codes = np.unique(_combine([self.codes[address] for address in explanation.addresses]), return_inverse=True)[1]
        counts = np.zeros((int(codes.max()) + 1, int(self.target.max()) + 1), dtype=np.int32)
        np.add.at(counts, (codes, self.target), 1)
        is_wrong = counts.argmax(axis=1)[codes] != self.target
        return find_error_pattern(self.codes, codes, is_wrong, self.sequence, self.rng, only_first=only_first)

    def _with_tokens_of_errors(self, explanation: Explanation, max_tokens: int) -> tuple[Explanation, ...]:
        """Return an explanation with two or three more tokens that the errors depend on; empty if none is better.

        Larger sets grow by one token at a time, so they miss tokens that only matter together.
        """
        pair = self._error_pattern(explanation, only_first=False)
        larger = {*explanation.addresses, *(index for index in pair if index < len(self.addresses))}
        if not pair or len(larger) > max_tokens:
            return ()
        more = [larger | {index} for index in range(len(self.addresses))] if len(larger) < max_tokens else [larger]
        measured = [self.measure(tuple(sorted(each))) for each in {frozenset(each) for each in more}]
        errors = FEWER_ERRORS * (1 - explanation.accuracy)
        better = self._confirmed(measured, errors)
        best = max((each.accuracy for each in better), default=0.0)
        return tuple(each for each in better if each.accuracy == best)

    def _max_error(self, size: int) -> float:
        share = MAX_RELATIVE_ERROR if size < MANY_TOKENS else MAX_RELATIVE_ERROR_OF_MANY
        return share * (1 - self.base_accuracy)

    def _confirmed(self, explanations: Iterable[Explanation], max_error: float) -> list[Explanation]:
        enough = [each for each in explanations if each.coverage >= MIN_COVERAGE and 1 - each.accuracy <= max_error]
        return [each for each in enough if self._share_in_several_sequences(each) >= MIN_COVERAGE]

    def _accurate_but_sparse(self, frontier: Sequence[Explanation], max_error: float) -> Explanation | None:
        min_coverage = MIN_CONFIRMED / len(self.target)
        accurate = [each for each in frontier if each.coverage >= min_coverage and 1 - each.accuracy <= max_error]
        return max(accurate, key=lambda each: each.coverage, default=None)

    def measure(self, addresses: tuple[int, ...], sample: Int[np.ndarray, " sample"] | None = None) -> Explanation:
        """Return the explanation by a set of addresses, measured on all steps or on a sample."""
        target = self.target if sample is None else self.target[sample]
        codes = [self.codes[address] if sample is None else self.codes[address][sample] for address in addresses]
        copies = None
        if len(addresses) == 1:
            tokens = self.addresses[addresses[0]].tokens
            copies = tokens == self.target_tokens
            copies = copies if sample is None else copies[sample]
        right, covered = agreement(_combine(codes), target, copies)
        accuracy = right / covered if covered else 0.0
        return Explanation(addresses=addresses, accuracy=accuracy, coverage=covered / len(target))

    def _share_in_several_sequences(self, explanation: Explanation) -> float:
        """Return the share of the answers whose tokens occur in at least two sequences, or that are copies.

        Answers of one sequence do not confirm each other: a token that names the sequence would explain all of them.
        """
        codes = np.unique(_combine([self.codes[address] for address in explanation.addresses]), return_inverse=True)[1]
        pairs = np.unique(codes.astype(np.int64) * (int(self.sequence.max()) + 1) + self.sequence)
        num_sequences = np.bincount(pairs // (int(self.sequence.max()) + 1))
        is_confirmed = num_sequences[codes] > 1
        if len(explanation.addresses) == 1:
            is_confirmed |= self.addresses[explanation.addresses[0]].tokens == self.target_tokens
        return float(is_confirmed.mean())

    def _prune(self, explanation: Explanation) -> Explanation:
        """Return the explanation without addresses that do not make it more accurate."""
        for address in explanation.addresses:
            rest = tuple(each for each in explanation.addresses if each != address)
            smaller = self.measure(rest) if rest else None
            if smaller is not None and smaller.score >= explanation.score and smaller.accuracy >= explanation.accuracy:
                return self._prune(smaller)
        return explanation

    def _candidates(self, frontier: Iterable[Explanation], size: int) -> list[tuple[int, ...]]:
        indexes = range(len(self.addresses))
        if size <= 2:
            return list(combinations(indexes, size))
        kept = [each.addresses for each in frontier]
        extended = {
            tuple(sorted((*kept_set, index))) for kept_set in kept for index in indexes if index not in kept_set
        }
        return sorted(extended)

    def _best_sets(self, candidates: list[tuple[int, ...]], size: int) -> list[Explanation]:
        sample = self.pair_sample if size <= 2 else self.set_sample
        kept = _keep_best([self.measure(each, sample) for each in candidates], 4 * BEAM if size <= 2 else BEAM)
        if len(sample) == len(self.target):
            return kept
        return sorted((self.measure(each.addresses) for each in kept), key=_by_score)

    def _has_fewer_errors(self, frontier: Sequence[Explanation], accepted: Sequence[Explanation]) -> bool:
        errors = 1 - accepted[0].accuracy
        return any(each.coverage >= MIN_COVERAGE and 1 - each.accuracy < FEWER_ERRORS * errors for each in frontier)

    def _simplest_first(self, explanations: tuple[Explanation, ...]) -> tuple[Explanation, ...]:
        def cost(explanation: Explanation) -> int:
            return sum(self.addresses[address].address.cost for address in explanation.addresses)

        return tuple(sorted(explanations, key=cost))


def agreement(
    codes: Int[np.ndarray, " step"],
    target: Int[np.ndarray, " step"],
    copies: np.ndarray | None = None,
) -> tuple[float, int]:
    """Return the number of answers that the others with the same code predict, and the number that have such others.

    With ``copies`` (answers that equal the only token of the code), a code whose answers are nearly always copies
    counts with all its copies as right, also if there is only one: copying needs no table.
    """
    num_answers = int(target.max()) + 1
    pairs, counts = np.unique(codes.astype(np.int64) * num_answers + target, return_counts=True)
    starts = np.flatnonzero(np.r_[True, np.diff(pairs // num_answers) != 0])
    totals = np.add.reduceat(counts, starts)
    largest = np.maximum.reduceat(counts, starts)
    is_largest = counts == np.repeat(largest, np.diff(np.r_[starts, len(pairs)]))
    num_largest = np.add.reduceat(is_largest.astype(np.int64), starts)
    second = np.where(num_largest > 1, largest, np.maximum.reduceat(np.where(is_largest, 0, counts), starts))
    # Without the answer itself, its own count is one lower.
    right = np.where(largest - 1 > second, largest, np.where(largest - 1 == second, largest / 2, 0.0))
    right = np.where(largest > 1, right, 0.0)
    covered = np.where(totals > 1, totals, 0)
    if copies is not None:
        num_copies = np.bincount(np.searchsorted(pairs[starts] // num_answers, codes), weights=copies)
        is_copied = num_copies >= MIN_COPY_SHARE * totals
        right = np.where(is_copied, np.maximum(right, num_copies), right)
        covered = np.where(is_copied, totals, covered)
    return float(right.sum()), int(covered.sum())


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


def _most_accurate(explanations: Sequence[Explanation]) -> tuple[Explanation, ...]:
    best = max(each.accuracy for each in explanations)
    return tuple(each for each in explanations if each.accuracy >= best - 0.1 * (1 - best) - 1e-9)


def _best_accuracy(explanations: Iterable[Explanation]) -> float:
    return max((each.accuracy for each in explanations if each.coverage >= MIN_SAMPLE_COVERAGE), default=0.0)


def _keep_best(explanations: list[Explanation], number: int) -> list[Explanation]:
    """Return the sets with the best score, and those with the best accuracy, which a sample may cover too little."""
    by_score = sorted(explanations, key=_by_score)[:number]
    covering = [each for each in explanations if each.coverage >= MIN_SAMPLE_COVERAGE]
    by_accuracy = sorted(covering, key=lambda each: (-each.accuracy, -each.coverage))[:number]
    return list({each.addresses: each for each in [*by_score, *by_accuracy]}.values())


def _by_score(explanation: Explanation) -> float:
    return -explanation.score

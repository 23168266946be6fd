"""Test whether the answers that a rule predicts wrong are random, or depend on tokens that the rule does not have."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Float, Int

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
# Rules can alternate between answers: the number of an answer modulo these numbers counts as an address.
PERIODS = (2, 3)


def find_error_pattern(
    codes: Sequence[Int[np.ndarray, " step"]],
    rule_code: Int[np.ndarray, " step"],
    is_wrong: Bool[np.ndarray, " step"],
    sequence: Int[np.ndarray, " step"],
    rng: np.random.Generator,
    *,
    only_first: bool,
) -> tuple[int, ...]:
    """Return the indexes of the two addresses whose tokens change the error rate most; empty if errors look random.

    ``codes`` has the tokens at each address, and ``rule_code`` those of the rule, numbered from 0. Errors may be more
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
    sampled = [np.unique(each[sample], return_inverse=True)[1] for each in (*codes, *periods)]
    num_codes = [int(each.max()) + 1 for each in sampled]
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

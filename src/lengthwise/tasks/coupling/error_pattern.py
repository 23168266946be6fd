"""Test whether the answers that a rule predicts wrong are random, or depend on tokens that the rule does not have."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Float, Int

# Number of wrong and of right answers that the test uses at most, and smallest number of wrong ones.
MAX_WRONG, MAX_RIGHT, MIN_WRONG = 2000, 4000, 20
# Pairs of tokens with fewer expected errors than this say too little.
MIN_EXPECTED = 2.0
# Standard deviations of the chi-square statistic above its mean. Dependences on three or four tokens have 80 to 500,
# noise up to 20: tens of thousands of pairs are compared, and short examples with noise are less often duplicates.
NUM_DEVIATIONS = 40.0


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
    frequent for some tokens of the rule, or at some places of the response. Among steps with the same tokens of the
    rule at the same place, random errors depend on no other token. With ``only_first``, only the first error of each
    sequence counts, because a wrong answer can make later ones wrong.
    """
    starts = np.flatnonzero(np.diff(sequence, prepend=-1))
    sizes = np.diff(np.r_[starts, len(sequence)])
    num_wrong_before = np.cumsum(is_wrong) - is_wrong
    is_counted = (not only_first) | (num_wrong_before == np.repeat(num_wrong_before[starts], sizes))
    wrong, right = (rng.permutation(np.flatnonzero(is_counted & mask)) for mask in (is_wrong, ~is_wrong))
    if len(wrong) < MIN_WRONG:
        return ()
    sample = np.concatenate([wrong[:MAX_WRONG], right[:MAX_RIGHT]])
    # If whole responses are wrong, the first error is early.
    place = np.arange(len(sequence)) - np.repeat(starts, sizes)
    stratum = np.unique(np.stack([rule_code, place])[:, sample], axis=1, return_inverse=True)[1].ravel()
    error = is_wrong[sample].astype(float)
    rate = (np.bincount(stratum, weights=error) / np.bincount(stratum))[stratum]
    sampled = [np.unique(each[sample], return_inverse=True)[1] for each in codes]
    num_codes = [int(each.max()) + 1 for each in sampled]
    best = NUM_DEVIATIONS
    pair: tuple[int, ...] = ()
    for first, second in combinations(range(len(codes)), 2):
        deviation = _deviation(sampled[first] * num_codes[second] + sampled[second], error - rate, rate * (1 - rate))
        if deviation > best:
            best, pair = deviation, (first, second)
    return pair


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

"""Test whether the answers that a rule predicts wrong are independent noise.

Independent noise replaces each answer with a probability that depends on the right answer only. So in every group of
answers that the prompts and the earlier answers define, the number of wrong answers is close to its expectation. A
group with clearly more or fewer wrong answers shows a dependence that the rule does not have.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from jaxtyping import Bool, Float, Int

from lengthwise.core.errors import CouplingError
from lengthwise.tasks.coupling.answer_steps import NO_TOKEN, AnswerSteps, PeriodicAnswers
from lengthwise.tasks.coupling.dependence_search import most_frequent_answers
from lengthwise.tasks.coupling.locators import (
    AnswerTokenLocator,
    LocatedTokens,
    MatchingTokenLocator,
    PromptTokenLocator,
    TokenLocator,
    drop_duplicate_locators,
    iter_place_locators,
    locate_tokens,
)
from lengthwise.tasks.coupling.rule_search import PeriodicRule, RuleSearchAttempt

# Probability that a family of groups refuses independent noise.
FALSE_REFUSALS = 0.001
# Largest error rate of a rule without end tokens, as a share of the error rate of the most frequent answer.
MAX_RELATIVE_ERROR = 0.125
# Fewer wrong answers cannot show whether they are noise.
MIN_WRONG = 10
# Answers with fewer other answers for the same tokens have no safe prediction.
MIN_ANSWERS_PER_CODE = 8
# A rule of one token copies it if at least this share of its answers are copies.
MIN_COPY_SHARE = 0.5
# Right answers with fewer steps share one error rate.
MIN_STRATUM_SIZE = 50
# Largest number of places from the start and from the end, and of periods, that form separate groups.
MAX_PLACE, MAX_PERIOD = 8, 8
# Largest number of tokens of the prompts, the most frequent ones, that form groups.
MAX_GROUP_TOKENS = 1000
# Vocabularies up to this size have groups for pairs of neighboring prompt tokens.
MAX_PAIR_VOCABULARY = 40
# Number of tokens on either side of those of the rule that a window has.
WINDOW_SIZES = (1, 2, 3)

# Groups of answers that compete, each with its description in words.
Family = Iterable[tuple[str, Bool[np.ndarray, " counted"]]]


@dataclass(frozen=True, kw_only=True)
class ErrorGroup:
    """Answers that go with wrong answers, in words, with the share of wrong ones inside and outside.

    ``log_probability`` is the logarithm of the probability under independent noise, times the number of groups of the
    family.
    """

    where: str
    share_inside: float
    share_outside: float
    log_probability: float


@dataclass(frozen=True, kw_only=True)
class RuleErrors:
    """Answers with a safe prediction, one row per distinct prompt, and which of them the rule predicts wrong.

    ``index`` has the numbers of these steps, and ``rate`` the error rate of the answers with the same prediction.
    """

    index: Int[np.ndarray, " counted"]
    is_wrong: Bool[np.ndarray, " counted"]
    rate: Float[np.ndarray, " counted"]
    prediction: Int[np.ndarray, " counted"]

    @property
    def num_wrong(self) -> int:
        """Number of wrong answers among the counted ones."""
        return int(self.is_wrong.sum())

    def log_probability(
        self, observed: Float[np.ndarray, " group"], expected: Float[np.ndarray, " group"]
    ) -> Float[np.ndarray, " group"]:
        """Return the Chernoff bound of the probability of as many, or as few, wrong answers in each group."""
        total = self.num_wrong
        observed, expected = observed / total, np.clip(expected / total, 1e-12, 1 - 1e-12)
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = np.where(observed > 0, observed * np.log(observed / expected), 0)
            outside = np.where(observed < 1, (1 - observed) * np.log((1 - observed) / (1 - expected)), 0)
        return -total * (inside + outside)

    def find_least_likely_group(self, family: Family) -> ErrorGroup | None:
        """Return the least probable group of a family; None if no group has some of the answers."""
        num_groups, best, least = 0, None, np.inf
        for where, mask in family:
            if mask.all() or not mask.any():
                continue
            sums = (np.array([values[mask].sum()], dtype=float) for values in (self.is_wrong, self.rate))
            (log_probability,) = self.log_probability(*sums).tolist()
            num_groups += 1
            if log_probability < least:
                best, least = (where, mask), log_probability
        return None if best is None else self.build_group(*best, least + float(np.log(2 * num_groups)))

    def build_group(self, where: str, mask: Bool[np.ndarray, " counted"], log_probability: float) -> ErrorGroup:
        """Return a group with its shares of wrong answers."""
        return ErrorGroup(
            where=where,
            share_inside=float(self.is_wrong[mask].mean()),
            share_outside=float(self.is_wrong[~mask].mean()),
            log_probability=log_probability,
        )


def check_independent_noise(steps: AnswerSteps, attempt: RuleSearchAttempt, vocabulary: Sequence[str]) -> None:
    """Raise ``CouplingError`` unless the answers that the rules do not explain look like independent noise."""
    if all(rule.explanation.accuracy == 1 for rule in attempt.rules):
        return
    errors = find_rule_errors(steps, attempt)
    group = find_error_group(steps, attempt, errors, vocabulary)
    if group is not None:
        raise CouplingError(
            f"the best rule explains {1 - errors.num_wrong / len(errors.index):.2%} of the answers, and the others are "
            f"not independent noise: wrong are {group.share_inside:.1%} of the answers {group.where}, and "
            f"{group.share_outside:.1%} of the others; write what these answers depend on into the responses, or use "
            "--allow-noise if they are errors"
        )
    _check_share(steps, errors)
    if errors.num_wrong < MIN_WRONG:
        explained = np.average(
            [rule.explanation.accuracy for rule in attempt.rules], weights=[rule.mask.sum() for rule in attempt.rules]
        )
        raise CouplingError(
            f"the best rule explains {explained:.2%} of the answers; cannot tell whether the others are noise: only "
            f"{errors.num_wrong} of them have tokens with at least {MIN_ANSWERS_PER_CODE} answers to compare; add "
            "examples, or use --allow-noise if they are errors"
        )


def _check_share(steps: AnswerSteps, errors: RuleErrors) -> None:
    """Raise ``CouplingError`` if the rule explains too few of the answers without the end tokens."""
    is_counted = ~steps.is_end[errors.index]
    target = steps.target[errors.index][is_counted]
    if not len(target):
        return
    accuracy = 1 - float(errors.is_wrong[is_counted].mean())
    most_frequent = float(np.bincount(target).max() / len(target))
    if 1 - accuracy > MAX_RELATIVE_ERROR * (1 - most_frequent):
        raise CouplingError(
            f"no set of few tokens explains the answers: the best one predicts {accuracy:.1%} of them without the end "
            f"tokens, and the most frequent answer alone {most_frequent:.1%}; write intermediate results into the "
            "responses, or give the coupling"
        )


def find_rule_errors(steps: AnswerSteps, attempt: RuleSearchAttempt) -> RuleErrors:
    """Return the answers that the rules predict wrong; an answer that reads a wrong answer does not count."""
    starts = np.flatnonzero(np.diff(steps.sequence, prepend=-1))
    first_step = np.zeros(len(steps.tokens), dtype=np.int64)
    first_step[steps.sequence[starts]] = starts
    target, size = steps.target, len(steps)
    prediction, is_known, stratum = np.full(size, NO_TOKEN), np.zeros(size, dtype=bool), np.zeros(size, dtype=np.int64)
    for number, rule in enumerate(attempt.rules):
        prediction[rule.mask], is_known[rule.mask] = _predict(rule, target[rule.mask])
        stratum[rule.mask] = number * (steps.num_tokens + 1)
    is_wrong = is_known & (prediction != target)
    reads_wrong = np.zeros(size, dtype=bool)
    for rule in attempt.rules:
        here = steps.select(rule.mask)
        for index in _read_answers(rule, here):
            number = index - here.prompt_length
            step = np.where(number >= 0, first_step[here.sequence] + number, 0)
            reads_wrong[rule.mask] |= (number >= 0) & is_wrong[step]
    # Only distinct sequences are kept, so a short prompt that occurs often has all its wrong responses but only one
    # right one. The first response of a prompt is wrong as often as any other.
    prompts = np.where(steps.is_prompt, steps.tokens, NO_TOKEN)
    is_first_of_prompt = np.zeros(len(prompts), dtype=bool)
    is_first_of_prompt[np.unique(prompts, axis=0, return_index=True)[1]] = True
    counted = np.flatnonzero(is_known & ~reads_wrong & is_first_of_prompt[steps.sequence])
    stratum = np.unique((stratum + prediction)[counted], return_inverse=True)[1]
    sizes = np.bincount(stratum, minlength=1)
    # A common answer has its own error rate, as in a text in which one letter is often misread.
    stratum = np.where(sizes[stratum] < MIN_STRATUM_SIZE, len(sizes), stratum)
    wrong = is_wrong[counted]
    counts = np.maximum(np.bincount(stratum, minlength=1), 1)
    rate = (np.bincount(stratum, weights=wrong, minlength=1) / counts)[stratum]
    return RuleErrors(index=counted, is_wrong=wrong, rate=rate, prediction=prediction[counted])


def _predict(
    rule: PeriodicRule, target: Int[np.ndarray, " step"]
) -> tuple[Int[np.ndarray, " step"], Bool[np.ndarray, " step"]]:
    """Return the most frequent answer for the tokens of the rule, the largest one of several, and which are safe."""
    if not rule.locators:
        return np.full(len(target), np.bincount(target).argmax()), np.ones(len(target), dtype=bool)
    tokens, largest = rule.tokens, target.max()
    codes = np.unique(tokens, axis=1, return_inverse=True)[1].ravel()
    # Reversed, because the smallest one of several would be the prediction.
    prediction = largest - most_frequent_answers(codes, largest - target, int(codes.max()) + 1)[codes]
    is_safe = np.bincount(codes)[codes] >= MIN_ANSWERS_PER_CODE
    if len(tokens) == 1 and (tokens[0] == target).mean() >= MIN_COPY_SHARE:
        return np.where(is_safe, prediction, tokens[0]), is_safe | (tokens[0] != NO_TOKEN)
    return prediction, is_safe


def _read_answers(rule: PeriodicRule, steps: AnswerSteps) -> Iterator[Int[np.ndarray, " step"]]:
    """Yield the indexes of the answers that the rule reads."""
    for located in rule.locators:
        if isinstance(located.locator, MatchingTokenLocator) and located.locator.reads_answers:
            yield located.locator.key_index(steps)
        elif not located.locator.is_prompt:
            yield located.index


def find_error_group(
    steps: AnswerSteps, attempt: RuleSearchAttempt, errors: RuleErrors, vocabulary: Sequence[str]
) -> ErrorGroup | None:
    """Return the group whose number of wrong answers is the least probable one under independent noise, if any is."""
    if not errors.num_wrong:
        return None
    counted, phases = steps.select(errors.index), attempt.phases.select(errors.index)
    fixed = drop_duplicate_locators(
        locate_tokens(locator, counted, phases) for locator in iter_place_locators(steps, attempt.phases)
    )
    own_locators = {located.locator for rule in attempt.rules for located in rule.locators}
    own = [
        locate_tokens(locator, counted, phases)
        for locator in sorted(own_locators, key=lambda locator: locator.saved_text)
    ]
    prompt_counts = _PromptCounts(counted)
    lengths = np.unique(counted.length)[1:]
    families: Iterable[Family] = chain(
        _prompt_families(counted, prompt_counts, vocabulary),
        _place_families(counted, np.bincount(steps.sequence, minlength=len(steps.tokens))[counted.sequence]),
        _answer_families(counted, errors, prompt_counts, vocabulary),
        [
            _equal_tokens(own, fixed, vocabulary),
            _repeated_tokens(counted, own, prompt_counts, vocabulary),
            _equal_windows(counted, phases, own, errors),
            ((f"at length {length} and above", counted.length >= length) for length in lengths),
        ],
    )
    groups = [
        *(errors.find_least_likely_group(family) for family in families),
        *(_best_token(errors, located, vocabulary, len(fixed)) for located in fixed),
        _length_trend(counted, errors),
    ]
    clear = [group for group in groups if group is not None and group.log_probability <= np.log(FALSE_REFUSALS)]
    return min(clear, key=lambda group: group.log_probability, default=None)


class _PromptCounts:
    """Numbers of the occurrences of each token in each prompt; a table of all prompts and tokens would be too large."""

    def __init__(self, steps: AnswerSteps) -> None:
        rows, columns = np.nonzero(steps.is_prompt)
        self.steps = steps
        self.pairs, self.counts = np.unique(rows * steps.num_tokens + steps.tokens[rows, columns], return_counts=True)
        self.sequences, self.tokens = self.pairs // steps.num_tokens, self.pairs % steps.num_tokens
        self.by_token = self.tokens.argsort(kind="stable")
        self.starts = np.searchsorted(self.tokens[self.by_token], np.arange(steps.num_tokens + 1))

    def of(self, token: Int[np.ndarray, " counted"]) -> Int[np.ndarray, " counted"]:
        """Return how often the prompt of each step has a token."""
        wanted = self.steps.sequence * self.steps.num_tokens + token
        place = np.minimum(np.searchsorted(self.pairs, wanted), len(self.pairs) - 1)
        return np.where((token >= 0) & (self.pairs[place] == wanted), self.counts[place], 0)

    def at_least(self, number: int, token: int | None = None) -> Bool[np.ndarray, " counted"]:
        """Return True for the steps whose prompt has a token, or any token, at least this number of times."""
        pairs = slice(None) if token is None else self.by_token[self.starts[token] : self.starts[token + 1]]
        has_token = np.zeros(len(self.steps.tokens), dtype=bool)
        has_token[self.sequences[pairs][self.counts[pairs] >= number]] = True
        return has_token[self.steps.sequence]


def _prompt_families(steps: AnswerSteps, counts: _PromptCounts, vocabulary: Sequence[str]) -> Iterator[Family]:
    """Yield the rows whose prompt has a token, has it more than once, has any token again, or has two in turn."""
    num_tokens = len(vocabulary)
    frequent = np.bincount(counts.tokens, minlength=num_tokens).argsort(kind="stable")[::-1][:MAX_GROUP_TOKENS].tolist()

    def rows_with_tokens(number: int, words: str) -> Family:
        return ((f"with '{vocabulary[token]}' {words}", counts.at_least(number, token)) for token in frequent)

    yield rows_with_tokens(1, "in the prompt")
    yield rows_with_tokens(2, "more than once in the prompt")
    yield [("whose prompt has a token more than once", counts.at_least(2))]
    if num_tokens <= MAX_PAIR_VOCABULARY:
        is_pair = steps.is_prompt[:, 1:]
        pairs = np.where(is_pair, steps.tokens[:, :-1] * num_tokens + steps.tokens[:, 1:], -1)
        yield (
            (
                f"with '{vocabulary[pair // num_tokens]} {vocabulary[pair % num_tokens]}' in the prompt",
                (pairs == pair).any(axis=1)[steps.sequence],
            )
            for pair in np.unique(pairs[is_pair]).tolist()
        )


def _place_families(steps: AnswerSteps, sizes: Int[np.ndarray, " counted"]) -> Iterator[Family]:
    """Yield the places in the responses of these sizes: from the start, from the end, and modulo small numbers."""
    number, from_end = steps.number, sizes - 1 - steps.number
    places: list[tuple[str, Bool[np.ndarray, " counted"]]] = []
    for place in range(MAX_PLACE):
        places += [
            (f"at place {place} of the response", number == place),
            (f"from place {place + 1} of the response on", number > place),
            (f"{place} places before the end", from_end == place),
            (f"more than {place} places before the end", from_end > place),
        ]
    yield [*places, ("in the second half of the response", 2 * number >= sizes)]
    yield [
        (f"at every place of the response that is {rest} modulo {period}", number % period == rest)
        for period in range(2, MAX_PERIOD + 1)
        for rest in range(period)
    ]


def _answer_families(
    steps: AnswerSteps, errors: RuleErrors, counts: _PromptCounts, vocabulary: Sequence[str]
) -> Iterator[Family]:
    """Yield the answers after a wrong answer, after other answers, and those that the prompt has more than once."""
    starts = np.flatnonzero(np.diff(steps.sequence, prepend=-1))
    num_before = np.cumsum(errors.is_wrong) - errors.is_wrong
    # Errors of noise do not gather in rows.
    has_earlier = num_before > np.repeat(num_before[starts], np.diff(np.r_[starts, len(steps)]))
    yield [("in rows with an earlier wrong answer", has_earlier)]
    first = steps.token_at(steps.prompt_length)
    yield [
        (f"whose first answer is '{vocabulary[token]}'", (steps.number > 0) & (first == token))
        for token in np.unique(first).tolist()
    ]
    is_response = np.arange(steps.tokens.shape[1]) >= steps.prompt_lengths[:, None]
    earlier = []
    for token in np.unique(steps.tokens[is_response & (steps.tokens != NO_TOKEN)]).tolist():
        is_token = is_response & (steps.tokens == token)
        first_index = np.where(is_token.any(axis=1), is_token.argmax(axis=1), steps.tokens.shape[1])
        mask = first_index[steps.sequence] < steps.prompt_length + steps.number
        earlier.append((f"after an earlier answer '{vocabulary[token]}'", mask))
    yield earlier
    yield [("that the prompt has more than once", counts.of(errors.prediction) > 1)]


def _equal_tokens(own: Sequence[LocatedTokens], fixed: Sequence[LocatedTokens], vocabulary: Sequence[str]) -> Family:
    """Yield the answers for which a token that the rule reads equals another one."""
    for one in own:
        for other in fixed:
            if one.locator != other.locator:
                where = (
                    f"with equal tokens at {one.locator.describe(vocabulary)} and {other.locator.describe(vocabulary)}"
                )
                yield where, (one.tokens == other.tokens) & (one.tokens != NO_TOKEN)


def _repeated_tokens(
    steps: AnswerSteps, own: Sequence[LocatedTokens], counts: _PromptCounts, vocabulary: Sequence[str]
) -> Family:
    """Yield the answers for which a token that the rule reads is in the prompt more than once."""
    for located in own:
        indexes = {"": located.index}
        if isinstance(located.locator, MatchingTokenLocator):
            indexes["the key of "] = located.locator.key_index(steps)
        for kind, index in indexes.items():
            name, token = f"{kind}{located.locator.describe(vocabulary)}", steps.token_at(index)
            for number in (1, 2):
                where = f"for which {name} is more than {number} time{'s' * (number > 1)} in the prompt"
                yield where, counts.of(token) > number


def _equal_windows(
    steps: AnswerSteps, phases: PeriodicAnswers, own: Sequence[LocatedTokens], errors: RuleErrors
) -> Family:
    """Yield the answers with the same tokens around those of the rule as an earlier wrong answer."""
    for size in WINDOW_SIZES:
        locators: set[TokenLocator] = {located.locator for located in own}
        for locator in list(locators):
            if isinstance(locator, PromptTokenLocator):
                shifts = range(-size, size + 1)
                locators |= {replace(locator, offset=locator.offset + shift) for shift in shifts}
        locators |= {AnswerTokenLocator(lag=lag) for lag in range(1, size + 1)}
        ordered = sorted(locators, key=lambda locator: locator.saved_text)
        tokens = [locate_tokens(locator, steps, phases).tokens for locator in ordered]
        codes = np.unique(np.stack([*tokens, phases.phase]), axis=1, return_inverse=True)[1].ravel()
        first_wrong = np.full(int(codes.max()) + 1, len(codes))
        wrong = np.flatnonzero(errors.is_wrong)
        np.minimum.at(first_wrong, codes[wrong], wrong)
        yield (
            f"with the tokens of another wrong answer, also {size} place{'s' * (size > 1)} around those of the rule",
            first_wrong[codes] < np.arange(len(codes)),
        )


def _best_token(
    errors: RuleErrors, located: LocatedTokens, vocabulary: Sequence[str], num_locators: int
) -> ErrorGroup | None:
    """Return the token at a locator whose answers are the least probable, as one of many locators."""
    codes = located.tokens - NO_TOKEN
    observed, expected = (np.bincount(codes, weights=values) for values in (errors.is_wrong, errors.rate))
    sizes = np.bincount(codes)
    is_group = (sizes > 0) & (sizes < len(codes))
    if not is_group.any():
        return None
    log_probability = np.where(is_group, errors.log_probability(observed, expected), 0)
    best = int(log_probability.argmin())
    token = "no token" if best == 0 else f"'{vocabulary[best + NO_TOKEN]}'"
    where = f"with {token} as {located.locator.describe(vocabulary)}"
    num_groups = is_group.sum() * num_locators
    return errors.build_group(where, codes == best, float(log_probability[best] + np.log(2 * num_groups)))


def _length_trend(steps: AnswerSteps, errors: RuleErrors) -> ErrorGroup | None:
    """Return the long rows, with the probability of a trend of the error rate with the length."""
    length = steps.length
    middle = float(np.average(length, weights=errors.rate))
    variance = float((errors.rate * (1 - errors.rate) * (length - middle) ** 2).sum())
    if variance == 0 or errors.num_wrong < MIN_WRONG:
        return None
    score = float(((errors.is_wrong - errors.rate) * (length - middle)).sum()) / np.sqrt(variance)
    return errors.build_group(f"at length {int(middle) + 1} and above", length > middle, -score * score / 2)

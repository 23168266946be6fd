"""Checks of a found rule before it is used: at the longest lengths, and for every kind of answer."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.errors import CouplingError, TooFewExamplesError
from lengthwise.tasks.coupling.answer_steps import NO_TOKEN, AnswerSteps
from lengthwise.tasks.coupling.dependence_search import MIN_COPY_SHARE, count_agreeing_answers, most_frequent_answers
from lengthwise.tasks.coupling.rule_search import PeriodicRule, RuleSearchAttempt
from lengthwise.tasks.jsonl_table import MARK, START

# Largest share of prompts with one token.
MAX_SINGLE_SHARE = 0.9
# Share of the lengths, the longest ones, that check the rule.
CHECKED_SHARE = 0.25
# Largest share of wrong predictions at a checked length, beyond that of the rule, and standard errors added to it.
MAX_MORE_ERRORS, NUM_STANDARD_ERRORS = 0.01, 3
# Smallest number of places of a response that are checked like lengths.
MIN_PLACES = 4
# Smallest share of the answers of a phase at the checked lengths with tokens that shorter examples have.
MIN_KNOWN_SHARE = 0.5
# An answer token with at least this many answers must be predicted in at least this share of them.
MIN_ANSWERS, MIN_RIGHT_SHARE = 20, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutCheck:
    """Checked lengths, share of their answers with known tokens, and share of these that are predicted right."""

    lengths: tuple[int, ...]
    known: float
    accuracy: float


def check_prompt_tokens(steps: AnswerSteps) -> None:
    """Raise ``CouplingError`` if nearly all prompts have one token, because texts without spaces were not split."""
    share = (steps.prompt_lengths == len((MARK, START)) + 1).mean()
    if share > MAX_SINGLE_SHARE:
        raise CouplingError(
            f"{share:.0%} of the prompts have only one token, because texts are split at spaces; write prompts and "
            'responses as lists of symbols such as ["a", "b"], or with spaces between the symbols'
        )


def check_several_lengths(steps: AnswerSteps) -> None:
    """Raise ``CouplingError`` if all examples have the same length, because the rule must hold at all lengths."""
    if len(np.unique(steps.prompt_lengths)) == 1 or len(np.unique(steps.lengths)) == 1:
        kind = "length" if len(np.unique(steps.lengths)) == 1 else "number of prompt tokens"
        raise CouplingError(f"all examples have the same {kind}; use examples of at least two lengths")


def check_longest_lengths(steps: AnswerSteps, attempt: RuleSearchAttempt) -> HeldOutCheck:
    """Check that the shorter examples predict the answers of the longest ones."""
    lengths = np.unique(steps.lengths)
    first_checked = lengths[-max(1, round(CHECKED_SHARE * len(lengths)))]
    return check_predictions(steps, attempt, steps.length >= first_checked)


def check_last_response_places(steps: AnswerSteps, attempt: RuleSearchAttempt) -> None:
    """Check that the answers at earlier places of the responses predict those at the last places.

    Otherwise, a rule can tell a place that only the longest examples have from all others, and fail beyond it.
    """
    for rule in attempt.rules:
        number = steps.number[rule.mask]
        places = np.unique(number[~steps.is_end[rule.mask]])
        if len(places) < MIN_PLACES:
            continue
        first = int(places[-max(1, round(CHECKED_SHARE * len(places)))])
        is_right, is_known = _predict(rule, steps.target[rule.mask], number >= first)
        if is_known.mean() < MIN_KNOWN_SHARE:
            raise TooFewExamplesError(
                f"too few examples to check the rule of {rule.name}: the first {first} places of the responses have "
                f"the tokens of only {is_known.mean():.0%} of the answers at later places; add longer examples"
            )
        _check_errors_at(rule, f"place {first} of the response and later", is_right[is_known], allows_noise=True)


def check_predictions(
    steps: AnswerSteps, attempt: RuleSearchAttempt, is_checked: Bool[np.ndarray, " step"], *, allows_noise: bool = True
) -> HeldOutCheck:
    """Check that the other steps predict the answers of the checked steps.

    Raises ``CouplingError`` if a rule has too few known answers overall or at the longest length, or too many errors
    at one of the lengths (without ``allows_noise``: any error).
    """
    checked_lengths = np.unique(steps.length[is_checked]).tolist()
    num_right = num_known = num_checked = 0
    for rule in attempt.rules:
        is_checked_here, length = is_checked[rule.mask], steps.length[rule.mask]
        if not is_checked_here.any():
            continue
        is_right, is_known = _predict(rule, steps.target[rule.mask], is_checked_here)
        lengths_here = length[is_checked_here]
        for lengths in (checked_lengths, [int(lengths_here.max())]):
            known_share = is_known[lengths_here >= lengths[0]].mean()
            if known_share < MIN_KNOWN_SHARE:
                raise TooFewExamplesError(
                    f"too few examples to check the rule of {rule.name}: the other examples have the tokens of only "
                    f"{known_share:.0%} of these answers at length {lengths[0]} and above; add examples"
                )
        for checked_length in checked_lengths:
            is_right_here = is_right[is_known & (lengths_here == checked_length)]
            _check_errors_at(rule, f"length {checked_length}", is_right_here, allows_noise=allows_noise)
        num_right, num_known = num_right + int(is_right[is_known].sum()), num_known + int(is_known.sum())
        num_checked += len(is_known)
    accuracy = num_right / max(num_known, 1)
    return HeldOutCheck(lengths=tuple(checked_lengths), known=num_known / max(num_checked, 1), accuracy=accuracy)


def check_answer_tokens(rule: PeriodicRule, steps: AnswerSteps, vocabulary: Sequence[str]) -> None:
    """Raise ``CouplingError`` if the rule nearly always fails for one of the answer tokens; noise affects all alike."""
    if rule.explanation.accuracy == 1:
        return
    target = steps.target[rule.mask]
    is_right, is_known = _predict(rule, target, None)
    for token in np.unique(target):
        is_token = is_known & (target == token)
        if is_token.sum() >= MIN_ANSWERS and is_right[is_token].mean() < MIN_RIGHT_SHARE:
            raise CouplingError(
                f"the best rule explains {rule.explanation.accuracy:.1%} of the answers, but only "
                f"{is_right[is_token].mean():.0%} of the answers '{vocabulary[token]}'; they depend on other tokens"
            )


def accuracy_without_end_tokens(rule: PeriodicRule, steps: AnswerSteps) -> float:
    """Return the share of the answers without end tokens that the rule predicts right, as in its explanation."""
    is_counted = ~steps.is_end[rule.mask]
    if rule.explanation.accuracy == 1 or not rule.locators or not is_counted.any():
        return rule.explanation.accuracy
    target, tokens = steps.target[rule.mask][is_counted], rule.tokens[:, is_counted]
    codes = np.unique(tokens, axis=1, return_inverse=True)[1].ravel()
    right, covered = count_agreeing_answers(codes, target, tokens[0] == target if len(tokens) == 1 else None)
    return right / covered if covered else 0.0


def check_error_pattern(rule: PeriodicRule, vocabulary: Sequence[str]) -> None:
    """Raise ``CouplingError`` if the errors of the rule depend on tokens, so that they are no noise."""
    if not rule.error_locators:
        return
    first, second = (
        f"the number of the answer modulo {locator}" if isinstance(locator, int) else locator.describe(vocabulary)
        for locator in rule.error_locators
    )
    raise CouplingError(
        f"the best rule explains {rule.explanation.accuracy:.1%} of the answers, and the other answers are not noise: "
        f"their share depends on {first} and {second}; add examples, or write intermediate results into the responses"
    )


def _check_errors_at(
    rule: PeriodicRule, where: str, is_right: Bool[np.ndarray, " answer"], *, allows_noise: bool
) -> None:
    if not len(is_right):
        return
    expected_error = 1 - rule.explanation.accuracy + MAX_MORE_ERRORS
    limit = expected_error + NUM_STANDARD_ERRORS * float(np.sqrt(expected_error / len(is_right)))
    error = 1 - is_right.mean()
    if error > (limit if allows_noise else 0):
        raise CouplingError(
            f"the rule of the other examples is wrong for {error:.1%} of the answers at {where}; "
            "check whether the same rule makes all answers"
        )


def _predict(
    rule: PeriodicRule, target: Int[np.ndarray, " step"], is_checked: Bool[np.ndarray, " step"] | None
) -> tuple[Bool[np.ndarray, " checked"], Bool[np.ndarray, " checked"]]:
    """Return which checked answers the table of the other answers predicts right, and which have tokens that it has.

    Without ``is_checked``, the table of all answers predicts all answers.
    """
    tokens = rule.tokens
    is_checked = np.zeros(len(target), dtype=bool) if is_checked is None else is_checked
    codes = np.unique(tokens, axis=1, return_inverse=True)[1].ravel()
    prediction = most_frequent_answers(codes[~is_checked], target[~is_checked], int(codes.max()) + 1)[codes]
    is_known = prediction != NO_TOKEN
    if len(tokens) == 1 and (tokens[0] == target)[~is_checked].mean() >= MIN_COPY_SHARE / 2:
        # A new token is copied, like the others.
        prediction, is_known = np.where(is_known, prediction, tokens[0]), np.ones_like(is_known)
    counted = is_checked if is_checked.any() else ~is_checked
    return (prediction == target)[counted], is_known[counted]

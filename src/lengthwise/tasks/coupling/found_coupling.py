"""Find the coupling of a task, check it on its longest examples, and report it in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.defaults import DEPENDENCE, MAX_COUPLED_TOKENS, MODEL, SAMPLES_PER_LENGTH
from lengthwise.core.errors import AmbiguousCouplingError, CouplingError, PromptError, SettingError, TooFewExamplesError
from lengthwise.core.randomness import random_stream
from lengthwise.core.type_checks import check_arguments
from lengthwise.tasks.coupling.answer_steps import (
    NO_TOKEN,
    AnswerSteps,
    build_answer_steps,
    join_steps,
)
from lengthwise.tasks.coupling.dependence_search import (
    MIN_COPY_SHARE,
    SearchProgress,
    count_agreeing_answers,
    most_frequent_answers,
)
from lengthwise.tasks.coupling.noise_check import check_independent_noise
from lengthwise.tasks.coupling.pointers import PointerRule, find_pointer_rule
from lengthwise.tasks.coupling.rule_search import PeriodicRule, RuleSearchAttempt, search_rules
from lengthwise.tasks.jsonl_table import MARK, START
from lengthwise.tasks.jsonl_task import JSONLTask, write_records
from lengthwise.tasks.task import GradedByLoss, HasRecords, Task

# Upper limit for the number of sequences of a file.
MAX_RECORDS = 20_000
# Approximate limit for the number of answers of a file, which share memory with all their locators.
MAX_ANSWERS = 200_000
# Number of calls that draw the sequences of a task with a sampler.
SAMPLES_IN_PARTS = 10
DEFAULT_LENGTHS = range(2, 9)
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


@dataclass(frozen=True, kw_only=True)
class FoundCoupling:
    """Rule for the coupling of a task, with the evidence for it.

    ``phases`` has the name and the locators of each group of answers. ``num_tokens`` is the largest number of tokens
    that an answer depends on (k). ``confirmed`` is the share of answers that other answers with the same tokens
    confirm, and ``accuracy`` the share of these that agree, without the end tokens. The shorter examples know the
    tokens of the share ``checked_known`` of the answers at ``checked_lengths``, the longest ones, and predict the share
    ``checked_accuracy`` of these right. With the method ``model``, the examples are prompts with the answers of a
    model, and the examples of the task at lengths that the model has not learned check the rule.
    """

    rule: PointerRule
    phases: tuple[tuple[str, tuple[str, ...]], ...]
    num_tokens: int
    num_sequences: int
    num_answers: int
    accuracy: float
    confirmed: float
    checked_lengths: tuple[int, ...]
    checked_known: float
    checked_accuracy: float
    method: str = DEPENDENCE

    @property
    def num_levels(self) -> int:
        """Number of coupling levels, one per pointer."""
        return len(self.rule.levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutCheck:
    """Checked lengths, share of their answers with known tokens, and share of these that are predicted right."""

    lengths: tuple[int, ...]
    known: float
    accuracy: float


@check_arguments
def find_coupling_in_examples(
    task: Task,
    lengths: Sequence[int] | None = None,
    *,
    num_per_length: int = SAMPLES_PER_LENGTH,
    max_tokens: int = MAX_COUPLED_TOKENS,
    allow_noise: bool = False,
    seed: int = 0,
    progress: SearchProgress | None = None,
) -> FoundCoupling:
    """Find a rule for the coupling of a task by functional dependence; see ``find_coupling``."""
    steps = sample_task_answers(task, lengths, num_per_length, seed)
    return find_coupling_in_steps(
        steps, task.vocabulary, max_tokens=max_tokens, allow_noise=allow_noise, seed=seed, progress=progress
    )


def find_coupling_in_steps(
    steps: AnswerSteps,
    vocabulary: Sequence[str],
    *,
    records: AnswerSteps | None = None,
    max_tokens: int = MAX_COUPLED_TOKENS,
    allow_noise: bool = False,
    seed: int = 0,
    progress: SearchProgress | None = None,
) -> FoundCoupling:
    """Find and check the rule that explains the answers of ``steps``.

    If a model has written these answers, ``records`` has the examples that it was trained on and longer ones; they
    check the rule. Otherwise, the longest examples check it.
    """
    check_prompt_tokens(steps)
    for examples in (steps, records):
        if examples is not None:
            check_several_lengths(examples)
    progress = SearchProgress() if progress is None else progress
    attempt = _search(steps, vocabulary, max_tokens, seed, progress)
    for rule in attempt.rules:
        check_answer_tokens(rule, steps, vocabulary)
        if not allow_noise:
            check_error_pattern(rule, vocabulary)
    if records is None:
        check = check_longest_lengths(steps, attempt)
        check_last_response_places(steps, attempt)
        if not allow_noise:
            check_independent_noise(steps, attempt, vocabulary)
    else:
        check = _check_records(records, steps, attempt)
    if attempt.phases.has_lines:
        raise CouplingError(_explain_lines(attempt, vocabulary))
    weights = [rule.mask.sum() for rule in attempt.rules]
    accuracies = [accuracy_without_end_tokens(rule, steps) for rule in attempt.rules]
    num_answers = [int((rule.mask & ~steps.is_end).sum()) for rule in attempt.rules]
    return FoundCoupling(
        rule=find_pointer_rule(steps, attempt),
        phases=tuple(
            (rule.name, tuple(located.locator.saved_text for located in rule.locators)) for rule in attempt.rules
        ),
        num_tokens=max(len(rule.locators) for rule in attempt.rules),
        num_sequences=len(steps.tokens),
        num_answers=sum(num_answers),
        accuracy=float(np.average(accuracies, weights=num_answers)),
        confirmed=float(np.average([rule.explanation.coverage for rule in attempt.rules], weights=weights)),
        checked_lengths=check.lengths,
        checked_known=check.known,
        checked_accuracy=check.accuracy,
        method=DEPENDENCE if records is None else MODEL,
    )


def _search(
    steps: AnswerSteps, vocabulary: Sequence[str], max_tokens: int, seed: int, progress: SearchProgress
) -> RuleSearchAttempt:
    """Return the only explanation of the answers; raise ``CouplingError`` with a reason without one."""
    if max_tokens < 1:
        raise SettingError(f"max_tokens {max_tokens} is too small; use at least 1")
    attempts = search_rules(steps, max_tokens=max_tokens, seed=seed, progress=progress)
    attempt = attempts[-1]
    if not attempt.rules:
        raise _explain_failure(attempts, vocabulary, is_cut=progress.is_limit_reached)
    for rule in attempt.rules:
        if rule.alternatives:
            raise _explain_ambiguity(rule, vocabulary)
    if not any(located.locator.is_prompt for rule in attempt.rules for located in rule.locators):
        raise CouplingError("the answers do not depend on the prompt, so no prompt token needs a position ID")
    return attempt


def _check_records(records: AnswerSteps, steps: AnswerSteps, attempt: RuleSearchAttempt) -> HeldOutCheck:
    """Check that the rule of a model's answers has no error in the records; return the check at new lengths."""
    all_steps = join_steps([records, steps])
    try:
        at_all = attempt.apply_to(all_steps)
    except PromptError as error:
        raise CouplingError(f"the rule of the model's answers does not fit all examples: {error}") from None
    is_record = all_steps.sequence < len(records.tokens)
    check_predictions(all_steps, at_all, is_record, allows_noise=False)
    is_new = is_record & (all_steps.length > int(steps.lengths.max()))
    if not is_new.any():
        raise TooFewExamplesError("no examples are longer than those that the model learned; add longer examples")
    return check_predictions(all_steps, at_all, is_new, allows_noise=False)


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


def check_one_answer_per_prompt(task: Task) -> None:
    """Raise ``SettingError`` for a task with several valid answers, because no rule can predict them."""
    if isinstance(task, GradedByLoss):
        raise SettingError(f"task {task.name} has several valid answers per prompt; use a task with one correct answer")


def sample_task_answers(task: Task, lengths: Sequence[int] | None, num_per_length: int, seed: int) -> AnswerSteps:
    """Return the answers of the examples of a task: all records of a file (up to a limit), or sampled examples."""
    check_one_answer_per_prompt(task)
    rng = random_stream(seed, "find coupling")
    if isinstance(task, HasRecords):
        lengths = task.available_lengths if lengths is None else lengths
        limit = max(1, MAX_RECORDS // len(lengths))
        parts = []
        for length in lengths:
            order = rng.permutation(task.num_records(length))[:limit]
            part = build_answer_steps(task.records_at(length, np.sort(order)), length)
            if len(part) * len(lengths) > MAX_ANSWERS:
                order = order[: max(1, MAX_ANSWERS * len(order) // (len(part) * len(lengths)))]
                part = build_answer_steps(task.records_at(length, np.sort(order)), length)
            parts.append(part)
        return join_steps(parts)
    lengths = DEFAULT_LENGTHS if lengths is None else lengths
    # A task can draw a number, such as that of the operands, once per call of sample.
    sizes = [len(part) for part in np.array_split(np.arange(num_per_length), SAMPLES_IN_PARTS)]
    calls = [(length, size) for length in lengths for size in sizes if size]
    return join_steps(
        [build_answer_steps(task.sample(length=length, size=size, rng=rng), length) for length, size in calls]
    )


def sample_task_file(
    task: Task, lengths: Sequence[int] | None, num_per_length: int, seed: int, path: Path
) -> JSONLTask:
    """Write sampled examples of a task as records without a coupling, and return the task of this file."""
    check_one_answer_per_prompt(task)
    rng = random_stream(seed, "sampled records")
    lengths = DEFAULT_LENGTHS if lengths is None else lengths
    groups = [(length, task.sample(length=length, size=num_per_length, rng=rng)) for length in lengths]
    write_records(path, groups, task.vocabulary, num_layout_tokens=0)
    return JSONLTask(file=str(path)).read()


def _explain_failure(
    attempts: Sequence[RuleSearchAttempt], vocabulary: Sequence[str], *, is_cut: bool
) -> CouplingError:
    best_attempt = max(attempts, key=lambda attempt: attempt.closest.closest.share_of_explained_answers)
    result = best_attempt.closest
    tokens = " and ".join(locator.describe(vocabulary) for locator in result.closest_tokens)
    known = f"the best one, {tokens}, predicts {result.closest.accuracy:.1%} of the answers"
    if not tokens:
        known = f"none is right more often than the most frequent answer alone ({result.closest.accuracy:.1%})"
    if is_cut:
        return CouplingError(
            "the search reached its limit of time or work before a set of tokens explained the answers; of the sets so "
            f"far, {known}; use a longer limit (--minutes), or fewer tokens (--max-tokens)"
        )
    sparse = [attempt.closest.too_sparse for attempt in attempts if attempt.closest.too_sparse is not None]
    if sparse:
        best = max(sparse, key=lambda explanation: explanation.coverage)
        return TooFewExamplesError(
            f"too few examples to tell whether {len(best.locators)} tokens explain the answers: only "
            f"{best.coverage:.0%} of the answers have another answer with the same tokens; add examples, or give the "
            "coupling"
        )
    return CouplingError(
        f"no set of few tokens explains the answers: {known}; write intermediate results into the responses, or give "
        "the coupling"
    )


def _explain_lines(attempt: RuleSearchAttempt, vocabulary: Sequence[str]) -> str:
    rules = (
        f"{rule.name}: {', '.join(located.locator.describe(vocabulary) for located in rule.locators) or 'none'}"
        for rule in attempt.rules
    )
    return (
        "the response has lines, and pointers cannot move from line to line; give the coupling. The answers depend on "
        f"these tokens: {'; '.join(rules)}"
    )


def _explain_ambiguity(rule: PeriodicRule, vocabulary: Sequence[str]) -> CouplingError:
    first, second = (
        " and ".join(located.locator.describe(vocabulary) for located in found)
        for found in (rule.locators, rule.alternatives[0])
    )
    if rule.explanation.accuracy < 1:
        return CouplingError(
            f"no set of few tokens explains the answers: several sets of {len(rule.locators)} tokens predict "
            f"{rule.explanation.accuracy:.1%} of {rule.name}, for example {first}; write intermediate results into the "
            "responses, or give the coupling"
        )
    return AmbiguousCouplingError(
        f"two sets of tokens explain {rule.name} equally well: {first}, or {second}; add examples "
        "in which they differ, if the task has any"
    )

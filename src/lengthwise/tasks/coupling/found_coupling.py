"""Find the coupling of a task, check it on its longest examples, and report it in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int

from lengthwise.core.defaults import DEPENDENCE, MAX_COUPLED_TOKENS, MODEL, SAMPLES_PER_LENGTH
from lengthwise.core.errors import AmbiguousCouplingError, CouplingError, PromptError, SettingError, TooFewExamplesError
from lengthwise.core.randomness import random_stream
from lengthwise.core.type_checks import check_arguments
from lengthwise.tasks.coupling.answer_steps import (
    NO_TOKEN,
    AnswerSteps,
    PeriodicAnswers,
    build_answer_steps,
    join_steps,
)
from lengthwise.tasks.coupling.dependence_search import SearchProgress
from lengthwise.tasks.coupling.locators import LocatedTokens, TokenLocator
from lengthwise.tasks.coupling.noise_check import check_independent_noise
from lengthwise.tasks.coupling.pointers import NO_POINTER, PointerRule, find_pointer_index, is_inside_prompt
from lengthwise.tasks.coupling.rule_checks import (
    HeldOutCheck,
    accuracy_without_end_tokens,
    check_answer_tokens,
    check_error_pattern,
    check_last_response_places,
    check_longest_lengths,
    check_predictions,
    check_prompt_tokens,
    check_several_lengths,
)
from lengthwise.tasks.coupling.rule_search import PeriodicRule, RuleSearchAttempt, search_rules
from lengthwise.tasks.jsonl_task import JSONLTask, write_records
from lengthwise.tasks.task import GradedByLoss, HasRecords, Task

# Upper limit for the number of sequences of a file.
MAX_RECORDS = 20_000
# Approximate limit for the number of answers of a file, which share memory with all their locators.
MAX_ANSWERS = 200_000
# Number of calls that draw the sequences of a task with a sampler.
SAMPLES_IN_PARTS = 10
DEFAULT_LENGTHS = range(2, 9)
# Locators of one step at most this far apart, always at the same distance, share a pointer.
MAX_LINE_DISTANCE = 3


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


def find_pointer_rule(steps: AnswerSteps, attempt: RuleSearchAttempt) -> PointerRule:
    """Return the rule with the fewest levels that points at all new prompt tokens of each step."""
    num_phases = len(attempt.rules)
    levels: list[list[list[TokenLocator]]] = []
    pointers: list[Int[np.ndarray, " step"]] = []
    for phase, rule in enumerate(attempt.rules):
        phase_steps, phases = steps.select(rule.mask), attempt.phases.select(rule.mask)
        for line in _lines([located for located in rule.locators if located.locator.is_prompt]):
            locator = _newest(line, phase_steps, phases)
            index = np.full(len(steps), NO_POINTER)
            index[rule.mask] = find_pointer_index(locator, phase_steps, phases)
            level = _free_level(index, pointers, steps)
            if level == len(levels):
                levels.append([[] for _ in range(num_phases)])
                pointers.append(index)
            levels[level][phase].append(locator)
            pointers[level] = np.where(is_inside_prompt(index, steps), index, pointers[level])
    texts = tuple(tuple(tuple(locator.saved_text for locator in phase) for phase in level) for level in levels)
    rising = PointerRule(division=attempt.phases.division, levels=texts, falls=(False,) * len(texts))
    falls = tuple((rising.find_prompt_indexes(steps) == NO_TOKEN).any(axis=1).tolist())
    return PointerRule(division=rising.division, levels=texts, falls=falls)


def _lines(locators: Sequence[LocatedTokens]) -> list[list[LocatedTokens]]:
    """Return groups of locators that keep their distance in the prompt."""
    lines: list[list[LocatedTokens]] = []
    for located in locators:
        for line in lines:
            both = (located.index >= 0) & (line[0].index >= 0)
            distance = (located.index - line[0].index)[both]
            if len(distance) and (distance == distance[0]).all() and abs(distance[0]) <= MAX_LINE_DISTANCE:
                line.append(located)
                break
        else:
            lines.append([located])
    return lines


def _newest(line: Sequence[LocatedTokens], steps: AnswerSteps, phases: PeriodicAnswers) -> TokenLocator:
    """Return the locator of a line that reaches new tokens first."""
    indexes = [located.locator.locate_tokens(steps, phases) for located in line]
    moves = (indexes[0][1:] - indexes[0][:-1])[steps.sequence[1:] == steps.sequence[:-1]]
    direction = -1 if moves.sum() < 0 else 1
    return line[int(np.argmax([direction * index.sum() for index in indexes]))].locator


def _free_level(
    pointer: Int[np.ndarray, " step"], levels: Sequence[Int[np.ndarray, " step"]], steps: AnswerSteps
) -> int:
    """Return the first level that the pointer can share, or a new level.

    Two pointers share a level if they never point at a prompt token in the same step, and one of them does so at most
    once per response. Pointers that take turns stay apart, because a pointer that jumps is hard to predict.
    """
    free = [
        not (is_inside_prompt(pointer, steps) & is_inside_prompt(level, steps)).any()
        and min(_max_uses(pointer, steps), _max_uses(level, steps)) <= 1
        for level in levels
    ]
    return free.index(True) if any(free) else len(levels)


def _max_uses(pointer: Int[np.ndarray, " step"], steps: AnswerSteps) -> int:
    """Return the largest number of steps of a sequence that point at a prompt token."""
    return int(np.bincount(steps.sequence[is_inside_prompt(pointer, steps)], minlength=1).max())

"""Find the coupling of a task, check it on its longest examples, and report it in words."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import CouplingError
from lengthwise.core.randomness import stream
from lengthwise.tasks.coupling.answer_steps import AnswerSteps, answer_steps, join_steps
from lengthwise.tasks.coupling.dependence import MAX_TOKENS, MIN_COPY_SHARE, MIN_COVERAGE
from lengthwise.tasks.coupling.describe_address import describe_address
from lengthwise.tasks.coupling.find_pointers import find_pointers
from lengthwise.tasks.coupling.finder import Attempt, PhaseRule, search_rules
from lengthwise.tasks.coupling.pointers import PointerRule
from lengthwise.tasks.task import HasRecords, Task

# Number of sequences per length that a task with a sampler draws, and upper limit for a file.
SAMPLES_PER_LENGTH, MAX_RECORDS = 500, 20_000
DEFAULT_LENGTHS = range(2, 9)
# Share of the lengths, the longest ones, that check the rule.
CHECKED_LENGTHS = 0.25
# Largest share of wrong predictions at the checked lengths, beyond that at the other lengths.
MAX_MORE_ERRORS = 0.01
# Smallest share of the answers at the checked lengths with tokens that the shorter examples have.
MIN_CHECKED_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class FoundCoupling:
    """Rule for the coupling of a task, with the evidence for it.

    ``phases`` has the name and the addresses of each group of answers. ``num_tokens`` is the largest number of tokens
    that an answer depends on (k). ``confirmed`` is the share of answers that other answers with the same tokens
    confirm, and ``accuracy`` the share of these that agree. ``checked_accuracy`` is the share of the answers at
    ``checked_lengths``, the longest ones, that the shorter examples predict right.
    """

    rule: PointerRule
    phases: tuple[tuple[str, tuple[str, ...]], ...]
    num_tokens: int
    num_sequences: int
    num_answers: int
    accuracy: float
    confirmed: float
    checked_lengths: tuple[int, ...]
    checked_accuracy: float

    @property
    def num_levels(self) -> int:
        """Number of coupling levels, one per pointer."""
        return len(self.rule.levels)


def find_coupling(
    task: Task,
    lengths: Sequence[int] | None = None,
    *,
    num_per_length: int = SAMPLES_PER_LENGTH,
    max_tokens: int = MAX_TOKENS,
    seed: int = 0,
) -> FoundCoupling:
    """Find which earlier tokens each answer of a task depends on, and a rule for its coupling.

    The function reads prompts and responses only, never the task's own coupling. ``num_per_length`` is the number of
    examples that a task with a sampler draws. Raises ``CouplingError`` with a reason if no set of at most
    ``max_tokens`` tokens explains the answers, if two sets explain them equally well, if there are too few examples, or
    if the rule fails at the longest lengths.
    """
    steps = _draw_steps(task, lengths, num_per_length, seed)
    attempts = search_rules(steps, max_tokens=max_tokens, seed=seed)
    attempt = attempts[-1]
    if not attempt.rules:
        raise CouplingError(_explain_failure(attempts, len(steps.tokens)))
    for rule in attempt.rules:
        if rule.alternatives:
            raise CouplingError(_explain_ambiguity(rule, task.vocabulary))
    checked_lengths, checked_accuracy, checked_share = _check_longest(steps, attempt)
    if checked_share < MIN_CHECKED_SHARE:
        raise CouplingError(
            f"too few examples to check the rule: the shorter examples have the tokens of only {checked_share:.0%} of "
            f"the answers at length {checked_lengths[0]} and above; use more than {len(steps.tokens):,} examples"
        )
    weights = [rule.mask.sum() for rule in attempt.rules]
    accuracy = float(np.average([rule.explanation.accuracy for rule in attempt.rules], weights=weights))
    if 1 - checked_accuracy > 1 - accuracy + MAX_MORE_ERRORS:
        raise CouplingError(
            f"the rule of the shorter lengths is wrong for {1 - checked_accuracy:.1%} of the answers at length "
            f"{checked_lengths[0]} and above; check whether the same rule makes all answers"
        )
    return FoundCoupling(
        rule=find_pointers(steps, attempt),
        phases=tuple((rule.name, tuple(each.address.text for each in rule.addresses)) for rule in attempt.rules),
        num_tokens=max(len(rule.addresses) for rule in attempt.rules),
        num_sequences=len(steps.tokens),
        num_answers=len(steps),
        accuracy=accuracy,
        confirmed=float(np.average([rule.explanation.coverage for rule in attempt.rules], weights=weights)),
        checked_lengths=checked_lengths,
        checked_accuracy=checked_accuracy,
    )


def _draw_steps(task: Task, lengths: Sequence[int] | None, num_per_length: int, seed: int) -> AnswerSteps:
    rng = stream(seed, "find coupling")
    if isinstance(task, HasRecords):
        lengths = task.available_lengths if lengths is None else lengths
        limit = max(1, MAX_RECORDS // len(lengths))
        parts = []
        for length in lengths:
            order = rng.permutation(task.num_records(length))[:limit]
            parts.append(answer_steps(task.records_at(length, np.sort(order)), length))
        return join_steps(parts)
    lengths = DEFAULT_LENGTHS if lengths is None else lengths
    return join_steps(
        [answer_steps(task.sample(length=length, size=num_per_length, rng=rng), length) for length in lengths]
    )


def _explain_failure(attempts: Sequence[Attempt], num_sequences: int) -> str:
    sparse = [attempt.closest.too_sparse for attempt in attempts if attempt.closest.too_sparse is not None]
    if sparse:
        best = max(sparse, key=lambda explanation: explanation.coverage)
        factor = int(np.ceil(MIN_COVERAGE / best.coverage))
        return (
            f"too few examples: {len(best.addresses)} tokens may explain the answers, but only {best.coverage:.0%} of "
            f"the answers have another answer with the same tokens to confirm it; use about {factor} times as many as "
            f"{num_sequences:,} examples"
        )
    best_attempt = max(attempts, key=lambda attempt: attempt.closest.closest.score)
    closest = best_attempt.closest.closest
    return (
        f"no set of few tokens explains the answers: the best one, of {len(closest.addresses)} tokens, predicts "
        f"{closest.accuracy:.1%} of them; write intermediate results into the responses, or give the coupling"
    )


def _explain_ambiguity(rule: PhaseRule, vocabulary: Sequence[str]) -> str:
    first, second = (
        " and ".join(describe_address(each.address, vocabulary) for each in found)
        for found in (rule.addresses, rule.alternatives[0])
    )
    return (
        f"two sets of tokens explain {rule.name} equally well: {first}, or {second}; add examples in which they differ"
    )


def _check_longest(steps: AnswerSteps, attempt: Attempt) -> tuple[tuple[int, ...], float, float]:
    """Return the checked lengths, the share of right predictions by shorter examples, and the share of predictions."""
    lengths = np.unique(steps.lengths)
    num_checked = max(1, round(CHECKED_LENGTHS * len(lengths)))
    if num_checked >= len(lengths):
        raise CouplingError(f"all examples have length {lengths[0]}; use examples of at least two lengths")
    checked = lengths[-num_checked:]
    right = covered = num_checked_answers = 0
    for rule in attempt.rules:
        is_checked = (steps.length >= checked[0])[rule.mask]
        tokens = np.stack([each.tokens for each in rule.addresses] or [np.zeros(rule.mask.sum(), dtype=np.int64)])
        rule_right, rule_covered = _predict(tokens, steps.target[rule.mask], is_checked)
        right, covered = right + rule_right, covered + rule_covered
        num_checked_answers += int(is_checked.sum())
    return tuple(checked.tolist()), right / max(covered, 1), covered / max(num_checked_answers, 1)


def _predict(
    tokens: Int[np.ndarray, "address step"], target: Int[np.ndarray, " step"], is_checked: np.ndarray
) -> tuple[int, int]:
    """Return the number of right and of all predictions for checked steps whose tokens occur in the other steps."""
    _, codes = np.unique(tokens, axis=1, return_inverse=True)
    codes = codes.ravel()
    num_answers = int(target.max()) + 1
    counts = np.zeros((int(codes.max()) + 1, num_answers), dtype=np.int32)
    np.add.at(counts, (codes[~is_checked], target[~is_checked]), 1)
    is_known = counts.sum(axis=1)[codes] > 0
    prediction = counts.argmax(axis=1)[codes]
    if len(tokens) == 1 and (tokens[0] == target)[~is_checked].mean() >= MIN_COPY_SHARE / 2:
        # A new token is copied, like the others.
        prediction, is_known = np.where(is_known, prediction, tokens[0]), np.ones_like(is_known)
    is_counted = is_checked & is_known
    return int((prediction == target)[is_counted].sum()), int(is_counted.sum())

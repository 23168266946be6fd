"""Certificate of a task: tests of the conditions of proposition 4.4 on short examples.

The context of an answer is all tokens before it. Its tokens with the same coupled ID form a super-token. The planted
super-tokens have the IDs that the answer depends on. Examples can refute a condition but not prove it for all lengths.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import LengthwiseError, SettingError
from lengthwise.core.randomness import random_stream
from lengthwise.core.type_checks import check_arguments
from lengthwise.tasks.task import Task

# Examples per length that measure the structure.
NUM_STRUCTURE_EXAMPLES = 64
TOKEN_LOCALITY = "locality in token indexes"
# The number of lengths to test, the longest length to test, and the number of examples per length.
NUM_LENGTHS = 3
MAX_LENGTH = 12
NUM_EXAMPLES = 1024
# A condition is refuted if a statistic is above its mean over shuffles by more than NUM_DEVIATIONS standard deviations
# plus STATISTIC_MARGIN.
NUM_DEVIATIONS = 10.0
STATISTIC_MARGIN = 50.0
NUM_SHUFFLES = 20
# Answers count as realizable if the risk of the witness is at most this value.
MAX_WITNESS_RISK = 0.01
# The log score of a super-token that occurs only at planted IDs.
MAX_LOG_SCORE = 20.0

Shape = tuple[tuple[int, ...], ...]
SuperToken = tuple[int, ...]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumptionCheck:
    """A condition, its test result as text (``found``), and a counterexample to it; ``holds`` is None if unknown."""

    name: str
    holds: bool | None
    found: str
    counterexample: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DependencyStructure:
    """Sizes and shapes of the token sets that the answers of a task depend on, at one length.

    Every set includes the token before the answer. ``answers`` is the largest number of answers per example. ``k`` is
    the largest number of tokens in a set, and ``reach`` is the largest span of a set in tokens. ``id_reach`` is the
    largest span of a set in coupled IDs on any level. ``num_ids`` is the number of IDs from the smallest to the largest
    coupled ID of the examples, on the level with the widest range. Without a coupling, both are None. ``shapes`` counts
    the sets by shape: on each level, the IDs of the set minus its smallest ID.
    """

    length: int
    answers: int
    k: int
    reach: int
    id_reach: int | None
    num_ids: int | None
    shapes: Counter[Shape]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCertificate:
    """Tests of the conditions of proposition 4.4 for a task, the structure at each length, and a verdict.

    ``trained`` is the longest training length. There is no bound, because examples can refute conditions but not prove
    them. Only a planted law has bounds.
    """

    trained: int
    assumptions: tuple[AssumptionCheck, ...]
    structures: tuple[DependencyStructure, ...]
    verdict: str


@check_arguments
def certify_task(task: Task, *, trained: int, lengths: Sequence[int], seed: int = 0) -> TaskCertificate:
    """Test the conditions of proposition 4.4 on examples of length ``trained`` and of longer ``lengths``.

    ``trained`` is the longest training length. Raises ``SettingError`` for a task without ``depends_on``.
    """
    check_test_lengths(trained, lengths)
    structures = tuple(measure_dependencies(task, length, seed) for length in sorted({trained, *lengths}))
    assumptions = (
        _assume_constant("sparsity", "growing k", "tokens per answer", structures, "k"),
        _assume_constant(TOKEN_LOCALITY, "growing gap", "span in tokens", structures, "reach"),
        _assume_constant("locality in coupled IDs", "growing gap", "span in IDs", structures, "id_reach"),
        _assume_regular(structures[0], structures[1:]),
        *check_coupling_conditions(task, seed),
    )
    return TaskCertificate(
        trained=trained, assumptions=assumptions, structures=structures, verdict=_verdict(task, assumptions)
    )


def _verdict(task: Task, assumptions: Sequence[AssumptionCheck]) -> str:
    # Proposition 4.4 does not need locality in token indexes.
    failed = [test.name for test in assumptions if test.name != TOKEN_LOCALITY and test.holds is False]
    if failed:
        return (
            f"Nothing is guaranteed for {task.name} beyond training: the data violate conditions of proposition 4.4 "
            f"({'; '.join(failed)}). Measure trained runs with evaluate."
        )
    return (
        f"Nothing is guaranteed for {task.name} beyond training: no condition of proposition 4.4 was refuted, but "
        "examples cannot prove them. Write the data as a planted law in a FILE.json to get bounds."
    )


def measure_dependencies(task: Task, length: int, seed: int) -> DependencyStructure:
    """Measure the structure of answers of one length; raise ``SettingError`` for a task without ``depends_on``."""
    examples = task.sample(length=length, size=NUM_STRUCTURE_EXAMPLES, rng=random_stream(seed, "structure", length))
    if examples.depends_on is None:
        raise SettingError(
            f"task {task.name} does not declare which tokens its answers depend on (depends_on); use a built-in "
            "task or a class with depends_on, because a task file has none, or a planted law"
        )
    shapes: Counter[Shape] = Counter()
    k = reach = 0
    for example, answer_index in np.argwhere(examples.is_answer).tolist():
        depends_on = examples.depends_on[example, answer_index]
        needed = np.unique(np.append(depends_on[depends_on >= 0], answer_index - 1))
        k, reach = max(k, len(needed)), max(reach, int(np.ptp(needed)) + 1)
        if examples.coupling is not None:
            ids = examples.coupling[:, example, find_planted_tokens(depends_on, answer_index)]
            shapes[tuple(tuple(sorted(set((id_level - id_level.min()).tolist()))) for id_level in ids)] += 1
    return DependencyStructure(
        length=length,
        answers=int(examples.is_answer.sum(axis=1).max()),
        k=k,
        reach=reach,
        id_reach=max(id_level[-1] + 1 for shape in shapes for id_level in shape) if shapes else None,
        num_ids=None if examples.coupling is None else int(np.ptp(examples.coupling, axis=(1, 2)).max()) + 1,
        shapes=shapes,
    )


def _assume_constant(
    name: str, counterexample: str, unit: str, structures: Sequence[DependencyStructure], quantity: str
) -> AssumptionCheck:
    """Build the assumption that a number is the same at every length, with ``found`` in units of ``unit``."""
    by_length: dict[int, int | None] = {structure.length: getattr(structure, quantity) for structure in structures}
    values = set(by_length.values())
    holds = len(values) == 1 and None not in values
    if None in values:
        finding = "no coupling"
    elif holds:
        finding = f"{unit}: {values.pop()} at every length"
    else:
        finding = f"{unit}: " + ", ".join(f"{value} at {length}" for length, value in by_length.items())
    return AssumptionCheck(name=name, holds=holds, found=finding, counterexample=counterexample)


def _assume_regular(train: DependencyStructure, test_structures: Sequence[DependencyStructure]) -> AssumptionCheck:
    """Build the assumption that every set of coupled IDs at longer lengths also occurs in training."""
    new_shapes = {shape for structure in test_structures for shape in structure.shapes} - set(train.shapes)
    if not train.shapes:
        finding = "no coupling"
    elif new_shapes:
        finding = f"{len(new_shapes)} of the sets at longer lengths do not occur in training"
    else:
        finding = "no new set"
    return AssumptionCheck(
        name="regularity in coupled IDs",
        holds=bool(train.shapes) and not new_shapes,
        found=finding,
        counterexample="rare shape",
    )


def check_test_lengths(max_train_length: int, lengths: Sequence[int]) -> None:
    """Raise ``SettingError`` unless all lengths are above the longest training length."""
    if not lengths:
        raise SettingError(f"no test lengths; use --lengths above {max_train_length}")
    if short := [length for length in lengths if length <= max_train_length]:
        raise SettingError(
            f"length {short[0]} is not above the longest training length {max_train_length}; use "
            f"--lengths above {max_train_length}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerContext:
    """Context of one answer: the super-tokens before it, sorted by ID; ``label`` is the token ID of the answer.

    ``planted`` contains the IDs that the answer depends on, minus the smallest ID of the context. ``answer_id`` is the
    length and the number of the answer in its example.
    """

    answer_id: tuple[int, int]
    super_tokens: tuple[SuperToken, ...]
    planted: tuple[int, ...]
    label: int

    @property
    def planted_offset_pattern(self) -> tuple[int, ...]:
        """The planted IDs minus the smallest planted ID."""
        return tuple(token_id - self.planted[0] for token_id in self.planted)

    def super_tokens_at(self, start: int, shape: tuple[int, ...]) -> tuple[SuperToken, ...]:
        """Return the super-tokens at the IDs ``start + offset`` for each offset in ``shape``."""
        return tuple(self.super_tokens[start + offset] for offset in shape)


def check_coupling_conditions(task: Task, seed: int) -> tuple[AssumptionCheck, ...]:
    """Test each condition of proposition 4.4 on examples; ``holds`` is False with a reason if refuted, else None."""
    contexts, skipped = _sample_contexts(task, seed)
    tests: tuple[tuple[str, str, Callable[[Sequence[AnswerContext]], str | None]], ...] = (
        ("equal numbers of tokens per ID", "new background token", _describe_unequal_sizes),
        ("independent super-tokens", "new background token", _describe_dependence),
        ("same law of planted super-tokens", "absolute positions", _describe_different_laws),
        ("uniform start", "rare shape", _describe_unequal_starts),
        ("realizability", "growing k", _describe_witness_failure),
    )
    lengths = sorted({context.answer_id[0] for context in contexts})
    not_refuted = f"not refuted by {NUM_EXAMPLES} examples of lengths {', '.join(map(str, lengths))}"
    assumptions = []
    for name, counterexample, test in tests:
        refutation = test(contexts) if skipped is None else None
        holds, found = None if refutation is None else False, refutation or skipped or not_refuted
        assumptions.append(AssumptionCheck(name=name, holds=holds, found=found, counterexample=counterexample))
    return tuple(assumptions)


def _sample_contexts(task: Task, seed: int) -> tuple[list[AnswerContext], str | None]:
    """Return all contexts at the shortest lengths of the task, or the reason why the task has no contexts."""
    contexts: list[AnswerContext] = []
    for length in range(1, MAX_LENGTH + 1):
        try:
            examples = task.sample(length=length, size=NUM_EXAMPLES, rng=random_stream(seed, "conditions", length))
        except LengthwiseError:
            continue
        if examples.coupling is None or examples.depends_on is None:
            return [], "no coupling"
        if len(examples.coupling) > 1:
            return [], f"the coupling has {len(examples.coupling)} levels, but the proposition is for one level"
        answer_numbers = examples.is_answer.cumsum(axis=1)
        for example, answer_index in np.argwhere(examples.is_answer).tolist():
            ids = examples.coupling[0, example, :answer_index]
            ids = ids - ids.min()
            super_tokens: list[list[int]] = [[] for _ in range(int(ids.max()) + 1)]
            *tokens, label = examples.tokens[example, : answer_index + 1].tolist()
            for token_id, token in zip(ids.tolist(), tokens, strict=True):
                super_tokens[token_id].append(token)
            planted = np.unique(ids[find_planted_tokens(examples.depends_on[example, answer_index], answer_index)])
            contexts.append(
                AnswerContext(
                    answer_id=(length, int(answer_numbers[example, answer_index])),
                    super_tokens=tuple(map(tuple, super_tokens)),
                    planted=tuple(planted.tolist()),
                    label=label,
                )
            )
        if len({context.answer_id[0] for context in contexts}) == NUM_LENGTHS:
            break
    return contexts, None if contexts else f"no examples of lengths up to {MAX_LENGTH}"


def find_planted_tokens(depends_on: Int[np.ndarray, " most"], index: int) -> Int[np.ndarray, " planted"]:
    """Return the indexes of tokens in ``depends_on``, or of the token before the answer at ``index`` if it is empty."""
    needed = depends_on[depends_on >= 0]
    return needed if needed.size else np.array([index - 1])


def _describe_answer(answer_id: tuple[int, int]) -> str:
    return f"length {answer_id[0]}, answer {answer_id[1]}"


def _describe_unequal_sizes(contexts: Sequence[AnswerContext]) -> str | None:
    """Describe a context in which two IDs have different numbers of tokens, or return None."""
    expected = len(contexts[0].super_tokens[contexts[0].planted[0]])
    for context in contexts:
        for token_id, tokens in enumerate(context.super_tokens):
            if len(tokens) != expected:
                answer = _describe_answer(context.answer_id)
                return f"{answer}: one ID has {expected} tokens and ID {token_id} has {len(tokens)}"
    return None


def _describe_dependence(contexts: Sequence[AnswerContext]) -> str | None:
    """Describe background super-tokens with different distributions or a dependence, or return None."""
    for (answer_id, planted_ids), group in _group_by(contexts, lambda context: (context.answer_id, context.planted)):
        answer = _describe_answer(answer_id)
        num_ids = min(len(context.super_tokens) for context in group)
        samples = {
            token_id: [context.super_tokens[token_id] for context in group]
            for token_id in range(num_ids)
            if token_id not in planted_ids
        }
        for token_id, other_id in combinations(samples, 2):
            if _are_different(samples[token_id], samples[other_id]):
                return f"{answer}: the super-tokens at IDs {token_id} and {other_id} have different distributions"
            if _are_dependent(list(zip(samples[token_id], samples[other_id], strict=True))):
                return f"{answer}: the super-tokens at IDs {token_id} and {other_id} depend on each other"
        outcomes = [(context.super_tokens_at(0, planted_ids), context.label) for context in group]
        for token_id, sample in samples.items():
            if _are_dependent(list(zip(sample, outcomes, strict=True))):
                return f"{answer}: the super-token at ID {token_id} depends on the planted super-tokens or the answer"
    return None


def _describe_different_laws(contexts: Sequence[AnswerContext]) -> str | None:
    """Describe two starts at which planted super-tokens of one shape have different distributions, or return None."""
    for _, group in _group_by(contexts, lambda context: context.planted_offset_pattern):
        samples = [
            (start, [(context.super_tokens_at(0, context.planted), context.label) for context in same_start])
            for start, same_start in _group_by(group, lambda context: (context.answer_id, context.planted[0]))
        ]
        (first_answer_id, first_start), first_sample = samples[0]
        for (answer_id, start), sample in samples[1:]:
            if _are_different(first_sample, sample):
                return (
                    f"{_describe_answer(answer_id)}, ID {start} and {_describe_answer(first_answer_id)}, "
                    f"ID {first_start}: planted super-tokens have different distributions"
                )
    return None


def _describe_unequal_starts(contexts: Sequence[AnswerContext]) -> str | None:
    """Describe a length at which contexts have different sizes or starts are not uniform, or return None."""
    for length, group in _group_by(contexts, lambda context: context.answer_id[0]):
        sizes = {len(context.super_tokens) for context in group}
        if len(sizes) > 1:
            return f"length {length}: contexts have {min(sizes)} to {max(sizes)} IDs"
        for shape, shape_contexts in _group_by(group, lambda context: context.planted_offset_pattern):
            starts = Counter(context.planted[0] for context in shape_contexts)
            possible = range(sizes.copy().pop() - shape[-1])
            expected = len(shape_contexts) / len(possible)
            chi_square = sum((starts[start] - expected) ** 2 / expected for start in possible)
            if chi_square > len(possible) + NUM_DEVIATIONS * math.sqrt(2 * len(possible)) + STATISTIC_MARGIN:
                return f"length {length}: the counts of starts of planted IDs are {dict(sorted(starts.items()))}"
    return None


def _describe_witness_failure(contexts: Sequence[AnswerContext]) -> str | None:
    """Describe the risk of a witness head, which is built from the examples, if the risk is large; else return None.

    The scores are the odds that super-tokens are planted; the values are the distributions of their answers.
    """
    shapes = {context.planted_offset_pattern for context in contexts}
    occurrences: Counter[Hashable] = Counter()
    label_counts: defaultdict[Hashable, Counter[int]] = defaultdict(Counter)
    for context in contexts:
        label_counts[context.planted_offset_pattern, context.super_tokens_at(0, context.planted)][context.label] += 1
        occurrences.update(_count_windows(context, shapes))
    total_risk = 0.0
    for context in contexts:
        total_score = correct_score = 0.0
        for window_key, num_occurrences in _count_windows(context, shapes).items():
            if window_key in label_counts:
                num_planted = label_counts[window_key].total()
                planted_odds = num_planted / max(occurrences[window_key] - num_planted, math.exp(-MAX_LOG_SCORE))
                score = num_occurrences * min(planted_odds, math.exp(MAX_LOG_SCORE))
                total_score += score
                correct_score += score * label_counts[window_key][context.label] / num_planted
        total_risk += 1 - correct_score / total_score
    risk = total_risk / len(contexts)
    if risk <= MAX_WITNESS_RISK:
        return None
    return f"no witness: the head built from the examples has risk {risk:.3f} on them"


def _count_windows(context: AnswerContext, shapes: Iterable[tuple[int, ...]]) -> Counter[Hashable]:
    """Count the tuples of super-tokens at all starts of each shape in a context."""
    num_ids = len(context.super_tokens)
    return Counter(
        (shape, context.super_tokens_at(start, shape)) for shape in shapes for start in range(num_ids - shape[-1])
    )


def _group_by(
    contexts: Sequence[AnswerContext], group_key: Callable[[AnswerContext], Key]
) -> Iterator[tuple[Key, list[AnswerContext]]]:
    """Yield the contexts with equal keys, in the order of their first occurrence."""
    groups: defaultdict[Key, list[AnswerContext]] = defaultdict(list)
    for context in contexts:
        groups[group_key(context)].append(context)
    yield from groups.items()


def _are_different(first_sample: Sequence[Hashable], second_sample: Sequence[Hashable]) -> bool:
    return _are_dependent([(0, value) for value in first_sample] + [(1, value) for value in second_sample])


def _are_dependent(pairs: Sequence[tuple[Hashable, Hashable]]) -> bool:
    """Return True if the two entries of pairs are dependent: the G statistic is far above that of shuffled pairs."""
    first, second = ([pair[index] for pair in pairs] for index in (0, 1))
    rng = random_stream(0, "shuffles")
    shuffled = [
        _g_statistic(first, [second[index] for index in rng.permutation(len(pairs))]) for _ in range(NUM_SHUFFLES)
    ]
    threshold = np.mean(shuffled) + NUM_DEVIATIONS * np.std(shuffled) + STATISTIC_MARGIN
    return bool(_g_statistic(first, second) > threshold)


def _g_statistic(first_values: Sequence[Hashable], second_values: Sequence[Hashable]) -> float:
    """Return the G statistic: twice the sum over pairs of log(joint frequency / frequency if independent)."""
    first_counts, second_counts = Counter(first_values), Counter(second_values)
    return 2 * sum(
        count * math.log(count * len(first_values) / (first_counts[first] * second_counts[second]))
        for (first, second), count in Counter(zip(first_values, second_values, strict=True)).items()
    )

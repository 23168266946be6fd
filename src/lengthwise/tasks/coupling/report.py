"""Text and table that describe a found coupling."""

from collections import Counter
from collections.abc import Sequence

from lengthwise.core.defaults import MODEL
from lengthwise.core.randomness import stream
from lengthwise.tasks.coupling.addresses import parse_address
from lengthwise.tasks.coupling.describe_address import describe_address
from lengthwise.tasks.coupling.found_coupling import FoundCoupling
from lengthwise.tasks.coupling.found_task import FoundTask, measure_conditions
from lengthwise.tasks.coupling.pointers import couple
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.jsonl_task import JSONLTask

# Largest growth of a number from the middle to the longest length, and lengths that show growth.
MAX_GROWTH, MIN_LENGTHS_OF_GROWTH = 2, 3
# Prompts per length in which tokens may repeat, and number of repeats by chance whose absence is no chance.
NUM_PROMPTS, MIN_EXPECTED_REPEATS = 64, 20


def describe_coupling(found: FoundCoupling, vocabulary: Sequence[str]) -> list[str]:
    """Return the rule and its evidence as lines of text."""
    source = ", answered by a model" if found.method == MODEL else ""
    lines = [f"{found.num_sequences:,} examples{source}, {found.num_answers:,} answers (without the end tokens)"]
    for name, texts in found.phases:
        tokens = [describe_address(parse_address(text), vocabulary) for text in texts]
        lines.append(f"{name} depends on {len(texts)} token{'s' * (len(texts) != 1)}: {'; '.join(tokens)}")
    lines.append(
        f"confirmed: {found.confirmed:.1%} of the answers have another answer with the same tokens; "
        f"{found.accuracy:.2%} of these agree"
    )
    first, last = found.checked_lengths[0], found.checked_lengths[-1]
    lengths = f"length {first}" if first == last else f"lengths {first} to {last}"
    others = "the answers of the model" if found.method == MODEL else "the shorter examples"
    lines.append(
        f"checked: {others} have the tokens of {found.checked_known:.0%} of the answers at {lengths}, and predict "
        f"{found.checked_accuracy:.1%} of these right"
    )
    if found.accuracy < 1:
        lines.append(
            f"not explained: {1 - found.accuracy:.2%} of the answers (without the end tokens), which are errors in the "
            "rows or depend on more tokens"
        )
    lines.append(f"pointers: {found.num_levels}; the prompt tokens count 1, 2, 3, ... on every level")
    return lines


def describe_conditions(
    task: JSONLTask, found: FoundCoupling, lengths: Sequence[int] | None = None, seed: int = 0
) -> list[str]:
    """Return whether sparsity and locality hold at the shortest, the middle and the longest of the lengths."""
    lengths = sorted(task.available_lengths if lengths is None else lengths)
    chosen = sorted({lengths[0], lengths[len(lengths) // 2], lengths[-1]})
    addresses = tuple(texts for _, texts in found.phases)
    found_task = FoundTask(task=task, rule=found.rule, addresses=addresses)
    measured = [measure_conditions(found_task, length, stream(seed, "conditions", length)) for length in chosen]
    (num_tokens, distances), where = zip(*measured, strict=True), f"at the lengths {', '.join(map(str, chosen))}"
    lines = [
        f"sparsity: an answer needs {_values(num_tokens)} tokens, with the token before it, {where}",
        f"locality: the largest ID distance of a needed token is {_values(distances)} {where}",
    ]
    if len(chosen) < MIN_LENGTHS_OF_GROWTH:
        lines.append("with fewer than three lengths, nobody can say whether these numbers grow; add lengths")
    elif _grows(distances) or _grows(num_tokens):
        lines.append("these numbers grow with the length, so do not expect correct answers at longer lengths")
    if _expected_repeats(found_task, lengths, seed) >= MIN_EXPECTED_REPEATS:
        lines.append(
            "no prompt contains a token twice, so the examples do not show the answers to repeated tokens, which "
            "longer prompts may contain; do not expect correct answers at longer lengths with repeated tokens"
        )
    return lines


def _expected_repeats(found_task: FoundTask, lengths: Sequence[int], seed: int) -> float:
    """Return the number of equal pairs in prompts if their tokens were independent; 0 if a prompt has such a pair.

    Tokens of every prompt, such as separators, do not count.
    """
    examples = [found_task.sample(length=each, size=NUM_PROMPTS, rng=stream(seed, "repeats", each)) for each in lengths]
    prompts = [
        tokens[:end].tolist() for each in examples for tokens, end in zip(each.tokens, each.prompt_length, strict=True)
    ]
    in_all = set(prompts[0]).intersection(*prompts)
    symbols = [[token for token in prompt if token not in in_all] for prompt in prompts]
    if any(len(set(each)) < len(each) for each in symbols):
        return 0.0
    counts = Counter(token for each in symbols for token in each)
    total = counts.total()
    same = sum((count / total) ** 2 for count in counts.values())
    return sum(len(each) * (len(each) - 1) / 2 for each in symbols) * same


def _grows(values: Sequence[int]) -> bool:
    """Return True if a number rises twice, or rises much at the end; very short examples lack some distances."""
    short, middle, long = values
    return long > middle > short or long > middle + MAX_GROWTH


def _values(values: Sequence[int]) -> str:
    """Return one number, or all if they differ."""
    return str(values[0]) if len(set(values)) == 1 else ", ".join(map(str, values))


def example_table(found: FoundCoupling, examples: Examples, vocabulary: Sequence[str]) -> list[list[str]]:
    """Return the first example as rows: index, token, and the ID on each level, counted from 1."""
    coupling = couple(found.rule, examples)[:, 0]
    end = int(examples.response_end[0])
    return [
        [
            str(index),
            vocabulary[int(examples.tokens[0, index])],
            *("" if index == end else str(number - 1) for number in coupling[:, index].tolist()),
        ]
        for index in range(end + 1)
    ]

"""Task files whose short rows suggest a rule that is wrong at longer lengths, and similar files with a right rule."""

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from jaxtyping import Bool, Int

from lengthwise.core.defaults import DEPENDENCE
from lengthwise.core.errors import CouplingError
from lengthwise.core.randomness import random_stream
from lengthwise.experiments.coupling_methods import find_coupling
from lengthwise.tasks import JSONLTask
from lengthwise.tasks.coupling.answer_steps import AnswerSteps, divide_into_phases, join_steps
from lengthwise.tasks.coupling.dependence_search import MIN_COPY_SHARE
from lengthwise.tasks.coupling.found_coupling import FoundCoupling, sample_task_answers
from lengthwise.tasks.coupling.locators import locate_tokens, parse_locator
from lengthwise.tasks.coupling.report import describe_coupling, describe_rule_conditions

LETTERS = tuple("abcdefgh")
SHORT_LENGTHS, LONG_LENGTH = range(2, 21), 160
ROWS_PER_LENGTH, LONG_ROWS = 40, 60
# Largest share of wrong answers at the long length of a rule that is accepted without a warning.
MAX_WRONG = 0.01

Prompt = list[str]
Response = list[str]
# Returns the prompt and the response of a row from a random generator, a length, and True for a long row, which
# follows the law of the task without the noise of the short rows. None leaves out a short row.
Sample = Callable[[np.random.Generator, int, bool], tuple[Prompt, Response] | None]


def draw(rng: np.random.Generator, count: int, alphabet: Sequence[str] = LETTERS) -> list[str]:
    """Return random letters."""
    return rng.choice(list(alphabet), size=count).tolist()


def draw_rare(
    rng: np.random.Generator, count: int, rare: str, share: float, alphabet: Sequence[str] = LETTERS
) -> Prompt:
    """Return random letters, with a rare token at a share of all places."""
    return [rare if rng.random() < share else letter for letter in draw(rng, count, alphabet)]


def next_letter(letter: str) -> str:
    """Return the next letter of the alphabet; other tokens stay."""
    return LETTERS[(LETTERS.index(letter) + 1) % len(LETTERS)] if letter in LETTERS else letter


def draw_two_sizes(rng: np.random.Generator, length: int) -> list[int]:
    """Return two numbers of digits in random order, the larger one ``length``."""
    return rng.permutation([length, int(rng.integers(1, length + 1))]).tolist()


def add_numbers(numbers: Sequence[Int[np.ndarray, " digit"]], *, strip: bool) -> tuple[Prompt, Response]:
    """Return two numbers in base four as a prompt, and their sum; the last digit is the first token."""
    total = sum(int(digit) * 4**place for digits in numbers for place, digit in enumerate(digits))
    size = max(map(len, numbers))
    result = [str(total // 4**place % 4) for place in range(size + (total >= 4**size))]
    while strip and len(result) > 1 and result[-1] == "0":
        result.pop()
    first, second = ([str(digit) for digit in digits] for digits in numbers)
    return [*first, "+", *second], result


# Traps


def late_wrap(rng, length, is_long):
    """Copy, which starts again with the first letter after sixteen letters; few rows are so long."""
    if length > 16 and not is_long and rng.random() < 0.9:
        return None
    prompt = draw(rng, length)
    return prompt, [prompt[place % 16] for place in range(length)]


def rare_toggle(rng, length, is_long):
    """Copy; from a rare token on, the next letter of the alphabet, until the next rare token."""
    prompt, response, is_shifted = draw_rare(rng, length, "!", 0.003), [], False
    for letter in prompt:
        is_shifted ^= letter == "!"
        response.append(next_letter(letter) if is_shifted else letter)
    return prompt, response


def rare_question(rng, length, is_long):
    """Copy; a rare question mark becomes the letter after the first h, or stays without one."""
    prompt = draw_rare(rng, length, "?", 0.02)
    asked = prompt[prompt.index("h") + 1 :][:1] if "h" in prompt else []
    return prompt, [(asked or ["?"])[0] if letter == "?" else letter for letter in prompt]


def near_duplicates(rng, length, is_long):
    """Random responses; the short rows repeat few of them, with another token before the prompt."""
    source = random_stream(int(rng.integers(1 << 30)) if is_long else int(rng.integers(3)), "near duplicates", length)
    prompt, response = draw(source, length, "abcdefghijklmnopqrstuvwxyz"), draw(source, length)
    return [*draw(rng, 1, [f"n{each}" for each in range(10)]), *prompt], response


def counted_end(rng, length, is_long):
    """Copy, up to the fifth letter a."""
    prompt = draw(rng, length)
    places = [place for place, letter in enumerate(prompt) if letter == "a"]
    return prompt, prompt[: places[4] + 1] if len(places) > 4 else prompt


def delayed_reset(rng, length, is_long):
    """Running parity; the bit r counts as 0, and five places later the parity is 0."""
    prompt, response, parity = draw_rare(rng, length, "r", 0.03, "01"), [], 0
    for place, bit in enumerate(prompt):
        parity ^= bit == "1"
        parity = 0 if place >= 5 and prompt[place - 5] == "r" else parity
        response.append(str(int(parity)))
    return prompt, response


def expiring_window(rng, length, is_long):
    """1 if one of the last twelve bits is 1, which is rare."""
    prompt = draw_rare(rng, length, "1", 0.03, "0")
    return prompt, [str(int("1" in prompt[max(0, place - 11) : place + 1])) for place in range(length)]


def distinct_letters(rng, length, is_long):
    """Letters in the order of their first occurrence; a short prompt has no letter twice."""
    alphabet = [f"x{number}" for number in range(24)]
    prompt = draw(rng, length, alphabet) if is_long else rng.permutation(alphabet)[:length].tolist()
    return prompt, list(dict.fromkeys(prompt))


def mostly_palindromes(rng, length, is_long):
    """Reverse with 2% of wrong letters; nearly all short prompts are palindromes."""
    prompt = draw(rng, length)
    if not is_long and rng.random() < 0.997:
        prompt = [prompt[min(place, length - 1 - place)] for place in range(length)]
    return prompt, [letter if is_long or rng.random() > 0.02 else draw(rng, 1)[0] for letter in prompt[::-1]]


def pair_mode(rng, length, is_long):
    """Copy; reverse if the first letter is a, and the middle one is a, b or c."""
    prompt = draw(rng, length)
    return prompt, prompt[::-1] if prompt[0] == "a" and prompt[length // 2] in "abc" else prompt


def growing_noise(rng, length, is_long):
    """Copy; the share of wrong letters in short rows is a thousandth of the place."""
    prompt = draw(rng, length)
    is_noisy = [not is_long and rng.random() < 0.001 * place for place in range(length)]
    return prompt, [draw(rng, 1)[0] if noisy else letter for noisy, letter in zip(is_noisy, prompt, strict=True)]


def fourth_letter(rng, length, is_long):
    """Copy; each fourth letter a becomes an A, which also stands in some prompts."""
    prompt, response, count = draw_rare(rng, length, "A", 0.02), [], 0
    for letter in prompt:
        count += letter == "a"
        response.append("A" if letter == "a" and count % 4 == 0 else letter)
    return prompt, response


def length_mode(rng, length, is_long):
    """Copy; reverse at the lengths 7, 24, 41 and so on up to 160, of which there are few rows."""
    is_reversed = length % 17 == 7
    if is_reversed and not is_long and rng.random() < 0.7:
        return None
    prompt = draw(rng, length)
    return prompt, prompt[::-1] if is_reversed else prompt


def change_under_noise(rng, length, is_long):
    """Copy with 3% of wrong letters; from place twelve on, a becomes b."""
    alphabet, response = tuple("abcdefghijklmnop"), []
    prompt = draw(rng, length, alphabet)
    for place, letter in enumerate(prompt):
        right = "b" if letter == "a" and place >= 12 else letter
        response.append(right if is_long or rng.random() > 0.03 else draw(rng, 1, alphabet)[0])
    return prompt, response


def bursts_of_noise(rng, length, is_long):
    """Reverse; in 2% of the rows, three letters in a row are wrong, so the errors are not independent."""
    prompt = draw(rng, length)
    response = prompt[::-1]
    if not is_long and rng.random() < 0.02 and length > 3:
        start = int(rng.integers(length - 2))
        response[start : start + 3] = draw(rng, 3)
    return prompt, response


def repeated_operand(rng, length, is_long):
    """Sum modulo four of a long number and a short one, which starts again at its end; few rows are so long."""
    size = int(rng.integers(length // 2 if is_long or rng.random() < 0.05 else length, length + 1))
    long, short = rng.integers(4, size=length), rng.integers(4, size=max(size, 1))
    total = (long + short[np.arange(length) % len(short)]) % 4
    return [*map(str, long), "+", *map(str, short)], [*map(str, total)]


def stripped_sums(rng, length, is_long):
    """Sums of two numbers, with the last digit first, without the zeros at the end of the sum."""
    numbers = [rng.integers(4, size=size) for size in draw_two_sizes(rng, length)]
    return add_numbers(numbers, strip=True)


TRAPS: tuple[Sample, ...] = (
    late_wrap,
    rare_toggle,
    rare_question,
    near_duplicates,
    counted_end,
    delayed_reset,
    expiring_window,
    distinct_letters,
    mostly_palindromes,
    pair_mode,
    growing_noise,
    fourth_letter,
    length_mode,
    change_under_noise,
    bursts_of_noise,
    repeated_operand,
    stripped_sums,
)

# Tasks with a right rule


def visible_reset(rng, length, is_long):
    """Running parity; the rare bit r sets it to 0."""
    prompt, response, parity = draw_rare(rng, length, "r", 0.05, "01"), [], 0
    for bit in prompt:
        parity = 0 if bit == "r" else parity ^ (bit == "1")
        response.append(str(int(parity)))
    return prompt, response


def visible_toggle(rng, length, is_long):
    """Copy; a rare token switches between lower and upper case, which each answer shows."""
    prompt, response, is_upper = draw_rare(rng, length, "!", 0.1), [], False
    for letter in prompt:
        is_upper ^= letter == "!"
        response.append(("on" if is_upper else "off") if letter == "!" else letter.upper() if is_upper else letter)
    return prompt, response


def steady_noise(rng, length, is_long):
    """Next letter of the alphabet; 4% of the answers are wrong."""
    prompt = draw(rng, length)
    return prompt, [next_letter(letter) if is_long or rng.random() > 0.04 else draw(rng, 1)[0] for letter in prompt]


def filled_gaps(rng, length, is_long):
    """Copy in which a dash is the last letter before it."""
    prompt, response, last = draw_rare(rng, length, "-", 0.3), [], "-"
    for letter in prompt:
        last = last if letter == "-" else letter
        response.append(last)
    return prompt, response


def full_counter(rng, length, is_long):
    """Number of letters a so far, up to three."""
    prompt, count, response = draw(rng, length, "abc"), 0, []
    for letter in prompt:
        count = min(3, count + (letter == "a"))
        response.append(str(count))
    return prompt, response


def right_near_duplicates(rng, length, is_long):
    """Copy of few prompts, with another token before the prompt."""
    source = random_stream(int(rng.integers(1 << 30)) if is_long else int(rng.integers(30)), "near duplicates", length)
    prompt = draw(source, length)
    return [*draw(rng, 1, [f"n{each}" for each in range(10)]), *prompt], prompt


def palindromes_and_others(rng, length, is_long):
    """Reverse; nine in ten short prompts are palindromes."""
    prompt = draw(rng, length)
    if not is_long and rng.random() < 0.9:
        prompt = [prompt[min(place, length - 1 - place)] for place in range(length)]
    return prompt, prompt[::-1]


def folded(rng, length, is_long):
    """Sum modulo five of the digits at the same distance from both ends."""
    digits = rng.integers(5, size=length)
    return [str(digit) for digit in digits], [str(digit) for digit in (digits + digits[::-1]) % 5]


def unpadded_sums(rng, length, is_long):
    """Sums of two numbers of different lengths, with the last digit first."""
    numbers = [rng.integers(4, size=size) for size in draw_two_sizes(rng, length)]
    for digits in numbers:
        digits[-1] = rng.integers(1, 4)
    return add_numbers(numbers, strip=False)


RIGHT: tuple[Sample, ...] = (
    visible_reset,
    visible_toggle,
    steady_noise,
    filled_gaps,
    full_counter,
    right_near_duplicates,
    palindromes_and_others,
    folded,
    unpadded_sums,
)


class Outcome(NamedTuple):
    """Result of a search: refusal or warning, and shares at the long length.

    ``known`` is the share of the answers with tokens that short rows have, ``wrong_answers`` the share of these that
    the rule predicts wrong, and ``wrong_rows`` the share of the rows with such an answer.
    """

    refusal: str | None
    has_warning: bool = False
    known: float = 1.0
    wrong_answers: float = 0.0
    wrong_rows: float = 0.0
    rule: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def is_silently_wrong(self) -> bool:
        """True for a rule that is accepted without a warning, and gives wrong answers to long prompts."""
        return self.refusal is None and not self.has_warning and self.wrong_answers > MAX_WRONG


def search(sample: Sample, seed: int, folder: Path) -> Outcome:
    """Search for the rule of short rows, as the command does, and apply it to long rows."""
    rng = random_stream(seed, "new traps", sample.__name__)
    short = [(n, sample(rng, n, False)) for n in SHORT_LENGTHS for _ in range(ROWS_PER_LENGTH)]
    long = [(LONG_LENGTH, sample(rng, LONG_LENGTH, True)) for _ in range(LONG_ROWS)]
    task, all_rows = _write(folder / "short.jsonl", short), _write(folder / "all.jsonl", [*short, *long])
    # The rule names tokens by their number.
    assert task.vocabulary == all_rows.vocabulary
    with warnings.catch_warnings(record=True) as caught:
        try:
            found = find_coupling(task, method=DEPENDENCE)
        except CouplingError as error:
            return Outcome(refusal=str(error))
        lines = [*describe_coupling(found, task.vocabulary), *describe_rule_conditions(task, found)]
    steps = join_steps(
        [sample_task_answers(all_rows, [length], ROWS_PER_LENGTH, 0) for length in all_rows.available_lengths]
    )
    is_long = steps.length == LONG_LENGTH
    prediction = _predict(found, steps, is_long)[is_long]
    is_known = prediction >= 0
    is_wrong = is_known & (prediction != steps.target[is_long])
    rows = np.bincount(steps.sequence[is_long], weights=is_wrong)
    return Outcome(
        refusal=None,
        # The line about longer lengths is the only statement about them.
        has_warning=bool(caught) or any("longer lengths" in line for line in lines),
        known=float(is_known.mean()),
        wrong_answers=float(is_wrong.sum() / is_known.sum()),
        wrong_rows=float((rows[np.unique(steps.sequence[is_long])] > 0).mean()),
        rule=found.phases,
    )


def _write(path: Path, rows: Sequence[tuple[int, tuple[Prompt, Response] | None]]) -> JSONLTask:
    records = [{"prompt": row[0], "response": row[1], "length": length} for length, row in rows if row is not None]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return JSONLTask(file=str(path)).read()


def _predict(found: FoundCoupling, steps: AnswerSteps, is_long: Bool[np.ndarray, " step"]) -> Int[np.ndarray, " step"]:
    """Return the most frequent answer of the short rows with the same tokens of the rule; -1 without such rows."""
    phases, prediction = divide_into_phases(steps, found.rule.division), np.full(len(steps), -1)
    for phase, (_, texts) in enumerate(found.phases):
        mask = phases.phase == phase
        tokens = [locate_tokens(parse_locator(text), steps, phases).tokens[mask] for text in texts]
        prediction[mask] = _most_frequent(tokens, steps.target[mask], is_long[mask])
    return prediction


def _most_frequent(
    tokens: Sequence[Int[np.ndarray, " step"]], target: Int[np.ndarray, " step"], is_long: Bool[np.ndarray, " step"]
) -> Int[np.ndarray, " step"]:
    """Return the most frequent short answer of each set of tokens; new tokens have -1, or their copy."""
    columns = np.stack(tokens) if tokens else np.zeros((1, len(target)), dtype=np.int64)
    codes = np.unique(columns, axis=1, return_inverse=True)[1].ravel()
    counts = np.zeros((int(codes.max()) + 1, int(target.max()) + 1), dtype=np.int64)
    np.add.at(counts, (codes[~is_long], target[~is_long]), 1)
    copies = len(tokens) == 1 and (tokens[0] == target)[~is_long].mean() >= MIN_COPY_SHARE / 2
    return np.where(counts.sum(axis=1)[codes] > 0, counts.argmax(axis=1)[codes], tokens[0] if copies else -1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("sample", TRAPS, ids=lambda sample: sample.__name__)
def test_no_rule_is_silently_wrong_at_longer_lengths(sample, seed, tmp_path):
    outcome = search(sample, seed, tmp_path)
    assert not outcome.is_silently_wrong, outcome


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("sample", RIGHT, ids=lambda sample: sample.__name__)
def test_a_right_rule_is_accepted_without_a_warning(sample, seed, tmp_path):
    outcome = search(sample, seed, tmp_path)
    assert outcome.refusal is None
    assert not outcome.has_warning
    assert outcome.wrong_answers <= MAX_WRONG, outcome

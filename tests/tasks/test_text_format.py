"""Text format: one format for all tasks, from which the symbols can be recovered."""

import json

import pytest
from tests.support.cases import EXACT_MATCH_TASKS, decode_tokens

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import random_stream
from lengthwise.tasks import JSONLTask, Parity, Text
from lengthwise.tasks.text_format import format_examples, sample_few_shot_examples

over_answered = pytest.mark.parametrize(
    "task", [pytest.param(task, id=name) for name, task in EXACT_MATCH_TASKS.items()]
)


@over_answered
@pytest.mark.parametrize("beyond", [0, 5])
@pytest.mark.covering(1)
def test_the_symbols_of_every_task_can_be_recovered_from_its_text(beyond, task, rng):
    examples = task.sample(length=task.min_length + beyond, size=20, rng=rng)
    for index, text in enumerate(format_examples(task, examples)):
        last, first = examples.response_end[index], examples.prompt_length[index]
        assert text.symbols == decode_tokens(task, examples.tokens[index, : last + 1])
        assert text.prompt.split(" ") == text.symbols[:first]
        assert text.answer.split(" ") == text.symbols[first:last]


@over_answered
def test_every_example_is_one_line_and_its_response_starts_with_a_space(task, rng):
    for text in format_examples(task, task.sample(length=4, size=9, rng=rng)):
        assert (text.prompt + text.response).splitlines(keepends=True) == [text.prompt + text.response]
        assert text.prompt.strip() == text.prompt
        assert text.response == f" {text.answer}\n"


@over_answered
def test_a_span_contains_its_symbol_and_the_last_span_the_newline(task, rng):
    (text,) = format_examples(task, task.sample(length=4, size=1, rng=rng))
    whole = text.prompt + text.response
    assert [whole[first:last] for first, last in text.symbol_spans] == [*text.symbols[:-1], "\n"]


def test_the_text_of_parity_is_the_example_of_the_docstring():
    (text,) = format_examples(Parity(), Parity().example_from_prompt("010"))
    assert (text.prompt, text.response) == ("0 1 0 = 0", " 0 1 1\n")


def test_a_symbol_with_whitespace_raises_an_error(tmp_path, rng):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"prompt": ["New York"], "response": ["NY"]}))
    task = JSONLTask(file=str(file))
    with pytest.raises(SettingError, match=r"^the symbol 'New York' of rows contains whitespace; rename the symbol$"):
        format_examples(task, task.sample(length=1, size=1, rng=rng))


def test_a_task_that_is_graded_by_loss_raises_an_error(rng):
    with pytest.raises(SettingError, match=r"^task text is graded by loss and has no prompts; use a task with"):
        format_examples(Text(), Text().sample(length=4, size=1, rng=rng))


def test_shots_never_have_an_excluded_prompt():
    for seed in range(20):
        shots = sample_few_shot_examples(Parity(), 1, 4, random_stream(seed), excluded_prompts={"0 = 0"})
        assert [text.prompt for text in shots] == ["1 = 0"] * 4


def test_a_length_without_other_prompts_raises_an_error():
    with pytest.raises(SettingError, match=r"^length 1 of parity has too few prompts for 4 shots .* or --shots 0$"):
        sample_few_shot_examples(Parity(), 1, 4, random_stream(0), excluded_prompts={"0 = 0", "1 = 0"})
    assert sample_few_shot_examples(Parity(), 1, 0, random_stream(0), excluded_prompts={"0 = 0", "1 = 0"}) == []

"""Questions to a language model: the examples of a task as text, at a length in symbols or in tokens."""

from collections.abc import Iterator
from dataclasses import dataclass

from lengthwise.core.errors import ModelError, SettingError
from lengthwise.core.randomness import stream
from lengthwise.evaluation.exact_match import count_examples, iter_blocks
from lengthwise.hf.text_model import Question, TextModel
from lengthwise.tasks import HasLengths, Planted, Task
from lengthwise.tasks.text_format import PromptFormat, format_examples, sample_shots


@dataclass(frozen=True, slots=True)
class QuestionWriter:
    """Writer of the test examples of a task as questions to a model."""

    model: TextModel
    task: Task
    prompts: PromptFormat
    seed: int

    def questions(self, length: int, num_examples: int) -> Iterator[list[Question]]:
        """Yield blocks of questions. The context of a question consists of its shots and its prompt.

        Raises ``ModelError`` if a text has more tokens than the model has positions.
        """
        for block in self._iter_blocks(length, num_examples):
            for question in block:
                self._check_num_positions(length, question.seq)
            yield block

    def find_length(self, num_tokens: int, num_examples: int) -> int:
        """Return a length of the task at which every text has at most ``num_tokens`` tokens, near the longest such one.

        Raises ``SettingError`` if the shortest text has more tokens, or if the task has examples only at some lengths.
        """
        if isinstance(self.task, HasLengths):
            raise SettingError(
                f"the file of {self.task.name} has only some lengths; leave out --in-tokens and use its own lengths"
            )
        shortest = self.task.min_length if isinstance(self.task, Planted) else 1
        smallest, fitting, too_long = self._max_tokens(shortest, num_examples), shortest, 2 * shortest
        if smallest > num_tokens:
            raise SettingError(
                f"length {num_tokens} in tokens is too short, because the shortest text of {self.task.name} with "
                f"{self.prompts.shots} shots has up to {smallest} tokens; use at least {smallest}, or fewer --shots"
            )
        while self._max_tokens(too_long, 1) <= num_tokens:
            fitting, too_long = too_long, 2 * too_long
        while too_long - fitting > 1:
            middle = (fitting + too_long) // 2
            fitting, too_long = (middle, too_long) if self._max_tokens(middle, 1) <= num_tokens else (fitting, middle)
        # The first example fits. Others can have more tokens.
        while (largest := self._max_tokens(fitting, num_examples)) > num_tokens:
            fitting = max(shortest, min(fitting - 1, fitting * num_tokens // largest))
        return fitting

    def _max_tokens(self, length: int, num_examples: int) -> int:
        return max(question.seq for block in self._iter_blocks(length, num_examples) for question in block)

    def _iter_blocks(self, length: int, num_examples: int) -> Iterator[list[Question]]:
        num_examples = count_examples(self.task, length, num_examples)
        num_questions = 0
        for examples in iter_blocks(self.task, length, num_examples, self.seed):
            questions = []
            for place, text in enumerate(format_examples(self.task, examples)[: num_examples - num_questions]):
                rng = stream(self.seed, "shots", length, num_questions + place)
                shot_length = length if self.prompts.shot_length is None else self.prompts.shot_length
                shots = sample_shots(self.task, shot_length, self.prompts.shots, rng, excluded_prompts={text.prompt})
                context = "".join(shot.prompt + shot.response for shot in shots) + text.prompt
                questions.append(self.model.tokenize_question(context, text.response))
            num_questions += len(questions)
            yield questions

    def _check_num_positions(self, length: int, num_tokens: int) -> None:
        num_positions = self.model.num_positions
        if num_positions is not None and num_tokens > num_positions:
            raise ModelError(
                f"length {length} with {self.prompts.shots} shots gives a text of {num_tokens:,} tokens, but "
                f"{self.model.name} has {num_positions:,} positions; use shorter lengths, fewer --shots or "
                "a shorter --shot-length"
            )

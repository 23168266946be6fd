"""Exact match by length of any causal `transformers` language model, evaluated in plain text."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from lengthwise.core.errors import ModelError, SettingError
from lengthwise.core.randomness import random_stream
from lengthwise.evaluation.exact_match import EvaluationSettings, count_examples, iter_example_blocks
from lengthwise.evaluation.grading import Grades, GradeTally, LengthResult, measure_each_length
from lengthwise.evaluation.language_model import check_token_ids
from lengthwise.hf.causal_lm import check_causal
from lengthwise.hf.model_parts import device_of
from lengthwise.hf.tokenization import HFTokenizerAdapter
from lengthwise.tasks import HasFixedLengths, Task, record_count_field
from lengthwise.tasks.text_format import PromptFormat, format_examples, sample_few_shot_examples

# Limits of one forward pass: input tokens, and logits (examples x answer tokens x vocabulary).
MAX_FORWARD_TOKENS, MAX_FORWARD_LOGITS = 1 << 15, 1 << 27
# Keys of `LengthResult` that rows leave out or replace, because plain text has no scheme.
OMITTED_RESULT_KEYS = ("exact_tokens", "id_accuracy", "answer_loss", "largest_distance", "wall_s", "omitted_weight")
Answers = Int[Tensor, "batch answer"]
AnswerMask = Bool[Tensor, "batch answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedQuestion:
    """Tokens of a context and of its expected answer, which includes a newline."""

    context_tokens: tuple[int, ...]
    answer_tokens: tuple[int, ...]

    @property
    def seq(self) -> int:
        """Number of tokens of context and answer."""
        return len(self.context_tokens) + len(self.answer_tokens)


class PlainTextModel:
    """Causal `transformers` model for evaluation in plain text. Its position IDs are consecutive, from 0.

    Layers of any type are supported. Raises ``ModelError`` for a model that is not causal or predicts position IDs.
    """

    def __init__(self, model: PreTrainedModel, codec: HFTokenizerAdapter, name: str) -> None:
        if getattr(model, "num_position_heads", 0):
            raise ModelError(
                f"{name} predicts position IDs, but plain text has no prompt IDs; use lengthwise.hf.EvaluateByLength, "
                "or, for an exported run, restore the run with lengthwise export --format run and evaluate it"
            )
        check_causal(name, model)
        self.model, self.codec, self.name = model.eval(), codec, name
        config = model.config.get_text_config()
        self.vocabulary_size = int(config.vocab_size)
        max_position_embeddings = getattr(config, "max_position_embeddings", None)
        self.num_positions = None if max_position_embeddings is None else int(max_position_embeddings)
        self.has_logits_to_keep = "logits_to_keep" in inspect.signature(model.forward).parameters
        # The model's own settings may penalize tokens, but greedy decoding must choose the most likely token.
        model.generation_config = GenerationConfig(do_sample=False, num_beams=1)

    def tokenize_question(self, context: str, answer: str) -> TokenizedQuestion:
        """Tokenize context and answer. Raises ``ModelError`` if the tokens do not decode to the same text.

        Context and answer are tokenized together. If a token would contain characters of both, they are tokenized
        separately.
        """
        prefix, tokens = ([*self.codec.start, *self.codec.encode(text)] for text in (context, context + answer))
        is_prefix = tokens[: len(prefix)] == prefix
        answer_tokens = tokens[len(prefix) :] if is_prefix else self.codec.encode(answer)
        question = TokenizedQuestion(context_tokens=tuple(prefix), answer_tokens=tuple(answer_tokens))
        text = self.codec.decode((question.context_tokens + question.answer_tokens)[len(self.codec.start) :]).strip(" ")
        # Some tokenizers add a space before every text, and some remove it.
        expected = (context + answer).strip(" ")
        if text != expected:
            raise ModelError(
                f"the tokenizer of {self.name} changes the text: {_first_difference(text, expected)}; use a model "
                "with a tokenizer that keeps symbols, spaces and newlines"
            )
        return question

    def check_not_nan(self, logits: Float[Tensor, "*places vocab"]) -> None:
        """Raise ``ModelError`` for NaN logits, because their argmax would be token 0."""
        if bool(logits.isnan().any()):
            raise ModelError(
                f"{self.name} predicts NaN, perhaps from an overflow of half precision; use another --dtype, such as "
                "float32"
            )

    def grade(self, questions: Sequence[TokenizedQuestion], *, decode: str) -> Iterator[Grades]:
        """Grade the answers batch by batch, in order.

        With ``decode="forced"``, one forward pass per batch predicts each token from the correct previous tokens. With
        ``decode="free"``, the model generates until a newline. Text that equals the answer is correct, even if its
        tokens differ from the answer tokens. Raises ``ModelError`` for a token outside the vocabulary of the model.
        """
        largest = max(max(question.context_tokens + question.answer_tokens) for question in questions)
        check_token_ids(self.codec.name, largest, self.vocabulary_size)
        for batch in self._batches(questions):
            yield self._grade_forced(batch) if decode == "forced" else self._grade_free(batch)

    def _batches(self, questions: Sequence[TokenizedQuestion]) -> Iterator[list[TokenizedQuestion]]:
        batch: list[TokenizedQuestion] = []
        for question in questions:
            larger = [*batch, question]
            seq, shortest = max(member.seq for member in larger), min(len(member.context_tokens) for member in larger)
            num_logits = (seq - shortest) * self.vocabulary_size
            if batch and len(larger) * max(seq / MAX_FORWARD_TOKENS, num_logits / MAX_FORWARD_LOGITS) > 1:
                yield batch
                larger = [question]
            batch = larger
        if batch:
            yield batch

    @torch.no_grad()
    def _grade_forced(self, batch: list[TokenizedQuestion]) -> Grades:
        first = min(len(question.context_tokens) for question in batch) - 1
        last = max(question.seq for question in batch) - 1
        tokens = torch.zeros(len(batch), last, dtype=torch.int64)
        # Padding is on the right, where causal attention hides it.
        mask = torch.zeros_like(tokens)
        for row, question in enumerate(batch):
            tokens[row, : question.seq - 1] = torch.tensor((question.context_tokens + question.answer_tokens)[:-1])
            mask[row, : question.seq - 1] = 1
        device = device_of(self.model)
        arguments = {"logits_to_keep": torch.arange(first, last, device=device)} if self.has_logits_to_keep else {}
        model: Any = self.model
        output = model(input_ids=tokens.to(device), attention_mask=mask.to(device), use_cache=False, **arguments)
        logits = output.logits[:, first - last :]
        self.check_not_nan(logits)
        return self._grade_tokens(batch, logits.argmax(dim=-1).cpu(), *_stack_answers(batch))

    @torch.no_grad()
    def _grade_free(self, batch: list[TokenizedQuestion]) -> Grades:
        targets, is_answer_token = _stack_answers(batch)
        predicted = torch.full_like(targets, -1)
        is_text_correct = torch.zeros(len(batch), dtype=torch.bool)
        shortest = min(len(question.context_tokens) for question in batch)
        # Contexts of one length need no padding.
        for length in sorted({len(question.context_tokens) for question in batch}):
            rows = [row for row, question in enumerate(batch) if len(question.context_tokens) == length]
            for row, generated in zip(rows, self._generate([batch[row] for row in rows]), strict=True):
                columns = slice(length - shortest, length - shortest + len(generated))
                predicted[row, columns] = torch.tensor(generated)[: predicted.shape[1] - columns.start]
                is_text_correct[row] = self._is_answer(batch[row], generated)
        grades = self._grade_tokens(batch, predicted, targets, is_answer_token)
        grades.token_correct[is_text_correct] = True
        return grades

    def _generate(self, batch: list[TokenizedQuestion]) -> list[list[int]]:
        """Return the tokens generated after each context, up to the first newline."""
        context_tokens = torch.tensor([question.context_tokens for question in batch], device=device_of(self.model))
        # An answer has at most as many tokens as bytes.
        max_new_tokens = max(len(self.codec.decode(question.answer_tokens).encode()) for question in batch)
        if self.num_positions is not None:
            max_new_tokens = min(max_new_tokens, self.num_positions - context_tokens.shape[1])
        greedy_settings = {"do_sample": False, "num_beams": 1, "pad_token_id": 0}

        def check_scores(input_ids: Tensor, scores: Tensor) -> Tensor:
            self.check_not_nan(scores)
            return scores

        def ends_line(input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
            is_newline = ["\n" in self.codec.token_text(token) for token in input_ids[:, -1].tolist()]
            return torch.tensor(is_newline, device=input_ids.device)

        model: Any = self.model
        output = model.generate(
            input_ids=context_tokens,
            attention_mask=torch.ones_like(context_tokens),
            generation_config=GenerationConfig(max_new_tokens=max_new_tokens, **greedy_settings),
            stopping_criteria=[ends_line],
            logits_processor=[check_scores],
        )
        answers = []
        for generated_tokens in output[:, context_tokens.shape[1] :].tolist():
            is_newline = ["\n" in self.codec.token_text(token) for token in generated_tokens]
            answers.append(generated_tokens[: is_newline.index(True) + 1] if any(is_newline) else generated_tokens)
        return answers

    def _is_answer(self, question: TokenizedQuestion, generated_tokens: list[int]) -> bool:
        """Return True if the generated text, up to its newline, equals the answer."""
        decode, context_tokens = self.codec.decode, question.context_tokens
        context = decode(context_tokens)
        expected, text = (decode((*context_tokens, *tokens)) for tokens in (question.answer_tokens, generated_tokens))
        first_line, newline, _ = text[len(context) :].partition("\n")
        return first_line + newline == expected[len(context) :]

    def _grade_tokens(
        self, batch: list[TokenizedQuestion], predicted: Answers, targets: Answers, scored: AnswerMask
    ) -> Grades:
        tokens = [token for token in predicted.unique().tolist() if token >= 0]
        newlines = [token for token in tokens if "\n" in self.codec.token_text(token)]
        shortest = min(len(question.context_tokens) for question in batch)
        answer_columns = torch.tensor([len(question.context_tokens) - shortest for question in batch])
        columns = torch.arange(targets.shape[1])
        last_columns = answer_columns + torch.tensor([len(question.answer_tokens) - 1 for question in batch])
        return Grades(
            token_correct=predicted == targets,
            id_correct=torch.ones_like(scored),
            scored=scored,
            id_scored=torch.zeros_like(scored),
            end=(columns == last_columns[:, None]) | torch.isin(predicted, torch.tensor(newlines, dtype=torch.int64)),
            prompt_offset=answer_columns,
        )


def _stack_answers(batch: list[TokenizedQuestion]) -> tuple[Answers, AnswerMask]:
    """Return the answer tokens (-1 elsewhere) and their mask. Column 0 follows the shortest context of the batch."""
    start, end = min(len(question.context_tokens) for question in batch), max(question.seq for question in batch)
    targets = torch.full((len(batch), end - start), -1)
    for row, question in enumerate(batch):
        columns = slice(len(question.context_tokens) - start, question.seq - start)
        targets[row, columns] = torch.tensor(question.answer_tokens)
    return targets, targets >= 0


def _first_difference(text: str, expected: str) -> str:
    pairs = enumerate(zip(text, expected, strict=False))
    difference_index = next((index for index, (a, b) in pairs if a != b), min(len(text), len(expected)))
    excerpt_slice = slice(max(0, difference_index - 4), difference_index + 8)
    return f"{expected[excerpt_slice]!r} becomes {text[excerpt_slice]!r}"


@dataclass(frozen=True, slots=True)
class QuestionBuilder:
    """Writer of the test examples of a task as questions to a model."""

    model: PlainTextModel
    task: Task
    prompts: PromptFormat
    seed: int

    def questions(self, length: int, num_examples: int) -> Iterator[list[TokenizedQuestion]]:
        """Yield blocks of questions. The context of a question consists of its shots and its prompt.

        Raises ``ModelError`` if a text has more tokens than the model has positions.
        """
        num_positions = self.model.num_positions
        for block in self._iter_blocks(length, num_examples):
            largest = max(question.seq for question in block)
            if num_positions is not None and largest > num_positions:
                raise ModelError(
                    f"length {length} with {self.prompts.shots} shots gives a text of {largest:,} tokens, but "
                    f"{self.model.name} has {num_positions:,} positions; use shorter lengths, fewer --shots or "
                    "a shorter --shot-length"
                )
            yield block

    def find_length_for_tokens(self, num_tokens: int, num_examples: int) -> int:
        """Return a length of the task at which every text has at most ``num_tokens`` tokens, near the longest such one.

        Raises ``SettingError`` if the shortest text has more tokens, or if the task has examples only at some lengths.
        """
        if isinstance(self.task, HasFixedLengths):
            raise SettingError(
                f"the file of {self.task.name} has only some lengths; leave out --in-tokens and use its own lengths"
            )
        shortest = self.task.min_length
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

    def _iter_blocks(self, length: int, num_examples: int) -> Iterator[list[TokenizedQuestion]]:
        num_examples = count_examples(self.task, length, num_examples)
        num_questions = 0
        for examples in iter_example_blocks(self.task, length, num_examples, self.seed):
            questions = []
            for place, text in enumerate(format_examples(self.task, examples)[: num_examples - num_questions]):
                rng = random_stream(self.seed, "shots", length, num_questions + place)
                shot_length = length if self.prompts.shot_length is None else self.prompts.shot_length
                shots = sample_few_shot_examples(
                    self.task, shot_length, self.prompts.shots, rng, excluded_prompts={text.prompt}
                )
                context = "".join(shot.prompt + shot.response for shot in shots) + text.prompt
                questions.append(self.model.tokenize_question(context, text.response))
            num_questions += len(questions)
            yield questions


def evaluate_in_plain_text(
    model: PlainTextModel,
    task: Task,
    settings: EvaluationSettings,
    *,
    prompts: PromptFormat | None = None,
    report: Callable[[int, int, int], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Evaluate a model on the test examples of a task in plain text, and yield one result row per length.

    ``length`` of a row counts the items of the task. ``text_tokens`` is the largest number of tokens of a text with its
    answer, and ``requested_tokens`` its upper limit, which is None unless the settings give lengths in tokens.
    ``token_accuracy`` and the indexes of first errors refer to tokens of the model, not to symbols of the task. A
    ``skipped`` row has no ``text_tokens`` (None). ``report(length, num_done, num_total)`` gets the length of the
    settings. Unsupported tasks, lengths and tokenizers raise ``LengthwiseError`` before evaluation.
    """
    prompts = PromptFormat() if prompts is None else prompts
    writer = QuestionBuilder(model, task, prompts, settings.seed)
    counts = [settings.num_examples_at(index) for index in range(len(settings.lengths))]
    if prompts.in_tokens:
        limits = settings.lengths
        lengths = [writer.find_length_for_tokens(limit, count) for limit, count in zip(limits, counts, strict=True)]
    else:
        lengths = list(settings.lengths)
    for length in lengths:
        next(writer.questions(length, 1))
    sizes: list[int] = []

    def measure(index: int) -> LengthResult:
        length, tally = lengths[index], GradeTally()
        num_examples = count_examples(task, length, counts[index])
        sizes.append(0)
        for questions in writer.questions(length, num_examples):
            sizes[index] = max(sizes[index], *(question.seq for question in questions))
            for grades in model.grade(questions, decode=settings.decode):
                tally.add(grades)
                if report is not None:
                    report(settings.lengths[index], tally.num_examples, num_examples)
        return tally.result(length, settings.decode)

    results = measure_each_length(lengths, settings.decode, measure, stop_at_zero=settings.stop_at_zero)
    for index, result in enumerate(results):
        values = asdict(result)
        yield {
            "shots": prompts.shots,
            "shot_length": prompts.shot_length,
            **{name: value for name, value in values.items() if name not in OMITTED_RESULT_KEYS},
            "text_tokens": None if result.skipped else sizes[index],
            "requested_tokens": settings.lengths[index] if prompts.in_tokens else None,
            **record_count_field(task, result.length),
            "wall_s": result.wall_s,
        }

"""Grading of the answers of any causal `transformers` language model in plain text."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel
from transformers.generation.stopping_criteria import StoppingCriteria, StoppingCriteriaList

from lengthwise.core.errors import ModelError
from lengthwise.evaluation.grading import Grades
from lengthwise.hf.compatibility import check_causal
from lengthwise.hf.model_parts import device_of
from lengthwise.hf.tokenization import HFCodec
from lengthwise.influence.text_codec import check_token_ids

# Limits of one forward pass: input tokens, and logits (examples x answer tokens x vocabulary).
MAX_FORWARD_TOKENS, MAX_FORWARD_LOGITS = 1 << 15, 1 << 27
Answers = Int[Tensor, "batch answer"]
AnswerMask = Bool[Tensor, "batch answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Tokens of a context and of its expected answer, which includes a newline."""

    context_tokens: tuple[int, ...]
    answer_tokens: tuple[int, ...]

    @property
    def seq(self) -> int:
        """Number of tokens of context and answer."""
        return len(self.context_tokens) + len(self.answer_tokens)


class TextModel:
    """Causal `transformers` model for evaluation in plain text. Its position IDs are consecutive, from 0.

    Layers of any type are supported. Raises ``ModelError`` for a model that is not causal or predicts position IDs.
    """

    def __init__(self, model: PreTrainedModel, codec: HFCodec, name: str) -> None:
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

    def tokenize_question(self, context: str, answer: str) -> Question:
        """Tokenize context and answer. Raises ``ModelError`` if the tokens do not decode to the same text.

        Context and answer are tokenized together. If a token would contain characters of both, they are tokenized
        separately.
        """
        prefix, tokens = ([*self.codec.start, *self.codec.encode(text)] for text in (context, context + answer))
        is_prefix = tokens[: len(prefix)] == prefix
        answer_tokens = tokens[len(prefix) :] if is_prefix else self.codec.encode(answer)
        question = Question(context_tokens=tuple(prefix), answer_tokens=tuple(answer_tokens))
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

    def grade(self, questions: Sequence[Question], *, decode: str) -> Iterator[Grades]:
        """Grade the answers batch by batch, in order.

        With ``decode="forced"``, one forward pass per batch predicts each token from the correct previous tokens. With
        ``decode="free"``, the model generates until a newline. Text that equals the answer is correct, even if its
        tokens differ from the answer tokens. Raises ``ModelError`` for a token outside the vocabulary of the model.
        """
        largest = max(max(question.context_tokens + question.answer_tokens) for question in questions)
        check_token_ids(self.codec.name, largest, self.vocabulary_size)
        for batch in self._batches(questions):
            yield self._grade_forced(batch) if decode == "forced" else self._grade_free(batch)

    def _batches(self, questions: Sequence[Question]) -> Iterator[list[Question]]:
        batch: list[Question] = []
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
    def _grade_forced(self, batch: list[Question]) -> Grades:
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
    def _grade_free(self, batch: list[Question]) -> Grades:
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

    def _generate(self, batch: list[Question]) -> list[list[int]]:
        """Return the tokens generated after each context, up to the first newline."""
        context_tokens = torch.tensor([question.context_tokens for question in batch], device=device_of(self.model))
        # An answer has at most as many tokens as bytes.
        max_new_tokens = max(len(self.codec.decode(question.answer_tokens).encode()) for question in batch)
        if self.num_positions is not None:
            max_new_tokens = min(max_new_tokens, self.num_positions - context_tokens.shape[1])
        greedy_settings = {"do_sample": False, "num_beams": 1, "pad_token_id": 0}
        model: Any = self.model
        output = model.generate(
            input_ids=context_tokens,
            attention_mask=torch.ones_like(context_tokens),
            generation_config=GenerationConfig(max_new_tokens=max_new_tokens, **greedy_settings),
            stopping_criteria=StoppingCriteriaList([_NewlineStoppingCriterion(self.codec)]),
            logits_processor=LogitsProcessorList([_NaNCheckProcessor(self)]),
        )
        answers = []
        for generated_tokens in output[:, context_tokens.shape[1] :].tolist():
            is_newline = ["\n" in self.codec.token_text(token) for token in generated_tokens]
            answers.append(generated_tokens[: is_newline.index(True) + 1] if any(is_newline) else generated_tokens)
        return answers

    def _is_answer(self, question: Question, generated_tokens: list[int]) -> bool:
        """Return True if the generated text, up to its newline, equals the answer."""
        decode, context_tokens = self.codec.decode, question.context_tokens
        context = decode(context_tokens)
        expected, text = (decode((*context_tokens, *tokens)) for tokens in (question.answer_tokens, generated_tokens))
        first_line, newline, _ = text[len(context) :].partition("\n")
        return first_line + newline == expected[len(context) :]

    def _grade_tokens(self, batch: list[Question], predicted: Answers, targets: Answers, scored: AnswerMask) -> Grades:
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


class _NaNCheckProcessor(LogitsProcessor):
    """Logits processor that raises ``ModelError`` for NaN logits, and returns other logits unchanged."""

    def __init__(self, model: TextModel) -> None:
        self.model = model

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.model.check_not_nan(scores)
        return scores


class _NewlineStoppingCriterion(StoppingCriteria):
    """Stopping criterion that ends each sequence after its first newline."""

    def __init__(self, codec: HFCodec) -> None:
        self.codec = codec
        self.is_done: Tensor | None = None

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        is_newline = ["\n" in self.codec.token_text(token) for token in input_ids[:, -1].tolist()]
        is_done = torch.tensor(is_newline, device=input_ids.device)
        self.is_done = is_done if self.is_done is None else self.is_done | is_done
        return self.is_done


def _stack_answers(batch: list[Question]) -> tuple[Answers, AnswerMask]:
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

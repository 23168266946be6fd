"""Grades of the answer tokens and IDs of a batch, with teacher forcing or free decoding, and results of lengths."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from lengthwise.core.confidence_intervals import wilson_interval
from lengthwise.core.errors import DivergedError
from lengthwise.model.attention_scores import NO_HOOKS, AttentionHooks
from lengthwise.model.decoder import Decoder
from lengthwise.model.fast.near_attention import NearAttention
from lengthwise.model.generate import generate
from lengthwise.training.batch import Batch

DECODE_MODES = ("forced", "free")
# Sequences with more tokens use ``NearAttention`` if the decoder allows it, which has the same result.
MAX_DENSE_TOKENS = 1 << 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Grades:
    """Correctness of each token and ID; column 0 is the first token after the shortest prompt of the batch.

    ``scored`` and ``id_scored`` are masks of the tokens and IDs that count (see ``Batch``); no ID counts if the model
    predicts no IDs. ``end`` marks target or predicted end tokens. ``prompt_offset`` is the column of the first token
    after the prompt of each example. ``token_loss`` is the loss of the correct token (nats); None for free decoding,
    where the preceding tokens differ. ``omitted_weight`` bounds the attention weight that ``NearAttention`` has left
    out.
    """

    token_correct: Bool[Tensor, "batch answer"]
    id_correct: Bool[Tensor, "batch answer"]
    scored: Bool[Tensor, "batch answer"]
    id_scored: Bool[Tensor, "batch answer"]
    end: Bool[Tensor, "batch answer"]
    prompt_offset: Int[Tensor, " batch"]
    token_loss: Float[Tensor, "batch answer"] | None = None
    omitted_weight: float = 0.0

    @property
    def token_errors(self) -> Bool[Tensor, "batch answer"]:
        """Mask of scored tokens that are wrong."""
        return self.scored & ~self.token_correct

    @property
    def id_errors(self) -> Bool[Tensor, "batch answer"]:
        """Mask of scored IDs that are wrong."""
        return self.id_scored & ~self.id_correct


def first_errors(grades: Grades) -> list[tuple[int, int, str]]:
    """Return example index, column and kind (token, id or end) of the first error of each failed example."""
    token_errors = grades.token_errors
    errors = token_errors | grades.id_errors
    results = []
    for example in errors.any(dim=1).nonzero()[:, 0].tolist():
        column = int(errors[example].int().argmax())
        # A token is predicted before its ID, so a wrong token is the first error of its column.
        kind = "id" if not token_errors[example, column] else "end" if grades.end[example, column] else "token"
        results.append((example, column, kind))
    return results


@torch.no_grad()
def grade(decoder: Decoder, batch: Batch, *, end: int, decode: str) -> Grades:
    """Grade a batch with teacher forcing (``decode`` is ``forced``) or free decoding (``free``).

    If each prompt has one correct answer, both give the same exact match. ``end`` is the end token.
    """
    batch = batch.to(next(decoder.parameters()).device)
    first_column = int(batch.prompt_length.min())
    targets, token_loss = batch.tokens[:, first_column:], None
    is_near_allowed = decoder.allows_near_attention and not batch.position_ids.is_floating_point()
    near = NearAttention() if is_near_allowed and batch.tokens.shape[1] > MAX_DENSE_TOKENS else None
    if decode == "forced":
        predicted_tokens, id_correct, token_loss = _grade_forced(decoder, batch, first_column, near)
    else:
        predicted_tokens, id_correct = _grade_free(decoder, batch, first_column, end)
    return Grades(
        token_correct=predicted_tokens == targets,
        id_correct=id_correct,
        scored=batch.token_scored[:, first_column:],
        id_scored=batch.id_scored[:, first_column:] & decoder.predicts_ids,
        end=(predicted_tokens == end) | (targets == end),
        prompt_offset=batch.prompt_length - first_column,
        token_loss=token_loss,
        omitted_weight=0.0 if near is None else near.omitted,
    )


def _grade_forced(
    decoder: Decoder, batch: Batch, first_column: int, near: NearAttention | None
) -> tuple[Int[Tensor, "batch answer"], Bool[Tensor, "batch answer"], Float[Tensor, "batch answer"]]:
    hidden, _ = decoder(
        batch.tokens[:, :-1],
        batch.position_ids[:, :, :-1],
        query_start=first_column - 1,
        hooks=NO_HOOKS if near is None else AttentionHooks(near=near),
    )
    targets = batch.tokens[:, first_column:]
    logits = decoder.token_logits(hidden)
    token_loss = cross_entropy(logits.mT, targets, reduction="none")
    if bool(token_loss[batch.token_scored[:, first_column:]].isnan().any()):
        # The argmax over NaN would be token 0.
        raise DivergedError("the token loss of the decoder is NaN; train the run again, or evaluate it in float32")
    id_correct = torch.ones_like(targets, dtype=torch.bool)
    if decoder.predicts_ids:
        ids = batch.position_ids
        prompts = decoder.build_prompt_keys(batch.tokens, ids, batch.prompt_length)
        predicted_ids = decoder.most_likely_ids(hidden, ids[:, :, first_column - 1 : -1], targets, prompts)
        id_correct = (predicted_ids == ids[:, :, first_column:]).all(dim=0)
    return logits.argmax(dim=-1), id_correct, token_loss


def _grade_free(
    decoder: Decoder, batch: Batch, first_column: int, end_token: int
) -> tuple[Int[Tensor, "batch answer"], Bool[Tensor, "batch answer"]]:
    """Decode freely, and return predicted tokens and correct IDs; tokens after an early end count as errors."""
    predicted_tokens = torch.full_like(batch.tokens[:, first_column:], -1)
    predicted_ids = torch.full_like(batch.position_ids[:, :, first_column:], -1)
    for prompt_length in sorted(set(batch.prompt_length.tolist())):
        in_group = batch.prompt_length == prompt_length
        prompt_ids = batch.position_ids[:, in_group, : prompt_length if decoder.predicts_ids else None]
        prompt, limit = batch.tokens[in_group, :prompt_length], batch.tokens.shape[1] - prompt_length
        output = generate(decoder, prompt, prompt_ids, end=end_token, max_new_tokens=limit)
        columns = slice(prompt_length - first_column, prompt_length - first_column + output.tokens.shape[1])
        predicted_tokens[in_group, columns] = output.tokens.masked_fill(~output.is_written, -1)
        predicted_ids[:, in_group, columns] = output.position_ids.masked_fill(~output.is_written, -1)
    return predicted_tokens, (predicted_ids == batch.position_ids[:, :, first_column:]).all(dim=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstErrors:
    """Number of first errors of each kind in failed examples, and their median index in the response (from 0)."""

    median_index: float
    token: int
    id: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthResult:
    """Result at one length. ``exact_match`` requires correct tokens, a correct end token and, for PPC, correct IDs.

    ``low`` and ``high`` bound the 95% Wilson interval of ``exact_match``. ``exact_tokens`` ignores IDs. ``id_accuracy``
    is None for a model without a position head, which predicts no IDs. ``answer_loss`` is the mean teacher-forced loss
    of answer tokens (nats per token; None for free decoding). ``largest_distance`` is the largest difference between
    two IDs of one example. ``omitted_weight`` bounds the attention weight that an answer of a long sequence has left
    out (``NearAttention``); it is lost in rounding.

    A ``skipped`` length was not evaluated, because an earlier length had no exact match. Its ``exact_match`` counts as
    0 in all means. It has no examples, so its interval is 0 to 1, and no other measured value (None).
    """

    length: int
    num_examples: int
    decode: str
    exact_match: float
    low: float
    high: float
    exact_tokens: float | None
    token_accuracy: float | None
    id_accuracy: float | None
    answer_loss: float | None
    first_error: FirstErrors | None
    largest_distance: int | float | None
    wall_s: float
    omitted_weight: float | None = 0.0
    skipped: bool = False


def skipped_result(length: int, decode: str) -> LengthResult:
    """Return the result at a length that was not evaluated, because an earlier length had no exact match."""
    unknown = ("exact_tokens", "token_accuracy", "id_accuracy", "answer_loss", "first_error", "largest_distance")
    values: dict[str, Any] = {**dict.fromkeys((*unknown, "omitted_weight")), "low": 0.0, "high": 1.0, "wall_s": 0.0}
    return LengthResult(length=length, num_examples=0, decode=decode, exact_match=0.0, skipped=True, **values)


class GradeTally:
    """Running totals over the graded batches of one length."""

    def __init__(self) -> None:
        self.num_examples = self.num_exact = self.num_exact_tokens = 0
        self.num_tokens = self.num_correct_tokens = self.num_ids = self.num_correct_ids = 0
        self.total_loss: float | None = 0.0
        self.omitted_weight = 0.0
        self.largest_distance: int | float = 0
        self.first_error_indices: list[int] = []
        self.kinds: Counter[str] = Counter()

    def add(self, grades: Grades, distance: int | float = 0) -> None:
        """Add the grades of one batch, with the largest ID distance in an example."""
        self.largest_distance = max(self.largest_distance, distance)
        self.num_examples += len(grades.scored)
        self.omitted_weight = max(self.omitted_weight, grades.omitted_weight)
        self.num_exact += int((~(grades.token_errors | grades.id_errors).any(dim=1)).sum())
        self.num_exact_tokens += int((~grades.token_errors.any(dim=1)).sum())
        self.num_tokens += int(grades.scored.sum())
        self.num_correct_tokens += int((grades.scored & grades.token_correct).sum())
        if grades.token_loss is None or self.total_loss is None:
            self.total_loss = None
        else:
            self.total_loss += float(grades.token_loss[grades.scored].double().sum())
        self.num_ids += int(grades.id_scored.sum())
        self.num_correct_ids += int((grades.id_scored & grades.id_correct).sum())
        for example, column, kind in first_errors(grades):
            self.first_error_indices.append(column - int(grades.prompt_offset[example]))
            self.kinds[kind] += 1

    def result(self, length: int, decode: str) -> LengthResult:
        """Return the result of all examples, which have length ``length``; `measure_each_length` sets ``wall_s``."""
        low, high = wilson_interval(self.num_exact, self.num_examples)
        first_error = None
        if self.first_error_indices:
            median, kinds = float(statistics.median(self.first_error_indices)), self.kinds
            first_error = FirstErrors(median_index=median, token=kinds["token"], id=kinds["id"], end=kinds["end"])
        return LengthResult(
            length=length,
            num_examples=self.num_examples,
            decode=decode,
            exact_match=self.num_exact / self.num_examples,
            low=low,
            high=high,
            exact_tokens=self.num_exact_tokens / self.num_examples,
            token_accuracy=self.num_correct_tokens / max(1, self.num_tokens),
            id_accuracy=self.num_correct_ids / self.num_ids if self.num_ids else None,
            answer_loss=None if self.total_loss is None else self.total_loss / max(1, self.num_tokens),
            first_error=first_error,
            largest_distance=self.largest_distance,
            wall_s=0.0,
            omitted_weight=self.omitted_weight,
        )


def measure_each_length(
    lengths: Sequence[int], decode: str, measure: Callable[[int], LengthResult], *, stop_at_zero: bool
) -> Iterator[LengthResult]:
    """Yield the result of each length with its time; ``measure`` receives the index of the length.

    With ``stop_at_zero``, all lengths after one with exact match 0 are skipped.
    """
    is_stopped = False
    for index, length in enumerate(lengths):
        if is_stopped:
            yield skipped_result(length, decode)
            continue
        start_time = time.perf_counter()
        result = measure(index)
        yield replace(result, wall_s=round(time.perf_counter() - start_time, 3))
        is_stopped = stop_at_zero and result.exact_match == 0

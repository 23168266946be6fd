"""Result at one length, from the grades of its batches."""

import statistics
from collections import Counter
from dataclasses import dataclass
from typing import Any

from lengthwise.core.intervals import wilson_interval
from lengthwise.evaluation.grading import Grades, first_errors


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


class Tally:
    """Running totals over the graded batches of one length."""

    def __init__(self) -> None:
        self.num_examples = self.num_exact = self.num_exact_tokens = 0
        self.num_tokens = self.num_correct_tokens = self.num_ids = self.num_correct_ids = 0
        self.total_loss: float | None = 0.0
        self.omitted_weight = 0.0
        self.first_error_indices: list[int] = []
        self.kinds: Counter[str] = Counter()

    def add(self, grades: Grades) -> None:
        """Add the grades of one batch."""
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

    def result(self, length: int, decode: str, distance: int | float) -> LengthResult:
        """Return the result of all examples, which have length ``length``; the caller sets ``wall_s`` (seconds)."""
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
            largest_distance=distance,
            wall_s=0.0,
            omitted_weight=self.omitted_weight,
        )

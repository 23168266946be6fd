"""Which examples of a length fail, where each first goes wrong, and how."""

from collections import Counter
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from jaxtyping import Bool, Int

from lengthwise.core.randomness import stream
from lengthwise.evaluation.exact_match import check_id_range, iter_examples
from lengthwise.evaluation.forecast.probed_model import Subject
from lengthwise.evaluation.grading import Grades, first_errors, grade
from lengthwise.model.decoder import Decoder
from lengthwise.tasks.examples import Examples
from lengthwise.training.batch import Batch

KINDS = ("token", "id", "end too early", "end too late")
# Examples that are gone on with from their own IDs.
GONE_ON_WITH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Some examples, and the token index of one answer of each."""

    examples: Examples
    batch: Batch
    answer: Int[np.ndarray, " some"]

    def rows(self, rows: Int[np.ndarray, " fewer"]) -> "Answers":
        """Some of them."""
        return Answers(examples=self.examples.select(rows), batch=self.batch.select(rows), answer=self.answer[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The first errors of some examples that are not exact, and how each goes wrong there.

    ``tokens_right``: all of its tokens are right, as long as it is given the right IDs; ``ids_right``: all its IDs are.
    """

    first: Answers
    kind: tuple[str, ...]
    tokens_right: Bool[np.ndarray, " failed"]
    ids_right: Bool[np.ndarray, " failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """The examples of a length that fail and, of each that has one, an answer that is right."""

    failed: list[Failed]
    right: list[Answers]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """How many fail and how each first goes wrong; ``by_tenth``: in which tenth of its response.

    ``spoiled``: of those that first have an ID wrong, the share with a wrong token once the decoder goes on from its
    own IDs; None where there are none.
    """

    number: int
    token: int
    id: int
    end_too_early: int
    end_too_late: int
    median_index: float
    by_tenth: tuple[int, ...]
    spoiled: float | None


def find_failures(subject: Subject, length: int, num_examples: int) -> Tested:
    """Those among the examples that ``evaluate`` draws, as it grades them: the right answers given up to each token."""
    subject.decoder.eval()
    end, rng = subject.task.vocabulary.index("end"), stream(subject.seed, "diagnosis right answers", length)
    found = Tested(failed=[], right=[])
    for examples, batch in iter_examples(subject.task, subject.scheme, length, num_examples, subject.seed):
        check_id_range(subject.decoder.check_ids.num_position_ids, batch, length)
        graded = grade(subject.decoder, batch, end=end, decode="forced")
        found.right.append(_right_answers(examples, batch, graded, rng))
        errors = first_errors(graded)
        if not errors:
            continue
        rows, columns = (np.array([error[part] for error in errors]) for part in range(2))
        answer = columns - graded.prompt_offset.numpy()[rows] + examples.prompt_length[rows]
        late = examples.tokens[rows, answer] == end
        tokens_right = (graded.token_correct | ~graded.scored).all(dim=1).numpy()[rows]
        ids_right = (graded.id_correct | ~graded.id_scored).all(dim=1).numpy()[rows]
        found.failed.append(
            Failed(
                first=Answers(examples=examples.select(rows), batch=batch.select(rows), answer=answer),
                kind=tuple(_kind(error[2], bool(each)) for error, each in zip(errors, late, strict=True)),
                tokens_right=tokens_right,
                ids_right=ids_right,
            )
        )
    return found


def _right_answers(examples: Examples, batch: Batch, graded: Grades, rng: np.random.Generator) -> Answers:
    """One right answer of each example that has any, uniformly among those that are not the end token."""
    right = (graded.scored & graded.token_correct & (graded.id_correct | ~graded.id_scored) & ~graded.end).numpy()
    rows = np.flatnonzero(right.any(axis=1))
    columns = (rng.random(right.shape) * right).argmax(axis=1)
    answer = (columns - graded.prompt_offset.numpy() + examples.prompt_length)[rows]
    return Answers(examples=examples.select(rows), batch=batch.select(rows), answer=answer)


def _kind(kind: str, late: bool) -> str:
    return kind if kind != "end" else "end too late" if late else "end too early"


def count_failures(subject: Subject, failed: list[Failed]) -> Failures:
    """What they have in common; of at least one."""
    kinds = Counter(chain.from_iterable(each.kind for each in failed))
    first = [each.first for each in failed]
    index = np.concatenate([each.answer - each.examples.prompt_length for each in first])
    size = np.concatenate([each.examples.response_end - each.examples.prompt_length + 1 for each in first])
    return Failures(
        number=len(index),
        token=kinds["token"],
        id=kinds["id"],
        end_too_early=kinds["end too early"],
        end_too_late=kinds["end too late"],
        median_index=float(np.median(index)),
        by_tenth=tuple(np.bincount(10 * index // size, minlength=10).tolist()),
        spoiled=_spoiled(subject, failed),
    )


def _spoiled(subject: Subject, failed: list[Failed]) -> float | None:
    end, spoiled, room = subject.task.vocabulary.index("end"), [], GONE_ON_WITH
    for each in failed:
        rows = np.flatnonzero(np.array(each.kind) == "id")[:room]
        if len(rows):
            graded = grade(subject.decoder, each.first.batch.select(rows), end=end, decode="free")
            spoiled += (graded.scored & ~graded.token_correct).any(dim=1).tolist()
            room -= len(rows)
    return float(np.mean(spoiled)) if spoiled else None


@torch.no_grad()
def with_known_end(decoder: Decoder, failed: Failed, end: int) -> tuple[Bool[np.ndarray, " failed"], ...]:
    """Whether the first error, and whether all of the example, is right for who ends where the right answer does."""
    batch = failed.first.batch
    hidden, _ = decoder(batch.tokens[:, :-1], batch.position_ids[:, :, :-1])
    logits, targets = decoder.token_logits(hidden), batch.tokens[:, 1:]
    logits[..., end] = -torch.inf
    right = ((logits.argmax(dim=-1) == targets) | (targets == end) | ~batch.token_scored[:, 1:]).numpy()
    ended = np.array([kind.startswith("end") for kind in failed.kind])
    first = right[np.arange(len(ended)), failed.first.answer - 1]
    return ended & first, right.all(axis=1) & failed.ids_right

"""Answers of a decoder that reads a long sequence thinned: which of them are right."""

from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.core.randomness import stream
from lengthwise.evaluation.forecast.subsampling import Thinned
from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.model.decoder import Decoder
from lengthwise.model.position_heads import NextIDs
from lengthwise.positions import PositionScheme
from lengthwise.tasks import Task
from lengthwise.tasks.examples import Examples
from lengthwise.training.batch import Batch, to_batch

# Each question is asked with so many thinnings, and the mean of the log-probabilities counts: the noise of one
# thinning makes errors that the whole sequence would not.
DRAWS = 8
# Scores per layer and head that are held at once.
HELD = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What came of some questions.

    ``right``: token and, where it is due, ID, by the mean of the log-probabilities over draws; ``single``: by each
    draw alone. ``leakage``: the attention that the last token gives to what its answer does not need, the mean over
    questions and draws.
    """

    right: Bool[np.ndarray, " questions"]
    single: Bool[np.ndarray, "questions draws"]
    leakage: Float[np.ndarray, "layers heads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """One answer token each of examples of one length, with the IDs that they have there."""

    batch: Batch
    answer: Int[np.ndarray, " questions"]
    needed: list[Int[np.ndarray, " _"]]

    def most_answers(self, end: int) -> int:
        """Return the largest number of answer tokens that one example has, besides the end token."""
        return int((self.batch.token_scored & (self.batch.tokens != end)).sum(dim=1).max())


def draw_questions(task: Task, scheme: PositionScheme, length: int, number: int, seed: int) -> Questions:
    """Examples of a length, and of each one answer, uniformly among those that are not the end token."""
    rng = stream(seed, "forecast questions", length)
    examples = task.sample(length=length, size=number, rng=rng)
    batch = to_batch(length, examples, scheme.assign(examples, rng, training=False))
    answer = random_answers(batch, task.vocabulary.index("end"), rng)
    return Questions(batch=batch, answer=answer, needed=needed_tokens(task, examples, answer))


def draw_end_questions(task: Task, scheme: PositionScheme, length: int, number: int, seed: int) -> Questions | None:
    """Draw examples of a length, and ask for the end token of each; None where there is none."""
    rng = stream(seed, "forecast end questions", length)
    examples = task.sample(length=length, size=number, rng=rng)
    batch = to_batch(length, examples, scheme.assign(examples, rng, training=False))
    ends = (batch.token_scored & (batch.tokens == task.vocabulary.index("end"))).numpy()
    if not ends.any(axis=1).all():
        return None
    answer = np.asarray(ends.argmax(axis=1))
    return Questions(batch=batch, answer=answer, needed=needed_tokens(task, examples, answer))


def random_answers(batch: Batch, end: int, rng: np.random.Generator) -> Int[np.ndarray, " batch"]:
    """The token index of one answer of each example, uniformly among those that are not the end token."""
    answers = (batch.token_scored & (batch.tokens != end)).numpy()
    return np.asarray((rng.random(answers.shape) * answers).argmax(axis=1))


def needed_tokens(task: Task, examples: Examples, answer: Int[np.ndarray, " batch"]) -> list[Int[np.ndarray, " _"]]:
    """What each answer depends on, with the separators before it: what a segment is depends on these."""
    assert examples.support is not None
    separators = [task.vocabulary.index(symbol) for symbol in task.separators]
    found = []
    for row, end in enumerate(answer.tolist()):
        support = examples.support[row, end]
        marks = np.flatnonzero(np.isin(examples.tokens[row, :end], separators))
        found.append(np.union1d(support[support >= 0], marks))
    return found


@torch.no_grad()
def ask(decoder: Decoder, questions: Questions, thinned: Thinned) -> Asked:
    """Ask each question with its draws: rows of ``thinned`` are questions, and of each its draws.

    A key that stands for several tokens weighs as much as they, and as many are counted by what reads their number.
    """
    size = len(questions.answer)
    draws = len(thinned.last) // size
    heads = decoder.settings.num_heads
    step = max(1, HELD // (thinned.kept.shape[1] ** 2 * heads * draws))
    parts = [_part(decoder, questions, thinned, draws, slice(at, min(at + step, size))) for at in range(0, size, step)]
    leaked = [np.stack([layer.numpy() for layer in leakage]) for _, _, leakage in parts]
    return Asked(
        right=np.concatenate([right.numpy() for right, _, _ in parts]),
        single=np.concatenate([single.numpy() for _, single, _ in parts]),
        leakage=np.concatenate(leaked, axis=1).mean(axis=1),
    )


def _part(
    decoder: Decoder, questions: Questions, thinned: Thinned, draws: int, some: slice
) -> tuple[Bool[Tensor, " questions"], Bool[Tensor, "questions draws"], list[Float[Tensor, "rows heads"]]]:
    rows = slice(some.start * draws, some.stop * draws)
    batch, size = questions.batch.select(some), some.stop - some.start
    answer, last = torch.from_numpy(questions.answer[some]), torch.from_numpy(thinned.last[rows])
    part = _rows(thinned, rows)
    outside = _outside(part.kept, [needed for needed in questions.needed[some] for _ in range(draws)])
    leakage: list[Tensor] = []
    every = torch.arange(size * draws)

    def watch(weights: Tensor) -> None:
        leakage.append((weights[every, :, last] * outside[:, None]).sum(dim=-1))

    hidden, _ = decoder(
        batch.tokens,
        batch.position_ids,
        hooks=AttentionHooks(
            score_bias=torch.from_numpy(part.added_scores()).float(),
            visible_counts=torch.from_numpy(part.counted).float(),
            on_weights=watch,
        ),
        keep_indices=torch.from_numpy(part.kept),
    )
    asking = hidden[every, last].view(size, draws, -1)
    target = batch.tokens.gather(1, answer[:, None])
    log_probs = decoder.token_logits(asking).log_softmax(dim=-1)
    right, single = log_probs.mean(dim=1).argmax(dim=-1) == target[:, 0], log_probs.argmax(dim=-1) == target
    if decoder.predicts_ids:
        mean, each = _ids_right(decoder, batch, asking, answer)
        due = batch.id_scored.gather(1, answer[:, None])
        right, single = right & (mean | ~due[:, 0]), single & (each | ~due)
    return right, single, leakage


def _ids_right(
    decoder: Decoder, batch: Batch, asking: Float[Tensor, "questions draws d_model"], answer: Int[Tensor, " questions"]
) -> tuple[Bool[Tensor, " questions"], Bool[Tensor, "questions draws"]]:
    """All levels; the prompt, which a head looks up, is whole."""
    draws = asking.shape[1]
    index = answer[None, :, None]
    wanted = batch.position_ids.take_along_dim(index, dim=2)
    own = batch.position_ids.take_along_dim(index - 1, dim=2).expand(-1, -1, draws)
    tokens = batch.tokens.gather(1, answer[:, None]).expand(-1, draws)
    prompts = decoder.read_prompt(batch.tokens, batch.position_ids, batch.prompt_length)
    levels = decoder.next_ids(asking, own, tokens, prompts)
    single = torch.stack([level.most_likely() for level in levels])
    # The draws of a question have the same own ID, so the same candidates.
    means = [
        NextIDs(log_probs=level.log_probs.mean(dim=1, keepdim=True), candidates=level.candidates[:, :1])
        for level in levels
    ]
    mean = torch.stack([level.most_likely() for level in means])
    return (mean == wanted).all(dim=0)[:, 0], (single == wanted).all(dim=0)


def _rows(thinned: Thinned, rows: slice) -> Thinned:
    return Thinned(**{part.name: getattr(thinned, part.name)[rows] for part in fields(Thinned)})


def _outside(kept: Int[np.ndarray, "rows kept"], needed: list[Int[np.ndarray, " _"]]) -> Float[Tensor, "rows kept"]:
    """1 at kept tokens that are not needed, 0 at the others."""
    inside = np.stack([np.isin(row, tokens) for row, tokens in zip(kept, needed, strict=True)])
    return torch.from_numpy(1.0 - inside).float()

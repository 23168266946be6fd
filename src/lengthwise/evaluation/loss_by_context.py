"""Loss against context length: the same held-out tokens, predicted from more and more of what comes before them."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lengthwise.core.errors import SettingError
from lengthwise.core.intervals import clustered_interval
from lengthwise.core.randomness import stream
from lengthwise.evaluation.exact_match import (
    BLOCK,
    FORWARD_TOKENS,
    EvaluationSettings,
    check_range,
    evaluating,
    warn_of_untrained,
)
from lengthwise.model.decoder import Decoder
from lengthwise.positions import PositionScheme
from lengthwise.tasks import GradedByLoss, TokenizedDocument
from lengthwise.training.batch import Batch, to_batch

# Tokens that are scored at the end of each window: many enough to pay for reading it, few enough for contexts of
# almost one length.
SCORED = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLoss:
    """One context length: the mean loss of held-out tokens with ``shortest_context`` to ``length`` tokens before them.

    ``loss`` is in nats per token, ``low`` and ``high`` are its 95% interval over documents, None of a single one;
    ``perplexity`` is its exponential. Each of the ``num_examples`` windows scores its last ``scored_tokens`` tokens,
    the same ones at every length; where lengths have other numbers of windows, those of the fewer are among the more.
    """

    length: int
    shortest_context: int
    num_examples: int
    num_documents: int
    scored_tokens: int
    decode: str
    loss: float
    low: float | None
    high: float | None
    perplexity: float
    bits_per_byte: float | None
    token_accuracy: float
    largest_distance: int | float
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """Where tokens are scored: in which document, and at which token they end."""

    document: int
    end: int


def loss_by_context(
    decoder: Decoder,
    task: GradedByLoss,
    scheme: PositionScheme,
    settings: EvaluationSettings,
    *,
    trained_distance: int | float | None = None,
    report: Callable[[int, int, int], None] | None = None,
) -> tuple[ContextLoss, ...]:
    """Measure a decoder at each context length; ``report(length, done, total)`` is called as it goes.

    The windows are those of the documents that hold the longest context, drawn by the settings' seed; all there are
    when that is fewer than asked for. ``SettingError`` when no document is long enough; ``UntrainedDistanceWarning``
    when IDs lie further apart than ``trained_distance``.
    """
    return tuple(losses_by_context(decoder, task, scheme, settings, trained_distance=trained_distance, report=report))


def losses_by_context(
    decoder: Decoder,
    task: GradedByLoss,
    scheme: PositionScheme,
    settings: EvaluationSettings,
    *,
    trained_distance: int | float | None = None,
    report: Callable[[int, int, int], None] | None = None,
) -> Iterator[ContextLoss]:
    """Measure as ``loss_by_context``, and give each length's result as soon as it is measured."""
    windows, documents = _windows(task, settings), task.held_out()
    with evaluating(decoder):
        for place, length in enumerate(settings.lengths):
            started = time.perf_counter()
            chosen = windows[: settings.examples_at(place)]
            tally = _Tally(task.token_bytes(), min(SCORED, *settings.lengths))
            for at_once, batch in _batches(task, scheme, documents, chosen, length, settings.seed):
                check_range(decoder.check_ids.num_position_ids, batch, length)
                tally.add([window.document for window in at_once], batch, *_score(decoder, batch, tally.scored))
                if report is not None:
                    report(length, len(tally.documents), len(chosen))
            warn_of_untrained(decoder, scheme, length, tally.distance, trained_distance)
            yield tally.result(length, round(time.perf_counter() - started, 3))


def check_contexts(task: GradedByLoss, settings: EvaluationSettings) -> None:
    """Refuse settings that a loss cannot be measured with, and lengths that no held-out document has."""
    _windows(task, settings)


def _windows(task: GradedByLoss, settings: EvaluationSettings) -> list[_Window]:
    """Every window of the documents that hold the longest context, in an order that the seed shuffles."""
    if settings.decode != "forced" or settings.until_none:
        raise SettingError("a loss is measured on the text as it is; leave out --decode free and until_none")
    longest, scored = max(settings.lengths), min(SCORED, *settings.lengths)
    windows, most = [], 0
    for place, document in enumerate(task.held_out()):
        size = len(document.tokens)
        most = max(most, size)
        windows += [_Window(document=place, end=end) for end in range(longest + 1, size + 1, scored)]
    if not windows:
        raise SettingError(
            f"length {longest} takes {longest + 1} tokens and the longest held-out document has {most}; "
            f"use lengths up to {max(0, most - 1)}, or a corpus with longer documents (--corpus)"
        )
    order = stream(settings.seed, "evaluation windows").permutation(len(windows))
    return [windows[place] for place in order]


def _batches(
    task: GradedByLoss,
    scheme: PositionScheme,
    documents: Sequence[TokenizedDocument],
    windows: list[_Window],
    length: int,
    seed: int,
) -> Iterator[tuple[list[_Window], Batch]]:
    at_once = max(1, FORWARD_TOKENS // (length + 1))
    # IDs are drawn in blocks of one size, whatever fits in memory.
    for first in range(0, len(windows), BLOCK):
        block = windows[first : first + BLOCK]
        rows = [documents[window.document].tokens[window.end - length - 1 : window.end] for window in block]
        examples = task.lay_out(np.stack(rows).astype(np.int64))
        assignment = scheme.assign(examples, stream(seed, "evaluation positions", length, first), training=False)
        whole = to_batch(length, examples, assignment)
        for start in range(0, len(block), at_once):
            yield block[start : start + at_once], whole.select(slice(start, start + at_once))


@torch.no_grad()
def _score(
    decoder: Decoder, batch: Batch, scored: int
) -> tuple[Float[np.ndarray, "batch scored"], Bool[np.ndarray, "batch scored"]]:
    """The loss of each window's last tokens (nats), and whether each is the likeliest one."""
    batch = batch.to(next(decoder.parameters()).device)
    first = batch.tokens.shape[1] - 1 - scored
    hidden, _ = decoder(batch.tokens[:, :-1], batch.position_ids[:, :, :-1], query_start=first)
    logits, targets = decoder.token_logits(hidden), batch.tokens[:, first + 1 :]
    losses: Tensor = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    right = logits.argmax(dim=-1) == targets
    return losses.view(targets.shape).double().cpu().numpy(), right.cpu().numpy()


class _Tally:
    """Adds up the scored tokens of one length."""

    def __init__(self, token_bytes: Int[np.ndarray, " vocab"], scored: int) -> None:
        self.token_bytes, self.scored = token_bytes, scored
        self.documents: list[int] = []
        self.losses: list[Float[np.ndarray, " scored"]] = []
        self.right = self.bytes = 0
        self.distance: int | float = 0

    def add(
        self,
        documents: list[int],
        batch: Batch,
        losses: Float[np.ndarray, "batch scored"],
        right: Bool[np.ndarray, "batch scored"],
    ) -> None:
        """Take the windows of one batch."""
        self.documents += documents
        self.losses += list(losses)
        self.right += int(right.sum())
        self.bytes += int(self.token_bytes[batch.tokens[:, -self.scored :].numpy()].sum())
        self.distance = max(self.distance, (batch.position_ids.amax(-1) - batch.position_ids.amin(-1)).max().item())

    def result(self, length: int, wall_s: float) -> ContextLoss:
        """What was added up."""
        losses = np.stack(self.losses)
        _, place = np.unique(self.documents, return_inverse=True)
        sums = np.bincount(place, weights=losses.sum(axis=1))
        low, high = clustered_interval(sums, np.bincount(place) * self.scored)
        loss = float(losses.mean())
        return ContextLoss(
            length=length,
            shortest_context=length - self.scored + 1,
            num_examples=len(losses),
            num_documents=len(sums),
            scored_tokens=self.scored,
            decode="forced",
            loss=loss,
            low=low,
            high=high,
            perplexity=math.exp(loss),
            bits_per_byte=float(losses.sum()) / math.log(2) / self.bytes if self.bytes else None,
            token_accuracy=self.right / losses.size,
            largest_distance=self.distance,
            wall_s=wall_s,
        )

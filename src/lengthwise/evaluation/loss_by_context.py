"""Loss by context length: the same held-out tokens, predicted from contexts of increasing length."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lengthwise.core.confidence_intervals import clustered_interval
from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import random_stream
from lengthwise.evaluation.exact_match import (
    EXAMPLES_PER_BLOCK,
    FORWARD_TOKENS,
    EvaluationSettings,
    check_id_range,
    eval_mode,
    largest_id_distance,
    warn_untrained_distance,
)
from lengthwise.model.decoder import Decoder
from lengthwise.positions import PositionScheme
from lengthwise.tasks import GradedByLoss, TokenizedDocument
from lengthwise.training.batch import Batch, to_batch

# Scored tokens at the end of each window. More make better use of a forward pass; fewer have more equal contexts.
NUM_SCORED_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLoss:
    """The mean loss of held-out tokens that have ``shortest_context`` to ``length`` tokens before them.

    ``loss`` is in nats per token, with its 95% interval over documents (``low`` and ``high``, None for one document);
    ``perplexity`` is its exponential. Each of the ``num_examples`` windows scores its last ``scored_tokens`` tokens.
    All lengths score the same tokens; a length with fewer windows scores a subset of them.
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


class _Window(NamedTuple):
    """Span of scored tokens: the index of its document, and the token index after its last token."""

    document: int
    end: int


def iter_context_losses(
    decoder: Decoder,
    task: GradedByLoss,
    scheme: PositionScheme,
    settings: EvaluationSettings,
    *,
    trained_distance: int | float | None = None,
    report: Callable[[int, int, int], None] | None = None,
) -> Iterator[ContextLoss]:
    """Evaluate a decoder at each context length, and yield the result of each length when it is complete.

    ``report(length, num_done, num_total)`` counts windows. A window is a scored span with its context. Windows come
    from documents longer than the longest context, so there may be fewer than requested. Raises ``SettingError`` if no
    document is long enough, and emits ``UntrainedDistanceWarning`` if ID distances exceed ``trained_distance``.
    """
    all_windows, documents = _sample_windows(task, settings), task.held_out()
    num_scored, token_bytes = min(NUM_SCORED_TOKENS, *settings.lengths), task.count_token_bytes()
    with eval_mode(decoder):
        for length_index, length in enumerate(settings.lengths):
            start_time = time.perf_counter()
            windows = all_windows[: settings.num_examples_at(length_index)]
            window_losses: list[Float[np.ndarray, " scored"]] = []
            num_correct, num_bytes = 0, 0
            largest_distance: int | float = 0
            for batch in _iter_batches(task, scheme, documents, windows, length, settings.seed):
                check_id_range(decoder.check_ids.num_position_ids, batch, length)
                losses, correct = _score_batch(decoder, batch, num_scored)
                window_losses += list(losses)
                num_correct += int(correct.sum())
                num_bytes += int(token_bytes[batch.tokens[:, -num_scored:].numpy()].sum())
                largest_distance = max(largest_distance, largest_id_distance(batch))
                if report is not None:
                    report(length, len(window_losses), len(windows))
            warn_untrained_distance(decoder, scheme, length, largest_distance, trained_distance)
            # All windows of a document are one cluster.
            _, document_numbers = np.unique([window.document for window in windows], return_inverse=True)
            all_losses = np.stack(window_losses)
            document_losses = np.bincount(document_numbers, weights=all_losses.sum(axis=1))
            low, high = clustered_interval(document_losses, np.bincount(document_numbers) * num_scored)
            loss = float(all_losses.mean())
            yield ContextLoss(
                length=length,
                shortest_context=length - num_scored + 1,
                num_examples=len(windows),
                num_documents=len(document_losses),
                scored_tokens=num_scored,
                decode="forced",
                loss=loss,
                low=low,
                high=high,
                perplexity=math.exp(loss),
                bits_per_byte=float(all_losses.sum()) / math.log(2) / num_bytes if num_bytes else None,
                token_accuracy=num_correct / all_losses.size,
                largest_distance=largest_distance,
                wall_s=round(time.perf_counter() - start_time, 3),
            )


def check_context_lengths(task: GradedByLoss, settings: EvaluationSettings) -> None:
    """Raise ``SettingError`` for settings that do not apply to losses, or if no held-out document is long enough."""
    _sample_windows(task, settings)


def _sample_windows(task: GradedByLoss, settings: EvaluationSettings) -> list[_Window]:
    """Return all windows of documents longer than the longest context, shuffled with the seed."""
    if settings.decode != "forced" or settings.stop_at_zero:
        raise SettingError(
            "a task graded by loss requires teacher forcing at all lengths; leave out --decode free and stop_at_zero"
        )
    max_context, num_scored = max(settings.lengths), min(NUM_SCORED_TOKENS, *settings.lengths)
    windows, longest_document = [], 0
    for index, document in enumerate(task.held_out()):
        document_length = len(document.tokens)
        longest_document = max(longest_document, document_length)
        windows += [_Window(document=index, end=end) for end in range(max_context + 1, document_length + 1, num_scored)]
    if not windows:
        raise SettingError(
            f"length {max_context} needs {max_context + 1} tokens, but the longest held-out document has "
            f"{longest_document} tokens; use lengths up to {max(0, longest_document - 1)}, or a corpus with longer "
            "documents (--corpus)"
        )
    return [windows[index] for index in random_stream(settings.seed, "evaluation windows").permutation(len(windows))]


def _iter_batches(
    task: GradedByLoss,
    scheme: PositionScheme,
    documents: Sequence[TokenizedDocument],
    windows: list[_Window],
    length: int,
    seed: int,
) -> Iterator[Batch]:
    windows_per_pass = max(1, FORWARD_TOKENS // (length + 1))
    # Sampling uses blocks of a fixed size, so that IDs do not depend on memory.
    for block_start in range(0, len(windows), EXAMPLES_PER_BLOCK):
        block_windows = windows[block_start : block_start + EXAMPLES_PER_BLOCK]
        sequences = [
            documents[window.document].tokens[window.end - length - 1 : window.end] for window in block_windows
        ]
        examples = task.tokens_to_examples(np.stack(sequences).astype(np.int64))
        assignment = scheme.assign(
            examples, random_stream(seed, "evaluation positions", length, block_start), training=False
        )
        batch = to_batch(length, examples, assignment)
        for start in range(0, len(block_windows), windows_per_pass):
            yield batch.select_examples(slice(start, start + windows_per_pass))


@torch.no_grad()
def _score_batch(
    decoder: Decoder, batch: Batch, num_scored: int
) -> tuple[Float[np.ndarray, "batch scored"], Bool[np.ndarray, "batch scored"]]:
    """Return the losses of the scored tokens of each window (nats), and a mask of correct predictions."""
    batch = batch.to(next(decoder.parameters()).device)
    query_start = batch.tokens.shape[1] - 1 - num_scored
    hidden, _ = decoder(batch.tokens[:, :-1], batch.position_ids[:, :, :-1], query_start=query_start)
    logits, targets = decoder.token_logits(hidden), batch.tokens[:, query_start + 1 :]
    losses: Tensor = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view(targets.shape).double().cpu().numpy(), (logits.argmax(dim=-1) == targets).cpu().numpy()

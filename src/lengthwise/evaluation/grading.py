"""Which answer tokens and IDs of a batch a decoder gets right, teacher-forced or on its own."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from lengthwise.core.errors import DivergedError
from lengthwise.model.decoder import Decoder
from lengthwise.model.generate import generate
from lengthwise.training.batch import Batch

DECODES = ("forced", "free")
# Candidates scored at once: small enough to stay in a core's cache, which is several times faster than memory.
ID_CHUNK_ELEMENTS = 1 << 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """Which answer tokens and IDs of a batch are right; ``end`` marks where an end token is due or was written.

    ``token_loss``: what the right token costs there (nats); None of free decoding, where other tokens precede it.
    """

    token_right: Bool[Tensor, "batch answer"]
    id_right: Bool[Tensor, "batch answer"]
    scored: Bool[Tensor, "batch answer"]
    id_scored: Bool[Tensor, "batch answer"]
    end: Bool[Tensor, "batch answer"]
    prompt_offset: Int[Tensor, " batch"]
    token_loss: Float[Tensor, "batch answer"] | None = None


def first_errors(graded: Graded) -> list[tuple[int, int, str]]:
    """Of each row that is not exact: the row, the column of its first error, and its kind (token, id or end)."""
    token_wrong = graded.scored & ~graded.token_right
    wrong = token_wrong | (graded.id_scored & ~graded.id_right)
    found = []
    for row in wrong.any(dim=1).nonzero()[:, 0].tolist():
        column = int(wrong[row].int().argmax())
        # The token is chosen before its ID.
        kind = "id" if not token_wrong[row, column] else "end" if graded.end[row, column] else "token"
        found.append((row, column, kind))
    return found


@torch.no_grad()
def grade(decoder: Decoder, batch: Batch, *, end: int, decode: str) -> Graded:
    """Grade a batch by one of ``DECODES``; both give the same exact matches where one answer is right."""
    batch = batch.to(next(decoder.parameters()).device)
    return (_grade_forced if decode == "forced" else _grade_free)(decoder, batch, end)


def _grade_forced(decoder: Decoder, batch: Batch, end: int) -> Graded:
    first = int(batch.prompt_length.min()) - 1
    hidden, _ = decoder(batch.tokens[:, :-1], batch.position_ids[:, :, :-1], query_start=first)
    targets = batch.tokens[:, first + 1 :]
    logits = decoder.token_logits(hidden)
    written = logits.argmax(dim=-1)
    token_loss = cross_entropy(logits.mT, targets, reduction="none")
    scored = batch.token_scored[:, first + 1 :]
    if bool(token_loss[scored].isnan().any()):
        # The likeliest of these would be token 0, and wrong.
        raise DivergedError("the decoder predicts what is no number; train it again, or evaluate in float32")
    id_scored = batch.id_scored[:, first + 1 :]
    id_right = torch.ones_like(scored)
    if decoder.predicts_ids:
        ids = batch.position_ids
        prompts = decoder.read_prompt(batch.tokens, ids, batch.prompt_length)
        chunk = max(1, ID_CHUNK_ELEMENTS // prompts[0].position_ids.numel())
        chunks = zip(
            torch.split(hidden, chunk, dim=1),
            torch.split(ids[:, :, first:-1], chunk, dim=2),
            torch.split(targets, chunk, dim=1),
            strict=True,
        )
        parts = [torch.stack([level.most_likely() for level in decoder.next_ids(*part, prompts)]) for part in chunks]
        id_right = (torch.cat(parts, dim=2) == ids[:, :, first + 1 :]).all(dim=0)
    return Graded(
        token_right=written == targets,
        id_right=id_right,
        scored=scored,
        id_scored=id_scored,
        end=(written == end) | (targets == end),
        prompt_offset=batch.prompt_length - 1 - first,
        token_loss=token_loss,
    )


def _grade_free(decoder: Decoder, batch: Batch, end: int) -> Graded:
    """Decode row by row of one prompt length; what is not written counts as wrong."""
    first = int(batch.prompt_length.min()) - 1
    targets, target_ids = batch.tokens[:, first + 1 :], batch.position_ids[:, :, first + 1 :]
    written = torch.full_like(targets, -1)
    written_ids = torch.full_like(target_ids, -1)
    for length in sorted(set(batch.prompt_length.tolist())):
        rows = batch.prompt_length == length
        given = batch.position_ids[:, rows, : length if decoder.predicts_ids else None]
        room = batch.tokens.shape[1] - length
        out = generate(decoder, batch.tokens[rows, :length], given, end=end, max_new_tokens=room)
        places = slice(length - first - 1, length - first - 1 + out.tokens.shape[1])
        written[rows, places] = out.tokens.masked_fill(~out.is_written, -1)
        written_ids[:, rows, places] = out.position_ids.masked_fill(~out.is_written, -1)
    return Graded(
        token_right=written == targets,
        id_right=(written_ids == target_ids).all(dim=0) | (not decoder.predicts_ids),
        scored=batch.token_scored[:, first + 1 :],
        id_scored=batch.id_scored[:, first + 1 :],
        end=(written == end) | (targets == end),
        prompt_offset=batch.prompt_length - 1 - first,
    )

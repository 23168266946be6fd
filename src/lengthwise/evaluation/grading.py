"""Grades of the answer tokens and IDs of a batch, with teacher forcing or free decoding."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

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
    targets, token_loss, near = batch.tokens[:, first_column:], None, _near_attention(decoder, batch)
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


def _near_attention(decoder: Decoder, batch: Batch) -> NearAttention | None:
    """Return near attention for long sequences, if the decoder allows it."""
    is_long = batch.tokens.shape[1] > MAX_DENSE_TOKENS
    is_allowed = decoder.allows_near_attention and not batch.position_ids.is_floating_point()
    return NearAttention() if is_long and is_allowed else None


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
        prompts = decoder.read_prompt(batch.tokens, ids, batch.prompt_length)
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

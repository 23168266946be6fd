"""Loss of a batch: cross-entropy of the answer tokens and, for PPC, of their IDs."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lengthwise.model.decoder import Decoder
from lengthwise.model.position_heads import NextIDs
from lengthwise.training.batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLoss:
    """Loss in nats and accuracies of a batch as scalar tensors; an accuracy without scored tokens is 1."""

    loss: Float[Tensor, ""]
    token_accuracy: Float[Tensor, ""]
    id_accuracy: Float[Tensor, ""]
    ids_in_reach: Float[Tensor, ""]


def answer_loss(decoder: Decoder, batch: Batch, id_weight: float, input_ids: Tensor | None = None) -> AnswerLoss:
    """Return the mean token cross-entropy plus, for PPC, ``id_weight`` times the mean ID cross-entropy.

    ``input_ids`` are the IDs that the decoder reads, by default the correct IDs. The ID losses of all levels are added,
    and an ID is correct if it is correct on all levels. The loss ignores IDs that are not among the candidates of the
    head (an increment after a gap); ``ids_in_reach`` is the share of the remaining IDs.
    """
    # Only responses are scored, and each starts after its prompt.
    query_start = int(batch.prompt_length.min()) - 1
    input_ids = batch.position_ids if input_ids is None else input_ids
    hidden, _ = decoder(batch.tokens[:, :-1], input_ids[:, :, :-1], query_start=query_start)
    targets = batch.tokens[:, query_start + 1 :]
    scored = batch.token_scored[:, query_start + 1 :]
    logits = decoder.token_logits(hidden)
    token_losses = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    loss = _mean(token_losses.view(scored.shape), scored)
    is_correct = (logits.detach().argmax(dim=-1) == targets).float()
    id_accuracy = in_reach = torch.ones((), device=loss.device)
    if decoder.predicts_ids:
        predictions = _predict_ids(decoder, batch, hidden, input_ids)
        id_targets, id_scored = batch.position_ids[:, :, query_start + 1 :], batch.id_scored[:, query_start + 1 :]
        id_correct = reachable = torch.ones_like(scored)
        for next_ids, target in zip(predictions, id_targets, strict=True):
            log_probability, is_candidate = next_ids.log_probability(target)
            loss = loss + id_weight * _mean(-log_probability, id_scored & is_candidate)
            id_correct, reachable = id_correct & (next_ids.most_likely_ids() == target), reachable & is_candidate
        id_accuracy, in_reach = _mean(id_correct.float(), id_scored), _mean(reachable.float(), id_scored)
    return AnswerLoss(
        loss=loss, token_accuracy=_mean(is_correct, scored), id_accuracy=id_accuracy, ids_in_reach=in_reach
    )


@torch.no_grad()
def mix_predicted_ids(decoder: Decoder, batch: Batch, share: float) -> Int[Tensor, "level batch seq"]:
    """Return the batch's IDs with predicted response IDs in the first ``share`` of its examples.

    One forward pass predicts these IDs from the correct IDs: parallel scheduled sampling (Mihaylova and Martins 2019,
    arXiv 1906.07651).
    """
    sampled = batch.select(slice(0, round(share * len(batch.tokens))))
    if not len(sampled.tokens):
        return batch.position_ids
    query_start = int(sampled.prompt_length.min()) - 1
    hidden, _ = decoder(sampled.tokens[:, :-1], sampled.position_ids[:, :, :-1], query_start=query_start)
    mixed, id_scored = batch.position_ids.clone(), sampled.id_scored[:, query_start + 1 :]
    for level, next_ids in enumerate(_predict_ids(decoder, sampled, hidden, sampled.position_ids)):
        correct = sampled.position_ids[level, :, query_start + 1 :]
        mixed[level, : len(sampled.tokens), query_start + 1 :] = torch.where(
            id_scored, next_ids.most_likely_ids(), correct
        )
    return mixed


def _predict_ids(
    decoder: Decoder, batch: Batch, hidden: Float[Tensor, "batch query d_model"], input_ids: Tensor
) -> list[NextIDs]:
    """Return the predicted IDs of the tokens after ``hidden``, which ends at the second-to-last token."""
    prompts = decoder.read_prompt(batch.tokens, batch.position_ids, batch.prompt_length)
    query_start = batch.tokens.shape[1] - 1 - hidden.shape[1]
    return decoder.next_ids(hidden, input_ids[:, :, query_start:-1], batch.tokens[:, query_start + 1 :], prompts)


def _mean(values: Float[Tensor, "batch query"], where: Bool[Tensor, "batch query"]) -> Float[Tensor, ""]:
    return (values * where).sum() / where.sum().clamp(min=1)

"""The answer loss: what a decoder is asked for, tokens and for PPC their IDs."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lengthwise.model.decoder import Decoder
from lengthwise.training.batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLoss:
    """The loss of a batch and how much of it is right; each a scalar tensor, accuracies 1 where nothing is scored."""

    loss: Float[Tensor, ""]
    token_accuracy: Float[Tensor, ""]
    id_accuracy: Float[Tensor, ""]
    ids_in_reach: Float[Tensor, ""]


def answer_loss(decoder: Decoder, batch: Batch, id_weight: float, fed: Tensor | None = None) -> AnswerLoss:
    """Cross-entropy of the answer tokens plus, for PPC, that of their IDs; the prompt is masked.

    ``fed`` are the IDs that the decoder reads, by default the right ones. On several levels the ID losses are added,
    and an ID is right when it is on all of them. IDs that the head has no candidate for (an increment behind a training
    gap) are left out and reported.
    """
    # Every response starts behind its prompt: what comes earlier is never scored.
    first = int(batch.prompt_length.min()) - 1
    fed = batch.position_ids if fed is None else fed
    hidden, _ = decoder(batch.tokens[:, :-1], fed[:, :, :-1], first=first)
    targets = batch.tokens[:, first + 1 :]
    scored = batch.token_scored[:, first + 1 :]
    logits = decoder.token_logits(hidden)
    token_losses = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    loss = _mean(token_losses.view(scored.shape), scored)
    right = (logits.detach().argmax(dim=-1) == targets).float()
    one = torch.ones((), device=loss.device)
    id_accuracy = in_reach = one
    if decoder.predicts_ids:
        ids = batch.position_ids
        prompts = decoder.read_prompt(batch.tokens, ids, batch.prompt_length)
        predicted = decoder.next_ids(hidden, fed[:, :, first:-1], targets, prompts)
        id_targets, id_scored = ids[:, :, first + 1 :], batch.id_scored[:, first + 1 :]
        rightly = reached = torch.ones_like(scored)
        for next_ids, wanted in zip(predicted, id_targets, strict=True):
            log_probability, reachable = next_ids.log_probability(wanted)
            loss = loss + id_weight * _mean(-log_probability, id_scored & reachable)
            rightly, reached = rightly & (next_ids.most_likely() == wanted), reached & reachable
        id_accuracy, in_reach = _mean(rightly.float(), id_scored), _mean(reached.float(), id_scored)
    return AnswerLoss(loss=loss, token_accuracy=_mean(right, scored), id_accuracy=id_accuracy, ids_in_reach=in_reach)


@torch.no_grad()
def feed_own_ids(decoder: Decoder, batch: Batch, share: float) -> Int[Tensor, "level batch seq"]:
    """The batch's IDs, with those of the responses predicted from the right ones in the first ``share`` of its rows."""
    ids, tokens = batch.position_ids, batch.tokens
    own = batch.rows(slice(0, round(share * len(tokens))))
    if not len(own.tokens):
        return ids
    first = int(own.prompt_length.min()) - 1
    hidden, _ = decoder(own.tokens[:, :-1], own.position_ids[:, :, :-1], first=first)
    prompts = decoder.read_prompt(own.tokens, own.position_ids, own.prompt_length)
    predicted = decoder.next_ids(hidden, own.position_ids[:, :, first:-1], own.tokens[:, first + 1 :], prompts)
    fed, written = ids.clone(), own.id_scored[:, first + 1 :]
    for level, next_ids in enumerate(predicted):
        right = own.position_ids[level, :, first + 1 :]
        fed[level, : len(own.tokens), first + 1 :] = torch.where(written, next_ids.most_likely(), right)
    return fed


def _mean(values: Float[Tensor, "batch query"], where: Bool[Tensor, "batch query"]) -> Float[Tensor, ""]:
    return (values * where).sum() / where.sum().clamp(min=1)

"""Predictions of a decoder for the answers of one example, and the attention that leads to them."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lengthwise.core.errors import DivergedError
from lengthwise.evaluation.picture.picture import AttentionHead, Link, Prediction
from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.model.decoder import Decoder
from lengthwise.training.batch import Batch

# Decimals of the attention weights.
WEIGHT_DECIMALS = 4


@torch.no_grad()
def predict_answers(
    decoder: Decoder, batch: Batch, links: Mapping[int, Sequence[Link]], vocabulary: Sequence[str]
) -> tuple[AttentionHead, dict[int, Prediction]]:
    """Return the prediction of each answer of a batch of one example, with teacher forcing, and the head to show.

    ``links`` has the links of each answer. Raises ``DivergedError`` if the predictions of the decoder are NaN.
    """
    batch = batch.to(decoder.embedding.device)
    layers: list[Float[Tensor, "1 heads query key"]] = []
    hooks = AttentionHooks(on_weights=layers.append)
    first_query, ids = int(batch.prompt_length[0]) - 1, batch.position_ids
    hidden, _ = decoder(batch.tokens[:, :-1], ids[:, :, :-1], hooks=hooks)
    hidden = hidden[:, first_query:]
    logits, targets = decoder.token_logits(hidden), batch.tokens[:, first_query + 1 :]
    if bool(logits.isnan().any()):
        # The argmax over NaN would be token 0.
        raise DivergedError("the predictions of the decoder are NaN; train the run again, or load it in float32")
    predicted_tokens, predicted_ids = logits.argmax(dim=-1)[0].tolist(), None
    if decoder.predicts_ids:
        prompts = decoder.read_prompt(batch.tokens, ids, batch.prompt_length)
        predicted_ids = decoder.most_likely_ids(hidden, ids[:, :, first_query:-1], targets, prompts)[:, 0].T.tolist()
    weights = torch.cat(layers).cpu()
    head = _select_head(weights, links)
    predictions = {}
    for answer in links:
        column, token = answer - first_query - 1, int(batch.tokens[0, answer])
        has_id = predicted_ids is not None and bool(batch.id_scored[0, answer])
        answer_ids = tuple(predicted_ids[column]) if predicted_ids is not None and has_id else None
        predictions[answer] = Prediction(
            token=vocabulary[predicted_tokens[column]],
            token_correct=predicted_tokens[column] == token,
            position_ids=answer_ids,
            id_correct=None if answer_ids is None else answer_ids == tuple(ids[:, 0, answer].tolist()),
            attention=tuple(
                round(weight, WEIGHT_DECIMALS)
                for weight in weights[head.layer, head.head, answer - 1, :answer].tolist()
            ),
        )
    return head, predictions


def _select_head(
    weights: Float[Tensor, "layers heads query key"], links: Mapping[int, Sequence[Link]]
) -> AttentionHead:
    """Return the head with the largest mean over answers of the largest weight on a linked token.

    The query itself does not count, because the decoder reads it without attention.
    """
    masks = torch.zeros(weights.shape[2:], dtype=torch.bool)
    for answer, answer_links in links.items():
        masks[answer - 1, [link.index for link in answer_links]] = True
    masks = masks.tril(-1)
    if not masks.any():
        masks = _earlier_keys(masks, links)
    peaks = (weights * masks)[:, :, masks.any(dim=-1)].amax(dim=-1)
    # Without links and earlier tokens, all heads are equally good.
    means = peaks.mean(dim=-1).nan_to_num()
    layer, head = divmod(int(means.argmax()), means.shape[1])
    return AttentionHead(layer=layer, head=head, weight=round(float(means[layer, head]), WEIGHT_DECIMALS))


def _earlier_keys(masks: Bool[Tensor, "query key"], answers: Mapping[int, object]) -> Bool[Tensor, "query key"]:
    """Return the mask of all keys before the query of each answer."""
    queries = torch.tensor([answer - 1 for answer in answers], dtype=torch.int64)
    return torch.zeros_like(masks).index_fill(0, queries, True).tril(-1)

"""Number of tokens that the answers of a decoder require, measured by hiding tokens at a training length."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from lengthwise.evaluation.forecast.sparse_queries import MAX_SCORES, Queries
from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.model.decoder import Decoder

# Maximum decrease in the probability of the correct answer if only a sufficient set of tokens is visible.
MAX_PROBABILITY_DECREASE = 0.1
# Quantile of the reported values over answers.
QUANTILE = 0.9
# Maximum number of tokens in the search.
MAX_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredTokens:
    """Number of tokens that suffice for 90% of the answers; None if more than ``MAX_TOKENS`` are necessary.

    ``k`` excludes the token before the answer. ``reach`` is the span from the first of these tokens to the token before
    the answer, in tokens. ``id_reach`` is their span in IDs, on the level with the smallest span.
    """

    k: int | None
    reach: int | None
    id_reach: float | None


@torch.no_grad()
def measure_required_tokens(decoder: Decoder, queries: Queries) -> RequiredTokens:
    """Hide each token separately, sort tokens by their effect, and count how many of the first are sufficient.

    This method does not detect duplicated information, because hiding one copy has no effect.
    """
    results = [_measure_query(decoder, queries, query_index) for query_index in range(len(queries.answer))]
    known_results = [result for result in results if result is not None]
    if len(known_results) < QUANTILE * len(results):
        return RequiredTokens(k=None, reach=None, id_reach=None)
    k, reach, id_reach = (np.quantile(values, QUANTILE, method="higher") for values in zip(*known_results, strict=True))
    return RequiredTokens(k=int(k), reach=int(reach), id_reach=float(id_reach))


def _measure_query(decoder: Decoder, queries: Queries, query_index: int) -> tuple[int, int, float] | None:
    """Return how many tokens the decoder needs for the answer of a query, and the span of these tokens.

    The span includes the token before the answer. It is returned twice: in tokens, and in IDs on the level with the
    smallest span. Return None if the ``MAX_TOKENS`` tokens with the largest effect are not sufficient.
    """
    batch, answer = queries.batch.select(slice(query_index, query_index + 1)), int(queries.answer[query_index])
    tokens, ids = batch.tokens[:, :answer], batch.position_ids[:, :, :answer]
    target, last_index = int(batch.tokens[0, answer]), answer - 1
    always_visible = np.isin(tokens[0].numpy(), decoder.separators)
    always_visible[last_index] = True
    candidates = np.flatnonzero(~always_visible)
    single_token_masks = np.zeros((len(candidates) + 1, answer), dtype=bool)
    single_token_masks[np.arange(len(candidates)), candidates] = True
    probabilities = _probabilities(decoder, tokens, ids, single_token_masks, target)
    ranked_tokens = candidates[np.argsort(probabilities[:-1], kind="stable")][:MAX_TOKENS]
    is_hidden = np.tile(~always_visible, (len(ranked_tokens) + 1, 1))
    for num_tokens in range(len(ranked_tokens)):
        is_hidden[num_tokens + 1 :, ranked_tokens[num_tokens]] = False
    min_probability = probabilities[-1] - MAX_PROBABILITY_DECREASE
    sufficient = _probabilities(decoder, tokens, ids, is_hidden, target) >= min_probability
    if not sufficient.any():
        return None
    num_tokens = int(sufficient.argmax())
    needed_indices = np.append(ranked_tokens[:num_tokens], last_index)
    id_spans = [float(np.ptp(level_ids[needed_indices])) for level_ids in ids[:, 0].numpy()]
    return num_tokens, int(last_index - needed_indices.min()) + 1, min(id_spans) + 1


def _probabilities(
    decoder: Decoder,
    tokens: Int[Tensor, "1 seq"],
    position_ids: Real[Tensor, "level 1 seq"],
    is_hidden: Bool[np.ndarray, "masks seq"],
    target_token: int,
) -> Float[np.ndarray, " masks"]:
    """Return the probability of a token for each mask of hidden tokens; length scaling counts hidden tokens too."""
    num_masks, num_tokens = is_hidden.shape
    masks_per_pass = max(1, MAX_SCORES // (num_tokens * num_tokens * decoder.settings.num_heads))
    probabilities = []
    for start in range(0, num_masks, masks_per_pass):
        masks = torch.from_numpy(is_hidden[start : start + masks_per_pass])
        score_bias = torch.zeros(len(masks), num_tokens, num_tokens).masked_fill(masks[:, None], -math.inf)
        # A hidden token still attends to itself, because a softmax needs at least one key.
        score_bias.diagonal(dim1=1, dim2=2).zero_()
        visible_counts = torch.arange(1.0, num_tokens + 1).expand(len(masks), -1)
        hooks = AttentionHooks(score_bias=score_bias, visible_counts=visible_counts)
        hidden, _ = decoder(tokens.expand(len(masks), -1), position_ids.expand(-1, len(masks), -1), hooks=hooks)
        probabilities.append(decoder.token_logits(hidden[:, -1:])[:, 0].softmax(dim=-1)[:, target_token].numpy())
    return np.concatenate(probabilities)

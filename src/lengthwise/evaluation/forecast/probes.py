"""How many tokens an answer of a decoder needs, and how near they are, by hiding tokens at a length of training."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.evaluation.forecast.sparse_queries import HELD, Questions
from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.model.decoder import Decoder

# An answer needs no more tokens once its probability is at most this far below that with all of them.
LOSS = 0.1
# What is said of all answers holds for this share of them.
SHARE = 0.9
# More tokens than this are not tried.
MOST = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """How many tokens answers need, for nine answers of ten; None where more than ``MOST``.

    ``k`` counts those besides the token before the answer. With it, they reach over ``reach`` token indexes and over
    ``id_reach`` IDs on the level where that is least, both ends counted.
    """

    k: int | None
    reach: int | None
    id_reach: float | None


@torch.no_grad()
def probe(decoder: Decoder, questions: Questions) -> Needs:
    """Hide each token alone, order them by what that costs, and see how many of the first are enough.

    Blind to what is there twice: hiding one copy costs nothing.
    """
    found = [_one(decoder, questions, row) for row in range(len(questions.answer))]
    known = [each for each in found if each is not None]
    if len(known) < SHARE * len(found):
        return Needs(k=None, reach=None, id_reach=None)
    k, reach, id_reach = (np.quantile([each[part] for each in known], SHARE, method="higher") for part in range(3))
    return Needs(k=int(k), reach=int(reach), id_reach=float(id_reach))


def _one(decoder: Decoder, questions: Questions, row: int) -> tuple[int, int, float] | None:
    """The number of tokens, and what they and the one before the answer reach over, in tokens and in IDs."""
    batch, answer = questions.batch.select(slice(row, row + 1)), int(questions.answer[row])
    tokens, ids = batch.tokens[:, :answer], batch.position_ids[:, :, :answer]
    target, last = int(batch.tokens[0, answer]), answer - 1
    marks = np.isin(tokens[0].numpy(), decoder.separators)
    marks[last] = True
    free = np.flatnonzero(~marks)
    alone = np.zeros((len(free) + 1, answer), dtype=bool)
    alone[np.arange(len(free)), free] = True
    probability = _probabilities(decoder, tokens, ids, alone, target)
    order = free[np.argsort(probability[:-1], kind="stable")][:MOST]
    hidden = np.tile(~marks, (len(order) + 1, 1))
    for number in range(len(order)):
        hidden[number + 1 :, order[number]] = False
    enough = _probabilities(decoder, tokens, ids, hidden, target) >= probability[-1] - LOSS
    if not enough.any():
        return None
    number = int(enough.argmax())
    kept = np.append(order[:number], last)
    spans = [float(np.ptp(level[kept])) for level in ids[:, 0].numpy()]
    return number, int(last - kept.min()) + 1, min(spans) + 1


def _probabilities(
    decoder: Decoder,
    tokens: Int[Tensor, "1 seq"],
    position_ids: Int[Tensor, "level 1 seq"] | Float[Tensor, "level 1 seq"],
    hidden: Bool[np.ndarray, "rows seq"],
    target: int,
) -> Float[np.ndarray, " rows"]:
    """Of the right answer, some tokens hidden from all others; a length scale counts as if they were there."""
    rows, seq = hidden.shape
    step = max(1, HELD // (seq * seq * decoder.settings.num_heads))
    found = []
    for at in range(0, rows, step):
        some = torch.from_numpy(hidden[at : at + step])
        added = torch.zeros(len(some), seq, seq).masked_fill(some[:, None], -math.inf)
        # A hidden token still sees itself: a row without any key has no softmax.
        added.diagonal(dim1=1, dim2=2).zero_()
        hooks = AttentionHooks(score_bias=added, visible_counts=torch.arange(1.0, seq + 1).expand(len(some), -1))
        read, _ = decoder(tokens.expand(len(some), -1), position_ids.expand(-1, len(some), -1), hooks=hooks)
        found.append(decoder.token_logits(read[:, -1:])[:, 0].softmax(dim=-1)[:, target].numpy())
    return np.concatenate(found)

"""How much attention the token before an answer gives to the tokens that the answer depends on."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lengthwise.core.randomness import stream
from lengthwise.evaluation.diagnosis.failures import Answers
from lengthwise.evaluation.exact_match import iter_examples
from lengthwise.evaluation.forecast.probed_model import Subject
from lengthwise.evaluation.forecast.sparse_queries import random_answers
from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.model.decoder import Decoder
from lengthwise.training.batch import Batch

# Answers whose attention is looked at.
LOOKED_AT = 64


@torch.no_grad()
def support_mass(
    decoder: Decoder, batch: Batch, answer: Int[np.ndarray, " batch"], support: Int[np.ndarray, "batch seq k"]
) -> Float[np.ndarray, "asked layers heads"]:
    """Of one answer of each example; those that depend on no token but the one before them are left out.

    What stands in the asking token itself needs no attention, and is not counted.
    """
    found: list[Float[np.ndarray, "layers heads"]] = []
    for row, asking in enumerate((answer - 1).tolist()):
        wanted = support[row, asking + 1]
        wanted = wanted[(wanted >= 0) & (wanted != asking)]
        if not len(wanted):
            continue
        layers: list[Float[np.ndarray, " heads"]] = []

        def watch(weights: Tensor, wanted: np.ndarray = wanted, layers: list[np.ndarray] = layers) -> None:
            layers.append(weights[0, :, 0, np.unique(wanted)].sum(dim=-1).numpy())

        tokens, ids = batch.tokens[row : row + 1], batch.position_ids[:, row : row + 1]
        # With what is before it in a cache, the weights of one token alone are made: a long sequence has room.
        _, cache = decoder(tokens[:, :asking], ids[:, :, :asking]) if asking else (None, None)
        part = slice(asking, asking + 1)
        decoder(tokens[:, part], ids[:, :, part], cache, hooks=AttentionHooks(on_weights=watch))
        found.append(np.stack(layers))
    shape = (0, decoder.settings.num_layers, decoder.settings.num_heads)
    return np.stack(found) if found else np.zeros(shape, dtype=np.float32)


def mass_at_length(subject: Subject, length: int) -> Float[np.ndarray, "layers heads"]:
    """The mean over some answers; 0 without support."""
    rng = stream(subject.seed, "diagnosis attention", length)
    end = subject.task.vocabulary.index("end")
    found = []
    for examples, batch in iter_examples(subject.task, subject.scheme, length, LOOKED_AT, subject.seed):
        if examples.support is not None:
            found.append(support_mass(subject.decoder, batch, random_answers(batch, end, rng), examples.support))
    return _mean(subject, found)


def mass_at_errors(subject: Subject, failed: list[Answers]) -> Float[np.ndarray, "layers heads"]:
    found, left = [], LOOKED_AT
    for part in failed:
        some = part.rows(np.arange(min(left, len(part.answer))))
        if some.examples.support is not None and len(some.answer):
            found.append(support_mass(subject.decoder, some.batch, some.answer, some.examples.support))
        left -= len(some.answer)
    return _mean(subject, found)


def _mean(subject: Subject, found: list[Float[np.ndarray, "_ layers heads"]]) -> Float[np.ndarray, "layers heads"]:
    settings = subject.decoder.settings
    whole = np.concatenate([np.zeros((0, settings.num_layers, settings.num_heads)), *found])
    return np.asarray(whole.mean(axis=0)) if len(whole) else np.zeros(whole.shape[1:])

"""Support attention (``support_mass``): attention from the token before an answer to the answer's support."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lengthwise.core.randomness import stream
from lengthwise.evaluation.exact_match import iter_examples
from lengthwise.evaluation.forecast.probed_model import ProbedModel
from lengthwise.evaluation.forecast.sparse_queries import Queries, sample_answers
from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.model.decoder import Decoder
from lengthwise.training.batch import Batch

# Maximum number of answers per mean.
NUM_ANSWERS = 64


def mean_support_mass(
    model: ProbedModel, length: int, num_answers: int, report: Callable[[], None]
) -> Float[np.ndarray, "layers heads"]:
    """Return the mean support attention of each head over sampled answers at a length; 0 for a task without support.

    ``report`` is called before each batch of answers.
    """
    rng = stream(model.seed, "diagnosis attention", length)
    end_token = model.task.vocabulary.index("end")
    masses = []
    for examples, batch in iter_examples(model.task, model.scheme, length, num_answers, model.seed):
        report()
        if examples.support is not None:
            masses.append(support_mass(model.decoder, batch, sample_answers(batch, end_token, rng), examples.support))
    return _mean_by_head(model, masses)


def support_mass_at_errors(model: ProbedModel, errors: list[Queries]) -> Float[np.ndarray, "layers heads"]:
    """Return the mean support attention of each head over the first errors; 0 for a task without support."""
    masses, num_remaining = [], NUM_ANSWERS
    for queries in errors:
        selected = queries.first(num_remaining)
        answer, support = selected.answer, selected.examples.support
        if support is not None and len(answer):
            masses.append(support_mass(model.decoder, selected.batch, answer, support))
        num_remaining -= len(answer)
    return _mean_by_head(model, masses)


@torch.no_grad()
def support_mass(
    decoder: Decoder, batch: Batch, answer: Int[np.ndarray, " batch"], support: Int[np.ndarray, "batch seq k"]
) -> Float[np.ndarray, "answers layers heads"]:
    """Return the support attention of one answer per example; ``answer`` contains the token indexes of the answers.

    The support excludes the token before the answer, because the decoder reads it without attention. The result omits
    answers whose support contains only this token.
    """
    masses: list[Float[np.ndarray, "layers heads"]] = []
    for example, query_index in enumerate((answer - 1).tolist()):
        keys = np.unique(support[example, query_index + 1])
        keys = keys[(keys >= 0) & (keys != query_index)]
        if not len(keys):
            continue
        by_layer: list[Float[np.ndarray, " heads"]] = []

        def record_mass(weights: Tensor, keys: np.ndarray = keys, by_layer: list[np.ndarray] = by_layer) -> None:
            by_layer.append(weights[0, :, 0, keys].sum(dim=-1).numpy())

        tokens, ids = batch.tokens[example : example + 1], batch.position_ids[:, example : example + 1]
        # With a cache, only the weights of the last token are computed, so long sequences fit into memory.
        _, cache = decoder(tokens[:, :query_index], ids[:, :, :query_index]) if query_index else (None, None)
        query_slice = slice(query_index, query_index + 1)
        decoder(tokens[:, query_slice], ids[:, :, query_slice], cache, hooks=AttentionHooks(on_weights=record_mass))
        masses.append(np.stack(by_layer))
    empty_shape = (0, decoder.settings.num_passes, decoder.settings.num_heads)
    return np.stack(masses) if masses else np.zeros(empty_shape, dtype=np.float32)


def _mean_by_head(
    model: ProbedModel, masses: list[Float[np.ndarray, "_ layers heads"]]
) -> Float[np.ndarray, "layers heads"]:
    settings = model.decoder.settings
    all_masses = np.concatenate([np.zeros((0, settings.num_passes, settings.num_heads)), *masses])
    return np.asarray(all_masses.mean(axis=0)) if len(all_masses) else np.zeros(all_masses.shape[1:])

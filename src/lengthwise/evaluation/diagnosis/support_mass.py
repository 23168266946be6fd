"""How much attention the token before an answer gives to the tokens that the answer depends on."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lengthwise.model.attention_scores import Looking
from lengthwise.model.decoder import Decoder
from lengthwise.training.batch import Batch


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
        decoder(tokens[:, part], ids[:, :, part], cache, looking=Looking(watch=watch))
        found.append(np.stack(layers))
    shape = (0, decoder.settings.num_layers, decoder.settings.num_heads)
    return np.stack(found) if found else np.zeros(shape, dtype=np.float32)

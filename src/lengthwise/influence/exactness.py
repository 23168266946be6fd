"""Whether tokens can be hidden from a model: tried on a few, before anything is measured."""

import torch
from torch import Tensor

from lengthwise.errors import ModelError
from lengthwise.influence.next_token_model import NextTokenModel


def check_exact(model: NextTokenModel, rounding: float) -> None:
    """Raise ``ModelError`` if hidden tokens are seen, or if one pass and several differ by more than ``rounding``.

    Compared are probabilities, of a few tokens with a jump in their IDs.
    """
    try:
        faults = _faults(model, rounding)
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        raise ModelError(
            f"{model.name} cannot be asked with a mask and a cache of one's own ({type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else 'no message'}); choose another model"
        ) from error
    if faults:
        raise ModelError(f"{model.name} cannot be measured exactly: {faults[0]}; choose another model")


def _faults(model: NextTokenModel, rounding: float) -> list[str]:
    tokens = torch.arange(1, 9) % model.vocabulary_size
    ids = torch.tensor([0, 1, 2, 3, 5, 6, 8, 9])
    far, near = slice(0, 5), slice(5, 8)
    states = model.read(tokens[far], ids[far])

    def alone(keep: list[int]) -> Tensor:
        return model.log_probs(tokens[None, keep], ids[None, keep])[0]

    def after(visible: Tensor) -> Tensor:
        return model.log_probs_after(states, tokens[near], ids[near], visible)

    def differ(one: Tensor, other: Tensor) -> bool:
        return bool((one.exp() - other.exp()).abs().max() > rounding)

    every, none = torch.ones(1, 5, dtype=torch.bool), torch.zeros(1, 5, dtype=torch.bool)
    some = torch.tensor([[True, True, False, False, False]])
    together = after(torch.cat([every, none, some]))
    # Causality: what the first two tokens' states are does not depend on those behind them.
    return [
        fault
        for fault, there in (
            ("hidden tokens are seen", differ(together[1], alone([5, 6, 7]))),
            ("states read before differ from one pass", differ(together[0], alone(list(range(8))))),
            ("questions asked together change each other", differ(together[2], after(some)[0])),
        )
        if there
    ]

"""Cache budget: how much of the effect of far tokens a few of their keys and values keep, by selection method."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lengthwise.hf.language_models import LanguageModel
from lengthwise.influence.hidden_context import TargetWindow, WindowEvaluator
from lengthwise.influence.measures import KLDivergence, ProposedGreedy, SubsetScorer
from lengthwise.influence.units import split_into_units

# Numbers of first and last tokens that every selection keeps, and the unit that is kept or dropped as a whole.
NUM_FIRST, NUM_NEAR, UNIT_TOKENS = 4, 32, 8
UNIT = f"span:{UNIT_TOKENS}"
EXACT, ATTENTION, KEY_NORM, NEAREST, RANDOM = "exact search", "attention", "key norm", "nearest", "random"
SELECTIONS = (EXACT, ATTENTION, KEY_NORM, NEAREST, RANDOM)
NUM_RANDOM = 4


def measure_cache_budget(
    language_model: LanguageModel, tokens: Int[Tensor, " seq"], num_targets: int, rng: np.random.Generator
) -> dict[str, Any] | None:
    """Return the divergence (nats) from the full prediction at each number of kept far tokens, by selection.

    Of the last ``num_targets`` tokens, the target is the one whose prediction far tokens change most. Only its last
    context token attends to the selection: the other tokens were computed with everything visible, as in decoding.
    Returns None if there are fewer far tokens than one unit.
    """
    model, start = language_model.model, len(language_model.codec.start)
    num_far = (len(tokens) - 1 - num_targets - start - NUM_FIRST - NUM_NEAR) // UNIT_TOKENS * UNIT_TOKENS
    if num_far < UNIT_TOKENS:
        return None
    ids = model.assign_position_ids(tokens[:-1])
    full = model.last_log_probs(tokens[:-1], ids, num_targets)
    short = model.last_log_probs(
        tokens[-1 - num_targets - NUM_NEAR : -1], ids[..., -num_targets - NUM_NEAR :], num_targets
    )
    effects = torch.stack([KLDivergence(own)(other) for own, other in zip(full, short, strict=True)])
    place = len(tokens) - num_targets + int(effects.argmax())
    context = tokens[:place].numpy()
    far_end = place - NUM_NEAR
    far_begin = far_end - num_far
    window = TargetWindow(
        start=np.concatenate([context[:start], context[far_begin - NUM_FIRST : far_begin]]),
        far=context[far_begin:far_end],
        near=context[far_end:],
        target=int(tokens[place]),
    )
    evaluator = WindowEvaluator(model, window)
    units = split_into_units(UNIT, window.far, language_model.codec.token_text)
    everything = model.last_log_probs(evaluator.tokens, evaluator.position_ids, 1)[0]
    scorer = SubsetScorer(
        evaluator=evaluator,
        mode="decode",
        objective=KLDivergence(everything),
        units=units,
        candidates=np.arange(len(units)),
    )
    states, far = evaluator.states_before_last_token, slice(len(window.start), evaluator.num_prefix)
    weights = model.attention_weights(states, evaluator.near[-1:], evaluator.near_ids[..., -1:])[far]
    # Keys with a small norm get most of the attention (Devoto et al. 2024, arXiv:2406.11430).
    norms = -_key_norms(states)[far]
    rankings = {
        EXACT: [list(ProposedGreedy().select_tokens(scorer, len(units), rng).indices)],
        ATTENTION: [_rank(weights)],
        KEY_NORM: [_rank(norms)],
        NEAREST: [list(range(len(units)))[::-1]],
        RANDOM: [rng.permutation(len(units)).tolist() for _ in range(NUM_RANDOM)],
    }
    ks = [2**power for power in range((len(units) - 1).bit_length())]
    divergences = {}
    for name, orders in rankings.items():
        scores = scorer.scores_of_sets([order[:k] for order in orders for k in ks])
        divergences[name] = scores.reshape(len(orders), len(ks)).mean(axis=0).tolist()
    nothing = float(scorer.scores_of_sets([[]])[0])
    return {
        "far": num_far,
        "tokens": [UNIT_TOKENS * k for k in ks],
        "nothing": nothing,
        "divergences": {name: [round(value, 6) for value in values] for name, values in divergences.items()},
    }


def _rank(values: Float[Tensor, " far"]) -> list[int]:
    """Return the numbers of the units, those with the largest sum of values first."""
    sums = values.float().cpu().numpy().reshape(-1, UNIT_TOKENS).sum(axis=1)
    return np.argsort(-sums, kind="stable").tolist()


def _key_norms(states: Any) -> Float[Tensor, " states"]:
    """Return the norm of the key of each state, averaged over layers and heads."""
    keys = [layer.keys for layer in states.layers] if hasattr(states, "layers") else states.keys
    return torch.stack([layer_keys[0].float().norm(dim=-1).mean(dim=0) for layer_keys in keys]).mean(dim=0)

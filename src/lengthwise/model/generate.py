"""Greedy decoding with a key-value cache; the decoder predicts missing position IDs."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Real
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.model.decoder import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """New tokens after each prompt, with their position IDs; ``is_written`` is False after the end token."""

    tokens: Int[Tensor, "batch new"]
    position_ids: Real[Tensor, "level batch new"]
    is_written: Bool[Tensor, "batch new"]


@torch.no_grad()
def generate(
    decoder: Decoder, prompt: Int[Tensor, "batch prompt"], position_ids: Tensor, *, end: int, max_new_tokens: int
) -> Generation:
    """Continue prompts of equal length until the ``end`` token, by at most ``max_new_tokens`` tokens each.

    ``position_ids``, of shape (batch, n) or (level, batch, n), contains the IDs of all prompt tokens and optionally of
    the first new tokens. The position head predicts each missing ID from the new token. Raises ``SettingError`` if IDs
    are missing and the decoder cannot predict them, and the same errors as the decoder for invalid IDs.
    """
    prompt_length, num_ids = prompt.shape[1], position_ids.shape[-1]
    position_ids = decoder.check_ids(prompt.new_zeros(len(prompt), num_ids), position_ids)
    num_new_ids = num_ids - prompt_length
    if num_new_ids < 0:
        raise SettingError(f"got {num_ids} IDs for {prompt_length} prompt tokens; pass one ID per token")
    if num_new_ids < max_new_tokens and not decoder.predicts_ids:
        raise SettingError(
            f"got IDs for {num_new_ids} of {max_new_tokens} new tokens but this decoder predicts no IDs; "
            "pass the IDs of all new tokens, or train with the scheme 'predicted'"
        )
    prompt_lengths = torch.full((len(prompt),), prompt_length, device=prompt.device)
    prompt_ids = position_ids[:, :, :prompt_length]
    level_prompts = decoder.read_prompt(prompt, prompt_ids, prompt_lengths) if decoder.predicts_ids else None
    steps = []
    is_unfinished = torch.ones(len(prompt), dtype=torch.bool, device=prompt.device)
    current_ids = prompt_ids[:, :, -1:]
    hidden, cache = decoder(prompt, prompt_ids)
    for new_token_index in range(max_new_tokens):
        hidden = hidden[:, -1:]
        next_tokens = decoder.token_logits(hidden).argmax(dim=-1)
        if new_token_index < num_new_ids or level_prompts is None:
            current_ids = position_ids[:, :, prompt_length + new_token_index : prompt_length + new_token_index + 1]
        else:
            next_ids = decoder.next_ids(hidden, current_ids, next_tokens, level_prompts)
            current_ids = torch.stack([level_next_ids.most_likely_ids() for level_next_ids in next_ids])
        steps.append((next_tokens, current_ids, is_unfinished[:, None]))
        is_unfinished = is_unfinished & (next_tokens[:, 0] != end)
        if not is_unfinished.any() or new_token_index + 1 == max_new_tokens:
            break
        hidden, cache = decoder(next_tokens, current_ids, cache)
    tokens, ids, is_written = (torch.cat(parts, dim=-1) for parts in zip(*steps, strict=True))
    return Generation(tokens=tokens, position_ids=ids, is_written=is_written)

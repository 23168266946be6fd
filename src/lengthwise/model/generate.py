"""Greedy decoding with a key-value cache; IDs that are not given are the ones the decoder predicts."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Real
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.model.decoder import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What was written after each prompt, the end token included; ``is_written`` is False behind it."""

    tokens: Int[Tensor, "batch new"]
    position_ids: Real[Tensor, "level batch new"]
    is_written: Bool[Tensor, "batch new"]


@torch.no_grad()
def generate(
    decoder: Decoder, prompt: Int[Tensor, "batch prompt"], position_ids: Tensor, *, end: int, max_new_tokens: int
) -> Generated:
    """Continue prompts of one length until the ``end`` token, at most ``max_new_tokens`` each.

    ``position_ids``, (batch, given) or (level, batch, given), hold at least the prompts' IDs. Where they go on,
    response IDs are taken from there; behind them the position head predicts each ID after its token is chosen.
    ``SettingError`` if there is no head to do so, ``PositionIDError`` as from the decoder.
    """
    length, all_ids = prompt.shape[1], position_ids.shape[-1]
    position_ids = decoder.check_ids(prompt.new_zeros(len(prompt), all_ids), position_ids)
    given = all_ids - length
    if given < 0:
        raise SettingError(f"{all_ids} IDs for {length} prompt tokens; give one for each")
    if given < max_new_tokens and not decoder.predicts_ids:
        raise SettingError(
            f"IDs are given for {given} of {max_new_tokens} new tokens and this decoder predicts none; "
            f"give them all, or train with the scheme predicted"
        )
    lengths = torch.full((len(prompt),), length, device=prompt.device)
    read = decoder.read_prompt(prompt, position_ids[:, :, :length], lengths) if decoder.predicts_ids else None
    tokens, ids, open_rows = [], [], torch.ones(len(prompt), dtype=torch.bool, device=prompt.device)
    is_written = []
    own_ids = position_ids[:, :, length - 1 : length]
    hidden, cache = decoder(prompt, position_ids[:, :, :length])
    for new in range(max_new_tokens):
        hidden = hidden[:, -1:]
        token = decoder.token_logits(hidden).argmax(dim=-1)
        if new < given or read is None:
            own_ids = position_ids[:, :, length + new : length + new + 1]
        else:
            own_ids = torch.stack([level.most_likely() for level in decoder.next_ids(hidden, own_ids, token, read)])
        tokens.append(token)
        ids.append(own_ids)
        is_written.append(open_rows[:, None])
        open_rows = open_rows & (token[:, 0] != end)
        if not open_rows.any() or new + 1 == max_new_tokens:
            break
        hidden, cache = decoder(token, own_ids, cache)
    return Generated(
        tokens=torch.cat(tokens, dim=1), position_ids=torch.cat(ids, dim=2), is_written=torch.cat(is_written, dim=1)
    )

"""Greedy decoding with a key-value cache; the decoder predicts missing position IDs."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Real
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.model.cache import DecodingState
from lengthwise.model.decoder import Decoder
from lengthwise.model.fast.cuda_graph_decoding import MIN_RECORDED_TOKENS, CUDAGraphDecoding, allows_graph_recording
from lengthwise.model.fast.near_key_generation import can_generate_with_near_keys, generate_with_near_keys

# Longer prompts are continued with ``generate_with_near_keys`` if the decoder allows it, which has the same result.
MAX_DENSE_PROMPT = 1 << 13
# Number of steps between searches for finished sequences, by device. On a GPU, a search waits for all earlier steps.
SEARCH_INTERVALS = {"cpu": 1, "cuda": 8}
# Share of finished sequences from which a copy of the unfinished ones takes less time than decoding all of them.
MIN_FINISHED_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedTokens:
    """New tokens after each prompt, with their position IDs; ``is_written`` is False after the end token.

    After the end token, tokens are end tokens and IDs are 0.
    """

    tokens: Int[Tensor, "batch new"]
    position_ids: Real[Tensor, "level batch new"]
    is_written: Bool[Tensor, "batch new"]


@torch.no_grad()
def generate(
    decoder: Decoder, prompt: Int[Tensor, "batch prompt"], position_ids: Tensor, *, end: int, max_new_tokens: int
) -> GeneratedTokens:
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
    tokens = prompt.new_full((len(prompt), max_new_tokens), end)
    ids = position_ids.new_zeros(len(position_ids), len(prompt), max_new_tokens)
    if prompt_length > MAX_DENSE_PROMPT and num_new_ids == 0 and can_generate_with_near_keys(decoder, position_ids):
        _decode_long(decoder, prompt, position_ids, tokens, ids, end)
    else:
        _decode(decoder, prompt, position_ids, tokens, ids, end)
    is_end = tokens == end
    is_written = is_end.cumsum(dim=1) - is_end.long() == 0
    num_steps = int(is_written.any(dim=0).sum())
    return GeneratedTokens(
        tokens=tokens.masked_fill(~is_written, end)[:, :num_steps],
        position_ids=ids.masked_fill(~is_written, 0)[:, :, :num_steps],
        is_written=is_written[:, :num_steps],
    )


def _decode_long(
    decoder: Decoder,
    prompt: Int[Tensor, "batch prompt"],
    prompt_ids: Real[Tensor, "level batch prompt"],
    new_tokens: Int[Tensor, "batch new"],
    new_ids: Real[Tensor, "level batch new"],
    end: int,
) -> None:
    """Do the same as ``_decode``, in time linear in the length if drafts of near keys are mostly right."""
    for row in range(len(prompt)):
        rows = slice(row, row + 1)
        inputs = decoder, prompt[rows], prompt_ids[:, rows]
        found = generate_with_near_keys(*inputs, end=end, max_new_tokens=new_tokens.shape[1])
        if found is None:
            _decode(*inputs, new_tokens[rows], new_ids[:, rows], end)
        else:
            tokens, ids = found
            new_tokens[row, : len(tokens)], new_ids[:, row, : len(tokens)] = tokens, ids


@torch.inference_mode()
def _decode(
    decoder: Decoder,
    prompt: Int[Tensor, "batch prompt"],
    known_ids: Real[Tensor, "level batch known"],
    new_tokens: Int[Tensor, "batch new"],
    new_ids: Real[Tensor, "level batch new"],
    end: int,
) -> None:
    """Write the tokens and IDs of ``generate`` into two tensors, which may contain anything after the end token."""
    prompt_length, max_new_tokens = prompt.shape[1], new_tokens.shape[1]
    num_known = known_ids.shape[2] - prompt_length
    state = _start(decoder, prompt, known_ids[:, :, :prompt_length], max_new_tokens)
    # On a GPU, a recorded step takes less time, if all or no IDs are known.
    is_recorded = prompt.device.type == "cuda" and (num_known == 0 or num_known >= max_new_tokens)
    if is_recorded and max_new_tokens >= MIN_RECORDED_TOKENS and allows_graph_recording(decoder):
        following = known_ids[:, :, prompt_length : prompt_length + max_new_tokens] if num_known else None
        CUDAGraphDecoding(decoder, state, following, new_tokens, new_ids, end).run()
        return
    search_interval = SEARCH_INTERVALS.get(prompt.device.type, 1)
    for index in range(max_new_tokens):
        tokens = decoder.token_logits(state.hidden).argmax(dim=-1)
        if index < num_known:
            ids = known_ids[:, :, prompt_length + index].index_select(1, state.rows)[:, :, None]
        else:
            ids = state.predict_position_ids(decoder.next_id_distributions, state.cache.position_ids[:, :, -1:], tokens)
        new_tokens[:, index].index_copy_(0, state.rows, tokens[:, 0])
        new_ids[:, :, index].index_copy_(1, state.rows, ids[:, :, 0].to(new_ids.dtype))
        state.is_finished |= tokens[:, 0] == end
        if index + 1 == max_new_tokens:
            break
        if index % search_interval == 0 and state.is_finished.any():
            unfinished = (~state.is_finished).nonzero()[:, 0]
            if len(unfinished) == 0:
                break
            if len(unfinished) <= (1 - MIN_FINISHED_SHARE) * len(state.rows):
                state.keep_sequences(unfinished)
                tokens, ids = tokens[unfinished], ids[:, unfinished]
        state.hidden, state.cache = decoder(tokens, ids, state.cache)


def _start(
    decoder: Decoder,
    prompt: Int[Tensor, "batch prompt"],
    prompt_ids: Real[Tensor, "level batch prompt"],
    max_new_tokens: int,
) -> DecodingState:
    """Return the state of all sequences after the prompt."""
    (batch_size, prompt_length), device = prompt.shape, prompt.device
    hidden, cache = decoder(prompt, prompt_ids, query_start=prompt_length - 1)
    lengths = torch.full((batch_size,), prompt_length, device=device)
    return DecodingState(
        rows=torch.arange(batch_size, device=device),
        is_finished=torch.zeros(batch_size, dtype=torch.bool, device=device),
        hidden=hidden,
        cache=cache.reserve(max_new_tokens),
        prompts=decoder.build_prompt_keys(prompt, prompt_ids, lengths) if decoder.predicts_ids else [],
    )

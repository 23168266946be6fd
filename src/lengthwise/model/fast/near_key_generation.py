"""Greedy decoding of a long sequence in time linear in its length: draft tokens from near keys, then check them.

A draft step reads only the keys whose IDs are near that of the current token. A pass of ``NearAttention`` over the
whole sequence then checks a block of drafted tokens and IDs. All before the first difference is the greedy continuation
that dense attention would give; decoding goes on from there.

Drafts are made on the CPU, also for a decoder on a GPU. A step of one token is too small for a GPU: most of its time
would be the start of operations and the transfer of indexes. The GPU runs the checks.
"""

import copy
from collections import defaultdict
from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.model.cache import KVCache
from lengthwise.model.decoder import Decoder
from lengthwise.model.fast.near_attention import WIDTHS, NearAttention, max_key_count_per_id

# Number of drafted tokens before the first check. Each later block has twice as many, so that all checks together take
# time linear in the length.
FIRST_BLOCK = 256
# Number of failed checks after which drafting does not pay.
MAX_FAILED_CHECKS = 8
# Number of further prompt tokens on both sides of the near ones that a position head reads.
MARGIN = 8


def can_generate_with_near_keys(decoder: Decoder, position_ids: Tensor) -> bool:
    """Return whether ``generate_with_near_keys`` works for a decoder and these IDs."""
    return decoder.allows_near_attention and decoder.predicts_ids and not position_ids.is_floating_point()


@torch.no_grad()
def generate_with_near_keys(
    decoder: Decoder,
    prompt: Int[Tensor, "1 prompt"],
    prompt_ids: Int[Tensor, "level 1 prompt"],
    *,
    end: int,
    max_new_tokens: int,
) -> tuple[Int[Tensor, " new"], Int[Tensor, "level new"]] | None:
    """Return the predicted tokens and IDs after one prompt, up to and with the end token or the limit.

    Returns None if the drafts fail too often. The decoder must satisfy ``can_generate_with_near_keys``.
    """
    sequence = _Sequence(decoder, prompt, prompt_ids, end, max_new_tokens)
    block, failed_checks, num_checked = FIRST_BLOCK, 0, prompt.shape[1]
    while failed_checks <= MAX_FAILED_CHECKS:
        hidden, num_rejected = sequence.check(num_checked)
        if num_rejected:
            failed_checks, block = failed_checks + 1, FIRST_BLOCK
        if not sequence.is_complete:
            sequence.append_checked(hidden)
            num_checked = sequence.length
        if sequence.is_complete:
            return sequence.continuation()
        sequence.draft(block)
        block *= 2
    return None


class _Sequence:
    """Prompt and continuation on the CPU, with the keys and values of their tokens on the device of the decoder."""

    cache: KVCache

    def __init__(
        self,
        decoder: Decoder,
        prompt: Int[Tensor, "1 prompt"],
        prompt_ids: Int[Tensor, "level 1 prompt"],
        end: int,
        max_new_tokens: int,
    ) -> None:
        self.decoder, self.device, self.end = decoder, prompt.device, end
        self.drafter = decoder if self.device.type == "cpu" else copy.deepcopy(decoder).to("cpu")
        self.length = self.prompt_length = prompt.shape[1]
        self.capacity = self.prompt_length + max_new_tokens
        self.tokens, self.ids = pad(prompt.cpu(), (0, max_new_tokens)), pad(prompt_ids.cpu(), (0, max_new_tokens))
        self.prompts = decoder.build_prompt_keys(
            prompt, prompt_ids, torch.tensor([self.prompt_length], device=self.device)
        )
        self.draft_prompts = [prompt.map_tensors(lambda tensor: tensor.cpu()) for prompt in self.prompts]
        self.indexes = [_IDIndex(level_ids[0]) for level_ids in prompt_ids.cpu()]

    @property
    def is_complete(self) -> bool:
        """True after the end token or the maximum number of tokens."""
        has_end = self.length > self.prompt_length and int(self.tokens[0, self.length - 1]) == self.end
        return has_end or self.length == self.capacity

    def check(self, num_checked: int) -> tuple[Float[Tensor, "1 1 d_model"], int]:
        """Drop the tokens from the first wrong one on; the first ``num_checked`` tokens are known to be right.

        Returns the hidden state of the last token that is kept, and the number of dropped tokens.
        """
        tokens = self.tokens[:, : self.length].to(self.device)
        ids = self.ids[..., : self.length].to(self.device)
        hooks = AttentionHooks(near=NearAttention())
        hidden, self.cache = self.decoder(tokens, ids, query_start=num_checked - 1, hooks=hooks)
        drafted, states = tokens[:, num_checked:], hidden[:, :-1]
        is_right = self.decoder.token_logits(states).argmax(dim=-1) == drafted
        if drafted.shape[1]:
            predicted = self.decoder.most_likely_ids(states, ids[..., num_checked - 1 : -1], drafted, self.prompts)
            is_right &= (predicted == ids[..., num_checked:]).all(dim=0)
        num_right = int(is_right[0].long().cumprod(dim=0).sum())
        num_rejected = self.length - num_checked - num_right
        self.length -= num_rejected
        return hidden[:, num_right : num_right + 1], num_rejected

    def append_checked(self, hidden: Float[Tensor, "1 1 d_model"]) -> None:
        """Append the most likely token and its most likely IDs."""
        token = self.decoder.token_logits(hidden).argmax(dim=-1)
        last_ids = self.ids[..., self.length - 1 : self.length].to(self.device)
        self._append(token, self.decoder.most_likely_ids(hidden, last_ids, token, self.prompts))

    def draft(self, num_tokens: int) -> None:
        """Append up to ``num_tokens`` tokens that are probably right."""
        drafter, room = self.drafter, self.capacity - self.cache.keys[0].shape[2]
        keys, values = (pad(part.cpu(), (0, 0, 0, room)) for part in (self.cache.keys[0], self.cache.values[0]))
        for index, level_ids in zip(self.indexes, self.ids[:, 0, : self.length - 1], strict=True):
            index.reset(level_ids.tolist())
        before, separators = self.tokens[:, : self.length - 1], torch.tensor(drafter.separators)
        last_embedding = drafter.embed_tokens(before[:, -1:])
        num_separators = torch.isin(before, separators).sum(dim=1, keepdim=True).clamp(max=len(separators))
        for _ in range(min(num_tokens, self.capacity - self.length)):
            if self.is_complete:
                break
            last = self.length - 1
            token, ids = self.tokens[:, last : last + 1], self.ids[..., last : last + 1]
            near = self._near_keys(ids[:, 0, 0].tolist())
            cache = KVCache(
                self.ids[..., near], last_embedding, num_separators, [keys[:, :, near]], [values[:, :, near]]
            )
            hooks = AttentionHooks(visible_counts=torch.tensor([[float(self.length)]]))
            hidden, extended = drafter(token, ids, cache, hooks=hooks)
            keys[:, :, last], values[:, :, last] = extended.keys[0][:, :, -1], extended.values[0][:, :, -1]
            last_embedding, num_separators = extended.last_embedding, extended.num_separators
            next_token = drafter.token_logits(hidden).argmax(dim=-1)
            self._append(next_token, self._draft_ids(hidden, ids, next_token))

    def continuation(self) -> tuple[Int[Tensor, " new"], Int[Tensor, "level new"]]:
        """Return the tokens and IDs after the prompt."""
        new = slice(self.prompt_length, self.length)
        return self.tokens[0, new].to(self.device), self.ids[:, 0, new].to(self.device)

    def _append(self, token: Int[Tensor, "1 1"], ids: Int[Tensor, "level 1 1"]) -> None:
        self.tokens[:, self.length], self.ids[..., self.length] = token[:, 0], ids[..., 0]
        self.length += 1

    def _near_keys(self, ids: list[int]) -> Int[Tensor, " near"]:
        """Return the indexes of the tokens before the last one whose IDs are near, on any level, and add the last."""
        near = {key for index, level_id in zip(self.indexes, ids, strict=True) for key in index.near(level_id)}
        for index, level_id in zip(self.indexes, ids, strict=True):
            index.add(level_id, self.length - 1)
        return torch.tensor(sorted(near - {self.length - 1}))

    def _draft_ids(
        self, hidden: Float[Tensor, "1 1 d_model"], ids: Int[Tensor, "level 1 1"], next_token: Int[Tensor, "1 1"]
    ) -> Int[Tensor, "level 1 1"]:
        """Return the most likely IDs if a head reads only the prompt tokens with near IDs."""
        embedding, predicted = self.drafter.embed_tokens(next_token), []
        levels = zip(self.drafter.position_heads(), self.indexes, ids, self.draft_prompts, strict=True)
        for head, index, level_ids, prompt in levels:
            near = index.near_prompt(int(level_ids))
            near_prompt = prompt.select_tokens(near) if len(near) else prompt
            predicted.append(head(hidden, level_ids, embedding, near_prompt).most_likely_ids())
        return torch.stack(predicted)


class _IDIndex:
    """Indexes of the tokens by their ID on one level, on the CPU."""

    def __init__(self, prompt_ids: Int[Tensor, " prompt"]) -> None:
        self.sorted_ids, self.order = prompt_ids.sort(stable=True)
        self.margin = MARGIN * max_key_count_per_id(prompt_ids)
        self.written: dict[int, list[int]] = defaultdict(list)

    def reset(self, ids: list[int]) -> None:
        """Forget all tokens after the prompt, and add those of a sequence with these IDs."""
        self.written.clear()
        for index in range(len(self.order), len(ids)):
            self.add(ids[index], index)

    def add(self, level_id: int, index: int) -> None:
        """Add a token after the prompt."""
        if index >= len(self.order):
            self.written[level_id].append(index)

    def near(self, level_id: int) -> Iterable[int]:
        """Return the indexes of the tokens whose ID differs by at most the first of ``WIDTHS``."""
        first, last = self._range(level_id)
        near_ids = range(level_id - WIDTHS[0], level_id + WIDTHS[0] + 1)
        return self.order[first:last].tolist() + [index for near in near_ids for index in self.written.get(near, ())]

    def near_prompt(self, level_id: int) -> Int[Tensor, " token"]:
        """Return the indexes of the prompt tokens with near IDs, and some more on both sides, sorted by ID."""
        first, last = self._range(level_id)
        return self.order[max(0, first - self.margin) : last + self.margin]

    def _range(self, level_id: int) -> tuple[int, int]:
        ends = torch.tensor([level_id - WIDTHS[0], level_id + WIDTHS[0] + 1])
        first, last = torch.searchsorted(self.sorted_ids, ends).tolist()
        return first, last

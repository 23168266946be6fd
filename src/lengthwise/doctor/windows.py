"""Blocks of consecutive target tokens with the longest context before them; all lengths predict the same targets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import random_stream
from lengthwise.influence.targets import PlaceboSampler, TargetToken
from lengthwise.tasks import TokenizedDocument

Tokens = Int[np.ndarray, " seq"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetBlock:
    """Block of targets of one document: ``tokens`` ends with the targets.

    The last ``num_own`` tokens are of the document; the tokens before them are of other documents. ``place`` is the
    index in ``text`` of the token after the last target.
    """

    text: TokenizedDocument
    place: int
    tokens: Tokens
    num_targets: int
    num_own: int

    def window(self, length: int, num_start: int) -> Int[Tensor, " window"]:
        """Return the last tokens, the last target included, so that a pass reads ``length`` tokens with the start."""
        return torch.from_numpy(self.tokens[len(self.tokens) - (length - num_start + 1) :])

    def with_other_band(
        self, texts: Sequence[TokenizedDocument], source: str, near: int, length: int, seed: int
    ) -> "TargetBlock | None":
        """Return the block with other tokens at distances from ``near`` to ``length``, or None if there are none.

        ``source`` is "other" (another document) or "elsewhere" (another part of the same document).
        """
        sampler, rng = PlaceboSampler(texts, near, length - near), random_stream(seed, source, self.text.name, length)
        far = sampler.sample(source, TargetToken(text=self.text, place=self.place - 1), rng)
        if far is None:
            return None
        near_tokens = self.tokens[len(self.tokens) - near - 1 :]
        return replace(self, tokens=np.concatenate([far, near_tokens]), num_own=near)


def sample_blocks(
    texts: Sequence[TokenizedDocument], *, length: int, num_targets: int, number: int, seed: int
) -> list[TargetBlock]:
    """Return at most ``number`` blocks, one per document, with ``length`` tokens before the last target.

    Documents with enough tokens come first, in random order. A shorter document follows other documents, as in a packed
    training text, but its targets are its own tokens. Raises ``SettingError`` if all texts together are too short.
    """
    needed, rng = length + 1, random_stream(seed, "blocks", length)
    order = rng.permutation(len(texts)).tolist()
    usable = [index for index in order if len(texts[index].tokens) > num_targets]
    usable.sort(key=lambda index: -min(len(texts[index].tokens), needed))
    total = sum(len(text.tokens) for text in texts)
    if not usable or total < needed:
        longest = max((len(text.tokens) for text in texts), default=0)
        raise SettingError(
            f"the texts have {total:,} tokens, and the longest text has {longest:,}, but {needed:,} tokens with "
            f"{num_targets:,} targets in one text are needed; add texts, or use smaller --lengths"
        )
    blocks = []
    for index in usable[:number]:
        text = texts[index]
        num_tokens = len(text.tokens)
        place = int(rng.integers(needed, num_tokens + 1)) if num_tokens >= needed else num_tokens
        parts = [text.tokens[max(0, place - needed) : place].astype(np.int64)]
        num_own = len(parts[0]) - 1
        others = [other for other in order if other != index]
        while sum(map(len, parts)) < needed:
            other = texts[others.pop(0)].tokens.astype(np.int64)
            parts.insert(0, other[-(needed - sum(map(len, parts))) :])
        tokens = np.concatenate(parts)
        blocks.append(TargetBlock(text=text, place=place, tokens=tokens, num_targets=num_targets, num_own=num_own))
    return blocks

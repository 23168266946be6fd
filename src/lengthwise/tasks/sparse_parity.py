"""Sparse parity: the parity of a few flagged bits among many tokens."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.errors import PromptError, SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.planted.background import Background, background_data_source
from lengthwise.tasks.task import Task, check_length_and_size, parse_symbols

CODINGS = ("flags", "letters")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseParity(Task):
    """Layout ``x_1 .. x_length = y end`` without a scratchpad: some of the x are flagged bits, and y is their parity.

    With ``coding="flags"``, each x is a bit, and ``0*`` and ``1*`` are flagged bits. With ``coding="letters"``, flagged
    bits are ``0`` and ``1``, and other tokens are one of ``num_letters`` letters. The number of flagged bits is uniform
    from ``fewest`` to ``most``, but at most the length. Their places are uniform, or within a random window of
    ``window`` tokens. The answer depends on all flagged bits: k is their number. ``tested`` lists the number of flagged
    bits of each variant. Letters are independent and uniform, or the ``num_letters`` tokens of ``background``: a Markov
    chain or a natural text, of which the variants use the held-out part.
    """

    fewest: int = 1
    most: int = 4
    coding: str = "flags"
    num_letters: int = 8
    window: int | None = None
    tested: tuple[int, ...] = (1, 4)
    background: Background | None = None

    name: ClassVar[str] = "sparse_parity"
    summary: ClassVar[str] = "parity of a few flagged bits among many tokens, without a scratchpad"
    paper: ClassVar[str] = "Golowich et al. 2025 (arXiv 2502.16792), section 5.1"
    separators: ClassVar[tuple[str, ...]] = ("=",)

    def __post_init__(self) -> None:
        check_types(self)
        if self.coding not in CODINGS:
            raise SettingError(f"unknown coding '{self.coding}' of {self.name}; use one of {', '.join(CODINGS)}")
        fewest, most = self.fewest, self.most
        if not 1 <= fewest <= most:
            raise SettingError(f"invalid range fewest {fewest} to most {most}; use 1 <= fewest <= most")
        if not 1 <= self.num_letters <= len(ascii_lowercase):
            raise SettingError(f"invalid num_letters {self.num_letters}; use 1 to {len(ascii_lowercase)}")
        if self.window is not None and self.window < most:
            raise SettingError(f"window {self.window} is too small for {most} flagged bits; use at least {most}")
        if min(self.tested, default=1) < 1:
            raise SettingError(f"invalid number {min(self.tested)} of flagged bits in tested; use at least 1")
        if self.background is not None:
            self._check_background(self.background)

    def _check_background(self, background: Background) -> None:
        if self.coding != "letters":
            raise SettingError(f"background '{background.name}' needs letters; set coding to letters")
        if background.num_tokens != self.num_letters:
            raise SettingError(
                f"background '{background.name}' has {background.num_tokens} tokens but num_letters is "
                f"{self.num_letters}; use the same number"
            )

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Bits (also the answers), flagged bits or letters, separator and end token."""
        extra_symbols = ("0*", "1*") if self.coding == "flags" else tuple(ascii_lowercase[: self.num_letters])
        return ("0", "1", *extra_symbols, "=", "end")

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Sample the places of the flagged bits, then the bits and the letters, uniformly."""
        check_length_and_size(self.name, length, size)
        is_flagged = self._sample_flags(length, size, rng)
        bits = rng.integers(0, 2, size=(size, length))
        if self.coding == "flags":
            return self._lay_out(bits + 2 * is_flagged)
        if self.background is None:
            letters = rng.integers(0, self.num_letters, size=(size, length))
        else:
            letters = self.background.sample(length, size, rng)
        return self._lay_out(np.where(is_flagged, bits, 2 + letters))

    def example_from_prompt(self, prompt: str) -> Examples:
        """Parse a prompt such as ``01*10*1``, or ``ab1ca0`` with ``coding="letters"``."""
        expected_format = "bits such as 01*10*1" if self.coding == "flags" else "bits and letters such as ab1ba0"
        symbols = re.findall(r".\*?", prompt.replace(" ", "").removesuffix("="))
        tokens = parse_symbols(symbols, self.vocabulary[:-2], self.name, expected_format)[None]
        if not self._is_flagged(tokens).any():
            raise PromptError(f"'{prompt}' has no flagged bit; write {expected_format}")
        return self._lay_out(tokens)

    def curriculum_stages(self) -> Sequence[Task]:
        """Return tasks with increasing maximum numbers of flagged bits, from ``fewest`` to ``most``."""
        return [replace(self, most=most) for most in range(self.fewest, self.most + 1)]

    def variants(self) -> Mapping[str, Task]:
        """Return one variant per number of flagged bits in ``tested``."""
        windows = {bits: None if self.window is None else max(self.window, bits) for bits in self.tested}
        background = None if self.background is None else self.background.held_out()
        return {
            f"flagged-{bits}": replace(self, fewest=bits, most=bits, window=window, tested=(), background=background)
            for bits, window in windows.items()
        }

    def data_source(self) -> Mapping[str, str]:
        """Return the path and digest of a natural text; an empty mapping for other backgrounds."""
        return background_data_source(self.background)

    def placeholder_example(self) -> Examples:
        """Return one example with the arrays of sampled examples, without reading a text."""
        return self._lay_out(np.zeros((1, 1), dtype=np.int64))

    def _sample_flags(self, length: int, batch_size: int, rng: np.random.Generator) -> Bool[np.ndarray, "size length"]:
        width = length if self.window is None else min(self.window, length)
        num_flagged = rng.integers(min(self.fewest, length), min(self.most, length) + 1, size=batch_size)
        start, places = rng.integers(0, length - width + 1, size=batch_size)[:, None], np.arange(length)
        # Places outside the window are never flagged.
        sort_keys = rng.random((batch_size, length)) + ((places < start) | (places >= start + width))
        return sort_keys.argsort(axis=1).argsort(axis=1) < num_flagged[:, None]

    def _is_flagged(self, tokens: Int[np.ndarray, "batch length"]) -> Bool[np.ndarray, "batch length"]:
        return tokens >= 2 if self.coding == "flags" else tokens < 2

    def _lay_out(self, tokens: Int[np.ndarray, "batch length"]) -> Examples:
        batch_size, length = tokens.shape
        is_flagged = self._is_flagged(tokens)
        parity = (is_flagged & (tokens % 2 == 1)).sum(axis=1, keepdims=True) % 2
        separator_ids = np.full((batch_size, 1), len(self.vocabulary) - 2)
        depends_on = np.full((batch_size, length + 3, max(self.most, int(is_flagged.sum(axis=1).max()))), -1)
        example_index, bit_index = is_flagged.nonzero()
        depends_on[example_index, length + 1, is_flagged.cumsum(axis=1)[example_index, bit_index] - 1] = bit_index
        # The end token depends on the separator, two tokens before it.
        depends_on[:, length + 2, 0] = length
        sequences = np.concatenate([tokens, separator_ids, parity, separator_ids + 1], axis=1)
        return Examples.with_prompt_length(sequences, length + 1, depends_on=depends_on)

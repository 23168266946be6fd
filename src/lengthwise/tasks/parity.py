"""Parity with a scratchpad: the running parity of a string of bits."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import SCRATCHPAD, Task, check_length_and_size, parse_symbols

COUPLINGS = ("next", "same", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity(Task):
    """Layout ``b_1 .. b_n = 0 s_1 .. s_n end`` with ``s_i = b_1 xor .. xor b_i``; the prompt ends with the ``0``.

    With ``coupling="next"``, ``s_i`` has the ID of ``b_{i+1}``. The next step needs this bit, so the ID distance is 0,
    regardless of the random gaps. With ``"same"``, ``s_i`` has the ID of ``b_i`` (Cho et al. 2024, arXiv 2405.20671).
    With ``"none"``, the task declares no coupling. Each answer depends on one bit and one running parity: k = 2.
    """

    coupling: str = "next"

    name: ClassVar[str] = "parity"
    summary: ClassVar[str] = "running parity of a bit string, written step by step"
    paper: ClassVar[str] = "Golowich et al. 2025 (arXiv 2502.16792), section 5.2"
    given: ClassVar[tuple[str, ...]] = (SCRATCHPAD,)
    vocabulary: ClassVar[tuple[str, ...]] = ("0", "1", "=", "end")
    separators: ClassVar[tuple[str, ...]] = ("=",)

    def __post_init__(self) -> None:
        check_types(self)
        if self.coupling not in COUPLINGS:
            raise SettingError(f"unknown coupling '{self.coupling}' of parity; use one of {', '.join(COUPLINGS)}")

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Sample bits uniformly and independently."""
        check_length_and_size(self.name, length, size)
        return self._lay_out(rng.integers(0, 2, size=(size, length)))

    def example_from_prompt(self, prompt: str) -> Examples:
        """Parse bits such as ``0110``, with or without spaces."""
        symbols = list(prompt.replace(" ", "").removesuffix("=0").removesuffix("="))
        return self._lay_out(parse_symbols(symbols, ("0", "1"), self.name, "bits such as 0110")[None])

    def _lay_out(self, bits: Int[np.ndarray, "batch length"]) -> Examples:
        batch_size, length = bits.shape
        zeros = np.zeros((batch_size, 1), dtype=np.int64)
        running_parity = np.bitwise_xor.accumulate(bits, axis=1)
        tokens = np.concatenate([bits, zeros + 2, zeros, running_parity, zeros + 3], axis=1)
        bit_places = np.arange(1, length + 1)
        bit_offset = 1 if self.coupling == "next" else 0
        # The start token acts as s_0. No token uses the ID of the end token.
        numbers = np.concatenate([bit_places, [length + 1], np.arange(length + 1) + bit_offset, [length + 2]])
        coupling = None if self.coupling == "none" else numbers[None, None]
        step_index = np.concatenate([bit_places, [0, 0], bit_places, [0]])[None]
        answer_indexes = np.arange(length + 2, 2 * length + 2)
        depends_on = np.full((2 * length + 3, 2), -1)
        depends_on[answer_indexes, 0] = np.arange(length)
        depends_on[answer_indexes, 1] = answer_indexes - 1
        # The end token depends on the separator, which follows the last bit.
        depends_on[-1, 0] = length
        return Examples.with_prompt_length(
            tokens, length + 2, coupling=coupling, step_index=step_index, depends_on=depends_on[None]
        )

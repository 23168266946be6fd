"""Parity with a scratchpad: the running parity of a string of bits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import Task, check_sizes, numbers_of

COUPLINGS = ("next", "same", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """Layout ``b_1 .. b_n = 0 s_1 .. s_n end`` with ``s_i = b_1 xor .. xor b_i``; the prompt ends with the ``0``.

    ``coupling="next"`` gives ``s_i`` the ID of ``b_{i+1}``, the bit that is needed next, so that the wanted bit is at
    ID distance 0 whatever the gaps; ``"same"`` gives it the ID of ``b_i`` (Cho et al. 2024, arXiv 2405.20671);
    ``"none"`` declares no coupling. Each answer depends on one bit and one running parity: k = 2.
    """

    coupling: str = "next"

    name: ClassVar[str] = "parity"
    summary: ClassVar[str] = "running parity of a bit string, written step by step"
    paper: ClassVar[str] = "Golowich et al. 2025 (arXiv 2502.16792), section 5.2"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_types(self)
        if self.coupling not in COUPLINGS:
            raise SettingError(f"coupling '{self.coupling}' is unknown to parity; choose one of {', '.join(COUPLINGS)}")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The bits, the separator and the end token."""
        return ("0", "1", "=", "end")

    @property
    def separators(self) -> tuple[str, ...]:
        """One separator: what follows it is running parities."""
        return ("=",)

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Draw uniformly random bits."""
        check_sizes(self.name, length, size)
        return self._lay_out(rng.integers(0, 2, size=(size, length)))

    def from_prompt(self, prompt: str) -> Examples:
        """Read bits such as ``0110``, with or without spaces."""
        symbols = list(prompt.replace(" ", "").removesuffix("=0").removesuffix("="))
        return self._lay_out(numbers_of(symbols, ("0", "1"), self.name, "bits such as 0110")[None])

    def variants(self) -> Mapping[str, Task]:
        """One distribution only."""
        return {}

    def _lay_out(self, bits: Int[np.ndarray, "batch length"]) -> Examples:
        size, length = bits.shape
        zero, equals, end = 0, 2, 3
        column = np.full((size, 1), zero)
        parities = np.bitwise_xor.accumulate(bits, axis=1)
        tokens = np.concatenate([bits, column + equals, column, parities, column + end], axis=1)
        prompt_length = length + 2
        is_answer = np.arange(tokens.shape[1]) >= prompt_length
        return Examples(
            tokens=tokens,
            prompt_length=np.full(size, prompt_length),
            is_answer=np.broadcast_to(is_answer, tokens.shape),
            coupling=None if self.coupling == "none" else self._groups(size, length),
            places=self._places(size, length),
            support=self._support(size, length),
        )

    def _groups(self, size: int, length: int) -> Int[np.ndarray, "level batch seq"]:
        bits = np.arange(1, length + 1)
        equals = length + 1
        shift = 1 if self.coupling == "next" else 0
        # The start token takes part in the first parity as s_0; the end token's ID is never read.
        groups = np.concatenate([bits, [equals], np.arange(length + 1) + shift, [equals + 1]])
        return np.broadcast_to(groups, (1, size, len(groups)))

    def _places(self, size: int, length: int) -> Int[np.ndarray, "batch seq"]:
        counted = np.arange(1, length + 1)
        places = np.concatenate([counted, [0, 0], counted, [0]])
        return np.broadcast_to(places, (size, len(places)))

    def _support(self, size: int, length: int) -> Int[np.ndarray, "batch seq k"]:
        support = np.full((2 * length + 3, 2), -1)
        answers = np.arange(length + 2, 2 * length + 2)
        support[answers, 0] = np.arange(length)
        support[answers, 1] = answers - 1
        # The end token follows because the separator has been reached.
        support[2 * length + 2, 0] = length
        return np.broadcast_to(support, (size, *support.shape))

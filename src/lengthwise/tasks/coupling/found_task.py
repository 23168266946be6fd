"""A task file whose examples have the coupling and the support of a found rule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.tasks.coupling.addresses import MatchAddress, locate, parse_address
from lengthwise.tasks.coupling.answer_steps import NO_TOKEN, answer_steps
from lengthwise.tasks.coupling.phases import divide
from lengthwise.tasks.coupling.pointers import PointerRule, couple
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.jsonl_task import JSONLTask
from lengthwise.tasks.task import Task

# Examples per length that check the conditions.
NUM_EXAMPLES = 64


@dataclass(frozen=True, kw_only=True)
class FoundTask:
    """``task`` with the coupling that ``rule`` gives to its examples, and a support.

    ``addresses`` has the texts of the addresses of the tokens that an answer of each phase depends on, such as
    ``PointerRule.addresses``.
    """

    task: JSONLTask
    rule: PointerRule
    addresses: tuple[tuple[str, ...], ...]

    name: ClassVar[str] = "this file"
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    version: ClassVar[int] = 1

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Tokens of the file, as in ``task``."""
        return self.task.vocabulary

    @property
    def separators(self) -> tuple[str, ...]:
        """Separators of the file, as in ``task``."""
        return self.task.separators

    @property
    def available_lengths(self) -> tuple[int, ...]:
        """Lengths of the file, in ascending order."""
        return tuple(self.task.available_lengths)

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Sample records of a length, with coupling and support."""
        return self._with_rule(self.task.sample(length=length, size=size, rng=rng))

    def from_prompt(self, prompt: str) -> Examples:
        """Return the example of a prompt."""
        return self._with_rule(self.task.from_prompt(prompt))

    def variants(self) -> Mapping[str, Task]:
        """Return an empty mapping: this task has no variants."""
        return {}

    def num_records(self, length: int) -> int:
        """Return the number of distinct records of a length, as in ``task``."""
        return self.task.num_records(length)

    def records_at(self, length: int, indices: Int[np.ndarray, " batch"]) -> Examples:
        """Return the records of ``task`` at these indices, with coupling and support."""
        return self._with_rule(self.task.records_at(length, indices))

    def _with_rule(self, examples: Examples) -> Examples:
        support = support_at(self.addresses, self.rule.division, examples)
        return replace(examples, coupling=couple(self.rule, examples), support=support)


def support_at(addresses: Sequence[Sequence[str]], division: str, examples: Examples) -> Int[np.ndarray, "batch seq k"]:
    """Return the token indexes that each answer depends on, padded with -1; a look-up also reads its key and the match.

    ``addresses`` has the texts of the addresses of each phase of ``division``.
    """
    steps = answer_steps(examples)
    phases = divide(steps, division)
    support = np.full((*examples.tokens.shape, 3 * max(1, *map(len, addresses))), NO_TOKEN)
    for phase, texts in enumerate(addresses):
        mask = phases.phase == phase
        here = steps.where(mask)
        indexes = []
        for address in map(parse_address, texts):
            index = locate(address, steps, phases).where(mask).index
            indexes.append(index)
            if isinstance(address, MatchAddress):
                has_match = index >= 0
                indexes += [
                    np.where(has_match, each, NO_TOKEN) for each in (address.key_index(here), address.match(here))
                ]
        for number, index in enumerate(indexes):
            support[here.sequence, here.prompt_length + here.number, number] = index
    return support


def measure_conditions(found_task: FoundTask, length: int, rng: np.random.Generator) -> tuple[int, int]:
    """Return the largest number of needed tokens per answer, and the largest ID distance of a needed token.

    The token before an answer is always needed. The distance of a token is measured from the token before the answer,
    on the level on which it is nearest.
    """
    examples = found_task.sample(length=length, size=NUM_EXAMPLES, rng=rng)
    assert examples.support is not None
    assert examples.coupling is not None
    num_tokens = distance = 0
    for example, answer in np.argwhere(examples.is_answer).tolist():
        needed = np.unique(np.append(examples.support[example, answer], answer - 1))
        needed = needed[needed >= 0]
        ids = examples.coupling[:, example]
        distances = np.abs(ids[:, needed] - ids[:, answer - 1 : answer]).min(axis=0)
        num_tokens, distance = max(num_tokens, len(needed)), max(distance, int(distances.max()))
    return num_tokens, distance

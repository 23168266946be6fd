"""Variable assignment: chains of variables in any order, followed from one of them down to its value."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.errors import PromptError, SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import Task, check_sizes, distinct, numbers_of

SHARES = {"a quarter": 0.25, "half": 0.5, "all": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableAssignment:
    """Layout ``a = b  c = v3  b = c ... ? a > a b c v3 end``: length assignments in random order, and a question.

    The response is a scratchpad: the variable asked for, each variable that it leads to, and the value at the end.
    The chain asked for takes a share of the assignments that is uniform within ``depth_shares``, or ``depth`` of them;
    the others make up to ``num_chains - 1`` chains that nobody asks for. Every variable is assigned once.

    With more ``operands`` an assignment adds constants to its variable, ``a = b v1 v7``, and behind every variable of
    the response stands the sum of all constants so far, modulo ``num_values``; the last sum has the value in it and is
    the answer: ``a = b v1  b = v3 v2 ? a > a v1 b v6 end``. A variable depends on the one before, and on the assignment
    of that: k = 3; a sum on the operands and on the sum before: k is one more than ``operands``.

    The tokens of an assignment share an ID. A variable of the response has the ID of its own assignment, which tells
    what comes next and depends on the content; a sum keeps the ID before it, a value has that of the question.
    """

    num_chains: int = 4
    depth_shares: tuple[float, float] = (0.25, 1.0)
    depth: int | None = None
    operands: int = 1
    num_names: int = 2048
    num_values: int = 10

    name: ClassVar[str] = "variable_assignment"
    summary: ClassVar[str] = "follow a variable through assignments in random order, with a scratchpad"
    paper: ClassVar[str] = "Golowich et al. 2025 (arXiv 2502.16792), section 5.2; form reconstructed"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_types(self)
        for setting in ("num_chains", "operands", "num_names", "num_values"):
            if getattr(self, setting) < 1:
                raise SettingError(f"{setting} {getattr(self, setting)} leaves nothing to assign; use at least 1")
        shallowest, deepest = self.depth_shares
        if not 0 < shallowest <= deepest <= 1:
            raise SettingError(f"depth_shares {shallowest} to {deepest} are no range within 0 and 1; use 0.25 and 1.0")
        if self.depth is not None and self.depth < 1:
            raise SettingError(f"a depth of {self.depth} leads nowhere; use at least 1, or None for a share")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Variables, values, the sign of assignment, the question mark, the start token and the end token."""
        names = (f"x{number}" for number in range(self.num_names))
        values = (f"v{number}" for number in range(self.num_values))
        return (*names, *values, "=", "?", ">", "end")

    @property
    def separators(self) -> tuple[str, ...]:
        """Two: the assignments, the question, the scratchpad."""
        return ("?", ">")

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Draw how deep the chain is, where the others end, names, values, constants and the order of assignments."""
        check_sizes(self.name, length, size)
        if length > self.num_names:
            raise SettingError(
                f"{length} assignments need as many variables and num_names is {self.num_names}; "
                f"set it to at least {length} or use shorter lengths"
            )
        depth = self._depths(length, size, rng)
        names = distinct(length, self.num_names, size, rng)
        values = self.num_names + rng.integers(0, self.num_values, size=(size, length, self.operands))
        # In the order of the chains: a variable leads to the next one, or to a value.
        follows = np.append(names[:, 1:], names[:, :1], axis=1)
        values[:, :, 0] = np.where(self._is_last(depth, length, rng), values[:, :, 0], follows)
        order = distinct(length, length, size, rng)
        row = np.arange(size)[:, None]
        assigned, operands = np.empty_like(names), np.empty_like(values)
        assigned[row, order], operands[row, order] = names, values
        return self._lay_out(assigned, operands, order[:, : depth.max()], depth)

    def from_prompt(self, prompt: str) -> Examples:
        """Read assignments and a question such as ``x1 = x2 x2 = v3 ? x1``; the order is up to the user."""
        constants = "".join(f" v{number}" for number in range(1, self.operands))
        form = f"assignments and a question such as 'x1 = x2{constants} x2 = v3{constants} ? x1'"
        parts = prompt.replace(">", " ").split("?")
        width = self.operands + 2
        if len(parts) != 2 or len(parts[1].split()) != 1:
            raise PromptError(f"'{prompt}' asks for no variable, or for several; write {form}")
        given = numbers_of(parts[0].split(), self.vocabulary[:-3], self.name, form)
        (asked,) = numbers_of(parts[1].split(), self.vocabulary[: self.num_names], self.name, form)
        blocks = given.reshape(-1, width) if len(given) % width == 0 else np.zeros((1, width), dtype=np.int64)
        is_value = (blocks >= self.num_names) & (blocks < self.num_names + self.num_values)
        signs = blocks[:, 1] == len(self.vocabulary) - 4
        if not signs.all() or (blocks[:, 0] >= self.num_names).any() or not is_value[:, 3:].all():
            raise PromptError(f"'{prompt}' is no list of assignments with {self.operands} operands each; write {form}")
        place = {int(variable): index for index, variable in enumerate(blocks[:, 0])}
        if len(place) < len(blocks):
            raise PromptError(f"'{prompt}' assigns a variable twice; assign each once")
        path, variable = [], int(asked)
        while variable < self.num_names:
            if variable not in place or place[variable] in path:
                why = "leads back to itself" if variable in place else "is not assigned"
                raise PromptError(f"x{variable} is needed and {why}; every chain has to end with a value")
            path.append(place[variable])
            variable = int(blocks[path[-1], 2])
        return self._lay_out(blocks[None, :, 0], blocks[None, :, 2:], np.array([path]), np.array([len(path)]))

    def variants(self) -> Mapping[str, Task]:
        """Chains of a quarter, of half and of all assignments, where there may be several."""
        if self.num_chains == 1:
            return {}
        return {name: replace(self, depth=None, depth_shares=(share, share)) for name, share in SHARES.items()}

    def _depths(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, " size"]:
        if self.num_chains == 1:
            return np.full(size, length)
        if self.depth is not None:
            return np.full(size, min(self.depth, length))
        shallowest, deepest = (max(1, math.ceil(share * length)) for share in self.depth_shares)
        return rng.integers(shallowest, deepest + 1, size=size)

    def _is_last(
        self, depth: Int[np.ndarray, " size"], length: int, rng: np.random.Generator
    ) -> Bool[np.ndarray, "size length"]:
        """Which assignments end a chain: that of the asked one, the very last, and some between them."""
        index, size = np.arange(length), len(depth)
        free = (index >= depth[:, None]) & (index < length - 1)
        cuts = rng.integers(0, max(1, self.num_chains - 1), size=size)[:, None]
        rank = np.where(free, rng.random((size, length)), np.inf).argsort(axis=1).argsort(axis=1)
        return (free & (rank < cuts)) | (index == depth[:, None] - 1) | (index == length - 1)

    def _lay_out(
        self,
        assigned: Int[np.ndarray, "batch length"],
        operands: Int[np.ndarray, "batch length operands"],
        path: Int[np.ndarray, "batch deepest"],
        depth: Int[np.ndarray, " batch"],
    ) -> Examples:
        """``path``: which assignments are followed, one after the other; beyond ``depth`` of them it is fill."""
        size, length = assigned.shape
        sign, question, start = (len(self.vocabulary) - place for place in (4, 3, 2))
        blocks = np.concatenate([assigned[..., None], np.full((size, length, 1), sign), operands], axis=2)
        asked = assigned[np.arange(size), path[:, 0]][:, None]
        column = np.ones_like(asked)
        prompt = np.concatenate([blocks.reshape(size, -1), question * column, asked, start * column], axis=1)
        prompt_length = prompt.shape[1]
        response = self._response(blocks, path, depth, prompt_length)
        given = np.append(np.repeat(np.arange(length) + 1, blocks.shape[2]), [length + 1, length + 2, length + 2])
        index = np.arange(prompt_length + response.written.shape[1])
        return Examples(
            tokens=np.concatenate([prompt, response.written], axis=1),
            prompt_length=np.full(size, prompt_length),
            is_answer=(index >= prompt_length) & (index <= prompt_length + response.end[:, None]),
            coupling=np.concatenate([np.tile(given, (size, 1)), response.groups], axis=1)[None],
            support=np.pad(response.support, ((0, 0), (prompt_length, 0), (0, 0)), constant_values=-1),
        )

    def _response(
        self,
        blocks: Int[np.ndarray, "batch length width"],
        path: Int[np.ndarray, "batch deepest"],
        depth: Int[np.ndarray, " batch"],
        prompt_length: int,
    ) -> "_Response":
        (size, length, width), row, last = blocks.shape, np.arange(len(path)), depth - 1
        followed = blocks[row[:, None], path]
        # A variable stands where its step begins; where there are sums, one follows it.
        stride = 1 if self.operands == 1 else 2
        steps = stride * np.arange(path.shape[1])
        written = np.full((size, steps[-1] + 3), len(self.vocabulary) - 1)
        groups = np.full_like(written, length + 3)
        support = np.full((*written.shape, max(3, self.operands + 1)), -1)
        written[:, steps], groups[:, steps] = followed[:, :, 0], path + 1
        support[:, 0, 0] = prompt_length - 2
        # What comes after a variable: it, and of its assignment the variable and the first operand.
        leads = [np.broadcast_to(prompt_length + steps, path.shape), path * width, path * width + 2]
        leading = np.stack(leads, axis=2)
        support[:, steps[1:], :3] = leading[:, :-1]
        if self.operands == 1:
            written[row, depth], groups[row, depth] = followed[row, last, 2], length + 2
            support[row, depth, :3] = leading[row, last]
            end, needed = depth + 1, prompt_length + depth
        else:
            constants = np.where(followed[:, :, 2:] < self.num_names, 0, followed[:, :, 2:] - self.num_names)
            written[:, steps + 1] = self.num_names + constants.sum(axis=2).cumsum(axis=1) % self.num_values
            groups[:, steps + 1] = path + 1
            support[:, steps + 1, : self.operands] = leading[:, :, 2:] + np.arange(self.operands)
            support[:, steps[1:] + 1, self.operands] = prompt_length + steps[:-1] + 1
            end, needed = 2 * depth, leading[row, last, 2]
        over = np.arange(written.shape[1]) >= end[:, None]
        written[over], groups[over], support[over] = len(self.vocabulary) - 1, length + 3, -1
        support[row, end, 0] = needed
        return _Response(written=written, groups=groups, support=support, end=end)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Response:
    """Tokens, groups and support, and at which index of the response it ends; behind that it is fill."""

    written: Int[np.ndarray, "batch response"]
    groups: Int[np.ndarray, "batch response"]
    support: Int[np.ndarray, "batch response k"]
    end: Int[np.ndarray, " batch"]

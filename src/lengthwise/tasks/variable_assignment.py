"""Variable assignment: follow a chain of assignments in random order from a variable to its value."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.errors import PromptError, SettingError
from lengthwise.core.type_checks import check_at_least, check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import SCRATCHPAD, Task, check_length_and_size, parse_symbols, sample_integers

DEPTH_SHARES = {"a quarter": 0.25, "half": 0.5, "all": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableAssignment(Task):
    """Layout ``a = b  c = v3  b = c ... ? a > a b c v3 end``: ``length`` assignments in random order, and a query.

    The response is a scratchpad: the queried variable, all variables of its chain, and the value at the end. By
    default, the share of assignments in the queried chain is uniform within ``depth_shares``; ``depth`` sets a fixed
    number instead. The other assignments form up to ``num_chains - 1`` distractor chains. Each variable is assigned
    once.

    With several ``operands``, an assignment also adds constants, such as ``a = b v1 v7``. In the response, the sum of
    all previous constants, modulo ``num_values``, follows each variable. The last sum includes the value and is the
    answer: ``a = b v1  b = v3 v2 ? a > a v1 b v6 end``. A variable depends on the previous variable and its assignment:
    k = 3. A sum depends on the operands and the previous sum: k is ``operands + 1``.

    The tokens of an assignment share an ID. A variable of the response has the ID of its assignment, so the
    response IDs depend on the prompt. A sum has the ID of the preceding token. The value has the ID of the query.
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
    given: ClassVar[tuple[str, ...]] = (SCRATCHPAD,)
    separators: ClassVar[tuple[str, ...]] = ("?", ">")

    def __post_init__(self) -> None:
        check_types(self)
        check_at_least(self, 1, "num_chains", "operands", "num_names", "num_values")
        min_share, max_share = self.depth_shares
        if not 0 < min_share <= max_share <= 1:
            shares = f"{min_share} to {max_share}"
            raise SettingError(f"invalid depth_shares {shares}; use increasing shares above 0, up to 1")
        depth = self.depth
        if depth is not None and depth < 1:
            raise SettingError(f"depth {depth} is too small; use at least 1, or None to sample it from depth_shares")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Variables, values, assignment sign, question mark, start token and end token."""
        names = (f"x{number}" for number in range(self.num_names))
        values = (f"v{number}" for number in range(self.num_values))
        return (*names, *values, "=", "?", ">", "end")

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Sample the depth, names, values, constants, ends of distractor chains, and order of assignments."""
        check_length_and_size(self.name, length, size)
        if length > self.num_names:
            raise SettingError(
                f"num_names {self.num_names} is too small for {length} assignments; "
                f"use at least {length} names, or a shorter length"
            )
        depth = self._sample_depths(length, size, rng)
        names = sample_integers(length, self.num_names, size, rng)
        operand_ids = self.num_names + rng.integers(0, self.num_values, size=(size, length, self.operands))
        # In chain order, each variable leads to the next variable or to a value.
        successors = np.append(names[:, 1:], names[:, :1], axis=1)
        is_last = self._mask_last_assignments(depth, length, rng)
        operand_ids[:, :, 0] = np.where(is_last, operand_ids[:, :, 0], successors)
        batch, order = np.arange(size)[:, None], sample_integers(length, length, size, rng)
        variables, operands = np.empty_like(names), np.empty_like(operand_ids)
        variables[batch, order], operands[batch, order] = names, operand_ids
        return self._lay_out(variables, operands, order[:, : depth.max()], depth)

    def example_from_prompt(self, prompt: str) -> Examples:
        """Parse assignments in any order and a query, such as ``x1 = x2 x2 = v3 ? x1``."""
        constants = "".join(f" v{number}" for number in range(1, self.operands))
        expected_format = f"assignments and a query such as 'x1 = x2{constants} x2 = v3{constants} ? x1'"
        parts, width = [part.split() for part in prompt.replace(">", " ").split("?")], self.operands + 2
        if len(parts) != 2 or len(parts[1]) != 1:
            raise PromptError(f"'{prompt}' does not query exactly one variable; write {expected_format}")
        symbols = parse_symbols(parts[0], self.vocabulary[:-3], self.name, expected_format)
        (query,) = parse_symbols(parts[1], self.vocabulary[: self.num_names], self.name, expected_format)
        has_whole_blocks = len(symbols) % width == 0
        blocks = symbols.reshape(-1, width) if has_whole_blocks else np.zeros((1, width), dtype=np.int64)
        is_value = (blocks >= self.num_names) & (blocks < self.num_names + self.num_values)
        has_sign = blocks[:, 1] == len(self.vocabulary) - 4
        if not has_sign.all() or (blocks[:, 0] >= self.num_names).any() or not is_value[:, 3:].all():
            raise PromptError(
                f"'{prompt}' is not a list of assignments with {self.operands} operands; write {expected_format}"
            )
        block_indexes = {int(variable): index for index, variable in enumerate(blocks[:, 0])}
        if len(block_indexes) < len(blocks):
            raise PromptError(f"'{prompt}' assigns a variable twice; assign each variable once")
        path, variable = [], int(query)
        while variable < self.num_names:
            if variable not in block_indexes or block_indexes[variable] in path:
                problem = "leads back to itself" if variable in block_indexes else "is not assigned"
                raise PromptError(f"variable x{variable} {problem}; end the chain with a value")
            path.append(block_indexes[variable])
            variable = int(blocks[path[-1], 2])
        return self._lay_out(blocks[None, :, 0], blocks[None, :, 2:], np.array([path]), np.array([len(path)]))

    def variants(self) -> Mapping[str, Task]:
        """Return variants with a queried chain of a quarter, half or all assignments, if there are several chains."""
        if self.num_chains == 1:
            return {}
        return {name: replace(self, depth=None, depth_shares=(share, share)) for name, share in DEPTH_SHARES.items()}

    def _sample_depths(self, length: int, batch_size: int, rng: np.random.Generator) -> Int[np.ndarray, " size"]:
        if self.num_chains == 1:
            return np.full(batch_size, length)
        if self.depth is not None:
            return np.full(batch_size, min(self.depth, length))
        min_depth, max_depth = (max(1, math.ceil(share * length)) for share in self.depth_shares)
        return rng.integers(min_depth, max_depth + 1, size=batch_size)

    def _mask_last_assignments(
        self, depth: Int[np.ndarray, " size"], length: int, rng: np.random.Generator
    ) -> Bool[np.ndarray, "size length"]:
        """Return a mask of the last assignment of each chain; the distractor chains end at random assignments."""
        index, batch_size = np.arange(length), len(depth)
        may_be_last = (index >= depth[:, None]) & (index < length - 1)
        num_cuts = rng.integers(0, max(1, self.num_chains - 1), size=batch_size)[:, None]
        random_rank = np.where(may_be_last, rng.random((batch_size, length)), np.inf).argsort(axis=1).argsort(axis=1)
        return (may_be_last & (random_rank < num_cuts)) | (index == depth[:, None] - 1) | (index == length - 1)

    def _lay_out(
        self,
        variables: Int[np.ndarray, "batch length"],
        operands: Int[np.ndarray, "batch length operands"],
        path: Int[np.ndarray, "batch deepest"],
        depth: Int[np.ndarray, " batch"],
    ) -> Examples:
        """Build examples; ``path`` has the prompt order of the queried chain, and padding from index ``depth``."""
        (batch_size, length), width = variables.shape, self.operands + 2
        sign_id, question_id, start_id, end_id = len(self.vocabulary) - np.arange(4, 0, -1)
        blocks = np.concatenate([variables[..., None], np.full((batch_size, length, 1), sign_id), operands], axis=2)
        query = variables[np.arange(batch_size), path[:, 0]][:, None]
        ones = np.ones_like(query)
        prompt = np.concatenate([blocks.reshape(batch_size, -1), question_id * ones, query, start_id * ones], axis=1)
        prompt_groups = np.append(np.repeat(np.arange(length) + 1, width), length + np.array([1, 2, 2]))
        prompt_length, batch, last_index = prompt.shape[1], np.arange(batch_size), depth - 1
        chain = blocks[batch[:, None], path]
        # Response indexes of the variables. If there are several operands, a sum follows the variable.
        variable_indexes = np.arange(path.shape[1]) * (1 if self.operands == 1 else 2)
        tokens = np.full((batch_size, variable_indexes[-1] + 3), end_id)
        groups = np.full_like(tokens, length + 3)
        depends_on = np.full((*tokens.shape, max(3, self.operands + 1)), -1)
        tokens[:, variable_indexes], groups[:, variable_indexes] = chain[:, :, 0], path + 1
        depends_on[:, 0, 0] = prompt_length - 2
        # The token after a variable depends on this variable, and on the variable and first operand of its assignment.
        previous = np.broadcast_to(prompt_length + variable_indexes, path.shape)
        dependencies = np.stack([previous, path * width, path * width + 2], axis=2)
        depends_on[:, variable_indexes[1:], :3] = dependencies[:, :-1]
        if self.operands == 1:
            tokens[batch, depth], groups[batch, depth] = chain[batch, last_index, 2], length + 2
            depends_on[batch, depth, :3] = dependencies[batch, last_index]
            end_index, end_source = depth + 1, prompt_length + depth
        else:
            constants = np.where(chain[:, :, 2:] < self.num_names, 0, chain[:, :, 2:] - self.num_names)
            tokens[:, variable_indexes + 1] = self.num_names + constants.sum(axis=2).cumsum(axis=1) % self.num_values
            groups[:, variable_indexes + 1] = path + 1
            depends_on[:, variable_indexes + 1, : self.operands] = dependencies[:, :, 2:] + np.arange(self.operands)
            depends_on[:, variable_indexes[1:] + 1, self.operands] = prompt_length + variable_indexes[:-1] + 1
            end_index, end_source = 2 * depth, dependencies[batch, last_index, 2]
        is_padding = np.arange(tokens.shape[1]) >= end_index[:, None]
        tokens[is_padding], groups[is_padding], depends_on[is_padding] = end_id, length + 3, -1
        depends_on[batch, end_index, 0] = end_source
        token_index = np.arange(prompt_length + tokens.shape[1])
        return Examples(
            tokens=np.concatenate([prompt, tokens], axis=1),
            prompt_length=np.full(batch_size, prompt_length),
            is_answer=(token_index >= prompt_length) & (token_index <= prompt_length + end_index[:, None]),
            coupling=np.concatenate([np.tile(prompt_groups, (batch_size, 1)), groups], axis=1)[None],
            depends_on=np.pad(depends_on, ((0, 0), (prompt_length, 0), (0, 0)), constant_values=-1),
        )

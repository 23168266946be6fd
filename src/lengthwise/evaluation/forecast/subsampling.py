"""Weighted subsamples of the tokens of a long sequence."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

# A block contains neighboring tokens, so that a token keeps the context that earlier layers attend to.
BLOCK_SIZE = 4
NUM_NEIGHBORS = 2

# Token indexes, weights, conditional weights and block numbers of one subsample.
_SampledTokens = tuple[Int[np.ndarray, " _"], Float[np.ndarray, " _"], Float[np.ndarray, " _"], Int[np.ndarray, " _"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subsample:
    """Subsamples of sequences, one per row, each ending with the token before the answer of its query.

    ``indices`` are increasing token indexes up to column ``last_column``; the last index repeats as padding. A token
    represents ``weights`` tokens of the full sequence (1 near the needed tokens). For a query token in a sampled block,
    the other tokens have ``conditional_weights``, because its block is certainly in the sample. ``visible_counts`` is
    the number of tokens of the full sequence up to each token, and ``blocks`` is the number of the block that contains
    it.
    """

    indices: Int[np.ndarray, "queries tokens"]
    weights: Float[np.ndarray, "queries tokens"]
    conditional_weights: Float[np.ndarray, "queries tokens"]
    visible_counts: Float[np.ndarray, "queries tokens"]
    blocks: Int[np.ndarray, "queries tokens"]
    last_column: Int[np.ndarray, " queries"]

    def score_bias(self) -> Float[np.ndarray, "queries query key"]:
        """Return the log weight of each key for each query token; keys in the block of the query have weight 1."""
        is_other_block = self.blocks[:, :, None] != self.blocks[:, None, :]
        is_in_sampled_block = self.weights[:, :, None] > 1
        weight = np.where(is_in_sampled_block, self.conditional_weights[:, None, :], self.weights[:, None, :])
        return np.where(is_other_block, np.log(weight), 0.0)

    def unweighted(self) -> "Subsample":
        """Return the same tokens with weight 1 each, as in a short sequence."""
        ones = np.ones_like(self.weights)
        return replace(self, weights=ones, conditional_weights=ones, visible_counts=ones.cumsum(axis=1))


def subsample(
    depends_on: list[Int[np.ndarray, " _"]],
    last_index: Int[np.ndarray, " queries"],
    budget: int,
    rng: np.random.Generator,
    unit_ids: Int[np.ndarray, "queries seq"] | None = None,
    block_size: int = BLOCK_SIZE,
    *,
    num_neighbors: int = NUM_NEIGHBORS,
) -> Subsample:
    """Sample about ``budget`` tokens up to ``last_index``, the index of the token before each answer.

    Every subsample contains the needed tokens and ``num_neighbors`` tokens on both sides of each token in it. The rest
    is a sample without replacement of at least two blocks of ``block_size`` tokens, weighted by the inverse of the
    sampled fraction. The expected weighted sum over the sampled blocks is then the sum over all blocks (Horvitz and
    Thompson 1952), for attention from sampled blocks and from tokens near the needed tokens.

    With ``unit_ids``, tokens with the same unit ID (such as coupled tokens) are sampled together, so that a subsample
    has the layout of a shorter sequence. Blocks and the budget then count units. By default, each token is a unit.
    """
    subsamples = []
    for query, (needed_tokens, last) in enumerate(zip(depends_on, last_index.tolist(), strict=True)):
        token_units = np.arange(last + 1) if unit_ids is None else unit_ids[query, : last + 1]
        # Block starts are random, so that no token is always the first of its block.
        block_offset = int(rng.integers(block_size)) if len(np.unique(token_units)) > budget else 0
        near = _with_neighbors(needed_tokens, last, num_neighbors)
        blocks = _divide_into_blocks(near, token_units, budget, block_size, block_offset)
        subsamples += blocks.select(rng.choice(blocks.optional_blocks, size=(1, blocks.num_sampled), replace=False))
    return _stack_subsamples(subsamples)


def split_into_pieces(
    depends_on: list[Int[np.ndarray, " _"]],
    last_index: Int[np.ndarray, " queries"],
    budget: int,
    rng: np.random.Generator,
    max_pieces: int,
) -> tuple[Subsample, float]:
    """Split each sequence into at most ``max_pieces`` pieces of about ``budget`` tokens.

    Each piece contains the needed tokens. The other blocks are divided among the pieces at random. All sequences have
    the same number of pieces, so shorter sequences repeat some blocks. Return the pieces, sorted by query, and the
    fraction of tokens that they cover (the minimum over queries).
    """
    blocks_per_query, num_required = [], 1
    for tokens, last in zip(depends_on, last_index.tolist(), strict=True):
        near, offset = _with_neighbors(tokens, last, NUM_NEIGHBORS), int(rng.integers(BLOCK_SIZE))
        blocks = _divide_into_blocks(near, np.arange(last + 1), budget, BLOCK_SIZE, offset)
        num_required = max(num_required, -(-len(blocks.optional_blocks) // max(1, blocks.num_sampled)))
        blocks_per_query.append(blocks)
    num_pieces = min(max_pieces, num_required)
    subsamples: list[_SampledTokens] = []
    for blocks in blocks_per_query:
        block_order = np.resize(rng.permutation(blocks.optional_blocks), num_pieces * blocks.num_sampled)
        subsamples += blocks.select(block_order.reshape(num_pieces, blocks.num_sampled))
    return _stack_subsamples(subsamples), min(1.0, num_pieces / num_required)


def upweight_distractors(
    depends_on: list[Int[np.ndarray, " _"]], last_index: Int[np.ndarray, " queries"], factor: float
) -> Subsample:
    """Keep all tokens, and weight tokens that are not needed as in a sequence ``factor`` times as long."""
    length = int(last_index.max()) + 1
    token_indices = np.broadcast_to(np.arange(length), (len(last_index), length))
    indices, blocks = np.minimum(token_indices, last_index[:, None]), token_indices // BLOCK_SIZE
    weights = np.ones(token_indices.shape)
    for query, (tokens, last) in enumerate(zip(depends_on, last_index.tolist(), strict=True)):
        is_distractor = ~np.isin(blocks[query], _with_neighbors(tokens, last, NUM_NEIGHBORS) // BLOCK_SIZE)
        if num_distractors := int(is_distractor[: last + 1].sum()):
            weights[query, is_distractor] = (factor * (last + 1) - (last + 1 - num_distractors)) / num_distractors
    return Subsample(
        indices=indices,
        weights=weights,
        conditional_weights=weights,
        visible_counts=weights.cumsum(axis=1),
        blocks=blocks,
        last_column=last_index,
    )


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Blocks of one sequence: required blocks contain the needed tokens or its neighbors, and all others are optional.

    ``block`` is the block number of each token. ``num_sampled`` is the number of optional blocks within the budget.
    """

    block: Int[np.ndarray, " tokens"]
    is_required: Bool[np.ndarray, " blocks"]
    optional_blocks: Int[np.ndarray, " optional"]
    num_sampled: int

    def select(self, samples: Int[np.ndarray, "subsamples sampled"]) -> list[_SampledTokens]:
        """Return the tokens of the required blocks and of each sample of optional blocks, with their weights."""
        num_optional, num_sampled = len(self.optional_blocks), samples.shape[1]
        weight = np.where(self.is_required, 1.0, num_optional / max(1, num_sampled))
        conditional_weight = np.where(self.is_required, 1.0, (num_optional - 1) / max(1, num_sampled - 1))
        subsamples = []
        for sampled_blocks in samples:
            is_included = self.is_required.copy()
            is_included[sampled_blocks] = True
            indices = np.flatnonzero(is_included[self.block])
            blocks = self.block[indices]
            subsamples.append((indices, weight[blocks], conditional_weight[blocks], blocks))
        return subsamples


def _divide_into_blocks(
    required: Int[np.ndarray, " _"], units: Int[np.ndarray, " tokens"], budget: int, block_size: int, offset: int
) -> _Blocks:
    """Divide a sequence into blocks; a sequence within the budget is a single required block.

    ``required`` has the indexes of tokens whose blocks are required.
    """
    if len(np.unique(units)) <= budget:
        return _Blocks(np.zeros(len(units), dtype=int), np.ones(1, dtype=bool), np.zeros(0, dtype=int), 0)
    block_numbers = (units + offset) // block_size
    is_required = np.zeros(block_numbers.max() + 1, dtype=bool)
    is_required[block_numbers[required]] = True
    optional_blocks = np.setdiff1d(block_numbers, np.flatnonzero(is_required))
    num_sampled = min(len(optional_blocks), max(2, budget // block_size - int(is_required.sum())))
    return _Blocks(block_numbers, is_required, optional_blocks, num_sampled)


def _with_neighbors(depends_on: Int[np.ndarray, " _"], last_index: int, num_neighbors: int) -> Int[np.ndarray, " near"]:
    """Return the needed tokens, the last token, and their neighbors on both sides."""
    near = np.append(depends_on, last_index)[:, None] + np.arange(-num_neighbors, num_neighbors + 1)
    return near.clip(0, last_index).ravel()


def _stack_subsamples(subsamples: list[_SampledTokens]) -> Subsample:
    max_tokens = max(len(indices) for indices, *_ in subsamples)
    indices, weights, conditional_weights, blocks = (
        np.stack([np.pad(array, (0, max_tokens - len(array)), mode="edge") for array in arrays])
        for arrays in zip(*subsamples, strict=True)
    )
    return Subsample(
        indices=indices,
        weights=weights,
        conditional_weights=conditional_weights,
        visible_counts=indices + 1.0,
        blocks=blocks,
        last_column=np.array([len(indices) - 1 for indices, *_ in subsamples]),
    )

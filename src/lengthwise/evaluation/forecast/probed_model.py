"""A trained decoder with its training ranges, and its change in accuracy if it reads only a subsample."""

from dataclasses import dataclass

import numpy as np

from lengthwise.core.randomness import stream
from lengthwise.encodings import EncodingSettings
from lengthwise.evaluation.forecast.sparse_queries import (
    NUM_SUBSAMPLES,
    Queries,
    QueryResult,
    query_decoder,
    sample_end_queries,
    sample_queries,
)
from lengthwise.evaluation.forecast.subsampling import Subsample, split_into_pieces, subsample, upweight_distractors
from lengthwise.model.decoder import Decoder
from lengthwise.positions import PositionScheme
from lengthwise.tasks import Task

# Number of queries per length, for answer tokens and for end tokens.
NUM_QUERIES, NUM_END_QUERIES = 256, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedModel:
    """Trained decoder and its training ranges.

    ``id_range`` is the smallest and the largest training ID, ``trained_distance`` is the largest ID difference within a
    training example, and ``fitted`` is the exact match at the longest training length (both None if unknown).
    """

    decoder: Decoder
    task: Task
    scheme: PositionScheme
    encoding: EncodingSettings
    train_lengths: tuple[int, int]
    id_range: tuple[int | float, int | float]
    trained_distance: int | float | None = None
    fitted: float | None = None
    seed: int = 0

    @property
    def max_train_length(self) -> int:
        """Longest length in the training range."""
        return self.train_lengths[1]

    @property
    def subsampling_obstacle(self) -> str | None:
        """Reason why subsamples cannot represent full sequences; None if they can."""
        if self.task.sample(length=self.max_train_length, size=1, rng=stream(0)).support is None:
            name = self.task.name
            return (
                f"task {name} does not declare which tokens its answers depend on (support); use a built-in task, a "
                "class with support, or a run with the scheme discovered, whose rule names these tokens"
            )
        weights = self.decoder.settings.weights
        if weights != "softmax":
            return f"attention weights '{weights}' do not allow subsampling; train with weights 'softmax'"
        if self.encoding.reads_order:
            return (
                f"encoding {self.encoding.name} reads neighboring tokens or counts tokens and does not allow "
                "subsampling; use an encoding that reads only IDs"
            )
        return None

    def queries(self, length: int, num_queries: int = NUM_QUERIES) -> Queries:
        """Sample queries about answer tokens at a length, with the seed of the model."""
        return sample_queries(self.task, self.scheme, length, num_queries, self.seed)

    def end_queries(self, length: int) -> Queries | None:
        """Sample queries about end tokens at a length; return None if examples have no end token."""
        return sample_end_queries(self.task, self.scheme, length, NUM_END_QUERIES, self.seed)

    def pieces(self, queries: Queries, length: int, budget: int, max_pieces: int) -> tuple[Subsample, float]:
        """Split the sequence of each query into pieces, and return them with the fraction of tokens that they cover."""
        rng = stream(self.seed, "forecast pieces", length, budget)
        return split_into_pieces(queries.support, queries.last_index, budget, rng, max_pieces)

    def subsample(self, queries: Queries, length: int, budget: int) -> Subsample:
        """Return ``NUM_SUBSAMPLES`` subsamples of each query."""
        rng = stream(self.seed, "forecast draws", length, budget)
        repeated_support = [token_indices for token_indices in queries.support for _ in range(NUM_SUBSAMPLES)]
        return subsample(repeated_support, np.repeat(queries.last_index, NUM_SUBSAMPLES), budget, rng)

    def query(self, queries: Queries, subsample: Subsample) -> QueryResult:
        """Evaluate queries on subsamples with this decoder."""
        return query_decoder(self.decoder, queries, subsample)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsampleAccuracy:
    """Accuracy at the longest training length on full sequences, and on a half and a quarter of their tokens.

    A subsample always contains the support and its neighbors. In short sequences, these may be more than a quarter.
    """

    whole: float
    half: float
    quarter: float

    @property
    def max_accuracy_change(self) -> float:
        """Larger change in accuracy if the decoder reads a half or a quarter of the tokens."""
        return max(abs(self.whole - self.half), abs(self.whole - self.quarter))


def measure_subsample_accuracy(model: ProbedModel, queries: Queries, budget: int) -> SubsampleAccuracy:
    """Measure the accuracy on full sequences of ``budget`` tokens, and on a half and a quarter of their tokens."""
    full = upweight_distractors(queries.support, queries.last_index, 1.0)
    parts = (model.subsample(queries, model.max_train_length, budget // divisor) for divisor in (2, 4))
    whole, half, quarter = (float(model.query(queries, tokens).correct.mean()) for tokens in (full, *parts))
    return SubsampleAccuracy(whole=whole, half=half, quarter=quarter)

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
    sample_queries,
    sample_response_queries,
)
from lengthwise.evaluation.forecast.subsampling import Subsample, split_into_pieces, subsample, upweight_distractors
from lengthwise.model.decoder import Decoder
from lengthwise.positions import PositionScheme
from lengthwise.tasks import GradedByLoss, Task

# Number of queries per length; number of queries in which several belong to each example, and per example.
NUM_QUERIES, NUM_RESPONSE_QUERIES, QUERIES_PER_RESPONSE = 128, 768, 32


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
        if isinstance(self.task, GradedByLoss):
            return (
                f"task {self.task.name} has several valid answers, so there is no accuracy to predict; measure its "
                "loss with lengthwise evaluate"
            )
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

    def response_queries(self, length: int) -> tuple[Queries, int]:
        """Sample several queries for each example at a length; return them and their number per example."""
        return sample_response_queries(
            self.task, self.scheme, length, NUM_RESPONSE_QUERIES, QUERIES_PER_RESPONSE, self.seed
        )

    def pieces(self, queries: Queries, length: int, budget: int, max_pieces: int) -> tuple[Subsample, float]:
        """Split the sequence of each query into pieces, and return them with the fraction of tokens that they cover."""
        rng = stream(self.seed, "forecast pieces", length, budget)
        return split_into_pieces(queries.support, queries.last_index, budget, rng, max_pieces)

    def subsample(
        self,
        queries: Queries,
        length: int,
        budget: int,
        *,
        as_blocks: bool = True,
        num_subsamples: int = NUM_SUBSAMPLES,
    ) -> Subsample:
        """Return subsamples of each query, with blocks, or with single tokens without neighbors."""
        rng = stream(self.seed, "forecast draws", length, budget)
        support = [token_indices for token_indices in queries.support for _ in range(num_subsamples)]
        last_index = np.repeat(queries.last_index, num_subsamples)
        if as_blocks:
            return subsample(support, last_index, budget, rng)
        return subsample(support, last_index, budget, rng, block_size=1, num_neighbors=0)

    def query(self, queries: Queries, subsample: Subsample) -> QueryResult:
        """Evaluate queries on subsamples with this decoder."""
        return query_decoder(self.decoder, queries, subsample)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsampleAccuracy:
    """Accuracy at the longest training length on full sequences, and on a half and a quarter of their tokens.

    A subsample always contains the support. The half consists of single tokens, so a run that reads the context of
    tokens is less accurate on it. The quarter consists of blocks, and contains the neighbors of the support; in short
    sequences, these may be more than a quarter.
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
    half = model.subsample(queries, model.max_train_length, budget // 2, as_blocks=False)
    quarter = model.subsample(queries, model.max_train_length, budget // 4)
    accuracies = [float(model.query(queries, tokens).correct.mean()) for tokens in (full, half, quarter)]
    return SubsampleAccuracy(whole=accuracies[0], half=accuracies[1], quarter=accuracies[2])

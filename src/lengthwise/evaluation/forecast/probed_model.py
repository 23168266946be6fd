"""A trained decoder that answers queries about single tokens from a subsample of each sequence."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.core.randomness import random_stream
from lengthwise.encodings import EncodingSettings
from lengthwise.evaluation.forecast.subsampling import Subsample, subsample, upweight_distractors
from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.model.decoder import Decoder
from lengthwise.model.position_heads import NextIDDistribution
from lengthwise.positions import PositionScheme
from lengthwise.tasks import GradedByLoss, Task
from lengthwise.tasks.coupling.pointers import TaskWithFoundCoupling
from lengthwise.tasks.examples import Examples
from lengthwise.training.batch import Batch, to_batch

# Number of subsamples per query. Their log-probabilities are averaged, because a single subsample is noisy.
NUM_SUBSAMPLES = 8
# Number of tokens before the prompt token of a found rule, and before an answer, that the answer can depend on.
NUM_TOKENS_BEFORE = 3
# Maximum number of examples with several queries each.
MAX_RESPONSES = 256
# Maximum number of attention scores per layer in one forward pass, which limits the memory.
MAX_SCORES = 1 << 20
# Number of queries per length; number of queries in which several belong to each example, and per example.
NUM_QUERIES, NUM_RESPONSE_QUERIES, QUERIES_PER_RESPONSE = 128, 768, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """Correctness of the answer token of each query, including its ID if the ID is scored.

    ``correct`` uses the mean log-probability over subsamples, and ``correct_each`` uses each subsample separately.
    ``leakage`` is the mean attention weight outside the needed tokens, over queries and subsamples.
    """

    correct: Bool[np.ndarray, " queries"]
    correct_each: Bool[np.ndarray, "queries subsamples"]
    leakage: Float[np.ndarray, "layers heads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerQueries:
    """Examples, the token index of one answer in each, and the token indexes that the answer depends on.

    ``depends_on`` contains the tokens that the task declares, and all separators before the answer, because separators
    determine the segments of a sequence.
    """

    examples: Examples
    batch: Batch
    answer: Int[np.ndarray, " queries"]
    depends_on: list[Int[np.ndarray, " _"]]

    @property
    def last_index(self) -> Int[np.ndarray, " queries"]:
        """Index of the token before each answer, which predicts it."""
        return self.answer - 1

    def select(self, indices: Int[np.ndarray, " selected"]) -> "AnswerQueries":
        """Return the queries at ``indices``; an index may repeat."""
        return AnswerQueries(
            examples=self.examples.select(indices),
            batch=self.batch.select_examples(indices),
            answer=self.answer[indices],
            depends_on=[self.depends_on[index] for index in indices],
        )


def take_first(batches: Iterable[AnswerQueries], num_queries: int) -> Iterator[AnswerQueries]:
    """Yield the first ``num_queries`` queries of all batches together, without empty batches."""
    for queries in batches:
        selected = queries.select(np.arange(min(num_queries, len(queries.answer))))
        if len(selected.answer):
            yield selected
        num_queries -= len(selected.answer)


def build_queries(task: Task, examples: Examples, batch: Batch, answer: Int[np.ndarray, " queries"]) -> AnswerQueries:
    """Return queries for the answers at token indexes ``answer``, one per example, with their needed tokens."""
    separators = [task.vocabulary.index(symbol) for symbol in task.separators]
    needed_indices = []
    for example_index, answer_index in enumerate(answer.tolist()):
        is_separator = np.isin(examples.tokens[example_index, :answer_index], separators)
        depends_on: Int[np.ndarray, " _"] = np.empty(0, dtype=int)
        if examples.depends_on is not None:
            depends_on = examples.depends_on[example_index, answer_index]
            depends_on = depends_on[depends_on >= 0]
        if isinstance(task, TaskWithFoundCoupling):
            # A found rule names the new prompt token of each step, not the tokens before it or the earlier answers.
            before = (np.append(depends_on, answer_index - 1)[:, None] - np.arange(NUM_TOKENS_BEFORE + 1)).ravel()
            depends_on = before[before >= 0]
        needed_indices.append(np.union1d(depends_on, np.flatnonzero(is_separator)))
    return AnswerQueries(examples=examples, batch=batch, answer=answer, depends_on=needed_indices)


def sample_queries(task: Task, scheme: PositionScheme, length: int, num_queries: int, seed: int) -> AnswerQueries:
    """Sample examples, and return a query for one random answer token of each, never the end token."""
    rng = random_stream(seed, "forecast questions", length)
    examples, batch = _sample_batch(task, scheme, length, num_queries, rng)
    return build_queries(task, examples, batch, sample_answers(task, batch, rng))


def _sample_batch(
    task: Task, scheme: PositionScheme, length: int, num_queries: int, rng: np.random.Generator
) -> tuple[Examples, Batch]:
    examples = task.sample(length=length, size=num_queries, rng=rng)
    return examples, to_batch(length, examples, scheme.assign(examples, rng, training=False))


def mark_answers(task: Task, batch: Batch) -> Bool[np.ndarray, "batch seq"]:
    """Return a mask of the answer tokens, without the end tokens."""
    return (batch.token_scored & (batch.tokens != task.vocabulary.index("end"))).numpy()


def sample_answers(task: Task, batch: Batch, rng: np.random.Generator) -> Int[np.ndarray, " batch"]:
    """Return the token index of one random answer token of each example, never the end token."""
    is_answer = mark_answers(task, batch)
    return np.asarray((rng.random(is_answer.shape) * is_answer).argmax(axis=1))


@torch.no_grad()
def _query_batch(
    decoder: Decoder, queries: AnswerQueries, subsample: Subsample, num_subsamples: int, query_slice: slice
) -> tuple[Bool[Tensor, " queries"], Bool[Tensor, "queries subsamples"], list[Float[Tensor, "sequences heads"]]]:
    sequences = slice(query_slice.start * num_subsamples, query_slice.stop * num_subsamples)
    subsample = Subsample(**{field.name: getattr(subsample, field.name)[sequences] for field in fields(Subsample)})
    batch, num_queries = queries.batch.select_examples(query_slice), query_slice.stop - query_slice.start
    answer, last_column = torch.from_numpy(queries.answer[query_slice]), torch.from_numpy(subsample.last_column)
    needed = [queries.depends_on[query_slice.start + row // num_subsamples] for row in range(len(subsample.indices))]
    is_needed = np.stack([np.isin(*pair) for pair in zip(subsample.indices, needed, strict=True)])
    outside_needed = torch.from_numpy(1.0 - is_needed).float()
    leakage: list[Tensor] = []
    sequence_indices = torch.arange(num_queries * num_subsamples)

    def record_leakage(weights: Tensor) -> None:
        leakage.append((weights[sequence_indices, :, last_column] * outside_needed[:, None]).sum(dim=-1))

    bias, counts = (torch.from_numpy(array).float() for array in (subsample.score_bias(), subsample.visible_counts))
    hooks = AttentionHooks(score_bias=bias, visible_counts=counts, on_weights=record_leakage)
    indices = torch.from_numpy(subsample.indices)
    hidden, _ = decoder(batch.tokens, batch.position_ids, hooks=hooks, keep_indices=indices)
    hidden = hidden[sequence_indices, last_column].view(num_queries, num_subsamples, -1)
    return *_grade(decoder, batch, hidden, answer), leakage


@torch.no_grad()
def query_without_tokens(
    decoder: Decoder, queries: AnswerQueries, hidden_tokens: Sequence[Sequence[Int[np.ndarray, " _"]]]
) -> Bool[np.ndarray, "queries sets"]:
    """Grade the decoder on each query if the token before the answer reads all tokens but those of a set.

    ``hidden_tokens`` has the sets of token indexes of each query, as many for each. The other tokens read everything.
    IDs and length scaling stay the same. No scores of other tokens are stored, so sequences may be long.
    """
    correct = []
    for row, (last, sets) in enumerate(zip(queries.last_index.tolist(), hidden_tokens, strict=True)):
        query = queries.select(np.array([row]))
        batch, answer = query.batch, torch.from_numpy(query.answer)
        tokens, ids = batch.tokens[:, : last + 1], batch.position_ids[:, :, : last + 1]
        _, cache = decoder(tokens[:, :last], ids[:, :, :last]) if last else (None, None)
        for hidden_set in sets:
            score_bias = torch.zeros(1, 1, last + 1)
            score_bias[:, :, torch.from_numpy(hidden_set)] = -math.inf
            hooks = AttentionHooks(score_bias=score_bias, visible_counts=torch.full((1, 1), last + 1.0))
            hidden, _ = decoder(tokens[:, last:], ids[:, :, last:], cache, hooks=hooks)
            correct.append(bool(_grade(decoder, batch, hidden, answer)[0]))
    return np.array(correct).reshape(len(queries.answer), -1)


def _grade(
    decoder: Decoder, batch: Batch, hidden: Float[Tensor, "queries subsamples d_model"], answer: Int[Tensor, " queries"]
) -> tuple[Bool[Tensor, " queries"], Bool[Tensor, "queries subsamples"]]:
    """Return masks of correct answers with their IDs, for the mean over subsamples and for each subsample."""
    target_token = batch.tokens.gather(1, answer[:, None])
    log_probs = decoder.token_logits(hidden).log_softmax(dim=-1)
    correct = log_probs.mean(dim=1).argmax(dim=-1) == target_token[:, 0]
    correct_each = log_probs.argmax(dim=-1) == target_token
    if decoder.predicts_ids:
        id_correct, id_correct_each = _grade_ids(decoder, batch, hidden, answer)
        id_scored = batch.id_scored.gather(1, answer[:, None])
        correct, correct_each = correct & (id_correct | ~id_scored[:, 0]), correct_each & (id_correct_each | ~id_scored)
    return correct, correct_each


def _grade_ids(
    decoder: Decoder, batch: Batch, hidden: Float[Tensor, "queries subsamples d_model"], answer: Int[Tensor, " queries"]
) -> tuple[Bool[Tensor, " queries"], Bool[Tensor, "queries subsamples"]]:
    """Return masks of correct IDs, for the mean over subsamples and for each subsample; heads read the full prompt."""
    num_subsamples = hidden.shape[1]
    answer_index = answer[None, :, None]
    target_ids = batch.position_ids.take_along_dim(answer_index, dim=2)
    current_ids = batch.position_ids.take_along_dim(answer_index - 1, dim=2).expand(-1, -1, num_subsamples)
    tokens = batch.tokens.gather(1, answer[:, None]).expand(-1, num_subsamples)
    prompts = decoder.build_prompt_keys(batch.tokens, batch.position_ids, batch.prompt_length)
    predictions = decoder.next_id_distributions(hidden, current_ids, tokens, prompts)
    correct_each = torch.stack([level.most_likely_ids() for level in predictions])
    # The subsamples of a query start from the same ID, so they have the same candidates.
    mean_predictions = [
        NextIDDistribution(log_probs=level.log_probs.mean(dim=1, keepdim=True), candidates=level.candidates[:, :1])
        for level in predictions
    ]
    ids_from_mean = torch.stack([level.most_likely_ids() for level in mean_predictions])
    return (ids_from_mean == target_ids).all(dim=0)[:, 0], (correct_each == target_ids).all(dim=0)


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
        if self.task.sample(length=self.max_train_length, size=1, rng=random_stream(0)).depends_on is None:
            name = self.task.name
            return (
                f"task {name} does not declare which tokens its answers depend on (depends_on); use a built-in task, a "
                "class with depends_on, or a run with the scheme discovered, whose rule names these tokens"
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

    def sample_answer_queries(self, length: int, num_queries: int = NUM_QUERIES) -> AnswerQueries:
        """Sample queries about answer tokens at a length, with the seed of the model."""
        return sample_queries(self.task, self.scheme, length, num_queries, self.seed)

    def response_queries(self, length: int) -> tuple[AnswerQueries, int]:
        """Sample several queries for each example at a length; return them, sorted by example, and their number.

        An example has a query for its first and its last scored token (usually the end token), and for others between
        them at random, ``QUERIES_PER_RESPONSE`` in all if it has that many. Together, the examples have about
        ``NUM_RESPONSE_QUERIES`` queries.
        """
        rng = random_stream(self.seed, "forecast responses", length)
        examples, batch = _sample_batch(self.task, self.scheme, length, 1, rng)
        num_each = min(QUERIES_PER_RESPONSE, int(batch.token_scored.sum(dim=1).min()))
        num_examples = min(MAX_RESPONSES, max(1, NUM_RESPONSE_QUERIES // num_each))
        examples, batch = _sample_batch(self.task, self.scheme, length, num_examples, rng)
        # Responses of the same length can have different numbers of tokens.
        num_each = min(num_each, int(batch.token_scored.sum(dim=1).min()))
        answers = []
        for is_scored in batch.token_scored.numpy():
            scored = np.flatnonzero(is_scored)
            # One random token of each of equally long stretches, except for the ends.
            edges = np.arange(num_each + 1) * len(scored) // num_each
            places = rng.integers(edges[:-1], edges[1:])
            places[0], places[-1] = 0, len(scored) - 1
            answers.append(scored[places])
        repeated = np.repeat(np.arange(len(examples)), num_each)
        answer = np.concatenate(answers)
        return build_queries(self.task, examples.select(repeated), batch.select_examples(repeated), answer), num_each

    def subsample(
        self,
        queries: AnswerQueries,
        length: int,
        budget: int,
        *,
        as_blocks: bool = True,
        num_subsamples: int = NUM_SUBSAMPLES,
    ) -> Subsample:
        """Return subsamples of each query, with blocks, or with single tokens without neighbors."""
        rng = random_stream(self.seed, "forecast draws", length, budget)
        depends_on = [token_indices for token_indices in queries.depends_on for _ in range(num_subsamples)]
        last_index = np.repeat(queries.last_index, num_subsamples)
        if as_blocks:
            return subsample(depends_on, last_index, budget, rng)
        return subsample(depends_on, last_index, budget, rng, block_size=1, num_neighbors=0)

    def query(self, queries: AnswerQueries, subsample: Subsample) -> QueryResult:
        """Grade the decoder on each query; ``subsample`` has the same number of consecutive rows for each query.

        The weights of a subsample change the attention scores; its ``visible_counts`` change the length scaling.
        """
        num_queries, num_heads = len(queries.answer), self.decoder.settings.num_heads
        num_subsamples = len(subsample.last_column) // num_queries
        per_pass = max(1, MAX_SCORES // (subsample.indices.shape[1] ** 2 * num_heads * num_subsamples))
        slices = [slice(start, min(start + per_pass, num_queries)) for start in range(0, num_queries, per_pass)]
        results = [_query_batch(self.decoder, queries, subsample, num_subsamples, part) for part in slices]
        leakages = [np.stack([layer.numpy() for layer in leakage]) for _, _, leakage in results]
        return QueryResult(
            correct=np.concatenate([correct.numpy() for correct, _, _ in results]),
            correct_each=np.concatenate([correct_each.numpy() for _, correct_each, _ in results]),
            leakage=np.concatenate(leakages, axis=1).mean(axis=1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsampleAccuracy:
    """Accuracy at the longest training length on full sequences, and on a half and a quarter of their tokens.

    A subsample always contains the needed tokens. The half consists of single tokens, so a run that reads the context
    of tokens is less accurate on it. The quarter consists of blocks, and contains the neighbors of the needed tokens;
    in short sequences, these may be more than a quarter.
    """

    whole: float
    half: float
    quarter: float

    @property
    def max_subsampling_change(self) -> float:
        """Larger change in accuracy if the decoder reads a half or a quarter of the tokens."""
        return max(abs(self.whole - self.half), abs(self.whole - self.quarter))


def measure_subsample_accuracy(model: ProbedModel, queries: AnswerQueries, budget: int) -> SubsampleAccuracy:
    """Measure the accuracy on full sequences of ``budget`` tokens, and on a half and a quarter of their tokens."""
    full = upweight_distractors(queries.depends_on, queries.last_index, 1.0)
    half = model.subsample(queries, model.max_train_length, budget // 2, as_blocks=False)
    quarter = model.subsample(queries, model.max_train_length, budget // 4)
    accuracies = [float(model.query(queries, tokens).correct.mean()) for tokens in (full, half, quarter)]
    return SubsampleAccuracy(whole=accuracies[0], half=accuracies[1], quarter=accuracies[2])

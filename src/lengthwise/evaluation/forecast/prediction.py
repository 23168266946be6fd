"""Predicted accuracy of a trained decoder at one longer length, from pieces of sequences of this length."""

from dataclasses import dataclass

from lengthwise.core.errors import LengthwiseError
from lengthwise.core.intervals import wilson_interval
from lengthwise.evaluation.forecast.probed_model import NUM_QUERIES, ProbedModel, SubsampleAccuracy
from lengthwise.evaluation.forecast.sparse_queries import Queries
from lengthwise.evaluation.forecast.subsampling import upweight_distractors
from lengthwise.tasks import NaturalText, Planted, Task
from lengthwise.theory.risk.bayes import BayesPredictor

# Margin of an interval: a constant, a factor of the subsampling error at the longest training length, and a factor of
# the change if the sequence is cut differently. Tuned on runs not in benchmarks/forecast.md.
MARGIN, ERROR_FACTOR, CUT_FACTOR = 0.03, 3.0, 2.0
# Number of subsamples of each query about a response.
NUM_RESPONSE_SUBSAMPLES = 4
# Margin of the range of exact match, for examples of a new sample.
EXACT_MARGIN = 0.05
# Maximum number of pieces per sequence, and the fraction of the sequence that they must cover.
MAX_PIECES, MIN_COVERAGE = 64, 0.9
# Maximum width of a reported interval.
MAX_WIDTH = 0.5
# In 95% of cases, two sample means differ by less than this number of standard deviations of one mean.
TWO_SAMPLE_Z = 2.77


class InconclusiveError(LengthwiseError):
    """Error for a length at which the pieces do not determine the accuracy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Predicted accuracy per answer token at a length, with the 90% interval ``low`` to ``high``.

    Accuracy is teacher-forced, includes predicted IDs, and excludes the end token. ``mean`` uses the mean
    log-probability over the ``num_pieces`` pieces of a sequence. ``every_piece`` also requires a correct answer in each
    unweighted piece, so a misleading token in any piece counts as an error. ``single_tokens`` is the accuracy with
    subsamples of single tokens instead of blocks of neighbors, which differs if the run reads the context of tokens.
    ``coverage`` is the fraction of the sequence that the pieces cover.

    ``ids_only`` is the accuracy with the IDs of this length but few tokens. ``token_count_only`` is the accuracy with
    the number of tokens of this length but training IDs (None if answers require all tokens of a training sequence).
    ``leakage`` is the attention weight outside the support, in the layer and head with the least leakage.

    ``exact_low`` to ``exact_high`` is the range of exact match for examples with ``num_answers`` answer tokens and one
    end token, whose accuracy is ``end_accuracy``. ``exact_part`` is the share of examples in which ``num_queried``
    tokens, spread over the response, are all right.
    """

    length: int
    accuracy: float
    low: float
    high: float
    mean: float
    every_piece: float
    single_tokens: float
    num_pieces: int
    coverage: float
    ids_only: float
    token_count_only: float | None
    leakage: float
    num_answers: int
    end_accuracy: float
    num_queried: int
    exact_part: float
    exact_low: float
    exact_high: float


def predict(
    model: ProbedModel, train_queries: Queries, budget: int, fidelity: SubsampleAccuracy, length: int
) -> Forecast:
    """Predict the accuracy at a length from pieces of ``budget`` tokens, or raise ``InconclusiveError``."""
    queries = model.queries(length)
    pieces, coverage = model.pieces(queries, length, budget, MAX_PIECES)
    num_pieces = len(pieces.last_column) // len(queries.answer)
    if coverage < MIN_COVERAGE:
        raise InconclusiveError(
            f"cannot predict the accuracy at length {length}: {MAX_PIECES} pieces, each with as many tokens as a "
            f"training sequence, cover only {coverage:.2f} of a sequence; evaluate the run at this length"
        )
    weighted, unweighted = model.query(queries, pieces), model.query(queries, pieces.unweighted())
    recut = model.subsample(queries, length, budget, as_blocks=False)
    single_tokens = float(model.query(queries, recut).correct.mean())
    mean = float(weighted.correct.mean())
    every_piece = float((weighted.correct & unweighted.correct_each.all(axis=1)).mean())
    margin = MARGIN + ERROR_FACTOR * fidelity.max_accuracy_change + CUT_FACTOR * abs(mean - single_tokens)
    low, high = _accuracy_interval(max(mean, single_tokens), every_piece, margin, coverage)
    high = min(high, attainable_accuracy(model.task, queries))
    if high - low > MAX_WIDTH:
        raise InconclusiveError(
            f"cannot predict the accuracy at length {length}: {mean:.2f} of the answers are right by the mean of "
            f"{num_pieces} pieces and {every_piece:.2f} in every piece, so its interval is {low:.2f} to {high:.2f}; "
            "evaluate the run at this length"
        )
    length_ratio = queries.batch.tokens.shape[1] / budget
    upweighted = upweight_distractors(train_queries.support, train_queries.last_index, length_ratio)
    diluted = model.query(train_queries, upweighted).correct[(upweighted.weights > 1).any(axis=1)]
    num_answers = queries.max_answers(model.task.vocabulary.index("end"))
    response = _query_responses(model, length, budget)
    exact_low, exact_high = response.exact_interval(
        num_answers + 1, low, high, error=1 - mean, misled=mean - every_piece, shift=margin - MARGIN
    )
    return Forecast(
        length=length,
        accuracy=min((mean + every_piece) / 2, high),
        low=low,
        high=high,
        mean=mean,
        every_piece=every_piece,
        single_tokens=single_tokens,
        num_pieces=num_pieces,
        coverage=coverage,
        ids_only=float(unweighted.correct.mean()),
        token_count_only=float(diluted.mean()) if len(diluted) else None,
        leakage=float(weighted.leakage.min()),
        num_answers=num_answers,
        end_accuracy=response.end_accuracy,
        num_queried=response.num_queried,
        exact_part=response.exact_part,
        exact_low=exact_low,
        exact_high=exact_high,
    )


def _accuracy_interval(mean: float, every_piece: float, margin: float, coverage: float) -> tuple[float, float]:
    """Return the interval from ``every_piece`` to ``mean``, extended by the margin.

    Tokens outside all pieces can also mislead, so the error rate at the lower end is divided by the coverage.
    """
    every_piece_low, _ = wilson_interval(round(every_piece * NUM_QUERIES), NUM_QUERIES)
    _, mean_high = wilson_interval(round(mean * NUM_QUERIES), NUM_QUERIES)
    return max(0.0, 1 - (1 - every_piece_low + margin) / coverage), min(1.0, mean_high + margin)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Responses:
    """Results of several tokens of each example: the number of examples, and of tokens per example.

    ``exact_part`` is the share of examples whose queried tokens are all right. ``end_accuracy`` is the accuracy of the
    last token.
    """

    num_examples: int
    num_queried: int
    exact_part: float
    end_accuracy: float

    def exact_interval(
        self, num_tokens: int, low: float, high: float, *, error: float, misled: float, shift: float
    ) -> tuple[float, float]:
        """Return the range of exact match for examples with ``num_tokens`` scored tokens.

        ``low`` to ``high`` is the interval of the accuracy per token, ``error`` the error rate by the mean of pieces,
        ``misled`` the rate of answers that are wrong in single pieces only, and ``shift`` the possible difference
        between pieces and full sequences.
        """
        if self.num_queried == 1:
            return low, high
        part_low, part_high = wilson_interval(round(self.exact_part * self.num_examples), self.num_examples)
        shift = max(0.0, shift - MARGIN)
        # If error rates differ between examples, E[q^n] >= E[q^k]^(n/k) for n >= k (Jensen).
        exact_low = part_low ** max(1.0, num_tokens / self.num_queried) - EXACT_MARGIN - num_tokens * (misled + shift)
        # All queried tokens of an exact example are right. Fewer errors raise the share of such examples.
        fewer_errors = max(0.0, 1 - shift / error) if error > 0 else 1.0
        exact_high = min(high, part_high**fewer_errors + EXACT_MARGIN)
        return min(exact_high, max(0.0, exact_low)), exact_high


def _query_responses(model: ProbedModel, length: int, budget: int) -> _Responses:
    queries, num_queried = model.response_queries(length)
    subsample = model.subsample(queries, length, budget, num_subsamples=NUM_RESPONSE_SUBSAMPLES)
    correct = model.query(queries, subsample).correct.reshape(-1, num_queried)
    return _Responses(
        num_examples=len(correct),
        num_queried=num_queried,
        exact_part=float(correct.all(axis=1).mean()),
        end_accuracy=float(correct[:, -1].mean()),
    )


def attainable_accuracy(task: Task, queries: Queries) -> float:
    """Return an upper limit of the accuracy that the best predictor reaches on a new sample of as many queries.

    The best predictor of a planted law returns the most probable label given the full prompt. The limit is 1 for other
    tasks, subclasses of ``Planted`` (which may sample differently), laws with an unlimited span (too many sets) and
    natural texts (unknown probabilities).
    """
    if type(task) is not Planted or task.placement.span is None or isinstance(task.background, NaturalText):
        return 1.0
    tokens = queries.batch.tokens[:, : queries.batch.length].numpy()
    label_probabilities = BayesPredictor(task).predict(tokens).max(axis=1)
    _, high = wilson_interval(float(label_probabilities.sum()), len(label_probabilities), TWO_SAMPLE_Z)
    return high

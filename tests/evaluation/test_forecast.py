"""Subsamples of sequences, predictions from them, and certificates of decoders."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from tests.support.cases import small_decoder, small_scheme
from tests.support.small_runs import small_experiment

from lengthwise.cli import app as cli
from lengthwise.cli.commands import certify
from lengthwise.core.errors import SettingError
from lengthwise.encodings import ENCODINGS, Learned, NoPE, Rotary
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.forecast import assumptions, certificate
from lengthwise.evaluation.forecast.certificate import (
    AccuracyForecast,
    InconclusiveError,
    attainable_accuracy,
    certify_decoder,
    describe_run_certificate,
    predict_accuracy,
)
from lengthwise.evaluation.forecast.probed_model import (
    AnswerQueries,
    ProbedModel,
    QueryResult,
    SubsampleAccuracy,
    measure_subsample_accuracy,
    sample_queries,
)
from lengthwise.evaluation.forecast.subsampling import (
    BLOCK_SIZE,
    NUM_NEIGHBORS,
    Subsample,
    split_into_pieces,
    subsample,
    upweight_distractors,
)
from lengthwise.evaluation.grading import grade
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import COMPARISONS, recipe
from lengthwise.experiments.run import train
from lengthwise.experiments.run_evaluation import certify_run, diagnose_run, evaluate
from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.model.decoder import Decoder
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import DiscoveredCoupling, RandomStart, Sequential
from lengthwise.tasks import Addition, Copy, JSONLTask, Parity, PlantedCorrelations, Recall, SparseParity, Text
from lengthwise.tasks.planted.placement import LocalPlacement
from lengthwise.theory.task_certificate import AssumptionCheck


def all_tokens(queries: AnswerQueries) -> Subsample:
    return subsample(queries.depends_on, queries.last_index, 10_000, np.random.default_rng(0))


def test_a_subsample_contains_the_support_with_its_neighbors_and_the_last_token(rng):
    depends_on = [np.array([3, 40]), np.array([199])]
    sampled = subsample(depends_on, np.array([120, 300]), 43, rng)
    for row, (tokens, end) in enumerate(zip(depends_on, (120, 300), strict=True)):
        indices = sampled.indices[row, : sampled.last_column[row] + 1]
        assert (np.diff(indices) > 0).all()
        assert indices[-1] == end
        near = (np.append(tokens, end)[:, None] + np.arange(-NUM_NEIGHBORS, NUM_NEIGHBORS + 1)).clip(0, end)
        assert set(near.ravel()) <= set(indices)
        assert (sampled.weights[row, np.isin(sampled.indices[row], near)] == 1).all()
        assert len(indices) <= 43 + BLOCK_SIZE
        assert (sampled.indices[row, sampled.last_column[row] :] == end).all()


def test_the_mean_weighted_sum_over_subsamples_is_the_sum_over_all_tokens(rng):
    repeats = 4000
    values = rng.normal(size=101) ** 2
    sampled = subsample([np.array([7, 50])] * repeats, np.full(repeats, 100), 30, rng)
    inside = np.arange(sampled.indices.shape[1]) <= sampled.last_column[:, None]
    sums = (values[sampled.indices] * sampled.weights * inside).sum(axis=1)
    assert sums.mean() == pytest.approx(values.sum(), abs=4 * sums.std() / np.sqrt(repeats))
    assert sums.std() > 1


@pytest.mark.first(2)
@pytest.mark.parametrize("budget", [60, 30, 22, 10])
def test_the_mean_weight_visible_to_a_token_is_the_number_of_tokens_up_to_it(budget, rng):
    """Tested for tokens of sampled blocks, for tokens near the support, and for the last token."""
    repeats = 3000
    sampled = subsample([np.array([7, 50])] * repeats, np.full(repeats, 100), budget, rng)
    inside = np.arange(sampled.indices.shape[1]) <= sampled.last_column[:, None]
    visible = np.zeros((repeats, 101))
    for row in range(0, repeats, 1000):
        part = slice(row, row + 1000)
        some = Subsample(**{field.name: getattr(sampled, field.name)[part] for field in fields(Subsample)})
        weight = np.exp(some.score_bias()) * inside[part, None, :]
        before = some.indices[:, None, :] <= some.indices[:, :, None]
        np.put_along_axis(visible[part], some.indices, (weight * before).sum(axis=-1), axis=1)
    for token in (50, 60, 80, 100):
        counts = visible[visible[:, token] > 0, token]
        assert counts.mean() == pytest.approx(token + 1, abs=4 * counts.std() / np.sqrt(len(counts)) + 1e-9)
    assert (sampled.visible_counts == sampled.indices + 1).all()


def test_a_sequence_within_the_budget_keeps_all_tokens(rng):
    sampled = subsample([np.array([1])], np.array([9]), 10, rng)
    assert sampled.indices.tolist() == [list(range(10))]
    assert (sampled.weights == 1).all()
    assert (sampled.score_bias() == 0).all()


def test_keys_have_weight_one_within_a_block_and_their_own_weight_otherwise():
    sampled = Subsample(
        indices=np.array([[0, 1, 8]]),
        weights=np.array([[5.0, 5.0, 1.0]]),
        conditional_weights=np.array([[4.0, 4.0, 1.0]]),
        visible_counts=np.array([[1.0, 2.0, 9.0]]),
        blocks=np.array([[0, 0, 2]]),
        last_column=np.array([2]),
    )
    five = np.log(5)
    np.testing.assert_allclose(sampled.score_bias(), [[[0, 0, 0], [0, 0, 0], [five, five, 0]]])
    assert (sampled.unweighted().score_bias() == 0).all()
    assert sampled.unweighted().visible_counts.tolist() == [[1.0, 2.0, 3.0]]


@pytest.mark.parametrize("scheme", ["sequential", "coupled", "predicted", "multilevel"])
@pytest.mark.parametrize("task", [Parity(), Addition(), Recall(num_queries=2)], ids=lambda task: task.name)
def test_queries_on_full_sequences_agree_with_grading(scheme, task):
    ids = 256 if scheme == "predicted" else None
    decoder = small_decoder("rotary", task, num_predicted_ids=ids)
    queries = sample_queries(task, small_scheme(scheme), 5, 256, seed=0)
    result = probed_model(task, decoder).query(queries, all_tokens(queries))
    grades = grade(decoder, queries.batch, end=task.vocabulary.index("end"), decode="forced")
    correct = grades.token_correct & (grades.id_correct | ~grades.id_scored)
    first = int(queries.batch.prompt_length.min())
    expected = correct[torch.arange(256), torch.from_numpy(queries.answer) - first]
    assert result.correct.tolist() == expected.tolist()
    assert result.correct_each[:, 0].tolist() == expected.tolist()
    assert not expected.all()
    # Random weights predict some tokens and some IDs, but rarely both.
    assert grades.token_correct.any()
    assert grades.id_correct.any()
    assert result.leakage.shape == (2, 2)
    assert (result.leakage > 0).all()
    assert (result.leakage < 1).all()


@pytest.mark.parametrize("scaling", ["none", "learned"])
@torch.no_grad()
def test_a_token_of_weight_three_equals_three_copies(scaling):
    settings = DecoderSettings(num_layers=1, d_model=16, num_heads=2, length_scaling=scaling, segments=False)
    torch.manual_seed(0)
    decoder = Decoder(settings, NoPE(), vocabulary_size=4).eval()
    for parameter in decoder.parameters():
        parameter.add_(0.3 * torch.randn(parameter.shape))
    long = torch.tensor([[0, 1, 1, 1, 2]])
    expected = decoder(long, torch.arange(5)[None])[0][:, -1]
    weights = torch.tensor([[1.0, 3.0, 1.0]])
    hooks = AttentionHooks(score_bias=weights.log()[:, None].expand(1, 3, 3), visible_counts=weights.cumsum(dim=1))
    indices = torch.tensor([[0, 1, 4]])
    found = decoder(long, torch.arange(5)[None], hooks=hooks, keep_indices=indices)[0][:, -1]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_selected_tokens_have_the_embeddings_and_ids_of_the_full_sequence():
    task = Parity()
    decoder = small_decoder("rotary", task, previous_token_mix=True)
    queries = sample_queries(task, Sequential(), 6, 3, seed=1)
    tokens, ids = queries.batch.tokens, queries.batch.position_ids
    indices = torch.tensor([[0, 4, 7]] * 6)
    found, grown = decoder(tokens, ids, keep_indices=indices)
    hidden = torch.full((1, tokens.shape[1], tokens.shape[1]), -torch.inf)
    hidden[:, :, [0, 4, 7]] = 0
    hidden.diagonal(dim1=1, dim2=2).zero_()
    visible_counts = torch.zeros(3, tokens.shape[1])
    visible_counts[:, [0, 4, 7]] = torch.tensor([1.0, 2.0, 3.0])
    expected, _ = decoder(tokens, ids, hooks=AttentionHooks(score_bias=hidden, visible_counts=visible_counts))
    torch.testing.assert_close(found[::2], expected[:, [0, 4, 7]], atol=1e-5, rtol=0)
    torch.testing.assert_close(found[::2], found[1::2], atol=1e-6, rtol=0)
    assert grown.position_ids[0].tolist() == indices.tolist()


def test_upweighting_keeps_all_tokens_and_weights_those_outside_the_support():
    upweighted = upweight_distractors([np.array([2]), np.array([2])], np.array([15, 9]), 3.0)
    assert upweighted.indices[0].tolist() == list(range(16))
    assert upweighted.indices[1].tolist() == [*range(10), *[9] * 6]
    # In blocks of four, the support and the last token have weight 1 with two neighbors on both sides.
    assert upweighted.weights[0].tolist() == [1.0] * 8 + [9.0] * 4 + [1.0] * 4
    assert upweighted.weights[0].sum() == 48
    # Here all tokens are near the support or the last token.
    assert (upweighted.weights[1, :10] == 1).all()
    assert upweighted.last_column.tolist() == [15, 9]


@pytest.mark.parametrize(("pair", "k", "reach"), [((2, 5), 2, 7), ((7,), 1, 2), ((), 0, 1)])
def test_the_probe_returns_the_number_of_tokens_that_an_answer_requires(pair, k, reach, monkeypatch):
    def probability(decoder, tokens, position_ids, hidden, target):
        return np.where(hidden[:, list(pair)].any(axis=1), 0.2, 0.95) - 0.001 * hidden.sum(axis=1)

    monkeypatch.setattr(assumptions, "_probabilities", probability)
    task = SparseParity()
    queries = sample_queries(task, Sequential(), 8, 20, seed=0)
    queries = replace(queries, answer=np.full(20, 9))
    found = assumptions.count_required_tokens(small_decoder("nope", task), queries)
    assert (found.k, found.reach, found.id_reach) == (k, reach, reach)


def test_the_probe_returns_none_if_a_few_tokens_are_not_sufficient(monkeypatch):
    monkeypatch.setattr(assumptions, "_probabilities", lambda *arguments: 1.0 - 0.2 * arguments[3].sum(axis=1))
    monkeypatch.setattr(assumptions, "MAX_TOKENS", 4)
    task = SparseParity()
    found = assumptions.count_required_tokens(
        small_decoder("nope", task), sample_queries(task, Sequential(), 20, 8, seed=0)
    )
    assert found.k is None


@torch.no_grad()
def test_a_decoder_with_hidden_tokens_equals_a_decoder_without_them():
    task = SparseParity()
    decoder = small_decoder("rotary", task, length_scaling="none", previous_token_mix=False)
    queries = sample_queries(task, Sequential(), 8, 1, seed=0)
    tokens, ids = queries.batch.tokens[:, :9], queries.batch.position_ids[:, :, :9]
    hidden = np.zeros((2, 9), dtype=bool)
    hidden[1, [1, 4]] = True
    found = assumptions._probabilities(decoder, tokens, ids, hidden, 1)
    rest = [0, 2, 3, 5, 6, 7, 8]
    for row, part in enumerate((list(range(9)), rest)):
        expected = decoder.token_logits(decoder(tokens[:, part], ids[:, :, part])[0])[0, -1].softmax(dim=-1)[1]
        assert found[row] == pytest.approx(float(expected), abs=1e-5)


def probed_model(task, decoder, encoding=None, scheme=None) -> ProbedModel:
    return ProbedModel(
        decoder=decoder,
        task=task,
        scheme=scheme or Sequential(),
        encoding=encoding or Rotary(),
        train_lengths=(1, 6),
        id_range=(0, 14),
    )


def test_a_decoder_that_does_not_fit_gets_no_prediction():
    task = Parity()
    found = certify_decoder(probed_model(task, small_decoder("rotary", task)), [12, 24])
    assert found.forecasts == ()
    assert found.horizon is None
    assert found.needs is None
    assert [each.name for each in found.assumptions] == ["fits the training lengths"]
    assert describe_run_certificate(found).startswith(
        "Nothing is predicted: the run does not fit its training lengths (0."
    )


def test_a_run_with_right_tokens_but_few_exact_examples_does_not_fit():
    few = replace(probed_model(Parity(), small_decoder("rotary", Parity())), fitted=0.3)
    found = assumptions.check_training_fit(few, SubsampleAccuracy(whole=0.95, half=0.95, quarter=0.95))
    assert not found.holds
    assert found.found == "exact match 0.300; 0.950 of the answer tokens are right at length 6, without the end token"


def assumptions_of(task, scheme, **known) -> dict[str, AssumptionCheck]:
    model = replace(probed_model(task, small_decoder("rotary", task), scheme=scheme), **known)
    needs, fidelity = (
        assumptions.RequiredTokens(k=1, reach=2, id_reach=2.0),
        SubsampleAccuracy(whole=1.0, half=1.0, quarter=1.0),
    )
    found = assumptions.measure_assumptions(model, model.sample_answer_queries(6, 32), needs, fidelity, 24)
    return {each.name: each for each in found}


@pytest.mark.parametrize(("task", "k"), [(Parity(), 2), (Recall(), 4), (SparseParity(), 5), (Addition(), 5)], ids=str)
def test_sparsity_is_a_property_of_the_task(task, k):
    found = assumptions_of(task, Sequential())["sparsity"]
    assert found.found.startswith(
        f"an answer depends on up to {k} tokens, including the previous token (declared by the task)"
    )


def test_ids_count_as_met_only_if_their_distances_were_in_training():
    """Random starts use all IDs up to 999, but no distance beyond the training length."""
    known = {"id_range": (0, 999), "trained_distance": 14}
    found = assumptions_of(Parity(), RandomStart(num_position_ids=1000), **known)["IDs and distances seen in training"]
    assert not found.holds
    assert found.found == "IDs 0 to 50 at length 24, 0 to 999 in training; distances up to 50, 14 in training"
    known["trained_distance"] = 50
    assert assumptions_of(Parity(), RandomStart(num_position_ids=1000), **known)[found.name].holds


def test_a_decoder_that_reads_no_ids_meets_no_new_ids():
    model = probed_model(Parity(), small_decoder("nope", Parity()), encoding=NoPE())
    found = assumptions._check_id_coverage(replace(model, trained_distance=14), 24)
    assert found == (True, "encoding nope reads no IDs")


def test_pieces_cover_a_sequence_and_each_contains_the_support(rng):
    depends_on = [np.array([3, 40]), np.array([30])]
    pieces, coverage = split_into_pieces(depends_on, np.array([100, 60]), 30, rng, 64)
    assert coverage == 1.0
    number = len(pieces.last_column) // 2
    indices = pieces.indices.reshape(2, number, -1)
    for row, (tokens, end) in enumerate(zip(depends_on, (100, 60), strict=True)):
        assert set(indices[row].ravel()) == set(range(end + 1))
        assert all({*tokens, end} <= set(piece) for piece in indices[row])
    few, coverage = split_into_pieces(depends_on, np.array([100, 60]), 30, rng, 2)
    assert len(few.last_column) == 2 * 2
    assert coverage == pytest.approx(2 / number, abs=0.05)


def misleading_query(fraction: float):
    """Right by the mean of the pieces; a fraction of the queries is wrong in the piece with one misleading token."""

    def query(self, queries, sampled):
        size = len(queries.answer)
        misleading = np.where(np.arange(size) < fraction * size, queries.answer - 10, -1)
        indices = sampled.indices.reshape(size, -1, sampled.indices.shape[1])
        each = (indices != misleading[:, None, None]).all(axis=2)
        return QueryResult(correct=np.ones(size, dtype=bool), correct_each=each, leakage=np.zeros((1, 1)))

    return query


def few_queries(self, length, number=32):
    return sample_queries(self.task, self.scheme, length, min(number, 32), self.seed)


@pytest.fixture
def fitted(monkeypatch):
    monkeypatch.setattr(ProbedModel, "sample_answer_queries", few_queries)
    task = SparseParity()
    model = probed_model(task, small_decoder("nope", task))
    train_queries = model.sample_answer_queries(6)
    return (
        model,
        train_queries,
        train_queries.batch.tokens.shape[1],
        SubsampleAccuracy(whole=1.0, half=1.0, quarter=1.0),
    )


def test_a_misleading_token_in_one_piece_lowers_the_prediction(fitted, monkeypatch):
    monkeypatch.setattr(ProbedModel, "query", misleading_query(0.25))
    found = predict_accuracy(*fitted, 60)
    assert (found.mean, found.every_piece) == (1.0, 0.75)
    assert found.low < 0.75 < found.accuracy < found.high
    assert certificate._describe_limit(found).startswith("single misleading tokens (at length 60:")


def test_pieces_that_disagree_are_inconclusive(fitted, monkeypatch):
    monkeypatch.setattr(ProbedModel, "query", misleading_query(0.625))
    with pytest.raises(
        InconclusiveError, match=r"cannot predict .*: 1\.00 .* by the mean of \d+ pieces and 0\.38 in every piece"
    ):
        predict_accuracy(*fitted, 60)


def test_low_coverage_is_inconclusive(fitted, monkeypatch):
    monkeypatch.setattr(certificate, "MAX_PIECES", 4)
    with pytest.raises(InconclusiveError, match=r"cannot predict .*: 4 pieces, .* cover only 0\.\d\d of a sequence"):
        predict_accuracy(*fitted, 60)


def test_a_run_that_reads_context_gets_a_wider_interval_upwards(fitted, monkeypatch):
    """Pieces of a sequence lose the context of tokens, so the accuracy on them is below that on the full sequence."""

    def query(self, queries, sampled):
        # Right only if no block is cut out, as for a run that attends to the neighbors of many tokens.
        num_subsamples, is_cut = len(sampled.last_column) // len(queries.answer), sampled.blocks.max() < 40
        share = 0.5 if is_cut else 0.7
        correct = np.arange(len(queries.answer)) < share * len(queries.answer)
        each = np.repeat(correct[:, None], num_subsamples, axis=1)
        return QueryResult(correct=correct, correct_each=each, leakage=np.zeros((1, 1)))

    monkeypatch.setattr(ProbedModel, "query", query)
    monkeypatch.setattr(certificate, "MAX_WIDTH", 2.0)
    found = predict_accuracy(*fitted, 60)
    assert (found.mean, found.single_tokens) == (0.5, pytest.approx(0.7, abs=0.02))
    assert found.high > found.single_tokens + (found.single_tokens - found.mean)
    monkeypatch.setattr(certificate, "MAX_WIDTH", 0.5)
    with pytest.raises(InconclusiveError):
        predict_accuracy(*fitted, 60)


def test_a_run_that_reads_all_tokens_of_a_short_sequence_is_less_accurate_on_a_part_of_it(monkeypatch):
    """The support of a copied symbol and the neighbors of it are nearly all of a short sequence."""

    def query(self, queries, sampled):
        num_subsamples = len(sampled.last_column) // len(queries.answer)
        complete = sampled.last_column.reshape(-1, num_subsamples) == queries.last_index[:, None]
        return QueryResult(correct=complete.all(axis=1), correct_each=complete, leakage=np.zeros((1, 1)))

    monkeypatch.setattr(ProbedModel, "query", query)
    model = probed_model(Copy(), small_decoder("nope", Copy()))
    queries = model.sample_answer_queries(6)
    found = measure_subsample_accuracy(model, queries, queries.batch.tokens.shape[1])
    assert found.whole == 1.0
    assert found.half < 0.5
    assert certificate._refusal_reason(found) is not None


def responses(exact_part, **changes):
    each = {"num_examples": 24, "num_queried": 32, "exact_part": exact_part, "end_accuracy": 1.0} | changes
    return certificate._Responses(**each)


@pytest.mark.parametrize("num_tokens", [33, 161])
def test_the_range_of_exact_match_is_informative_for_long_answers(num_tokens):
    """The interval of the accuracy per token starts at 0.95, so the union bound of 160 tokens is 0."""
    low, high = responses(1.0).exact_interval(num_tokens, 0.95, 1.0, error=0.0, misled=0.0, shift=0.0)
    assert 0.3 < low < 0.97
    assert high == 1.0
    low, high = responses(0.0).exact_interval(num_tokens, 0.75, 0.85, error=0.2, misled=0.0, shift=0.0)
    assert low == 0.0
    assert high < 0.3
    # Pieces may be worse than full sequences.
    _, shifted = responses(0.0).exact_interval(num_tokens, 0.4, 1.0, error=0.2, misled=0.0, shift=0.2)
    assert shifted > 0.7
    # A token that misleads one piece can be in every example.
    low, _ = responses(1.0).exact_interval(num_tokens, 0.9, 1.0, error=0.0, misled=0.05, shift=0.0)
    assert low == 0.0


def test_a_single_scored_token_has_equal_ranges_of_accuracy_and_exact_match():
    single = responses(0.8, num_queried=1)
    assert single.exact_interval(1, 0.7, 0.9, error=0.2, misled=0.0, shift=0.0) == (0.7, 0.9)


def test_queries_about_responses_contain_the_first_answer_the_last_and_the_end(fitted):
    queries, num_each = fitted[0].response_queries(60)
    batch = queries.batch
    assert num_each == 2
    assert batch.token_scored.numpy()[np.arange(len(queries.answer)), queries.answer].all()
    task = Parity()
    queries, num_each = probed_model(task, small_decoder("rotary", task)).response_queries(100)
    answers = queries.answer.reshape(-1, num_each)
    scored = [np.flatnonzero(each) for each in queries.batch.token_scored[::num_each].numpy()]
    assert (np.diff(answers, axis=1) > 0).all()
    assert all({each[0], each[-1]} <= set(row) for row, each in zip(answers, scored, strict=True))
    # Equal examples stay together.
    assert (queries.batch.tokens[:num_each] == queries.batch.tokens[0]).all()


def test_no_prediction_exceeds_the_best_predictor_of_a_planted_law():
    """The background contains each planted token with probability 1 / 2,000."""
    labels = tuple(tuple(float(row == label) for label in range(4)) for row in range(4))
    law = PlantedCorrelations(
        background=(0.2495,) * 4 + (0.0005,) * 4,
        tuples=((4,), (5,), (6,), (7,)),
        probabilities=(0.25,) * 4,
        labels=labels,
        placement=LocalPlacement(shapes=((0,),), weights=(1.0,)),
    )
    queries = sample_queries(law, Sequential(), 512, 256, seed=0)
    assert 0.7 < attainable_accuracy(law, queries) < 0.85
    assert attainable_accuracy(SparseParity(), queries) == 1.0


def test_the_end_token_is_never_queried():
    task = SparseParity()
    queries = sample_queries(task, Sequential(), 8, 50, seed=0)
    assert (queries.answer == 9).all()


def forecast(length, accuracy, ids_only=1.0, token_count_only=1.0) -> AccuracyForecast:
    return AccuracyForecast(
        length=length,
        accuracy=accuracy,
        low=accuracy,
        high=1.0,
        mean=accuracy,
        every_piece=accuracy,
        single_tokens=accuracy,
        num_pieces=1,
        coverage=1.0,
        ids_only=ids_only,
        token_count_only=token_count_only,
        leakage=0.0,
        num_answers=1,
        end_accuracy=1.0,
        num_queried=1,
        exact_part=accuracy,
        exact_low=accuracy,
        exact_high=1.0,
    )


@pytest.mark.parametrize(
    ("accuracy", "test_lengths", "horizon", "limit"),
    [
        ({}, [10], 6 << 4, "96 is the longest length predicted"),
        # A failure between two doublings counts only at a test length.
        ({18: 0.5}, [18], 12, "at length 18: 0.50 with its IDs only, 1.00 with its number of tokens only"),
        ({18: 0.5}, [], 6 << 4, "the longest length predicted"),
        ({24: 0.8, 48: 1.0}, [], 12, "IDs or distances not seen in training (at length 24"),
    ],
)
def test_the_horizon_ends_before_the_first_length_that_fails(accuracy, test_lengths, horizon, limit):
    def predict_length(length):
        value = accuracy.get(length, 1.0)
        return forecast(length, value, ids_only=value)

    model = probed_model(Parity(), small_decoder("rotary", Parity()))
    found = certificate._find_longest_accurate_length(model, predict_length, test_lengths)
    assert (found.tokens, found.exact) == (horizon, horizon)
    assert limit in found.limited_by


def test_responses_of_one_length_may_have_different_numbers_of_tokens(tmp_path):
    """The response is a run of the same letter, as often as the last digit of the prompt says."""
    records = [{"prompt": ["a", "b", str(n)], "response": ["x"] * n} for n in range(1, 10)]
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    task = JSONLTask(file=str(path))
    queries, num_each = probed_model(task, small_decoder("nope", task)).response_queries(3)
    # The shortest response has a letter and the end token.
    assert num_each == 2
    assert queries.batch.token_scored.numpy()[np.arange(len(queries.answer)), queries.answer].all()


def test_the_horizon_of_a_task_file_uses_the_lengths_of_its_records():
    """The built-in file has records up to 20, so 24, 48 and 96 have none."""
    model = probed_model(JSONLTask(), small_decoder("rotary", JSONLTask()))
    found = certificate._find_longest_accurate_length(model, lambda length: forecast(length, 1.0), [20])
    assert found.tokens == 20
    assert certify._default_run_lengths(JSONLTask(), 6) == (12, 20)
    assert certify._default_run_lengths(Parity(), 6) == (12, 24, 96)
    with pytest.raises(SettingError, match=r"training length 20; .* --task"):
        certify._default_run_lengths(JSONLTask(), 20)


def test_a_run_of_a_task_file_with_a_found_rule_has_a_certificate(tmp_path):
    scheme = DiscoveredCoupling(rule=("one", "falling: prompt last -1 -1"), num_position_ids=64)
    run = train(small_experiment(JSONLTask(), scheme), tmp_path)
    assert run is not None
    found = certify_run(run, (8,))
    assert found.refusal is not None
    assert "does not fit" in found.refusal


@pytest.mark.parametrize(
    ("ids_only", "token_count_only", "limit"),
    [
        (0.5, 1.0, "IDs or distances not seen in training (at length 12: 0.50 with its IDs only, 1.00 with"),
        (1.0, 0.4, "attention diluted by more tokens (at length 12: 1.00 with its IDs only, 0.40 with"),
        (1.0, 1.0, "IDs and number of tokens together (at length 12"),
        (0.5, None, "IDs or distances not seen in training (at length 12: 0.50 with its IDs only)"),
    ],
)
def test_the_limit_is_the_change_with_the_lower_accuracy(ids_only, token_count_only, limit):
    assert certificate._describe_limit(forecast(12, 0.4, ids_only, token_count_only)).startswith(limit)


@pytest.mark.slow
def test_a_length_beyond_the_encoding_does_not_affect_other_lengths(monkeypatch):
    monkeypatch.setattr(ProbedModel, "sample_answer_queries", few_queries)
    fits = AssumptionCheck(name="fits", holds=True, found="", counterexample="canceling errors")
    monkeypatch.setattr(certificate, "check_training_fit", lambda *arguments: fits)
    monkeypatch.setattr(certificate, "_refusal_reason", lambda fidelity: None)
    monkeypatch.setattr(certificate, "MAX_WIDTH", 2.0)
    task = SparseParity()
    encoding = Learned(num_position_ids=40)
    found = certify_decoder(probed_model(task, small_decoder(encoding, task), encoding), [33, 72])
    assert [each.length for each in found.forecasts] == [33]
    assert list(found.abstentions) == [72]
    assert "40" in found.abstentions[72]
    assert found.horizon is not None
    assert found.horizon.tokens == 6


@pytest.mark.parametrize(
    ("half", "quarter", "reason"),
    [(0.95, 0.8, "1.00 of the answers are right on all tokens and 0.80 on a part of them"), (0.95, 0.92, None)],
)
def test_low_fidelity_of_subsampling_prevents_predictions(half, quarter, reason):
    refusal = certificate._refusal_reason(SubsampleAccuracy(whole=1.0, half=half, quarter=quarter))
    assert refusal is None if reason is None else refusal is not None and reason in refusal


@pytest.mark.parametrize(
    ("task", "settings", "encoding", "message"),
    [
        (
            Addition(order="most"),
            {},
            "rotary",
            r"task addition does not declare which tokens .* use a built-in task",
        ),
        (
            Parity(),
            {"weights": "entmax"},
            "rotary",
            r"attention weights 'entmax' do not allow subsampling; train with weights 'softmax'",
        ),
        (Parity(), {}, "dape_v2", r"encoding dape_v2 reads neighboring tokens .* use an encoding that reads only IDs"),
    ],
)
def test_models_that_do_not_allow_subsampling_raise_an_error(task, settings, encoding, message):
    decoder = small_decoder(encoding, task, **settings)
    with pytest.raises(SettingError, match=message):
        certify_decoder(probed_model(task, decoder, encoding=ENCODINGS[encoding]()), [12])


def test_a_language_model_has_no_accuracy_to_predict():
    model = replace(probed_model(Parity(), small_decoder("rotary", Parity())), task=Text())
    with pytest.raises(SettingError, match=r"task text .* lengthwise evaluate"):
        certify_decoder(model, [12])


@pytest.mark.slow
def test_the_command_reports_why_it_predicts_nothing_for_a_run(tmp_path, capsys):
    train(small_experiment(), tmp_path / "run")
    flags = ["certify", str(tmp_path / "run"), "--lengths", "8,6"]
    cli.main([*flags, "--json", "--out", str(tmp_path / "out")])
    printed = json.loads(capsys.readouterr().out)
    assert printed["task"] == "parity"
    assert printed["train_lengths"] == [1, 4]
    assert printed["forecasts"] == []
    assert [each["name"] for each in printed["assumptions"]] == ["fits the training lengths"]
    assert json.loads((tmp_path / "out" / "certificate.json").read_text())["refusal"] == printed["refusal"]
    assert (tmp_path / "out" / "figure.png").stat().st_size > 0
    cli.main(flags)
    assert "Nothing is predicted: the run does not fit its training" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--lengths", "4"], "length 4 is not beyond the longest training length 4; use longer lengths, or measure"),
        (
            ["--train-lengths", "1:8"],
            "--train-lengths applies to a task or a law, not to a run; leave out --train-lengths",
        ),
    ],
)
def test_invalid_arguments_for_a_run_print_one_line(flags, line, tmp_path, capsys):
    train(small_experiment(), tmp_path)
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["certify", str(tmp_path), *flags])
    assert exit_info.value.code == 2
    message = capsys.readouterr().err
    assert line in message
    assert message.count("\n") == 1


@pytest.mark.slow
def test_predictions_separate_a_run_that_extrapolates_from_one_that_fails(tmp_path):
    """Parity with coupled IDs extrapolates; copy by token index fails at IDs beyond training."""
    far = train(replace(recipe("parity_coupled"), seed=7), tmp_path / "far")
    near = train(_copy_by_index(), tmp_path / "near")
    assert far is not None
    assert near is not None
    reached = certify_run(far, (80, 320))
    assert [each.mean for each in reached.forecasts] == [1.0, 1.0]
    assert reached.needs is not None
    assert reached.needs.k == 1
    assert reached.horizon is not None
    assert reached.horizon.tokens >= 320
    failed = certify_run(near, (20,))
    measured = evaluate(near, EvaluationSettings(lengths=(20,), num_examples=(256,)))[0]["token_accuracy"]
    assert failed.horizon is None or failed.horizon.tokens == 10
    # The run fails just beyond training. If there is a forecast, its interval contains the measured accuracy.
    assert measured < 0.9
    assert all(each.low <= measured <= each.high for each in failed.forecasts)
    assert failed.refusal is not None or len(failed.forecasts) + len(failed.abstentions) == 1
    for length in (12, 20):
        assert diagnose_run(near, length).limited_by.startswith(f"limited by {certificate.UNTRAINED_IDS}")


def _copy_by_index() -> Experiment:
    """Return copying on lengths that a run fits early: after 1,700 of the steps, with seed 2 after 1,900."""
    experiment = COMPARISONS["which_copy"]()["sequential/rotary"]
    training = replace(experiment.training, steps=3000, fit_every=100, cooldown_steps=200)
    return replace(experiment, seed=1, training=training, train_lengths=(1, 10))


@pytest.mark.slow
def test_a_forecast_of_copying_by_context_contains_the_accuracy_or_is_withheld(tmp_path):
    """Copying by context finds a symbol by the symbols before it, so pieces predict too low an accuracy."""
    experiment = COMPARISONS["demo"]()["NoPE"]
    training = replace(experiment.training, fit_every=100, cooldown_steps=200)
    run = train(replace(experiment, training=training, seed=1), tmp_path)
    assert run is not None
    found = certify_run(run, (20, 40))
    settings = EvaluationSettings(lengths=(20, 40), num_examples=(256,))
    measured = {row["length"]: row["token_accuracy"] for row in evaluate(run, settings)}
    assert found.refusal is not None or len(found.forecasts) + len(found.abstentions) == 2
    assert all(each.low <= measured[each.length] <= each.high for each in found.forecasts)

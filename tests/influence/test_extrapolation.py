"""Sparsity in text: paired contexts of one target, rank correlations over documents, controls and the claim."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from claims.sparsity_in_text import claim as claim_module
from claims.sparsity_in_text import paired_contexts
from claims.sparsity_in_text.claim import judge
from claims.sparsity_in_text.paired_contexts import ContextSettings, PairedTarget, measure_paired_targets
from claims.sparsity_in_text.rank_correlation import partial_rank_correlation, rank_correlation
from claims.sparsity_in_text.relation import MIN_DIVERGENCE, correlate_columns, summarize_relation
from tests.support.text_runs import text_experiment

from lengthwise.cli import app as cli
from lengthwise.core.errors import SettingError
from lengthwise.evaluation.language_model import BytePairTokenizerAdapter
from lengthwise.evaluation.result_rows import label_without_variant
from lengthwise.experiments.decoder_model import DecoderModel
from lengthwise.experiments.experiment import build_decoder
from lengthwise.experiments.reproduction import SIZES, load_claim, reproduce
from lengthwise.experiments.runner import check_experiments
from lengthwise.influence.report.bootstrap import DocumentBootstrap
from lengthwise.influence.target_evaluator import TargetEvaluator
from lengthwise.influence.targets import sample_targets
from lengthwise.tasks import Text

SPARSITY_IN_TEXT = load_claim("sparsity_in_text")
SETTINGS = ContextSettings(lengths=(12, 24, 48), near=4, ks=(1, 2), num_targets=20)
BOOTSTRAP = DocumentBootstrap(seed=0, num_resamples=300)


def mean_ranks(values):
    """Return ranks by definition: the number of smaller values, plus half of the other equal values."""
    return np.array([sum(other < value for other in values) + (values.count(value) - 1) / 2 for value in values])


@pytest.fixture(name="variables")
def sample_variables():
    rng = np.random.default_rng(3)
    documents = rng.integers(0, 6, size=40)
    # Few different values, so that many are equal.
    first, given = rng.integers(0, 8, size=40).astype(float), rng.integers(0, 9, size=40).astype(float)
    second = first + given + rng.integers(0, 9, size=40)
    counts = np.array([[1, 1, 1, 1, 1, 1], [2, 0, 3, 1, 0, 1]])
    return documents, first, second, given, counts


def copies(values, documents, counts):
    """Return the values of a resample, in which each target occurs once per copy of its document."""
    return [value for value, document in zip(values, documents, strict=True) for _ in range(counts[document])]


def test_the_rank_correlation_of_a_resample_is_that_of_its_copies(variables):
    documents, first, second, _, counts = variables
    values = rank_correlation(documents, first, second)(counts)[:, 0]
    for value, row in zip(values, counts, strict=True):
        ranks = [mean_ranks(copies(each, documents, row)) for each in (first, second)]
        assert value == pytest.approx(np.corrcoef(*ranks)[0, 1])


def test_the_partial_rank_correlation_is_that_of_the_residuals(variables):
    documents, first, second, given, counts = variables
    values = partial_rank_correlation(documents, first, second, given)(counts)[:, 0]
    for value, row in zip(values, counts, strict=True):
        ranks = [mean_ranks(copies(each, documents, row)) for each in (first, second, given)]
        line = np.stack([ranks[2], np.ones(len(ranks[2]))], axis=1)
        residuals = [each - line @ np.linalg.lstsq(line, each, rcond=None)[0] for each in ranks[:2]]
        assert value == pytest.approx(np.corrcoef(*residuals)[0, 1])


def test_a_rank_correlation_depends_only_on_the_order_and_is_undefined_for_a_constant(variables):
    documents, first, second, _, counts = variables
    values = rank_correlation(documents, first, second)(counts)
    np.testing.assert_allclose(rank_correlation(documents, np.exp(first), second**3)(counts), values)
    np.testing.assert_allclose(rank_correlation(documents, -first, second)(counts), -values)
    assert np.isnan(rank_correlation(documents, np.ones(40), second)(counts)).all()
    for other in np.random.default_rng(0).integers(0, 9, size=(50, 40)).astype(float):
        assert np.isnan(partial_rank_correlation(documents, other, second, 2 * other)(counts)).all()


def planted_targets(seed, effect):
    """Return targets whose loss change falls by ``effect`` per recovered share, with noise shared by a document."""
    rng = np.random.default_rng(seed)
    document_noise = rng.normal(scale=0.2, size=12)
    targets = []
    for index in range(240):
        document, share = int(rng.integers(0, 12)), float(rng.uniform())
        # Every eighth target does not depend on far tokens.
        divergence = 0.0 if index % 8 == 0 else float(rng.uniform(0.5, 2.0))
        change = float(-effect * share + document_noise[document] + rng.normal(scale=0.3))
        targets.append(
            PairedTarget(
                document=f"document {document}",
                place=index,
                kinds=("word_start",) if index % 2 else ("punctuation", "newline"),
                loss_short=3.5,
                divergence_short=divergence,
                losses_k=(3.2, 3.1),
                divergences_k=((1 - share / 2) * divergence, (1 - share) * divergence),
                losses=(3.0, 3.0 + change / 2, 3.0 + change),
                drifts=(0.1, 0.1 + abs(change)),
            )
        )
    return targets


def test_a_planted_relation_is_found_and_permuted_shares_have_none():
    permuted = []
    for seed in range(20):
        settings = replace(SETTINGS, seed=seed)
        relation = summarize_relation(planted_targets(seed, effect=1.0), settings, BOOTSTRAP)
        assert all(each["high"] < -0.1 for each in (*relation["change"], relation["partial"], relation["first_k"]))
        permuted.append(relation["permuted"])
    assert sum(each["low"] < 0 < each["high"] for each in permuted) >= 17
    assert abs(np.mean([each["value"] for each in permuted])) < 0.05


def test_intervals_without_a_relation_contain_zero():
    relations = [summarize_relation(planted_targets(seed, effect=0.0), SETTINGS, BOOTSTRAP) for seed in range(20)]
    assert sum(each["change"][-1]["low"] < 0 < each["change"][-1]["high"] for each in relations) >= 17


def test_a_target_that_needs_no_far_token_has_no_share():
    targets = planted_targets(0, effect=1.0)
    relation = summarize_relation(targets, SETTINGS, BOOTSTRAP)
    assert (relation["measured"], relation["used"]) == (240, 210)
    assert [share is None for share in relation["columns"]["share"]] == [
        target.divergence_short < MIN_DIVERGENCE for target in targets
    ]
    assert relation["columns"]["share"][1] == pytest.approx(
        1 - targets[1].divergences_k[-1] / targets[1].divergence_short, abs=1e-5
    )
    assert relation["mean_change"][-1]["value"] == pytest.approx(np.mean([each.changes[-1] for each in targets]))


def test_kinds_split_the_targets_and_few_targets_have_no_correlation():
    targets = planted_targets(0, effect=1.0)
    kinds = {each["kind"]: each for each in summarize_relation(targets, SETTINGS, BOOTSTRAP)["kinds"]}
    assert {name: each["targets"] for name, each in kinds.items()} == {
        "word_start": 120,
        "punctuation": 90,
        "newline": 90,
    }
    assert kinds["word_start"]["change"]["high"] < 0
    # Targets without a share have a change too.
    assert {name: each["all_targets"] for name, each in kinds.items()} == dict.fromkeys(kinds, 120)
    changes = [each.changes[-1] for each in targets if "newline" in each.kinds]
    assert kinds["newline"]["mean_change"]["value"] == pytest.approx(np.mean(changes))
    few = summarize_relation(targets[1:30], SETTINGS, BOOTSTRAP)["change"][-1]
    assert few == {"value": None, "low": None, "high": None, "reason": "fewer than 30 targets; measure more targets"}


def test_columns_of_two_seeds_are_correlated_over_targets_with_both_values():
    rng = np.random.default_rng(0)
    documents, first = rng.integers(0, 6, size=50).tolist(), rng.normal(size=50).tolist()
    second = [None if index < 10 else -value for index, value in enumerate(first)]
    result = correlate_columns(documents, first, second, BOOTSTRAP)
    assert result["value"] == pytest.approx(-1)
    assert correlate_columns(documents, first[:20] + [None] * 30, second, BOOTSTRAP)["value"] is None


def random_model(std):
    """Return a model whose weights are large enough for far tokens to matter."""
    torch.set_num_threads(1)
    decoder = build_decoder(text_experiment(Text()))
    for parameter in decoder.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=std, generator=torch.Generator().manual_seed(parameter.numel()))
    return DecoderModel(decoder, "tiny")


@pytest.fixture(name="model", scope="module")
def build_model():
    return random_model(0.4)


CODEC = BytePairTokenizerAdapter(Text().tokenizer)


def test_every_context_of_a_target_ends_just_before_it(model):
    texts = Text().held_out()
    for target in measure_paired_targets(model, CODEC, texts, SETTINGS):
        tokens = next(torch.from_numpy(text.tokens.astype(np.int64)) for text in texts if text.name == target.document)
        assert target.place >= SETTINGS.lengths[-1]
        predictions = [
            model.log_probs_without_cache(tokens[target.place - length : target.place]) for length in SETTINGS.lengths
        ]
        losses = [-float(each[tokens[target.place]]) for each in predictions]
        assert target.losses == pytest.approx(losses, abs=1e-4)
        assert target.changes == pytest.approx([loss - losses[0] for loss in losses[1:]], abs=2e-4)
        near = model.log_probs_without_cache(tokens[target.place - SETTINGS.near : target.place])
        first = predictions[0].exp()
        drifts = [float((first * (predictions[0] - each)).sum()) for each in predictions[1:]]
        assert target.drifts == pytest.approx(drifts, abs=1e-4)
        assert target.loss_short == pytest.approx(-float(near[tokens[target.place]]), abs=1e-4)


def test_shares_do_not_depend_on_the_token_that_is_predicted(model):
    text, other = Text().held_out()
    (first,) = measure_paired_targets(model, CODEC, [text, other], replace(SETTINGS, num_targets=1))
    measured = text if first.document == text.name else other
    tokens = measured.tokens.copy()
    tokens[first.place] = (tokens[first.place] + 1) % 50
    changed_texts = [replace(each, tokens=tokens) if each is measured else each for each in (text, other)]
    (second,) = measure_paired_targets(model, CODEC, changed_texts, replace(SETTINGS, num_targets=1))
    assert second.losses != first.losses
    assert (second.divergences_k, second.divergence_short) == (first.divergences_k, first.divergence_short)


def test_different_models_are_measured_on_the_same_targets(model):
    places = [
        [(target.document, target.place) for target in measure_paired_targets(each, CODEC, Text().held_out(), SETTINGS)]
        for each in (model, random_model(0.3))
    ]
    assert places[0] == places[1]
    assert len(set(places[0])) == SETTINGS.num_targets


def test_a_text_shorter_than_the_longest_context_is_an_error(model):
    with pytest.raises(SettingError, match=r"longest text has .* needs 5000 tokens before it"):
        measure_paired_targets(model, CODEC, Text().held_out(), replace(SETTINGS, lengths=(12, 5000)))


@pytest.mark.slow
def test_targets_of_one_kind_are_a_random_sample_of_all_targets_of_this_kind(model):
    texts, settings = Text().held_out(), replace(SETTINGS, lengths=(12, 300), num_targets=6, kind="continuation")
    evaluator = TargetEvaluator(model=model, texts=texts, settings=settings.influence, token_text=CODEC.token_text)
    candidates = sample_targets(texts, context=300, num_targets=None, seed=0)
    expected = [
        (each.text.name, each.place) for each in candidates if "continuation" in evaluator.classify_target(each)
    ]
    found = [(each.document, each.place) for each in measure_paired_targets(model, CODEC, texts, settings)]
    assert len(set(found)) == 6
    # The sample is in text order, but its targets are not the first ones.
    assert found == [each for each in expected if each in found] != expected[:6]
    assert {document for document, _ in found} == {text.name for text in texts}
    with pytest.raises(
        SettingError, match=rf"have only {len(expected)} targets of kind continuation, but num_targets is"
    ):
        measure_paired_targets(model, CODEC, texts, replace(settings, num_targets=len(expected) + 1))


def estimates(*bounds):
    return [{"value": (low + high) / 2, "low": low, "high": high, "reason": None} for low, high in bounds]


@pytest.mark.parametrize(
    ("bounds", "answer"),
    [
        ([(-0.3, -0.1), (-0.2, -0.01)], "yes, in all seeds"),
        ([(0.3, 0.4), (0.01, 0.2)], "no: the opposite, in all seeds"),
        ([(-0.05, 0.09), (0.01, 0.05)], "no: weaker than 0.1 in all seeds"),
        ([(-0.3, -0.1), (-0.2, 0.01)], "cannot be told"),
    ],
)
def test_an_answer_needs_all_seeds(bounds, answer):
    assert judge(estimates(*bounds)) == answer


def test_an_answer_needs_an_interval_of_every_seed():
    undefined = {"value": None, "low": None, "high": None, "reason": "few"}
    assert judge([*estimates((-0.3, -0.1)), undefined]) == "cannot be told: no interval"


def test_every_size_of_the_claim_is_a_part_of_the_full_size():
    full, _ = SPARSITY_IN_TEXT.experiments_at_size("full")
    for size in SIZES[1:]:
        experiments, _ = SPARSITY_IN_TEXT.experiments_at_size(size)
        assert set(experiments) == set(full)
        for label, experiment in experiments.items():
            assert experiment.training.steps <= full[label].training.steps
            assert experiment.evaluation.lengths == full[label].evaluation.lengths


def test_the_claim_requires_a_corpus_with_long_documents():
    experiments, _ = SPARSITY_IN_TEXT.experiments_at_size("full")
    with pytest.raises(SettingError, match=r"length 1024 needs 1025 tokens, but .*--corpus"):
        check_experiments(experiments, experiments)


@pytest.mark.slow
def test_the_claim_runs_at_the_quick_size_and_measures_a_run_once(tmp_path, monkeypatch):
    monkeypatch.setattr(claim_module, "NUM_TARGETS", 60)
    monkeypatch.setattr(claim_module, "BOOTSTRAP", DocumentBootstrap(seed=0, num_resamples=20))
    result = reproduce(SPARSITY_IN_TEXT, "quick", tmp_path, workers=1, seeds=2)
    labels = set(SPARSITY_IN_TEXT.experiments())
    assert {label_without_variant(row) for row in result.comparison.rows} == labels
    assert {(measurement["row"], measurement["measured"]) for measurement in result.measurements} == {
        (label, 60) for label in labels
    }
    assert all(len(row) == len(header) for _, header, body in result.tables for row in body)
    by_title = {title: body for title, _, body in result.tables}
    assert [len(body) for body in by_title.values()][:4] == [6, 12, 12, 6]
    # Two held-out documents are too few for an interval.
    assert {row[-1] for title, body in by_title.items() if "answer" in title for row in body} == {
        "cannot be told: no interval"
    }
    assert result.figure is not None

    def measure_again(*_, **__):
        raise AssertionError("measured twice")

    monkeypatch.setattr(paired_contexts, "sample_targets", measure_again)
    assert reproduce(SPARSITY_IN_TEXT, "quick", tmp_path, workers=1, seeds=2).tables == result.tables


def test_a_claim_without_text_accepts_no_corpus(tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["reproduce", "recall", "--size", "quick", "--corpus", str(tmp_path), "--out", str(tmp_path / "out")])
    assert exit_info.value.code == 2
    assert "corpus" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

"""Loss by context length: the same tokens at every length, agreement with single forwards, and intervals."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.cases import randomize
from tests.support.text_runs import small_corpus, text_experiment

from lengthwise.core.confidence_intervals import clustered_interval, t_critical_value
from lengthwise.core.errors import PositionRangeError, SettingError, UntrainedDistanceWarning
from lengthwise.encodings import ALiBi, EncodingSettings, Learned, YaRN
from lengthwise.evaluation import loss_by_context as context_loss
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.loss_by_context import (
    NUM_SCORED_TOKENS,
    ContextLoss,
    check_context_lengths,
    iter_context_losses,
)
from lengthwise.experiments.experiment import Experiment, build_decoder
from lengthwise.model.decoder import Decoder
from lengthwise.positions import PositionScheme, Randomized, Sequential, Skipwise
from lengthwise.tasks import Text
from lengthwise.tasks.text.corpus import HELD_OUT, open_corpus

SETTINGS = EvaluationSettings(lengths=(40, 80, 160), num_examples=(30,))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    """A text task with two kinds of documents of several lengths."""
    return Text(corpus=str(small_corpus(tmp_path_factory.mktemp("corpora"), held_out=0.5)))


def random_decoder(
    text: Text, scheme: PositionScheme | None = None, encoding: EncodingSettings | None = None
) -> tuple[Decoder, Experiment]:
    """Return a decoder with random weights, and its experiment."""
    experiment = text_experiment(text, scheme, encoding)
    decoder = build_decoder(experiment)
    randomize(decoder)
    return decoder.eval(), experiment


def all_losses(*inputs: Any, **options: Any) -> tuple[ContextLoss, ...]:
    """Return the results of all lengths."""
    return tuple(iter_context_losses(*inputs, **options))


def evaluate(text: Text, settings: EvaluationSettings = SETTINGS, **parts: Any) -> tuple[ContextLoss, ...]:
    decoder, experiment = random_decoder(text, **parts)
    return all_losses(decoder, text, experiment.scheme, settings)


def numbers(results: tuple[ContextLoss, ...]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in asdict(result).items() if name not in ("wall_s", "decode")}
        for result in results
    ]


def scored_windows(
    text: Text, settings: EvaluationSettings, monkeypatch: pytest.MonkeyPatch
) -> dict[int, list[tuple[Any, ...]]]:
    """Return the tokens of the scored windows, by length."""
    windows: dict[int, list[tuple[Any, ...]]] = {}
    score = context_loss._score_batch

    def record(decoder: Decoder, batch: Any, scored: int) -> Any:
        windows.setdefault(batch.length, []).extend(tuple(tokens) for tokens in batch.tokens.tolist())
        return score(decoder, batch, scored)

    with monkeypatch.context() as patch:
        patch.setattr(context_loss, "_score_batch", record)
        evaluate(text, settings)
    return windows


@torch.no_grad()
def one_at_a_time(decoder: Decoder, tokens: tuple[int, ...], scored: int) -> list[float]:
    """Return the loss of each of the last tokens in double precision, from separate forwards."""
    losses = []
    for end in range(len(tokens) - scored, len(tokens)):
        context = torch.tensor([tokens[:end]])
        hidden, _ = decoder(context, torch.arange(end)[None])
        scores = decoder.token_logits(hidden)[0, -1].double()
        losses.append(float(scores.logsumexp(0) - scores[tokens[end]]))
    return losses


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "encoding", [None, ALiBi(), YaRN(factor=4.0, original_length=16)], ids=["rotary", "alibi", "yarn"]
)
def test_the_loss_agrees_with_separate_forwards_of_each_scored_token(encoding, text, monkeypatch):
    settings = replace(SETTINGS, lengths=(40, 80), num_examples=(5,))
    decoder, experiment = random_decoder(text, encoding=encoding)
    results = all_losses(decoder, text, experiment.scheme, settings)
    windows_by_length = scored_windows(text, settings, monkeypatch)
    sizes = text.count_token_bytes()
    for result, windows in zip(results, windows_by_length.values(), strict=True):
        losses = [one_at_a_time(decoder, window, NUM_SCORED_TOKENS) for window in windows]
        assert {len(window) for window in windows} == {result.length + 1}
        assert result.loss == pytest.approx(np.mean(losses), rel=1e-5)
        assert result.perplexity == pytest.approx(math.exp(result.loss))
        read = sum(int(sizes[token]) for window in windows for token in window[-NUM_SCORED_TOKENS:])
        assert result.bits_per_byte == pytest.approx(np.sum(losses) / math.log(2) / read, rel=1e-5)


def test_all_lengths_score_the_same_tokens_of_held_out_documents(text, monkeypatch):
    windows_by_length = scored_windows(text, SETTINGS, monkeypatch)
    assert list(windows_by_length) == [40, 80, 160]
    for length, windows in windows_by_length.items():
        assert {len(window) for window in windows} == {length + 1}
        assert [window[-41:] for window in windows] == windows_by_length[40]
    documents = [tokens for _, tokens in open_corpus(Path(text.corpus)).document_tokens(HELD_OUT)]
    for window in windows_by_length[160]:
        assert any(
            (np.lib.stride_tricks.sliding_window_view(tokens, 161) == window).all(axis=1).any()
            for tokens in documents
            if len(tokens) > 160
        )


def test_each_token_with_the_longest_context_is_scored_once(text, monkeypatch):
    settings = replace(SETTINGS, num_examples=(10_000,))
    sizes = [len(document.tokens) for document in text.held_out()]
    expected = sum((size - 161) // NUM_SCORED_TOKENS + 1 for size in sizes if size > 160)
    (*_, result) = evaluate(text, settings)
    assert result.num_examples == expected
    assert len(set(scored_windows(text, settings, monkeypatch)[160])) == expected
    assert result.num_documents == sum(size > 160 for size in sizes)


def test_the_first_windows_of_a_seed_do_not_depend_on_the_number_of_windows(text, monkeypatch):
    few, many = (scored_windows(text, replace(SETTINGS, num_examples=(n,)), monkeypatch)[160] for n in (6, 20))
    assert many[:6] == few
    assert scored_windows(text, replace(SETTINGS, num_examples=(6,), seed=1), monkeypatch)[160] != few


def test_short_contexts_score_fewer_tokens(text):
    short, long = evaluate(text, EvaluationSettings(lengths=(4, 64), num_examples=(8,)))
    assert [(each.shortest_context, each.length, each.scored_tokens) for each in (short, long)] == [
        (1, 4, 4),
        (61, 64, 4),
    ]


@pytest.mark.parametrize("scheme", [Sequential(), Randomized(num_position_ids=512)], ids=lambda scheme: scheme.name)
def test_results_do_not_depend_on_the_batch_size(scheme, text, monkeypatch):
    whole = numbers(evaluate(text, scheme=scheme))
    monkeypatch.setattr(context_loss, "FORWARD_TOKENS", 1)
    for one, other in zip(numbers(evaluate(text, scheme=scheme)), whole, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


def test_each_kind_is_evaluated_on_its_documents(text):
    both = {kind: evaluate(task) for kind, task in text.variants().items()}
    assert both["tales"][0].loss != both["notes"][0].loss
    counts = {
        kind: sum(len(document.tokens) > 160 for document in task.held_out()) for kind, task in text.variants().items()
    }
    assert all(results[0].num_documents <= counts[kind] for kind, results in both.items())


def test_the_interval_is_over_documents_and_none_for_a_single_document(text):
    result = evaluate(text)[0]
    assert result.low < result.loss < result.high
    longest = max(len(document.tokens) for document in text.held_out())
    alone = evaluate(text, replace(SETTINGS, lengths=(longest - 1,)))[0]
    assert (alone.num_documents, alone.low, alone.high) == (1, None, None)


def test_progress_is_reported_by_length_and_the_decoder_stays_in_training_mode(text):
    decoder, experiment = random_decoder(text)
    reports: list[tuple[int, int, int]] = []
    decoder.train()
    all_losses(decoder, text, experiment.scheme, SETTINGS, report=lambda *step: reports.append(step))
    assert decoder.training
    assert {(length, total) for length, _, total in reports} == {(length, 30) for length in SETTINGS.lengths}
    assert [step[1] for step in reports if step[0] == 160][-1] == 30


def test_untrained_distances_emit_a_warning(text):
    decoder, experiment = random_decoder(text)
    settings = replace(SETTINGS, lengths=(16, 40), num_examples=(2,))
    with pytest.warns(
        UntrainedDistanceWarning, match=r"length 40 uses ID distances up to 40, beyond the trained maximum of 16"
    ):
        all_losses(decoder, text, experiment.scheme, settings, trained_distance=16)
    results = all_losses(decoder, text, Skipwise(num_position_ids=100), settings, trained_distance=99)
    assert [result.largest_distance for result in results] == [16, 40]


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "too long": (
        {"lengths": (16, 5000)},
        r"length 5000 needs 5001 tokens, but the longest held-out document has (\d+) tokens;",
    ),
    "free decoding": ({"decode": "free"}, r"a task graded by loss requires teacher forcing"),
    "stop at zero": ({"stop_at_zero": True}, r"requires teacher forcing .*; leave out .* stop_at_zero"),
}


@pytest.mark.parametrize("name", INVALID)
def test_settings_that_do_not_apply_to_losses_raise_an_error(name, text):
    changes, line = INVALID[name]
    decoder, experiment = random_decoder(text)
    for refused in (
        lambda settings: check_context_lengths(text, settings),
        lambda settings: all_losses(decoder, text, experiment.scheme, settings),
    ):
        with pytest.raises(SettingError, match=line):
            refused(replace(SETTINGS, **changes))


def test_ids_beyond_the_encoding_raise_an_error(text):
    with pytest.raises(PositionRangeError, match=r"length 80 requires ID 80, but the encoding supports IDs up to 63"):
        evaluate(text, encoding=Learned(num_position_ids=64))


# The 0.975 quantile of Student's t, from tables.
TABLE = {1: 12.7062, 2: 4.3027, 3: 3.1824, 5: 2.5706, 10: 2.2281, 30: 2.0423, 120: 1.9799}


@pytest.mark.parametrize("freedom", TABLE)
def test_critical_values_of_students_t_agree_with_tables(freedom):
    assert t_critical_value(freedom) == pytest.approx(TABLE[freedom], rel=2e-4)


def test_the_interval_of_equal_clusters_is_that_of_their_means():
    means = np.array([1.0, 2.0, 4.0, 5.0])
    low, high = clustered_interval(7 * means, np.full(4, 7))
    half = TABLE[3] * means.std(ddof=1) / 2
    assert (low, high) == pytest.approx((3 - half, 3 + half), abs=1e-3)


def test_the_interval_contains_the_mean_in_about_95_percent_of_samples():
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        counts = rng.integers(1, 9, size=20)
        sums = counts * rng.normal(3.0, 1.0, size=20)
        low, high = clustered_interval(sums, counts)
        held += low <= 3.0 <= high
    assert 920 <= held <= 970

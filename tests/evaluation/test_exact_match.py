"""Exact match: intervals, teacher-forced and free decoding, first errors, and independence of batching."""

import math
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from statistics import NormalDist, median
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.small_runs import decoder_after, small_experiment

from lengthwise.core.confidence_intervals import wilson_interval
from lengthwise.core.errors import DivergedError, PositionRangeError, SettingError, UntrainedDistanceWarning
from lengthwise.core.randomness import random_stream
from lengthwise.encodings import ALiBi, Learned, NoPE, Rotary
from lengthwise.evaluation import exact_match as evaluation
from lengthwise.evaluation.exact_match import (
    EvaluationSettings,
    LengthResult,
    evaluate_by_length,
    evaluate_together,
    warn_untrained_distance,
)
from lengthwise.evaluation.grading import FirstErrors, Grades, grade
from lengthwise.evaluation.result_rows import describe_fit_errors
from lengthwise.experiments.experiment import Experiment, build_decoder
from lengthwise.model import attention
from lengthwise.model.decoder import Decoder
from lengthwise.model.position_heads import POSITION_HEADS
from lengthwise.positions import Abacus, Coupled, Predicted, RandomStart, Sequential, Skipwise
from lengthwise.tasks import Addition, Copy, Parity, Task
from lengthwise.tasks.examples import Examples
from lengthwise.training.batch import Batch, to_batch

Z = NormalDist().inv_cdf(0.975)
RAGGED = Addition(zero_padding=False)


def score_bounds(successes: int, trials: int) -> tuple[float, float]:
    """Bounds of the score test, |share - p| = z sqrt(p (1 - p) / n), by bisection."""
    share = successes / trials

    def rejects(p: float) -> bool:
        return abs(share - p) > Z * math.sqrt(p * (1 - p) / trials)

    def edge(outside: float) -> float:
        inside = share
        for _ in range(80):
            middle = (outside + inside) / 2
            outside, inside = (middle, inside) if rejects(middle) else (outside, middle)
        return inside

    return edge(0.0), edge(1.0)


@pytest.mark.parametrize("trials", [1, 2, 16, 100, 512])
def test_the_wilson_interval_has_the_bounds_of_the_score_test(trials):
    for successes in range(trials + 1):
        assert wilson_interval(successes, trials) == pytest.approx(score_bounds(successes, trials), abs=1e-7)


@pytest.mark.parametrize("trials", [1, 10, 400])
def test_the_wilson_interval_of_zero_or_all_successes_ends_at_0_or_1(trials):
    width = Z * Z / (trials + Z * Z)
    assert wilson_interval(0, trials) == pytest.approx((0, width), abs=1e-7)
    assert wilson_interval(trials, trials) == pytest.approx((1 - width, 1), abs=1e-7)


def test_the_wilson_interval_is_within_0_and_1_and_contains_the_fraction():
    for trials in range(1, 60):
        for successes in range(trials + 1):
            low, high = wilson_interval(successes, trials)
            assert 0 <= low <= successes / trials + 1e-12
            assert successes / trials - 1e-12 <= high <= 1


def test_the_wilson_interval_agrees_with_published_values():
    # Newcombe 1998, table I, method 3: 81 of 263 and 15 of 148.
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)


class RaggedCopy(Task):
    """Copies of 1 to ``length`` bits in one batch: prompts and responses of several lengths, easy to learn."""

    name, summary, paper, version = "ragged_copy", "copies of several lengths", "", 1
    vocabulary, separators = Copy(num_symbols=2).vocabulary, Copy(num_symbols=2).separators

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Sample examples of ``Copy``, padded with end tokens."""
        rows = [Copy(num_symbols=2).sample(length=int(n), size=1, rng=rng) for n in rng.integers(1, length + 1, size)]
        seq = max(row.tokens.shape[1] for row in rows)

        def filled(part: np.ndarray, fill: int) -> np.ndarray:
            return np.pad(part[0], (0, seq - part.shape[1]), constant_values=fill)

        return Examples(
            tokens=np.stack([filled(row.tokens, self.vocabulary.index("end")) for row in rows]),
            prompt_length=np.concatenate([row.prompt_length for row in rows]),
            is_answer=np.stack([filled(row.is_answer, 0) for row in rows]),
            coupling=np.stack([filled(row.coupling[0], 1) for row in rows])[None],
        )

    def example_from_prompt(self, prompt: str) -> Examples:
        """Not used by these tests."""
        raise NotImplementedError


BUDGET = {"batch_size": 16, "learning_rate": 1e-2, "log_every": 1000}
NARROW = Predicted(num_position_ids=8, max_gaps=0)
# Experiment, number of steps after which it is half trained, and length.
UNDERTRAINED: dict[str, tuple[Experiment, int, int]] = {
    "given, rotary": (small_experiment(Parity(), Coupled(num_position_ids=48), **BUDGET), 40, 4),
    "given, NoPE": (small_experiment(Parity(), Sequential(), NoPE(), **BUDGET), 40, 1),
    "given, learned": (small_experiment(Parity(), Sequential(), Learned(), **BUDGET), 40, 2),
    "given, ALiBi": (small_experiment(Copy(num_symbols=2), Sequential(), ALiBi(), **BUDGET), 80, 1),
    "given, ragged": (small_experiment(RAGGED, Coupled(num_position_ids=48), **BUDGET), 80, 1),
    "pointer": (small_experiment(Parity(), **BUDGET), 40, 4),
    "rank": (small_experiment(Parity(), head="rank", **BUDGET), 40, 2),
    "increment": (small_experiment(Parity(), head="increment", **BUDGET), 40, 4),
    "class": (small_experiment(Parity(), NARROW, Learned(num_position_ids=8), head="class", **BUDGET), 80, 4),
    "given, ragged prompts": (small_experiment(RaggedCopy(), Coupled(num_position_ids=48), **BUDGET), 40, 5),
    "pointer, ragged prompts": (small_experiment(RaggedCopy(), **BUDGET), 40, 5),
    "rank, ragged prompts": (small_experiment(RaggedCopy(), head="rank", **BUDGET), 40, 5),
    "pointer, ragged": (small_experiment(RAGGED, **BUDGET), 80, 1),
}


@cache
def undertrained(name: str) -> tuple[Experiment, Decoder, int]:
    """A decoder with right and wrong examples, and the length of these examples."""
    experiment, steps, length = UNDERTRAINED[name]
    with tempfile.TemporaryDirectory() as folder:
        return experiment, decoder_after(experiment, steps, Path(folder)), length


def batch_of(experiment: Experiment, length: int, size: int) -> Batch:
    examples = experiment.task.sample(length=length, size=size, rng=random_stream(3, "examples"))
    return to_batch(length, examples, experiment.scheme.assign(examples, random_stream(3, "IDs"), training=False))


def first_errors(decoder: Decoder, experiment: Experiment, batch: Batch, decode: str) -> list[tuple[int, str] | None]:
    """Return the index and the kind of the first error in each response; None for a right response."""
    end = experiment.task.vocabulary.index("end")
    grades = grade(decoder, batch, end=end, decode=decode)
    found: list[tuple[int, str] | None] = []
    for row in range(len(batch.tokens)):
        places = zip(*(part[row].tolist() for part in parts_of(grades)), strict=True)
        errors = []
        for index, (token_correct, id_correct, scored, id_scored, is_end) in enumerate(places):
            if scored and not token_correct:
                errors.append((index - int(grades.prompt_offset[row]), "end" if is_end else "token"))
            elif id_scored and not id_correct:
                errors.append((index - int(grades.prompt_offset[row]), "id"))
        found.append(errors[0] if errors else None)
    return found


def parts_of(grades: Grades) -> list[torch.Tensor]:
    return [grades.token_correct, grades.id_correct, grades.scored, grades.id_scored, grades.end]


@pytest.mark.first(2)
@pytest.mark.parametrize("name", UNDERTRAINED)
def test_forced_and_free_decoding_have_the_same_first_error_in_every_example(name):
    experiment, decoder, length = undertrained(name)
    batch = batch_of(experiment, length, 64)
    forced = first_errors(decoder, experiment, batch, "forced")
    assert forced == first_errors(decoder, experiment, batch, "free")
    assert None in forced
    assert any(error is not None for error in forced)


@pytest.mark.parametrize(
    ("token", "id_", "end", "numbers"),
    [
        (0, 0, 0, None),
        (1, 1, 0, None),
        (0, 0, 133, {"the end token": "52%"}),
        (3, 0, 0, {"a token": "1%"}),
        (100, 1, 20, {"a token": "39%", "an ID": "0.4%", "the end token": "8%"}),
    ],
)
def test_a_misfit_has_the_shares_of_first_errors_by_kind(token, id_, end, numbers):
    result = evaluate_sequential()[0]
    num_errors = token + id_ + end
    first = FirstErrors(median_index=1.0, token=token, id=id_, end=end) if num_errors else None
    result = replace(result, num_examples=256, exact_match=1 - num_errors / 256, first_error=first)
    text = describe_fit_errors(result)
    if numbers is None:
        assert text is None
        return
    assert text is not None
    for kind in ("a token", "an ID", "the end token"):
        assert (kind in text) == (kind in numbers)
        assert numbers.get(kind, "%") in text


@pytest.mark.first(1)
@pytest.mark.parametrize("head", POSITION_HEADS)
def test_forced_and_free_decoding_have_the_same_first_error_without_trained_ids(head):
    experiment = small_experiment(RaggedCopy(), head=head, id_weight=0.0, **BUDGET)
    with tempfile.TemporaryDirectory() as folder:
        decoder = decoder_after(experiment, 40, Path(folder))
    batch = batch_of(experiment, 5, 64)
    forced = first_errors(decoder, experiment, batch, "forced")
    assert forced == first_errors(decoder, experiment, batch, "free")
    assert {"id", "token"} <= {error[1] for error in forced if error is not None}


@pytest.mark.first(3)
@pytest.mark.parametrize("name", ["given, ragged", "pointer", "class", "pointer, ragged prompts"])
def test_results_by_length_agree_with_the_single_examples(name):
    experiment, decoder, length = undertrained(name)
    settings = EvaluationSettings(lengths=(length,), num_examples=(16,), seed=5)
    (result,) = evaluate_by_length(decoder, experiment.task, experiment.scheme, settings)
    examples = experiment.task.sample(length=length, size=16, rng=random_stream(5, "evaluation examples", length, 0))
    assignment = experiment.scheme.assign(examples, random_stream(5, "any"), training=False)
    batch = to_batch(length, examples, assignment)
    errors = [error for error in first_errors(decoder, experiment, batch, "forced") if error is not None]
    kinds = Counter(kind for _, kind in errors)
    assert result.exact_match == 1 - len(errors) / 16
    assert (result.low, result.high) == wilson_interval(16 - len(errors), 16)
    assert result.first_error is not None
    assert asdict(result.first_error) == {
        "median_index": median(index for index, _ in errors),
        **{kind: kinds[kind] for kind in ("token", "id", "end")},
    }
    grades = grade(decoder, batch, end=experiment.task.vocabulary.index("end"), decode="forced")
    assert result.token_accuracy == pytest.approx(grades.token_correct[grades.scored].float().mean().item())
    ids = grades.id_correct[grades.id_scored].float()
    assert result.id_accuracy == (pytest.approx(ids.mean().item()) if decoder.predicts_ids else None)
    logits = decoder.token_logits(decoder(batch.tokens, batch.position_ids)[0]).log_softmax(dim=-1)
    of_tokens = -logits[:, :-1].gather(2, batch.tokens[:, 1:, None])[..., 0]
    assert result.answer_loss == pytest.approx(of_tokens[batch.token_scored[:, 1:]].mean().item(), rel=1e-5)
    ids = assignment.position_ids[0]
    assert result.largest_distance == (ids.max(axis=1) - ids.min(axis=1)).max()


def untimed(results: tuple[LengthResult, ...]) -> list[LengthResult]:
    return [replace(result, wall_s=0.0) for result in results]


def test_the_result_of_several_lengths_together_counts_all_examples():
    experiment, decoder, length = undertrained("pointer")
    settings = EvaluationSettings(lengths=(length - 1, length), num_examples=(8, 16), seed=5)
    single = tuple(evaluate_by_length(decoder, experiment.task, experiment.scheme, settings))
    together = evaluate_together(decoder, experiment.task, experiment.scheme, settings)
    assert (together.length, together.num_examples) == (length, 24)
    assert 24 * together.exact_match == pytest.approx(8 * single[0].exact_match + 16 * single[1].exact_match)
    for kind in ("token", "id", "end"):
        counts = [getattr(result.first_error, kind) for result in single if result.first_error is not None]
        assert getattr(together.first_error, kind) == sum(counts)


@pytest.mark.first(1)
@pytest.mark.parametrize("decode", ["forced", "free"])
@pytest.mark.parametrize("name", ["given, ragged", "rank"])
def test_results_do_not_depend_on_the_batch_size(name, decode, monkeypatch):
    experiment, decoder, _ = undertrained(name)
    settings = EvaluationSettings(lengths=(1, 2, 5), num_examples=(21,), decode=decode)

    def results() -> tuple[list[LengthResult], list[float | None]]:
        found = untimed(tuple(evaluate_by_length(decoder, experiment.task, experiment.scheme, settings)))
        return [replace(result, answer_loss=None) for result in found], [result.answer_loss for result in found]

    usual, losses = results()
    sizes = []
    actual = evaluation.grade
    monkeypatch.setattr(
        evaluation, "grade", lambda *given, **how: sizes.append(len(given[1].tokens)) or actual(*given, **how)
    )
    for tokens, elements in ((1, 1), (40, 100), (10**9, 1)):
        monkeypatch.setattr(evaluation, "FORWARD_TOKENS", tokens)
        monkeypatch.setattr(attention, "MAX_CHUNK_SCORES", elements)
        again, same_losses = results()
        assert again == usual
        # The rounding of a sum depends on the batch size.
        assert same_losses == (losses if decode == "free" else pytest.approx(losses, rel=1e-5))
    assert set(sizes) > {1, 16}


def test_the_first_examples_do_not_depend_on_the_number_of_examples(monkeypatch):
    experiment = small_experiment(RAGGED)
    decoder = build_decoder(experiment)
    examples_by_call: list[list[list[int]]] = []

    def remember(decoder: Decoder, batch: Batch, **how: Any) -> Grades:
        examples_by_call[-1].extend(batch.tokens[:, :8].tolist())
        return grade(decoder, batch, **how)

    monkeypatch.setattr(evaluation, "grade", remember)
    for number in (1, 5, 16, 17, 40):
        examples_by_call.append([])
        settings = EvaluationSettings(lengths=(3,), num_examples=(number,))
        tuple(evaluate_by_length(decoder, experiment.task, experiment.scheme, settings))
        assert len(examples_by_call[-1]) == number
    assert all(rows == examples_by_call[-1][: len(rows)] for rows in examples_by_call)
    assert len({tuple(row) for row in examples_by_call[-1]}) > 30


def test_each_seed_and_each_length_has_different_examples(monkeypatch):
    experiment = small_experiment()
    decoder = build_decoder(experiment)
    examples_by_call = []

    def remember(decoder: Decoder, batch: Batch, **how: Any) -> Grades:
        examples_by_call.append(batch.tokens[:, :6].tolist())
        return grade(decoder, batch, **how)

    monkeypatch.setattr(evaluation, "grade", remember)
    for seed in (0, 1):
        settings = EvaluationSettings(lengths=(6, 7), num_examples=(16,), seed=seed)
        tuple(evaluate_by_length(decoder, experiment.task, experiment.scheme, settings))
    assert all(one != other for place, one in enumerate(examples_by_call) for other in examples_by_call[:place])


def example_grades() -> Grades:
    """Six responses: right, wrong token, wrong ID, wrong token and ID, end too late, end too early."""

    def flags(*rows: str) -> torch.Tensor:
        return torch.tensor([[flag == "1" for flag in row] for row in rows])

    return Grades(
        token_correct=flags("0111", "0101", "1111", "1011", "1110", "1101"),
        id_correct=flags("1110", "1111", "1010", "1011", "1111", "1110"),
        scored=flags("0111", "1111", "1111", "0111", "1111", "1111"),
        id_scored=flags("0110", "1110", "1110", "0110", "1110", "1110"),
        end=flags("0001", "0001", "0001", "0001", "0001", "0011"),
        prompt_offset=torch.tensor([1, 0, 0, 1, 0, 0]),
    )


def measure(monkeypatch: pytest.MonkeyPatch, grades: Grades) -> LengthResult:
    """Return the result of one length with these grades."""
    experiment = small_experiment()
    monkeypatch.setattr(evaluation, "grade", lambda *given, **how: grades)
    settings = EvaluationSettings(lengths=(4,), num_examples=(len(grades.scored),))
    return next(evaluate_by_length(build_decoder(experiment), experiment.task, experiment.scheme, settings))


def test_first_errors_are_counted_by_kind(monkeypatch):
    result = measure(monkeypatch, example_grades())
    assert result.num_examples == 6
    assert result.exact_match == 1 / 6
    assert result.exact_tokens == 2 / 6
    assert result.first_error is not None
    # First errors are at 0, 1, 0 (with an offset of 1), 3 and 2.
    assert asdict(result.first_error) == {"median_index": 1, "token": 2, "id": 1, "end": 2}
    assert result.token_accuracy == pytest.approx(1 - 5 / 22)
    assert result.id_accuracy == pytest.approx(1 - 2 / 16)


@pytest.mark.parametrize("decode", ["forced", "free"])
def test_a_run_without_a_position_head_has_no_id_accuracy(decode):
    experiment = small_experiment(scheme=Sequential(), encoding=Rotary())
    settings = EvaluationSettings(lengths=(4,), num_examples=(8,), decode=decode)
    (result,) = evaluate_by_length(build_decoder(experiment), experiment.task, experiment.scheme, settings)
    assert result.id_accuracy is None
    assert result.first_error is not None
    assert result.first_error.id == 0


def test_unscored_tokens_and_ids_are_never_errors(monkeypatch):
    grades = example_grades()
    nothing = torch.zeros_like(grades.scored)
    result = measure(
        monkeypatch, replace(grades, token_correct=nothing, id_correct=nothing, scored=nothing, id_scored=nothing)
    )
    assert (result.exact_match, result.exact_tokens, result.first_error) == (1.0, 1.0, None)


def evaluate_sequential(num_position_ids: int | None = None, **given: Any) -> tuple[LengthResult, ...]:
    """Parities of 4 and 8 bits: 11 and 19 tokens."""
    encoding = Rotary() if num_position_ids is None else Learned(num_position_ids=num_position_ids)
    experiment = small_experiment(scheme=Sequential(), encoding=encoding)
    settings = EvaluationSettings(lengths=(4, 8), num_examples=(20, 3))
    return tuple(evaluate_by_length(build_decoder(experiment), experiment.task, experiment.scheme, settings, **given))


def test_a_length_after_an_exact_match_of_zero_is_skipped_and_marked():
    experiment = small_experiment(scheme=Sequential(), encoding=Rotary())
    settings = EvaluationSettings(lengths=(8, 16, 12), num_examples=(4, 3, 2), stop_at_zero=True)
    found = tuple(evaluate_by_length(build_decoder(experiment), experiment.task, experiment.scheme, settings))
    first, *skipped = found
    assert (first.length, first.exact_match, first.skipped) == (8, 0.0, False)
    assert [(each.length, each.num_examples) for each in skipped] == [(16, 0), (12, 0)]
    for each in skipped:
        assert each.skipped
        assert (each.exact_match, each.low, each.high) == (0.0, 0.0, 1.0)
        measured = (each.exact_tokens, each.token_accuracy, each.id_accuracy, each.answer_loss, each.first_error)
        assert set(measured) == {None}
    unstopped = replace(settings, stop_at_zero=False)
    results = tuple(evaluate_by_length(build_decoder(experiment), experiment.task, experiment.scheme, unstopped))
    assert [each.skipped for each in results] == [False] * 3


def test_nan_predictions_raise_an_error():
    experiment = small_experiment()
    decoder = build_decoder(experiment).eval()
    with torch.no_grad():
        decoder.embedding[2] = math.nan
    settings = EvaluationSettings(lengths=(3,), num_examples=(4,))
    with pytest.raises(DivergedError, match=r"^the token loss of the decoder is NaN; train the run again"):
        tuple(evaluate_by_length(decoder, experiment.task, experiment.scheme, settings))


def test_untrained_distances_emit_one_warning():
    text = r"^length 8 uses ID distances up to 18, beyond the trained maximum of 10; train on longer sequences, or with"
    with pytest.warns(UntrainedDistanceWarning, match=text) as caught:
        evaluate_sequential(trained_distance=10)
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("scheme", "advice"),
    [
        (Sequential(), "on longer sequences, or with gaps between IDs"),
        (RandomStart(), "on longer sequences, or with gaps between IDs"),
        (Abacus(), "on longer sequences, or with gaps between IDs"),
        (Coupled(num_position_ids=16, max_gaps=0), "on longer sequences, or with gaps between IDs"),
        (Coupled(num_position_ids=16), "with num_position_ids of at least 19$"),
        (Skipwise(num_position_ids=18), "with num_position_ids of at least 19$"),
        (Skipwise(num_position_ids=19), "for more steps$"),
        (Predicted(num_position_ids=16), "with num_position_ids of at least 19$"),
    ],
    ids=str,
)
def test_the_warning_suggests_a_change_that_the_scheme_supports(scheme, advice):
    decoder = build_decoder(small_experiment(scheme=scheme))
    with pytest.warns(UntrainedDistanceWarning, match=f"; train {advice}"):
        warn_untrained_distance(decoder, scheme, 8, 18, 10)


@pytest.mark.filterwarnings("error")
def test_a_decoder_that_reads_no_ids_emits_no_warning():
    for scheme in (Sequential(), Coupled()):
        warn_untrained_distance(build_decoder(small_experiment(scheme=scheme, encoding=NoPE())), scheme, 8, 18, 10)
    # Position heads read IDs even without an encoding.
    own = small_experiment(scheme=Predicted(), encoding=NoPE())
    with pytest.warns(UntrainedDistanceWarning):
        warn_untrained_distance(build_decoder(own), own.scheme, 8, 20_480, 10)


@pytest.mark.filterwarnings("error")
def test_trained_distances_emit_no_warning():
    results = evaluate_sequential(trained_distance=18)
    assert [result.largest_distance for result in results] == [10, 18]


def test_an_encoding_with_too_few_ids_raises_an_error_with_the_required_number():
    text = r"length 8 requires ID 18, but the encoding supports IDs up to 17; set its num_position_ids to at least 19"
    with pytest.raises(PositionRangeError, match=text):
        evaluate_sequential(18)
    assert len(evaluate_sequential(19)) == 2


def test_progress_reports_count_up_to_the_total_of_each_length():
    reports = []
    evaluate_sequential(report=lambda *numbers: reports.append(numbers))
    assert reports == [(4, 16, 20), (4, 20, 20), (8, 3, 3)]


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_restores_the_mode_of_the_decoder(training):
    experiment = small_experiment()
    decoder = build_decoder(experiment).train(training)
    tuple(evaluate_by_length(decoder, experiment.task, experiment.scheme, experiment.evaluation))
    assert decoder.training == training


INVALID_SETTINGS: list[tuple[Callable[[], object], str]] = [
    (lambda: EvaluationSettings(lengths=()), r"lengths is empty; give at least one test length"),
    (lambda: EvaluationSettings(lengths=(4, 0)), r"invalid length 0; use at least 1"),
    (lambda: EvaluationSettings(num_examples=(0,)), r"invalid number of examples 0; use at least 1"),
    (
        lambda: EvaluationSettings(lengths=(4, 8, 9), num_examples=(1, 2)),
        r"num_examples has 2 values for 3 lengths; give one value for all lengths, or one value per length",
    ),
    (lambda: EvaluationSettings(decode="fre"), r"unknown decode mode 'fre'; use forced or free"),
]


@pytest.mark.parametrize(("build", "text"), INVALID_SETTINGS, ids=[text[:30] for _, text in INVALID_SETTINGS])
def test_invalid_settings_raise_an_error(build, text):
    with pytest.raises(SettingError, match=text):
        build()


def test_up_to_drops_longer_lengths_with_their_numbers_of_examples():
    settings = EvaluationSettings(lengths=(5, 50, 20), num_examples=(1, 2, 3))
    assert settings.with_max_length(20) == replace(settings, lengths=(5, 20), num_examples=(1, 3))
    assert settings.with_max_length(50) == settings
    same_number = EvaluationSettings(lengths=(5, 50), num_examples=(7,))
    assert same_number.with_max_length(49) == replace(same_number, lengths=(5,))
    with pytest.raises(SettingError, match="lengths is empty"):
        settings.with_max_length(4)

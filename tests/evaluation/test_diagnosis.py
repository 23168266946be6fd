"""Diagnoses of runs with planted faults (IDs, dilution, predicted IDs, ends), and each part of a diagnosis."""

import json
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np
import pytest
import torch
from tests.support.cases import small_decoder
from tests.support.small_runs import small_experiment

from lengthwise.cli import app as cli
from lengthwise.core.errors import PositionRangeError, SettingError
from lengthwise.encodings import Learned, NoPE, Rotary
from lengthwise.evaluation.diagnosis.diagnosis import Diagnosis
from lengthwise.evaluation.diagnosis.failure_attribution import (
    COMPETING_MATCHES,
    MORE_IDS,
    TOKENS_OR_IDS,
    FailureCause,
    InterventionResults,
    SubsamplingControl,
    build_interventions,
    coupling_or_token_index,
    describe_limiting_cause,
    find_competing_tokens,
    measure_intervention_causes,
    remap_ids,
)
from lengthwise.evaluation.diagnosis.failures import (
    FailureCounts,
    _range_of_needed,
    collect_failures,
    measure_needed_attention,
)
from lengthwise.evaluation.diagnosis.report import describe_diagnosis
from lengthwise.evaluation.exact_match import EvaluationSettings, evaluate_by_length
from lengthwise.evaluation.forecast.certificate import DILUTED_ATTENTION, UNTRAINED_IDS
from lengthwise.evaluation.forecast.probed_model import (
    ProbedModel,
    build_queries,
    query_without_tokens,
    sample_answers,
    sample_queries,
)
from lengthwise.evaluation.forecast.subsampling import subsample
from lengthwise.experiments.experiment import Experiment, build_decoder
from lengthwise.experiments.recipes import quick_version, recipe
from lengthwise.experiments.run import Run, load_run, train
from lengthwise.experiments.run_evaluation import build_probed_model, diagnose_run
from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.model.position_heads import NextIDDistribution, PositionHead
from lengthwise.positions import Predicted, Sequential
from lengthwise.tasks import Addition, Copy, Parity, Recall, Task
from lengthwise.training.batch import to_batch
from lengthwise.training.training_settings import TrainingSettings

# One key and its value among equal fillers.
NEEDLE = Recall(num_pairs=1, num_keys=1, num_values=4, num_fillers=1)
LARGEST = 13


def trained_in_seconds(task, scheme, encoding, lengths, steps, **decoder) -> Experiment:
    return Experiment(
        task=task,
        scheme=scheme,
        encoding=encoding,
        decoder=DecoderSettings(num_layers=1, **decoder),
        training=TrainingSettings(steps=steps, batch_size=64, warmup_steps=20, learning_rate=0.01),
        train_lengths=lengths,
    )


@pytest.fixture(scope="module")
def needle(tmp_path_factory):
    """A run that reads no IDs and is right at all lengths tested here."""
    sizes = {"d_model": 16, "num_heads": 1, "length_scaling": "none", "temperature": 1.0}
    experiment = trained_in_seconds(NEEDLE, Sequential(), NoPE(), (2, 8), 150, **sizes)
    folder = tmp_path_factory.mktemp("needle")
    assert train(experiment, folder, device="cpu").facts["id_range"] == [0, LARGEST]
    return partial(load_run, folder, device="cpu")


@pytest.fixture(scope="module")
def copying(tmp_path_factory):
    """A run with PPC that is right at lengths up to 12."""
    scheme = Predicted(num_position_ids=64, max_gaps=3)
    experiment = trained_in_seconds(
        Copy(num_symbols=2), scheme, Rotary(base=100.0, fastest=3.0), (1, 5), 200, d_model=32, num_heads=2
    )
    folder = tmp_path_factory.mktemp("copying")
    train(experiment, folder, device="cpu")
    return partial(load_run, folder, device="cpu")


@pytest.fixture(scope="module")
def unfitted(tmp_path_factory):
    """The folder of a run with a dozen steps."""
    folder = tmp_path_factory.mktemp("unfitted")
    train(small_experiment(), folder, device="cpu")
    return folder


def causes(diagnosis: Diagnosis) -> dict[str, FailureCause]:
    return {cause.name: cause for cause in diagnosis.causes}


def with_random_untrained_ids(run: Run) -> Run:
    """Add a vector for each ID to the decoder: 0 for IDs of training, random for other IDs."""
    experiment = replace(run.experiment, encoding=Learned(num_position_ids=64))
    decoder = build_decoder(experiment).eval()
    decoder.load_state_dict(run.decoder.state_dict(), strict=False)
    vectors = decoder.encoding.levels[0].vectors.data
    vectors.zero_()[LARGEST + 1 :] = 2 * torch.randn(64 - LARGEST - 1, 16, generator=torch.Generator().manual_seed(0))
    return replace(run, experiment=experiment, decoder=decoder)


@pytest.mark.slow
def test_untrained_ids_are_the_limiting_cause(needle):
    found = diagnose_run(with_random_untrained_ids(needle()), 32, num_examples=24)
    assert found.fits
    assert causes(found)[UNTRAINED_IDS].repair_rate >= 0.95
    assert causes(found)[DILUTED_ATTENTION].repair_rate <= 0.05
    assert found.limited_by.startswith("limited by IDs or distances not seen in training (0.0")
    ids = {each.quantity: each for each in found.range_shifts}["ID of the needed tokens of an answer"]
    assert (ids.train_max, ids.fraction_beyond) == (LARGEST, 1.0)
    assert ids.test_max > LARGEST


@pytest.mark.slow
def test_diluted_attention_is_the_limiting_cause(needle):
    """Flatter attention is still right at training lengths, but not with many more fillers."""
    run = needle()
    run.decoder.blocks[0].log_temperature.data -= 0.7
    found = diagnose_run(run, 512, num_examples=24)
    assert found.fits
    assert causes(found)[DILUTED_ATTENTION].repair_rate >= 0.9
    assert causes(found)[UNTRAINED_IDS].repair_rate == causes(found)[COMPETING_MATCHES].repair_rate == 0
    assert found.limited_by.startswith("limited by attention diluted by more tokens")
    assert [each.length for each in found.by_length] == [8, 16, 32, 64, 128, 256, 512]
    (mass,) = zip(*(each.needed_mass for each in found.by_length), strict=True)
    assert mass[0] > 0.6
    assert mass[-1] < 0.3
    assert found.needed_mass_at_errors[0] < mass[-2]


@dataclass(frozen=True)
class Decoys(Task):
    """``NEEDLE`` with wrong values beyond the training lengths, either after the same key or after fillers."""

    after_key: bool

    name = "decoys"
    vocabulary = NEEDLE.vocabulary
    separators = NEEDLE.separators

    def sample(self, *, length, size, rng):
        """Sample examples of ``NEEDLE``, and write four wrong values into the text of long ones."""
        examples = NEEDLE.sample(length=length, size=size, rng=rng)
        if length <= 8:
            return examples
        tokens, (filler, key) = examples.tokens.copy(), (self.vocabulary.index("f0"), self.vocabulary.index("k0"))
        for row in tokens:
            (value,) = row[examples.is_answer[0]][:1]
            other = 1 + value % 4
            starts = np.flatnonzero((row[:-1] == filler) & (row[1:] == filler))[::3][:4]
            row[starts + 1] = other
            row[starts] = key if self.after_key else filler
        return replace(examples, tokens=tokens)

    def example_from_prompt(self, prompt):
        """Return an example of ``NEEDLE``."""
        return NEEDLE.example_from_prompt(prompt)


def test_competing_matches_are_the_limiting_cause_if_wrong_values_follow_the_key(needle):
    found = {}
    for after_key in (True, False):
        run = needle()
        run = replace(run, experiment=replace(run.experiment, task=Decoys(after_key)))
        found[after_key] = diagnose_run(run, 32, num_examples=24)
        assert found[after_key].failures.token >= 12
    assert causes(found[True])[COMPETING_MATCHES].repair_rate >= 0.8
    assert causes(found[True])[DILUTED_ATTENTION].repair_rate <= 0.2
    assert found[True].limited_by.startswith("limited by competing matches")
    # The same values after fillers mislead the run, too, but not by a match.
    assert causes(found[False])[COMPETING_MATCHES].repair_rate == 0
    assert "limited by competing matches" not in found[False].limited_by


def test_competing_tokens_of_a_copy_follow_other_occurrences_of_the_last_token():
    # 1 2 3 1 4 6 1 5 = > 1 2 3 1, whose next symbol 4 stands after the second 1.
    tokens = np.array([1, 2, 3, 1, 4, 6, 1, 5, 8, 9, 1, 2, 3, 1])
    competing, others = find_competing_tokens(tokens, np.array([4]))
    assert competing.tolist() == [1, 7, 11]
    assert others.tolist() == [0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 12]


def test_competing_tokens_of_a_reversal_are_other_occurrences_of_the_last_token():
    # = 1 4 5 1 2 > 2 1, whose next symbol 5 stands before the second 1 in the prompt.
    tokens = np.array([8, 1, 4, 5, 1, 2, 9, 2, 1])
    assert find_competing_tokens(tokens, np.array([3]))[0].tolist() == [1]


def test_no_token_competes_with_the_value_of_a_unique_key(rng):
    task = Recall()
    examples = task.sample(length=40, size=20, rng=rng)
    last = examples.is_answer.argmax(axis=1) - 1
    for tokens, depends_on, index in zip(examples.tokens, examples.depends_on, last, strict=True):
        assert find_competing_tokens(tokens[: index + 1], depends_on[index + 1])[0].tolist() == []


@torch.no_grad()
@pytest.mark.parametrize("encoding", ["nope", "alibi"])
def test_a_hidden_token_is_hidden_from_the_last_token_only(encoding):
    """A full pass with a mask in the row of the last token is the reference."""
    task = Copy()
    decoder = small_decoder(encoding, task)
    queries = sample_queries(task, Sequential(), 9, 8, seed=0)
    hidden_sets = [(np.arange(2, last - 3), np.array([], dtype=int)) for last in queries.last_index]
    found = query_without_tokens(decoder, queries, hidden_sets)
    for row, (last, sets) in enumerate(zip(queries.last_index, hidden_sets, strict=True)):
        for column, hidden_set in enumerate(sets):
            bias = torch.zeros(1, last + 1, last + 1)
            bias[0, -1, hidden_set] = -torch.inf
            hooks = AttentionHooks(score_bias=bias, visible_counts=torch.arange(1.0, last + 2)[None])
            tokens, ids = queries.batch.tokens[row : row + 1], queries.batch.position_ids[:, row : row + 1]
            hidden, _ = decoder(tokens[:, : last + 1], ids[:, :, : last + 1], hooks=hooks)
            predicted = int(decoder.token_logits(hidden)[0, -1].argmax())
            assert found[row, column] == (predicted == int(tokens[0, last + 1]))


class OneOff(PositionHead):
    """A position head that predicts the next ID in long prompts, measured by tokens or by distinct IDs."""

    def __init__(self, head, measure) -> None:
        super().__init__()
        self.head, self.keys, self.measure = head, head.keys, measure

    def forward(self, hidden, own_ids, next_embeddings, prompt):
        """Shift the distribution by one candidate."""
        ids = self.head(hidden, own_ids, next_embeddings, prompt)
        is_long = getattr(prompt, self.measure).shape[1] > 8
        return NextIDDistribution(log_probs=ids.log_probs.roll(int(is_long), dims=-1), candidates=ids.candidates)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("measure", "limit"),
    [
        # The head reads the full prompt in all subsamples.
        ("keys", "limited by wrong predicted IDs (24 of 24 first errors; exact match 1.00 with right IDs)"),
        # IDs of training have fewer distinct values.
        ("distinct_ids", "limited by more distinct IDs than in training (0.00 of the first errors are right with"),
    ],
    ids=["tokens", "distinct IDs"],
)
def test_wrong_predicted_ids_are_the_limiting_cause(measure, limit, copying, monkeypatch):
    run = copying()
    one_off = OneOff(run.decoder.heads[0], measure)
    monkeypatch.setattr(run.decoder, "position_heads", lambda: [one_off])
    found = diagnose_run(run, 12, num_examples=24)
    assert found.fits
    assert found.failures.id == found.failures.num_failures == 24
    assert found.failures.by_tenth[0] == 24
    assert found.failures.error_propagation > 0.5
    right_ids = causes(found)["wrong predicted IDs"]
    assert (right_ids.repair_rate, right_ids.exact_match) == (1.0, 1.0)
    assert found.limited_by.startswith(limit)


@pytest.mark.first(1)
@pytest.mark.parametrize(("added", "kind"), [(100.0, "end_too_early"), (-100.0, "end_too_late")])
def test_a_wrong_end_is_the_limiting_cause(added, kind, copying, monkeypatch):
    """The decoder predicts the end token immediately or never in long sequences."""
    run = copying()
    decoder, end = run.decoder, run.experiment.task.vocabulary.index("end")
    forward, logits, sizes = decoder.forward, decoder.token_logits, []

    def record_size(tokens, *arguments, **options):
        sizes.append(tokens.shape[1])
        return forward(tokens, *arguments, **options)

    def biased(hidden):
        scores = logits(hidden)
        scores[..., end] += added * (sizes[-1] > 20)
        return scores

    monkeypatch.setattr(decoder, "forward", record_size)
    monkeypatch.setattr(decoder, "token_logits", biased)
    found = diagnose_run(run, 12, num_examples=24)
    assert found.fits
    assert getattr(found.failures, kind) == found.failures.num_failures == 24
    assert found.failures.by_tenth[0 if added > 0 else 9] == 24
    assert causes(found)["ending too early or too late"].exact_match == 1.0
    limit = "limited by ending too early or too late (24 of 24 first errors; exact match 1.00 with right ends)"
    assert found.limited_by.startswith(limit)


@pytest.mark.slow
def test_an_error_of_the_report_ends_a_diagnosis_in_every_stage(needle):
    run = needle()
    run = replace(run, experiment=replace(run.experiment, task=Decoys(after_key=True)))
    stages: list[str] = []
    diagnose_run(run, 32, num_examples=24, report=stages.append)
    assert {"examples of length 32", "changes of first errors", "changes of right answers"} <= set(stages)
    for stage in set(stages):

        def stop(name, stage=stage):
            if name == stage:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            diagnose_run(run, 32, num_examples=24, report=stop)


def test_a_run_without_failures_has_no_causes(copying):
    found = diagnose_run(copying(), 8, num_examples=32)
    assert found.limited_by == "no failures at length 8: exact match 1.000 (0.893 to 1.000)"
    assert (found.failures, found.causes, found.range_shifts, found.subsampling_control) == (None, (), (), None)


@pytest.mark.slow
def test_a_run_that_does_not_fit_is_limited_by_training(unfitted, capsys):
    found = diagnose_run(load_run(unfitted, device="cpu"), 8, num_examples=16)
    assert not found.fits
    assert found.limited_by == (
        "limited by training: exact match is 0.000 at the training length 4; train until the run fits"
    )
    cli.main(["diagnose", str(unfitted), "--length", "8", "--num-examples", "16"])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("the run does not fit its training lengths")
    assert printed[-1] == found.limited_by


def test_a_task_without_support_gets_a_diagnosis_without_interventions(tmp_path):
    run = train(small_experiment(Addition(order="most"), Sequential()), tmp_path, device="cpu")
    found = diagnose_run(run, 8, num_examples=16)
    assert "task addition does not declare which tokens its answers depend on" in found.skip_reason
    assert (found.heads, found.needed_mass_at_errors, found.subsampling_control) == ((), (), None)
    assert found.failures.num_failures == 16
    assert [each.quantity for each in found.range_shifts] == ["distance between any two tokens"]


@pytest.mark.slow
def test_weights_that_do_not_allow_subsampling_still_have_a_support_mass(tmp_path):
    experiment = small_experiment()
    decoder = replace(experiment.decoder, weights="top_k")
    run = train(replace(experiment, decoder=decoder), tmp_path, device="cpu")
    found = diagnose_run(run, 8, num_examples=16)
    assert found.skip_reason.startswith("attention weights 'top_k' do not allow subsampling")
    assert len(found.heads) == len(found.needed_mass_at_errors) > 0


FAILURES = FailureCounts(
    num_failures=10,
    token=6,
    id=3,
    end_too_early=1,
    end_too_late=0,
    median_index=2.0,
    by_tenth=(10, *[0] * 9),
    error_propagation=None,
)


NAMES = (DILUTED_ATTENTION, UNTRAINED_IDS, TOKENS_OR_IDS, COMPETING_MATCHES)
FIRST = "limited by wrong tokens (6 of 10 first errors)"


@pytest.mark.parametrize(
    ("repair_rates", "control_rate", "retention", "short_fraction", "limit"),
    [
        ((0.9, 0.1, 0.0, 0.0), 0.1, 1.0, 1.0, "limited by attention diluted by more tokens (0.90 of the first errors"),
        (
            (0.1, 0.8, 0.0, 0.0),
            0.1,
            1.0,
            1.0,
            f"limited by {UNTRAINED_IDS} (0.10 of the first errors are right with fewer",
        ),
        ((0.7, 0.8, 0.0, 0.0), 0.1, 1.0, 1.0, "limited by the combination of more tokens and IDs not seen in training"),
        ((0.1, 0.1, 0.7, 0.0), 0.1, 1.0, 1.0, f"limited by {TOKENS_OR_IDS}"),
        ((0.3, 0.2, 0.1, 0.0), 0.1, 1.0, 1.0, "limited by several causes"),
        ((0.1, 0.1, 0.1, 0.0), 0.1, 1.0, 1.0, f"{FIRST}, and not by IDs"),
        ((0.1, 0.1, 0.1, 0.0), 0.1, 0.6, 1.0, f"{FIRST}; undecided between IDs and the number of tokens: 1.00"),
        ((0.1, 0.1, 0.1, 0.0), 0.1, 1.0, 0.5, f"{FIRST}; undecided between IDs and the number of tokens: 0.50"),
        ((0.9, 0.1, 0.0, 0.0), 0.6, 1.0, 1.0, f"{FIRST}; undecided between IDs and the number of tokens: subsampling"),
        ((0.2, 0.1, 0.0, 0.6), 0.6, 0.5, 1.0, "limited by competing matches"),
        ((0.4, 0.0, 0.0, 0.4), 0.1, 1.0, 1.0, "limited by several causes"),
    ],
)
def test_the_limiting_cause_has_the_largest_repair_rate(repair_rates, control_rate, retention, short_fraction, limit):
    candidates = tuple(
        FailureCause(name=name, intervention="", num_errors=10, repair_rate=rate)
        for name, rate in zip(NAMES, repair_rates, strict=True)
    )
    control = SubsamplingControl(repair_rate=control_rate, retention=retention, short_fraction=short_fraction)
    assert describe_limiting_cause(FAILURES, (), candidates, control).startswith(limit)


@pytest.mark.parametrize(("num_errors", "hint"), [(19, True), (20, False)])
def test_a_diagnosis_of_few_errors_asks_for_more_examples(num_errors, hint):
    cause = FailureCause(name=UNTRAINED_IDS, intervention="", num_errors=num_errors, repair_rate=0.8)
    found = Diagnosis(
        length=8, num_examples=32, train_lengths=(1, 4), by_length=(), heads=(), causes=(cause,), limited_by="limited"
    )
    *hints, last = describe_diagnosis(found)
    text = f"the fractions are rough, because only {num_errors} examples failed; increase --num-examples"
    assert (hints, last) == ([text] * hint, "limited")


def coin_flips(rng, number: int = 4000) -> InterventionResults:
    """Results of noise with two possible answers."""
    return InterventionResults(**{part.name: rng.random(number) < 0.5 for part in fields(InterventionResults)})


def test_noise_that_repairs_as_much_as_it_breaks_is_not_a_cause(rng):
    control = SubsamplingControl(repair_rate=0.4, retention=1.0, short_fraction=1.0)
    without_baseline = tuple(measure_intervention_causes(coin_flips(rng), None, 64, beyond_training=True))
    rates = [cause.repair_rate for cause in without_baseline]
    # Noise repairs as much with tokens at random places as without competing tokens.
    assert rates == pytest.approx([3 / 16, 1 / 4, 3 / 64, 1 / 4], abs=0.03)
    assert describe_limiting_cause(FAILURES, (), without_baseline, control).startswith("limited by several causes")
    with_baseline = tuple(measure_intervention_causes(coin_flips(rng), coin_flips(rng), 64, beyond_training=True))
    assert [cause.effect for cause in with_baseline] == pytest.approx([0, 0, 0, 0], abs=0.04)
    text = describe_limiting_cause(FAILURES, (), with_baseline, control)
    assert "undecided between IDs and the number of tokens: noise may repair as many errors (0." in text


def test_a_cause_may_break_some_right_answers(rng):
    control = SubsamplingControl(repair_rate=0.4, retention=1.0, short_fraction=1.0)
    always = np.ones(4000, dtype=bool)
    none, all_answers = ({each.name: mask for each in fields(InterventionResults)} for mask in (~always, always))
    errors = InterventionResults(**{**none, "fewer_tokens": rng.random(4000) < 0.9})
    right = InterventionResults(**{**all_answers, "fewer_tokens": rng.random(4000) < 0.8})
    first, *_ = found = tuple(measure_intervention_causes(errors, right, 64, beyond_training=True))
    assert first.name == DILUTED_ATTENTION
    assert (first.repair_rate, first.break_rate) == pytest.approx((0.9, 0.2), abs=0.02)
    assert describe_limiting_cause(FAILURES, (), found, control).startswith(f"limited by {DILUTED_ATTENTION} (")


def test_answers_of_the_baseline_are_right(unfitted):
    model = build_probed_model(load_run(unfitted, device="cpu"), seed=0)
    _, batches = collect_failures(model, 6, 40)
    end = model.task.vocabulary.index("end")
    pairs = [(queries, row) for queries in batches for row in range(len(queries.answer))]
    assert len(pairs) > 10
    for queries, row in pairs:
        answer, batch = int(queries.answer[row]), queries.batch.select_examples(np.array([row]))
        hidden, _ = model.decoder(batch.tokens[:, :answer], batch.position_ids[:, :, :answer])
        predicted = int(model.decoder.token_logits(hidden)[0, -1].argmax())
        assert predicted == int(batch.tokens[0, answer]) != end
        assert queries.examples.is_answer[row, answer]


@pytest.mark.slow
def test_failures_agree_with_evaluation(unfitted):
    run = load_run(unfitted, device="cpu")
    settings = EvaluationSettings(lengths=(6,), num_examples=(40,))
    experiment = run.experiment
    (result,) = evaluate_by_length(run.decoder, experiment.task, experiment.scheme, settings)
    found = diagnose_run(run, 6, num_examples=40)
    assert found.by_length[-1].exact_match == result.exact_match
    first, failures = result.first_error, found.failures
    ends = failures.end_too_early + failures.end_too_late
    assert (failures.token, failures.id, ends) == (first.token, first.id, first.end)
    assert failures.median_index == first.median_index
    assert sum(failures.by_tenth) == failures.num_failures


@torch.no_grad()
def test_support_mass_with_a_cache_is_that_of_the_full_sequence():
    task = Recall(num_queries=2)
    decoder = small_decoder("rotary", task)
    batch, rng = sample_queries(task, Sequential(), 9, 6, seed=0).batch, np.random.default_rng(0)
    depends_on = np.maximum(task.sample(length=9, size=6, rng=rng).depends_on, -1)
    answer = sample_answers(task, batch, rng)
    layers = []
    decoder(batch.tokens, batch.position_ids, hooks=AttentionHooks(on_weights=layers.append))
    masses = measure_needed_attention(decoder, batch, answer, depends_on)
    for row, last in enumerate(answer - 1):
        keys = [token for token in set(depends_on[row, last + 1].tolist()) if token not in (-1, last)]
        expected = [layer[row, :, last, keys].sum(dim=-1).numpy() for layer in layers]
        np.testing.assert_allclose(masses[row], np.stack(expected), atol=1e-5)


def test_support_mass_ignores_the_token_before_the_answer():
    task = Parity()
    decoder = small_decoder("nope", task)
    queries = sample_queries(task, Sequential(), 4, 3, seed=0)
    depends_on = np.full((3, queries.batch.tokens.shape[1], 2), -1)
    depends_on[np.arange(3), queries.answer, 1] = queries.last_index
    assert len(measure_needed_attention(decoder, queries.batch, queries.answer, depends_on)) == 0


def test_a_subsample_of_coupled_units_has_the_layout_of_a_shorter_copy(rng):
    """The next symbol to copy is as far from the start as the written symbols reach."""
    examples = Copy().sample(length=60, size=20, rng=rng)
    answer = rng.integers(62, 122, size=20)
    depends_on = [np.array([token - 62, 60, 61]) for token in answer]
    sampled = subsample(depends_on, answer - 1, 24, rng, coupling_or_token_index(examples))
    for row, last in enumerate(sampled.last_column):
        indices = sampled.indices[row, : last + 1]
        prompt, copied = indices[indices < 60], indices[indices > 61]
        assert prompt[len(copied)] == answer[row] - 62
        assert len(prompt) < 40


@pytest.mark.parametrize("length", [22, 24, 40, 200])
def test_subsamples_do_not_exceed_the_training_size(length, rng):
    """Blocks of four neighbors would contain nearly all tokens at lengths just beyond training."""
    task = Copy()
    model = ProbedModel(
        decoder=small_decoder("rotary", task),
        task=task,
        scheme=Sequential(),
        encoding=Rotary(),
        train_lengths=(1, 20),
        id_range=(0, 42),
    )
    interventions = build_interventions(model)
    examples = task.sample(length=length, size=16, rng=np.random.default_rng(0))
    batch = to_batch(length, examples, Sequential().assign(examples, rng, training=False))
    queries = build_queries(task, examples, batch, sample_answers(task, batch, rng))
    assert interventions.apply(queries, rng).within_budget.all()
    subsamples, _ = interventions._subsample(queries, interventions.budget, rng)
    ids = interventions._with_train_ids(queries, subsamples).batch.position_ids
    assert 0 <= int(ids.min()) <= int(ids.max()) <= 42
    assert (ids.diff(dim=2) >= 0).all()


def test_selected_ids_become_training_ids_and_other_ids_follow_the_next_lower_one():
    train_ids = np.array([5, 6, 9])
    ids = np.array([10, 11, 20, 21, 22, 30])
    assert remap_ids(ids, np.array([20, 11, 11, 30]), train_ids).tolist() == [5, 5, 6, 6, 6, 9]
    # With too few training IDs, the first selected IDs take precedence.
    assert remap_ids(ids, np.array([30, 22, 11, 10]), train_ids).tolist() == [5, 5, 5, 5, 6, 9]
    assert remap_ids(ids + 0.5, ids + 0.5, np.arange(9.0)).tolist() == [0, 1, 2, 3, 4, 5]


def test_the_distance_to_the_support_starts_at_the_token_before_the_answer():
    ids = np.array([[[0.0, 7.0, 9.0, 2.0]], [[0.0, 1.0, 2.0, 3.0]]])
    depends_on = np.array([[[-1, -1], [-1, -1], [-1, -1], [0, 1]]])
    largest, distance = _range_of_needed(ids, depends_on)
    assert largest[0, 3] == 7
    # The distance is 9 on the first level and 2 on the second.
    assert distance[0, 3] == 2
    assert distance[0, 2] == 0


@pytest.mark.slow
def test_more_different_ids_are_a_cause_within_the_training_range(unfitted):
    """Coupled IDs of a longer sequence lie within those of training, but there are more of them."""
    found = diagnose_run(load_run(unfitted, device="cpu"), 8, num_examples=8)
    assert [each.fraction_beyond for each in found.range_shifts] == [0.0, 0.0, 0.0]
    assert MORE_IDS in causes(found)


@pytest.mark.slow
def test_the_command_writes_json_and_a_figure(unfitted, tmp_path, capsys):
    flags = ["diagnose", str(unfitted), "--length", "8", "--num-examples", "16"]
    cli.main([*flags, "--json", "--out", str(tmp_path / "out")])
    document = json.loads(capsys.readouterr().out)
    assert (document["task"], document["length"], document["fits"]) == ("parity", 8, False)
    assert [each["length"] for each in document["by_length"]] == [4, 8]
    assert len(document["failures"]["by_tenth"]) == 10
    saved = json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    assert saved == {name: value for name, value in document.items() if name != "task"}
    assert (tmp_path / "out" / "figure.png").stat().st_size > 0
    cli.main([*flags, "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert printed.endswith(f"figure: {tmp_path / 'out' / 'figure.png'}\n")
    assert "first errors by tenths of the response: " in printed


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--length", "4"], "length 4 is not beyond the longest training length 4; use a larger length or lengthwise"),
        (["--length", "8", "--num-examples", "0"], "invalid number of examples 0; use at least 1"),
    ],
)
def test_invalid_arguments_print_one_line(flags, line, unfitted, capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["diagnose", str(unfitted), *flags])
    assert exit_info.value.code == 2
    # The error is the last line; before it, a line says that the run is loaded.
    assert line in capsys.readouterr().err.splitlines()[-1]


def test_a_task_graded_by_loss_raises_an_error(tmp_path):
    run = train(quick_version(recipe("language_model_small")), tmp_path, device="cpu")
    with pytest.raises(SettingError, match="task text is graded by loss and has no wrong answers to diagnose; use"):
        diagnose_run(run, 100)


def test_a_length_beyond_the_encoding_raises_an_error(needle):
    run = with_random_untrained_ids(needle())
    with pytest.raises(
        PositionRangeError, match=r"length 100 requires ID 1\d\d, but the encoding supports IDs up to 63"
    ):
        collect_failures(build_probed_model(run, seed=0), 100, 4)

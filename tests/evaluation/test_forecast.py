"""Forecasts from thinned sequences: what stays, what it weighs, and what is said of a decoder."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from tests.support.cases import small_decoder, small_scheme
from tests.support.small_runs import small_experiment

from lengthwise.cli import app as cli
from lengthwise.core.errors import SettingError
from lengthwise.encodings import ENCODINGS, Learned, NoPE, Rotary
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.forecast import assumptions, certificate, prediction, probes
from lengthwise.evaluation.forecast.certificate import certify_decoder, run_verdict
from lengthwise.evaluation.forecast.prediction import CannotTellError, Forecast, knowable_accuracy, predict
from lengthwise.evaluation.forecast.probed_model import Fidelity, Subject
from lengthwise.evaluation.forecast.sparse_queries import Asked, Questions, ask, draw_questions
from lengthwise.evaluation.forecast.subsampling import NEIGHBOURS, STRETCH, Thinned, crowd, split, thin
from lengthwise.evaluation.grading import grade
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import COMPARISONS, recipe
from lengthwise.experiments.run import evaluate, train
from lengthwise.experiments.run_analysis import certify_run, diagnose_run
from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.model.decoder import Decoder
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import RandomStart, Sequential
from lengthwise.tasks import Addition, Parity, Planted, Recall, SparseParity
from lengthwise.tasks.planted.placement import Local
from lengthwise.theory.law_certificate import Assumption


def whole(questions: Questions) -> Thinned:
    """Nothing is left out."""
    return thin(questions.needed, questions.answer - 1, 10_000, np.random.default_rng(0))


def test_what_is_needed_stays_with_its_neighbours_and_the_last_token(rng):
    needed = [np.array([3, 40]), np.array([199])]
    thinned = thin(needed, np.array([120, 300]), 43, rng)
    for row, (tokens, end) in enumerate(zip(needed, (120, 300), strict=True)):
        kept = thinned.kept[row, : thinned.last[row] + 1]
        assert (np.diff(kept) > 0).all()
        assert kept[-1] == end
        near = (np.append(tokens, end)[:, None] + np.arange(-NEIGHBOURS, NEIGHBOURS + 1)).clip(0, end)
        assert set(near.ravel()) <= set(kept)
        assert (thinned.stands_for[row, np.isin(thinned.kept[row], near)] == 1).all()
        assert len(kept) <= 43 + STRETCH
        assert (thinned.kept[row, thinned.last[row] :] == end).all()


def test_a_sum_over_what_stays_has_the_sum_over_all_tokens_as_its_mean(rng):
    draws = 4000
    values = rng.normal(size=101) ** 2
    thinned = thin([np.array([7, 50])] * draws, np.full(draws, 100), 30, rng)
    inside = np.arange(thinned.kept.shape[1]) <= thinned.last[:, None]
    sums = (values[thinned.kept] * thinned.stands_for * inside).sum(axis=1)
    assert sums.mean() == pytest.approx(values.sum(), abs=4 * sums.std() / np.sqrt(draws))
    assert sums.std() > 1


@pytest.mark.parametrize("room", [60, 30, 22, 10])
def test_from_every_token_that_stays_as_many_are_seen_as_there_are(room, rng):
    """From one of a run that was drawn, from one that had to stay, and from the last; its own run counts once."""
    draws = 3000
    thinned = thin([np.array([7, 50])] * draws, np.full(draws, 100), room, rng)
    inside = np.arange(thinned.kept.shape[1]) <= thinned.last[:, None]
    seen = np.zeros((draws, 101))
    for row in range(0, draws, 1000):
        part = slice(row, row + 1000)
        some = Thinned(**{each.name: getattr(thinned, each.name)[part] for each in fields(Thinned)})
        weight = np.exp(some.added_scores()) * inside[part, None, :]
        before = some.kept[:, None, :] <= some.kept[:, :, None]
        np.put_along_axis(seen[part], some.kept, (weight * before).sum(axis=-1), axis=1)
    for token in (50, 60, 80, 100):
        found = seen[seen[:, token] > 0, token]
        assert found.mean() == pytest.approx(token + 1, abs=4 * found.std() / np.sqrt(len(found)) + 1e-9)
    assert (thinned.counted == thinned.kept + 1).all()


def test_a_sequence_with_room_stays_whole(rng):
    thinned = thin([np.array([1])], np.array([9]), 10, rng)
    assert thinned.kept.tolist() == [list(range(10))]
    assert (thinned.stands_for == 1).all()
    assert (thinned.added_scores() == 0).all()


def test_of_its_own_run_a_token_sees_each_once_and_of_others_as_many_as_they_stand_for():
    thinned = Thinned(
        kept=np.array([[0, 1, 8]]),
        stands_for=np.array([[5.0, 5.0, 1.0]]),
        among=np.array([[4.0, 4.0, 1.0]]),
        counted=np.array([[1.0, 2.0, 9.0]]),
        stretch=np.array([[0, 0, 2]]),
        last=np.array([2]),
    )
    five = np.log(5)
    np.testing.assert_allclose(thinned.added_scores(), [[[0, 0, 0], [0, 0, 0], [five, five, 0]]])
    assert (thinned.alone().added_scores() == 0).all()
    assert thinned.alone().counted.tolist() == [[1.0, 2.0, 3.0]]


@pytest.mark.parametrize("scheme", ["sequential", "coupled", "predicted", "multilevel"])
@pytest.mark.parametrize("task", [Parity(), Addition(), Recall(num_queries=2)], ids=lambda task: task.name)
def test_of_whole_sequences_it_finds_what_grading_finds(scheme, task):
    ids = 256 if scheme == "predicted" else None
    decoder = small_decoder("rotary", task, num_predicted_ids=ids)
    questions = draw_questions(task, small_scheme(scheme), 5, 256, seed=0)
    asked = ask(decoder, questions, whole(questions))
    graded = grade(decoder, questions.batch, end=task.vocabulary.index("end"), decode="forced")
    right = graded.token_correct & (graded.id_correct | ~graded.id_scored)
    first = int(questions.batch.prompt_length.min())
    expected = right[torch.arange(256), torch.from_numpy(questions.answer) - first]
    assert asked.right.tolist() == expected.tolist()
    assert asked.single[:, 0].tolist() == expected.tolist()
    assert not expected.all()
    # Random weights hit tokens and IDs, if hardly both at once.
    assert graded.token_correct.any()
    assert graded.id_correct.any()
    assert asked.leakage.shape == (2, 2)
    assert (asked.leakage > 0).all()
    assert (asked.leakage < 1).all()


@pytest.mark.parametrize("scaling", ["none", "learned"])
@torch.no_grad()
def test_a_token_that_stands_for_three_weighs_as_much_as_three(scaling):
    settings = DecoderSettings(num_layers=1, d_model=16, num_heads=2, length_scaling=scaling, segments=False)
    torch.manual_seed(0)
    decoder = Decoder(settings, NoPE(), vocabulary_size=4).eval()
    for parameter in decoder.parameters():
        parameter.add_(0.3 * torch.randn(parameter.shape))
    long = torch.tensor([[0, 1, 1, 1, 2]])
    expected = decoder(long, torch.arange(5)[None])[0][:, -1]
    stands_for = torch.tensor([[1.0, 3.0, 1.0]])
    hooks = AttentionHooks(
        score_bias=stands_for.log()[:, None].expand(1, 3, 3), visible_counts=stands_for.cumsum(dim=1)
    )
    kept = torch.tensor([[0, 1, 4]])
    found = decoder(long, torch.arange(5)[None], hooks=hooks, keep_indices=kept)[0][:, -1]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_kept_tokens_have_the_embeddings_and_ids_of_the_whole_sequence():
    task = Parity()
    decoder = small_decoder("rotary", task, previous_token_mix=True)
    questions = draw_questions(task, Sequential(), 6, 3, seed=1)
    tokens, ids = questions.batch.tokens, questions.batch.position_ids
    kept = torch.tensor([[0, 4, 7]] * 6)
    found, grown = decoder(tokens, ids, keep_indices=kept)
    hidden = torch.full((1, tokens.shape[1], tokens.shape[1]), -torch.inf)
    hidden[:, :, [0, 4, 7]] = 0
    hidden.diagonal(dim1=1, dim2=2).zero_()
    counted = torch.zeros(3, tokens.shape[1])
    counted[:, [0, 4, 7]] = torch.tensor([1.0, 2.0, 3.0])
    expected, _ = decoder(tokens, ids, hooks=AttentionHooks(score_bias=hidden, visible_counts=counted))
    torch.testing.assert_close(found[::2], expected[:, [0, 4, 7]], atol=1e-5, rtol=0)
    torch.testing.assert_close(found[::2], found[1::2], atol=1e-6, rtol=0)
    assert grown.position_ids[0].tolist() == kept.tolist()


def test_in_a_crowd_nothing_is_left_out_and_the_rest_weighs_more():
    crowded = crowd([np.array([2]), np.array([2])], np.array([15, 9]), 3.0)
    assert crowded.kept[0].tolist() == list(range(16))
    assert crowded.kept[1].tolist() == [*range(10), *[9] * 6]
    # Runs of four; what is needed and the last token stay with two neighbours on both sides. 16 tokens stand for 48.
    assert crowded.stands_for[0].tolist() == [1.0] * 8 + [9.0] * 4 + [1.0] * 4
    assert crowded.stands_for[0].sum() == 48
    # Here nothing else is there.
    assert (crowded.stands_for[1, :10] == 1).all()
    assert crowded.last.tolist() == [15, 9]


@pytest.mark.parametrize(("pair", "k", "reach"), [((2, 5), 2, 7), ((7,), 1, 2), ((), 0, 1)])
def test_the_probe_finds_how_many_tokens_an_answer_needs(pair, k, reach, monkeypatch):
    def probability(decoder, tokens, position_ids, hidden, target):
        return np.where(hidden[:, list(pair)].any(axis=1), 0.2, 0.95) - 0.001 * hidden.sum(axis=1)

    monkeypatch.setattr(probes, "_probabilities", probability)
    task = SparseParity()
    questions = draw_questions(task, Sequential(), 8, 20, seed=0)
    questions = replace(questions, answer=np.full(20, 9))
    found = probes.probe(small_decoder("nope", task), questions)
    assert (found.k, found.reach, found.id_reach) == (k, reach, reach)


def test_the_probe_says_when_no_few_tokens_are_enough(monkeypatch):
    monkeypatch.setattr(probes, "_probabilities", lambda *asked: 1.0 - 0.2 * asked[3].sum(axis=1))
    monkeypatch.setattr(probes, "MOST", 4)
    task = SparseParity()
    found = probes.probe(small_decoder("nope", task), draw_questions(task, Sequential(), 20, 8, seed=0))
    assert found.k is None


@torch.no_grad()
def test_hidden_tokens_change_nothing_where_they_have_no_weight():
    """Against the decoder without them; counted as if they were there."""
    task = SparseParity()
    decoder = small_decoder("rotary", task, length_scaling="none", previous_token_mix=False)
    questions = draw_questions(task, Sequential(), 8, 1, seed=0)
    tokens, ids = questions.batch.tokens[:, :9], questions.batch.position_ids[:, :, :9]
    hidden = np.zeros((2, 9), dtype=bool)
    hidden[1, [1, 4]] = True
    found = probes._probabilities(decoder, tokens, ids, hidden, 1)
    rest = [0, 2, 3, 5, 6, 7, 8]
    for row, part in enumerate((list(range(9)), rest)):
        expected = decoder.token_logits(decoder(tokens[:, part], ids[:, :, part])[0])[0, -1].softmax(dim=-1)[1]
        assert found[row] == pytest.approx(float(expected), abs=1e-5)


def subject(task, decoder, encoding=None, scheme=None) -> Subject:
    return Subject(
        decoder=decoder,
        task=task,
        scheme=scheme or Sequential(),
        encoding=encoding or Rotary(),
        trained=(1, 6),
        id_range=(0, 14),
    )


def test_of_a_decoder_that_does_not_fit_nothing_is_said_but_that():
    task = Parity()
    found = certify_decoder(subject(task, small_decoder("rotary", task)), [12, 24])
    assert found.forecasts == ()
    assert found.horizon is None
    assert found.needs is None
    assert [each.name for each in found.assumptions] == ["fits the trained lengths"]
    assert run_verdict(found).startswith("Nothing is predicted: the run does not fit its training: 0.")


def test_a_run_with_right_tokens_but_few_exact_examples_does_not_fit():
    """Nineteen of twenty tokens right leave a third of examples exact."""
    few = replace(subject(Parity(), small_decoder("rotary", Parity())), fitted=0.3)
    found = assumptions.fits_training(few, Fidelity(whole=0.95, half=0.95, quarter=0.95))
    assert not found.holds
    assert found.found == "exact match 0.300; 0.950 of the answer tokens at length 6, the end token aside"


def assumed(task, scheme, **known) -> dict[str, Assumption]:
    asked = replace(subject(task, small_decoder("rotary", task), scheme=scheme), **known)
    needs, fidelity = probes.Needs(k=1, reach=2, id_reach=2.0), Fidelity(whole=1.0, half=1.0, quarter=1.0)
    found = assumptions.measured_assumptions(asked, asked.questions(6, 32), needs, fidelity, 24)
    return {each.name: each for each in found}


@pytest.mark.parametrize(("task", "k"), [(Parity(), 2), (Recall(), 4), (SparseParity(), 5), (Addition(), 5)], ids=str)
def test_sparsity_is_that_of_the_task_whatever_the_decoder_hides(task, k):
    found = assumed(task, Sequential())["sparsity"]
    assert found.found.startswith(f"an answer depends on up to {k} tokens, the one before it included (by the task)")


def test_ids_are_met_only_if_their_distances_are():
    """Random starts show every ID up to 999, and no distance beyond the trained length."""
    known = {"id_range": (0, 999), "trained_distance": 14}
    found = assumed(Parity(), RandomStart(num_position_ids=1000), **known)["IDs and distances met in training"]
    assert not found.holds
    assert found.found == "0 to 50 at 24, 0 to 999 in training; distances up to 50, 14 in training"
    known["trained_distance"] = 50
    assert assumed(Parity(), RandomStart(num_position_ids=1000), **known)[found.name].holds


def test_a_decoder_without_positions_meets_no_new_ids():
    asked = subject(Parity(), small_decoder("nope", Parity()), encoding=NoPE())
    found = assumptions._met(replace(asked, trained_distance=14), 24)
    assert (found.holds, found.found) == (True, "the encoding nope reads no IDs")


def test_pieces_cover_a_sequence_and_each_has_what_the_answer_needs(rng):
    needed = [np.array([3, 40]), np.array([30])]
    pieces = split(needed, np.array([100, 60]), 30, rng, 64)
    assert pieces.covered == 1.0
    kept = pieces.thinned.kept.reshape(2, pieces.number, -1)
    for row, (tokens, end) in enumerate(zip(needed, (100, 60), strict=True)):
        assert set(kept[row].ravel()) == set(range(end + 1))
        assert all({*tokens, end} <= set(piece) for piece in kept[row])
    # A long sequence needs more pieces than are allowed.
    few = split(needed, np.array([100, 60]), 30, rng, 2)
    assert few.number == 2
    assert few.covered == pytest.approx(2 / pieces.number, abs=0.05)


def fake_reading(misled: float):
    """Right by the mean of the pieces; some questions are wrong in the one piece that has the last but tenth token."""

    def ask(self, questions, thinned):
        size = len(questions.answer)
        fatal = np.where(np.arange(size) < misled * size, questions.answer - 10, -1)
        single = (thinned.kept.reshape(size, -1, thinned.kept.shape[1]) != fatal[:, None, None]).all(axis=2)
        return Asked(right=np.ones(size, dtype=bool), single=single, leakage=np.zeros((1, 1)))

    return ask


def few_questions(self, length, number=32):
    return draw_questions(self.task, self.scheme, length, min(number, 32), self.seed)


@pytest.fixture
def fitted(monkeypatch):
    monkeypatch.setattr(Subject, "questions", few_questions)
    task = SparseParity()
    asked = subject(task, small_decoder("nope", task))
    home = asked.questions(6)
    return asked, home, home.batch.tokens.shape[1], Fidelity(whole=1.0, half=1.0, quarter=1.0)


def test_a_token_that_misleads_in_one_piece_counts(fitted, monkeypatch):
    monkeypatch.setattr(Subject, "ask", fake_reading(0.25))
    found = predict(*fitted, 60)
    assert (found.mean, found.every) == (1.0, 0.75)
    assert found.low < 0.75 < found.accuracy < found.high
    assert certificate._limit(found).startswith("single tokens that mislead it (at 60:")


def test_where_pieces_disagree_the_answer_is_that_it_cannot_be_told(fitted, monkeypatch):
    monkeypatch.setattr(Subject, "ask", fake_reading(0.625))
    with pytest.raises(CannotTellError, match=r"cannot tell: 1\.00 .* by the mean of \d+ pieces, 0\.38 in every piece"):
        predict(*fitted, 60)


def test_where_coverage_ends_nothing_is_predicted(fitted, monkeypatch):
    monkeypatch.setattr(prediction, "MOST_PIECES", 4)
    with pytest.raises(CannotTellError, match=r"cannot tell: 4 pieces .* cover 0\.\d\d of one"):
        predict(*fitted, 60)


def test_exact_match_needs_every_token_and_the_end(fitted, monkeypatch):
    monkeypatch.setattr(Subject, "ask", fake_reading(0.0))
    single = predict(*fitted, 60)
    assert (single.answers, single.ends) == (1, 1.0)
    assert (single.exact_low, single.exact_high) == (pytest.approx(single.low), single.high)
    monkeypatch.setattr(prediction, "_ends", lambda *asked: 0.5)
    monkeypatch.setattr(Questions, "most_answers", lambda *asked: 2)
    assert predict(*fitted, 60).exact_low == pytest.approx(1 - 2 * (1 - single.low) - 0.5)


def test_no_prediction_exceeds_the_best_predictor_of_a_planted_law():
    """One of four labels is planted as a token that the background draws too: one in 2,000, each."""
    labels = tuple(tuple(float(row == label) for label in range(4)) for row in range(4))
    law = Planted(
        background=(0.2495,) * 4 + (0.0005,) * 4,
        tuples=((4,), (5,), (6,), (7,)),
        probabilities=(0.25,) * 4,
        labels=labels,
        placement=Local(shapes=((0,),), weights=(1.0,)),
    )
    questions = draw_questions(law, Sequential(), 512, 256, seed=0)
    assert 0.7 < knowable_accuracy(law, questions) < 0.85
    assert knowable_accuracy(SparseParity(), questions) == 1.0


def test_the_end_token_is_no_question():
    task = SparseParity()
    questions = draw_questions(task, Sequential(), 8, 50, seed=0)
    assert (questions.answer == 9).all()


def foretold(length, accuracy, positions=1.0, crowd=1.0, **changed) -> Forecast:
    found = Forecast(
        length=length,
        accuracy=accuracy,
        low=accuracy,
        high=1.0,
        mean=accuracy,
        every=accuracy,
        half=accuracy,
        pieces=1,
        covered=1.0,
        positions=positions,
        crowd=crowd,
        leakage=0.0,
        answers=1,
        ends=1.0,
        exact_low=accuracy,
        exact_high=1.0,
    )
    return replace(found, **changed)


@pytest.mark.parametrize(
    ("accuracy", "tested", "horizon", "told"),
    [
        ({}, [10], 6 << 4, "96 is the longest length looked at"),
        # What fails between two doublings counts.
        ({18: 0.5}, [18], 12, "at 18: 0.50 by its IDs alone, 1.00 by its number of tokens alone"),
        ({18: 0.5}, [], 6 << 4, "the longest length looked at"),
        ({24: 0.8, 48: 1.0}, [], 12, "IDs or distances that training did not show (at 24"),
    ],
)
def test_the_horizon_is_reached_at_every_length_that_is_looked_at(accuracy, tested, horizon, told):
    def look(length):
        share = accuracy.get(length, 1.0)
        return foretold(length, share, positions=share)

    found = certificate._horizon(subject(Parity(), small_decoder("rotary", Parity())), look, tested)
    assert (found.tokens, found.exact) == (horizon, horizon)
    assert told in found.limited_by


@pytest.mark.parametrize(
    ("positions", "crowded", "told"),
    [
        (0.5, 1.0, "IDs or distances that training did not show (at 12: 0.50 by its IDs alone, 1.00 by"),
        (1.0, 0.4, "attention diluted by more tokens (at 12: 1.00 by its IDs alone, 0.40 by"),
        (1.0, 1.0, "IDs and number of tokens together (at 12"),
        (0.5, None, "IDs or distances that training did not show (at 12: 0.50 by its IDs alone)"),
    ],
)
def test_what_limits_is_what_does_worse_alone(positions, crowded, told):
    assert certificate._limit(foretold(12, 0.4, positions, crowded)).startswith(told)


def test_a_length_beyond_an_encoding_loses_no_other(monkeypatch):
    """Learned embeddings of 40 IDs: 36 tokens are read, 72 are not."""
    monkeypatch.setattr(Subject, "questions", few_questions)
    fits = Assumption(name="fits", holds=True, found="", counterexample="C6")
    monkeypatch.setattr(certificate, "fits_training", lambda *asked: fits)
    monkeypatch.setattr(certificate, "_refusal", lambda fidelity: None)
    monkeypatch.setattr(prediction, "WIDEST", 2.0)
    task = SparseParity()
    encoding = Learned(num_position_ids=40)
    found = certify_decoder(subject(task, small_decoder(encoding, task), encoding), [33, 72])
    assert [each.length for each in found.forecasts] == [33]
    assert list(found.beyond) == [72]
    assert "40" in found.beyond[72]
    assert found.horizon is not None
    assert found.horizon.tokens == 6


@pytest.mark.parametrize(
    ("half", "quarter", "told"),
    [(0.95, 0.8, "gives 0.80 of the answers right and all of them 1.00"), (0.95, 0.92, None)],
)
def test_where_thinning_is_off_at_the_trained_length_nothing_is_foretold(half, quarter, told):
    refused = certificate._refusal(Fidelity(whole=1.0, half=half, quarter=quarter))
    assert refused is None if told is None else refused is not None and told in refused


@pytest.mark.parametrize(
    ("task", "settings", "encoding", "message"),
    [
        (Addition(order="most"), {}, "rotary", r"task addition does not say which tokens .* use a task that does"),
        (Parity(), {"weights": "entmax"}, "rotary", r"weights 'entmax' are no softmax, .*; train with 'softmax'"),
        (
            Parity(),
            {},
            "dape_v2",
            r"the encoding dape_v2 looks at neighbouring tokens .*; use one that reads IDs alone",
        ),
    ],
)
def test_what_cannot_be_thinned_is_refused(task, settings, encoding, message):
    decoder = small_decoder(encoding, task, **settings)
    with pytest.raises(SettingError, match=message):
        certify_decoder(subject(task, decoder, encoding=ENCODINGS[encoding]()), [12])


def test_the_verb_says_of_a_run_what_it_keeps_and_why_nothing_is_foretold(tmp_path, capsys):
    train(small_experiment(), tmp_path / "run")
    flags = ["certify", str(tmp_path / "run"), "--lengths", "8,6"]
    cli.main([*flags, "--json", "--out", str(tmp_path / "out")])
    shown = json.loads(capsys.readouterr().out)
    assert shown["task"] == "parity"
    assert shown["trained"] == [1, 4]
    assert shown["forecasts"] == []
    assert [each["name"] for each in shown["assumptions"]] == ["fits the trained lengths"]
    assert json.loads((tmp_path / "out" / "certificate.json").read_text())["refused"] == shown["refused"]
    assert (tmp_path / "out" / "figure.png").stat().st_size > 0
    cli.main(flags)
    assert "Nothing is predicted: the run does not fit its training" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--lengths", "4"], "length 4 is no longer than the 4 of training; use larger ones, or lengthwise evaluate"),
        (["--train-lengths", "1:8"], "--train-lengths is for tasks; a run was trained on its own"),
    ],
)
def test_what_a_run_cannot_be_asked_is_one_line(flags, line, tmp_path, capsys):
    train(small_experiment(), tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(["certify", str(tmp_path), *flags])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert line in told
    assert told.count("\n") == 1


@pytest.mark.slow
def test_a_run_that_reaches_far_is_predicted_to_and_of_one_that_fails_nothing_is_promised(tmp_path):
    """Parity with IDs given, on one hand; copying by token index, whose IDs end with training, on the other."""
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
    failed = certify_run(near, (40,))
    measured = evaluate(near, EvaluationSettings(lengths=(40,), num_examples=(256,)))[0]["token_accuracy"]
    assert failed.horizon is not None
    assert failed.horizon.tokens == 20
    # It fails at once, and pieces disagree: nothing is predicted rather than something wrong.
    assert measured < 0.9
    assert not failed.forecasts
    assert failed.beyond[40].startswith("cannot tell: ")
    # Asked about at that length itself, and just beyond training.
    for length in (24, 40):
        assert diagnose_run(near, length).limited_by.startswith(f"limited by {certificate.UNSHOWN}")


def _copy_by_index() -> Experiment:
    experiment = COMPARISONS["which_copy"]()["sequential/rotary"]
    return replace(experiment, seed=6001, training=replace(experiment.training, steps=3000))

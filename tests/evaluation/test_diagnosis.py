"""Diagnoses of runs whose fault is planted: IDs, dilution, predicted IDs, the end; and what each part measures."""

import json
from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
import torch
from tests.support.cases import small_decoder
from tests.support.small_runs import small_experiment

from lengthwise.cli import app as cli
from lengthwise.core.errors import PositionRangeError, SettingError
from lengthwise.encodings import Learned, NoPE, Rotary
from lengthwise.evaluation.diagnosis.attribution import (
    MORE_IDS,
    TOGETHER,
    Cause,
    Thinning,
    causes_of_readings,
    limited_by,
)
from lengthwise.evaluation.diagnosis.diagnosis import Diagnosis
from lengthwise.evaluation.diagnosis.failures import Failures, find_failures
from lengthwise.evaluation.diagnosis.interventions import Readings, climbed, reader_of, units_of
from lengthwise.evaluation.diagnosis.range_shift import _needed
from lengthwise.evaluation.diagnosis.support_mass import support_mass
from lengthwise.evaluation.exact_match import EvaluationSettings, evaluate_by_length
from lengthwise.evaluation.forecast.certificate import DILUTED, UNSHOWN
from lengthwise.evaluation.forecast.probed_model import Subject
from lengthwise.evaluation.forecast.sparse_queries import Questions, draw_questions, needed_tokens, random_answers
from lengthwise.evaluation.forecast.subsampling import thin
from lengthwise.experiments.experiment import Experiment, build_decoder
from lengthwise.experiments.recipes import quick, recipe
from lengthwise.experiments.run import Run, load_run, train
from lengthwise.experiments.run_analysis import diagnose_run, probed_model_of
from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.model.position_heads import NextIDs
from lengthwise.positions import Predicted, Sequential
from lengthwise.tasks import Addition, Copy, Parity, Recall
from lengthwise.training.batch import to_batch
from lengthwise.training.trainer import TrainingSettings

# The only key and its value somewhere among equal fillers.
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
    """Reads no IDs, and answers right at every length that is tested here."""
    sizes = {"d_model": 16, "num_heads": 1, "length_scaling": "none", "temperature": 1.0}
    experiment = trained_in_seconds(NEEDLE, Sequential(), NoPE(), (2, 8), 150, **sizes)
    folder = tmp_path_factory.mktemp("needle")
    assert train(experiment, folder, device="cpu").facts["id_range"] == [0, LARGEST]
    return partial(load_run, folder, device="cpu")


@pytest.fixture(scope="module")
def copying(tmp_path_factory):
    """PPC, right at lengths up to 12."""
    scheme = Predicted(num_position_ids=64, max_gaps=3)
    experiment = trained_in_seconds(
        Copy(num_symbols=2), scheme, Rotary(base=100.0, fastest=3.0), (1, 5), 200, d_model=32, num_heads=2
    )
    folder = tmp_path_factory.mktemp("copying")
    train(experiment, folder, device="cpu")
    return partial(load_run, folder, device="cpu")


@pytest.fixture(scope="module")
def unfitted(tmp_path_factory):
    """The folder of a run of a dozen steps."""
    folder = tmp_path_factory.mktemp("unfitted")
    train(small_experiment(), folder, device="cpu")
    return folder


def causes(diagnosis: Diagnosis) -> dict[str, Cause]:
    return {cause.name: cause for cause in diagnosis.causes}


def with_unseen_ids_at_random(run: Run) -> Run:
    """The same decoder with a vector for each ID: of those that training showed none, of others a random one."""
    experiment = replace(run.experiment, encoding=Learned(num_position_ids=64))
    decoder = build_decoder(experiment).eval()
    decoder.load_state_dict(run.decoder.state_dict(), strict=False)
    vectors = decoder.encoding.levels[0].vectors.data
    vectors.zero_()[LARGEST + 1 :] = 2 * torch.randn(64 - LARGEST - 1, 16, generator=torch.Generator().manual_seed(0))
    return replace(run, experiment=experiment, decoder=decoder)


def test_ids_that_training_did_not_show_are_found_to_limit(needle):
    found = diagnose_run(with_unseen_ids_at_random(needle()), 32, num_examples=24)
    assert found.fits
    assert causes(found)[UNSHOWN].repaired >= 0.95
    assert causes(found)[DILUTED].repaired <= 0.05
    assert found.limited_by.startswith("limited by IDs or distances that training did not show (0.0")
    ids = {each.what: each for each in found.shown}["ID of what an answer needs"]
    assert (ids.trained, ids.beyond) == (LARGEST, 1.0)
    assert ids.tested > LARGEST


def test_attention_diluted_by_more_tokens_is_found_to_limit(needle):
    """Colder: still right at the trained lengths, no more among very many fillers. The decoder reads no IDs."""
    run = needle()
    run.decoder.blocks[0].log_temperature.data -= 0.7
    found = diagnose_run(run, 512, num_examples=24)
    assert found.fits
    assert causes(found)[DILUTED].repaired >= 0.9
    assert causes(found)[UNSHOWN].repaired == 0
    assert found.limited_by.startswith("limited by attention diluted by more tokens")
    assert [each.length for each in found.by_length] == [8, 16, 32, 64, 128, 256, 512]
    (mass,) = zip(*(each.mass for each in found.by_length), strict=True)
    assert mass[0] > 0.7
    assert mass[-1] < 0.3
    assert found.mass_at_errors[0] < mass[-2]


class OneOff(torch.nn.Module):
    """A position head that names the next ID in long prompts, as told by how many tokens or distinct IDs they have."""

    def __init__(self, head, counted) -> None:
        super().__init__()
        self.head, self.keys, self.counted = head, head.keys, counted

    def forward(self, hidden, own_ids, next_embeddings, prompt):
        """The distribution moved by one."""
        found = self.head(hidden, own_ids, next_embeddings, prompt)
        moved = getattr(prompt, self.counted).shape[1] > 8
        return NextIDs(log_probs=found.log_probs.roll(int(moved), dims=-1), candidates=found.candidates)


@pytest.mark.parametrize(
    ("counted", "told"),
    [
        # The head reads the whole prompt in all thinnings.
        ("keys", "limited by IDs that it predicts wrong (24 of 24 first errors; 1.00 are right with the right IDs giv"),
        # With IDs of training there are no more of them.
        ("distinct_ids", "limited by more different IDs than training showed (0.00 of its first errors are right with"),
    ],
    ids=["tokens", "distinct IDs"],
)
def test_ids_that_are_predicted_wrong_are_found_to_limit(counted, told, copying, monkeypatch):
    run = copying()
    one_off = OneOff(run.decoder.heads[0], counted)
    monkeypatch.setattr(run.decoder, "position_heads", lambda: [one_off])
    found = diagnose_run(run, 12, num_examples=24)
    assert found.fits
    assert found.failures.id == found.failures.number == 24
    assert found.failures.by_tenth[0] == 24
    assert found.failures.spoiled > 0.5
    given = causes(found)["IDs that it predicts wrong"]
    assert (given.repaired, given.whole) == (1.0, 1.0)
    assert found.limited_by.startswith(told)


@pytest.mark.parametrize(("added", "kind"), [(100.0, "end_too_early"), (-100.0, "end_too_late")])
def test_a_wrong_end_is_found_to_limit(added, kind, copying, monkeypatch):
    """The end token is written at once, or never, wherever the whole sequence is long."""
    run = copying()
    decoder, end = run.decoder, run.experiment.task.vocabulary.index("end")
    forward, logits, seen = decoder.forward, decoder.token_logits, []

    def noticing(tokens, *arguments, **named):
        seen.append(tokens.shape[1])
        return forward(tokens, *arguments, **named)

    def biased(hidden):
        found = logits(hidden)
        found[..., end] += added * (seen[-1] > 20)
        return found

    monkeypatch.setattr(decoder, "forward", noticing)
    monkeypatch.setattr(decoder, "token_logits", biased)
    found = diagnose_run(run, 12, num_examples=24)
    assert found.fits
    assert getattr(found.failures, kind) == found.failures.number == 24
    assert found.failures.by_tenth[0 if added > 0 else 9] == 24
    assert causes(found)["ending too early or too late"].whole == 1.0
    assert found.limited_by.startswith("limited by ending too early or too late (24 of 24 first errors; 1.00 are right")


def test_where_nothing_fails_it_says_so(copying):
    found = diagnose_run(copying(), 8, num_examples=32)
    assert found.limited_by == "nothing fails at 8: exact match 1.000 (0.893 to 1.000)"
    assert (found.failures, found.causes, found.shown, found.thinning) == (None, (), (), None)


def test_of_a_run_that_does_not_fit_that_comes_first(unfitted, capsys):
    found = diagnose_run(load_run(unfitted, device="cpu"), 8, num_examples=16)
    assert not found.fits
    assert found.limited_by == (
        "limited by its training: exact match 0.000 at length 4, which it was trained on; train until it fits"
    )
    cli.main(["diagnose", str(unfitted), "--length", "8", "--num-examples", "16"])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("the run does not fit its training lengths")
    assert printed[-1] == found.limited_by


def test_a_task_without_support_is_told_what_needs_none(tmp_path):
    run = train(small_experiment(Addition(order="most"), Sequential()), tmp_path, device="cpu")
    found = diagnose_run(run, 8, num_examples=16)
    assert found.unasked == "task addition does not say which tokens its answers depend on (support)"
    assert (found.heads, found.mass_at_errors, found.thinning) == ((), (), None)
    assert found.failures.number == 16
    assert [each.what for each in found.shown] == ["distance between any two tokens"]


def test_weights_that_cannot_be_thinned_are_looked_at_all_the_same(tmp_path):
    experiment = small_experiment()
    decoder = replace(experiment.decoder, weights="top_k")
    run = train(replace(experiment, decoder=decoder), tmp_path, device="cpu")
    found = diagnose_run(run, 8, num_examples=16)
    assert found.unasked.startswith("weights 'top_k' are no softmax")
    assert len(found.heads) == len(found.mass_at_errors) > 0


FAILURES = Failures(
    number=10, token=6, id=3, end_too_early=1, end_too_late=0, median_index=2.0, by_tenth=(10, *[0] * 9), spoiled=None
)


@pytest.mark.parametrize(
    ("repaired", "unchanged", "kept_short", "told"),
    [
        ((0.9, 0.1, 0.0), 0.1, (1.0, 1.0), "limited by attention diluted by more tokens (0.90 of its first errors"),
        (
            (0.1, 0.8, 0.0),
            0.1,
            (1.0, 1.0),
            f"limited by {UNSHOWN} (0.10 of its first errors are right with fewer tokens, 0.80",
        ),
        (
            (0.7, 0.8, 0.0),
            0.1,
            (1.0, 1.0),
            "limited by the number of tokens together with the IDs, and right with either",
        ),
        ((0.1, 0.1, 0.7), 0.1, (1.0, 1.0), f"limited by {TOGETHER}"),
        ((0.3, 0.2, 0.1), 0.1, (1.0, 1.0), "limited by several causes"),
        ((0.1, 0.1, 0.1), 0.1, (1.0, 1.0), "limited by wrong tokens (6 of 10 first errors), and neither by IDs nor"),
        (
            (0.1, 0.1, 0.1),
            0.1,
            (0.6, 1.0),
            "limited by wrong tokens (6 of 10 first errors); whether IDs or the number of",
        ),
        (
            (0.1, 0.1, 0.1),
            0.1,
            (1.0, 0.5),
            "limited by wrong tokens (6 of 10 first errors); whether IDs or the number of",
        ),
        (
            (0.9, 0.1, 0.0),
            0.6,
            (1.0, 1.0),
            "limited by wrong tokens (6 of 10 first errors); whether IDs or the number of",
        ),
    ],
)
def test_what_limits_is_what_repairs_most(repaired, unchanged, kept_short, told):
    made = tuple(
        Cause(name=name, change="", asked=10, repaired=share)
        for name, share in zip((DILUTED, UNSHOWN, TOGETHER), repaired, strict=True)
    )
    assert limited_by(
        FAILURES, (), made, Thinning(unchanged=unchanged, kept=kept_short[0], short=kept_short[1])
    ).startswith(told)


def coin_flips(rng, number: int = 4000) -> Readings:
    """What a reading of noise gives where two answers are possible."""
    return Readings(**{part.name: rng.random(number) < 0.5 for part in fields(Readings)})


def test_noise_that_repairs_as_much_as_it_breaks_is_no_cause(rng):
    thinning = Thinning(unchanged=0.4, kept=1.0, short=1.0)
    alone = tuple(causes_of_readings(coin_flips(rng), None, 64, beyond=True))
    assert [cause.repaired for cause in alone] == pytest.approx([0.25, 0.25, 0.0625], abs=0.03)
    assert limited_by(FAILURES, (), alone, thinning).startswith("limited by several causes")
    beside = tuple(causes_of_readings(coin_flips(rng), coin_flips(rng), 64, beyond=True))
    assert [cause.effect for cause in beside] == pytest.approx([0, 0, 0], abs=0.04)
    told = limited_by(FAILURES, (), beside, thinning)
    assert "whether IDs or the number of tokens is not told: noise might repair as many (0.2" in told
    assert "; of answers that are right, these make 0.2" in told
    # What leaves right answers right is a cause, and what breaks one of five while it repairs nine of ten is one too.
    always = np.ones(4000, dtype=bool)
    errors = replace(coin_flips(rng), unchanged=~always, fewer_tokens=rng.random(4000) < 0.9, trained_ids=~always)
    right = replace(errors, unchanged=always, fewer_tokens=rng.random(4000) < 0.8, trained_ids=always, both=always)
    first, *_ = found = tuple(causes_of_readings(errors, right, 64, beyond=True))
    assert (first.name, first.repaired, first.broken) == (
        DILUTED,
        pytest.approx(0.9, abs=0.02),
        pytest.approx(0.2, abs=0.02),
    )
    assert limited_by(FAILURES, (), found, thinning).startswith(f"limited by {DILUTED} (")


def test_answers_of_the_control_are_right(unfitted):
    subject = probed_model_of(load_run(unfitted, device="cpu"), seed=0)
    tested, end = find_failures(subject, 6, 40), subject.task.vocabulary.index("end")
    asked = [(part, row) for part in tested.right for row in range(len(part.answer))]
    assert len(asked) > 10
    for part, row in asked:
        answer, batch = int(part.answer[row]), part.batch.select(np.array([row]))
        hidden, _ = subject.decoder(batch.tokens[:, :answer], batch.position_ids[:, :, :answer])
        written = int(subject.decoder.token_logits(hidden)[0, -1].argmax())
        assert written == int(batch.tokens[0, answer]) != end
        assert part.examples.is_answer[row, answer]


def test_failures_are_those_that_evaluation_counts(unfitted):
    run = load_run(unfitted, device="cpu")
    settings = EvaluationSettings(lengths=(6,), num_examples=(40,))
    experiment = run.experiment
    (measured,) = evaluate_by_length(run.decoder, experiment.task, experiment.scheme, settings)
    found = diagnose_run(run, 6, num_examples=40)
    assert found.by_length[-1].exact_match == measured.exact_match
    first, failures = measured.first_error, found.failures
    assert (first.token, first.id, first.end) == (
        failures.token,
        failures.id,
        failures.end_too_early + failures.end_too_late,
    )
    assert failures.median_index == first.median_index
    assert sum(failures.by_tenth) == failures.number


@torch.no_grad()
def test_attention_on_the_support_is_that_of_the_whole_sequence():
    task = Recall(num_queries=2)
    decoder = small_decoder("rotary", task)
    questions = draw_questions(task, Sequential(), 9, 6, seed=0)
    batch, rng = questions.batch, np.random.default_rng(0)
    examples = task.sample(length=9, size=6, rng=rng)
    support = np.where(examples.support < 0, -1, examples.support)
    answer = random_answers(batch, task.vocabulary.index("end"), rng)
    layers = []
    decoder(batch.tokens, batch.position_ids, hooks=AttentionHooks(on_weights=layers.append))
    found = support_mass(decoder, batch, answer, support)
    for row, asking in enumerate(answer - 1):
        wanted = [token for token in set(support[row, asking + 1].tolist()) if token not in (-1, asking)]
        expected = [layer[row, :, asking, wanted].sum(dim=-1).numpy() for layer in layers]
        np.testing.assert_allclose(found[row], np.stack(expected), atol=1e-5)


def test_the_asking_token_needs_no_attention():
    """A parity depends on one bit and on the parity before it, which is the token that asks."""
    task = Parity()
    decoder = small_decoder("nope", task)
    questions = draw_questions(task, Sequential(), 4, 3, seed=0)
    support = np.full((3, questions.batch.tokens.shape[1], 2), -1)
    support[np.arange(3), questions.answer, 1] = questions.answer - 1
    assert len(support_mass(decoder, questions.batch, questions.answer, support)) == 0


def test_thinned_by_what_is_coupled_a_copy_has_read_as_much_as_it_has_written(rng):
    """What is copied next stands as far from the start as what was written reaches, as in a shorter copy."""
    examples = Copy().sample(length=60, size=20, rng=rng)
    answer = rng.integers(62, 122, size=20)
    needed = [np.array([token - 62, 60, 61]) for token in answer]
    thinned = thin(needed, answer - 1, 24, rng, units_of(examples))
    for row, last in enumerate(thinned.last):
        kept = thinned.kept[row, : last + 1]
        prompt, written = kept[kept < 60], kept[kept > 61]
        assert prompt[len(written)] == answer[row] - 62
        assert len(prompt) < 40


@pytest.mark.parametrize("length", [22, 24, 40, 200])
def test_what_is_left_of_a_sequence_is_no_longer_than_a_trained_one(length, rng):
    """Also where it is hardly longer to begin with, and runs of four neighbours would leave nearly all of it."""
    task = Copy()
    asked = Subject(
        decoder=small_decoder("rotary", task),
        task=task,
        scheme=Sequential(),
        encoding=Rotary(),
        trained=(1, 20),
        id_range=(0, 42),
    )
    reader = reader_of(asked)
    examples = task.sample(length=length, size=16, rng=np.random.default_rng(0))
    batch = to_batch(length, examples, Sequential().assign(examples, rng, training=False))
    answer = random_answers(batch, task.vocabulary.index("end"), rng)
    questions = Questions(batch=batch, answer=answer, needed=needed_tokens(task, examples, answer))
    assert reader.read(questions, units_of(examples), rng).short.all()
    thinned = reader._thinned(questions, units_of(examples), reader.room, rng)
    ids = reader._with_trained_ids(questions, thinned).batch.position_ids
    assert 0 <= int(ids.min()) <= int(ids.max()) <= 42
    assert (ids.diff(dim=2) >= 0).all()


def test_kept_ids_climb_the_ladder_and_others_share_the_one_below():
    ladder = np.array([5, 6, 9])
    ids = np.array([10, 11, 20, 21, 22, 30])
    assert climbed(ids, np.array([20, 11, 11, 30]), ladder).tolist() == [5, 5, 6, 6, 6, 9]
    # With too few rungs, what comes first has one.
    assert climbed(ids, np.array([30, 22, 11, 10]), ladder).tolist() == [5, 5, 5, 5, 6, 9]
    assert climbed(ids + 0.5, ids + 0.5, np.arange(9.0)).tolist() == [0, 1, 2, 3, 4, 5]


def test_the_distance_to_what_is_needed_is_that_of_the_token_before_the_answer():
    ids = np.array([[[0.0, 7.0, 9.0, 2.0]], [[0.0, 1.0, 2.0, 3.0]]])
    support = np.array([[[-1, -1], [-1, -1], [-1, -1], [0, 1]]])
    largest, distance = _needed(ids, support)
    assert largest[0, 3] == 7
    # On the first level 9 from the farther of the two, on the second 2.
    assert distance[0, 3] == 2
    assert distance[0, 2] == 0


def test_ids_of_training_have_their_name(unfitted):
    """Coupled IDs of a longer sequence lie within those of training: what is new is how many there are."""
    found = diagnose_run(load_run(unfitted, device="cpu"), 8, num_examples=8)
    assert [each.beyond for each in found.shown] == [0.0, 0.0, 0.0]
    assert MORE_IDS in causes(found)


def test_the_verb_writes_json_and_a_figure(unfitted, tmp_path, capsys):
    flags = ["diagnose", str(unfitted), "--length", "8", "--num-examples", "16"]
    cli.main([*flags, "--json", "--out", str(tmp_path / "out")])
    shown = json.loads(capsys.readouterr().out)
    assert (shown["task"], shown["length"], shown["fits"]) == ("parity", 8, False)
    assert [each["length"] for each in shown["by_length"]] == [4, 8]
    assert len(shown["failures"]["by_tenth"]) == 10
    saved = json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    assert saved == {name: value for name, value in shown.items() if name != "task"}
    assert (tmp_path / "out" / "figure.png").stat().st_size > 0
    cli.main([*flags, "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert printed.endswith(f"figure: {tmp_path / 'out' / 'figure.png'}\n")
    assert "by tenths of the response: " in printed


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--length", "4"], "length 4 is no longer than the 4 of training; use a larger one, or lengthwise evaluate"),
        (["--length", "8", "--num-examples", "0"], "0 examples tell nothing; use at least 1"),
    ],
)
def test_what_a_run_cannot_be_asked_is_one_line(flags, line, unfitted, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["diagnose", str(unfitted), *flags])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert line in told
    assert told.count("\n") == 1


def test_a_task_graded_by_loss_is_refused(tmp_path):
    run = train(quick(recipe("language_model_small")), tmp_path, device="cpu")
    with pytest.raises(
        SettingError, match="task text is graded by loss and has no wrong answers; use lengthwise evaluate"
    ):
        diagnose_run(run, 100)


def test_a_length_that_the_encoding_does_not_hold_is_refused(needle):
    run = with_unseen_ids_at_random(needle())
    with pytest.raises(PositionRangeError, match=r"length 100 reaches ID 1\d\d but the encoding holds IDs up to 63"):
        find_failures(probed_model_of(run, seed=0), 100, 4)

"""Certificates of laws and tasks, and the command that prints them."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from lengthwise.cli import app as cli
from lengthwise.core.errors import SettingError
from lengthwise.evaluation.forecast.certificate_report import certificate_tables
from lengthwise.tasks import Addition, Copy, MultiAddition, Parity, PlantedCorrelations, Reverse
from lengthwise.tasks.planted.placement import LengthDependentPlacement, LocalPlacement, SubsetPlacement
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.bounds import (
    BOUNDS,
    largest_ratio_bound,
    length_quadratic_bound,
    linear_bound,
    minimax_quadratic_bound,
    span_quadratic_bound,
    window_cover_bound,
)
from lengthwise.theory.bounds.bound_inputs import BoundInputs
from lengthwise.theory.planted_task_certificate import certify_planted_task
from lengthwise.theory.risk.exact_risk import TotalVariationLoss
from lengthwise.theory.risk.laplace_transform import laplace_risk
from lengthwise.theory.task_certificate import certify_task

SINGLE = PlantedCorrelations(
    background=(0.6, 0.4, 0.0),
    tuples=((1,), (2,)),
    probabilities=(0.5, 0.5),
    labels=((1.0, 0.0), (0.0, 1.0)),
    placement=LocalPlacement(shapes=((0,),), weights=(1.0,)),
)


@pytest.fixture(scope="module")
def certificate():
    return certify_planted_task(SINGLE, trained=(1, 8), lengths=(12, 24), steps=60)


def test_no_bound_of_a_certificate_is_below_the_exact_risk(certificate):
    risk = {each.length: each.found.risk for each in certificate.risks}
    assert all(each.found.how == "exact" for each in certificate.risks)
    values = [(each.length, each.value) for each in certificate.bounds if each.value is not None]
    assert len(values) > 20
    assert all(value >= risk[length] - 1e-12 for length, value in values)
    assert all((each.value is None) == (each.refused is not None) for each in certificate.bounds)


def test_predictions_are_close_to_the_exact_risk(certificate):
    risk = {each.length: each.found.risk for each in certificate.risks}
    assert [each.length for each in certificate.predictions] == [12, 24]
    for each in certificate.predictions:
        assert each.odds == pytest.approx(risk[each.length], rel=0.1)


def test_all_assumptions_of_a_local_law_hold_except_room_at_short_lengths(certificate):
    assert all(each.holds for each in certificate.assumptions)
    short = certify_planted_task(SINGLE, trained=(1, 3), lengths=(6,), steps=5)
    assert [each.name for each in short.assumptions if not each.holds] == ["training length"]


def test_the_true_posterior_is_not_a_lower_bound_of_total_variation():
    # A label is 1 in 70% of cases. The posterior reports that, but always predicting 1 has a smaller distance.
    law = replace(SINGLE, labels=((0.3, 0.7), (0.3, 0.7)))
    found = certify_planted_task(law, trained=(1, 8), lengths=(12,), steps=2)
    values = np.tile([0.0, 1.0], (1, 3, 1))
    sure = TabularAttention(
        num_tokens=3, shapes=np.array([[0]]), log_scores=np.zeros((1, 3)), values=values, default=values[0, 0]
    )
    assert found.risks[-1].posterior.risk == pytest.approx(2 * 0.3 * 0.7)
    assert laplace_risk(law, sure, 12, TotalVariationLoss()) == pytest.approx(0.3)
    header = next(header for _, header, _ in certificate_tables(found) if header[0] == "length")
    assert "true posterior" in header
    assert not any("Bayes" in each for each in header)


@pytest.mark.parametrize(
    ("placement", "missing"),
    [
        (SubsetPlacement(num_planted=1), []),
        (
            SubsetPlacement(num_planted=2),
            ["locality of the data", "locality of the class", "training length", "regularity", "light cuts"],
        ),
        (
            LengthDependentPlacement(
                until=(8,),
                laws=(
                    LocalPlacement(shapes=((0, 1),), weights=(1.0,)),
                    LocalPlacement(shapes=((0, 2),), weights=(1.0,)),
                ),
            ),
            ["training length", "regularity"],
        ),
    ],
    ids=["single", "subsets", "by_length"],
)
def test_a_failed_condition_is_in_the_assumptions(placement, missing):
    pairs = tuple((1, 1) if placement.k == 2 else (1,) for _ in range(1))
    law = PlantedCorrelations(
        background=(1.0, 0.0), tuples=pairs, probabilities=(1.0,), labels=((1.0, 0.0),), placement=placement
    )
    found = certify_planted_task(law, trained=(3, 8), lengths=(10,), steps=5)
    assert [each.name for each in found.assumptions if not each.holds] == missing
    refused = {each.bound for each in found.bounds if each.value is None}
    need_all = {length_quadratic_bound, span_quadratic_bound, minimax_quadratic_bound, largest_ratio_bound}
    assert not missing or {name for name, bound in BOUNDS.items() if bound.value in need_all} <= refused


@pytest.mark.first(1)
@pytest.mark.parametrize("task", [Parity(), Copy(), Reverse()], ids=["parity", "copy", "reverse"])
def test_a_task_certificate_has_the_structure_of_the_answers(task):
    found = certify_task(task, trained=10, lengths=(20, 100))
    held = {each.name: each.holds for each in found.assumptions[:4]}
    assert held == {
        "sparsity": True,
        "locality in token indexes": False,
        "locality in coupled IDs": True,
        "regularity in coupled IDs": True,
    }
    assert [each.id_reach for each in found.structures] == [1, 1, 1]
    assert found.assumptions[2].found == "span in IDs: 1 at every length"


@pytest.mark.slow
def test_addition_spans_two_ids_and_multi_addition_one_on_each_level():
    assert certify_task(Addition(), trained=10, lengths=(20,)).structures[1].id_reach == 2
    assert certify_task(MultiAddition(), trained=4, lengths=(6,)).structures[1].id_reach == 1


def test_a_task_without_coupling_has_no_guarantee():
    found = certify_task(Parity(coupling="none"), trained=10, lengths=(20,))
    assert [each.found for each in found.assumptions[2:]] == ["no coupling"] * 7
    assert "violate conditions of proposition 4.4 (locality in coupled IDs; regularity" in found.verdict


def test_training_below_the_span_has_no_guarantee_and_invalid_lengths_raise_an_error():
    found = certify_planted_task(PlantedCorrelations(), trained=(2, 2), lengths=(8,), steps=5)
    assert found.verdict.startswith("No risk is guaranteed at length 8 (missing: training length and regularity")
    with pytest.raises(SettingError, match=r"invalid training lengths 1:8: this law needs 2 tokens or more"):
        certify_planted_task(PlantedCorrelations(), trained=(1, 8), lengths=(12,))
    with pytest.raises(SettingError, match=r"length 8 is not above the longest training length 8; use --lengths"):
        certify_planted_task(PlantedCorrelations(), trained=(2, 8), lengths=(12, 8))
    with pytest.raises(SettingError, match=r"no test lengths; use --lengths above 8"):
        certify_planted_task(PlantedCorrelations(), trained=(2, 8), lengths=())


@pytest.mark.parametrize("trained", [3, 10])
def test_lengths_within_training_raise_an_error(trained):
    with pytest.raises(SettingError, match=rf"length 3 is not above the longest training length {trained}"):
        certify_task(Parity(), trained=trained, lengths=(20, 3))


def test_a_tuple_of_probability_zero_changes_no_bound(certificate):
    never = replace(SINGLE, tuples=((0,), *SINGLE.tuples), probabilities=(0.0, 0.5, 0.5), labels=((1.0, 0.0),) * 3)
    never = replace(never, labels=((1.0, 0.0), *SINGLE.labels))
    found = certify_planted_task(never, trained=(1, 8), lengths=(12, 24), steps=60)
    assert [(each.bound, each.value) for each in found.bounds] == [
        (each.bound, each.value) for each in certificate.bounds
    ]
    assert found.verdict == certificate.verdict


def test_a_tuple_of_probability_zero_and_score_zero_leaves_kappa_finite(recwarn):
    law = replace(SINGLE, tuples=((0,), *SINGLE.tuples), probabilities=(0.0, 0.5, 0.5), labels=((1.0, 0.0),) * 3)
    head = TabularAttention(
        num_tokens=3,
        shapes=np.array([[0]]),
        log_scores=np.array([[-np.inf, 0.0, 0.0]]),
        values=np.array([[[1.0, 0.0]] * 3]),
        default=np.array([0.5, 0.5]),
    )
    case = BoundInputs(law=law, predictor=head, train_length=8, test_length=12, loss=TotalVariationLoss())
    assert all(np.isfinite(each).all() for each in case.cross_cut_scores.kappa_by_cuts().values())
    for bound in (
        length_quadratic_bound,
        span_quadratic_bound,
        minimax_quadratic_bound,
        linear_bound,
        window_cover_bound,
    ):
        assert np.isfinite(bound(case))
    assert not recwarn.list


@pytest.mark.slow
def test_there_is_no_prediction_from_lengths_with_other_planted_sets():
    law = replace(
        PlantedCorrelations(),
        placement=LengthDependentPlacement(
            until=(8,),
            laws=(LocalPlacement(shapes=((0, 1),), weights=(1.0,)), LocalPlacement(shapes=((0, 2),), weights=(1.0,))),
        ),
    )
    found = certify_planted_task(law, trained=(3, 8), lengths=(12,), steps=5)
    (prediction,) = found.predictions
    assert prediction.odds is None
    assert prediction.refused == (
        "only 0 of the training lengths 4 to 8 have the same shapes and starts as length 12; a curve needs 2"
    )
    assert found.verdict.startswith("No risk is guaranteed at length 12")


def test_a_guarantee_is_above_the_risk_and_names_its_theorem(certificate):
    risks = {each.length: each.found.risk for each in certificate.risks}
    guarantees = re.findall(
        r"At length (\d+) the risk of this fitted head is guaranteed to be at most ([\d.e-]+) \(", certificate.verdict
    )
    assert [int(length) for length, _ in guarantees] == [12, 24]
    assert all(float(value) >= risks[int(length)] for length, value in guarantees)


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "arguments", [["parity"], ["recall"], ["sparse_parity"], ["planted", "--train-lengths", "2:8", "--steps", "5"]]
)
def test_the_command_ends_with_a_verdict_and_prints_no_empty_table(arguments, capsys):
    cli.main(["certify", *arguments, "--lengths", "24"])
    printed = capsys.readouterr().out
    assert printed.rstrip().splitlines()[-1].startswith("verdict: ") or "verdict: " in printed
    assert printed.index("verdict: ") > printed.rindex("└")
    assert not re.search(r"^│ [ABC] ", printed, re.MULTILINE)
    assert not re.search(r"\b(F\d|B\d|B_\w+|C\d\w?|PC\d)\b", printed)
    # The header of a table is not followed by its end.
    assert not re.search(r"┡.*\n└", printed)


@pytest.mark.slow
def test_the_command_prints_a_json_document_and_writes_a_figure(tmp_path, capsys):
    path = tmp_path / "law.json"
    law = {
        "background": [0.6, 0.4, 0.0],
        "tuples": [[1], [2]],
        "probabilities": [0.5, 0.5],
        "labels": [[1.0, 0.0], [0.0, 1.0]],
        "placement": {"name": "local", "shapes": [[0]], "weights": [1.0]},
    }
    path.write_text(json.dumps(law))
    flags = ["certify", str(path), "--train-lengths", "1:8", "--lengths", "12", "--steps", "5"]
    cli.main([*flags, "--json", "--out", str(tmp_path / "out")])
    printed = json.loads(capsys.readouterr().out)
    assert [each["length"] for each in printed["risks"]] == [8, 12]
    assert json.loads((tmp_path / "out" / "certificate.json").read_text())["bounds"] == printed["bounds"]
    assert (tmp_path / "out" / "figure.png").stat().st_size > 0
    cli.main(flags)
    assert "light cuts" in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_prints_the_assumptions_of_a_task(tmp_path, capsys):
    cli.main(["certify", "parity", "--lengths", "40", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "gaps" in printed
    assert "times" not in printed
    assert "verdict: Nothing is guaranteed for parity beyond training" in printed
    assert (tmp_path / "figure.png").exists()


@pytest.mark.parametrize(
    ("what", "content", "line"),
    [
        ("law.json", "{", "cannot be read as JSON"),
        ("law.json", "[]", "it is a list, not an object"),
        ("law.json", '{"background": [0.5, 0.6]}', "have the sum 1.1 instead of 1"),
        ("law.json", '{"colour": 1}', "invalid task ("),
        ("law.json", '{"placement": {"name": "nowhere"}}', "unknown saved placement 'nowhere'"),
        ("missing.json", None, "cannot be read as JSON"),
        ("", None, "is not a run folder"),
        ("pariti", None, "did you mean 'parity'"),
    ],
)
def test_an_invalid_task_or_law_prints_one_line(what, content, line, tmp_path, capsys):
    path = tmp_path / what
    if content is not None:
        path.write_text(content)
    target = what if what == "pariti" else str(path)
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["certify", target])
    assert exit_info.value.code == 2
    message = capsys.readouterr().err
    assert line in message
    assert message.count("\n") == 1


def test_a_task_without_support_raises_an_error():
    with pytest.raises(SettingError, match=r"task addition does not declare which tokens .* use a built-in task"):
        certify_task(Addition(order="most"), trained=10, lengths=(20,))

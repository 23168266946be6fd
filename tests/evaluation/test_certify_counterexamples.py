"""Certificates of counterexamples, the command that prints them, and realizability in certificates of laws."""

import json

import pytest

from lengthwise.cli import app as cli
from lengthwise.core.errors import SettingError
from lengthwise.evaluation.forecast.certificate_report import certificate_tables
from lengthwise.tasks import PlantedCorrelations
from lengthwise.tasks.planted.placement import LocalPlacement, SubsetPlacement
from lengthwise.theory.counterexamples import COUNTEREXAMPLES, certify_counterexample
from lengthwise.theory.planted_task_certificate import certify_planted_task

PAIRS = LocalPlacement(shapes=((0, 1),), weights=(1.0,))
# The heads that minimize the training objective, by hand: 'both' if training cannot distinguish them.
MINIMIZERS = {
    "growing k": "both",
    "growing gap": "both",
    "unbounded reach": "both",
    "rare shape": "witness",
    "absolute positions": "both",
    "new background token": "both",
    "canceling errors": "both",
    "small leak": "witness",
    "heavy cuts": "learned",
}


def test_the_minimizers_of_the_training_objective_are_those_by_hand():
    minimizers = {name: certify_counterexample(each).minimizer for name, each in COUNTEREXAMPLES.items()}
    assert minimizers == MINIMIZERS


def test_a_certificate_has_exact_risks_and_mean_training_risks():
    found = certify_counterexample(COUNTEREXAMPLES["rare shape"], (7, 12))
    assert [each.length for each in found.risks] == [3, 4, 5, 6, 7, 12]
    assert [each.in_training for each in found.risks] == [True] * 4 + [False] * 2
    # The rare shape has the probability 0.01, and the head guesses there.
    assert found.learned_objective == pytest.approx(0.01 / 2)
    assert found.witness_objective == pytest.approx(0, abs=1e-12)
    assert found.verdict == (
        "The training objective of the learned head is 0.005; the witness has 0. At length 7 the risk of the learned "
        "head is 0.5, and that of the witness is 0."
    )
    assert certify_counterexample(COUNTEREXAMPLES["growing gap"]).verdict == (
        "Both heads minimize the training objective (0). At length 10 the risk of the learned head is 0.5, and that "
        "of the witness is 0."
    )
    assert certify_counterexample(COUNTEREXAMPLES["heavy cuts"]).verdict.startswith(
        "The learned head minimizes the training objective (8.9e-12; witness 3e-11). At length 5 the risk"
    )


def test_lengths_without_sequences_raise_an_error():
    with pytest.raises(SettingError, match=r"length 1"):
        certify_counterexample(COUNTEREXAMPLES["growing gap"], (1,))


def test_the_command_prints_risks_and_writes_a_figure(tmp_path, capsys):
    cli.main(["certify", "growing gap", "--lengths", "9,12", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "violated assumption: locality of the data" in printed
    assert "verdict: Both heads minimize the training objective (0). At length 12 the risk" in printed
    assert (tmp_path / "figure.png").stat().st_size > 0
    cli.main(["certify", "growing gap", "--lengths", "9,12", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((tmp_path / "certificate.json").read_text()) | {"task": "planted"}
    assert (document["counterexample"], document["minimizer"]) == ("growing gap", "both")
    assert [(each["length"], each["learned"]) for each in document["risks"] if not each["in_training"]] == [
        (9, pytest.approx(0.15)),
        (12, pytest.approx(0.5, abs=0.02)),
    ]


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--train-lengths", "2:8"], "--train-lengths 2:8 applies to a task or a law; leave out --train-lengths"),
        (["--scheme", "coupled"], "--scheme coupled needs a run folder; leave out --scheme"),
        (["--lengths", "1"], "length 1"),
    ],
)
def test_flags_that_do_not_fit_a_counterexample_print_one_line(flags, line, capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["certify", "growing gap", *flags])
    assert exit_info.value.code == 2
    message = capsys.readouterr().err
    assert line in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("law", "holds", "found"),
    [
        (PlantedCorrelations(placement=PAIRS), True, "a witness has risk 0 at 3 lengths from 3 to 6"),
        (
            PlantedCorrelations(placement=SubsetPlacement()),
            None,
            "no witness was checked: placement 'subsets' has no span",
        ),
        (
            PlantedCorrelations(
                background=(0.5, 0.5),
                tuples=((0, 0), (1, 1)),
                probabilities=(0.5, 0.5),
                labels=((1.0, 0.0), (0.0, 1.0)),
                placement=PAIRS,
            ),
            False,
            "no predictor has risk 0 at length 4; the risk of the true posterior is",
        ),
    ],
    ids=["marked", "subsets", "ambiguous"],
)
def test_the_certificate_of_a_law_checks_realizability(law, holds, found):
    certificate = certify_planted_task(law, trained=(3, 4), lengths=(6,), steps=2)
    assert certificate.realizability.holds is holds
    assert certificate.realizability.found.startswith(found)
    _, _, rows = certificate_tables(certificate)[0]
    assert rows[-1][:2] == ["realizability", {True: "yes", False: "NO", None: "unknown"}[holds]]

"""The page for readers of the paper: its examples run, its names exist, and its numbers equal those by hand."""

import doctest
import importlib
import re
from pathlib import Path

import numpy as np
import pytest

from lengthwise.cli import app as cli
from lengthwise.tasks import PlantedCorrelations
from lengthwise.tasks.planted.placement import LocalPlacement
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.bounds import length_quadratic_bound
from lengthwise.theory.bounds.bound_inputs import BoundInputs
from lengthwise.theory.risk.exact_risk import TotalVariationLoss
from lengthwise.theory.risk.risk_at_length import exact_erm, training_lengths

PAGE = (Path(__file__).parents[2] / "docs/theory_for_readers.md").read_text(encoding="utf-8")
LAW = PlantedCorrelations(placement=LocalPlacement(shapes=((0, 1),), weights=(1.0,)))


def test_the_examples_of_the_page_give_the_stated_output():
    snippets = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    example = doctest.DocTestParser().get_doctest("\n".join(snippets), {}, "page", "docs/theory_for_readers.md", 0)
    runner = doctest.DocTestRunner()
    runner.run(example)
    assert runner.summarize(verbose=False).failed == 0
    assert runner.summarize(verbose=False).attempted > 20


def test_the_verdict_of_the_page_is_that_of_its_command(capsys):
    cli.main(["certify", "growing gap"])
    (verdict,) = re.findall(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)
    assert " ".join(verdict.split()) in " ".join(capsys.readouterr().out.split())


def test_every_name_in_the_table_exists():
    table = PAGE.split("|---|---|---|\n")[1].split("\n\n")[0]
    names = re.findall(r"`((?:attention|bounds|counterexamples|risk)\.[\w.]+)`", table)
    assert len(names) >= 8
    for name in names:
        module, _, attribute = f"lengthwise.theory.{name}".rpartition(".")
        try:
            assert hasattr(importlib.import_module(module), attribute), name
        except ModuleNotFoundError:
            pytest.fail(f"{name} is in no module")


def leaky_head(leak: float) -> TabularAttention:
    """Return the head of the page with the right values."""
    return TabularAttention(
        num_tokens=4,
        shapes=np.array([[0, 1]]),
        log_scores=np.log(np.where(LAW.tuple_code_probabilities > 0, 1.0, leak))[None],
        values=LAW.label_probabilities[None],
        default=np.array([0.5, 0.5]),
    )


def risk_by_hand(leak: float, length: int) -> float:
    """Return the risk: ``length - 2`` other pairs have the score ``leak`` and the value (0.5, 0.5)."""
    return 0.5 * leak * (length - 2) / (1 + leak * (length - 2))


@pytest.mark.parametrize("leak", [1e-9, 1e-3, 0.2])
def test_delta_and_theorem_4_3_equal_a_calculation_by_hand(leak):
    head = leaky_head(leak)
    minimizer = exact_erm(LAW, [leaky_head(2 * leak), head], training_lengths(8), TotalVariationLoss())
    delta = sum(risk_by_hand(leak, length) for length in (4, 5, 6, 7, 8)) / 5
    assert minimizer.best == 1
    assert minimizer.objective[1] == pytest.approx(delta, rel=1e-6)
    for length in (16, 64):
        bound = length_quadratic_bound(BoundInputs(law=LAW, predictor=head, train_length=8, test_length=length))
        # eta is the number of starts, and kappa is 1: see the page.
        assert bound == pytest.approx(3 * 7 * (length - 1) * 8 * length**2 * delta, rel=1e-6)
        assert bound > risk_by_hand(leak, length)

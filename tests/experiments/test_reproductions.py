"""Claims: every one runs at its quick size, and its other sizes are parts of the full one."""

import os

import numpy as np
import pytest

from lengthwise.core.errors import UnknownNameError
from lengthwise.evaluation.diagnosis import diagnosis as diagnosing
from lengthwise.evaluation.tables_and_figures import label_of
from lengthwise.experiments import run as run_module
from lengthwise.experiments.comparison import check_experiments
from lengthwise.experiments.reproductions import CLAIMS, SIZES, diagnosis, recall, reproduce
from lengthwise.experiments.reproductions.claim import FIRST_SEED
from lengthwise.experiments.reproductions.excess_risk import Cell, growth

over_claims = pytest.mark.parametrize("claim", [pytest.param(claim, id=name) for name, claim in CLAIMS.items()])


@pytest.fixture
def little_asked(monkeypatch):
    # One thread: another process may have the other core.
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(run_module, "FIT_EXAMPLES", 16)
    for module in (recall, diagnosis):
        monkeypatch.setattr(module, "EXAMPLES", 4)
    for number in ("ASKED", "LOOKED_AT"):
        monkeypatch.setattr(diagnosing, number, 2)


@pytest.mark.slow
@over_claims
@pytest.mark.usefixtures("little_asked")
def test_every_row_of_a_claim_runs(claim, tmp_path):
    found = reproduce(claim, "quick", tmp_path, jobs=1, only=list(claim.experiments()))
    assert {label_of(row) for row in found.comparison.rows} == set(claim.experiments())
    assert found.figure is not None


@over_claims
@pytest.mark.usefixtures("little_asked")
def test_a_claim_runs_at_its_quick_size_and_is_not_run_twice(claim, tmp_path):
    told = []
    found = reproduce(claim, "quick", tmp_path, jobs=1, report=told.append)
    experiments = claim.default_labels("quick") or claim.experiments()
    assert len(told) == len(experiments)
    by_length = [body for title, _, body in found.tables if "exact match by length" in title]
    shown = {row[0] for body in by_length for row in body}
    assert all(any(row.startswith(label) for row in shown) for label in experiments)
    assert all(len(row) == len(header) for _, header, body in found.tables for row in body)
    assert len(found.readings) == (len(experiments) if claim.read else 0)
    assert found.figure is not None
    assert found.figure.exists()
    steps = [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("model.safetensors"))]
    again = reproduce(claim, "quick", tmp_path, jobs=1)
    assert again.comparison.rows == found.comparison.rows
    assert again.readings == found.readings
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("model.safetensors"))] == steps


@over_claims
def test_every_size_is_a_part_of_the_full_one_on_seeds_that_chose_nothing(claim):
    full, _ = claim.experiments_at("full")
    for size in SIZES[1:]:
        experiments, num_seeds = claim.experiments_at(size)
        assert num_seeds >= 1
        for label, experiment in experiments.items():
            assert experiment.seed == FIRST_SEED
            assert experiment.task == full[label].task
            assert experiment.training.steps <= full[label].training.steps
            assert set(experiment.evaluation.lengths) <= set(full[label].evaluation.lengths)
            assert len(experiment.evaluation.num_examples) in (1, len(experiment.evaluation.lengths))


def test_a_claim_is_shown_on_other_seeds_where_they_are_asked_for(tmp_path):
    found = reproduce(
        CLAIMS["sparse_parity"], "quick", tmp_path, first_seed=9005, num_seeds=2, jobs=1, only=["up to 4 bits, rotary"]
    )
    assert {row["seed"] for row in found.comparison.rows} == {9005, 9006}
    bits = [f"flagged-{number}" for number in (1, 2, 4, 6, 8, 10, 12, 16)]
    assert list(dict.fromkeys(row["variant"] for row in found.comparison.rows)) == bits
    # One line for an experiment, not one for each number of bits.
    assert [warning.split(":")[0] for warning in found.comparison.warnings] == ["up to 4 bits, rotary"]


@over_claims
def test_every_experiment_of_a_claim_can_be_trained_and_measured_to_the_end(claim):
    check_experiments(claim.experiments_at("full")[0])


def test_an_unknown_size_is_answered_with_the_known_ones(tmp_path):
    with pytest.raises(UnknownNameError, match="unknown size 'big'; known: full, gpu, laptop, quick"):
        reproduce(CLAIMS["parity_scratchpad"], "big", tmp_path)


def test_the_heat_map_of_sparse_parity_has_bits_trained_on_by_bits_tested(tmp_path):
    claim = CLAIMS["sparse_parity"]
    rows = [
        {
            "row": f"{label}, flagged-{number}",
            "variant": f"flagged-{number}",
            "length": length,
            "exact_match": 1.0 if number <= most else 0.5,
            "num_examples": 64,
            "seed": seed,
            "fitted": 1.0 if seed == 0 else 0.9,
            "answer_loss": 0.1,
            "train_lengths": [20, 50],
        }
        for label, most in (("up to 4 bits", 4), ("up to 6 bits, rotary", 6))
        for number in (4, 6)
        for length in (50, 500, 5000)
        for seed in (0, 1)
    ]
    short, far, furthest, *losses = claim.tables(rows, [])
    assert short[0] == "exact match at length 50, by bits flagged; trained up to 50"
    assert far[1] == ["row", "seeds that fit", "4", "6"]
    assert far[2] == [
        ["up to 4 bits", "1 of 2", "1.000", "0.500"],
        ["up to 6 bits, rotary", "1 of 2", "1.000", "1.000"],
    ]
    assert furthest[0] == "exact match at length 5,000, by bits flagged; trained up to 50"
    assert [title for title, _, _ in losses] == [
        f"loss at {length}, at the same loss at 50: multiplied by, with 95% interval over seeds"
        for length in ("500", "5,000")
    ]
    assert all([line[0] for line in body] == ["up to K bits", "up to K bits, rotary"] for _, _, body in losses)
    assert claim.draw(rows, [], tmp_path, "sparse parity") == tmp_path / "figure.png"
    assert (tmp_path / "figure.svg").exists()


def test_the_growth_of_the_loss_is_found_at_equal_loss_within_training():
    rng = np.random.default_rng(0)
    cells = [
        Cell(
            seed=seed,
            trained=trained,
            tested=tested,
            home=(home := float(rng.uniform(1e-5, 1e-2))),
            # Three times as much for each bit trained on, a half for each one tested, as the root of the loss at home.
            far=3.0**trained * 0.5**tested * home**0.5 * float(rng.uniform(0.9, 1.1)),
        )
        for seed in range(5)
        for trained in (4, 6, 8)
        for tested in (1, 2, 4)
    ]
    found = growth(cells, np.random.default_rng(1))
    assert found is not None
    assert found.power == pytest.approx(0.5, rel=0.05)
    for factor, expected in ((found.trained, 3.0), (found.tested, 0.5)):
        assert factor.value == pytest.approx(expected, rel=0.05)
        assert factor.interval is not None
        assert factor.interval[0] < expected < factor.interval[1]
    assert growth([cell for cell in cells if cell.trained == 4], rng) is None
    few = growth([cell for cell in cells if cell.seed < 2], rng)
    assert few is not None
    assert few.trained.interval is None

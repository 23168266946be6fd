"""Claims: every one runs at its quick size, and its other sizes are parts of the full one."""

import os

import pytest

from lengthwise import run as run_module
from lengthwise.claims import CLAIMS, SIZES, reproduce
from lengthwise.claims.claim import FIRST_SEED
from lengthwise.errors import UnknownNameError
from lengthwise.run import check

over_claims = pytest.mark.parametrize("claim", [pytest.param(claim, id=name) for name, claim in CLAIMS.items()])


@over_claims
def test_a_claim_runs_at_its_quick_size_and_is_not_run_twice(claim, tmp_path, monkeypatch):
    # One thread: another process may have the other core.
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(run_module, "FIT_EXAMPLES", 16)
    told = []
    found = reproduce(claim, "quick", tmp_path, jobs=1, report=told.append)
    experiments, num_seeds = claim.at("quick")
    assert num_seeds == 1
    assert len(told) == len(experiments)
    title, header, body = found.tables[0]
    assert title
    assert len({row[0].split(",")[0] for row in body}) == len({label.split(",")[0] for label in experiments})
    assert all(len(row) == len(header) for row in body)
    assert found.figure is not None
    assert found.figure.exists()
    steps = [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("model.safetensors"))]
    again = reproduce(claim, "quick", tmp_path, jobs=1)
    assert again.comparison.rows == found.comparison.rows
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("model.safetensors"))] == steps


@over_claims
def test_every_size_is_a_part_of_the_full_one_on_seeds_that_chose_nothing(claim):
    full, _ = claim.at("full")
    for size in SIZES[1:]:
        experiments, num_seeds = claim.at(size)
        assert num_seeds >= 1
        for label, experiment in experiments.items():
            assert experiment.seed == FIRST_SEED
            assert experiment.task == full[label].task
            assert experiment.training.steps <= full[label].training.steps
            assert set(experiment.evaluation.lengths) <= set(full[label].evaluation.lengths)
            assert len(experiment.evaluation.num_examples) in (1, len(experiment.evaluation.lengths))


@over_claims
def test_every_experiment_of_a_claim_can_be_trained(claim):
    for experiment in claim.at("laptop")[0].values():
        check(experiment)


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
            "train_lengths": [20, 50],
        }
        for label, most in (("up to 4 bits", 4), ("up to 6 bits, rotary", 6))
        for number in (4, 6)
        for length in (50, 500, 5000)
        for seed in (0, 1)
    ]
    short, far = claim.tables(rows)
    assert short[0] == "exact match at length 50, by bits flagged; trained up to 50"
    assert far[1] == ["row", "seeds that fit", "4", "6"]
    assert far[2] == [
        ["up to 4 bits", "1 of 2", "1.000", "0.500"],
        ["up to 6 bits, rotary", "1 of 2", "1.000", "1.000"],
    ]
    assert claim.draw(rows, tmp_path, "sparse parity") == tmp_path / "figure.png"
    assert (tmp_path / "figure.svg").exists()

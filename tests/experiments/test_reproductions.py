"""Reproductions: the quick size runs, the other sizes are subsets of the full size, and the statistics are correct.

The claims themselves are tested by full runs, see benchmarks/.
"""

import contextlib
import json
import os
import sys

import numpy as np
import pytest
from claims.diagnosis import claim as diagnosis
from claims.recall import claim as recall
from claims.rivals import claim as rivals
from claims.scale import claim as scale
from claims.sparse_parity.excess_risk import LossPair, fit_growth

from lengthwise.cli import app as cli
from lengthwise.core.defaults import FIRST_SEED
from lengthwise.core.errors import UnknownNameError
from lengthwise.core.randomness import random_stream
from lengthwise.encodings import Learned
from lengthwise.evaluation.diagnosis import diagnosis as diagnosis_module
from lengthwise.evaluation.diagnosis import failures
from lengthwise.evaluation.figure_layout import UNFIT_COLOR
from lengthwise.evaluation.tables_and_figures import label_without_variant
from lengthwise.experiments import reproduction as reproduction_module
from lengthwise.experiments import run as run_module
from lengthwise.experiments.reproduction import SIZES, load_claims, reproduce
from lengthwise.experiments.runner import check_experiments
from lengthwise.positions import Sequential

# The claim on language models has its own tests (tests/influence/test_extrapolation.py).
CLAIMS = {name: claim for name, claim in load_claims().items() if name != "sparsity_in_text"}
over_claims = pytest.mark.parametrize("claim", [pytest.param(claim, id=name) for name, claim in CLAIMS.items()])


@pytest.fixture
def small_numbers(monkeypatch):
    # One thread, because another process may use the other core.
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(run_module, "NUM_FIT_EXAMPLES", 16)
    monkeypatch.setattr(rivals, "TIMED_STEPS", 1)
    monkeypatch.setattr(rivals, "TIMED_ROUNDS", 1)
    for module in (recall, diagnosis):
        monkeypatch.setattr(module, "NUM_EXAMPLES", 4)
    monkeypatch.setattr(diagnosis_module, "MAX_QUERIES", 2)
    monkeypatch.setattr(failures, "NUM_ANSWERS", 2)


def test_the_scale_of_runs_that_do_not_fit_is_gray_and_in_no_mean(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(scale, "save_figure", lambda figure, folder: figures.append(figure) or folder)
    # Seeds of three budgets: all fit, one does not fit, and all fit with a reach of 0 and 4.
    runs = {"0.25": [(True, 1.0), (True, 4.0)], "0.5": [(True, 2.0), (False, 0.0)], "1": [(True, 0.0), (True, 4.0)]}
    measurements = [
        {
            "row": f"parity, 1 x 64, {budget} of the steps",
            "weights": 1,
            "fits": fits,
            "longest_exact": longest_exact,
            "flops": flops,
        }
        for flops, (budget, seeds) in zip((1.0, 16.0, 256.0), runs.items(), strict=True)
        for fits, longest_exact in seeds
    ]
    CLAIMS["scale"].draw([], measurements, tmp_path, "scale")
    mean, *points = figures[0].axes[0].get_lines()[:7]
    heights = list(mean.get_ydata())
    assert heights[0] == 2.0
    assert np.isnan(heights[1])
    assert heights[2] == min(line.get_ydata()[0] for line in points) > 0
    assert [line.get_color() == UNFIT_COLOR for line in points] == [not each["fits"] for each in measurements]
    _, (_, _, body) = CLAIMS["scale"].tables([], measurements)
    assert [line[-1] for line in body] == ["2x", "-", "0x"]


@pytest.mark.slow
@over_claims
@pytest.mark.usefixtures("small_numbers")
def test_every_experiment_of_a_claim_runs_at_the_quick_size(claim, tmp_path):
    result = reproduce(claim, "quick", tmp_path, workers=1, only=list(claim.experiments()))
    assert {label_without_variant(row) for row in result.comparison.rows} == set(claim.experiments())
    assert result.figure is not None


@pytest.mark.slow
@over_claims
@pytest.mark.usefixtures("small_numbers")
def test_a_second_call_at_the_quick_size_trains_nothing(claim, tmp_path):
    messages = []
    result = reproduce(claim, "quick", tmp_path, workers=1, report=messages.append)
    experiments = claim.laptop.labels or claim.experiments()
    assert sum(message.startswith("[") for message in messages) == len(experiments)
    by_length = [body for title, _, body in result.tables if "exact match by length" in title]
    labels = {row[0] for body in by_length for row in body}
    assert all(any(row.startswith(label) for row in labels) for label in experiments)
    assert all(len(row) == len(header) for _, header, body in result.tables for row in body)
    assert len(result.measurements) == (len(experiments) if claim.measure else 0)
    assert result.figure is not None
    assert result.figure.exists()
    steps = [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("model.safetensors"))]
    again = reproduce(claim, "quick", tmp_path, workers=1)
    assert again.comparison.rows == result.comparison.rows
    assert again.measurements == result.measurements
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("model.safetensors"))] == steps


@pytest.mark.first(5)
@over_claims
def test_every_size_is_a_subset_of_the_full_size_with_seeds_not_used_for_tuning(claim):
    full, _ = claim.experiments_at_size("full")
    for size in SIZES[1:]:
        experiments, num_seeds = claim.experiments_at_size(size)
        assert num_seeds >= 1
        for label, experiment in experiments.items():
            assert experiment.seed == FIRST_SEED
            assert experiment.task == full[label].task
            assert experiment.training.steps <= full[label].training.steps
            assert set(experiment.evaluation.lengths) <= set(full[label].evaluation.lengths)
            assert len(experiment.evaluation.num_examples) in (1, len(experiment.evaluation.lengths))


@pytest.mark.slow
def test_first_seed_and_num_seeds_select_the_seeds(tmp_path):
    result = reproduce(
        CLAIMS["sparse_parity"], "quick", tmp_path, first_seed=9005, seeds=2, workers=1, only=["up to 4 bits, rotary"]
    )
    assert {row["seed"] for row in result.comparison.rows} == {9005, 9006}
    bits = [f"flagged-{number}" for number in (1, 2, 4, 6, 8, 10, 12, 16)]
    assert list(dict.fromkeys(row["variant"] for row in result.comparison.rows)) == bits
    # One warning per experiment, not per number of bits.
    assert [warning.split(":")[0] for warning in result.comparison.warnings] == ["up to 4 bits, rotary"]


@pytest.mark.first(5)
@over_claims
def test_every_experiment_of_a_claim_passes_the_checks_before_training(claim):
    experiments, _ = claim.experiments_at_size("full")
    check_experiments(experiments, experiments)


@over_claims
def test_learned_positions_have_an_id_for_every_token_of_the_longest_test(claim):
    for experiment in claim.experiments().values():
        if isinstance(experiment.encoding, Learned) and isinstance(experiment.scheme, Sequential):
            task, length = experiment.task, max(experiment.evaluation.lengths)
            tokens = max(
                each.sample(length=length, size=1, rng=random_stream(0)).tokens.shape[1]
                for each in (task, *task.variants().values())
            )
            assert tokens <= experiment.encoding.num_position_ids


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """The package outside a checkout, with the folder of the test as the current folder."""
    monkeypatch.setattr(reproduction_module, "__file__", str(tmp_path / "a/b/c/d/reproduction.py"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("installed")
def test_a_claim_is_a_folder_of_the_checkout_that_the_package_runs_from(tmp_path):
    folder = tmp_path / "a/benchmarks/claims/own_claim"
    folder.mkdir(parents=True)
    (folder / "claim.py").write_text(
        "from lengthwise.experiments.recipes import recipe\n"
        "from lengthwise.experiments.reproduction import Claim, SizePreset\n"
        "def experiments():\n"
        "    return {'parity': recipe('parity')}\n"
        "CLAIM = Claim(summary='s', paper='p', experiments=experiments, laptop=SizePreset(num_seeds=1))\n"
    )
    claims = load_claims()
    assert list(claims) == ["own_claim"]
    assert claims["own_claim"].name == "own_claim"
    assert list(claims["own_claim"].experiments_at_size("full")[0]) == ["parity"]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("command", [["list"], ["list", "claims"], ["reproduce", "evil"]])
def test_code_in_the_current_folder_is_no_claim(command, tmp_path):
    folder = tmp_path / "benchmarks/claims/evil"
    for path in (folder, tmp_path / "src/lengthwise"):
        path.mkdir(parents=True)
    (folder / "claim.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'entered')!r}).touch()\n")
    with contextlib.suppress(SystemExit):
        cli.main(command)
    assert not (tmp_path / "entered").exists()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("command", [["reproduce", "ppc"], ["list", "claims"]])
def test_outside_a_checkout_one_line_says_where_claims_are(command, capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(command)
    assert exit_info.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "benchmarks/claims" in line


@pytest.mark.usefixtures("installed")
def test_outside_a_checkout_the_other_tables_are_listed(capsys):
    cli.main(["list", "--json"])
    tables = json.loads(capsys.readouterr().out)
    assert tables["claims"] == []
    assert tables["recipes"]


def test_an_unknown_size_raises_an_error_with_the_known_sizes(tmp_path):
    with pytest.raises(UnknownNameError, match="unknown size 'big'; known: full, gpu, laptop, quick"):
        reproduce(CLAIMS["parity_scratchpad"], "big", tmp_path)


def rival_measurement(row: str, seed: int, longest_exact: float, **values: object) -> dict[str, object]:
    """Return a measurement of the claim on rivals."""
    costs = {"step_ms": 6.0, "rotary_step_ms": 4.0, "steps": 500, "fitted": 1.0, "given": "nothing"}
    return {"row": row, "seed": seed, "longest_exact": longest_exact, **costs, **values}


def test_the_table_of_rivals_has_the_worst_seed_and_a_row_for_drope():
    dropped = {"given": "nothing", "steps": 200, "fitted": 0.5, "longest_exact": 0.0}
    measurements = [
        rival_measurement("copy, rotary", 0, 1.2, dropped=dropped),
        rival_measurement("copy, rotary", 1, 1.0, steps=700, dropped={**dropped, "longest_exact": 1.5, "fitted": 1.0}),
        rival_measurement("copy, RePo", 0, 2.0, fitted=0.9),
    ]
    ((_, header, body),) = CLAIMS["rivals"].tables([], measurements)
    assert all(len(row) == len(header) for row in body)
    assert body == [
        ["copy, rotary", "nothing", "500-700", "2 of 2", "1x", "1.2x, 1x", "1.50"],
        ["copy, DroPE", "nothing", "200", "1 of 2", "0x", "0x, 1.5x", "1.50"],
        ["copy, RePo", "nothing", "500", "0 of 1", "2x", "2x", "1.50"],
    ]


def test_rivals_have_the_decoder_and_budget_of_their_task_except_loops_and_ppc():
    experiments = CLAIMS["rivals"].experiments()
    for task in ("copy", "parity"):
        rows = {label: each for label, each in experiments.items() if label.startswith(f"{task}, ")}
        assert len(rows) == 9
        base = rows[f"{task}, rotary"]
        for label, experiment in rows.items():
            if not label.endswith("PPC"):
                assert experiment.training.steps == base.training.steps
                assert experiment.decoder.d_model == base.decoder.d_model
                assert (
                    experiment.decoder.num_unrolled_blocks == 4
                    or experiment.decoder.num_layers == base.decoder.num_layers
                )
            assert experiment.train_lengths == (1, 10)


def test_sparse_parity_tables_have_a_column_per_number_of_test_bits(tmp_path):
    claim = CLAIMS["sparse_parity"]
    rows = [
        {
            "row": f"{label}, flagged-{number}",
            "variant": f"flagged-{number}",
            "length": length,
            "exact_match": 1.0 if number <= most else 0.5,
            "num_examples": 64,
            "seed": seed,
            "given": "nothing",
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
    assert short[0] == "exact match at length 50, by number of flagged bits; training length up to 50"
    assert far[1] == ["row", "given", "seeds that fit", "4", "6"]
    assert far[2] == [
        ["up to 4 bits", "nothing", "1 of 2", "1.000", "0.500"],
        ["up to 6 bits, rotary", "nothing", "1 of 2", "1.000", "1.000"],
    ]
    assert furthest[0] == "exact match at length 5,000, by number of flagged bits; training length up to 50"
    assert [title for title, _, _ in losses] == [
        f"growth of the loss at {length}, at equal loss at 50: factors with 95% intervals over seeds"
        for length in ("500", "5,000")
    ]
    assert all([cells[0] for cells in body] == ["up to K bits", "up to K bits, rotary"] for _, _, body in losses)
    assert claim.draw(rows, [], tmp_path, "sparse parity") == tmp_path / "figure.png"
    assert (tmp_path / "figure.svg").exists()


def test_growth_recovers_planted_factors_at_equal_near_loss():
    rng = np.random.default_rng(0)
    cells = [
        LossPair(
            seed=seed,
            train_bits=train_bits,
            test_bits=test_bits,
            near_loss=(near_loss := float(rng.uniform(1e-5, 1e-2))),
            # Factor 3 per bit in training, factor 0.5 per bit in the test, power 0.5 of the near loss.
            far_loss=3.0**train_bits * 0.5**test_bits * near_loss**0.5 * float(rng.uniform(0.9, 1.1)),
        )
        for seed in range(5)
        for train_bits in (4, 6, 8)
        for test_bits in (1, 2, 4)
    ]
    result = fit_growth(cells, np.random.default_rng(1))
    assert result is not None
    assert result.power == pytest.approx(0.5, rel=0.05)
    for factor, expected in ((result.per_train_bit, 3.0), (result.per_test_bit, 0.5)):
        assert factor.value == pytest.approx(expected, rel=0.05)
        assert factor.interval is not None
        assert factor.interval[0] < expected < factor.interval[1]
    assert fit_growth([cell for cell in cells if cell.train_bits == 4], rng) is None
    two_seeds = fit_growth([cell for cell in cells if cell.seed < 2], rng)
    assert two_seeds is not None
    assert two_seeds.per_train_bit.interval is None

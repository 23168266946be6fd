"""Tables of the claim on the minimax objective: pairs of one seed, intervals, and verdicts."""

import math

import pytest
from claims.minimax import claim as minimax
from claims.minimax.claim import TILTS

from lengthwise.evaluation.figure_layout import UNFIT_COLOR
from lengthwise.experiments.reproduction import load_claim


def measurements(longest_exact_by_tilt: dict[float, list[int]]) -> list[dict[str, object]]:
    return [
        {
            "row": f"copy, PPC, tilt {tilt:g}",
            "seed": seed,
            "tilt": tilt,
            "fits": longest_exact > 0,
            "longest_exact": longest_exact,
            "mean_loss": 0.01,
            "worst_loss": 0.02,
            "worst_length": 10,
        }
        for tilt, lengths in longest_exact_by_tilt.items()
        for seed, longest_exact in enumerate(lengths)
    ]


def test_every_step_of_every_experiment_has_all_training_lengths():
    for label, experiment in load_claim("minimax").experiments().items():
        first, last = experiment.train_lengths
        assert experiment.training.lengths_per_batch == last - first + 1
        assert label.endswith(f"tilt {experiment.training.length_tilt:g}")
        assert experiment.training.length_tilt in TILTS


@pytest.mark.parametrize(
    ("tilted", "verdict"),
    [
        ([20, 40, 30], "no, equal on every seed"),
        ([40, 84, 57], "yes"),
        ([10, 19, 16], "no, less far"),
        ([10, 80, 30], "cannot be told"),
        ([0, 0, 0], "no, less far"),
    ],
)
def test_a_tilt_is_compared_with_the_average_of_the_same_seed(tilted, verdict):
    average = [20, 40, 30]
    (_, _, (row, other)), _ = load_claim("minimax").tables([], measurements({0.0: average, 1000.0: tilted}))
    assert row == ["copy, PPC, tilt 0", "20, 40, 30", "-", "-"]
    ratio = math.prod(max(1, one) / each for one, each in zip(tilted, average, strict=True)) ** (1 / 3)
    assert other[2].startswith(f"{ratio:.2f} [")
    assert other[3] == verdict


def test_one_seed_is_not_a_comparison():
    (_, _, (_, other)), _ = load_claim("minimax").tables([], measurements({0.0: [20], 10.0: [40]}))
    assert other == ["copy, PPC, tilt 10", "40", "2.00", "cannot be told from one seed"]


def test_runs_that_do_not_fit_are_marked_and_losses_are_listed_by_seed():
    (_, _, (_, other)), (_, _, losses) = load_claim("minimax").tables([], measurements({0.0: [20, 30], 10.0: [0, 30]}))
    assert other[1] == "0 (does not fit), 30"
    assert losses[1] == ["copy, PPC, tilt 10", "0.01, 0.01", "0.02, 0.02", "10, 10"]


def test_points_of_runs_that_do_not_fit_are_gray(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(minimax, "save_figure", lambda figure, folder: figures.append(figure) or folder)
    load_claim("minimax").draw([], measurements({0.0: [20, 30], 10.0: [0, 30]}), tmp_path, "minimax")
    points = [line for line in figures[0].axes[0].get_lines() if line.get_marker() == "o"]
    assert [line.get_color() == UNFIT_COLOR for line in points] == [False, False, True, False]

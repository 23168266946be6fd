"""Reports: pool_seeds values, verdicts on the fit, tables in order, and figures that show what was measured."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes

from lengthwise.core.errors import RunFolderError
from lengthwise.evaluation import tables_and_figures as report
from lengthwise.evaluation.exact_match import wilson_interval
from lengthwise.evaluation.tables_and_figures import (
    draw,
    fit_status,
    format_value,
    group_rows,
    length_table,
    pool_seeds,
    table,
)


def row(label: str = "PPC", length: int = 20, exact: float = 1.0, **changes: Any) -> dict[str, Any]:
    """A result row with what reports read."""
    return {
        "row": label,
        "task": "parity",
        "seed": 0,
        "length": length,
        "num_examples": 100,
        "exact_match": exact,
        "low": 0.0,
        "high": 1.0,
        "token_accuracy": 0.98765,
        "id_accuracy": 1.0,
        "first_error": None,
        "variant": None,
        "fitted": 1.0,
        "train_lengths": [1, 20],
        "id_range": [3, 2047],
        "steps": 1000,
        **changes,
    }


# Lengths out of order, two seeds each; the second row fits for one seed only, the third for none.
ROWS = [
    *(row("PPC", length, exact, seed=seed) for seed in (0, 1) for length, exact in ((2000, 0.5 + seed / 4), (20, 1.0))),
    *(row("NoPE", length, 0.1, seed=seed, fitted=0.99 - seed / 2) for seed in (0, 1) for length in (20, 2000)),
    *(row("ALiBi", 20, 0.0, seed=seed, fitted=0.25 + seed / 100, steps=500 + seed) for seed in (0, 1)),
]


def test_a_pooled_value_counts_examples_and_not_runs():
    runs = [row(exact=0.5, num_examples=100), row(exact=1.0, num_examples=300)]
    assert pool_seeds(runs)[0] == 350 / 400


def test_seeds_that_are_asked_the_same_examples_do_not_make_them_more():
    assert pool_seeds([row(exact=0.75) for _ in range(5)]) == (0.75, *wilson_interval(75, 100))


def test_an_interval_of_seeds_that_differ_is_that_of_their_mean():
    # Student's t of 2 degrees of freedom keeps within 4.303 standard errors.
    value, low, high = pool_seeds([row(exact=exact, num_examples=10_000) for exact in (0.48, 0.5, 0.52)])
    assert (value, low, high) == pytest.approx(
        (0.5, 0.5 - 4.303 * 0.02 / 3**0.5, 0.5 + 4.303 * 0.02 / 3**0.5), abs=1e-5
    )
    assert pool_seeds([row(exact=exact) for exact in (0.0, 1.0)])[1:] == (0.0, 1.0)


def test_a_pooled_value_of_thirds_counts_whole_examples():
    runs = [row(exact=1 / 3, num_examples=3), row(exact=2 / 3, num_examples=3)]
    assert pool_seeds(runs)[0] == 0.5
    # 0.29 * 100 is a little less than 29.
    assert pool_seeds([row(exact=0.29)])[0] == 0.29


def test_the_heading_says_what_an_interval_is_over():
    one, more = [row("a", 10)], [row("a", 10, seed=0), row("a", 10, seed=1), row("b", 10)]
    title = "exact match by length, with the 95% interval over examples"
    assert report.heading(one) == f"{title} (one seed each; other seeds may differ)"
    assert report.heading(more) == f"{title} and seeds"


def test_lengths_are_sorted_and_labels_keep_their_order():
    by_label = group_rows(ROWS)
    assert list(by_label) == ["PPC", "NoPE", "ALiBi"]
    assert all(list(by_length) == [20, 2000] for by_length in by_label.values())
    assert [run["seed"] for run in by_label["PPC"][2000]] == [0, 1]
    assert by_label["ALiBi"][2000] == []


@pytest.mark.parametrize(
    ("fitted", "verdict"),
    [
        ([1.0], "yes"),
        ([0.99], "yes"),
        ([0.989], "did not fit (0.99)"),
        ([0.2, 0.61], "did not fit (0.61)"),
        ([1.0, 0.3], "1 of 2 seeds"),
        ([1.0, 0.99, 1.0], "3 of 3 seeds"),
    ],
)
def test_the_verdict_says_for_how_many_seeds_the_training_range_was_fitted(fitted, verdict):
    assert fit_status([row(fitted=share) for share in fitted]) == verdict


def test_a_table_has_a_row_per_label_and_a_column_per_length():
    header, body = table(ROWS)
    assert header == ["configuration", "trained on", "IDs met", "steps", "fits", "20\nn=100", "2,000\nn=100"]
    assert body[0] == [
        "PPC",
        "1-20",
        "3-2,047",
        "1,000",
        "2 of 2 seeds",
        f"1.000\n{wilson_interval(100, 100)[0]:.2f}-1.00",
        "0.625\n0.00-1.00",
    ]
    assert [line[4] for line in body] == ["2 of 2 seeds", "1 of 2 seeds", "did not fit (0.26)"]
    assert body[2][3] == "500-501"
    assert body[2][-1] == "-"


def test_a_column_says_how_many_examples_a_seed_is_asked_and_where_rows_differ():
    header, _ = table([row(num_examples=64), row("NoPE", num_examples=512), row("NoPE", seed=1, num_examples=512)])
    assert header[-1] == "20\nn=64-512"


def test_the_ids_met_are_those_of_all_seeds():
    _, body = table([row(id_range=[7, 90]), row(seed=1, id_range=[9, 1200])])
    assert body[0][2] == "7-1,200"


def test_a_cell_without_runs_is_a_dash():
    assert format_value([]) == "-"


def test_a_table_says_which_rows_diverged_and_for_how_many_seeds():
    plain = table(ROWS)
    header, body = table(ROWS, diverged=["PPC", "too fast", "too fast"])
    assert header == plain[0]
    assert [line[0] for line in body] == ["PPC", "NoPE", "ALiBi", "too fast"]
    assert body[0][4] == f"{plain[1][0][4]}, 1 diverged"
    assert body[0][:4] + body[0][5:] == plain[1][0][:4] + plain[1][0][5:]
    assert body[1:3] == plain[1][1:]
    assert body[3] == ["too fast", "-", "-", "-", "2 diverged", "-", "-"]


def test_the_table_of_one_run_tells_each_lengths_first_errors():
    errors = {"median_index": 3.5, "token": 4, "id": 0, "end": 2}
    header, body = length_table([row(length=2000, exact=0.94, low=0.9, high=0.97, first_error=errors), row()])
    assert body[0] == ["2,000", "100", "0.940", "0.900-0.970", "0.9877", "1.0000", "4 token, 2 end; median index 3.5"]
    assert body[1][-1] == "none"
    assert len(header) == len(body[0])


def test_the_table_of_one_run_names_variants_where_there_are_any():
    header, body = length_table([row(variant="uniform"), row(variant="carry")])
    assert header[0] == "variant"
    assert [line[0] for line in body] == ["uniform", "carry"]
    assert len(header) == len(body[0])
    assert "variant" not in length_table([row()])[0]


class Drawn:
    """What was handed to matplotlib."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: dict[str, tuple[list[int], list[float], str]] = {}
        self.bands: list[tuple[list[int], list[float], list[float]]] = []
        plot, fill_between, vlines = Axes.plot, Axes.fill_between, Axes.vlines
        self.bars = []

        def plotted(axes: Axes, x: Any, y: Any, style: str, **how: Any) -> Any:
            self.lines[how["label"]] = (list(x), list(y), style)
            return plot(axes, x, y, style, **how)

        def filled(axes: Axes, x: Any, low: Any, high: Any, **how: Any) -> Any:
            self.bands.append((list(x), list(low), list(high)))
            return fill_between(axes, x, low, high, **how)

        def barred(axes: Axes, x: Any, low: Any, high: Any, **how: Any) -> Any:
            self.bars.append((list(x), list(low), list(high)))
            return vlines(axes, x, low, high, **how)

        monkeypatch.setattr(Axes, "vlines", barred)
        monkeypatch.setattr(Axes, "plot", plotted)
        monkeypatch.setattr(Axes, "fill_between", filled)


def test_drawing_writes_both_files_and_tells_the_first(tmp_path):
    path = draw(ROWS, tmp_path, "parity")
    assert path == tmp_path / "figure.png"
    assert {each.name for each in tmp_path.iterdir()} == {"figure.png", "figure.svg"}
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (tmp_path / "figure.svg").read_text()


def test_every_task_has_a_panel_of_its_own(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(report, "save_figure", lambda figure, folder: figures.append(figure) or folder)
    draw([*ROWS, row("sorted", 10, 1.0, task="sort", train_lengths=[1, 10])], tmp_path, "arithmetic")
    first, second = figures[0].axes
    assert (first.get_title(), second.get_title()) == ("arithmetic: parity", "arithmetic: sort")
    assert [text.get_text() for text in second.get_legend().get_texts()] == ["trained on 1-10", "sorted"]


def test_every_variant_has_a_panel_and_a_label_its_color(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(report, "save_figure", lambda figure, folder: figures.append(figure) or folder)
    labels = [f"row {number}" for number in range(15)]
    draw([row(f"{label}, {v}", variant=v) for v in ("plain", "carry") for label in labels], tmp_path, "addition")
    assert [axes.get_title() for axes in figures[0].axes] == ["addition: plain", "addition: carry"]
    for axes in figures[0].axes:
        own = {line.get_label(): line.get_color() for line in axes.get_lines()}
        assert list(own) == labels
        assert len(set(own.values())) == 15
    # A line of the list is a fifth of an inch, and the list no higher than the panel.
    assert figures[0].get_size_inches()[1] == 2 * (1.2 + 0.2 * 15)


def test_bands_reach_from_the_lowest_to_the_highest_seed(tmp_path, monkeypatch):
    drawn = Drawn(monkeypatch)
    draw(ROWS, tmp_path, "parity")
    assert drawn.lines["PPC"] == ([20, 2000], [1.0, 0.625], "-")
    assert drawn.bands[0] == ([20, 2000], [1.0, 0.5], [1.0, 0.75])


def test_a_length_that_one_of_several_seeds_reached_has_a_bar_of_its_own(tmp_path, monkeypatch):
    drawn = Drawn(monkeypatch)
    draw([row(exact=1.0), row(exact=0.5), row(length=2000, exact=0.5)], tmp_path, "parity")
    low, high = wilson_interval(50, 100)
    assert drawn.bands == [([20], [0.5], [1.0])]
    assert drawn.bars == [([2000], [low], [high])]


def test_one_seed_has_bars_that_are_its_interval(tmp_path, monkeypatch):
    drawn = Drawn(monkeypatch)
    draw([row(exact=0.5)], tmp_path, "parity")
    low, high = wilson_interval(50, 100)
    assert drawn.bars == [([20], [low], [high])]
    assert drawn.bands == []


def test_a_row_that_did_not_fit_is_dotted_and_named_so_and_lengths_without_runs_are_left_out(tmp_path, monkeypatch):
    drawn = Drawn(monkeypatch)
    draw(ROWS, tmp_path, "parity")
    assert set(drawn.lines) == {"PPC", "NoPE", "ALiBi (did not fit)"}
    assert drawn.lines["NoPE"][2] == "-"
    assert drawn.lines["ALiBi (did not fit)"] == ([20], [0.0], ":")


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    missing = tmp_path / "missing"
    with pytest.raises(RunFolderError, match=rf"cannot draw into {missing} \(.*\); choose a writable folder"):
        draw(ROWS, Path(missing), "parity")

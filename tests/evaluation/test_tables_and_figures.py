"""Tables and figures: values over seeds, fit status, order of rows, and the data of figures."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes

from lengthwise.core.errors import RunFolderError
from lengthwise.evaluation import tables_and_figures as report
from lengthwise.evaluation.exact_match import wilson_interval
from lengthwise.evaluation.tables_and_figures import draw, group_rows, length_table, pool_seeds, table


def row(label: str = "PPC", length: int = 20, exact: float = 1.0, **changes: Any) -> dict[str, Any]:
    """Return a result row with the keys of tables and figures."""
    return {
        "row": label,
        "task": "parity",
        "told": "scratchpad, ID range",
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


# Unsorted lengths with two seeds each; NoPE fits with one seed, ALiBi with none.
ROWS = [
    *(row("PPC", length, exact, seed=seed) for seed in (0, 1) for length, exact in ((2000, 0.5 + seed / 4), (20, 1.0))),
    *(row("NoPE", length, 0.1, seed=seed, fitted=0.99 - seed / 2) for seed in (0, 1) for length in (20, 2000)),
    *(row("ALiBi", 20, 0.0, seed=seed, fitted=0.25 + seed / 100, steps=500 + seed) for seed in (0, 1)),
]


def test_exact_match_over_seeds_is_weighted_by_examples():
    runs = [row(exact=0.5, num_examples=100), row(exact=1.0, num_examples=300)]
    assert pool_seeds(runs)[0] == 350 / 400


def test_equal_results_of_several_seeds_do_not_narrow_the_interval():
    assert pool_seeds([row(exact=0.75) for _ in range(5)]) == (0.75, *wilson_interval(75, 100))


def test_the_interval_of_different_seeds_is_that_of_their_mean():
    # The critical value of Student's t with 2 degrees of freedom is 4.303.
    value, low, high = pool_seeds([row(exact=exact, num_examples=10_000) for exact in (0.48, 0.5, 0.52)])
    assert (value, low, high) == pytest.approx(
        (0.5, 0.5 - 4.303 * 0.02 / 3**0.5, 0.5 + 4.303 * 0.02 / 3**0.5), abs=1e-5
    )
    assert pool_seeds([row(exact=exact) for exact in (0.0, 1.0)])[1:] == (0.0, 1.0)


def test_exact_match_over_seeds_counts_whole_examples():
    runs = [row(exact=1 / 3, num_examples=3), row(exact=2 / 3, num_examples=3)]
    assert pool_seeds(runs)[0] == 0.5
    # In floating point, 0.29 * 100 is less than 29.
    assert pool_seeds([row(exact=0.29)])[0] == 0.29


def test_the_heading_names_the_population_of_the_interval():
    one, more = [row("a", 10)], [row("a", 10, seed=0), row("a", 10, seed=1), row("b", 10)]
    title = "exact match by length, with the 95% interval over examples"
    assert report.table_title(one) == f"{title} (one seed each; other seeds may differ)"
    assert report.table_title(more) == f"{title} and seeds"


def test_lengths_are_sorted_and_labels_keep_their_order():
    by_label = group_rows(ROWS)
    assert list(by_label) == ["PPC", "NoPE", "ALiBi"]
    assert all(list(by_length) == [20, 2000] for by_length in by_label.values())
    assert [run["seed"] for run in by_label["PPC"][2000]] == [0, 1]
    assert by_label["ALiBi"][2000] == []


@pytest.mark.parametrize(
    ("fitted", "status"),
    [
        ([1.0], "yes"),
        ([0.99], "yes"),
        ([0.989], "did not fit (0.99)"),
        ([0.2, 0.61], "did not fit (0.61)"),
        ([1.0, 0.3], "1 of 2 seeds"),
        ([1.0, 0.99, 1.0], "3 of 3 seeds"),
    ],
)
def test_the_fit_status_counts_the_seeds_that_fit(fitted, status):
    assert report.fit_status([row(fitted=share) for share in fitted]) == status


def test_a_table_has_a_line_per_label_and_a_column_per_length():
    header, body = table(ROWS)
    assert header == [
        "configuration",
        "told",
        "trained on",
        "IDs in training",
        "steps",
        "fits",
        "20\nn=100",
        "2,000\nn=100",
    ]
    assert body[0] == [
        "PPC",
        "scratchpad, ID range",
        "1-20",
        "3-2,047",
        "1,000",
        "2 of 2 seeds",
        f"1.000\n{wilson_interval(100, 100)[0]:.2f}-1.00",
        "0.625\n0.00-1.00",
    ]
    assert [line[5] for line in body] == ["2 of 2 seeds", "1 of 2 seeds", "did not fit (0.26)"]
    assert body[2][4] == "500-501"
    assert body[2][-1] == "-"


def test_a_row_of_an_earlier_version_has_a_dash_for_what_it_was_told():
    old = {name: value for name, value in row("old").items() if name != "told"}
    assert [line[1] for line in table([old, row("new", told="nothing"), {**old, "row": "new"}])[1]] == ["-", "nothing"]


def test_a_column_header_has_the_range_of_examples_per_seed():
    header, _ = table([row(num_examples=64), row("NoPE", num_examples=512), row("NoPE", seed=1, num_examples=512)])
    assert header[-1] == "20\nn=64-512"


def test_the_ids_met_cover_all_seeds():
    _, body = table([row(id_range=[7, 90]), row(seed=1, id_range=[9, 1200])])
    assert body[0][3] == "7-1,200"


def test_a_cell_without_runs_is_a_dash():
    assert report.format_value([]) == "-"


def test_a_table_counts_diverged_seeds():
    plain = table(ROWS)
    header, body = table(ROWS, diverged=["PPC", "too fast", "too fast"])
    assert header == plain[0]
    assert [line[0] for line in body] == ["PPC", "NoPE", "ALiBi", "too fast"]
    assert body[0][5] == f"{plain[1][0][5]}, 1 diverged"
    assert body[0][:5] + body[0][6:] == plain[1][0][:5] + plain[1][0][6:]
    assert body[1:3] == plain[1][1:]
    assert body[3] == ["too fast", "-", "-", "-", "-", "2 diverged", "-", "-"]


def test_the_table_of_one_run_has_first_errors_by_length():
    errors = {"median_index": 3.5, "token": 4, "id": 0, "end": 2}
    header, body = length_table([row(length=2000, exact=0.94, low=0.9, high=0.97, first_error=errors), row()])
    assert body[0] == ["2,000", "100", "0.940", "0.900-0.970", "0.9877", "1.0000", "4 token, 2 end; median index 3.5"]
    assert body[1][-1] == "none"
    assert len(header) == len(body[0])


def test_the_table_of_one_run_has_a_variant_column_only_for_variants():
    header, body = length_table([row(variant="uniform"), row(variant="carry")])
    assert header[0] == "variant"
    assert [line[0] for line in body] == ["uniform", "carry"]
    assert len(header) == len(body[0])
    assert "variant" not in length_table([row()])[0]


class PlotRecorder:
    """Recorder of the calls to matplotlib."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: dict[str, tuple[list[int], list[float], str]] = {}
        self.bands: list[tuple[list[int], list[float], list[float]]] = []
        plot, fill_between, vlines = Axes.plot, Axes.fill_between, Axes.vlines
        self.bars = []

        def record_plot(axes: Axes, x: Any, y: Any, style: str, **how: Any) -> Any:
            self.lines[how["label"]] = (list(x), list(y), style)
            return plot(axes, x, y, style, **how)

        def record_band(axes: Axes, x: Any, low: Any, high: Any, **how: Any) -> Any:
            self.bands.append((list(x), list(low), list(high)))
            return fill_between(axes, x, low, high, **how)

        def record_bars(axes: Axes, x: Any, low: Any, high: Any, **how: Any) -> Any:
            self.bars.append((list(x), list(low), list(high)))
            return vlines(axes, x, low, high, **how)

        monkeypatch.setattr(Axes, "vlines", record_bars)
        monkeypatch.setattr(Axes, "plot", record_plot)
        monkeypatch.setattr(Axes, "fill_between", record_band)


def test_drawing_writes_both_files_and_returns_the_png_path(tmp_path):
    path = draw(ROWS, tmp_path, "parity")
    assert path == tmp_path / "figure.png"
    assert {each.name for each in tmp_path.iterdir()} == {"figure.png", "figure.svg"}
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (tmp_path / "figure.svg").read_text()


def test_every_task_has_a_panel(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(report, "save_figure", lambda figure, folder: figures.append(figure) or folder)
    draw([*ROWS, row("sorted", 10, 1.0, task="sort", train_lengths=[1, 10])], tmp_path, "arithmetic")
    first, second = figures[0].axes
    assert (first.get_title(), second.get_title()) == ("arithmetic: parity", "arithmetic: sort")
    assert [text.get_text() for text in second.get_legend().get_texts()] == ["trained on 1-10", "sorted"]


def test_every_variant_has_a_panel_and_every_label_a_color(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(report, "save_figure", lambda figure, folder: figures.append(figure) or folder)
    labels = [f"row {number}" for number in range(15)]
    draw([row(f"{label}, {v}", variant=v) for v in ("plain", "carry") for label in labels], tmp_path, "addition")
    assert [axes.get_title() for axes in figures[0].axes] == ["addition: plain", "addition: carry"]
    for axes in figures[0].axes:
        own = {line.get_label(): line.get_color() for line in axes.get_lines()}
        assert list(own) == labels
        assert len(set(own.values())) == 15
    # A legend line is a fifth of an inch high, and the legend fits into the panel.
    assert figures[0].get_size_inches()[1] == 2 * (1.2 + 0.2 * 15)


def test_bands_show_the_range_over_seeds(tmp_path, monkeypatch):
    plots = PlotRecorder(monkeypatch)
    draw(ROWS, tmp_path, "parity")
    assert plots.lines["PPC"] == ([20, 2000], [1.0, 0.625], "-")
    assert plots.bands[0] == ([20, 2000], [1.0, 0.5], [1.0, 0.75])


def test_a_length_with_a_single_seed_has_a_bar(tmp_path, monkeypatch):
    plots = PlotRecorder(monkeypatch)
    draw([row(exact=1.0), row(exact=0.5), row(length=2000, exact=0.5)], tmp_path, "parity")
    low, high = wilson_interval(50, 100)
    assert plots.bands == [([20], [0.5], [1.0])]
    assert plots.bars == [([2000], [low], [high])]


def test_bars_show_the_interval_of_a_single_seed(tmp_path, monkeypatch):
    plots = PlotRecorder(monkeypatch)
    draw([row(exact=0.5)], tmp_path, "parity")
    low, high = wilson_interval(50, 100)
    assert plots.bars == [([20], [low], [high])]
    assert plots.bands == []


def test_a_label_that_did_not_fit_is_dotted_and_lengths_without_runs_are_omitted(tmp_path, monkeypatch):
    plots = PlotRecorder(monkeypatch)
    draw(ROWS, tmp_path, "parity")
    assert set(plots.lines) == {"PPC", "NoPE", "ALiBi (did not fit)"}
    assert plots.lines["NoPE"][2] == "-"
    assert plots.lines["ALiBi (did not fit)"] == ([20], [0.0], ":")


def test_a_missing_folder_raises_an_error(tmp_path):
    missing = tmp_path / "missing"
    with pytest.raises(RunFolderError, match=rf"cannot save figures in {missing} \(.*\); choose a writable folder"):
        draw(ROWS, Path(missing), "parity")

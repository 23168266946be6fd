"""Tables and figures: values over seeds, fit status, order of rows, and the data of figures."""

import json
import math
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from page_tables import SeedSummary, merge_variants, page_table, summarize_seeds

from lengthwise.core.confidence_intervals import wilson_interval
from lengthwise.core.errors import RunFolderError
from lengthwise.evaluation import tables_and_figures as report
from lengthwise.evaluation.figure_layout import (
    UNFIT_COLOR,
    LineLabel,
    label_lines,
    make_panels,
    set_length_axis,
    spread_labels,
)
from lengthwise.evaluation.grading import skipped_result
from lengthwise.evaluation.result_rows import (
    group_rows,
    label_without_variant,
    longest_exact_length,
    pool_seeds,
    seed_value_range,
    select_unfit_labels,
)
from lengthwise.evaluation.tables_and_figures import (
    draw_result_figure,
    length_table,
    result_tables,
)

STORED_RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def row(label: str = "PPC", length: int = 20, exact: float = 1.0, **changes: Any) -> dict[str, Any]:
    """Return a result row with the keys of tables and figures."""
    return {
        "row": label,
        "task": "parity",
        "given": "scratchpad, ID range",
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


def skipped_row(length: int, **changes: Any) -> dict[str, Any]:
    """Return the row of a length that was not evaluated."""
    return {**row(length=length), **asdict(skipped_result(length, "forced")), **changes}


# Unsorted lengths with two seeds each; NoPE fits with one seed, ALiBi with none.
ROWS = [
    *(row("PPC", length, exact, seed=seed) for seed in (0, 1) for length, exact in ((2000, 0.5 + seed / 4), (20, 1.0))),
    *(row("NoPE", length, 0.1, seed=seed, fitted=0.99 - seed / 2) for seed in (0, 1) for length in (20, 2000)),
    *(row("ALiBi", 20, 0.0, seed=seed, fitted=0.25 + seed / 100, steps=500 + seed) for seed in (0, 1)),
]


def stopped_rows() -> list[dict[str, Any]]:
    """Return the rows of three seeds; two of the seeds stopped at 0 before the longest length."""
    exact_by_seed = {0: (1.0, 0.9, 0.92), 1: (0.5, 0.0, None), 2: (0.0, None, None)}
    return [
        skipped_row(length, row="FIRE", seed=seed) if exact is None else row("FIRE", length, exact, seed=seed)
        for seed, values in exact_by_seed.items()
        for length, exact in zip((20, 50, 100), values, strict=True)
    ]


@pytest.mark.parametrize("path", sorted(STORED_RESULTS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_stored_results_have_a_row_of_every_skipped_length(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    # Other files have measurements of another kind, and needles have the lengths of a tokenizer.
    if {"row", "task", "seed", "length", "num_examples", "exact_match"} <= rows[0].keys() and path.stem != "needles":
        lengths: dict[Any, set[int]] = {}
        runs: dict[Any, list[dict[str, Any]]] = {}
        for each in rows:
            lengths.setdefault((label_without_variant(each), each["task"]), set()).add(each["length"])
            runs.setdefault((label_without_variant(each), each["task"], each.get("variant"), each["seed"]), []).append(
                each
            )
        for (label, task, *_), run_rows in runs.items():
            last = max(run_rows, key=lambda each: each["length"])
            assert last["exact_match"] > 0 or last["length"] == max(lengths[label, task])


def test_a_mean_over_seeds_counts_stopped_seeds_as_zero():
    by_length = group_rows(stopped_rows())["FIRE"]
    values = [pool_seeds(runs)[0] for runs in by_length.values()]
    assert values == pytest.approx([1.5 / 3, 0.9 / 3, 0.92 / 3], abs=0.005)
    # The interval is that of three seeds, one of which is not 0.
    assert pool_seeds(by_length[100])[1:] == pool_seeds([row(exact=exact) for exact in (0.92, 0.0, 0.0)])[1:]
    assert seed_value_range(by_length[100]) == (0.0, 0.92)
    stopped = [each for each in by_length[100] if each["seed"]]
    assert pool_seeds(stopped) == (0.0, None, None)
    assert seed_value_range(stopped[:1]) == (0.0, 0.0)
    assert longest_exact_length([each for runs in by_length.values() for each in runs], 0.5) == 0


def test_a_variant_that_stopped_is_the_worst_variant():
    rows = [
        skipped_row(length, row=f"PPC, {variant}", variant=variant, seed=seed)
        if length == 40 and not exact
        else row(f"PPC, {variant}", length, exact, variant=variant, seed=seed)
        for seed in (0, 1)
        for variant, exact in (("plain", 1.0), ("carry", 0.0))
        for length in (20, 40)
    ]
    merged = merge_variants(rows)
    assert [(each["length"], each["exact_match"]) for each in merged] == [(20, 0.0), (40, 0.0)] * 2


def test_every_cell_has_the_number_of_seeds():
    ((_, _, ((*_, near, middle, far),)),) = result_tables(stopped_rows())
    assert near.splitlines()[2:] == ["3 seeds"]
    assert middle.splitlines()[::2] == ["0.300", "3 seeds"]
    assert far.splitlines()[0] == "0.307"
    assert far.splitlines()[2:] == ["3 seeds", "2 stopped"]
    assert page_table(stopped_rows())[1][0][-3:] == [
        f"0.500 / 0.000 [0.00, {wilson_interval(0, 100)[1]:.2f}] (3)",
        "0.000 / · (3, 1 stopped)",
        "0.000 / · (3, 2 stopped)",
    ]


def test_a_figure_counts_stopped_seeds_as_zero(tmp_path, monkeypatch):
    figure = drawn(stopped_rows(), tmp_path, monkeypatch)
    line = lines_of(figure.axes[0])["FIRE"]
    assert list(line.get_ydata()) == pytest.approx([0.5, 0.3, 0.307], abs=0.001)
    assert bands_of(figure.axes[0])[0] == {(20, 0.0), (20, 1.0), (50, 0.0), (50, 0.9), (100, 0.0), (100, 0.92)}
    assert "3 seeds" in figure.axes[0].get_title(loc="left")


def test_labels_that_did_not_fit_have_a_table_of_their_own():
    assert select_unfit_labels(ROWS) == {"ALiBi"}
    assert select_unfit_labels([row("model", fitted=None), {"row": "text", "loss": 1.0}]) == set()
    # The column "fits" counts no seed, so the label is set apart, also if an easy test is exact.
    assert select_unfit_labels([row(length=length, exact=1.0, fitted=0.5) for length in (10, 40)]) == {"PPC"}
    fit, unfit = result_tables(ROWS)
    assert [line[0] for line in fit[2]] == ["PPC", "NoPE"]
    assert [line[0] for line in unfit[2]] == ["ALiBi"]
    assert fit[1] == unfit[1]
    assert [line[0] for _, _, body in result_tables(ROWS[-2:]) for line in body] == ["ALiBi"]


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
        ([0.989], "no (0.989)"),
        ([0.2, 0.61], "0 of 2 seeds (0.610)"),
        ([1.0, 0.3], "1 of 2 seeds"),
        ([1.0, 0.99, 1.0], "3 of 3 seeds"),
    ],
)
def test_the_fit_status_counts_the_seeds_that_fit(fitted, status):
    assert report.describe_fitting_seeds([row(fitted=share) for share in fitted]) == status


def test_a_table_has_a_line_per_label_and_a_column_per_length():
    (_, header, fit), (_, _, unfit) = result_tables(ROWS)
    body = fit + unfit
    assert header == [
        "configuration",
        "given",
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
        f"1.000\n{wilson_interval(100, 100)[0]:.2f}-1.00\n2 seeds",
        "0.625\n0.00-1.00\n2 seeds",
    ]
    assert [line[5] for line in body] == ["2 of 2 seeds", "1 of 2 seeds", "0 of 2 seeds (0.260)"]
    assert body[2][4] == "500-501"
    assert body[2][-1] == "-"


def test_a_row_of_an_earlier_version_has_a_dash_for_what_it_was_given():
    old = {name: value for name, value in row("old").items() if name != "given"}
    ((_, _, body),) = result_tables([old, row("new", given="nothing"), {**old, "row": "new"}])
    assert [line[1] for line in body] == ["-", "nothing"]


def test_a_column_header_has_the_range_of_examples_per_seed():
    rows = [row(num_examples=64), row("NoPE", num_examples=512), row("NoPE", seed=1, num_examples=512)]
    ((_, header, _),) = result_tables(rows)
    assert header[-1] == "20\nn=64-512"


def test_the_ids_met_cover_all_seeds():
    ((_, _, body),) = result_tables([row(id_range=[7, 90]), row(seed=1, id_range=[9, 1200])])
    assert body[0][3] == "7-1,200"


def test_a_cell_without_runs_is_a_dash():
    assert report.format_value([]) == "-"


def test_a_table_counts_diverged_seeds():
    (_, plain_header, plain), (_, _, plain_unfit) = result_tables(ROWS)
    (_, header, body), (_, _, unfit) = result_tables(ROWS, diverged=["PPC", "too fast", "too fast"])
    assert header == plain_header
    assert [line[0] for line in body] == ["PPC", "NoPE"]
    assert body[0][5] == f"{plain[0][5]}, 1 diverged"
    assert body[0][:5] + body[0][6:] == plain[0][:5] + plain[0][6:]
    assert body[1:] == plain[1:]
    assert unfit == [*plain_unfit, ["too fast", "-", "-", "-", "-", "2 diverged", "-", "-"]]


def test_the_summary_of_seeds_has_the_median_and_the_interval_of_the_worst_seed():
    runs = [row(exact=exact, seed=seed) for seed, exact in enumerate((1.0, 0.5, 0.9, 0.98, 0.97))]
    low, high = wilson_interval(50, 100)
    assert summarize_seeds(runs) == SeedSummary(median=0.97, worst=0.5, low=low, high=high)
    assert summarize_seeds(runs[:1]) == SeedSummary(median=1.0, worst=1.0, low=wilson_interval(100, 100)[0], high=1.0)
    # Two seeds stopped at a shorter length, so two of seven values are 0.
    skipped = [row(exact=0.0, num_examples=0, seed=seed, skipped=True) for seed in (5, 6)]
    assert summarize_seeds(runs + skipped) == SeedSummary(median=0.9, worst=0.0, low=None, high=None)


def test_the_worst_seed_of_losses_has_the_largest_perplexity():
    runs = [{"loss": loss, "low": loss - 0.1, "high": loss + 0.1} for loss in (1.0, 3.0, 2.0)]
    summary = summarize_seeds(runs)
    assert (summary.median, summary.worst) == pytest.approx((math.exp(2.0), math.exp(3.0)))
    assert (summary.low, summary.high) == pytest.approx((math.exp(2.9), math.exp(3.1)))


def test_a_page_table_has_a_line_per_label_and_the_range_of_steps():
    header, body, num_omitted = page_table(ROWS)
    assert header == ["row", "given", "trained on", "steps", "fits", "20 (n=100)", "2,000 (n=100)"]
    assert body[0] == [
        *("PPC", "scratchpad, ID range", "1-20", "1,000", "2 of 2"),
        *("1.000 / 1.000 [0.96, 1.00] (2)", "0.625 / 0.500 [0.40, 0.60] (2)"),
    ]
    assert [line[4] for line in body] == ["2 of 2", "1 of 2", "0 of 2, did not fit"]
    assert body[2][3] == "500-501"
    # ALiBi is at 0 at the shorter length, and evaluation stopped there.
    assert body[2][-1] == "· (2)"
    assert num_omitted == 0
    assert page_table([row("once")])[1][0][-1] == "1.000 [0.96, 1.00] (1)"


def test_a_seed_that_stopped_counts_as_zero_and_other_missing_seeds_are_omitted():
    def last_cell(missing_seed_at_20: float) -> str:
        rows = [row(length=20, exact=missing_seed_at_20, seed=0), row(length=20, seed=1), row(length=40, seed=1)]
        stopped = [] if missing_seed_at_20 else [skipped_row(40, row="PPC", seed=0)]
        return page_table([*rows, *stopped])[1][0][-1]

    assert last_cell(0.0) == "0.500 / · (2, 1 stopped)"
    assert last_cell(0.5) == "1.000 [0.96, 1.00] (1)"


def test_a_page_table_has_at_most_twelve_lines():
    _, body, num_omitted = page_table([row(f"row {number}") for number in range(15)])
    assert [line[0] for line in body] == [f"row {number}" for number in range(12)]
    assert num_omitted == 3


def test_a_page_table_with_many_variants_has_the_worst_variant_of_each_seed():
    rows = [
        # The evaluation of the carry variant of seed 0 stops at its exact match of 0.
        skipped_row(length, row=f"row {number}, {variant}", variant=variant, seed=seed)
        if length == 40 and not exact
        else row(f"row {number}, {variant}", length, exact, variant=variant, seed=seed)
        for number in range(7)
        for seed in (0, 1)
        for variant, exact in (("plain", 1.0), ("carry", seed / 2))
        for length in (20, 40)
    ]
    _, body, num_omitted = page_table(rows)
    assert [line[0] for line in body] == [f"row {number} (worst of 2 variants)" for number in range(7)]
    assert body[0][-2:] == ["0.250 / 0.000 [0.00, 0.04] (2)", "0.250 / · (2, 1 stopped)"]
    assert num_omitted == 0
    # Only the variants of all seeds count.
    one_more = row("row 0, unequal", 20, 0.1, variant="unequal", seed=1)
    assert page_table([*rows, one_more])[1] == body


def test_the_table_of_one_run_has_first_errors_by_length():
    errors = {"median_index": 3.5, "token": 4, "id": 0, "end": 2}
    header, body = length_table([row(length=2000, exact=0.94, low=0.9, high=0.97, first_error=errors), row()])
    assert body[0] == ["2,000", "100", "0.940", "0.900-0.970", "0.9877", "1.0000", "4 token, 2 end; median index 3.5"]
    assert body[1][-1] == "none"
    assert len(header) == len(body[0])
    # A skipped length has no measured value.
    assert length_table([row(length=20, exact=0.0), skipped_row(40)])[1][1:] == [
        ["40", "0", "0 (skipped)", "-", "-", "-", "-"]
    ]


def test_the_table_of_one_run_has_a_variant_column_only_for_variants():
    header, body = length_table([row(variant="uniform"), row(variant="carry")])
    assert header[0] == "variant"
    assert [line[0] for line in body] == ["uniform", "carry"]
    assert len(header) == len(body[0])
    assert "variant" not in length_table([row()])[0]


def test_a_run_without_a_position_head_has_a_dash_instead_of_an_id_accuracy():
    header, body = length_table([row(id_accuracy=None)])
    assert body[0][header.index("IDs")] == "-"


def drawn(rows: list[dict[str, Any]], folder: Path, monkeypatch: pytest.MonkeyPatch, title: str = "parity") -> Figure:
    """Return the figure that ``draw`` saves."""
    figures = []
    monkeypatch.setattr(report, "save_figure", lambda figure, folder: figures.append(figure) or folder)
    draw_result_figure(rows, folder, title)
    return figures[0]


def lines_of(axes: Axes) -> dict[str, Line2D]:
    """Return the lines of a panel by label, without the strokes that connect labels with them."""
    return {str(line.get_label()): line for line in axes.get_lines() if not str(line.get_label()).startswith("_")}


def labels_of(axes: Axes) -> list[Text]:
    """Return the labels beside a panel, without the name of the training range."""
    return [text for text in axes.texts if not text.get_text().startswith("trained on")]


def bands_of(axes: Axes) -> list[set[tuple[float, float]]]:
    """Return the corners of each band of a panel."""
    bands = [each for each in axes.collections if isinstance(each, PolyCollection)]
    return [{(float(x), float(y)) for x, y in each.get_paths()[0].vertices} for each in bands]


def test_drawing_writes_both_files_and_returns_the_png_path(tmp_path):
    path = draw_result_figure(ROWS, tmp_path, "parity")
    assert path == tmp_path / "figure.png"
    assert {each.name for each in tmp_path.iterdir()} == {"figure.png", "figure.svg"}
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (tmp_path / "figure.svg").read_text()


def test_every_task_has_a_panel_and_names_its_seeds_and_training_range(tmp_path, monkeypatch):
    rows = [*ROWS, row("sorted", 10, 1.0, task="sort", train_lengths=[1, 10])]
    first, second = drawn(rows, tmp_path, monkeypatch, "arithmetic").axes
    titles = [axes.get_title(loc="left") for axes in (first, second)]
    assert titles == ["arithmetic: parity, 2 seeds", "arithmetic: sort, 1 seed"]
    assert [text.get_text() for text in second.texts] == ["trained on 1 to 10", "sorted"]
    assert (first.get_legend(), second.get_legend()) == (None, None)
    uneven = [row(), row("NoPE"), row("NoPE", seed=1)]
    assert drawn(uneven, tmp_path, monkeypatch).axes[0].get_title(loc="left") == "parity, 1 to 2 seeds"


def test_every_variant_has_a_panel_and_a_label_has_one_color(tmp_path, monkeypatch):
    # The differences between the lines depend on the variant, so the panels have different lines.
    values = {"plain": [0.1 * number for number in range(8)], "carry": [0.5, 0.5, 0.6, 0.6, 0.7, 0.8, 0.9, 0.0]}
    rows = [
        row(f"row {number}, {variant}", length, exact, variant=variant)
        for variant, exact_values in values.items()
        for number, exact in enumerate(exact_values)
        for length in (20, 200)
    ]
    figure = drawn(rows, tmp_path, monkeypatch, "addition")
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "addition: plain, 1 seed",
        "addition: carry, 1 seed",
    ]
    plain, carry = map(lines_of, figure.axes)
    assert list(plain) == [f"row {number}" for number in (0, 1, 2, 3, 5, 7)]
    assert list(carry) == [f"row {number}" for number in (0, 2, 4, 5, 6, 7)]
    assert all(plain[label].get_color() == carry[label].get_color() for label in plain.keys() & carry.keys())
    assert len({line.get_color() for line in (plain | carry).values()}) == 8
    assert "2 more rows per panel" in figure.texts[0].get_text().replace("\n", " ")


def test_six_labels_remain_those_that_fit_and_differ_most(tmp_path, monkeypatch):
    def line(label: str, far: float, fitted: float = 1.0) -> list[dict[str, Any]]:
        return [row(label, length, exact, fitted=fitted) for length, exact in ((20, fitted), (2000, far))]

    rows = [*line("subject", 0.0, 0.5), *line("high but unfit", 0.9, 0.9), *line("low", 0.1)]
    rows += [each for number in (2, 3, 4, 5, 6) for each in line(f"{number} tenths", number / 10)]
    figure = drawn(rows, tmp_path, monkeypatch)
    names = ["subject (did not fit)", "low", *(f"{number} tenths" for number in (2, 3, 4, 6))]
    assert list(lines_of(figure.axes[0])) == names
    assert sorted(text.get_text().replace("\n", " ") for text in labels_of(figure.axes[0])) == sorted(names)
    assert figure.texts[0].get_text().replace("\n", " ").endswith("only in the table: 2 more rows.")
    assert "only in the table" not in drawn(ROWS, tmp_path, monkeypatch).texts[0].get_text()


def test_lines_that_fail_are_drawn_before_lines_that_look_equal(tmp_path, monkeypatch):
    exact = {"subject": 1.0, **{f"same {number}": 1.0 - number / 100 for number in range(5)}, "some": 0.5, "none": 0.0}
    rows = [row(label, length, value) for label, far in exact.items() for length, value in ((20, 1.0), (2000, far))]
    rows += [row("unfit", length, 0.2, fitted=0.2) for length in (20, 2000)]
    (axes,) = drawn(rows, tmp_path, monkeypatch).axes
    assert list(lines_of(axes))[:1] == ["subject"]
    assert {"some", "none", "unfit (did not fit)"} <= lines_of(axes).keys()
    assert len(lines_of(axes)) == 6


def test_the_shaded_lengths_are_those_on_which_all_lines_were_trained(tmp_path, monkeypatch):
    rows = [row("longer", length, train_lengths=[1, 30]) for length in (20, 30, 2000)]
    rows += [row("shorter", length, train_lengths=[2, 20]) for length in (20, 30, 2000)]
    (axes,) = drawn(rows, tmp_path, monkeypatch).axes
    (area,) = [each for each in axes.patches if isinstance(each, Rectangle)]
    assert area.get_x() + area.get_width() == 20
    colors = {label: line.get_color() for label, line in lines_of(axes).items()}
    hollow = {
        (line.get_color(), *line.get_xdata()) for line in axes.get_lines() if line.get_markerfacecolor() == "white"
    }
    assert hollow == {(colors["longer"], 20), (colors["longer"], 30), (colors["shorter"], 20)}
    # Without a common length, nothing is shaded.
    apart = [*rows[:3], row("far", 2000, train_lengths=[100, 2000])]
    assert not drawn(apart, tmp_path, monkeypatch).axes[0].patches


LONG_LABELS = ["PPC", "rotary + PoSE, four layers and three times the training steps", *(f"row {n}" for n in range(8))]


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["zero", "one", "spread"])
@pytest.mark.parametrize("num_labels", [1, 3, 6, 10])
@pytest.mark.parametrize("num_panels", [1, 6])
def test_labels_are_inside_the_figure_and_never_overlap(num_panels, num_labels, ends, tmp_path, monkeypatch):
    values = {"zero": [0.0] * 10, "one": [1.0] * 10, "spread": [number / 10 for number in range(10)]}[ends]
    rows = [
        row(label, length, values[number], variant=f"variant {panel}", seed=seed)
        for panel in range(num_panels)
        for number, label in enumerate(LONG_LABELS[:num_labels])
        for length in (20, 40, 2000, 4000, 20_000)
        for seed in (0, 1)
    ]
    figure = drawn([{**each, "fitted": each["seed"] * 0.5} for each in rows], tmp_path, monkeypatch, "a title " * 12)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    width, height = (inches * figure.dpi for inches in figure.get_size_inches())
    for axes in figure.axes:
        texts = [*axes.texts, *(axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label), *figure.texts]
        boxes = [text.get_window_extent(renderer) for text in (*texts, *axes.get_xticklabels()) if text.get_text()]
        assert len(labels_of(axes)) == min(num_labels, 6)
        assert all(text.get_fontsize() >= 9 for text in texts if text.get_text())
        assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height for box in boxes)
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_panels_in_two_columns_do_not_overlap():
    titles = ["a title of a panel " * number for number in (1, 3, 2)]
    figure, panels = make_panels(titles, [["first line", "second line"]] * 3, "A caption.", num_columns=2)
    for axes in panels:
        axes.set(xlabel="length", ylabel="exact match")
        set_length_axis(axes, [2, 4, 8], (1, 2))
        label_lines(axes, [LineLabel(text=text, color="black", value=1.0) for text in ("first line", "second line")])
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    left, right, below = boxes = [axes.get_tightbbox(canvas.get_renderer()) for axes in panels]
    assert left.x1 < right.x0
    assert below.y1 < min(left.y0, right.y0)
    assert below.y0 > figure.texts[0].get_window_extent().y1
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1 for box in boxes)
    # Panels of a row have the same height, although their titles differ in height.
    assert panels[0].get_position().y0 == panels[1].get_position().y0


def test_dollar_signs_in_titles_and_captions_are_no_formulas():
    figure, _ = make_panels([r"$\no$ formula"], [[]], r"$\no$ formula")
    FigureCanvasAgg(figure).draw()


def test_bands_show_the_range_over_seeds(tmp_path, monkeypatch):
    figure = drawn(ROWS, tmp_path, monkeypatch)
    line = lines_of(figure.axes[0])["PPC"]
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([20, 2000], [1.0, 0.625])
    assert bands_of(figure.axes[0])[0] == {(20, 1.0), (2000, 0.5), (2000, 0.75)}
    assert "bands: range from the lowest to the highest seed;" in figure.texts[0].get_text().replace("\n", " ")


def test_bands_of_a_single_seed_show_its_interval(tmp_path, monkeypatch):
    figure = drawn([row(exact=0.5), row(length=2000, exact=0.5)], tmp_path, monkeypatch)
    low, high = wilson_interval(50, 100)
    assert bands_of(figure.axes[0]) == [{(20, low), (20, high), (2000, low), (2000, high)}]
    assert figure.texts[0].get_text() == "Bands: 95% interval over examples."


def test_a_length_with_a_single_seed_has_the_interval_of_this_seed(tmp_path, monkeypatch):
    figure = drawn([row(exact=1.0), row(exact=0.5), row(length=2000, exact=0.5)], tmp_path, monkeypatch)
    low, high = wilson_interval(50, 100)
    assert bands_of(figure.axes[0]) == [{(20, 0.5), (20, 1.0), (2000, low), (2000, high)}]
    assert "(95% interval over examples where there is one seed)" in figure.texts[0].get_text().replace("\n", " ")


def test_a_label_with_a_single_length_has_a_bar(tmp_path, monkeypatch):
    (axes,) = drawn([row(exact=0.5)], tmp_path, monkeypatch).axes
    (bar,) = [each for each in axes.collections if isinstance(each, LineCollection)]
    low, high = wilson_interval(50, 100)
    assert bar.get_segments()[0].tolist() == [[20, low], [20, high]]


def test_a_label_that_did_not_fit_is_dashed_gray_and_lengths_without_runs_are_omitted(tmp_path, monkeypatch):
    figure = drawn(ROWS, tmp_path, monkeypatch)
    lines = lines_of(figure.axes[0])
    assert {label: line.get_linestyle() for label, line in lines.items()} == {
        "PPC": "-",
        "NoPE": "-",
        "ALiBi (did not fit)": "--",
    }
    assert [label for label, line in lines.items() if line.get_color() == UNFIT_COLOR] == ["ALiBi (did not fit)"]
    assert lines["ALiBi (did not fit)"].get_zorder() < min(lines[label].get_zorder() for label in ("PPC", "NoPE"))
    assert list(lines["ALiBi (did not fit)"].get_xdata()) == [20]
    assert report.UNFIT_NOTE in figure.texts[0].get_text().replace("\n", " ")


def test_boxes_are_spread_as_near_as_possible_to_their_places():
    assert spread_labels([1.0, 5.0], [1.0, 1.0], 0.0, 6.0) == [1.0, 5.0]
    assert spread_labels([3.0, 3.0, 3.0], [1.0, 1.0, 1.0], 0.0, 6.0) == [2.0, 3.0, 4.0]
    assert spread_labels([0.0, 0.0, 5.0], [1.0, 2.0, 1.0], 0.0, 6.0) == [0.5, 2.0, 5.0]
    assert spread_labels([6.0, 6.0], [1.0, 2.0], 0.0, 6.0) == [3.5, 5.0]


def test_a_missing_folder_raises_an_error(tmp_path):
    missing = tmp_path / "missing"
    with pytest.raises(RunFolderError, match=rf"cannot save figures in {missing} \(.*\); choose a writable folder"):
        draw_result_figure(ROWS, Path(missing), "parity")


@pytest.mark.parametrize(
    ("values", "longest"),
    [
        ({2: [1.0], 4: [1.0], 8: [1.0]}, 8),
        ({2: [1.0], 4: [0.89], 8: [1.0]}, 2),
        ({2: [0.9], 4: [0.9, 0.5]}, 2),
        ({2: [0.0]}, 0),
    ],
    ids=["all", "a gap ends it", "the worst variant counts", "none"],
)
def test_the_longest_exact_length_ends_before_the_first_length_below_the_threshold(values, longest):
    rows = [{"length": length, "exact_match": value} for length, each in values.items() for value in each]
    assert longest_exact_length(rows[::-1], 0.9) == longest

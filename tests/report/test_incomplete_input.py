"""The page of runs that are unfinished, have numbers that are not finite, or are passed in unusual ways."""

import json
import math
import os

import pytest
from tests.cli.test_cli import error_of, output_of
from tests.report.test_report_page import Page, charts_of, page_of, result_row, write_run

from lengthwise.core.errors import LengthwiseError
from lengthwise.experiments.run_folder import write_rows_with_digest
from lengthwise.report.chart import ReportTable, hover_text, truncate_labels
from lengthwise.report.folders import StudyRecord
from lengthwise.report.page import write_report
from lengthwise.report.result_charts import heat_map
from lengthwise.report.sections import study_charts

NAN, INF = math.nan, math.inf


def write_comparison(folder, runs):
    """Write a comparison of runs; ``runs`` maps each label to its folder name and its rows."""
    for name, rows in runs.values():
        write_run(folder / name / "seed-0", rows)
        (folder / name / "seed-0" / "results.jsonl").unlink()
        write_rows_with_digest(folder / name / "seed-0" / "compared.jsonl", rows)
    (folder / "comparison.json").write_text(json.dumps({"comparison": {}}))
    labelled = [{"row": label, **row} for label, (_, rows) in runs.items() for row in rows]
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in labelled))
    return folder


def write_evaluation(folder, *rows):
    """Write results of models without a run, as ``evaluate --out`` and `EvaluateByLength` write them."""
    folder.mkdir()
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_evaluations_of_models_without_a_run_share_a_section(tmp_path):
    measured = {
        "task": "parity",
        "seed": 0,
        "length": 5,
        "num_examples": 8,
        "exact_match": 0.5,
        "low": 0.2,
        "high": 0.8,
    }
    model = write_evaluation(tmp_path / "model", measured | {"shots": 0}, measured | {"shots": 1})
    # The callback writes null for the training lengths, and no task for custom examples.
    steps = [measured | {"train_lengths": None, "steps": step, "exact_match": step / 20} for step in (10, 20)]
    trainer = write_evaluation(
        tmp_path / "trainer", *steps, {name: value for name, value in steps[1].items() if name != "task"}
    )
    text = page_of(tmp_path, model, trainer)
    lines = charts_of(text)[0]["data"]
    assert [line["text"][0].split("<br>")[0] for line in lines] == ["model, shots 0", "model, shots 1", "trainer"]
    assert [line["y"] for line in lines] == [[0.5], [0.5], [1.0]]
    assert "Configurations: 3. Runs: 0. Result rows: 4." in text
    assert "The training lengths are unknown." in text
    assert "evaluations model, trainer" in text


def write_metrics(run, *losses, end="\n"):
    lines = [json.dumps({"step": 10 * step, "loss": loss}) for step, loss in enumerate(losses, start=1)]
    (run / "metrics.jsonl").write_text("\n".join(lines) + end)


def test_rows_without_a_finite_value_are_left_out_and_named(tmp_path):
    run = write_run(tmp_path / "run", [result_row(10, 1.0), result_row(20, NAN), result_row(40, 0.5, low=NAN)])
    text = page_of(tmp_path, run)
    (line,) = charts_of(text)[0]["data"]
    assert (line["x"], line["y"]) == ([10, 40], [1.0, 0.5])
    assert "The charts leave out 1 of 3 result rows, whose value is not finite" in text
    assert "exceeds 690: run, seed 0, length 20." in text
    assert "leave out 1 intervals with bounds that are not finite: run, seed 0, length 40." in text


def test_a_page_of_rows_without_any_finite_value_has_no_accuracy_chart(tmp_path):
    run = write_run(tmp_path / "run", [result_row(length, None) for length in range(1, 9)])
    text = page_of(tmp_path, run)
    assert len(charts_of(text)) == 1
    assert "length 1; run, seed 0, length 2; run, seed 0, length 3; 5 more." in text


def loss_row(length, loss, **more):
    row = result_row(length, 0.0, task="text", low=loss, high=loss, **more)
    return {name: value for name, value in row.items() if name != "exact_match"} | {"loss": loss}


def test_losses_without_a_finite_perplexity_are_left_out(tmp_path):
    losses = {1: 0.0, 2: 689.0, 3: 710.0, 4: INF, 5: -1000.0}
    run = write_run(tmp_path / "run", [loss_row(length, loss) for length, loss in losses.items()])
    text = page_of(tmp_path, run)
    (line,) = charts_of(text)[0]["data"]
    assert line["y"] == [1.0, math.exp(689.0)]
    assert "leave out 3 of 5 result rows" in text
    assert f"{math.exp(689.0):.3e}" in Page(text).cells


def test_losses_that_are_not_finite_leave_the_other_steps_in_the_loss_curve(tmp_path):
    run = write_run(tmp_path / "run", [result_row(20, 0.75)])
    write_metrics(run, 2.0, NAN, INF, 1.0)
    text = page_of(tmp_path, run)
    (line,) = charts_of(text)[1]["data"]
    assert (line["x"], line["y"]) == ([10, 40], [2.0, 1.0])
    assert "Training loss: the chart leaves out logged losses that are not finite (2 of run)." in text


def test_an_incomplete_last_line_of_the_log_is_ignored(tmp_path):
    run = write_run(tmp_path / "run", [result_row(20, 0.75)])
    write_metrics(run, 2.0, 1.0, end='\n{"step": 30, "lo')
    assert charts_of(page_of(tmp_path, run))[1]["data"][0]["x"] == [10, 20]


def test_the_page_shows_the_state_of_a_run_without_results(tmp_path):
    run = write_run(tmp_path / "run", [])
    (run / ".lock").write_text("")
    done = write_run(tmp_path / "done", [])
    (done / "model.safetensors").write_bytes(b"")
    text = page_of(tmp_path, run, done, write_run(tmp_path / "with-results", [result_row(20, 1.0)]))
    assert "Unfinished runs and runs without results: 1 running; 1 finished, not evaluated." in text
    cells = Page(text).cells
    assert cells[cells.index("running") - 1 :][:4] == ["run", "running", "10 of 20", "-"]
    assert cells[cells.index("finished, not evaluated") + 3] == "setting"


def test_the_page_shows_the_waiting_runs_of_a_comparison(tmp_path):
    folder = tmp_path / "both"
    write_run(folder / "a" / "seed-0", [])
    experiment = {"seed": 0, "training": {"steps": 20}}
    comparison = {"experiments": {"a": experiment, "b": experiment}, "num_seeds": 1}
    (folder / "comparison.json").write_text(json.dumps({"comparison": comparison}))
    text = page_of(tmp_path, folder)
    assert "Unfinished runs and runs without results: 1 stopped; 1 waiting." in text
    assert {"a/seed-0", "b/seed-0"} <= set(Page(text).cells)


@pytest.mark.parametrize("content", [{"experiments": []}, {"experiments": {"a": 1}, "num_seeds": 10**30}], ids=str)
def test_a_damaged_list_of_the_runs_of_a_comparison_leaves_out_waiting_runs(tmp_path, content):
    run = write_run(tmp_path / "both" / "a" / "seed-0", [])
    (run / "experiment.json").write_text(json.dumps({"experiment": {"seed": 0, "training": 1}}))
    (tmp_path / "both" / "comparison.json").write_text(json.dumps({"comparison": content}))
    assert "runs without results: 1 stopped." in page_of(tmp_path, tmp_path / "both")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("results.jsonl", '{"row": 1', "results.jsonl line 1 is damaged"),
        ("results.jsonl", '{"task": 3}', "results.jsonl line 1 has an invalid task 3 instead of a string; delete this"),
        ("metrics.jsonl", '{"step": 1, "lo\n{}\n', "metrics.jsonl line 1 is damaged"),
        ("metrics.jsonl", '{"step": 1, "loss": "x"}\n', "metrics.jsonl line 1 has an invalid loss 'x' instead of a"),
    ],
    ids=["incomplete row", "wrong type", "incomplete step", "no number"],
)
def test_damaged_lines_end_the_command_with_one_line_and_status_2(tmp_path, capsys, name, content, message):
    run = write_run(tmp_path / "run", [result_row(20, 0.75)])
    (run / name).write_text(content)
    assert message in error_of(["report", str(run), "--out", str(tmp_path / "page.html")], capsys)
    assert not (tmp_path / "page.html").exists()


def test_shares_of_a_study_that_are_not_finite_are_left_out(tmp_path):
    shares = [{"value": value, "low": None, "high": None} for value in (0.25, NAN, None)]
    group = {"mode": "strict", "knows": "prediction", "from": "own", "measure": "gain"}
    group |= {"all_targets": {"prediction": {"shares": shares}}, "distances": {"bins": [], "gain": 0.0}}
    summary = {"ks": [1, 2, 4], "groups": [group]}
    (chart,) = study_charts(StudyRecord(name="study", folder=tmp_path, summary=summary, texts=None))
    assert chart.traces[0]["x"] == [1]
    assert chart.notes[-1] == "The chart leaves out 1 shares that are not finite."


def test_each_task_has_its_own_labels_value_and_training_area(tmp_path):
    rows = [result_row(20, 0.1 * index, task=f"task {index}", train_lengths=[1, 10 + index]) for index in range(3)]
    folders = [write_run(tmp_path / f"run-{index}", [row]) for index, row in enumerate(rows)]
    folders.append(write_run(tmp_path / "text", [loss_row(64, 0.5, train_lengths=[8, 32])]))
    for index, folder in enumerate(folders):
        experiment = {"task": {"name": f"task {index}"}, "training": {"steps": 20}, "seed": 0}
        (folder / "experiment.json").write_text(json.dumps({"experiment": experiment}))
    text = page_of(tmp_path, *folders)
    charts = charts_of(text)
    assert [chart["layout"]["shapes"][0]["x1"] for chart in charts[:4]] == [10, 11, 12, 32]
    assert [chart["layout"]["yaxis"]["title"]["text"] for chart in charts[:4]] == ["exact match"] * 3 + ["perplexity"]
    assert [len(chart["data"]) for chart in charts[4:]] == [1, 1, 1, 1]
    assert "Training loss: task 2" in text
    assert "All result rows with exact match" in text
    assert "All result rows with loss" in text


def test_different_training_lengths_of_one_task_have_their_own_areas(tmp_path):
    rows = {"a": result_row(20, 0.5), "b": result_row(20, 0.5, train_lengths=[1, 20])}
    text = page_of(tmp_path, *(write_run(tmp_path / name, [row]) for name, row in rows.items()))
    assert [shape["x1"] for shape in charts_of(text)[0]["layout"]["shapes"]] == [10, 20]
    assert "which differ between configurations: 1 to 10; 1 to 20." in text


def test_a_folder_that_is_passed_twice_counts_once(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", [result_row(20, 0.75)])
    other = write_run(tmp_path / "other", [result_row(20, 0.75)])
    (tmp_path / "link").symlink_to(run)
    monkeypatch.chdir(tmp_path)
    counts = write_report([run, other, "run", "link", "other/../run"], "page.html", diagnose=False)
    assert (counts["runs"], counts["rows"]) == (2, 2)
    (first, second) = charts_of((tmp_path / "page.html").read_text())[0]["data"]
    assert [each["text"][0].split("<br>")[0] for each in (first, second)] == ["run", "other"]


def test_the_present_folder_has_its_name_as_label(tmp_path, monkeypatch):
    monkeypatch.chdir(write_run(tmp_path / "run", [result_row(20, 0.75)]))
    write_report(["."], "page.html", diagnose=False)
    assert "<h2>run run</h2>" in (tmp_path / "run" / "page.html").read_text()


def test_names_with_control_characters_and_bytes_that_are_not_utf8_stay_readable(tmp_path):
    name = os.fsdecode(b"run-\xff\x1b[31m")
    try:
        run = write_run(tmp_path / name, [result_row(20, 0.75, task="a\u202eb\x00")], note="\x07bell")
    except OSError:
        pytest.skip("this file system has only names in UTF-8")
    text = page_of(tmp_path, run)
    assert "<h2>run run-\\udcff\\x1b[31m</h2>" in text
    assert "a\\u202eb\\x00: exact match against length" in text
    assert "\\x07bell" in Page(text).cells
    assert charts_of(text)[0]["data"][0]["text"][0].startswith("run-\\udcff\\x1b[31m<br>")


def test_settings_have_the_order_of_the_result_rows(tmp_path):
    runs = {"late": ("z", [result_row(20, 0.9)]), "early": ("a", [result_row(20, 0.1)])}
    folder = write_comparison(tmp_path / "both", runs)
    experiment = {"task": {"name": "parity"}, "training": {"steps": 50}, "seed": 0}
    (folder / "a" / "seed-0" / "experiment.json").write_text(json.dumps({"experiment": experiment}))
    cells = Page(page_of(tmp_path, folder)).cells
    header = cells.index("setting")
    assert cells[header : header + 3] == ["setting", "late", "early"]


def test_cut_labels_stay_different_and_keep_their_full_text():
    same_start, same_ends = ["a" * 40 + "1", "a" * 40 + "2"], ["a" * 40 + "1" + "b" * 40, "a" * 40 + "2" + "b" * 40]
    for labels in (["short", "x" * 50], same_start, same_ends, ["short", "short 2"]):
        names = truncate_labels(labels)
        assert len(set(names)) == len(labels)
        assert all(len(name) <= 28 for name in names)
    rows = [{"row": label, **result_row(20, 0.5)} for label in same_start]
    chart = heat_map("task", rows).to_json()
    assert chart["ticks"] == dict(zip(chart["layout"]["yaxis"]["ticktext"], same_start, strict=True))


def test_a_long_name_wraps_in_the_hover_text():
    assert hover_text("a" * 70, "b") == "a" * 60 + "<br />" + "a" * 10 + "<br>b"


def test_large_heat_maps_and_tables_name_what_they_leave_out():
    rows = [{"row": f"label {index}", **result_row(20, 0.5)} for index in range(60)]
    rows += [{"row": "label 0", **result_row(length, 0.5)} for length in range(21, 222)]
    chart = heat_map("task", rows)
    assert (len(chart.table.body), len(chart.table.header)) == (50, 201)
    (note,) = chart.notes
    assert "show the first 50 of 60 configurations and the shortest 200 of 202 lengths." in note
    table = ReportTable(title="", header=["a", "b"], body=[["x" * 400, "y"]] * 50_000)
    lines = table.shown_rows
    assert len(lines) == 25_000
    assert lines[0][0] == "x" * 299 + "…"
    assert table.omission_note.startswith("The table shows the first 25,000 of 50,000 lines")
    assert ReportTable(title="", header=["a"], body=[["b"]]).omission_note == ""


def test_the_page_overwrites_no_other_file(tmp_path):
    run = write_run(tmp_path / "run", [result_row(20, 0.75)])
    before = (run / "experiment.json").read_bytes()
    with pytest.raises(
        LengthwiseError, match=r"experiment.json does not end in .html; use a name such as report.html$"
    ):
        write_report([run], run / "experiment.json")
    assert (run / "experiment.json").read_bytes() == before
    write_report([run], tmp_path / "PAGE.HTML", diagnose=False)


def test_charts_pass_the_keys_of_screen_readers_to_the_page(tmp_path):
    tags = Page(page_of(tmp_path, write_run(tmp_path / "run", [result_row(20, 0.75)]))).tags
    plots = [attributes for _, attributes in tags if attributes.get("class") == "plot"]
    assert [plot["role"] for plot in plots] == ["application", "application"]
    assert all(plot["aria-label"].endswith("Use the arrow keys to read points.") for plot in plots)


def test_the_command_names_runs_without_results(tmp_path, capsys):
    run = write_run(tmp_path / "run", [])
    lines = output_of(["report", str(run), "--out", str(tmp_path / "report.html")], capsys)[0].splitlines()
    assert lines[0] == "runs: 1; result rows: 0; influence studies: 0"
    assert lines[1].startswith("these runs have no results yet")

"""The page of a report: its numbers are those of the rows, hostile text stays text, and it loads no other file."""

import json
import re
from html import unescape
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from lengthwise.core.errors import LengthwiseError, RunFolderError
from lengthwise.experiments.run_folder import MODEL
from lengthwise.report import sections
from lengthwise.report.page import write_report
from lengthwise.tasks import JSONLTask

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"


def result_row(length, exact_match, seed=0, **more):
    facts = {"task": "parity", "num_examples": 64, "low": 0.0, "high": 1.0, "train_lengths": [1, 10]}
    facts |= {"id_range": [0, 99], "steps": 20, "fitted": 1.0, "variant": None}
    return {**facts, "length": length, "exact_match": exact_match, "seed": seed, **more}


def write_run(folder, rows, **settings):
    folder.mkdir(parents=True)
    experiment = {"task": {"name": "parity"}, "training": {"steps": 20, **settings}, "seed": 0}
    (folder / "experiment.json").write_text(json.dumps({"experiment": experiment}))
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 10, "loss": 1.25}) + "\n")
    return folder


class Page(HTMLParser):
    """The tags of a page with their attributes, and the texts of its table cells."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.cells, self.in_cell = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        """Record a tag, and start a cell."""
        self.tags.append((tag, dict(attrs)))
        self.in_cell = tag in ("td", "th", "mark")
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data):
        """Add text to the current cell."""
        if self.in_cell:
            self.cells[-1] += data.strip()


def page_of(tmp_path, *folders):
    out = tmp_path / "report.html"
    counts = write_report(list(folders), out, diagnose=False)
    text = out.read_text()
    assert counts["bytes"] == len(text.encode())
    return text


def charts_of(text):
    return json.loads(re.search(r'<script type="application/json" id="charts">(.*?)</script>', text).group(1))


def test_the_chart_and_the_table_have_the_numbers_of_the_rows(tmp_path):
    text = page_of(tmp_path, write_run(tmp_path / "run", [result_row(20, 0.75), result_row(10, 1.0)]))
    (line,) = charts_of(text)[0]["data"]
    assert (line["x"], line["y"]) == ([10, 20], [1.0, 0.75])
    assert "length 20: exact match 0.750" in line["text"][1]
    assert "n = 64, seed 0" in line["text"][1]
    assert {"0.750", "1.000"} <= set(Page(text).cells)


def write_comparison(folder, rows):
    folder.mkdir(parents=True)
    (folder / "comparison.json").write_text(json.dumps({"comparison": {"experiments": {}, "num_seeds": 3}}))
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_charts_and_tables_count_a_stopped_seed_as_zero(tmp_path):
    rows = [
        result_row(length, exact, seed=seed, row=label)
        for label in ("PPC", "FIRE")
        for seed, values in enumerate(((1.0, 0.75), (0.0,), (0.0,)))
        for length, exact in zip((10, 20), values, strict=False)
    ]
    facts = {"num_examples": 0, "skipped": True}
    rows += [result_row(20, 0.0, seed=seed, row=label, **facts) for label in ("PPC", "FIRE") for seed in (1, 2)]
    text = page_of(tmp_path, write_comparison(tmp_path / "comparison", rows))
    line, heat_map = charts_of(text)[0]["data"][0], charts_of(text)[1]["data"][0]
    assert line["y"] == [pytest.approx(1 / 3, abs=0.01), 0.25]
    assert heat_map["z"] == [[pytest.approx(1 / 3, abs=0.01), 0.25]] * 2
    # The bar goes from the worst to the best seed.
    assert (line["error_y"]["array"][1], line["error_y"]["arrayminus"][1]) == (0.5, 0.25)
    assert {"0.250 (3, 2 stopped)", "3, 2 stopped"} <= set(Page(text).cells)


def test_configurations_that_did_not_fit_are_set_apart(tmp_path):
    rows = [
        result_row(length, exact, row=label, fitted=fitted)
        for label, fitted in (("unfit", 0.5), ("fit", 1.0))
        for length, exact in ((10, 0.9), (20, 0.5))
    ]
    text = page_of(tmp_path, write_comparison(tmp_path / "comparison", rows))
    lines, (heat_map,) = charts_of(text)[0]["data"], charts_of(text)[1]["data"]
    assert [line["line"]["dash"] for line in lines] == ["solid", "dot"]
    assert ["unfit" in line["text"][0] for line in lines] == [False, True]
    assert ["unfit" in row[0] for row in heat_map["text"]] == [False, True]
    assert any(cell.startswith("unfit (") for cell in Page(text).cells)
    # The color of the swatch is gray instead of that of its index.
    swatches = [attributes for _, attributes in Page(text).tags if attributes.get("class") == "swatch"]
    assert ["data-color" in swatch for swatch in swatches[:2]] == [True, False]


def test_the_loss_curve_has_the_logged_losses(tmp_path):
    text = page_of(tmp_path, write_run(tmp_path / "run", [result_row(20, 0.75)]))
    (line,) = charts_of(text)[1]["data"]
    assert (line["x"], line["y"]) == ([10], [1.25])


def test_a_later_evaluation_replaces_an_earlier_one_of_the_same_length(tmp_path):
    text = page_of(tmp_path, write_run(tmp_path / "run", [result_row(20, 0.25), result_row(20, 0.5)]))
    assert charts_of(text)[0]["data"][0]["y"] == [0.5]


def test_only_settings_that_differ_are_highlighted(tmp_path):
    folders = [write_run(tmp_path / name, [result_row(20, 0.5)], clip=clip) for name, clip in (("a", 1.0), ("b", 2.5))]
    text = page_of(tmp_path, *folders)
    assert re.findall(r"<mark>(.*?)</mark>", text.split('<script type="application/json"')[0]) == ["2.5"]


def test_hostile_text_stays_text(tmp_path):
    run = write_run(tmp_path / "run", [result_row(20, 0.5, task=HOSTILE, variant=HOSTILE)], note=HOSTILE)
    text = page_of(tmp_path, run)
    tags = [tag for tag, _ in Page(text).tags]
    assert "img" not in tags
    # The two lists of values, the library and the script of the page.
    assert tags.count("script") == 4
    assert "<" not in charts_of(text)[0]["data"][0]["text"][0].replace("<br>", "")


def test_the_page_loads_nothing_and_is_small(tmp_path):
    text = page_of(tmp_path, write_run(tmp_path / "run", [result_row(20, 0.5)]))
    links = [attributes.get(name) for _, attributes in Page(text).tags for name in ("src", "href", "action", "srcset")]
    assert all(link.startswith("#") for link in links if link is not None)
    assert "default-src 'none'" in text
    assert len(text.encode()) < 8_000_000


def check_message(folder, error, match):
    with pytest.raises(error, match=match):
        write_report([folder], folder / "report.html", diagnose=False)


def test_other_folders_and_damaged_rows_raise_an_error(tmp_path):
    check_message(tmp_path, RunFolderError, "has no files of a run; pass an output folder of train, compare")
    check_message(tmp_path / "missing", RunFolderError, "missing is not a folder; pass an output folder")
    run = write_run(tmp_path / "run", [{"row": "a", "task": "parity", "variant": None, "length": 3}])
    check_message(run, RunFolderError, "results.jsonl line 1 has no seed; delete this line")
    study = tmp_path / "study"
    study.mkdir()
    (study / "influence.json").write_text("{}")
    check_message(study, RunFolderError, "is unfinished; repeat its command with --resume")
    (study / "summary.json").write_text("{")
    check_message(study, RunFolderError, "is damaged .*; repeat the study")
    with pytest.raises(LengthwiseError, match="no folders; pass at least one output folder"):
        write_report([], tmp_path / "report.html")


def test_a_length_that_the_training_file_lacks_is_not_diagnosed_and_the_page_has_the_command(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "words", [result_row(5000, 0.5)])
    (folder / MODEL).touch()
    loaded_run = SimpleNamespace(experiment=SimpleNamespace(task=JSONLTask()))
    monkeypatch.setattr(sections, "load_run", lambda folder, device: loaded_run)
    write_report([folder], tmp_path / "report.html")
    command = f'lengthwise diagnose "{folder}" --task FILE.jsonl --length 5000'
    assert command in unescape((tmp_path / "report.html").read_text())


def write_trained_run(folder, rows):
    run = write_run(folder, rows)
    (run / MODEL).touch()
    return run


def test_a_report_diagnoses_only_runs_that_fail_at_the_shortest_length_with_errors(tmp_path, monkeypatch):
    comparison = [
        write_trained_run(tmp_path / "right", [result_row(20, 1.0), result_row(20_000, 0.995)]),
        write_trained_run(
            tmp_path / "wrong", [result_row(10, 0.5), result_row(80, 0.0), result_row(40, 0.9), result_row(20, 1.0)]
        ),
    ]
    calls, lines = [], []

    def record_call(run, length, *, num_examples, report):
        calls.append((run, length, num_examples))
        raise LengthwiseError("no support")

    loaded_run = SimpleNamespace(experiment=SimpleNamespace(task=None))
    monkeypatch.setattr(sections, "load_run", lambda folder, device: loaded_run)
    monkeypatch.setattr(sections, "diagnose_run", record_call)
    write_report(comparison, tmp_path / "report.html", report=lines.append)
    assert [call[1:] for call in calls] == [(40, 64)]
    assert len(lines) == 1
    assert "no support" in (tmp_path / "report.html").read_text()


def test_a_diagnosis_takes_at_most_the_examples_of_the_evaluation_and_ends_at_the_time_limit(tmp_path, monkeypatch):
    folder = write_trained_run(tmp_path / "run", [result_row(20_000, 0.5, num_examples=2)])

    def check_limit(run, length, *, num_examples, report):
        assert num_examples == 2
        report("attention")
        raise AssertionError("the limit did not end the diagnosis")

    loaded_run = SimpleNamespace(experiment=SimpleNamespace(task=None))
    monkeypatch.setattr(sections, "load_run", lambda folder, device: loaded_run)
    monkeypatch.setattr(sections, "diagnose_run", check_limit)
    monkeypatch.setattr(sections, "TIME_LIMIT_S", -1.0)
    write_report([folder], tmp_path / "report.html")
    assert f'lengthwise diagnose "{folder}" --length 20000' in unescape((tmp_path / "report.html").read_text())

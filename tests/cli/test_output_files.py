"""Output files: no command writes over a file that it did not write."""

import json

import pytest
from tests.cli.test_cli import error_of, output_of
from tests.report.test_report_page import result_row, write_run
from tests.support.small_runs import folder_contents, small_experiment
from tests.tasks.test_jsonl_task import reversals, without_coupling, write_records

import lengthwise as lw
from lengthwise.core.errors import RunFolderError
from lengthwise.evaluation.diagnosis import report as diagnosis_report
from lengthwise.evaluation.forecast import certificate_report
from lengthwise.report.page import write_report
from lengthwise.tasks.reasoning_gym import write_reasoning_records

RECORDS = without_coupling(reversals(range(1, 7), count=40))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Make a new folder with a task file, another file of each type and a link to it the working folder."""
    monkeypatch.chdir(tmp_path)
    write_records(tmp_path / "rows.jsonl", RECORDS)
    for suffix in ("jsonl", "html", "svg"):
        (tmp_path / f"mine.{suffix}").write_text("mine")
        (tmp_path / f"link.{suffix}").symlink_to(f"mine.{suffix}")
    write_run(tmp_path / "run", [result_row(5, 1.0)])
    return tmp_path


COMMANDS = {
    "couple rows.jsonl --out rows.jsonl": "rows.jsonl",
    "couple rows.jsonl --out mine.jsonl": "mine.jsonl",
    "couple rows.jsonl --out link.jsonl": "link.jsonl",
    "report run --no-diagnosis --out mine.html": "mine.html",
    "report run --no-diagnosis --out link.html": "link.html",
    "show parity --length 5 --out mine.svg": "mine.svg",
    "show parity --length 5 --out link.svg": "link.svg",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_replaces_a_file_or_a_link(command, here, capsys):
    before = folder_contents(here)
    assert COMMANDS[command] in error_of(command.split(), capsys)
    assert folder_contents(here) == before
    assert (here / "link.svg").is_symlink()


def test_a_report_and_a_picture_replace_their_earlier_file_only(here, capsys):
    for command in ("report run --no-diagnosis --out new.html", "show parity --length 5 --out new.svg"):
        output_of(command.split(), capsys)
        output_of(command.split(), capsys)
    (here / "study.html").write_bytes((here / "new.html").read_bytes().replace(b"lengthwise report", b"lengthwise"))
    with pytest.raises(RunFolderError, match=r"study\.html"):
        write_report([here / "run"], here / "study.html", diagnose=False)


@pytest.mark.parametrize("write", [diagnosis_report.write_report, certificate_report.write_report])
def test_a_folder_with_the_figure_of_another_command_is_kept(write, here):
    (here / "figure.png").write_text("mine")
    with pytest.raises(RunFolderError, match="not an empty folder"):
        write(None, here)
    assert (here / "figure.png").read_text() == "mine"


def test_reasoning_records_do_not_replace_a_file(here):
    with pytest.raises(RunFolderError, match=r"mine\.jsonl already exists"):
        write_reasoning_records([{"question": "a b", "answer": "b"}], here / "mine.jsonl")


@pytest.mark.parametrize("name", ["metrics.jsonl", "model.safetensors", "results.jsonl", "figure.png"])
def test_a_run_keeps_the_files_of_a_folder_that_is_no_run(name, tmp_path):
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunFolderError, match=name):
        lw.train(small_experiment(), tmp_path, device="cpu")
    assert folder_contents(tmp_path) == {name: b"mine"}


def test_couple_counts_the_records_that_it_leaves_out(tmp_path, capsys):
    file = write_records(tmp_path / "rows.jsonl", [*RECORDS, *RECORDS[-40:], *RECORDS[-1:]])
    arguments = ["couple", str(file), "--lengths", "2,3,4,5", "--out", str(tmp_path / "out.jsonl"), "--json"]
    printed = json.loads(output_of(arguments, capsys)[0])
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert printed["records"] == len(records)
    total = len(RECORDS) + 41
    assert printed["other_lengths"] == sum(len(each["prompt"]) in (1, 6) for each in RECORDS) + 41
    assert printed["records"] + printed["repeated"] + printed["other_lengths"] == total
    assert printed["repeated"] > 0

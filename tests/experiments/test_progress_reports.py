"""Default progress of Python functions: visible for people, and silent in scripts whose output is saved."""

import sys
from types import ModuleType

import pytest
from tests.support.small_runs import small_experiment

from lengthwise.experiments import progress_reports
from lengthwise.experiments import run as run_module
from lengthwise.experiments.progress_reports import is_interactive
from lengthwise.experiments.run import train
from lengthwise.experiments.runner import compare

SMALL = small_experiment(steps=2)


@pytest.fixture(autouse=True)
def _quick_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few examples to measure the fit."""
    monkeypatch.setattr(run_module, "NUM_FIT_EXAMPLES", 16)


def test_a_terminal_or_a_notebook_has_a_viewer(monkeypatch):
    assert not is_interactive()
    with monkeypatch.context() as patch:
        patch.setattr(sys.stderr, "isatty", lambda: True)
        assert is_interactive()
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    assert is_interactive()


def test_training_prints_nothing_without_a_viewer(tmp_path, capfd):
    train(SMALL, tmp_path / "run", device="cpu")
    compare({"small": SMALL}, tmp_path / "compared", device="cpu", workers=1)
    assert capfd.readouterr() == ("", "")


def test_training_shows_its_progress_to_a_viewer_on_standard_error(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress_reports, "is_interactive", lambda: True)
    train(SMALL, tmp_path / "run", device="cpu")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("mean loss ")
    assert printed.err.endswith("at length 4  2/2\n")


def test_a_comparison_shows_a_line_per_run_and_no_progress_of_training(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress_reports, "is_interactive", lambda: True)
    compare({"small": SMALL}, tmp_path, seeds=2, device="cpu", workers=1)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert [line[:20] for line in printed.err.splitlines()] == ["[1/2] small, seed 0:", "[2/2] small, seed 1:"]


def test_no_report_turns_progress_off(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(progress_reports, "is_interactive", lambda: True)
    train(SMALL, tmp_path / "run", device="cpu", report=None)
    compare({"small": SMALL}, tmp_path / "compared", device="cpu", workers=1, report=None)
    assert capfd.readouterr() == ("", "")

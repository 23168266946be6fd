"""Standard streams, locales and files that are no regular files: commands end, and their messages are readable."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.small_runs import small_experiment

from lengthwise.cli import app as cli
from lengthwise.experiments.run import load_run, train

pytestmark = pytest.mark.skipif(os.name != "posix", reason="named pipes and descriptors of POSIX systems")
# Name of a folder that is not UTF-8, as Python represents it.
BYTES_NAME = os.fsdecode(b"name\xff")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a folder with a small run."""
    folder = tmp_path_factory.mktemp("streams")
    train(small_experiment(), folder / "run", device="cpu")
    return folder


@pytest.fixture
def here(trained, tmp_path, monkeypatch):
    """Copy the run and make the copy the working folder."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_command(line, redirection="", **variables):
    """Run a command in a shell; return its exit status, output and messages."""
    command = f"{sys.executable} -m lengthwise {line} {redirection}"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), **variables}
    found = subprocess.run(command, shell=True, capture_output=True, env=environment, timeout=120, check=False)
    assert b"Traceback" not in found.stderr
    return found.returncode, found.stdout, found.stderr


TRAIN = "train parity --quick --device cpu --set training.steps=3 --out"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{"PYTHONIOENCODING": "latin-1"}, ASCII], ids=["latin-1", "C"])
def test_letters_outside_the_encoding_of_a_stream_are_escaped(variables, here):
    shutil.move("run", "run-語")
    row = {"length": 4, "exact_match": 0.5, "variant": "変種"}
    (here / "run-語/results.jsonl").write_text(json.dumps(row) + "\n")
    status, out, _ = run_command("watch . --once", **variables)
    assert status == 0
    assert b"run-" in out
    status, _, err = run_command("show nothing-語", **variables)
    assert status == 2
    assert err.startswith(b"error: ")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["2>&-", "2>/dev/full", "2>&- >&-"])
def test_a_closed_or_full_standard_error_ends_no_training(target, here):
    status, out, _ = run_command(f"{TRAIN} new", target)
    assert status == 0
    assert b"error: " not in out
    assert load_run("new", device="cpu").decoder is not None


@pytest.mark.slow
def test_an_error_never_goes_to_standard_output(here):
    status, out, _ = run_command("evaluate missing/run", "2>&-")
    assert (status, out) == (2, b"")


def test_a_folder_whose_name_is_not_utf8_contains_a_sound_run(here):
    shutil.move("run", BYTES_NAME)
    assert load_run(BYTES_NAME, device="cpu").decoder is not None
    train(small_experiment(), "continued", device="cpu", start=BYTES_NAME)
    assert load_run("continued", device="cpu").decoder is not None


@pytest.mark.slow
def test_a_corpus_never_has_a_name_that_its_metadata_cannot_contain(here):
    (here / BYTES_NAME).mkdir()
    (here / BYTES_NAME / "a.txt").write_text("the cat sat on the mat " * 99)
    status, _, err = run_command("prepare name*", "--out corpus")
    assert (status, err.count(b"\n")) == (2, 1)
    assert not (here / "corpus").exists()


PIPES = {
    "run/metrics.jsonl": ["watch . --once", "report run --no-diagnosis"],
    "run/results.jsonl": ["watch . --once", "report run --no-diagnosis", "evaluate run --num-examples 2 --device cpu"],
    "run/experiment.json": ["watch . --once", "evaluate run", "train parity --resume --out run"],
    "run/model.safetensors": ["evaluate run --device cpu", "train parity --from run --out new"],
    "comparison.json": ["watch . --once", "report ."],
    "planned.json": ["watch . --once"],
    "file.json": ["sweep file.json --out new", f"{TRAIN} new --config file.json", "certify file.json"],
    "file.toml": [f"{TRAIN} new --config file.toml"],
    "file.py": ["sweep file.py --out new"],
    "file.jsonl": ["train --task file.jsonl --scheme sequential --out new"],
}


@pytest.mark.parametrize("path", PIPES)
def test_a_named_pipe_in_place_of_a_file_never_blocks(path, here, capsys):
    Path(path).unlink(missing_ok=True)
    os.mkfifo(path)
    # The alarm ends a call that blocks.
    signal.alarm(60)
    for line in PIPES[path]:
        status = 0
        try:
            cli.main(line.split())
        except SystemExit as exit_call:
            status = exit_call.code
        assert status in (0, 2)
        assert capsys.readouterr().err.count("error: ") == (status == 2)
    signal.alarm(0)

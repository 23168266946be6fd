"""Damaged folders, huge numbers, unusual names and failed writes: a one-line error, and no files remain."""

import json
import os
import pickle
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.cli.test_cli import error_of, output_of
from tests.support.small_runs import small_experiment

import lengthwise as lw
import lengthwise.evaluation.exact_match
from lengthwise.cli import app as cli
from lengthwise.cli import terminal
from lengthwise.core import devices, files
from lengthwise.core.checkpoint import load_tensors, save_tensors
from lengthwise.core.errors import LengthwiseError, RunFolderError, SettingError
from lengthwise.core.files import write_atomically
from lengthwise.core.json_parsing import MAX_DEPTH, parse_json
from lengthwise.experiments.experiment import build_decoder
from lengthwise.experiments.run_folder import append_rows, read_rows
from lengthwise.hf.export import export_hf
from lengthwise.positions import Sequential
from lengthwise.tasks import JSONLTask, Parity

SMALL = ["--num-examples", "4", "--device", "cpu"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a PPC run, a plain run and the export of the plain run."""
    folder = tmp_path_factory.mktemp("folders")
    lw.train(small_experiment(), folder / "run", device="cpu")
    lw.train(small_experiment(scheme=Sequential()), folder / "plain", device="cpu")
    export_hf(folder / "plain", folder / "hf")
    return folder


@pytest.fixture
def here(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the folders and make the copy the working folder."""
    subprocess.run(["cp", "-r", *map(str, folders.iterdir()), str(tmp_path)], check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Values beyond the limits of any machine, and the advice in the error.
HUGE = {
    "evaluate run --lengths 1000000000 --num-examples 1": "use a shorter length",
    "evaluate run --lengths 99999999999999999999": "use a number between -2^53 and 2^53",
    "train parity --batch-size 9223372036854775808 --out new": "use a number between -2^53 and 2^53",
    "train parity --batch-size 1000000000000 --out new": "fewer examples at once",
    "train parity --num-position-ids 4611686018427387904 --out new": "use a number between -2^53 and 2^53",
    "train parity --head class --num-position-ids 1000000000 --out new": "use a smaller num_layers, d_model or num_po",
    "train parity --set scheme.max_gaps=1000000000 --out new": "use 0 (no gaps) to 1000",
    "train parity --steps 9223372036854775808 --out new": "use a number between -2^53 and 2^53",
    "train parity --train-lengths 1:1000000000 --out new": "use a shorter length",
    "prepare texts --vocabulary-size 2147483648 --out new": "use at most 1048576",
    f"train parity --out {'x' * 3000}": "File name too long",
    f"train {'x' * 3000} --out new": "unknown recipe",
    f"evaluate {'x' * 3000}": "",
}


@pytest.mark.parametrize("line", HUGE)
def test_a_value_beyond_the_limits_raises_a_one_line_error(line, here, capsys):
    (here / "texts").mkdir()
    (here / "texts/a.txt").write_text("the cat sat on the mat. " * 40)
    before = sorted(here.rglob("*"))
    message = error_of(line.split(), capsys)
    assert HUGE[line] in message
    assert len(message) < 1000
    assert sorted(here.rglob("*")) == before


@pytest.mark.slow
def test_a_decoder_larger_than_the_memory_raises_an_error():
    with pytest.raises(SettingError, match="num_layers 1000000 "):
        lw.DecoderSettings(num_layers=10**6)
    wide = replace(small_experiment(), decoder=lw.DecoderSettings(num_layers=900, d_model=2**20, num_heads=2))
    with pytest.raises(
        SettingError, match=r"^a decoder of .* weights needs .* GiB, .*; use a smaller num_layers, d_model"
    ):
        build_decoder(wide)


def test_the_memory_limit_of_a_container_applies(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "CONTAINER_LIMIT_FILE", tmp_path / "memory.max")
    (tmp_path / "memory.max").write_text(str(2**20))
    devices.machine_memory.cache_clear()
    devices.check_memory(2**20, "this", "use less")
    with pytest.raises(SettingError, match=r"^this needs at least 0 GiB, but the machine has 0 GiB; use less$"):
        devices.check_memory(2**20 + 1, "this", "use less")
    (tmp_path / "memory.max").write_text("max")
    devices.machine_memory.cache_clear()
    devices.check_memory(2**21, "this", "use less")
    devices.machine_memory.cache_clear()


def test_long_examples_are_sampled_one_by_one(here, monkeypatch):
    # Makes length 2 a long one.
    monkeypatch.setattr(lengthwise.evaluation.exact_match, "BLOCK_TOKENS", 2)
    sizes = []
    sample = Parity.sample

    def count(self, *, length, size, rng):
        sizes.append(size)
        return sample(self, length=length, size=size, rng=rng)

    monkeypatch.setattr(Parity, "sample", count)
    lw.evaluate(lw.load_run("run", device="cpu"), lw.EvaluationSettings(lengths=(2,), num_examples=(1,)))
    assert set(sizes) == {1}


NAMES = ["[/b]", "[red]x", ":key:", "[link=x]y", "%s {}"]


@pytest.mark.first(2)
@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_printed_literally_and_not_as_markup(name, here, capsys):
    out, _ = output_of(["train", "parity", "--quick", "--device", "cpu", "--out", name], capsys)
    assert f"saved in {name}" in out
    assert (here / name / "model.safetensors").is_file()
    message = error_of(["train", "parity", "--quick", "--device", "cpu", "--out", name], capsys)
    assert name in message
    assert f"'{name}'" in error_of(["train", name, "--out", "new"], capsys)


def test_control_characters_are_printed_as_escapes(here, capsys):
    message = error_of(["train", "\x1b[31m01\u202e", "--out", "new"], capsys)
    assert "\x1b" not in message
    assert "\u202e" not in message
    assert "\\x1b[31m01\\u202e" in message


def test_escape_keeps_letters_and_escapes_control_characters():
    assert terminal.escape_control_characters("漢字 é\n") == "漢字 é\n"
    assert terminal.escape_control_characters("\a\x9b\u200f\udcff\t") == "\\x07\\x9b\\u200f\\udcff\\t"


def test_json_output_has_null_for_nan_and_infinity(capsys):
    terminal.print_json({"loss": float("nan"), "most": [float("inf"), 1.5]})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"loss": None, "most": [None, 1.5]}


def test_a_record_with_a_lone_surrogate_raises_an_error_before_training(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": ["\\ud83d"], "response": ["x"]}\n')
    with pytest.raises(LengthwiseError, match=r"rows.jsonl") as error:
        _ = JSONLTask(file=str(tmp_path / "rows.jsonl")).vocabulary
    assert "\n" not in str(error.value)


DEEP = ["[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 60 + "1" + "}" * 60, "[" * 51 + "]" * 51]
BROKEN = ["", "{", "\x00", "nul", '{"a": "\\ud800"}', "3", "[]", '"x"', "null", "NaN", '{"a": 1}x']


@pytest.mark.parametrize("text", [*DEEP, *BROKEN])
def test_damaged_json_raises_a_value_error(text):
    for content in (text, text.encode()):
        with pytest.raises(ValueError, match=r"."):
            parse_json(content)


def test_json_is_parsed_up_to_the_maximal_depth():
    content = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert parse_json(content, list) == json.loads(content)


def pickled(folder: Path) -> None:
    """Replace the weights by a pickle that runs code when it is loaded."""

    class Payload:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
            return os.mkdir, (str(folder / "entered"),)

    (folder / "model.safetensors").unlink()
    with (folder / "pytorch_model.bin").open("wb") as file:
        pickle.dump(Payload(), file)


def saved_by_torch(folder: Path) -> None:
    """Save the weights with torch.save, which can be loaded as data only."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")


def reshaped(folder: Path) -> None:
    """Add a row to each tensor."""
    weights = load_file(folder / "model.safetensors")
    grown = {name: torch.cat([tensor, tensor[:1]]) for name, tensor in weights.items()}
    save_file(grown, folder / "model.safetensors", {"format": "pt"})


def configured(**settings: object) -> Callable[[Path], None]:
    """Return a change of settings in config.json."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))

    return change


def resized(**settings: object) -> Callable[[Path], None]:
    """Return a change of decoder settings in config.json."""

    def change(folder: Path) -> None:
        sizes = json.loads((folder / "config.json").read_text())["decoder_settings"]
        configured(decoder_settings={**sizes, **settings})(folder)

    return change


def written(name: str, content: bytes) -> Callable[[Path], None]:
    """Return a change of the content of one file."""
    return lambda folder: (folder / name).write_bytes(content) and None


DAMAGES: dict[str, Callable[[Path], object]] = {
    "pickled": pickled,
    "saved by torch": saved_by_torch,
    "reshaped": reshaped,
    "cut weights": lambda folder: os.truncate(folder / "model.safetensors", 300),
    "empty weights": lambda folder: os.truncate(folder / "model.safetensors", 0),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "cut configuration": lambda folder: os.truncate(folder / "config.json", 50),
    "empty configuration": lambda folder: os.truncate(folder / "config.json", 0),
    "deep configuration": written("config.json", b"[" * 100_000),
    "a list for a configuration": written("config.json", b"[]"),
    "a million layers": resized(num_layers=10**6),
    "a million hidden layers": configured(model_type="llama", num_hidden_layers=10**6),
    "wrong types": resized(d_model="x"),
    "negative": resized(d_model=-16),
    "no heads": resized(num_heads=0),
    "another kind": configured(model_type="nothing"),
    "cut tokenizer": lambda folder: os.truncate(folder / "tokenizer.json", 50),
    "deep tokenizer": written("tokenizer.json", b"[" * 100_000),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_folder_raises_a_one_line_error(damage, here, capsys):
    DAMAGES[damage](here / "hf")
    message = error_of(["evaluate", "./hf", "--task", "parity", "--lengths", "2", *SMALL], capsys)
    assert "hf" in message
    assert not (here / "hf" / "entered").exists()


def test_loading_a_run_checks_its_training_facts(here):
    path = here / "run" / "model.safetensors"
    tensors, facts = load_tensors(path)
    for name, value in {"fitted": "x", "id_range": [1], "steps": 1.5, "train_s": float("nan")}.items():
        save_tensors(path, tensors, {**facts, name: value})
        with pytest.raises(LengthwiseError, match=r"model.safetensors") as error:
            lw.load_run("run", device="cpu")
        assert "\n" not in str(error.value)


def test_a_tensor_with_an_unsupported_dtype_counts_as_damage(tmp_path):
    header = json.dumps({"weight": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(1))
    with pytest.raises(RunFolderError, match=r"model\.safetensors is damaged"):
        load_tensors(tmp_path / "model.safetensors")


def test_a_tensor_file_without_facts_raises_an_error(tmp_path):
    header = b'{"__metadata__": null}'
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(RunFolderError, match="was modified after training"):
        load_tensors(tmp_path / "model.safetensors")


def test_repeated_loading_of_tensors_leaks_no_memory(tmp_path):
    path = tmp_path / "model.safetensors"
    save_tensors(path, {f"a weight of number {number}": torch.zeros(1) for number in range(50)}, {})
    load_tensors(path)
    tracemalloc.start()
    try:
        for _ in range(40):
            load_tensors(path)
        memory, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert memory < 40 * 50 * 16


def test_a_row_after_an_incomplete_row_is_complete_and_reading_names_the_damaged_line(tmp_path):
    path = tmp_path / "results.jsonl"
    append_rows(path, [{"row": 1}, {"row": 2}])
    path.write_bytes(path.read_bytes()[:-4])
    append_rows(path, [{"row": 3}])
    assert path.read_text().splitlines() == ['{"row": 1}', '{"row":', '{"row": 3}']
    with pytest.raises(RunFolderError, match=r"results.jsonl line 2 is damaged .*delete this line, or the whole file$"):
        read_rows(path)


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"before")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(RunFolderError, match=r"cannot write .*file \(No space left on device\); choose a writable"):
        write_atomically(path, b"after")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("file", b"before")]


KILLED = """
import os, signal, sys
from pathlib import Path
from lengthwise.core import files
files.os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
files.write_atomically(Path(sys.argv[1]), b"half")
"""


@pytest.mark.linux
def test_the_next_write_removes_the_leftovers_of_a_killed_write(tmp_path):
    path = tmp_path / "file"
    process = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert process.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    alive = tmp_path / f".file.{files._host_name()}-{os.getpid()}.unfinished.of-another"
    alive.write_bytes(b"another's")
    write_atomically(path, b"whole")
    assert {each.name for each in tmp_path.iterdir()} == {"file", alive.name}


def test_an_interrupted_export_can_be_repeated(here, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("lengthwise.hf.export.write_folder_atomically", files.write_folder_atomically)
        patch.setattr("lengthwise.hf.lengthwise_model.LengthwiseForCausalLM.save_pretrained", _full)
        with pytest.raises(RunFolderError, match=r"cannot write .*again .*No space left"):
            export_hf("plain", "again")
    assert not [path for path in here.iterdir() if "again" in path.name]
    # A killed export leaves a partial folder.
    (here / ".again.unfinished").mkdir()
    (here / ".again.unfinished" / "config.json").write_text("{}")
    export_hf("plain", "again")
    assert not [path for path in here.iterdir() if path.name.startswith(".again")]
    whole = {path.name: path.read_bytes() for path in (here / "hf").iterdir()}
    assert {path.name: path.read_bytes() for path in (here / "again").iterdir()} == whole


def _full(*args: object, **kwargs: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("error", "line", "status"),
    [
        (OSError(28, "No space left on device", "runs/x"), "error: runs/x: No space left on device", 2),
        (MemoryError(), "out of memory; use shorter", 1),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore"), "out of memory; use shorter", 1),
        (RuntimeError("[enforce] DefaultCPUAllocator: can't allocate memory"), "out of memory; use shorter", 1),
        (np.exceptions.AxisError("x"), None, None),
    ],
)
def test_machine_errors_print_one_line_and_bugs_print_a_traceback(error, line, status, monkeypatch, capsys):
    def fails(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr("lengthwise.cli.app.app", fails)
    with pytest.raises(type(error) if line is None else SystemExit) as exit_info:
        cli.main(["list"])
    if line is not None:
        printed = capsys.readouterr().err
        assert isinstance(exit_info.value, SystemExit)
        assert exit_info.value.code == status
        assert printed.startswith(line)
        assert printed.count("\n") == 1


def test_invalid_training_settings_raise_an_error():
    for settings in ({"fit_every": 0}, {"clip": -1.0}, {"learning_rate": float("nan")}, {"clip": float("inf")}):
        with pytest.raises(SettingError, match=next(iter(settings))):
            lw.TrainingSettings(**settings)

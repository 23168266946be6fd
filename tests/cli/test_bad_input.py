"""Damaged folders, huge numbers, odd names and failed writes: one line with status 2, and nothing left behind."""

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
from tests.cli.test_cli import asked, refused
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
from lengthwise.experiments.run_folder import append_rows, read_rows

FEW = ["--num-examples", "4", "--device", "cpu"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a plain run and its export."""
    folder = tmp_path_factory.mktemp("made")
    lw.train(small_experiment(), folder / "run", device="cpu")
    lw.train(small_experiment(scheme=lw.Sequential()), folder / "plain", device="cpu")
    lw.export_hf(folder / "plain", folder / "hf")
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them, which is the working folder."""
    subprocess.run(["cp", "-r", *map(str, made.iterdir()), str(tmp_path)], check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Numbers that no machine has room for, with the part of the line that says what to change.
HUGE = {
    "evaluate run --lengths 1000000000 --num-examples 1": "use a shorter length",
    "evaluate run --lengths 99999999999999999999": "use a number below 2^53",
    "train parity --batch-size 9223372036854775808 --out new": "use a number below 2^53",
    "train parity --batch-size 1000000000000 --out new": "fewer examples at once",
    "train parity --num-position-ids 4611686018427387904 --out new": "use a number below 2^53",
    "train parity --steps 9223372036854775808 --out new": "use a number below 2^53",
    "train parity --train-lengths 1:1000000000 --out new": "use a shorter length",
    "prepare texts --vocabulary-size 2147483648 --out new": "use at most 1048576",
    f"train parity --out {'x' * 3000}": "File name too long",
    f"train {'x' * 3000} --out new": "unknown recipe",
    f"evaluate {'x' * 3000}": "",
}


@pytest.mark.parametrize("line", HUGE)
def test_a_number_or_a_name_that_nothing_has_room_for_is_refused_in_one_line(line, here, capsys):
    (here / "texts").mkdir()
    (here / "texts/a.txt").write_text("the cat sat on the mat. " * 40)
    before = sorted(here.rglob("*"))
    said = refused(line.split(), capsys)
    assert HUGE[line] in said
    assert len(said) < 1000
    assert sorted(here.rglob("*")) == before


def test_a_decoder_of_more_layers_or_weights_than_there_can_be_is_refused():
    with pytest.raises(SettingError, match="num_layers 1000000 "):
        lw.DecoderSettings(num_layers=10**6)
    wide = replace(small_experiment(), decoder=lw.DecoderSettings(num_layers=900, d_model=2**20, num_heads=2))
    with pytest.raises(
        SettingError, match=r"^a decoder of .* weights needs .* GiB, .*; use fewer num_layers or a smaller"
    ):
        lw.build_decoder(wide)


def test_memory_is_that_of_the_container_where_it_has_less(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "CONTAINER_LIMIT", tmp_path / "memory.max")
    (tmp_path / "memory.max").write_text(str(2**20))
    devices.machine_memory.cache_clear()
    devices.check_memory(2**20, "this", "use less")
    with pytest.raises(SettingError, match=r"^this needs at least 0 GiB, and this machine has 0; use less$"):
        devices.check_memory(2**20 + 1, "this", "use less")
    (tmp_path / "memory.max").write_text("max")
    devices.machine_memory.cache_clear()
    devices.check_memory(2**21, "this", "use less")
    devices.machine_memory.cache_clear()


def test_of_long_examples_no_more_are_drawn_than_are_asked_for(here, monkeypatch):
    # So that length 2 is a long one.
    monkeypatch.setattr(lengthwise.evaluation.exact_match, "BLOCK_TOKENS", 2)
    drawn = []
    sample = lw.Parity.sample

    def counted(self, *, length, size, rng):
        drawn.append(size)
        return sample(self, length=length, size=size, rng=rng)

    monkeypatch.setattr(lw.Parity, "sample", counted)
    lw.evaluate(lw.load_run("run", device="cpu"), lw.EvaluationSettings(lengths=(2,), num_examples=(1,)))
    assert set(drawn) == {1}


NAMES = ["[/b]", "[red]x", ":key:", "[link=x]y", "%s {}"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_printed_as_it_is_and_never_read_as_markup(name, here, capsys):
    out, _ = asked(["train", "parity", "--quick", "--device", "cpu", "--out", name], capsys)
    assert f"saved in {name}" in out
    assert (here / name / "model.safetensors").is_file()
    said = refused(["train", "parity", "--quick", "--device", "cpu", "--out", name], capsys)
    assert name in said
    assert f"'{name}'" in refused(["train", name, "--out", "new"], capsys)


def test_what_would_move_the_cursor_or_turn_the_text_is_printed_as_an_escape(here, capsys):
    said = refused(["train", "\x1b[31m01\u202e", "--out", "new"], capsys)
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert "\\x1b[31m01\\u202e" in said


def test_printable_keeps_every_letter_and_escapes_the_rest():
    assert terminal.printable("漢字 é\n") == "漢字 é\n"
    assert terminal.printable("\a\x9b\u200f\udcff\t") == "\\x07\\x9b\\u200f\\udcff\\t"


def test_no_document_for_scripts_holds_what_json_has_not(capsys):
    terminal.print_json({"loss": float("nan"), "most": [float("inf"), 1.5]})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"loss": None, "most": [None, 1.5]}


def test_a_row_with_half_a_character_is_refused_before_training(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": ["\\ud83d"], "response": ["x"]}\n')
    with pytest.raises(LengthwiseError, match=r"rows.jsonl") as error:
        _ = lw.JSONLTask(file=str(tmp_path / "rows.jsonl")).vocabulary
    assert "\n" not in str(error.value)


DEEP = ["[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 60 + "1" + "}" * 60, "[" * 51 + "]" * 51]
BROKEN = ["", "{", "\x00", "nul", '{"a": "\\ud800"}', "3", "[]", '"x"', "null", "NaN", '{"a": 1}x']


@pytest.mark.parametrize("text", [*DEEP, *BROKEN])
def test_any_damage_to_json_is_one_kind_of_error(text):
    for content in (text, text.encode()):
        with pytest.raises(ValueError, match=r"."):
            parse_json(content)


def test_json_is_read_as_deep_as_is_promised():
    content = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert parse_json(content, list) == json.loads(content)


def pickled(folder: Path) -> None:
    """Weights that the loader of pickles would run as a program."""

    class Payload:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
            return os.mkdir, (str(folder / "entered"),)

    (folder / "model.safetensors").unlink()
    with (folder / "pytorch_model.bin").open("wb") as file:
        pickle.dump(Payload(), file)


def plainly_pickled(folder: Path) -> None:
    """The same weights in another format, which torch can load as data alone."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")


def reshaped(folder: Path) -> None:
    """Each tensor with one row more."""
    weights = load_file(folder / "model.safetensors")
    grown = {name: torch.cat([tensor, tensor[:1]]) for name, tensor in weights.items()}
    save_file(grown, folder / "model.safetensors", {"format": "pt"})


def configured(**settings: object) -> Callable[[Path], None]:
    """Other settings in its configuration."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))

    return change


def resized(**settings: object) -> Callable[[Path], None]:
    """Other settings of its decoder."""

    def change(folder: Path) -> None:
        sizes = json.loads((folder / "config.json").read_text())["decoder_settings"]
        configured(decoder_settings={**sizes, **settings})(folder)

    return change


def written(name: str, content: bytes) -> Callable[[Path], None]:
    """Another content of one file."""
    return lambda folder: (folder / name).write_bytes(content) and None


DAMAGES: dict[str, Callable[[Path], object]] = {
    "pickled": pickled,
    "plainly pickled": plainly_pickled,
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
def test_a_damaged_model_folder_is_refused_in_one_line(damage, here, capsys):
    DAMAGES[damage](here / "hf")
    said = refused(["evaluate", "./hf", "--task", "parity", "--lengths", "2", *FEW], capsys)
    assert "hf" in said
    assert not (here / "hf" / "entered").exists()


def test_facts_of_a_run_are_checked_when_it_is_loaded(here):
    path = here / "run" / "model.safetensors"
    tensors, facts = load_tensors(path)
    for name, value in {"fitted": "x", "id_range": [1], "steps": 1.5, "train_s": float("nan")}.items():
        save_tensors(path, tensors, {**facts, name: value})
        with pytest.raises(LengthwiseError, match=r"model.safetensors") as error:
            lw.load_run("run", device="cpu")
        assert "\n" not in str(error.value)


def test_a_tensor_of_a_type_that_torch_lacks_is_damage(tmp_path):
    header = json.dumps({"weight": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(1))
    with pytest.raises(RunFolderError, match=r"model\.safetensors is damaged"):
        load_tensors(tmp_path / "model.safetensors")


def test_a_file_of_tensors_without_facts_is_refused(tmp_path):
    header = b'{"__metadata__": null}'
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(RunFolderError, match="was modified after training"):
        load_tensors(tmp_path / "model.safetensors")


def test_tensors_that_are_read_again_and_again_leave_nothing_in_memory(tmp_path):
    path = tmp_path / "model.safetensors"
    save_tensors(path, {f"a weight of number {number}": torch.zeros(1) for number in range(50)}, {})
    load_tensors(path)
    tracemalloc.start()
    try:
        for _ in range(40):
            load_tensors(path)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 40 * 50 * 16


def test_a_row_behind_one_that_was_cut_is_whole_and_the_cut_one_is_told_of(tmp_path):
    path = tmp_path / "results.jsonl"
    append_rows(path, [{"row": 1}, {"row": 2}])
    path.write_bytes(path.read_bytes()[:-4])
    append_rows(path, [{"row": 3}])
    assert path.read_text().splitlines() == ['{"row": 1}', '{"row":', '{"row": 3}']
    with pytest.raises(RunFolderError, match=r"results.jsonl line 2 is damaged .*delete that line, or the file$"):
        read_rows(path)


def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"before")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(RunFolderError, match=r"cannot write .*file \(No space left on device\); choose a folder"):
        write_atomically(path, b"after")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("file", b"before")]


KILLED = """
import os, signal, sys
from pathlib import Path
from lengthwise.core import files
files.os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
files.write_atomically(Path(sys.argv[1]), b"half")
"""


def test_what_a_killed_write_left_goes_with_the_next_one(tmp_path):
    path = tmp_path / "file"
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    alive = tmp_path / f".file.{files._host()}-{os.getpid()}.unfinished.of-another"
    alive.write_bytes(b"another's")
    write_atomically(path, b"whole")
    assert {each.name for each in tmp_path.iterdir()} == {"file", alive.name}


def test_an_export_that_was_cut_short_is_made_by_the_next(here, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("lengthwise.hf.export.atomic_folder", files.atomic_folder)
        patch.setattr("lengthwise.hf.lengthwise_model.LengthwiseForCausalLM.save_pretrained", _full)
        with pytest.raises(RunFolderError, match=r"cannot write .*again .*No space left"):
            lw.export_hf("plain", "again")
    assert not [path for path in here.iterdir() if "again" in path.name]
    # Killed, it can delete nothing itself.
    (here / ".again.unfinished").mkdir()
    (here / ".again.unfinished" / "config.json").write_text("{}")
    lw.export_hf("plain", "again")
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
def test_what_a_machine_lacks_is_one_line_and_a_bug_is_a_traceback(error, line, status, monkeypatch, capsys):
    def fails(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr("lengthwise.cli.app.app", fails)
    with pytest.raises(type(error) if line is None else SystemExit) as left:
        cli.main(["list"])
    if line is not None:
        printed = capsys.readouterr().err
        assert isinstance(left.value, SystemExit)
        assert left.value.code == status
        assert printed.startswith(line)
        assert printed.count("\n") == 1


def test_settings_that_train_nothing_or_backwards_are_refused():
    for settings in ({"fit_every": 0}, {"clip": -1.0}, {"learning_rate": float("nan")}, {"clip": float("inf")}):
        with pytest.raises(SettingError, match=next(iter(settings))):
            lw.TrainingSettings(**settings)

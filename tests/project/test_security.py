"""The promises of SECURITY.md that no other test file shows, and that the tests that it names exist."""

import json
import re
import shutil
import socket
from pathlib import Path

import pytest
from tests.cli.test_cli import output_of
from tests.hf.test_hf_loading import byte_level_tokenizer
from tests.support.causal_models import CONFIGS, causal_model
from tests.support.small_runs import small_experiment

import lengthwise as lw
from lengthwise.core.errors import LengthwiseError
from lengthwise.hf.loading import load_causal_lm, load_tokenizer_adapter
from lengthwise.positions import Sequential

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
SMALL = ["--num-examples", "4", "--device", "cpu"]


def named_tests() -> list[tuple[str, str]]:
    """Return the file and the function of each test that SECURITY.md names; the function can be empty."""
    return re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)


def test_every_promise_names_a_test_that_exists():
    for file, function in named_tests():
        source = (ROOT / file).read_text(encoding="utf-8")
        assert not function or f"def {function}(" in source, f"{file} has no {function}"
    promises = re.findall(r"^\| \*\*(.+?)\*\* \| (.*) \|$", PAGE, flags=re.MULTILINE)
    assert len(promises) > 5
    sentences = [sentence for _, text in promises for sentence in re.split(r"(?<=[.)]) (?=[A-Z`])", text)]
    assert [sentence for sentence in sentences if "`tests/" not in sentence] == [], "sentences that name no test"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small run."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    lw.train(small_experiment(scheme=Sequential()), folder, device="cpu")
    return folder


def test_no_command_connects_to_another_machine(run, tmp_path, monkeypatch, capsys):
    addresses: list[object] = []

    def connect(*args: object) -> None:
        addresses.append(args)
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket.socket, "connect_ex", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "run")
    for line in (
        "train parity --quick --device cpu --out new",
        "evaluate run --lengths 2",
        "report run --out page.html --no-diagnosis",
        "export run --format hf --out exported",
        "evaluate ./exported --task parity --lengths 2",
    ):
        output_of([*line.split(), *(SMALL if line.startswith("evaluate") else [])], capsys)
    assert addresses == []
    with pytest.raises(OSError, match="no network"):
        socket.create_connection(("hub.example", 80))
    assert addresses != []


def test_a_run_behind_a_symbolic_link_is_read(run, tmp_path):
    (tmp_path / "link").symlink_to(run, target_is_directory=True)
    settings = lw.EvaluationSettings(lengths=(2,), num_examples=(4,))
    rows = [lw.evaluate(lw.load_run(folder, device="cpu"), settings) for folder in (run, tmp_path / "link")]
    assert rows[0][0]["exact_match"] == rows[1][0]["exact_match"]


@pytest.mark.parametrize("load", [load_causal_lm, load_tokenizer_adapter])
def test_code_in_a_model_folder_never_runs(load, tmp_path):
    model = causal_model(CONFIGS["llama"]())
    model.save_pretrained(tmp_path)
    byte_level_tokenizer(has_start=True).save_pretrained(tmp_path)
    code = f"from pathlib import Path\nPath({str(tmp_path / 'entered')!r}).touch()\nclass Own: pass\n"
    (tmp_path / "own.py").write_text(code)
    names = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own", "AutoTokenizer": ["own.Own", "own.Own"]}
    for name, values in {
        "config.json": {"auto_map": names, "model_type": "own"},
        "tokenizer_config.json": {"auto_map": names, "tokenizer_class": "Own"},
    }.items():
        file = tmp_path / name
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    with pytest.raises(LengthwiseError):
        load(str(tmp_path))
    assert not (tmp_path / "entered").exists()

"""Random command lines and Python calls: they must end with a result or a one-line error, without hanging."""

import inspect
import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import typer
from tests.attacks.attack import HANG_SECONDS, Tally, copy_of, leftovers, rng_of, run
from tests.attacks.folders import make_corpus, make_export, make_jsonl, make_run, parity

import lengthwise as lw
from lengthwise.cli import app as cli
from lengthwise.encodings import Rotary
from lengthwise.hf.export import export_hf, import_hf
from lengthwise.positions import Predicted, Sequential
from lengthwise.tasks import Addition, JSONLTask, Parity

NUMBERS = (
    *("-1", "0", "1", "2", "3", "7", "100"),
    *("2147483648", "4611686018427387904", "9223372036854775808", "1" + "0" * 30),
)
WORDS = (
    *("", " ", "x", "1e3", "½", "NaN", "inf", "0.1", "1:2"),
    *("2:1", "1:", "1,2", "1,,2", ",", "1:2:3", "0x10", "--", "-"),
)
NAMES = (
    *("parity", "copy", "addition", "text", "sequential", "predicted"),
    *("rotary", "nope", "alibi", "pointer", "greedy"),
)
UNUSUAL = (
    *("[/b]", "[red]", ":key:", "\x1b[31m", "a\nb", "\udcff", "漢字", "x" * 300, "x" * 5000),
    *("../../x", "a/b/c", "{}", "%s", "null"),
)
PATHS = (
    *("run", "run/model.safetensors", "run/experiment.json", "corpus", "hf", "./hf", "rows.jsonl", "test.jsonl"),
    *("tales", "missing", "/", "/dev/null", "/dev/full", "/proc/self", ".", "module:Name", "os:path"),
    *("lengthwise:Parity", "dataset:x", "fifo"),
)
POOLS = (NUMBERS, WORDS, NAMES, UNUSUAL, PATHS)
# Option values that keep a valid command short.
SMALL = {"steps": "2", "num_examples": "4", "lengths": "4,8", "size": "quick"}
SMALL |= {"targets": "4", "seeds": "1", "workers": "1", "minutes": "0.05"}
GRID = '{"base": {"task": "parity", "scheme": "sequential", "training.steps": 2}, "grid": {"encoding": ["nope"]}}'
# Valid arguments of each command.
ARGUMENTS = {
    "list": ("tasks", "recipes"),
    "prepare": ("tales", "kind=notes", "tales/0.txt"),
    "train": ("parity", "addition_coupled"),
    "evaluate": ("run", "rows", "plain"),
    "couple": ("rows.jsonl", "parity"),
    "compare": ("parity", "demo"),
    "sweep": ("grid.json", "run", "missing.py"),
    "generate": ("run", "plain"),
    "influence": ("hf", "run"),
    "doctor": ("hf", "run"),
    "certify": ("run", "parity", "growing gap"),
    "diagnose": ("run", "plain"),
    "show": ("run", "rows", "parity", "rows.jsonl"),
    "reproduce": ("parity_ppc",),
    "export": ("run", "plain", "hf", "parity"),
    "report": ("run", "rows", "plain"),
    "watch": ("run", "rows"),
}


def make() -> None:
    """Make one folder of every kind."""
    make_run(0)
    Path("run").rename("parity")
    make_jsonl(0)
    Path("run").rename("rows")
    make_export(0)
    Path("run").rename("plain")
    make_corpus(0)
    Path("parity").rename("run")
    Path("grid.json").write_text(GRID, encoding="utf-8")
    os.mkfifo("fifo")


def command(rng: random.Random) -> list[str]:
    """Return a command with often valid arguments, and random values for some of its options."""
    verb, parameters = rng.choice(sorted(_parameters().items()))
    line, share = [verb], rng.choice((0.03, 0.1, 0.3))
    for parameter in parameters:
        name, value = str(parameter.name), rng.choice(rng.choice(POOLS))
        if parameter.param_type_name == "argument":
            line += [rng.choice(ARGUMENTS[verb]) if rng.random() < 0.7 else value] if rng.random() < 0.95 else []
        elif rng.random() < share:
            line += [parameter.opts[0]] if getattr(parameter, "is_flag", False) else [parameter.opts[0], value]
        elif name in SMALL:
            line += [parameter.opts[0], SMALL[name]]
        elif name == "out":
            line += ["--out", f"out-{rng.randrange(3)}" + (".html" if verb in ("doctor", "report") else "")]
        elif name == "form":
            line += ["--format", rng.choice(("hf", "run", "lm-eval", "onnx"))]
    return line


def _parameters() -> dict[str, Any]:
    group = typer.main.get_command(cli.app)
    return {
        name: [each for each in verb.params if each.name != "help"]
        for name, verb in group.commands.items()  # type: ignore[attr-defined]
    }


def attack(number: int, seed: int, scratch: Path) -> Tally:
    """Run command lines; a valid command that takes long must stop after an interrupt."""
    tally, begin = Tally("command lines"), scratch / "begin"
    begin.mkdir()
    outcome = run(make, begin, seconds=60)
    assert outcome.status == 0, outcome.err
    folder = scratch / "work"
    for each in range(number):
        rng = rng_of(seed, "command", each)
        if each % 25 == 0:
            copy_of_all(begin, folder)
        line = command(rng)
        outcome = run(partial(run_with_interrupt, line), folder, seconds=2 * HANG_SECONDS + 2)
        faults = outcome.faults(allowed=(0, 1, 2)) + [f"leaves {left}" for left in leftovers(folder)]
        tally.add(f"{each}: {' '.join(line)[:300]!r}", faults, outcome)
    return tally


def run_with_interrupt(line: list[str]) -> None:
    """Run a command line and interrupt it once if it takes long."""
    signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
    signal.signal(signal.SIGALRM, lambda number, frame: os.kill(os.getpid(), signal.SIGINT))
    cli.main(line)


def copy_of_all(begin: Path, folder: Path) -> None:
    """Copy a folder with a named pipe."""
    if (begin / "fifo").exists():
        (begin / "fifo").unlink()
    copy_of(begin, folder)
    os.mkfifo(folder / "fifo")


INVALID: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**70, 1.5, float("nan"), object(), int, Path("missing")),
    *("", "x", b"x", [], {}, (), ["x"], {"x": 1}),
)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(
            lw.train,
            lw.load_run,
            lw.evaluate,
            lw.certify_run,
            lw.diagnose_run,
            lw.compare,
            lw.prepare_corpus,
            export_hf,
        ),
        *(import_hf, lw.experiment, lw.recipe, lw.load_language_model, lw.EvaluationSettings, lw.TrainingSettings),
        *(lw.DecoderSettings, lw.InfluenceSettings, lw.Experiment, Predicted, Rotary, Addition, JSONLTask),
    )
}


def valid_arguments() -> dict[str, dict[str, Any]]:
    """Return valid arguments of each function."""
    experiment, loaded_run = parity(0), lw.load_run("run")
    return {
        "train": {"experiment": experiment, "out": "new", "resume": False, "device": "cpu"},
        "load_run": {"folder": "run", "device": "cpu"},
        "evaluate": {"run": loaded_run, "settings": lw.EvaluationSettings(lengths=(2,), num_examples=(2,))},
        "certify_run": {"run": loaded_run, "lengths": [8], "seed": 0},
        "diagnose_run": {"run": loaded_run, "length": 8, "num_examples": 4, "seed": 0},
        "compare": {"experiments": {"a": experiment}, "out": "both", "seeds": 1, "workers": 1, "device": "cpu"},
        "prepare_corpus": {"sources": ["tales"], "out": "again", "vocabulary_size": 300, "held_out": 0.2, "seed": 0},
        "export_hf": {"run": "run", "out": "exported"},
        "import_hf": {"folder": "hf", "out": "imported"},
        "experiment": {"task": "parity", "scheme": "sequential", "encoding": "nope"},
        "recipe": {"name": "parity"},
        "load_language_model": {"name": "hf", "device": "cpu"},
        "EvaluationSettings": {"lengths": (2,), "num_examples": (2,), "seed": 0, "decode": "free"},
        "TrainingSettings": {"steps": 3, "batch_size": 2, "betas": (0.9, 0.9), "precision": "auto"},
        "DecoderSettings": {"num_layers": 1, "d_model": 8, "num_heads": 2, "weights": "softmax"},
        "InfluenceSettings": {"near": 2, "far": 4, "ks": (1,), "num_targets": 3, "seed": 0},
        "Experiment": {"task": Parity(), "scheme": Sequential(), "train_lengths": (1, 4), "seed": 0},
        "Predicted": {"num_position_ids": 9},
        "Rotary": {"base": 100.0},
        "Addition": {},
        "JSONLTask": {"file": "rows.jsonl"},
    }


def call_with_invalid_argument(name: str, parameter: str, place: int) -> None:
    """Call a function with one invalid argument; it must raise a LengthwiseError or a signature error."""
    arguments = valid_arguments()[name]
    started = time.monotonic()
    try:
        FUNCTIONS[name](**{**arguments, parameter: INVALID[place]})
    except lw.LengthwiseError:
        raise
    except TypeError as error:
        # Raised by Python for a missing or unknown argument.
        if "argument" not in str(error):
            raise
    assert time.monotonic() - started < HANG_SECONDS


def attack_types(number: int, seed: int, scratch: Path) -> Tally:
    """Call public functions with arguments of wrong types."""
    tally, begin = Tally("types"), scratch / "begin"
    begin.mkdir()
    outcome = run(make, begin, seconds=60)
    assert outcome.status == 0, outcome.err
    pairs = [(name, each) for name, function in FUNCTIONS.items() for each in inspect.signature(function).parameters]
    for each in range(number):
        rng = rng_of(seed, "type", each)
        name, parameter = pairs[each % len(pairs)]
        copy_of_all(begin, scratch / "work")
        place = rng.randrange(len(INVALID))
        outcome = run(
            partial(call_with_invalid_argument, name, parameter, place), scratch / "work", seconds=3 * HANG_SECONDS
        )
        tally.add(f"{each}: {name}({parameter}={INVALID[place]!r})", outcome.faults(), outcome)
    return tally

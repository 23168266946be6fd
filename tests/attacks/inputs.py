"""Inputs for every reader of files and prompts: bytes made of right ones, of parts of right ones, and of nothing.

A reader refuses in one line or takes what it is given; anything else that it raises is a fault.
"""

import copy
import json
import math
import struct
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from tests.support.cases import smallest_length
from tests.support.small_runs import small_experiment

import lengthwise as lw
from lengthwise.core import checkpoint
from lengthwise.core.checkpoint import load_tensors
from lengthwise.core.errors import LengthwiseError
from lengthwise.core.json_parsing import parse_json
from lengthwise.core.type_checks import check_values
from lengthwise.evaluation.evaluator import EXACT_MATCH, check_row
from lengthwise.experiments.experiment import from_dict, to_dict
from lengthwise.experiments.run import TrainingFacts
from lengthwise.experiments.run_folder import read_rows, read_sealed
from lengthwise.tasks import TASKS, Text
from lengthwise.tasks.jsonl_table import read_table
from lengthwise.tasks.text_format import format_examples
from lengthwise.training.training_state import Progress, read_progress

# Rows whose numbers an evaluation has written.
RESULT = {
    **{"task": "parity", "variant": None, "length": 4, "num_examples": 8, "num_exact": 4, "exact_match": 0.5},
    **{"exact_match_low": 0.2, "exact_match_high": 0.8, "token_accuracy": 0.9, "seed": 0, "steps": 12},
    **{"trained_distance": 7, "train_s": 0.5, "decode": "forced"},
}
EXPERIMENT = to_dict(small_experiment())
FACTS = {"steps": 12, "fitted": 0.5, "id_range": [1, 40], "trained_distance": 7, "train_s": 0.5}
PROGRESS = {name: getattr(Progress(), name) for name in Progress.__slots__}
SHARED = Path("/dev/shm")


class Source:
    """Choices read off bytes: hypothesis shrinks them, and a fuzzer learns which lead to new code."""

    def __init__(self, content: bytes) -> None:
        self.content, self.place = content, 0

    def below(self, end: int) -> int:
        """A whole number below ``end``; 0 behind the last byte."""
        size = 1 if end <= 256 else 2
        found = self.some(size)
        return int.from_bytes(found, "big") % end

    def some(self, size: int) -> bytes:
        """The next bytes."""
        self.place += size
        return self.content[self.place - size : self.place]

    def of(self, values: Sequence[Any]) -> Any:
        """One of several values."""
        return values[self.below(len(values))]

    def text(self, size: int) -> str:
        """A text of any characters, halves of some included."""
        return "".join(chr(self.of(CHARACTERS)) for _ in range(self.below(size)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A reader, the errors with which it may refuse, and what makes an input for it."""

    read: Callable[[bytes], Any]
    refuses_with: type[Exception]
    make: Callable[[Source], bytes]


CHARACTERS = [*range(32, 127), 0, 9, 10, 13, 27, 0x7F, 0x85, 0xB2, 0xE9, 0x660, 0x2028, 0x202E, 0xD800, 0xDFFF, 0x1F511]
NUMBERS = [0, 1, -1, 2, 7, 0.5, -0.0, 2**31, 2**53, 2**63, 10**40, 1e308, math.nan, math.inf, -math.inf]
LEAVES = [None, True, False, "", "x", "end", "<mark>", "softmax", "rotary", *NUMBERS]


def tree(source: Source, keys: Sequence[str], depth: int = 0) -> Any:
    """Nested values under these and other keys."""
    match source.below(4 if depth < 4 else 2):
        case 0:
            return source.of(LEAVES)
        case 1:
            return source.text(6) if source.below(2) else source.below(65536) - 300
        case 2:
            return [tree(source, keys, depth + 1) for _ in range(source.below(4))]
        case _:
            names = [source.of(keys) if source.below(4) else source.text(4) for _ in range(source.below(5))]
            return {name: tree(source, keys, depth + 1) for name in names}


def document(source: Source, right: dict[str, Any]) -> bytes:
    """A right object with a few values changed, added or removed, or any tree; then perhaps damaged."""
    keys = sorted(right)
    if source.below(10) == 9:
        return damaged(source, json.dumps(tree(source, keys)).encode())
    whole = copy.deepcopy(right)
    for _ in range(source.below(4)):
        place, key = whole, source.of(keys)
        while isinstance(place.get(key), dict) and place[key] and source.below(3):
            place = place[key]
            key = source.of(sorted(place))
        match source.below(4):
            case 0:
                place.pop(key, None)
            case 1:
                place[source.text(5)] = source.of(LEAVES)
            case _:
                place[key] = tree(source, keys)
    return damaged(source, json.dumps(whole).encode())


def damaged(source: Source, content: bytes) -> bytes:
    """Often as it is; else cut, with some bytes of something else in it, or twice."""
    match source.below(10):
        case 1:
            return content[: source.below(len(content) + 1)]
        case 2:
            place = source.below(len(content) + 1)
            return content[:place] + source.some(source.below(5)) + content[place + source.below(5) :]
        case 3:
            return content + source.of([content, b"\x00", b"\xff", b"\xef\xbb\xbf", b"]", b"[" * 60])
        case _:
            return content


def lines(source: Source, *rows: dict[str, Any]) -> bytes:
    """Several lines, each of a right row or not."""
    each = [document(source, source.of(rows)) if source.below(8) else source.some(9) for _ in range(source.below(5))]
    return b"\n".join(each)


def weights(source: Source) -> bytes:
    """Files of safetensors: whole ones with odd tensors and facts, signed or not, and headers that lie."""
    if source.below(2):
        tensors = {
            source.text(5).encode(errors="replace").decode(): torch.zeros(
                [source.below(4) for _ in range(source.below(4))], dtype=source.of(KINDS)
            )
            for _ in range(source.below(3))
        }
        text = document(source, FACTS).decode(errors="replace")
        sha256 = checkpoint._digest(tensors, text) if source.below(4) else "0" * 64
        return damaged(source, save(tensors, metadata={"facts": text, "sha256": sha256}))
    size = source.below(13)
    entry = {"dtype": source.of(["F32", "BF16", "I64", "F4", "X"]), "shape": [size // 4], "data_offsets": [0, size]}
    header = document(source, {"a": entry, "b": entry, "__metadata__": {"facts": "{}", "sha256": "0"}})
    length = len(header) if source.below(4) else source.of([0, 1, 8, 2**63, 2**64 - 1, 10**8, len(header) + 1])
    return struct.pack("<Q", length) + header + bytes(size)


KINDS = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.uint16, torch.bool, torch.complex64),
]


def prompts(source: Source) -> bytes:
    """A task's number and a prompt: a right one, perhaps damaged, or symbols of its own and others."""
    number = source.below(len(ASKED))
    if source.below(2):
        return bytes([number]) + damaged(source, source.of(RIGHT[number]))
    symbols = [*ASKED[number].vocabulary, "+", "=", "*", " ", "  ", ",", ";", "\n", "\u0660", "²", "10", "-1"]
    words = [source.of(symbols) if source.below(12) else source.text(3) for _ in range(source.below(14))]
    return bytes([number]) + source.of(["", " "]).join(words).encode(errors="surrogatepass")


ASKED = [made() for made in TASKS.values() if not issubclass(made, lw.JSONLTask | Text)]


def _right_prompts(task: lw.Task) -> list[bytes]:
    lengths = (smallest_length(task), smallest_length(task) + 3)
    drawn = [task.sample(length=length, size=4, rng=np.random.default_rng(length)) for length in lengths]
    told = [text.prompt for examples in drawn for text in format_examples(task, examples)]
    return [text.encode() for text in (*told, *(text.replace(" ", "") for text in told))]


RIGHT = [_right_prompts(task) for task in ASKED]


def ask(content: bytes) -> None:
    """Ask one of the tasks."""
    task = ASKED[content[0] % len(ASKED)] if content else ASKED[0]
    try:
        prompt = content[1:].decode(errors="surrogatepass")
    except UnicodeDecodeError:
        # As an argument of a command comes.
        prompt = content[1:].decode(errors="surrogateescape")
    examples = task.from_prompt(prompt)
    assert examples.tokens.max() < len(task.vocabulary)
    assert examples.tokens.min() >= 0


def read_results(content: bytes) -> None:
    """Read rows, sealed or not, and look whether they are results."""
    path = _written(content)
    with suppress(LengthwiseError):
        read_sealed(path)
    for row in read_rows(path):
        check_row(row, EXACT_MATCH)


def read_weights(content: bytes) -> None:
    """Read tensors, and facts of a training."""
    _, facts = load_tensors(_written(content))
    check_values(TrainingFacts, {name: tuple(v) if isinstance(v, list) else v for name, v in facts.items()})


def _written(content: bytes) -> Path:
    path = Path(_file().name)
    path.write_bytes(content)
    return path


@cache
def _file() -> Any:
    """One file for all inputs, in memory where the system has such a place; it goes with the process."""
    return tempfile.NamedTemporaryFile(dir=SHARED if SHARED.is_dir() else None)


def read_progress_of(content: bytes) -> None:
    """Read the facts of a checkpoint."""
    with suppress(ValueError):
        read_progress(Path("step"), parse_json(content), "", stages=1, steps=12)


def read_saved(content: bytes) -> None:
    """Read an experiment."""
    try:
        tree = parse_json(content)
    except ValueError:
        return
    from_dict(tree)


ROW = {"prompt": ["a", "b"], "response": ["b", "a"], "coupling": [0, 1, 1, 0], "length": 2}
TEXT_ROW = {"prompt": "a b", "response": "b a"}
READERS = {
    "JSON": Reader(read=parse_json, refuses_with=ValueError, make=lambda source: document(source, EXPERIMENT)),
    "rows of prompts": Reader(
        read=lambda content: read_table(content.split(b"\n"), "rows"),
        refuses_with=LengthwiseError,
        make=lambda source: lines(source, ROW, TEXT_ROW),
    ),
    "rows of results": Reader(
        read=read_results, refuses_with=LengthwiseError, make=lambda source: lines(source, RESULT)
    ),
    "safetensors": Reader(read=read_weights, refuses_with=LengthwiseError, make=weights),
    "experiments": Reader(
        read=read_saved, refuses_with=LengthwiseError, make=lambda source: document(source, EXPERIMENT)
    ),
    "checkpoint facts": Reader(
        read=read_progress_of, refuses_with=LengthwiseError, make=lambda source: document(source, PROGRESS)
    ),
    "prompts": Reader(read=ask, refuses_with=LengthwiseError, make=prompts),
}


def input_of(reader: Reader, choices: bytes) -> bytes:
    """The bytes that some choices make; the choices themselves where the first says so."""
    return choices[1:] if choices[:1] == b"\xff" else reader.make(Source(choices))


def refused(reader: Reader, content: bytes) -> bool:
    """Whether a reader refuses these bytes; any other error is the caller's."""
    try:
        reader.read(content)
    except reader.refuses_with:
        return True
    return False

"""Inputs for every reader of files and prompts: valid bytes, damaged valid bytes, and arbitrary bytes.

A reader must accept an input or raise its documented error; any other exception is a fault.
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
from tests.support.small_runs import small_experiment

import lengthwise as lw
from lengthwise.core import checkpoint
from lengthwise.core.checkpoint import load_tensors
from lengthwise.core.errors import LengthwiseError
from lengthwise.core.json_parsing import parse_json
from lengthwise.core.type_checks import check_field_values
from lengthwise.experiments.experiment import from_dict, to_dict
from lengthwise.experiments.run import TrainingSummary
from lengthwise.experiments.run_folder import read_rows, read_rows_with_digest
from lengthwise.experiments.runner import check_result_row
from lengthwise.tasks import TASKS, JSONLTask, Text
from lengthwise.tasks.jsonl_table import parse_jsonl_records
from lengthwise.tasks.text_format import format_examples
from lengthwise.training.trainer import TrainingProgress, read_training_progress

# A valid result row.
RESULT = {
    **{"task": "parity", "variant": None, "length": 4, "num_examples": 8, "num_exact": 4, "exact_match": 0.5},
    **{"exact_match_low": 0.2, "exact_match_high": 0.8, "token_accuracy": 0.9, "seed": 0, "steps": 12},
    **{"trained_distance": 7, "train_s": 0.5, "decode": "forced"},
}
EXPERIMENT = to_dict(small_experiment())
FACTS = {
    **{"steps": 12, "fitted": 0.5, "misfit": "a token is wrong in 50% of the sequences"},
    **{"id_range": [1, 40], "trained_distance": 7, "train_s": 0.5},
}
PROGRESS = {name: getattr(TrainingProgress(), name) for name in TrainingProgress.__slots__}
SHARED = Path("/dev/shm")


class Source:
    """Choices decoded from bytes, so that hypothesis can shrink them and a fuzzer can learn from them."""

    def __init__(self, content: bytes) -> None:
        self.content, self.offset = content, 0

    def below(self, end: int) -> int:
        """Return a whole number below ``end``; 0 after the last byte."""
        size = 1 if end <= 256 else 2
        return int.from_bytes(self.take(size), "big") % end

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        self.offset += size
        return self.content[self.offset - size : self.offset]

    def of(self, values: Sequence[Any]) -> Any:
        """Return one of the values."""
        return values[self.below(len(values))]

    def text(self, size: int) -> str:
        """Return a text of unusual characters, including surrogates."""
        return "".join(chr(self.of(CHARACTERS)) for _ in range(self.below(size)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reader with its documented error and a function that makes inputs for it."""

    read: Callable[[bytes], Any]
    error: type[Exception]
    make: Callable[[Source], bytes]


CHARACTERS = [*range(32, 127), 0, 9, 10, 13, 27, 0x7F, 0x85, 0xB2, 0xE9, 0x660, 0x2028, 0x202E, 0xD800, 0xDFFF, 0x1F511]
NUMBERS = [0, 1, -1, 2, 7, 0.5, -0.0, 2**31, 2**53, 2**63, 10**40, 1e308, math.nan, math.inf, -math.inf]
LEAVES = [None, True, False, "", "x", "end", "<mark>", "softmax", "rotary", *NUMBERS]


def tree(source: Source, keys: Sequence[str], depth: int = 0) -> Any:
    """Return nested values with these and other keys."""
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


def document(source: Source, valid: dict[str, Any]) -> bytes:
    """Return a valid object with changed, added or removed values, or any tree; sometimes damaged."""
    keys = sorted(valid)
    if source.below(10) == 9:
        return maybe_damage(source, json.dumps(tree(source, keys)).encode())
    root = copy.deepcopy(valid)
    for _ in range(source.below(4)):
        parent, key = root, source.of(keys)
        while isinstance(parent.get(key), dict) and parent[key] and source.below(3):
            parent = parent[key]
            key = source.of(sorted(parent))
        match source.below(4):
            case 0:
                parent.pop(key, None)
            case 1:
                parent[source.text(5)] = source.of(LEAVES)
            case _:
                parent[key] = tree(source, keys)
    return maybe_damage(source, json.dumps(root).encode())


def maybe_damage(source: Source, content: bytes) -> bytes:
    """Return the content, usually unchanged; otherwise cut, with other bytes in it, or repeated."""
    match source.below(10):
        case 1:
            return content[: source.below(len(content) + 1)]
        case 2:
            offset = source.below(len(content) + 1)
            return content[:offset] + source.take(source.below(5)) + content[offset + source.below(5) :]
        case 3:
            return content + source.of([content, b"\x00", b"\xff", b"\xef\xbb\xbf", b"]", b"[" * 60])
        case _:
            return content


def lines(source: Source, *rows: dict[str, Any]) -> bytes:
    """Return several lines of valid or arbitrary rows."""
    parts = [document(source, source.of(rows)) if source.below(8) else source.take(9) for _ in range(source.below(5))]
    return b"\n".join(parts)


def weights(source: Source) -> bytes:
    """Return a safetensors file with unusual tensors and facts, or with a false header."""
    if source.below(2):
        tensors = {
            source.text(5).encode(errors="replace").decode(): torch.zeros(
                [source.below(4) for _ in range(source.below(4))], dtype=source.of(DTYPES)
            )
            for _ in range(source.below(3))
        }
        text = document(source, FACTS).decode(errors="replace")
        sha256 = checkpoint._digest(tensors, text) if source.below(4) else "0" * 64
        return maybe_damage(source, save(tensors, metadata={"facts": text, "sha256": sha256}))
    size = source.below(13)
    entry = {"dtype": source.of(["F32", "BF16", "I64", "F4", "X"]), "shape": [size // 4], "data_offsets": [0, size]}
    header = document(source, {"a": entry, "b": entry, "__metadata__": {"facts": "{}", "sha256": "0"}})
    length = len(header) if source.below(4) else source.of([0, 1, 8, 2**63, 2**64 - 1, 10**8, len(header) + 1])
    return struct.pack("<Q", length) + header + bytes(size)


DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.uint16, torch.bool, torch.complex64),
]


def prompts(source: Source) -> bytes:
    """Return the index of a task and a prompt: a valid one, perhaps damaged, or arbitrary symbols."""
    index = source.below(len(PROMPT_TASKS))
    if source.below(2):
        return bytes([index]) + maybe_damage(source, source.of(VALID_PROMPTS[index]))
    symbols = [*PROMPT_TASKS[index].vocabulary, "+", "=", "*", " ", "  ", ",", ";", "\n", "\u0660", "²", "10", "-1"]
    words = [source.of(symbols) if source.below(12) else source.text(3) for _ in range(source.below(14))]
    return bytes([index]) + source.of(["", " "]).join(words).encode(errors="surrogatepass")


PROMPT_TASKS = [task() for task in TASKS.values() if not issubclass(task, JSONLTask | Text)]


def _valid_prompts(task: lw.Task) -> list[bytes]:
    lengths = (task.min_length, task.min_length + 3)
    batches = [task.sample(length=length, size=4, rng=np.random.default_rng(length)) for length in lengths]
    prompts = [text.prompt for examples in batches for text in format_examples(task, examples)]
    return [text.encode() for text in (*prompts, *(text.replace(" ", "") for text in prompts))]


VALID_PROMPTS = [_valid_prompts(task) for task in PROMPT_TASKS]


def read_prompt(content: bytes) -> None:
    """Parse a prompt with one of the tasks."""
    task = PROMPT_TASKS[content[0] % len(PROMPT_TASKS)] if content else PROMPT_TASKS[0]
    try:
        prompt = content[1:].decode(errors="surrogatepass")
    except UnicodeDecodeError:
        # As in command arguments.
        prompt = content[1:].decode(errors="surrogateescape")
    examples = task.example_from_prompt(prompt)
    assert examples.tokens.max() < len(task.vocabulary)
    assert examples.tokens.min() >= 0


def read_results(content: bytes) -> None:
    """Read rows, sealed or not, and check that they are result rows."""
    path = _write(content)
    with suppress(LengthwiseError):
        read_rows_with_digest(path)
    for row in read_rows(path):
        check_result_row(row)


def read_weights(content: bytes) -> None:
    """Read tensors and training facts."""
    _, facts = load_tensors(_write(content))
    check_field_values(TrainingSummary, {name: tuple(v) if isinstance(v, list) else v for name, v in facts.items()})


def _write(content: bytes) -> Path:
    path = Path(_shared_file().name)
    path.write_bytes(content)
    return path


@cache
def _shared_file() -> Any:
    """Return one file for all inputs, in memory if possible; it is deleted with the process."""
    return tempfile.NamedTemporaryFile(dir=SHARED if SHARED.is_dir() else None)


def read_checkpoint_facts(content: bytes) -> None:
    """Read the facts of a checkpoint."""
    with suppress(ValueError):
        read_training_progress(Path("step"), parse_json(content), "", stages=1, steps=12)


def read_experiment(content: bytes) -> None:
    """Read an experiment."""
    try:
        tree = parse_json(content)
    except ValueError:
        return
    from_dict(tree)


RECORD = {"prompt": ["a", "b"], "response": ["b", "a"], "coupling": [0, 1, 1, 0], "length": 2}
TEXT_RECORD = {"prompt": "a b", "response": "b a"}
READERS = {
    "JSON": Reader(read=parse_json, error=ValueError, make=lambda source: document(source, EXPERIMENT)),
    "rows of prompts": Reader(
        read=lambda content: parse_jsonl_records(content.split(b"\n"), "rows"),
        error=LengthwiseError,
        make=lambda source: lines(source, RECORD, TEXT_RECORD),
    ),
    "rows of results": Reader(read=read_results, error=LengthwiseError, make=lambda source: lines(source, RESULT)),
    "safetensors": Reader(read=read_weights, error=LengthwiseError, make=weights),
    "experiments": Reader(
        read=read_experiment, error=LengthwiseError, make=lambda source: document(source, EXPERIMENT)
    ),
    "checkpoint facts": Reader(
        read=read_checkpoint_facts, error=LengthwiseError, make=lambda source: document(source, PROGRESS)
    ),
    "prompts": Reader(read=read_prompt, error=LengthwiseError, make=prompts),
}


def input_of(reader: Reader, choices: bytes) -> bytes:
    """Return the input that the choices make, or the choices themselves if the first byte is 255."""
    return choices[1:] if choices[:1] == b"\xff" else reader.make(Source(choices))


def raises_error(reader: Reader, content: bytes) -> bool:
    """Return True if the reader raises its documented error; other errors propagate."""
    try:
        reader.read(content)
    except reader.error:
        return True
    return False

"""GGUF files: the file that a name refers to, and checks of its header before another library reads it.

`transformers` reads the whole header with a reader that trusts its counts, and allocates memory for each of them.
"""

import math
import mmap
import struct
from pathlib import Path
from typing import Any

from transformers.utils import CONFIG_NAME
from transformers.utils.import_utils import is_accelerate_available, is_gguf_available

from lengthwise.core.errors import ModelError
from lengthwise.core.files import check_regular_file

GGUF_SUFFIX = ".gguf"
MAGIC, VERSIONS = b"GGUF", (2, 3)
# Types of values in the header, with the codes of the module `struct` for numbers.
NUMBER_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT_TYPE, LIST_TYPE = 8, 9
ALIGNMENT_KEY, DEFAULT_ALIGNMENT = "general.alignment", 32
PARTS_KEY, VOCABULARY_KEY = "split.count", "tokenizer.ggml.tokens"
# Limits of a header, in bytes of the header, of a text and of a name or token, in entries, and in items of all lists.
# The libraries need hundreds of bytes for an item. A large vocabulary has a quarter of a million tokens, and half a
# million merges.
MAX_HEADER, MAX_TEXT, MAX_NAME, MAX_ENTRIES, MAX_ITEMS = 64 << 20, 1 << 20, 1024, 100_000, 2_000_000
# Largest number of bytes of all tokens. Without merges, the library makes up to one for each of these bytes.
MAX_VOCABULARY = 8 << 20
MAX_DIMENSIONS = 4
# Largest numbers, by a part of their name. The time to find the names of all weights grows with the square of the
# number of layers.
LIMITS = {"block_count": 200, "nextn_predict_layers": 200, "expert_count": 10_000}


def find_gguf_file(name: str) -> Path | None:
    """Return the GGUF file that a name refers to: an existing file, or the only one in a folder without a model.

    Raises ``ModelError`` for a folder with several GGUF files, and for missing packages.
    """
    path = Path(name)
    if is_gguf_path(name) and path.exists() and not path.is_dir():
        file = path
    elif path.is_dir() and not (path / CONFIG_NAME).exists():
        files = sorted(file for file in path.iterdir() if is_gguf_path(file.name))
        if not files:
            return None
        if len(files) > 1:
            raise ModelError(f"{name} contains {len(files)} GGUF files; use one of them, such as {files[0]}")
        (file,) = files
    else:
        return None
    if not is_gguf_available() or not is_accelerate_available():
        raise ModelError(f"{file} needs the packages gguf and accelerate; run pip install 'lengthwise[gguf]'")
    return file


def is_gguf_path(name: str) -> bool:
    """Return True if a name ends like that of a GGUF file."""
    return name.lower().endswith(GGUF_SUFFIX)


def read_tensor_sizes(path: Path) -> list[int]:
    """Return the number of values of each tensor of a GGUF file.

    Raises ``ValueError`` for a header that is damaged or has too large numbers, and for tensors that are not in the
    file; raises ``OSError`` for a named pipe or a device.
    """
    check_regular_file(path)
    num_bytes = path.stat().st_size
    if num_bytes < len(MAGIC):
        raise ValueError(f"it has only {num_bytes} bytes")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        header = _HeaderReader(content)
        if header.read_bytes(len(MAGIC)) != MAGIC:
            raise ValueError("it does not start with the letters GGUF")
        version, num_tensors, num_values = header.read_number("I"), header.read_number("Q"), header.read_number("Q")
        if version not in VERSIONS:
            raise ValueError(f"it has version {version}; versions {' and '.join(map(str, VERSIONS))} are supported")
        for count, noun in ((num_tensors, "tensors"), (num_values, "values")):
            if count > MAX_ENTRIES:
                raise ValueError(f"its header has {count:,} {noun}; at most {MAX_ENTRIES:,} are supported")
        values: dict[str, Any] = {}
        for _ in range(num_values):
            key = header.read_text(MAX_NAME)
            if key in values:
                raise ValueError(f"its header has two values {key}")
            first = header.offset
            values[key] = header.read_value()
            if key == VOCABULARY_KEY and header.offset - first > MAX_VOCABULARY:
                raise ValueError(f"its vocabulary has more than the supported {MAX_VOCABULARY:,} bytes")
        _check_values(values)
        tensors = [header.read_tensor() for _ in range(num_tensors)]
        names = [name for name, *_ in tensors]
        if len(set(names)) < len(names):
            raise ValueError("its header has two tensors of the same name")
        alignment = values.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
        start = -(-header.offset // alignment) * alignment
        _check_places([(start + offset, size) for _, _, offset, size in tensors], num_bytes)
    return [num_items for _, num_items, _, _ in tensors]


class _HeaderReader:
    """Reader that compares each count with the size of the file and with the limits before it uses the count."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content, self.offset, self.num_items = content, 0, 0

    def read_bytes(self, size: int) -> bytes:
        start = self.offset
        self._skip(size)
        return self.content[start : self.offset]

    def _skip(self, size: int) -> None:
        end = self.offset + size
        if end > len(self.content):
            raise ValueError(f"it ends inside its header: it has {len(self.content):,} bytes of {end:,}")
        if end > MAX_HEADER:
            raise ValueError(f"its header has more than the supported {MAX_HEADER:,} bytes")
        self.offset = end

    def read_number(self, code: str) -> Any:
        (number,) = struct.unpack(f"<{code}", self.read_bytes(struct.calcsize(f"<{code}")))
        return number

    def read_text(self, limit: int) -> str:
        size = self.read_number("Q")
        if size > limit:
            raise ValueError(f"its header has a text of {size:,} bytes; at most {limit:,} are supported")
        return self.read_bytes(size).decode("utf-8")

    def read_value(self) -> Any:
        """Return a number, a text or a list. A list of texts is only checked, and its items are left out."""
        kind = self.read_number("I")
        if kind == TEXT_TYPE:
            return self.read_text(MAX_TEXT)
        return self._read_list() if kind == LIST_TYPE else self.read_number(_number_code(kind))

    def read_tensor(self) -> tuple[str, int, int, int]:
        """Return the name of a tensor, its number of values, its offset in the data, and its number of bytes."""
        from gguf.constants import GGML_QUANT_SIZES  # noqa: PLC0415  (an optional dependency)

        name, num_dimensions = self.read_text(MAX_NAME), self.read_number("I")
        if num_dimensions > MAX_DIMENSIONS:
            raise ValueError(f"its tensor {name} has {num_dimensions:,} dimensions; at most {MAX_DIMENSIONS} exist")
        shape = [self.read_number("Q") for _ in range(num_dimensions)]
        kind, offset = self.read_number("I"), self.read_number("Q")
        if kind not in GGML_QUANT_SIZES:
            raise ValueError(f"its tensor {name} has the unknown type {kind}")
        num_items = math.prod(shape)
        block_items, block_bytes = GGML_QUANT_SIZES[kind]
        if not num_items or (shape[0] if shape else 1) % block_items:
            raise ValueError(f"its tensor {name} has the shape {shape}, which its type does not allow")
        return name, num_items, offset, num_items // block_items * block_bytes

    def _read_list(self) -> list[Any]:
        kind, count = self.read_number("I"), self.read_number("Q")
        self.num_items += count
        if self.num_items > MAX_ITEMS:
            raise ValueError(f"its header has lists of {self.num_items:,} items; at most {MAX_ITEMS:,} are supported")
        if kind != TEXT_TYPE:
            form = f"<{count}{_number_code(kind)}"
            return list(struct.unpack(form, self.read_bytes(struct.calcsize(form))))
        for _ in range(count):
            self.read_text(MAX_NAME)
        return []


def _number_code(kind: int) -> str:
    if kind not in NUMBER_CODES:
        raise ValueError(f"its header has a value of the unsupported type {kind}")
    return NUMBER_CODES[kind]


def _check_values(values: dict[str, Any]) -> None:
    for name, value in values.items():
        limits = [limit for part, limit in LIMITS.items() if part in name]
        numbers = [item for item in (value if isinstance(value, list) else [value]) if not isinstance(item, str)]
        # A configuration can subtract a number, so that a negative one makes it large.
        largest = max(numbers, key=abs, default=0)
        if limits and abs(largest) > limits[0]:
            raise ValueError(f"its header has the {name} {largest:,}; at most {limits[0]:,} is supported")
    alignment = values.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"its header has the {ALIGNMENT_KEY} {alignment!r}, which is not a power of two")
    num_parts = values.get(PARTS_KEY, 1)
    if num_parts != 1:
        raise ValueError(f"it is one of {num_parts} parts; join them with llama-gguf-split --merge")


def _check_places(places: list[tuple[int, int]], num_bytes: int) -> None:
    """Raise ``ValueError`` for tensors that overlap, or that do not end within the file."""
    end = 0
    for start, size in sorted(places):
        if start < end:
            raise ValueError("its header has tensors that overlap")
        end = start + size
    if end > num_bytes:
        raise ValueError(f"it is truncated: it has {num_bytes:,} bytes of {end:,}")

"""Tokenizers: text to token numbers, and what each of them stands for."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

from lengthwise.core.errors import TextError
from lengthwise.core.json_parsing import parse_json

# The token after a document: the first one, whatever the tokenizer.
END = 0
# How the file of a tokenizer writes it. Text that looks like it is text.
END_TEXT = "<|end|>"


@runtime_checkable
class Tokenizer(Protocol):
    """Token numbers from 0 to those of ``pieces``; no text is unknown to it, and none is changed."""

    name: str

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """The bytes that each token stands for, none for the end token."""
        ...

    def encode(self, text: str) -> Sequence[int]:
        """The tokens of a text, no end token among them."""
        ...


class ByteTokenizer:
    """Every byte of the text in UTF-8 is a token."""

    name = "bytes"

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """The end token, then the bytes in order."""
        return (b"", *(bytes([value]) for value in range(256)))

    def encode(self, text: str) -> Sequence[int]:
        """The bytes, counted from 1."""
        return [value + 1 for value in text.encode()]


class BytePairTokenizer:
    """Byte pair encoding (Sennrich et al. 2016, arXiv 1508.07909) over bytes, from a file of the tokenizers library.

    The pieces are known without the library; ``encode`` needs it. ``TextError`` for content that is no such file.
    """

    def __init__(self, content: bytes, name: str) -> None:
        self.name = name
        self.content = content
        try:
            numbers: dict[str, int] = parse_json(content)["model"]["vocab"]
            by_number = sorted(numbers, key=numbers.__getitem__)
            self.pieces = tuple(b"" if piece == END_TEXT else _bytes(piece) for piece in by_number)
            known = sorted(numbers.values()) == list(range(len(numbers))) and by_number[END] == END_TEXT
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TextError(f"{name} is damaged ({type(error).__name__}: {error}); prepare the corpus again") from None
        if not known:
            raise TextError(f"{name} is no tokenizer of a prepared corpus (token 0 is not {END_TEXT}); prepare one")

    def encode(self, text: str) -> Sequence[int]:
        """The tokens of the text; ``TextError`` when the library is missing."""
        found: list[int] = _library_of(self.content).encode(text, add_special_tokens=False).ids
        return found


def tokenizers_library() -> Any:
    """The tokenizers library, or the error that says how to install it."""
    try:
        import tokenizers  # noqa: PLC0415  (few need it)
    except ImportError:
        raise TextError("text needs the tokenizers library; pip install 'lengthwise[text]'") from None
    return tokenizers


def shown(piece: bytes) -> str:
    """A token for people: its text in quotes, or its bytes where they are no whole characters; the end is ``end``."""
    if not piece:
        return "end"
    try:
        return repr(piece.decode())
    except UnicodeDecodeError:
        return repr(piece)


def _bytes(piece: str) -> bytes:
    """What a file writes a piece as: a printable character for each byte (Radford et al. 2019, GPT-2)."""
    return bytes(_BYTE_OF[character] for character in piece)


def _byte_of_character() -> dict[str, int]:
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [value for value in range(256) if value not in printable]
    # Bytes that are no printable character of Latin-1 are written as those from 256 on.
    return {chr(value): value for value in printable} | {chr(256 + place): other for place, other in enumerate(others)}


_BYTE_OF = _byte_of_character()


@lru_cache(maxsize=8)
def _library_of(content: bytes) -> Any:
    """The library's tokenizer, one for the same content: it keeps the memory of its caches when it is dropped."""
    made = tokenizers_library().Tokenizer.from_buffer(content)
    # Text that looks like the end token is no end.
    made.encode_special_tokens = True
    return made

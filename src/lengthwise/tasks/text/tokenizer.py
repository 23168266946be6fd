"""Tokenizers that map text to token IDs and provide the bytes of each token."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

from lengthwise.core.errors import TextSourceError
from lengthwise.core.json_parsing import parse_json

# ID of the end token, which follows each document and is equal for all tokenizers.
END = 0
# Name of the end token in a tokenizer file. These characters are ordinary text within a document.
END_TOKEN_TEXT = "<|end|>"

# Smallest number of characters of a part of a text, except the last; the largest is twice this number.
PART_SIZE = 1 << 16
_WORD_END = re.compile(r"(?<=\w)[ \n]")


@runtime_checkable
class Tokenizer(Protocol):
    """Lossless tokenizer of any text, with token IDs from 0 to ``len(pieces) - 1``."""

    name: str

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """Bytes of each token; the end token has no bytes."""

    def encode(self, text: str) -> Sequence[int]:
        """Return the token IDs of a text, without an end token."""


class ByteTokenizer:
    """Tokenizer with one token per byte of UTF-8."""

    name = "bytes"

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """Empty bytes for the end token, then each of the 256 bytes in order."""
        return (b"", *(bytes([byte_value]) for byte_value in range(256)))

    def encode(self, text: str) -> Sequence[int]:
        """Return the UTF-8 bytes as token IDs, each increased by 1."""
        return [byte_value + 1 for byte_value in text.encode()]


class BytePairTokenizer:
    """Byte pair encoding (Sennrich et al. 2016, arXiv 1508.07909) from a file of the tokenizers library.

    Only ``encode`` needs the library. Raises ``TextSourceError`` for invalid content.
    """

    def __init__(self, content: bytes, name: str) -> None:
        self.name, self.content = name, content
        try:
            document = parse_json(content)
            token_ids: dict[str, int] = document["model"]["vocab"]
            token_texts = sorted(token_ids, key=token_ids.__getitem__)
            self.pieces = tuple(b"" if text == END_TOKEN_TEXT else _decode_piece(text) for text in token_texts)
            is_valid = sorted(token_ids.values()) == list(range(len(token_ids))) and token_texts[END] == END_TOKEN_TEXT
            # Other rules could run any regular expression, or expand a text.
            is_valid &= document["normalizer"] is None and document["pre_tokenizer"]["type"] == "ByteLevel"
            is_valid &= [token["content"] for token in document["added_tokens"]] == [END_TOKEN_TEXT]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TextSourceError(
                f"{name} is damaged ({type(error).__name__}: {error}); prepare the corpus again"
            ) from None
        if not is_valid:
            raise TextSourceError(
                f"{name} is not from a prepared corpus (token 0 is not {END_TOKEN_TEXT}); run lengthwise prepare"
            )

    def encode(self, text: str) -> Sequence[int]:
        """Return the token IDs of a text; raise ``TextSourceError`` if the tokenizers library is missing."""
        tokenizer = _library_tokenizer(self.content)
        return [token for part in split_text(text) for token in tokenizer.encode(part, add_special_tokens=False).ids]


def split_text(text: str) -> Iterator[str]:
    """Yield the parts of a text; the library needs over 100 bytes of memory for each byte of one part.

    A part ends after a word, where no token can continue, or in text without spaces at its largest size.
    """
    start = 0
    while start < len(text):
        word_end = _WORD_END.search(text, start + PART_SIZE, start + 2 * PART_SIZE)
        stop = start + 2 * PART_SIZE if word_end is None else word_end.start()
        yield text[start:stop]
        start = stop


def import_tokenizers_library() -> Any:
    """Return the tokenizers library; raise ``TextSourceError`` with the install command if it is missing."""
    try:
        import tokenizers  # noqa: PLC0415  (an optional dependency)
    except ImportError:
        raise TextSourceError("text needs the tokenizers library; run pip install 'lengthwise[text]'") from None
    return tokenizers


def format_piece(piece: bytes) -> str:
    """Return a token as quoted text, as quoted bytes if the token is not valid UTF-8, or as ``end``."""
    if not piece:
        return "end"
    try:
        return repr(piece.decode())
    except UnicodeDecodeError:
        return repr(piece)


def _decode_piece(text: str) -> bytes:
    """Return the bytes of a token in a tokenizer file, which writes each byte as one printable character (GPT-2)."""
    return bytes(_BYTE_OF_CHARACTER[character] for character in text)


def _build_byte_table() -> dict[str, int]:
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    unprintable = [byte_value for byte_value in range(256) if byte_value not in printable]
    # The file represents all other bytes by the characters from 256 on.
    characters = map(chr, (*printable, *range(256, 256 + len(unprintable))))
    return dict(zip(characters, (*printable, *unprintable), strict=True))


_BYTE_OF_CHARACTER = _build_byte_table()


@lru_cache(maxsize=8)
def _library_tokenizer(content: bytes) -> Any:
    """Return the tokenizer of the library, cached because the library never frees its memory."""
    tokenizer = import_tokenizers_library().Tokenizer.from_buffer(content)
    # Encode text that looks like the end token as text.
    tokenizer.encode_special_tokens = True
    return tokenizer

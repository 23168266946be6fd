"""Interface of a tokenizer in an influence study."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from lengthwise.core.errors import ModelError
from lengthwise.tasks import TokenizedDocument
from lengthwise.tasks.text.documents import Document
from lengthwise.tasks.text.tokenizer import Tokenizer


@runtime_checkable
class TextCodec(Protocol):
    """Tokenizer of a model. ``start`` contains the start token, or is empty for a tokenizer without one."""

    name: str
    start: tuple[int, ...]

    def encode(self, text: str) -> Sequence[int]:
        """Return the token IDs of a text, without the start token."""

    def token_text(self, token: int) -> str:
        """Return the text of a single token."""


class BytePairCodec:
    """Adapter for the byte-pair tokenizer of this package, which has no start token."""

    start: tuple[int, ...] = ()

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.name = tokenizer, tokenizer.name

    def encode(self, text: str) -> Sequence[int]:
        """Return the token IDs of a text."""
        return self.tokenizer.encode(text)

    def token_text(self, token: int) -> str:
        """Return the text of a single token; the end token has an empty text."""
        return self.tokenizer.pieces[token].decode("utf-8", "replace")


def tokenize_documents(
    codec: TextCodec, documents: Iterable[Document], vocabulary_size: int
) -> Iterator[TokenizedDocument]:
    """Yield each document as token IDs. Raises ``ModelError`` if an ID is outside the vocabulary of the model."""
    for document in documents:
        tokens = np.asarray(codec.encode(document.text), dtype=np.int32)
        check_token_ids(codec.name, int(tokens.max(initial=0)), vocabulary_size)
        yield TokenizedDocument(name=document.name, tokens=tokens)


def check_token_ids(codec_name: str, largest: int, vocabulary_size: int) -> None:
    """Raise ``ModelError`` if the largest token ID of a text is outside the vocabulary of the model."""
    if largest >= vocabulary_size:
        raise ModelError(
            f"tokenizer {codec_name} produces token ID {largest}, but the model has {vocabulary_size} tokens; use the "
            "tokenizer that the model was trained with"
        )

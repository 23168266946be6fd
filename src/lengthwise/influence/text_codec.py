"""Text to token numbers and back, as an influence study needs it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from lengthwise.core.errors import ModelError
from lengthwise.tasks import TokenizedDocument
from lengthwise.tasks.text.documents import Document
from lengthwise.tasks.text.tokenizer import Tokenizer


@runtime_checkable
class TextCodec(Protocol):
    """A tokenizer: ``start`` is what every text begins with for its model, none or one token."""

    name: str
    start: tuple[int, ...]

    def encode(self, text: str) -> Sequence[int]:
        """The tokens of a text, ``start`` not among them."""
        ...

    def token_text(self, token: int) -> str:
        """What a token stands for by itself."""
        ...


class PieceCodec:
    """A tokenizer of the package's own, whose tokens stand for bytes; its texts begin with nothing."""

    start: tuple[int, ...] = ()

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.name = tokenizer, tokenizer.name

    def encode(self, text: str) -> Sequence[int]:
        """The tokens of a text."""
        return self.tokenizer.encode(text)

    def token_text(self, token: int) -> str:
        """What a token stands for by itself; of the end of a document, nothing."""
        return self.tokenizer.pieces[token].decode("utf-8", "replace")


def tokenized(codec: TextCodec, documents: Iterable[Document], vocabulary_size: int) -> Iterator[TokenizedDocument]:
    """Documents as tokens; ``ModelError`` for a token that the model does not have."""
    for document in documents:
        tokens = np.asarray(codec.encode(document.text), dtype=np.int32)
        if len(tokens) and tokens.max() >= vocabulary_size:
            raise ModelError(
                f"tokenizer {codec.name} makes token {tokens.max()} and the model has {vocabulary_size}; "
                "give the tokenizer that the model was trained with"
            )
        yield TokenizedDocument(name=document.name, tokens=tokens)

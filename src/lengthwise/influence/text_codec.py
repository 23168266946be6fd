"""Text to token numbers and back, as an influence study needs it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from lengthwise.errors import ModelError
from lengthwise.influence.targets import TokenizedText


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


def tokenized(codec: TextCodec, documents: Iterable[tuple[str, str]], vocabulary_size: int) -> Iterator[TokenizedText]:
    """Named texts as tokens; ``ModelError`` for a token that the model does not have."""
    for name, text in documents:
        tokens = np.asarray(codec.encode(text), dtype=np.int32)
        if len(tokens) and tokens.max() >= vocabulary_size:
            raise ModelError(
                f"tokenizer {codec.name} makes token {tokens.max()} and the model has {vocabulary_size}; "
                "give the tokenizer that the model was trained with"
            )
        yield TokenizedText(name=name, tokens=tokens)

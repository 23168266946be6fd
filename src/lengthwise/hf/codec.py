"""A tokenizer of `transformers` as what turns text into tokens and back."""

from collections.abc import Sequence
from functools import lru_cache

from transformers import PreTrainedTokenizerBase


class HFCodec:
    """A tokenizer of `transformers`; what it puts before every text is the start."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        self.tokenizer, self.name = tokenizer, name
        plain, whole = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True))
        # Some tokenizers end a text with a token as well.
        before = [place for place in range(len(whole)) if whole[place : place + len(plain)] == plain]
        begun = whole[: before[0]] if before else [token for token in whole[:1] if token == tokenizer.bos_token_id]
        self.start: tuple[int, ...] = tuple(begun)
        self.token_text = lru_cache(maxsize=None)(self._token_text)

    def encode(self, text: str) -> Sequence[int]:
        """The tokens of a text, of whatever length, without special ones."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, with nothing tidied up."""
        return str(self.tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))

    def _token_text(self, token: int) -> str:
        return self.decode([token])

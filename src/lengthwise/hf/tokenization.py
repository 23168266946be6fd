"""Tokenizers of `transformers`: a codec for any tokenizer, and a tokenizer for the symbols of a task."""

from collections.abc import Sequence
from functools import lru_cache

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lengthwise.core.errors import ModelError


def _tokens_of_a_text(tokenizer: PreTrainedTokenizerBase, special: bool) -> list[int]:
    """Of a letter or, where that is unknown, of a token that is not."""
    try:
        return list(tokenizer("a", add_special_tokens=special)["input_ids"])
    except Exception:  # What tokenizers raise has no class of its own.
        known = next(token for token in tokenizer.get_vocab() if token not in tokenizer.all_special_tokens)
        return list(tokenizer(known, add_special_tokens=special)["input_ids"])


class HFCodec:
    """A tokenizer of `transformers`; what it puts before every text is the start."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        self.tokenizer, self.name = tokenizer, name
        plain, whole = (_tokens_of_a_text(tokenizer, special) for special in (False, True))
        # Some tokenizers end a text with a token as well.
        before = [place for place in range(len(whole)) if whole[place : place + len(plain)] == plain]
        begun = whole[: before[0]] if before else [token for token in whole[:1] if token == tokenizer.bos_token_id]
        self.start: tuple[int, ...] = tuple(begun)
        self.token_text = lru_cache(maxsize=None)(self._token_text)

    def encode(self, text: str) -> Sequence[int]:
        """The tokens of a text, of whatever length, without special ones; ``ModelError`` for one that it has not."""
        try:
            return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        except Exception as error:  # As above.
            raise ModelError(
                f"the tokenizer of {self.name} cannot cut the text ({str(error)[:100]}); give a model whose tokenizer "
                "knows all symbols of the task"
            ) from None

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, with nothing tidied up."""
        return str(self.tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))

    def _token_text(self, token: int) -> str:
        return self.decode([token])


def symbol_tokenizer(symbols: Sequence[str]) -> PreTrainedTokenizerFast:
    """Each symbol is a token under its own number; ``end`` is the end of a text, and its fill.

    Symbols are parted by spaces, and a line ends with ``end``, as in
    `lengthwise.tasks.text_format`, there and back. Where all but
    ``end`` are single characters, they may stand together: ``0110=``.
    """
    tokenizer = Tokenizer(models.WordLevel({symbol: number for number, symbol in enumerate(symbols)}))
    if "end" in symbols:
        tokenizer.normalizer = normalizers.Replace("\n", " end ")
    parts: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.WhitespaceSplit()]
    if all(len(symbol) == 1 for symbol in symbols if symbol != "end"):
        parts.append(pre_tokenizers.Split(Regex("end|."), "isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    # A space between symbols, and none around a newline.
    spaced = [decoders.WordPiece(prefix=" ", cleanup=False), decoders.Fuse()]
    ended = [decoders.Replace(Regex("(?:^| )end(?= |$)"), "\n"), decoders.Replace("\n ", "\n")]
    tokenizer.decoder = decoders.Sequence(spaced + (ended if "end" in symbols else []))
    special = {"eos_token": "end", "pad_token": "end"} if "end" in symbols else {}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **special)


def tokenizer_from_json(content: str) -> PreTrainedTokenizerFast:
    """The tokenizer that a text run keeps, from its JSON."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(content))

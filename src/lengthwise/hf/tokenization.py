"""Tokenizers of `transformers`: a codec for any tokenizer, and a tokenizer for a task's symbols."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from lengthwise.core.errors import ModelError


class HFTokenizerAdapter:
    """Adapter of a `transformers` tokenizer to `ModelTokenizer`. ``start`` has the special tokens before every text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        self.tokenizer, self.name = tokenizer, name
        tokens, special = (_tokenize_sample(tokenizer, add_special_tokens) for add_special_tokens in (False, True))
        # Some tokenizers also add a token at the end.
        offsets = [index for index in range(len(special)) if special[index : index + len(tokens)] == tokens]
        has_bos = special[:1] == [tokenizer.bos_token_id]
        self.start: tuple[int, ...] = tuple(special[: offsets[0] if offsets else int(has_bos)])
        self.token_text = lru_cache(maxsize=None)(lambda token: self.decode([token]))

    def encode(self, text: str) -> Sequence[int]:
        """Return the tokens of a text, without special tokens. Raises ``ModelError`` for unknown symbols."""
        try:
            with _panics_as_errors():
                return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        except Exception as error:  # tokenizers raise plain exceptions
            raise ModelError(
                f"the tokenizer of {self.name} cannot encode the text ({str(error)[:100]}); use a model with "
                "a tokenizer that supports all symbols of the task"
            ) from None

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, with all spaces unchanged."""
        with _panics_as_errors():
            return str(self.tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))


@contextmanager
def _panics_as_errors() -> Iterator[None]:
    """Raise ``ModelError`` for a panic of native code, such as a regular expression that takes too long."""
    try:
        yield
    except BaseException as error:  # a panic is no Exception, and its class cannot be imported
        if type(error).__name__ != "PanicException":
            raise
        raise ModelError(f"the tokenizer failed ({str(error)[:100]}); use another tokenizer, or other texts") from None


def _tokenize_sample(tokenizer: PreTrainedTokenizerBase, add_special_tokens: bool) -> list[int]:
    """Return the tokens of the text "a", or of a vocabulary entry if the tokenizer cannot encode "a"."""
    try:
        return list(tokenizer("a", add_special_tokens=add_special_tokens)["input_ids"])
    except Exception:  # tokenizers raise plain exceptions
        text = next(token for token in tokenizer.get_vocab() if token not in tokenizer.all_special_tokens)
        return list(tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"])


def build_symbol_tokenizer(symbols: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per symbol; ``end`` is the end token and the pad token.

    The text format is `lengthwise.tasks.text_format`: spaces between symbols, and a newline for ``end``. If all other
    symbols are single characters, the spaces are optional, as in ``0110=``.
    """
    tokenizer = Tokenizer(models.WordLevel({symbol: token for token, symbol in enumerate(symbols)}))
    if "end" in symbols:
        tokenizer.normalizer = normalizers.Replace("\n", " end ")
    splitting_steps: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.WhitespaceSplit()]
    if all(len(symbol) == 1 for symbol in symbols if symbol != "end"):
        splitting_steps.append(pre_tokenizers.Split(Regex("end|."), "isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splitting_steps)
    # Put a space between symbols, but no space around a newline.
    space_decoders = [decoders.WordPiece(prefix=" ", cleanup=False), decoders.Fuse()]
    newline_decoders = [decoders.Replace(Regex("(?:^| )end(?= |$)"), "\n"), decoders.Replace("\n ", "\n")]
    tokenizer.decoder = decoders.Sequence(space_decoders + (newline_decoders if "end" in symbols else []))
    special_tokens = {"eos_token": "end", "pad_token": "end"} if "end" in symbols else {}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **special_tokens)

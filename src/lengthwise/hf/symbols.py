"""A tokenizer of `transformers` for the symbols of a task."""

from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast


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


def own_tokenizer(content: str) -> PreTrainedTokenizerFast:
    """The tokenizer that a text run keeps, from its JSON."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(content))

"""Needles: sentences with a password at several depths of a text, and the prediction of each password at its end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.evaluation.language_model import ModelTokenizer
from lengthwise.hf.language_models import LanguageModel

# Places of the needles, as a share of the text before the question. The other needles are distractors.
DEPTHS = (0.05, 0.35, 0.65, 0.95)
NAMES = ("Ada", "Boris", "Clara", "David")
WORDS = ("river", "stone", "music", "paper", "glass", "horse", "bread", "winter", "garden", "silver")
DIGITS = tuple("0123456789")
CHANCE = 1 / len(NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passwords:
    """Passwords that differ in the last token only, which is in ``tokens``; ``texts`` follow "is" in a sentence."""

    question_end: str
    texts: tuple[str, ...]
    tokens: tuple[int, ...]

    def question(self, name: str) -> str:
        """Return the text before the password of a name."""
        return f"\nThe password of {name} is{self.question_end}"


def find_passwords(codec: ModelTokenizer) -> Passwords | None:
    """Return passwords for a tokenizer: words of one token, or digits; None if neither is possible."""
    for question_end, candidates in (("", [f" {word}" for word in WORDS]), (" ", DIGITS)):
        prefixes = [list(codec.encode(f"\nThe password of {name} is{question_end}")) for name in NAMES]
        prefix = f"\nThe password of {NAMES[0]} is{question_end}"
        texts, tokens = list[str](), list[int]()
        for text in candidates:
            encoded = list(codec.encode(prefix + text))
            if len(encoded) == len(prefixes[0]) + 1 and encoded[:-1] == prefixes[0] and encoded[-1] not in tokens:
                texts.append(text)
                tokens.append(encoded[-1])
        if len(texts) >= len(NAMES):
            return Passwords(question_end=question_end, texts=tuple(texts), tokens=tuple(tokens))
    return None


def ask_needles(
    language_model: LanguageModel, text: Int[Tensor, " text"], length: int, rng: np.random.Generator
) -> list[bool] | None:
    """Return for each of ``DEPTHS`` if the password there is more likely than the others, or None if impossible.

    The last tokens of ``text`` surround the needles. The model reads ``length`` tokens for the longest question.
    """
    model, codec = language_model.model, language_model.codec
    if (passwords := find_passwords(codec)) is None:
        return None
    names = rng.permutation(NAMES).tolist()
    chosen = rng.permutation(len(passwords.texts))[: len(DEPTHS)].tolist()
    needles = [
        codec.encode(f"{passwords.question(name)}{passwords.texts[index]}.\n")
        for name, index in zip(names, chosen, strict=True)
    ]
    questions = [torch.tensor(list(codec.encode(passwords.question(name)))) for name in names]
    num_others = len(codec.start) + sum(map(len, needles)) + max(map(len, questions))
    if length < 2 * num_others:
        return None
    filler = text[len(text) - (length - num_others) :].tolist()
    context, begin = list(codec.start), 0
    for depth, needle in zip(DEPTHS, needles, strict=True):
        end = int(depth * len(filler))
        context += [*filler[begin:end], *needle]
        begin = end
    context += filler[begin:]
    return _answer(model, torch.tensor(context), questions, [passwords.tokens[index] for index in chosen])


def _answer(
    model: Any, context: Int[Tensor, " seq"], questions: Sequence[Int[Tensor, " _"]], tokens: Sequence[int]
) -> list[bool]:
    """Return for each question if its own password is the most likely one; the questions share the context."""
    longest = torch.cat([context, max(questions, key=len)])
    ids = model.assign_position_ids(longest)
    states = model.prefill(longest, ids, len(context))
    results = []
    for number, question in enumerate(questions):
        question_ids = ids[..., len(context) : len(context) + len(question)]
        log_probs = model.log_probs(question[None], question_ids[None], states)[0]
        results.append(int(log_probs[list(tokens)].argmax()) == number)
    return results

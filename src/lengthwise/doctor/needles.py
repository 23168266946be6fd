"""Needles: sentences with a password at several depths of a text, and the prediction of each password at its end."""

from collections.abc import Sequence
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


def find_passwords(codec: ModelTokenizer) -> tuple[str, dict[int, str]] | None:
    """Return a question with a place for the name, and passwords (texts after it) by their only token.

    Passwords are words, or digits; None if a tokenizer needs several tokens for both.
    """
    for question, candidates in (
        ("\nThe password of {} is", [f" {word}" for word in WORDS]),
        ("\nThe password of {} is ", DIGITS),
    ):
        prefix, passwords = question.format(NAMES[0]), dict[int, str]()
        for text in candidates:
            *before, token = codec.encode(prefix + text)
            if before == list(codec.encode(prefix)):
                passwords.setdefault(token, text)
        if len(passwords) >= len(NAMES):
            return question, passwords
    return None


def ask_needles(
    language_model: LanguageModel, text: Int[Tensor, " text"], length: int, rng: np.random.Generator
) -> list[bool] | None:
    """Return for each of ``DEPTHS`` if the password there is more likely than the others, or None if impossible.

    The last tokens of ``text`` surround the needles. The model reads ``length`` tokens for the longest question.
    """
    model, codec = language_model.model, language_model.codec
    if (found := find_passwords(codec)) is None:
        return None
    question, passwords = found
    names = rng.permutation(NAMES).tolist()
    tokens = [list(passwords)[index] for index in rng.permutation(len(passwords))[: len(DEPTHS)]]
    needles = [
        codec.encode(f"{question.format(name)}{passwords[token]}.\n") for name, token in zip(names, tokens, strict=True)
    ]
    questions = [torch.tensor(list(codec.encode(question.format(name)))) for name in names]
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
    return _answer(model, torch.tensor(context), questions, tokens)


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

"""One prompt decoded freely by a trained run."""

from dataclasses import dataclass
from typing import Any

import torch

from lengthwise.core.errors import PromptError
from lengthwise.core.randomness import stream
from lengthwise.core.type_checks import check_arguments
from lengthwise.experiments.run import Run
from lengthwise.model.generate import generate
from lengthwise.training.batch import to_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The tokens that a run wrote after a prompt, with their position IDs, and the right answer.

    ``position_ids`` has one number per token or, on several levels, one such list per level. Where the task knows no
    right answer, ``expected`` is empty and ``correct`` is None; it is None, too, of an answer that is right as far as it
    was written and was cut off there.
    """

    tokens: list[str]
    position_ids: list[Any]
    expected: list[str]
    correct: bool | None


@check_arguments
def generate_from_prompt(run: Run, prompt: str, max_new_tokens: int | None = None) -> Completion:
    """Decode one prompt freely. Only the prompt's IDs are given when the run predicts IDs; then ``correct`` means both.

    At most as many tokens are written as the right answer has (running text: as the task leaves room for), or
    ``max_new_tokens``.
    """
    task, decoder = run.experiment.task, run.decoder
    examples = task.from_prompt(prompt)
    known, needs = bool(examples.is_answer.any()), run.experiment.scheme.needs
    if not known and needs is not None and getattr(examples, needs) is None:
        raise PromptError(
            f"of '{prompt}' the {needs} is not known, which the scheme {run.experiment.scheme.name} needs; "
            "ask what the task has an answer to, of a file a whole row, or train with a scheme that needs none"
        )
    assignment = run.experiment.scheme.assign(examples, stream(0, "generate"), training=False)
    batch = to_batch(examples.tokens.shape[1], examples, assignment).to(next(decoder.parameters()).device)
    length = int(batch.prompt_length[0])
    expected = batch.tokens[:, length:]
    room = expected.shape[1] if max_new_tokens is None else min(expected.shape[1], max_new_tokens)
    written = generate(
        decoder,
        batch.tokens[:, :length],
        batch.position_ids[:, :, : length if decoder.predicts_ids else None],
        end=task.vocabulary.index("end"),
        max_new_tokens=room,
    )
    number = written.tokens.shape[1]
    correct: bool | None = torch.equal(written.tokens, expected[:, :number])
    # The end token's ID is never asked for.
    asked = min(number, expected.shape[1] - 1)
    ids = batch.position_ids[:, :, length : length + asked]
    correct = correct and torch.equal(written.position_ids[:, :, :asked], ids)
    if number < expected.shape[1]:
        # Right so far, unless it ended by itself.
        correct = None if correct and number == room else False
    return Completion(
        tokens=[task.vocabulary[token] for token in written.tokens[0].tolist()],
        position_ids=_flat(written.position_ids[:, 0].tolist()),
        expected=[task.vocabulary[token] for token in expected[0].tolist()] if known else [],
        correct=right if known else None,
    )


def _flat(by_level: list[list[Any]]) -> list[Any]:
    return by_level[0] if len(by_level) == 1 else by_level

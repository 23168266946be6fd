"""Free decoding after a prompt by the decoder of a trained run."""

from dataclasses import dataclass
from typing import Any

import torch

from lengthwise.core.errors import PromptError, SettingError
from lengthwise.core.randomness import stream
from lengthwise.core.type_checks import check_arguments
from lengthwise.experiments.run import Run
from lengthwise.model.generate import generate
from lengthwise.training.batch import to_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Tokens that a run generates after a prompt, their position IDs, and the expected tokens.

    ``position_ids`` has one ID per token, or one list of IDs per level if there are several levels. Without a known
    answer, ``expected`` is empty and ``correct`` is None. ``correct`` is also None if ``max_new_tokens`` cut off a
    correct answer.
    """

    tokens: list[str]
    position_ids: list[Any]
    expected: list[str]
    correct: bool | None


@check_arguments
def generate_from_prompt(run: Run, prompt: str, max_new_tokens: int | None = None) -> Completion:
    """Generate the response to a prompt, up to the length of the expected answer or ``max_new_tokens``.

    The smaller limit applies. If the answer is unknown, as in running text, the task defines the first limit. A run
    that predicts IDs receives only the IDs of the prompt, and ``correct`` includes the predicted IDs.
    """
    if max_new_tokens is not None and max_new_tokens < 1:
        raise SettingError(f"invalid max_new_tokens {max_new_tokens}; use at least 1 token")
    task, decoder = run.experiment.task, run.decoder
    examples = task.from_prompt(prompt)
    has_answer, required_field = bool(examples.is_answer.any()), run.experiment.scheme.needs
    if not has_answer and required_field is not None and getattr(examples, required_field) is None:
        raise PromptError(
            f"scheme {run.experiment.scheme.name} needs the {required_field} of prompt '{prompt}', which is unknown; "
            "use a prompt with a known answer (for a JSONL file, a whole record), or train with another scheme, "
            "such as discovered"
        )
    assignment = run.experiment.scheme.assign(examples, stream(0, "generate"), training=False)
    batch = to_batch(examples.tokens.shape[1], examples, assignment).to(next(decoder.parameters()).device)
    prompt_length = int(batch.prompt_length[0])
    expected = batch.tokens[:, prompt_length:]
    token_limit = expected.shape[1] if max_new_tokens is None else min(expected.shape[1], max_new_tokens)
    prompt_tokens, end_token = batch.tokens[:, :prompt_length], task.vocabulary.index("end")
    prompt_ids = batch.position_ids[:, :, : prompt_length if decoder.predicts_ids else None]
    output = generate(decoder, prompt_tokens, prompt_ids, end=end_token, max_new_tokens=token_limit)
    num_generated = output.tokens.shape[1]
    correct: bool | None = torch.equal(output.tokens, expected[:, :num_generated])
    # The ID of the end token is never used.
    num_ids = min(num_generated, expected.shape[1] - 1)
    ids = batch.position_ids[:, :, prompt_length : prompt_length + num_ids]
    correct = correct and torch.equal(output.position_ids[:, :, :num_ids], ids)
    if num_generated < expected.shape[1]:
        # A correct beginning gives no result, unless the run generated the end token.
        correct = None if correct and num_generated == token_limit else False
    ids_by_level: list[Any] = output.position_ids[:, 0].tolist()
    return Completion(
        tokens=[task.vocabulary[token] for token in output.tokens[0].tolist()],
        position_ids=ids_by_level[0] if len(ids_by_level) == 1 else ids_by_level,
        expected=[task.vocabulary[token] for token in expected[0].tolist()] if has_answer else [],
        correct=correct if has_answer else None,
    )

"""Estimate of the duration of a study: the number of tokens to read, divided by the model's tokens per second."""

import time
from collections.abc import Sequence
from dataclasses import replace

from lengthwise.influence.probing.hidden_context import strict_log_probs
from lengthwise.influence.probing.model_wrapping import TokenCounter
from lengthwise.influence.target_evaluator import TargetEvaluator
from lengthwise.influence.targets import Target

NUM_TIMED_QUERIES = 64


def estimate_seconds(evaluator: TargetEvaluator, targets: Sequence[Target]) -> tuple[float, float]:
    """Return the minimum and maximum duration of a study in seconds.

    The study selects far tokens for a fraction ``background_fraction`` of the targets (minimum), or for all (maximum).
    """
    counter = TokenCounter(evaluator.model)
    full_context_tokens, selection_tokens = replace(evaluator, model=counter.model).count_tokens(targets[0], counter)
    seconds_per_token = len(targets) / _tokens_per_second(evaluator, targets[0])
    min_tokens = full_context_tokens + evaluator.settings.background_fraction * selection_tokens
    return min_tokens * seconds_per_token, (full_context_tokens + selection_tokens) * seconds_per_token


def _tokens_per_second(evaluator: TargetEvaluator, target: Target) -> float:
    """Measure the tokens per second of the model on queries with all far tokens hidden."""
    settings = evaluator.settings
    window = target.window(settings.near, settings.far, evaluator.start, settings.sink)
    start_time = time.perf_counter()
    for _ in strict_log_probs(evaluator.model, [(window, window.visibility_mask([]))] * NUM_TIMED_QUERIES):
        pass
    return NUM_TIMED_QUERIES * (len(window.start) + settings.near) / (time.perf_counter() - start_time)

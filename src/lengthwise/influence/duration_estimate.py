"""Estimate of the duration of a study: the number of tokens to read, divided by the model's tokens per second."""

import time
from collections.abc import Sequence
from dataclasses import replace

from lengthwise.influence.probing.hidden_context import strict_log_probs
from lengthwise.influence.probing.model_wrapping import TokenCounter
from lengthwise.influence.target_evaluator import TargetEvaluator
from lengthwise.influence.targets import Target

TIMED_QUERIES = 64


def estimate_seconds(evaluator: TargetEvaluator, targets: Sequence[Target]) -> tuple[float, float]:
    """Return the minimum and maximum seconds, if ``background_fraction`` or all of the targets get selections."""
    counter = TokenCounter(evaluator.model)
    full, selection = replace(evaluator, model=counter.model).count_tokens(targets[0], counter)
    seconds = len(targets) / _tokens_per_second(evaluator, targets[0])
    return (full + evaluator.settings.background_fraction * selection) * seconds, (full + selection) * seconds


def _tokens_per_second(evaluator: TargetEvaluator, target: Target) -> float:
    """Time one batch of queries that hide all far tokens."""
    settings = evaluator.settings
    window = target.window(settings.near, settings.far, evaluator.start, settings.sink)
    start = time.perf_counter()
    for _ in strict_log_probs(evaluator.model, [(window, window.only([]))] * TIMED_QUERIES):
        pass
    return TIMED_QUERIES * (len(window.start) + settings.near) / (time.perf_counter() - start)

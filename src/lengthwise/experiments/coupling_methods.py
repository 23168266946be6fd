"""Find the coupling of a task with a method: from the examples alone, or from the answers of a model."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lengthwise.core.defaults import (
    AUTO,
    COUPLING_METHODS,
    DEPENDENCE,
    MAX_COUPLED_TOKENS,
    MODEL,
    SAMPLES_PER_LENGTH,
    SEARCH_MINUTES,
)
from lengthwise.core.errors import AmbiguousCouplingError, CouplingError, SettingError, TooFewExamplesError
from lengthwise.core.type_checks import check_arguments
from lengthwise.experiments.model_answers import draw_model_steps
from lengthwise.tasks import JSONLTask, Task
from lengthwise.tasks.coupling.found_coupling import (
    FoundCoupling,
    draw_steps,
    explain_steps,
    find_coupling_in_examples,
)
from lengthwise.tasks.coupling.record_files import sample_task_file
from lengthwise.tasks.coupling.search_progress import MAX_WORK, SearchProgress


@check_arguments
def find_coupling(
    task: Task,
    lengths: Sequence[int] | None = None,
    *,
    method: str = AUTO,
    num_per_length: int = SAMPLES_PER_LENGTH,
    max_tokens: int = MAX_COUPLED_TOKENS,
    allow_noise: bool = False,
    minutes: float = SEARCH_MINUTES,
    seed: int = 0,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> FoundCoupling:
    """Find which earlier tokens each answer of a task depends on, and a rule for its coupling.

    The function reads prompts and responses only, never the task's own coupling. ``num_per_length`` is the number of
    examples that a task with a sampler draws. ``allow_noise`` also accepts a rule whose wrong answers do not look like
    independent noise. ``minutes`` limits the time of each search, and its work on any machine in proportion; the best
    rule so far counts after it. ``report`` receives the ``stage`` of the search with the numbers ``done`` and
    ``total``, and the metrics of a model's training.
    ``method`` is one of:

    - ``dependence``: the same tokens must always come with the same answer.
    - ``model``: a plain decoder is trained on the shortest examples, and answers new prompts. The search then reads
      these prompts and answers, and the rule must predict the task's own examples. If two sets of tokens explain the
      examples equally well, no model is asked.
    - ``auto``: ``dependence``, then ``model`` if there are too few examples.

    Raises ``CouplingError`` with a reason if no set of at most ``max_tokens`` tokens explains the answers, if two sets
    explain them equally well, if there are too few examples, if the rule fails at the longest lengths, or if the time
    is over before a rule was found.
    """
    _check_settings(method, minutes)
    reason = ""
    try:
        found = find_coupling_in_examples(
            task,
            lengths,
            num_per_length=num_per_length,
            max_tokens=max_tokens,
            allow_noise=allow_noise,
            seed=seed,
            progress=_progress(minutes, report),
        )
        if method != MODEL:
            return found
    except AmbiguousCouplingError:
        # A model would prefer one of the explanations, for no reason that the examples give.
        raise
    except CouplingError as error:
        # A task with a sampler can draw more examples, which is faster than a model.
        may_ask = isinstance(error, TooFewExamplesError) and isinstance(task, JSONLTask)
        if method == DEPENDENCE or (method == AUTO and not may_ask):
            raise
        reason = f"{error}. Asking a model failed, too: " if method == AUTO else ""
    with TemporaryDirectory() as folder:
        if not isinstance(task, JSONLTask):
            task = sample_task_file(task, lengths, num_per_length, seed, Path(folder) / "records.jsonl")
        try:
            return _ask_model(task, lengths, max_tokens, minutes, seed, report)
        except CouplingError as error:
            raise type(error)(f"{reason}{error}") from None


def _check_settings(method: str, minutes: float) -> None:
    if method not in COUPLING_METHODS:
        raise SettingError(f"method '{method}' is unknown; choose one of {', '.join(COUPLING_METHODS)}")
    if not minutes > 0:
        raise SettingError(f"minutes {minutes:g} is not a positive number; use a time limit such as {SEARCH_MINUTES:g}")


def _ask_model(
    task: JSONLTask,
    lengths: Sequence[int] | None,
    max_tokens: int,
    minutes: float,
    seed: int,
    report: Callable[[dict[str, Any]], None] | None,
) -> FoundCoupling:
    records = draw_steps(task, lengths, SAMPLES_PER_LENGTH, seed)
    steps = draw_model_steps(task, lengths, seed=seed, report=report)
    progress = _progress(minutes, report)
    return explain_steps(steps, task.vocabulary, records=records, max_tokens=max_tokens, seed=seed, progress=progress)


def _progress(minutes: float, report: Callable[[dict[str, Any]], None] | None) -> SearchProgress:
    max_work = MAX_WORK * minutes / SEARCH_MINUTES
    return SearchProgress(report=report, deadline=time.monotonic() + 60 * minutes, max_work=max_work)

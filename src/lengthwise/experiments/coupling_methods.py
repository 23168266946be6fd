"""Find the coupling of a task with a method: from the examples alone, or from the answers of a model to new prompts.

The model is a plain decoder that learns the shortest examples of the task.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

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
from lengthwise.core.randomness import random_stream
from lengthwise.core.type_checks import check_arguments
from lengthwise.encodings import Rotary
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.run import Run, train
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.model.generate import generate
from lengthwise.positions import Sequential
from lengthwise.tasks import JSONLTask, Task
from lengthwise.tasks.coupling.answer_steps import AnswerSteps, build_answer_steps, join_steps
from lengthwise.tasks.coupling.dependence_search import MAX_WORK, SearchProgress
from lengthwise.tasks.coupling.found_coupling import (
    FoundCoupling,
    find_coupling_in_examples,
    find_coupling_in_steps,
    sample_task_answers,
    sample_task_file,
)
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.jsonl_task import write_records
from lengthwise.training.batch import to_batch
from lengthwise.training.training_settings import TrainingSettings

# The model learns at least this many lengths, the shortest ones, and more until it has this many examples. It never
# learns the longest lengths, which check the rule: this share of all lengths, and at least one.
MIN_LENGTHS, MIN_EXAMPLES, CHECKED_SHARE = 4, 1000, 0.25
# Shorter lengths with fewer examples are left out.
MIN_PER_LENGTH = 4
# Number of new prompts of each length, and of those that the model answers at once.
NUM_PROMPTS, BATCH_SIZE = 1500, 128
# Share of the examples that the model does not train on, and smallest share of these that it must answer right.
HELD_OUT_SHARE, MIN_EXACT_MATCH = 0.2, 0.95
# Smallest probability of every token of an answer that counts.
MIN_PROBABILITY = 0.9
# Smallest share of the new prompts of a length with such an answer.
MIN_SURE_SHARE = 0.25
DECODER = DecoderSettings(num_layers=3, d_model=128, num_heads=4, length_scaling="none", temperature=1.0)
TRAINING = TrainingSettings(steps=4000, batch_size=128, learning_rate=1e-3, fit_every=100, cooldown_steps=200)
ProgressCallback = Callable[[dict[str, Any]], None]


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
    report: ProgressCallback | None = None,
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
    if method not in COUPLING_METHODS:
        raise SettingError(f"method '{method}' is unknown; choose one of {', '.join(COUPLING_METHODS)}")
    if lengths is not None and not len(lengths):
        raise SettingError("lengths is empty; pass at least one length, or None for the default lengths")
    if num_per_length < 1:
        raise SettingError(f"num_per_length {num_per_length} is not a positive number; use at least 1")
    if not minutes > 0:
        raise SettingError(f"minutes {minutes:g} is not a positive number; use a time limit such as {SEARCH_MINUTES:g}")
    max_work = MAX_WORK * minutes / SEARCH_MINUTES

    def start_search() -> SearchProgress:
        return SearchProgress(report=report, deadline=time.monotonic() + 60 * minutes, max_work=max_work)

    reason = ""
    try:
        found = find_coupling_in_examples(
            task,
            lengths,
            num_per_length=num_per_length,
            max_tokens=max_tokens,
            allow_noise=allow_noise,
            seed=seed,
            progress=start_search(),
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
            records = sample_task_answers(task, lengths, SAMPLES_PER_LENGTH, seed)
            steps = sample_model_answers(task, lengths, seed=seed, report=report)
            return find_coupling_in_steps(
                steps, task.vocabulary, records=records, max_tokens=max_tokens, seed=seed, progress=start_search()
            )
        except CouplingError as error:
            raise type(error)(f"{reason}{error}") from None


@dataclass(frozen=True, kw_only=True)
class AnsweringModel:
    """Run of a model with its own token IDs; ``own_ids`` has those of the task's tokens, -1 for unknown ones."""

    run: Run
    own_ids: Int[np.ndarray, " token"]

    def generate_answers(self, prompts: Int[np.ndarray, "batch prompt"], max_new_tokens: int) -> Examples:
        """Return the prompts, of known tokens, with the answers that end and whose tokens are all probable."""
        task_ids = np.zeros(len(self.run.experiment.task.vocabulary), dtype=np.int64)
        task_ids[self.own_ids[self.own_ids >= 0]] = np.flatnonzero(self.own_ids >= 0)
        own_end = int(self.own_ids[-1])
        prompts = self.own_ids[prompts]
        prompts = prompts[(prompts >= 0).all(axis=1)]
        empty = np.full((len(prompts), max_new_tokens), own_end)
        examples = Examples.with_prompt_length(np.concatenate([prompts, empty], axis=1), prompts.shape[1])
        assignment = self.run.experiment.scheme.assign(examples, random_stream(0, "model answers"), training=False)
        batch = to_batch(examples.tokens.shape[1], examples, assignment)
        decoder, prompt_length = self.run.decoder, prompts.shape[1]
        with torch.no_grad():
            new = generate(
                decoder, batch.tokens[:, :prompt_length], batch.position_ids, end=own_end, max_new_tokens=max_new_tokens
            )
            written = torch.cat([batch.tokens[:, :prompt_length], new.tokens], dim=1)
            hidden, _ = decoder(written, batch.position_ids[:, :, : written.shape[1]])
            probabilities = decoder.token_logits(hidden[:, prompt_length - 1 : -1]).softmax(-1).amax(-1)
        is_written = new.is_written.numpy()
        is_sure = ((probabilities >= MIN_PROBABILITY).numpy() | ~is_written).all(axis=1)
        kept = is_sure & ((new.tokens == own_end).numpy() & is_written).any(axis=1)
        is_answer = np.concatenate([np.zeros_like(prompts, dtype=bool), is_written], axis=1)
        return Examples(
            tokens=task_ids[written.numpy()][kept],
            prompt_length=np.full(int(kept.sum()), prompt_length),
            is_answer=is_answer[kept],
        )


def sample_model_answers(
    task: JSONLTask,
    lengths: Sequence[int] | None,
    *,
    seed: int = 0,
    report: ProgressCallback | None = None,
) -> AnswerSteps:
    """Train a plain decoder on the shortest examples of a task file, and return its answers to new prompts.

    A new prompt has, at each place, the token of a random example of the same length. Raises ``CouplingError`` if the
    model answers fewer than ``MIN_EXACT_MATCH`` of the examples that it was not trained on.
    """
    rng = random_stream(seed, "model answers")
    groups = _shortest(task, sorted(task.available_lengths if lengths is None else lengths), rng)
    with TemporaryDirectory() as folder:
        model = _train(task, groups, Path(folder), seed, report)
    exact_match, num_held_out = _measure(model, groups)
    if exact_match < MIN_EXACT_MATCH:
        raise CouplingError(
            f"a model that was trained on the lengths {min(groups)} to {max(groups)} answers {exact_match:.0%} of "
            f"{num_held_out:,} other examples of these lengths right, which is less than {MIN_EXACT_MATCH:.0%}; add "
            "examples of these lengths"
        )
    parts = []
    for length, examples in groups.items():
        num_prompts = num_sure = 0
        num_copies = -(-NUM_PROMPTS // len(examples))
        for prompts in _by_prompt_length(examples):
            copies = np.tile(prompts.tokens[:, : int(prompts.prompt_length[0])], (num_copies, 1))
            for prompt_batch in np.split(rng.permuted(copies, axis=0), range(BATCH_SIZE, len(copies), BATCH_SIZE)):
                answered = model.generate_answers(prompt_batch, _max_new_tokens(examples))
                num_prompts, num_sure = num_prompts + len(prompt_batch), num_sure + len(answered)
                if len(answered):
                    parts.append(build_answer_steps(answered, length))
        if num_sure < MIN_SURE_SHARE * num_prompts:
            raise CouplingError(
                f"the model is sure of only {num_sure / num_prompts:.0%} of its answers to new prompts of length "
                f"{length}, although it answers the examples right; give the coupling, or add examples"
            )
    return join_steps(parts)


def _shortest(task: JSONLTask, lengths: Sequence[int], rng: np.random.Generator) -> dict[int, Examples]:
    """Return the examples of the shortest lengths in random order; raise ``TooFewExamplesError`` if there are few."""
    groups: dict[int, Examples] = {}
    for length in lengths[: -max(1, round(CHECKED_SHARE * len(lengths)))]:
        if len(groups) >= MIN_LENGTHS and sum(map(len, groups.values())) >= MIN_EXAMPLES:
            break
        if task.num_records(length) >= MIN_PER_LENGTH:
            groups[length] = task.records_at(length, rng.permutation(task.num_records(length)))
    if len(groups) < 2:
        raise TooFewExamplesError(
            f"too few examples for a model: {len(groups)} of the shorter lengths have at least {MIN_PER_LENGTH} "
            "distinct examples; use at least two such lengths, and a longer one"
        )
    return groups


def _split(examples: Examples) -> tuple[Examples, Examples]:
    """Return the training examples and the held-out examples."""
    num_held_out = max(1, round(HELD_OUT_SHARE * len(examples)))
    return examples.select(np.arange(num_held_out, len(examples))), examples.select(np.arange(num_held_out))


def _train(
    task: JSONLTask,
    groups: dict[int, Examples],
    folder: Path,
    seed: int,
    report: ProgressCallback | None,
) -> AnsweringModel:
    path = folder / "training.jsonl"
    write_records(path, [(length, _split(examples)[0]) for length, examples in groups.items()], task.vocabulary)
    own_task = JSONLTask(file=str(path)).read()
    experiment = Experiment(
        task=own_task,
        scheme=Sequential(),
        encoding=Rotary(),
        decoder=DECODER,
        training=TRAINING,
        train_lengths=(min(groups), max(groups)),
        seed=seed,
    )

    def report_step(row: dict[str, Any]) -> None:
        if report is not None:
            stage = f"training a model on the shortest examples: loss {row['mean_loss']:.3f}, at most"
            report({"stage": stage, "done": row["step"], "total": row.get("last_step", TRAINING.steps)})

    run = train(experiment, folder / "run", device="cpu", report=report_step)
    assert run is not None
    index = {name: number for number, name in enumerate(own_task.vocabulary)}
    return AnsweringModel(
        run=replace(run, decoder=run.decoder.eval()),
        own_ids=np.array([index.get(name, -1) for name in task.vocabulary]),
    )


def _measure(model: AnsweringModel, groups: dict[int, Examples]) -> tuple[float, int]:
    """Return the share of the held-out examples that the model answers right, and their number."""
    num_right = num_examples = 0
    for examples in groups.values():
        for held_out in _by_prompt_length(_split(examples)[1]):
            prompts = held_out.tokens[:, : int(held_out.prompt_length[0])]
            expected = {_key(held_out, row) for row in range(len(held_out))}
            answered = model.generate_answers(prompts, _max_new_tokens(examples))
            num_right += len(expected & {_key(answered, row) for row in range(len(answered))})
            num_examples += len(expected)
    return num_right / num_examples, num_examples


def _key(examples: Examples, row: int) -> bytes:
    return examples.tokens[row, : examples.response_end[row] + 1].astype(np.int64).tobytes()


def _max_new_tokens(examples: Examples) -> int:
    return int((examples.response_end + 1 - examples.prompt_length).max())


def _by_prompt_length(examples: Examples) -> Iterator[Examples]:
    for prompt_length in np.unique(examples.prompt_length):
        yield examples.select(np.flatnonzero(examples.prompt_length == prompt_length))

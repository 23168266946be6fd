"""Whether a scheme and an encoding keep their contracts, looked at once on a tiny example."""

import json
import traceback
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lengthwise.core.errors import LengthwiseError, PositionIDError, PositionRangeError, SettingError, unknown_name
from lengthwise.core.randomness import stream
from lengthwise.encodings import Encoding
from lengthwise.evaluation.evaluator import check_measurable, evaluator_of
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment, build_decoder, build_sampler, to_dict
from lengthwise.model.decoder import Decoder
from lengthwise.positions import Assignment, PositionScheme
from lengthwise.tasks import HasStages, Task, nearest_length
from lengthwise.tasks.examples import Examples
from lengthwise.training.batch import Batch, Sampler, to_batch

IDS = "(level, batch, seq)"
# What comes back from a hook, where it is no score or bias.
AXES = {"embed": "batch, seq, d_model", "rotate": "batch, heads, seq, d_head"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTraining:
    """The parts of a training run, checked together: untrained decoder and batch sampler."""

    decoder: Decoder
    sampler: Sampler


def prepare_training(experiment: Experiment) -> PreparedTraining:
    """Build a decoder and a sampler; raise every error of the settings before the first training step."""
    longest = experiment.train_lengths[1]
    sampler = build_sampler(experiment, experiment.train_lengths)
    check_settings(experiment)
    # What has examples of some lengths only refuses a range that begins or ends between them.
    for end in experiment.train_lengths:
        experiment.task.sample(length=end, size=1, rng=stream(experiment.seed, "ends", end))
    tried = check_scheme(experiment)
    batch = build_sampler(experiment, (longest, longest)).batch(0)
    reached = experiment.scheme.num_position_ids or int(batch.position_ids.max()) + 1
    limit = experiment.encoding.num_position_ids
    if limit is not None and reached > limit:
        raise PositionRangeError(
            f"training uses IDs up to {reached - 1} but the encoding {experiment.encoding.name} holds {limit}; "
            f"set its num_position_ids to at least {reached}"
        )
    select_variants(experiment.task, experiment.evaluation)
    decoder = build_decoder(experiment)
    decoder.check_ids(batch.tokens, batch.position_ids)
    check_encoding(decoder, tried)
    return PreparedTraining(decoder=decoder, sampler=sampler)


def check_evaluation(experiment: Experiment, settings: EvaluationSettings) -> None:
    """Refuse lengths and variants that cannot be measured, before any is."""
    for task in select_variants(experiment.task, settings).values():
        check_measurable(task, experiment.scheme, experiment.encoding, settings)


def select_variants(task: Task, settings: EvaluationSettings) -> dict[str | None, Task]:
    """Return the task's distributions that ``settings`` name, or ``{None: task}`` when they name none."""
    known = task.variants()
    for variant in settings.variants:
        if not known:
            raise SettingError(f"variant '{variant}' was asked for but {task.name} has none; leave out --variants")
        if variant not in known:
            raise unknown_name(f"variant of {task.name}", variant, known)
    return {variant: known[variant] for variant in settings.variants} or {None: task}


def check_settings(experiment: Experiment) -> None:
    """Refuse what ``experiment.json`` cannot hold, and ways to train that the task or the scheme does not have."""
    try:
        json.dumps(to_dict(experiment))
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"the experiment cannot be saved ({error}); "
            "make each part a dataclass with settings of plain numbers, words or tuples"
        ) from None
    training, task, scheme = experiment.training, experiment.task, experiment.scheme
    if training.stage_loss is not None and not isinstance(task, HasStages):
        raise SettingError(f"stage_loss asks for stages and {task.name} has none; leave it out")
    if training.fit_every is not None and evaluator_of(task).by_loss:
        raise SettingError(f"fit_every looks for exact match, and {task.name} is graded by loss; leave it out")
    if training.own_ids and not scheme.predicts_ids:
        raise SettingError(f"own_ids feeds predicted IDs, and {scheme.name} predicts none; use the scheme predicted")


def check_scheme(experiment: Experiment) -> list[Batch]:
    """Two sequences of the longest training length with the scheme's IDs, those of training and of evaluation.

    ``PositionIDError`` or ``PositionRangeError`` when what the scheme answers is no assignment of IDs to them.
    """
    rng = stream(experiment.seed, "conformance")
    length, scheme = nearest_length(experiment.task, experiment.train_lengths[1]), experiment.scheme
    examples = experiment.task.sample(length=length, size=2, rng=rng)
    batches = []
    for training in (True, False):
        assignment: Any = scheme.assign(examples, rng, training=training)
        _check_assignment(scheme, examples, assignment)
        _check_values(scheme, assignment.position_ids, training=training)
        batches.append(to_batch(length, examples, assignment))
    return batches


def _check_assignment(scheme: PositionScheme, examples: Examples, assignment: Any) -> None:
    if not isinstance(assignment, Assignment):
        raise PositionIDError(
            f"scheme {scheme.name} assigns {_kind(assignment)}; return an Assignment, "
            "such as scored_everywhere(examples, position_ids) makes"
        )
    size, seq = examples.tokens.shape
    ids: Any = assignment.position_ids
    if not isinstance(ids, np.ndarray):
        raise PositionIDError(f"scheme {scheme.name} gives IDs as {_kind(ids)}; give a NumPy array of axes {IDS}")
    if ids.ndim != 3 or ids.shape[1:] != (size, seq) or not len(ids):
        raise PositionIDError(
            f"scheme {scheme.name} gives IDs of shape {ids.shape} for tokens of shape {(size, seq)}; "
            f"give {IDS}, with one level {(1, size, seq)}"
        )
    if ids.dtype.kind not in ("if" if scheme.real_valued else "i") or ids.dtype.itemsize > 8:
        real = "signed integers or floats" if scheme.real_valued else "signed integers, or say real_valued = True"
        raise PositionIDError(f"scheme {scheme.name} gives IDs of type {ids.dtype}; give {real}")
    for name in ("token_scored", "id_scored"):
        mask: Any = getattr(assignment, name)
        if not isinstance(mask, np.ndarray) or mask.dtype != bool or mask.shape != (size, seq):
            came = f"{mask.dtype} {mask.shape}" if isinstance(mask, np.ndarray) else _kind(mask)
            raise PositionIDError(f"scheme {scheme.name} gives {name} as {came}; give truth values {(size, seq)}")


def _check_values(
    scheme: PositionScheme,
    ids: Int[np.ndarray, "level batch seq"] | Float[np.ndarray, "level batch seq"],
    *,
    training: bool,
) -> None:
    wrong = ids[~((ids >= 0) & (ids < np.inf))]
    if wrong.size:
        raise PositionIDError(
            f"scheme {scheme.name} gives the ID {wrong[0]}, which is negative, infinite or no number; start at 0"
        )
    limit = scheme.num_position_ids
    if training and limit is not None and ids.max() >= limit:
        raise PositionRangeError(
            f"scheme {scheme.name} gives the ID {ids.max()} in training but says num_position_ids {limit}; "
            "keep below it, or set it higher"
        )


def check_encoding(decoder: Decoder, batches: list[Batch]) -> None:
    """Ask every hook of the decoder's encoding once; ``SettingError`` names the one that fails or answers wrongly."""
    for batch in batches:
        decoder.check_ids(batch.tokens, batch.position_ids)
    ids = decoder.check_ids(batches[0].tokens, batches[0].position_ids)
    for encoding, own_ids in zip(decoder.encoding.levels, ids, strict=True):
        assert isinstance(encoding, Encoding)
        _check_hooks(encoding, decoder, own_ids)


@torch.no_grad()
def _check_hooks(
    encoding: Encoding, decoder: Decoder, ids: Int[Tensor, "size seq"] | Float[Tensor, "size seq"]
) -> None:
    heads, d_model = decoder.settings.num_heads, decoder.settings.d_model
    d_head = d_model // heads // len(decoder.encoding.levels)
    # No two axes of one size: none can be taken for another.
    batch, query, key = islice((size for size in count(3) if size not in (heads, 2 * heads, d_model, d_head)), 3)
    ids = ids[torch.arange(batch) % ids.shape[0]][:, torch.arange(key) % ids.shape[1]]
    asking = ids[:, key - query :]
    _ask(encoding, "embed", (torch.ones(batch, key, d_model), ids), (batch, key, d_model))
    for turned in (heads, 2 * heads):
        # Queries and keys are turned at once, unless the last block asks for few queries.
        _ask(encoding, "rotate", (torch.ones(batch, turned, key, d_head), ids), (batch, turned, key, d_head))
    scores = (batch, heads, query, key)
    if encoding.has_bias:
        _ask(encoding, "bias", (asking, ids), scores)
    if encoding.has_scores:
        pair = torch.ones(batch, heads, query, d_head), torch.ones(batch, heads, key, d_head)
        _ask(encoding, "scores", (*pair, asking, ids), scores)
        visible = torch.ones(query, key, dtype=torch.bool).tril(key - query)
        _ask(encoding, "adjust", (torch.ones(scores), asking, ids, visible), scores)


def _ask(encoding: Encoding, hook: str, given: tuple[Tensor, ...], shape: tuple[int, ...]) -> None:
    """Call a hook; what comes back has the shape that it should have, and is no other kind of number."""
    named, shapes = f"the {hook} of {type(encoding).__name__}", " and ".join(str(tuple(part.shape)) for part in given)
    wanted = f"({AXES.get(hook, 'batch, heads, query, key')}), here {shape}"
    try:
        answer = getattr(encoding, hook)(*given)
    except LengthwiseError:
        raise
    except Exception as error:
        # The hook's own line; torch's would not help.
        place = traceback.extract_tb(error.__traceback__)[:2][-1]
        cause = str(error).split("\n")[0]
        where = f"{type(error).__name__}: {cause}, {Path(place.filename).name} line {place.lineno}"
        raise SettingError(f"{named} fails on {shapes} ({where}); mend it there") from error
    if not isinstance(answer, Tensor):
        raise SettingError(f"{named} answers {_kind(answer)} to {shapes}; return a tensor {wanted}")
    # One bias may stand for all sequences and all heads.
    free = 2 if hook == "bias" else 0
    fits = [
        size == whole or (size == 1 and axis < free)
        for axis, (size, whole) in enumerate(zip(answer.shape, shape, strict=False))
    ]
    if answer.dim() != len(shape) or not all(fits):
        one = ", or 1 where one stands for all sequences or heads" if free else ""
        raise SettingError(f"{named} answers {shapes} with shape {tuple(answer.shape)}; return {wanted}{one}")
    if not answer.is_floating_point() or (hook == "embed" and answer.dtype != given[0].dtype):
        raise SettingError(
            f"{named} answers with {answer.dtype} numbers; return {given[0].dtype if hook == 'embed' else 'floats'}"
        )


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"

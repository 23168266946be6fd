"""Checks of an experiment before training, including test calls of its position scheme and its encoding."""

import json
import traceback
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Real
from torch import Tensor

from lengthwise.core.errors import (
    LengthwiseError,
    PositionIDError,
    PositionRangeError,
    SettingError,
    unknown_name_error,
)
from lengthwise.core.randomness import random_stream
from lengthwise.encodings import Encoding, EncodingSize
from lengthwise.evaluation.exact_match import EvaluationSettings, check_id_range
from lengthwise.evaluation.loss_by_context import check_context_lengths
from lengthwise.experiments.experiment import Experiment, build_decoder, build_sampler, to_dict
from lengthwise.model.decoder import Decoder
from lengthwise.positions import Assignment, DiscoveredCoupling, PositionScheme
from lengthwise.tasks import GradedByLoss, Task, lengths_between, nearest_length
from lengthwise.tasks.examples import Examples
from lengthwise.training.batch import Batch, TrainingSampler, to_batch

ID_AXES = "(level, batch, seq)"
# Axes of a hook's result, unless it is a score or bias.
RESULT_AXES = {
    "embed": "batch, seq, d_model",
    "rotate": "batch, heads, seq, d_head",
    "token_features": "batch, heads, seq, extra",
}


def prepare_training(experiment: Experiment) -> tuple[Decoder, TrainingSampler]:
    """Return the untrained decoder and the batch sampler; raise every error in the settings before training starts."""
    max_train_length = experiment.train_lengths[1]
    sampler = build_sampler(experiment, experiment.train_lengths)
    check_settings(experiment)
    # A task with a limited set of lengths needs only the first and the last length.
    for length in experiment.train_lengths:
        experiment.task.sample(length=length, size=1, rng=random_stream(experiment.seed, "ends", length))
    batches = check_scheme(experiment)
    batch = build_sampler(experiment, (max_train_length, max_train_length)).batches(0)[0]
    num_ids = experiment.scheme.num_position_ids or int(batch.position_ids.max()) + 1
    max_num_ids = experiment.encoding.num_position_ids
    if max_num_ids is not None and num_ids > max_num_ids:
        raise PositionRangeError(
            f"training uses IDs up to {num_ids - 1} but encoding {experiment.encoding.name} has only {max_num_ids} "
            f"IDs; set its num_position_ids to at least {num_ids}"
        )
    select_variants(experiment.task, experiment.evaluation)
    decoder = build_decoder(experiment)
    decoder.check_ids(batch.tokens, batch.position_ids)
    check_encoding(decoder, batches)
    return decoder, sampler


def check_evaluation(experiment: Experiment, settings: EvaluationSettings) -> None:
    """Raise an error for lengths or variants in ``settings`` that the task, scheme or encoding does not support."""
    for task in select_variants(experiment.task, settings).values():
        if isinstance(task, GradedByLoss):
            check_context_lengths(task, settings)
        for length in settings.lengths:
            rng = random_stream(settings.seed, "evaluation examples", length, 0)
            examples = task.sample(length=length, size=1, rng=rng)
            batch = to_batch(length, examples, experiment.scheme.assign(examples, rng, training=False))
            check_id_range(experiment.encoding.num_position_ids, batch, length)


def select_variants(task: Task, settings: EvaluationSettings) -> dict[str | None, Task]:
    """Return the variants of the task in ``settings`` by name, or ``{None: task}`` if there are none."""
    variants = task.variants()
    for variant in settings.variants:
        if not variants:
            raise SettingError(f"unknown variant '{variant}': task {task.name} has no variants; leave out --variants")
        if variant not in variants:
            raise unknown_name_error(f"variant of {task.name}", variant, variants)
    return {variant: variants[variant] for variant in settings.variants} or {None: task}


def check_settings(experiment: Experiment) -> None:
    """Raise an error for settings that JSON cannot represent or that the task or scheme does not support."""
    try:
        json.dumps(to_dict(experiment), ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        advice = "use dataclasses with numbers, strings or tuples, and names in UTF-8"
        raise SettingError(f"the experiment cannot be saved ({error}); {advice}") from None
    training, task, scheme = experiment.training, experiment.task, experiment.scheme
    if training.stage_threshold is not None and not task.curriculum_stages():
        raise SettingError(
            f"stage_threshold needs a task with stages, but {task.name} has no stages; leave out stage_threshold"
        )
    if training.fit_every is not None and isinstance(task, GradedByLoss):
        raise SettingError(f"fit_every needs exact match, but {task.name} is graded by loss; leave out fit_every")
    if isinstance(scheme, DiscoveredCoupling) and max(scheme.parsed_rule.looked_up_tokens, default=0) >= len(
        task.vocabulary
    ):
        raise SettingError(
            f"the rule of scheme {scheme.name} names token number {max(scheme.parsed_rule.looked_up_tokens)}, but task "
            f"{task.name} has only {len(task.vocabulary)} tokens; find the coupling of this task with lengthwise couple"
        )
    if training.scheduled_sampling and not scheme.predicts_ids:
        raise SettingError(
            f"scheduled_sampling needs predicted IDs, but {scheme.name} predicts no IDs; use the scheme 'predicted'"
        )
    num_lengths = min(
        training.lengths_per_batch, training.batch_size, len(lengths_between(task, *experiment.train_lengths))
    )
    if training.length_tilt and num_lengths == 1:
        raise SettingError(
            f"length_tilt {training.length_tilt:g} has no effect, because every step has one length; "
            "use several training lengths, and at least 2 for lengths_per_batch and batch_size, or length_tilt 0"
        )


def check_scheme(experiment: Experiment) -> list[Batch]:
    """Check the IDs that the scheme assigns to two examples of the longest training length.

    Returns two batches of these examples: with training IDs, and with evaluation IDs. Raises ``PositionIDError`` or
    ``PositionRangeError`` if the scheme returns an invalid assignment.
    """
    rng = random_stream(experiment.seed, "conformance")
    length, scheme = nearest_length(experiment.task, experiment.train_lengths[1]), experiment.scheme
    examples = experiment.task.sample(length=length, size=2, rng=rng)
    batches = []
    for training in (True, False):
        assignment: Any = scheme.assign(examples, rng, training=training)
        _check_assignment(scheme, examples, assignment, training=training)
        batches.append(to_batch(length, examples, assignment))
    return batches


def _check_assignment(scheme: PositionScheme, examples: Examples, assignment: Any, *, training: bool) -> None:
    def error(found: str, advice: str) -> PositionIDError:
        return PositionIDError(f"scheme {scheme.name} returns {found}; return {advice}")

    if not isinstance(assignment, Assignment):
        raise error(_type_name(assignment), "an Assignment, such as make_assignment(examples, position_ids)")
    batch_size, seq = examples.tokens.shape
    ids: Any = assignment.position_ids
    if not isinstance(ids, np.ndarray):
        raise error(f"IDs as {_type_name(ids)}", f"a NumPy array with axes {ID_AXES}")
    if ids.ndim != 3 or ids.shape[1:] != (batch_size, seq) or not len(ids):
        advice = f"an array with axes {ID_AXES}, here {(1, batch_size, seq)} for one level"
        raise error(f"IDs of shape {ids.shape} for tokens of shape {(batch_size, seq)}", advice)
    if ids.dtype.kind not in ("if" if scheme.real_valued else "i") or ids.dtype.itemsize > 8:
        types = "signed integers or floats" if scheme.real_valued else "signed integers, or set real_valued = True"
        raise error(f"IDs of type {ids.dtype}", types)
    for name in ("token_scored", "id_scored"):
        mask: Any = getattr(assignment, name)
        if not isinstance(mask, np.ndarray) or mask.dtype != bool or mask.shape != (batch_size, seq):
            found = f"{mask.dtype} {mask.shape}" if isinstance(mask, np.ndarray) else _type_name(mask)
            raise error(f"{name} as {found}", f"booleans of shape {(batch_size, seq)}")
    invalid_ids = ids[~((ids >= 0) & (ids < np.inf))]
    if invalid_ids.size:
        raise error(f"ID {invalid_ids[0]}", "finite IDs of at least 0")
    num_scheme_ids = scheme.num_position_ids
    if training and num_scheme_ids is not None and ids.max() >= num_scheme_ids:
        raise PositionRangeError(
            f"scheme {scheme.name} returns ID {ids.max()} in training, but its num_position_ids is {num_scheme_ids}; "
            "return smaller IDs or increase num_position_ids"
        )


def check_encoding(decoder: Decoder, batches: list[Batch]) -> None:
    """Call every hook of the encoding on small inputs; the ``SettingError`` for an invalid hook contains its name."""
    for batch in batches:
        decoder.check_ids(batch.tokens, batch.position_ids)
    ids = decoder.check_ids(batches[0].tokens, batches[0].position_ids)
    for encoding, level_ids in zip(decoder.encoding.levels, ids, strict=True):
        assert isinstance(encoding, Encoding)
        _check_hooks(encoding, decoder.encoding.level_size, level_ids)


@torch.no_grad()
def _check_hooks(encoding: Encoding, size: EncodingSize, ids: Real[Tensor, "size seq"]) -> None:
    num_heads, d_model, d_head = size.num_heads, size.d_model, size.d_head
    # Distinct sizes reveal swapped axes.
    taken = (num_heads, 2 * num_heads, d_model, d_head)
    batch_size, num_queries, num_keys = islice((size for size in count(3) if size not in taken), 3)
    ids = ids[torch.arange(batch_size) % ids.shape[0]][:, torch.arange(num_keys) % ids.shape[1]]
    query_ids = ids[:, num_keys - num_queries :]
    _call_hook(encoding, "embed", (torch.ones(batch_size, num_keys, d_model), ids), (batch_size, num_keys, d_model))
    for num_rotated_heads in (num_heads, 2 * num_heads):
        # The decoder rotates queries and keys in one call, except in the last block with few queries.
        shape = (batch_size, num_rotated_heads, num_keys, d_head)
        _call_hook(encoding, "rotate", (torch.ones(shape), ids), shape)
    score_shape = (batch_size, num_heads, num_queries, num_keys)
    if encoding.has_bias:
        _call_hook(encoding, "bias", (query_ids, ids), score_shape)
    queries = torch.ones(batch_size, num_heads, num_queries, d_head)
    keys = torch.ones(batch_size, num_heads, num_keys, d_head)
    if encoding.has_token_features:
        hidden = torch.ones(batch_size, num_keys, d_model)
        expected_shape = (batch_size, num_heads, num_keys, None)
        token_features = _call_hook(encoding, "token_features", (hidden, ids, 0), expected_shape)
        keys = torch.cat([keys, token_features], dim=-1)
        queries = torch.cat([queries, token_features[:, :, num_keys - num_queries :]], dim=-1)
    if encoding.has_scores:
        _call_hook(encoding, "scores", (queries, keys, query_ids, ids), score_shape)
        is_visible = torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)
        _call_hook(encoding, "adjust_scores", (torch.ones(score_shape), query_ids, ids, is_visible), score_shape)


def _call_hook(
    encoding: Encoding, hook: str, arguments: tuple[Any, ...], expected_shape: tuple[int | None, ...]
) -> Tensor:
    """Call a hook, check the shape and dtype of its result, and return it; a size of None may have any value."""
    label = f"{type(encoding).__name__}.{hook}"
    shapes = " and ".join(str(tuple(argument.shape)) for argument in arguments if isinstance(argument, Tensor))
    shape_text = str(expected_shape).replace("None", "extra")
    axes = f"({RESULT_AXES.get(hook, 'batch, heads, query, key')}), here {shape_text}"
    try:
        result = getattr(encoding, hook)(*arguments)
    except LengthwiseError:
        raise
    except Exception as error:
        # Report the line in the hook, not in torch.
        frame = traceback.extract_tb(error.__traceback__)[:2][-1]
        cause = str(error).split("\n")[0]
        location = f"{type(error).__name__}: {cause}, {Path(frame.filename).name} line {frame.lineno}"
        raise SettingError(f"{label} fails on inputs of shape {shapes} ({location}); fix this hook") from error
    if not isinstance(result, Tensor):
        found = f"{_type_name(result)} for inputs of shape {shapes}"
        raise SettingError(f"{label} returns {found}; return a tensor with axes {axes}")
    # A bias may broadcast over the batch and the heads.
    num_broadcast_axes = 2 if hook == "bias" else 0
    axis_matches = [
        expected_size in (axis_size, None) or (axis_size == 1 and axis < num_broadcast_axes)
        for axis, (axis_size, expected_size) in enumerate(zip(result.shape, expected_shape, strict=False))
    ]
    if result.dim() != len(expected_shape) or not all(axis_matches):
        found = f"a tensor of shape {tuple(result.shape)} for inputs of shape {shapes}"
        broadcast_advice = ", or size 1 to broadcast over batch or heads" if num_broadcast_axes else ""
        raise SettingError(f"{label} returns {found}; return axes {axes}{broadcast_advice}")
    if not result.is_floating_point() or (hook == "embed" and result.dtype != arguments[0].dtype):
        dtype = arguments[0].dtype if hook == "embed" else "a floating-point tensor"
        raise SettingError(f"{label} returns a tensor of dtype {result.dtype}; return {dtype}")
    return result


def _type_name(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"

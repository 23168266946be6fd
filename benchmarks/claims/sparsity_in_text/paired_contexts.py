"""Measurement of the same target tokens in two ways: recovery by few far tokens, and losses in longer contexts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lengthwise.core.errors import SettingError, unknown_name_error
from lengthwise.core.randomness import random_stream
from lengthwise.evaluation.language_model import ModelTokenizer, NextTokenModel
from lengthwise.influence.exactness_checks import check_study_exactness
from lengthwise.influence.hidden_context import strict_log_probs
from lengthwise.influence.measures import InfluenceMeasure, KLDivergence, PrefilteredMeasure
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.influence.target_evaluator import TargetEvaluator, split_target_blocks
from lengthwise.influence.targets import TargetToken, sample_targets
from lengthwise.influence.token_kinds import KINDS
from lengthwise.tasks import TokenizedDocument

LogProbs = Float[Tensor, " vocab"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSettings:
    """Settings of the measurement; ``lengths`` are context lengths in increasing order, first the trained length.

    The last ``near`` tokens before a target are always visible. Of the other tokens of the first context, the ``ks``
    most influential ones are visible in turn. ``seed`` determines the ``num_targets`` targets, which are all of one
    ``kind`` of ``KINDS`` if it is set. They are sampled in blocks of ``block`` consecutive tokens, which share a pass:
    all contexts of the i-th target of a block have i more tokens.
    """

    lengths: tuple[int, ...]
    near: int
    ks: tuple[int, ...]
    num_targets: int
    seed: int = 0
    kind: str | None = None
    unit: str = "token"
    measure: InfluenceMeasure = field(default_factory=PrefilteredMeasure)
    block: int = 1

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in KINDS:
            raise unknown_name_error("kind of token", self.kind, KINDS)
        if len(self.lengths) < 2 or list(self.lengths) != sorted(set(self.lengths)):
            raise SettingError(
                f"invalid context lengths {', '.join(map(str, self.lengths))}; use two or more increasing lengths, "
                "first the trained length"
            )
        if not 1 <= self.near < self.lengths[0]:
            raise SettingError(
                f"invalid near {self.near}; use at least 1 and fewer than the {self.lengths[0]} tokens of the first "
                "context length"
            )

    @property
    def influence(self) -> InfluenceSettings:
        """Settings of the influence measurement in the first context, with selected far tokens for every target."""
        return InfluenceSettings(
            unit=self.unit,
            near=self.near,
            far=self.lengths[0] - self.near,
            ks=self.ks,
            measure=self.measure,
            controls=(),
            searched=None,
            num_targets=self.num_targets,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTarget:
    """Values of one target; losses and divergences are in nats.

    ``divergence_short`` is the divergence from the prediction in the first context to the prediction from near tokens.
    ``divergences_k`` and ``losses_k`` have one value per k: near tokens and k selected far tokens. ``losses`` has one
    value per context length. ``drifts`` has the divergence from the prediction in the first context for each longer
    context.
    """

    document: str
    place: int
    kinds: tuple[str, ...]
    loss_short: float
    divergence_short: float
    losses_k: tuple[float, ...]
    divergences_k: tuple[float, ...]
    losses: tuple[float, ...]
    drifts: tuple[float, ...]

    @property
    def changes(self) -> tuple[float, ...]:
        """Loss in each longer context minus the loss in the first context."""
        return tuple(loss - self.losses[0] for loss in self.losses[1:])


def measure_paired_targets(
    model: NextTokenModel, codec: ModelTokenizer, texts: Sequence[TokenizedDocument], settings: ContextSettings
) -> list[PairedTarget]:
    """Measure random targets that have the longest context before them in their own text.

    Every context of a target ends just before it, so all values belong to the same token. Raises ``SettingError`` if
    no text is long enough, if only one text is, or if there are fewer targets of ``kind`` than ``num_targets``.
    """
    influence = settings.influence
    evaluator = TargetEvaluator(model=model, texts=texts, settings=influence, token_text=codec.token_text)
    targets = _sample(evaluator, settings)
    evaluator.placebo_sampler.check_other_documents(targets)
    check_study_exactness(
        model,
        targets[0].window(influence.near, influence.far),
        check_gates=isinstance(influence.measure, PrefilteredMeasure),
    )
    results = []
    for start in range(0, len(targets), influence.block):
        block = targets[start : start + influence.block]
        rows = evaluator.rows(block, start)
        for row, (losses, drifts) in zip(rows, _context_scores(model, block, settings.lengths), strict=True):
            (selection,) = row["selections"]
            results.append(
                PairedTarget(
                    document=row["document"],
                    place=row["place"],
                    kinds=tuple(row["kinds"]),
                    loss_short=row["loss_short"],
                    divergence_short=row["divergence_short"],
                    losses_k=tuple(selection["losses"]),
                    divergences_k=tuple(selection["divergences"]),
                    losses=losses,
                    drifts=drifts,
                )
            )
    return results


def _sample(evaluator: TargetEvaluator, settings: ContextSettings) -> Sequence[TargetToken]:
    """Sample targets uniformly, or only targets of the kind in the settings, in text order."""
    texts, block = evaluator.texts, settings.block
    sample = partial(sample_targets, texts, context=settings.lengths[-1], seed=settings.seed, block=block)
    if settings.kind is None:
        return sample(num_targets=settings.num_targets)
    candidates = sample(num_targets=None)
    order = random_stream(settings.seed, "targets of a kind").permutation(len(candidates)).tolist()
    of_kind = (index for index in order if settings.kind in evaluator.classify_target(candidates[index]))
    selected = sorted(islice(of_kind, settings.num_targets))
    if len(selected) < settings.num_targets:
        raise SettingError(
            f"the texts have only {len(selected)} targets of kind {settings.kind}, but num_targets is "
            f"{settings.num_targets}; use a smaller num_targets, or more texts"
        )
    return [candidates[index] for index in selected]


def _context_scores(
    model: NextTokenModel, targets: Sequence[TargetToken], lengths: Sequence[int]
) -> Iterator[tuple[tuple[float, ...], tuple[float, ...]]]:
    """Yield the losses of each target in contexts of ``lengths`` tokens, and the drifts from the first prediction."""
    if any(target.index_in_block for target in targets):
        blocks = list(split_target_blocks(targets))
        predictions_by_length = [
            [prediction for block in blocks for prediction in _block_predictions(model, block, length)]
            for length in lengths
        ]
    else:
        windows = [target.window(length, 0) for target in targets for length in lengths]
        queries = [(window, np.zeros(0, dtype=bool)) for window in windows]
        log_probs: dict[int, LogProbs] = {}
        for query_indices, batch_log_probs in strict_log_probs(model, queries):
            log_probs.update(zip(query_indices, batch_log_probs, strict=True))
        predictions_by_length = [
            [log_probs[index * len(lengths) + offset] for index in range(len(targets))]
            for offset in range(len(lengths))
        ]
    for index, target in enumerate(targets):
        predictions = [of_length[index] for of_length in predictions_by_length]
        token = int(target.text.tokens[target.place])
        drift = KLDivergence(predictions[0])
        yield (
            tuple(float(-prediction[token]) for prediction in predictions),
            tuple(max(float(drift(prediction)), 0.0) for prediction in predictions[1:]),
        )


def _block_predictions(model: NextTokenModel, targets: Sequence[TargetToken], length: int) -> list[LogProbs]:
    """Return the predictions in a context of ``length`` tokens, and the tokens of the same block, from one pass."""
    window = targets[-1].window(length, 0)
    tokens = torch.from_numpy(window.tokens)
    return list(model.last_log_probs(tokens, model.assign_position_ids(tokens), len(targets)))

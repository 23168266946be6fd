"""Influence study that measures targets of a model on texts and writes one row per target to a folder."""

import hashlib
import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lengthwise.core.errors import RunFolderError, SettingError, SkippedTextWarning, UntrainedDistanceWarning
from lengthwise.core.files import StrPath
from lengthwise.core.folder_lock import exclusive_lock
from lengthwise.core.type_checks import check_arguments, check_types, is_instance
from lengthwise.experiments.run_folder import STUDY_FOLDER, claim_folder, read_description
from lengthwise.influence.duration_estimate import estimate_seconds
from lengthwise.influence.measures import AttentionWeight, Gradient, Screened
from lengthwise.influence.probing.exactness_checks import check_study
from lengthwise.influence.probing.model_wrapping import StopRequestedError, stop_before_passes
from lengthwise.influence.probing.next_token_model import NextTokenModel
from lengthwise.influence.row_blocks import append_block, complete_blocks, truncate_to
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.influence.target_evaluator import TargetEvaluator
from lengthwise.influence.targets import Target, sample_targets, split_texts
from lengthwise.influence.text_codec import TextCodec
from lengthwise.tasks import TokenizedDocument

SUMMARY_FILE = "summary.json"
# Version of the row format. A study can only be resumed with the version that started it.
VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluenceStudy:
    """Model, tokenizer, texts and settings of a study.

    ``part`` (i, n) is the i-th of n parts of the study, counted from 1.
    """

    model: NextTokenModel
    codec: TextCodec
    texts: Sequence[TokenizedDocument]
    settings: InfluenceSettings
    part: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        check_types(self, is_instance)
        if not 1 <= self.part[0] <= self.part[1]:
            part, n = f"{self.part[0]}/{self.part[1]}", max(1, self.part[1])
            raise SettingError(f"invalid part {part}; use 1/{n} to {n}/{n}")
        model, near, far = self.model, self.settings.near, self.settings.far
        num_needed = len(self.codec.start) + self.settings.context
        if model.num_positions is not None and num_needed > model.num_positions:
            raise SettingError(
                f"near {near} and far {far} need {num_needed} positions, but {model.name} has "
                f"{model.num_positions}; use at most {model.num_positions - num_needed + far} far tokens"
            )
        max_distance, trained_distance = num_needed - 1, model.trained_distance
        if trained_distance is not None and max_distance > trained_distance:
            warnings.warn(
                f"length {max_distance + 1} (near {near}, far {far}) uses ID distances up to {max_distance}, but the "
                f"training of {model.name} used at most {trained_distance}; far context may increase the loss",
                UntrainedDistanceWarning,
                stacklevel=2,
            )
        for name, num_texts in Counter(text.name for text in self.texts).items():
            if num_texts > 1:
                raise SettingError(f"duplicate text name {name}; use a different name for each text")
        for name, original_name in _find_copies(self.texts).items():
            raise SettingError(
                f"text {name} is a copy of {original_name}, and copies make intervals over texts too narrow; remove "
                "the copy, for example with without_copies(texts)"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the description of the study as JSON values, with a digest of the texts."""
        description = {
            "version": VERSION,
            "model": {
                "name": self.model.name,
                "parameters": self.model.num_parameters,
                "vocabulary_size": self.model.vocabulary_size,
                "dtype": self.model.dtype,
                "weights": self.model.weights_digest,
            },
            "texts": _digest_texts(self.texts),
            "settings": self.settings.to_dict(),
            **({} if self.part == (1, 1) else {"part": self.part}),
        }
        json_values: dict[str, Any] = json.loads(json.dumps(description))
        return json_values

    def pieces(self) -> Sequence[TokenizedDocument]:
        """Return the texts, split if ``max_document_tokens`` is set."""
        max_tokens = self.settings.max_document_tokens
        return self.texts if max_tokens is None else list(split_texts(self.texts, max_tokens))

    def targets(self, pieces: Sequence[TokenizedDocument]) -> Sequence[Target]:
        """Sample the targets of all parts of the study from ``pieces``."""
        settings = self.settings
        return sample_targets(pieces, context=settings.context, num_targets=settings.num_targets, seed=settings.seed)

    def block_starts(self, num_targets: int) -> range:
        """Return the index of the first target of each block in this part."""
        (part_number, num_parts), block_size = self.part, self.settings.block
        return range((part_number - 1) * block_size, num_targets, num_parts * block_size)

    def claim(self, folder: Path, *, resume: bool) -> None:
        """Write the description of the study to a folder; with ``resume``, compare it with the stored description."""
        claim_folder(folder, STUDY_FOLDER, self.to_dict(), resume=resume, normalize=_resolve_model_path)


@check_arguments
def measure_influence(
    study: InfluenceStudy,
    out: StrPath,
    *,
    resume: bool = False,
    report: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
    estimate: Callable[[float, float], None] | None = None,
) -> bool:
    """Write one row per target to ``out``/influence.jsonl. Return False if ``stop()`` returned True.

    The same arguments give the same file, even after interruptions: targets are sampled before the first measurement,
    and a resumed study repeats an incomplete block. After each block, ``report`` receives the numbers of measured and
    of all targets. ``stop`` runs before every forward pass. ``estimate`` receives the estimated minimum and maximum
    duration in seconds. Raises ``RunFolderError`` if the folder already contains a study (with ``resume``: another
    study), or if another process writes to it.
    """
    out, settings, pieces = Path(out), study.settings, study.pieces()
    targets = study.targets(pieces)
    model = stop_before_passes(study.model, stop)
    evaluator = TargetEvaluator(
        model=model,
        texts=pieces,
        settings=settings,
        token_text=study.codec.token_text,
        start=study.codec.start,
        labels={"model": study.model.name},
    )
    evaluator.placebo_sampler.check_other_documents(targets)
    try:
        check_study(
            model,
            targets[0].window(settings.near, settings.far, study.codec.start, settings.sink),
            check_masked_mode="masked" in settings.modes,
            check_gates=isinstance(settings.measure, (Gradient, Screened)),
            check_attention=isinstance(settings.measure, AttentionWeight),
        )
    except StopRequestedError:
        return False
    with exclusive_lock(out):
        _check_version(out, resume=resume)
        study.claim(out, resume=resume)
        blocks = {start: targets[start : start + settings.block] for start in study.block_starts(len(targets))}
        total_targets = sum(map(len, blocks.values()))
        stored_blocks = complete_blocks(out, settings.block, total_targets)
        truncate_to(out, stored_blocks)
        num_done = min(len(stored_blocks) * settings.block, total_targets)
        try:
            if estimate is not None and num_done < total_targets:
                estimate(*estimate_seconds(evaluator, targets[: total_targets - num_done]))
            for start, block in list(blocks.items())[len(stored_blocks) :]:
                rows = evaluator.rows(block, start)
                append_block(out, rows)
                num_done += len(rows)
                if report is not None:
                    report(num_done, total_targets)
        except StopRequestedError:
            return False
        return True


def without_copies(texts: Sequence[TokenizedDocument]) -> list[TokenizedDocument]:
    """Remove texts with the same tokens as an earlier text, and raise a ``SkippedTextWarning`` for them."""
    copies = _find_copies(texts)
    if copies:
        name, original_name = next(iter(copies.items()))
        warnings.warn(
            f"removed {len(copies)} text(s) that are copies of other texts; for example, {name} is a copy "
            f"of {original_name}",
            SkippedTextWarning,
            stacklevel=2,
        )
    return [text for text in texts if text.name not in copies]


def _find_copies(texts: Sequence[TokenizedDocument]) -> dict[str, str]:
    """Map the name of each copy to the name of the first text with the same tokens."""
    first_names: dict[bytes, str] = {}
    copies = {}
    for text in texts:
        first_name = first_names.setdefault(hashlib.sha256(text.tokens.astype("<i8").tobytes()).digest(), text.name)
        if first_name != text.name:
            copies[text.name] = first_name
    return copies


def _check_version(out: Path, *, resume: bool) -> None:
    if resume and (out / STUDY_FOLDER.file).is_file():
        version = read_description(out, STUDY_FOLDER).get("version", 1)
        if version != VERSION:
            raise RunFolderError(
                f"{out} contains rows of format version {version}, but this release writes version {VERSION}; "
                "choose another --out"
            )


def _resolve_model_path(study: dict[str, Any]) -> dict[str, Any]:
    """Resolve the path of the model, so that two spellings of the same path are equal."""
    model = study.get("model")
    if not isinstance(model, Mapping) or not isinstance(model.get("name"), str):
        # A study did not write this description; the later comparison reports the difference.
        return study
    return {**study, "model": {**model, "name": os.path.realpath(model["name"])}}


def _digest_texts(texts: Sequence[TokenizedDocument]) -> dict[str, Any]:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.name.encode() + b"\0" + text.tokens.astype("<i8").tobytes())
    return {"documents": len(texts), "tokens": sum(len(text.tokens) for text in texts), "sha256": digest.hexdigest()}

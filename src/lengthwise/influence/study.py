"""Influence study: measures the targets of a model on texts and writes their rows to a folder; can be resumed."""

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
from lengthwise.core.type_checks import check_arguments
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

SUMMARY = "summary.json"
# Version of the row format. Another version cannot resume a study.
VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluenceStudy:
    """Description of a study: a model with its tokenizer, texts and settings.

    ``part`` (i, n) is the i-th of n shares of the targets, counted from 1.
    """

    model: NextTokenModel
    codec: TextCodec
    texts: Sequence[TokenizedDocument]
    settings: InfluenceSettings
    part: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        if not 1 <= self.part[0] <= self.part[1]:
            last = max(1, self.part[1])
            raise SettingError(f"invalid part {self.part[0]}/{self.part[1]}; use 1/{last} to {last}/{last}")
        model, near, far = self.model, self.settings.near, self.settings.far
        needed = len(self.codec.start) + self.settings.context
        if model.num_positions is not None and needed > model.num_positions:
            raise SettingError(
                f"near {near} and far {far} need {needed} positions, but {model.name} has "
                f"{model.num_positions}; use at most {model.num_positions - needed + far} far tokens"
            )
        distance, trained = needed - 1, model.trained_distance
        if trained is not None and distance > trained:
            warnings.warn(
                f"length {distance + 1} (near {near}, far {far}) uses ID distances up to {distance}, but the training "
                f"of {model.name} used at most {trained}; far context may increase the loss",
                UntrainedDistanceWarning,
                stacklevel=2,
            )
        for name, number in Counter(text.name for text in self.texts).items():
            if number > 1:
                raise SettingError(f"duplicate text name {name}; give each text its own name")
        for name, first in _copies(self.texts).items():
            raise SettingError(
                f"text {name} is a copy of {first}, which makes intervals over texts too narrow; remove it, for "
                "example with without_copies"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return everything that the rows depend on as JSON values; texts are represented by a digest."""
        facts = {
            "version": VERSION,
            "model": {
                "name": self.model.name,
                "parameters": self.model.num_parameters,
                "vocabulary_size": self.model.vocabulary_size,
                "dtype": self.model.dtype,
                "weights": self.model.weights_digest,
            },
            "texts": _digest(self.texts),
            "settings": self.settings.to_dict(),
            **({} if self.part == (1, 1) else {"part": self.part}),
        }
        plain: dict[str, Any] = json.loads(json.dumps(facts))
        return plain

    def pieces(self) -> Sequence[TokenizedDocument]:
        """Return the texts, split if ``max_document_tokens`` is set."""
        max_tokens = self.settings.max_document_tokens
        return self.texts if max_tokens is None else list(split_texts(self.texts, max_tokens))

    def targets(self, pieces: Sequence[TokenizedDocument]) -> Sequence[Target]:
        """Sample the targets of all parts from ``pieces()``."""
        settings = self.settings
        return sample_targets(pieces, context=settings.context, number=settings.num_targets, seed=settings.seed)

    def block_starts(self, num_targets: int) -> range:
        """Return the index of the first target of each block of this part."""
        part, num_parts = self.part
        block = self.settings.block
        return range((part - 1) * block, num_targets, num_parts * block)

    def claim(self, folder: Path, *, resume: bool) -> None:
        """Write the description of the study to a folder, or compare it with the description there."""
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
    """Write a row per target to ``out``/influence.jsonl. Return False if ``stop()`` became true.

    The same arguments give the same file, even after interruptions: targets are sampled before anything is measured,
    and an incomplete block is measured again. ``stop`` is called before every forward pass. ``estimate`` receives the
    minimum and maximum seconds that the study takes. Raises ``RunFolderError`` if the folder already contains a study
    (with ``resume``: another study), or if another process writes to it.
    """
    out, settings, pieces = Path(out), study.settings, study.pieces()
    targets = study.targets(pieces)
    evaluator = TargetEvaluator(
        model=stop_before_passes(study.model, stop),
        texts=pieces,
        settings=settings,
        token_text=study.codec.token_text,
        start=study.codec.start,
        labels={"model": study.model.name},
    )
    evaluator.placebo.check(targets)
    check_study(
        study.model,
        targets[0].window(settings.near, settings.far, study.codec.start, settings.sink),
        masked="masked" in settings.modes,
        gated=isinstance(settings.measure, (Gradient, Screened)),
        attended=isinstance(settings.measure, AttentionWeight),
    )
    with exclusive_lock(out):
        _check_version(out, resume=resume)
        study.claim(out, resume=resume)
        blocks = {first: targets[first : first + settings.block] for first in study.block_starts(len(targets))}
        total = sum(map(len, blocks.values()))
        complete = complete_blocks(out, settings.block, total)
        truncate_to(out, complete)
        done = min(len(complete) * settings.block, total)
        try:
            if estimate is not None and done < total:
                estimate(*estimate_seconds(evaluator, targets[: total - done]))
            for first, block in list(blocks.items())[len(complete) :]:
                rows = evaluator.rows(block, first)
                append_block(out, rows)
                done += len(rows)
                if report is not None:
                    report(done, total)
        except StopRequestedError:
            return False
        return True


def without_copies(texts: Sequence[TokenizedDocument]) -> list[TokenizedDocument]:
    """Keep the first of several texts with the same tokens; warn about the others (``SkippedTextWarning``)."""
    copies = _copies(texts)
    if copies:
        name, first = next(iter(copies.items()))
        warnings.warn(
            f"removed {len(copies)} text(s) that are copies of others, such as {name} of {first}",
            SkippedTextWarning,
            stacklevel=2,
        )
    return [text for text in texts if text.name not in copies]


def _copies(texts: Sequence[TokenizedDocument]) -> dict[str, str]:
    """Map each text with the tokens of an earlier text to the name of the earlier one."""
    first_names: dict[bytes, str] = {}
    copies = {}
    for text in texts:
        first = first_names.setdefault(hashlib.sha256(text.tokens.astype("<i8").tobytes()).digest(), text.name)
        if first != text.name:
            copies[text.name] = first
    return copies


def _check_version(out: Path, *, resume: bool) -> None:
    if resume and (out / STUDY_FOLDER.file).is_file():
        version = read_description(out, STUDY_FOLDER).get("version", 1)
        if version != VERSION:
            raise RunFolderError(
                f"{out} contains rows of version {version}, but this release writes version {VERSION}; "
                "choose another --out"
            )


def _resolve_model_path(study: dict[str, Any]) -> dict[str, Any]:
    """Resolve the path of the model, so that different spellings of a path are equal."""
    model = study.get("model")
    if not isinstance(model, Mapping) or not isinstance(model.get("name"), str):
        # Not written by a study: the comparison reports the difference.
        return study
    return {**study, "model": {**model, "name": os.path.realpath(model["name"])}}


def _digest(texts: Sequence[TokenizedDocument]) -> dict[str, Any]:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.name.encode() + b"\0" + text.tokens.astype("<i8").tobytes())
    return {
        "documents": len(texts),
        "tokens": sum(len(text.tokens) for text in texts),
        "sha256": digest.hexdigest(),
    }

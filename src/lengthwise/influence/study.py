"""A study of influence: a model and texts in, a folder of measured targets out; stopped, it goes on where it was."""

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
from lengthwise.influence.duration_estimate import estimated_seconds
from lengthwise.influence.measures import AttentionWeight, Gradient, Screened
from lengthwise.influence.probing.exactness_checks import check_study
from lengthwise.influence.probing.instrumented_model import StopAskedError, Stoppable
from lengthwise.influence.probing.next_token_model import NextTokenModel
from lengthwise.influence.row_blocks import add_block, cut_to, whole_blocks
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.influence.target_evaluator import TargetRows
from lengthwise.influence.targets import Target, choose_targets, cut
from lengthwise.influence.text_codec import TextCodec
from lengthwise.tasks import TokenizedDocument

SUMMARY = "summary.json"
# Of what a row holds: a study is resumed by the version that began it.
VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluenceStudy:
    """What is measured: a model with its tokenizer, on texts, in which way.

    ``part`` (i, n) is the i-th of n shares of the targets, counted from 1.
    """

    model: NextTokenModel
    codec: TextCodec
    texts: Sequence[TokenizedDocument]
    settings: InfluenceSettings
    part: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        if not 1 <= self.part[0] <= self.part[1]:
            raise SettingError(
                f"part {self.part[0]}/{self.part[1]} does not exist; use 1/{max(1, self.part[1])} and on"
            )
        model, near, far = self.model, self.settings.near, self.settings.far
        needed = len(self.codec.start) + self.settings.context
        if model.num_positions is not None and needed > model.num_positions:
            raise SettingError(
                f"near {near} and far {far} need {needed} positions and {model.name} has "
                f"{model.num_positions}; use a far of at most {model.num_positions - needed + far}"
            )
        distance, trained = needed - 1, model.trained_distance
        if trained is not None and distance > trained:
            warnings.warn(
                f"length {distance + 1} (near {near}, far {far}) uses ID distances up to {distance}, training of "
                f"{model.name} showed none beyond {trained}: far context may cost more than it gains",
                UntrainedDistanceWarning,
                stacklevel=2,
            )
        for name, number in Counter(text.name for text in self.texts).items():
            if number > 1:
                raise SettingError(f"text {name} is there twice; name each once")
        for name, first in _copies(self.texts).items():
            raise SettingError(
                f"text {name} is a copy of {first}, which makes intervals over texts too narrow; leave it out "
                "(without_copies does)"
            )

    def to_dict(self) -> dict[str, Any]:
        """For JSON: everything that the rows depend on, the texts by their digest."""
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
    """Measure every target into ``out``/influence.jsonl; False when ``stop`` asked to leave early.

    What is measured is decided before anything is measured: the same arguments give the same file, however often it
    was stopped. ``RunFolderError`` when the folder holds a study already or, on ``resume``, another one, and when
    another process is measuring into it. ``stop`` is asked before every pass of the model; the targets of an unfinished
    block are measured again. ``estimate`` is told before the first how many seconds all take, least and most.
    """
    out, settings, texts = Path(out), study.settings, measured_texts(study)
    targets = targets_of(study, texts)
    measured = TargetRows(
        model=Stoppable(study.model, stop),
        texts=texts,
        settings=settings,
        token_text=study.codec.token_text,
        start=study.codec.start,
        labels={"model": study.model.name},
    )
    measured.placebo.check(targets)
    check_study(
        study.model,
        targets[0].window(settings.near, settings.far, study.codec.start, settings.sink),
        masked="masked" in settings.modes,
        gated=isinstance(settings.measure, (Gradient, Screened)),
        attended=isinstance(settings.measure, AttentionWeight),
    )
    with exclusive_lock(out):
        _check_version(out, resume=resume)
        claim_folder(out, STUDY_FOLDER, study.to_dict(), resume=resume, normalize=with_resolved_path)
        blocks = {first: targets[first : first + settings.block] for first in blocks_of(study, len(targets))}
        total = sum(map(len, blocks.values()))
        measured_before = whole_blocks(out, settings.block, total)
        cut_to(out, measured_before)
        done = min(len(measured_before) * settings.block, total)
        try:
            if estimate is not None and done < total:
                estimate(*estimated_seconds(measured, targets[: total - done]))
            for first, asked in list(blocks.items())[-(-done // settings.block) :]:
                rows = measured.rows(asked, first)
                add_block(out, rows)
                done += len(rows)
                if report is not None:
                    report(done, total)
        except StopAskedError:
            return False
        return True


def targets_of(study: InfluenceStudy, texts: Sequence[TokenizedDocument]) -> Sequence[Target]:
    """The targets of the whole study in its ``measured_texts``, decided before anything is measured."""
    settings = study.settings
    return choose_targets(texts, context=settings.context, number=settings.num_targets, seed=settings.seed)


def blocks_of(study: InfluenceStudy, targets: int) -> range:
    """The number of the first target of each block that is the study's part."""
    place, parts = study.part
    block = study.settings.block
    return range((place - 1) * block, targets, parts * block)


def without_copies(texts: Sequence[TokenizedDocument]) -> list[TokenizedDocument]:
    """Keep the first of texts with the same tokens, and warn once of the others (``SkippedTextWarning``)."""
    copies = _copies(texts)
    if copies:
        name, first = next(iter(copies.items()))
        warnings.warn(
            f"{len(copies)} text(s) are copies of others and were left out, such as {name} of {first}",
            SkippedTextWarning,
            stacklevel=2,
        )
    return [text for text in texts if text.name not in copies]


def _copies(texts: Sequence[TokenizedDocument]) -> dict[str, str]:
    """The names of texts whose tokens another one had before, and that one's name."""
    first_of: dict[bytes, str] = {}
    copies = {}
    for text in texts:
        first = first_of.setdefault(hashlib.sha256(text.tokens.astype("<i8").tobytes()).digest(), text.name)
        if first != text.name:
            copies[text.name] = first
    return copies


def _check_version(out: Path, *, resume: bool) -> None:
    if resume and (out / STUDY_FOLDER.file).is_file():
        found = read_description(out, STUDY_FOLDER).get("version", 1)
        if found != VERSION:
            raise RunFolderError(
                f"{out} holds a study with rows of version {found}, and these are of version {VERSION}; "
                "choose another --out"
            )


def measured_texts(study: InfluenceStudy) -> Sequence[TokenizedDocument]:
    """The texts, cut if that is asked for."""
    piece = study.settings.max_document_tokens
    return study.texts if piece is None else list(cut(study.texts, piece))


def with_resolved_path(study: dict[str, Any]) -> dict[str, Any]:
    """However its path is written, a model is the same one."""
    model = study.get("model")
    if not isinstance(model, Mapping) or not isinstance(model.get("name"), str):
        # Not what a study writes, so the same as none.
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

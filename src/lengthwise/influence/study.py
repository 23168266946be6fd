"""Influence study that measures targets of a model on texts and writes one row per target to a folder.

n processes can divide a study: process i measures every n-th block, and the last process joins the parts.
"""

import hashlib
import json
import math
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from lengthwise.core.errors import RunFolderError, SettingError, SkippedTextWarning, UntrainedDistanceWarning
from lengthwise.core.files import StrPath, read_file, write_atomically
from lengthwise.core.folder_lock import exclusive_lock
from lengthwise.core.randomness import random_stream
from lengthwise.core.type_checks import check_arguments, check_types, is_instance
from lengthwise.evaluation.language_model import ModelTokenizer, NextTokenModel
from lengthwise.experiments.run_folder import STUDY_FOLDER, acquire_folder
from lengthwise.influence.exactness_checks import check_study_exactness
from lengthwise.influence.measures import AttentionWeight, GradientMeasure, PrefilteredMeasure, ProposedGreedy
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.influence.target_evaluator import (
    SearchProbability,
    StopRequestedError,
    TargetEvaluator,
    stop_before_forward_passes,
)
from lengthwise.influence.targets import TargetToken, sample_targets, split_texts
from lengthwise.tasks import TokenizedDocument

# Rows of a study in blocks, and a digest for each block.
ROWS_FILE, DIGESTS_FILE = "influence.jsonl", "influence.sha256"
SUMMARY_FILE = "summary.json"
# Number of blocks of targets whose divergence the pilot measures.
NUM_PILOT_BLOCKS = 8
# Smallest number of blocks of targets, if the study has as many targets.
MIN_BLOCKS = 32
# Smallest number of searched targets of a study with a time limit.
MIN_SEARCHED = 8
# Version of the row format, a part of the description of a study.
VERSION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class InfluenceStudy:
    """Model, tokenizer, texts and settings of a study.

    ``part`` (i, n) is the i-th of n parts of the study, counted from 1.
    """

    model: NextTokenModel
    codec: ModelTokenizer
    texts: Sequence[TokenizedDocument]
    settings: InfluenceSettings
    part: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        check_types(self, is_instance)
        if not 1 <= self.part[0] <= self.part[1]:
            part, n = f"{self.part[0]}/{self.part[1]}", max(1, self.part[1])
            raise SettingError(f"invalid part {part}; use 1/{n} to {n}/{n}")
        model, near, far = self.model, self.settings.near, self.settings.far
        num_needed = self.num_needed_positions
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
                "the copy, for example with drop_duplicate_texts(texts)"
            )

    @property
    def num_needed_positions(self) -> int:
        """Number of tokens of the shortest context, with the start token."""
        return len(self.codec.start) + self.settings.context

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
            "texts": {
                "documents": len(self.texts),
                "tokens": sum(len(text.tokens) for text in self.texts),
                "sha256": digest_texts(self.texts),
            },
            "settings": self.settings.to_dict(),
            **({} if self.part == (1, 1) else {"part": self.part}),
        }
        return json.loads(json.dumps(description))

    def document_pieces(self) -> Sequence[TokenizedDocument]:
        """Return the texts, split if ``max_document_tokens`` is set."""
        max_tokens = self.settings.max_document_tokens
        return self.texts if max_tokens is None else list(split_texts(self.texts, max_tokens))

    def targets(self, pieces: Sequence[TokenizedDocument]) -> Sequence[TargetToken]:
        """Sample the targets of all parts of the study from ``document_pieces``."""
        settings = self.settings
        # Targets of a block have up to block - 1 more near tokens, if the model has the positions for them. Few blocks
        # would be few documents.
        limits = [self.model.num_positions, self.model.trained_distance and self.model.trained_distance + 1]
        free = min((limit for limit in limits if limit is not None), default=math.inf) - self.num_needed_positions
        return sample_targets(
            pieces,
            context=settings.context,
            num_targets=settings.num_targets,
            seed=settings.seed,
            block=int(max(1, min(settings.block, free + 1, (settings.num_targets or math.inf) // MIN_BLOCKS))),
        )

    def block_starts(self, num_targets: int) -> range:
        """Return the index of the first target of each block in this part."""
        (part_number, num_parts), block_size = self.part, self.settings.block
        return range((part_number - 1) * block_size, num_targets, num_parts * block_size)

    def write_or_check_description(self, folder: Path, *, resume: bool) -> None:
        """Write the description of the study to a folder; with ``resume``, compare it with the stored description."""
        acquire_folder(folder, STUDY_FOLDER, self.to_dict(), resume=resume, normalize=_resolve_model_path)


@check_arguments
def measure_influence(
    study: InfluenceStudy,
    out: StrPath,
    *,
    resume: bool = False,
    minutes: float | None = None,
    report: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
    announce: Callable[[str], None] | None = None,
    estimate: Callable[[float], None] | None = None,
) -> bool:
    """Write one row per target to ``out``/influence.jsonl. Return False if ``stop()`` returned True.

    The same arguments give the same file, even after interruptions: targets are sampled before the first measurement,
    and a resumed study repeats an incomplete block. With ``minutes``, the number of searched targets, at most that of
    the settings, depends on the speed of the machine, and so does the file. After each block, ``report`` receives the
    numbers of measured and of all targets. ``stop`` runs before every forward pass. ``announce`` receives a line at
    each stage before the first result, and ``estimate`` the expected number of seconds, measured on some targets.
    Raises ``RunFolderError`` if the folder already contains a study (with ``resume``: another study), or if another
    process writes to it, and ``SettingError`` for too few minutes.
    """
    out, settings, pieces = Path(out), study.settings, study.document_pieces()
    targets = study.targets(pieces)
    model = stop_before_forward_passes(study.model, stop)
    evaluator = TargetEvaluator(
        model=model,
        texts=pieces,
        settings=settings,
        token_text=study.codec.token_text,
        start=study.codec.start,
    )
    evaluator.placebo_sampler.check_other_documents(targets)
    announce = announce or (lambda line: None)
    announce(f"checking that hidden tokens have no effect on {model.name}")
    try:
        check_study_exactness(
            model,
            targets[0].window(settings.near, settings.far, study.codec.start, settings.num_sink_tokens),
            modes=settings.modes,
            check_gates=isinstance(settings.measure, (GradientMeasure, PrefilteredMeasure, ProposedGreedy)),
            check_attention=isinstance(settings.measure, AttentionWeight),
        )
    except StopRequestedError:
        return False
    with exclusive_lock(out):
        is_new = not (out / STUDY_FOLDER.file).exists()
        study.write_or_check_description(out, resume=resume)
        blocks = {start: targets[start : start + settings.block] for start in study.block_starts(len(targets))}
        total_targets = sum(map(len, blocks.values()))
        stored_blocks = read_complete_blocks(out, settings.block, total_targets)
        for name, content in (
            (ROWS_FILE, b"".join(stored_blocks)),
            (DIGESTS_FILE, format_block_digests(stored_blocks)),
        ):
            if (out / name).exists():
                # The incomplete last block of an interrupted study.
                os.truncate(out / name, len(content))
        num_done = min(len(stored_blocks) * settings.block, total_targets)
        try:
            remaining = list(blocks.items())[len(stored_blocks) :]
            probability, searched = None, settings.searched
            if remaining:
                announce(f"measuring a pilot of at most {NUM_PILOT_BLOCKS * settings.block} targets")
                pilot = _Pilot.measure(evaluator, targets)
                share = sum(len(block) for _, block in remaining) / len(targets)
                if minutes is not None:
                    searched = pilot.searched_within(60 * minutes, share, searched)
                    announce(f"searching about {share * searched:.0f} targets in {minutes:g} minutes")
                probability = pilot.probability(searched)
                if estimate is not None:
                    estimate(share * pilot.seconds(searched))
            for rows in evaluator.rows_of_blocks(remaining, probability):
                append_block(out, rows)
                num_done += len(rows)
                if report is not None:
                    report(num_done, total_targets)
        except StopRequestedError:
            return False
        except SettingError:
            if is_new and not num_done:
                # The next command may have other settings, such as more minutes.
                (out / STUDY_FOLDER.file).unlink()
            raise
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pilot:
    """Mean divergence (nats) of some blocks, and seconds per target for the losses and for a search.

    The divergence is the same in all parts of a study, and after an interruption.
    """

    num_targets: int
    mean_divergence: float
    dense_seconds: float
    search_seconds: float

    @classmethod
    def measure(cls, evaluator: TargetEvaluator, targets: Sequence[TargetToken]) -> "_Pilot":
        block = evaluator.settings.block
        starts = range(0, len(targets), block)
        chosen = random_stream(evaluator.settings.seed, "pilot").permutation(len(starts))[:NUM_PILOT_BLOCKS]
        pilot = [target for index in sorted(chosen) for target in targets[starts[index] : starts[index] + block]]
        start_time = time.perf_counter()
        mean_divergence = evaluator.mean_divergence(pilot)
        middle_time = time.perf_counter()
        searched = pilot[: evaluator.num_shared]
        evaluator.rows(searched, 0)
        return cls(
            num_targets=len(targets),
            mean_divergence=mean_divergence,
            # The pilot has one of three passes with all far tokens.
            dense_seconds=3 * (middle_time - start_time) / len(pilot),
            search_seconds=(time.perf_counter() - middle_time) / len(searched),
        )

    def seconds(self, searched: int | None) -> float:
        """Return the expected seconds of a study with this number of searched targets."""
        num_searched = self.num_targets if searched is None else min(searched, self.num_targets)
        return self.num_targets * self.dense_seconds + num_searched * self.search_seconds

    def probability(self, searched: int | None) -> SearchProbability | None:
        """Return the probability that a target is searched (None: 1)."""
        if searched is None or searched >= self.num_targets:
            return None
        numbers = {"searched": searched, "num_targets": self.num_targets}
        return SearchProbability(**numbers, mean_divergence=self.mean_divergence)

    def searched_within(self, seconds: float, share: float, searched: int | None) -> int:
        """Return the number of searched targets, at most ``searched``, if a share of the study takes this time."""
        largest = self.num_targets if searched is None else min(searched, self.num_targets)
        smallest, number = min(largest, MIN_SEARCHED), int((seconds / share - self.seconds(0)) / self.search_seconds)
        if number < smallest:
            needed = math.ceil(share * self.seconds(smallest) / 60)
            raise SettingError(
                f"{seconds / 60:.3g} minutes are too few for {share * self.num_targets:.0f} targets; use {needed} "
                "minutes or more, or fewer targets"
            )
        return min(largest, number)


def drop_duplicate_texts(texts: Sequence[TokenizedDocument]) -> list[TokenizedDocument]:
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


def _resolve_model_path(study: dict[str, Any]) -> dict[str, Any]:
    """Resolve the path of the model, so that two spellings of the same path are equal."""
    model = study.get("model")
    if not isinstance(model, Mapping) or not isinstance(model.get("name"), str):
        # A study did not write this description; the later comparison reports the difference.
        return study
    return {**study, "model": {**model, "name": os.path.realpath(model["name"])}}


def digest_texts(texts: Sequence[TokenizedDocument]) -> str:
    """Return a digest that identifies the names and tokens of texts."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.name.encode() + b"\0" + text.tokens.astype("<i8").tobytes())
    return digest.hexdigest()


def parse_study_part(text: str) -> tuple[int, int]:
    """Parse a part such as ``2/4``, the second of four parts. Raises ``SettingError`` for any other format."""
    index, separator, num_parts = text.partition("/")
    if not (separator and all(digits.isascii() and digits.isdigit() for digits in (index, num_parts))):
        raise SettingError(f"invalid --part {text}; write, for example, 2/4 for the second of four parts")
    return int(index), int(num_parts)


def part_folder(out: Path, part: tuple[int, int]) -> Path:
    """Return the folder of a part, which is ``out`` if the study has only one part."""
    return out if part == (1, 1) else out / f"part-{part[0]}-of-{part[1]}"


def check_study_parts(study: InfluenceStudy, out: Path) -> None:
    """Raise ``RunFolderError`` if ``out`` contains parts of another study.

    Call this function before the measurement. ``join_study_parts`` checks parts that other processes add later.
    """
    num_parts = study.part[1]
    if num_parts == 1:
        return
    for part in ((1, 1), *((index, num_parts) for index in range(1, num_parts + 1) if index != study.part[0])):
        folder = part_folder(out, part)
        if (folder / STUDY_FOLDER.file).is_file():
            replace(study, part=part).write_or_check_description(folder, resume=True)


def join_study_parts(study: InfluenceStudy, out: Path) -> list[int]:
    """If all parts are complete, write their rows to one file, in the order of targets.

    Return the indexes of incomplete parts (from 1). Raises ``RunFolderError`` if a part belongs to another study.
    """
    num_parts, num_targets = study.part[1], len(study.targets(study.document_pieces()))
    blocks_by_start: dict[int, bytes] = {}
    incomplete_parts = []
    with exclusive_lock(out, wait=True):
        for index in range(1, num_parts + 1):
            part_study = replace(study, part=(index, num_parts))
            folder, block_starts = part_folder(out, part_study.part), part_study.block_starts(num_targets)
            num_rows = sum(min(study.settings.block, num_targets - block_start) for block_start in block_starts)
            blocks = read_complete_blocks(folder, study.settings.block, num_rows)
            if len(blocks) < len(block_starts):
                incomplete_parts.append(index)
                continue
            if (folder / STUDY_FOLDER.file).is_file():
                part_study.write_or_check_description(folder, resume=True)
            blocks_by_start |= dict(zip(block_starts, blocks, strict=True))
        if not incomplete_parts:
            replace(study, part=(1, 1)).write_or_check_description(out, resume=True)
            sorted_blocks = [blocks_by_start[block_start] for block_start in sorted(blocks_by_start)]
            write_atomically(out / ROWS_FILE, b"".join(sorted_blocks))
            write_atomically(out / DIGESTS_FILE, format_block_digests(sorted_blocks))
    return incomplete_parts


def append_block(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append the rows of a block, then their digest. If the process is killed in between, the rows have no digest."""
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    for name, data in ((ROWS_FILE, content), (DIGESTS_FILE, _digest_line(content))):
        with (folder / name).open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def read_complete_blocks(folder: Path, size: int, num_rows: int) -> list[bytes]:
    """Return the complete blocks of ``size`` rows. The last of ``num_rows`` rows may form a smaller block.

    The incomplete last block of an interrupted study is omitted. Raises ``RunFolderError`` if rows do not match their
    digests.
    """
    blocks: list[bytes] = []
    paths = folder / DIGESTS_FILE, folder / ROWS_FILE
    digests, rows = (read_file(path).splitlines(keepends=True) if path.exists() else [] for path in paths)
    remaining_rows = iter(rows)
    for digest in digests if digests and digests[-1].endswith(b"\n") else digests[:-1]:
        block = list(islice(remaining_rows, size))
        blocks.append(b"".join(block))
        is_complete = len(block) == size or (len(blocks) - 1) * size + len(block) == num_rows
        if not is_complete or _digest_line(blocks[-1]) != digest:
            raise _mismatch_error(folder, len(blocks))
    if sum(row_line.endswith(b"\n") for row_line in remaining_rows) > size:
        raise _mismatch_error(folder, len(blocks) + 2)
    return blocks


def format_block_digests(blocks: Sequence[bytes]) -> bytes:
    """Return the content of the digest file for these blocks."""
    return b"".join(map(_digest_line, blocks))


def _digest_line(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode() + b"\n"


def _mismatch_error(folder: Path, block_number: int) -> RunFolderError:
    return RunFolderError(
        f"{folder / ROWS_FILE} was changed after it was written (block {block_number} does not match {DIGESTS_FILE}); "
        "choose another --out"
    )

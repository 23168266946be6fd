"""Division of a study into n parts: process i measures every n-th block, and the last process joins the parts."""

from dataclasses import replace
from pathlib import Path

from lengthwise.core.errors import SettingError
from lengthwise.core.files import write_atomically
from lengthwise.core.folder_lock import exclusive_lock
from lengthwise.experiments.run_folder import STUDY_FOLDER
from lengthwise.influence.row_blocks import DIGESTS_FILE, ROWS_FILE, complete_blocks, digest_lines
from lengthwise.influence.study import InfluenceStudy


def parse_part(text: str) -> tuple[int, int]:
    """Parse a part such as ``2/4``, the second of four parts. Raises ``SettingError`` for any other format."""
    index, separator, num_parts = text.partition("/")
    if not (separator and all(digits.isascii() and digits.isdigit() for digits in (index, num_parts))):
        raise SettingError(f"invalid --part {text}; write, for example, 2/4 for the second of four parts")
    return int(index), int(num_parts)


def part_folder(out: Path, part: tuple[int, int]) -> Path:
    """Return the folder of a part, which is ``out`` if the study has only one part."""
    return out if part == (1, 1) else out / f"part-{part[0]}-of-{part[1]}"


def check_parts(study: InfluenceStudy, out: Path) -> None:
    """Raise ``RunFolderError`` if ``out`` contains parts of another study.

    Call this function before the measurement. ``join_parts`` checks parts that other processes add later.
    """
    num_parts = study.part[1]
    if num_parts == 1:
        return
    for part in ((1, 1), *((index, num_parts) for index in range(1, num_parts + 1) if index != study.part[0])):
        folder = part_folder(out, part)
        if (folder / STUDY_FOLDER.file).is_file():
            replace(study, part=part).claim(folder, resume=True)


def join_parts(study: InfluenceStudy, out: Path) -> list[int]:
    """If all parts are complete, write their rows to one file, in the order of targets.

    Return the indexes of incomplete parts (from 1). Raises ``RunFolderError`` if a part belongs to another study.
    """
    num_parts, num_targets = study.part[1], len(study.targets(study.pieces()))
    blocks_by_start: dict[int, bytes] = {}
    incomplete_parts = []
    with exclusive_lock(out, wait=True):
        for index in range(1, num_parts + 1):
            part_study = replace(study, part=(index, num_parts))
            folder, block_starts = part_folder(out, part_study.part), part_study.block_starts(num_targets)
            num_rows = sum(min(study.settings.block, num_targets - block_start) for block_start in block_starts)
            blocks = complete_blocks(folder, study.settings.block, num_rows)
            if len(blocks) < len(block_starts):
                incomplete_parts.append(index)
                continue
            if (folder / STUDY_FOLDER.file).is_file():
                part_study.claim(folder, resume=True)
            blocks_by_start |= dict(zip(block_starts, blocks, strict=True))
        if not incomplete_parts:
            replace(study, part=(1, 1)).claim(out, resume=True)
            sorted_blocks = [blocks_by_start[block_start] for block_start in sorted(blocks_by_start)]
            write_atomically(out / ROWS_FILE, b"".join(sorted_blocks))
            write_atomically(out / DIGESTS_FILE, digest_lines(sorted_blocks))
    return incomplete_parts

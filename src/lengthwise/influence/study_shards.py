"""Parts of a study for several processes: each measures every n-th block of targets, and the last one joins all."""

from dataclasses import replace
from pathlib import Path

from lengthwise.core.errors import SettingError
from lengthwise.core.files import write_atomically
from lengthwise.core.folder_lock import exclusive_lock
from lengthwise.experiments.run_folder import STUDY_FOLDER
from lengthwise.influence.row_blocks import DIGESTS, ROWS, complete_blocks, digest_lines
from lengthwise.influence.study import InfluenceStudy


def parse_part(text: str) -> tuple[int, int]:
    """Parse ``2/4``, the second of four parts. Raises ``SettingError`` for any other format."""
    first, sign, number = text.partition("/")
    if not (sign and first.isascii() and number.isascii() and first.isdigit() and number.isdigit()):
        raise SettingError(f"invalid --part {text}; write, for example, 2/4 for the second of four parts")
    return int(first), int(number)


def part_folder(out: Path, part: tuple[int, int]) -> Path:
    """Return the folder of a part: ``out`` itself for a study in one part."""
    return out if part == (1, 1) else out / f"part-{part[0]}-of-{part[1]}"


def check_parts(study: InfluenceStudy, out: Path) -> None:
    """Raise ``RunFolderError`` if ``out`` contains parts of another study, before the part is measured.

    ``join_parts`` compares parts that other processes add later.
    """
    number = study.part[1]
    if number == 1:
        return
    for part in ((1, 1), *((index, number) for index in range(1, number + 1) if index != study.part[0])):
        folder = part_folder(out, part)
        if (folder / STUDY_FOLDER.file).is_file():
            replace(study, part=part).claim(folder, resume=True)


def join_parts(study: InfluenceStudy, out: Path) -> list[int]:
    """Write the rows of all parts to one file, in target order. Return the parts that are incomplete.

    Raises ``RunFolderError`` if a part belongs to another study.
    """
    number = study.part[1]
    num_targets = len(study.targets(study.pieces()))
    by_start: dict[int, bytes] = {}
    incomplete = []
    with exclusive_lock(out, wait=True):
        for index in range(1, number + 1):
            part = replace(study, part=(index, number))
            folder, starts = part_folder(out, part.part), part.block_starts(num_targets)
            num_rows = sum(min(study.settings.block, num_targets - start) for start in starts)
            blocks = complete_blocks(folder, study.settings.block, num_rows)
            if len(blocks) < len(starts):
                incomplete.append(index)
                continue
            if (folder / STUDY_FOLDER.file).is_file():
                part.claim(folder, resume=True)
            by_start |= dict(zip(starts, blocks, strict=True))
        if not incomplete:
            replace(study, part=(1, 1)).claim(out, resume=True)
            in_order = [by_start[start] for start in sorted(by_start)]
            write_atomically(out / ROWS, b"".join(in_order))
            write_atomically(out / DIGESTS, digest_lines(in_order))
    return incomplete

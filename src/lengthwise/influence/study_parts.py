"""A study of influence shared out among processes: each measures every n-th block of targets, the last joins them."""

from dataclasses import replace
from pathlib import Path

from lengthwise.core.errors import SettingError
from lengthwise.core.files import write_atomically
from lengthwise.core.folder_lock import exclusive_lock
from lengthwise.experiments.run_folder import STUDY_FOLDER, claim_folder
from lengthwise.influence.row_blocks import DIGESTS, ROWS, digests_of, whole_blocks
from lengthwise.influence.study import InfluenceStudy, blocks_of, measured_texts, targets_of, with_resolved_path


def part_of(text: str) -> tuple[int, int]:
    """Read ``2/4``, the second of four; ``SettingError`` for anything else."""
    first, sign, number = text.partition("/")
    if not (sign and first.isascii() and number.isascii() and first.isdigit() and number.isdigit()):
        raise SettingError(f"--part {text} is no part; write 2/4 for the second of four")
    return int(first), int(number)


def part_folder(out: Path, part: tuple[int, int]) -> Path:
    """Where a part is measured; the whole in the folder itself."""
    return out if part == (1, 1) else out / f"part-{part[0]}-of-{part[1]}"


def check_parts(study: InfluenceStudy, out: Path) -> None:
    """Refuse a part beside those of another study, before hours are spent on it; ``RunFolderError`` says what differs.

    What other processes claim after this is compared by ``join_parts``.
    """
    number = study.part[1]
    if number == 1:
        return
    for each in ((1, 1), *((place, number) for place in range(1, number + 1) if place != study.part[0])):
        folder = part_folder(out, each)
        if (folder / STUDY_FOLDER.file).is_file():
            claim_folder(
                folder, STUDY_FOLDER, replace(study, part=each).to_dict(), resume=True, normalize=with_resolved_path
            )


def join_parts(study: InfluenceStudy, out: Path) -> list[int]:
    """Put the rows of all parts into one file, in the order of a study by one process; return the parts that lack rows.

    ``RunFolderError`` where a part is of another study.
    """
    number = study.part[1]
    targets = targets_of(study, measured_texts(study))
    parts = [replace(study, part=(place, number)) for place in range(1, number + 1)]
    whole: dict[int, bytes] = {}
    missing = []
    with exclusive_lock(out, wait=True):
        for part in parts:
            folder, first_of = part_folder(out, part.part), blocks_of(part, len(targets))
            expected = sum(min(study.settings.block, len(targets) - first) for first in first_of)
            blocks = whole_blocks(folder, study.settings.block, expected)
            if len(blocks) < len(first_of):
                missing.append(part.part[0])
                continue
            if (folder / STUDY_FOLDER.file).is_file():
                claim_folder(folder, STUDY_FOLDER, part.to_dict(), resume=True, normalize=with_resolved_path)
            whole |= dict(zip(first_of, blocks, strict=True))
        if not missing:
            claim_folder(
                out, STUDY_FOLDER, replace(study, part=(1, 1)).to_dict(), resume=True, normalize=with_resolved_path
            )
            in_order = [whole[first] for first in sorted(whole)]
            write_atomically(out / ROWS, b"".join(in_order))
            write_atomically(out / DIGESTS, digests_of(in_order))
    return missing

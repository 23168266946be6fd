"""Random damage to every file of every kind of folder: it must cause a one-line error or have no effect."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.attacks.attack import Tally, copy_of, leftovers, result_of, rng_of, run
from tests.attacks.folders import KINDS, FolderKind

Change = Callable[[bytes, bytes, random.Random], bytes | None]


def cut(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Keep only the beginning."""
    return content[: rng.randrange(len(content))] if content else content


def flip_bit(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Flip one bit."""
    if not content:
        return content
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]


def change_digit(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Change one digit."""
    places = [place for place, byte in enumerate(content[:20000]) if chr(byte).isdigit()]
    if not places:
        return flip_bit(content, other, rng)
    place = rng.choice(places)
    return content[:place] + str((content[place] - 48 + rng.randrange(1, 10)) % 10).encode() + content[place + 1 :]


def swap(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Use the file of another folder of the same kind."""
    return other


def empty(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Remove the content."""
    return b""


def remove(content: bytes, other: bytes, rng: random.Random) -> None:
    """Delete the file."""


def repeat(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Repeat the content."""
    return content + content


def shuffle(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Shuffle the lines."""
    lines = content.splitlines(keepends=True)
    rng.shuffle(lines)
    return b"".join(lines)


CHANGES: tuple[Change, ...] = (cut, flip_bit, change_digit, swap, empty, remove, repeat, shuffle)


def attack(number: int, seed: int, scratch: Path) -> Tally:
    """Damage files and use their folders."""
    tally = Tally("mutations")
    folders = prepare_folders(scratch)
    files = {
        name: sorted(path for path in folder.rglob("*") if path.is_file() and not _is_user_file(path))
        for name, (folder, *_) in folders.items()
    }
    for each in range(number):
        rng = rng_of(seed, "mutation", each)
        kind = KINDS[each % len(KINDS)]
        folder, other, results = folders[kind.name]
        path = rng.choice(files[kind.name]).relative_to(folder)
        change = rng.choice(CHANGES)
        replacement = (other / path).read_bytes() if (other / path).is_file() else b""
        before = (folder / path).read_bytes()
        after = change(before, replacement, rng)
        if after == before:
            continue
        copy = copy_of(folder, scratch / "copy")
        if after is None:
            (copy / path).unlink()
        else:
            (copy / path).write_bytes(after)
        for place, call in enumerate(kind.uses):
            outcome = run(call, copy, seconds=20)
            faults = outcome.faults()
            if outcome.status == 0 and result_of(outcome) != results[place]:
                faults.append("uses it without an error")
            if outcome.seconds > 5 + 3 * _SECONDS[kind.name, place] or outcome.hung:
                faults.append(f"takes {outcome.seconds:.1f} s")
            faults += [f"leaves {left}" for left in leftovers(copy)]
            name = call if callable(call) else " ".join(call)
            tally.add(f"{each}: {kind.name}, {path} {change.__name__}, then {name}", faults, outcome)
    return tally


def prepare_folders(scratch: Path) -> dict[str, tuple[Path, Path, list[object]]]:
    """Return by kind: a folder, another folder, and the results of its uses without damage."""
    return {kind.name: _prepare(kind, scratch) for kind in KINDS}


def _is_user_file(path: Path) -> bool:
    """Return True for files of the user, which may contain anything."""
    return path.suffix == ".txt" or path.name == "test.jsonl"


_SECONDS: dict[tuple[str, int], float] = {}


def _prepare(kind: FolderKind, scratch: Path) -> tuple[Path, Path, list[object]]:
    folders = [scratch / f"{kind.name.replace(' ', '-')}-{seed}" for seed in (0, 1)]
    for seed, folder in enumerate(folders):
        folder.mkdir(parents=True)
        outcome = run(partial(kind.make, seed), folder, seconds=120)
        assert outcome.status == 0, outcome.err
    results = []
    for place, call in enumerate(kind.uses):
        outcome = run(call, copy_of(folders[0], scratch / "copy"), seconds=60)
        assert outcome.status == 0, outcome.err
        _SECONDS[kind.name, place] = outcome.seconds
        results.append(result_of(outcome))
    return folders[0], folders[1], results

"""Random damage to every file of every kind of folder: refused in one line, or without any effect."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

from attacks.attack import Outcome, Tally, answer_of, copy_of, leftovers, rng_of, run
from attacks.folders import KINDS, Kind

Change = Callable[[bytes, bytes, random.Random], bytes | None]


def cut(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """The beginning alone."""
    return content[: rng.randrange(len(content))] if content else content


def flipped(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """One bit is another one."""
    if not content:
        return content
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]


def digit(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """One digit is another one."""
    places = [place for place, byte in enumerate(content[:20000]) if chr(byte).isdigit()]
    if not places:
        return flipped(content, other, rng)
    place = rng.choice(places)
    return content[:place] + str((content[place] - 48 + rng.randrange(1, 10)) % 10).encode() + content[place + 1 :]


def swapped(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """The file of another folder of its kind."""
    return other


def emptied(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Nothing."""
    return b""


def removed(content: bytes, other: bytes, rng: random.Random) -> None:
    """No file."""


def doubled(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Everything twice."""
    return content + content


def shuffled(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Its lines in another order."""
    lines = content.splitlines(keepends=True)
    rng.shuffle(lines)
    return b"".join(lines)


CHANGES: tuple[Change, ...] = (cut, flipped, digit, swapped, emptied, removed, doubled, shuffled)


def attack(number: int, seed: int, scratch: Path) -> Tally:
    """Damage so many files, and use their folders."""
    tally = Tally("mutations")
    made = made_of(scratch)
    files = {
        name: sorted(path for path in folder.rglob("*") if path.is_file() and not _given(path))
        for name, (folder, *_) in made.items()
    }
    for each in range(number):
        rng = rng_of(seed, "mutation", each)
        kind = KINDS[each % len(KINDS)]
        folder, other, whole = made[kind.name]
        path = rng.choice(files[kind.name]).relative_to(folder)
        change = rng.choice(CHANGES)
        beside = (other / path).read_bytes() if (other / path).is_file() else b""
        before = (folder / path).read_bytes()
        after = change(before, beside, rng)
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
            if outcome.status == 0 and answer_of(outcome) != whole[place]:
                faults.append("uses it without a word")
            if outcome.seconds > 5 + 3 * _SECONDS[kind.name, place] or outcome.hung:
                faults.append(f"takes {outcome.seconds:.1f} s")
            faults += [f"leaves {left}" for left in leftovers(copy)]
            name = call if callable(call) else " ".join(call)
            tally.add(f"{each}: {kind.name}, {path} {change.__name__}, then {name}", faults, outcome)
    return tally


def made_of(scratch: Path) -> dict[str, tuple[Path, Path, list[object]]]:
    """By kind: a folder, another one, and what its uses answer when nothing is wrong."""
    return {kind.name: _made(kind, scratch) for kind in KINDS}


def _given(path: Path) -> bool:
    """Whether a file is what a user gives, which may hold anything."""
    return path.suffix == ".txt" or path.name == "asked.jsonl"


_SECONDS: dict[tuple[str, int], float] = {}


def _made(kind: Kind, scratch: Path) -> tuple[Path, Path, list[object]]:
    folders = [scratch / f"{kind.name.replace(' ', '-')}-{seed}" for seed in (0, 1)]
    for seed, folder in enumerate(folders):
        folder.mkdir(parents=True)
        made = run(partial(kind.make, seed), folder, seconds=120)
        assert made.status == 0, made.err
    whole = []
    for place, call in enumerate(kind.uses):
        outcome: Outcome = run(call, copy_of(folders[0], scratch / "copy"), seconds=60)
        assert outcome.status == 0, outcome.err
        _SECONDS[kind.name, place] = outcome.seconds
        whole.append(answer_of(outcome))
    return folders[0], folders[1], whole

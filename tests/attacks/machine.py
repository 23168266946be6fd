"""A full disk, missing permissions, and two processes at once, for every command that writes."""

import os
import resource
import subprocess
import threading
import time
from functools import partial
from pathlib import Path

from tests.attacks.attack import Call, Outcome, Tally, copy_of, leftovers, rng_of, run
from tests.attacks.folders import LENGTHS, make_export, make_run, make_text
from tests.attacks.kills import compare, prepare, reproduce, train

from lengthwise.hf.export import export_hf, import_hf

# Time limit of successful work on a busy machine.
LONG_SECONDS = 60
# Free space, in bytes.
SIZES = (4096, 20_000, 60_000, 150_000)
# Space for a successful repetition, in bytes.
ROOM = 16_000_000


def make() -> None:
    """Make a run, an export, a corpus and a run on text."""
    make_text(0)
    Path("run").rename("text")
    make_export(0)
    Path("run").rename("plain")
    make_run(0)


SMALL_STUDY = ["--far", "16", "--near", "4", "--targets", "8", "--k", "1"]
WRITERS: dict[str, Call] = {
    "train": lambda: train("trained"),
    "evaluate": ("evaluate", "run", *LENGTHS),
    "compare": compare,
    "reproduce": reproduce,
    "influence": ("influence", "text", "tales/0.txt", "tales/1.txt", *SMALL_STUDY, "--out", "study"),
    "prepare": prepare,
    "export": lambda: export_hf("plain", "exported"),
    "import": lambda: import_hf("hf", "imported"),
    "certify": ("certify", "run", "--lengths", "8", "--out", "certified"),
    "diagnose": ("diagnose", "run", "--length", "8", "--num-examples", "4", "--out", "diagnosed"),
    "show": ("show", "run", "--length", "8", "--out", "shown.svg"),
    "lm-eval": ("export", "parity", "--format", "lm-eval", "--lengths", "4", "--num-examples", "4", "--out", "harness"),
}


def _prepare(scratch: Path) -> Path:
    begin = scratch / "begin"
    begin.mkdir()
    outcome = run(make, begin, seconds=120)
    assert outcome.status == 0, outcome.err
    return begin


def mount(folder: Path, size: int) -> bool:
    """Mount a disk of ``size`` bytes on a folder; return False without permission to mount."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def attack_disk(number: int, seed: int, scratch: Path) -> Tally:
    """Run every command on a nearly full disk, or with a limit on file sizes."""
    tally, begin = Tally("full disk"), _prepare(scratch)
    size = sum(path.stat().st_size for path in begin.rglob("*") if path.is_file())
    for each in range(number):
        rng, (name, call) = rng_of(seed, "disk", each), list(WRITERS.items())[each % len(WRITERS)]
        folder = scratch / "work"
        limits, free = {}, rng.choice(SIZES)
        disk = each // len(WRITERS) % 2 == 0 and mount(scratch / "disk", size + ROOM)
        if disk:
            folder = scratch / "disk" / "work"
        else:
            limits = {resource.RLIMIT_FSIZE: free}
        copy_of(begin, folder)
        if disk:
            _fill(scratch / "disk", free)
        outcome = run(call, folder, seconds=LONG_SECONDS, limits=limits)
        faults = outcome.faults() + [f"leaves {left}" for left in leftovers(folder)]
        if disk:
            (scratch / "disk" / "filler").unlink()
        again = run(call, folder, seconds=LONG_SECONDS)
        if outcome.status == 2 and again.status == 2 and " already" not in again.err:
            faults += [f"cannot be repeated with room: {again.err[-300:]}"]
        faults += again.faults()
        tally.add(f"{each}: {name}, {free:,} bytes {'on disk' if disk else 'a file'}", faults, outcome)
        if disk:
            subprocess.run(["umount", str(scratch / "disk")], check=True)
            (scratch / "disk").rmdir()
    return tally


def _fill(disk: Path, free: int) -> None:
    status = os.statvfs(disk)
    with (disk / "filler").open("wb") as filler:
        filler.write(bytes(max(0, status.f_bavail * status.f_frsize - free - 4096)))


def attack_rights(number: int, seed: int, scratch: Path) -> Tally:
    """Run every command as a user without write or read permission."""
    tally, begin = Tally("rights"), _prepare(scratch)
    for path in (scratch, *scratch.parents):
        if path != Path("/") and not path.stat().st_mode & 0o1:
            path.chmod(path.stat().st_mode | 0o5)
    for each in range(number):
        rng, (name, call) = rng_of(seed, "rights", each), list(WRITERS.items())[each % len(WRITERS)]
        folder = copy_of(begin, scratch / "work")
        unreadable = each // len(WRITERS) % 2 == 1
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        path = rng.choice(files)
        if unreadable:
            path.chmod(0)
            for each_folder in (folder, *(inner for inner in folder.rglob("*") if inner.is_dir())):
                each_folder.chmod(0o777)
        outcome = run(call, folder, seconds=LONG_SECONDS, as_nobody=os.getuid() == 0)
        faults = outcome.faults() + [f"leaves {left}" for left in leftovers(folder)]
        if not unreadable and outcome.status != 2:
            faults.append("writes without permission")
        what = f"cannot read {path.relative_to(folder)}" if unreadable else "cannot write"
        tally.add(f"{each}: {name}, {what}", faults, outcome)
    return tally


def attack_pairs(number: int, seed: int, scratch: Path) -> Tally:
    """Run every command twice at once: at least one must succeed."""
    tally, begin = Tally("two at once"), _prepare(scratch)
    for each in range(number):
        rng, (name, call) = rng_of(seed, "pair", each), list(WRITERS.items())[each % len(WRITERS)]
        folder = copy_of(begin, scratch / "work")
        outcomes: list[Outcome] = []
        delay = rng.uniform(0, 0.2)

        def second(
            call: Call = call, folder: Path = folder, delay: float = delay, results: list[Outcome] = outcomes
        ) -> None:
            time.sleep(delay)
            results.append(run(call, folder, seconds=LONG_SECONDS))

        both = [
            threading.Thread(target=partial(_append_outcome, outcomes, call, folder)),
            threading.Thread(target=second),
        ]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        faults = [fault for outcome in outcomes for fault in outcome.faults()]
        if all(outcome.status for outcome in outcomes):
            faults.append("neither succeeds")
        faults += [f"leaves {left}" for left in leftovers(folder)]
        again = run(call, folder, seconds=LONG_SECONDS)
        faults += again.faults()
        tally.add(f"{each}: {name}, {delay:.2f} s apart", faults, outcomes[-1])
    return tally


def _append_outcome(results: list[Outcome], call: Call, folder: Path) -> None:
    results.append(run(call, folder, seconds=LONG_SECONDS))

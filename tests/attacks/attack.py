"""One attack: a command in a forked process of its own, and what its end says about it.

A fork costs milliseconds where a new interpreter costs seconds. Nothing may compute in the process that forks: threads
do not survive it.
"""

import itertools
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot  # noqa: F401
import torch._dynamo  # noqa: F401
import transformers.generation
import transformers.models.llama.modeling_llama  # noqa: F401

import lengthwise.hf.lengthwise_model
import lengthwise.hf.loading
import lengthwise.hf.task_dataset
import lengthwise.hf.text_evaluation
import lengthwise.hf.tokenization  # noqa: F401
from lengthwise.cli import app as cli
from lengthwise.core.errors import LengthwiseError

# What is imported above and used nowhere here would be imported by every attack, and a user without rights cannot.
"".encode("utf-8-sig")

# A command that refuses has to do so in this time, and to stop in it when asked to.
HANG_SECONDS = 5.0
MEMORY_MIB = 2048
_NUMBERS = itertools.count()
# What differs between two measurements of the same.
CLOCKS = {"wall_s", "train_s", "time", "provenance"}

Call = Sequence[str] | Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a process ended: its exit status (minus a signal's number), what it printed, seconds and largest memory."""

    status: int
    out: str
    err: str
    seconds: float
    memory_mib: float
    hung: bool = False

    def faults(self, allowed: Sequence[int] = (0, 2)) -> list[str]:
        """What no command may do, whatever it is given."""
        found = []
        if self.hung:
            found.append(f"hangs for {self.seconds:.1f} s")
        elif self.status not in allowed:
            found.append(f"ends with status {self.status}")
        if "Traceback (most recent call last)" in self.err + self.out:
            found.append("prints a traceback")
        if self.status == 2 and len(error_lines(self.err)) != 1:
            found.append("does not say why in one line")
        if self.memory_mib > MEMORY_MIB:
            found.append(f"takes {self.memory_mib:,.0f} MiB")
        return found


@dataclass(slots=True)
class Tally:
    """How many attacks of a kind were made, and which found something."""

    kind: str
    number: int = 0
    refused: int = 0
    found: list[dict[str, Any]] = field(default_factory=list)

    def add(self, attack: str, faults: Sequence[str], outcome: Outcome) -> None:
        """Count an attack in."""
        self.number += 1
        self.refused += outcome.status == 2
        if faults:
            shown = (outcome.err or outcome.out)[-1500:]
            self.found.append({"attack": attack, "faults": list(faults), "printed": shown})
            sys.stderr.write(f"{self.kind}: {attack}: {'; '.join(faults)}\n{shown}\n")


def error_lines(printed: str) -> list[str]:
    """The lines of an error: what follows ``error:`` is one line, and the last."""
    lines = printed.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    return lines[starts[0] :] if starts else []


def run(
    call: Call,
    folder: Path,
    *,
    seconds: float = HANG_SECONDS,
    kill_after: float | None = None,
    as_nobody: bool = False,
    limits: dict[int, int] | None = None,
) -> Outcome:
    """Run a command line, or a function, in a folder; kill it after ``kill_after`` seconds, or when it hangs."""
    number = next(_NUMBERS)
    # Not beside the folder: its disk may be full.
    printed = {name: Path(tempfile.gettempdir()) / f"attack-{os.getpid()}-{number}.{name}" for name in ("out", "err")}
    for path in printed.values():
        # Killed at once, a child opens nothing.
        path.write_bytes(b"")
        path.chmod(0o666)
    started = time.monotonic()
    child = os.fork()
    if not child:
        be_child(call, folder, printed, as_nobody=as_nobody, limits=limits)
    hung, status, used = _wait(child, seconds if kill_after is None else kill_after)
    if hung:
        with_group(child, signal.SIGKILL)
        _, status, used = os.wait4(child, 0)
    outcome = Outcome(
        status=os.waitstatus_to_exitcode(status),
        out=printed["out"].read_text(errors="replace"),
        err=printed["err"].read_text(errors="replace"),
        seconds=time.monotonic() - started,
        memory_mib=used.ru_maxrss / 1024,
        hung=hung and kill_after is None,
    )
    for path in printed.values():
        path.unlink()
    return outcome


def with_group(child: int, number: int) -> None:
    """Send a signal to a child and all that it has started."""
    try:
        os.killpg(child, number)
    except ProcessLookupError:
        os.kill(child, number)


def _wait(child: int, seconds: float) -> tuple[bool, int, Any]:
    until = time.monotonic() + seconds
    while True:
        ended, status, used = os.wait4(child, os.WNOHANG)
        if ended:
            return False, status, used
        if time.monotonic() > until:
            return True, status, used
        time.sleep(0.002)


def be_child(
    call: Call,
    folder: Path,
    printed: dict[str, Path],
    *,
    as_nobody: bool = False,
    limits: dict[int, int] | None = None,
) -> None:
    """Work in the child of a fork, in a session of its own; never returns."""
    status = 70
    try:
        os.setsid()
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number, name in enumerate(("out", "err"), start=1):
            descriptor = os.open(printed[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for limit, value in (limits or {}).items():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(limit, (value, value))
        if as_nobody:
            os.setgid(65534)
            os.setuid(65534)
        status = _called(call)
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _called(call: Call) -> int:
    if not callable(call):
        cli.main(list(call))
        return 0
    try:
        answer = call()
    except LengthwiseError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if answer is not None:
        sys.stdout.write(json.dumps(answer, default=str))
    return 0


def untimed(value: Any) -> Any:
    """A document without what depends on the clock."""
    if isinstance(value, dict):
        return {key: untimed(part) for key, part in value.items() if key not in CLOCKS}
    return [untimed(part) for part in value] if isinstance(value, list) else value


def answer_of(outcome: Outcome) -> Any:
    """What a command with --json, or a function, has answered."""
    try:
        return untimed(json.loads(outcome.out))
    except ValueError:
        return outcome.out


def copy_of(folder: Path, place: Path) -> Path:
    """A fresh copy to damage."""
    if place.exists():
        shutil.rmtree(place)
    shutil.copytree(folder, place)
    return place


def leftovers(folder: Path) -> list[str]:
    """What a write that failed has left."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.unfinished"))


def rng_of(*seed: object) -> random.Random:
    """The same draws for the same names."""
    return random.Random(" ".join(map(str, seed)))

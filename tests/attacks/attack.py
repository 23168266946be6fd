"""One attack: a command or function in a forked process, and the faults in its outcome.

A fork takes milliseconds and a new interpreter takes seconds. The parent process must not compute, because threads do
not survive a fork.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot  # noqa: F401
import torch._dynamo  # noqa: F401
import transformers.generation  # noqa: F401
import transformers.models.llama.modeling_llama  # noqa: F401

import lengthwise.hf.export  # noqa: F401
import lengthwise.hf.lengthwise_model  # noqa: F401
import lengthwise.hf.loading  # noqa: F401
import lengthwise.hf.text_evaluation  # noqa: F401
import lengthwise.hf.tokenization  # noqa: F401
from lengthwise.cli import app as cli
from lengthwise.core.errors import LengthwiseError

# The unused imports above save their import in every attack; a user without rights could not import them.
"".encode("utf-8-sig")

# Time limit for an error, and for a stop after an interrupt.
HANG_SECONDS = 5.0
MEMORY_MIB = 2048
_NUMBERS = itertools.count()
# Values that differ between two equal measurements.
CLOCKS = {"wall_s", "train_s", "time", "provenance"}

Call = Sequence[str] | Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a process: exit status (negative signal number), output, time and peak memory."""

    status: int
    out: str
    err: str
    seconds: float
    memory_mib: float
    hung: bool = False

    def faults(self, allowed: Sequence[int] = (0, 2)) -> list[str]:
        """Return the faults that no command may have, for any input."""
        faults = []
        if self.hung:
            faults.append(f"hangs for {self.seconds:.1f} s")
        elif self.status not in allowed:
            faults.append(f"exits with status {self.status}")
        if "Traceback (most recent call last)" in self.err + self.out:
            faults.append("prints a traceback")
        if self.status == 2 and len(error_lines(self.err)) != 1:
            faults.append("has no one-line error")
        if self.memory_mib > MEMORY_MIB:
            faults.append(f"takes {self.memory_mib:,.0f} MiB")
        return faults


@dataclass(slots=True)
class Tally:
    """Number of attacks of a kind, and those that revealed faults."""

    kind: str
    number: int = 0
    errors: int = 0
    faults: list[dict[str, Any]] = field(default_factory=list)

    def add(self, attack: str, faults: Sequence[str], outcome: Outcome) -> None:
        """Count an attack."""
        self.number += 1
        self.errors += outcome.status == 2
        self.report(attack, faults, outcome)

    def report(self, attack: str, faults: Sequence[str], outcome: Outcome) -> None:
        """Record faults, if there are any, without counting an attack."""
        if faults:
            output = (outcome.err or outcome.out)[-1500:]
            self.faults.append({"attack": attack, "faults": list(faults), "printed": output})
            sys.stderr.write(f"{self.kind}: {attack}: {'; '.join(faults)}\n{output}\n")


def error_lines(printed: str) -> list[str]:
    """Return the lines from ``error:`` on; an error must be the only and last line."""
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
    """Run a command line or a function in a folder; kill it after ``kill_after`` seconds or if it hangs."""
    number = next(_NUMBERS)
    # Not in the folder, because its disk may be full.
    outputs = {name: Path(tempfile.gettempdir()) / f"attack-{os.getpid()}-{number}.{name}" for name in ("out", "err")}
    for path in outputs.values():
        # A child that is killed immediately opens no file.
        path.write_bytes(b"")
        path.chmod(0o666)
    started = time.monotonic()
    child = os.fork()
    if not child:
        be_child(call, folder, outputs, as_nobody=as_nobody, limits=limits)
    hung, status, used = _wait(child, seconds if kill_after is None else kill_after)
    if hung:
        send_signal(child, signal.SIGKILL)
        _, status, used = os.wait4(child, 0)
    outcome = Outcome(
        status=os.waitstatus_to_exitcode(status),
        out=outputs["out"].read_text(errors="replace"),
        err=outputs["err"].read_text(errors="replace"),
        seconds=time.monotonic() - started,
        memory_mib=used.ru_maxrss / 1024,
        hung=hung and kill_after is None,
    )
    for path in outputs.values():
        path.unlink()
    return outcome


def send_signal(child: int, number: int) -> None:
    """Send a signal to a child process and its process group."""
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
    call: Call, folder: Path, outputs: dict[str, Path], *, as_nobody: bool = False, limits: dict[int, int] | None = None
) -> None:
    """Run the call in the forked child, in a new session; never returns."""
    status = 70
    try:
        os.setsid()
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number, name in enumerate(("out", "err"), start=1):
            descriptor = os.open(outputs[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for limit, value in (limits or {}).items():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(limit, (value, value))
        if as_nobody:
            os.setgid(65534)
            os.setuid(65534)
        status = _status_of(call)
    except SystemExit as exit_info:
        status = exit_info.code if isinstance(exit_info.code, int) else int(exit_info.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        # A stream may be closed or full; the child must end here in any case.
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(status)


def _status_of(call: Call) -> int:
    if not callable(call):
        cli.main(list(call))
        return 0
    try:
        result = call()
    except LengthwiseError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if result is not None:
        sys.stdout.write(json.dumps(result, default=str))
    return 0


def untimed(value: Any) -> Any:
    """Remove values that depend on time from a document."""
    if isinstance(value, dict):
        return {key: untimed(part) for key, part in value.items() if key not in CLOCKS}
    return [untimed(part) for part in value] if isinstance(value, list) else value


def result_of(outcome: Outcome) -> Any:
    """Return the JSON output of a command or function."""
    try:
        return untimed(json.loads(outcome.out))
    except ValueError:
        return outcome.out


def copy_of(folder: Path, target: Path) -> Path:
    """Replace ``target`` by a copy of the folder."""
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(folder, target)
    return target


def attempts(kind: str, number: int, seed: int, scratch: Path) -> Iterator[tuple[int, random.Random, Path]]:
    """Yield the number, the generator and an empty folder of each attack, and delete the folder afterwards."""
    for each in range(number):
        folder = scratch / f"work-{each}"
        folder.mkdir()
        yield each, rng_of(seed, kind, each), folder
        shutil.rmtree(folder)


def leftovers(folder: Path) -> list[str]:
    """Return the temporary files that a failed write left."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.unfinished"))


def rng_of(*seed: object) -> random.Random:
    """Return a generator that depends only on the names."""
    return random.Random(" ".join(map(str, seed)))

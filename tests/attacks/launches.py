"""SIGKILL to work that uses several processes, at random times, until the work has finished all the same.

The work goes on after each kill, or starts again. Its result must be that of work that was never killed, and no
process may outlive the one that started it.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.attacks.attack import Outcome, Tally, be_child, copy_of, leftovers, rng_of, untimed
from tests.attacks.folders import parity
from tests.support.processes import free_port, launch_environment
from tests.support.small_runs import small_experiment

import lengthwise as lw
from lengthwise.core.checkpoint import load_tensors
from lengthwise.core.errors import WorkerError
from lengthwise.experiments.run_folder import read_rows

# A process has this variable if it or one of its parents was started by an attack.
MARKER = "LENGTHWISE_ATTACK"
# Time limits in seconds: for survivors to end after a kill, and for the work to finish without one.
END_S, WORK_S = 20.0, 400.0
# Parts of the commands of ray's own processes, which run no job and notice the loss of their node only after a minute,
# and the time limit for it.
RAY_PROCESSES, RAY_END_S = (b"ray::DashboardAgent", b"ray::RuntimeEnvAgent", b"/ray/"), 90.0
# After so many kills, the work may finish.
KILLS_PER_WORK = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Work of one or several processes: one call per process, and the longest time in seconds between two kills."""

    calls: Callable[[], Sequence[Callable[[], Any]]]
    interval_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of the work: the processes that were killed, the exit statuses, the output, and the faults."""

    killed: list[str]
    statuses: list[int]
    printed: str
    faults: list[str]


def work_result(folder: Path) -> dict[str, Any]:
    """Return the rows, metrics and weights in all folders below ``out``."""
    result: dict[str, Any] = {}
    for path in sorted((folder / "out").rglob("*")):
        name = str(path.relative_to(folder))
        if path.name == "results.jsonl":
            result[name] = untimed(read_rows(path))
        elif path.name == "metrics.jsonl":
            result[name] = path.read_bytes()
        elif path.name == "model.safetensors":
            result[name] = {key: tensor.tolist() for key, tensor in load_tensors(path)[0].items()}
    return result


def experiments() -> dict[str, lw.Experiment]:
    """Return three experiments of 150 steps with 30 checkpoints."""
    base = {
        "PPC": parity(0),
        "rank": small_experiment(head="rank"),
        "increment": small_experiment(head="increment"),
    }
    return {
        label: replace(experiment, training=replace(experiment.training, steps=150, checkpoint_every=5))
        for label, experiment in base.items()
    }


def compare() -> None:
    """Compare the experiments in two worker processes."""
    lw.compare(experiments(), "out", seeds=2, workers=2, device="cpu")


def sweep(executor: str) -> None:
    """Sweep over the experiments with two workers."""
    result = lw.sweep(experiments(), "out", seeds=2, executor=executor, workers=2, device="cpu")
    if result.failed:
        # A job fails if its worker dies too often; the next call trains it again.
        raise WorkerError(str(result.failed))


def train_shares() -> list[Callable[[], None]]:
    """Return the calls of two processes that train one run."""
    port = free_port()
    return [partial(_train_share, rank, port) for rank in range(2)]


def _train_share(rank: int, port: int) -> None:
    os.environ.update(launch_environment(rank, 2, port))
    # Both processes must see the same folder, also when one of them starts late.
    lw.train(experiments()["PPC"], "out", device="cpu", resume=True)


LAUNCHES = {
    "workers": Launch(calls=lambda: [compare], interval_s=6.0),
    "sweep": Launch(calls=lambda: [partial(sweep, "local")], interval_s=6.0),
    "ray": Launch(calls=lambda: [partial(sweep, "ray")], interval_s=12.0),
    "together": Launch(calls=train_shares, interval_s=1.5),
}


def attack(name: str, number: int, seed: int, scratch: Path) -> Tally:
    """Kill processes of a launch ``number`` times, and compare the result of each work with one without a kill."""
    tally, launch = Tally(f"kills of {name}"), LAUNCHES[name]
    begin, marker = scratch / "begin", _set_marker()
    begin.mkdir()
    folder = copy_of(begin, scratch / "work")
    attempt = _attempt(launch, folder, marker, random.Random(0), 0)
    assert not any(attempt.statuses), attempt
    assert not attempt.faults, attempt
    expected, num_works = work_result(folder), 0
    while tally.number < number:
        rng, folder = rng_of(seed, name, num_works), copy_of(begin, scratch / "work")
        num_kills, finished = 0, False
        while not finished:
            num_left = min(KILLS_PER_WORK - num_kills, number - tally.number)
            attempt = _attempt(launch, folder, marker, rng, num_left)
            num_kills += len(attempt.killed)
            finished = not any(attempt.statuses)
            _count(tally, attempt, f"work {num_works}, kill {num_kills}")
            if not finished and not attempt.killed:
                break
        outcome = _outcome_of(attempt)
        tally.report(f"work {num_works} after {num_kills} kills", _differences(folder, expected, finished), outcome)
        num_works += 1
    tally.report("the end", _end_orphans([], marker, (), RAY_END_S), _outcome_of(attempt))
    return tally


def _count(tally: Tally, attempt: Attempt, name: str) -> None:
    for process in attempt.killed[:-1]:
        tally.add(f"{name}: {process}", [], replace(_outcome_of(attempt), status=0))
    if attempt.killed:
        tally.add(f"{name}: {attempt.killed[-1]}", attempt.faults, _outcome_of(attempt))
    else:
        tally.report(name, attempt.faults, _outcome_of(attempt))


def _outcome_of(attempt: Attempt) -> Outcome:
    return Outcome(status=max(attempt.statuses), out="", err=attempt.printed, seconds=0.0, memory_mib=0.0)


def _differences(folder: Path, expected: dict[str, Any], finished: bool) -> list[str]:
    if not finished:
        return ["does not finish without a kill"]
    faults = [f"leaves {left}" for left in leftovers(folder)]
    result = work_result(folder)
    changed = sorted(name for name in {*result, *expected} if result.get(name) != expected.get(name))
    return faults + [f"{name} differs" for name in changed]


def _attempt(launch: Launch, folder: Path, marker: bytes, rng: random.Random, num_kills: int) -> Attempt:
    """Start the work and kill processes, until the work ends by itself or has lost a process that started it."""
    killed: list[str] = []
    faults: list[str] = []
    starts = [_start(call, folder, index) for index, call in enumerate(launch.calls())]
    leaders = [leader for leader, _ in starts]
    statuses: dict[int, int] = {}
    lost_leader = False
    while len(killed) < num_kills and not lost_leader:
        if _wait_for(leaders, statuses, rng.uniform(0.0, launch.interval_s)):
            break
        target = rng.choice(("leader", "worker", "worker", "all"))
        victims = _victims(target, [leader for leader in leaders if leader not in statuses], marker, rng)
        # A process can end by itself before its signal.
        num_killed = sum(map(_kill, victims))
        if num_killed:
            killed.append(f"{target} ({num_killed} processes)")
        lost_leader = target == "all" or any(process in leaders for process in victims)
    if not _wait_for(leaders, statuses, END_S if lost_leader else WORK_S):
        faults.append(f"hangs after {killed[-1] if killed else 'no kill'}")
        for leader in set(leaders) - set(statuses):
            _kill(leader)
        _wait_for(leaders, statuses, END_S)
    faults += _end_orphans(leaders, marker, RAY_PROCESSES, END_S)
    printed = "".join(output.read_text(errors="replace") for _, output in starts)
    for _, output in starts:
        output.unlink()
    if "Traceback (most recent call last)" in printed:
        faults.append("prints a traceback")
    # SIGKILL is -9; 2 is the one-line error of a lost worker or process.
    allowed = {0, 2, -signal.SIGKILL} if killed else {0}
    faults += [f"exits with status {status}" for status in statuses.values() if status not in allowed]
    return Attempt(killed=killed, statuses=[statuses[leader] for leader in leaders], printed=printed, faults=faults)


def _set_marker() -> bytes:
    """Mark this process and all that it starts, and return the mark."""
    os.environ[MARKER] = str(random.SystemRandom().getrandbits(64))
    return f"{MARKER}={os.environ[MARKER]}".encode()


def _start(call: Callable[[], Any], folder: Path, index: int) -> tuple[int, Path]:
    """Fork a process for a call, and return it with the file of its output."""
    output = folder.parent / f"output-{index}"
    output.write_bytes(b"")
    leader = os.fork()
    if not leader:
        be_child(call, folder, {"out": output, "err": output})
    return leader, output


def _wait_for(leaders: Sequence[int], statuses: dict[int, int], seconds: float) -> bool:
    """Wait for the end of all leaders, and save their statuses; return False if it takes longer."""
    until = time.monotonic() + seconds
    while True:
        for leader in leaders:
            if leader not in statuses and (ended := os.waitpid(leader, os.WNOHANG))[0]:
                statuses[leader] = os.waitstatus_to_exitcode(ended[1])
        if len(statuses) == len(leaders) or time.monotonic() > until:
            return len(statuses) == len(leaders)
        time.sleep(0.01)


def _victims(target: str, leaders: Sequence[int], marker: bytes, rng: random.Random) -> list[int]:
    processes = _processes(leaders, marker)
    if target == "all":
        return processes
    workers = [process for process in processes if _is_worker(process)]
    return [rng.choice(workers if workers and target == "worker" else list(leaders))]


def _end_orphans(leaders: Sequence[int], marker: bytes, ignored: tuple[bytes, ...], seconds: float) -> list[str]:
    """Wait until no process is left; kill what is left then, and return the fault."""
    until = time.monotonic() + seconds
    while True:
        commands = {process: _command_of(process) for process in _processes(leaders, marker)}
        left = [each for each, command in commands.items() if not any(part in command for part in ignored)]
        if not left or time.monotonic() > until:
            break
        time.sleep(0.1)
    names = [commands[process][:300].replace(b"\0", b" ").strip().decode() for process in left]
    for process in left:
        _kill(process)
    return [f"leaves {len(left)} processes: {names}"] if left else []


def _kill(process: int) -> bool:
    """Kill a process; return False if it has ended by itself."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
        return True
    return False


def _is_worker(process: int) -> bool:
    """Return True for a worker of a pool or of ray, and False for other processes that these libraries start."""
    command = _command_of(process)
    return b"spawn_main" in command or (command.startswith(b"ray::") and not command.startswith(RAY_PROCESSES))


def _command_of(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def _processes(leaders: Sequence[int], marker: bytes) -> list[int]:
    """Return the live processes that are in the session of a leader, or that have the marker in their environment."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
            is_ours = int(session) in leaders or marker in path.with_name("environ").read_bytes()
        except OSError:
            continue
        if is_ours and state != "Z":
            processes.append(int(path.parent.name))
    return processes

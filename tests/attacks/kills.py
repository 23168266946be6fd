"""SIGKILL at random moments: the same command again ends as if nothing had been, and leaves nothing behind."""

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.small_runs import small_experiment

import lengthwise as lw
from attacks import attack as attacking
from attacks.attack import Tally, copy_of, leftovers, rng_of, run, untimed, with_group
from attacks.folders import make_corpus, make_run, make_text, measure, parity
from lengthwise.experiments.run_folder import read_rows

LENGTHS = lw.EvaluationSettings(lengths=(2, 4, 8, 16, 32, 64), num_examples=(64,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """Work to be killed: what it finds in its folder, the work, and what is the same when it has ended."""

    name: str
    make: Callable[[], Any]
    work: Callable[[], Any]
    result: Callable[[Path], Any]
    share: int = 1


def nothing() -> None:
    """An empty folder."""


def train(out: str = "run") -> None:
    """Hundreds of steps with many checkpoints."""
    settings = replace(parity(0).training, steps=60, checkpoint_every=5)
    resume = (Path(out) / "experiment.json").exists()
    lw.train(replace(parity(0), training=settings), out, device="cpu", resume=resume)


def trained(folder: Path) -> Any:
    """Weights and metrics, to the bit."""
    from lengthwise.core.checkpoint import load_tensors  # noqa: PLC0415

    tensors, _ = load_tensors(folder / "run" / "model.safetensors")
    return {name: tensor.tolist() for name, tensor in tensors.items()}, (folder / "run/metrics.jsonl").read_bytes()


def evaluate() -> None:
    """Six lengths."""
    lw.evaluate(lw.load_run("run"), LENGTHS)


def evaluated(folder: Path) -> Any:
    """The last rows: those before are of evaluations that were killed."""
    rows = untimed(read_rows(folder / "run" / "results.jsonl"))
    lengths = list(LENGTHS.lengths)
    before = [row["length"] for row in rows[2 : -len(lengths)]]
    assert before == lengths[: len(before)], f"rows of lengths {before} before those of {lengths}"
    return rows[:2], rows[-len(lengths) :]


def compare(jobs: int = 1) -> None:
    """Three rows."""
    rows = {"PPC": parity(0), "rank": small_experiment(head="rank"), "increment": small_experiment(head="increment")}
    lw.compare(rows, "both", num_seeds=1, jobs=jobs, device="cpu")


def compared(folder: Path) -> Any:
    """The rows of the comparison and those of each run: each once."""
    return {
        str(path.relative_to(folder)): untimed(read_rows(path))
        for path in sorted(folder.rglob("both/**/results.jsonl"))
    }


def reproduce() -> None:
    """One row of a claim, with what is read off it and its figure."""
    lw.reproduce(lw.CLAIMS["ppc"], "quick", "claimed", num_seeds=1, jobs=1, only=["parity, pointer"])


def reproduced(folder: Path) -> Any:
    """The rows of the claim and what was read off them; that there is a figure."""
    rows = {name: untimed(read_rows(folder / "claimed" / f"{name}.jsonl")) for name in ("results", "readings")}
    return rows, (folder / "claimed" / "figure.png").is_file()


def files(*names: str) -> Callable[[Path], Any]:
    """The content of all files in a folder, to the byte."""

    def read(folder: Path) -> Any:
        found = {str(path.relative_to(folder)): path for name in names for path in sorted((folder / name).rglob("*"))}
        return {name: path.read_bytes() for name, path in found.items() if path.is_file()}

    return read


def prepare() -> None:
    """A corpus of a dozen texts."""
    lw.prepare_corpus(["tales", "notes"], "again", vocabulary_size=400)


def export() -> None:
    """A run for transformers."""
    lw.export_hf("run", "hf")


VICTIMS = (
    Victim(name="train", make=nothing, work=train, result=trained, share=4),
    Victim(name="evaluate", make=partial(make_run, 0), work=evaluate, result=evaluated, share=3),
    Victim(name="compare", make=nothing, work=compare, result=compared, share=3),
    Victim(name="reproduce", make=nothing, work=reproduce, result=reproduced),
    Victim(name="influence", make=partial(make_text, 0), work=measure, result=files("study"), share=3),
    Victim(name="prepare", make=partial(make_corpus, 0), work=prepare, result=files("again"), share=2),
    Victim(name="export", make=partial(make_run, 0), work=export, result=files("hf"), share=2),
)


def attack(number: int, seed: int, scratch: Path) -> Tally:
    """Kill so often, work again each time, and compare with what was never killed."""
    tally, victims = Tally("kills"), [victim for victim in VICTIMS for _ in range(victim.share)]
    made = {victim.name: _whole(victim, scratch) for victim in VICTIMS}
    for each in range(number):
        rng, victim = rng_of(seed, "kill", each), victims[each % len(victims)]
        begin, whole, seconds = made[victim.name]
        folder = copy_of(begin, scratch / "work")
        after = rng.uniform(0.0, 1.1 * seconds)
        run(victim.work, folder, kill_after=after)
        again = run(victim.work, folder, seconds=10 * seconds + 20)
        already = "already exists" in again.err
        faults = [] if already else again.faults(allowed=(0,))
        if not faults:
            faults = _differences(victim, folder, whole)
        tally.add(f"{each}: {victim.name} after {after:.3f} of {seconds:.3f} s", faults, again)
    return tally


def _differences(victim: Victim, folder: Path, whole: Any) -> list[str]:
    faults = [f"leaves {left}" for left in leftovers(folder)]
    try:
        if victim.result(folder) != whole:
            faults.append("ends with another result")
    except Exception as error:
        faults.append(f"its result cannot be read: {type(error).__name__}: {error}")
    return faults


def _whole(victim: Victim, scratch: Path) -> tuple[Path, Any, float]:
    begin, ended = scratch / f"{victim.name}-begin", scratch / "work"
    begin.mkdir()
    made = run(victim.make, begin, seconds=120)
    assert made.status == 0, made.err
    outcome = run(victim.work, copy_of(begin, ended), seconds=120)
    assert outcome.status == 0, outcome.err
    assert not leftovers(ended)
    return begin, victim.result(ended), outcome.seconds


def attack_workers(number: int, seed: int, scratch: Path) -> Tally:
    """Kill the parent, a worker or all of a comparison by two processes: no orphan, and the same rows after it."""
    tally, victim = Tally("kills of workers"), replace(VICTIMS[2], work=partial(compare, 2))
    # Rounded as in processes of their own: with other threads, the last digit is another one.
    begin, whole, _ = _whole(victim, scratch)
    for each in range(number):
        rng, folder = rng_of(seed, "worker", each), copy_of(begin, scratch / "work")
        whom, after = ("parent", "worker", "all")[each % 3], rng.uniform(2.0, 9.0)
        status, faults = _kill_one_of(victim.work, folder, scratch, whom, after, rng)
        again = run(victim.work, folder, seconds=120)
        faults += again.faults(allowed=(0,)) or _differences(victim, folder, whole)
        tally.add(f"{each}: {whom} after {after:.1f} s (status {status})", faults, again)
    return tally


def _kill_one_of(
    work: Callable[[], Any], folder: Path, scratch: Path, whom: str, after: float, rng: random.Random
) -> tuple[int, list[str]]:
    """The status of a parent that was killed, or lost a worker, and what is wrong with its end."""
    printed = {name: scratch / name for name in ("out", "err")}
    parent = os.fork()
    if not parent:
        attacking.be_child(work, folder, printed)
    time.sleep(after)
    workers = [process for process in in_session(parent) if _is_worker(process)]
    if whom == "all":
        with_group(parent, signal.SIGKILL)
    else:
        os.kill(rng.choice(workers) if workers and whom == "worker" else parent, signal.SIGKILL)
    _, status = os.waitpid(parent, 0)
    until = time.monotonic() + 15
    while (left := in_session(parent)) and time.monotonic() < until:
        time.sleep(0.1)
    for process in left:
        os.kill(process, signal.SIGKILL)
    faults = [f"leaves {len(left)} processes"] if left else []
    if "Traceback" in (said := printed["err"].read_text(errors="replace")):
        faults.append(f"prints a traceback: {said[-800:]}")
    return os.waitstatus_to_exitcode(status), faults


def _is_worker(process: int) -> bool:
    """Whether a process trains, and is not the one with which Python keeps count of semaphores."""
    try:
        return b"spawn_main" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def in_session(leader: int) -> list[int]:
    """The processes that a process has started, itself included, zombies aside."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) == leader and state != "Z":
            found.append(int(path.parent.name))
    return found

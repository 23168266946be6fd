"""SIGKILL at random times: the repeated command must give the same result and leave no temporary files."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.attacks.attack import Tally, copy_of, leftovers, rng_of, run, untimed
from tests.attacks.folders import make_corpus, make_run, make_text, measure, parity
from tests.support.small_runs import small_experiment

import lengthwise as lw
from lengthwise.experiments.run_folder import read_rows
from lengthwise.hf.export import export_hf

LENGTHS = lw.EvaluationSettings(lengths=(2, 4, 8, 16, 32, 64), num_examples=(64,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """Work to kill: preparation of the folder, the work, and its result."""

    name: str
    make: Callable[[], Any]
    work: Callable[[], Any]
    result: Callable[[Path], Any]
    weight: int = 1


def make_nothing() -> None:
    """Leave the folder empty."""


def train(out: str = "run") -> None:
    """Train 60 steps with 12 checkpoints."""
    settings = replace(parity(0).training, steps=60, checkpoint_every=5)
    resume = (Path(out) / "experiment.json").exists()
    lw.train(replace(parity(0), training=settings), out, device="cpu", resume=resume)


def trained_result(folder: Path) -> Any:
    """Return weights and metrics."""
    from lengthwise.core.checkpoint import load_tensors  # noqa: PLC0415

    tensors, _ = load_tensors(folder / "run" / "model.safetensors")
    return {name: tensor.tolist() for name, tensor in tensors.items()}, (folder / "run/metrics.jsonl").read_bytes()


def evaluate() -> None:
    """Evaluate six lengths."""
    lw.evaluate(lw.load_run("run"), LENGTHS)


def evaluated_result(folder: Path) -> Any:
    """Return the rows of the last evaluation; earlier rows come from killed evaluations."""
    rows = untimed(read_rows(folder / "run" / "results.jsonl"))
    lengths = list(LENGTHS.lengths)
    before = [row["length"] for row in rows[2 : -len(lengths)]]
    assert before == lengths[: len(before)], f"rows of lengths {before} before those of {lengths}"
    return rows[:2], rows[-len(lengths) :]


def compare() -> None:
    """Compare three experiments."""
    experiments = {
        "PPC": parity(0),
        "rank": small_experiment(head="rank"),
        "increment": small_experiment(head="increment"),
    }
    lw.compare(experiments, "both", seeds=1, workers=1, device="cpu")


def compared_result(folder: Path) -> Any:
    """Return the rows of the comparison and of each run."""
    return {
        str(path.relative_to(folder)): untimed(read_rows(path))
        for path in sorted(folder.rglob("both/**/results.jsonl"))
    }


def reproduce() -> None:
    """Reproduce one experiment of a claim."""
    lw.reproduce("ppc", "quick", "claimed", seeds=1, workers=1, only=["parity, pointer"])


def reproduced_result(folder: Path) -> Any:
    """Return the rows and measurements of the claim, and True if the figure exists."""
    rows = {name: untimed(read_rows(folder / "claimed" / f"{name}.jsonl")) for name in ("results", "measurements")}
    return rows, (folder / "claimed" / "figure.png").is_file()


def file_contents(*names: str) -> Callable[[Path], Any]:
    """Return a function that reads all files of these folders."""

    def read(folder: Path) -> Any:
        paths = {str(path.relative_to(folder)): path for name in names for path in sorted((folder / name).rglob("*"))}
        return {name: path.read_bytes() for name, path in paths.items() if path.is_file()}

    return read


def prepare() -> None:
    """Prepare a corpus."""
    lw.prepare_corpus(["tales", "notes"], "again", vocabulary_size=400)


def export() -> None:
    """Export a run for transformers."""
    export_hf("run", "hf")


VICTIMS = (
    Victim(name="train", make=make_nothing, work=train, result=trained_result, weight=4),
    Victim(name="evaluate", make=partial(make_run, 0), work=evaluate, result=evaluated_result, weight=3),
    Victim(name="compare", make=make_nothing, work=compare, result=compared_result, weight=3),
    Victim(name="reproduce", make=make_nothing, work=reproduce, result=reproduced_result),
    Victim(name="influence", make=partial(make_text, 0), work=measure, result=file_contents("study"), weight=3),
    Victim(name="prepare", make=partial(make_corpus, 0), work=prepare, result=file_contents("again"), weight=2),
    Victim(name="export", make=partial(make_run, 0), work=export, result=file_contents("hf"), weight=2),
)


def attack(number: int, seed: int, scratch: Path) -> Tally:
    """Kill work, repeat it, and compare the result with an uninterrupted one."""
    tally, victims = Tally("kills"), [victim for victim in VICTIMS for _ in range(victim.weight)]
    references = {victim.name: _reference(victim, scratch) for victim in VICTIMS}
    for each in range(number):
        rng, victim = rng_of(seed, "kill", each), victims[each % len(victims)]
        begin, expected, seconds = references[victim.name]
        folder = copy_of(begin, scratch / "work")
        after = rng.uniform(0.0, 1.1 * seconds)
        run(victim.work, folder, kill_after=after)
        again = run(victim.work, folder, seconds=10 * seconds + 20)
        already = "already exists" in again.err
        faults = [] if already else again.faults(allowed=(0,))
        if not faults:
            faults = _differences(victim, folder, expected)
        tally.add(f"{each}: {victim.name} after {after:.3f} of {seconds:.3f} s", faults, again)
    return tally


def _differences(victim: Victim, folder: Path, expected: Any) -> list[str]:
    faults = [f"leaves {left}" for left in leftovers(folder)]
    try:
        if victim.result(folder) != expected:
            faults.append("gives another result")
    except Exception as error:
        faults.append(f"its result cannot be read: {type(error).__name__}: {error}")
    return faults


def _reference(victim: Victim, scratch: Path) -> tuple[Path, Any, float]:
    begin, work = scratch / f"{victim.name}-begin", scratch / "work"
    begin.mkdir()
    outcome = run(victim.make, begin, seconds=120)
    assert outcome.status == 0, outcome.err
    outcome = run(victim.work, copy_of(begin, work), seconds=120)
    assert outcome.status == 0, outcome.err
    assert not leftovers(work)
    return begin, victim.result(work), outcome.seconds

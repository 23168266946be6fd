"""Attacks on combinations: extended runs, trackers, laws, clocks, two commands on one folder, pages in a browser."""

import datetime
import functools
import json
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.attacks.attack import Outcome, Tally, attempts, copy_of, leftovers, rng_of, run, untimed
from tests.attacks.doors import HOSTILE, MARKUP, WORK_S, forge, forge_file, make_views, prepare
from tests.attacks.folders import make_run, make_unfinished, parity
from tests.attacks.lies import forge_experiment, forge_facts, forge_tensors
from tests.attacks.mutations import CHANGES

import lengthwise as lw
from lengthwise.cli import app as cli
from lengthwise.core import provenance
from lengthwise.core.checkpoint import load_tensors
from lengthwise.experiments.progress_reports import TRACKERS

EXTENSIONS: tuple[tuple[str, ...], ...] = (
    ("train", "--from", "run", "--steps", "4", "--out", "new"),
    ("train", "--from", "run", "--task", "copy", "--scheme", "sequential", "--steps", "4", "--out", "new"),
    ("train", "--resume", "--out", "run", "--steps", "16"),
    ("train", "--resume", "--out", "run"),
    ("train", "--resume", "--out", "run", "--steps", "3"),
)


def attack_extensions(number: int, seed: int, scratch: Path) -> Tally:
    """Start from a damaged or forged run, or resume it with other steps; the given run of ``--from`` never changes."""
    tally, begins = Tally("extensions"), {}
    for name, make in (("run", make_run), ("begun", make_unfinished)):
        (scratch / name).mkdir()
        begins[name] = prepare(scratch / name, partial(make, 0))
    for each in range(number):
        rng, line = rng_of(seed, "extension", each), EXTENSIONS[each % len(EXTENSIONS)]
        folder = copy_of(begins[rng.choice(sorted(begins))], scratch / "work")
        what = _damage_run(folder, rng)
        before = _files(folder / "run")
        outcome = run(line, folder, seconds=WORK_S)
        faults = outcome.faults(allowed=(0, 1, 2)) + [f"leaves {left}" for left in leftovers(folder)]
        if "--from" in line and _files(folder / "run") != before:
            faults.append("changes the run that it starts from")
        tally.add(f"{each}: {what}, then {' '.join(line)}", faults, outcome)
    return tally


def _damage_run(folder: Path, rng: random.Random) -> str:
    if rng.random() < 0.2:
        return "sound"
    if rng.random() < 0.5:
        path = rng.choice(sorted(path for path in (folder / "run").rglob("*") if path.is_file()))
        change = rng.choice(CHANGES)
        content = change(path.read_bytes(), b"", rng)
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        return f"{path.name} {change.__name__}"
    forgery = rng.choice((forge_experiment, forge_facts, forge_tensors))
    try:
        return forgery(folder, rng)
    except Exception as error:
        return f"{forgery.__name__}: {type(error).__name__}"


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


LAW: dict[str, Any] = {
    "background": [0.5, 0.5, 0.0],
    "tuples": [[2, 0], [2, 1]],
    "probabilities": [0.5, 0.5],
    "labels": [[1, 0], [0, 1]],
    "placement": {"name": "local", "shapes": [[0, 1], [0, 2]], "weights": [0.5, 0.5]},
}


def attack_laws(number: int, seed: int, scratch: Path) -> Tally:
    """Certify forged laws."""
    tally = Tally("laws")
    for each, rng, folder in attempts("law", number, seed, scratch):
        tree, what = json.loads(json.dumps(LAW)), ""
        for _ in range(rng.choice((0, 1, 1, 2))):
            tree, what = forge(tree, rng) if isinstance(tree, dict) else (tree, what)
        (folder / "law.json").write_text(json.dumps(tree), encoding="utf-8")
        line = ["certify", "law.json", "--steps", "5", "--train-lengths", "3:6", "--lengths", "12", "--out", "out"]
        outcome = run(line, folder, seconds=WORK_S)
        faults = outcome.faults() + [f"leaves {left}" for left in leftovers(folder)]
        tally.add(f"{each}: {what}", faults, outcome)
    return tally


class HostileTracker:
    """Tracker that fails, or changes the metrics that it is given, from a step on."""

    def __init__(self, kind: str, step: int, run: Any) -> None:
        self.kind, self.step = kind, step
        if kind == "starts badly":
            raise ImportError(MARKUP)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Fail in the way of this tracker."""
        if step < self.step:
            return
        if self.kind == "raises":
            raise RuntimeError(MARKUP)
        if self.kind == "changes":
            metrics.clear()  # type: ignore[attr-defined]
        if self.kind == "prints":
            sys.stdout.write("\n")
        if self.kind == "draws":
            random.random()

    def close(self) -> None:
        """Fail at the end."""
        if self.kind == "ends badly":
            raise OSError(5, "cannot write")


def train_tracked(kind: str, step: int) -> str:
    """Train a run beside a hostile tracker, and return its weights."""
    TRACKERS["tensorboard"] = partial(HostileTracker, kind, step)  # type: ignore[assignment]
    lw.train(parity(0), "run", device="cpu", trackers=["tensorboard"] if kind else ())
    tensors, _ = load_tensors(Path("run/model.safetensors"))
    return str({name: tensor.tolist() for name, tensor in tensors.items()})


def attack_trackers(number: int, seed: int, scratch: Path) -> Tally:
    """Train beside trackers that fail; the weights stay the same."""
    tally, work = Tally("trackers"), scratch / "work"
    work.mkdir()
    expected = run(partial(train_tracked, "", 0), work, seconds=60)
    assert expected.status == 0, expected.err
    for each in range(number):
        rng = rng_of(seed, "tracker", each)
        shutil.rmtree(work)
        work.mkdir()
        kind = rng.choice(("starts badly", "raises", "changes", "prints", "draws", "ends badly"))
        outcome = run(partial(train_tracked, kind, rng.randrange(14)), work, seconds=WORK_S)
        faults = outcome.faults(allowed=(0,))
        if outcome.out.strip() != expected.out.strip():
            faults.append("changes the weights")
        tally.add(f"{each}: {kind}", faults, outcome)
    return tally


def with_clock(call: Callable[[], Any], kind: str, seed: int) -> Any:
    """Call with a clock of the system that goes backwards, jumps or stands still."""
    rng, now = random.Random(seed), [time.time()]
    steps = {"backwards": (-5.0, 0.0), "jumps": (-1e8, 1e8), "still": (0.0, 0.0), "1970": (-1.0, 1.0)}
    if kind == "1970":
        now[0] = 0.0

    def clock() -> float:
        now[0] += rng.uniform(*steps[kind])
        return now[0]

    class Clock(datetime.datetime):
        """Date that follows the same clock."""

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> "Clock":
            """Return the changed time."""
            return cls.fromtimestamp(max(0.0, clock()), tz)

    time.time = clock
    provenance.datetime = Clock  # type: ignore[misc]
    return call()


def timed_work() -> Any:
    """Train, evaluate and look at a run; return what does not depend on time."""
    make_run(0)
    cli.main(["watch", ".", "--once", "--json"])
    cli.main(["report", "run", "--no-diagnosis", "--out", "page.html"])
    rows = [json.loads(line) for line in Path("run/results.jsonl").read_text(encoding="utf-8").splitlines()]
    assert all(row["train_s"] >= 0 for row in rows), rows
    return untimed(rows)


def attack_clocks(number: int, seed: int, scratch: Path) -> Tally:
    """Work beside a clock that cannot be trusted; the rows stay the same."""
    tally, work = Tally("clocks"), scratch / "work"
    work.mkdir()
    reference = run(timed_work, work, seconds=60)
    assert reference.status == 0, reference.err
    expected = untimed([json.loads(line) for line in (work / "run/results.jsonl").read_text().splitlines()])
    for each in range(number):
        rng = rng_of(seed, "clock", each)
        shutil.rmtree(work)
        work.mkdir()
        kind = rng.choice(("backwards", "jumps", "still", "1970"))
        outcome = run(partial(with_clock, timed_work, kind, each), work, seconds=WORK_S)
        faults = outcome.faults(allowed=(0,)) + [f"leaves {left}" for left in leftovers(work)]
        path = work / "run/results.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        if untimed(rows) != expected:
            faults.append("changes the rows")
        tally.add(f"{each}: {kind}", faults, outcome)
    return tally


# Commands that people start beside each other on one folder.
BESIDE: tuple[tuple[str, ...], ...] = (
    ("train", "--resume", "--out", "run", "--steps", "40"),
    ("evaluate", "run", "--lengths", "2,4,8", "--num-examples", "64"),
    ("generate", "run", "--prompt", "0110"),
    ("export", "run", "--out", "hf"),
    ("report", "run", "--no-diagnosis", "--out", "page.html"),
    ("watch", ".", "--once"),
    ("diagnose", "run", "--length", "8", "--num-examples", "4"),
    ("certify", "run", "--lengths", "8"),
    ("show", "run", "--length", "4", "--out", "shown.svg"),
    ("train", "--from", "run", "--steps", "4", "--out", "new"),
)


def attack_together(number: int, seed: int, scratch: Path) -> Tally:
    """Start two different commands on one run at nearly the same time; afterwards the run can be used."""
    tally, begin = Tally("two commands"), prepare(scratch, partial(make_run, 0))
    for each in range(number):
        rng = rng_of(seed, "beside", each)
        folder = copy_of(begin, scratch / "work")
        lines = rng.sample(BESIDE, 2)
        outcomes: list[Outcome] = []

        def start(line: tuple[str, ...], delay: float, folder: Path, results: list[Outcome]) -> None:
            time.sleep(delay)
            results.append(run(line, folder, seconds=2 * WORK_S))

        threads = [threading.Thread(target=start, args=(line, rng.uniform(0, 0.3), folder, outcomes)) for line in lines]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        faults = [fault for outcome in outcomes for fault in outcome.faults(allowed=(0, 1, 2))]
        if all(outcome.status == 2 for outcome in outcomes):
            faults.append("neither succeeds")
        faults += [f"leaves {left}" for left in leftovers(folder)]
        again = run(("evaluate", "run", "--lengths", "2", "--num-examples", "4"), folder, seconds=WORK_S)
        faults += [f"afterwards: {fault}" for fault in again.faults(allowed=(0,))]
        tally.add(f"{each}: {' | '.join(' '.join(line) for line in lines)}", faults, again)
    return tally


def attack_ray(number: int, seed: int, scratch: Path) -> Tally:
    """Sweep on a cluster with wrong addresses, environments and grids; no process is left by ``ray`` itself."""
    tally = Tally("ray")
    grid = {"base": {"task": "parity", "scheme": "sequential", "training.steps": 2}, "grid": {"encoding": ["nope"]}}
    for each, rng, folder in attempts("ray", number, seed, scratch):
        tree, what = forge(json.loads(json.dumps(grid)), rng) if rng.random() < 0.5 else (grid, "sound grid")
        (folder / "sweep.json").write_text(json.dumps(tree), encoding="utf-8")
        address = rng.choice(
            ("", "x", "127.0.0.1:1", "ray://127.0.0.1:1", "[red]", "\x1b[2J", "http://x", "999.0.0.1:1")
        )
        line = ["sweep", "sweep.json", "--executor", "ray", "--workers", rng.choice(("1", "0", "x")), "--out", "out"]
        outcome = run([*line, "--address", address], folder, seconds=3 * WORK_S)
        faults = outcome.faults(allowed=(0, 1, 2)) + [f"leaves {left}" for left in leftovers(folder)]
        tally.add(f"{each}: {what}, address {address!r}", faults, outcome)
    return tally


def attack_pages(number: int, seed: int, scratch: Path) -> Tally:
    """Open pages of forged rows in Chromium: no request, no message, no script of a file, nothing missing."""
    tally, begin = Tally("pages"), prepare(scratch, make_views)
    files = sorted(path.relative_to(begin) for path in (begin / "all").rglob("*.json*") if path.is_file())
    pages: list[tuple[str, Path | None, Outcome]] = []
    for each in range(number):
        rng = rng_of(seed, "page", each)
        folder = copy_of(begin, scratch / "work")
        what = "; ".join(_forge_text(folder / rng.choice(files), rng) for _ in range(rng.choice((1, 2))))
        line = [
            "report",
            *(f"all/{name}" for name in ("both", "study", "other", "sound", "text")),
            "--no-diagnosis",
            "--out",
            "page.html",
        ]
        outcome = run(line, folder, seconds=WORK_S)
        page = folder / "page.html"
        kept = page.rename(scratch / f"page-{each}.html") if page.exists() else None
        pages.append((f"{each}: {what}", kept, outcome))
    problems = _open(tuple(path for _, path, _ in pages if path is not None))
    for what, path, outcome in pages:
        tally.add(what, [*outcome.faults(), *problems.get(path, ())], outcome)
    return tally


def _forge_text(path: Path, rng: random.Random) -> str:
    """Put a hostile text or number into a file, at any place."""
    if rng.random() < 0.5:
        return forge_file(path, rng)
    content = path.read_text(encoding="utf-8")
    words = [
        f'"{word}"' for word in ("parity", "rotary", "sequential", "PPC", "increment", "name") if f'"{word}"' in content
    ]
    if not words:
        return forge_file(path, rng)
    hostile = rng.choice([value for value in HOSTILE if isinstance(value, str)])
    word = rng.choice(words)
    path.write_text(content.replace(word, json.dumps(hostile)), encoding="utf-8")
    return f"{path.name}: {word} is {hostile[:20]!r}"


def _open(paths: tuple[Path, ...]) -> dict[Path | None, list[str]]:
    """Open pages in one browser, and return the problems by page."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    problems: dict[Path | None, list[str]] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for path in paths:
            page, found = browser.new_page(), []
            add = functools.partial(_note, found)
            page.on("console", lambda message, add=add: add("console", message.text))
            page.on("pageerror", lambda error, add=add: add("error", str(error)))
            page.on("dialog", lambda dialog, add=add: add("dialog", dialog.message))
            page.on("request", lambda sent, add=add, path=path: sent.url == path.as_uri() or add("request", sent.url))
            page.goto(path.as_uri())
            try:
                page.wait_for_selector("body[data-ready]", timeout=20_000)
            except Exception:
                add("page", "is never ready")
            if page.title() == "1" or page.locator("img[src=x]").count():
                add("page", "runs or shows markup of a file")
            problems[path] = found
            page.close()
        browser.close()
    return problems


def _note(found: list[str], kind: str, text: str) -> None:
    found.append(f"{kind}: {text[:200]}")

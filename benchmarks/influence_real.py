"""Run the studies of benchmarks/influence_real.md on a language model, in parallel processes.

``python benchmarks/influence_real.py MODEL TEXTS OUT`` runs every study of a text folder (``TEXTS/wikipedia``,
``novels``, ``python`` and ``c``), each in ``OUT/NAME``. It stops after ``--seconds``; the next call continues.
"""

import argparse
import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from claims.sparsity_in_text.paired_contexts import ContextSettings, measure_paired_targets
from influence_audit import KS, compare_searches
from shared_passes import SharedPasses

import lengthwise as lw
from lengthwise.core.provenance import collect_provenance
from lengthwise.evaluation.language_model import tokenize_documents
from lengthwise.experiments.run_folder import append_rows, read_rows
from lengthwise.hf.language_models import LanguageModel
from lengthwise.influence.measures import ProposedGreedy
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.influence.study import (
    InfluenceStudy,
    drop_duplicate_texts,
    join_study_parts,
    measure_influence,
    part_folder,
)
from lengthwise.tasks import TokenizedDocument
from lengthwise.tasks.text.documents import read_documents

KINDS = ("wikipedia", "novels", "python", "c")
# Forward passes of many processes must fit into one GPU.
MAX_FORWARD_TOKENS = 1 << 14
# Trained context of SmolLM2, and longer ones.
CONTEXTS = (8192, 12_288, 16_384)
# Numbers of targets of an audit, and of one part of the question about longer contexts.
NUM_AUDITED, NUM_PAIRED = 10, 24
Deadline = float
Job = tuple[Callable[..., str], tuple[Any, ...]]


@dataclass(frozen=True, kw_only=True)
class Study:
    """One study of a kind of text; ``searched`` targets of ``targets`` are searched in each mode."""

    kind: str
    far: int = 1024
    unit: str = "span:8"
    modes: tuple[str, ...] = ("strict", "masked", "decode")
    searched: int = 48
    targets: int = 1000
    parts: int = 2

    @property
    def name(self) -> str:
        """Name of the folder of the study."""
        modes = "" if len(self.modes) > 1 else f"-{self.modes[0]}"
        return f"{self.kind}-{self.far}-{self.unit.replace(':', '')}{modes}"

    def study(self, loaded: LanguageModel, texts: list[TokenizedDocument], part: int = 1) -> InfluenceStudy:
        """Return the study, or one part of it."""
        settings = InfluenceSettings(
            far=self.far, unit=self.unit, modes=self.modes, searched=self.searched, num_targets=self.targets
        )
        long_texts = drop_duplicate_texts([text for text in texts if len(text.tokens) >= settings.context])
        return InfluenceStudy(
            model=loaded.model, codec=loaded.codec, texts=long_texts, settings=settings, part=(part, self.parts)
        )


# The study of the timed goal runs alone, before all others.
TIMED = Study(kind="python", modes=("strict",), searched=200, parts=6)
STUDIES = (
    *(Study(kind=kind) for kind in KINDS),
    *(Study(kind=kind, modes=("strict",), far=4096) for kind in KINDS),
    *(Study(kind=kind, modes=("strict",), unit="token") for kind in KINDS),
    *(Study(kind=kind, modes=("strict",), far=512) for kind in KINDS),
    *(Study(kind=kind, modes=("strict",), unit=unit) for unit in ("sentence", "word") for kind in KINDS),
)
AUDITS = tuple((kind, seed) for seed in (0, 1) for kind in ("wikipedia", "python"))
# The paper's question needs documents with more tokens than the longest context.
PAIRED = ("novels", "code")


@cache
def load(model: str, dtype: str | None) -> LanguageModel:
    """Load the model of this process once."""
    loaded = lw.load_language_model(model, dtype=dtype)
    loaded.model.forward_tokens = min(loaded.model.forward_tokens, MAX_FORWARD_TOKENS)
    if torch.cuda.is_available():
        # Not the default of the library: not measured on a GPU yet.
        return replace(loaded, model=SharedPasses(loaded.model))
    return loaded


@cache
def load_texts(model: str, folder: str, kind: str) -> list[TokenizedDocument]:
    """Load the texts of a kind once; code is Python and C."""
    loaded = load(model, None)
    folders = [f"{folder}/{name}" for name in (("python", "c") if kind == "code" else (kind,))]
    return list(
        tokenize_documents(loaded.codec, read_documents(folders, max_documents=None), loaded.model.vocabulary_size)
    )


def run_study(options: argparse.Namespace, deadline: Deadline, study: Study, part: int) -> str:
    """Measure one part of a study until the deadline."""
    loaded = load(options.model, None)
    influence_study = study.study(loaded, load_texts(options.model, options.texts, study.kind), part)
    folder, started = part_folder(options.out / study.name, (part, study.parts)), time.monotonic()
    first: list[float] = []
    done = measure_influence(
        influence_study,
        folder,
        resume=True,
        stop=lambda: time.monotonic() > deadline,
        report=lambda number, total: first.append(time.monotonic() - started),
    )
    seconds = time.monotonic() - started
    return f"{study.name} part {part}: {'done' if done else 'stopped'}, {seconds:.0f} s, first rows {first[:1]}"


def run_audit(options: argparse.Namespace, deadline: Deadline, kind: str, seed: int) -> str:
    """Compare the default search with greedy search on targets of a kind."""
    file = options.out / f"audit-{kind}-{seed}.jsonl"
    if len(read_rows(file)) == NUM_AUDITED:
        return f"{file.name}: exists"
    file.unlink(missing_ok=True)
    settings = argparse.Namespace(targets=NUM_AUDITED, near=64, far=1024, unit="span:8", seed=seed)
    texts = load_texts(options.model, options.texts, kind)
    loaded = load(options.model, None)
    audits = list(compare_searches(loaded, texts, settings, KS))
    rows = (
        loaded.model.run_together(audits, NUM_AUDITED)
        if hasattr(loaded.model, "run_together")
        else [audit() for audit in audits]
    )
    append_rows(file, [{**row, "dtype": loaded.model.dtype, **collect_provenance()} for row in rows])
    return f"{file.name}: done"


def run_paired(options: argparse.Namespace, deadline: Deadline, kind: str, part: int) -> str:
    """Measure the same targets with few far units in the trained context, and in longer contexts."""
    file = options.out / f"paired-{kind}-{part}.json"
    if file.exists():
        return f"{file.name}: exists"
    settings = ContextSettings(
        lengths=CONTEXTS,
        near=64,
        ks=KS,
        num_targets=NUM_PAIRED,
        seed=part,
        unit="span:8",
        measure=ProposedGreedy(),
        block=8,
    )
    loaded = load(options.model, None)
    targets = measure_paired_targets(
        loaded.model, loaded.codec, load_texts(options.model, options.texts, kind), settings
    )
    file.write_text(json.dumps([{name: getattr(target, name) for name in target.__slots__} for target in targets]))
    return f"{file.name}: done"


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Yield the jobs in the order of their value."""
    for index, study in enumerate(STUDIES):
        yield from ((run_study, (study, part)) for part in range(1, study.parts + 1))
        if index == len(KINDS) - 1:
            yield from ((run_audit, arguments) for arguments in AUDITS)
            yield from ((run_paired, (kind, part)) for part in (1, 2) for kind in PAIRED)


def run_job(job: Callable[..., str], options: argparse.Namespace, deadline: Deadline, *arguments: Any) -> str:
    """Run a job, and return its line; the others continue if it fails."""
    torch.set_num_threads(1)
    started = time.monotonic()
    if started > deadline:
        return f"{job.__name__} {arguments}: not started"
    try:
        line = job(options, deadline, *arguments)
    except Exception:
        line = f"{job.__name__} {arguments} failed:\n{traceback.format_exc()}"
    return f"{line} ({time.monotonic() - started:.0f} s)"


def run_all(
    pool: ProcessPoolExecutor, listed: Iterator[tuple[Callable[..., str], tuple[Any, ...]]], *common: Any
) -> None:
    """Run jobs in a pool of processes and print one line for each."""
    futures = [pool.submit(run_job, job, *common, *arguments) for job, arguments in listed]
    for future in as_completed(futures):
        print(future.result(), flush=True)


def main() -> None:
    """Run the timed study, then all others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts")
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) - 4))
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument(
        "--only",
        help="Run only the timed study (timed), all others (all), or the studies with this word in their name.",
    )
    options = parser.parse_args()
    started = time.monotonic()
    deadline = started + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn")) as pool:
        common = (options, deadline)
        if options.only in (None, "timed"):
            run_all(pool, ((run_study, (TIMED, part)) for part in range(1, TIMED.parts + 1)), *common)
            join(options, TIMED)
            line = {"study": TIMED.name, "wall_s": round(time.monotonic() - started, 1), **collect_provenance()}
            append_rows(options.out / "times.jsonl", [line])
            print(json.dumps(line), flush=True)
        if options.only != "timed":
            chosen = (job for job in jobs(options) if options.only in (None, "all") or options.only in str(job))
            run_all(pool, chosen, *common)
    for study in STUDIES:
        if options.only in (None, "all") or options.only in study.name:
            join(options, study)


def join(options: argparse.Namespace, study: Study) -> None:
    """Join the parts of a study, or say which are incomplete."""
    loaded, texts = load(options.model, None), load_texts(options.model, options.texts, study.kind)
    incomplete = join_study_parts(study.study(loaded, texts), options.out / study.name)
    print(f"{study.name}: {f'incomplete parts {incomplete}' if incomplete else 'complete'}", flush=True)


if __name__ == "__main__":
    main()

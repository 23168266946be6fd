"""Compare the time of each fast path of ``lengthwise.model.fast`` with that of its plain form, on this machine.

Both forms take turns in one process. Drafts of near keys need a trained run: ``million_tokens.py`` measures them. Page:
``speed.md``.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rounds import row, time_in_rounds

import lengthwise as lw
from lengthwise.core.provenance import collect_provenance
from lengthwise.evaluation import grading
from lengthwise.evaluation.grading import grade
from lengthwise.experiments.experiment import Experiment, build_decoder
from lengthwise.experiments.run_folder import append_rows
from lengthwise.model.fast.switch import disable_fast_paths
from lengthwise.training.batch import TrainingSampler, to_batch
from lengthwise.training.trainer import Trainer

RESULTS = Path(__file__).parent / "results" / "fast_paths.jsonl"
# Name of a path, and the function that makes its call in the current form.
Workload = tuple[str, Callable[[], Callable[[], object]]]
Form = Callable[[], AbstractContextManager[None]]
FORMS: dict[str, Form] = {"fast": nullcontext, "plain": disable_fast_paths}


def workloads(device: torch.device, folder: Path) -> Iterator[Workload]:
    """Yield all paths that this device uses."""
    length = 100_000 if device.type == "cuda" else 8_000
    yield f"long evaluation, parity of {length:,} bits", partial(make_grading, "forced", length, 1, device)
    if device.type == "cuda":
        small, wide = lw.recipe("parity"), with_size(lw.recipe("parity"), num_layers=2, d_model=128, num_heads=4)
        for name, experiment in (("training step, 1 x 64", small), ("training step, 2 x 128", wide)):
            yield name, partial(make_step, experiment, device, folder)
        yield "free decoding of 512 sequences", partial(make_grading, "free", 100, 512, device)


def with_size(experiment: Experiment, **sizes: int) -> Experiment:
    """Return an experiment with another size of the decoder."""
    return replace(experiment, decoder=replace(experiment.decoder, **sizes))


def make_step(experiment: Experiment, device: torch.device, folder: Path) -> Callable[[], object]:
    """Return a training step of a new trainer."""
    training = replace(experiment.training, steps=1_000_000)
    sampler = TrainingSampler(task=experiment.task, scheme=experiment.scheme, lengths=(21, 21), batch_size=100, seed=0)
    return Trainer(build_decoder(experiment).to(device), sampler, training, Path(tempfile.mkdtemp(dir=folder))).step


def make_grading(decode: str, length: int, size: int, device: torch.device) -> Callable[[], object]:
    """Return the grading of some sequences with untrained weights; decoding goes on to the length of the answer."""
    experiment = lw.recipe("parity_long")
    decoder, rng = build_decoder(experiment).to(device).eval(), np.random.default_rng(0)
    examples = experiment.task.sample(length=length, size=size, rng=rng)
    batch = to_batch(length, examples, experiment.scheme.assign(examples, rng, training=False))
    return lambda: grade(decoder, batch, end=-1, decode=decode)


def in_form(form: Form, function: Callable[[], object]) -> object:
    """Call a function in one form."""
    with form():
        return function()


def main() -> None:
    """Print one row per path, and append the rows to the results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_num_threads(1)
    # So that the limit for long sequences does not matter.
    grading.MAX_DENSE_TOKENS = 1
    with tempfile.TemporaryDirectory() as folder:
        for path, make_call in workloads(device, Path(folder)):
            calls = {name: partial(in_form, form, in_form(form, make_call)) for name, form in FORMS.items()}
            result = row(path, str(device), time_in_rounds(calls, arguments.rounds), {})
            print(path, result["min_wall_ms" if device.type == "cuda" else "min_cpu_ms"], flush=True)
            append_rows(arguments.out, [{**result, **collect_provenance()}])


if __name__ == "__main__":
    main()

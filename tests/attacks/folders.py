"""Small folders of every kind that lengthwise writes."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.attacks.attack import Call
from tests.support.small_runs import small_experiment, stop_after
from tests.support.text_runs import small_corpus, text_experiment

import lengthwise as lw
from lengthwise.core.checkpoint import load_tensors
from lengthwise.evaluation.language_model import tokenize_documents
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.run_folder import read_rows
from lengthwise.hf.export import export_hf, import_hf
from lengthwise.positions import Sequential
from lengthwise.tasks import JSONLTask, Text
from lengthwise.tasks.text.documents import Document

WORDS = ("a", "ab", "cab", "bcd", "dabc", "acbd", "bd", "da", "c", "d", "abd", "cbad")
LENGTHS = ["--lengths", "2,4", "--num-examples", "8", "--json"]
STUDY = ["--far", "16", "--near", "4", "--targets", "40", "--k", "1,2", "--searched", "40", "--json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderKind:
    """Kind of folder: a function that makes it in the working folder from a seed, and the commands that use it."""

    name: str
    make: Callable[[int], None]
    uses: tuple[Call, ...]


def parity(seed: int) -> Experiment:
    """Return the experiment of a PPC run with 12 steps and a checkpoint every 4 steps."""
    return replace(small_experiment(), seed=seed, evaluation=lw.EvaluationSettings(lengths=(2, 4), num_examples=(8,)))


def make_run(seed: int) -> None:
    run = lw.train(parity(seed), "run", device="cpu")
    lw.evaluate(run, parity(seed).evaluation)


def make_unfinished(seed: int) -> None:
    lw.train(parity(seed), "run", device="cpu", stop=stop_after(6))


def resume() -> str:
    """Finish an unfinished run and return its weights as text."""
    run = lw.train(parity(0), "run", device="cpu", resume=True)
    return str({name: tensor.tolist() for name, tensor in run.decoder.state_dict().items()})


def make_jsonl(seed: int) -> None:
    records = [
        {"prompt": [*word], "response": [*word[::-1]], "coupling": [*range(len(word)), *range(len(word))[::-1]]}
        for word in (WORDS[::-1] if seed else WORDS)
    ]
    Path("rows.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    task = JSONLTask(file="rows.jsonl")
    lw.train(replace(small_experiment(task), train_lengths=(1, 4), seed=seed), "run", device="cpu")
    Path("rows.jsonl").rename("test.jsonl")


def make_corpus(seed: int) -> None:
    small_corpus(Path(), documents=3 + seed)


def train_on_corpus() -> dict[str, Any]:
    """Train two steps on the corpus and evaluate."""
    task = Text(corpus="corpus")
    run = lw.train(text_experiment(task, steps=2), "run", device="cpu")
    return {"rows": lw.evaluate(run, run.experiment.evaluation)}


def make_text(seed: int) -> None:
    make_corpus(seed)
    train_on_corpus()


def compare_again() -> dict[str, Any]:
    """Run or resume a comparison of two experiments with two seeds."""
    experiments = {
        "PPC": parity(0),
        "increment": replace(small_experiment(head="increment"), evaluation=parity(0).evaluation),
    }
    comparison = lw.compare(experiments, "both", seeds=2, workers=1, device="cpu")
    return {"rows": comparison.rows, "diverged": comparison.diverged}


def make_comparison(seed: int) -> None:
    if seed:
        experiments = {"PPC": parity(2), "increment": replace(small_experiment(head="increment"), seed=2)}
        lw.compare(experiments, "both", seeds=2, workers=1, device="cpu")
    else:
        compare_again()


def make_study(seed: int) -> None:
    make_text(seed)
    measure()


def measure() -> dict[str, Any]:
    """Run or resume an influence study of a run on text."""
    model = lw.load_language_model("run", device="cpu")
    texts = [Document(name=str(path.name), text=path.read_text()) for path in sorted(Path().glob("tales/*.txt"))]
    settings = lw.InfluenceSettings(far=16, near=4, ks=(1, 2), num_targets=24, searched=10, block=4)
    tokenized = list(tokenize_documents(model.codec, texts, model.model.vocabulary_size))
    study = lw.InfluenceStudy(model=model.model, codec=model.codec, texts=tokenized, settings=settings)
    lw.measure_influence(study, "study", resume=Path("study").exists())
    return {"rows": read_rows(Path("study/influence.jsonl"))}


def make_export(seed: int) -> None:
    lw.train(replace(small_experiment(scheme=Sequential()), seed=seed), "run", device="cpu")
    export_hf("run", "hf")


def import_again() -> dict[str, Any]:
    """Convert an export back to a run folder."""
    import_hf("hf", "back")
    tensors, facts = load_tensors(Path("back/model.safetensors"))
    return {"facts": facts, "weights": str({name: tensor.tolist() for name, tensor in tensors.items()})}


EVALUATE = ("evaluate", "run", *LENGTHS)
KINDS = (
    FolderKind(name="run", make=make_run, uses=(EVALUATE, ("generate", "run", "--prompt", "0110", "--json"))),
    FolderKind(name="begun run", make=make_unfinished, uses=(resume,)),
    FolderKind(name="run on rows", make=make_jsonl, uses=(("evaluate", "run", "--task", "test.jsonl", *LENGTHS),)),
    FolderKind(name="corpus", make=make_corpus, uses=(train_on_corpus,)),
    FolderKind(name="run on text", make=make_text, uses=(("evaluate", "run", "--lengths", "8,16", "--json"),)),
    FolderKind(name="comparison", make=make_comparison, uses=(compare_again,)),
    FolderKind(name="study", make=make_study, uses=(measure,)),
    FolderKind(
        name="export",
        make=make_export,
        uses=(
            ("evaluate", "./hf", "--task", "parity", "--lengths", "2", "--num-examples", "4", "--json"),
            import_again,
        ),
    ),
)

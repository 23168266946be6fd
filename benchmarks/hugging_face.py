"""Train small models of `transformers` with PPC and with plain positions, and measure `generate` on longer inputs.

    python benchmarks/hugging_face.py --seeds 9070,9071,9072 --out runs/hugging_face
    python benchmarks/hugging_face.py --table runs/hugging_face/results.jsonl

Cells with saved rows are not trained again.
"""

import argparse
import json
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import torch
import transformers

import lengthwise as lw
from lengthwise.core.provenance import collect_provenance
from lengthwise.hf import (
    EvaluateByLength,
    PositionCollator,
    PredictivePositionModel,
    build_symbol_tokenizer,
    to_dataset,
)
from lengthwise.positions import Predicted, Sequential
from lengthwise.tasks import Parity, VariableAssignment

MODELS = {
    "Llama": transformers.LlamaConfig,
    "GPT-NeoX": transformers.GPTNeoXConfig,
    "Qwen3": transformers.Qwen3Config,
    "OLMo 2": transformers.Olmo2Config,
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Shape and training of a two-layer model for one task."""

    rope: dict[str, float | str]
    steps: int
    d_model: int = 64
    num_heads: int = 2
    # Dimensions of a head; None uses d_model / num_heads.
    d_head: int | None = None
    # Share the weights of embeddings and output layer.
    tied: bool = False
    # Add a bias to queries, keys and values, as GPT-NeoX does by default.
    biased: bool = False
    weight_decay: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task with its training length, evaluation lengths, ID range and models."""

    task: lw.Task
    train_length: int
    lengths: tuple[int, ...]
    num_examples: tuple[int, ...]
    # Number of tokens per packed sequence, slightly more than in the longest example.
    pack_to: int
    num_position_ids: int
    max_gaps: int
    shapes: dict[str, Shape]


def rotary(base: float, share: float = 1.0, *, kind: str = "default", fastest: float = 1.0) -> dict[str, float | str]:
    """Return rotary settings with angles from ``fastest`` to ``fastest / base`` in a share of the head dimensions."""
    settings: dict[str, float | str] = {"rope_type": kind, "rope_theta": base}
    settings |= {} if share == 1 else {"partial_rotary_factor": share}
    return settings | ({} if fastest == 1 else {"factor": 1 / fastest})


# The default share of GPT-NeoX, a quarter, gives four angles in a head of 32, too few to distinguish 2,000 IDs.
FULL_ROTARY, HALF_ROTARY = rotary(10_000.0), rotary(10_000.0, 0.5)
# Settings for variable assignment. The model has to find one of 1,600 assignments, so the angles must distinguish 2,000
# IDs. Half of each head is not rotated. GPT-NeoX uses 16 angles; the other models use 32 angles in heads of 128
# dimensions. "proportional" spaces the angles as for a full head, so its base is the square of the default base.
LOOKUP_SETTINGS = {"d_model": 128, "tied": True, "weight_decay": 1.0}
LOOKUP_16 = Shape(rope=rotary(100.0, 0.5, kind="linear", fastest=3.0), steps=2000, **LOOKUP_SETTINGS)
LOOKUP_32 = Shape(
    rope=rotary(10_000.0, 0.5, kind="proportional", fastest=3.0), steps=3000, d_head=128, biased=True, **LOOKUP_SETTINGS
)
TASKS = {
    "parity": Task(
        task=Parity(),
        train_length=20,
        lengths=(20, 200, 2000),
        num_examples=(128, 128, 32),
        pack_to=48,
        num_position_ids=4096,
        max_gaps=3,
        shapes={
            "Llama": Shape(rope=FULL_ROTARY, steps=1500),
            "GPT-NeoX": Shape(rope=HALF_ROTARY, steps=1000),
            "Qwen3": Shape(rope=FULL_ROTARY, steps=1000),
            "OLMo 2": Shape(rope=FULL_ROTARY, steps=1000),
        },
    ),
    "variables": Task(
        task=VariableAssignment(),
        train_length=16,
        lengths=(16, 160, 1600),
        num_examples=(256, 256, 16),
        pack_to=72,
        num_position_ids=2048,
        max_gaps=10,
        shapes={
            "Llama": LOOKUP_32,
            "GPT-NeoX": LOOKUP_16,
            "Qwen3": LOOKUP_32,
            "OLMo 2": replace(LOOKUP_32, steps=2000),
        },
    ),
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training run: a model, a task, positions, options and a seed."""

    model: str
    task: str
    positions: str
    scaling: str
    seed: int
    # Name of the option to disable: "segments", or "token" (predict IDs without reading the token).
    without: str = ""

    @property
    def label(self) -> str:
        """Name of the cell without its seed."""
        suffix = f" without {self.without}" if self.without else ""
        return f"{self.model} {self.task} {self.positions} {self.scaling}{suffix}"


def cells(seeds: list[int]) -> list[Cell]:
    """Return the cells: PPC in all models, plain positions in Llama and GPT-NeoX, and Llama without single options."""
    parity = [(model, "parity", "PPC", scaling, "") for model in MODELS for scaling in ("log", "none")]
    variables = [(model, "variables", "PPC", "log", "") for model in MODELS]
    plain = [(model, task, "plain", "none", "") for model in ("Llama", "GPT-NeoX") for task in TASKS]
    ablations = [("Llama", task, "PPC", "log", option) for task in TASKS for option in ("segments", "token")]
    return [
        Cell(model=model, task=task, positions=positions, scaling=scaling, without=without, seed=seed)
        for group in (parity + variables + plain, ablations)
        for seed in seeds
        for model, task, positions, scaling, without in group
    ]


def model_for(cell: Cell, vocabulary_size: int) -> transformers.PreTrainedModel:
    """Return a two-layer model with random weights."""
    task = TASKS[cell.task]
    shape = task.shapes[cell.model]
    sizes = {"hidden_size": shape.d_model, "intermediate_size": 4 * shape.d_model, "num_hidden_layers": 2}
    sizes["num_attention_heads"] = heads = shape.num_heads
    if cell.model != "GPT-NeoX":
        sizes |= {"num_key_value_heads": heads, "attention_bias": shape.biased}
    if shape.d_head is not None or cell.model == "Qwen3":
        sizes["head_dim"] = shape.d_head or shape.d_model // heads
    config = MODELS[cell.model](
        vocab_size=vocabulary_size,
        max_position_embeddings=task.num_position_ids,
        rope_parameters=dict(shape.rope),
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **sizes,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    if cell.positions == "plain":
        return model
    return PredictivePositionModel.wrap(
        model,
        segments=cell.without != "segments",
        condition_on_token=cell.without != "token",
        length_scaling=cell.scaling,
    )


def train_and_measure(cell: Cell, folder: Path) -> list[dict]:
    """Train a cell and return one result row per length."""
    torch.set_num_threads(1)
    # Without a GPU, the trainer warns about pinned memory.
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    transformers.set_seed(cell.seed)
    task = TASKS[cell.task]
    shape = task.shapes[cell.model]
    tokenizer = build_symbol_tokenizer(task.task.vocabulary)
    data = to_dataset(task.task, lengths=range(1, task.train_length + 1), size=20_000, seed=cell.seed)

    def tokenize(example: dict) -> dict:
        full_text, prompt = tokenizer(example["prompt"] + example["response"]), tokenizer(example["prompt"])
        return {"input_ids": full_text["input_ids"], "prompt_length": len(prompt["input_ids"])}

    data = data.map(tokenize)
    if cell.positions == "plain":
        scheme: lw.PositionScheme = Sequential()
    else:
        scheme = Predicted(num_position_ids=task.num_position_ids, max_gaps=task.max_gaps)
    trainer = transformers.Trainer(
        model=model_for(cell, len(tokenizer)),
        args=transformers.TrainingArguments(
            str(folder / "trainer"),
            max_steps=shape.steps,
            per_device_train_batch_size=64,
            learning_rate=3e-3,
            weight_decay=shape.weight_decay,
            warmup_steps=100,
            lr_scheduler_type="cosine",
            remove_unused_columns=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=shape.steps,
            seed=cell.seed,
        ),
        train_dataset=data,
        data_collator=PositionCollator(scheme, tokenizer.pad_token_id, pack_to=task.pack_to),
    )
    started = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - started
    settings = lw.EvaluationSettings(
        lengths=task.lengths, num_examples=task.num_examples, decode="free", stop_at_zero=True, seed=1
    )
    rows = EvaluateByLength.from_task(trainer, task.task, scheme, settings).measure(trainer.state)
    return [{**asdict(cell), **row, "train_s": round(seconds, 1)} for row in rows]


def run_cell(cell: Cell, out: Path, commit: str | None) -> None:
    """Measure a cell and write its rows, unless the file exists."""
    file = out / f"{cell.label} {cell.seed}.json".replace(" ", "-")
    if file.exists():
        return
    rows = [{**row, "commit": commit} for row in train_and_measure(cell, out / file.stem)]
    file.write_text(json.dumps(rows, indent=1))
    print(file.stem, [(row["length"], row["exact_match"]) for row in rows], flush=True)


def merge_results(out: Path) -> Path:
    """Write the rows of all cells to one file and return its path."""
    rows = [row for path in sorted(out.glob("*.json")) for row in json.loads(path.read_text())]
    file = out / "results.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def print_table(file: Path) -> None:
    """Print one line per model, task and positions; each column lists the seeds in order."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for name, task in TASKS.items():
        print(f"\n**{name}**, trained on at most {task.train_length}\n")
        columns = [f"{length:,} (n={number})" for length, number in zip(task.lengths, task.num_examples, strict=True)]
        print("| model | positions | scaling | without | seconds |", " | ".join(columns), "|")
        print("|" + "---|" * (5 + len(columns)))
        parts = ("model", "positions", "scaling", "without")
        by_label: dict[tuple, dict] = {}
        for row in rows:
            if row["task"] == task.task.name:
                by_label.setdefault(tuple(row[part] for part in parts), {})[row["seed"], row["length"]] = row
        for label, results in by_label.items():
            seeds = sorted({seed for seed, _ in results})
            exact = [" ".join(_format_exact(results.get((seed, n))) for seed in seeds) for n in task.lengths]
            seconds = " ".join(f"{results[seed, task.lengths[0]]['train_s']:.0f}" for seed in seeds)
            print("|", " | ".join([*label, seconds, *exact]), "|")


def _format_exact(row: dict | None) -> str:
    return "·" if row is None or row.get("skipped") else f"{row['exact_match']:.3f}"


def main() -> None:
    """Measure the cells, or print a table of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="9070,9071,9072")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/hugging_face"))
    parser.add_argument("--table", type=Path)
    parser.add_argument("--only", help="Run only cells with this text in their name, such as 'Llama parity'.")
    parser.add_argument("--skip", help="Skip cells with this text in their name, such as 'without'.")
    arguments = parser.parse_args()
    if arguments.table:
        print_table(arguments.table)
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    # Read the commit at the start, because it may change during the run.
    commit = collect_provenance()["commit"]
    selection = [
        cell
        for cell in cells([int(seed) for seed in arguments.seeds.split(",")])
        if arguments.only is None or arguments.only in cell.label
        if arguments.skip is None or arguments.skip not in cell.label
    ]
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        for future in [pool.submit(run_cell, cell, arguments.out, commit) for cell in selection]:
            future.result()
    print(f"rows: {merge_results(arguments.out)}")


if __name__ == "__main__":
    main()

"""Fine-tune small models of `transformers` with PPC and with plain positions; measured by `generate` on longer inputs.

    python benchmarks/hugging_face.py --seeds 9070,9071,9072 --out runs/hugging_face
    python benchmarks/hugging_face.py --table runs/hugging_face/results.jsonl

Rows that are there already are not made again.
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
from lengthwise.core.provenance import provenance
from lengthwise.hf import EvaluateByLength, PositionCollator, PredictivePositionModel, symbol_tokenizer, to_dataset

MODELS = {
    "Llama": transformers.LlamaConfig,
    "GPT-NeoX": transformers.GPTNeoXConfig,
    "Qwen3": transformers.Qwen3Config,
    "OLMo 2": transformers.Olmo2Config,
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a model of two layers gets for a task."""

    rope: dict[str, float | str]
    steps: int
    d_model: int = 64
    num_heads: int = 2
    # Of a head; None: the dimensions of the model, shared out.
    d_head: int | None = None
    # Output weights are those of the embeddings.
    tied: bool = False
    # Queries, keys and values have a bias, as those of GPT-NeoX have by default.
    biased: bool = False
    weight_decay: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is learned, how long, and what is asked afterwards."""

    task: lw.Task
    trained: int
    lengths: tuple[int, ...]
    num_examples: tuple[int, ...]
    # Tokens of a row of training, in which short examples stand side by side: those of the longest one, and a few.
    pack_to: int
    num_position_ids: int
    max_gaps: int
    shapes: dict[str, Shape]


def turned(base: float, share: float = 1.0, *, kind: str = "default", fastest: float = 1.0) -> dict[str, float | str]:
    """Rotary positions with angles from ``fastest`` down to about 1 / base of it, in a share of a head's dimensions."""
    made: dict[str, float | str] = {"rope_type": kind, "rope_theta": base}
    made |= {} if share == 1 else {"partial_rotary_factor": share}
    return made | ({} if fastest == 1 else {"factor": 1 / fastest})


# A quarter, the default of GPT-NeoX, is four angles in a head of 32: too few to tell 2,000 IDs apart.
LONG, LONG_IN_HALF = turned(10_000.0), turned(10_000.0, 0.5)
# What it takes to find one of 1,600 assignments: angles that tell each of 2,000 IDs from all others, half of a head
# left to the content, tied weights and weight decay. In GPT-NeoX 16 angles suffice; the others get 32, in heads of 128
# dimensions. "proportional" spreads the angles as if the whole head had them, and uses the first of them: its base is
# the square of the other.
FOLLOWING = {"d_model": 128, "tied": True, "weight_decay": 1.0}
SHARP = Shape(rope=turned(100.0, 0.5, kind="linear", fastest=3.0), steps=2000, **FOLLOWING)
SHARPER = Shape(
    rope=turned(10_000.0, 0.5, kind="proportional", fastest=3.0), steps=3000, d_head=128, biased=True, **FOLLOWING
)
TASKS = {
    "parity": Task(
        task=lw.Parity(),
        trained=20,
        lengths=(20, 200, 2000),
        num_examples=(128, 128, 32),
        pack_to=48,
        num_position_ids=4096,
        max_gaps=3,
        shapes={
            "Llama": Shape(rope=LONG, steps=1500),
            "GPT-NeoX": Shape(rope=LONG_IN_HALF, steps=1000),
            "Qwen3": Shape(rope=LONG, steps=1000),
            "OLMo 2": Shape(rope=LONG, steps=1000),
        },
    ),
    "variables": Task(
        task=lw.VariableAssignment(),
        trained=16,
        lengths=(16, 160, 1600),
        num_examples=(256, 256, 16),
        pack_to=72,
        num_position_ids=2048,
        max_gaps=10,
        shapes={
            "Llama": SHARPER,
            "GPT-NeoX": SHARP,
            "Qwen3": SHARPER,
            "OLMo 2": replace(SHARPER, steps=2000),
        },
    ),
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training: a model, a task, and how positions are given."""

    model: str
    task: str
    positions: str
    scaling: str
    seed: int
    # An option that this one lacks: "segments", or "token" (an ID does not depend on the token that has it).
    without: str = ""

    @property
    def label(self) -> str:
        """All but the seed."""
        lacks = f" without {self.without}" if self.without else ""
        return f"{self.model} {self.task} {self.positions} {self.scaling}{lacks}"


def cells(seeds: list[int]) -> list[Cell]:
    """All models with PPC on both tasks, parity with and without scaling; Llama and GPT-NeoX plainly.

    Last, a Llama without one of the other options.
    """
    parity = [(model, "parity", "PPC", scaling, "") for model in MODELS for scaling in ("log", "none")]
    variables = [(model, "variables", "PPC", "log", "") for model in MODELS]
    plain = [(model, task, "plain", "none", "") for model in ("Llama", "GPT-NeoX") for task in TASKS]
    lacking = [("Llama", task, "PPC", "log", option) for task in TASKS for option in ("segments", "token")]
    return [
        Cell(model=model, task=task, positions=positions, scaling=scaling, without=without, seed=seed)
        for rows in (parity + variables + plain, lacking)
        for seed in seeds
        for model, task, positions, scaling, without in rows
    ]


def model_for(cell: Cell, vocabulary_size: int) -> transformers.PreTrainedModel:
    """Two layers with random weights."""
    asked = TASKS[cell.task]
    shape = asked.shapes[cell.model]
    sizes = {"hidden_size": shape.d_model, "intermediate_size": 4 * shape.d_model, "num_hidden_layers": 2}
    sizes["num_attention_heads"] = heads = shape.num_heads
    if cell.model != "GPT-NeoX":
        sizes |= {"num_key_value_heads": heads, "attention_bias": shape.biased}
    if shape.d_head is not None or cell.model == "Qwen3":
        sizes["head_dim"] = shape.d_head or shape.d_model // heads
    config = MODELS[cell.model](
        vocab_size=vocabulary_size,
        max_position_embeddings=asked.num_position_ids,
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
    """The rows of one cell."""
    torch.set_num_threads(1)
    # Of the trainer, about memory that is pinned for a GPU.
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    transformers.set_seed(cell.seed)
    asked = TASKS[cell.task]
    shape = asked.shapes[cell.model]
    tokenizer = symbol_tokenizer(asked.task.vocabulary)
    data = to_dataset(asked.task, lengths=range(1, asked.trained + 1), size=20_000, seed=cell.seed)

    def tokenized(row: dict) -> dict:
        whole, prompt = tokenizer(row["prompt"] + row["response"]), tokenizer(row["prompt"])
        return {"input_ids": whole["input_ids"], "prompt_length": len(prompt["input_ids"])}

    data = data.map(tokenized)
    if cell.positions == "plain":
        scheme: lw.PositionScheme = lw.Sequential()
    else:
        scheme = lw.Predicted(num_position_ids=asked.num_position_ids, max_gaps=asked.max_gaps)
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
        data_collator=PositionCollator(scheme, tokenizer.pad_token_id, pack_to=asked.pack_to),
    )
    started = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - started
    settings = lw.EvaluationSettings(
        lengths=asked.lengths, num_examples=asked.num_examples, decode="free", stop_at_zero=True, seed=1
    )
    measured = EvaluateByLength.of_task(trainer, asked.task, scheme, settings).measure(trainer.state)
    return [{**asdict(cell), **row, "train_s": round(seconds, 1)} for row in measured]


def run(cell: Cell, out: Path, commit: str | None) -> None:
    """Measure a cell and add its rows, unless they are there."""
    file = out / f"{cell.label} {cell.seed}.json".replace(" ", "-")
    if file.exists():
        return
    rows = [{**row, "commit": commit} for row in train_and_measure(cell, out / file.stem)]
    file.write_text(json.dumps(rows, indent=1))
    print(file.stem, [(row["length"], row["exact_match"]) for row in rows], flush=True)


def gather(out: Path) -> Path:
    """One file of all rows that are there, by cell."""
    rows = [row for file in sorted(out.glob("*.json")) for row in json.loads(file.read_text())]
    gathered = out / "results.jsonl"
    gathered.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return gathered


def table(file: Path) -> None:
    """A line per model, task and positions; each cell lists the seeds in order."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for name, asked in TASKS.items():
        print(f"\n**{name}**, trained on at most {asked.trained}\n")
        heads = [f"{length:,} (n={number})" for length, number in zip(asked.lengths, asked.num_examples, strict=True)]
        print("| model | positions | scaling | without | seconds |", " | ".join(heads), "|")
        print("|" + "---|" * (5 + len(heads)))
        own = [row for row in rows if row["task"] == asked.task.name]
        parts = ("model", "positions", "scaling", "without")
        for label in dict.fromkeys(tuple(row[part] for part in parts) for row in own):
            mine = [row for row in own if tuple(row[part] for part in parts) == label]
            seeds = sorted({row["seed"] for row in mine})
            by = {(row["seed"], row["length"]): row for row in mine}
            shown = [
                " ".join(f"{by[seed, n]['exact_match']:.3f}" if (seed, n) in by else "·" for seed in seeds)
                for n in asked.lengths
            ]
            seconds = " ".join(f"{by[seed, asked.lengths[0]]['train_s']:.0f}" for seed in seeds)
            print("|", " | ".join([*label, seconds, *shown]), "|")


def main() -> None:
    """Measure, or print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="9070,9071,9072")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/hugging_face"))
    parser.add_argument("--table", type=Path)
    parser.add_argument("--only", help="A part of the cells' names, such as 'Llama parity'.")
    parser.add_argument("--skip", help="Leave out those with this part in their names, such as 'without'.")
    asked = parser.parse_args()
    if asked.table:
        table(asked.table)
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    # Of what runs, whatever is committed meanwhile.
    commit = provenance()["commit"]
    chosen = [
        cell
        for cell in cells([int(seed) for seed in asked.seeds.split(",")])
        if asked.only is None or asked.only in cell.label
        if asked.skip is None or asked.skip not in cell.label
    ]
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(run, cell, asked.out, commit) for cell in chosen]:
            done.result()
    print(f"rows: {gather(asked.out)}")


if __name__ == "__main__":
    main()

"""Train small models of `transformers` and of this library, and ask them for needles as ``lengthwise evaluate`` does.

    python benchmarks/needles.py --size laptop --out runs/needles
    python benchmarks/needles.py --table runs/needles/results.jsonl

Models with saved rows are not trained again. ``--table`` prints the table of the page and draws ``docs/needles.png``
beside it.
"""

import argparse
import json
import shutil
import sysconfig
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import transformers

import lengthwise as lw
from lengthwise.core.provenance import collect_provenance
from lengthwise.encodings import NoPE
from lengthwise.evaluation.figure_layout import (
    LINE_COLORS,
    LineLabel,
    label_lines,
    make_panels,
    save_figure,
    set_length_axis,
)
from lengthwise.evaluation.result_rows import pool_seeds
from lengthwise.hf import PositionCollator, PromptingConfig, build_symbol_tokenizer, export_hf, to_dataset
from lengthwise.hf.language_models import evaluate_language_model
from lengthwise.positions import Sequential
from lengthwise.tasks import Recall, Text

CONFIGS = {"Llama": transformers.LlamaConfig, "GPT-NeoX": transformers.GPTNeoXConfig}
# Half of each head is rotated, as in the tutorial. "proportional" spaces the angles of Llama differently, so its base
# is the square.
ROPE = {
    "Llama": {"rope_type": "proportional", "rope_theta": 1e8, "partial_rotary_factor": 0.5},
    "GPT-NeoX": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
}
TASKS = {"needle": Recall(num_pairs=1), "one of four": Recall()}
# Texts of 4 to 32 items in training. A text of 32 items and one pair has 38 tokens with its answer.
TRAIN_LENGTHS = (4, 32)
TOKENS, NUM_EXAMPLES = (38, 76, 152, 608, 2432), (256, 256, 256, 128, 32)
STEPS = {"needle": 200, "one of four": 1000}
OWN, LANGUAGE_MODEL = "our decoder, NoPE", "our language model"
# A language model has read no examples of the task, so it gets four solved examples with 4 items each.
SHOTS, SHOT_LENGTH = 4, 4
LANGUAGE_MODEL_TOKENS, LANGUAGE_MODEL_STEPS = (256, 512), 600


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A model, the task that it is asked, and a seed."""

    model: str
    task: str
    seed: int

    @property
    def label(self) -> str:
        """Label of the rows."""
        return f"{self.model}, {self.task}"


@dataclass(frozen=True, kw_only=True)
class Size:
    """Part of the cells, and the share of the steps."""

    tasks: tuple[str, ...]
    num_seeds: int
    share: float = 1.0


SIZES = {
    "quick": Size(tasks=("needle",), num_seeds=1, share=0.05),
    "laptop": Size(tasks=("needle",), num_seeds=3),
    "full": Size(tasks=("needle", "one of four"), num_seeds=3),
}


def cells(size: Size, first_seed: int) -> list[Cell]:
    """Return the cells of a size."""
    models = (*CONFIGS, OWN, LANGUAGE_MODEL)
    seeds = range(first_seed, first_seed + size.num_seeds)
    return [Cell(model=model, task=task, seed=seed) for task in size.tasks for model in models for seed in seeds]


def train_transformer(cell: Cell, folder: Path, share: float) -> None:
    """Train a model from random weights with ``Trainer``, as in the tutorial, with consecutive positions."""
    task = TASKS[cell.task]
    tokenizer = build_symbol_tokenizer(task.vocabulary)
    transformers.set_seed(cell.seed)
    config = CONFIGS[cell.model](
        vocab_size=len(tokenizer),
        max_position_embeddings=4096,
        rope_parameters=dict(ROPE[cell.model]),
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    data = to_dataset(task, lengths=range(TRAIN_LENGTHS[0], TRAIN_LENGTHS[1] + 1), size=10_000, seed=cell.seed)

    def tokenize(rows: dict) -> dict:
        texts = [prompt + response for prompt, response in zip(rows["prompt"], rows["response"], strict=True)]
        prompts = tokenizer(rows["prompt"])["input_ids"]
        return {"input_ids": tokenizer(texts)["input_ids"], "prompt_length": [len(prompt) for prompt in prompts]}

    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            str(folder / "trainer"),
            max_steps=max(1, round(share * STEPS[cell.task])),
            per_device_train_batch_size=64,
            learning_rate=3e-3,
            warmup_steps=100,
            lr_scheduler_type="cosine",
            remove_unused_columns=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            seed=cell.seed,
        ),
        train_dataset=data.map(tokenize, batched=True),
        data_collator=PositionCollator(Sequential(), tokenizer.pad_token_id, pack_to=72),
    )
    trainer.train()
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")


def train_own(cell: Cell, folder: Path, share: float) -> None:
    """Train a decoder of this library on the task, and export it."""
    experiment = lw.recipe("recall")
    steps = max(1, round(share * 2 * STEPS[cell.task]))
    experiment = replace(
        experiment,
        task=TASKS[cell.task],
        encoding=NoPE(),
        decoder=replace(experiment.decoder, length_scaling="log"),
        training=replace(experiment.training, steps=steps, cooldown_steps=min(steps, 300)),
        seed=cell.seed,
    )
    lw.train(experiment, folder / "run", report=None)
    export_hf(folder / "run", folder / "model")


def train_language_model(cell: Cell, folder: Path, share: float) -> None:
    """Train a language model of this library on English text, and export it."""
    text = Path(sysconfig.get_paths()["stdlib"]) / "pydoc_data/topics.py"
    (folder / "text").mkdir()
    shutil.copy(text, folder / "text/topics.txt")
    lw.prepare_corpus([f"prose={folder / 'text'}"], folder / "corpus", vocabulary_size=2048)
    experiment = lw.recipe("language_model_small")
    steps = max(1, round(share * LANGUAGE_MODEL_STEPS))
    experiment = replace(
        experiment,
        task=Text(corpus=str((folder / "corpus").absolute())),
        training=replace(experiment.training, steps=steps),
        seed=cell.seed,
    )
    lw.train(experiment, folder / "run", report=None)
    export_hf(folder / "run", folder / "model")


TRAINERS: dict[str, Callable[[Cell, Path, float], None]] = {
    **dict.fromkeys(CONFIGS, train_transformer),
    OWN: train_own,
    LANGUAGE_MODEL: train_language_model,
}


def run_cell(cell: Cell, out: Path, size: str, commit: str | None) -> None:
    """Train a model, ask it as ``lengthwise evaluate`` does, and write its rows, unless they exist."""
    folder = out / f"{cell.label} {cell.seed}".replace(" ", "-").replace(",", "")
    file = folder / "rows.json"
    if file.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    started = time.perf_counter()
    TRAINERS[cell.model](cell, folder, SIZES[size].share)
    seconds = time.perf_counter() - started
    tokens, prompts = TOKENS, {"shots": 0}
    if cell.model == LANGUAGE_MODEL:
        tokens, prompts = LANGUAGE_MODEL_TOKENS, {"shots": SHOTS, "shot_length": SHOT_LENGTH}
    settings = lw.EvaluationSettings(lengths=tokens, num_examples=NUM_EXAMPLES[: len(tokens)], seed=cell.seed)
    prompting = PromptingConfig(in_tokens=True, device="cpu", **prompts)
    rows = evaluate_language_model(str(folder / "model"), TASKS[cell.task], settings, prompting=prompting)
    facts = {**asdict(cell), "row": cell.label, "train_s": round(seconds, 1), "commit": commit, "size": size}
    rows = [{**row, **facts, "tokens": limit} for row, limit in zip(rows, tokens, strict=True)]
    file.write_text(json.dumps(rows, indent=1))
    print(folder.name, [(row["text_tokens"], row["exact_match"]) for row in rows], flush=True)


def merge_results(out: Path) -> Path:
    """Write the rows of all cells to one file and return its path."""
    rows = [row for path in sorted(out.glob("*/rows.json")) for row in json.loads(path.read_text())]
    file = out / "results.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def read_groups(file: Path) -> dict[str, dict[int, list[dict]]]:
    """Return the rows by label and number of tokens; a group has one row per seed."""
    groups: dict[str, dict[int, list[dict]]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        groups.setdefault(row["row"], {}).setdefault(row["tokens"], []).append(row)
    return groups


def print_table(groups: dict[str, dict[int, list[dict]]]) -> None:
    """Print median and worst seed with the interval of the worst seed; a column per number of tokens."""
    columns = sorted({tokens for by_tokens in groups.values() for tokens in by_tokens})
    print("| model and task | shots | seeds | training, s |", " | ".join(f"{tokens:,}" for tokens in columns), "|")
    print("|" + "---|" * (4 + len(columns)))
    for label, by_tokens in groups.items():
        first = next(iter(by_tokens.values()))
        seconds = sorted(row["train_s"] for row in first)
        body = [label, str(first[0]["shots"]), str(len(first)), f"{seconds[0]:.0f}-{seconds[-1]:.0f}"]
        print("|", " | ".join(body + [format_seeds(by_tokens.get(tokens, [])) for tokens in columns]), "|")


def format_seeds(rows: list[dict]) -> str:
    """Return the median and the worst exact match, with the 95% interval of the worst seed and its examples."""
    if not rows:
        return "·"
    ordered = sorted(rows, key=lambda row: row["exact_match"])
    worst, middle = ordered[0], sorted(row["exact_match"] for row in rows)
    median = (middle[(len(middle) - 1) // 2] + middle[len(middle) // 2]) / 2
    return f"{median:.3f} / {worst['exact_match']:.3f} [{worst['low']:.2f}, {worst['high']:.2f}]"


def draw_figure(groups: dict[str, dict[int, list[dict]]], folder: Path) -> Path:
    """Draw exact match by number of tokens; bands are ranges over seeds."""
    caption = (
        "Lines: mean over seeds; bands: from the worst to the best seed. A guess of the value is right once in 16."
    )
    figure, (axes,) = make_panels(["needles in language models"], [list(groups)], caption)
    labels = []
    for color, (label, by_tokens) in zip(LINE_COLORS, groups.items(), strict=False):
        values = [pool_seeds(rows)[0] for rows in by_tokens.values()]
        bands = [[row["exact_match"] for row in rows] for rows in by_tokens.values()]
        axes.plot(list(by_tokens), values, "-o", color=color, markersize=4)
        axes.fill_between(list(by_tokens), list(map(min, bands)), list(map(max, bands)), color=color, alpha=0.15)
        labels.append(LineLabel(text=label, color=color, value=values[-1]))
    axes.set(ylim=(-0.03, 1.03), ylabel="exact match", xlabel="tokens of the text (log scale)")
    # The shortest text in training has 4 items, the longest 32.
    set_length_axis(axes, {tokens for by_tokens in groups.values() for tokens in by_tokens}, (10, 38))
    label_lines(axes, labels)
    return save_figure(figure, folder)


def main() -> None:
    """Train and ask the models, or print a table of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="laptop")
    parser.add_argument("--first-seed", type=int, default=9000)
    parser.add_argument("--seeds", type=int, help="Number of seeds; by default that of the size.")
    parser.add_argument("--out", type=Path, default=Path("runs/needles"))
    parser.add_argument("--only", help="Run only cells with this text in their label, such as 'Llama, needle'.")
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    if arguments.table:
        groups = read_groups(arguments.table)
        print_table(groups)
        print(f"figure: {draw_figure(groups, arguments.table.parent)}")
        return
    torch.set_num_threads(1)
    # Without a GPU, the trainer warns about pinned memory.
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    size = SIZES[arguments.size]
    if arguments.seeds is not None:
        size = replace(size, num_seeds=arguments.seeds)
    arguments.out.mkdir(parents=True, exist_ok=True)
    # Read the commit at the start, because it may change during the run.
    commit = collect_provenance()["commit"]
    for cell in cells(size, arguments.first_seed):
        if arguments.only is None or arguments.only in cell.label:
            run_cell(cell, arguments.out, arguments.size, commit)
    print(f"rows: {merge_results(arguments.out)}")


if __name__ == "__main__":
    main()

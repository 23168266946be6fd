"""Fine-tune a pretrained language model on short inputs of a task, and measure it on long inputs.

    python benchmarks/pretrained.py --model FOLDER --task addition --variant ppc --minutes 2 --out runs/pretrained.jsonl

Each variant is a set of defaults; options given on the command line replace them. Training stops after ``--steps``
steps or when ``--minutes`` have passed, including the time to load the model. One row per evaluation length is
appended to ``--out``.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from transformers.models.llama import modeling_llama

import lengthwise as lw
from lengthwise.hf import PredictivePositionModel
from lengthwise.positions import Predicted, RandomStart, Sequential
from lengthwise.tasks import Addition, Copy, Parity, Reverse, VariableAssignment
from lengthwise.tasks.examples import Examples

UNSCORED = -100
TASKS = {
    # Sum with the least significant digit first, and one digit more than the numbers.
    "addition": Addition(order="reversed_sum"),
    # The numbers also with the least significant digit first, so that the token before a digit is the place below.
    "addition_least": Addition(order="least"),
    # As people write sums.
    "addition_most": Addition(order="most", zero_padding=False),
    "copy": Copy(),
    "reverse": Reverse(),
    "parity": Parity(),
    "variable_assignment": VariableAssignment(),
}
# Text of the symbols that are not written as they are named. The tokenizer keeps these apart from digits and words.
SYMBOL_TEXTS = {
    "copy": {"=": "\n", ">": "="},
    "reverse": {"=": "\n", ">": "="},
}
# Heads: "c" has the coupled IDs, "p" the ID of the previous response token, "o" the ordinary positions.
VARIANTS: dict[str, dict[str, Any]] = {
    "ppc": {},
    "ppc_mix": {"mix": True},
    "ppc_split": {"levels": "cco"},
    "ppc_levels": {"levels": "cpo"},
    "ppc_levels_mix": {"levels": "cpo", "mix": True},
    "plain": {"scheme": "plain"},
    "random_offset": {"scheme": "random_offset"},
}


def parse_arguments() -> argparse.Namespace:
    """Return the options; those that are not given have the values of the variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="Folder of a Llama model and its tokenizer.")
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--variant", choices=VARIANTS, default="ppc")
    parser.add_argument("--scheme", choices=("ppc", "plain", "random_offset"), default="ppc")
    parser.add_argument("--levels", default="", help="One letter (c, p or o) per key-value head; empty: all coupled.")
    parser.add_argument("--mix", action="store_true", help="Add a learned map of the previous token's embedding.")
    parser.add_argument("--id-factor", type=int, default=3, help="Multiply the IDs, so that neighbors differ more.")
    parser.add_argument("--num-ids", type=int, default=4096, help="Number of IDs after the multiplication.")
    parser.add_argument("--max-gaps", type=int, default=5)
    parser.add_argument("--head", default="pointer")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=60.0, help="End of training, in minutes after the start.")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--new-lr", type=float, default=1e-3, help="Learning rate of head, segment and mix.")
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--rank", type=int, default=0, help="Rank of LoRA; 0 trains all weights.")
    parser.add_argument("--lora-targets", choices=("all", "qk"), default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="Of training (autocast).")
    parser.add_argument("--train-lengths", default="1:10")
    parser.add_argument("--eval-lengths", default="10,100,500")
    parser.add_argument("--examples", default="64,64,32", help="Examples per evaluation length.")
    parser.add_argument("--free", type=int, default=0, help="Examples of the first length that are generated.")
    parser.add_argument("--log-from", default="8192,40", help="Values of log_length_from at evaluation.")
    parser.add_argument("--layers", type=int, default=0, help="Use only the first layers and the task's tokens.")
    parser.add_argument("--text", type=Path, help="File with ordinary text: first 90% for training, rest for its loss.")
    parser.add_argument("--text-mix", type=float, default=0.0, help="Share of steps that also train on ordinary text.")
    parser.add_argument("--out", type=Path, required=True)
    variant = parser.parse_known_args()[0].variant
    parser.set_defaults(**VARIANTS[variant])
    return parser.parse_args()


class PreviousTokenMix(nn.Module):
    """Linear map of the previous token's embedding that is added to each embedding; zero at the start."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(d_model, d_model))

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return the embeddings with the mapped previous ones added."""
        return embeddings + nn.functional.pad(embeddings[:, :-1] @ self.weight, (0, 0, 1, 0))


class MixingModel(PredictivePositionModel):
    """Model whose embeddings may also contain those of the previous tokens. Ordinary text is never mixed."""

    mix_enabled = True

    def _embed(self, tokens: Tensor, is_prompt: Tensor) -> Tensor:
        embeddings = super()._embed(tokens, is_prompt)
        # A class attribute `mix` would hide the module.
        mix = getattr(self, "mix", None)
        return embeddings if mix is None or not self.mix_enabled else mix(embeddings)


class LevelRotary(nn.Module):
    """Rotary angles per key-value head, from the coupled IDs, the IDs of the previous tokens, or ordinary positions."""

    def __init__(self, rotary: nn.Module, levels: str) -> None:
        super().__init__()
        self.rotary, self.levels = rotary, levels
        # Number of prompt tokens of each row, or None for ordinary text, where all heads have ordinary positions.
        self.prompt_lengths: Tensor | None = None

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of shape (batch, key-value heads, seq, d_head)."""
        if self.prompt_lengths is None:
            return self.rotary(x, position_ids)
        index = torch.arange(position_ids.shape[1], device=position_ids.device)
        separator = self.prompt_lengths[:, None] - 1
        previous = torch.where(index >= separator, position_ids.roll(1, dims=1), position_ids)
        # The separator predicts the first symbol, which has no symbol before it: the start token has no content.
        previous = torch.where(index == separator, position_ids[:, :1], previous)
        by_level = {"c": position_ids, "p": previous, "o": index.expand_as(position_ids)}
        angles = {level: self.rotary(x, by_level[level]) for level in set(self.levels)}
        cos, sin = (torch.stack([angles[level][part] for level in self.levels], dim=1) for part in (0, 1))
        return cos, sin


def rotate_by_level(rotate: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return a version of ``apply_rotary_pos_emb`` that also takes angles per key-value head."""

    def apply(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        if cos.dim() == 3:
            return rotate(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)
        half = modeling_llama.rotate_half
        groups = q.shape[1] // k.shape[1]
        q_cos, q_sin = cos.repeat_interleave(groups, dim=1), sin.repeat_interleave(groups, dim=1)
        return q * q_cos + half(q) * q_sin, k * cos + half(k) * sin

    return apply


def token_ids(task_name: str, task: lw.Task, tokenizer: Any) -> np.ndarray:
    """Return the token of the language model for each symbol of the task, and check that texts survive."""
    texts = SYMBOL_TEXTS.get(task_name, {})
    symbols = [texts.get(symbol, symbol) for symbol in task.vocabulary]
    if task_name == "variable_assignment":
        # Names and values are words of the language model, in a fixed random order.
        words = [
            word[1:]
            for word, token in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
            if word.startswith("Ġ")
            and word[1:].isascii()
            and word[1:].islower()
            and word[1:].isalpha()
            and len(word) > 3
        ]
        np.random.default_rng(0).shuffle(words)
        symbols = [" " + words.pop() if len(symbol) > 1 and symbol != "end" else symbol for symbol in symbols]
    ids = []
    for symbol in symbols:
        encoded = [tokenizer.eos_token_id] if symbol == "end" else tokenizer.encode(symbol, add_special_tokens=False)
        if len(encoded) != 1:
            raise SystemExit(f"the tokenizer writes {symbol!r} as {len(encoded)} tokens")
        ids += encoded
    if len(set(ids)) != len(ids):
        raise SystemExit("two symbols have the same token")
    table = np.array(ids)
    for tokens in table[task.sample(length=5, size=8, rng=np.random.default_rng(0)).tokens]:
        row = tokens[: list(tokens).index(tokenizer.eos_token_id)].tolist()
        if tokenizer.encode(tokenizer.decode(row), add_special_tokens=False) != row:
            raise SystemExit(f"the tokenizer joins symbols of {tokenizer.decode(row)!r}")
    return table


@dataclass(frozen=True)
class Batch:
    """Padded examples with the IDs of a scheme."""

    tokens: Tensor
    position_ids: Tensor
    labels: Tensor
    position_labels: Tensor
    attention_mask: Tensor
    prompt_lengths: Tensor


class Source:
    """Batches of a task in the tokens of the language model, with one start token before each example."""

    def __init__(self, arguments: argparse.Namespace, tokenizer: Any) -> None:
        self.task = TASKS[arguments.task]
        self.table = token_ids(arguments.task, self.task, tokenizer)
        # The start token, the unused one, and the end token keep their numbers.
        self.vocabulary = np.unique([0, 1, 2, *self.table])
        if arguments.layers:
            self.table = np.searchsorted(self.vocabulary, self.table)
        self.start, self.pad = 0, int(tokenizer.eos_token_id)
        self.factor, self.device = 1, arguments.device
        self.scheme: Any = Sequential()
        if arguments.scheme == "random_offset":
            self.scheme = RandomStart(num_position_ids=arguments.num_ids)
        elif arguments.scheme == "ppc":
            self.factor = arguments.id_factor
            self.scheme = Predicted(
                num_position_ids=arguments.num_ids // arguments.id_factor, max_gaps=arguments.max_gaps
            )

    def batch(self, lengths: np.ndarray, rng: np.random.Generator, *, training: bool) -> Batch:
        """Return one example per length."""
        rows: list[tuple[np.ndarray, ...]] = []
        for length, count in zip(*np.unique(lengths, return_counts=True), strict=True):
            examples = self._with_start(self.task.sample(length=int(length), size=int(count), rng=rng))
            assigned = self.scheme.assign(examples, rng, training=training)
            position_labels = np.where(assigned.id_scored, assigned.position_ids[0] * self.factor, UNSCORED)
            labels = np.where(assigned.token_scored, examples.tokens, UNSCORED)
            parts = (examples.tokens, assigned.position_ids[0] * self.factor, labels, position_labels)
            for row, end in enumerate(examples.response_end):
                rows.append((*(part[row, : end + 1] for part in parts), examples.prompt_length[row]))
        width = max(len(row[0]) for row in rows)
        fills = (self.pad, 0, UNSCORED, UNSCORED)
        arrays = [
            np.stack([np.pad(row[part], (0, width - len(row[part])), constant_values=fill) for row in rows])
            for part, fill in enumerate(fills)
        ]
        is_token = np.stack([np.arange(width) < len(row[0]) for row in rows])
        tensors = (*arrays, is_token, np.array([row[4] for row in rows]))
        return Batch(*(torch.from_numpy(array.astype(np.int64)).to(self.device) for array in tensors))

    def _with_start(self, examples: Examples) -> Examples:
        before = ((0, 0), (1, 0))
        return Examples(
            tokens=np.pad(self.table[examples.tokens], before, constant_values=self.start),
            prompt_length=examples.prompt_length + 1,
            is_answer=np.pad(examples.is_answer, before),
            # The start token has the group 0, which no other token has.
            coupling=None if examples.coupling is None else np.pad(examples.coupling, ((0, 0), *before)),
        )


class Texts:
    """Chunks of ordinary text."""

    def __init__(self, file: Path, tokenizer: Any, device: str, seq: int = 256) -> None:
        tokens = tokenizer.encode(file.read_text(encoding="utf-8")[:400_000], add_special_tokens=False)
        chunks = torch.tensor(tokens[: len(tokens) // seq * seq]).view(-1, seq).to(device)
        num_train = int(0.9 * len(chunks))
        self.train, self.held_out = chunks[:num_train], chunks[num_train:][:16]


class Runner:
    """The model with the forward passes for examples of the task and for ordinary text."""

    def __init__(self, arguments: argparse.Namespace, source: Source) -> None:
        self.arguments = arguments
        base = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
        if arguments.layers:
            base.model.layers = base.model.layers[: arguments.layers]
            base.config.num_hidden_layers = arguments.layers
            # Keep only the tokens of the task.
            base.config.vocab_size = len(source.vocabulary)
            base.model.embed_tokens.weight = nn.Parameter(base.model.embed_tokens.weight[source.vocabulary].detach())
            base.lm_head.weight = base.model.embed_tokens.weight
        self.rotary: LevelRotary | None = None
        d_model, num_kv_heads = base.config.hidden_size, base.config.num_key_value_heads
        options: dict[str, Any] = {"head": None, "num_position_ids": 8192}
        if arguments.scheme == "ppc":
            options = {"head": arguments.head, "num_position_ids": arguments.num_ids, "segments": True}
            options |= {"length_scaling": "log", "log_length_from": 8192}
        model: Any = MixingModel.wrap(base, **options)
        if arguments.levels:
            if len(arguments.levels) != num_kv_heads:
                raise SystemExit(f"--levels needs {num_kv_heads} letters")
            self.rotary = LevelRotary(base.model.rotary_emb, arguments.levels)
            base.model.rotary_emb = self.rotary
            modeling_llama.apply_rotary_pos_emb = rotate_by_level(modeling_llama.apply_rotary_pos_emb)
        if arguments.mix:
            model.mix = PreviousTokenMix(d_model)
        self.wrapped = model
        self.new_parts = [
            name for name in ("position_head", "segment", "mix") if getattr(model, name, None) is not None
        ]
        if arguments.rank:
            import peft  # noqa: PLC0415 (full fine-tuning works without it)

            targets = "all-linear" if arguments.lora_targets == "all" else ["q_proj", "k_proj"]
            model = peft.get_peft_model(
                model,
                peft.LoraConfig(
                    r=arguments.rank,
                    lora_alpha=2 * arguments.rank,
                    target_modules=targets,
                    exclude_modules=r".*position_head.*",
                    modules_to_save=self.new_parts,
                ),
            )
        self.model = model.to(arguments.device)
        self.num_trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)

    def set_log_length_from(self, number: int) -> None:
        """Set the number of tokens from which attention is sharpened."""
        self.wrapped.model.config.get_text_config().log_length_from = number

    def forward(self, batch: Batch) -> Any:
        """Return the output for examples of the task."""
        if self.rotary is not None:
            self.rotary.prompt_lengths = batch.prompt_lengths
        self.wrapped.mix_enabled = True
        inputs = {"input_ids": batch.tokens, "position_ids": batch.position_ids, "labels": batch.labels}
        if self.arguments.scheme == "ppc":
            inputs["position_labels"] = batch.position_labels
        return self.model(**inputs, attention_mask=batch.attention_mask, use_cache=False)

    def text_loss(self, tokens: Tensor) -> Tensor:
        """Return the loss on ordinary text with ordinary positions, without segment and mix."""
        if self.rotary is not None:
            self.rotary.prompt_lengths = None
        self.wrapped.mix_enabled = False
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        # Without labels, all tokens are prompt tokens, which have no segment vector.
        logits = self.model(input_ids=tokens, position_ids=positions, use_cache=False).logits
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())

    def held_out_text_loss(self, texts: "Texts | None") -> float | None:
        """Return the mean loss (nats) on held-out text."""
        if texts is None:
            return None
        self.model.eval()
        with torch.no_grad():
            losses = [self.text_loss(chunk[None]).item() for chunk in texts.held_out]
        return sum(losses) / len(losses)


def precision(arguments: argparse.Namespace) -> AbstractContextManager[Any]:
    """Return the context of a training step."""
    if arguments.dtype == "bfloat16":
        return torch.autocast(torch.device(arguments.device).type, dtype=torch.bfloat16)
    return nullcontext()


def train(runner: Runner, source: Source, texts: Texts | None, end: float) -> dict[str, Any]:
    """Train until the steps or the time are used up; return steps, seconds and the last losses."""
    arguments = runner.arguments
    first, last = map(int, arguments.train_lengths.split(":"))
    rng = np.random.default_rng(arguments.seed)
    groups: dict[bool, list[nn.Parameter]] = {False: [], True: []}
    for name, weight in runner.model.named_parameters():
        if weight.requires_grad:
            groups[any(f"{part}." in name for part in runner.new_parts)].append(weight)
    rates = [arguments.lr, arguments.new_lr]
    optimizer = torch.optim.AdamW(
        [{"params": groups[False]}, {"params": groups[True]}],
        lr=arguments.lr,
        betas=(0.9, 0.98),
        weight_decay=arguments.weight_decay,
        fused=arguments.device.startswith("cuda"),
    )
    runner.model.train()
    started = shown = time.perf_counter()
    step, stats = 0, {}
    while step < arguments.steps and (now := time.perf_counter()) < end:
        progress = max(step / arguments.steps, (now - started) / max(end - started, 1e-9))
        scale = min(1.0, (step + 1) / arguments.warmup) * max(1 - progress, 0.02)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * scale
        batch = source.batch(rng.integers(first, last + 1, size=arguments.batch), rng, training=True)
        with precision(arguments):
            output = runner.forward(batch)
        loss = output.loss
        loss.backward()
        if texts is not None and rng.random() < arguments.text_mix:
            chunk = texts.train[torch.from_numpy(rng.integers(0, len(texts.train), size=4)).to(source.device)]
            with precision(arguments):
                loss_on_text = runner.text_loss(chunk)
            loss_on_text.backward()
        torch.nn.utils.clip_grad_norm_([*groups[False], *groups[True]], 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        now = time.perf_counter()
        if now - shown > 5 or step in {1, arguments.steps}:
            shown = now
            right = output.logits[:, :-1].argmax(-1) == batch.labels[:, 1:]
            is_scored = batch.labels[:, 1:] != UNSCORED
            exact = (right | ~is_scored).all(dim=1).float().mean().item()
            stats = {
                "token_loss": round(output.token_loss.item(), 4),
                "id_loss": None if output.position_loss is None else round(output.position_loss.item(), 4),
                "train_exact": round(exact, 3),
            }
            print(f"step {step} {now - started:.0f}s {json.dumps(stats)}", flush=True)
            if not math.isfinite(output.token_loss.item()):
                print("the loss is not finite; stop", flush=True)
                break
    return {"steps": step, "train_s": round(time.perf_counter() - started, 1), **stats}


@torch.no_grad()
def measure(runner: Runner, source: Source, length: int, num_examples: int) -> dict[str, Any]:
    """Grade answers with one forward pass per batch: each token must be the most likely after the right ones."""
    runner.model.eval()
    rng = np.random.default_rng(10_000 + length)
    totals = np.zeros(5)
    losses = []
    size = max(1, min(num_examples, 8_000 // (4 * length)))
    for begin in range(0, num_examples, size):
        batch = source.batch(np.full(min(size, num_examples - begin), length), rng, training=False)
        output = runner.forward(batch)
        is_token = batch.labels[:, 1:] != UNSCORED
        right = (output.logits[:, :-1].argmax(-1) == batch.labels[:, 1:]) | ~is_token
        row_right = right.all(dim=1)
        tokens_right, ids_right = (right & is_token).sum() / is_token.sum(), 1.0
        row_ids_right = torch.ones_like(row_right)
        if output.predicted_position_ids is not None:
            has_id = batch.position_labels != UNSCORED
            same = (output.predicted_position_ids == batch.position_labels) | ~has_id
            row_ids_right = same.all(dim=1)
            ids_right = ((same & has_id).sum() / has_id.sum()).item()
        both = row_right & row_ids_right
        rows = len(row_right)
        totals += [rows, both.sum().item(), row_right.sum().item(), rows * tokens_right.item(), rows * ids_right]
        losses.append(rows * output.token_loss.item())
    number, both, tokens_only, token_accuracy, id_accuracy = totals
    return {
        "n": int(number),
        "exact_match": both / number,
        "exact_tokens": tokens_only / number,
        "token_accuracy": round(token_accuracy / number, 5),
        "id_accuracy": round(id_accuracy / number, 5),
        "loss": round(sum(losses) / number, 5),
    }


@torch.no_grad()
def generate(runner: Runner, source: Source, length: int, num_examples: int) -> float:
    """Return the exact match of free decoding without a cache, on the examples of `measure`."""
    runner.model.eval()
    examples = source.batch(np.full(num_examples, length), np.random.default_rng(10_000 + length), training=False)
    num_right = 0
    for index in range(num_examples):
        end = int(examples.attention_mask[index].sum())
        row = Batch(
            **{
                name: values[index : index + 1, :end] if values.dim() == 2 else values[index : index + 1]
                for name, values in vars(examples).items()
            }
        )
        tokens, ids = generate_row(runner, row)
        # The ID of the end token is not predicted.
        num_right += bool((tokens == row.tokens).all() and (ids == row.position_ids)[:, :-1].all())
    return num_right / num_examples


def generate_row(runner: Runner, row: Batch) -> tuple[Tensor, Tensor]:
    """Return tokens and IDs of greedy decoding; the ID of a token is predicted after this token."""
    prompt = int(row.prompt_lengths[0])
    tokens, ids = row.tokens[:, :prompt], row.position_ids[:, :prompt]

    def call(tokens: Tensor, ids: Tensor) -> Any:
        # The labels mark what is no prompt; without a label, all tokens would be the prompt.
        is_response = torch.arange(tokens.shape[1], device=tokens.device)[None] >= prompt
        labels = torch.where(is_response, 0, UNSCORED)
        mask = torch.ones_like(tokens)
        return runner.forward(
            replace(row, tokens=tokens, position_ids=ids, labels=labels, position_labels=labels, attention_mask=mask)
        )

    while tokens.shape[1] < row.tokens.shape[1]:
        tokens = torch.cat([tokens, call(tokens, ids).logits[:, -1:].argmax(-1)], dim=1)
        ids = torch.cat([ids, ids[:, -1:] + 1], dim=1)
        if runner.arguments.scheme == "ppc":
            ids = torch.cat([ids[:, :-1], call(tokens, ids).predicted_position_ids[:, -1:]], dim=1)
    return tokens, ids


def evaluation_settings(arguments: argparse.Namespace) -> Iterator[tuple[int, int, int]]:
    """Yield length, number of examples and ``log_length_from`` of each measurement."""
    numbers = [int(number) for number in arguments.examples.split(",")]
    for index, length in enumerate(map(int, arguments.eval_lengths.split(","))):
        for log_from in map(int, arguments.log_from.split(",")) if arguments.scheme == "ppc" else (8192,):
            yield length, numbers[min(index, len(numbers) - 1)], log_from


def main() -> None:
    """Train, then measure each length."""
    begin = time.perf_counter()
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    if arguments.device == "cpu":
        torch.set_num_threads(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    source = Source(arguments, tokenizer)
    runner = Runner(arguments, source)
    texts = Texts(arguments.text, tokenizer, arguments.device) if arguments.text and not arguments.layers else None
    text_before = runner.held_out_text_loss(texts)
    seconds = time.perf_counter() - begin
    print(f"loaded after {seconds:.0f}s, {runner.num_trained} weights, loss of text {text_before}", flush=True)
    sample = source.batch(np.array([3]), np.random.default_rng(0), training=False)
    sample_tokens = sample.tokens[0].tolist()
    print(sample_tokens if arguments.layers else repr(tokenizer.decode(sample_tokens)), flush=True)
    print(sample.position_ids[0].tolist(), flush=True)
    if arguments.device.startswith("cuda"):
        torch.set_float32_matmul_precision("high")
    trained = train(runner, source, texts, begin + 60 * arguments.minutes)
    torch.set_float32_matmul_precision("highest")
    if arguments.device.startswith("cuda"):
        print(f"memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", flush=True)
        torch.cuda.empty_cache()
    row = {name: value.name if isinstance(value, Path) else value for name, value in vars(arguments).items()}
    del row["out"]
    row |= {"trained": trained, "weights": runner.num_trained, "text_before": text_before}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)

    def save(**values: Any) -> None:
        values["total_s"] = round(time.perf_counter() - begin, 1)
        with arguments.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row | values) + "\n")
        print(json.dumps(values), flush=True)

    for length, num_examples, log_from in evaluation_settings(arguments):
        runner.set_log_length_from(log_from)
        save(length=length, log_length_from=log_from, **measure(runner, source, length, num_examples))
    runner.set_log_length_from(8192)
    if texts is not None:
        save(text_after=runner.held_out_text_loss(texts))
    if arguments.free:
        length = int(arguments.eval_lengths.split(",")[0])
        forced = measure(runner, source, length, arguments.free)
        save(length=length, free=generate(runner, source, length, arguments.free), n=arguments.free, forced=forced)


if __name__ == "__main__":
    main()

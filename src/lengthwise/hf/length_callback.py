"""Exact match by length while `transformers.Trainer` trains."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lengthwise.core.errors import FeatureError, SettingError, UnsupportedTaskError, unknown_name
from lengthwise.evaluation.exact_match import EvaluationSettings, Tally, drawn
from lengthwise.evaluation.grading import DECODES, Graded
from lengthwise.experiments.run_folder import RESULTS, append_rows
from lengthwise.hf.collators import PositionCollator
from lengthwise.hf.dataset_columns import UNSCORED
from lengthwise.hf.id_generation import IDGenerationMixin
from lengthwise.hf.input_checks import check_has_head
from lengthwise.hf.model_parts import device_of
from lengthwise.hf.position_id_support import check_id_prediction
from lengthwise.positions import PositionScheme
from lengthwise.tasks import Task, task_facts


@torch.no_grad()
def grade_batch(model: Any, batch: Mapping[str, Tensor], *, decode: str = "forced") -> Graded:
    """Grade a batch such as a collator makes, with ``labels`` and where IDs are predicted ``position_labels``.

    ``forced``: each choice after the right tokens and IDs, in one forward; where one answer is right, greedy decoding
    is exact if and only if all of these are. ``free``: the prompts are continued by ``generate``, greedily and with
    IDs of the model's own: predicted ones or, of a bare model, such as count up (``SettingError`` for prompts whose IDs
    do not). ``SettingError`` where IDs are to be predicted and the model predicts none.
    """
    device = device_of(model)
    inputs = {name: values.to(device) for name, values in batch.items()}
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    check_has_head(
        inner.num_position_heads if isinstance(inner, IDGenerationMixin) else 0, inputs.get("position_labels")
    )
    return _forced(model, inputs) if decode == "forced" else _free(model, inputs, isinstance(inner, IDGenerationMixin))


def _forced(model: Any, inputs: dict[str, Tensor]) -> Graded:
    tokens, wanted = inputs["input_ids"], inputs.get("position_labels")
    made = model(**inputs)
    logits = made.logits[:, :-1].float()
    written_ids = None if wanted is None else made.predicted_position_ids[:, 1:]
    loss = torch.nn.functional.cross_entropy(logits.mT, tokens[:, 1:], reduction="none")
    return _graded(inputs, logits.argmax(dim=-1), written_ids, loss)


def _free(model: Any, inputs: dict[str, Tensor], takes_ids: bool) -> Graded:
    """Rows of one prompt length at a time; nothing ends early, and what is behind an end is not scored."""
    tokens, ids = inputs["input_ids"], inputs["position_ids"]
    written = torch.full_like(tokens, -1)
    written_ids = torch.full_like(tokens, -1) if "position_labels" in inputs else None
    first = (inputs["labels"] != UNSCORED).int().argmax(dim=1)
    for prompt in first.unique().tolist():
        rows = first == prompt
        given = ids[rows, :prompt]
        if not takes_ids and bool((given != torch.arange(prompt, device=given.device)).any()):
            raise SettingError(
                "this model cannot go on with IDs that do not count up from 0; wrap it, or use decode='forced'"
            )
        with _greedy(model):
            made = model.generate(
                input_ids=tokens[rows, :prompt],
                attention_mask=inputs["attention_mask"][rows, :prompt],
                **({"position_ids": given} if takes_ids else {}),
                max_new_tokens=tokens.shape[1] - prompt,
                pad_token_id=0,
                return_dict_in_generate=True,
            )
        written[rows] = made.sequences
        if written_ids is not None:
            written_ids[rows] = made.position_ids
    return _graded(inputs, written[:, 1:], None if written_ids is None else written_ids[:, 1:], None)


@contextmanager
def _greedy(model: Any) -> Iterator[None]:
    """No setting of a model's own: it may forbid tokens or punish repetition, and a greedy choice is the likeliest."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    own = inner.generation_config
    inner.generation_config = GenerationConfig(do_sample=False, num_beams=1)
    try:
        yield
    finally:
        inner.generation_config = own


def _graded(inputs: dict[str, Tensor], written: Tensor, written_ids: Tensor | None, loss: Tensor | None) -> Graded:
    scored, wanted = inputs["labels"][:, 1:] != UNSCORED, inputs.get("position_labels")
    id_scored, id_right = torch.zeros_like(scored), torch.ones_like(scored)
    if wanted is not None and written_ids is not None:
        id_scored, id_right = wanted[:, 1:] != UNSCORED, written_ids == wanted[:, 1:]
    return Graded(
        token_right=written == inputs["input_ids"][:, 1:],
        id_right=id_right,
        scored=scored,
        id_scored=id_scored,
        # Tokens of others have no name for their end.
        end=torch.zeros_like(scored),
        prompt_offset=scored.int().argmax(dim=1),
        token_loss=loss,
    )


# What rows of our own runs say besides, and a trainer does not know; ``facts`` may.
UNKNOWN = dict.fromkeys(("encoding", "train_lengths", "id_range", "fitted"))
# Batches of one length, with labels, as a collator makes them.
Batches = Callable[[], Iterator[dict[str, Tensor]]]


class EvaluateByLength(TrainerCallback):
    """Measures exact match by length when `Trainer` evaluates, every so many steps, and when training ends.

    ``trainer.add_callback(EvaluateByLength(trainer, ...))``. For ``decode`` see `grade_batch`; where IDs are predicted,
    these have to be right too. One batch's logits are held at a time. Each measurement adds rows to ``results.jsonl``
    of the output folder, and ``eval_exact_match_LENGTH`` to what the trainer logs, so that its trackers see them.
    ``batches`` has for each length a function that begins anew; ``of_task`` and ``of_rows`` make them. ``facts`` are
    written into each row. With ``until_none`` a length without any exact match is the last one measured; longer ones
    have no row, and count as 0 in what is logged.
    """

    def __init__(
        self,
        trainer: Trainer,
        batches: Mapping[int, Batches],
        *,
        every_steps: int | None = None,
        decode: str = "forced",
        until_none: bool = False,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        if not batches:
            raise SettingError("no length to evaluate at; give at least one")
        if every_steps is not None and every_steps < 1:
            raise SettingError(f"every_steps {every_steps} is never; use at least 1, or None")
        if decode not in DECODES:
            raise unknown_name("decode", decode, DECODES)
        self.trainer, self.batches, self.decode = trainer, dict(sorted(batches.items())), decode
        self.every_steps, self.until_none, self.facts = every_steps, until_none, dict(facts or {})
        self._measured_at: int | None = None
        self._latest: dict[str, float] = {}

    @classmethod
    def of_task(
        cls,
        trainer: Trainer,
        task: Task,
        scheme: PositionScheme,
        settings: EvaluationSettings,
        *,
        token_ids: Sequence[int] | None = None,
        every_steps: int | None = None,
    ) -> "EvaluateByLength":
        """With the examples that runs of ours are tested on; ``token_ids`` are the model's for the task's symbols."""
        if settings.variants:
            raise SettingError(
                f"variants {', '.join(settings.variants)} are not measured; give each as a task, to its own callback"
            )
        numbers = torch.arange(len(task.vocabulary)) if token_ids is None else torch.tensor(token_ids)
        if len(numbers) != len(task.vocabulary):
            raise SettingError(
                f"{len(numbers)} token_ids for the {len(task.vocabulary)} symbols of {task.name}; give one for each"
            )

        def batches(place: int, length: int) -> Iterator[dict[str, Tensor]]:
            for _, batch in drawn(task, scheme, length, settings.examples_at(place), settings.seed):
                if len(batch.position_ids) != 1:
                    raise UnsupportedTaskError(
                        f"{task.name} has IDs on several levels and models of transformers on one"
                    )
                ids, tokens = batch.position_ids[0], numbers[batch.tokens]
                made = {
                    "input_ids": tokens,
                    "position_ids": ids,
                    "attention_mask": torch.ones_like(tokens),
                    "labels": torch.where(batch.token_scored, tokens, UNSCORED),
                }
                wanted = {"position_labels": torch.where(batch.id_scored, ids, UNSCORED)}
                yield made | wanted if scheme.predicts_ids else made

        if trainer.model is not None:
            check_id_prediction(trainer.model.config, scheme)
        facts = {**task_facts(task), "scheme": scheme.name}
        by_length = {
            length: lambda place=place, length=length: batches(place, length)
            for place, length in enumerate(settings.lengths)
        }
        decode, until_none = settings.decode, settings.until_none
        return cls(trainer, by_length, every_steps=every_steps, decode=decode, until_none=until_none, facts=facts)

    @classmethod
    def of_rows(  # noqa: PLR0913
        cls,
        trainer: Trainer,
        rows: Iterable[Mapping[str, Any]],
        collator: PositionCollator,
        *,
        batch_size: int = 16,
        every_steps: int | None = None,
        decode: str = "forced",
        until_none: bool = False,
        facts: Mapping[str, Any] | None = None,
    ) -> "EvaluateByLength":
        """With tokenized rows of a data set, which say their ``length``; IDs are those of evaluation."""
        if trainer.model is not None:
            check_id_prediction(trainer.model.config, collator.scheme)
        collator = replace(collator, training=False, pack_to=None)
        by_length: dict[int, list[Mapping[str, Any]]] = {}
        for number, row in enumerate(rows):
            if "length" not in row:
                raise FeatureError(f"row {number} says no length; give each a column length")
            by_length.setdefault(int(row["length"]), []).append(row)

        def batches(own: list[Mapping[str, Any]]) -> Iterator[dict[str, Tensor]]:
            for start in range(0, len(own), batch_size):
                yield collator(own[start : start + batch_size])

        made = {length: lambda own=own: batches(own) for length, own in by_length.items()}
        facts = {"scheme": collator.scheme.name, **(facts or {})}
        return cls(trainer, made, every_steps=every_steps, decode=decode, until_none=until_none, facts=facts)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A training that begins anew is measured anew."""
        self._measured_at = None

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Every so many steps, and at the last one, before trackers hear that training has ended."""
        often = self.every_steps is not None and state.global_step % self.every_steps == 0
        if often or state.global_step >= state.max_steps:
            self.measure(state)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Whenever the trainer evaluates; what it found is among its metrics, by which the best model is chosen."""
        self.measure(state)
        if (metrics := kwargs.get("metrics")) is not None:
            metrics |= self._latest

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """What was trained, where training was stopped before its last step."""
        self.measure(state)

    def measure(self, state: TrainerState) -> list[dict[str, Any]]:
        """The rows of the model as it is, once per step.

        Every process measures all (with sharded weights none can alone, and all may choose the best model by it); the
        first one writes.
        """
        if self._measured_at == state.global_step:
            return []
        self._measured_at = state.global_step
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        training, rows = model.training, []
        model.eval()
        for length, batches in self.batches.items():
            started, tally = time.perf_counter(), Tally()
            for batch in batches():
                tally.add(grade_batch(model, batch, decode=self.decode))
            measured = asdict(tally.result(length, self.decode, 0)) | {
                "wall_s": round(time.perf_counter() - started, 3)
            }
            del measured["largest_distance"]
            seed = self.trainer.args.seed
            known = {"steps": state.global_step, "epoch": state.epoch, "seed": seed}
            rows.append({**UNKNOWN, **known, **self.facts, **measured})
            if self.until_none and measured["exact_match"] == 0:
                break
        model.train(training)
        if state.is_world_process_zero:
            append_rows(Path(self.trainer.args.output_dir or ".") / RESULTS, rows)
        exact = dict.fromkeys(self.batches, 0.0) | {row["length"]: row["exact_match"] for row in rows}
        self._latest = {f"eval_exact_match_{length}": share for length, share in exact.items()}
        self.trainer.log(dict(self._latest))
        return rows

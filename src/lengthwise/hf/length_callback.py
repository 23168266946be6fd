"""Callback of `transformers.Trainer` that measures exact match by length."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import GenerationConfig, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lengthwise.core.errors import SettingError, TokenizedRowError, UnsupportedTaskError, unknown_name_error
from lengthwise.evaluation.exact_match import EvaluationSettings, eval_mode, iter_examples
from lengthwise.evaluation.grading import DECODE_MODES, Grades, GradeTally, LengthResult, measure_each_length
from lengthwise.experiments.run_folder import RESULTS, append_rows
from lengthwise.hf.collators import PositionCollator
from lengthwise.hf.model_inputs import UNSCORED, check_has_position_head
from lengthwise.hf.model_parts import device_of
from lengthwise.hf.position_id_generation import PositionIDGenerationMixin
from lengthwise.hf.position_id_support import check_id_prediction
from lengthwise.positions import PositionScheme, describe_given_information
from lengthwise.tasks import Task, task_result_fields

# Fields of a result row that a trainer does not provide; ``extra_fields`` may set them.
DEFAULT_FIELDS = dict.fromkeys(("encoding", "train_lengths", "id_range", "fitted", "misfit"))
# Function that yields the batches of one length, with labels.
BatchFactory = Callable[[], Iterator[dict[str, Tensor]]]


class EvaluateByLength(TrainerCallback):
    """Callback that measures exact match by length at evaluations, every ``every_steps`` steps, and after training.

    Add it with ``trainer.add_callback(EvaluateByLength.from_task(trainer, ...))``. For each length, ``batches`` has a
    function that yields batches; ``from_task`` and ``from_examples`` create them. `grade_batch` describes ``decode``.
    Each measurement appends rows, which include ``extra_fields``, to ``results.jsonl`` in the output folder, and logs
    ``eval_exact_match_LENGTH``. ``stop_at_zero`` ends a measurement after the first length with an exact match of 0.
    The rows of the longer lengths are marked as ``skipped``, and their exact match counts as 0.
    """

    def __init__(
        self,
        trainer: Trainer,
        batches: Mapping[int, BatchFactory],
        *,
        every_steps: int | None = None,
        decode: str = "forced",
        stop_at_zero: bool = False,
        extra_fields: Mapping[str, Any] | None = None,
    ) -> None:
        if not batches:
            raise SettingError("there are no lengths to evaluate; pass at least one length")
        if every_steps is not None and every_steps < 1:
            raise SettingError(f"invalid every_steps {every_steps}; use at least 1, or None")
        if decode not in DECODE_MODES:
            raise unknown_name_error("decode", decode, DECODE_MODES)
        self.trainer, self.batches, self.decode = trainer, dict(sorted(batches.items())), decode
        self.every_steps, self.stop_at_zero, self.extra_fields = every_steps, stop_at_zero, dict(extra_fields or {})
        self._last_step: int | None = None
        self._rows: list[dict[str, Any]] = []
        self._latest: dict[str, float] = {}

    @classmethod
    def from_task(
        cls,
        trainer: Trainer,
        task: Task,
        scheme: PositionScheme,
        settings: EvaluationSettings,
        *,
        token_ids: Sequence[int | None] | None = None,
        every_steps: int | None = None,
    ) -> "EvaluateByLength":
        """Create a callback for the test examples of a task; ``token_ids`` has the model's token for each symbol.

        Without ``token_ids``, the token of a symbol is its index in the vocabulary, as in `build_symbol_tokenizer`.
        """
        if settings.variants:
            raise SettingError(
                f"variants {', '.join(settings.variants)} are not supported; create one callback per variant"
            )
        symbol_tokens = _symbol_tokens(task, token_ids)

        def iter_batches(index: int, length: int) -> Iterator[dict[str, Tensor]]:
            for _, batch in iter_examples(task, scheme, length, settings.num_examples_at(index), settings.seed):
                if len(batch.position_ids) != 1:
                    raise UnsupportedTaskError(
                        f"{task.name} has IDs on several levels, but transformers models accept one ID per "
                        "token; use another task"
                    )
                ids, tokens = batch.position_ids[0], symbol_tokens[batch.tokens]
                inputs = {
                    "input_ids": tokens,
                    "position_ids": ids,
                    "attention_mask": torch.ones_like(tokens),
                    "labels": torch.where(batch.token_scored, tokens, UNSCORED),
                }
                position_labels = {"position_labels": torch.where(batch.id_scored, ids, UNSCORED)}
                yield inputs | position_labels if scheme.predicts_ids else inputs

        if trainer.model is not None:
            check_id_prediction(trainer.model.config, scheme)
        stop, given = settings.stop_at_zero, describe_given_information(task, scheme)
        fields = {**task_result_fields(task), "scheme": scheme.name, "given": given}
        batches = {length: partial(iter_batches, index, length) for index, length in enumerate(settings.lengths)}
        return cls(
            trainer, batches, every_steps=every_steps, decode=settings.decode, stop_at_zero=stop, extra_fields=fields
        )

    @classmethod
    def from_examples(
        cls,
        trainer: Trainer,
        examples: Iterable[Mapping[str, Any]],
        collator: PositionCollator,
        *,
        batch_size: int = 16,
        every_steps: int | None = None,
        decode: str = "forced",
        stop_at_zero: bool = False,
        extra_fields: Mapping[str, Any] | None = None,
    ) -> "EvaluateByLength":
        """Create a callback for tokenized examples with a column ``length``; ``collator`` assigns evaluation IDs."""
        if trainer.model is not None:
            check_id_prediction(trainer.model.config, collator.scheme)
        collator = replace(collator, training=False, pack_to=None)
        examples_by_length: dict[int, list[Mapping[str, Any]]] = {}
        for example_number, example in enumerate(examples):
            if "length" not in example:
                raise TokenizedRowError(f"example {example_number} has no length; add a column length")
            examples_by_length.setdefault(int(example["length"]), []).append(example)

        def iter_batches(group: list[Mapping[str, Any]]) -> Iterator[dict[str, Tensor]]:
            for batch_start in range(0, len(group), batch_size):
                yield collator(group[batch_start : batch_start + batch_size])

        given = describe_given_information(None, collator.scheme)
        fields = {"scheme": collator.scheme.name, "given": given, **(extra_fields or {})}
        batches = {length: partial(iter_batches, group) for length, group in examples_by_length.items()}
        return cls(
            trainer, batches, every_steps=every_steps, decode=decode, stop_at_zero=stop_at_zero, extra_fields=fields
        )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Reset the step of the last measurement, so that a new training run is measured."""
        self._last_step = None

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Measure every ``every_steps`` steps, and after the last step, before the experiment trackers close."""
        is_due = self.every_steps is not None and state.global_step % self.every_steps == 0
        if is_due or state.global_step >= state.max_steps:
            self.measure(state)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Measure when the trainer evaluates, and add the results to the metrics that select the best model."""
        self.measure(state)
        if (metrics := kwargs.get("metrics")) is not None:
            metrics |= self._latest

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure exact match if training stopped before the last step."""
        self.measure(state)

    def measure(self, state: TrainerState) -> list[dict[str, Any]]:
        """Measure the model and return the rows. A second call at the same step returns the same rows.

        Every process measures all examples, because sharded weights need all processes; the first one writes the rows.
        """
        if self._last_step == state.global_step:
            return self._rows
        self._last_step = state.global_step
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        lengths, rows = list(self.batches), []
        progress = {"steps": state.global_step, "epoch": state.epoch, "seed": self.trainer.args.seed}

        def measure_length(index: int) -> LengthResult:
            tally = GradeTally()
            for batch in self.batches[lengths[index]]():
                tally.add(grade_batch(model, batch, decode=self.decode))
            return tally.result(lengths[index], self.decode)

        with eval_mode(model):
            for result in measure_each_length(lengths, self.decode, measure_length, stop_at_zero=self.stop_at_zero):
                values = asdict(result)
                del values["largest_distance"], values["omitted_weight"]
                rows.append({**DEFAULT_FIELDS, **progress, **self.extra_fields, **values})
        if state.is_world_process_zero:
            append_rows(Path(self.trainer.args.output_dir or ".") / RESULTS, rows)
        self._latest = {f"eval_exact_match_{row['length']}": row["exact_match"] for row in rows}
        self.trainer.log(dict(self._latest))
        self._rows = rows
        return rows


def _symbol_tokens(task: Task, token_ids: Sequence[int | None] | None) -> Int[Tensor, " symbols"]:
    tokens = list(range(len(task.vocabulary))) if token_ids is None else list(token_ids)
    if len(tokens) != len(task.vocabulary):
        problem = f"got {len(tokens)} token_ids for {len(task.vocabulary)} symbols of {task.name}"
        raise SettingError(f"{problem}; pass one token ID per symbol")
    # Tokenizers return None, or the same unknown token, for symbols that they lack.
    pairs = zip(task.vocabulary, tokens, strict=True)
    if lacking := [symbol for symbol, token in pairs if token is None or tokens.count(token) > 1]:
        raise SettingError(
            f"token_ids has no token of its own for {', '.join(lacking[:5])} of {task.name}; use a tokenizer with one "
            "token per symbol"
        )
    return torch.tensor(tokens)


@torch.no_grad()
def grade_batch(model: Any, batch: Mapping[str, Tensor], *, decode: str = "forced") -> Grades:
    """Grade a batch with ``labels`` and, if IDs are predicted, ``position_labels``.

    ``forced`` predicts each token and ID from the correct previous tokens and IDs, in one forward pass. If each prompt
    has one correct answer, greedy decoding is exact if and only if all predictions are correct. ``free`` generates
    greedily, with predicted or consecutive IDs. Raises ``SettingError`` for a model that does not support this.
    """
    device = device_of(model)
    inputs = {name: values.to(device) for name, values in batch.items()}
    base_model = model.get_base_model() if hasattr(model, "get_base_model") else model
    accepts_ids = isinstance(base_model, PositionIDGenerationMixin)
    check_has_position_head(base_model.num_position_heads if accepts_ids else 0, inputs.get("position_labels"))
    targets, loss = inputs["input_ids"][:, 1:], None
    if decode == "forced":
        output = model(**inputs)
        logits = output.logits[:, :-1].float()
        predicted_ids = output.predicted_position_ids if "position_labels" in inputs else None
        tokens, loss = logits.argmax(dim=-1), torch.nn.functional.cross_entropy(logits.mT, targets, reduction="none")
    else:
        generated_tokens, predicted_ids = _generate_responses(model, base_model, inputs, accepts_ids)
        tokens = generated_tokens[:, 1:]
    scored = inputs["labels"][:, 1:] != UNSCORED
    id_scored, id_correct = torch.zeros_like(scored), torch.ones_like(scored)
    if predicted_ids is not None:
        id_targets = inputs["position_labels"][:, 1:]
        id_scored, id_correct = id_targets != UNSCORED, predicted_ids[:, 1:] == id_targets
    return Grades(
        token_correct=tokens == targets,
        id_correct=id_correct,
        scored=scored,
        id_scored=id_scored,
        # The end token of the model is unknown.
        end=torch.zeros_like(scored),
        prompt_offset=scored.int().argmax(dim=1),
        token_loss=loss,
    )


def _generate_responses(
    model: Any, base_model: Any, inputs: dict[str, Tensor], accepts_ids: bool
) -> tuple[Int[Tensor, "batch seq"], Int[Tensor, "batch seq"] | None]:
    """Return the prompts with generated responses, and their IDs if they count. Prompts of one length form a batch."""
    tokens, ids = inputs["input_ids"], inputs["position_ids"]
    new_tokens = torch.full_like(tokens, -1)
    new_ids = torch.full_like(tokens, -1) if "position_labels" in inputs else None
    prompt_length = (inputs["labels"] != UNSCORED).int().argmax(dim=1)
    settings = base_model.generation_config
    # The settings of the model may forbid or penalize tokens.
    base_model.generation_config = GenerationConfig(do_sample=False, num_beams=1)
    try:
        for length in prompt_length.unique().tolist():
            rows = prompt_length == length
            prompt_ids = ids[rows, :length]
            if not accepts_ids and bool((prompt_ids != torch.arange(length, device=device_of(model))).any()):
                raise SettingError(
                    "decode='free' needs a model that predicts IDs, or consecutive prompt IDs from 0; wrap the model "
                    "(PredictivePositionModel.wrap), or use decode='forced'"
                )
            output = model.generate(
                input_ids=tokens[rows, :length],
                attention_mask=inputs["attention_mask"][rows, :length],
                **({"position_ids": prompt_ids} if accepts_ids else {}),
                max_new_tokens=tokens.shape[1] - length,
                pad_token_id=0,
                return_dict_in_generate=True,
            )
            new_tokens[rows] = output.sequences
            if new_ids is not None:
                new_ids[rows] = output.position_ids
    finally:
        base_model.generation_config = settings
    return new_tokens, new_ids

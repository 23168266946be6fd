"""Batches for models of `transformers`: tokenized examples with position IDs by one of our schemes."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from lengthwise.core.errors import (
    FeatureError,
    LengthwiseError,
    ModelError,
    PositionRangeError,
    SettingError,
    UnservedTaskError,
)
from lengthwise.core.randomness import stream
from lengthwise.hf.collator_checks import check_predicts, check_scheme, trained_ids
from lengthwise.hf.columns import UNSCORED, Row, prompt_length, read_row
from lengthwise.hf.id_generation import PredictsIDs
from lengthwise.hf.layout import lay_out
from lengthwise.hf.masks import causal_mask
from lengthwise.hf.takes_ids import check_follows_ids
from lengthwise.positions import Assignment, PositionScheme
from lengthwise.tasks.examples import Examples

SIDES = ("right", "left")


@dataclass(frozen=True, slots=True)
class PositionCollator:
    """A data collator for ``transformers.Trainer``, TRL's ``SFTTrainer`` and PyTorch's ``DataLoader``.

    Each example is a mapping with ``input_ids``, unpadded, one number per token in all columns. Answers are the tokens
    that ``labels`` (-100 elsewhere), ``completion_mask``, ``assistant_masks`` and ``prompt_length`` agree on, as far as
    they are there; without any, all tokens but the first. A scheme that needs a coupling reads the column ``coupling``,
    or ``spans`` with ``offset_mapping`` (`lengthwise.hf.spans`); one that needs places reads ``places``.

    A batch has ``input_ids``, ``position_ids`` (0 for padding), ``labels`` (not shifted; -100 where the loss asks
    nothing) and an ``attention_mask``: without one, `transformers` takes a jump in the IDs for the start of another
    text and hides what is before. Where the scheme predicts IDs, ``position_labels`` has those to be predicted, not
    shifted either. ``pack_to`` puts several examples into a row of at most that many tokens: the mask is then 4-D, in
    ``dtype``, and keeps them apart for eager and sdpa attention; ``sequence_ids`` numbers the examples of a row, -1 for
    padding.

    IDs are drawn anew by every call, from torch's default generator: other ones each epoch, the same ones under the
    same seed, in workers too. They stay below ``num_position_ids``. With ``training=False`` they are those of
    evaluation; `Trainer` has one collator for both, so set ``trainer.data_collator`` before ``trainer.evaluate()``.

    ``Trainer`` needs ``remove_unused_columns=False``; ``SFTTrainer`` that and
    ``dataset_kwargs={"skip_prepare_dataset": True}``, and truncates nothing then. Its ``num_tokens`` means nothing with
    ``pack_to``. Raises ``FeatureError`` or ``PositionRangeError``, which name the row of the batch.
    """

    scheme: PositionScheme
    pad_token_id: int
    _: KW_ONLY
    num_position_ids: int | None = None
    padding_side: str = "right"
    pack_to: int | None = None
    pad_to_multiple_of: int | None = None
    dtype: torch.dtype = torch.float32
    training: bool = True

    def __post_init__(self) -> None:
        check_scheme(self.scheme, self.num_position_ids)
        if self.padding_side not in SIDES:
            raise SettingError(f"padding_side '{self.padding_side}' is unknown; choose one of {', '.join(SIDES)}")
        for setting, value in (("pack_to", self.pack_to), ("pad_to_multiple_of", self.pad_to_multiple_of)):
            if value is not None and value < 1:
                raise SettingError(f"{setting} {value} leaves no token; use at least 1, or None")
        if self.pack_to is not None and self.pad_to_multiple_of is not None and self.pack_to % self.pad_to_multiple_of:
            raise SettingError(
                f"pack_to {self.pack_to} is no multiple of pad_to_multiple_of {self.pad_to_multiple_of}, so that full "
                "rows would get longer; make it one"
            )

    @classmethod
    def for_model(
        cls,
        model: torch.nn.Module | PreTrainedConfig,
        scheme: PositionScheme,
        tokenizer: PreTrainedTokenizerBase,
        *,
        beyond_trained: bool = False,
        pack_to: int | None = None,
        pad_to_multiple_of: int | None = None,
    ) -> "PositionCollator":
        """A collator that fits a model, or its configuration, and its tokenizer.

        The pad token and its side are those of the tokenizer, IDs stay below the model's ``max_position_embeddings``,
        and a packed mask has its dtype. ``beyond_trained`` lets IDs pass it: for a model that computes positions (such
        as rotary ones); one that looks them up in a table (such as GPT-2) has none there. Raises ``ModelError`` for a
        model whose attention would not keep to the mask, that predicts the same under any IDs, or that predicts no IDs
        where the scheme asks for them, and ``PositionRangeError`` for a scheme of more IDs.
        """
        config = model if isinstance(model, PreTrainedConfig) else getattr(model, "config", None)
        if not isinstance(config, PreTrainedConfig):
            raise ModelError(f"{type(model).__name__} is no model of transformers; give one, or its configuration")
        check_predicts(config, scheme)
        trained = trained_ids(config, pack_to)
        if isinstance(model, PreTrainedModel) and not isinstance(model, PredictsIDs):
            check_follows_ids(model)
        if not beyond_trained and scheme.num_position_ids is not None and scheme.num_position_ids > trained:
            raise PositionRangeError(
                f"{scheme.name} gives IDs below {scheme.num_position_ids} and {config.model_type} was made for those "
                f"below {trained}; set the scheme's num_position_ids to {trained}, or pass beyond_trained=True"
            )
        if tokenizer.pad_token_id is None:
            raise ModelError(
                "the tokenizer has no pad token; set one, such as tokenizer.pad_token = tokenizer.eos_token"
            )
        dtype = getattr(model, "dtype", None)
        return cls(
            scheme,
            int(tokenizer.pad_token_id),
            num_position_ids=None if beyond_trained else trained,
            padding_side=tokenizer.padding_side,
            pack_to=pack_to,
            pad_to_multiple_of=pad_to_multiple_of,
            dtype=dtype if isinstance(dtype, torch.dtype) else torch.float32,
        )

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """The batch of some examples, as its class says."""
        if not features:
            raise FeatureError("the batch has no row; give at least one")
        read = [self._read(number, feature) for number, feature in enumerate(features)]
        assigned = self._assign(read)
        ids = [given.position_ids[0, 0] for given in assigned]
        labels = [
            np.where(row.is_answer & given.token_scored[0], row.labels, UNSCORED)
            for row, given in zip(read, assigned, strict=True)
        ]
        layout = lay_out(
            [len(row.tokens) for row in read],
            pack_to=self.pack_to,
            left=self.padding_side == "left",
            multiple=self.pad_to_multiple_of,
        )
        sequence_ids = layout.sequence_ids
        inside = sequence_ids >= 0
        batch = {
            "input_ids": layout.place([row.tokens for row in read], self.pad_token_id),
            "attention_mask": inside.long(),
            "position_ids": layout.place(ids, 0),
            "labels": layout.place(labels, UNSCORED),
        }
        if self.scheme.predicts_ids:
            wanted = [np.where(given.id_scored[0], given.position_ids[0, 0], UNSCORED) for given in assigned]
            batch["position_labels"] = layout.place(wanted, UNSCORED)
        if self.pack_to is not None:
            batch["attention_mask"] = causal_mask(inside, sequence_ids=sequence_ids, dtype=self.dtype)
            batch["sequence_ids"] = sequence_ids
        return batch

    def prompts(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Return the batch of the prompts alone, for ``model.generate(**batch)``.

        A prompt is what stands before the first answer, or a whole row without a column that marks answers. IDs are
        those of evaluation, and padding is on the left.
        """
        made = replace(self, training=False, pack_to=None, padding_side="left")(features)
        pieces = [
            {name: made[name][row, made["attention_mask"][row] == 1][:length] for name in ("input_ids", "position_ids")}
            for row, length in enumerate(prompt_length(feature) for feature in features)
        ]
        layout = lay_out([len(piece["input_ids"]) for piece in pieces], pack_to=None, left=True, multiple=None)
        fills = {"input_ids": self.pad_token_id, "position_ids": 0}
        batch = {name: layout.place([piece[name].numpy() for piece in pieces], fill) for name, fill in fills.items()}
        return batch | {"attention_mask": (layout.sequence_ids >= 0).long()}

    def _read(self, number: int, feature: Mapping[str, Any]) -> Row:
        try:
            row = read_row(feature, self.scheme.needs)
        except FeatureError as error:
            raise FeatureError(f"row {number} of the batch: {error}") from None
        if self.pack_to is not None and len(row.tokens) > self.pack_to:
            raise FeatureError(
                f"row {number} of the batch: {len(row.tokens)} tokens do not fit into pack_to {self.pack_to}; "
                "truncate or drop the row, or raise pack_to"
            )
        return row

    def _assign(self, read: Sequence[Row]) -> list[Assignment]:
        """What the scheme gives each row, which sees rows of one length at a time and so no padding."""
        rng = _new_generator()
        lengths = np.array([len(row.tokens) for row in read])
        assigned: dict[int, Assignment] = {}
        for length in np.unique(lengths):
            numbers = np.flatnonzero(lengths == length)
            given = self._assign_alike(read, numbers, rng)
            largest = given.position_ids.max(axis=(0, 2))
            for place, number in enumerate(numbers):
                self._check_range(int(number), int(largest[place]))
                assigned[int(number)] = _of_one(given, place)
        return [assigned[number] for number in range(len(read))]

    def _assign_alike(
        self, read: Sequence[Row], numbers: Int[np.ndarray, " some"], rng: np.random.Generator
    ) -> Assignment:
        try:
            given = self.scheme.assign(self._examples([read[n] for n in numbers]), rng, training=self.training)
        except LengthwiseError:
            # Which of the rows it is: those before it pass alone.
            for number in numbers:
                try:
                    self.scheme.assign(self._examples([read[number]]), rng, training=self.training)
                except LengthwiseError as error:
                    raise type(error)(f"row {number} of the batch: {error}") from None
            raise
        if len(given.position_ids) != 1:
            raise UnservedTaskError(
                f"{self.scheme.name} gives {len(given.position_ids)} IDs per token and models of transformers take "
                "one; use a scheme of one level"
            )
        return given

    def _check_range(self, number: int, largest: int) -> None:
        if self.num_position_ids is not None and largest >= self.num_position_ids:
            raise PositionRangeError(
                f"row {number} of the batch: its IDs reach {largest} and have to stay below {self.num_position_ids}; "
                "shorten it, or raise num_position_ids if the model can read them"
            )

    def _examples(self, rows: Sequence[Row]) -> Examples:
        is_answer = np.stack([row.is_answer for row in rows])
        first = np.where(is_answer.any(axis=1), is_answer.argmax(axis=1), is_answer.shape[1])
        parts: dict[str, Any] = {}
        if self.scheme.needs is not None:
            numbers = np.stack([row.read for row in rows if row.read is not None])
            parts[self.scheme.needs] = numbers[None] if self.scheme.needs == "coupling" else numbers
        return Examples(
            tokens=np.stack([row.tokens for row in rows]), prompt_length=first, is_answer=is_answer, **parts
        )


def _of_one(given: Assignment, place: int) -> Assignment:
    rows = slice(place, place + 1)
    return Assignment(
        position_ids=given.position_ids[:, rows],
        token_scored=given.token_scored[rows],
        id_scored=given.id_scored[rows],
    )


def _new_generator() -> np.random.Generator:
    """Seeded by torch's default generator, which `Trainer` seeds, and anew in each worker and epoch."""
    seed = int(torch.randint(1 << 62, ()))
    # Processes that train together share a seed, and should not share their gaps.
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    return stream(seed, "collated position IDs", torch.distributed.get_rank() if together else 0)

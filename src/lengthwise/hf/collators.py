"""Data collator for `transformers` models: batches of tokenized examples with the IDs of a position scheme."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from lengthwise.core.errors import (
    LengthwiseError,
    ModelError,
    PositionRangeError,
    SettingError,
    TokenizedRowError,
    UnsupportedTaskError,
)
from lengthwise.core.randomness import random_stream
from lengthwise.core.type_checks import check_arguments, check_types
from lengthwise.hf.model_inputs import UNSCORED, causal_mask
from lengthwise.hf.position_id_generation import PositionIDGenerationMixin
from lengthwise.hf.position_id_support import (
    check_id_prediction,
    check_scheme,
    check_uses_position_ids,
    position_id_limit,
)
from lengthwise.positions import Assignment, PositionScheme
from lengthwise.tasks.examples import Examples

PADDING_SIDES = ("right", "left")
# Columns with the value 1 at answer tokens. TRL creates ``assistant_masks`` for chats.
ANSWER_MASKS = ("completion_mask", "assistant_masks")
# Exclusive upper bound of the groups, so that adding gaps cannot overflow.
GROUP_LIMIT = 1 << 30
SPAN_FORMAT, OFFSET_FORMAT = "[start, end, group] in characters", "[start, end] per token, as returned by the tokenizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedExample:
    """Example without padding: tokens, labels, answer mask, and the column that the position scheme needs."""

    tokens: Int[np.ndarray, " seq"]
    labels: Int[np.ndarray, " seq"]
    is_answer: Bool[np.ndarray, " seq"]
    scheme_column: Int[np.ndarray, " seq"] | None


def read_example(feature: Mapping[str, Any], scheme_column: str | None) -> TokenizedExample:
    """Read the columns of an example (None: missing); raise ``TokenizedRowError`` for an invalid column."""
    if feature.get("input_ids") is None:
        raise TokenizedRowError(
            f"input_ids are missing (columns: {', '.join(map(str, feature)) or 'none'}); tokenize the data set first, "
            "and set remove_unused_columns=False"
        )
    tokens = to_integer_array("input_ids", feature["input_ids"])
    if not len(tokens):
        raise TokenizedRowError("input_ids is empty; remove the example")
    mask = _read_token_values(feature, "attention_mask", len(tokens))
    if mask is not None and not mask.all():
        raise TokenizedRowError("attention_mask hides tokens, so the example is padded; tokenize with padding=False")
    labels = _read_token_values(feature, "labels", len(tokens))
    return TokenizedExample(
        tokens=tokens,
        labels=tokens if labels is None else labels,
        is_answer=_build_answer_mask(feature, labels, len(tokens)),
        scheme_column=None if scheme_column is None else _read_scheme_column(feature, scheme_column, len(tokens)),
    )


def count_prompt_tokens(feature: Mapping[str, Any]) -> int:
    """Return the number of tokens before the first answer token, or of all tokens if no column marks answer tokens."""
    example = read_example(feature, None)
    has_answers = any(feature.get(name) is not None for name in ("labels", "prompt_length", *ANSWER_MASKS))
    return int(example.is_answer.argmax()) if has_answers and example.is_answer.any() else len(example.tokens)


def to_integer_array(
    name: str, values: Any, *, width: int | None = None, content: str = "integers"
) -> Int[np.ndarray, "*shape"]:
    """Convert a list, array or tensor to int64 of shape (seq,) or (seq, width), or raise ``TokenizedRowError``.

    ``name`` and ``content`` describe the column and its valid values in the error message.
    """
    try:
        array = np.asarray(values)
    except (ValueError, TypeError):
        array = np.array(None)
    item_shape = () if width is None else (width,)
    shape = array.shape[1:] if array.size else item_shape
    is_integer = array.dtype.kind in "iub" or array.size == 0
    if array.ndim == 0 or not is_integer or shape != item_shape:
        text = " ".join(repr(values).split())
        text = text if len(text) <= 40 else f"{text[:40]}..."
        raise TokenizedRowError(f"invalid {name} {text}; use a list of {content}")
    return array.astype(np.int64).reshape(len(array), *shape)


def coupling_groups_from_spans(spans: Sequence[Any], offsets: Sequence[Any], *, truncated: bool = False) -> list[int]:
    """Return the coupling group of each token, from character spans and the offsets of the tokens.

    Each span is ``[start, end, group]`` with an exclusive ``end`` and a group of 0 or more. ``offsets`` contains
    ``[start, end]`` per token, as in ``offset_mapping`` of a fast tokenizer. A token gets the group of the span that
    it overlaps. Any other token, including special tokens, gets the group of the previous token plus one (0 at the
    start). Groups never depend on later tokens, so a prompt has the same groups with and without its response.
    ``truncated=True`` ignores spans before the first token or after the last token. Raises ``TokenizedRowError`` for a
    token that overlaps spans of two groups, a span without a token, and a span that ends after the last token.
    """
    span_start, span_end, span_group = to_integer_array("spans", spans, width=3, content=SPAN_FORMAT).T
    token_start, token_end = to_integer_array("offset_mapping", offsets, width=2, content=OFFSET_FORMAT).T
    _check_spans(span_start, span_end, span_group)
    _check_offsets(token_start, token_end)
    # A special token contains no characters, so it overlaps no span.
    has_text = token_end > token_start
    overlaps = (token_start[:, None] < span_end) & (token_end[:, None] > span_start) & has_text[:, None]
    has_span = overlaps.any(axis=1)
    lowest = np.where(overlaps, span_group, GROUP_LIMIT).min(axis=1, initial=GROUP_LIMIT)
    highest = np.where(overlaps, span_group, -1).max(axis=1, initial=-1)
    if (has_conflict := has_span & (lowest < highest)).any():
        token = int(has_conflict.argmax())
        raise TokenizedRowError(
            f"token {token} (characters {token_start[token]} to {token_end[token]}) belongs to the groups "
            f"{lowest[token]} and {highest[token]}; change the spans, or insert a space between them in the text"
        )
    text_end = token_end.max(initial=0)
    if not truncated and (is_beyond := span_end > text_end).any():
        span = int(is_beyond.argmax())
        raise TokenizedRowError(
            f"the span {span_start[span]} to {span_end[span]} (group {span_group[span]}) ends after the last token, "
            f"which ends at {text_end}; fix the span, or compute the column coupling of a truncated text with "
            "coupling_groups_from_spans(..., truncated=True)"
        )
    is_inside = (span_start < text_end) & (span_end > token_start[has_text].min(initial=GROUP_LIMIT))
    is_missed = ~overlaps.any(axis=0) & (is_inside | (not truncated))
    if is_missed.any():
        span = int(is_missed.argmax())
        raise TokenizedRowError(
            f"no token contains a character of the span {span_start[span]} to {span_end[span]} (group "
            f"{span_group[span]}); move the span to characters that the tokenizer keeps"
        )
    token_index = np.arange(len(highest))
    last_span = np.maximum.accumulate(np.where(has_span, token_index, -1))
    return np.where(last_span < 0, token_index, highest[last_span] + token_index - last_span).tolist()


def _check_offsets(token_start: Int[np.ndarray, " seq"], token_end: Int[np.ndarray, " seq"]) -> None:
    if (is_invalid := (token_start < 0) | (token_end < token_start)).any():
        token = int(is_invalid.argmax())
        raise TokenizedRowError(
            f"invalid offset_mapping {[int(token_start[token]), int(token_end[token])]} of token {token}; use "
            "[start, end] with 0 <= start <= end"
        )
    tokens = np.flatnonzero(token_end > token_start)
    if (is_decrease := np.diff(token_start[tokens]) < 0).any():
        decrease_index = int(is_decrease.argmax())
        previous, token = tokens[decrease_index : decrease_index + 2]
        raise TokenizedRowError(
            f"offset_mapping decreases from {token_start[previous]} to {token_start[token]} at token {token}, which "
            "happens for a pair of texts; tokenize prompt and response as one text"
        )


def _check_spans(
    span_start: Int[np.ndarray, " span"], span_end: Int[np.ndarray, " span"], span_group: Int[np.ndarray, " span"]
) -> None:
    is_invalid = (span_start < 0) | (span_end <= span_start) | (span_group < 0) | (span_group >= GROUP_LIMIT)
    if is_invalid.any():
        span = int(is_invalid.argmax())
        raise TokenizedRowError(
            f"invalid span {[int(span_start[span]), int(span_end[span]), int(span_group[span])]}; use [start, end, "
            f"group] with 0 <= start < end and 0 <= group < {GROUP_LIMIT}"
        )


def _read_token_values(feature: Mapping[str, Any], name: str, seq: int) -> Int[np.ndarray, " seq"] | None:
    if feature.get(name) is None:
        return None
    token_values = to_integer_array(name, feature[name])
    if len(token_values) != seq:
        raise TokenizedRowError(f"{name} has {len(token_values)} values for {seq} tokens; give one value per token")
    return token_values


def _build_answer_mask(
    feature: Mapping[str, Any], labels: Int[np.ndarray, " seq"] | None, seq: int
) -> Bool[np.ndarray, " seq"]:
    # The first token has no prediction, so it cannot be scored.
    is_answer = np.arange(seq) > 0
    if labels is not None:
        is_answer &= labels != UNSCORED
    for name in ANSWER_MASKS:
        mask = _read_token_values(feature, name, seq)
        if mask is not None:
            is_answer &= mask != 0
    if (prompt := feature.get("prompt_length")) is not None:
        length = to_integer_array("prompt_length", [prompt], content="one integer").item()
        if not 0 <= length <= seq:
            raise TokenizedRowError(f"prompt_length is {length}, but the example has {seq} tokens; use 0 to {seq}")
        is_answer &= np.arange(seq) >= length
    return is_answer


def _read_scheme_column(feature: Mapping[str, Any], name: str, seq: int) -> Int[np.ndarray, " seq"]:
    column = _read_token_values(feature, name, seq)
    if column is None and name == "coupling" and feature.get("spans") is not None:
        offsets = feature.get("offset_mapping")
        if offsets is None:
            raise TokenizedRowError("spans need an offset_mapping; tokenize with return_offsets_mapping=True")
        if len(offsets) != seq:
            raise TokenizedRowError(
                f"offset_mapping has {len(offsets)} pairs for {seq} tokens; give one pair per token"
            )
        column = np.array(coupling_groups_from_spans(feature["spans"], offsets))
    if column is None:
        alternative = ", or spans with an offset_mapping" if name == "coupling" else ""
        raise TokenizedRowError(
            f"the column {name} is missing; add it with one integer per token{alternative}, keep it with "
            "remove_unused_columns=False, or use a scheme that needs no column"
        )
    if (is_invalid := (column < 0) | (column >= GROUP_LIMIT)).any():
        raise TokenizedRowError(
            f"invalid {name} {column[is_invalid.argmax()]}; use integers from 0 to {GROUP_LIMIT - 1}"
        )
    return column


def pack_first_fit(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Return packs of example indexes by first-fit decreasing; each pack has at most ``max_tokens`` tokens in total."""
    packs: list[list[int]] = []
    free_tokens: list[int] = []
    for example in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        pack_index = next((index for index, free in enumerate(free_tokens) if free >= lengths[example]), len(packs))
        if pack_index == len(packs):
            packs.append([])
            free_tokens.append(max_tokens)
        packs[pack_index].append(example)
        free_tokens[pack_index] -= lengths[example]
    return packs


@dataclass(frozen=True, slots=True)
class PositionCollator:
    """Data collator for ``transformers.Trainer``, TRL's ``SFTTrainer`` and PyTorch's ``DataLoader``.

    Each example is a mapping with unpadded ``input_ids``. The columns ``labels`` (-100 outside the answer),
    ``completion_mask``, ``assistant_masks`` and ``prompt_length`` mark answer tokens. If several are present, all of
    them must mark an answer token; if none is present, all tokens except the first are answer tokens. Schemes that need
    a coupling read ``coupling`` (one integer per token), or ``spans`` with ``offset_mapping``
    (`coupling_groups_from_spans`). Schemes that need ``step_index`` read it (one integer per token).

    A batch has ``input_ids``, ``position_ids`` (0 for padding), ``labels`` (unshifted, -100 where not scored) and an
    ``attention_mask``. Without a mask, `transformers` treats a gap in the IDs as the start of another text. If the
    scheme predicts IDs, the batch also has ``position_labels`` (unshifted, -100 where not scored). With ``pack_to``,
    several examples share a row of at most that many tokens. The attention mask is then 4-D, with the dtype ``dtype``,
    so that tokens attend only to their example; ``sequence_ids`` numbers the examples of a row (-1: padding).

    Each call samples new IDs below ``num_position_ids`` from torch's default generator, so torch's seed makes a run
    reproducible, also in workers. ``training=False`` selects evaluation IDs. `Trainer` has one collator for training
    and evaluation, so replace ``trainer.data_collator`` before ``trainer.evaluate()``.

    `Trainer` needs ``remove_unused_columns=False``. `SFTTrainer` also needs
    ``dataset_kwargs={"skip_prepare_dataset": True}`` and then does not truncate; with ``pack_to``, its ``num_tokens``
    is wrong. ``TokenizedRowError`` and ``PositionRangeError`` name the invalid example of the batch.
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
        check_types(self)
        check_scheme(self.scheme, self.num_position_ids)
        if self.padding_side not in PADDING_SIDES:
            raise SettingError(f"invalid padding_side '{self.padding_side}'; use one of {', '.join(PADDING_SIDES)}")
        for setting, value in (("pack_to", self.pack_to), ("pad_to_multiple_of", self.pad_to_multiple_of)):
            if value is not None and value < 1:
                raise SettingError(f"invalid {setting} {value}; use at least 1, or None")
        if self.pack_to is not None and self.pad_to_multiple_of is not None and self.pack_to % self.pad_to_multiple_of:
            raise SettingError(
                f"pack_to {self.pack_to} is not a multiple of pad_to_multiple_of {self.pad_to_multiple_of}, so full "
                f"rows would exceed pack_to; set pack_to to a multiple of {self.pad_to_multiple_of}"
            )

    @classmethod
    @check_arguments
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
        """Return a collator for a model, or its configuration, and its tokenizer.

        The tokenizer provides the pad token and the padding side. The model provides the upper bound of the IDs
        (``max_position_embeddings``) and the dtype of packed masks. ``beyond_trained`` removes the bound, for models
        with rotary positions. Raises ``ModelError`` for a model that ignores the mask or the IDs, or that does not
        predict the IDs of the scheme, and ``PositionRangeError`` for IDs beyond the bound.
        """
        config = model if isinstance(model, PreTrainedConfig) else getattr(model, "config", None)
        if not isinstance(config, PreTrainedConfig):
            raise ModelError(f"{type(model).__name__} is not a transformers model; pass a model or its configuration")
        check_id_prediction(config, scheme)
        max_num_ids = position_id_limit(config, pack_to)
        if isinstance(model, PreTrainedModel) and not isinstance(model, PositionIDGenerationMixin):
            check_uses_position_ids(model)
        if not beyond_trained and scheme.num_position_ids is not None and scheme.num_position_ids > max_num_ids:
            raise PositionRangeError(
                f"{scheme.name} assigns IDs below {scheme.num_position_ids}, but {config.model_type} supports IDs "
                f"below {max_num_ids}; set the scheme's num_position_ids to at most {max_num_ids}, or pass "
                "beyond_trained=True"
            )
        if tokenizer.pad_token_id is None:
            raise ModelError(
                "the tokenizer has no pad token; set it, for example tokenizer.pad_token = tokenizer.eos_token"
            )
        dtype = getattr(model, "dtype", None)
        return cls(
            scheme,
            int(tokenizer.pad_token_id),
            num_position_ids=None if beyond_trained else max_num_ids,
            padding_side=tokenizer.padding_side,
            pack_to=pack_to,
            pad_to_multiple_of=pad_to_multiple_of,
            dtype=dtype if isinstance(dtype, torch.dtype) else torch.float32,
        )

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Collate tokenized examples into a batch."""
        if not features:
            raise TokenizedRowError("the batch is empty; pass at least one example")
        examples = [self._read_example(index, feature) for index, feature in enumerate(features)]
        position_ids, token_scored, id_scored = zip(*self._assign(examples), strict=True)
        pairs = zip(examples, token_scored, strict=True)
        labels = [np.where(example.is_answer & scored, example.labels, UNSCORED) for example, scored in pairs]
        lengths = [len(example.tokens) for example in examples]
        packs = [[index] for index in range(len(lengths))]
        if self.pack_to is not None:
            packs = pack_first_fit(lengths, self.pack_to)
        numbers = {index: number for pack in packs for number, index in enumerate(pack)}
        sequence_ids = self._arrange(
            [np.full(length, numbers[index]) for index, length in enumerate(lengths)], packs, -1
        )
        is_token = sequence_ids >= 0
        batch = {
            "input_ids": self._arrange([example.tokens for example in examples], packs, self.pad_token_id),
            "attention_mask": is_token.long(),
            "position_ids": self._arrange(position_ids, packs, 0),
            "labels": self._arrange(labels, packs, UNSCORED),
        }
        if self.scheme.predicts_ids:
            position_labels = [np.where(*pair, UNSCORED) for pair in zip(id_scored, position_ids, strict=True)]
            batch["position_labels"] = self._arrange(position_labels, packs, UNSCORED)
        if self.pack_to is not None:
            batch["attention_mask"] = causal_mask(is_token, sequence_ids=sequence_ids, dtype=self.dtype)
            batch["sequence_ids"] = sequence_ids
        return batch

    def prompts(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Return a left-padded batch of prompts without answers, with evaluation IDs, for ``model.generate(**batch)``.

        The prompt ends before the first answer token. Without a column that marks answers, the example is the prompt.
        """
        batch = replace(self, training=False, pack_to=None, padding_side="left")(features)
        is_token, prompts = batch["attention_mask"].bool(), {}
        prompt_lengths = [count_prompt_tokens(feature) for feature in features]
        for name, fill_value in (("attention_mask", 0), ("input_ids", self.pad_token_id), ("position_ids", 0)):
            cells = zip(batch[name], is_token, prompt_lengths, strict=True)
            rows = [values[mask][:length] for values, mask, length in cells]
            prompts[name] = pad_sequence(rows, batch_first=True, padding_value=fill_value, padding_side="left")
        return prompts

    def _arrange(
        self, values: Sequence[np.ndarray], packs: Sequence[Sequence[int]], fill_value: int
    ) -> Int[Tensor, "batch seq"]:
        """Arrange one integer array per example into a batch with one row per pack, and ``fill_value`` at padding."""
        rows = [torch.from_numpy(np.concatenate([values[index] for index in pack], dtype=np.int64)) for pack in packs]
        batch = pad_sequence(rows, batch_first=True, padding_value=fill_value, padding_side=self.padding_side)
        num_missing = -batch.shape[1] % (self.pad_to_multiple_of or 1)
        return pad(batch, (num_missing, 0) if self.padding_side == "left" else (0, num_missing), value=fill_value)

    def _read_example(self, index: int, feature: Mapping[str, Any]) -> TokenizedExample:
        try:
            example = read_example(feature, self.scheme.needs)
        except TokenizedRowError as error:
            raise TokenizedRowError(f"example {index} of the batch: {error}") from None
        if self.pack_to is not None and len(example.tokens) > self.pack_to:
            raise TokenizedRowError(
                f"example {index} of the batch: {len(example.tokens)} tokens exceed pack_to {self.pack_to}; "
                "truncate or drop the example, or raise pack_to"
            )
        return example

    def _assign(self, examples: Sequence[TokenizedExample]) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Return the IDs of each example, and the masks of the tokens and of the IDs that count.

        Examples of one length get IDs at a time, so that padding never changes an ID.
        """
        # `Trainer` seeds torch's generator differently in each worker. Distributed processes have the same seed, but
        # need different IDs.
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        rank = torch.distributed.get_rank() if distributed else 0
        rng = random_stream(int(torch.randint(1 << 62, ())), "collated position IDs", rank)
        lengths = np.array([len(example.tokens) for example in examples])
        assigned: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        for length in np.unique(lengths):
            indices = np.flatnonzero(lengths == length).tolist()
            assignment = self._assign_one_length([examples[index] for index in indices], indices, rng)
            for row, index in enumerate(indices):
                ids = assignment.position_ids[0, row]
                if self.num_position_ids is not None and ids.max() >= self.num_position_ids:
                    raise PositionRangeError(
                        f"example {index} of the batch: its position IDs reach {ids.max()}, but the limit is "
                        f"{self.num_position_ids - 1}; shorten the example, or raise num_position_ids if the model "
                        "supports larger IDs"
                    )
                assigned[index] = ids, assignment.token_scored[row], assignment.id_scored[row]
        return [assigned[index] for index in range(len(examples))]

    def _assign_one_length(
        self, examples: Sequence[TokenizedExample], indices: Sequence[int], rng: np.random.Generator
    ) -> Assignment:
        try:
            assignment = self.scheme.assign(self._stack_examples(examples), rng, training=self.training)
        except LengthwiseError:
            # Find the example that fails.
            for index, example in zip(indices, examples, strict=True):
                try:
                    self.scheme.assign(self._stack_examples([example]), rng, training=self.training)
                except LengthwiseError as error:
                    raise type(error)(f"example {index} of the batch: {error}") from None
            raise
        if len(assignment.position_ids) != 1:
            raise UnsupportedTaskError(
                f"{self.scheme.name} assigns {len(assignment.position_ids)} IDs per token, but transformers models "
                "accept one; use a scheme with one level"
            )
        return assignment

    def _stack_examples(self, examples: Sequence[TokenizedExample]) -> Examples:
        is_answer = np.stack([example.is_answer for example in examples])
        prompt_lengths = np.where(is_answer.any(axis=1), is_answer.argmax(axis=1), is_answer.shape[1])
        scheme_data: dict[str, Any] = {}
        if self.scheme.needs is not None:
            columns = np.stack([example.scheme_column for example in examples if example.scheme_column is not None])
            scheme_data[self.scheme.needs] = columns[None] if self.scheme.needs == "coupling" else columns
        tokens = np.stack([example.tokens for example in examples])
        return Examples(tokens=tokens, prompt_length=prompt_lengths, is_answer=is_answer, **scheme_data)

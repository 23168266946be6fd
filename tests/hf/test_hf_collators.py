"""Tests of collated batches and masks: IDs independent of padding and packing, errors that name the example."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from tests.support.cases import small_scheme
from tests.support.causal_models import CONFIGS, MAX_POSITIONS, VOCABULARY_SIZE, causal_model
from tokenizers import Tokenizer, models
from transformers import BloomConfig, PreTrainedTokenizerFast

from lengthwise.core.errors import LengthwiseError, ModelError, PositionRangeError, SettingError, TokenizedRowError
from lengthwise.hf.collators import PositionCollator, pack_first_fit
from lengthwise.hf.model_inputs import causal_mask
from lengthwise.positions import SCHEMES, Coupled, DiscoveredCoupling, PositionScheme, Randomized, Sequential, Skipwise

RANGE = 64
LENGTHS = (7, 12, 7, 3, 9, 12, 5)
SUPPORTED_SCHEMES = [name for name, scheme in SCHEMES.items() if not scheme.real_valued and name != "discovered"]
over_schemes = pytest.mark.parametrize("name", SUPPORTED_SCHEMES)
over_training = pytest.mark.parametrize("training", [True, False])
over_models = pytest.mark.parametrize("model", ["llama", "gpt_neox"])
over_attention = pytest.mark.parametrize("attention", ["eager", "sdpa"])


def features(lengths=LENGTHS) -> list[dict]:
    """Return examples with distinct tokens and all columns that a scheme may read."""
    rng = np.random.default_rng(1)
    first, examples = 3, []
    for length in lengths:
        examples.append(
            {
                "input_ids": list(range(first, first + length)),
                "prompt_length": length // 2,
                "coupling": rng.integers(0, length, size=length).tolist(),
                "step_index": rng.integers(0, length, size=length).tolist(),
                "text": "ignored",
            }
        )
        first += length
    return examples


class Recorder(PositionScheme):
    """Scheme that records its inputs and outputs, example by example."""

    name = "recorder"

    def __init__(self, scheme: PositionScheme):
        self.scheme, self.calls = scheme, []
        self.needs, self.predicts_ids = scheme.needs, scheme.predicts_ids

    def assign(self, examples, rng, *, training):
        """Call the scheme and record the call."""
        assignment = self.scheme.assign(examples, rng, training=training)
        for row in range(len(examples)):
            example = examples.select(np.array([row]))
            self.calls.append((example, assignment.position_ids[0, row], assignment.id_scored[row], training))
        return assignment


def collated(scheme, rows, **settings) -> dict[str, torch.Tensor]:
    return PositionCollator(scheme, 0, **settings)(rows)


def pieces(batch: dict[str, torch.Tensor], key: str) -> dict[int, list[int]]:
    """Return the values of each example by its first token."""
    packed = "sequence_ids" in batch
    sequence_ids = batch["sequence_ids"] if packed else torch.where(batch["attention_mask"] == 1, 0, -1)
    values = {}
    for row, members in enumerate(sequence_ids):
        for member in range(int(members.max()) + 1):
            is_member = members == member
            values[int(batch["input_ids"][row, is_member][0])] = batch[key][row, is_member].tolist()
    return values


@pytest.mark.parametrize(
    "settings", [{}, {"padding_side": "left"}, {"pack_to": 20}, {"pad_to_multiple_of": 8}], ids=str
)
@over_training
@over_schemes
@pytest.mark.covering(1)
def test_ids_equal_those_of_the_scheme_without_padding(name, training, settings):
    scheme, rows = Recorder(small_scheme(name, num_position_ids=RANGE)), features()
    batch = collated(scheme, rows, training=training, **settings)
    ids, labels = pieces(batch, "position_ids"), pieces(batch, "labels")
    assert len(scheme.calls) == len(ids) == len(rows)
    position_labels = pieces(batch, "position_labels") if scheme.predicts_ids else None
    assert ("position_labels" in batch) == scheme.predicts_ids
    by_first = {row["input_ids"][0]: row for row in rows}
    for examples, expected, id_scored, call_training in scheme.calls:
        (tokens,) = examples.tokens
        row = by_first[int(tokens[0])]
        assert call_training is training
        assert tokens.tolist() == row["input_ids"]
        assert examples.prompt_length == max(row["prompt_length"], 1)
        if scheme.needs is not None:
            assert np.ravel(getattr(examples, scheme.needs)).tolist() == row[scheme.needs]
        assert ids[int(tokens[0])] == expected.tolist()
        answers = np.arange(len(tokens)) >= max(row["prompt_length"], 1)
        assert labels[int(tokens[0])] == np.where(answers, tokens, -100).tolist()
        if position_labels is not None:
            assert position_labels[int(tokens[0])] == np.where(id_scored, expected, -100).tolist()


@over_schemes
def test_left_padding_and_right_padding_give_the_same_values(name):
    scheme, rows = small_scheme(name, num_position_ids=RANGE), features()
    batches = []
    for side in ("right", "left"):
        torch.manual_seed(3)
        batches.append(collated(scheme, rows, padding_side=side, pad_to_multiple_of=8))
    right, left = batches
    fills = {"input_ids": 0, "attention_mask": 0, "position_ids": 0, "labels": -100, "position_labels": -100}
    for row, length in enumerate(LENGTHS):
        for key in right:
            assert torch.equal(right[key][row, :length], left[key][row, 16 - length :])
            assert (right[key][row, length:] == fills[key]).all()
            assert (left[key][row, : 16 - length] == fills[key]).all()
        assert right["attention_mask"][row, :length].all()


def test_packs_respect_the_width_and_contain_each_example_once():
    batch = collated(Sequential(), features(), pack_to=20)
    assert batch["input_ids"].shape[1] <= 20
    assert len(batch["input_ids"]) == 3
    assert pieces(batch, "input_ids") == {row["input_ids"][0]: row["input_ids"] for row in features()}
    assert pack_first_fit([3, 9, 5, 10, 1], 10) == [[3], [1, 4], [2, 0]]


@over_attention
@over_models
@pytest.mark.parametrize("side", ["right", "left"])
def test_packing_does_not_change_the_logits_and_loss_of_an_example(side, model, attention):
    model, rows = causal_model(CONFIGS[model]()), features()
    model.set_attn_implementation(attention)
    # These IDs jump at every step.
    scheme = Coupled(num_position_ids=RANGE)
    torch.manual_seed(4)
    packed = collated(scheme, rows, pack_to=20, padding_side=side)
    torch.manual_seed(4)
    padded = collated(scheme, rows, padding_side=side)
    with torch.no_grad():
        # Models ignore unknown arguments.
        in_packs, in_rows = model(**packed), model(**padded)
    torch.testing.assert_close(in_packs.loss, in_rows.loss, atol=1e-5, rtol=1e-5)
    ids, labels = pieces(padded, "position_ids"), pieces(padded, "labels")
    assert pieces(packed, "position_ids") == ids
    assert pieces(packed, "labels") == labels
    logits = pieces({**packed, "logits": in_packs.logits}, "logits")
    for row in rows:
        first = row["input_ids"][0]
        with torch.no_grad():
            alone = model(
                input_ids=torch.tensor([row["input_ids"]]),
                position_ids=torch.tensor([ids[first]]),
                attention_mask=torch.ones(1, len(row["input_ids"]), dtype=torch.long),
            )
        torch.testing.assert_close(torch.tensor(logits[first]), alone.logits[0], atol=1e-5, rtol=1e-5)


@over_attention
@over_models
@pytest.mark.parametrize("pack_to", [None, 24])
def test_the_last_logits_depend_on_tokens_before_each_jump_of_the_ids(pack_to, model, attention):
    model = causal_model(CONFIGS[model]())
    model.set_attn_implementation(attention)
    rows = [{"input_ids": [5, 6, 7, 8, 9], "coupling": [3, 9, 4, 4, 1]}, {"input_ids": [10, 11], "coupling": [0, 1]}]
    # Without padding, the mask is needed too.
    batch = collated(Coupled(num_position_ids=RANGE), rows if pack_to else rows[:1], pack_to=pack_to)
    embedded = model.get_input_embeddings()(batch.pop("input_ids")).detach().requires_grad_()
    del batch["labels"]
    # As in training, because with a cache transformers searches for no packed texts.
    model(inputs_embeds=embedded, use_cache=False, **batch).logits[0, 4, 3].backward()
    gradient = embedded.grad.abs().amax(dim=-1)
    assert (gradient[0, :5] > 1e-6).all()
    assert (gradient[0, 5:] == 0).all()


def test_a_packed_mask_works_in_mixed_precision():
    model = causal_model(CONFIGS["llama"]())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**collated(Skipwise(num_position_ids=RANGE), features(), pack_to=20, pad_to_multiple_of=4)).loss
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def ids_of_epochs(workers: int, epochs: int = 2) -> list[list[torch.Tensor]]:
    """Return the IDs of every epoch of a seeded loader."""
    torch.manual_seed(5)
    collator = PositionCollator(Randomized(num_position_ids=4_096), 0)
    loader = torch.utils.data.DataLoader(features(), batch_size=3, num_workers=workers, collate_fn=collator)
    return [[batch["position_ids"] for batch in loader] for _ in range(epochs)]


@pytest.mark.parametrize("workers", [0, 2])
def test_ids_differ_between_epochs_and_repeat_under_the_same_seed(workers):
    first, second = ids_of_epochs(workers)
    assert not any(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    # The first examples of batches 0 and 1, from different workers, have the same length.
    assert not torch.equal(first[0][0], first[1][0])
    for one, other in zip([*first, *second], chain(*ids_of_epochs(workers)), strict=True):
        assert torch.equal(one, other)


def test_distributed_processes_sample_different_ids_under_one_seed(monkeypatch):
    ids = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for rank in (0, 1):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        torch.manual_seed(0)
        ids.append(collated(Randomized(num_position_ids=4_096), features())["position_ids"])
    assert not torch.equal(*ids)


ANSWERS = [
    ({}, [1, 2, 3, 4]),
    ({"labels": [5, -100, 7, -100, 9]}, [2, 4]),
    ({"completion_mask": [0, 0, 1, 1, 1]}, [2, 3, 4]),
    ({"assistant_masks": [0, 1, 1, 0, 1]}, [1, 2, 4]),
    ({"prompt_length": 3}, [3, 4]),
    ({"prompt_length": torch.tensor(5)}, []),
    # Without a mask, TRL labels every token.
    ({"labels": [5, 6, 7, 8, 9], "prompt_length": 3}, [3, 4]),
    ({"labels": None, "completion_mask": None, "prompt_length": 4}, [4]),
]


@pytest.mark.parametrize(("columns", "answers"), ANSWERS, ids=str)
@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_answers_are_the_tokens_that_all_columns_mark_except_the_first(kind, columns, answers):
    columns = {"input_ids": [5, 6, 7, 8, 9], **columns}
    row = {key: kind(value) if isinstance(value, list) else value for key, value in columns.items()}
    labels = collated(Sequential(), [row])["labels"][0]
    assert labels.tolist() == [5 + index if index in answers else -100 for index in range(5)]


def test_spans_replace_a_missing_coupling():
    row = {"input_ids": [5, 6, 7], "offset_mapping": [[0, 0], [0, 2], [2, 3]], "spans": [[0, 1, 8]]}
    scheme = Coupled(num_position_ids=RANGE)
    assert collated(scheme, [row], training=False)["position_ids"].tolist() == [[0, 8, 9]]
    both = {**row, "coupling": [1, 2, 1]}
    assert collated(scheme, [both], training=False)["position_ids"].tolist() == [[1, 2, 1]]


VALID = {"input_ids": [5, 6], "coupling": [0, 1], "step_index": [0, 1]}
INVALID: list[tuple[dict, str]] = [
    ({"text": "a"}, r"input_ids are missing \(columns: text\); tokenize the data set first, and set remove_unused"),
    ({}, r"input_ids are missing \(columns: none\)"),
    ({"input_ids": []}, r"input_ids is empty; remove the example"),
    ({"input_ids": [1.5, 2.0]}, r"invalid input_ids \[1.5, 2.0\]; use a list of integers"),
    ({"input_ids": [[1], [2]]}, r"invalid input_ids \[\[1\], \[2\]\]; use a list of integers"),
    ({"input_ids": [[1], [2, 3]]}, r"invalid input_ids \[\[1\], \[2, 3\]\]; use a list of integers"),
    ({"input_ids": 7}, r"invalid input_ids 7; use a list of integers"),
    ({"attention_mask": [1, 0]}, r"attention_mask hides tokens, .*; tokenize with padding=False"),
    ({"labels": [1, 2, 3]}, r"labels has 3 values for 2 tokens; give one value per token"),
    ({"completion_mask": [1]}, r"completion_mask has 1 values for 2 tokens; give one value per token"),
    ({"prompt_length": 3}, r"prompt_length is 3, but the example has 2 tokens; use 0 to 2"),
    ({"prompt_length": "a"}, r"invalid prompt_length \['a'\]; use a list of one integer"),
    ({"coupling": None}, r"the column coupling is missing; add it .*, or spans with .*, keep it with remove_unused"),
    ({"coupling": [0, -1]}, r"invalid coupling -1; use integers from 0 to 1073741823"),
    ({"coupling": [0, 1, 2]}, r"coupling has 3 values for 2 tokens"),
    ({"coupling": None, "spans": []}, r"spans need an offset_mapping; tokenize with return_offsets_mapping=True"),
    ({"coupling": None, "spans": [], "offset_mapping": [[0, 1]]}, r"offset_mapping has 1 pairs for 2 tokens; give one"),
    (
        {"coupling": None, "spans": [[0, 1, 4], [1, 2, 5]], "offset_mapping": [[0, 2], [2, 3]]},
        r"token 0 \(characters 0 to 2\) belongs to the groups 4 and 5; change the spans",
    ),
    ({"input_ids": [4] * 9, "coupling": [0] * 9}, r"9 tokens exceed pack_to 8; truncate or drop the example"),
]


@pytest.mark.parametrize(("columns", "message"), INVALID)
def test_an_invalid_example_raises_a_one_line_error_with_its_number(columns, message):
    example = {**VALID, **columns} if columns and "text" not in columns else columns
    with pytest.raises(TokenizedRowError, match=f"^example 2 of the batch: {message}") as caught:
        collated(Coupled(num_position_ids=RANGE), [VALID, VALID, example, VALID], pack_to=8)
    assert "\n" not in str(caught.value)


def test_ids_beyond_the_limit_raise_an_error_with_the_example():
    rows = features((5, 12, 5))
    with pytest.raises(PositionRangeError, match=r"^example 1 of the batch: its position IDs reach 11, but"):
        collated(Sequential(), rows, num_position_ids=8, training=False)
    assert collated(Sequential(), rows, num_position_ids=12)["position_ids"].max() == 11
    with pytest.raises(PositionRangeError, match=r"^example 1 of the batch: the sequence has ID 99 but the largest ID"):
        collated(Coupled(num_position_ids=RANGE), [VALID, {**VALID, "coupling": [0, 99]}])


def test_a_missing_column_step_index_raises_an_error():
    with pytest.raises(TokenizedRowError, match=r"^example 0 of the batch: the column step_index is missing; add it"):
        collated(small_scheme("abacus"), [{"input_ids": [5, 6]}])


def test_an_empty_batch_raises_an_error():
    with pytest.raises(TokenizedRowError, match=r"^the batch is empty; pass at least one example$"):
        collated(Sequential(), [])


def depends_on_scheme():
    return type("Mine", (Sequential,), {"name": "mine", "needs": "depends_on"})()


class TwoIDs(Sequential):
    """Custom scheme with two IDs per token."""

    name = "two"

    def assign(self, examples, rng, *, training):
        """Return the token index on two levels."""
        assignment = super().assign(examples, rng, training=training)
        return replace(assignment, position_ids=np.concatenate([assignment.position_ids] * 2))


SETTINGS = [
    (
        DiscoveredCoupling(),
        {},
        r"the rule of discovered counts the tokens of its task, .* lengthwise couple FILE.jsonl --out",
    ),
    (small_scheme("random_floats"), {}, r"random_floats assigns real-valued IDs, .*; use the scheme randomized"),
    (
        depends_on_scheme(),
        {},
        r"mine needs depends_on, which no data set column provides; use a scheme that needs one of",
    ),
    (Sequential(), {"padding_side": "top"}, r"invalid padding_side 'top'; use one of right, left"),
    (Sequential(), {"pack_to": 0}, r"invalid pack_to 0; use at least 1, or None"),
    (Sequential(), {"pad_to_multiple_of": -8}, r"invalid pad_to_multiple_of -8; use at least 1"),
    (
        Sequential(),
        {"pack_to": 12, "pad_to_multiple_of": 8},
        r"pack_to 12 is not a multiple of .* 8, .*; set pack_to to a multiple of 8",
    ),
    (
        Skipwise(num_position_ids=80),
        {"num_position_ids": 79},
        r"skipwise assigns IDs below 80, but .* 79; .* at most 79",
    ),
    (TwoIDs(), {}, r"two assigns 2 IDs per token, .*; use a scheme with one level"),
]


@pytest.mark.parametrize(("scheme", "settings", "message"), SETTINGS)
def test_invalid_settings_raise_a_one_line_error(scheme, settings, message):
    with pytest.raises(LengthwiseError, match=f"^{message}") as caught:
        collated(scheme, [VALID], **settings)
    assert "\n" not in str(caught.value)


@pytest.fixture
def tokenizer():
    words = Tokenizer(models.WordLevel({"a": 0, "<pad>": 1, "<end>": 2}, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>", padding_side="left")


@pytest.mark.parametrize("kind", ["model", "config"])
def test_for_model_takes_settings_from_the_model_and_tokenizer(kind, tokenizer):
    model = causal_model(CONFIGS["llama"]()).to(torch.bfloat16)
    source = model if kind == "model" else model.config
    collator = PositionCollator.for_model(source, Skipwise(num_position_ids=MAX_POSITIONS), tokenizer, pack_to=64)
    assert (collator.pad_token_id, collator.padding_side, collator.num_position_ids) == (1, "left", MAX_POSITIONS)
    assert collator.pack_to == 64
    assert kind == "config" or collator.dtype == torch.bfloat16
    beyond = PositionCollator.for_model(
        source, Skipwise(num_position_ids=500), tokenizer, beyond_trained=True, pad_to_multiple_of=4
    )
    assert (beyond.num_position_ids, beyond.pad_to_multiple_of) == (None, 4)
    assert beyond(features())["position_ids"].max() >= MAX_POSITIONS
    # IDs stay within a table of positions.
    table = PositionCollator.for_model(CONFIGS["gpt2"](), Sequential(), tokenizer)
    assert table.num_position_ids == MAX_POSITIONS


def test_for_model_raises_an_error_for_unsupported_models(tokenizer):
    llama, flash, mistral = (CONFIGS[name]() for name in ("llama", "llama", "mistral"))
    mistral.sliding_window, flash._attn_implementation = 16, "flash_attention_2"
    make, beyond = PositionCollator.for_model, Skipwise(num_position_ids=97)
    with pytest.raises(PositionRangeError, match=r"^skipwise assigns IDs below 97, but llama supports .* 96; .*=True$"):
        make(llama, beyond, tokenizer)
    with pytest.raises(SettingError, match=r"^pack_to 17 exceeds the attention window of 16 tokens in mistral, .* 16$"):
        make(mistral, Sequential(), tokenizer, pack_to=17)
    for model, message in (
        (
            flash,
            r"^llama uses the attention implementation 'flash_attention_2', .*set_attn_implementation\(\"sdpa\"\)$",
        ),
        (BloomConfig(), r"^bloom has no max_position_embeddings, so"),
        (torch.nn.Linear(1, 1), r"^Linear is not a transformers model; pass a model or its configuration$"),
    ):
        with pytest.raises(ModelError, match=message):
            make(model, Sequential(), tokenizer)
    with pytest.raises(SettingError, match=r"^scheme 'predicted' has the wrong type; use PositionScheme$"):
        make(llama, "predicted", tokenizer)
    tokenizer.pad_token = None
    with pytest.raises(ModelError, match=r"^the tokenizer has no pad token; set it, for example tokenizer.pad_token"):
        make(llama, Sequential(), tokenizer)
    tokenizer.pad_token = tokenizer.eos_token
    assert make(llama, Sequential(), tokenizer, pack_to=4 * MAX_POSITIONS).pack_to == 4 * MAX_POSITIONS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("past", [0, 3])
def test_a_token_attends_to_itself_and_earlier_tokens_of_its_sequence(past, dtype):
    is_token = torch.rand(4, 9) < 0.7
    sequence_ids = torch.randint(0, 3, (4, 9))
    mask = causal_mask(is_token, sequence_ids=sequence_ids, num_cached=past, dtype=dtype)
    assert mask.shape == (4, 1, 9 - past, 9)
    assert mask.dtype == dtype
    for row in range(4):
        for query in range(past, 9):
            for key in range(9):
                same = bool(sequence_ids[row, query] == sequence_ids[row, key])
                visible = key == query or (key < query and same and bool(is_token[row, key]))
                assert mask[row, 0, query - past, key] == (0 if visible else torch.finfo(dtype).min)


@over_attention
def test_padding_changes_no_logits_and_causes_no_nan(attention):
    model = causal_model(CONFIGS["llama"]())
    model.set_attn_implementation(attention)
    tokens = torch.randint(3, VOCABULARY_SIZE, (1, 10))
    ids = torch.tensor([[1, 2, 3, 30, 31, 2, 2, 40, 41, 9]])
    alone = model(input_ids=tokens, position_ids=ids, attention_mask=causal_mask(torch.ones(1, 10, dtype=torch.bool)))
    is_token = torch.arange(13)[None] >= 3
    padded = model(
        input_ids=torch.nn.functional.pad(tokens, (3, 0)),
        position_ids=torch.nn.functional.pad(ids, (3, 0)),
        attention_mask=causal_mask(is_token),
    )
    assert padded.logits.isfinite().all()
    torch.testing.assert_close(padded.logits[:, 3:], alone.logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("scheme", 3, r"^scheme 3 has the wrong type; use PositionScheme$"),
        ("pad_token_id", None, r"^pad_token_id None has the wrong type; use a whole number$"),
    ],
)
def test_a_collator_with_a_setting_of_the_wrong_type_raises_an_error(name, value, message):
    collator = PositionCollator(Sequential(), 0)
    # The type checker of the tests would reject the call of the constructor.
    object.__setattr__(collator, name, value)
    with pytest.raises(SettingError, match=message):
        collator.__post_init__()

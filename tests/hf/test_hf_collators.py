"""Collated batches: the IDs of our schemes whatever the padding and packing, and what is refused by its row."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from tests.support.cases import small_scheme
from tests.support.causal_models import CONFIGS, POSITIONS, causal_model
from tokenizers import Tokenizer, models
from transformers import BloomConfig, PreTrainedTokenizerFast

from lengthwise.core.errors import FeatureError, LengthwiseError, ModelError, PositionRangeError, SettingError
from lengthwise.hf.collators import PositionCollator, first_fit
from lengthwise.positions import SCHEMES, Coupled, PositionScheme, Randomized, Sequential, Skipwise

RANGE = 64
LENGTHS = (7, 12, 7, 3, 9, 12, 5)
TAKEN = [name for name, scheme in SCHEMES.items() if not scheme.real_valued]
over_schemes = pytest.mark.parametrize("name", TAKEN)
over_training = pytest.mark.parametrize("training", [True, False])
over_models = pytest.mark.parametrize("model", ["llama", "gpt_neox"])
over_attention = pytest.mark.parametrize("attention", ["eager", "sdpa"])


def features(lengths=LENGTHS) -> list[dict]:
    """Examples whose tokens are all different, with every column that a scheme may read."""
    rng = np.random.default_rng(1)
    first, made = 3, []
    for length in lengths:
        made.append(
            {
                "input_ids": list(range(first, first + length)),
                "prompt_length": length // 2,
                "coupling": rng.integers(0, length, size=length).tolist(),
                "places": rng.integers(0, length, size=length).tolist(),
                "text": "is left alone",
            }
        )
        first += length
    return made


class Watched(PositionScheme):
    """A scheme that keeps what it was asked and what it said, row by row."""

    name = "watched"

    def __init__(self, scheme: PositionScheme):
        self.scheme, self.asked = scheme, []
        self.needs, self.predicts_ids = scheme.needs, scheme.predicts_ids

    def assign(self, examples, rng, *, training):
        """What the scheme says."""
        given = self.scheme.assign(examples, rng, training=training)
        for row in range(len(examples)):
            kept = examples.select(np.array([row]))
            self.asked.append((kept, given.position_ids[0, row], given.id_scored[row], training))
        return given


def collated(scheme, rows, **settings) -> dict[str, torch.Tensor]:
    return PositionCollator(scheme, 0, **settings)(rows)


def pieces(batch: dict[str, torch.Tensor], key: str) -> dict[int, list[int]]:
    """The values of each example, which is known by its first token."""
    inside = batch["sequence_ids"] >= 0 if "sequence_ids" in batch else batch["attention_mask"] == 1
    found = {}
    for row, kept in enumerate(inside):
        members = batch["sequence_ids"][row] if "sequence_ids" in batch else torch.where(kept, 0, -1)
        for member in range(int(members.max()) + 1):
            where = members == member
            found[int(batch["input_ids"][row, where][0])] = batch[key][row, where].tolist()
    return found


@pytest.mark.parametrize(
    "settings", [{}, {"padding_side": "left"}, {"pack_to": 20}, {"pad_to_multiple_of": 8}], ids=str
)
@over_training
@over_schemes
def test_ids_are_those_that_the_scheme_gives_the_examples_without_padding(name, training, settings):
    scheme, rows = Watched(small_scheme(name, num_position_ids=RANGE)), features()
    batch = collated(scheme, rows, training=training, **settings)
    ids, labels = pieces(batch, "position_ids"), pieces(batch, "labels")
    assert len(scheme.asked) == len(ids) == len(rows)
    wanted = pieces(batch, "position_labels") if scheme.predicts_ids else None
    assert ("position_labels" in batch) == scheme.predicts_ids
    by_first = {row["input_ids"][0]: row for row in rows}
    for examples, given, id_scored, asked_training in scheme.asked:
        (tokens,) = examples.tokens
        row = by_first[int(tokens[0])]
        assert asked_training is training
        assert tokens.tolist() == row["input_ids"]
        assert examples.prompt_length == max(row["prompt_length"], 1)
        if scheme.needs is not None:
            assert np.ravel(getattr(examples, scheme.needs)).tolist() == row[scheme.needs]
        assert ids[int(tokens[0])] == given.tolist()
        answers = np.arange(len(tokens)) >= max(row["prompt_length"], 1)
        assert labels[int(tokens[0])] == np.where(answers, tokens, -100).tolist()
        if wanted is not None:
            assert wanted[int(tokens[0])] == np.where(id_scored, given, -100).tolist()


@over_schemes
def test_padding_on_the_left_is_padding_on_the_right_moved(name):
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


def test_packs_are_no_wider_than_asked_and_hold_each_example_once():
    batch = collated(Sequential(), features(), pack_to=20)
    assert batch["input_ids"].shape[1] <= 20
    assert len(batch["input_ids"]) == 3
    assert pieces(batch, "input_ids") == {row["input_ids"][0]: row["input_ids"] for row in features()}
    assert first_fit([3, 9, 5, 10, 1], 10) == [[3], [1, 4], [2, 0]]


@over_attention
@over_models
@pytest.mark.parametrize("side", ["right", "left"])
def test_an_example_in_a_pack_has_the_logits_and_the_loss_that_it_has_alone(side, model, attention):
    model, rows = causal_model(CONFIGS[model]()), features()
    model.set_attn_implementation(attention)
    # Every step of these IDs is a jump.
    scheme = Coupled(num_position_ids=RANGE)
    torch.manual_seed(4)
    packed = collated(scheme, rows, pack_to=20, padding_side=side)
    torch.manual_seed(4)
    padded = collated(scheme, rows, padding_side=side)
    with torch.no_grad():
        # Keys that a model does not know are passed by.
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
def test_the_last_logit_depends_on_tokens_before_every_jump_of_the_ids(pack_to, model, attention):
    model = causal_model(CONFIGS[model]())
    model.set_attn_implementation(attention)
    rows = [{"input_ids": [5, 6, 7, 8, 9], "coupling": [3, 9, 4, 4, 1]}, {"input_ids": [10, 11], "coupling": [0, 1]}]
    # Alone, no token is padding: the mask has to be there all the same.
    batch = collated(Coupled(num_position_ids=RANGE), rows if pack_to else rows[:1], pack_to=pack_to)
    embedded = model.get_input_embeddings()(batch.pop("input_ids")).detach().requires_grad_()
    del batch["labels"]
    # As in training: with a cache, transformers would look for no packs.
    model(inputs_embeds=embedded, use_cache=False, **batch).logits[0, 4, 3].backward()
    seen = embedded.grad.abs().amax(dim=-1)
    assert (seen[0, :5] > 1e-6).all()
    assert (seen[0, 5:] == 0).all()


def test_a_packed_mask_lasts_through_mixed_precision():
    model = causal_model(CONFIGS["llama"]())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**collated(Skipwise(num_position_ids=RANGE), features(), pack_to=20, pad_to_multiple_of=4)).loss
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def loaded(workers: int, epochs: int = 2) -> list[list[torch.Tensor]]:
    """The IDs of every epoch, from a loader under one seed."""
    torch.manual_seed(5)
    collator = PositionCollator(Randomized(num_position_ids=4_096), 0)
    loader = torch.utils.data.DataLoader(features(), batch_size=3, num_workers=workers, collate_fn=collator)
    return [[batch["position_ids"] for batch in loader] for _ in range(epochs)]


@pytest.mark.parametrize("workers", [0, 2])
def test_ids_are_other_ones_every_epoch_and_the_same_under_the_same_seed(workers):
    first, second = loaded(workers)
    assert not any(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    # Neither do two workers draw the same: batches 0 and 1 are made by one each, their first rows as long.
    assert not torch.equal(first[0][0], first[1][0])
    for one, other in zip([*first, *second], chain(*loaded(workers)), strict=True):
        assert torch.equal(one, other)


def test_processes_that_train_together_draw_other_ids_under_one_seed(monkeypatch):
    drawn = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for rank in (0, 1):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        torch.manual_seed(0)
        drawn.append(collated(Randomized(num_position_ids=4_096), features())["position_ids"])
    assert not torch.equal(*drawn)


ANSWERS = [
    ({}, [1, 2, 3, 4]),
    ({"labels": [5, -100, 7, -100, 9]}, [2, 4]),
    ({"completion_mask": [0, 0, 1, 1, 1]}, [2, 3, 4]),
    ({"assistant_masks": [0, 1, 1, 0, 1]}, [1, 2, 4]),
    ({"prompt_length": 3}, [3, 4]),
    ({"prompt_length": torch.tensor(5)}, []),
    # TRL adds labels of every token where it knows no mask.
    ({"labels": [5, 6, 7, 8, 9], "prompt_length": 3}, [3, 4]),
    ({"labels": None, "completion_mask": None, "prompt_length": 4}, [4]),
]


@pytest.mark.parametrize(("columns", "answers"), ANSWERS, ids=str)
@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_answers_are_the_tokens_that_all_columns_agree_on_and_never_the_first(kind, columns, answers):
    given = {"input_ids": [5, 6, 7, 8, 9], **columns}
    row = {key: kind(value) if isinstance(value, list) else value for key, value in given.items()}
    labels = collated(Sequential(), [row])["labels"][0]
    assert labels.tolist() == [5 + index if index in answers else -100 for index in range(5)]


def test_spans_are_read_as_a_coupling_where_there_is_none():
    row = {"input_ids": [5, 6, 7], "offset_mapping": [[0, 0], [0, 2], [2, 3]], "spans": [[0, 1, 8]]}
    scheme = Coupled(num_position_ids=RANGE)
    assert collated(scheme, [row], training=False)["position_ids"].tolist() == [[0, 8, 9]]
    both = {**row, "coupling": [1, 2, 1]}
    assert collated(scheme, [both], training=False)["position_ids"].tolist() == [[1, 2, 1]]


GOOD = {"input_ids": [5, 6], "coupling": [0, 1], "places": [0, 1]}
ROWS: list[tuple[dict, type[LengthwiseError], str]] = [
    ({"text": "a"}, FeatureError, r"there are no input_ids \(only text\); tokenize the data set first, and set remove"),
    ({}, FeatureError, r"there are no input_ids \(only nothing\)"),
    ({"input_ids": []}, FeatureError, r"input_ids is empty; leave the row out"),
    ({"input_ids": [1.5, 2.0]}, FeatureError, r"input_ids is \[1.5, 2.0\]; give a list of whole numbers"),
    ({"input_ids": [[1], [2]]}, FeatureError, r"input_ids is \[\[1\], \[2\]\]; give a list of whole numbers"),
    ({"input_ids": [[1], [2, 3]]}, FeatureError, r"input_ids is \[\[1\], \[2, 3\]\]; give a list of whole numbers"),
    ({"input_ids": 7}, FeatureError, r"input_ids is 7; give a list of whole numbers"),
    ({"attention_mask": [1, 0]}, FeatureError, r"attention_mask hides tokens: .*; tokenize with padding=False"),
    ({"labels": [1, 2, 3]}, FeatureError, r"labels has 3 numbers; give 2, one for each token"),
    ({"completion_mask": [1]}, FeatureError, r"completion_mask has 1 numbers; give 2, one for each token"),
    ({"prompt_length": 3}, FeatureError, r"prompt_length is 3 and the row has 2 tokens; give 0 to 2"),
    ({"prompt_length": "a"}, FeatureError, r"prompt_length is \['a'\]; give a list of one whole number"),
    ({"coupling": None}, FeatureError, r"there is no coupling; add a column .*, or spans with .*, keep it with remove"),
    ({"coupling": [0, -1]}, FeatureError, r"coupling has -1; give whole numbers from 0 on, below 1073741824"),
    ({"coupling": [0, 1, 2]}, FeatureError, r"coupling has 3 numbers; give 2"),
    (
        {"coupling": None, "spans": []},
        FeatureError,
        r"there are spans and no offset_mapping; tokenize with return_offsets_mapping=True",
    ),
    (
        {"coupling": None, "spans": [], "offset_mapping": [[0, 1]]},
        FeatureError,
        r"offset_mapping has 1 pairs; give 2, one for each token",
    ),
    (
        {"coupling": None, "spans": [[0, 1, 4], [1, 2, 5]], "offset_mapping": [[0, 2], [2, 3]]},
        FeatureError,
        r"token 0 \(characters 0 to 2\) belongs to the groups 4 and 5; move the spans",
    ),
    ({"input_ids": [4] * 9, "coupling": [0] * 9}, FeatureError, r"9 tokens do not fit into pack_to 8; truncate or dr"),
    ({"coupling": [0, 99]}, PositionRangeError, r"the sequence reaches ID 99 but the scheme stops at 63; set num_po"),
]


@pytest.mark.parametrize(("columns", "kind", "message"), ROWS)
def test_a_row_that_no_batch_can_be_made_of_is_named_in_one_line(columns, kind, message):
    bad = {**GOOD, **columns} if columns and "text" not in columns else columns
    with pytest.raises(kind, match=f"^row 2 of the batch: {message}") as caught:
        collated(Coupled(num_position_ids=RANGE), [GOOD, GOOD, bad, GOOD], pack_to=8)
    assert "\n" not in str(caught.value)


def test_ids_that_reach_the_limit_are_refused_by_row_at_evaluation_too():
    rows = features((5, 12, 5))
    with pytest.raises(
        PositionRangeError, match=r"^row 1 of the batch: its IDs reach 11 and have to stay below 8; sho"
    ):
        collated(Sequential(), rows, num_position_ids=8, training=False)
    assert collated(Sequential(), rows, num_position_ids=12)["position_ids"].max() == 11


def test_a_scheme_that_needs_places_says_so():
    with pytest.raises(
        FeatureError, match=r"^row 0 of the batch: there is no places; add a column with one number per t"
    ):
        collated(small_scheme("abacus"), [{"input_ids": [5, 6]}])


def test_a_batch_without_rows_is_refused():
    with pytest.raises(FeatureError, match=r"^the batch has no row; give at least one$"):
        collated(Sequential(), [])


def needing_support():
    return type("Mine", (Sequential,), {"name": "mine", "needs": "support"})()


class TwoIDs(Sequential):
    """A scheme of one's own with two IDs per token."""

    name = "two"

    def assign(self, examples, rng, *, training):
        """The token index, twice."""
        given = super().assign(examples, rng, training=training)
        return replace(given, position_ids=np.concatenate([given.position_ids] * 2))


SETTINGS = [
    (
        lambda: PositionCollator(small_scheme("random_floats"), 0),
        r"random_floats gives real .*; use randomized instead",
    ),
    (lambda: PositionCollator(needing_support(), 0), r"mine needs support, which no column holds; coupling and places"),
    (
        lambda: PositionCollator(Sequential(), 0, padding_side="top"),
        r"padding_side 'top' is unknown; choose one of right",
    ),
    (lambda: PositionCollator(Sequential(), 0, pack_to=0), r"pack_to 0 leaves no token; use at least 1, or None"),
    (lambda: PositionCollator(Sequential(), 0, pad_to_multiple_of=-8), r"pad_to_multiple_of -8 leaves no token"),
    (
        lambda: PositionCollator(Sequential(), 0, pack_to=12, pad_to_multiple_of=8),
        r"pack_to 12 is no multiple of pad_to_multiple_of 8, .*; make it one",
    ),
    (
        lambda: PositionCollator(Skipwise(num_position_ids=80), 0, num_position_ids=79),
        r"skipwise gives IDs below 80 and num_position_ids is 79; set the scheme's to at most 79",
    ),
    (lambda: PositionCollator(TwoIDs(), 0)([GOOD]), r"two gives 2 IDs per token and .*; use a scheme of one level"),
]


@pytest.mark.parametrize(("call", "message"), SETTINGS)
def test_settings_that_no_batch_can_keep_are_refused(call, message):
    with pytest.raises(LengthwiseError, match=f"^{message}") as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.fixture
def tokenizer():
    made = Tokenizer(models.WordLevel({"a": 0, "<pad>": 1, "<end>": 2}, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<end>", padding_side="left")


@pytest.mark.parametrize("kind", ["model", "config"])
def test_a_collator_for_a_model_takes_its_settings_from_it(kind, tokenizer):
    model = causal_model(CONFIGS["llama"]()).to(torch.bfloat16)
    given = model if kind == "model" else model.config
    made = PositionCollator.for_model(given, Skipwise(num_position_ids=POSITIONS), tokenizer, pack_to=64)
    assert (made.pad_token_id, made.padding_side, made.num_position_ids) == (1, "left", POSITIONS)
    assert made.pack_to == 64
    assert kind == "config" or made.dtype == torch.bfloat16
    beyond = PositionCollator.for_model(
        given, Skipwise(num_position_ids=500), tokenizer, beyond_trained=True, pad_to_multiple_of=4
    )
    assert (beyond.num_position_ids, beyond.pad_to_multiple_of) == (None, 4)
    assert beyond(features())["position_ids"].max() >= POSITIONS
    # Of a table of positions no more is read than it holds.
    table = PositionCollator.for_model(CONFIGS["gpt2"](), Sequential(), tokenizer)
    assert table.num_position_ids == POSITIONS


def test_a_collator_for_a_model_refuses_what_the_model_cannot_read(tokenizer):
    llama, mistral = CONFIGS["llama"](), CONFIGS["mistral"]()
    mistral.sliding_window = 16
    flash = CONFIGS["llama"]()
    flash._attn_implementation = "flash_attention_2"
    make = PositionCollator.for_model
    for call, kind, message in (
        (
            lambda: make(llama, Skipwise(num_position_ids=97), tokenizer),
            PositionRangeError,
            r"^skipwise gives IDs below 97 and llama was made for those below 96; .*, or pass beyond_trained=True$",
        ),
        (
            lambda: make(mistral, Sequential(), tokenizer, pack_to=17),
            SettingError,
            r"^pack_to 17 is wider than the window of 16 tokens that some .*; pack to at most 16",
        ),
        (
            lambda: make(flash, Sequential(), tokenizer),
            ModelError,
            r'^llama uses the attention flash_attention_2, .*; call model.set_attn_implementation\("sdpa"\)$',
        ),
        (
            lambda: make(BloomConfig(), Sequential(), tokenizer),
            ModelError,
            r"^bloom has no max_position_embeddings, so",
        ),
        (
            lambda: make(torch.nn.Linear(1, 1), Sequential(), tokenizer),
            ModelError,
            r"^Linear is no model of transformers; give one, or its configuration$",
        ),
    ):
        with pytest.raises(kind, match=message):
            call()
    tokenizer.pad_token = None
    with pytest.raises(
        ModelError, match=r"^the tokenizer has no pad token; set one, such as tokenizer.pad_token = tok"
    ):
        make(llama, Sequential(), tokenizer)
    assert make(llama, Sequential(), tokenizer_with_pad(tokenizer), pack_to=4 * POSITIONS).pack_to == 4 * POSITIONS


def tokenizer_with_pad(tokenizer):
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer

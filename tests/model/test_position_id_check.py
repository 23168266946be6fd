"""Tests of the position ID check: one-line errors at every entry point of the decoder."""

import pytest
import torch

from lengthwise.core.errors import LengthwiseError, PositionIDError, PositionRangeError
from lengthwise.encodings import ALiBi, EncodingSettings, Learned, Rotary
from lengthwise.model.decoder import Decoder
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.model.generate import generate

# Two sequences with 4 prompt tokens and 2 new tokens.
PROMPT, NEW = 4, 2
TOKENS = torch.tensor([[0, 1, 2, 3, 1, 2], [3, 2, 1, 0, 0, 1]])
IDS = torch.tensor([[[0, 1, 2, 3, 1, 2], [4, 5, 6, 7, 5, 6]], [[1, 1, 2, 2, 3, 3], [0, 0, 5, 5, 9, 9]]])


def decoder_of(encoding: EncodingSettings, num_levels: int) -> Decoder:
    settings = DecoderSettings(d_model=16, num_heads=2)
    return Decoder(settings, encoding, vocabulary_size=4, num_levels=num_levels).eval()


def call_forward(decoder: Decoder, position_ids: torch.Tensor) -> None:
    decoder(TOKENS, position_ids)


def call_cached_step(decoder: Decoder, position_ids: torch.Tensor) -> None:
    valid = IDS[: decoder.check_ids.num_levels, :, :PROMPT]
    _, cache = decoder(TOKENS[:, :PROMPT], valid)
    decoder(TOKENS[:, PROMPT:], position_ids[..., PROMPT:], cache)


def call_generate(decoder: Decoder, position_ids: torch.Tensor) -> None:
    generate(decoder, TOKENS[:, :PROMPT], position_ids, end=-1, max_new_tokens=NEW)


ENTRY_POINTS = (call_forward, call_cached_step, call_generate)


def with_value(value: float, *, dtype: torch.dtype = torch.int64, level: int = 0) -> torch.Tensor:
    """Return IDs of two levels with the ID of one new token replaced."""
    ids = IDS.to(dtype, copy=True)
    ids[level, 1, PROMPT] = value
    return ids


RANGE = r"set its num_position_ids to at least"
# For each fault: the encoding, its number of levels, the IDs, the error and its text.
INVALID: dict[str, tuple[EncodingSettings, int, torch.Tensor, type[LengthwiseError], str]] = {
    "no batch": (Rotary(), 1, IDS[0, 0], PositionIDError, r"shape \(\d,\) but tokens have shape \(2, \d\); pass"),
    "another batch": (
        Rotary(),
        1,
        IDS[0, :1],
        PositionIDError,
        r"shape \(1, \d\) but tokens have shape \(2, \d\); pass \(batch, seq\), or \(level, batch, seq\) with 1 level",
    ),
    "an axis too many": (Rotary(), 1, IDS[None], PositionIDError, r"shape \(1, 2, 2, \d\) but tokens have shape"),
    "too many levels": (
        Rotary(),
        1,
        IDS,
        PositionIDError,
        r"have 2 level\(s\) but this decoder was built for 1; "
        r"pass IDs with 1 level\(s\), or build the decoder with num_levels=2$",
    ),
    "too few levels": (
        Rotary(),
        2,
        IDS[:1],
        PositionIDError,
        r"have 1 level\(s\) but this decoder was built for 2; "
        r"pass IDs with 2 level\(s\), or build the decoder with num_levels=1$",
    ),
    "too few levels without their axis": (
        Rotary(),
        2,
        IDS[0],
        PositionIDError,
        r"have 1 level\(s\) but this decoder was built for 2; pass IDs with 2 level",
    ),
    "negative": (Rotary(), 2, with_value(-3), PositionIDError, r"position ID -3 is negative.*; IDs start at 0$"),
    "negative on the second level": (Rotary(), 2, with_value(-3, level=1), PositionIDError, r"ID -3 is negative"),
    "negative and real": (
        ALiBi(),
        2,
        with_value(-0.5, dtype=torch.float64),
        PositionIDError,
        r"ID -0.5 is negative, infinite or NaN; IDs start at 0$",
    ),
    "no number": (
        Rotary(),
        2,
        with_value(torch.nan, dtype=torch.float64),
        PositionIDError,
        r"ID nan is negative, infinite or NaN; IDs start at 0$",
    ),
    "infinite": (
        Rotary(),
        2,
        with_value(torch.inf, dtype=torch.float32),
        PositionIDError,
        r"ID inf is negative, infinite or NaN; IDs start at 0$",
    ),
    "beyond the table": (
        Learned(num_position_ids=10),
        2,
        with_value(10),
        PositionRangeError,
        rf"ID 10 is beyond the 10 IDs of the encoding learned; {RANGE} 11$",
    ),
    "far beyond the table on the second level": (
        Learned(num_position_ids=10),
        2,
        with_value(1_000_000, level=1),
        PositionRangeError,
        rf"ID 1000000 is beyond the 10 IDs of the encoding learned; {RANGE} 1000001$",
    ),
    "real for a table": (
        Learned(num_position_ids=10),
        2,
        IDS.double(),
        PositionIDError,
        r"IDs are real numbers \(torch.float64\) but the encoding learned needs whole numbers; use a scheme with whole",
    ),
    "half precision for a table": (
        Learned(num_position_ids=10),
        1,
        IDS[0].half(),
        PositionIDError,
        r"IDs are real numbers \(torch.float16\) but the encoding learned needs whole numbers",
    ),
    "truth values": (
        Rotary(),
        2,
        IDS > 2,
        PositionIDError,
        r"IDs have the invalid type torch.bool; pass whole or real numbers$",
    ),
    "complex": (
        Rotary(),
        1,
        IDS[0].to(torch.complex64),
        PositionIDError,
        r"IDs have the invalid type torch.complex64; pass whole or real numbers$",
    ),
}


@pytest.mark.parametrize("entry_point", ENTRY_POINTS, ids=[entry_point.__name__ for entry_point in ENTRY_POINTS])
@pytest.mark.parametrize("name", INVALID)
@torch.no_grad()
def test_invalid_ids_raise_a_one_line_error_at_every_entry_point(name, entry_point):
    encoding, num_levels, ids, error, text = INVALID[name]
    with pytest.raises(error, match=text) as caught:
        entry_point(decoder_of(encoding, num_levels), ids)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seq", [PROMPT, PROMPT + NEW + 1])
@torch.no_grad()
def test_ids_for_fewer_or_more_tokens_raise_an_error(seq):
    ids = torch.zeros(2, seq, dtype=torch.int64)
    text = rf"^position IDs have shape \(2, {seq}\) but tokens have shape \(2, 6\); pass \(batch, seq\), or"
    with pytest.raises(PositionIDError, match=text):
        decoder_of(Rotary(), 1)(TOKENS, ids)


@torch.no_grad()
def test_invalid_ids_raise_an_error_before_a_token_is_generated():
    decoder, ids = decoder_of(Learned(num_position_ids=10), 1), IDS[0].clone()
    ids[1, PROMPT + 1] = 99
    decoder.token_logits = pytest.fail
    with pytest.raises(PositionRangeError, match="ID 99"):
        call_generate(decoder, ids)


@torch.no_grad()
def test_ids_of_one_level_need_no_level_axis():
    decoder = decoder_of(Rotary(), 1)
    flat, stacked = IDS[0], IDS[:1]
    (one, cache), (other, same) = decoder(TOKENS, flat), decoder(TOKENS, stacked)
    assert torch.equal(one, other)
    assert torch.equal(cache.position_ids, same.position_ids)
    _, cache = decoder(TOKENS[:, :PROMPT], flat[:, :PROMPT])
    step, _ = decoder(TOKENS[:, PROMPT:], flat[:, PROMPT:], cache)
    torch.testing.assert_close(step, one[:, PROMPT:], atol=1e-5, rtol=1e-5)
    written = [generate(decoder, TOKENS[:, :PROMPT], ids, end=-1, max_new_tokens=NEW) for ids in (flat, stacked)]
    assert torch.equal(written[0].tokens, written[1].tokens)
    assert torch.equal(written[0].position_ids, written[1].position_ids)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.float16, torch.float32])
@pytest.mark.parametrize("encoding", [Rotary(), ALiBi()], ids=["rotary", "alibi"])
@torch.no_grad()
def test_the_type_of_the_ids_does_not_change_hidden_states(encoding, dtype):
    decoder = decoder_of(encoding, 2)
    torch.testing.assert_close(decoder(TOKENS, IDS.to(dtype))[0], decoder(TOKENS, IDS)[0], atol=0, rtol=0)


@torch.no_grad()
def test_real_ids_can_follow_whole_ones_in_the_cache():
    decoder = decoder_of(Rotary(), 1)
    ids = IDS[0].double()
    ids[:, PROMPT:] += 0.25
    whole, _ = decoder(TOKENS, ids)
    _, cache = decoder(TOKENS[:, :PROMPT], IDS[0, :, :PROMPT])
    step, _ = decoder(TOKENS[:, PROMPT:], ids[:, PROMPT:], cache)
    torch.testing.assert_close(step, whole[:, PROMPT:], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_an_empty_sequence_needs_no_ids():
    decoder = decoder_of(Rotary(), 1)
    assert decoder.check_ids(TOKENS[:, :0], IDS[0, :, :0]).shape == (1, 2, 0)

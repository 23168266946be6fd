"""Near attention equals dense attention, and what it leaves out is below its bound."""

import math
from dataclasses import replace

import pytest
import torch

from lengthwise.encodings import ENCODINGS, ALiBi, Encoding, EncodingSize, Rotary, T5Bias
from lengthwise.evaluation import grading
from lengthwise.evaluation.exact_match import EvaluationSettings, evaluate_by_length
from lengthwise.experiments.experiment import build_decoder
from lengthwise.experiments.recipes import quick_version, recipe
from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.model.decoder import Decoder
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.model.fast import near_attention
from lengthwise.model.fast.cuda_graph_decoding import allows_graph_recording
from lengthwise.model.fast.near_attention import (
    FarKeyBounds,
    NearAttention,
    bound_far_keys,
    far_distances,
    index_distinct_rows,
    read_near_keys,
)
from lengthwise.model.fast.switch import disable_fast_paths
from lengthwise.model.position_heads import (
    PointerHead,
    StatePointerHead,
    WidePointerHead,
    build_prompt_keys,
    pointer,
)

SHARP = Rotary(base=100.0, fastest=3.0)
SEQ, QUERY_START, VOCABULARY = 160, 80, 5
ATTEND = NearAttention.attend
SETTINGS = DecoderSettings(num_layers=1, d_model=32, num_heads=2, temperature=6.0)


@pytest.fixture(autouse=True)
def _small_widths(monkeypatch):
    """Let short sequences have far keys."""
    monkeypatch.setattr(near_attention, "WIDTHS", (4, 8, 16))


def coupled_ids(num_levels: int, *, falls: bool = False) -> torch.Tensor:
    """Return IDs of two sequences whose second half repeats those of the first half."""
    counting = torch.arange(1, QUERY_START + 1)
    answers = counting.flip(0) if falls else counting
    ids = torch.stack([torch.cat([counting, answers]), torch.cat([counting, counting])])
    return torch.stack([ids, ids + 1])[:num_levels]


def random_decoder(encoding=SHARP, num_levels=1, num_predicted_ids=None, **settings) -> Decoder:
    """Return a decoder whose layers all have an effect."""
    decoder = Decoder(
        replace(SETTINGS, level_per_head=num_levels > 1, **settings),
        encoding,
        vocabulary_size=VOCABULARY,
        separators=(0,),
        num_predicted_ids=num_predicted_ids,
        num_levels=num_levels,
    )
    for parameter in decoder.parameters():
        if parameter.dim() >= 2 and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.2)
    return decoder.eval()


@torch.no_grad()
def both(decoder: Decoder, ids: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, NearAttention]:
    """Return the hidden states of dense and of near attention, and the latter."""
    near = NearAttention()
    dense, _ = decoder(tokens, ids, query_start=QUERY_START)
    return dense, decoder(tokens, ids, query_start=QUERY_START, hooks=AttentionHooks(near=near))[0], near


def random_tokens(num_tokens: int = VOCABULARY) -> torch.Tensor:
    """Return two sequences of few different tokens."""
    return torch.randint(num_tokens, (2, SEQ))


@pytest.mark.covering(2)
@pytest.mark.parametrize("falls", [False, True])
@pytest.mark.parametrize("scaling", ["none", "log", "learned"])
@pytest.mark.parametrize("encoding", [SHARP, ALiBi(), T5Bias()], ids=lambda each: each.name)
@pytest.mark.parametrize("num_levels", [1, 2])
def test_near_attention_equals_dense_attention(num_levels, encoding, scaling, falls):
    for temperature in (0.5, 6.0, 60.0):
        decoder = random_decoder(encoding, num_levels, length_scaling=scaling, temperature=temperature)
        dense, near_output, near = both(decoder, coupled_ids(num_levels, falls=falls), random_tokens())
        torch.testing.assert_close(near_output, dense, rtol=0, atol=2e-5 * max(1, temperature / 6))
        assert near.omitted <= near_attention.MAX_OMITTED


def test_sharp_attention_leaves_out_far_keys_and_flat_attention_reads_all():
    tokens, ids = random_tokens(2), coupled_ids(1)
    sharp = random_decoder(temperature=60.0, previous_token_mix=False)
    for block in sharp.blocks:
        # Queries equal keys, so the best key of a query is the one with its ID.
        block.project.weight.data[:32] = block.project.weight.data[32:64]
    # Without the token, all scores depend on the ID alone.
    sharp.embedding.data[:] = sharp.embedding.data[0]
    sharp.segment.data.zero_()
    *_, near = both(sharp, ids, tokens)
    assert near.num_dense == 0
    assert 0 <= near.omitted <= near_attention.MAX_OMITTED
    *_, near = both(random_decoder(temperature=0.1), ids, tokens)
    assert near.num_dense == 2 * (SEQ - QUERY_START)
    assert near.omitted == 0


def test_a_far_key_that_looks_near_is_read():
    # One pair of components turns fully every 40 IDs, so a key at this distance has the score of one at distance 0.
    decoder = random_decoder(Rotary(base=2.0, fastest=2 * math.pi / 40), d_model=2, num_heads=1, temperature=200.0)
    dense, near_output, near = both(decoder, coupled_ids(1), random_tokens(2))
    torch.testing.assert_close(near_output, dense, rtol=0, atol=1e-3)
    assert near.num_dense > 0


def test_many_different_tokens_are_read_densely(monkeypatch):
    monkeypatch.setattr(near_attention, "MAX_CONTENT_PAIRS", 3)
    dense, near_output, near = both(random_decoder(), coupled_ids(1), random_tokens())
    torch.testing.assert_close(near_output, dense, rtol=0, atol=2e-5)
    assert near.num_dense == 2 * (SEQ - QUERY_START)


@torch.no_grad()
def test_ids_that_are_far_apart_are_read_densely():
    # A table of all distances would need terabytes.
    ids = coupled_ids(1) * 2**40
    dense, near_output, near = both(random_decoder(), ids, random_tokens())
    torch.testing.assert_close(near_output, dense, rtol=0, atol=2e-5)
    assert near.num_dense == 2 * (SEQ - QUERY_START)


@torch.no_grad()
def test_a_pointer_reads_ids_that_are_far_apart_densely(monkeypatch):
    head, prompt_ids = PointerHead(8, 1000).eval(), torch.arange(QUERY_START)[None] * 2**40
    prompt = build_prompt_keys(head, torch.randn(1, QUERY_START, 8), prompt_ids, torch.tensor([QUERY_START]))
    arguments = torch.randn(1, 5, 8), prompt_ids[:, :5], torch.randn(1, 5, 8), prompt
    dense = head.most_likely_ids(*arguments)
    monkeypatch.setattr(pointer, "MAX_DENSE_PROMPT", 1)
    assert torch.equal(head.most_likely_ids(*arguments), dense)


def test_a_short_sequence_has_no_far_keys(monkeypatch):
    monkeypatch.setattr(near_attention, "WIDTHS", (SEQ,))
    dense, near_output, near = both(random_decoder(temperature=0.1), coupled_ids(1), random_tokens())
    torch.testing.assert_close(near_output, dense, rtol=0, atol=2e-5)
    assert (near.num_dense, near.omitted) == (0, 0.0)


def test_few_unfinished_queries_read_all_keys_one_group_at_a_time(monkeypatch):
    monkeypatch.setattr(near_attention, "MAX_SINGLE_SHARE", 1.0)
    monkeypatch.setattr(near_attention, "SCORES_PER_CHUNK", 3 * SEQ)
    dense, near_output, near = both(random_decoder(temperature=0.1), coupled_ids(1), random_tokens())
    torch.testing.assert_close(near_output, dense, rtol=0, atol=2e-5)
    assert near.num_dense == 2 * (SEQ - QUERY_START)


def test_the_bound_is_above_the_omitted_weight_and_close_to_it():
    num_ids, scale = 100, torch.tensor([[3.0, 3.5, 4.0]])
    distances = torch.cat(list(far_distances(num_ids, 30)))
    assert sorted(distances.abs().tolist()) == sorted(2 * list(range(near_attention.WIDTHS[0] + 1, num_ids + 1)))
    scores = torch.randn(1, 2, len(distances))
    far = bound_far_keys(scores, None, scale, max_keys_per_id=2)
    contents = torch.tensor([0, 1, 1])
    bounds = far.bound_omitted_weight(1, contents, scale, torch.zeros(1, 3))
    is_far = distances.abs() > near_attention.WIDTHS[1]
    actual = torch.stack(
        [
            2 * (factor * scores[0, content, is_far]).exp().sum()
            for factor, content in zip(scale[0], contents, strict=True)
        ]
    )
    assert (bounds >= actual).all()
    assert (bounds <= 2 * actual).all()


def test_a_query_without_a_near_key_is_unfinished():
    far = FarKeyBounds(log_totals=torch.full((1, 3, 2, 1), -100.0), scales=torch.ones(1, 2))

    def read(queries, keys):
        return torch.full((1, len(queries)), 0.0 if len(keys) else -math.inf)

    def omitted(width_index, queries, log_weights):
        return far.bound_omitted_weight(
            width_index, torch.zeros_like(queries), torch.ones(1, len(queries)), log_weights
        )

    for query_id, unfinished in ((50, [0]), (3, [])):
        _, queries = read_near_keys(torch.tensor([query_id]), torch.arange(5), read, omitted)
        assert queries.tolist() == unfinished


def test_rows_have_equal_numbers_only_if_they_are_equal():
    rows = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0], [0.0, 0.0]])
    numbers, first = index_distinct_rows(rows)
    assert numbers[0] == numbers[2]
    assert len(set(numbers.tolist())) == 3
    assert torch.equal(rows[first][numbers], rows)


@pytest.mark.parametrize("head_class", [PointerHead, WidePointerHead, StatePointerHead])
@pytest.mark.parametrize("gain", [0.1, 3.0, 30.0])
@torch.no_grad()
def test_a_pointer_that_reads_near_tokens_predicts_the_same_ids(gain, head_class, monkeypatch):
    head = head_class(8, 1000).eval()
    head.shift.weight.data.normal_(std=0.5)
    if isinstance(head, StatePointerHead):
        head.state_shift.weight.data.normal_(std=0.5)
    head.log_distance_gain.data.fill_(math.log(gain))
    embeddings = torch.randn(4, 8)
    prompt_tokens, next_tokens = torch.randint(4, (2, QUERY_START)), torch.randint(4, (2, 50))
    prompt_ids = torch.arange(QUERY_START).expand(2, -1) // 2
    prompt = build_prompt_keys(head, embeddings[prompt_tokens], prompt_ids, torch.tensor([QUERY_START, QUERY_START]))
    current_ids, hidden = torch.randint(QUERY_START // 2, (2, 50)), torch.randn(2, 50, 8)
    arguments = hidden, current_ids, embeddings[next_tokens], prompt
    dense = head.most_likely_ids(*arguments)
    assert torch.equal(dense, head(*arguments).most_likely_ids())
    monkeypatch.setattr(pointer, "MAX_DENSE_PROMPT", 1)
    assert torch.equal(head.most_likely_ids(*arguments), dense)


@pytest.mark.parametrize("name", ENCODINGS)
@torch.no_grad()
def test_scores_of_an_encoding_that_is_by_distance_depend_on_one_distance(name, rng):
    encoding = ENCODINGS[name]().build(EncodingSize(d_model=16, num_heads=2, d_head=8)).eval()
    assert isinstance(encoding, Encoding)
    if not encoding.is_relative:
        return
    assert not encoding.has_scores
    x, query, key = torch.randn(1, 6, 16), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    ids = torch.from_numpy(rng.integers(0, 500, (1, 6)))
    assert encoding.embed(x, ids) is x

    def scores(query, key, query_ids, key_ids):
        result = encoding.rotate(query, query_ids) @ encoding.rotate(key, key_ids).mT
        return result + encoding.bias(query_ids, key_ids) if encoding.has_bias else result

    together = scores(query, key, ids, ids)
    for i in range(6):
        for j in range(6):
            # A large shift, and no other token.
            alone = scores(
                query[:, :, i : i + 1], key[:, :, j : j + 1], ids[:, i : i + 1] + 9000, ids[:, j : j + 1] + 9000
            )
            torch.testing.assert_close(alone[..., 0, 0], together[..., i, j], rtol=1e-4, atol=1e-4)


def test_encodings_without_a_length_or_a_table_are_relative():
    size = EncodingSize(d_model=16, num_heads=2, d_head=8)
    names = {name for name in ENCODINGS if ENCODINGS[name]().build(size).is_relative}
    assert names >= {"rotary", "partial_rotary", "alibi", "nape", "t5", "kerple_log", "kerple_power"}


def test_a_long_evaluation_has_the_same_result_and_says_what_it_omitted(monkeypatch):
    experiment = quick_version(recipe("parity_rank"))
    decoder = build_decoder(experiment)
    settings = EvaluationSettings(lengths=(30,), num_examples=(4,))
    (dense,) = evaluate_by_length(decoder, experiment.task, experiment.scheme, settings)
    monkeypatch.setattr(grading, "MAX_DENSE_TOKENS", 1)
    used = []
    monkeypatch.setattr(NearAttention, "attend", lambda *given: used.append(1) or ATTEND(*given))
    (near,) = evaluate_by_length(decoder, experiment.task, experiment.scheme, settings)
    assert used
    assert dense.omitted_weight == 0 <= near.omitted_weight <= near_attention.MAX_OMITTED
    changes = {"wall_s": 0.0, "omitted_weight": 0.0, "answer_loss": None}
    assert replace(near, **changes) == replace(dense, **changes)
    assert near.answer_loss == pytest.approx(dense.answer_loss, rel=1e-5)


def test_decoders_with_other_attention_stay_dense():
    assert random_decoder().allows_near_attention
    for settings in ({"num_layers": 2}, {"weights": "entmax"}, {"encoding": ENCODINGS["dape"]()}):
        assert not random_decoder(**settings).allows_near_attention
    assert not Decoder(SETTINGS, SHARP, vocabulary_size=2, num_levels=2).allows_near_attention


def test_plain_forms_replace_near_attention_and_recordings():
    decoder = random_decoder()
    with disable_fast_paths():
        assert not decoder.allows_near_attention
        assert not allows_graph_recording(decoder)
    assert decoder.allows_near_attention
    assert allows_graph_recording(decoder)

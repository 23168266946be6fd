"""Tests of position heads: reading of prompts, and distributions over IDs."""

import math

import numpy as np
import pytest
import torch
from tests.support.cases import randomize

from lengthwise.model.position_heads import (
    POSITION_HEADS,
    ContentSearchHead,
    IncrementHead,
    NextIDDistribution,
    PointerHead,
    PositionHead,
    PromptKeys,
    RankHead,
    StatePointerHead,
    WidePointerHead,
    build_prompt_keys,
)

D_MODEL = 8
NUM_POSITION_IDS = 40
# Ragged prompts whose IDs repeat and fall.
POSITION_IDS = torch.tensor([[4, 9, 9, 2, 30, 11], [7, 7, 3, 0, 0, 0], [5, 6, 8, 12, 1, 39]])
PROMPT_LENGTH = torch.tensor([4, 3, 5])
CURRENT_IDS = torch.tensor([[9, 2, 4, 30], [3, 7, 7, 3], [12, 1, 8, 5]])
NOISE = torch.Generator().manual_seed(0)
HIDDEN, NEXT_EMBEDDINGS = torch.randn(2, 3, 4, D_MODEL, generator=NOISE)
EMBEDDINGS = torch.randn(3, 6, D_MODEL, generator=NOISE)

over_heads = pytest.mark.parametrize("name", POSITION_HEADS)


def build(name: str) -> PositionHead:
    head = POSITION_HEADS[name](D_MODEL, NUM_POSITION_IDS)
    randomize(head)
    return head


def predict(head: PositionHead, current_ids: torch.Tensor = CURRENT_IDS) -> NextIDDistribution:
    return head(HIDDEN, current_ids, NEXT_EMBEDDINGS, build_prompt_keys(head, EMBEDDINGS, POSITION_IDS, PROMPT_LENGTH))


def test_a_prompt_has_its_length_and_sorted_distinct_ids():
    prompt = build_prompt_keys(PositionHead(), EMBEDDINGS, POSITION_IDS, PROMPT_LENGTH)
    fill = PromptKeys.PADDING_ID
    assert prompt.is_prompt.tolist() == [[True] * 4 + [False], [True] * 3 + [False] * 2, [True] * 5]
    assert prompt.distinct_ids.tolist() == [[2, 4, 9, fill, fill], [3, 7, fill, fill, fill], [1, 5, 6, 8, 12]]
    assert prompt.keys.shape == (3, 5, 0)
    for sequence, length in enumerate(PROMPT_LENGTH):
        ids = POSITION_IDS[sequence, :length].tolist()
        assert prompt.position_ids[sequence, :length].tolist() == ids
        assert prompt.ranks[sequence, :length].tolist() == [sorted(set(ids)).index(own) for own in ids]


@over_heads
@torch.no_grad()
def test_candidates_are_distinct_and_their_probabilities_sum_to_at_most_1(name):
    next_ids = predict(build(name))
    candidates = next_ids.candidates.expand(next_ids.log_probs.shape)
    assert (next_ids.log_probs.exp().sum(dim=-1) <= 1 + 1e-6).all()
    for ids in candidates.flatten(0, 1).tolist():
        real = [candidate for candidate in ids if candidate not in {-1, PromptKeys.PADDING_ID}]
        assert len(real) == len(set(real)) > 0


@over_heads
@torch.no_grad()
def test_log_probability_returns_the_value_of_the_matching_candidate(name):
    next_ids = predict(build(name))
    candidates = next_ids.candidates.expand(next_ids.log_probs.shape)
    for place in range(candidates.shape[-1]):
        ids = candidates[..., place]
        log_probability, reachable = next_ids.log_probability(ids)
        real = (ids >= 0) & (ids != PromptKeys.PADDING_ID)
        assert reachable[real].all()
        torch.testing.assert_close(log_probability[real], next_ids.log_probs[..., place][real])


@over_heads
@torch.no_grad()
def test_an_id_without_candidate_is_unreachable_and_has_log_probability_0(name):
    log_probability, reachable = predict(build(name)).log_probability(torch.full_like(CURRENT_IDS, 1_000))
    assert not reachable.any()
    assert (log_probability == 0).all()


@over_heads
@torch.no_grad()
def test_the_most_likely_id_has_the_largest_log_probability(name):
    next_ids = predict(build(name))
    log_probability, reachable = next_ids.log_probability(next_ids.most_likely_ids())
    assert reachable.all()
    torch.testing.assert_close(log_probability, next_ids.log_probs.amax(dim=-1))


@over_heads
@torch.no_grad()
def test_a_ragged_prompt_is_read_as_in_a_batch_of_one(name):
    head = build(name)
    together = predict(head)
    for sequence, length in enumerate(PROMPT_LENGTH):
        own = slice(sequence, sequence + 1)
        lone = build_prompt_keys(head, EMBEDDINGS[own, :length], POSITION_IDS[own, :length], PROMPT_LENGTH[own])
        alone = head(HIDDEN[own], CURRENT_IDS[own], NEXT_EMBEDDINGS[own], lone)
        for place in range(NUM_POSITION_IDS):
            ids = torch.full_like(CURRENT_IDS, place)
            log_probability, reachable = together.log_probability(ids)
            expected, expected_reachable = alone.log_probability(ids[own])
            torch.testing.assert_close(log_probability[own], expected)
            assert torch.equal(reachable[own], expected_reachable)


@over_heads
def test_gradients_of_every_parameter_are_finite_and_most_are_not_zero(name):
    head = build(name)
    targets = torch.tensor([[9, 4, 2, 2], [7, 3, 7, 7], [8, 5, 6, 39]])
    log_probability, reachable = predict(head).log_probability(targets)
    (log_probability * reachable).sum().backward()
    for parameter in head.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().max() > 0


@over_heads
def test_an_improbable_target_has_finite_gradients(name):
    head = build(name)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(100 if parameter.dim() else 5)
    log_probability, reachable = predict(head).log_probability(CURRENT_IDS)
    (log_probability * reachable).sum().backward()
    assert log_probability.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in head.parameters())


@pytest.mark.parametrize("name", ["pointer", "wide_pointer", "state_pointer", "rank", "search"])
@torch.no_grad()
def test_heads_that_read_the_prompt_predict_only_its_ids(name):
    next_ids = predict(build(name))
    candidates = next_ids.candidates.expand(next_ids.log_probs.shape)
    for sequence, length in enumerate(PROMPT_LENGTH):
        known = {*POSITION_IDS[sequence, :length].tolist(), -1, PromptKeys.PADDING_ID}
        assert set(candidates[sequence].flatten().tolist()) <= known


@pytest.mark.parametrize("name", ["pointer", "wide_pointer", "state_pointer", "rank", "increment", "search"])
@torch.no_grad()
def test_shifting_all_ids_shifts_the_predicted_ids(name):
    head = build(name)
    shift = 100_000
    here = predict(head)
    there = head(
        HIDDEN,
        CURRENT_IDS + shift,
        NEXT_EMBEDDINGS,
        build_prompt_keys(head, EMBEDDINGS, POSITION_IDS + shift, PROMPT_LENGTH),
    )
    for place in range(NUM_POSITION_IDS):
        ids = torch.full_like(CURRENT_IDS, place)
        log_probability, reachable = here.log_probability(ids)
        shifted, shifted_reachable = there.log_probability(ids + shift)
        torch.testing.assert_close(shifted, log_probability, atol=1e-4, rtol=1e-4)
        assert torch.equal(shifted_reachable, reachable)


def brute_force_pointer(
    head: PointerHead, sequence: int, query: int, current_id: int
) -> tuple[np.ndarray, dict[int, float]]:
    """Return the mass of each prompt token and the probability of each distinct ID, one token at a time."""
    weights = {name: weight.double().numpy() for name, weight in head.state_dict().items()}
    length = int(PROMPT_LENGTH[sequence])
    ids = POSITION_IDS[sequence, :length].tolist()
    tokens = EMBEDDINGS[sequence].double().numpy()
    next_token = NEXT_EMBEDDINGS[sequence, query].double().numpy()
    target = weights["content.weight"] @ next_token
    gate = 1.0
    if "gate.weight" in weights:
        gate = 1 / (1 + math.exp(-10.0 * (weights["gate.weight"][0] @ next_token + weights["gate.bias"][0])))
    own, other = (vector[0::2] + 1j * vector[1::2] for vector in weights["distance"])
    pairs = len(own)
    scores = []
    for j in range(length):
        before = tokens[j - 1] if j > 0 else np.zeros(D_MODEL)
        content_keys = weights["content.weight"] @ tokens[j] + weights["predecessor.weight"] @ before
        content = target @ content_keys / (np.linalg.norm(target) * np.linalg.norm(content_keys))
        apart = current_id - ids[j]
        turns = [np.exp(1j * apart * 3.0 * 100.0 ** (-i / pairs)) for i in range(pairs)]
        distance = sum((own[i] * np.conj(other[i]) * turns[i]).real for i in range(pairs))
        score = math.exp(weights["log_distance_gain"]) * distance + weights["content_gain"] * gate * content
        scores.append(score * math.log(length + 1))
    mass = np.exp(scores) / np.exp(scores).sum()
    distinct = sorted(set(ids))
    move_scores = weights["shift.weight"] @ next_token + weights["shift.bias"]
    if "state_shift.weight" in weights:
        move_scores += weights["state_shift.weight"] @ HIDDEN[sequence, query].double().numpy()
    moves = np.exp(10.0 * move_scores)
    shares = moves / moves.sum()
    probabilities = dict.fromkeys(distinct, 0.0)
    for j, prompt_id in enumerate(ids):
        rank = distinct.index(prompt_id)
        for move, share in enumerate(shares, start=-head.max_shift):
            # The wide pointer stays at the ends of the prompt.
            target_rank = min(max(rank + move, 0), len(distinct) - 1) if "gate.weight" in weights else rank + move
            if 0 <= target_rank < len(distinct):
                probabilities[distinct[target_rank]] += share * mass[j]
    return mass, probabilities


@pytest.mark.parametrize("name", ["pointer", "wide_pointer", "state_pointer"])
@torch.no_grad()
def test_the_pointer_equals_a_double_loop(name):
    head = build(name)
    assert isinstance(head, PointerHead)
    head.content_gain.fill_(1.5)
    head.shift.weight.mul_(0.2)
    if isinstance(head, WidePointerHead):
        head.gate.weight.normal_(std=0.1)
        head.gate.bias.fill_(0.05)
    head.shift.bias.copy_(torch.linspace(-0.1, 0.2, 2 * head.max_shift + 1))
    if isinstance(head, StatePointerHead):
        head.state_shift.weight.normal_(std=0.05)
    next_ids = predict(head)
    for sequence, query in np.ndindex(*CURRENT_IDS.shape):
        _, expected = brute_force_pointer(head, sequence, query, int(CURRENT_IDS[sequence, query]))
        for candidate, probability in expected.items():
            log_probability, _ = next_ids.log_probability(torch.full_like(CURRENT_IDS, candidate))
            assert math.exp(log_probability[sequence, query]) == pytest.approx(probability, rel=1e-4)


@torch.no_grad()
def test_the_mass_of_equal_ids_is_summed_before_the_largest_is_chosen():
    head = PointerHead(D_MODEL, NUM_POSITION_IDS)
    head.shift.bias.copy_(torch.tensor([-100.0, 0.0, -100.0]))
    head.content_gain.fill_(0.0)
    head.log_distance_gain.fill_(math.log(0.1))
    mass, _ = brute_force_pointer(head, 0, 0, current_id=4)
    assert POSITION_IDS[0, mass.argmax()] == 4
    assert predict(head, torch.full_like(CURRENT_IDS, 4)).most_likely_ids()[0, 0] == 9


@torch.no_grad()
def test_the_pointer_moves_up_and_down_one_distinct_id():
    head = PointerHead(D_MODEL, NUM_POSITION_IDS)
    head.log_distance_gain.fill_(math.log(30.0))
    moves = {-1: [4, 4, 4, 4], 0: [9, 9, 9, 9], 1: [12, 12, 12, 12]}
    position_ids = torch.tensor([[12, 4, 9, 9]])
    prompt = build_prompt_keys(head, EMBEDDINGS[:1, :4], position_ids, torch.tensor([4]))
    for move, expected in moves.items():
        head.shift.bias.copy_(torch.where(torch.tensor([-1, 0, 1]) == move, 0.0, -100.0))
        next_ids = head(HIDDEN[:1], torch.full((1, 4), 9), NEXT_EMBEDDINGS[:1], prompt)
        assert next_ids.most_likely_ids()[0].tolist() == expected


@torch.no_grad()
def test_the_shift_of_the_pointer_depends_on_the_next_token():
    head = PointerHead(D_MODEL, NUM_POSITION_IDS)
    head.log_distance_gain.fill_(math.log(30.0))
    # The first component of the next token's embedding decides the shift.
    head.shift.weight[:, 0] = torch.tensor([-10.0, 0.0, 10.0])
    next_embeddings = torch.zeros(1, 4, D_MODEL)
    next_embeddings[0, :, 0] = torch.tensor([1.0, -1.0, 0.0, 1.0])
    head.shift.bias.copy_(torch.tensor([0.0, 1.0, 0.0]))
    prompt = build_prompt_keys(head, EMBEDDINGS[:1, :4], torch.tensor([[12, 4, 9, 9]]), torch.tensor([4]))
    next_ids = head(HIDDEN[:1], torch.tensor([[9, 9, 9, 4]]), next_embeddings, prompt)
    assert next_ids.most_likely_ids()[0].tolist() == [12, 4, 9, 9]


@torch.no_grad()
def test_the_search_head_equals_a_loop():
    head = build("search")
    assert isinstance(head, ContentSearchHead)
    head.log_gain.fill_(1.0)
    next_ids = predict(head)
    weights = {name: weight.double().numpy() for name, weight in head.state_dict().items()}
    for sequence, query in np.ndindex(*CURRENT_IDS.shape):
        target = weights["query.weight"] @ NEXT_EMBEDDINGS[sequence, query].double().numpy()
        length = int(PROMPT_LENGTH[sequence])
        content_keys = [weights["key.weight"] @ token.double().numpy() for token in EMBEDDINGS[sequence, :length]]
        cosines = np.array([target @ each / (np.linalg.norm(target) * np.linalg.norm(each)) for each in content_keys])
        mass = np.exp(math.exp(weights["log_gain"]) * math.log(length + 1) * cosines)
        ids = POSITION_IDS[sequence, :length].numpy()
        for candidate in set(ids.tolist()):
            log_probability, _ = next_ids.log_probability(torch.full_like(CURRENT_IDS, candidate))
            expected = mass[ids == candidate].sum() / mass.sum()
            assert math.exp(log_probability[sequence, query]) == pytest.approx(expected, rel=1e-4)


@torch.no_grad()
def test_the_search_head_can_represent_the_next_token_of_an_order():
    head = ContentSearchHead(D_MODEL, NUM_POSITION_IDS, d_search=D_MODEL)
    head.query.weight.copy_(torch.eye(D_MODEL))
    # The query of each one-hot token matches the key of the next one.
    head.key.weight.copy_(torch.eye(D_MODEL).roll(-1, dims=0))
    tokens = torch.eye(D_MODEL)[None]
    shuffled = [3, 0, 2, 1]
    prompt = build_prompt_keys(head, tokens[:, shuffled], torch.tensor([[10, 20, 30, 40]]), torch.tensor([4]))
    next_ids = head(HIDDEN[:1, :3], CURRENT_IDS[:1, :3], tokens[:, :3], prompt)
    assert next_ids.most_likely_ids()[0].tolist() == [40, 30, 10]


@torch.no_grad()
def test_candidates_of_the_rank_head_are_the_distinct_ids_around_the_current_one():
    next_ids = predict(build("rank"))
    for sequence, query in np.ndindex(*CURRENT_IDS.shape):
        distinct = sorted(set(POSITION_IDS[sequence, : PROMPT_LENGTH[sequence]].tolist()))
        own = int(np.searchsorted(distinct, int(CURRENT_IDS[sequence, query])))
        expected = [distinct[own + move] if 0 <= own + move < len(distinct) else -1 for move in RankHead.OFFSETS]
        assert next_ids.candidates[sequence, query].tolist() == expected


@torch.no_grad()
def test_the_rank_head_gives_missing_ranks_probability_0():
    next_ids = predict(build("rank"))
    impossible = next_ids.candidates == -1
    assert impossible.any()
    assert (next_ids.log_probs[impossible] == -math.inf).all()
    torch.testing.assert_close(next_ids.log_probs.exp().sum(dim=-1), torch.ones(3, 4))


@pytest.mark.parametrize("step", [-2, -1, 0, 1, 2, 3])
@torch.no_grad()
def test_the_increment_head_reaches_exactly_its_offsets(step):
    _, reachable = predict(build("increment")).log_probability(CURRENT_IDS + step)
    assert (reachable == (step in IncrementHead.OFFSETS)).all()


@over_heads
@torch.no_grad()
def test_predicted_ids_depend_on_the_next_token(name):
    head = build(name)
    prompt = build_prompt_keys(head, EMBEDDINGS, POSITION_IDS, PROMPT_LENGTH)
    here = head(HIDDEN, CURRENT_IDS, NEXT_EMBEDDINGS, prompt).log_probs
    there = head(HIDDEN, CURRENT_IDS, NEXT_EMBEDDINGS.flip(1), prompt).log_probs
    assert (here.exp() - there.exp()).abs().max() > 1e-3


@over_heads
@torch.no_grad()
def test_a_fill_value_is_never_predicted(name):
    head = build(name)
    if isinstance(head, PointerHead):
        head.shift.bias.fill_(-100.0)
        head.shift.bias[-1] = 0.0
    next_ids = predict(head)
    assert (next_ids.candidates != PromptKeys.PADDING_ID).all()
    assert (next_ids.most_likely_ids() >= 0).all()

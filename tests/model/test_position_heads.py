"""Position heads: what they read of a prompt, and the distributions over IDs they give."""

import math

import numpy as np
import pytest
import torch
from tests.support.cases import randomize

from lengthwise.model.position_heads import (
    POSITION_HEADS,
    Increment,
    NextIDs,
    Pointer,
    PositionHead,
    Prompt,
    Rank,
    Search,
    read_prompt,
)

D_MODEL = 8
NUM_POSITION_IDS = 40
# Ragged prompts whose IDs repeat and fall.
POSITION_IDS = torch.tensor([[4, 9, 9, 2, 30, 11], [7, 7, 3, 0, 0, 0], [5, 6, 8, 12, 1, 39]])
PROMPT_LENGTH = torch.tensor([4, 3, 5])
OWN_IDS = torch.tensor([[9, 2, 4, 30], [3, 7, 7, 3], [12, 1, 8, 5]])
NOISE = torch.Generator().manual_seed(0)
HIDDEN, CHOSEN = torch.randn(2, 3, 4, D_MODEL, generator=NOISE)
EMBEDDINGS = torch.randn(3, 6, D_MODEL, generator=NOISE)

over_heads = pytest.mark.parametrize("name", POSITION_HEADS)


def build(name: str) -> PositionHead:
    head = POSITION_HEADS[name](D_MODEL, NUM_POSITION_IDS)
    randomize(head)
    return head


def named(head: PositionHead, own_ids: torch.Tensor = OWN_IDS) -> NextIDs:
    return head(HIDDEN, own_ids, CHOSEN, read_prompt(head, EMBEDDINGS, POSITION_IDS, PROMPT_LENGTH))


def test_a_prompt_ends_where_its_length_says_and_lists_its_distinct_ids_in_order():
    prompt = read_prompt(PositionHead(), EMBEDDINGS, POSITION_IDS, PROMPT_LENGTH)
    fill = Prompt.FILL
    assert prompt.inside.tolist() == [[True] * 4 + [False], [True] * 3 + [False] * 2, [True] * 5]
    assert prompt.distinct_ids.tolist() == [[2, 4, 9, fill, fill], [3, 7, fill, fill, fill], [1, 5, 6, 8, 12]]
    assert prompt.keys.shape == (3, 5, 0)
    for row, length in enumerate(PROMPT_LENGTH):
        ids = POSITION_IDS[row, :length].tolist()
        assert prompt.position_ids[row, :length].tolist() == ids
        assert prompt.ranks[row, :length].tolist() == [sorted(set(ids)).index(own) for own in ids]


@over_heads
@torch.no_grad()
def test_candidates_of_a_row_are_distinct_and_their_probabilities_sum_to_at_most_1(name):
    next_ids = named(build(name))
    candidates = next_ids.candidates.expand(next_ids.log_probs.shape)
    assert (next_ids.log_probs.exp().sum(dim=-1) <= 1 + 1e-6).all()
    for ids in candidates.flatten(0, 1).tolist():
        real = [candidate for candidate in ids if candidate not in {-1, Prompt.FILL}]
        assert len(real) == len(set(real)) > 0


@over_heads
@torch.no_grad()
def test_log_probability_is_that_of_the_matching_candidate(name):
    next_ids = named(build(name))
    candidates = next_ids.candidates.expand(next_ids.log_probs.shape)
    for place in range(candidates.shape[-1]):
        asked = candidates[..., place]
        log_probability, reachable = next_ids.log_probability(asked)
        real = (asked >= 0) & (asked != Prompt.FILL)
        assert reachable[real].all()
        torch.testing.assert_close(log_probability[real], next_ids.log_probs[..., place][real])


@over_heads
@torch.no_grad()
def test_an_id_that_is_no_candidate_is_out_of_reach_and_costs_nothing(name):
    log_probability, reachable = named(build(name)).log_probability(torch.full_like(OWN_IDS, 1_000))
    assert not reachable.any()
    assert (log_probability == 0).all()


@over_heads
@torch.no_grad()
def test_the_most_likely_id_has_the_largest_log_probability(name):
    next_ids = named(build(name))
    log_probability, reachable = next_ids.log_probability(next_ids.most_likely())
    assert reachable.all()
    torch.testing.assert_close(log_probability, next_ids.log_probs.amax(dim=-1))


@over_heads
@torch.no_grad()
def test_a_ragged_prompt_is_read_as_if_it_stood_alone(name):
    head = build(name)
    together = named(head)
    for row, length in enumerate(PROMPT_LENGTH):
        own = slice(row, row + 1)
        lone = read_prompt(head, EMBEDDINGS[own, :length], POSITION_IDS[own, :length], PROMPT_LENGTH[own])
        alone = head(HIDDEN[own], OWN_IDS[own], CHOSEN[own], lone)
        for place in range(NUM_POSITION_IDS):
            asked = torch.full_like(OWN_IDS, place)
            log_probability, reachable = together.log_probability(asked)
            expected, expected_reachable = alone.log_probability(asked[own])
            torch.testing.assert_close(log_probability[own], expected)
            assert torch.equal(reachable[own], expected_reachable)


@over_heads
def test_gradients_of_every_parameter_are_finite_and_most_are_not_zero(name):
    head = build(name)
    targets = torch.tensor([[9, 4, 2, 2], [7, 3, 7, 7], [8, 5, 6, 39]])
    log_probability, reachable = named(head).log_probability(targets)
    (log_probability * reachable).sum().backward()
    for parameter in head.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().max() > 0


@over_heads
def test_a_hopeless_target_still_has_finite_gradients(name):
    head = build(name)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(100 if parameter.dim() else 5)
    log_probability, reachable = named(head).log_probability(OWN_IDS)
    (log_probability * reachable).sum().backward()
    assert log_probability.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in head.parameters())


@pytest.mark.parametrize("name", ["pointer", "rank", "search"])
@torch.no_grad()
def test_heads_that_read_the_prompt_name_its_ids_alone(name):
    next_ids = named(build(name))
    candidates = next_ids.candidates.expand(next_ids.log_probs.shape)
    for row, length in enumerate(PROMPT_LENGTH):
        known = {*POSITION_IDS[row, :length].tolist(), -1, Prompt.FILL}
        assert set(candidates[row].flatten().tolist()) <= known


@pytest.mark.parametrize("name", ["pointer", "rank", "increment", "search"])
@torch.no_grad()
def test_shifting_all_ids_shifts_what_a_head_names(name):
    head = build(name)
    shift = 100_000
    here = named(head)
    there = head(HIDDEN, OWN_IDS + shift, CHOSEN, read_prompt(head, EMBEDDINGS, POSITION_IDS + shift, PROMPT_LENGTH))
    for place in range(NUM_POSITION_IDS):
        asked = torch.full_like(OWN_IDS, place)
        log_probability, reachable = here.log_probability(asked)
        shifted, shifted_reachable = there.log_probability(asked + shift)
        torch.testing.assert_close(shifted, log_probability, atol=1e-4, rtol=1e-4)
        assert torch.equal(shifted_reachable, reachable)


def brute_force_pointer(head: Pointer, row: int, query: int, own_id: int) -> tuple[np.ndarray, dict[int, float]]:
    """The mass of each prompt token, and the probability of each distinct ID, one token at a time."""
    weights = {name: weight.double().numpy() for name, weight in head.state_dict().items()}
    length = int(PROMPT_LENGTH[row])
    ids = POSITION_IDS[row, :length].tolist()
    tokens = EMBEDDINGS[row].double().numpy()
    wanted = weights["content.weight"] @ CHOSEN[row, query].double().numpy()
    own, other = (vector[0::2] + 1j * vector[1::2] for vector in weights["distance"])
    pairs = len(own)
    scores = []
    for j in range(length):
        before = tokens[j - 1] if j > 0 else np.zeros(D_MODEL)
        found = weights["content.weight"] @ tokens[j] + weights["predecessor.weight"] @ before
        content = wanted @ found / (np.linalg.norm(wanted) * np.linalg.norm(found))
        apart = own_id - ids[j]
        turns = [np.exp(1j * apart * 3.0 * 100.0 ** (-i / pairs)) for i in range(pairs)]
        distance = sum((own[i] * np.conj(other[i]) * turns[i]).real for i in range(pairs))
        score = math.exp(weights["log_distance_gain"]) * distance + weights["content_gain"] * content
        scores.append(score * math.log(length + 1))
    mass = np.exp(scores) / np.exp(scores).sum()
    distinct = sorted(set(ids))
    moves = np.exp(10.0 * (weights["shift.weight"] @ CHOSEN[row, query].double().numpy() + weights["shift.bias"]))
    down, stay, up = moves / moves.sum()
    probabilities = dict.fromkeys(distinct, 0.0)
    for j, prompt_id in enumerate(ids):
        rank = distinct.index(prompt_id)
        for move, share in ((-1, down), (0, stay), (1, up)):
            if 0 <= rank + move < len(distinct):
                probabilities[distinct[rank + move]] += share * mass[j]
    return mass, probabilities


@torch.no_grad()
def test_the_pointer_sums_and_shifts_mass_as_a_double_loop_does():
    head = build("pointer")
    assert isinstance(head, Pointer)
    head.content_gain.fill_(1.5)
    head.shift.weight.mul_(0.2)
    head.shift.bias.copy_(torch.tensor([-0.1, 0.2, 0.05]))
    next_ids = named(head)
    for row, query in np.ndindex(*OWN_IDS.shape):
        _, expected = brute_force_pointer(head, row, query, int(OWN_IDS[row, query]))
        for candidate, probability in expected.items():
            log_probability, _ = next_ids.log_probability(torch.full_like(OWN_IDS, candidate))
            assert math.exp(log_probability[row, query]) == pytest.approx(probability, rel=1e-4)


@torch.no_grad()
def test_an_id_wins_by_the_sum_of_its_tokens_where_no_single_token_would():
    head = Pointer(D_MODEL, NUM_POSITION_IDS)
    head.shift.bias.copy_(torch.tensor([-100.0, 0.0, -100.0]))
    head.content_gain.fill_(0.0)
    head.log_distance_gain.fill_(math.log(0.1))
    mass, _ = brute_force_pointer(head, 0, 0, own_id=4)
    assert POSITION_IDS[0, mass.argmax()] == 4
    assert named(head, torch.full_like(OWN_IDS, 4)).most_likely()[0, 0] == 9


@torch.no_grad()
def test_the_pointer_moves_up_and_down_one_distinct_id():
    head = Pointer(D_MODEL, NUM_POSITION_IDS)
    head.log_distance_gain.fill_(math.log(30.0))
    moves = {-1: [4, 4, 4, 4], 0: [9, 9, 9, 9], 1: [12, 12, 12, 12]}
    position_ids = torch.tensor([[12, 4, 9, 9]])
    prompt = read_prompt(head, EMBEDDINGS[:1, :4], position_ids, torch.tensor([4]))
    for move, expected in moves.items():
        head.shift.bias.copy_(torch.where(torch.tensor([-1, 0, 1]) == move, 0.0, -100.0))
        next_ids = head(HIDDEN[:1], torch.full((1, 4), 9), CHOSEN[:1], prompt)
        assert next_ids.most_likely()[0].tolist() == expected


@torch.no_grad()
def test_how_the_pointer_moves_depends_on_the_token_chosen_next():
    head = Pointer(D_MODEL, NUM_POSITION_IDS)
    head.log_distance_gain.fill_(math.log(30.0))
    # The first component of the token's embedding says where to go.
    head.shift.weight[:, 0] = torch.tensor([-10.0, 0.0, 10.0])
    chosen = torch.zeros(1, 4, D_MODEL)
    chosen[0, :, 0] = torch.tensor([1.0, -1.0, 0.0, 1.0])
    head.shift.bias.copy_(torch.tensor([0.0, 1.0, 0.0]))
    prompt = read_prompt(head, EMBEDDINGS[:1, :4], torch.tensor([[12, 4, 9, 9]]), torch.tensor([4]))
    next_ids = head(HIDDEN[:1], torch.tensor([[9, 9, 9, 4]]), chosen, prompt)
    assert next_ids.most_likely()[0].tolist() == [12, 4, 9, 9]


@torch.no_grad()
def test_the_search_sums_the_mass_of_equal_ids_as_a_loop_does():
    head = build("search")
    assert isinstance(head, Search)
    head.log_gain.fill_(1.0)
    next_ids = named(head)
    weights = {name: weight.double().numpy() for name, weight in head.state_dict().items()}
    for row, query in np.ndindex(*OWN_IDS.shape):
        wanted = weights["query.weight"] @ CHOSEN[row, query].double().numpy()
        length = int(PROMPT_LENGTH[row])
        found = [weights["key.weight"] @ token.double().numpy() for token in EMBEDDINGS[row, :length]]
        cosines = np.array([wanted @ each / (np.linalg.norm(wanted) * np.linalg.norm(each)) for each in found])
        mass = np.exp(math.exp(weights["log_gain"]) * math.log(length + 1) * cosines)
        ids = POSITION_IDS[row, :length].numpy()
        for candidate in set(ids.tolist()):
            log_probability, _ = next_ids.log_probability(torch.full_like(OWN_IDS, candidate))
            expected = mass[ids == candidate].sum() / mass.sum()
            assert math.exp(log_probability[row, query]) == pytest.approx(expected, rel=1e-4)


@torch.no_grad()
def test_the_search_can_say_which_token_is_next_in_an_order():
    head = Search(D_MODEL, NUM_POSITION_IDS, d_search=D_MODEL)
    head.query.weight.copy_(torch.eye(D_MODEL))
    # What the token with the only one at a place looks for has its own at the next place.
    head.key.weight.copy_(torch.eye(D_MODEL).roll(-1, dims=0))
    tokens = torch.eye(D_MODEL)[None]
    shuffled = [3, 0, 2, 1]
    prompt = read_prompt(head, tokens[:, shuffled], torch.tensor([[10, 20, 30, 40]]), torch.tensor([4]))
    next_ids = head(HIDDEN[:1, :3], OWN_IDS[:1, :3], tokens[:, :3], prompt)
    assert next_ids.most_likely()[0].tolist() == [40, 30, 10]


@torch.no_grad()
def test_the_rank_head_offers_the_distinct_ids_of_the_prompt_around_the_own_one():
    next_ids = named(build("rank"))
    for row, query in np.ndindex(*OWN_IDS.shape):
        distinct = sorted(set(POSITION_IDS[row, : PROMPT_LENGTH[row]].tolist()))
        own = int(np.searchsorted(distinct, int(OWN_IDS[row, query])))
        expected = [distinct[own + move] if 0 <= own + move < len(distinct) else -1 for move in Rank.OFFSETS]
        assert next_ids.candidates[row, query].tolist() == expected


@torch.no_grad()
def test_the_rank_head_marks_ranks_that_a_prompt_does_not_have_as_impossible():
    next_ids = named(build("rank"))
    impossible = next_ids.candidates == -1
    assert impossible.any()
    assert (next_ids.log_probs[impossible] == -math.inf).all()
    torch.testing.assert_close(next_ids.log_probs.exp().sum(dim=-1), torch.ones(3, 4))


@pytest.mark.parametrize("step", [-2, -1, 0, 1, 2, 3])
@torch.no_grad()
def test_the_increment_head_reaches_its_offsets_and_nothing_else(step):
    _, reachable = named(build("increment")).log_probability(OWN_IDS + step)
    assert (reachable == (step in Increment.OFFSETS)).all()


@over_heads
@torch.no_grad()
def test_what_a_head_names_depends_on_the_token_chosen_next(name):
    head = build(name)
    prompt = read_prompt(head, EMBEDDINGS, POSITION_IDS, PROMPT_LENGTH)
    here = head(HIDDEN, OWN_IDS, CHOSEN, prompt).log_probs
    there = head(HIDDEN, OWN_IDS, CHOSEN.flip(1), prompt).log_probs
    assert (here.exp() - there.exp()).abs().max() > 1e-3


@over_heads
@torch.no_grad()
def test_a_fill_is_never_named(name):
    head = build(name)
    if isinstance(head, Pointer):
        head.shift.bias.copy_(torch.tensor([-100.0, -100.0, 0.0]))
    next_ids = named(head)
    assert (next_ids.candidates != Prompt.FILL).all()
    assert (next_ids.most_likely() >= 0).all()

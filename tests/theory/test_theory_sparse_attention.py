"""Every sum over sets against a list of all sets, and the properties of sparse functional attention."""

import math
from itertools import combinations, pairwise, product

import numpy as np
import pytest
import torch
from theory_speed import AutomatonAttention
from torch.func import functional_call

from lengthwise.core.errors import SettingError
from lengthwise.theory.attention import sparse_attention
from lengthwise.theory.attention.sparse_attention import LOG_ZERO, ZERO_THRESHOLD, SparseFunctionalAttention

TOKENS = 3
TABLES = {
    "bag of words": {"k": 1, "span": 1},
    "pairs": {"k": 2, "span": 3},
    "triples": {"k": 3, "span": 5},
    "product of words": {"k": 4},
}
# The forms of the benchmark, with values from an automaton.
AUTOMATA = {"chain": {"k": 3, "max_gap": 2}, "product": {"k": 3}}
CASES = {**TABLES, **AUTOMATA}
over_cases = pytest.mark.parametrize("name", CASES)
over_kinds = pytest.mark.parametrize("kind", ["mild", "extreme", "zeros"])


def build(name: str, kind: str = "mild") -> SparseFunctionalAttention:
    """Build a module in double precision with random parameters; ``kind`` sets the range of its scores."""
    form = AutomatonAttention if name in AUTOMATA else SparseFunctionalAttention
    module = form(num_tokens=TOKENS, num_outputs=2, **CASES[name]).double()
    with torch.no_grad():
        for parameter_name, parameter in module.named_parameters():
            parameter.copy_(torch.randn_like(parameter))
            if parameter_name.startswith("sets.") and kind == "extreme":
                parameter.copy_(50 * parameter.sign())
            if parameter_name.startswith("sets.") and kind == "zeros":
                parameter[torch.rand_like(parameter) < 0.6] = LOG_ZERO
    return module


def random_tokens(length: int, batch: int = 3) -> torch.Tensor:
    return torch.randint(0, TOKENS, (batch, length))


def plain(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy()


def score_of(module: SparseFunctionalAttention, ids: tuple[int, ...], tokens: tuple[int, ...]) -> float:
    """Compute ``log g`` in plain Python, without the code under test; minus infinity for g = 0."""
    if hasattr(module.sets, "logits"):
        shapes = [(0, *rest) for rest in combinations(range(1, module.span), module.k - 1)]
        shape = tuple(index - ids[0] for index in ids)
        if shape not in shapes:
            return -math.inf
        return float(module.sets.logits[shapes.index(shape), int("".join(map(str, tokens)), TOKENS)])
    score = sum(float(module.sets.tokens[slot, token]) for slot, token in enumerate(tokens))
    if hasattr(module.sets, "links"):
        gaps = [later - earlier for earlier, later in pairwise(ids)]
        if any(gap > module.max_gap for gap in gaps):
            return -math.inf
        for slot, gap in enumerate(gaps):
            score += float(module.sets.links[slot, gap - 1, tokens[slot], tokens[slot + 1]])
    return score


def value_of(module: SparseFunctionalAttention, tokens: tuple[int, ...]) -> np.ndarray:
    def softmax(logits: np.ndarray) -> np.ndarray:
        scaled = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return scaled / scaled.sum(axis=-1, keepdims=True)

    if isinstance(module, AutomatonAttention):
        state = np.ones(1)
        for slot, token in enumerate(tokens):
            state = state @ softmax(plain(module.values.steps[slot])[token])
        return state
    return softmax(plain(module.values.logits)[0, int("".join(map(str, tokens)), TOKENS)])


@torch.no_grad()
def brute(module: SparseFunctionalAttention, tokens: list[int]) -> np.ndarray:
    """Compute ``log f`` set by set."""
    sets = list(combinations(range(len(tokens)), module.k))
    tuples = [tuple(tokens[index] for index in indexes) for indexes in sets]
    scores = np.array([score_of(module, *pair) for pair in zip(sets, tuples, strict=True)])
    scores = np.where(scores > ZERO_THRESHOLD, scores, -math.inf)
    if not len(scores) or scores.max() == -math.inf:
        return np.full(module.num_outputs, -math.log(module.num_outputs))
    weights = np.exp(scores - scores.max())
    total = np.zeros(module.num_outputs)
    for words, weight in zip(tuples, weights, strict=True):
        if weight > 0:
            total += weight * value_of(module, words)
    return np.log(total) - np.log(weights.sum())


def check_against_brute_force(module: SparseFunctionalAttention, tokens: torch.Tensor) -> None:
    for row, outputs in zip(tokens.tolist(), plain(module(tokens)), strict=True):
        check_close(outputs, brute(module, row))


def check_close(actual: np.ndarray, expected: np.ndarray, within: float = 1e-10) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=within)


@over_cases
@over_kinds
def test_every_algorithm_equals_a_sum_over_all_listed_sets(name, kind):
    module = build(name, kind)
    for length in (1, 2, 4, 7):
        check_against_brute_force(module, random_tokens(length))


@over_cases
def test_gradients_equal_finite_differences(name):
    module = build(name)
    tokens = random_tokens(5, batch=2)
    names, parameters = zip(*module.named_parameters(), strict=True)

    def outputs(*values):
        return functional_call(module, dict(zip(names, values, strict=True)), (tokens,))

    assert torch.autograd.gradcheck(outputs, parameters, fast_mode=True)


@over_cases
@pytest.mark.parametrize("length", [1, 9])
def test_gradients_are_finite_if_scores_are_zero(name, length):
    module = build(name, "zeros").float()
    module(random_tokens(length)).exp().sum().backward()
    module(random_tokens(length))[:, 0].sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in module.parameters() if parameter.grad is not None)


@over_cases
def test_nan_parameters_give_nan_outputs(name):
    module = build(name)
    for parameter in module.sets.parameters():
        parameter.data[:] = torch.nan
    assert module(random_tokens(9)).isnan().all()


def test_tables_of_a_single_precision_module_have_double_precision():
    tables = build("pairs").float().to_tabular()
    assert tables.log_scores.dtype == tables.values.dtype == tables.default.dtype == np.float64
    check_close(tables.values.sum(axis=2), np.ones((2, TOKENS**2)), within=1e-14)


@pytest.mark.parametrize("name", ["pairs", "triples", "product of words", "chain", "product"])
def test_padding_with_tokens_of_score_zero_has_no_effect(name):
    module = build(name)
    filler = TOKENS - 1
    with torch.no_grad():
        if name in ("pairs", "triples"):
            codes = [code for code, words in enumerate(product(range(TOKENS), repeat=module.k)) if filler in words]
            module.sets.logits[:, codes] = LOG_ZERO
        else:
            module.sets.tokens[:, filler] = LOG_ZERO
    tokens = torch.randint(0, filler, (3, 8))
    around = torch.nn.functional.pad(tokens, (5, 4), value=filler)
    check_close(plain(module(around)), plain(module(tokens)), within=1e-12)


def test_attention_to_single_tokens_is_invariant_to_permutations():
    module = build("bag of words")
    tokens = torch.randint(0, TOKENS, (3, 12))
    check_close(plain(module(tokens[:, torch.randperm(12)])), plain(module(tokens)), within=1e-12)


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_of_a_module_give_the_same_outputs(name):
    module = build(name, "zeros")
    tokens = random_tokens(11)
    check_close(module.to_tabular().predict(tokens.numpy()), np.exp(plain(module(tokens))), within=1e-12)


@pytest.mark.parametrize("block", [1, 40])
def test_the_block_size_has_no_effect(monkeypatch, block):
    module = build("triples", "zeros")
    tokens = torch.randint(0, TOKENS, (3, 12))
    whole = plain(module(tokens))
    monkeypatch.setattr(sparse_attention, "BLOCK", block)
    check_close(plain(module(tokens)), whole, within=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0, "span": 3}, r"\(3, 0, 2\); set each to at least 1"),
        ({"k": 3, "span": 2}, "3 tokens do not fit a span of 2; use a span of at least 3"),
        ({"k": 16, "span": 16}, "43,046,721 entries, more than the 16,777,216"),
        ({"k": 9, "span": 60}, "more than 200,000"),
    ],
)
def test_settings_without_an_exact_algorithm_raise(settings, message):
    with pytest.raises(SettingError, match=message):
        SparseFunctionalAttention(num_tokens=3, num_outputs=2, **settings)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [([[0, 3]], "each from 0 to 2"), ([[]], "at least one token")],
)
def test_invalid_tokens_raise(tokens, message):
    with pytest.raises(SettingError, match=message):
        build("pairs")(torch.tensor(tokens, dtype=torch.int64))


@pytest.mark.slow
@over_cases
@over_kinds
def test_every_algorithm_equals_a_sum_over_all_listed_sets_for_many_seeds(name, kind):
    for seed in range(8):
        torch.manual_seed(seed)
        check_against_brute_force(build(name, kind), random_tokens(3 + seed))

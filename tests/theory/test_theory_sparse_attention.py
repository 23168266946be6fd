"""Every sum over sets against a list of all sets, and the properties of sparse functional attention."""

import math
from itertools import combinations, pairwise, product

import numpy as np
import pytest
import torch
from torch.func import functional_call

from lengthwise.core.errors import SettingError, UnknownNameError
from lengthwise.theory.attention import scores as scores_module
from lengthwise.theory.attention.scores import LOG_ZERO, AutomatonValues
from lengthwise.theory.attention.sparse_attention import ZERO_THRESHOLD, SparseFunctionalAttention, Temperature
from lengthwise.theory.attention.tabular import TabularAttention

TOKENS = 3
ABSOLUTE = {"relative": False, "num_places": 40}
SHARPER = Temperature(train_length=2, log_gap=1.5)
CASES = {
    "bag of words": {"k": 1, "span": 1},
    "pairs": {"k": 2, "span": 3},
    "triples": {"k": 3, "span": 5},
    "values by shape": {"k": 2, "span": 4, "by_shape": True},
    "table and automaton": {"k": 3, "span": 4, "value": "automaton", "num_states": 3},
    "perceptron": {"k": 2, "span": 4, "score": "mlp"},
    "absolute pairs": {"k": 2, "span": 3, **ABSOLUTE},
    "chain of one": {"k": 1, "span": 2, "score": "chain"},
    "chain": {"k": 3, "span": 5, "max_gap": 2, "score": "chain", "value": "automaton"},
    "tight chain": {"k": 4, "span": 6, "max_gap": 3, "score": "chain", "value": "automaton"},
    "tight chain of words": {"k": 3, "span": 4, "score": "chain"},
    "absolute chain": {"k": 3, "span": 4, "score": "chain", **ABSOLUTE},
    "local product": {"k": 3, "span": 4, "score": "product"},
    "product": {"k": 3, "score": "product", "local": False, "value": "automaton"},
    "product of words": {"k": 4, "score": "product", "local": False},
    "absolute product": {"k": 2, "score": "product", "local": False, **ABSOLUTE},
    "sharper": {"k": 3, "span": 5, "temperature": Temperature(train_length=1, log_gap=2.0)},
    "sharper absolute pairs": {"k": 2, "span": 3, **ABSOLUTE, "temperature": SHARPER},
    "sharper absolute chain": {"k": 3, "span": 4, "score": "chain", **ABSOLUTE, "temperature": SHARPER},
    "sharper absolute product": {"k": 2, "score": "product", "local": False, **ABSOLUTE, "temperature": SHARPER},
    "coupled": {"k": 2, "span": 3, "coupled": True},
    "coupled triples": {"k": 3, "span": 2, "coupled": True, "value": "automaton"},
    "coupled perceptron": {"k": 2, "span": 2, "coupled": True, "score": "mlp"},
}
STEADY = [name for name, settings in CASES.items() if "temperature" not in settings]
over_cases = pytest.mark.parametrize("name", CASES)
over_kinds = pytest.mark.parametrize("kind", ["mild", "extreme", "zeros"])
over_steady = pytest.mark.parametrize("name", STEADY)


def build(settings: dict, kind: str = "mild") -> SparseFunctionalAttention:
    """Build a module in double precision with random parameters; ``kind`` sets the range of its scores."""
    module = SparseFunctionalAttention(num_tokens=TOKENS, num_outputs=2, **settings).double()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.randn_like(parameter))
            if name.startswith("sets.") and module.score != "mlp" and kind == "extreme":
                parameter.copy_(50 * parameter.sign())
            if name.startswith("sets.") and module.score != "mlp" and kind == "zeros":
                parameter[torch.rand_like(parameter) < 0.6] = LOG_ZERO
    return module


def random_inputs(name: str, length: int, batch: int = 3) -> dict[str, torch.Tensor]:
    """Sample tokens, and for coupled cases IDs that repeat, fall and jump."""
    inputs = {"tokens": torch.randint(0, TOKENS, (batch, length))}
    if CASES[name].get("coupled"):
        inputs["position_ids"] = torch.randint(0, max(2, length), (batch, length)) * torch.randint(1, 3, (batch, 1))
    return inputs


def plain(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy()


def score_of(module: SparseFunctionalAttention, ids: tuple[int, ...], tokens: tuple[int, ...]) -> float:
    """Compute ``log g`` in plain Python, without the code under test; minus infinity for g = 0."""
    if module.score in ("table", "mlp"):
        return window_score(module, ids, tokens)
    score = sum(float(module.sets.tokens[slot, token]) for slot, token in enumerate(tokens))
    if module.span is None:
        return score
    gaps = [later - earlier for earlier, later in pairwise(ids)]
    if ids[-1] - ids[0] >= module.span or any(gap > module.sets.max_gap for gap in gaps):
        return -math.inf
    if module.score == "chain":
        for slot, gap in enumerate(gaps):
            score += float(module.sets.links[slot, gap - 1, tokens[slot], tokens[slot + 1]])
    return score


def window_score(module: SparseFunctionalAttention, ids: tuple[int, ...], tokens: tuple[int, ...]) -> float:
    shapes = [(0, *rest) for rest in combinations(range(1, module.span), module.k - 1)]
    if module.coupled:
        shapes = [shape for shape in product(range(module.span), repeat=module.k) if 0 in shape]
    shape = tuple(each - min(ids) for each in ids)
    if shape not in shapes:
        return -math.inf
    if module.score == "mlp":
        return perceptron(module.sets.scores, shapes.index(shape), tokens)
    return float(module.sets.scores.logits[shapes.index(shape), int("".join(map(str, tokens)), TOKENS)])


def perceptron(scores: torch.nn.Module, shape: int, tokens: tuple[int, ...]) -> float:
    hidden = plain(scores.shape.weight)[shape].copy()
    for slot, token in enumerate(tokens):
        hidden += plain(scores.token.weight)[slot * TOKENS + token]
    for layer in (scores.read[1], scores.read[3]):
        hidden = np.array([x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in hidden])
        hidden = plain(layer.weight) @ hidden + plain(layer.bias)
    return float(hidden[0])


def value_of(module: SparseFunctionalAttention, ids: tuple[int, ...], tokens: tuple[int, ...]) -> np.ndarray:
    def softmax(logits: np.ndarray) -> np.ndarray:
        scaled = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return scaled / scaled.sum(axis=-1, keepdims=True)

    if module.value == "automaton":
        state = np.ones(1)
        for slot, token in enumerate(tokens):
            state = state @ softmax(plain(module.values.steps[slot])[token])
        return state
    shapes = [(0, *rest) for rest in combinations(range(1, module.span or 1), module.k - 1)]
    shape = shapes.index(tuple(each - ids[0] for each in ids)) if module.by_shape else 0
    return softmax(plain(module.values.logits)[shape, int("".join(map(str, tokens)), TOKENS)])


@torch.no_grad()
def listed(
    module: SparseFunctionalAttention, tokens: list[int], ids: list[int] | None = None
) -> tuple[list, np.ndarray]:
    """Return all sets of k tokens and their log scores."""
    ids = list(range(len(tokens))) if ids is None else ids
    tau = 1.0
    if module.temperature is not None:
        ratio = max(1.0, len(tokens) / module.temperature.train_length)
        tau = 1 + math.log(ratio) / module.temperature.log_gap
    sets, scores = list(combinations(range(len(tokens)), module.k)), []
    for each in sets:
        score = score_of(module, tuple(ids[i] for i in each), tuple(tokens[i] for i in each))
        if not module.relative:
            score += float(module.places[each[0]])
        scores.append(tau * score if score > ZERO_THRESHOLD else -math.inf)
    return sets, np.array(scores)


def brute(module: SparseFunctionalAttention, tokens: list[int], ids: list[int] | None = None) -> np.ndarray:
    """Compute ``log f`` set by set."""
    sets, scores = listed(module, tokens, ids)
    if not len(scores) or scores.max() == -math.inf:
        return np.full(module.num_outputs, -math.log(module.num_outputs))
    weights, ids = np.exp(scores - scores.max()), list(range(len(tokens))) if ids is None else ids
    total = np.zeros(module.num_outputs)
    for each, weight in zip(sets, weights, strict=True):
        if weight > 0:
            total += weight * value_of(module, tuple(ids[i] for i in each), tuple(tokens[i] for i in each))
    return np.log(total) - np.log(weights.sum())


def check_against_brute_force(module: SparseFunctionalAttention, inputs: dict[str, torch.Tensor]) -> None:
    for index, outputs in enumerate(plain(module(**inputs))):
        ids = inputs["position_ids"][index].tolist() if "position_ids" in inputs else None
        check_close(outputs, brute(module, inputs["tokens"][index].tolist(), ids))


def check_close(actual: np.ndarray, expected: np.ndarray, within: float = 1e-10) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=within)


@over_cases
@over_kinds
def test_every_algorithm_equals_a_sum_over_all_listed_sets(name, kind):
    module = build(CASES[name], kind)
    for length in (1, 2, 4, 7):
        check_against_brute_force(module, random_inputs(name, length))


@over_steady
@over_kinds
def test_all_prefixes_give_the_same_outputs_as_each_prefix_alone(name, kind):
    module = build(CASES[name], kind)
    inputs = random_inputs(name, 20)
    prefixes = plain(module(**inputs, all_prefixes=True))
    for length in range(1, 21):
        alone = plain(module(**{argument: each[:, :length] for argument, each in inputs.items()}))
        check_close(prefixes[:, length - 1], alone)


@over_cases
def test_gradients_equal_finite_differences(name):
    module = build(CASES[name])
    inputs = random_inputs(name, 5, batch=2)
    names, parameters = zip(*module.named_parameters(), strict=True)

    def outputs(*values):
        return functional_call(module, dict(zip(names, values, strict=True)), kwargs=inputs)

    assert torch.autograd.gradcheck(outputs, parameters, fast_mode=True)


@over_cases
@pytest.mark.parametrize("length", [1, 9])
def test_gradients_are_finite_if_scores_are_zero(name, length):
    module = build(CASES[name], "zeros").float()
    module(**random_inputs(name, length)).exp().sum().backward()
    module(**random_inputs(name, length))[:, 0].sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in module.parameters() if parameter.grad is not None)


@over_cases
def test_nan_parameters_give_nan_outputs(name):
    module = build(CASES[name])
    inputs = random_inputs(name, 9)
    inputs["position_ids"] = torch.zeros_like(inputs["tokens"]) if module.coupled else None
    for parameter in module.sets.parameters():
        parameter.data[:] = torch.nan
    assert module(**inputs).isnan().all()
    assert module.leakage(planted_sets=torch.arange(module.k).expand(3, -1), **inputs).isnan().all()


@over_cases
def test_weights_equal_those_of_listed_scores_and_are_zero_beyond_the_span(name):
    module = build(CASES[name])
    inputs = random_inputs(name, 7)
    sets, weights = module.log_weights(**inputs)
    for index, weight in enumerate(weights.exp()):
        ids = inputs["position_ids"][index].tolist() if "position_ids" in inputs else None
        every, scores = listed(module, inputs["tokens"][index].tolist(), ids)
        weights_by_hand = np.exp(scores - max(scores.max(), ZERO_THRESHOLD))
        expected = dict(zip(every, weights_by_hand / max(weights_by_hand.sum(), 1e-300), strict=True))
        actual = dict(zip(map(tuple, sets.tolist()), weight.tolist(), strict=True))
        assert all(expected[each] == 0 for each in expected.keys() - actual.keys())
        assert all(actual[each] == pytest.approx(expected[each], abs=1e-10) for each in actual)
        assert all(actual[each] == 0 for each in actual if expected[each] == 0)


@over_cases
def test_leakage_is_one_minus_the_weight_of_a_set(name):
    module = build(CASES[name])
    inputs = random_inputs(name, 7)
    sets, weights = module.log_weights(**inputs)
    for planted, weight in zip(sets, weights.T, strict=True):
        leakage = module.leakage(planted_sets=planted.expand(3, -1), **inputs)
        check_close(plain(leakage), 1 - np.exp(plain(weight)))


@pytest.mark.parametrize(
    ("name", "planted"), [("pairs", [0, 3]), ("tight chain", [0, 2, 4, 6]), ("local product", [1, 2, 5])]
)
def test_the_leakage_of_a_set_beyond_the_span_is_one(name, planted):
    module = build(CASES[name])
    assert planted[-1] - planted[0] == module.span
    assert module.leakage(torch.zeros(1, 7).long(), torch.tensor([planted])).tolist() == [1.0]


def test_the_leakage_is_one_if_no_set_has_weight():
    module = build(CASES["pairs"])
    torch.nn.init.constant_(module.sets.scores.logits, LOG_ZERO)
    assert module.leakage(torch.zeros(1, 4).long(), torch.tensor([[0, 1]])).tolist() == [1.0]
    assert module.log_weights(torch.zeros(1, 4).long())[1].exp().sum() == 0


def test_tables_of_a_single_precision_module_have_double_precision():
    tables = build(CASES["pairs"]).float().to_tabular()
    assert tables.log_scores.dtype == tables.values.dtype == tables.default.dtype == np.float64
    check_close(tables.values.sum(axis=2), np.ones((2, TOKENS**2)), within=1e-14)


def test_the_order_of_the_indexes_of_a_planted_set_has_no_effect():
    module = build(CASES["tight chain"])
    tokens = torch.randint(0, TOKENS, (1, 7))
    ordered, shuffled = (module.leakage(tokens, torch.tensor([planted])) for planted in ([1, 2, 4, 5], [5, 1, 4, 2]))
    assert ordered.tolist() == shuffled.tolist()
    assert 0 < float(ordered.detach()) < 1


@pytest.mark.parametrize("name", [name for name in STEADY if "absolute" not in name])
def test_a_shift_changes_no_score(name):
    module = build(CASES[name])
    length, k = 9, module.k
    sets = torch.tensor(list(combinations(range(length), k)))[None]
    tuples = torch.randint(0, TOKENS, sets.shape)
    assert torch.equal(module.sets.log_scores(sets, tuples), module.sets.log_scores(sets + 17, tuples))


@pytest.mark.parametrize("name", ["pairs", "triples", "tight chain", "product", "local product"])
def test_padding_with_tokens_of_score_zero_has_no_effect(name):
    module = build(CASES[name])
    filler = TOKENS - 1
    with torch.no_grad():
        if name in ("pairs", "triples"):
            codes = [code for code, each in enumerate(product(range(TOKENS), repeat=module.k)) if filler in each]
            module.sets.scores.logits[:, codes] = LOG_ZERO
        else:
            module.sets.tokens[:, filler] = LOG_ZERO
    tokens = torch.randint(0, filler, (3, 8))
    around = torch.nn.functional.pad(tokens, (5, 4), value=filler)
    check_close(plain(module(around)), plain(module(tokens)), within=1e-12)


def test_attention_to_single_tokens_is_invariant_to_permutations():
    module = build(CASES["bag of words"])
    tokens = torch.randint(0, TOKENS, (3, 12))
    check_close(plain(module(tokens[:, torch.randperm(12)])), plain(module(tokens)), within=1e-12)


@pytest.mark.parametrize(
    "name",
    [name for name in STEADY if not {"coupled", "absolute"} & set(name.split()) and CASES[name].get("span")],
)
def test_a_module_and_its_tables_convert_into_each_other(name):
    module = build(CASES[name], "zeros")
    tokens = torch.randint(0, TOKENS, (3, 11))
    tables = module.to_tabular()
    check_close(tables.predict(tokens.numpy()), np.exp(plain(module(tokens))), within=1e-12)
    again = SparseFunctionalAttention.from_tabular(tables)
    check_close(plain(again(tokens)), plain(module(tokens)))


def test_a_module_preserves_the_zeros_the_default_and_the_shapes_of_tables():
    tables = TabularAttention(
        num_tokens=2,
        shapes=np.array([[0, 3], [0, 1]]),
        log_scores=np.array([[-np.inf, 0.5, -np.inf, -np.inf], [-np.inf, -np.inf, -np.inf, 2.0]]),
        values=np.array([[[0.0, 0.0], [0.0, 1.0], [9.0, 9.0], [0.0, 0.0]], [[0.5, 0.5]] * 3 + [[1.0, 0.0]]]),
        default=np.array([0.25, 0.75]),
    )
    module = SparseFunctionalAttention.from_tabular(tables)
    every = np.array(list(product(range(2), repeat=6)))
    predicted = np.exp(plain(module(torch.from_numpy(every))))
    check_close(predicted, tables.predict(every), within=1e-14)
    check_close(predicted[0], [0.25, 0.75], within=1e-14)
    again = module.to_tabular()
    indexes = [again.shapes.tolist().index(shape) for shape in tables.shapes.tolist()]
    np.testing.assert_array_equal(again.log_scores[indexes], tables.log_scores)


def parity_automaton(k: int) -> AutomatonValues:
    """The output is the parity of the number of tokens other than 0."""
    values = AutomatonValues(TOKENS, k, 2, 2)
    next_state = (torch.arange(2) + (torch.arange(TOKENS) > 0).long()[:, None]) % 2
    for steps in values.steps:
        target = torch.nn.functional.one_hot(next_state[:, : steps.shape[1]], 2)
        steps.data = torch.where(target.bool(), 0.0, LOG_ZERO)
    return values.double()


def test_an_automaton_computes_the_parity_of_its_tokens():
    module = build({"k": 3, "score": "product", "local": False, "value": "automaton", "num_states": 2})
    module.values = parity_automaton(3)
    words = build({"k": 3, "score": "product", "local": False})
    words.sets = module.sets
    parity = torch.tensor([sum(token > 0 for token in each) % 2 for each in product(range(TOKENS), repeat=3)])
    words.values.logits.data[0] = torch.where(torch.nn.functional.one_hot(parity, 2) > 0, 0.0, LOG_ZERO)
    tokens = torch.randint(0, TOKENS, (3, 12))
    check_close(plain(module(tokens)), plain(words(tokens)))
    assert module(torch.tensor([[1, 0, 0], [1, 0, 2]])).exp().tolist() == [[0.0, 1.0], [1.0, 0.0]]


@pytest.mark.parametrize("length", [4, 16, 256, 4096])
def test_a_temperature_by_length_preserves_the_odds_of_a_planted_token(length):
    gap, trained = 5.0, 16
    tokens = torch.zeros(1, length, dtype=torch.int64)
    tokens[0, 2] = 1

    def odds(temperature: Temperature | None) -> float:
        module = build({"k": 1, "span": 1, "temperature": temperature}).requires_grad_(False)
        module.sets.scores.logits[0] = torch.tensor([0.0, gap, 0.0])
        leakage = float(module.leakage(tokens, torch.tensor([[2]])))
        return leakage / (1 - leakage)

    assert odds(None) == pytest.approx((length - 1) * math.exp(-gap))
    balanced = odds(Temperature(train_length=trained, log_gap=gap))
    assert balanced == pytest.approx((length - 1) * min(1, trained / length) * math.exp(-gap))


def test_token_indexes_as_coupled_ids_give_the_same_outputs_as_no_coupling():
    module, indexed = build(CASES["coupled"]), build(CASES["pairs"])
    indexes = [module.shapes().tolist().index(shape) for shape in indexed.shapes().tolist()]
    with torch.no_grad():
        indexed.sets.scores.logits.copy_(module.sets.scores.logits[indexes])
        indexed.values.logits.copy_(module.values.logits)
    tokens = torch.randint(0, TOKENS, (3, 12))
    check_close(plain(module(tokens)), plain(indexed(tokens)), within=1e-12)
    ids = torch.arange(12).expand_as(tokens) + 40
    check_close(plain(module(tokens, ids)), plain(indexed(tokens)), within=1e-12)


def test_attention_to_pairs_with_one_id_equals_attention_to_single_super_tokens():
    pairs = build({"k": 2, "span": 1, "coupled": True})
    single = SparseFunctionalAttention(num_tokens=TOKENS**2, k=1, span=1, num_outputs=2).double()
    with torch.no_grad():
        single.sets.scores.logits.copy_(pairs.sets.scores.logits)
        single.values.logits.copy_(pairs.values.logits)
    for half in range(2, 6):
        tokens = torch.randint(0, TOKENS, (3, 2 * half))
        together = TOKENS * tokens[:, :half] + tokens[:, half:]
        ids = (torch.arange(2 * half) % half).expand_as(tokens)
        check_close(plain(pairs(tokens, ids)), plain(single(together)))


@pytest.mark.parametrize("block", [1, 40])
def test_the_block_size_has_no_effect(monkeypatch, block):
    module = build(CASES["triples"], "zeros")
    tokens = torch.randint(0, TOKENS, (3, 12))
    whole = plain(module(tokens))
    monkeypatch.setattr(scores_module, "BLOCK", block)
    check_close(plain(module(tokens)), whole, within=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0, "span": 3}, r"\(3, 0, 2\); set each to at least 1"),
        ({"k": 2}, "needs a span; set span or local=False"),
        ({"k": 2, "span": 3, "local": False, "score": "product"}, "span 3 needs local=True"),
        ({"k": 3, "span": 2}, "3 tokens do not fit a span of 2; use a span of at least 3"),
        ({"k": 2, "span": 3, "relative": False}, "num_places 0 is invalid with relative=False"),
        ({"k": 2, "span": 3, "num_places": 4}, "num_places 4 is invalid with relative=True"),
        ({"k": 2, "local": False}, "'table' needs local=True"),
        ({"k": 2, "span": 3, "coupled": True, "score": "chain"}, "coupled needs relative, score"),
        ({"k": 2, "span": 3, "by_shape": True, "value": "automaton"}, "by_shape needs score"),
        ({"k": 2, "span": 3, "max_gap": 2}, "invalid max_gap 2"),
        ({"k": 2, "span": 3, "value": "automaton", "num_states": 0}, "num_states 0 is too small"),
        ({"k": 16, "span": 16}, "43,046,721 entries, more than the 16,777,216"),
        ({"k": 42, "span": 43, "score": "mlp", "value": "automaton"}, "42-token sets .* exceed 64 bits"),
        ({"k": 9, "span": 60}, "more than 200,000"),
    ],
)
def test_settings_without_an_exact_algorithm_raise(settings, message):
    with pytest.raises(SettingError, match=message):
        SparseFunctionalAttention(num_tokens=3, num_outputs=2, **settings)


def test_unknown_scores_and_values_raise_an_error_with_the_nearest_name():
    with pytest.raises(UnknownNameError, match="unknown score 'tables'; did you mean 'table'"):
        SparseFunctionalAttention(num_tokens=3, k=1, span=1, num_outputs=2, score="tables")
    with pytest.raises(UnknownNameError, match="unknown value 'automata'; did you mean 'automaton'"):
        SparseFunctionalAttention(num_tokens=3, k=1, span=1, num_outputs=2, value="automata")


@pytest.mark.parametrize(
    ("name", "call", "message"),
    [
        ("pairs", lambda module: module(torch.tensor([[0, 3]])), "each from 0 to 2"),
        ("pairs", lambda module: module(torch.zeros(1, 0, dtype=torch.int64)), "at least one token"),
        ("pairs", lambda module: module(torch.zeros(1, 2).long(), torch.zeros(1, 2).long()), "build it with coupled"),
        ("absolute pairs", lambda module: module(torch.zeros(1, 41).long()), "41 tokens exceed num_places 40"),
        ("sharper", lambda module: module(torch.zeros(1, 2).long(), all_prefixes=True), "one prefix at a time"),
        ("sharper", lambda module: module.to_tabular(), "one table for all lengths"),
        ("coupled", lambda module: module.to_tabular(), "one table for all lengths"),
        ("product", lambda module: module.shapes(), "has no finite list of shapes"),
        ("product", lambda module: module.log_weights(torch.zeros(1, 2000).long()), "more than 200,000"),
        (
            "coupled triples",
            lambda module: module(torch.zeros(1, 2000).long(), torch.zeros(1, 2000).long()),
            "2000 tokens within a span of 2 IDs make",
        ),
    ],
)
def test_invalid_calls_raise(name, call, message):
    with pytest.raises(SettingError, match=message):
        call(build(CASES[name]))


@pytest.mark.parametrize(("value", "default"), [(0.7, 0.5), (0.5, 0.7)])
def test_tables_with_values_or_a_default_that_are_not_distributions_raise(value, default):
    tables = TabularAttention(
        num_tokens=1,
        shapes=np.array([[0]]),
        log_scores=np.zeros((1, 1)),
        values=np.full((1, 1, 2), value),
        default=np.full(2, default),
    )
    with pytest.raises(SettingError, match="distributions over the outputs"):
        SparseFunctionalAttention.from_tabular(tables)


@pytest.mark.parametrize(("length", "gap"), [(0, 1.0), (4, 0.0)])
def test_a_temperature_needs_a_positive_length_and_gap(length, gap):
    with pytest.raises(SettingError, match=f"train_length {length} or log_gap {gap}"):
        Temperature(train_length=length, log_gap=gap)


@pytest.mark.slow
@over_cases
@over_kinds
def test_every_algorithm_equals_a_sum_over_all_listed_sets_for_many_seeds(name, kind):
    for seed in range(8):
        torch.manual_seed(seed)
        check_against_brute_force(build(CASES[name], kind), random_inputs(name, 3 + seed))

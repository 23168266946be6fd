"""Predictions and measures of an influence study, compared with one plain run of the model per subset."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
import transformers
from tests.support.causal_models import (
    CALL_DEPENDENT,
    CONFIGS,
    KEY_COUNTING,
    UNSUPPORTED,
    VOCABULARY_SIZE,
    causal_model,
)

from lengthwise.core.errors import ModelError
from lengthwise.evaluation.language_model import check_exact_hiding
from lengthwise.hf import causal_lm, model_inputs
from lengthwise.hf.causal_lm import CausalLM
from lengthwise.hf.model_inputs import causal_mask
from lengthwise.influence.exactness_checks import check_study_exactness
from lengthwise.influence.hidden_context import TargetWindow, WindowEvaluator, strict_log_probs
from lengthwise.influence.measures import (
    LOG_GATE_OF_CANDIDATES,
    AddOneIn,
    AttentionWeight,
    GradientMeasure,
    GreedySelection,
    KLDivergence,
    LeaveOneOut,
    PrefilteredMeasure,
    SubsetScorer,
    TargetLoss,
)

FAR, NEAR = 12, 5
RNG = np.random.default_rng(0)
over_architectures = pytest.mark.parametrize("architecture", CONFIGS)
over_starts = pytest.mark.parametrize("start", [0, 1], ids=["no start token", "start token"])


@cache
def model_of(architecture: str) -> CausalLM:
    return CausalLM(causal_model((CONFIGS | CALL_DEPENDENT | KEY_COUNTING)[architecture]()), architecture)


def window_of(start: int = 0, seed: int = 0) -> TargetWindow:
    rng = np.random.default_rng(seed)
    return TargetWindow(
        start=rng.integers(3, VOCABULARY_SIZE, start),
        far=rng.integers(3, VOCABULARY_SIZE, FAR),
        near=rng.integers(3, VOCABULARY_SIZE, NEAR),
        target=int(rng.integers(3, VOCABULARY_SIZE)),
    )


@torch.no_grad()
def by_deletion(model: CausalLM, window: TargetWindow, visible: np.ndarray) -> torch.Tensor:
    """Run the model on the visible tokens, at their own IDs."""
    keep = list(range(len(window.start)))
    keep += [len(window.start) + i for i in range(FAR) if visible[i]]
    keep += [len(window.start) + FAR + i for i in range(NEAR)]
    tokens = torch.tensor([[int(window.tokens[i]) for i in keep]])
    output = model.model(input_ids=tokens, position_ids=torch.tensor([keep]), attention_mask=torch.ones_like(tokens))
    return output.logits[0, -1].log_softmax(dim=-1)


@torch.no_grad()
def by_mask(
    model: CausalLM,
    window: TargetWindow,
    visible: np.ndarray,
    bias: torch.Tensor | None = None,
    num_queries: int = NEAR,
) -> torch.Tensor:
    """Run the model on all tokens with a mask that hides far tokens from the last tokens."""
    whole = len(window.tokens)
    before = whole - num_queries
    mask = torch.full((whole, whole), torch.finfo(torch.float32).min)
    for query in range(whole):
        for key in range(query + 1):
            is_far = len(window.start) <= key < len(window.start) + FAR
            hidden = query >= before and is_far and not visible[key - len(window.start)]
            if not hidden:
                mask[query, key] = 0.0
    if bias is not None:
        mask[before:, len(window.start) : before] += bias
    output = model.model(
        input_ids=torch.from_numpy(window.tokens)[None],
        position_ids=torch.arange(whole)[None],
        attention_mask=mask[None, None],
    )
    return output.logits[0, -1].log_softmax(dim=-1)


BRUTE = {"strict": by_deletion, "masked": by_mask, "decode": partial(by_mask, num_queries=1)}


def batched(model: CausalLM, window: TargetWindow, mode: str, visible: np.ndarray) -> torch.Tensor:
    if mode == "strict":
        predictions = strict_log_probs(model, [(window, row) for row in visible])
    else:
        predictions = WindowEvaluator(model, window).log_probs(visible, mode)
    return in_order(predictions, len(visible))


def in_order(predictions, number: int) -> torch.Tensor:
    log_probs = torch.empty(number, VOCABULARY_SIZE)
    for queries, batch in predictions:
        log_probs[queries] = batch
    return log_probs


def scorer_of(model: CausalLM, window: TargetWindow, mode: str, objective: str) -> SubsetScorer:
    long = by_deletion(model, window, np.ones(FAR, bool))
    return SubsetScorer(
        evaluator=WindowEvaluator(model, window),
        mode=mode,
        objective=TargetLoss(window.target) if objective == "target" else KLDivergence(long),
        units=list(np.arange(FAR)[:, None]),
        candidates=np.arange(FAR),
    )


def score(model: CausalLM, window: TargetWindow, mode: str, objective: str, indices: list[int]) -> float:
    visible = np.isin(np.arange(FAR), indices)
    log_probs = BRUTE[mode](model, window, visible).double()
    if objective == "target":
        return float(-log_probs[window.target])
    long = by_deletion(model, window, np.ones(FAR, bool)).double()
    return float((long.exp() * (long - log_probs)).sum())


@pytest.mark.parametrize("architecture", CONFIGS | CALL_DEPENDENT)
@over_starts
@pytest.mark.parametrize("mode", BRUTE)
@pytest.mark.covering(1)
def test_hiding_tokens_equals_one_run_per_subset(architecture, start, mode):
    model, window = model_of(architecture), window_of(start)
    visible = np.random.default_rng(1).random((9, FAR)) < 0.5
    visible[0], visible[1] = True, False
    expected = torch.stack([BRUTE[mode](model, window, row) for row in visible])
    torch.testing.assert_close(batched(model, window, mode, visible), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("architecture", CONFIGS | CALL_DEPENDENT)
@over_starts
def test_queries_with_a_shared_prefix_equal_one_run_per_subset(architecture, start, monkeypatch):
    model, window = model_of(architecture), window_of(start)
    visible = np.concatenate([~np.eye(FAR, dtype=bool), np.ones((1, FAR), bool), np.zeros((1, FAR), bool)])
    visible = np.concatenate([visible, np.random.default_rng(1).random((6, FAR)) < 0.8])
    sizes, log_probs = [], model.log_probs

    def record_size(*inputs, states=None):
        if states is not None:
            sizes.append(len(inputs[0]))
        return log_probs(*inputs, states=states)

    monkeypatch.setattr(model, "log_probs", record_size)
    predictions = in_order(WindowEvaluator(model, window).log_probs(visible, "strict"), len(visible))
    assert sum(sizes) >= 4
    expected = torch.stack([by_deletion(model, window, row) for row in visible])
    torch.testing.assert_close(predictions, expected, rtol=0, atol=1e-4)


def test_batches_are_split_in_halves_when_out_of_memory():
    model, window = CausalLM(causal_model(CONFIGS["llama"]()), "large"), window_of()
    visible = np.random.default_rng(1).random((20, FAR)) < 0.5
    expected = {mode: batched(model, window, mode, visible) for mode in BRUTE}
    sizes, log_probs, log_probs_with_mask = [], model.log_probs, model.log_probs_with_mask

    def limit_memory(predict):
        def limited(*inputs):
            if len(inputs[-1]) > 3:
                raise torch.OutOfMemoryError
            sizes.append(len(inputs[-1]))
            return predict(*inputs)

        return limited

    model.log_probs, model.log_probs_with_mask = limit_memory(log_probs), limit_memory(log_probs_with_mask)
    for mode in BRUTE:
        torch.testing.assert_close(batched(model, window, mode, visible), expected[mode], rtol=0, atol=1e-5)
    assert sum(sizes) == 20 * len(BRUTE)
    model.log_probs = limit_memory(lambda *inputs: (_ for _ in ()).throw(torch.OutOfMemoryError))
    with pytest.raises(torch.OutOfMemoryError):
        batched(model, window, "strict", visible)


@pytest.mark.parametrize("architecture", CONFIGS | CALL_DEPENDENT)
def test_supported_models_pass_the_check(architecture):
    check_study_exactness(
        model_of(architecture), window_of(), modes=("masked", "decode"), check_gates=True, check_attention=True
    )


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        (
            "llama4",
            r"hidden tokens change the prediction \(0\.\d+ nats; rounding can cause 0\.001\); choose another model",
        ),
        (
            "doge",
            r"far 12: predictions differ between omitted and hidden tokens.* nats.*; use a smaller --near and --far",
        ),
        ("doge_wide", r"with near 5 and far 12: gates on the attention have no gradient .*; use a measure without"),
    ],
)
def test_models_that_count_keys_raise_a_one_line_error(architecture, message):
    with pytest.raises(ModelError, match=message) as caught:
        check_study_exactness(
            model_of(architecture), window_of(), modes=("masked", "decode"), check_gates=True, check_attention=True
        )
    assert "\n" not in str(caught.value)


def test_bfloat16_tolerance_covers_rounding_only():
    model = CausalLM(causal_model(CONFIGS["llama"]()).bfloat16(), "coarse")
    check_study_exactness(model, window_of(), modes=("masked", "decode"))
    assert 1e-3 < model.rounding_tolerance(torch.from_numpy(window_of().tokens)) < 1
    plain = model.log_probs_without_cache
    model.log_probs_without_cache = lambda tokens, mask=None: plain(tokens.roll(1), mask)
    with pytest.raises(ModelError, match=r"predictions with position IDs .* differ from predictions without"):
        check_study_exactness(model, window_of())


def test_model_that_needs_more_than_tokens_raises_a_one_line_error():
    config = transformers.XmodConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        is_decoder=True,
    )
    with pytest.raises(
        ModelError, match=r"^xmod fails if it is called with only input_ids \(ValueError: Input language unknown"
    ) as caught:
        CausalLM(causal_model(config), "xmod")
    assert "\n" not in str(caught.value)


def test_check_packs_masked_queries_like_a_study(monkeypatch):
    # Eight queries in one sequence exceed the window of the local layers.
    model = CausalLM(causal_model(CALL_DEPENDENT["gpt_neo_local"]()), "packed")
    assert model.pack_size == 1
    monkeypatch.setattr(model, "pack_size", 8)
    check_study_exactness(model, window_of())
    with pytest.raises(
        ModelError, match=r"predictions after cached far tokens differ from one pass .*; use --mode strict"
    ):
        check_study_exactness(model, window_of(), modes=("masked", "decode"))


def test_check_detects_states_computed_without_the_near_tokens(monkeypatch):
    model = CausalLM(causal_model(CALL_DEPENDENT["phi3_longrope"]()), "short")
    prefill = model.prefill
    monkeypatch.setattr(
        model, "prefill", lambda tokens, ids, num_prefix: prefill(tokens[:num_prefix], ids[:num_prefix], num_prefix)
    )
    with pytest.raises(ModelError, match=r"predictions after a cached prefix differ from one pass"):
        check_study_exactness(model, window_of(), modes=("masked", "decode"))


@over_architectures
def test_modes_agree_on_near_tokens_only_and_on_the_whole_context(architecture):
    model, window = model_of(architecture), window_of()
    ends = np.stack([np.zeros(FAR, bool), np.ones(FAR, bool)])
    one, other = (batched(model, window, mode, ends) for mode in ("strict", "masked"))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


@over_architectures
@pytest.mark.parametrize("mode", BRUTE)
@pytest.mark.parametrize("objective", ["target", "prediction"])
@pytest.mark.covering(1)
def test_add_one_in_equals_runs_with_one_more_token(architecture, mode, objective):
    model, window = model_of(architecture), window_of()
    ranking = AddOneIn().select_tokens(scorer_of(model, window, mode, objective), 4, RNG)
    before = score(model, window, mode, objective, [])
    gains = [before - score(model, window, mode, objective, [place]) for place in range(FAR)]
    assert ranking.indices == tuple(np.argsort(-np.array(gains), kind="stable")[:4])
    assert ranking.gains == pytest.approx([gains[place] for place in ranking.indices], abs=1e-4)


@over_architectures
@pytest.mark.parametrize("mode", BRUTE)
@pytest.mark.parametrize("objective", ["target", "prediction"])
@pytest.mark.covering(1)
def test_leave_one_out_equals_runs_without_one_token(architecture, mode, objective):
    model, window = model_of(architecture), window_of()
    ranking = LeaveOneOut().select_tokens(scorer_of(model, window, mode, objective), 4, RNG)
    whole = score(model, window, mode, objective, list(range(FAR)))
    costs = [
        score(model, window, mode, objective, [i for i in range(FAR) if i != place]) - whole for place in range(FAR)
    ]
    assert ranking.indices == tuple(np.argsort(-np.array(costs), kind="stable")[:4])
    assert ranking.gains == pytest.approx([costs[place] for place in ranking.indices], abs=1e-4)


@over_architectures
@pytest.mark.parametrize("mode", BRUTE)
@pytest.mark.parametrize("objective", ["target", "prediction"])
@pytest.mark.covering(1)
def test_greedy_selects_the_best_next_token_of_all_runs(architecture, mode, objective):
    model, window = model_of(architecture), window_of()
    ranking = GreedySelection().select_tokens(scorer_of(model, window, mode, objective), 3, RNG)
    indices: list[int] = []
    for place, gain in zip(ranking.indices, ranking.gains, strict=True):
        before = score(model, window, mode, objective, indices)
        after = {i: score(model, window, mode, objective, [*indices, i]) for i in range(FAR) if i not in indices}
        assert place == min(after, key=after.get)
        assert gain == pytest.approx(before - after[place], abs=1e-4)
        indices.append(place)


@over_architectures
@over_starts
def test_gate_gradient_equals_finite_differences_of_the_scores(architecture, start):
    model, window = model_of(architecture), window_of(start)
    for context, level in (("all", 0.0), ("none", -np.log(FAR))):
        slopes = scorer_of(model, window, "masked", "target").gradient(context=context)
        for place in (0, 5, FAR - 1):
            ends = []
            for move in (-0.02, 0.02):
                added = torch.full((FAR,), float(level))
                added[place] += move
                ends.append(float(-by_mask(model, window, np.ones(FAR, bool), added)[window.target]))
            assert slopes[place] == pytest.approx((ends[0] - ends[1]) / 0.04, abs=2e-3, rel=2e-2)


@over_architectures
@over_starts
def test_attention_weights_equal_the_mean_of_the_reported_attentions(architecture, start):
    model, window = model_of(architecture), window_of(start)
    before = model.model.config._attn_implementation
    model.model.set_attn_implementation("eager")
    attentions = model.model(
        input_ids=torch.from_numpy(window.tokens)[None],
        attention_mask=torch.ones(1, len(window.tokens), dtype=torch.long),
        output_attentions=True,
    ).attentions
    model.model.set_attn_implementation(before)
    expected = torch.stack(attentions)[:, 0, :, -1, len(window.start) : len(window.start) + FAR].mean(dim=(0, 1))
    weights = scorer_of(model, window, "masked", "target").attention()
    np.testing.assert_allclose(weights, expected.detach().numpy(), atol=1e-5)
    indices = AttentionWeight().select_tokens(scorer_of(model, window, "masked", "target"), 3, RNG).indices
    assert indices == tuple(np.argsort(-weights, kind="stable")[:3])


@over_architectures
def test_tokens_before_a_jump_of_the_ids_affect_the_last_prediction(architecture):
    # Without a mask, transformers treats a jump as the start of another text and hides earlier tokens.
    model = model_of(architecture)
    tokens, ids = torch.tensor([[5, 6, 7, 8, 9]]), torch.tensor([[0, 1, 2, 10, 11]])
    embedded = model.model.get_input_embeddings()(tokens).detach().requires_grad_()
    mask = causal_mask(torch.ones(1, 5, dtype=torch.bool), dtype=model.model.dtype)
    model.model(inputs_embeds=embedded, position_ids=ids, attention_mask=mask).logits[0, -1, 3].backward()
    assert (embedded.grad[0].abs().amax(dim=-1) > 1e-6).all()

    changed = torch.tensor([[50, 6, 7, 8, 9]])
    assert (model.log_probs(tokens, ids) - model.log_probs(changed, ids)).abs().max() > 1e-3
    visible = torch.ones(1, 3, dtype=torch.bool)
    prefilled = [
        model.log_probs_with_mask(model.prefill(row[0], ids[0], 3), row[0, 3:], ids[0, 3:], visible)
        for row in (tokens, changed)
    ]
    assert (prefilled[0] - prefilled[1]).abs().max() > 1e-3


@over_architectures
def test_screened_measure_with_all_candidates_equals_the_inner_measure(architecture):
    model, window = model_of(architecture), window_of()
    for then in (GreedySelection(), LeaveOneOut(), AddOneIn()):
        scorer = scorer_of(model, window, "masked", "target")
        assert (
            PrefilteredMeasure(then=then, share=1.0).select_tokens(scorer, 3, RNG).indices
            == then.select_tokens(scorer, 3, RNG).indices
        )


def test_screened_measure_scores_only_candidates_with_the_largest_gradients():
    model, window = model_of("llama"), window_of()
    scorer = scorer_of(model, window, "masked", "target")
    steepest = GradientMeasure().select_tokens(scorer, 4, RNG).indices
    ranking = PrefilteredMeasure(then=AddOneIn(), share=4 / FAR).select_tokens(scorer, 2, RNG)
    assert set(ranking.indices) <= set(steepest)
    assert ranking.indices == AddOneIn().select_tokens(scorer.with_candidates(np.array(steepest)), 2, RNG).indices


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_models_raise_an_error_with_the_reason(name):
    reasons = {"mamba": "layers of type linear_attention", "bloom": "does not accept position_ids"}
    with pytest.raises(ModelError, match=f"{name} .*{reasons[name]}"):
        CausalLM(causal_model(UNSUPPORTED[name]()), name)


def test_sliding_window_limits_the_context():
    config = CONFIGS["mistral"]()
    config.sliding_window = 20
    assert CausalLM(causal_model(config)).num_positions == 20


def test_model_that_leaks_hidden_tokens_raises(monkeypatch):
    # Like a model that ignores the mask.
    for module in (causal_lm, model_inputs):
        monkeypatch.setattr(module, "additive_mask", lambda seen, dtype: torch.zeros(seen.shape, dtype=dtype))
    with pytest.raises(ModelError, match=r"cannot be measured exactly: .*; choose another"):
        check_exact_hiding(CausalLM(causal_model(CONFIGS["llama"]()), "leaking"))


@torch.no_grad()
def quick_by_mask(model: CausalLM, window: TargetWindow, mode: str, units, selected: list[int], unit: int) -> float:
    """Run all tokens once with the mask that the quick score of a unit stands for."""
    start, whole = len(window.start), len(window.tokens)
    unit_of = {start + int(token): number for number, tokens in enumerate(units) for token in tokens}
    mask = torch.full((whole, whole), torch.finfo(torch.float32).min)
    for query in range(whole):
        for key in range(query + 1):
            if query in unit_of:
                sees = mode != "strict" or key < start or unit_of[key] == unit_of[query]
            else:
                visible = selected if query < whole - 1 else [*selected, unit]
                sees = key not in unit_of or unit_of[key] in visible or (mode == "decode" and query < whole - 1)
            if sees:
                mask[query, key] = 0.0
    tokens, ids = torch.from_numpy(window.tokens)[None], torch.arange(whole)[None]
    output = model.model(input_ids=tokens, position_ids=ids, attention_mask=mask[None, None])
    return float(-output.logits[0, -1].log_softmax(dim=-1)[window.target])


@pytest.mark.parametrize("architecture", CONFIGS)
@over_starts
@pytest.mark.parametrize("mode", BRUTE)
def test_quick_scores_equal_one_run_with_the_mask_of_each_unit(architecture, start, mode):
    model, window = model_of(architecture), window_of(start)
    units = np.split(np.arange(FAR), range(3, FAR, 3))
    scorer = replace(scorer_of(model, window, mode, "target"), units=units, candidates=np.arange(len(units)))
    for selected in ([], [1]):
        expected = [quick_by_mask(model, window, mode, units, selected, unit) for unit in range(len(units))]
        assert scorer.quick_scores(selected) == pytest.approx(expected, abs=1e-4)


@torch.no_grad()
def gated_by_mask(model: CausalLM, window: TargetWindow, mode: str, units, selected, log_gates: np.ndarray) -> float:
    """Run all tokens once with gates on the attention of near tokens and (strict) selected tokens to far tokens."""
    start, whole = len(window.start), len(window.tokens)
    unit_of = {start + int(token): number for number, tokens in enumerate(units) for token in tokens}
    mask = torch.full((whole, whole), torch.finfo(torch.float32).min).triu(1)
    for query in range(whole):
        for key in range(start, start + FAR):
            if query >= start + FAR or (
                mode == "strict" and key < query and unit_of.get(query) in selected and unit_of[key] != unit_of[query]
            ):
                mask[query, key] = float(log_gates[key - start])
            elif query in unit_of and mode == "strict" and unit_of[key] != unit_of[query]:
                mask[query, key] = torch.finfo(torch.float32).min
    tokens, ids = torch.from_numpy(window.tokens)[None], torch.arange(whole)[None]
    output = model.model(input_ids=tokens, position_ids=ids, attention_mask=mask[None, None])
    return float(-output.logits[0, -1].double().log_softmax(dim=-1)[window.target])


@over_architectures
@over_starts
@pytest.mark.parametrize("mode", ["strict", "masked"])
def test_quick_gains_equal_finite_differences_of_gates_on_each_unit(architecture, start, mode):
    model, window = model_of(architecture), window_of(start)
    units = np.split(np.arange(FAR), range(3, FAR, 3))
    scorer = replace(scorer_of(model, window, mode, "target"), units=units, candidates=np.arange(len(units)))
    selected = [1, 3]
    gates = np.where(np.isin(np.arange(FAR), [units[unit] for unit in selected]), 0.0, LOG_GATE_OF_CANDIDATES)
    gains = scorer.quick_gains(selected)
    for unit in set(range(len(units))) - set(selected):
        tokens = units[unit]
        losses = [
            gated_by_mask(model, window, mode, units, selected, gates + move * np.isin(np.arange(FAR), tokens))
            for move in (-0.02, 0.02)
        ]
        assert gains[unit] == pytest.approx((losses[0] - losses[1]) / 0.04, abs=2e-3, rel=2e-2)

"""Every number of an influence study against the model run once per choice, in the obvious way."""

from functools import cache

import numpy as np
import pytest
import torch
import transformers
from tests.support.causal_models import CHANGES_WITH_THE_CALL, CONFIGS, COUNTS_KEYS, REFUSED, VOCABULARY, causal_model

from lengthwise.core.errors import ModelError
from lengthwise.hf import causal_lm, model_inputs
from lengthwise.hf.causal_lm import CausalLM
from lengthwise.hf.model_inputs import causal_mask
from lengthwise.influence.measures import AddOneIn, AttentionWeight, Gradient, Greedy, LeaveOneOut, Screened
from lengthwise.influence.probing.exactness_checks import check_study
from lengthwise.influence.probing.hidden_context import Masked, strict
from lengthwise.influence.probing.objective import Divergence, TargetLoss
from lengthwise.influence.probing.prefix import strict_of_one
from lengthwise.influence.probing.subset_scoring import Probe, Reading
from lengthwise.influence.probing.window import Window

FAR, NEAR = 12, 5
RNG = np.random.default_rng(0)
over_architectures = pytest.mark.parametrize("architecture", CONFIGS)
over_starts = pytest.mark.parametrize("start", [0, 1], ids=["no start token", "start token"])


@cache
def model_of(architecture: str) -> CausalLM:
    return CausalLM(causal_model((CONFIGS | CHANGES_WITH_THE_CALL | COUNTS_KEYS)[architecture]()), architecture)


def window_of(start: int = 0, seed: int = 0) -> Window:
    rng = np.random.default_rng(seed)
    return Window(
        start=rng.integers(3, VOCABULARY, start),
        far=rng.integers(3, VOCABULARY, FAR),
        near=rng.integers(3, VOCABULARY, NEAR),
        target=int(rng.integers(3, VOCABULARY)),
    )


@torch.no_grad()
def by_deletion(model: CausalLM, window: Window, visible: np.ndarray) -> torch.Tensor:
    """One run on the tokens that are left, with the IDs that they had."""
    keep = list(range(len(window.start)))
    keep += [len(window.start) + i for i in range(FAR) if visible[i]]
    keep += [len(window.start) + FAR + i for i in range(NEAR)]
    tokens = torch.tensor([[int(window.tokens[i]) for i in keep]])
    made = model.model(input_ids=tokens, position_ids=torch.tensor([keep]), attention_mask=torch.ones_like(tokens))
    return made.logits[0, -1].log_softmax(dim=-1)


@torch.no_grad()
def by_mask(model: CausalLM, window: Window, visible: np.ndarray, added: torch.Tensor | None = None) -> torch.Tensor:
    """One run on all tokens, where the near ones do not see the hidden."""
    before, whole = len(window.start) + FAR, len(window.tokens)
    mask = torch.full((whole, whole), torch.finfo(torch.float32).min)
    for query in range(whole):
        for key in range(query + 1):
            hidden = query >= before and len(window.start) <= key < before and not visible[key - len(window.start)]
            if not hidden:
                mask[query, key] = 0.0
    if added is not None:
        mask[before:, len(window.start) : before] += added
    made = model.model(
        input_ids=torch.from_numpy(window.tokens)[None],
        position_ids=torch.arange(whole)[None],
        attention_mask=mask[None, None],
    )
    return made.logits[0, -1].log_softmax(dim=-1)


BRUTE = {"strict": by_deletion, "masked": by_mask}


def asked(model: CausalLM, window: Window, mode: str, visible: np.ndarray) -> torch.Tensor:
    answers = strict(model, [(window, row) for row in visible]) if mode == "strict" else None
    made = torch.empty(len(visible), VOCABULARY)
    for rows, log_probs in answers if answers is not None else Masked(model, window).log_probs(visible):
        made[rows] = log_probs
    return made


def probe_of(model: CausalLM, window: Window, mode: str, objective: str) -> Probe:
    long = by_deletion(model, window, np.ones(FAR, bool))
    return Probe(
        reading=Reading(model, window),
        mode=mode,
        objective=TargetLoss(window.target) if objective == "target" else Divergence(long),
        candidates=np.arange(FAR),
    )


def score(model: CausalLM, window: Window, mode: str, objective: str, kept: list[int]) -> float:
    visible = np.isin(np.arange(FAR), kept)
    made = BRUTE[mode](model, window, visible).double()
    if objective == "target":
        return float(-made[window.target])
    long = by_deletion(model, window, np.ones(FAR, bool)).double()
    return float((long.exp() * (long - made)).sum())


@pytest.mark.parametrize("architecture", CONFIGS | CHANGES_WITH_THE_CALL)
@over_starts
@pytest.mark.parametrize("mode", BRUTE)
def test_hidden_tokens_change_the_prediction_as_in_a_run_without_them(architecture, start, mode):
    model, window = model_of(architecture), window_of(start)
    visible = np.random.default_rng(1).random((9, FAR)) < 0.5
    visible[0], visible[1] = True, False
    expected = torch.stack([BRUTE[mode](model, window, row) for row in visible])
    torch.testing.assert_close(asked(model, window, mode, visible), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("architecture", CONFIGS | CHANGES_WITH_THE_CALL)
@over_starts
def test_what_stands_before_the_first_hidden_token_is_read_once_and_changes_nothing(architecture, start, monkeypatch):
    model, window = model_of(architecture), window_of(start)
    visible = np.concatenate([~np.eye(FAR, dtype=bool), np.ones((1, FAR), bool), np.zeros((1, FAR), bool)])
    visible = np.concatenate([visible, np.random.default_rng(1).random((6, FAR)) < 0.8])
    behind = []
    asked_behind = model.log_probs_with_prefix
    monkeypatch.setattr(
        model, "log_probs_with_prefix", lambda *given: behind.append(len(given[1])) or asked_behind(*given)
    )
    made = torch.empty(len(visible), VOCABULARY)
    for rows, log_probs in strict_of_one(model, window, visible):
        made[rows] = log_probs
    assert sum(behind) >= 4
    expected = torch.stack([by_deletion(model, window, row) for row in visible])
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-4)


def test_what_memory_cannot_hold_is_asked_in_halves():
    model, window = CausalLM(causal_model(CONFIGS["llama"]()), "large"), window_of()
    visible = np.random.default_rng(1).random((20, FAR)) < 0.5
    expected = {mode: asked(model, window, mode, visible) for mode in BRUTE}
    sizes, log_probs, log_probs_with_mask = [], model.log_probs, model.log_probs_with_mask

    def scarce(ask):
        def limited(*given):
            if len(given[-1]) > 3:
                raise torch.OutOfMemoryError
            sizes.append(len(given[-1]))
            return ask(*given)

        return limited

    model.log_probs, model.log_probs_with_mask = scarce(log_probs), scarce(log_probs_with_mask)
    for mode in BRUTE:
        torch.testing.assert_close(asked(model, window, mode, visible), expected[mode], rtol=0, atol=1e-5)
    assert sum(sizes) == 40
    model.log_probs = scarce(lambda *given: (_ for _ in ()).throw(torch.OutOfMemoryError))
    with pytest.raises(torch.OutOfMemoryError):
        asked(model, window, "strict", visible)


@pytest.mark.parametrize("architecture", CONFIGS | CHANGES_WITH_THE_CALL)
def test_a_study_of_a_model_that_is_measured_exactly_passes_the_check(architecture):
    check_study(model_of(architecture), window_of(), masked=True, gated=True, attended=True)


@pytest.mark.parametrize(
    ("architecture", "wrong"),
    [
        ("llama4", r"hidden tokens are seen \(0\.\d+ nats; rounding explains 0\.001\); choose another model"),
        ("doge", r"with near 5 and far 12: leaving tokens out differs .* nats.*; use a smaller --near and --far"),
        ("doge_wide", r"with near 5 and far 12: gates on its attention have no gradient .*; use a measure without"),
    ],
)
def test_a_model_that_counts_keys_is_refused_in_one_line(architecture, wrong):
    with pytest.raises(ModelError, match=wrong) as refused:
        check_study(model_of(architecture), window_of(), masked=True, gated=True, attended=True)
    assert "\n" not in str(refused.value)


def test_a_model_in_bfloat16_is_allowed_what_its_rounding_explains_and_no_more():
    model = CausalLM(causal_model(CONFIGS["llama"]()).bfloat16(), "coarse")
    check_study(model, window_of(), masked=True)
    assert 1e-3 < model.rounding_tolerance(torch.from_numpy(window_of().tokens)) < 1
    whole = model.plain_log_probs
    model.plain_log_probs = lambda tokens, seen=None: whole(tokens.roll(1), seen)
    with pytest.raises(ModelError, match=r"it predicts otherwise than without IDs"):
        check_study(model, window_of())


def test_a_model_that_cannot_be_run_on_tokens_alone_is_refused_in_one_line():
    config = transformers.XmodConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        is_decoder=True,
    )
    with pytest.raises(
        ModelError, match=r"^xmod cannot be run on tokens alone \(ValueError: Input language unknown"
    ) as refused:
        CausalLM(causal_model(config), "xmod")
    assert "\n" not in str(refused.value)


def test_masked_questions_are_compared_as_a_study_asks_them(monkeypatch):
    # Eight questions in one sequence exceed the window of the local layers.
    model = CausalLM(causal_model(CHANGES_WITH_THE_CALL["gpt_neo_local"]()), "packed")
    assert model.packed == 1
    monkeypatch.setattr(model, "packed", 8)
    check_study(model, window_of())
    with pytest.raises(ModelError, match=r"near tokens after far ones .* differ from one pass .*; use --mode strict"):
        check_study(model, window_of(), masked=True)


def test_states_read_without_the_near_tokens_are_found_out(monkeypatch):
    model = CausalLM(causal_model(CHANGES_WITH_THE_CALL["phi3_longrope"]()), "short")
    read = model.prefill
    monkeypatch.setattr(
        model, "prefill", lambda tokens, ids, num_read: read(tokens[:num_read], ids[:num_read], num_read)
    )
    with pytest.raises(ModelError, match=r"after a part that was read once differ from one pass"):
        check_study(model, window_of(), masked=True)


@over_architectures
def test_both_meanings_agree_on_the_near_context_alone_and_on_the_whole(architecture):
    model, window = model_of(architecture), window_of()
    ends = np.stack([np.zeros(FAR, bool), np.ones(FAR, bool)])
    one, other = (asked(model, window, mode, ends) for mode in BRUTE)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


@over_architectures
@pytest.mark.parametrize("mode", BRUTE)
@pytest.mark.parametrize("objective", ["target", "prediction"])
def test_add_one_in_gains_what_a_run_with_one_more_token_gains(architecture, mode, objective):
    model, window = model_of(architecture), window_of()
    found = AddOneIn().choose(probe_of(model, window, mode, objective), 4, RNG)
    before = score(model, window, mode, objective, [])
    gains = [before - score(model, window, mode, objective, [place]) for place in range(FAR)]
    assert found.chosen == tuple(np.argsort(-np.array(gains), kind="stable")[:4])
    assert found.gains == pytest.approx([gains[place] for place in found.chosen], abs=1e-4)


@over_architectures
@pytest.mark.parametrize("mode", BRUTE)
@pytest.mark.parametrize("objective", ["target", "prediction"])
def test_leave_one_out_costs_what_a_run_with_one_token_less_costs(architecture, mode, objective):
    model, window = model_of(architecture), window_of()
    found = LeaveOneOut().choose(probe_of(model, window, mode, objective), 4, RNG)
    whole = score(model, window, mode, objective, list(range(FAR)))
    costs = [
        score(model, window, mode, objective, [i for i in range(FAR) if i != place]) - whole for place in range(FAR)
    ]
    assert found.chosen == tuple(np.argsort(-np.array(costs), kind="stable")[:4])
    assert found.gains == pytest.approx([costs[place] for place in found.chosen], abs=1e-4)


@over_architectures
@pytest.mark.parametrize("mode", BRUTE)
@pytest.mark.parametrize("objective", ["target", "prediction"])
def test_greedy_takes_the_best_next_token_of_all_runs(architecture, mode, objective):
    model, window = model_of(architecture), window_of()
    found = Greedy().choose(probe_of(model, window, mode, objective), 3, RNG)
    kept: list[int] = []
    for place, gain in zip(found.chosen, found.gains, strict=True):
        before = score(model, window, mode, objective, kept)
        after = {i: score(model, window, mode, objective, [*kept, i]) for i in range(FAR) if i not in kept}
        assert place == min(after, key=after.get)
        assert gain == pytest.approx(before - after[place], abs=1e-4)
        kept.append(place)


@over_architectures
@over_starts
def test_the_gate_gradient_is_the_slope_of_runs_with_scores_moved_a_little(architecture, start):
    model, window = model_of(architecture), window_of(start)
    for around, level in (("all", 0.0), ("none", -np.log(FAR))):
        slopes = probe_of(model, window, "masked", "target").gradient(around=around)
        for place in (0, 5, FAR - 1):
            ends = []
            for move in (-0.02, 0.02):
                added = torch.full((FAR,), float(level))
                added[place] += move
                ends.append(float(-by_mask(model, window, np.ones(FAR, bool), added)[window.target]))
            assert slopes[place] == pytest.approx((ends[0] - ends[1]) / 0.04, abs=2e-3, rel=2e-2)


@over_architectures
@over_starts
def test_the_attention_weight_is_the_mean_of_what_the_model_reports(architecture, start):
    model, window = model_of(architecture), window_of(start)
    before = model.model.config._attn_implementation
    model.model.set_attn_implementation("eager")
    made = model.model(
        input_ids=torch.from_numpy(window.tokens)[None],
        attention_mask=torch.ones(1, len(window.tokens), dtype=torch.long),
        output_attentions=True,
    ).attentions
    model.model.set_attn_implementation(before)
    expected = torch.stack(made)[:, 0, :, -1, len(window.start) : len(window.start) + FAR].mean(dim=(0, 1))
    found = probe_of(model, window, "masked", "target").attention()
    np.testing.assert_allclose(found, expected.detach().numpy(), atol=1e-5)
    chosen = AttentionWeight().choose(probe_of(model, window, "masked", "target"), 3, RNG).chosen
    assert chosen == tuple(np.argsort(-found, kind="stable")[:3])


@over_architectures
def test_the_last_prediction_depends_on_tokens_before_a_jump_of_the_ids(architecture):
    # Without a mask, transformers takes a jump for the start of another text and hides what was before.
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
def test_screening_with_all_candidates_is_the_measure_behind_it(architecture):
    model, window = model_of(architecture), window_of()
    for then in (Greedy(), LeaveOneOut(), AddOneIn()):
        probe = probe_of(model, window, "masked", "target")
        assert Screened(then=then, share=1.0).choose(probe, 3, RNG).chosen == then.choose(probe, 3, RNG).chosen


def test_screening_scores_only_the_steepest_candidates():
    model, window = model_of("llama"), window_of()
    probe = probe_of(model, window, "masked", "target")
    steepest = Gradient().choose(probe, 4, RNG).chosen
    found = Screened(then=AddOneIn(), share=4 / FAR).choose(probe, 2, RNG)
    assert set(found.chosen) <= set(steepest)
    assert found.chosen == AddOneIn().choose(probe.among(np.array(steepest)), 2, RNG).chosen


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_measured_is_refused_with_the_reason(name):
    reasons = {"mamba": "layers of kind linear_attention", "bloom": "takes no position_ids"}
    with pytest.raises(ModelError, match=f"{name} .*{reasons[name]}"):
        CausalLM(causal_model(REFUSED[name]()), name)


def test_a_sliding_window_limits_the_context():
    config = CONFIGS["mistral"]()
    config.sliding_window = 20
    assert CausalLM(causal_model(config)).num_positions == 20


def test_a_model_that_leaks_hidden_tokens_is_refused(monkeypatch):
    # As a model would that makes a mask of its own.
    for module in (causal_lm, model_inputs):
        monkeypatch.setattr(module, "additive_mask", lambda seen, dtype: torch.zeros(seen.shape, dtype=dtype))
    with pytest.raises(ModelError, match=r"cannot be measured exactly: .*; choose another"):
        CausalLM(causal_model(CONFIGS["llama"]()), "leaking")

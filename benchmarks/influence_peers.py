"""Compare rankings of far units by captum, inseq, ContextCite and the measures of this library, on the same targets.

``python benchmarks/influence_peers.py MODEL TEXT...`` draws targets in proportion to their divergence, as
``influence_real.py`` does. Every method ranks the far units of each target; near tokens are always visible. The strict
scorer of this library then measures the divergence with the first k units of every ranking. ``planted`` windows end
with a copy of the start of one far unit, which is the only source of the next tokens: a method should rank it first.

Peers rank for the most likely next token (inseq, ContextCite) or for the same divergence as this library (captum, which
accepts any function). LongPPL ranks no far tokens; it decides which targets are key tokens.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from influence_audit import NUM_CANDIDATES, draw_scorers, scorer_of
from torch import Tensor, nn
from transformers import AutoTokenizer

import lengthwise as lw
from lengthwise.core.provenance import collect_provenance
from lengthwise.core.randomness import random_stream
from lengthwise.evaluation.language_model import tokenize_documents
from lengthwise.experiments.run_folder import append_rows, read_rows
from lengthwise.hf.causal_lm import CausalLM
from lengthwise.hf.language_models import LanguageModel
from lengthwise.influence.hidden_context import TargetWindow, WindowEvaluator
from lengthwise.influence.measures import MEASURES, SubsetScorer, TargetLoss
from lengthwise.influence.targets import LONGPPL_RULE, TargetToken, sample_targets
from lengthwise.influence.units import split_into_units
from lengthwise.tasks.text.documents import read_documents

KS = (1, 2, 4, 8, 16)
# Number of far tokens of a planted window, and of tokens at the start of a unit that it repeats at its end.
PLANTED_FAR, NUM_COPIED = 128, 7
# Steps of integrated gradients, captum's default. With 10 steps, planted units are not ranked first.
NUM_STEPS = 50
# Number of resamples of an interval, and the smallest number of targets with an interval.
NUM_RESAMPLES, MIN_RESAMPLED = 10_000, 5
LONGPPL = "LongPPL"
RESULTS = Path(__file__).parent / "results" / "influence_peers.jsonl"
# k at which the table compares each method with ``proposed``.
COMPARED_K = 4

Ranking = Sequence[int]


def rank(scorer: SubsetScorer, values: np.ndarray) -> Ranking:
    """Return the units with the largest values first; ties, such as zeros of a LASSO, are in order of distance."""
    assert values.shape == (len(scorer.units),)
    return [int(unit) for unit in np.lexsort((-np.arange(len(values)), -values))]


def rank_by_tokens(scorer: SubsetScorer, values: Tensor) -> Ranking:
    """Return the units in the order of the sums of their token values; ``values`` has a value per token of a window."""
    window = scorer.evaluator.window
    assert values.shape == (len(window.tokens),)
    far = values[len(window.start) :].double().cpu().numpy()
    return rank(scorer, np.array([far[unit].sum() for unit in scorer.units]))


def language_model(scorer: SubsetScorer) -> CausalLM:
    """Return the `transformers` model of a scorer."""
    model = scorer.evaluator.model
    assert isinstance(model, CausalLM)
    return model


def likely_token(scorer: SubsetScorer) -> int:
    """Return the most likely next token with all far tokens visible."""
    return int(scorer.objective.log_probs_long.argmax())  # type: ignore[union-attr]


def captum_feature_ablation(scorer: SubsetScorer, k: int) -> Ranking:
    """Rank by captum's ``FeatureAblation``: the divergence if a unit is hidden from all tokens by an attention mask."""
    from captum.attr import FeatureAblation  # noqa: PLC0415  (each peer is an optional dependency)

    lm, window = language_model(scorer), scorer.evaluator.window
    tokens = torch.from_numpy(window.tokens)[None].to(lm.model.device)
    unit_of_token = np.concatenate([np.full(len(unit), number) for number, unit in enumerate(scorer.units)])

    def score(visible: Tensor) -> Tensor:
        mask = torch.ones_like(tokens)
        mask[0, len(window.start) : -len(window.near)] = visible[0, unit_of_token].long()
        ids = torch.arange(tokens.shape[1], device=tokens.device)[None]
        logits = lm.model(input_ids=tokens, attention_mask=mask, position_ids=ids, logits_to_keep=1).logits
        return -scorer.objective(logits[:, -1].float().log_softmax(dim=-1))

    with torch.no_grad():
        values = FeatureAblation(score).attribute(torch.ones(1, len(scorer.units), device=tokens.device), baselines=0)
    return rank(scorer, values[0].double().cpu().numpy())


def captum_integrated_gradients(scorer: SubsetScorer, k: int) -> Ranking:
    """Rank by captum's ``LayerIntegratedGradients`` of the divergence, from far tokens that are all end tokens."""
    from captum.attr import LayerIntegratedGradients  # noqa: PLC0415

    lm, window = language_model(scorer), scorer.evaluator.window
    tokens = torch.from_numpy(window.tokens)[None].to(lm.model.device)
    baseline, first = tokens.clone(), len(window.start)
    baseline[0, first : first + len(window.far)] = lm.model.config.eos_token_id

    def score(ids: Tensor) -> Tensor:
        logits = lm.model(input_ids=ids, attention_mask=torch.ones_like(ids), logits_to_keep=1).logits
        return -scorer.objective(logits[:, -1].float().log_softmax(dim=-1))

    method = LayerIntegratedGradients(score, lm.model.get_input_embeddings())
    values = method.attribute(tokens, baselines=baseline, n_steps=NUM_STEPS, internal_batch_size=1)
    return rank_by_tokens(scorer, values.sum(dim=-1)[0].detach())


class InseqRanking:
    """Ranking by a method of inseq for the most likely token, with the default aggregation of inseq."""

    def __init__(self, method: str) -> None:
        self.method, self.attribution_model = method, None

    def __call__(self, scorer: SubsetScorer, k: int) -> Ranking:
        """Sum the values of the tokens of each unit."""
        import inseq  # noqa: PLC0415
        from inseq.data import BatchEncoding  # noqa: PLC0415

        lm, window = language_model(scorer), scorer.evaluator.window
        if self.attribution_model is None:
            self.attribution_model = inseq.load_model(lm.model, self.method, tokenizer=lm.name)
        model = self.attribution_model

        def encode(texts: Sequence[str] | str, **options: Any) -> Any:
            # Text would be divided into other tokens at both ends of the window.
            is_full = (texts if isinstance(texts, str) else texts[0]) == "window target"
            ids = torch.tensor([[*window.tokens.tolist(), *([likely_token(scorer)] if is_full else [])]])
            ids = ids.to(lm.model.device)
            return BatchEncoding(
                input_ids=ids,
                input_tokens=[model._convert_ids_to_tokens(row, skip_special_tokens=False) for row in ids],
                attention_mask=torch.ones_like(ids),
                baseline_ids=torch.zeros_like(ids),
            )

        model.encode = encode
        result = model.attribute("window", "window target", show_progress=False)[0].aggregate()
        assert [token.id for token in result.target] == [*window.tokens.tolist(), likely_token(scorer)]
        (values,) = result.target_attributions[: len(window.tokens)].T
        return rank_by_tokens(scorer, values)


class ContextCiteRanking:
    """Ranking by the code of ContextCite, with its default 64 ablations, masks and LASSO, for the most likely token.

    Only its tokenization is replaced: a prompt is the tokens of the window without the ablated units, so a source is a
    unit. Tokens after an ablated unit have smaller position IDs than in the window.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, scorer: SubsetScorer, k: int) -> Ranking:
        """Return the units in the order of the weights of the regression."""
        from context_cite import ContextCiter  # noqa: PLC0415

        window = scorer.evaluator.window

        class UnitCiter(ContextCiter):
            _response_ids = None

            def _get_prompt_ids(self, mask: np.ndarray, return_prompt: bool = False) -> list[int]:
                return window.tokens[window.expand_mask(scorer.visibility_mask(np.flatnonzero(mask)))].tolist()

        UnitCiter._response_ids = [likely_token(scorer)]
        units = SimpleNamespace(context="", num_sources=len(scorer.units))
        citer = UnitCiter(language_model(scorer).model, self.tokenizer, context="", query="", partitioner=units)
        weights, _ = citer._get_attributions_for_ids_range(0, 1)
        return rank(scorer, weights)


def own_measure(name: str, scorer: SubsetScorer, k: int) -> Ranking:
    """Rank by a measure of this library."""
    return MEASURES[name]().select_tokens(scorer, k, random_stream(0, "search")).indices


def ranking_methods(name: str) -> dict[str, Callable[[SubsetScorer, int], Ranking]]:
    """Return the methods by name, those of this library without a prefix. Their times do not include imports."""
    for module in ("captum.attr", "context_cite", "inseq", "longppl.longppl"):
        import_module(module)
    names = ("proposed", "greedy", "add_one_in", "leave_one_out", "gradient", "attention", "nearest", "random")
    return {
        **{name: partial(own_measure, name) for name in names},
        "captum FeatureAblation": captum_feature_ablation,
        f"captum LayerIntegratedGradients ({NUM_STEPS} steps)": captum_integrated_gradients,
        "inseq input_x_gradient": InseqRanking("input_x_gradient"),
        "ContextCite": ContextCiteRanking(AutoTokenizer.from_pretrained(name)),
    }


def longppl(scorer: SubsetScorer) -> dict[str, Any]:
    """Return whether the target of a window is a key token by longppl's ``find_key_token``, and by our rule."""
    from longppl.longppl import find_key_token  # noqa: PLC0415

    lm, window = language_model(scorer), scorer.evaluator.window
    # The function fails if its last window has one token, so a token follows the target.
    ids = torch.tensor([[*window.far.tolist(), *window.near.tolist(), window.target, window.target]])
    starts, place = torch.arange(ids.shape[1]), len(window.far) + len(window.near)
    encoding = {"input_ids": ids, "offset_mapping": torch.stack([starts, starts + 1], dim=-1)[None]}
    # A window that starts after all far tokens gives the target exactly the near tokens.
    intervals = find_key_token("", lm.model, lambda text, **options: encoding, len(window.near), len(window.far))
    by_loss = replace(scorer, objective=TargetLoss(window.target))
    none = scorer.visibility_mask([])
    short, long = by_loss.scores(np.stack([none, ~none])).tolist()
    return {
        "is_key": any(start <= place < end for start, end in intervals.tolist()),
        "is_key_by_our_rule": LONGPPL_RULE.is_clear(short, long),
        "loss_short": round(short, 4),
        "loss_long": round(long, 4),
    }


def plant_copy(window: TargetWindow, text: np.ndarray, unit: str, seed: int) -> tuple[int, TargetWindow]:
    """Return the number of a random unit, and a window in which this unit has random tokens of the texts.

    The window has ``PLANTED_FAR`` far tokens. Its near tokens end with a copy of the start of the unit.
    """
    rng, window = random_stream(seed, "planted"), window.shorten(PLANTED_FAR, len(window.near))
    units = split_into_units(unit, window.far, lambda token: "")
    # The first unit may be shorter.
    planted = int(rng.integers(1, len(units)))
    tokens = rng.choice(text, size=len(units[planted]), replace=False)
    far, near = window.far.copy(), window.near.copy()
    far[units[planted]], near[-NUM_COPIED:] = tokens, tokens[:NUM_COPIED]
    return planted, replace(window, far=far, near=near, target=int(tokens[NUM_COPIED]))


class TokenCounter:
    """Counter of the tokens that the first layer of a model reads in forward passes."""

    def __init__(self, model: nn.Module) -> None:
        self.number = 0
        layers = next(module for module in model.modules() if isinstance(module, nn.ModuleList))
        layers[0].register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states = args[0] if args else kwargs["hidden_states"]
        self.number += states.shape[0] * states.shape[1]


def measure(
    scorer: SubsetScorer, counter: TokenCounter, method: Callable[[SubsetScorer], Any]
) -> tuple[Any, dict[str, float]]:
    """Return the result of a method on a scorer without cached states, with its processor seconds and tokens."""
    fresh = replace(scorer, evaluator=WindowEvaluator(scorer.evaluator.model, scorer.evaluator.window))
    tokens, start = counter.number, time.process_time()
    result = method(fresh)
    return result, {"seconds": round(time.process_time() - start, 3), "forward_tokens": counter.number - tokens}


def random_targets(loaded: LanguageModel, options: argparse.Namespace) -> list[TargetToken]:
    """Return random targets, ``NUM_CANDIDATES`` for each searched target, in random order."""
    documents = read_documents(options.texts, max_documents=None)
    texts = list(tokenize_documents(loaded.codec, documents, loaded.model.vocabulary_size))
    number, context = NUM_CANDIDATES * options.targets, options.near + options.far
    targets = sample_targets(texts, context=context, num_targets=number, seed=options.seed)
    return [targets[index] for index in random_stream(options.seed, "order").permutation(len(targets))]


def run(options: argparse.Namespace, setup: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row per target and method that the results do not contain."""
    loaded = lw.load_language_model(options.model, device=options.device)
    model, methods = loaded.model, ranking_methods(options.model)
    assert isinstance(model, CausalLM)
    model.model.requires_grad_(False)
    counter, targets = TokenCounter(model.model), random_targets(loaded, options)
    done = {row_key(row) for row in read_rows(RESULTS)}
    for number, (planted_unit, scorer) in enumerate(islice(planted_scorers(model, targets, options), options.planted)):
        for name, row in remaining_rows(methods, options, done, {"setup": setup, "kind": "planted", "target": number}):
            if name == LONGPPL:
                found, cost = measure(scorer, counter, longppl)
                yield row | found | cost
            else:
                (unit, *_), cost = measure(scorer, counter, partial(methods[name], k=1))
                yield row | cost | {"unit": unit, "planted_unit": planted_unit, "is_first": unit == planted_unit}
    draws = islice(draw_scorers(model, targets, options, loaded.codec.start), options.targets)
    for number, scorer in enumerate(draws):
        short = float(scorer.scores(scorer.visibility_mask([])[None])[0])
        for name, row in remaining_rows(methods, options, done, {"setup": setup, "kind": "text", "target": number}):
            if name == LONGPPL:
                found, cost = measure(scorer, counter, longppl)
                yield row | found | cost
                continue
            ranking, cost = measure(scorer, counter, partial(methods[name], k=KS[-1]))
            divergences = scorer.scores(np.stack([scorer.visibility_mask(ranking[:k]) for k in KS]))
            units = {"ks": KS, "units": list(ranking[: KS[-1]])}
            yield (
                row | cost | units | {"divergence_short": round(short, 6), "divergences": divergences.round(6).tolist()}
            )


def planted_scorers(
    model: CausalLM, targets: Sequence[TargetToken], options: argparse.Namespace
) -> Iterator[tuple[int, SubsetScorer]]:
    """Yield planted units and scorers of the planted windows in which the model predicts the next token of the unit."""
    text = np.concatenate([target.text.tokens for target in targets])
    for number, target in enumerate(targets):
        unit, window = plant_copy(target.window(options.near, options.far), text, options.unit, number)
        scorer = scorer_of(model, window, options.unit)
        if likely_token(scorer) == window.target:
            yield unit, scorer


def remaining_rows(
    methods: Iterable[str], options: argparse.Namespace, done: set[tuple[Any, ...]], row: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names of the methods without a result, each with the first fields of its row."""
    for name in [*methods, LONGPPL]:
        new = row | {"method": name}
        if row_key(new) not in done and (options.methods is None or name in options.methods.split(",")):
            yield name, new


def row_key(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what identifies a row."""
    return (json.dumps(row["setup"], sort_keys=True), row["kind"], row["target"], row["method"])


def with_interval(gains: np.ndarray, totals: np.ndarray) -> str:
    """Return the ratio of two sums over targets, with a 95% bootstrap interval over targets if there are enough."""
    if len(totals) < MIN_RESAMPLED:
        return f"{gains.sum() / totals.sum():.2f}"
    samples = random_stream(0, "bootstrap").integers(0, len(totals), (NUM_RESAMPLES, len(totals)))
    ratios = gains[samples].sum(axis=1) / totals[samples].sum(axis=1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return f"{gains.sum() / totals.sum():.2f} [{low:.2f}, {high:.2f}]"


def table(rows: list[dict[str, Any]]) -> str:
    """Return the results as Markdown tables: shares by method, then medians of costs, and planted copies."""
    ranked = {(row["method"], row["target"]): row for row in rows if "divergences" in row}
    names = list(dict.fromkeys(method for method, _ in ranked))
    targets = sorted(target for method, target in ranked if method == "proposed")
    # A run that was stopped has some methods for fewer targets.
    targets = [target for target in targets if all((name, target) in ranked for name in names)]
    totals = np.array([ranked["proposed", target]["divergence_short"] for target in targets])
    gains = {
        name: totals[:, None] - np.array([ranked[name, target]["divergences"] for target in targets]) for name in names
    }
    at = KS.index(COMPARED_K)
    heads = ["method", *(f"k = {k}" for k in KS), f"proposed minus method, k = {COMPARED_K}"]
    lines = [f"{len(targets)} targets", "", "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for name in sorted(names, key=lambda name: -gains[name][:, at].sum()):
        cells = [name, *(with_interval(gains[name][:, place], totals) for place in range(len(KS)))]
        cells.append("" if name == "proposed" else with_interval((gains["proposed"] - gains[name])[:, at], totals))
        lines.append("| " + " | ".join(cells) + " |")
    kinds = ("text", "planted")
    heads = ["method", *(f"{cost}, {kind}" for kind in kinds for cost in ("seconds", "tokens read"))]
    lines += ["", "| " + " | ".join([*heads, "planted unit first"]) + " |", "|" + "---|" * (len(heads) + 1)]
    for name in dict.fromkeys(row["method"] for row in rows):
        cells = [name]
        for kind in kinds:
            selected = [row for row in rows if (row["method"], row["kind"]) == (name, kind)]
            costs = [(row["seconds"], row["forward_tokens"]) for row in selected]
            medians = np.median(costs, axis=0) if costs else None
            cells += ["", ""] if medians is None else [f"{medians[0]:.1f}", f"{medians[1]:,.0f}"]
        found = [row["is_first"] for row in rows if row["method"] == name and "is_first" in row]
        cells.append(f"{sum(found)} of {len(found)}" if found else "")
        lines.append("| " + " | ".join(cells) + " |")
    for kind in kinds:
        both = [row for row in rows if row["method"] == LONGPPL and row["kind"] == kind]
        same = sum(row["is_key"] == row["is_key_by_our_rule"] for row in both)
        lines.append(f"\n{kind}: {sum(row['is_key'] for row in both)} key targets, {same} of {len(both)} agree")
    return "\n".join(lines)


def main() -> None:
    """Append a row per target and method to the results, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--targets", type=int, default=10)
    parser.add_argument("--planted", type=int, default=5, help="Number of planted windows.")
    parser.add_argument("--near", type=int, default=64)
    parser.add_argument("--far", type=int, default=512)
    parser.add_argument("--unit", default="span:8")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", help="Names of methods, separated by commas; the default is all.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = ("targets", "near", "far", "unit", "seed", "device")
    setup = {"model": Path(options.model).name, **{name: getattr(options, name) for name in names}}
    for row in run(options, setup):
        print(json.dumps(row), flush=True)
        append_rows(RESULTS, [{**row, "provenance": collect_provenance()}])
    print(table([row for row in read_rows(RESULTS) if row["setup"] == setup]))


if __name__ == "__main__":
    main()

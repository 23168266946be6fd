"""Cost of influence measures compared with captum and longppl, on one model with random weights.

A Llama of 12 layers, width 256, with the vocabulary size of GPT-2; 1,024 far and 32 near tokens. ``leave one out``: all
far tokens of a target by masked ``LeaveOneOut``, compared with captum's ``FeatureAblation``, which replaces tokens.
The time of captum is measured on a few ablations and scaled. Both compute only the logits of the last token. ``short
context``: the losses of all tokens of a text, compared with the windows of longppl's ``find_key_token`` without its
pass over the full text, also with the vocabulary size of Llama 3. ``strict leave one out``: 256 far tokens,
compared with a plain loop of forward passes. ``memory``: peak memory beyond the loaded model, compared with a plain
forward pass, each in a separate process. ``screening``: share of the exhaustive best 8 that a screened measure selects,
and its time. ``--run`` measures screening in strict mode on a run on text, and also the share of the gain.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from short_context import short_context_losses
from transformers import LlamaConfig, LlamaForCausalLM

from lengthwise.core.provenance import collect_provenance
from lengthwise.experiments.run_folder import append_rows
from lengthwise.hf.causal_lm import CausalLM
from lengthwise.hf.language_models import load_language_model
from lengthwise.influence.hidden_context import TargetWindow, WindowEvaluator
from lengthwise.influence.measures import GreedySelection, LeaveOneOut, PrefilteredMeasure, SubsetScorer, TargetLoss
from lengthwise.influence.targets import sample_targets

LAYERS, WIDTH, HEADS, FAR, NEAR, TARGETS = 12, 256, 8, 1024, 32, 32
VOCABULARY, LARGE_VOCABULARY = 50_257, 128_256
ABLATIONS, STRICT = 64, 256
SHORT = ((32, 8), (32, 16), (32, 32), (256, 64), (1024, 256))
TEXT_TOKENS = 4096
REPEATS = 3
RESULTS = Path(__file__).parent / "results" / "influence_speed.jsonl"


def random_model(vocabulary: int = VOCABULARY, device: str = "cpu") -> CausalLM:
    """Return a model with random weights, which have the cost of trained weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    return CausalLM(LlamaForCausalLM(config).to(torch.device(device)), "llama")


def random_windows(number: int) -> list[TargetWindow]:
    """Return windows of random tokens."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCABULARY, (number, FAR + NEAR + 1))
    return [TargetWindow(start=row[:0], far=row[:FAR], near=row[FAR:-1], target=int(row[-1])) for row in tokens]


def masked_scorer(lm: CausalLM, window: TargetWindow) -> SubsetScorer:
    """Return a masked scorer with all far tokens as candidates."""
    return SubsetScorer(
        evaluator=WindowEvaluator(lm, window),
        mode="masked",
        objective=TargetLoss(window.target),
        units=list(np.arange(FAR)[:, None]),
        candidates=np.arange(FAR),
    )


def time_call(function: Callable[[], Any]) -> float:
    """Return the wall time of one call in seconds."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def time_in_turns(*functions: Callable[[], Any]) -> list[float]:
    """Return the smallest of a few wall times of each function in seconds; the functions take turns."""
    times = [[time_call(function) for function in functions] for _ in range(REPEATS)]
    return [min(each) for each in zip(*times, strict=True)]


def leave_one_out(lm: CausalLM, number: int, candidates: int) -> dict[str, Any]:
    """Measure the seconds per far token and target; times of fewer tokens are scaled up."""
    from captum.attr import FeatureAblation  # noqa: PLC0415  (the other modes need no captum)

    samples = random_windows(number)
    tokens = torch.from_numpy(np.stack([window.tokens for window in samples]))
    targets = torch.tensor([window.target for window in samples])
    mask = torch.ones_like(tokens)

    def forward(ids: torch.Tensor) -> torch.Tensor:
        logits = lm.model(input_ids=ids, attention_mask=mask, logits_to_keep=1).logits[:, 0]
        return logits.log_softmax(dim=-1).gather(1, targets[:, None])[:, 0]

    # Each of the first tokens is a feature; all other tokens together are one more feature.
    features = torch.arange(FAR + NEAR).clamp(max=ABLATIONS - 1).expand_as(tokens)
    ablation = FeatureAblation(forward)

    def captum() -> None:
        with torch.no_grad():
            ablation.attribute(tokens, baselines=0, feature_mask=features)

    def ours() -> None:
        for window in samples:
            LeaveOneOut().select_tokens(
                masked_scorer(lm, window).with_candidates(np.arange(candidates)),
                min(8, candidates),
                np.random.default_rng(0),
            )

    with torch.no_grad():
        plain = time_call(lambda: forward(tokens))
    prefill = sum(time_call(lambda window=window: WindowEvaluator(lm, window).states) for window in samples)
    own = (time_call(ours) - prefill) * FAR / (candidates + 1) + prefill
    # FeatureAblation runs once without an ablation, then once per feature.
    reference = time_call(captum) * (FAR + 1) / (ABLATIONS + 1)
    return {
        "measured": "leave one out",
        "targets": number,
        "ours_s_per_far_token": own / FAR / number,
        "captum_s_per_far_token": reference / FAR / number,
        "ratio": reference / own,
        "plain_forward_s": plain / number,
        "ours_timed_on": candidates,
        "captum_timed_on": ABLATIONS,
    }


def short_context(lm: CausalLM, near: int, stride: int) -> dict[str, Any]:
    """Measure the seconds for the losses of all tokens after the first ``near``."""
    from longppl.longppl import find_key_token  # noqa: PLC0415

    tokens = np.random.default_rng(1).integers(0, lm.vocabulary_size, TEXT_TOKENS)
    ids, starts = torch.from_numpy(tokens)[None], torch.arange(TEXT_TOKENS)
    encoding = {"input_ids": ids, "offset_mapping": torch.stack([starts, starts + 1], dim=-1)[None]}

    @torch.no_grad()
    def full_pass() -> None:
        lm.model(ids)

    # A function in place of the tokenizer gives longppl the same random tokens.
    own, longppl_total, longppl_full_pass = time_in_turns(
        lambda: short_context_losses(lm, tokens, near=near, stride=stride),
        lambda: find_key_token("", lm.model, lambda text, **options: encoding, near, stride),
        full_pass,
    )
    reference = longppl_total - longppl_full_pass
    return {
        "measured": "short context",
        "near": near,
        "stride": stride,
        "vocabulary": lm.vocabulary_size,
        "tokens": TEXT_TOKENS,
        "ours_s": own,
        "longppl_s": reference,
        "ratio": reference / own,
    }


def screening(lm: CausalLM, number: int) -> dict[str, Any]:
    """Measure the share of the exhaustive best 8 that a screened measure selects."""
    overlaps, times = [], np.zeros(2)
    for window in random_windows(number):
        selections = []
        for index, measure in enumerate((LeaveOneOut(), PrefilteredMeasure(then=LeaveOneOut(), share=0.1))):
            scorer = masked_scorer(lm, window)
            start = time.perf_counter()
            selections.append(set(measure.select_tokens(scorer, 8, np.random.default_rng(0)).indices))
            times[index] += time.perf_counter() - start
        overlaps.append(len(selections[0] & selections[1]) / 8)
    return {
        "measured": "screening",
        "targets": number,
        "found": float(np.mean(overlaps)),
        "time_share": float(times[1] / times[0]),
    }


def strict_leave_one_out(lm: CausalLM) -> dict[str, Any]:
    """Measure the seconds of leave-one-out for some far tokens; the loop is timed on fewer tokens and scaled up."""
    window, rng = random_windows(1)[0], np.random.default_rng(0)
    indices, loop_indices = (np.linspace(0, FAR - 1, number).astype(int) for number in (STRICT, ABLATIONS))

    @torch.no_grad()
    def loop() -> None:
        for index in loop_indices.tolist():
            tokens = torch.from_numpy(window.tokens[window.expand_mask(~window.visibility_mask([index]))])[None]
            lm.model(input_ids=tokens, use_cache=False, logits_to_keep=1)

    ours, plain = time_in_turns(
        lambda: LeaveOneOut().select_tokens(
            replace(masked_scorer(lm, window), mode="strict", candidates=indices), 8, rng
        ),
        loop,
    )
    plain *= STRICT / ABLATIONS
    return {
        "measured": "strict leave one out",
        "left_out": STRICT,
        "ours_s": ours,
        "loop_s": plain,
        "ratio": plain / ours,
    }


def screening_trained(run: str, near: int, far: int, number: int) -> Iterator[dict[str, Any]]:
    """Measure the share of the exhaustive gain that a screened measure reaches, strict, on held-out text of a run."""
    loaded = load_language_model(run)
    targets = sample_targets(loaded.held_out_documents(), context=near + far, num_targets=number, seed=7000)
    for measure, share in product((LeaveOneOut(), GreedySelection()), (0.05, 0.1, 0.25, 0.5)):
        overlaps, gains, times = [], np.zeros(2), np.zeros(2)
        for target in targets:
            window = target.window(near, far, ())
            scorer = SubsetScorer(
                evaluator=WindowEvaluator(loaded.model, window),
                mode="strict",
                objective=TargetLoss(window.target),
                units=list(np.arange(far)[:, None]),
                candidates=np.arange(far),
            )
            rankings = []
            for index, each in enumerate((measure, PrefilteredMeasure(then=measure, share=share))):
                start = time.perf_counter()
                rankings.append(each.select_tokens(scorer, 8, np.random.default_rng(0)))
                times[index] += time.perf_counter() - start
            overlaps.append(len(set(rankings[0].indices) & set(rankings[1].indices)) / 8)
            masks = [scorer.visibility_mask([]), *(scorer.visibility_mask(each.indices) for each in rankings)]
            near_only, *scores = scorer.scores(np.stack(masks))
            gains += near_only - np.array(scores)
        yield {
            "measured": "screening, trained, strict",
            "measure": measure.name,
            "share": share,
            "near": near,
            "far": far,
            "targets": len(targets),
            "found": float(np.mean(overlaps)),
            "found_worst": float(np.min(overlaps)),
            "gain_kept": float(gains[1] / gains[0]),
            "time_share": float(times[1] / times[0]),
        }


def measure_peak(kind: str) -> int:
    """Return the peak bytes of a separate process beyond the loaded model."""
    completed = subprocess.run(
        [sys.executable, __file__, "--only", kind], check=True, capture_output=True, text=True, cwd=Path.cwd()
    )
    return int(json.loads(completed.stdout.splitlines()[-1])["bytes"])


def print_peak(kind: str) -> None:
    """Print the peak memory in bytes after loading the model, minus the memory of the loaded model (Linux only)."""
    lm, (window,) = random_model(), random_windows(1)
    # Reset the peak that building the model caused.
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before = memory_in_use("VmRSS")
    if kind == "plain":
        with torch.no_grad():
            lm.model(input_ids=torch.from_numpy(window.tokens)[None], use_cache=False)
    elif kind == "ours":
        LeaveOneOut().select_tokens(
            masked_scorer(lm, window).with_candidates(np.arange(128)), 8, np.random.default_rng(0)
        )
    print(json.dumps({"bytes": memory_in_use("VmHWM") - before, "model_bytes": before}))


def memory_in_use(field: str) -> int:
    """Return a memory field of ``/proc/self/status`` in bytes."""
    (line,) = (
        line for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines() if line.startswith(field)
    )
    return int(line.split()[1]) * 1024


def main() -> None:
    """Print one row per measurement and append it to the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("plain", "ours"), help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="Use one target and few candidates, as a test.")
    parser.add_argument("--run", help="Measure only screening, on this run on text.")
    parser.add_argument("--strict", action="store_true", help="Measure only strict leave-one-out.")
    arguments = parser.parse_args()
    if arguments.only is not None:
        print_peak(arguments.only)
        return
    if arguments.run is not None:
        for row in screening_trained(arguments.run, near=16, far=256, number=4 if arguments.quick else 64):
            save_row(row, quick=arguments.quick)
        return
    lm, quick = random_model(), arguments.quick
    measurements: list[Callable[[], dict[str, Any]]] = [lambda: strict_leave_one_out(lm)]
    measurements += (
        []
        if arguments.strict
        else [
            lambda: leave_one_out(lm, 1, 64 if quick else FAR),
            *([] if quick else [lambda: leave_one_out(lm, TARGETS, ABLATIONS)]),
            *[
                lambda near=near, stride=stride, size=size: short_context(random_model(size), near, stride)
                for size in (VOCABULARY, LARGE_VOCABULARY)
                for near, stride in SHORT
            ],
            lambda: {"measured": "memory", **{f"{kind}_bytes": measure_peak(kind) for kind in ("plain", "ours")}},
            *([] if quick else [lambda: screening(lm, 4)]),
        ]
    )
    for measure in measurements:
        save_row(measure(), quick=quick)


def save_row(row: dict[str, Any], *, quick: bool) -> None:
    """Print a row, and append it to the results unless it is a quick test."""
    print(json.dumps(row), flush=True)
    if not quick:
        append_rows(RESULTS, [{**row, "provenance": collect_provenance()}])


if __name__ == "__main__":
    main()

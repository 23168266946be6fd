"""What influence costs, beside captum and longppl: ratios measured in one run, on one model with random weights.

A Llama of 12 layers, 256 wide, with the vocabulary size of GPT-2; 1,024 far and 32 near tokens. ``leave one out``: all
far tokens of a target by ``LeaveOneOut`` (masked), against captum's ``FeatureAblation`` (it replaces a token by
another), timed on a few of its ablations and scaled; its forward computes the logits of the last token alone, like
ours. ``short context``: the losses of all tokens of a text, against the windows of longppl's ``find_key_token`` (its
pass over the whole text taken off), also with the vocabulary size of Llama 3, which longppl's own evaluator has.
``strict leave one out``: far tokens of a target, each left out in turn, against a plain loop of forwards without them.
``memory``: the largest memory in use beyond the loaded model, in processes of their own, beside a plain forward of the
same tokens. ``screening``: how many of the exhaustive best 8 it finds, and its time; with ``--run`` (a run on text)
on trained weights, strict, as well, with the share of what the exhaustive choice gains.
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
from transformers import LlamaConfig, LlamaForCausalLM

from lengthwise.core.provenance import provenance
from lengthwise.experiments.run_folder import append_rows
from lengthwise.hf.causal_lm import CausalLM
from lengthwise.hf.language_models import load_language_model
from lengthwise.influence.measures import Greedy, LeaveOneOut, Screened
from lengthwise.influence.probing.objective import TargetLoss
from lengthwise.influence.probing.subset_scoring import Probe, Reading
from lengthwise.influence.probing.window import Window
from lengthwise.influence.short_context import short_context_losses
from lengthwise.influence.targets import choose_targets

LAYERS, WIDTH, HEADS, FAR, NEAR, TARGETS = 12, 256, 8, 1024, 32, 32
VOCABULARY, LARGE_VOCABULARY = 50_257, 128_256
ABLATIONS, STRICT = 64, 256
SHORT = ((32, 8), (32, 16), (32, 32), (256, 64), (1024, 256))
TEXT_TOKENS = 4096
REPEATS = 3
RESULTS = Path(__file__).parent / "results" / "influence_speed.jsonl"


def model(vocabulary: int = VOCABULARY, device: str = "cpu") -> CausalLM:
    """Random weights: the cost does not depend on them."""
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


def windows(number: int) -> list[Window]:
    """Random tokens."""
    rng = np.random.default_rng(0)
    draws = rng.integers(0, VOCABULARY, (number, FAR + NEAR + 1))
    return [Window(start=row[:0], far=row[:FAR], near=row[FAR:-1], target=int(row[-1])) for row in draws]


def probe_of(lm: CausalLM, window: Window) -> Probe:
    """All far tokens are candidates."""
    return Probe(
        reading=Reading(lm, window), mode="masked", objective=TargetLoss(window.target), candidates=np.arange(FAR)
    )


def seconds(work: Callable[[], Any]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_turns(*works: Callable[[], Any]) -> list[float]:
    """The least of a few wall times of each, measured in turns."""
    times = [[seconds(work) for work in works] for _ in range(REPEATS)]
    return [min(each) for each in zip(*times, strict=True)]


def leave_one_out(lm: CausalLM, number: int, candidates: int) -> dict[str, Any]:
    """Seconds per far token and target, ours over all far tokens (or scaled from a part), captum's scaled."""
    from captum.attr import FeatureAblation  # noqa: PLC0415  (the other modes need no captum)

    chosen = windows(number)
    tokens = torch.from_numpy(np.stack([window.tokens for window in chosen]))
    targets = torch.tensor([window.target for window in chosen])
    mask = torch.ones_like(tokens)

    def forward(ids: torch.Tensor) -> torch.Tensor:
        logits = lm.model(input_ids=ids, attention_mask=mask, logits_to_keep=1).logits[:, 0]
        return logits.log_softmax(dim=-1).gather(1, targets[:, None])[:, 0]

    # The first tokens are features of their own, all others one more.
    features = torch.arange(FAR + NEAR).clamp(max=ABLATIONS - 1).expand_as(tokens)
    ablation = FeatureAblation(forward)

    def captum() -> None:
        with torch.no_grad():
            ablation.attribute(tokens, baselines=0, feature_mask=features)

    def ours() -> None:
        for window in chosen:
            LeaveOneOut().choose(
                probe_of(lm, window).among(np.arange(candidates)), min(8, candidates), np.random.default_rng(0)
            )

    with torch.no_grad():
        plain = seconds(lambda: forward(tokens))
    reading = sum(seconds(lambda window=window: Reading(lm, window).masked) for window in chosen)
    own = (seconds(ours) - reading) * FAR / (candidates + 1) + reading
    # FeatureAblation runs the whole once, then once per feature.
    reference = seconds(captum) * (FAR + 1) / (ABLATIONS + 1)
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
    """Seconds for the losses of all tokens behind the first ``near``."""
    from longppl.longppl import find_key_token  # noqa: PLC0415

    tokens = np.random.default_rng(1).integers(0, lm.vocabulary_size, TEXT_TOKENS)
    ids, places = torch.from_numpy(tokens)[None], torch.arange(TEXT_TOKENS)
    encoded = {"input_ids": ids, "offset_mapping": torch.stack([places, places + 1], dim=-1)[None]}

    @torch.no_grad()
    def whole() -> None:
        lm.model(ids)

    # In the tokenizer's place: longppl then reads the same random tokens.
    own, both, first = in_turns(
        lambda: short_context_losses(lm, tokens, near=near, stride=stride),
        lambda: find_key_token("", lm.model, lambda text, **rest: encoded, near, stride),
        whole,
    )
    reference = both - first
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
    """How much of the exhaustive best 8 a screened choice finds."""
    found, times = [], np.zeros(2)
    for window in windows(number):
        chosen = []
        for place, measure in enumerate((LeaveOneOut(), Screened(then=LeaveOneOut(), share=0.1))):
            probe = probe_of(lm, window)
            started = time.perf_counter()
            chosen.append(set(measure.choose(probe, 8, np.random.default_rng(0)).chosen))
            times[place] += time.perf_counter() - started
        found.append(len(chosen[0] & chosen[1]) / 8)
    return {
        "measured": "screening",
        "targets": number,
        "found": float(np.mean(found)),
        "time_share": float(times[1] / times[0]),
    }


def strict_leave_one_out(lm: CausalLM) -> dict[str, Any]:
    """Seconds for evenly spaced far tokens of a target, each left out in turn; the loop's from a part, scaled."""
    window, rng = windows(1)[0], np.random.default_rng(0)
    places, part = (np.linspace(0, FAR - 1, number).astype(int) for number in (STRICT, ABLATIONS))

    @torch.no_grad()
    def loop() -> None:
        for place in part.tolist():
            tokens = torch.from_numpy(window.tokens[window.shown(~window.only([place]))])[None]
            lm.model(input_ids=tokens, use_cache=False, logits_to_keep=1)

    ours, looped = in_turns(
        lambda: LeaveOneOut().choose(replace(probe_of(lm, window), mode="strict", candidates=places), 8, rng),
        loop,
    )
    looped *= STRICT / ABLATIONS
    return {
        "measured": "strict leave one out",
        "left_out": STRICT,
        "ours_s": ours,
        "loop_s": looped,
        "ratio": looped / ours,
    }


def screening_trained(run: str, near: int, far: int, number: int) -> Iterator[dict[str, Any]]:
    """How much of what the exhaustive choice gains a screened one keeps, on held-out text of a run, strict."""
    loaded = load_language_model(run)
    targets = choose_targets(loaded.held_out(), context=near + far, number=number, seed=7000)
    for measure, share in product((LeaveOneOut(), Greedy()), (0.05, 0.1, 0.25, 0.5)):
        found, kept, times = [], np.zeros(2), np.zeros(2)
        for target in targets:
            window = target.window(near, far, ())
            probe = Probe(
                reading=Reading(loaded.model, window),
                mode="strict",
                objective=TargetLoss(window.target),
                candidates=np.arange(far),
            )
            chosen = []
            for place, each in enumerate((measure, Screened(then=measure, share=share))):
                started = time.perf_counter()
                chosen.append(each.choose(probe, 8, np.random.default_rng(0)))
                times[place] += time.perf_counter() - started
            found.append(len(set(chosen[0].chosen) & set(chosen[1].chosen)) / 8)
            none, *scores = probe.scores(np.stack([probe.only([]), *(probe.only(each.chosen) for each in chosen)]))
            kept += none - np.array(scores)
        yield {
            "measured": "screening, trained, strict",
            "measure": measure.name,
            "share": share,
            "near": near,
            "far": far,
            "targets": len(targets),
            "found": float(np.mean(found)),
            "found_worst": float(np.min(found)),
            "gain_kept": float(kept[1] / kept[0]),
            "time_share": float(times[1] / times[0]),
        }


def peak_of(work: str) -> int:
    """Bytes that a process of its own took beyond the loaded model."""
    made = subprocess.run(
        [sys.executable, __file__, "--only", work], check=True, capture_output=True, text=True, cwd=Path.cwd()
    )
    return int(json.loads(made.stdout.splitlines()[-1])["bytes"])


def peak(work: str) -> None:
    """What ``peak_of`` runs: the highest memory in use since the model was loaded, less what it was then (Linux)."""
    lm, (window,) = model(), windows(1)
    # Forget the peak that making the model left behind.
    Path("/proc/self/clear_refs").write_text("5")
    before = in_use("VmRSS")
    if work == "plain":
        with torch.no_grad():
            lm.model(input_ids=torch.from_numpy(window.tokens)[None], use_cache=False)
    elif work == "ours":
        LeaveOneOut().choose(probe_of(lm, window).among(np.arange(128)), 8, np.random.default_rng(0))
    print(json.dumps({"bytes": in_use("VmHWM") - before, "model_bytes": before}))


def in_use(what: str) -> int:
    """Bytes, by the kernel's count."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) * 1024


def main() -> None:
    """Print and keep a row per measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("plain", "ours"), help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="One target, few candidates: to see that it works.")
    parser.add_argument("--run", help="A run on text: measure screening on its weights, and nothing else.")
    parser.add_argument("--strict", action="store_true", help="Measure strict leave-one-out, and nothing else.")
    arguments = parser.parse_args()
    if arguments.only is not None:
        peak(arguments.only)
        return
    if arguments.run is not None:
        for row in screening_trained(arguments.run, near=16, far=256, number=4 if arguments.quick else 64):
            keep(row, quick=arguments.quick)
        return
    lm, quick = model(), arguments.quick
    measured: list[Callable[[], dict[str, Any]]] = [lambda: strict_leave_one_out(lm)]
    measured += (
        []
        if arguments.strict
        else [
            lambda: leave_one_out(lm, 1, 64 if quick else FAR),
            *([] if quick else [lambda: leave_one_out(lm, TARGETS, ABLATIONS)]),
            *[
                lambda near=near, stride=stride, size=size: short_context(model(size), near, stride)
                for size in (VOCABULARY, LARGE_VOCABULARY)
                for near, stride in SHORT
            ],
            lambda: {"measured": "memory", **{f"{work}_bytes": peak_of(work) for work in ("plain", "ours")}},
            *([] if quick else [lambda: screening(lm, 4)]),
        ]
    )
    for measure in measured:
        keep(measure(), quick=quick)


def keep(row: dict[str, Any], *, quick: bool) -> None:
    """Print a row, and add it to the results unless it only shows that it works."""
    print(json.dumps(row), flush=True)
    if not quick:
        append_rows(RESULTS, [{**row, "provenance": provenance()}])


if __name__ == "__main__":
    main()

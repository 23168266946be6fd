"""Compare the search of the measure ``proposed`` with full greedy search on a real model.

``python benchmarks/influence_audit.py MODEL TEXT... --targets 20 --out FILE`` prints one line per target and the total:
the share of the divergence that ``proposed`` recovers at k spans, in strict mode, relative to greedy search over all
spans. ``--known`` reads the results of greedy search, which takes most of the time, from an earlier file.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lengthwise as lw
from lengthwise.core.provenance import collect_provenance
from lengthwise.core.randomness import random_stream
from lengthwise.evaluation.language_model import NextTokenModel, tokenize_documents
from lengthwise.experiments.run_folder import append_rows, read_rows
from lengthwise.hf.language_models import LanguageModel
from lengthwise.influence.hidden_context import TargetWindow, WindowEvaluator
from lengthwise.influence.measures import GreedySelection, InfluenceMeasure, KLDivergence, ProposedGreedy, SubsetScorer
from lengthwise.influence.targets import TargetToken, sample_targets
from lengthwise.influence.units import split_into_units
from lengthwise.tasks import TokenizedDocument
from lengthwise.tasks.text.documents import read_documents

# Number of random targets for each searched target, which is drawn in proportion to its divergence.
NUM_CANDIDATES = 10
KS = (1, 2, 4, 8, 16)
SEARCHES = ("proposed", "greedy")


def scorer_of(model: NextTokenModel, window: TargetWindow, unit: str) -> SubsetScorer:
    """Return the scorer of a window in strict mode, for the prediction with all far tokens."""
    tokens = torch.from_numpy(window.tokens)
    whole = model.last_log_probs(tokens, model.assign_position_ids(tokens), 1)[0]
    units = split_into_units(unit, window.far, lambda token: "")
    evaluator, candidates = WindowEvaluator(model, window), np.arange(len(units))
    objective = KLDivergence(whole)
    return SubsetScorer(evaluator=evaluator, mode="strict", objective=objective, units=units, candidates=candidates)


def draw_scorers(
    model: NextTokenModel, targets: list[TargetToken], options: argparse.Namespace, start: tuple[int, ...]
) -> Iterator[SubsetScorer]:
    """Yield the scorers of targets that are drawn in proportion to their divergence."""
    rng = random_stream(options.seed, "audit")
    for first in range(0, len(targets), NUM_CANDIDATES):
        windows = [each.window(options.near, options.far, start) for each in targets[first : first + NUM_CANDIDATES]]
        scorers = [scorer_of(model, window, options.unit) for window in windows]
        divergences = np.array([each.scores(each.visibility_mask([])[None])[0] for each in scorers])
        yield scorers[rng.choice(len(scorers), p=divergences / divergences.sum())]


def run_search(measure: InfluenceMeasure, scorer: SubsetScorer, ks: tuple[int, ...]) -> dict[str, Any]:
    """Return the selected units, the divergences at each k and the processor seconds of the search."""
    start = time.process_time()
    indices = measure.select_tokens(scorer, ks[-1], random_stream(0, "search")).indices
    seconds = time.process_time() - start
    divergences = scorer.scores(np.stack([scorer.visibility_mask(indices[:k]) for k in ks]))
    return {"units": list(indices), "divergences": divergences.tolist(), "processor_s": round(seconds, 2)}


def compare_searches(
    loaded: LanguageModel,
    texts: list[TokenizedDocument],
    options: argparse.Namespace,
    ks: tuple[int, ...],
    known: Sequence[dict[str, Any]] = (),
) -> Iterator[Callable[[], dict[str, Any]]]:
    """Yield one function per target that returns its row: its divergence, and the result of each search.

    ``known`` has earlier rows.
    """
    number, context = NUM_CANDIDATES * options.targets, options.near + options.far
    targets = sample_targets(texts, context=context, num_targets=number, seed=options.seed)
    # Sampled targets are in text order; each draw is among targets of all texts.
    targets = [targets[index] for index in random_stream(options.seed, "order").permutation(len(targets))]
    for index, scorer in enumerate(draw_scorers(loaded.model, targets, options, loaded.codec.start)):
        row: dict[str, Any] = {"seed": options.seed, "far": options.far, "unit": options.unit, "ks": list(ks)}
        row |= {"index": index, "divergence_short": float(scorer.scores(scorer.visibility_mask([])[None])[0])}
        if index < len(known) and not np.isclose(known[index]["divergence_short"], row["divergence_short"], rtol=0.01):
            raise SystemExit("error: --known has other targets; use its --targets, --seed, texts and --dtype")
        yield partial(_audit_target, scorer, row, ks, known[index]["greedy"] if index < len(known) else None)


def _audit_target(
    scorer: SubsetScorer, row: dict[str, Any], ks: tuple[int, ...], greedy: dict[str, Any] | None
) -> dict[str, Any]:
    greedy = run_search(GreedySelection(), scorer, ks) if greedy is None else greedy
    return {**row, "greedy": greedy, "proposed": run_search(ProposedGreedy(), scorer, ks)}


def summary_line(rows: list[dict[str, Any]]) -> str:
    """Return the recovered share of ``proposed`` relative to that of greedy search at each k, with an interval.

    Targets are drawn in proportion to their divergence, so the mean of their shares is the share of a study.
    """
    short = np.array([row["divergence_short"] for row in rows])[:, None]
    proposed, greedy = (1 - np.array([row[name]["divergences"] for row in rows]) / short for name in SEARCHES)
    draws = random_stream(0, "bootstrap").integers(len(rows), size=(2000, len(rows)))
    low, high = np.quantile(proposed[draws].mean(axis=1) / greedy[draws].mean(axis=1), [0.025, 0.975], axis=0)
    shares = (
        f"k={k}: {value:.3f} [{lowest:.3f}, {highest:.3f}]"
        for k, value, lowest, highest in zip(rows[0]["ks"], proposed.mean(0) / greedy.mean(0), low, high, strict=True)
    )
    return f"{len(rows)} targets, proposed / greedy at {', '.join(shares)}"


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--targets", type=int, default=20)
    parser.add_argument("--near", type=int, default=64)
    parser.add_argument("--far", type=int, default=1024)
    parser.add_argument("--unit", default="span:8")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", help="Precision of the model.")
    parser.add_argument("--out", type=Path, required=True, help="File that gets one row per target.")
    parser.add_argument("--known", type=Path, help="File of an earlier audit, whose results of greedy search are read.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    loaded, rows = lw.load_language_model(options.model, dtype=options.dtype), []
    documents = read_documents(options.texts, max_documents=None)
    texts = list(tokenize_documents(loaded.codec, documents, loaded.model.vocabulary_size))
    known = read_rows(options.known) if options.known is not None else []
    for audit in compare_searches(loaded, texts, options, KS, known):
        row = audit()
        rows.append({**row, "dtype": loaded.model.dtype, **collect_provenance()})
        append_rows(options.out, rows[-1:])
        print(json.dumps(row), flush=True)
    print(summary_line(rows))


if __name__ == "__main__":
    main()

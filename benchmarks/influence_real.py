"""Compare the search of the measure ``proposed`` with full greedy search on a real model.

``python benchmarks/influence_real.py MODEL TEXT... --targets 20`` prints one line per search and the total: the share
of the divergence that each search recovers at k spans, in strict mode, relative to greedy search over all spans.
"""

import argparse
import time
from collections.abc import Iterator

import numpy as np
import torch

import lengthwise as lw
from lengthwise.core.randomness import random_stream
from lengthwise.evaluation.language_model import NextTokenModel, tokenize_documents
from lengthwise.influence.hidden_context import TargetWindow, WindowEvaluator
from lengthwise.influence.measures import GreedySelection, InfluenceMeasure, KLDivergence, ProposedGreedy, SubsetScorer
from lengthwise.influence.targets import TargetToken, sample_targets
from lengthwise.influence.units import split_into_units
from lengthwise.tasks.text.documents import read_documents

# Number of random targets for each searched target, which is drawn in proportion to its divergence.
NUM_CANDIDATES = 10


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


def run_search(measure: InfluenceMeasure, scorer: SubsetScorer, ks: tuple[int, ...]) -> tuple[np.ndarray, float]:
    """Return the divergences at each k and the processor seconds of the search."""
    start = time.process_time()
    indices = measure.select_tokens(scorer, ks[-1], random_stream(0, "search")).indices
    seconds = time.process_time() - start
    return scorer.scores(np.stack([scorer.visibility_mask(indices[:k]) for k in ks])), seconds


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
    options = parser.parse_args()
    loaded, ks = lw.load_language_model(options.model), (1, 2, 4, 8, 16)
    model, codec = loaded.model, loaded.codec
    texts = list(tokenize_documents(codec, read_documents(options.texts, max_documents=None), model.vocabulary_size))
    number, context = NUM_CANDIDATES * options.targets, options.near + options.far
    targets = sample_targets(texts, context=context, num_targets=number, seed=options.seed)
    # Sampled targets are in text order; each draw is among targets of all texts.
    targets = [targets[index] for index in random_stream(options.seed, "order").permutation(len(targets))]
    measures = {"greedy": GreedySelection(), "proposed": ProposedGreedy()}
    gains, seconds = {name: np.zeros(len(ks)) for name in measures}, dict.fromkeys(measures, 0.0)
    for scorer in draw_scorers(model, targets, options, codec.start):
        short = scorer.scores(scorer.visibility_mask([])[None])[0]
        for name, measure in measures.items():
            divergences, search_seconds = run_search(measure, scorer, ks)
            gains[name], seconds[name] = gains[name] + short - divergences, seconds[name] + search_seconds
            print(f"{name}: {short:.3f} -> {divergences.round(3).tolist()}, {search_seconds:.0f} s", flush=True)
    print(f"proposed / greedy at k {ks}: {(gains['proposed'] / gains['greedy']).round(3).tolist()}, seconds {seconds}")


if __name__ == "__main__":
    main()

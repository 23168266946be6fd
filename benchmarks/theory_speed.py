"""Measure the cost of exact sums over sets of tokens (window, chain, product), forward and backward, on one thread.

Each time is the smallest of several CPU times, which depend less on other processes than wall times. ``sets`` is the
number of sets of k tokens in a sequence, and ``summed`` is the number of sets in the sum. The limit applies to the
forward pass at the longest length. Additional rows contain the CPU time of an exact risk by the Laplace transfer
operator, and the wall time of ``lengthwise certify`` for every built-in task.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import comb
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from lengthwise.core.provenance import collect_provenance
from lengthwise.experiments.run_folder import append_rows
from lengthwise.tasks import TASKS
from lengthwise.theory.attention.sparse_attention import (
    INIT_STD,
    LOG_ZERO,
    ProductScores,
    SparseFunctionalAttention,
    log_matmul,
)
from lengthwise.theory.risk.exact_risk import TotalVariationLoss
from lengthwise.theory.risk.laplace_transform import laplace_risk
from support.random_instances import Sizes, random_instance

BATCH, TOKENS, OUTPUTS = 8, 8, 2
LENGTHS = (256, 1024, 4096)
MAX_FORWARD_SECONDS = 0.15
# Sizes of a random law.
RISK_SIZES, MAX_RISK_SECONDS = Sizes(num_tokens=3, k=3, span=3, train_length=16, test_length=4096), 60.0
MAX_CERTIFY_SECONDS = 120.0
RESULTS = Path(__file__).parent / "results" / "theory_speed.jsonl"


class AutomatonValues(nn.Module):
    """Stochastic automaton with ``num_states`` that reads the k tokens in order; the last step leads to the outputs."""

    def __init__(self, num_tokens: int, k: int, num_outputs: int, num_states: int = 2) -> None:
        super().__init__()
        state_counts = (1, *(num_states,) * (k - 1), num_outputs)
        self.steps = nn.ParameterList([torch.randn(num_tokens, *counts) for counts in pairwise(state_counts)])

    def extend_log_sums(
        self, tuple_index: int, sums: Float[Tensor, "batch seq offsets states"], tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq offsets next_states"]:
        """Extend log sums over tuples by one transition of the automaton."""
        return log_matmul(sums, functional.embedding(tokens, self.steps[tuple_index].log_softmax(-1).flatten(1)))


class ChainScores(nn.Module):
    """Chain scores ``g = prod_j u_j(x_(i_j)) prod_j t_j(gap_j, x_(i_(j-1)), x_(i_j))`` with gaps up to ``max_gap``.

    The time is ``O(seq k max_gap states)``. Reconstructed from Golowich et al. 2025 (arXiv 2502.16792), section 3.
    """

    def __init__(self, num_tokens: int, k: int, max_gap: int) -> None:
        super().__init__()
        self.max_gap = max_gap
        self.tokens = nn.Parameter(INIT_STD * torch.randn(k, num_tokens))
        self.links = nn.Parameter(INIT_STD * torch.randn(k - 1, max_gap, num_tokens, num_tokens))

    def sum_sets_by_last_token(
        self, values: AutomatonValues, tokens: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq outputs"]:
        """Return ``log sum g(S, x_S) h(x_S)`` over sets that end at each token; ``LOG_ZERO`` if no set ends there."""
        log_sums = self.tokens.new_zeros(*tokens.shape, 1, 1)
        token_scores = functional.embedding(tokens, self.tokens.T)  # batch seq k
        link_scores = self._link_scores(tokens)
        for index in range(len(self.tokens)):
            if index > 0:
                padded = functional.pad(log_sums, (0, 0, 0, 0, self.max_gap, 0), value=LOG_ZERO)
                ending = torch.stack([padded[:, self.max_gap - gap :][:, : tokens.shape[1]] for gap in self._gaps])
                log_sums = (ending + link_scores[..., index - 1, None, None]).logsumexp(dim=0)
            log_sums = values.extend_log_sums(index, log_sums + token_scores[:, :, None, index, None], tokens)
        return log_sums[:, :, 0]

    @property
    def _gaps(self) -> range:
        return range(1, self.max_gap + 1)

    def _link_scores(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "gaps batch seq links"]:
        """Return link scores by gap; the scores of links that would start before the first token are arbitrary."""
        padded = functional.pad(tokens, (self.max_gap, 0))
        previous = torch.stack([padded[:, self.max_gap - gap :][:, : tokens.shape[1]] for gap in self._gaps])
        gap_indexes, num_tokens = torch.arange(self.max_gap)[:, None, None], self.tokens.shape[1]
        # One look-up for all links, because the backward pass of each look-up is expensive.
        codes = (gap_indexes * num_tokens + previous) * num_tokens + tokens
        return functional.embedding(codes, self.links.flatten(1).T)


class AutomatonAttention(SparseFunctionalAttention):
    """Attention with values from an automaton, over the sets of a chain or, without ``max_gap``, over all sets."""

    def __init__(self, num_tokens: int, k: int, num_outputs: int, max_gap: int | None = None) -> None:
        nn.Module.__init__(self)
        self.num_tokens, self.k, self.num_outputs, self.max_gap = num_tokens, k, num_outputs, max_gap
        self.sets = ProductScores(num_tokens, k) if max_gap is None else ChainScores(num_tokens, k, max_gap)
        self.values = AutomatonValues(num_tokens, k, num_outputs)
        self.register_buffer("default", torch.zeros(num_outputs))


STRUCTURES: dict[str, Callable[[], SparseFunctionalAttention]] = {
    "window": lambda: SparseFunctionalAttention(num_tokens=TOKENS, num_outputs=OUTPUTS, k=3, span=9),
    "chain": lambda: AutomatonAttention(TOKENS, 8, OUTPUTS, max_gap=16),
    "product": lambda: AutomatonAttention(TOKENS, 8, OUTPUTS),
}


def count_summed_sets(module: SparseFunctionalAttention, length: int) -> int:
    """Return the number of sets within the span or the largest gap."""
    if not isinstance(module, AutomatonAttention):
        return sum(comb(min(last, module.span - 1), module.k - 1) for last in range(length))
    if module.max_gap is None:
        return comb(length, module.k)
    ending = [1] * length
    for _ in range(module.k - 1):
        ending = [sum(ending[max(0, last - module.max_gap) : last]) for last in range(length)]
    return sum(ending)


def measure_dependencies(name: str, length: int, repeats: int) -> dict[str, Any]:
    """Return the row of one structure and length."""
    torch.manual_seed(0)
    module = STRUCTURES[name]()
    tokens = torch.randint(0, TOKENS, (BATCH, length))
    forward, backward = [], []
    for _ in range(repeats):
        started = time.process_time()
        loss = -module(tokens)[:, 0].mean()
        forward_end = time.process_time()
        loss.backward()
        forward.append(forward_end - started)
        backward.append(time.process_time() - forward_end)
    return {
        "structure": name,
        "length": length,
        "batch": BATCH,
        "forward_cpu_s": round(min(forward), 4),
        "backward_cpu_s": round(min(backward), 4),
        "sets": float(comb(length, module.k)),
        "summed": float(count_summed_sets(module, length)),
        "within_bar": min(forward) <= MAX_FORWARD_SECONDS if length == LENGTHS[-1] else None,
    }


def measure_risk(length: int, repeats: int) -> dict[str, Any]:
    """Return the row of the exact risk of one head on one law."""
    instance = random_instance("mixed", RISK_SIZES, seed=0)
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        risk = laplace_risk(instance.law, instance.heads[0], length, TotalVariationLoss())
        seconds.append(time.process_time() - started)
    return {
        "structure": "exact risk",
        "length": length,
        "risk": risk,
        "cpu_s": round(min(seconds), 4),
        "within_bar": min(seconds) <= MAX_RISK_SECONDS if length == LENGTHS[-1] else None,
    }


def measure_certificate(task: str) -> dict[str, Any]:
    """Return the row of one call of ``lengthwise certify``; ``refused`` contains its error message, or None."""
    started = time.perf_counter()
    process = subprocess.run(
        [sys.executable, "-m", "lengthwise", "certify", task, "--json"], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - started
    return {
        "structure": "certify",
        "task": task,
        "refused": None if process.returncode == 0 else process.stderr.strip(),
        "wall_s": round(seconds, 1),
        "within_bar": seconds <= MAX_CERTIFY_SECONDS,
    }


def iter_rows(repeats: int, tasks: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of all measurements."""
    for name in STRUCTURES:
        yield from (measure_dependencies(name, length, repeats) for length in LENGTHS)
    yield from (measure_risk(length, repeats) for length in LENGTHS)
    yield from map(measure_certificate, tasks)


def main() -> None:
    """Print and store one row per structure and length, and one row per task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="Run each part once without storing rows.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    repeats = 1 if arguments.quick else arguments.repeats
    for row in iter_rows(repeats, list(TASKS)[:1] if arguments.quick else list(TASKS)):
        print(json.dumps(row), flush=True)
        if not arguments.quick:
            append_rows(arguments.out, [{**row, "provenance": collect_provenance()}])


if __name__ == "__main__":
    main()

"""Certificate of a counterexample: training cannot distinguish two heads whose risks differ at longer lengths."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lengthwise.theory.counterexamples.counterexample import Counterexample, LengthRisks

# Training objectives that differ by at most this value are equal; smaller differences are rounding errors.
TIE_TOLERANCE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterexampleCertificate:
    """Exact risks of the two heads of a counterexample, sorted by length, and their training objectives.

    An objective is the mean risk over ``train_lengths``: equation (3) of Golowich et al. 2025 (arXiv 2502.16792).
    ``minimizer`` is "learned", "witness" or, for equal objectives, "both".
    """

    counterexample: str
    assumption: str
    loss: str
    train_lengths: tuple[int, ...]
    risks: tuple[LengthRisks, ...]
    learned_objective: float
    witness_objective: float
    minimizer: str
    verdict: str


def certify_counterexample(example: Counterexample, lengths: Sequence[int] | None = None) -> CounterexampleCertificate:
    """Compute the exact risks of both heads at the training lengths and at ``lengths``, by default the test lengths.

    Raises ``SettingError`` for a length that has no sequences, or too many to enumerate.
    """
    test_lengths = example.test_lengths if lengths is None else lengths
    risks = tuple(example.run((*example.train_lengths, *test_lengths)))
    training = [each for each in risks if each.in_training]
    learned, witness = (float(np.mean([getattr(each, head) for each in training])) for head in ("learned", "witness"))
    minimizer = "both" if abs(learned - witness) <= TIE_TOLERANCE else "learned" if learned < witness else "witness"
    return CounterexampleCertificate(
        counterexample=example.name,
        assumption=example.assumption,
        loss=example.loss.name,
        train_lengths=example.train_lengths,
        risks=risks,
        learned_objective=learned,
        witness_objective=witness,
        minimizer=minimizer,
        verdict=_verdict(risks, learned, witness, minimizer),
    )


def _verdict(risks: Sequence[LengthRisks], learned: float, witness: float, minimizer: str) -> str:
    comparisons = {
        "both": f"Both heads minimize the training objective ({learned:.2g}).",
        "learned": f"The learned head minimizes the training objective ({learned:.2g}; witness {witness:.2g}).",
        "witness": f"The training objective of the learned head is {learned:.2g}; the witness has {witness:.2g}.",
    }
    worst = max(risks, key=lambda each: each.learned)
    return (
        f"{comparisons[minimizer]} At length {worst.length} the risk of the learned head is {worst.learned:.3g}, and "
        f"that of the witness is {worst.witness:.2g}."
    )

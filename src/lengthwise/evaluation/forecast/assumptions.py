"""The assumptions of the theory, measured on a trained decoder at its longest trained length.

Sparsity and locality are those of the task, which states the tokens that its answers depend on. Hiding tokens from the
decoder finds fewer where a token already holds the one before it, or where the same is there twice.
"""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float

from lengthwise.core.errors import LengthwiseError
from lengthwise.evaluation.forecast.probed_model import Fidelity, Subject
from lengthwise.evaluation.forecast.probes import MOST, Needs
from lengthwise.evaluation.forecast.sparse_queries import Questions
from lengthwise.theory.law_certificate import Assumption
from lengthwise.theory.task_certificate import structure

# The share of answers from which on a length counts as reached.
REACHED = 0.9
# The allowed difference between the accuracy at the longest trained length and that on a half or a quarter of its
# tokens. Above it, pieces of a sequence do not predict what the decoder does with the whole.
TOLERANCE = 0.1
# Total variation up to which two laws count as one.
DRIFT = 0.1


def fits_training(subject: Subject, fidelity: Fidelity) -> Assumption:
    """Return whether the run is right at its longest trained length, in exact match where that is known."""
    found = f"{fidelity.whole:.3f} of the answer tokens at length {subject.longest}, the end token aside"
    if subject.fitted is not None:
        found = f"exact match {subject.fitted:.3f}; {found}"
    return Assumption(
        name="fits the trained lengths",
        holds=min(fidelity.whole, 1.0 if subject.fitted is None else subject.fitted) >= REACHED,
        found=found,
        counterexample="C6",
    )


def measured_assumptions(
    subject: Subject,
    home: Questions,
    needs: Needs,
    fidelity: Fidelity,
    farthest: int,
) -> Iterator[Assumption]:
    """Yield the assumptions in the order in which the theory needs them, each with its measurement."""
    k = structure(subject.task, subject.longest, subject.seed).k
    shown = f"more than {MOST}" if needs.k is None else str(needs.k)
    yield Assumption(
        name="sparsity",
        holds=needs.k is not None and k <= MOST,
        found=f"an answer depends on up to {k} tokens, the one before it included (by the task); this run needs "
        f"{shown} more beside separators",
        counterexample="C1",
    )
    reach, id_reach, width = _reaches(subject, home)
    yield Assumption(
        name="locality in IDs",
        holds=4 * id_reach <= width,
        found=f"these reach over {id_reach:g} of {width:g} IDs, {reach} tokens (by the task)",
        counterexample="C2a",
    )
    yield Assumption(
        name="deletion",
        holds=fidelity.difference <= TOLERANCE,
        found=f"of {fidelity.whole:.3f}, half of the tokens leave {fidelity.half:.3f} right, a quarter "
        f"{fidelity.quarter:.3f}",
        counterexample="C2b",
    )
    yield _met(subject, farthest)
    yield _relativity(subject, home)
    yield _background(subject, home, farthest)


def _reaches(subject: Subject, questions: Questions) -> tuple[int, float, float]:
    """The most tokens and IDs that an answer's needs reach over, with the token before it, and all IDs of an example.

    IDs are those on the level where that is least, both ends counted.
    """
    separators = [subject.task.vocabulary.index(symbol) for symbol in subject.task.separators]
    tokens, ids = questions.batch.tokens.numpy(), questions.batch.position_ids.numpy()
    reach, id_reach = 0, 0.0
    for row, (needed, last) in enumerate(zip(questions.needed, (questions.answer - 1).tolist(), strict=True)):
        # Separators are kept for the decoder's segments; the answer does not depend on them.
        stated = np.append(needed[~np.isin(tokens[row, needed], separators)], last)
        reach = max(reach, int(np.ptp(stated)) + 1)
        id_reach = max(id_reach, min(float(np.ptp(level[row, stated])) for level in ids) + 1)
    return reach, id_reach, float(np.ptp(ids, axis=-1).max()) + 1


def _met(subject: Subject, farthest: int) -> Assumption:
    """IDs, and distances between IDs, as evaluation compares them with training."""
    name, decoder = "IDs and distances met in training", subject.decoder
    if not decoder.reads_ids:
        found = f"the encoding {subject.encoding.name} reads no IDs"
        return Assumption(name=name, holds=True, found=found, counterexample="C4")
    ids = subject.questions(farthest, 1).batch.position_ids
    low, high, distance = float(ids.min()), float(ids.max()), float((ids.amax(-1) - ids.amin(-1)).max())
    first, last = subject.id_range
    found = f"{low:g} to {high:g} at {farthest}, {first:g} to {last:g} in training"
    within = first <= low and high <= last
    trained = subject.trained_distance
    if trained is not None:
        found += f"; distances up to {distance:g}, {trained:g} in training"
        within = within and (distance <= trained or subject.scheme.random_at_evaluation)
    return Assumption(name=name, holds=within, found=found, counterexample="C4")


@torch.no_grad()
def _relativity(subject: Subject, home: Questions) -> Assumption:
    """The total variation between what follows with all IDs moved and with them as they are, the mean over answers."""
    batch, every = home.batch, torch.arange(len(home.answer))
    asking = torch.from_numpy(home.answer - 1)
    width = int(batch.position_ids.max() - batch.position_ids.min()) + 1
    found = []
    for moved in (0, width):
        try:
            hidden, _ = subject.decoder(batch.tokens, batch.position_ids + moved)
        except LengthwiseError as error:
            return Assumption(name="relativity", holds=False, found=str(error), counterexample="C4")
        found.append(subject.decoder.token_logits(hidden[every, asking][:, None])[:, 0].softmax(dim=-1))
    drift = float((found[0] - found[1]).abs().sum(dim=-1).mean() / 2)
    return Assumption(
        name="relativity",
        holds=drift <= DRIFT,
        found=f"answers move by {drift:.3f} (total variation) with all IDs {width} higher",
        counterexample="C4",
    )


def _background(subject: Subject, home: Questions, farthest: int) -> Assumption:
    """The total variation between the token frequencies of the tokens before answers.

    A rare token that only long sequences have does not show in it.
    """
    size = len(subject.task.vocabulary)

    def frequencies(questions: Questions) -> Float[np.ndarray, " vocab"]:
        tokens = questions.batch.tokens.numpy()
        before = np.arange(tokens.shape[1]) < questions.answer[:, None]
        counts = np.bincount(tokens[before], minlength=size)
        return np.asarray(counts / counts.sum())

    drift = float(np.abs(frequencies(home) - frequencies(subject.questions(farthest))).sum() / 2)
    return Assumption(
        name="one background",
        holds=drift <= DRIFT,
        found=f"token frequencies at {farthest} differ by {drift:.3f} (total variation, up to {DRIFT} allowed)",
        counterexample="C5",
    )

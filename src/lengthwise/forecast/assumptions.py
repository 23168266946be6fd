"""The assumptions of the theory, measured on a trained decoder at its longest trained length."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float

from lengthwise.errors import LengthwiseError
from lengthwise.forecast.asking import Questions
from lengthwise.forecast.probes import Needs
from lengthwise.forecast.subject import Fidelity, Subject
from lengthwise.theory.certificate import Assumption

# The share of answers from which on a length counts as reached.
REACHED = 0.9
# How far apart the accuracy at the longest trained length and what half or a quarter of its tokens make of it may be:
# beyond, thinning does not tell what this decoder does.
TOLERANCE = 0.1
# Total variation up to which two laws count as one.
DRIFT = 0.1


def measured_assumptions(
    subject: Subject,
    home: Questions,
    needs: Needs,
    fidelity: Fidelity,
    farthest: int,
) -> Iterator[Assumption]:
    """In the order in which the theory needs them, each by what was measured."""
    yield Assumption(
        name="fits the trained lengths",
        holds=fidelity.whole >= REACHED,
        found=f"{fidelity.whole:.3f} of the answers at {subject.longest}",
        counterexample="C6",
    )
    yield Assumption(
        name="sparsity",
        holds=needs.k is not None,
        found="more tokens than are tried" if needs.k is None else f"k = {needs.k} for nine answers of ten",
        counterexample="C1",
    )
    ids = home.batch.position_ids
    width = float((ids.amax(-1) - ids.amin(-1)).max()) + 1
    yield Assumption(
        name="locality in IDs",
        holds=needs.id_reach is not None and 4 * needs.id_reach <= width,
        found="-" if needs.id_reach is None else f"w = {needs.id_reach:g} of {width:g} IDs ({needs.reach} tokens)",
        counterexample="C2a",
    )
    yield Assumption(
        name="deletion",
        holds=fidelity.difference <= TOLERANCE,
        found=f"{fidelity.half:.3f} of half of the tokens, {fidelity.quarter:.3f} of a quarter",
        counterexample="C2b",
    )
    yield _met(subject, farthest)
    yield _relativity(subject, home)
    yield _background(subject, home, farthest)


def _met(subject: Subject, farthest: int) -> Assumption:
    ids = subject.questions(farthest, 1).batch.position_ids
    low, high = float(ids.min()), float(ids.max())
    first, last = subject.id_range
    return Assumption(
        name="IDs met in training",
        holds=first <= low and high <= last,
        found=f"{low:g} to {high:g} at {farthest}, {first:g} to {last:g} in training",
        counterexample="C4",
    )


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
    """The total variation between the token frequencies of what is read before answers."""
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
        found=f"token frequencies at {farthest} differ by {drift:.3f} (total variation)",
        counterexample="C5",
    )

"""Random planted laws and attentions that are small enough to enumerate, and a placement with nonuniform starts."""

from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import numpy as np

from lengthwise.tasks.planted.placement import OffsetDistribution, Placement, UniformShapePlacement
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.theory.attention.tabular import TabularAttention


def random_law(
    rng: np.random.Generator, num_tokens: int, k: int, span: int, placement: Placement | None = None
) -> PlantedCorrelations:
    """Sample a law with one to three tuples; in half of the laws, one token never occurs in the background."""
    background = rng.dirichlet(np.ones(num_tokens))
    if rng.random() < 0.5:
        background[-1] = 0
    codes = rng.choice(num_tokens**k, size=min(int(rng.integers(1, 4)), num_tokens**k), replace=False)
    tuples = [[int(code) // num_tokens**place % num_tokens for place in range(k)] for code in codes]
    labels = rng.dirichlet(np.ones(2), size=len(tuples))
    labels = labels.round() if rng.random() < 0.5 else labels
    return PlantedCorrelations(
        background=tuple((background / background.sum()).tolist()),
        tuples=tuple(map(tuple, tuples)),
        probabilities=tuple(rng.dirichlet(np.ones(len(tuples))).tolist()),
        labels=tuple(map(tuple, labels.tolist())),
        placement=UniformShapePlacement(num_planted=k, widest=max(span, k)) if placement is None else placement,
    )


def random_attention(
    rng: np.random.Generator, num_tokens: int, k: int, span: int, *, spread: float = 2.0, zeros: float = 0.0
) -> TabularAttention:
    """Sample an attention with all shapes within the span; a fraction ``zeros`` of its scores is 0."""
    shapes = np.array([(0, *rest) for rest in combinations(range(1, span), k - 1)])
    log_scores = spread * rng.normal(size=(len(shapes), num_tokens**k))
    log_scores[rng.random(log_scores.shape) < zeros] = -np.inf
    values = rng.dirichlet(np.ones(2), size=log_scores.shape)
    return TabularAttention(
        num_tokens=num_tokens, shapes=shapes, log_scores=log_scores, values=values, default=np.array([0.3, 0.7])
    )


def single_tokens(score: float) -> tuple[PlantedCorrelations, TabularAttention]:
    """Return a law that plants token 1 in a background of 0, and an attention with score 1 and ``score`` for them.

    Token 0 has the wrong value, so total variation and leakage are ``score (l - 1) / (1 + score (l - 1))``.
    """
    law = PlantedCorrelations(
        background=(1.0, 0.0),
        tuples=((1,),),
        probabilities=(1.0,),
        labels=((0.0, 1.0),),
        placement=UniformShapePlacement(num_planted=1, widest=1),
    )
    return law, TabularAttention(
        num_tokens=2,
        shapes=np.array([[0]]),
        log_scores=np.log([[score, 1.0]]),
        values=np.array([[[1.0, 0.0], [0.0, 1.0]]]),
        default=np.array([0.5, 0.5]),
    )


@dataclass(frozen=True, kw_only=True)
class NonuniformStarts:
    """Placement of pairs at distance 1 or 2; the probability of start c is proportional to c + 1."""

    name: ClassVar[str] = "tilted"
    summary: ClassVar[str] = "later starts are more likely"
    k: ClassVar[int] = 2
    max_span: ClassVar[int] = 3
    min_length: ClassVar[int] = 3

    def offset_distribution(self, length: int) -> OffsetDistribution:
        """Return the joint distribution of shape and start."""
        weight = np.array([[(c + 1.0) * (c + gap < length) for c in range(length)] for gap in (1, 2)])
        return OffsetDistribution(shapes=np.array([[0, 1], [0, 2]]), probability=weight / weight.sum())

    def sample(self, length: int, size: int, rng: np.random.Generator) -> np.ndarray:
        """Sample planted sets of shape (size, k) from the distribution."""
        sets, probability = self.offset_distribution(length).sets()
        return sets[rng.choice(len(sets), size=size, p=probability)]

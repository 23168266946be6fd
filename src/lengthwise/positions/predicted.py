"""Predictive position coupling (PPC, Golowich et al. 2025): the decoder predicts the IDs of the response."""

from dataclasses import dataclass
from typing import ClassVar

from lengthwise.positions.scheme import RandomGapScheme


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted(RandomGapScheme):
    """Position coupling as in ``multilevel``, for a decoder that learns to predict the response IDs.

    At evaluation, the decoder receives only the prompt IDs; grading also checks the predicted response IDs.
    """

    name: ClassVar[str] = "predicted"
    summary: ClassVar[str] = "the task's coupling; the decoder predicts the response IDs (PPC)"
    paper: ClassVar[str] = "Golowich et al. 2025 (arXiv 2502.16792), section 5.2"
    needs: ClassVar[str | None] = "coupling"
    predicts_ids: ClassVar[bool] = True

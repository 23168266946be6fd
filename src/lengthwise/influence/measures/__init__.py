"""Measures of the influence of far tokens, and a table that maps names to measures."""

from lengthwise.influence.measures.add_one_in import AddOneIn
from lengthwise.influence.measures.attention_weight import AttentionWeight
from lengthwise.influence.measures.gradient import Gradient
from lengthwise.influence.measures.greedy import Greedy
from lengthwise.influence.measures.leave_one_out import LeaveOneOut
from lengthwise.influence.measures.measure import InfluenceMeasure
from lengthwise.influence.measures.random_choice import RandomChoice
from lengthwise.influence.measures.screened import Screened

MEASURES: dict[str, type[InfluenceMeasure]] = {
    entry.name: entry for entry in (AddOneIn, LeaveOneOut, Greedy, Screened, Gradient, AttentionWeight, RandomChoice)
}

__all__ = [
    "MEASURES",
    "AddOneIn",
    "AttentionWeight",
    "Gradient",
    "Greedy",
    "InfluenceMeasure",
    "LeaveOneOut",
    "RandomChoice",
    "Screened",
]

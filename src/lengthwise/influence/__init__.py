"""Influence: how many far tokens a prediction needs, on any causal model and any text."""

from lengthwise.influence.add_one_in import AddOneIn
from lengthwise.influence.attention_weight import AttentionWeight
from lengthwise.influence.gradient import Gradient
from lengthwise.influence.greedy import Greedy
from lengthwise.influence.leave_one_out import LeaveOneOut
from lengthwise.influence.measure import InfluenceMeasure
from lengthwise.influence.random_choice import RandomChoice
from lengthwise.influence.screened import Screened

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

"""Table of all claims: those on tasks with answers, and those on language models, which use influence."""

from lengthwise.experiments.reproductions import CLAIMS as TASK_CLAIMS
from lengthwise.experiments.reproductions import Claim
from lengthwise.influence.extrapolation.claim import SPARSITY_IN_TEXT

CLAIMS: dict[str, Claim] = {**TASK_CLAIMS, SPARSITY_IN_TEXT.name: SPARSITY_IN_TEXT}

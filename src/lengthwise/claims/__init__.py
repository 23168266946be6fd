"""The paper's experiments, and what goes on from them: one table of claims."""

from lengthwise.claims.arithmetic import ARITHMETIC
from lengthwise.claims.claim import SIZES, Claim
from lengthwise.claims.diagnosis import DIAGNOSIS
from lengthwise.claims.ppc import PPC
from lengthwise.claims.recall import RECALL
from lengthwise.claims.reproduction import Reproduction, reproduce
from lengthwise.claims.scale import SCALE
from lengthwise.claims.scratchpads import PARITY, VARIABLE_ASSIGNMENT
from lengthwise.claims.sparse_parity import SPARSE_PARITY

ALL = (SPARSE_PARITY, PARITY, VARIABLE_ASSIGNMENT, ARITHMETIC, RECALL, SCALE, PPC, DIAGNOSIS)
CLAIMS: dict[str, Claim] = {claim.name: claim for claim in ALL}

__all__ = ["CLAIMS", "SIZES", "Claim", "Reproduction", "reproduce"]

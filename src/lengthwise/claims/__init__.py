"""The paper's experiments, and what goes on from them: one table of claims."""

from lengthwise.claims.claim import SIZES, Claim
from lengthwise.claims.reproduction import Reproduction, reproduce
from lengthwise.claims.scratchpads import PARITY, VARIABLE_ASSIGNMENT
from lengthwise.claims.sparse_parity import SPARSE_PARITY

CLAIMS: dict[str, Claim] = {claim.name: claim for claim in (SPARSE_PARITY, PARITY, VARIABLE_ASSIGNMENT)}

__all__ = ["CLAIMS", "SIZES", "Claim", "Reproduction", "reproduce"]

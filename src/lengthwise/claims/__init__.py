"""The paper's experiments, and what goes on from them: one table of claims."""

from lengthwise.claims.claim import SIZES, Claim
from lengthwise.claims.reproduction import Reproduction, reproduce
from lengthwise.claims.scratchpads import PARITY, VARIABLE_ASSIGNMENT

CLAIMS: dict[str, Claim] = {claim.name: claim for claim in (PARITY, VARIABLE_ASSIGNMENT)}

__all__ = ["CLAIMS", "SIZES", "Claim", "Reproduction", "reproduce"]

"""Claims of the paper and extensions of them, each with the experiments that reproduce it."""

from lengthwise.experiments.reproductions.arithmetic import ARITHMETIC
from lengthwise.experiments.reproductions.arithmetic_traces import ARITHMETIC_TRACES
from lengthwise.experiments.reproductions.background import BACKGROUND
from lengthwise.experiments.reproductions.dape_and_weave import DAPE_AND_WEAVE
from lengthwise.experiments.reproductions.diagnosis import DIAGNOSIS
from lengthwise.experiments.reproductions.encoding_comparisons import ADDITION, PARITY, VARIABLE_ASSIGNMENT
from lengthwise.experiments.reproductions.minimax import MINIMAX
from lengthwise.experiments.reproductions.ppc import PPC
from lengthwise.experiments.reproductions.recall import RECALL
from lengthwise.experiments.reproductions.recall_attention import RECALL_ATTENTION
from lengthwise.experiments.reproductions.reproduction import SIZES, Claim, Reproduction, reproduce
from lengthwise.experiments.reproductions.rivals import RIVALS_CLAIM
from lengthwise.experiments.reproductions.scale import SCALE
from lengthwise.experiments.reproductions.sparse_parity import SPARSE_PARITY
from lengthwise.experiments.reproductions.training_length import TRAINING_LENGTH

ALL = (
    SPARSE_PARITY,
    PARITY,
    VARIABLE_ASSIGNMENT,
    ADDITION,
    ARITHMETIC,
    ARITHMETIC_TRACES,
    RECALL,
    RECALL_ATTENTION,
    DAPE_AND_WEAVE,
    BACKGROUND,
    RIVALS_CLAIM,
    SCALE,
    TRAINING_LENGTH,
    MINIMAX,
    PPC,
    DIAGNOSIS,
)
CLAIMS: dict[str, Claim] = {claim.name: claim for claim in ALL}

__all__ = ["CLAIMS", "SIZES", "Claim", "Reproduction", "reproduce"]

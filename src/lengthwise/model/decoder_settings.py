"""Size and options of a decoder."""

from dataclasses import dataclass

from lengthwise.core.errors import SettingError, unknown_name
from lengthwise.core.type_checks import check_types
from lengthwise.model.attention_weights import WEIGHTS, weighing
from lengthwise.model.position_heads import POSITION_HEADS

# More take minutes to build, and years to train.
MOST_LAYERS = 1000
LENGTH_SCALINGS = ("none", "log", "learned")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSettings:
    """Size and options of a decoder.

    Three options read the token index or the tokens themselves, never the IDs, and are open to every scheme:
    ``length_scaling`` multiplies the scores by a function of the number n of visible keys, ``previous_token_mix`` adds
    a learned share of the token before to each embedding, ``segments`` adds one vector per separator seen so far.
    ``length_scaling``: ``"log"`` is ``log(n + 1)`` (scalable softmax: Nakanishi 2025, arXiv 2501.19399), ``"learned"``
    is ``offset + log(n + 1)^power`` with both learned per head (after adaptive-scalable entmax: Vasylenko et al. 2025,
    arXiv 2506.16640), ``"none"`` leaves the scores alone.
    ``weights``: ``"softmax"``; ``"entmax"`` with ``entmax_alpha``, for which most keys get exactly 0; ``"top_k"``, a
    softmax over the ``top_k`` largest scores; ``"count"``, sigmoids that do not sum to one, so that a head counts
    (arXiv 2409.04431). ``dilution``: up to this share of attention is spread evenly over all visible keys in training.
    """

    num_layers: int = 1
    d_model: int = 64
    num_heads: int = 2
    mlp_factor: int = 4
    temperature: float = 3.0
    length_scaling: str = "log"
    weights: str = "softmax"
    entmax_alpha: float = 1.5
    top_k: int = 8
    dilution: float = 0.0
    previous_token_mix: bool = False
    segments: bool = True
    tied_output: bool = False
    head: str = "pointer"

    def __post_init__(self) -> None:
        check_types(self)
        for setting in ("num_layers", "d_model", "num_heads", "mlp_factor", "top_k"):
            if getattr(self, setting) < 1:
                raise SettingError(f"{setting} {getattr(self, setting)} builds no decoder; use at least 1")
        if self.num_layers > MOST_LAYERS:
            raise SettingError(f"num_layers {self.num_layers} takes too long to build; use at most {MOST_LAYERS}")
        if self.d_model % self.num_heads:
            raise SettingError(f"d_model {self.d_model} is no multiple of num_heads {self.num_heads}; change either")
        self._check_attention()
        for setting, known in (("head", POSITION_HEADS), ("length_scaling", LENGTH_SCALINGS), ("weights", WEIGHTS)):
            if getattr(self, setting) not in known:
                raise unknown_name(setting, getattr(self, setting), known)
        weighing(self.weights, k=self.top_k, alpha=self.entmax_alpha)

    def _check_attention(self) -> None:
        if self.temperature <= 0:
            raise SettingError(f"temperature {self.temperature} cannot scale scores; use a positive number")
        if not 0 <= self.dilution < 1:
            raise SettingError(f"dilution {self.dilution} leaves no attention; use a share from 0 to less than 1")
        if self.dilution and self.weights == "count":
            raise SettingError("weights 'count' are no shares that a dilution could take from; leave out either")
        if self.entmax_alpha <= 1:
            raise SettingError(f"entmax_alpha {self.entmax_alpha} is no number above 1; use 1.5, or weights='softmax'")

"""Settings for the size and options of a decoder."""

from dataclasses import dataclass

from lengthwise.core.errors import SettingError, unknown_name_error
from lengthwise.core.type_checks import check_at_least, check_types
from lengthwise.model.attention import WEIGHT_FUNCTIONS, make_weight_function
from lengthwise.model.position_heads import POSITION_HEADS

# Maximum number of layers, because more layers take minutes to build.
MAX_LAYERS = 1000
LENGTH_SCALINGS = ("none", "log", "learned")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSettings:
    """Size and options of a decoder; all fields have defaults.

    Three options depend only on tokens and token indexes, so they work with every scheme. ``length_scaling``
    multiplies the scores of a query with n visible keys by a factor. The factor is ``log(n + 1)`` for ``"log"``
    (scalable softmax: Nakanishi 2025, arXiv 2501.19399), ``offset + log(n + 1)^power`` with learned numbers per head
    for ``"learned"`` (after Vasylenko et al. 2025, arXiv 2506.16640), and 1 for ``"none"``. ``previous_token_mix`` adds
    a learned multiple of the previous token's embedding. ``segments`` adds a vector for the number of separators
    before the token.

    ``weights`` is the function from scores to attention weights. ``"entmax"`` (with ``entmax_alpha``; Peters et al.
    2019) sets most weights to 0, ``"top_k"`` (Gupta et al. 2021) is a softmax over the ``top_k`` largest scores, and
    ``"count"`` (Ramapuram et al. 2024) uses sigmoids that do not sum to 1, so a head can count. In training, a share of
    attention between 0 and ``dilution`` is spread evenly over all visible keys. ``head`` names the PPC position head.
    With several ID levels, each head reads all levels, or only one of them with ``level_per_head``.

    The blocks run ``loops`` times one after another with the same weights (Fan et al. 2024, arXiv 2409.15647). Each
    loop after the first receives the output of the loop before plus the embeddings. The paper chooses the number of
    loops by length; here it is the same for all lengths.

    ``temperature`` is the initial factor of the scores, which is learned.
    """

    num_layers: int = 1
    loops: int = 1
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
    level_per_head: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        check_at_least(self, 1, "num_layers", "loops", "d_model", "num_heads", "mlp_factor", "top_k")
        if self.num_layers > MAX_LAYERS:
            raise SettingError(f"num_layers {self.num_layers} takes too long to build; use at most {MAX_LAYERS}")
        if self.num_unrolled_blocks > MAX_LAYERS:
            raise SettingError(
                f"{self.loops} loops over {self.num_layers} blocks are more than {MAX_LAYERS} passes; use fewer loops"
            )
        if self.d_model % self.num_heads:
            raise SettingError(
                f"d_model {self.d_model} is not a multiple of num_heads {self.num_heads}; change one of them"
            )
        self._check_attention()
        choices = {"head": POSITION_HEADS, "length_scaling": LENGTH_SCALINGS, "weights": WEIGHT_FUNCTIONS}
        for setting, known_names in choices.items():
            if getattr(self, setting) not in known_names:
                raise unknown_name_error(setting, getattr(self, setting), known_names)
        make_weight_function(self.weights, k=self.top_k, alpha=self.entmax_alpha)

    @property
    def num_unrolled_blocks(self) -> int:
        """Number of passes through a block: each of the ``loops`` goes through all ``num_layers`` blocks."""
        return self.num_layers * self.loops

    def _check_attention(self) -> None:
        if self.temperature <= 0:
            raise SettingError(f"temperature {self.temperature} is not positive; use a number above 0")
        if not 0 <= self.dilution < 1:
            raise SettingError(f"dilution {self.dilution} is out of range; use 0 or more and less than 1")
        if self.dilution and self.weights == "count":
            raise SettingError("weights 'count' do not sum to 1, so dilution does not apply; use only one of the two")
        if self.entmax_alpha <= 1:
            raise SettingError(f"entmax_alpha {self.entmax_alpha} is not above 1; use 1.5, or weights='softmax'")

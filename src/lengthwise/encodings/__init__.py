"""Encodings add position IDs to the decoder. Each encoding has its own file; ``ENCODINGS`` lists all encodings."""

from lengthwise.encodings.alibi import ALiBi
from lengthwise.encodings.cope import CoPE
from lengthwise.encodings.dape import DAPE
from lengthwise.encodings.dape_v2 import DAPEv2
from lengthwise.encodings.dynamic_ntk import DynamicNTK
from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize
from lengthwise.encodings.fire import FIRE
from lengthwise.encodings.hard_alibi import HardALiBi
from lengthwise.encodings.kerple_log import KERPLELog
from lengthwise.encodings.kerple_power import KERPLEPower
from lengthwise.encodings.learned import Learned
from lengthwise.encodings.linear_interpolation import LinearInterpolation
from lengthwise.encodings.nape import NAPE
from lengthwise.encodings.nope import NoPE
from lengthwise.encodings.ntk import NTK
from lengthwise.encodings.partial_rotary import PartialRotary
from lengthwise.encodings.pope import PoPE
from lengthwise.encodings.repo import RePo
from lengthwise.encodings.rotary import Rotary
from lengthwise.encodings.selective_rotary import SelectiveRotary
from lengthwise.encodings.sinusoidal import Sinusoidal
from lengthwise.encodings.t5_bias import T5Bias
from lengthwise.encodings.weave import Weave
from lengthwise.encodings.yarn import YaRN

ENCODINGS: dict[str, type[EncodingSettings]] = {
    encoding.name: encoding
    for encoding in (
        NoPE,
        Learned,
        Sinusoidal,
        Rotary,
        PartialRotary,
        LinearInterpolation,
        NTK,
        DynamicNTK,
        YaRN,
        Weave,
        PoPE,
        RePo,
        SelectiveRotary,
        CoPE,
        ALiBi,
        HardALiBi,
        NAPE,
        KERPLELog,
        KERPLEPower,
        T5Bias,
        FIRE,
        DAPE,
        DAPEv2,
    )
}

__all__ = [
    "DAPE",
    "ENCODINGS",
    "FIRE",
    "NAPE",
    "NTK",
    "ALiBi",
    "CoPE",
    "DAPEv2",
    "DynamicNTK",
    "Encoding",
    "EncodingSettings",
    "EncodingSize",
    "HardALiBi",
    "KERPLELog",
    "KERPLEPower",
    "Learned",
    "LinearInterpolation",
    "NoPE",
    "PartialRotary",
    "PoPE",
    "RePo",
    "Rotary",
    "SelectiveRotary",
    "Sinusoidal",
    "T5Bias",
    "Weave",
    "YaRN",
]

"""How IDs enter the decoder: one file per encoding, one table of all."""

from lengthwise.encodings.alibi import ALiBi
from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize
from lengthwise.encodings.learned import Learned
from lengthwise.encodings.nope import NoPE
from lengthwise.encodings.rotary import Rotary

ENCODINGS: dict[str, type[EncodingSettings]] = {encoding.name: encoding for encoding in (NoPE, Learned, Rotary, ALiBi)}

__all__ = ["ENCODINGS", "ALiBi", "Encoding", "EncodingSettings", "EncodingSize", "Learned", "NoPE", "Rotary"]

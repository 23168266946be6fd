"""Custom schemes and encodings: a result that breaks the contract raises a one-line error before training."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.support.small_runs import equal_tensors, folder_contents, run_weights, small_experiment
from torch import Tensor

from lengthwise.core.errors import LengthwiseError, PositionIDError, PositionRangeError, SettingError
from lengthwise.encodings import ENCODINGS, Encoding, EncodingSettings, EncodingSize, NoPE
from lengthwise.encodings.encoding import FLAGS
from lengthwise.experiments.experiment import Experiment, build_decoder
from lengthwise.experiments.run import load_run, train
from lengthwise.experiments.setting_checks import check_encoding, check_scheme
from lengthwise.positions import SCHEMES, Assignment, Coupled, PositionScheme, Predicted, Sequential, make_assignment
from lengthwise.tasks import MultiAddition
from lengthwise.tasks.examples import Examples
from lengthwise.training.trainer import Trainer

IDs = Callable[[Examples, bool], Any]


def unchecked(**parts: Any) -> Assignment:
    """Return an assignment without type checks, as in a user's process."""
    assignment = object.__new__(Assignment)
    for name, part in parts.items():
        object.__setattr__(assignment, name, part)
    return assignment


@dataclass(frozen=True)
class CustomScheme(PositionScheme):
    """Custom scheme that returns the result of its class."""

    name = "custom"
    result: ClassVar[IDs]
    limit: ClassVar[int | None] = None

    @property
    def num_position_ids(self) -> int | None:
        """Return the limit of the class."""
        return self.limit

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Any:
        """Return the result of the class."""
        return self.result(examples, training)


def returning(result: IDs, **attributes: Any) -> CustomScheme:
    """Return a scheme with this ``assign`` and these class attributes."""
    return type("CustomScheme", (CustomScheme,), {"result": staticmethod(result), **attributes})()


def with_ids(ids: IDs, **attributes: Any) -> CustomScheme:
    """Return a scheme with these IDs that scores all answer tokens."""

    def result(examples: Examples, training: bool) -> Assignment:
        mask = examples.is_answer
        return unchecked(position_ids=ids(examples, training), token_scored=mask, id_scored=mask)

    return returning(result, **attributes)


def index(examples: Examples) -> np.ndarray:
    """Return token indices on one level."""
    size, seq = examples.tokens.shape
    return np.tile(np.arange(seq), (1, size, 1))


def with_part(name: str, value: Any) -> CustomScheme:
    """Return a scheme whose assignment has one part replaced."""

    def result(examples: Examples, training: bool) -> Assignment:
        mask = examples.is_answer
        return unchecked(**{"position_ids": index(examples), "token_scored": mask, "id_scored": mask, name: value})

    return returning(result)


def only_in(phase: bool, ids: IDs) -> CustomScheme:
    """Return a scheme with these IDs in training only (True) or in evaluation only (False)."""
    return with_ids(lambda examples, training: ids(examples, training) if training == phase else index(examples))


# The check uses two examples of the longest training length: parity of 4 bits, 11 tokens.
CUSTOM_SCHEMES: dict[str, tuple[PositionScheme, type[LengthwiseError], str]] = {
    "nothing": (
        returning(lambda e, t: None),
        PositionIDError,
        r"^scheme custom returns None; return an Assignment, such as make_assignment\(examples, position_ids\)$",
    ),
    "bare IDs": (returning(lambda e, t: index(e)), PositionIDError, r"^scheme custom returns a ndarray; return an"),
    "a list": (
        with_ids(lambda e, t: index(e).tolist()),
        PositionIDError,
        r"^scheme custom returns IDs as a list; return a NumPy array with axes \(level, batch, seq\)$",
    ),
    "a tensor": (
        with_ids(lambda e, t: torch.from_numpy(index(e))),
        PositionIDError,
        r"returns IDs as a Tensor; return a NumPy",
    ),
    "no level axis": (
        with_ids(lambda e, t: index(e)[0]),
        PositionIDError,
        r"^scheme custom returns IDs of shape \(2, 11\) for tokens of shape \(2, 11\); return an array with axes "
        r"\(level, batch, seq\), "
        r"here \(1, 2, 11\) for one level$",
    ),
    "IDs of one example": (
        with_ids(lambda e, t: index(e)[0, 0]),
        PositionIDError,
        r"returns IDs of shape \(11,\) for tokens of",
    ),
    "a token too few": (
        with_ids(lambda e, t: index(e)[:, :, 1:]),
        PositionIDError,
        r"returns IDs of shape \(1, 2, 10\) for",
    ),
    "no level": (
        with_ids(lambda e, t: index(e)[:0]),
        PositionIDError,
        r"returns IDs of shape \(0, 2, 11\) for tokens of",
    ),
    "real numbers": (
        with_ids(lambda e, t: index(e) / 2),
        PositionIDError,
        r"^scheme custom returns IDs of type float64; return signed integers, or set real_valued = True$",
    ),
    "booleans": (
        with_ids(lambda e, t: index(e) > 2),
        PositionIDError,
        r"returns IDs of type bool; return signed integers",
    ),
    "unsigned": (
        with_ids(lambda e, t: index(e).astype("uint32")),
        PositionIDError,
        r"returns IDs of type uint32; return signed",
    ),
    "complex": (
        with_ids(lambda e, t: index(e) * 1j, real_valued=True),
        PositionIDError,
        r"^scheme custom returns IDs of type complex128; return signed integers or floats$",
    ),
    "negative": (
        with_ids(lambda e, t: index(e) - 3),
        PositionIDError,
        r"^scheme custom returns ID -3; return finite IDs of at least 0$",
    ),
    "NaN": (
        with_ids(lambda e, t: index(e) * np.nan, real_valued=True),
        PositionIDError,
        r"returns ID nan; return finite",
    ),
    "invalid in training only": (
        only_in(True, lambda e, t: index(e) - 1),
        PositionIDError,
        r"returns ID -1; return finite",
    ),
    "invalid in evaluation only": (
        only_in(False, lambda e, t: index(e)[0]),
        PositionIDError,
        r"returns IDs of shape \(2, 11\)",
    ),
    "two levels in evaluation only": (
        only_in(False, lambda e, t: np.repeat(index(e), 2, axis=0)),
        PositionIDError,
        r"^position IDs have 1 level\(s\) but this decoder was built for 2",
    ),
    "beyond its own range": (
        with_ids(lambda e, t: index(e), limit=10),
        PositionRangeError,
        r"^scheme custom returns ID 10 in training, but its num_position_ids is 10; return smaller IDs or increase ",
    ),
    "no token mask": (
        with_part("token_scored", None),
        PositionIDError,
        r"^scheme custom returns token_scored as None; return booleans of shape \(2, 11\)$",
    ),
    "an integer mask": (
        with_part("id_scored", np.ones((2, 11), dtype=np.int64)),
        PositionIDError,
        r"^scheme custom returns id_scored as int64 \(2, 11\); return booleans of shape \(2, 11\)$",
    ),
    "a mask of one example": (
        with_part("id_scored", np.ones(11, dtype=bool)),
        PositionIDError,
        r"as bool \(11,\); return",
    ),
}


@dataclass(frozen=True)
class CustomEncoding(EncodingSettings):
    """Custom encoding that builds the module of its class."""

    name = "custom"
    module: ClassVar[Callable[[EncodingSize], Any]]

    def build(self, decoder_size: EncodingSize) -> Any:
        """Return the module of the class."""
        return self.module(decoder_size)


def building(module: Callable[[EncodingSize], Any]) -> CustomEncoding:
    """Return an encoding that builds this module."""
    return type("CustomEncoding", (CustomEncoding,), {"module": staticmethod(module)})()


def with_hook(hook: str, result: Callable[..., Any]) -> CustomEncoding:
    """Return an encoding with one custom hook."""
    flag = FLAGS.get(hook)
    methods: dict[str, Any] = {hook: lambda self, *arguments: result(*arguments)} | (
        {} if flag is None else {flag: True}
    )
    kind = type("Mine", (Encoding,), methods)
    return building(lambda size: kind())


def distances(query_ids: Tensor, key_ids: Tensor) -> Tensor:
    """Return the distances of IDs as floats."""
    return (query_ids[:, :, None] - key_ids[:, None, :]).float()


# Two heads of 8 components; the check uses 3 sequences with 5 queries and 6 keys.
CUSTOM_ENCODINGS: dict[str, tuple[EncodingSettings, str]] = {
    "builds nothing": (
        building(lambda size: None),
        r"^build of encoding custom returned an object of type NoneType; return an instance of a subclass of Encoding",
    ),
    "builds another module": (
        building(lambda size: torch.nn.Linear(2, 2)),
        r"of type Linear; return an instance of a subclass of Encoding",
    ),
    "builds the class itself": (
        building(lambda size: Encoding),
        r"of type type; return an instance of a subclass of Encoding",
    ),
    "embeds into nothing": (
        with_hook("embed", lambda x, ids: None),
        r"^Mine.embed returns None for inputs of shape \(3, 6, 16\) and \(3, 6\); return a tensor "
        r"with axes \(batch, seq, d_model\), "
        r"here \(3, 6, 16\)$",
    ),
    "embeds into another shape": (
        with_hook("embed", lambda x, ids: x[:, :1]),
        r"^Mine.embed returns a tensor of shape \(3, 1, 16\) for inputs of shape \(3, 6, 16\) and \(3, 6\); return "
        r"axes \(batch, seq, "
        r"d_model\), here \(3, 6, 16\)$",
    ),
    "embeds into other numbers": (
        with_hook("embed", lambda x, ids: x + ids[:, :, None].double()),
        r"^Mine.embed returns a tensor of dtype torch.float64; return torch.float32$",
    ),
    "rotates half": (
        with_hook("rotate", lambda x, ids: x[..., ::2]),
        r"^Mine.rotate returns a tensor of shape \(3, 2, 6, 4\) for .*; return axes \(batch, heads, "
        r"seq, d_head\), here \(3, 2, 6, 8\)$",
    ),
    "rotates into complex numbers": (
        with_hook("rotate", lambda x, ids: x * 1j),
        r"returns a tensor of dtype torch.complex64; return a floating-point tensor",
    ),
    "rotates heads apart": (
        with_hook("rotate", lambda x, ids: x * torch.ones(2, 1, 1)),
        r"^Mine.rotate fails on inputs of shape \(3, 4, 6, 8\) and \(3, 6\) \(RuntimeError: The size .*, "
        r"test_validation.py line \d+\); fix this hook$",
    ),
    "a bias without heads": (
        with_hook("bias", distances),
        r"^Mine.bias returns a tensor of shape \(3, 5, 6\) for inputs of shape \(3, 5\) and \(3, 6\); return "
        r"axes \(batch, heads, "
        r"query, key\), here \(3, 2, 5, 6\), or size 1 to broadcast over batch or heads$",
    ),
    "a bias for other heads": (
        with_hook("bias", lambda q, k: distances(q, k)[:, None].expand(-1, 3, -1, -1)),
        r"shape \(3, 3, 5, 6\) for .*; return axes \(batch, heads, query, key\), here \(3, 2, 5, 6\), or size 1",
    ),
    "a transposed bias": (
        with_hook("bias", lambda q, k: distances(k, q)[:, None]),
        r"returns a tensor of shape \(3, 1, 6, 5\) for",
    ),
    "a bias of one key": (
        with_hook("bias", lambda q, k: distances(q, k)[:, None, :, :1]),
        r"returns a tensor of shape \(3, 1, 5, 1\) for",
    ),
    "a boolean bias": (
        with_hook("bias", lambda q, k: distances(q, k)[:, None] > 0),
        r"^Mine.bias returns a tensor of dtype torch.bool; return a floating-point tensor$",
    ),
    "a declared bias without the hook": (
        building(lambda size: type("Mine", (Encoding,), {"has_bias": True})()),
        r"^Mine.bias fails on inputs of shape \(3, 5\) and \(3, 6\) "
        r"\(NotImplementedError: Mine does not implement bias, ",
    ),
    "a hook with too few arguments": (
        with_hook("bias", lambda q: q),
        r"^Mine.bias fails on inputs of shape .* \(TypeError: .* takes 1 positional argument but 2 were given, ",
    ),
    "token features of one head": (
        with_hook("token_features", lambda hidden, ids, layer: hidden[:, None]),
        r"^Mine.token_features returns a tensor of shape \(3, 1, 6, 16\) for inputs of shape \(3, 6, 16\) and "
        r"\(3, 6\); return axes \(batch, heads, seq, extra\), here \(3, 2, 6, extra\)$",
    ),
    "scores of one head": (
        with_hook("scores", lambda q, k, q_ids, k_ids: (q @ k.mT)[:, :1]),
        r"^Mine.scores returns a tensor of shape \(3, 1, 5, 6\) for .*; return axes \(batch, heads, "
        r"query, key\), here \(3, 2, 5, 6\)$",
    ),
    "adjusted scores of too many keys": (
        with_hook("adjust_scores", lambda scores, q_ids, k_ids, visible: torch.cat([scores, scores], dim=-1)),
        r"^Mine.adjust_scores returns a tensor of shape \(3, 2, 5, 12\) for .*; return axes \(batch, heads, "
        r"query, key\), here \(3, 2, 5, 6\)$",
    ),
}


def assert_error_before_training(experiment: Experiment, folder: Any, error: type[LengthwiseError], text: str) -> None:
    """Check that training raises a one-line error and writes nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", pytest.fail)
        with pytest.raises(error, match=text) as raised:
            train(experiment, folder / "run", device="cpu")
    assert "\n" not in str(raised.value)
    assert folder_contents(folder) == {}


@pytest.mark.parametrize("name", CUSTOM_SCHEMES)
def test_a_scheme_with_an_invalid_assignment_raises_an_error_before_training(name, tmp_path):
    scheme, error, text = CUSTOM_SCHEMES[name]
    assert_error_before_training(small_experiment(scheme=scheme), tmp_path, error, text)


@pytest.mark.parametrize("name", CUSTOM_ENCODINGS)
def test_an_encoding_with_an_invalid_hook_raises_an_error_before_training(name, tmp_path):
    encoding, text = CUSTOM_ENCODINGS[name]
    assert_error_before_training(small_experiment(scheme=Sequential(), encoding=encoding), tmp_path, SettingError, text)


def test_load_run_checks_overrides(tmp_path):
    train(small_experiment(scheme=Sequential(), steps=1), tmp_path, device="cpu")
    encoding, text = CUSTOM_ENCODINGS["a bias without heads"]
    with pytest.raises(SettingError, match=text):
        load_run(tmp_path, overrides={"encoding": encoding})
    with pytest.raises(PositionIDError, match="returns IDs as a list"):
        load_run(tmp_path, overrides={"scheme": CUSTOM_SCHEMES["a list"][0]})


def test_hooks_are_checked_on_every_level(tmp_path):
    shapes = []

    def rotate(x: Tensor, ids: Tensor) -> Tensor:
        shapes.append((tuple(x.shape), tuple(ids.shape)))
        return x

    experiment = small_experiment(MultiAddition(operands=(2, 2)), encoding=with_hook("rotate", rotate))
    check_encoding(build_decoder(experiment), check_scheme(experiment))
    # The two levels split the head's 8 components; a call has queries only, or queries and keys.
    assert shapes == [((3, heads, 6, 4), (3, 6)) for _ in range(2) for heads in (2, 4)]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("heads", [2, 4])
def test_every_listed_encoding_passes_the_check(encoding, heads):
    experiment = small_experiment(scheme=Coupled(num_position_ids=48), encoding=ENCODINGS[encoding]())
    experiment = replace(experiment, decoder=replace(experiment.decoder, d_model=8 * heads, num_heads=heads))
    check_encoding(build_decoder(experiment), check_scheme(experiment))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_listed_encoding_passes_the_check_with_a_level_per_head(encoding):
    experiment = small_experiment(
        MultiAddition(operands=(2, 2)), scheme=Predicted(num_position_ids=48), encoding=ENCODINGS[encoding]()
    )
    decoder = replace(experiment.decoder, d_model=32, num_heads=4, level_per_head=True)
    experiment = replace(experiment, decoder=decoder)
    check_encoding(build_decoder(experiment), check_scheme(experiment))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_listed_scheme_passes_the_check(scheme):
    training, evaluation = check_scheme(small_experiment(scheme=SCHEMES[scheme]()))
    assert training.tokens.shape == evaluation.tokens.shape == (2, 11)


@dataclass(frozen=True)
class TokenIndex(PositionScheme):
    """Custom scheme with token indices as IDs."""

    name = "token_index"

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """Return token indices."""
        return make_assignment(examples, index(examples))


class ZeroBias(Encoding):
    """Encoding module whose bias is zero."""

    has_bias = True

    def bias(self, query_ids: Tensor, key_ids: Tensor) -> Tensor:
        """Return one zero for all heads."""
        return 0.0 * distances(query_ids, key_ids)[:, None]


@dataclass(frozen=True)
class Zero(EncodingSettings):
    """Custom encoding without position information."""

    name = "zero"

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return a module without weights."""
        return ZeroBias()


def test_custom_classes_train_the_same_weights_as_equal_built_in_classes(tmp_path):
    train(small_experiment(scheme=TokenIndex(), encoding=Zero()), tmp_path / "custom", device="cpu")
    train(small_experiment(scheme=Sequential(), encoding=NoPE()), tmp_path / "built_in", device="cpu")
    assert equal_tensors(run_weights(tmp_path / "custom"), run_weights(tmp_path / "built_in"))


@dataclass(frozen=True)
class ArraySetting(TokenIndex):
    """Custom scheme with an array as a setting."""

    weights: Any = field(default_factory=lambda: np.zeros(3))


class NoDataclass(PositionScheme):
    """Custom scheme that is not a dataclass."""

    name = "no_dataclass"

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """Return token indices."""
        return make_assignment(examples, index(examples))


@pytest.mark.parametrize(("scheme", "name"), [(NoDataclass(), "NoDataclass"), (ArraySetting(), "ndarray")])
def test_settings_that_json_cannot_represent_raise_an_error_before_training(scheme, name, tmp_path):
    text = rf"^the experiment cannot be saved \(.*{name} .*\); use dataclasses with numbers, strings or tuples"
    assert_error_before_training(small_experiment(scheme=scheme), tmp_path, SettingError, text)

"""Schemes and encodings of one's own: an answer that breaks the contract is named in one line before anything runs."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.support.small_runs import same_tensors, small_experiment, tree, weights
from torch import Tensor

from lengthwise.core.errors import LengthwiseError, PositionIDError, PositionRangeError, SettingError
from lengthwise.encodings import ENCODINGS, Encoding, EncodingSettings, EncodingSize, NoPE
from lengthwise.experiments.experiment import Experiment, build_decoder
from lengthwise.experiments.run import load_run, train
from lengthwise.experiments.validation import check_encoding, check_scheme
from lengthwise.positions import SCHEMES, Assignment, Coupled, PositionScheme, Sequential, scored_everywhere
from lengthwise.tasks import MultiAddition
from lengthwise.tasks.examples import Examples
from lengthwise.training.trainer import Trainer

IDs = Callable[[Examples, bool], Any]


def unchecked(**parts: Any) -> Assignment:
    """An assignment as a user's process makes it: there nothing checks its types."""
    made = object.__new__(Assignment)
    for name, part in parts.items():
        object.__setattr__(made, name, part)
    return made


@dataclass(frozen=True)
class Own(PositionScheme):
    """A scheme of one's own with the answer of its class."""

    name = "own"
    answer: ClassVar[IDs]
    limit: ClassVar[int | None] = None

    @property
    def num_position_ids(self) -> int | None:
        """What it says about itself."""
        return self.limit

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Any:
        """What the class answers."""
        return self.answer(examples, training)


def answering(answer: IDs, **said: Any) -> Own:
    """A scheme that answers so, and says so about itself."""
    return type("Own", (Own,), {"answer": staticmethod(answer), **said})()


def giving(ids: IDs, **said: Any) -> Own:
    """A scheme that gives these IDs, with all answer tokens scored."""

    def answer(examples: Examples, training: bool) -> Assignment:
        mask = examples.is_answer
        return unchecked(position_ids=ids(examples, training), token_scored=mask, id_scored=mask)

    return answering(answer, **said)


def index(examples: Examples) -> np.ndarray:
    """The token index on one level."""
    size, seq = examples.tokens.shape
    return np.tile(np.arange(seq), (1, size, 1))


def changed(name: str, value: Any) -> Own:
    """A scheme whose assignment has one part replaced."""

    def answer(examples: Examples, training: bool) -> Assignment:
        mask = examples.is_answer
        return unchecked(**{"position_ids": index(examples), "token_scored": mask, "id_scored": mask, name: value})

    return answering(answer)


def only(when: bool, wrong: IDs) -> Own:
    """Wrong IDs in training alone, or in evaluation alone."""
    return giving(lambda examples, training: wrong(examples, training) if training == when else index(examples))


# Parities of 4 bits are 11 tokens; the longest training length is looked at, with two sequences.
SCHEMES_OF_ONES_OWN: dict[str, tuple[PositionScheme, type[LengthwiseError], str]] = {
    "nothing": (
        answering(lambda e, t: None),
        PositionIDError,
        r"^scheme own assigns None; return an Assignment, such as scored_everywhere\(examples, position_ids\) makes$",
    ),
    "bare IDs": (answering(lambda e, t: index(e)), PositionIDError, r"^scheme own assigns a ndarray; return an"),
    "a list": (
        giving(lambda e, t: index(e).tolist()),
        PositionIDError,
        r"^scheme own gives IDs as a list; give a NumPy array of axes \(level, batch, seq\)$",
    ),
    "a tensor": (
        giving(lambda e, t: torch.from_numpy(index(e))),
        PositionIDError,
        r"gives IDs as a Tensor; give a NumPy",
    ),
    "no level axis": (
        giving(lambda e, t: index(e)[0]),
        PositionIDError,
        r"^scheme own gives IDs of shape \(2, 11\) for tokens of shape \(2, 11\); give \(level, batch, seq\), with one "
        r"level \(1, 2, 11\)$",
    ),
    "one sequence's": (
        giving(lambda e, t: index(e)[0, 0]),
        PositionIDError,
        r"gives IDs of shape \(11,\) for tokens of",
    ),
    "a token too few": (
        giving(lambda e, t: index(e)[:, :, 1:]),
        PositionIDError,
        r"gives IDs of shape \(1, 2, 10\) for",
    ),
    "no level": (giving(lambda e, t: index(e)[:0]), PositionIDError, r"gives IDs of shape \(0, 2, 11\) for tokens of"),
    "real numbers": (
        giving(lambda e, t: index(e) / 2),
        PositionIDError,
        r"^scheme own gives IDs of type float64; give signed integers, or say real_valued = True$",
    ),
    "truth values": (
        giving(lambda e, t: index(e) > 2),
        PositionIDError,
        r"gives IDs of type bool; give signed integers",
    ),
    "unsigned": (
        giving(lambda e, t: index(e).astype("uint32")),
        PositionIDError,
        r"gives IDs of type uint32; give signed",
    ),
    "complex": (
        giving(lambda e, t: index(e) * 1j, real_valued=True),
        PositionIDError,
        r"^scheme own gives IDs of type complex128; give signed integers or floats$",
    ),
    "negative": (
        giving(lambda e, t: index(e) - 3),
        PositionIDError,
        r"^scheme own gives the ID -3, which is negative, infinite or no number; start at 0$",
    ),
    "no number": (
        giving(lambda e, t: index(e) * np.nan, real_valued=True),
        PositionIDError,
        r"gives the ID nan, which is negative, inf",
    ),
    "wrong in training alone": (only(True, lambda e, t: index(e) - 1), PositionIDError, r"gives the ID -1, which is"),
    "wrong in evaluation alone": (
        only(False, lambda e, t: index(e)[0]),
        PositionIDError,
        r"gives IDs of shape \(2, 11\)",
    ),
    "two levels in evaluation alone": (
        only(False, lambda e, t: np.repeat(index(e), 2, axis=0)),
        PositionIDError,
        r"^position IDs come on 1 level\(s\) but this decoder was built for 2",
    ),
    "beyond its own range": (
        giving(lambda e, t: index(e), limit=10),
        PositionRangeError,
        r"^scheme own gives the ID 10 in training but says num_position_ids 10; keep below it, or set it higher$",
    ),
    "no mask of tokens": (
        changed("token_scored", None),
        PositionIDError,
        r"^scheme own gives token_scored as None; give truth values \(2, 11\)$",
    ),
    "a mask of numbers": (
        changed("id_scored", np.ones((2, 11), dtype=np.int64)),
        PositionIDError,
        r"^scheme own gives id_scored as int64 \(2, 11\); give truth values \(2, 11\)$",
    ),
    "a mask of one sequence": (
        changed("id_scored", np.ones(11, dtype=bool)),
        PositionIDError,
        r"as bool \(11,\); give",
    ),
}


@dataclass(frozen=True)
class OwnEncoding(EncodingSettings):
    """An encoding of one's own; its class says what it builds."""

    name = "own"
    built: ClassVar[Callable[[EncodingSize], Any]]

    def build(self, size: EncodingSize) -> Any:
        """Whatever the test wants."""
        return self.built(size)


def building(built: Callable[[EncodingSize], Any]) -> OwnEncoding:
    """An encoding that builds this."""
    return type("OwnEncoding", (OwnEncoding,), {"built": staticmethod(built)})()


def hooked(hook: str, answer: Callable[..., Any]) -> OwnEncoding:
    """An encoding with one hook of one's own."""
    flag = {"bias": "has_bias", "scores": "has_scores", "adjust": "has_scores"}.get(hook)
    methods: dict[str, Any] = {hook: lambda self, *given: answer(*given)} | ({} if flag is None else {flag: True})
    kind = type("Mine", (Encoding,), methods)
    return building(lambda size: kind())


def apart(query_ids: Tensor, key_ids: Tensor) -> Tensor:
    """Distances as real numbers."""
    return (query_ids[:, :, None] - key_ids[:, None, :]).float()


# Two heads of 8 components, on the tiny example of 3 sequences with 5 queries and 6 keys.
ENCODINGS_OF_ONES_OWN: dict[str, tuple[EncodingSettings, str]] = {
    "builds nothing": (
        building(lambda size: None),
        r"^encoding own builds an object of type NoneType, which is no Encoding; return an instance of a class that",
    ),
    "builds another module": (building(lambda size: torch.nn.Linear(2, 2)), r"of type Linear, which is no Encoding"),
    "builds the class itself": (building(lambda size: Encoding), r"of type type, which is no Encoding"),
    "embeds into nothing": (
        hooked("embed", lambda x, ids: None),
        r"^the embed of Mine answers None to \(3, 6, 16\) and \(3, 6\); return a tensor \(batch, seq, d_model\), "
        r"here \(3, 6, 16\)$",
    ),
    "embeds into another shape": (
        hooked("embed", lambda x, ids: x[:, :1]),
        r"^the embed of Mine answers \(3, 6, 16\) and \(3, 6\) with shape \(3, 1, 16\); return \(batch, seq, "
        r"d_model\), here \(3, 6, 16\)$",
    ),
    "embeds into other numbers": (
        hooked("embed", lambda x, ids: x + ids[:, :, None].double()),
        r"^the embed of Mine answers with torch.float64 numbers; return torch.float32$",
    ),
    "rotates half": (
        hooked("rotate", lambda x, ids: x[..., ::2]),
        r"^the rotate of Mine answers .* with shape \(3, 2, 6, 4\); return \(batch, heads, "
        r"seq, d_head\), here \(3, 2, 6, 8\)$",
    ),
    "rotates into complex numbers": (
        hooked("rotate", lambda x, ids: x * 1j),
        r"with torch.complex64 numbers; return floats",
    ),
    "rotates heads apart": (
        hooked("rotate", lambda x, ids: x * torch.ones(2, 1, 1)),
        r"^the rotate of Mine fails on \(3, 4, 6, 8\) and \(3, 6\) \(RuntimeError: The size .*, "
        r"test_conformance.py line \d+\); mend it there$",
    ),
    "a bias without heads": (
        hooked("bias", apart),
        r"^the bias of Mine answers \(3, 5\) and \(3, 6\) with shape \(3, 5, 6\); return \(batch, heads, "
        r"query, key\), here \(3, 2, 5, 6\), or 1 where one stands for all sequences or heads$",
    ),
    "a bias for other heads": (
        hooked("bias", lambda q, k: apart(q, k)[:, None].expand(-1, 3, -1, -1)),
        r"with shape \(3, 3, 5, 6\); return \(batch, heads, query, key\), here \(3, 2, 5, 6\), or 1",
    ),
    "a bias the wrong way round": (hooked("bias", lambda q, k: apart(k, q)[:, None]), r"shape \(3, 1, 6, 5\); return"),
    "a bias of one key": (hooked("bias", lambda q, k: apart(q, k)[:, None, :, :1]), r"shape \(3, 1, 5, 1\); return"),
    "a bias of truth values": (
        hooked("bias", lambda q, k: apart(q, k)[:, None] > 0),
        r"^the bias of Mine answers with torch.bool numbers; return floats$",
    ),
    "a bias that is not there": (
        building(lambda size: type("Mine", (Encoding,), {"has_bias": True})()),
        r"^the bias of Mine fails on \(3, 5\) and \(3, 6\) \(NotImplementedError: Mine declares no bias, ",
    ),
    "a hook with too few arguments": (
        hooked("bias", lambda q: q),
        r"^the bias of Mine fails on .* \(TypeError: .* takes 1 positional argument but 2 were given, ",
    ),
    "scores of one head": (
        hooked("scores", lambda q, k, q_ids, k_ids: (q @ k.mT)[:, :1]),
        r"^the scores of Mine answers .* with shape \(3, 1, 5, 6\); return \(batch, heads, "
        r"query, key\), here \(3, 2, 5, 6\)$",
    ),
    "adjusted scores of too many keys": (
        hooked("adjust", lambda scores, q_ids, k_ids, visible: torch.cat([scores, scores], dim=-1)),
        r"^the adjust of Mine answers .* with shape \(3, 2, 5, 12\); return \(batch, heads, "
        r"query, key\), here \(3, 2, 5, 6\)$",
    ),
}


def refused_before_a_step(experiment: Experiment, folder: Any, error: type[LengthwiseError], text: str) -> None:
    """Training is refused in one line, and no folder is begun."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", pytest.fail)
        with pytest.raises(error, match=text) as caught:
            train(experiment, folder / "run", device="cpu")
    assert "\n" not in str(caught.value)
    assert tree(folder) == {}


@pytest.mark.parametrize("name", SCHEMES_OF_ONES_OWN)
def test_a_scheme_whose_answer_is_no_assignment_is_refused_before_anything_is_written(name, tmp_path):
    scheme, error, text = SCHEMES_OF_ONES_OWN[name]
    refused_before_a_step(small_experiment(scheme=scheme), tmp_path, error, text)


@pytest.mark.parametrize("name", ENCODINGS_OF_ONES_OWN)
def test_an_encoding_whose_hook_answers_wrongly_is_refused_before_anything_is_written(name, tmp_path):
    encoding, text = ENCODINGS_OF_ONES_OWN[name]
    refused_before_a_step(small_experiment(scheme=Sequential(), encoding=encoding), tmp_path, SettingError, text)


def test_what_comes_instead_of_a_runs_encoding_is_looked_at_too(tmp_path):
    train(small_experiment(scheme=Sequential(), steps=1), tmp_path, device="cpu")
    encoding, text = ENCODINGS_OF_ONES_OWN["a bias without heads"]
    with pytest.raises(SettingError, match=text):
        load_run(tmp_path, overrides={"encoding": encoding})
    with pytest.raises(PositionIDError, match="gives IDs as a list"):
        load_run(tmp_path, overrides={"scheme": SCHEMES_OF_ONES_OWN["a list"][0]})


def test_on_two_levels_every_level_is_asked(tmp_path):
    asked = []

    def rotate(x: Tensor, ids: Tensor) -> Tensor:
        asked.append((tuple(x.shape), tuple(ids.shape)))
        return x

    experiment = small_experiment(MultiAddition(operands=(2, 2)), encoding=hooked("rotate", rotate))
    check_encoding(build_decoder(experiment), check_scheme(experiment))
    # The head's 8 components are shared by the levels; queries alone, then queries and keys at once.
    assert asked == [((3, heads, 6, 4), (3, 6)) for _ in range(2) for heads in (2, 4)]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("heads", [2, 4])
def test_every_encoding_of_the_table_keeps_the_contract(encoding, heads):
    experiment = small_experiment(scheme=Coupled(num_position_ids=48), encoding=ENCODINGS[encoding]())
    experiment = replace(experiment, decoder=replace(experiment.decoder, d_model=8 * heads, num_heads=heads))
    check_encoding(build_decoder(experiment), check_scheme(experiment))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_of_the_table_keeps_the_contract(scheme):
    training, evaluation = check_scheme(small_experiment(scheme=SCHEMES[scheme]()))
    assert training.tokens.shape == evaluation.tokens.shape == (2, 11)


@dataclass(frozen=True)
class Counted(PositionScheme):
    """The token index, as anyone would write it."""

    name = "counted"

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """The token index."""
        return scored_everywhere(examples, index(examples))


class Unturned(Encoding):
    """Hooks that answer, and change nothing."""

    has_bias = True

    def bias(self, query_ids: Tensor, key_ids: Tensor) -> Tensor:
        """One zero for all heads."""
        return 0.0 * apart(query_ids, key_ids)[:, None]


@dataclass(frozen=True)
class Nothing(EncodingSettings):
    """No positions."""

    name = "nothing"

    def build(self, size: EncodingSize) -> Encoding:
        """A module without weights."""
        return Unturned()


def test_classes_of_ones_own_that_keep_the_contract_are_trained_like_the_packages(tmp_path):
    train(small_experiment(scheme=Counted(), encoding=Nothing()), tmp_path / "own", device="cpu")
    train(small_experiment(scheme=Sequential(), encoding=NoPE()), tmp_path / "ours", device="cpu")
    assert same_tensors(weights(tmp_path / "own"), weights(tmp_path / "ours"))


@dataclass(frozen=True)
class Setting(Counted):
    """A setting that is no plain value."""

    weights: Any = field(default_factory=lambda: np.zeros(3))


class NoDataclass(PositionScheme):
    """A class whose settings nobody can list."""

    name = "no_dataclass"

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """The token index."""
        return scored_everywhere(examples, index(examples))


@pytest.mark.parametrize(("scheme", "came"), [(NoDataclass(), "NoDataclass"), (Setting(), "ndarray")])
def test_settings_that_no_file_can_hold_are_refused_before_anything_is_written(scheme, came, tmp_path):
    text = (
        rf"^the experiment cannot be saved \(.*{came} .*\); make each part a dataclass with settings of plain numbers"
    )
    refused_before_a_step(small_experiment(scheme=scheme), tmp_path, SettingError, text)

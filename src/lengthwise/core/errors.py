"""Errors that a user can cause: one line with the invalid value, the allowed values and the change to make."""

import difflib
from collections.abc import Iterable

# Characters of a name in an error message.
MAX_NAME_LENGTH = 120


class LengthwiseError(Exception):
    """Base of all errors that a user can cause; the message is one line that says what to change."""


class UnknownNameError(LengthwiseError):
    """Name that is not in a table."""


class SettingError(LengthwiseError):
    """Value outside the allowed range of a setting."""


class UnsupportedTaskError(LengthwiseError):
    """Task without a coupling, places or a single level that the position scheme needs."""


class PositionRangeError(LengthwiseError):
    """Position ID beyond the range of a scheme or an encoding."""


class PositionIDError(LengthwiseError):
    """Position IDs that are negative or have the wrong shape or type."""


class PromptError(LengthwiseError):
    """Prompt that does not have the form of the task."""


class RunFolderError(LengthwiseError):
    """Folder that is missing, damaged, not writable, not a run, or the folder of another run."""


class DeviceError(LengthwiseError):
    """Device that is not available on this machine."""


class ModelError(LengthwiseError):
    """Model that is missing or whose influences cannot be measured; the message gives the reason."""


class TextError(LengthwiseError):
    """Text or prepared corpus that is missing, empty, damaged or not text."""


class TaskFileError(LengthwiseError):
    """Task file that is missing, has changed or has a malformed record; the message gives the line number."""


class FeatureError(LengthwiseError):
    """Invalid row of a tokenized data set; inside a batch, the message gives its index."""


class DivergedError(LengthwiseError):
    """Decoder with an infinite or NaN loss or prediction."""


class WorkerError(LengthwiseError):
    """Worker process that ended without a result."""


class FrozenHeadWarning(UserWarning):
    """Training on position IDs without effect, because all weights of the position head are frozen."""


class UnreachableIDsWarning(UserWarning):
    """Target position IDs that are never among the candidates of the position head."""


class UntrainedDistanceWarning(UserWarning):
    """Evaluation at position-ID distances that do not occur in training."""


class TrainingOverlapWarning(UserWarning):
    """Evaluation on records of a task file that the run was trained on."""


class SkippedTextWarning(UserWarning):
    """Skipped texts: files that cannot be read as text, or copies of other texts."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """Return the error for a name that is not in a table, with the nearest known name."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean '{nearest[0]}'? " if nearest else ""
    return UnknownNameError(f"unknown {kind} '{shorten(name)}'; {hint}known: {', '.join(names)}")


def shorten(name: str) -> str:
    """Replace the middle of a long name with an ellipsis."""
    half = MAX_NAME_LENGTH // 2
    return name if len(name) <= MAX_NAME_LENGTH else f"{name[:half]}...{name[-half:]}"

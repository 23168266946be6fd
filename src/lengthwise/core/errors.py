"""Every error a user can cause: one line that says what came, what is allowed and what to change."""

import difflib
from collections.abc import Iterable

# More of a name is not shown.
LONGEST_NAME = 120


class LengthwiseError(Exception):
    """Something the user asked for cannot be done; the message is one line and says what to change."""


class UnknownNameError(LengthwiseError):
    """A name that is in no table."""


class SettingError(LengthwiseError):
    """A value outside what a setting allows."""


class UnsupportedTaskError(LengthwiseError):
    """A scheme met a task that does not declare what it needs: a coupling, places, a single level."""


class PositionRangeError(LengthwiseError):
    """Position IDs reach further than a scheme or an encoding can hold."""


class PositionIDError(LengthwiseError):
    """Position IDs of the wrong shape or kind, or negative ones."""


class PromptError(LengthwiseError):
    """A prompt that is not of the task's form."""


class RunFolderError(LengthwiseError):
    """A folder that is missing, is no run, holds another run, cannot be written, or has damaged files."""


class DeviceError(LengthwiseError):
    """A device that this machine does not have."""


class ModelError(LengthwiseError):
    """A model that is missing, or whose influences cannot be measured; the message gives the reason."""


class TextError(LengthwiseError):
    """Text, or a prepared corpus of it, that is missing, empty, damaged or no text."""


class TaskFileError(LengthwiseError):
    """A file of rows that is missing, has changed, or has a malformed row; the message names its line."""


class FeatureError(LengthwiseError):
    """A row of a tokenized data set that no batch can be made of; where it is in a batch, the message names it."""


class DivergedError(LengthwiseError):
    """A decoder whose loss or predictions are infinite or no numbers any more."""


class WorkerError(LengthwiseError):
    """A worker process that ended without a result."""


class FrozenHeadWarning(UserWarning):
    """A position head is asked to learn IDs, and none of its weights may change."""


class UnreachableIDsWarning(UserWarning):
    """None of the IDs that a position head is asked to learn is among its candidates."""


class UntrainedDistanceWarning(UserWarning):
    """Evaluation uses position-ID distances that training never showed."""


class TrainingOverlapWarning(UserWarning):
    """Evaluation asks rows that the run was trained on."""


class SkippedTextWarning(UserWarning):
    """Texts were left out: files that cannot be read as text, or copies of other texts."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that is in no table, with the nearest one that is."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean '{nearest[0]}'? " if nearest else ""
    return UnknownNameError(f"unknown {kind} '{shorten(name)}'; {hint}known: {', '.join(names)}")


def shorten(name: str) -> str:
    """Return a name that may be of any length without its middle."""
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}...{name[-half:]}"

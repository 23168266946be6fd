"""Errors that a user can cause. Each message is one line: the invalid value, the allowed values, and a solution."""

import difflib
from collections.abc import Iterable

MAX_NAME_LENGTH = 120


class LengthwiseError(Exception):
    """Base class of all errors that a user can cause; the message is one line with a solution."""


class UnknownNameError(LengthwiseError):
    """Error for an unknown name, such as the name of a task or encoding that does not exist."""


class SettingError(LengthwiseError):
    """Error for a setting with an invalid value."""


class UnsupportedTaskError(LengthwiseError):
    """Error for a task without the coupling or step_index that a scheme needs, or with too many coupling levels."""


class PositionRangeError(LengthwiseError):
    """Error for a position ID that is beyond the range of a scheme or an encoding."""


class PositionIDError(LengthwiseError):
    """Error for position IDs that are negative or have the wrong shape or type."""


class PromptError(LengthwiseError):
    """Error for a prompt that does not follow the format of the task."""


class RunFolderError(LengthwiseError):
    """Error for a folder that is missing, damaged or not writable, is not a run, or belongs to another run."""


class FolderInUseError(RunFolderError):
    """Error for a folder that another process is writing into."""


class DeviceError(LengthwiseError):
    """Error for a device that is not available on this machine."""


class ModelError(LengthwiseError):
    """Error for a model that is missing or does not support the measurement of influences."""


class TextSourceError(LengthwiseError):
    """Error for a text or a prepared corpus that is missing, empty or damaged."""


class TaskFileError(LengthwiseError):
    """Error for a task file that is missing, has changed or has an invalid record; the message gives the line."""


class CouplingError(LengthwiseError):
    """Error for examples whose coupling cannot be found; the message gives the reason."""


class AmbiguousCouplingError(CouplingError):
    """Error for examples that two different couplings explain equally well."""


class TooFewExamplesError(CouplingError):
    """Error for examples that are too few to find a coupling or to check it."""


class TokenizedRowError(LengthwiseError):
    """Error for an invalid row of a tokenized data set; in a batch, the message gives the index of the row."""


class DivergedError(LengthwiseError):
    """Error for a decoder whose loss or predictions are infinite or NaN."""


class WorkerError(LengthwiseError):
    """Error for a worker process that ended without a result."""


class FrozenHeadWarning(UserWarning):
    """Warning about a position head that training cannot improve, because all its weights are frozen."""


class UnreachablePositionIDsWarning(UserWarning):
    """Warning about target position IDs that the position head cannot predict, because they are not candidates."""


class UntrainedDistanceWarning(UserWarning):
    """Warning about an evaluation at position-ID distances that do not occur in training."""


class TrainingOverlapWarning(UserWarning):
    """Warning about an evaluation on task-file records that the run was trained on."""


class DefaultSettingsWarning(UserWarning):
    """Warning about settings of an experiment that were found for another task."""


class PromptWarning(UserWarning):
    """Warning about a prompt that lacks the last symbols of every prompt of its task."""


class TrackerWarning(UserWarning):
    """Warning about a tracker that failed; the training continues without it."""


class SkippedTextWarning(UserWarning):
    """Warning about skipped files, which are not text or are copies of other texts."""


# Names in other libraries and papers, with the name in this library.
OTHER_NAMES = {
    "rope": "rotary",
    "vanilla": "sinusoidal",
    "sin": "sinusoidal",
    "absolute": "learned",
    "none": "nope",
    "lr": "learning_rate",
    "dtype": "precision",
    "wd": "weight_decay",
}


def unknown_name_error(kind: str, name: str, known_names: Iterable[str]) -> UnknownNameError:
    """Return the error for a name that is not in ``known_names``; the message suggests a known name.

    This is the name in this library for one of ``OTHER_NAMES``, and otherwise the most similar name.
    """
    sorted_names = sorted(known_names)
    similar_names = [known for known in sorted_names if known == OTHER_NAMES.get(name)]
    similar_names = similar_names or difflib.get_close_matches(name, sorted_names, n=1, cutoff=0.4)
    hint = f"did you mean '{similar_names[0]}'? " if similar_names else ""
    return UnknownNameError(f"unknown {kind} '{shorten_name(name)}'; {hint}known: {', '.join(sorted_names)}")


def shorten_name(name: str) -> str:
    """Replace the middle of a long name with an ellipsis."""
    half_length = MAX_NAME_LENGTH // 2
    return name if len(name) <= MAX_NAME_LENGTH else f"{name[:half_length]}...{name[-half_length:]}"

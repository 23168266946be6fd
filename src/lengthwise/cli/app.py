"""The command line: one verb per public function; tables for people, JSON for scripts."""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import typer
from typer.core import TyperGroup

from lengthwise.cli.commands.certify import certify
from lengthwise.cli.commands.compare import compare_
from lengthwise.cli.commands.diagnose import diagnose
from lengthwise.cli.commands.evaluate import evaluate_, generate_
from lengthwise.cli.commands.export import export
from lengthwise.cli.commands.influence import influence
from lengthwise.cli.commands.list_tables import list_
from lengthwise.cli.commands.prepare import prepare
from lengthwise.cli.commands.reproduce import reproduce_
from lengthwise.cli.commands.train import train_
from lengthwise.cli.terminal import printable, say
from lengthwise.core.errors import (
    LengthwiseError,
    SkippedTextWarning,
    TrainingOverlapWarning,
    UntrainedDistanceWarning,
    shorten,
    unknown_name,
)
from lengthwise.core.interruption import StoppedError


class Verbs(TyperGroup):
    """Unknown verbs are answered like every other unknown name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that the first argument names."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            raise unknown_name("verb", args[0], self.commands)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="lengthwise",
    help="Length generalization in transformers: train short, test long, and see why.",
    cls=Verbs,
    add_completion=False,
    pretty_exceptions_enable=False,
)


VERBS: dict[str, Callable[..., None]] = {
    "list": list_,
    "prepare": prepare,
    "train": train_,
    "evaluate": evaluate_,
    "compare": compare_,
    "generate": generate_,
    "influence": influence,
    "certify": certify,
    "diagnose": diagnose,
    "reproduce": reproduce_,
    "export": export,
}
for name, verb in VERBS.items():
    app.command(name)(verb)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a verb: exit status 0 when done, 2 when the input was wrong, 1 for anything else."""
    warnings.showwarning = _show_warning
    try:
        # A verb answers nothing; the status of an interruption comes back as a number.
        if app(args=arguments, standalone_mode=False):
            raise KeyboardInterrupt
    except BrokenPipeError:
        # Whoever read the results has read enough; Python would complain again when it closes the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (Exception, KeyboardInterrupt) as error:
        told = _told(error)
        if told is None:
            raise
        _fail(*told)


def _told(error: BaseException) -> tuple[str, int] | None:
    """What is printed of an error, and the exit status; None for one that nobody expects."""
    if isinstance(error, LengthwiseError):
        return str(error), 2
    if isinstance(error, StoppedError):
        return str(error), 1
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 1
    if isinstance(error, OSError):
        name = "" if error.filename is None else f"{shorten(str(error.filename))}: "
        return f"{name}{error.strerror or error}; give a path that can be used", 2
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return "out of memory; use shorter lengths, smaller batches or fewer examples at once", 1
    # What the argument parser raises carries its own message.
    return (error.format_message(), 2) if hasattr(error, "format_message") else None


def _fail(message: str, status: int) -> None:
    line = f"error: {' '.join(message.split())}" if status == 2 else message
    print(printable(line), file=sys.stderr)
    sys.exit(status)


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **rest: Any) -> None:
    if issubclass(category, UntrainedDistanceWarning | TrainingOverlapWarning | SkippedTextWarning):
        say(f"warning: {message}")

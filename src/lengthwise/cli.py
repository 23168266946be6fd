"""The command line: one verb per public function; tables for people, JSON for scripts."""

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from lengthwise.errors import (
    LengthwiseError,
    SeenRowsWarning,
    SkippedTextWarning,
    UntrainedDistanceWarning,
    unknown_name,
)
from lengthwise.interruption import StoppedError
from lengthwise.terminal import printable, say
from lengthwise.verbs.certify import certify
from lengthwise.verbs.compare import compare_
from lengthwise.verbs.diagnose import diagnose
from lengthwise.verbs.evaluate import evaluate_, generate_
from lengthwise.verbs.export import export
from lengthwise.verbs.influence import influence
from lengthwise.verbs.prepare import prepare
from lengthwise.verbs.reproduce import reproduce_
from lengthwise.verbs.tables import list_
from lengthwise.verbs.train import train_


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
    except LengthwiseError as error:
        _fail(str(error), 2)
    except StoppedError as stopped:
        _fail(str(stopped), 1)
    except KeyboardInterrupt:
        _fail("interrupted", 1)
    except Exception as error:
        # What the argument parser raises carries its own message and exit status 2.
        if not hasattr(error, "format_message"):
            raise
        _fail(error.format_message(), 2)


def _fail(message: str, status: int) -> None:
    line = f"error: {' '.join(message.split())}" if status == 2 else message
    print(printable(line), file=sys.stderr)
    sys.exit(status)


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **rest: Any) -> None:
    if issubclass(category, UntrainedDistanceWarning | SeenRowsWarning | SkippedTextWarning):
        say(f"warning: {message}")

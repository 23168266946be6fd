"""Command line interface, with one command per public function."""

import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lengthwise.cli.commands.certify import certify
from lengthwise.cli.commands.compare import compare_
from lengthwise.cli.commands.couple import couple
from lengthwise.cli.commands.diagnose import diagnose
from lengthwise.cli.commands.doctor import doctor
from lengthwise.cli.commands.evaluate import evaluate_, generate_
from lengthwise.cli.commands.export import export
from lengthwise.cli.commands.influence import influence
from lengthwise.cli.commands.list_tables import list_
from lengthwise.cli.commands.prepare import prepare
from lengthwise.cli.commands.report import report
from lengthwise.cli.commands.reproduce import reproduce_
from lengthwise.cli.commands.show import show_
from lengthwise.cli.commands.sweep import sweep_
from lengthwise.cli.commands.train import train_
from lengthwise.cli.commands.watch import watch
from lengthwise.cli.terminal import discard_output, open_standard_streams, print_line, print_message
from lengthwise.core.errors import (
    DefaultSettingsWarning,
    LengthwiseError,
    SkippedTextWarning,
    TrackerWarning,
    TrainingOverlapWarning,
    UntrainedDistanceWarning,
    shorten_name,
    unknown_name_error,
)
from lengthwise.core.interruption import StoppedError
from lengthwise.core.progress_line import escape_control_characters
from lengthwise.training.launch import LaunchInfo, read_launch_info, reject_several_processes

# Time in which the first process of a machine reports an error, so that the launcher ends the others.
REPORT_S = 10.0


class CommandGroup(TyperGroup):
    """Group of commands; its error for an unknown command suggests the most similar name.

    Without arguments, the group prints its help.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the group; no arguments mean ``--help``."""
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command named by the first argument; raise ``SettingError`` if it does not exist."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            raise unknown_name_error("command", args[0], self.commands)
        if args[0] != "train":
            reject_several_processes(args[0])
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="lengthwise",
    help="Train transformers on short sequences, test them on long sequences, and find out why they fail or succeed.",
    cls=CommandGroup,
    pretty_exceptions_enable=False,
)


def _print_version(is_set: bool) -> bool:
    if is_set:
        from importlib import metadata  # noqa: PLC0415  (a slow import)

        print_line(f"lengthwise {metadata.version('lengthwise')}")
        raise typer.Exit
    return is_set


@app.callback()
def add_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train transformers on short sequences, test them on long sequences, and find out why they fail or succeed."""


COMMANDS: tuple[Callable[..., None], ...] = (
    *(list_, prepare, couple, train_, evaluate_, compare_, sweep_, generate_),
    *(show_, influence, doctor, certify, diagnose, reproduce_, export, report, watch),
)
for command in COMMANDS:
    app.command(command.__name__.rstrip("_"))(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. The exit status is 0 on success, 2 for invalid input and 1 for other failures.

    Of several processes that train together, only the first prints. An error of another process is printed if the
    first process does not fail, too.
    """
    warnings.showwarning = _show_warning
    open_standard_streams()
    launch = LaunchInfo()
    try:
        launch = read_launch_info()
        # A command returns None, and an interruption returns a status.
        with discard_output() if launch.rank > 0 else nullcontext():
            if app(args=arguments, standalone_mode=False):
                raise KeyboardInterrupt
    except BrokenPipeError:
        # The reader closed the pipe. Redirect stdout, because Python fails again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (Exception, KeyboardInterrupt) as error:
        message_and_status = _message_and_status(error)
        if message_and_status is None:
            raise
        message, status = message_and_status
        if launch.local_rank > 0:
            # After an error of the first process, the launcher ends this one while it waits.
            if isinstance(error, StoppedError | KeyboardInterrupt):
                sys.exit(1)
            time.sleep(REPORT_S)
        print(
            escape_control_characters(f"error: {' '.join(message.split())}" if status == 2 else message),
            file=sys.stderr,
        )
        sys.exit(status)


def _message_and_status(error: BaseException) -> tuple[str, int] | None:
    """Return the message and exit status of an error, or None for an unexpected error."""
    if isinstance(error, LengthwiseError):
        return str(error), 2
    if isinstance(error, StoppedError | KeyboardInterrupt):
        return str(error) or "interrupted", 1
    if isinstance(error, UnicodeEncodeError):
        return f"a name does not fit the encoding {error.encoding}; use another name, or set PYTHONUTF8=1", 2
    if isinstance(error, OSError):
        name = "" if error.filename is None else f"{shorten_name(str(error.filename))}: "
        return f"{name}{error.strerror or error}; use another path", 2
    if (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(error)
    ):
        return "out of memory; use shorter lengths, smaller batches or fewer examples", 1
    # Errors of the argument parser have their own message.
    return (error.format_message(), 2) if hasattr(error, "format_message") else None


def _show_warning(message: Warning | str, category: type[Warning], *location: Any, **options: Any) -> None:
    shown = (
        TrainingOverlapWarning | SkippedTextWarning | TrackerWarning | UntrainedDistanceWarning | DefaultSettingsWarning
    )
    if issubclass(category, shown):
        print_message(f"warning: {message}")

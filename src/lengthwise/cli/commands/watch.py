"""The ``watch`` command, which shows the runs of a folder while they train."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from lengthwise.cli import options
from lengthwise.cli.terminal import out_console, print_json


def watch(
    folder: Annotated[Path, Argument(metavar="DIR", file_okay=False, help="Folder of runs, comparisons or sweeps.")],
    once: Annotated[bool, Option("--once", help="Print the present state and exit.")] = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Show the runs in a folder while they train; Ctrl-C ends the display and no run.

    Without a terminal, print a line whenever a run changes. --json prints the present state and exits.
    """
    from lengthwise.cli.watch_display import print_changes, print_states, show_live
    from lengthwise.experiments.run_states import read_run_states

    states = read_run_states(folder)
    if as_json:
        print_json({"runs": [asdict(state) for state in states]})
    elif once:
        print_states(states, {})
    else:
        try:
            show = show_live if out_console.is_terminal else print_changes
            show(folder)
        except KeyboardInterrupt:
            return

"""The ``list`` command, which prints the tables of names."""

from collections.abc import Mapping
from typing import Annotated, Any

from typer import Argument

from lengthwise.cli import options
from lengthwise.cli.terminal import print_json, print_message, print_table
from lengthwise.core.errors import SettingError, unknown_name_error


def list_(
    kind: Annotated[
        str | None,
        Argument(
            help="Table to print: tasks, schemes, encodings, measures, claims, counterexamples or recipes.",
            show_default="all",
        ),
    ] = None,
    as_json: options.JsonFlag = False,
) -> None:
    """List tasks, schemes, encodings, measures, claims, counterexamples and recipes, with summary and paper.

    Claims are part of the source repository, not of the installed package.
    """
    from lengthwise.encodings import ENCODINGS
    from lengthwise.experiments.recipes import COMPARISONS, RECIPES
    from lengthwise.experiments.reproduction import load_claims
    from lengthwise.influence.measures import MEASURES
    from lengthwise.positions import SCHEMES, describe_given_information
    from lengthwise.tasks import TASKS
    from lengthwise.theory.counterexamples import COUNTEREXAMPLES

    try:
        claims = load_claims()
    except SettingError as error:
        if kind == "claims":
            raise
        claims = {}
        if kind is None:
            print_message(str(error))
    tables: dict[str, Mapping[str, Any]] = {
        "tasks": TASKS,
        "schemes": SCHEMES,
        "encodings": ENCODINGS,
        "measures": MEASURES,
        "claims": claims,
        "counterexamples": COUNTEREXAMPLES,
    }
    rows: dict[str, list[dict[str, str]]] = {
        name: [{"name": key, "summary": entry.summary, "paper": entry.paper} for key, entry in entries.items()]
        for name, entries in tables.items()
    }
    for row in rows["schemes"]:
        row["given"] = describe_given_information(None, SCHEMES[row["name"]]())
    rows["recipes"] = [
        {"name": key, "summary": entry.summary, "paper": ""} for key, entry in (*RECIPES.items(), *COMPARISONS.items())
    ]
    if kind is not None:
        if kind not in rows:
            raise unknown_name_error("table", kind, rows)
        rows = {kind: rows[kind]}
    if as_json:
        print_json(rows)
        return
    for name, entries in rows.items():
        if entries:
            print_table(name, list(entries[0]), [list(entry.values()) for entry in entries], wrap=True)

"""Flags that several verbs of the command line have."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lengthwise.cli.parsing import whole_number

WHOLE: dict[str, Any] = {"parser": whole_number, "metavar": "INT"}
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
TaskName = Annotated[
    str | None, typer.Option("--task", help="A task's name, module:Name of your own, or a file of rows, FILE.jsonl.")
]
SchemeName = Annotated[
    str | None, typer.Option("--scheme", help="A position scheme's name, or module:Name of your own.")
]
EncodingName = Annotated[str | None, typer.Option("--encoding", help="An encoding's name, or module:Name of your own.")]
Quick = Annotated[bool, typer.Option("--quick", help="A size that only shows that everything runs.")]
Variants = Annotated[
    str | None, typer.Option("--variants", help="Named distributions of the task, such as uniform,carry.")
]
Out = Annotated[Path, typer.Option("--out", help="The folder to write.")]
Corpus = Annotated[Path | None, typer.Option(help="Text that lengthwise prepare wrote, for the task text.")]

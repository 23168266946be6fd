"""Verbs about text: what is made of it before a model sees it."""

from typing import Annotated

import typer

from lengthwise.cli.flags import WHOLE, Json, Out
from lengthwise.cli.parsing import share
from lengthwise.cli.progress import ProgressLine
from lengthwise.cli.terminal import err_console, print_json, print_table
from lengthwise.tasks.text.prepare import corpus_table, prepare_corpus
from lengthwise.tasks.text.text_records import FORM


def prepare(
    texts: Annotated[
        list[str], typer.Argument(metavar="TEXT...", help=f"Files, folders, {FORM}; or KIND=any of these.")
    ],
    out: Out,
    vocabulary_size: Annotated[
        int, typer.Option(**WHOLE, help="Tokens that text is made of, the end among them.")
    ] = 2048,
    held_out: Annotated[
        float, typer.Option(parser=share, metavar="SHARE", help="How much of each kind is kept from training.")
    ] = 0.1,
    seed: Annotated[int, typer.Option(**WHOLE, help="Of which documents are held out.")] = 0,
    as_json: Json = False,
) -> None:
    """Make a corpus of texts to train language models on: a tokenizer, tokens, and what is held out."""
    with ProgressLine(err_console) as progress:
        facts = prepare_corpus(
            texts, out, vocabulary_size=vocabulary_size, held_out=held_out, seed=seed, report=progress.prepared
        )
    if as_json:
        print_json({"folder": str(out), **facts})
        return
    print_table(f"{out}, {facts['vocabulary_size']:,} tokens", *corpus_table(facts))

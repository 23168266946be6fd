"""The ``prepare`` command, which builds a corpus for language models."""

from typing import Annotated

from typer import Argument

from lengthwise.cli import options
from lengthwise.cli.terminal import print_json, print_table
from lengthwise.core.defaults import SOURCE_FORMAT
from lengthwise.core.progress_line import ProgressLine, err_console


def prepare(
    texts: Annotated[
        list[str],
        Argument(
            metavar="TEXT...", help=f"Files, folders or {SOURCE_FORMAT}; write KIND=TEXT to name the kind of a text."
        ),
    ],
    out: options.OutputFolder,
    vocabulary_size: Annotated[int, options.integer_option("Vocabulary size, including the end token.")] = 2048,
    held_out: Annotated[
        float, options.number_option("Fraction of each kind of text to hold out.", "a fraction such as 0.1")
    ] = 0.1,
    seed: Annotated[int, options.integer_option("Random seed for selecting held-out documents.")] = 0,
    as_json: options.JsonFlag = False,
) -> None:
    """Build a corpus for language models, with a tokenizer, training tokens and held-out tokens."""
    from lengthwise.tasks.text.corpus import corpus_table, prepare_corpus

    with ProgressLine(err_console) as progress:
        corpus_metadata = prepare_corpus(
            texts, out, vocabulary_size=vocabulary_size, held_out=held_out, seed=seed, report=progress.show_count
        )
    if as_json:
        print_json({"folder": str(out), **corpus_metadata})
        return
    print_table(f"{out}, {corpus_metadata['vocabulary_size']:,} tokens", *corpus_table(corpus_metadata))

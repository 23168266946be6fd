"""The ``doctor`` command, which finds the usable context of a language model and the settings to change."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from lengthwise.cli import options
from lengthwise.cli.terminal import print_json, print_line, print_message
from lengthwise.core.defaults import SOURCE_FORMAT


def doctor(
    model: options.ModelName,
    texts: Annotated[
        list[str] | None,
        Argument(
            metavar="[TEXT]...",
            help=f"Files, folders or {SOURCE_FORMAT}.",
            show_default="held-out text of the run, or a few built-in pages",
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        Option(help="Numbers of tokens that the model reads, in increasing order.", show_default="by trained context"),
    ] = None,
    trained: Annotated[
        int | None,
        options.integer_option(
            "Number of tokens that the model was trained on.", show_default="read from its configuration"
        ),
    ] = None,
    minutes: Annotated[
        float, options.number_option("Time limit in minutes; fewer documents and lengths are measured if needed.")
    ] = 20.0,
    documents: Annotated[int, options.integer_option("Maximum number of documents to measure.")] = 12,
    tokenizer: options.TokenizerName = None,
    dtype: options.DataType = None,
    seed: Annotated[int, options.integer_option("Random seed for the choice of documents and targets.")] = 0,
    device: options.DeviceName = "auto",
    out: Annotated[Path, Option("--out", help="Page to write, ending in .html.")] = Path("doctor.html"),
    resume: Annotated[bool, Option("--resume", help="Continue after the last measured value.")] = False,
    as_json: options.JsonFlag = False,
) -> None:
    """Find how long the context of a model really is, whether texts need it, why it stops, and what to change."""
    from lengthwise.cli.influence_options import load_documents
    from lengthwise.core.interruption import StoppedError, catch_interrupts
    from lengthwise.core.progress_line import ProgressLine, err_console
    from lengthwise.doctor.examination import check_page_file, examine_model
    from lengthwise.doctor.settings import DoctorSettings
    from lengthwise.evaluation.language_model import tokenize_documents
    from lengthwise.hf.language_models import check_model_exists, load_language_model
    from lengthwise.tasks import Text
    from lengthwise.tasks.text.documents import Document

    settings = DoctorSettings(
        lengths=None if lengths is None else options.parse_integers(lengths, "--lengths"),
        trained=trained,
        minutes=minutes,
        documents=documents,
        seed=seed,
    )
    check_page_file(out, resume=resume)
    check_model_exists(model)
    print_message(f"loading {model}")
    loaded = load_language_model(model, tokenizer=tokenizer, device=device, dtype=dtype)
    notes = []
    if not texts and loaded.task is None:
        notes.append("No texts were given, so a few built-in pages were read; pass your own texts.")
        print_message(notes[0])
        codec = Text().tokenizer
        records = []
        for number, document in enumerate(Text().held_out()):
            text = b"".join(codec.pieces[token] for token in document.tokens).decode("utf-8", "replace")
            records.append(Document(name=f"built-in page {number}", text=text))
        tokenized = list(tokenize_documents(loaded.codec, records, loaded.model.vocabulary_size))
    else:
        tokenized = load_documents(loaded, texts, None, None)
    with ProgressLine(err_console) as progress, catch_interrupts() as should_stop:
        result = examine_model(
            loaded,
            tokenized,
            out,
            settings=settings,
            resume=resume,
            notes=notes,
            report=progress.show_count,
            stop=should_stop,
            announce=print_message,
        )
    if result is None:
        raise StoppedError(
            f"stopped and saved in {out.with_suffix('.jsonl')}; repeat the command with --resume to continue"
        )
    if as_json:
        print_json({"page": str(out), **result})
        return
    for box in result["boxes"].values():
        print_line(f"{box['title']}: {box['sentence']}")
    print_line(f"page: {out}")

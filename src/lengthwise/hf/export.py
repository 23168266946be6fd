"""A run folder as a folder of `transformers`, and back; nothing is lost on the way."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lengthwise.core.errors import ModelError, RunFolderError
from lengthwise.core.files import check_free, whole_folder
from lengthwise.core.paths import StrPath
from lengthwise.core.type_checks import typed
from lengthwise.encodings import ENCODINGS
from lengthwise.experiments.run_folder import (
    RUN_FOLDER,
    read_asked,
    read_experiment,
    read_model,
    write_claimed,
    write_model,
)
from lengthwise.tasks import KeepsFiles
from lengthwise.tasks.text.corpus import TOKENIZER

CONFIG = "config.json"


@typed
def export_hf(run: StrPath, out: StrPath, *, brought: Mapping[str, Any] | None = None) -> None:
    """Write a finished run as a folder that ``AutoModelForCausalLM.from_pretrained`` loads, with a tokenizer.

    ``brought`` holds a ``task``, ``scheme`` or ``encoding`` in place of the saved one, as of ``load_run``.
    ``RunFolderError`` where there is no run, or where ``out`` holds something already.
    """
    # Imported here: it takes seconds, and nothing else in a run needs it.
    from lengthwise.hf.lengthwise_config import config_of  # noqa: PLC0415
    from lengthwise.hf.lengthwise_model import LengthwiseForCausalLM  # noqa: PLC0415
    from lengthwise.hf.symbols import own_tokenizer, symbol_tokenizer  # noqa: PLC0415

    run, out = Path(run), Path(out)
    experiment, (tensors, facts) = read_experiment(run, brought=brought), read_model(run)
    if type(experiment.encoding) not in ENCODINGS.values():
        raise ModelError(
            f"the encoding {experiment.encoding.name} is a class of your own, which no folder for transformers can "
            "hold; export a run with one of: " + ", ".join(ENCODINGS)
        )
    check_free(out)
    tree = read_asked(run, RUN_FOLDER)
    kept = experiment.task.kept_files() if isinstance(experiment.task, KeepsFiles) else {}
    files = {name: content.decode() for name, content in kept.items()}
    model = LengthwiseForCausalLM(config_of(experiment, {"experiment": tree, "facts": facts, "files": files}))
    model.decoder.load_state_dict(tensors)
    symbols = experiment.task.vocabulary
    tokenizer = own_tokenizer(files[TOKENIZER]) if TOKENIZER in files else symbol_tokenizer(symbols)
    with whole_folder(out) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@typed
def import_hf(folder: StrPath, out: StrPath) -> None:
    """Write the run folder that an exported folder came from; its weights are those of the model now.

    ``RunFolderError`` for a folder that holds no such model, or where ``out`` holds something already.
    """
    from lengthwise.hf.lengthwise_model import LengthwiseForCausalLM  # noqa: PLC0415
    from lengthwise.hf.loading import load_pretrained  # noqa: PLC0415

    folder, out = Path(folder), Path(out)
    model = load_pretrained(str(folder)) if (folder / CONFIG).is_file() else None
    if not isinstance(model, LengthwiseForCausalLM):
        raise RunFolderError(f"{folder} holds no decoder of ours; give a folder that export --format hf made")
    if not model.config.run:
        raise RunFolderError(f"{folder} says of no run where it came from; export a run folder again")
    tree, files, facts = (model.config.run[key] for key in ("experiment", "files", "facts"))
    if outside := [name for name in files if Path(name).name != name]:
        raise RunFolderError(f"{folder} names a file outside of a run folder ({outside[0]}); export the run again")
    with whole_folder(out) as whole:
        write_claimed(whole, RUN_FOLDER, tree, {name: content.encode() for name, content in files.items()})
        write_model(whole, model.decoder.state_dict(), facts)

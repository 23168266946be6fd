"""A run folder as a folder of `transformers`, and back; nothing is lost on the way."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lengthwise.checkpoint import save_tensors, write_atomically
from lengthwise.corpus import TOKENIZER
from lengthwise.encodings import ENCODINGS
from lengthwise.errors import ModelError, RunFolderError
from lengthwise.folder import EXPERIMENT, MODEL, read_experiment, read_model
from lengthwise.paths import StrPath
from lengthwise.provenance import provenance
from lengthwise.tasks import KeepsFiles

CONFIG = "config.json"


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
    _check_free(out)
    tree = json.loads((run / EXPERIMENT).read_text())["experiment"]
    kept = experiment.task.kept_files() if isinstance(experiment.task, KeepsFiles) else {}
    files = {name: content.decode() for name, content in kept.items()}
    model = LengthwiseForCausalLM(config_of(experiment, {"experiment": tree, "facts": facts, "files": files}))
    model.decoder.load_state_dict(tensors)
    model.save_pretrained(out)
    symbols = experiment.task.vocabulary
    tokenizer = own_tokenizer(files[TOKENIZER]) if TOKENIZER in files else symbol_tokenizer(symbols)
    tokenizer.save_pretrained(out)


def import_hf(folder: StrPath, out: StrPath) -> None:
    """Write the run folder that an exported folder came from; its weights are those of the model now.

    ``RunFolderError`` for a folder that holds no such model, or where ``out`` holds something already.
    """
    from lengthwise.hf.lengthwise_model import LengthwiseForCausalLM  # noqa: PLC0415

    folder, out = Path(folder), Path(out)
    if not (folder / CONFIG).is_file() or json.loads((folder / CONFIG).read_text()).get("model_type") != "lengthwise":
        raise RunFolderError(f"{folder} holds no decoder of ours; give a folder that export --format hf made")
    model = LengthwiseForCausalLM.from_pretrained(folder)
    if not model.config.run:
        raise RunFolderError(f"{folder} says of no run where it came from; export a run folder again")
    _check_free(out)
    tree = {"experiment": model.config.run["experiment"], "provenance": provenance()}
    for name, content in model.config.run["files"].items():
        if Path(name).name != name:
            raise RunFolderError(f"{folder} names a file outside of a run folder ({name}); export the run again")
        write_atomically(out / name, content.encode())
    write_atomically(out / EXPERIMENT, json.dumps(tree, indent=2).encode() + b"\n")
    save_tensors(out / MODEL, model.decoder.state_dict(), model.config.run["facts"])


def _check_free(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunFolderError(f"{out} holds something already; choose another --out")

"""Options that several commands share, and functions that parse their values, importable without torch."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypeVar

from typer import Argument, Option

from lengthwise.core.errors import SettingError

Number = TypeVar("Number", int, float)


def _number_parser(convert: Callable[[str], Number], description: str) -> Callable[[str | Number], Number]:
    def parse(text: str | Number) -> Number:
        # Typer also passes the default, which is a number.
        try:
            return convert(str(text))
        except ValueError:
            raise SettingError(f"invalid number '{text}'; use {description}") from None

    return parse


def integer_option(help_text: str, **option_settings: Any) -> Any:
    """Return a Typer option for a whole number with this help text."""
    parser = _number_parser(int, "a whole number such as 20")
    return Option(parser=parser, metavar="INT", help=help_text, **option_settings)


def number_option(help_text: str, description: str = "a number such as 2.5") -> Any:
    """Return a Typer option for a number with this help text; errors contain the description of valid values."""
    return Option(parser=_number_parser(float, description), metavar="FLOAT", help=help_text)


def suggest_completions(module: str, *tables: str) -> Callable[[], list[str]]:
    """Return a function that lists the names in tables of a module, which it imports, for shell completion."""
    return lambda: [name for table in tables for name in getattr(import_module(module), table)]


def _table_option(flag: str, module: str, table: str, help_text: str) -> Any:
    return Option(flag, help=help_text, autocompletion=suggest_completions(module, table))


RunFolder = Annotated[Path, Argument(metavar="RUN", help="Folder of a trained run.")]
ModelName = Annotated[
    str, Argument(metavar="MODEL", help="Run folder, model folder, GGUF file or model name on the Hugging Face Hub.")
]
DataType = Annotated[
    str | None, Option("--dtype", help="Data type of a transformers model: float32, bfloat16 or float16.")
]
JsonFlag = Annotated[bool, Option("--json", help="Print the results as one JSON document.")]
DeviceName = Annotated[str, Option(help="Device: auto, cpu or cuda.")]
TaskName = Annotated[
    str | None, _table_option("--task", "lengthwise.tasks", "TASKS", "Task: a name, module:Name or FILE.jsonl.")
]
SCHEME_HELP = "Position scheme: a name, module:Name, or discovered, which finds a coupling."
SchemeName = Annotated[str | None, _table_option("--scheme", "lengthwise.positions", "SCHEMES", SCHEME_HELP)]
EncodingName = Annotated[
    str | None,
    _table_option("--encoding", "lengthwise.encodings", "ENCODINGS", "Encoding: a name or module:Name."),
]
QuickFlag = Annotated[bool, Option("--quick/--no-quick", help="Run at a tiny size to test the command.")]
VariantNames = Annotated[str | None, Option(help="Task variants to evaluate, such as uniform,carry.")]
NumExamples = Annotated[str | None, Option(help="Number of examples per length: one number, or a list such as 512,64.")]
TrainLengthRange = Annotated[
    str | None, Option(help="Range of training lengths, such as 1:20.", show_default="set by the recipe")
]
ExampleSeed = Annotated[int, integer_option("Random seed for sampling examples.")]
NumWorkers = Annotated[
    int | None, integer_option("Number of runs at the same time.", show_default="one per core; with ray, one per CPU")
]
TrackerNames = Annotated[
    list[str] | None,
    Option("--tracker", help="Also send the metrics to tensorboard, trackio or wandb; repeat the flag for several."),
]
ExecutorName = Annotated[str, Option("--executor", help="Place of the runs: local, or ray for a cluster of ray.")]
ClusterAddress = Annotated[
    str | None, Option("--address", help="Address of a ray cluster.", show_default="a new cluster on this machine")
]
OutputFolder = Annotated[Path, Option("--out", help="Output folder.")]
Assignments = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="NAME=VALUE",
        help="A setting by its name in experiment.json, such as training.learning_rate=1e-3; repeatable.",
    ),
]
ConfigFile = Annotated[
    Path | None, Option("--config", help="TOML or JSON file with settings, named as in experiment.json.")
]
TokenizerName = Annotated[
    str | None,
    Option("--tokenizer", help="Folder or name of a tokenizer that replaces the tokenizer of the model."),
]
CorpusFolder = Annotated[Path | None, Option(help="Corpus folder from lengthwise prepare; requires --task text.")]


def parse_range(text: str) -> tuple[int, int]:
    """Parse a range of lengths such as ``1:20``; raise ``SettingError`` for another format."""
    try:
        shortest_length, longest_length = (int(number_text) for number_text in text.split(":"))
    except ValueError:
        raise SettingError(f"invalid range of lengths '{text}'; use shortest:longest, such as 1:20") from None
    return shortest_length, longest_length


def parse_integers(text: str, flag: str) -> tuple[int, ...]:
    """Parse comma-separated whole numbers such as ``20,200``."""
    try:
        return tuple(int(number_text) for number_text in text.split(","))
    except ValueError:
        raise SettingError(f"invalid {flag} '{text}'; use whole numbers separated by commas, such as 20,200") from None


def split_names(text: str) -> tuple[str, ...]:
    """Split comma-separated names and strip spaces."""
    return tuple(name.strip() for name in text.split(","))


def reject_flags(reason: str, **flags: object) -> None:
    """Raise ``SettingError`` for the first flag that is not None; ``reason`` completes the message."""
    for flag_name, flag_value in flags.items():
        if flag_value is not None:
            raise SettingError(f"--{flag_name} {flag_value} {reason}; leave out --{flag_name}")

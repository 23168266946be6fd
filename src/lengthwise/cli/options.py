"""Options that several commands share, and functions that convert their values to experiments and settings."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from typer import Argument, Option

from lengthwise.cli.terminal import print_search_progress
from lengthwise.core.errors import SettingError, unknown_name
from lengthwise.encodings import ENCODINGS
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment, load_task, resolve_override
from lengthwise.experiments.recipes import COMPARISONS, RECIPES, experiment_for, recipe
from lengthwise.positions import SCHEMES
from lengthwise.tasks import TASKS, HasLengths, Task, Text, default_lengths, is_task_file
from lengthwise.tasks.text.corpus import open_corpus

Number = TypeVar("Number", int, float)


def _number_parser(convert: Callable[[str], Number], description: str) -> Callable[[str | Number], Number]:
    def parse(text: str | Number) -> Number:
        # Typer also passes the default, which is a number.
        try:
            return convert(str(text))
        except ValueError:
            raise SettingError(f"invalid number '{text}'; use {description}") from None

    return parse


def integer(help_text: str, **option_settings: Any) -> Any:
    """Return a Typer option for a whole number with this help text."""
    parser = _number_parser(int, "a whole number such as 20")
    return Option(parser=parser, metavar="INT", help=help_text, **option_settings)


def fraction(help_text: str) -> Any:
    """Return a Typer option for a fraction with this help text."""
    return Option(parser=_number_parser(float, "a fraction such as 0.1"), metavar="FLOAT", help=help_text)


RunFolder = Annotated[Path, Argument(metavar="RUN", help="Folder of a trained run.")]
JsonFlag = Annotated[bool, Option("--json", help="Print the results as one JSON document.")]
DeviceName = Annotated[str, Option(help="Device: auto, cpu or cuda.")]
TaskName = Annotated[
    str | None, Option("--task", help="Task: a name, module:Name or FILE.jsonl.", autocompletion=lambda: list(TASKS))
]
SchemeName = Annotated[
    str | None,
    Option(
        "--scheme",
        help="Position scheme: a name, module:Name, or discovered, which finds a coupling.",
        autocompletion=lambda: list(SCHEMES),
    ),
]
EncodingName = Annotated[
    str | None,
    Option("--encoding", help="Encoding: a name or module:Name.", autocompletion=lambda: list(ENCODINGS)),
]
QuickFlag = Annotated[bool, Option("--quick/--no-quick", help="Run at a tiny size to test the command.")]
VariantNames = Annotated[str | None, Option(help="Task variants to evaluate, such as uniform,carry.")]
NumExamples = Annotated[str | None, Option(help="Number of examples per length: one number, or a list such as 512,64.")]
TrainLengthRange = Annotated[
    str | None, Option(help="Range of training lengths, such as 1:20.", show_default="set by the recipe")
]
ExampleSeed = Annotated[int, integer("Random seed for sampling examples.")]
NumJobs = Annotated[int | None, integer("Number of parallel processes.", show_default="one per core")]
TrackerNames = Annotated[
    list[str] | None,
    Option("--tracker", help="Also send the metrics to tensorboard, trackio or wandb; repeat the flag for several."),
]
ExecutorName = Annotated[str, Option("--executor", help="Place of the runs: local, or ray for a cluster of ray.")]
ClusterAddress = Annotated[
    str | None, Option("--address", help="Address of a ray cluster.", show_default="a new cluster on this machine")
]
OutputFolder = Annotated[Path, Option(help="Output folder.")]
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
CorpusFolder = Annotated[Path | None, Option(help="Corpus folder from lengthwise prepare; requires --task text.")]


def experiment_from_names(name: str | None, task: str | None, scheme: str | None, encoding: str | None) -> Experiment:
    """Return the recipe with this name, or the experiment with this task, scheme and encoding."""
    if name is not None and (task, scheme, encoding) != (None, None, None):
        raise SettingError(f"recipe '{name}' sets task, scheme and encoding; leave out the recipe or these flags")
    if name in COMPARISONS:
        raise SettingError(f"'{name}' is a comparison of several experiments; use lengthwise compare {name}")
    if name is not None:
        return recipe(name)
    if task is None:
        raise SettingError(f"no experiment to train; add the name of a recipe ({', '.join(RECIPES)}) or --task")
    return experiment_for(task, "predicted" if scheme is None else scheme, encoding, report=print_search_progress)


def override_training(
    experiment: Experiment,
    *,
    train_lengths: str | None = None,
    num_position_ids: int | None = None,
    head: str | None = None,
    **training_settings: int | None,
) -> Experiment:
    """Return the experiment with the values of the training flags; None keeps the value of the experiment.

    ``training_settings`` are fields of ``TrainingSettings``.
    """
    changes: dict[str, Any] = {name: value for name, value in training_settings.items() if value is not None}
    training = replace(experiment.training, **changes)
    scheme = experiment.scheme
    if num_position_ids is not None:
        if scheme.num_position_ids is None:
            raise SettingError(f"scheme {scheme.name} has no ID range; leave out --num-position-ids")
        scheme_settings = {field.name: getattr(scheme, field.name) for field in fields(scheme)}  # type: ignore[arg-type]
        scheme = type(scheme)(**{**scheme_settings, "num_position_ids": num_position_ids})
    decoder = experiment.decoder if head is None else replace(experiment.decoder, head=head)
    lengths = experiment.train_lengths if train_lengths is None else parse_range(train_lengths)
    return replace(experiment, training=training, scheme=scheme, decoder=decoder, train_lengths=lengths)


def override_corpus(experiment: Experiment, corpus: Path | None) -> Experiment:
    """Return the experiment with the absolute path of a corpus, so that the run loads from any working folder."""
    if corpus is None:
        return experiment
    task = experiment.task
    if not isinstance(task, Text):
        raise SettingError(f"task {task.name} uses no corpus; leave out --corpus, or train the recipe language_model")
    open_corpus(corpus)
    return replace(experiment, task=replace(task, corpus=str(corpus.absolute())))


def override_evaluation(
    settings: EvaluationSettings,
    lengths: str | None,
    num_examples: str | None,
    variants: str | None,
    *,
    task: Task | None,
) -> EvaluationSettings:
    """Return the settings with the values of the evaluation flags; without ``lengths``, a JSONL ``task`` sets them."""
    first_number = settings.num_examples[:1]
    if lengths is None and isinstance(task, HasLengths):
        settings = replace(settings, lengths=default_lengths(task), num_examples=first_number)
    if lengths is not None:
        settings = replace(settings, lengths=parse_integers(lengths, "--lengths"), num_examples=first_number)
    if num_examples is not None:
        settings = replace(settings, num_examples=parse_integers(num_examples, "--num-examples"))
    if variants is not None:
        settings = replace(settings, variants=split_names(variants))
    return settings


def experiments_from_names(names: list[str], task: str | None, rows: str | None) -> dict[str, Experiment]:
    """Return experiments by label.

    ``names`` are recipes or one comparison. If ``names`` is empty, ``rows`` contains pairs ``scheme/encoding`` for
    ``task``.
    """
    labels = None if rows is None else split_names(rows)
    if len(names) == 1 and names[0] in COMPARISONS and task is None:
        experiments = COMPARISONS[names[0]]()
        labels = tuple(experiments) if labels is None else labels
        return {label: _comparison_row(experiments, label, names[0]) for label in labels}
    if names and (task is not None or rows is not None):
        raise SettingError("recipes cannot be combined with --task and --rows; use only recipes or only these flags")
    if names:
        return {name: _load_recipe(name) for name in names}
    if task is None or labels is None:
        known_names = ", ".join((*RECIPES, *COMPARISONS))
        raise SettingError(f"no experiments to compare; add names of recipes ({known_names}), or --task and --rows")
    # All rows share one task object, so a JSONL file is read only once.
    shared_task = load_task(task) if is_task_file(task) else task
    return {label: _experiment_from_label(shared_task, label) for label in labels}


def _comparison_row(experiments: Mapping[str, Experiment], label: str, comparison: str) -> Experiment:
    if label not in experiments:
        raise unknown_name(f"row of {comparison}", label, experiments)
    return experiments[label]


def _load_recipe(name: str) -> Experiment:
    if name in COMPARISONS:
        raise SettingError(
            f"comparison '{name}' cannot be combined with other names; use only one comparison, or only recipes"
        )
    if name not in RECIPES:
        raise unknown_name("recipe", name, (*RECIPES, *COMPARISONS))
    return recipe(name)


def _experiment_from_label(task: str | Task, label: str) -> Experiment:
    if label.count("/") != 1:
        raise SettingError(f"invalid row '{label}'; use a scheme and an encoding, such as predicted/rotary")
    return experiment_for(task, *label.split("/"), report=print_search_progress)


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


def parse_overrides(**names: str | None) -> dict[str, Any]:
    """Return the classes or tasks that replace the task, scheme or encoding of a saved run, by kind."""
    return {kind: resolve_override(kind, name) for kind, name in names.items() if name is not None}

"""Errors that users can cause: one line with the invalid value, the limit and the change to make."""

import ast
import json
import math
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from claims.sparsity_in_text.paired_contexts import ContextSettings, measure_paired_targets
from tests.support.planted_model import PlantedModel, additive_log_prob
from tests.support.small_runs import small_experiment

import lengthwise
from lengthwise.cli.config_file import parse_assignment, read_config, read_setting_changes, select_component_names
from lengthwise.core.errors import (
    OTHER_NAMES,
    DeviceError,
    LengthwiseError,
    PositionIDError,
    PositionRangeError,
    PromptError,
    RunFolderError,
    SettingError,
    TaskFileError,
    TextSourceError,
    UnknownNameError,
    UnsupportedTaskError,
    WorkerError,
    unknown_name_error,
)
from lengthwise.encodings import (
    DAPE,
    ENCODINGS,
    FIRE,
    NAPE,
    NTK,
    CoPE,
    DAPEv2,
    DynamicNTK,
    Encoding,
    EncodingSize,
    HardALiBi,
    KERPLEPower,
    Learned,
    LinearInterpolation,
    NoPE,
    PartialRotary,
    RePo,
    Rotary,
    SelectiveRotary,
    T5Bias,
    Weave,
    YaRN,
)
from lengthwise.encodings.encoding import FLAGS
from lengthwise.encodings.multi_level import MultiLevelEncoding
from lengthwise.evaluation.language_model import BytePairTokenizerAdapter
from lengthwise.experiments.experiment import Experiment, change_settings
from lengthwise.experiments.progress_reports import TRACKERS, MetricsReporter, check_trackers
from lengthwise.experiments.runner import sweep
from lengthwise.experiments.setting_checks import check_settings
from lengthwise.experiments.sweep_file import read_sweep_file
from lengthwise.model.decoder import Decoder
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.model.generate import generate
from lengthwise.positions import (
    SCHEMES,
    Abacus,
    Coupled,
    MultiLevel,
    Predicted,
    RandomFloats,
    Randomized,
    RandomStart,
    Sequential,
    Skipwise,
)
from lengthwise.positions.scheme import require_step_index
from lengthwise.report.page import write_report
from lengthwise.tasks import (
    TASKS,
    Addition,
    Copy,
    IndexHints,
    JSONLTask,
    MarkovChain,
    MultiAddition,
    Multiplication,
    MultiQueryRecall,
    Parity,
    PlantedCorrelations,
    Recall,
    Reverse,
    Sort,
    SparseParity,
    Text,
    VariableAssignment,
)
from lengthwise.tasks.planted.placement import (
    LengthDependentPlacement,
    LocalPlacement,
    SubsetPlacement,
    UniformShapePlacement,
)
from lengthwise.tasks.text.corpus import prepare_corpus
from lengthwise.theory.risk.bayes import build_bayes_attention, check_realizability
from lengthwise.theory.risk.exact_risk import TotalVariationLoss
from lengthwise.theory.risk.risk_at_length import exact_erm, training_lengths
from lengthwise.training.batch import TrainingSampler
from lengthwise.training.launch import LaunchInfo, read_launch_info
from lengthwise.training.process_group import ProcessGroup, join_processes

SOURCE = Path(lengthwise.__file__).parent
# Files whose every raise statement has a case below; errors of the excluded files have their own tests.
COVERED = (
    "tasks/*.py",
    "positions/*.py",
    "encodings/*.py",
    "model/*.py",
    "model/position_heads/*.py",
    "training/batch.py",
    "training/launch.py",
    "training/process_group.py",
    "cli/config_file.py",
    "experiments/sweep_file.py",
    "report/*.py",
)
EXCLUDED = {"jsonl_table.py", "reasoning_gym.py", "text_format.py"}
# Functions whose every raise statement has a case below, although others of the same file have not.
COVERED_FUNCTIONS = {
    "experiments/experiment.py": ("change_settings", "_new_value", "_split_group"),
    "experiments/executors.py": ("select_executor",),
    "experiments/runner.py": ("sweep", "_sweep_jobs"),
}


def assign(scheme: str, *, coupling: str = "next", **settings: int) -> None:
    """Assign training IDs to parity of 6 bits."""
    rng = np.random.default_rng(0)
    examples = Parity(coupling=coupling).sample(length=6, size=2, rng=rng)
    SCHEMES[scheme](**settings).assign(examples, rng, training=True)


def sample(task: str, length: int, size: int) -> None:
    TASKS[task]().sample(length=length, size=size, rng=np.random.default_rng(0))


def sampler(lengths: tuple[int, int] = (1, 4), batch_size: int = 2) -> None:
    TrainingSampler(task=Parity(), scheme=Sequential(), lengths=lengths, batch_size=batch_size, seed=0)


def check_missing_tracker() -> None:
    """Use a tracker whose library is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TRACKERS, "missing_library", TRACKERS["wandb"])
        check_trackers(["missing_library"])


def read_damaged_trackers() -> None:
    """Continue a run whose file of trackers has an invalid entry."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "trackers.json").write_text('{"id": 3, "trackers": []}')
        reports = MetricsReporter(report=None, trackers=["wandb"])
        with reports.open(Path(folder), small_experiment(), first_step=1):
            pytest.fail("the damaged file was read")


def predict_ids_without_a_head() -> None:
    decoder = Decoder(DecoderSettings(d_model=8), NoPE(), vocabulary_size=4)
    tokens = torch.zeros(1, 2, dtype=torch.int64)
    decoder.build_prompt_keys(tokens, tokens[None], torch.tensor([2]))


def forward(position_ids: torch.Tensor) -> None:
    """Run a decoder with 5 learned IDs on one sequence of 2 tokens."""
    decoder = Decoder(DecoderSettings(d_model=8), Learned(num_position_ids=5), vocabulary_size=4)
    decoder(torch.zeros(1, 2, dtype=torch.int64), position_ids)


def generate_with_ids(num_ids: int) -> None:
    """Generate two tokens after a prompt of two tokens with this number of IDs."""
    decoder = Decoder(DecoderSettings(d_model=8), NoPE(), vocabulary_size=4)
    ids = torch.zeros(1, 1, num_ids, dtype=torch.int64)
    generate(decoder, torch.zeros(1, 2, dtype=torch.int64), ids, end=3, max_new_tokens=2)


def couple_on_two_levels() -> None:
    """Use a coupling of two levels with a scheme of one level."""
    examples = Parity().sample(length=2, size=1, rng=np.random.default_rng(0))
    assert examples.coupling is not None
    on_two_levels = replace(examples, coupling=np.concatenate([examples.coupling, examples.coupling]))
    Coupled().assign(on_two_levels, np.random.default_rng(0), training=True)


def require_missing_step_index() -> None:
    require_step_index(replace(Parity().sample(length=2, size=1, rng=np.random.default_rng(0)), step_index=None))


def launch_environment(**changes: str) -> dict[str, str]:
    """Return the variables of the second of two processes."""
    names = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    return {**names, **changes}


def in_several_processes(function: Callable[..., object]) -> None:
    """Call a function for many experiments, as if a launcher had started two processes."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        for name, value in launch_environment().items():
            patch.setenv(name, value)
        function({"a": small_experiment()}, Path(folder) / "out", device="cpu")


def join_with_one_gpu() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        join_processes(LaunchInfo(rank=1, local_rank=1, size=2), "cuda")


def fail_in_another_process() -> None:
    def gather(errors: list[Exception | None], error: Exception | None) -> None:
        errors[:] = [SettingError("length 0 is too short; use at least 1"), error]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.distributed, "all_gather_object", gather)
        ProcessGroup(rank=1, size=2).call_in_all(lambda: None)


def lose_another_process() -> None:
    def fail(tensor: torch.Tensor) -> None:
        raise RuntimeError("Connection closed by peer [127.0.0.1]:1\nframes")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.distributed, "all_reduce", fail)
        ProcessGroup(rank=0, size=2).all_reduce_sum([torch.ones(2)])


def use_entmax_without_the_library() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "entmax", None)
        DecoderSettings(weights="entmax")


def build_unchecked(settings: type[Any], **values: object) -> None:
    """Build settings without type checks of the constructor, as in a user's process."""
    instance = object.__new__(settings)
    for part in fields(settings):
        object.__setattr__(instance, part.name, values.get(part.name, part.default))
    instance.__post_init__()


def hook_without_its_flag(hook: str) -> None:
    type("Mine", (Encoding,), {hook: lambda self, *arguments: None})


def train_on_another_corpus() -> None:
    """Read a corpus that differs from the corpus of the run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "text.txt").write_text("some text\n" * 9)
        for seed in (0, 1):
            prepare_corpus([str(path / "text.txt")], path / str(seed), vocabulary_size=260, seed=seed)
        Text(corpus=str(path / "0"), run_folder=str(path / "1")).held_out()


def read_damaged_tokens(content: str) -> None:
    """Read the token names of a run from a damaged file."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rows.json").write_text(content)
        JSONLTask().from_run_folder(Path(folder))


def read_changed_file() -> None:
    """Read a JSONL file after a change of a record."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        file.write_text('{"prompt": "a", "response": "b"}')
        task = JSONLTask(file=str(file))
        file.write_text('{"prompt": "a", "response": "c"}')
        task.read()


def read_sweep(document: Any, name: str = "grid.json") -> None:
    """Read a sweep file with this JSON document, or with this text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        import_path, modules = list(sys.path), set(sys.modules)
        try:
            read_sweep_file(path)
        finally:
            sys.path[:] = import_path
            for module in set(sys.modules) - modules:
                del sys.modules[module]


def report_on(files: dict[str, str], out: str = "page.html") -> None:
    """Write a report of a folder with these files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_text(content)
        write_report([folder], Path(folder) / out, diagnose=False)


def report_on_row(**changes: Any) -> None:
    """Write a report of a run whose only result row has these changes; None removes a value."""
    row = {"task": "parity", "seed": 0, "length": 20, "num_examples": 64, "low": None, "high": None, "steps": 9}
    row |= {"train_lengths": [1, 10], "fitted": 1.0, "exact_match": 0.5, **changes}
    present = {name: value for name, value in row.items() if name not in changes or value is not None}
    report_on({"experiment.json": '{"experiment": {"seed": 0}}', "results.jsonl": json.dumps(present)})


def report_without_plotly() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "plotly.offline", None)
        report_on({})


def sweep_nothing(experiments: Any, **settings: Any) -> None:
    """Start a sweep that has an invalid setting."""
    with tempfile.TemporaryDirectory() as folder:
        sweep(experiments, Path(folder) / "out", device="cpu", **settings)


def build_no_encoding() -> None:
    settings = type("Mine", (NoPE,), {"build": lambda self, size: None})()
    MultiLevelEncoding(settings, EncodingSize(d_model=16, num_heads=2, d_head=8), num_levels=1)


def change(*assignments: str, **parts: Any) -> Experiment:
    """Change settings of the default experiment, or of the experiment with other parts."""
    experiment = Experiment(**parts)
    return change_settings(experiment, [parse_assignment(assignment) for assignment in assignments])


def change_from_file(name: str, content: str) -> Experiment:
    """Change settings of the default experiment by a file in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(content)
        return change_settings(Experiment(), read_config(path))


SETTING_CASES: list[tuple[Callable[[], object], type[LengthwiseError], str]] = [
    (
        lambda: check_settings(small_experiment(length_tilt=2.0)),
        SettingError,
        r"^length_tilt 2 has no effect, because every step has one length; use several training lengths, and at least "
        r"2 for lengths_per_batch and batch_size, or length_tilt 0$",
    ),
    (
        lambda: parse_assignment("training.steps"),
        SettingError,
        r"^invalid --set training.steps; use NAME=VALUE, such as --set training.learning_rate=1e-3$",
    ),
    (
        lambda: read_setting_changes({"assignments": ["training.steps=5", "seed=1"], "steps": 7, "seed": None}),
        SettingError,
        r"^--set training.steps=5 and --steps 7 set the same setting; use only one of them$",
    ),
    (
        lambda: change("training.lerning_rate=1"),
        UnknownNameError,
        r"^--set training.lerning_rate=1: unknown setting of training 'lerning_rate'; did you mean 'learning_rate'\? k",
    ),
    (
        lambda: change("trainin.steps=1"),
        UnknownNameError,
        r"^--set trainin.steps=1: unknown setting of experiment 'trainin'; did you mean 'training'\? known: decoder, e",
    ),
    (
        lambda: change("training.learning_rate=high"),
        SettingError,
        r"^--set training.learning_rate=high: learning_rate 'high' has the wrong type; use a number$",
    ),
    (
        lambda: change("training.steps=0", "training.clip=2"),
        SettingError,
        r"^--set training.steps=0: steps 0 is too small; use at least 1$",
    ),
    (
        lambda: change("decoder.d_model=10", "decoder.num_heads=4", "decoder.segments=false"),
        SettingError,
        r"^--set decoder.d_model=10, --set decoder.num_heads=4: d_model 10 is not a multiple of num_heads 4; change",
    ),
    (
        lambda: change("training.steps.x=0"),
        SettingError,
        r"^--set training.steps.x=0: steps is a single setting without 'x'; use only steps$",
    ),
    (
        lambda: change("encoding=nope"),
        SettingError,
        r"^--set encoding=nope: encoding is a group of settings \(base, fastest\); use a name such as encoding.SETTING"
        r", or --encoding to choose another encoding$",
    ),
    (
        lambda: change("scheme.max_gaps=3", scheme=Sequential()),
        SettingError,
        r"^--set scheme.max_gaps=3: scheme sequential has no settings; leave it out$",
    ),
    (
        lambda: change("task.name=copy"),
        SettingError,
        r"^--set task.name=copy: the task is 'parity', not 'copy'; use --task to choose another task$",
    ),
    (
        lambda: change("task.placement.name=subsets", task=PlantedCorrelations()),
        SettingError,
        r"^--set task.placement.name=subsets: the placement is '\w+', not 'subsets'; use the same name$",
    ),
    (
        lambda: change(
            'task.placement.laws=[{"name": "locl"}]', task=PlantedCorrelations(placement=LengthDependentPlacement())
        ),
        UnknownNameError,
        r"^--set task.placement.laws=.*: unknown saved laws 'locl'",
    ),
    (
        lambda: change_from_file("config.toml", "seed = 3\n\n[training]\nlerning_rate = 0.1\n"),
        UnknownNameError,
        r"config.toml line 4: unknown setting of training 'lerning_rate'; did you mean 'learning_rate'\?",
    ),
    (
        lambda: change_from_file("config.yaml", ""),
        SettingError,
        r"^--config .*config.yaml is not a .toml or .json file; use a file with one of these endings$",
    ),
    (
        lambda: read_config(Path("nowhere.toml")),
        SettingError,
        r"^--config nowhere.toml cannot be read \(No such file or directory\); use a readable file$",
    ),
    (
        lambda: change_from_file("config.toml", "[training]\nsteps 5\n"),
        SettingError,
        r"config.toml is not valid TOML \(.*line 2.*\); fix the file$",
    ),
    (
        lambda: change_from_file("config.json", '{"training":\n {"steps": 5,}}'),
        SettingError,
        r"config.json is not valid JSON \(.*line 2.*\); fix the file$",
    ),
    (
        lambda: select_component_names(
            [parse_assignment("task.name=my_tasks:Mine")], task=None, scheme=None, encoding=None
        ),
        SettingError,
        r"^--set task.name=my_tasks:Mine: unknown task 'my_tasks:Mine'; use --task for a custom task, or one of add",
    ),
]


FIRST_LENGTHS = {name: task().min_length for name, task in TASKS.items()}


def pair(gap: int) -> LocalPlacement:
    """Return a placement of two tokens at this distance."""
    return LocalPlacement(shapes=((0, gap),), weights=(1.0,))


def minimize(num_heads: int, objective: str) -> None:
    """Minimize the risk over copies of the posterior of the default law."""
    exact_erm(
        PlantedCorrelations(),
        [build_bayes_attention(PlantedCorrelations(), 8)] * num_heads,
        (8,),
        TotalVariationLoss(),
        objective,
    )


def check_witness(placement: LocalPlacement, lengths: tuple[int, ...] = (8,), **settings: Any) -> None:
    """Check a witness of the default law that is the posterior of a law with this placement."""
    check_realizability(
        PlantedCorrelations(), build_bayes_attention(PlantedCorrelations(placement=placement, **settings), 8), lengths
    )


THEORY_CASES: list[tuple[Callable[[], object], type[LengthwiseError], str]] = [
    (lambda: minimize(1, "mean"), UnknownNameError, r"unknown objective 'mean'; known: averaged, minimax$"),
    (lambda: minimize(0, "averaged"), SettingError, r"invalid 0 predictors and 1 lengths; use at least 1 of each$"),
    (lambda: training_lengths(0), SettingError, r"invalid longest training length 0; use 1 or more$"),
    (lambda: check_witness(pair(1), ()), SettingError, r"no lengths to check the witness at; use at least one length,"),
    (
        lambda: check_witness(pair(6)),
        SettingError,
        r"a span of 7 tokens, .* class with span 3; use a witness with a span of at most 3 tokens$",
    ),
    (
        lambda: check_witness(pair(1), background=(0.5, 0.5, 0.0, 0.0, 0.0)),
        SettingError,
        r"witness reads sets of 2 of 5 tokens, but the law plants 2 of 4; use a witness with the set size and",
    ),
]

PLANTED_CASES: list[tuple[Callable[[], object], type[LengthwiseError], str]] = [
    (
        lambda: PlantedCorrelations(background=(0.5, 0.6, 0.0, -0.1)),
        SettingError,
        r"^token 3 of the background has probability -0.1; use a probability between 0 and 1$",
    ),
    (
        lambda: PlantedCorrelations(background=(0.5, math.nan, 0.5, 0.0)),
        SettingError,
        r"^background \(0.5, nan, 0.5, 0.0\) is not finite; use a finite number$",
    ),
    (
        lambda: PlantedCorrelations(background=(0.5, 0.3, 0.0, 0.0)),
        SettingError,
        r"^the probabilities of the background have the sum 0.8 instead of 1; divide them by 0.8$",
    ),
    (
        lambda: PlantedCorrelations(background=(0.0, 0.0, 0.0, 0.0)),
        SettingError,
        r"the probabilities of the background are all 0 or missing; use at least one positive probability",
    ),
    (
        lambda: PlantedCorrelations(probabilities=(0.25, 0.25, 0.25, 1.25)),
        SettingError,
        r"planted tuple \(3, 3\) has probability 1.25; use a probability",
    ),
    (
        lambda: PlantedCorrelations(labels=((1.0, 0.0), (0.0, 1.0), (0.5, 0.4), (1.0, 0.0))),
        SettingError,
        r"the label probabilities of planted tuple \(3, 2\) have the sum 0.9 instead of 1; divide them by 0.9",
    ),
    (
        lambda: PlantedCorrelations(labels=((1.0, 0.0), (1.0,), (0.0, 1.0), (1.0, 0.0))),
        SettingError,
        r"planted tuple \(2, 3\) has 1 label probabilities; use 2 label probabilities, as for the first",
    ),
    (
        lambda: PlantedCorrelations(tuples=(), probabilities=(), labels=()),
        SettingError,
        r"the planted task has no tuples; set tuples to at",
    ),
    (
        lambda: PlantedCorrelations(probabilities=(0.5, 0.5)),
        SettingError,
        r"4 planted tuples have 2 probabilities and 4 label distributions; give each tuple one",
    ),
    (
        lambda: PlantedCorrelations(tuples=((2, 2), (2, 3), (3, 2), (3, 3, 3))),
        SettingError,
        r"planted tuple \(3, 3, 3\) has 3 tokens; use 2 tokens, as in the placement",
    ),
    (
        lambda: PlantedCorrelations(tuples=((2, 2), (2, 3), (3, 2), (3, 4))),
        SettingError,
        r"planted tuple \(3, 4\) has an invalid token; use tokens from 0 to 3",
    ),
    (
        lambda: PlantedCorrelations(tuples=((2, 2), (2, 3), (3, 2), (2, 2))),
        SettingError,
        r"tuples contains the same tuple twice; list each tuple once, with its total probability",
    ),
    (
        lambda: PlantedCorrelations(background=(1 / 60,) * 60),
        SettingError,
        r"the background has 60 tokens; use at most 52",
    ),
    (
        lambda: (
            PlantedCorrelations(
                background=(1 / 52,) * 52,
                tuples=((0,) * 5,),
                probabilities=(1.0,),
                labels=((1.0, 0.0),),
                placement=SubsetPlacement(num_planted=5),
            ).tuple_code_probabilities
        ),
        SettingError,
        r"5 of 52 tokens give 380,204,032 tuples, more than 4,194,304; use fewer tokens or a smaller k",
    ),
    (
        lambda: PlantedCorrelations().example_from_prompt("abxa"),
        PromptError,
        r"invalid symbol 'x' in a prompt of planted; write letters",
    ),
    (
        lambda: PlantedCorrelations().example_from_prompt("c"),
        PromptError,
        r"'c' is too short for 2 planted tokens; write at",
    ),
    (
        lambda: PlantedCorrelations().example_from_prompt("cabd"),
        PromptError,
        r"'cabd' has probability 0; write cc or cd or dc in a shape of the placement, and background",
    ),
    (
        lambda: LocalPlacement(shapes=(), weights=()),
        SettingError,
        r"the placement has no shape; use at least one shape such as",
    ),
    (
        lambda: LocalPlacement(shapes=((0, 2, 1),), weights=(1.0,)),
        SettingError,
        r"invalid shape \(0, 2, 1\); use distances from the first token such as \(0, 1, 4\)",
    ),
    (
        lambda: LocalPlacement(shapes=((0, 1), (0, 1, 2)), weights=(0.5, 0.5)),
        SettingError,
        r"shape \(0, 1, 2\) has 3 tokens; use 2, as in the first shape",
    ),
    (
        lambda: LocalPlacement(shapes=((0, 1), (0, 4)), weights=(0.5, 0.5), widest=4),
        SettingError,
        r"shape \(0, 4\) spans 5 tokens but widest is 4; set widest to at least 5",
    ),
    (
        lambda: LocalPlacement(shapes=((0, 1), (0, 1)), weights=(0.5, 0.5)),
        SettingError,
        r"shapes .* contain a shape twice; use each shape once with its total weight",
    ),
    (lambda: LocalPlacement(weights=(1.0,)), SettingError, r"2 shapes have 1 weights; use one weight per shape"),
    (
        lambda: LocalPlacement(weights=(0.5, 0.4)),
        SettingError,
        r"the weights of the shapes have the sum 0.9 instead of 1; divide them by 0.9",
    ),
    (
        lambda: LocalPlacement(weights=(-0.5, 1.5)),
        SettingError,
        r"shape \(0, 1\) has probability -0.5; use a probability",
    ),
    (
        lambda: LocalPlacement().offset_distribution(1),
        SettingError,
        r"length 1 is too short for 2 planted tokens; use at least 2",
    ),
    (lambda: SubsetPlacement(num_planted=0), SettingError, r"num_planted 0 is too small; use at least 1"),
    (
        lambda: SubsetPlacement(num_planted=9).offset_distribution(40),
        SettingError,
        r"length 40 has 61,523,748 shapes, more than 200,000; use a smaller length, span or",
    ),
    (
        lambda: UniformShapePlacement(num_planted=4, widest=3),
        SettingError,
        r"widest 3 is too small for 4 tokens; use at least 4",
    ),
    (
        lambda: LengthDependentPlacement(until=(8, 4), laws=(LocalPlacement(), LocalPlacement(), LocalPlacement())),
        SettingError,
        r"the lengths in until \(8, 4\) do not increase; use increasing lengths",
    ),
    (
        lambda: LengthDependentPlacement(until=(8,), laws=(LocalPlacement(),)),
        SettingError,
        r"until has 1 lengths but laws has 1; use 2 laws",
    ),
    (
        lambda: LengthDependentPlacement(
            until=(8,), laws=(LocalPlacement(), LocalPlacement(shapes=((0,),), weights=(1.0,)))
        ),
        SettingError,
        r"the laws have different numbers of planted tokens \[1, 2\]; use the same number in all laws",
    ),
    (
        lambda: LengthDependentPlacement(until=(4,), laws=(pair(6), pair(1))),
        SettingError,
        r"the first law needs at least length 7 but applies up to length 4; set until\[0\] to at least 7",
    ),
    (
        lambda: LengthDependentPlacement(until=(4,), laws=(pair(1), pair(6))),
        SettingError,
        r"laws\[1\] applies from length 5 on but needs at least length 7; use a narrower shape, or set until\[0\] to",
    ),
]


CASES: list[tuple[Callable[[], object], type[LengthwiseError], str]] = [
    *(
        (
            lambda hook=hook: hook_without_its_flag(hook),
            SettingError,
            rf"Mine overrides {hook} but {flag} is False; set {flag} = True in the class",
        )
        for hook, flag in FLAGS.items()
    ),
    *(
        (
            lambda n=n, first=first: sample(n, first - 1, 1),
            SettingError,
            rf"length {first - 1} is too short for {n}; use at least {first}",
        )
        for n, first in FIRST_LENGTHS.items()
    ),
    *(
        (lambda n=n, first=first: sample(n, first, 0), SettingError, r"size 0 is too small; use at least 1")
        for n, first in FIRST_LENGTHS.items()
    ),
    *THEORY_CASES,
    *PLANTED_CASES,
    *SETTING_CASES,
    (lambda: Parity(coupling="nxt"), SettingError, r"unknown coupling 'nxt' of parity; use one of next, same, none"),
    (lambda: Copy(num_symbols=0), SettingError, r"num_symbols 0 is too small; use at least 1"),
    (lambda: Reverse(num_symbols=-2), SettingError, r"num_symbols -2 is too small; use at least 1"),
    (
        lambda: SparseParity(coding="bits"),
        SettingError,
        r"unknown coding 'bits' of sparse_parity; use one of flags, letters",
    ),
    (lambda: SparseParity(fewest=5), SettingError, r"invalid range fewest 5 to most 4; use 1 <= fewest <= most"),
    (lambda: SparseParity(num_letters=0), SettingError, r"invalid num_letters 0; use 1 to 26"),
    (lambda: SparseParity(window=3), SettingError, r"window 3 is too small for 4 flagged bits; use at least 4"),
    (lambda: SparseParity(tested=(2, 0)), SettingError, r"invalid number 0 of flagged bits in tested; use at least 1"),
    (
        lambda: SparseParity(background=MarkovChain()),
        SettingError,
        r"background 'markov' needs letters; set coding to letters",
    ),
    (
        lambda: SparseParity(coding="letters", background=MarkovChain()),
        SettingError,
        r"background 'markov' has 2 tokens but num_letters is 8; use the same number",
    ),
    (
        lambda: SparseParity().example_from_prompt("0110"),
        PromptError,
        r"'0110' has no flagged bit; write bits such as 01\*10\*1",
    ),
    (
        lambda: SparseParity().example_from_prompt("01*2"),
        PromptError,
        r"invalid symbol '2' in a prompt of sparse_parity; write bits such as",
    ),
    (lambda: VariableAssignment(operands=0), SettingError, r"operands 0 is too small; use at least 1"),
    (
        lambda: VariableAssignment(depth=0),
        SettingError,
        r"depth 0 is too small; use at least 1, or None to sample it from depth_shares",
    ),
    (
        lambda: VariableAssignment(depth_shares=(0.5, 2.0)),
        SettingError,
        r"invalid depth_shares 0.5 to 2.0; use increasing shares above 0",
    ),
    (
        lambda: VariableAssignment(num_names=4).sample(length=5, size=1, rng=np.random.default_rng(0)),
        SettingError,
        r"num_names 4 is too small for 5 assignments; use at least 5 names, or a shorter length",
    ),
    (
        lambda: VariableAssignment().example_from_prompt("x1 = x2 x2 = v1"),
        PromptError,
        r"does not query exactly one variable; write assignments and a query such as 'x1 = x2 x2 = v3 \? x1'",
    ),
    (
        lambda: VariableAssignment().example_from_prompt("x1 x2 = v1 ? x1"),
        PromptError,
        r"is not a list of assignments with 1 operands; write",
    ),
    (
        lambda: VariableAssignment().example_from_prompt("x1 = x2 ? x1"),
        PromptError,
        r"x2 is not assigned; end the chain",
    ),
    (
        lambda: VariableAssignment().example_from_prompt("x1 = x2 x2 = x1 ? x1"),
        PromptError,
        r"x1 leads back to itself; end the chain with a value",
    ),
    (
        lambda: VariableAssignment().example_from_prompt("x1 = v2 x1 = v1 ? x1"),
        PromptError,
        r"assigns a variable twice; assign each variable once",
    ),
    (lambda: Sort(num_values=0), SettingError, r"num_values 0 is too small; use at least 1"),
    (lambda: Sort(narrow_share=2.0), SettingError, r"invalid narrow_share 2.0; use a number from 0 to 1"),
    (
        lambda: Sort(num_values=4).sample(length=5, size=1, rng=np.random.default_rng(0)),
        SettingError,
        r"length 5 exceeds the 4 different values of sort; use a shorter length, a larger num_values, or repeats",
    ),
    (
        lambda: Sort().example_from_prompt("3 17 2 17"),
        PromptError,
        r"item '17' occurs 2 times; write each item once, or set repeats=True",
    ),
    (
        lambda: Sort().example_from_prompt("3 64"),
        PromptError,
        r"invalid symbol '64' in a prompt of sort; write values from 0 to 63 such as 2 0 1",
    ),
    (lambda: Sort().example_from_prompt("="), PromptError, r"the prompt is empty; sort needs values from 0 to 63"),
    (lambda: Recall(num_values=0), SettingError, r"num_values 0 is too small; use at least 1"),
    (lambda: Recall(num_pairs=17), SettingError, r"num_keys 16 is too small for 17 pairs; use at least 17"),
    (lambda: Recall(num_queries=5), SettingError, r"num_queries 5 exceeds the 4 pairs; use at most 4"),
    (lambda: Recall().example_from_prompt("k1 v1"), PromptError, r"'k1 v1' does not contain exactly one '='; write a"),
    (lambda: Recall().example_from_prompt("k1 v1 = v1"), PromptError, r"invalid symbol 'v1' in a prompt of recall"),
    (
        lambda: Recall().example_from_prompt("k1 f1 v2 = k1"),
        PromptError,
        r"has a key without a value or a value without",
    ),
    (
        lambda: Recall().example_from_prompt("k1 v1 = k2"),
        PromptError,
        r"queried key 'k2' occurs 0 times in the text; write",
    ),
    (
        lambda: MultiQueryRecall(value_length=0),
        SettingError,
        r"value_length 0 is too small; use at least 1",
    ),
    (
        lambda: MultiQueryRecall(density=0.0),
        SettingError,
        r"density 0.0 is out of range; use more than 0 and at most 1",
    ),
    (
        lambda: MultiQueryRecall().example_from_prompt("s0 : s1 _ ? s0"),
        PromptError,
        r"'s0 : s1 _ \? s0' is not a text of pairs and blanks with 1 to 4 queries; write 's0 s1 : s2 s3 _ \? s0 s1'",
    ),
    (
        lambda: MultiQueryRecall(key_length=1, value_length=1).example_from_prompt("s0 : s1 : s2 ? s0"),
        PromptError,
        r"is not a text of pairs and blanks with 1 to 4 queries; write 's0 : s1 _ \? s0'",
    ),
    (
        lambda: MultiQueryRecall().example_from_prompt("s0 s1 : s2 s3 _"),
        PromptError,
        r"is not a text of pairs and blanks with 1 to 4 queries; write 's0 s1 : s2 s3 _ \? s0 s1'",
    ),
    (
        lambda: MultiQueryRecall().example_from_prompt("s0 s1 : s2 s3 ? s0 s4"),
        PromptError,
        r"query 's0 s4' occurs 0 times as a key; write it exactly once",
    ),
    (
        lambda: Addition(order="up"),
        SettingError,
        r"unknown order 'up' of addition; use one of least, most, reversed_sum",
    ),
    (
        lambda: Addition(scratchpad="all"),
        SettingError,
        r"unknown scratchpad 'all' of addition; use one of none, carry, trace",
    ),
    (lambda: Addition(long_carry_share=1.5), SettingError, r"invalid long_carry_share 1.5; use a number from 0 to 1"),
    (lambda: Addition(long_carry_from=-0.5), SettingError, r"invalid long_carry_from -0.5; use a number from 0 to 1"),
    (
        lambda: Addition(order="most", scratchpad="carry"),
        SettingError,
        r"scratchpad 'carry' does not support order 'most'; use order 'least' or 'reversed_sum'",
    ),
    (
        lambda: Parity().example_from_prompt("0120"),
        PromptError,
        r"invalid symbol '2' in a prompt of [a-z]+; write bits such as",
    ),
    (lambda: Parity().example_from_prompt(" "), PromptError, r"the prompt is empty; parity needs bits such as 0110"),
    (
        lambda: Copy(num_symbols=3).example_from_prompt("0 3"),
        PromptError,
        r"invalid symbol '3' in a prompt of [a-z]+; .* from 0 to 2",
    ),
    (
        lambda: Reverse().example_from_prompt("=>"),
        PromptError,
        r"the prompt is empty; reverse needs symbols from 0 to 9",
    ),
    (lambda: Addition().example_from_prompt("5"), PromptError, r"invalid sum '5'; write a sum such as 57\+68"),
    (lambda: Addition().example_from_prompt("1+2+3"), PromptError, r"invalid sum '1\+2\+3' of 3 numbers; write two"),
    (lambda: MultiAddition().example_from_prompt("5"), PromptError, r"invalid sum '5'; write a sum such as 57\+68\+9"),
    (
        lambda: MultiAddition(operands=(3, 2)),
        SettingError,
        r"invalid range of operands \(3, 2\); use a minimum of at least 2 and a maximum not below it",
    ),
    (lambda: Multiplication(nines_share=-1.0), SettingError, r"invalid nines_share -1.0; use a number from 0 to 1"),
    (
        lambda: Multiplication(digits=0),
        SettingError,
        r"digits 0 is too small; use at least 1, or None for the length of the first factor",
    ),
    *(
        (
            lambda p=p: Multiplication().example_from_prompt(p),
            PromptError,
            r"invalid product '.*' of two numbers; write a product such as",
        )
        for p in ("57", "5x6x7", "57x", "x68", "")
    ),
    (
        lambda: Multiplication().example_from_prompt("57x6a"),
        PromptError,
        r"invalid symbol 'a' in a prompt of multiplication; write a product such as 57x68",
    ),
    (
        lambda: Addition().example_from_prompt("57+"),
        PromptError,
        r"^number 2 of the sum '57\+' is missing; write a sum such as 57\+68$",
    ),
    (
        lambda: Addition().example_from_prompt(" + 68 ="),
        PromptError,
        r"^number 1 of the sum ' \+ 68 =' is missing; write a sum such",
    ),
    (lambda: Addition().example_from_prompt(""), PromptError, r"^invalid sum ''; write a sum such as 57\+68$"),
    (
        lambda: MultiAddition().example_from_prompt("5+6++8"),
        PromptError,
        r"^number 3 of the sum '5\+6\+\+8' is missing; write a sum such as 57\+68\+9$",
    ),
    (
        lambda: Addition().example_from_prompt("5+x"),
        PromptError,
        r"invalid symbol 'x' in a prompt of [a-z]+; write a sum such as",
    ),
    *(
        (
            lambda n=n: assign(n, coupling="none"),
            UnsupportedTaskError,
            r"declares no coupling; use the scheme sequential, .* or discovered, or abacus, which counts digits",
        )
        for n in ("coupled", "multilevel", "predicted")
    ),
    *(
        (
            lambda n=n, last=last: assign(n, num_position_ids=last),
            PositionRangeError,
            rf"has ID {last} but the largest ID of the scheme is {last - 1}; set num_position_ids to at least",
        )
        for n, last in (
            ("random_start", 14),
            ("skipwise", 14),
            ("randomized", 14),
            ("coupled", 8),
            ("multilevel", 8),
            ("predicted", 8),
            ("abacus", 6),
        )
    ),
    *(
        (lambda s=s: s(num_position_ids=0), SettingError, r"num_position_ids 0 is too small; use at least 1")
        for s in (RandomStart, Skipwise, Randomized, RandomFloats, Abacus, Coupled, MultiLevel, Predicted, Learned)
    ),
    *(
        (lambda s=s: s(max_gaps=-1), SettingError, r"max_gaps -1 is out of range; use 0 \(no gaps\) to 1000")
        for s in (Skipwise, Coupled, MultiLevel, Predicted)
    ),
    (lambda: Rotary(base=1.0), SettingError, r"base 1.0 or fastest 1.0 is too small; use base > 1 and fastest > 0"),
    (lambda: Rotary(fastest=0.0), SettingError, r"base 10000.0 or fastest 0.0 is too small; use base > 1 and"),
    (lambda: KERPLEPower(min_power=0.0), SettingError, r"kerple_power min_power 0.0 is out of range; use 0.01 to 2.0"),
    (lambda: NAPE(num_alibi_heads=0), SettingError, r"num_alibi_heads 0 is too small; use at least 1"),
    (
        lambda: NAPE(num_alibi_heads=3).build(EncodingSize(d_model=8, num_heads=2, d_head=4)),
        SettingError,
        r"nape cannot have 3 ALiBi heads among 2; set num_alibi_heads to at most 2",
    ),
    (lambda: HardALiBi(num_masked_heads=0), SettingError, r"num_masked_heads 0 is too small; use at least 1"),
    *(
        (
            lambda masked_heads=masked_heads, heads=heads: HardALiBi(num_masked_heads=masked_heads).build(
                EncodingSize(d_model=8, num_heads=heads, d_head=8 // heads)
            ),
            SettingError,
            rf"cannot mask {masked} of {heads} heads; set num_masked_heads to at least 1 and at most {heads}",
        )
        for masked_heads, masked, heads in ((None, 0, 1), (3, 3, 2))
    ),
    (lambda: T5Bias(num_buckets=1), SettingError, r"num_buckets 1 is too small; use at least 2"),
    (
        lambda: T5Bias(num_buckets=9, max_distance=4),
        SettingError,
        r"max_distance 4 is too small for 9 buckets; set max_distance to at least 5",
    ),
    (lambda: FIRE(threshold=0.0), SettingError, r"threshold 0.0 is not positive; use a number above 0"),
    (
        lambda: Rotary().build(EncodingSize(d_model=6, num_heads=2, d_head=3)),
        SettingError,
        r"d_head 3 is odd.* so that d_model / num_heads is even",
    ),
    *(
        (lambda s=s: s(factor=0.5), SettingError, r"factor 0.5 is below 1; use 1 for plain rotary, or more for longer")
        for s in (LinearInterpolation, NTK, DynamicNTK, YaRN)
    ),
    *(
        (
            lambda s=s: s(original_length=0),
            SettingError,
            r"original_length 0 is too small; use at least 1",
        )
        for s in (DynamicNTK, YaRN)
    ),
    *(
        (
            lambda s=s, d_head=d_head: s().build(EncodingSize(d_model=2 * d_head, num_heads=2, d_head=d_head)),
            SettingError,
            rf"d_head {d_head} is odd or below 4, .* so that d_model / num_heads is even and at least 4",
        )
        for s, d_head in ((NTK, 2), (DynamicNTK, 5))
    ),
    *(
        (
            lambda s=s: s().build(EncodingSize(d_model=10, num_heads=2, d_head=5)),
            SettingError,
            r"d_head 5 is odd.* so that d_model / num_heads is even",
        )
        for s in (LinearInterpolation, YaRN, Weave)
    ),
    *(
        (lambda s=s: s(base=0.5), SettingError, r"base 0.5 or fastest 1.0 is too small; use base > 1 and fastest > 0")
        for s in (PartialRotary, LinearInterpolation, NTK, DynamicNTK, YaRN, Weave)
    ),
    (
        lambda: YaRN(beta_fast=1.0, beta_slow=2.0),
        SettingError,
        r"beta_fast 1.0 and beta_slow 2.0 do not define a ramp; use beta_fast > beta_slow > 0",
    ),
    *((lambda s=s: Weave(**{s: 0}), SettingError, rf"{s} 0 is too small; use at least 1") for s in ("window", "width")),
    *(
        (
            lambda share=share: PartialRotary(share=share),
            SettingError,
            rf"share {share} is out of range; use a number above 0 and at most 1",
        )
        for share in (0.0, 1.5)
    ),
    *(
        (
            lambda share=share: PartialRotary(share=share).build(EncodingSize(d_model=16, num_heads=2, d_head=8)),
            SettingError,
            rf"share {share} of d_head 8 is {turning} components, .* so that share \* d_head is even and at least 2",
        )
        for share, turning in ((0.125, "1"), (0.01, "0.08"), (0.27, "2.16"), (0.375, "3"))
    ),
    *((lambda s=s: s(mlp_width=0), SettingError, r"mlp_width 0 is too small; use at least 1") for s in (DAPE, DAPEv2)),
    (lambda: RePo(width=0), SettingError, r"width 0 is too small; use at least 1"),
    (
        lambda: RePo(rotary_share=1.0),
        SettingError,
        r"rotary_share 1.0 is out of range; use 0 or more and less than 1",
    ),
    (lambda: CoPE(num_positions=1), SettingError, r"num_positions 1 is too small; use at least 2"),
    *(
        (lambda s=s: SelectiveRotary(**{s: 0}), SettingError, rf"{s} 0 is too small; use at least 1")
        for s in ("rank", "kernel_size")
    ),
    (
        lambda: lengthwise.DecoderSettings(num_layers=10, loops=101),
        SettingError,
        r"^101 loops over 10 blocks are more than 1000 passes; use fewer loops$",
    ),
    *(
        (
            lambda size=size: DAPEv2(kernel_size=size),
            SettingError,
            rf"kernel_size {size} is not positive and odd; use an odd number such as 3",
        )
        for size in (-1, 0, 2)
    ),
    (
        lambda: MultiLevelEncoding(NoPE(), EncodingSize(d_model=16, num_heads=2, d_head=8), num_levels=3),
        SettingError,
        r"d_head 8 is not a multiple of the 3 coupling levels; choose d_model and num_heads so",
    ),
    (
        lambda: MultiLevelEncoding(Rotary(), EncodingSize(d_model=16, num_heads=2, d_head=8), 3, one_per_head=True),
        SettingError,
        r"num_heads 2 is not a multiple of the 3 coupling levels, but each head reads one level; change num_heads, or",
    ),
    (
        build_no_encoding,
        SettingError,
        r"build of encoding nope returned an object of type NoneType; return an instance of a subclass of Encoding",
    ),
    *(
        (
            lambda s=s, came=came: build_unchecked(DecoderSettings, **{s: came}),
            SettingError,
            rf"^{s} {came} is too small; use at least 1$",
        )
        for s in ("num_layers", "loops", "d_model", "num_heads", "mlp_factor", "top_k")
        for came in (0, -8)
    ),
    (
        lambda: DecoderSettings(d_model=10, num_heads=4),
        SettingError,
        r"d_model 10 is not a multiple of num_heads 4; change one of them",
    ),
    (lambda: DecoderSettings(num_layers=1001), SettingError, r"num_layers 1001 takes too long .* use at most 1000"),
    (
        lambda: DecoderSettings(temperature=-1.0),
        SettingError,
        r"temperature -1.0 is not positive; use a number above 0",
    ),
    *(
        (
            lambda came=came: DecoderSettings(temperature=came),
            SettingError,
            rf"^temperature {came} is not finite; use a finite number$",
        )
        for came in (math.nan, math.inf)
    ),
    *(
        (
            lambda came=came: DecoderSettings(entmax_alpha=came),
            SettingError,
            rf"^entmax_alpha {came} is not above 1; use 1.5, or weights='softmax'$",
        )
        for came in (1.0, 0.5, -1.0)
    ),
    (
        lambda: DecoderSettings(head="pointr"),
        UnknownNameError,
        r"unknown head 'pointr'; did you mean 'pointer'\? known: class, increment, pointer, rank, search, "
        r"state_pointer, wide_pointer",
    ),
    (
        lambda: DecoderSettings(length_scaling="lg"),
        UnknownNameError,
        r"unknown length_scaling 'lg'; did you mean 'log'\? known: learned, log, none",
    ),
    (
        lambda: DecoderSettings(weights="softmx"),
        UnknownNameError,
        r"unknown weights 'softmx'; did you mean 'softmax'\? known: count, entmax, softmax, top_k",
    ),
    (
        lambda: DecoderSettings(dilution=1.0),
        SettingError,
        r"dilution 1.0 is out of range; use 0 or more and less than 1",
    ),
    (
        lambda: DecoderSettings(dilution=0.5, weights="count"),
        SettingError,
        r"weights 'count' do not sum to 1, so dilution does not apply; use only one of the two",
    ),
    (
        lambda: DecoderSettings(weights="entmax", entmax_alpha=1.0),
        SettingError,
        r"entmax_alpha 1.0 is not above 1; use 1.5, or weights='softmax'",
    ),
    (
        use_entmax_without_the_library,
        SettingError,
        r"weights 'entmax' need the entmax library; run pip install 'lengthwise\[entmax\]'",
    ),
    (
        lambda: forward(torch.zeros(1, 3, dtype=torch.int64)),
        PositionIDError,
        r"IDs have shape \(1, 3\) but tokens have shape \(1, 2\); pass \(batch, seq\), or .* with 1 level\(s\)",
    ),
    (
        lambda: forward(torch.zeros(3, 1, 2, dtype=torch.int64)),
        PositionIDError,
        r"IDs have 3 level\(s\) but this decoder was built for 1; pass IDs with 1 level\(s\), or build the decoder",
    ),
    (
        lambda: forward(torch.zeros(1, 2, dtype=torch.bool)),
        PositionIDError,
        r"IDs have the invalid type torch.bool; pass whole or real numbers",
    ),
    (
        lambda: forward(torch.zeros(1, 2, dtype=torch.float64)),
        PositionIDError,
        r"IDs are real numbers \(torch.float64\) but the encoding learned needs whole numbers; use a scheme with",
    ),
    (lambda: forward(torch.tensor([[0, -4]])), PositionIDError, r"position ID -4 is negative.*; IDs start at 0"),
    (
        lambda: forward(torch.tensor([[0, 5]])),
        PositionRangeError,
        r"ID 5 is beyond the 5 IDs of the encoding learned; set its num_position_ids to at least 6",
    ),
    (lambda: generate_with_ids(1), SettingError, r"1 IDs for 2 prompt tokens; pass one ID per token"),
    (lambda: generate_with_ids(3), SettingError, r"IDs for 1 of 2 new tokens .*; pass the IDs of all new"),
    (
        require_missing_step_index,
        UnsupportedTaskError,
        r"declares no step_index; use the scheme sequential, .* or discovered, or multilevel or predicted, which",
    ),
    (
        couple_on_two_levels,
        UnsupportedTaskError,
        r"coupling of this task has 2 levels but the scheme coupled supports only one; use the scheme multilevel",
    ),
    (lambda: IndexHints(num_hints=0), SettingError, r"num_hints 0 is too small; use at least 1"),
    (
        lambda: IndexHints(num_hints=5).example_from_prompt("010101"),
        SettingError,
        r"num_hints 5 is too small for a sequence with 6 places; set num_hints to at least 6, or use a shorter",
    ),
    (
        lambda: IndexHints(task=IndexHints()).example_from_prompt("01"),
        UnsupportedTaskError,
        r"task index_hints declares no step_index for hints; use a task such as parity",
    ),
    (lambda: Text(split="test"), SettingError, r"unknown split 'test' of text; use one of train, held_out"),
    (lambda: Text().example_from_prompt(""), PromptError, r"the prompt is empty; write some words to continue"),
    (
        lambda: sample("text", 9999, 1),
        SettingError,
        r"length 9999 needs 10000 tokens, but this train text has 38\d\d; use a length of at most 38\d\d, or a larger",
    ),
    (
        lambda: JSONLTask().sample(length=21, size=1, rng=np.random.default_rng(0)),
        SettingError,
        r"^the built-in task file has no records of length 21; use one of 1-20$",
    ),
    (
        lambda: JSONLTask().example_from_prompt("a z"),
        PromptError,
        r"invalid symbol 'z' in a prompt of rows; write tokens of its file",
    ),
    (
        lambda: JSONLTask(file="nowhere.jsonl"),
        TaskFileError,
        r"nowhere.jsonl cannot be read \(No such file or directory\); pass the path of a readable file to --task$",
    ),
    (
        lambda: JSONLTask().from_run_folder(Path("nowhere")),
        TaskFileError,
        r"^nowhere was not trained on a task file \(it has no rows.json\); use the task of the run$",
    ),
    (
        lambda: read_damaged_tokens("[]"),
        TaskFileError,
        r"rows.json cannot be read \(.*it is a list, not an object.*\); train the run again$",
    ),
    (
        lambda: read_damaged_tokens('{"symbols": [1, 2], "coupled": true, "falls": false}'),
        TaskFileError,
        r"rows.json cannot be read \(it has invalid token names or .* entry\); train the run again$",
    ),
    (
        read_changed_file,
        TaskFileError,
        r"has changed since the task was created; restore the file, or pass it to --task again$",
    ),
    (
        train_on_another_corpus,
        TextSourceError,
        r"corpus .* is not the corpus of .* \(its .* differs\); set --corpus to the corpus of the run",
    ),
    (
        lambda: check_trackers(["tensorbord"]),
        UnknownNameError,
        r"^unknown tracker 'tensorbord'; did you mean 'tensorboard'\? known: tensorboard, trackio, wandb$",
    ),
    (
        check_missing_tracker,
        SettingError,
        r"^tracker 'missing_library' needs the .* library; run pip install 'lengthwise\[missing_library\]'$",
    ),
    (
        read_damaged_trackers,
        RunFolderError,
        r"trackers.json cannot be read \(it has no string id or .* trackers\); delete it to start a new tracked run$",
    ),
    (
        lambda: MetricsReporter(report="none"),
        SettingError,
        r"^invalid report 'none'; use a function, 'auto' for progress in terminals, or None$",
    ),
    (predict_ids_without_a_head, SettingError, r"no position head; train it with the scheme 'predicted'"),
    (lambda: sampler(lengths=(0, 4)), SettingError, r"training length 0 is too small; lengths start at 1"),
    (lambda: sampler(lengths=(5, 4)), SettingError, r"training lengths 5:4 are reversed; put the smaller one first"),
    (lambda: sampler(batch_size=0), SettingError, r"batch size 0 is too small; use at least 1"),
    (
        lambda: read_launch_info(launch_environment(RANK="two")),
        SettingError,
        r"RANK=two, LOCAL_RANK=1, WORLD_SIZE=2, .*; start several processes with torchrun, or unset WORLD_SIZE$",
    ),
    (
        lambda: read_launch_info(launch_environment(RANK="2")),
        SettingError,
        r"^invalid environment variables RANK=2, LOCAL_RANK=1, WORLD_SIZE=2, ",
    ),
    (
        lambda: read_launch_info(launch_environment(MASTER_PORT="")),
        SettingError,
        r"MASTER_PORT=; start several processes",
    ),
    *(
        (
            lambda function=function: in_several_processes(function),
            SettingError,
            rf"^{function.__name__} runs in one process, but a launcher has started 2; only train uses several$",
        )
        for function in (lengthwise.compare, lengthwise.sweep)
    ),
    (
        join_with_one_gpu,
        DeviceError,
        r"this machine has 1 for at least 2 processes; use --nproc-per-node 1, or --device cpu$",
    ),
    (fail_in_another_process, SettingError, r"^length 0 is too short; use at least 1$"),
    (
        lose_another_process,
        WorkerError,
        r"another process of this run \(Connection closed by peer \[127.0.0.1\]:1\); fix its error, and continue with",
    ),
    (
        lambda: sweep_nothing({}),
        SettingError,
        r"^the sweep has no experiments; pass a dict with at least one experiment$",
    ),
    (
        lambda: sweep_nothing({"a": small_experiment(), "b": small_experiment()}),
        SettingError,
        r"^experiments 'a' and 'b' are equal; remove one of them$",
    ),
    (
        lambda: sweep_nothing({"a": small_experiment()}, executor="rya"),
        UnknownNameError,
        r"^unknown executor 'rya'; did you mean 'ray'\? known: local, ray$",
    ),
    (
        lambda: sweep_nothing({"a": small_experiment()}, workers=0),
        SettingError,
        r"^invalid number of workers 0; use at least 1$",
    ),
    (
        lambda: sweep_nothing({"a": small_experiment()}, address="10.0.0.1:6379"),
        SettingError,
        r"^address '10.0.0.1:6379' needs the executor 'ray'; use executor 'ray', or leave out the address$",
    ),
    (
        lambda: sweep_nothing({"a": small_experiment()}, seeds=[1, 1]),
        SettingError,
        r"^the sweep has invalid seeds \[1, 1\]; use a number of seeds such as 3, or a list of different seeds such as",
    ),
    (
        lambda: read_sweep("{}", "grid.toml"),
        SettingError,
        r"grid.toml has an unknown ending; use a file that ends in .json or .py$",
    ),
    (
        lambda: read_sweep_file(Path("nowhere.json")),
        SettingError,
        r"^sweep file nowhere.json cannot be read \(No such file or directory\); pass an existing file$",
    ),
    (
        lambda: read_sweep("[1, "),
        SettingError,
        r"grid.json is invalid \(.*\); use an object with the keys base, grid and seeds$",
    ),
    (
        lambda: read_sweep({"base": {"task": "parity"}, "gird": {}}),
        UnknownNameError,
        r"^unknown key in .*grid.json 'gird'; did you mean 'grid'\? known: base, grid, seeds$",
    ),
    (
        lambda: read_sweep({}),
        SettingError,
        r'grid.json has no object base; add one such as "base": {"task": "parity"}$',
    ),
    (
        lambda: read_sweep({"base": {"task": "parity"}, "grid": {"encoding": []}}),
        SettingError,
        r'grid.json has an invalid grid; use lists such as "grid": {"encoding": \["rotary", "alibi"\]}$',
    ),
    (
        lambda: read_sweep({"base": {"task": "parity"}, "grid": {"training.steps": list(range(1, 10_002))}}),
        SettingError,
        r"^the grid in .*grid.json has 10,001 experiments; use at most 10,000$",
    ),
    (
        lambda: read_sweep({"base": {"task": "parity"}, "seeds": -1}),
        SettingError,
        r"grid.json has invalid seeds -1; use a number of seeds such as 3, or a list of different seeds such as",
    ),
    (
        lambda: read_sweep({"base": {"task": "parity"}, "grid": {"training.lerning_rate": [1]}}),
        UnknownNameError,
        r"grid.json, lerning_rate=1: unknown setting of training 'lerning_rate'; did you mean 'learning_rate'\? ",
    ),
    (
        lambda: read_sweep({"base": {"task": "parity"}, "grid": {"training.steps": [0]}}),
        SettingError,
        r"grid.json, steps=0: steps 0 is too small; use at least 1$",
    ),
    (
        lambda: read_sweep({"base": {"task": "parity", "scheme": {"num_position_ids": "9"}}}),
        SettingError,
        r"grid.json, base: num_position_ids '9' has the wrong type; use a whole number$",
    ),
    (
        lambda: read_sweep({"base": {"task": "parity", "scheme": "predictd"}}),
        UnknownNameError,
        r"grid.json, base: unknown scheme 'predictd'; did you mean 'predicted'\? ",
    ),
    (
        lambda: read_sweep({"base": {"task": "parity"}, "grid": {"seed": [1, 2]}}),
        SettingError,
        r"grid.json, seed=1: a seed is not a setting of the grid; use the key seeds$",
    ),
    (
        lambda: read_sweep({"base": {"task": "parity"}, "grid": {"encoding": ["rotary", "rotary"]}}),
        SettingError,
        r"^the grid in .*grid.json contains encoding=rotary twice; use different values in each list$",
    ),
    (
        lambda: read_sweep({"base": {"task": "parity", "recipe": "parity"}}),
        SettingError,
        r"grid.json, base: recipe 'parity' sets the task; leave out the recipe or the task$",
    ),
    (
        lambda: read_sweep({"base": {"scheme": "predicted"}}),
        SettingError,
        r"grid.json, base: the experiment has no task; add the name of a task or of a recipe to base$",
    ),
    (
        lambda: read_sweep("EXPERIMENTS = {'a': 1}", "one_number.py"),
        SettingError,
        r"one_number.py defines no valid EXPERIMENTS; define a dict from labels to lengthwise.Experiment$",
    ),
    (
        lambda: read_sweep("x = 1\nraise ValueError('no')", "no_experiment.py"),
        SettingError,
        r"no_experiment.py raises ValueError in line 2: no; correct the file$",
    ),
    (
        lambda: ContextSettings(lengths=(64, 32), near=8, ks=(1,), num_targets=10),
        SettingError,
        r"^invalid context lengths 64, 32; use two or more increasing lengths, first the trained length$",
    ),
    (
        lambda: ContextSettings(lengths=(32, 64), near=32, ks=(1,), num_targets=10),
        SettingError,
        r"^invalid near 32; use at least 1 and fewer than the 32 tokens of the first context length$",
    ),
    (
        lambda: ContextSettings(lengths=(32, 64), near=8, ks=(1,), num_targets=10, kind="closing_brackets"),
        UnknownNameError,
        r"^unknown kind of token 'closing_brackets'; did you mean 'closing_bracket'\?",
    ),
    (
        lambda: measure_paired_targets(
            PlantedModel(additive_log_prob({}), num_far=1),
            BytePairTokenizerAdapter(Text().tokenizer),
            Text().held_out(),
            ContextSettings(lengths=(32, 600), near=8, ks=(1,), num_targets=100, kind="digit"),
        ),
        SettingError,
        r"^the texts have only \d+ targets of kind digit, but .* 100; use a smaller num_targets, or more texts$",
    ),
    (
        lambda: read_sweep("EXPERIMENTS = {}", "json.py"),
        SettingError,
        r"json.py has the name of another module; use another file name$",
    ),
    (
        lambda: write_report([], "page.html"),
        SettingError,
        r"^a report of no folders; pass at least one output folder of train, compare or influence$",
    ),
    (
        lambda: report_on({}, out="results.jsonl"),
        SettingError,
        r"^the page .*results.jsonl does not end in .html; use a name such as report.html$",
    ),
    (
        report_without_plotly,
        SettingError,
        r"^a report needs the plotly library; run pip install 'lengthwise\[report\]'$",
    ),
    (
        lambda: report_on({}),
        RunFolderError,
        r" has no files of a run; pass an output folder of .* evaluate --out, or a Trainer with EvaluateByLength$",
    ),
    (
        lambda: report_on_row(seed=None),
        RunFolderError,
        r"results.jsonl line 1 has no seed; delete this line, or repeat the command that writes the file$",
    ),
    (
        lambda: report_on_row(exact_match=1.5),
        RunFolderError,
        r"results.jsonl line 1 has an invalid exact_match 1.5 instead of a number from 0 to 1; delete this line, or ",
    ),
    (
        lambda: report_on({"influence.json": "{}"}),
        RunFolderError,
        r"^the study in .* is unfinished; repeat its command with --resume$",
    ),
    (
        lambda: report_on({"influence.json": "{}", "summary.json": "["}),
        RunFolderError,
        r"^the summary or page in .* is damaged \(.*\); repeat the study$",
    ),
    (
        lambda: report_on({"influence.json": "{}", "summary.json": "{}"}),
        RunFolderError,
        r"summary.json or its page has no value 'targets'; delete this file, and repeat the study$",
    ),
    (
        lambda: report_on({"influence.json": "{}", "summary.json": '{"targets": "9"}'}),
        RunFolderError,
        r"summary.json or its page has an invalid value \(.*\); delete this file, and repeat the study$",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), CASES, ids=[text[:40] for _, _, text in CASES])
def test_an_error_is_one_line_with_value_limit_and_advice(call, error, text):
    with pytest.raises(error, match=text) as error_info:
        call()
    assert "\n" not in str(error_info.value)
    assert isinstance(error_info.value, LengthwiseError)


def raise_lines(path: Path, functions: tuple[str, ...] = ()) -> set[tuple[str, int]]:
    """Return the places of raise statements, except hooks of subclasses and errors that stay in a module."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    named = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name in functions]
    inner = [child for node in named for child in ast.walk(node)] if functions else nodes
    raises = [node for node in inner if isinstance(node, ast.Raise)]
    statements = [(ast.unparse(node.exc), node.lineno) for node in raises if node.exc is not None]
    return {(str(path), line) for text, line in statements if not text.startswith(("NotImplementedError", "_"))}


def places_of(error: BaseException | None) -> Iterator[tuple[str, int | None]]:
    """Yield the place that raised an error, and the places of the errors that it replaces."""
    while error is not None:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        yield frame.filename, frame.lineno
        error = error.__context__


def test_every_raise_of_the_covered_layers_has_a_case():
    files = [path for pattern in COVERED for path in SOURCE.glob(pattern) if path.name not in EXCLUDED]
    expected = set().union(*map(raise_lines, files))
    for name, functions in COVERED_FUNCTIONS.items():
        expected |= raise_lines(SOURCE / name, functions)
    reached = set()
    for call, _, _ in CASES:
        try:
            call()
        except LengthwiseError as error:
            reached |= set(places_of(error))
    assert len(expected) > 20
    assert expected - reached == set(), "add a case to CASES for these raise statements"


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_a_name_of_another_library_suggests_the_name_of_this_one(name):
    known = [*ENCODINGS, *(field.name for field in fields(lengthwise.TrainingSettings))]
    assert OTHER_NAMES[name] in known
    assert name not in known
    assert f"did you mean '{OTHER_NAMES[name]}'?" in str(unknown_name_error("name", name, known))


def test_an_unknown_name_error_suggests_the_nearest_name_and_lists_all():
    message = str(unknown_name_error("task", "adition", ["parity", "addition"]))
    assert message == "unknown task 'adition'; did you mean 'addition'? known: addition, parity"


def test_a_name_unlike_all_known_names_gets_no_suggestion():
    assert str(unknown_name_error("task", "xyz", ["parity", "copy"])) == "unknown task 'xyz'; known: copy, parity"

"""What the documents say is true: their commands run, their maps match the tree."""

import importlib
import json
import os
import random
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
import typer
from tests.project.test_architecture import ROOMS
from tests.support.small_runs import small_experiment
from tests.support.text_models import byte_tokenizer, tiny_model
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import lengthwise as lw
from lengthwise.cli import app as cli
from lengthwise.encodings import ENCODINGS
from lengthwise.hf import PositionCollator, PredictivePositionModel, import_hf
from lengthwise.positions import SCHEMES, Predicted, Sequential
from lengthwise.tasks import TASKS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
DOCS = {path.stem: path.read_text() for path in (ROOT / "docs").glob("*.md")}
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    *(f"docs/{name}.md" for name in DOCS),
)


def blocks(language, text=README):
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def commands_of(text):
    return [line for block in blocks("bash", text) for line in block.splitlines()]


COMMANDS = commands_of(README)


def quickly(commands):
    return [f"{command} --quick" if command.split()[1] in ("train", "compare") else command for command in commands]


def run_commands(commands, folder):
    """Every command in the order of the page, as a reader would type them."""
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "lengthwise", f"'{command}' is no command of ours"
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            cli.main(arguments)


def test_the_readme_has_commands_for_every_verb():
    verbs = {command.split()[1] for command in COMMANDS}
    assert verbs == {command.name for command in cli.app.registered_commands}


def with_texts(folder):
    """Where a reader stands: beside the folders that the README reads as texts."""
    for name in ("docs", "src"):
        (folder / name).symlink_to(ROOT / name)
    return with_model(folder)


def with_model(folder):
    """A reader who has a language model."""
    tiny_model().save_pretrained(folder / "path/to/model")
    byte_tokenizer().save_pretrained(folder / "path/to/model")
    return folder


def write_texts(folder, **endings):
    """Folders of six texts each, by name and file ending."""
    draw = random.Random(0)
    for name, ending in endings.items():
        (folder / name).mkdir()
        for number in range(6):
            words = (draw.choice(["def", "return", "the", "of", "value", "name"]) for _ in range(700))
            (folder / name / f"{number}.{ending}").write_text(" ".join(words))


@pytest.mark.parametrize("page", ["README", *(name for name, text in DOCS.items() if commands_of(text))])
def test_every_command_of_a_page_has_valid_arguments(page):
    program = typer.main.get_command(cli.app)
    for command in commands_of(DOCS.get(page, README)):
        # A prompt in front of a command would be copied with it.
        first, name, *arguments = shlex.split(command)
        assert first == "lengthwise", command
        # Parses the arguments, and raises for an unknown flag or a value of the wrong type.
        program.commands[name].make_context(name, arguments)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_of_a_document_is_of_a_tested_language(document):
    text = (ROOT / document).read_text()
    # Each of these is run or read by a test of this file, except sh: it has the programs of others.
    languages = set(re.findall(r"^```(\w+)$", text, flags=re.MULTILINE))
    assert languages <= {"python", "bash", "sh", "json", "text", "toml"}


@pytest.mark.slow
def test_every_command_of_the_readme_runs(tmp_path, capsys):
    # The comparison trains for minutes, and the other commands do not need it.
    assert sum(" compare " in command for command in COMMANDS) == 1
    commands = [f"{command} --quick" if " compare " in command else command for command in COMMANDS]
    run_commands(commands, with_texts(tmp_path))
    assert (tmp_path / "runs/parity/results.jsonl").exists()
    assert (tmp_path / "runs/copy/figure.png").exists()


def test_the_python_examples_of_the_readme_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for example in blocks("python"):
        exec(compile(example, "README.md", "exec"), names)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["4", "8"]
    assert names["model"].config.head == "pointer"


@pytest.fixture
def own_modules():
    """What a page brings along is forgotten afterwards."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name in ("mine", "my_tasks", "widths"):
        sys.modules.pop(name, None)


# Blocks that need files of the reader, a smaller size or a check of their own: the test that runs each of them.
ROWS = "test_a_file_of_rows_is_trained_on_and_evaluated_by_length_as_the_page_says"
TASK_CLASS = "test_a_task_of_ones_own_is_trained_and_evaluated_by_length_as_the_page_says"
SCHEME = "test_a_scheme_and_an_encoding_of_ones_own_work_as_the_page_says"
OF_OTHERS = "test_models_and_data_of_others_are_used_as_the_page_says"
DATA_SET = "test_a_data_set_is_coupled_and_trained_on_as_the_page_says"
SETTINGS = "test_the_settings_and_the_trainer_of_the_page_of_hugging_face_are_valid"
COUPLINGS = "test_the_page_of_couplings_leads_from_a_file_to_a_run"
LANGUAGE_MODEL = "test_a_language_model_is_made_of_texts_as_the_page_says"
SWEEPS = "test_the_sweeps_of_the_page_run"
RUN_BY = {
    "couple": {"python": (COUPLINGS,), "bash": (COUPLINGS,) * 3},
    "encodings": {"python": ("test_drope_continues_a_rotary_run_as_the_page_says",)},
    "hugging_face": {
        "python": (
            *("test_a_model_is_wrapped_as_the_page_says", SETTINGS, SETTINGS, *(DATA_SET,) * 3),
            *(OF_OTHERS,) * 4,
        ),
        "bash": (OF_OTHERS,) * 3,
    },
    "hugging_face_tutorial": {"python": ("test_the_tutorial_finds_what_it_says",) * 4},
    "language_model": {"python": (LANGUAGE_MODEL,), "bash": (LANGUAGE_MODEL,) * 3},
    "needles": {"bash": ("test_needles_are_found_as_the_page_says",) * 3},
    "own_texts": {"bash": ("test_own_texts_are_measured_as_the_page_says",) * 3},
    "sweep": {"python": (SWEEPS,), "bash": (SWEEPS,) * 2},
    "theory": {"python": ("test_every_python_snippet_of_the_theory_page_gives_the_stated_output",) * 6},
    "theory_for_readers": {"python": ("test_the_examples_of_the_page_give_the_stated_output",) * 6},
    "train": {"bash": ("test_runs_are_configured_extended_and_fine_tuned_as_the_page_says",) * 4},
    "your_own": {
        "python": (ROWS, ROWS, TASK_CLASS, SCHEME, SCHEME),
        "bash": (ROWS, ROWS, ROWS, TASK_CLASS, SCHEME, SCHEME),
    },
}


def blocks_in_order(page):
    """Every Python and Bash block of a page that no other test runs."""
    found = re.findall(r"```(python|bash)\n(.*?)```", DOCS[page], flags=re.DOTALL)
    return [(language, block) for language, block in found if language not in RUN_BY.get(page, {})]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in DOCS if blocks_in_order(page)])
def test_every_block_of_a_page_runs_at_its_quick_size(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for language, block in blocks_in_order(page):
        if language == "python":
            exec(compile(block, f"{page}.md", "exec"), names)
        else:
            run_commands(quickly(block.splitlines()), tmp_path)


def test_every_block_that_the_pages_do_not_run_themselves_has_a_test():
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for page, by_language in RUN_BY.items():
        for language, names in by_language.items():
            assert len(names) == len(blocks(language, DOCS[page])), f"name a test for every {language} block of {page}"
            assert all(f"def {name}(" in tests for name in names), page


@pytest.mark.slow
def test_own_texts_are_measured_as_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(with_model(tmp_path))
    write_texts(tmp_path, manual="md")
    run_commands(quickly(commands_of(DOCS["own_texts"])), tmp_path)
    assert (tmp_path / "runs/own-texts/influence.html").exists()
    assert (tmp_path / "runs/influence.html").exists()


def test_exact_match_and_first_errors_need_no_decoding_as_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (example,) = blocks("python", DOCS["teacher_forcing"])
    exec(compile(example, "teacher_forcing.md", "exec"), {})
    forced, free = (line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (forced[0], free[0]) == ("forced", "free")
    assert forced[1] == free[1]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_settings_and_the_trainer_of_the_page_of_hugging_face_are_valid(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page: dict = {}
    for example in blocks("python", DOCS["hugging_face"])[:3]:
        exec(compile(example, "hugging_face.md", "exec"), page)
    assert type(page["model"]).__name__ == "PredictivePositionModel"
    assert page["JointSFTTrainer"].compute_loss is transformers.Trainer.compute_loss


@pytest.mark.slow
def test_a_language_model_is_made_of_texts_as_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path, library="py", manual="md")
    run_commands(quickly(commands_of(DOCS["language_model"])), tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "runs/language-model/results.jsonl").read_text().splitlines()]
    assert {row["variant"] for row in rows} == {"code", "prose"}
    assert (tmp_path / "runs/context-length/figure.png").exists()
    capsys.readouterr()
    (example,) = blocks("python", DOCS["language_model"])
    exec(compile(example, "language_model.md", "exec"), {})
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["2", "64", "128"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'pin_memory' argument:UserWarning")
def test_models_and_data_of_others_are_used_as_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(with_model(tmp_path))
    run_commands(commands_of(DOCS["hugging_face"]), tmp_path)
    (row,) = [json.loads(line) for line in (tmp_path / "runs/model/results.jsonl").read_text().splitlines()]
    assert (row["task"], row["length"], row["shots"], row["decode"]) == ("addition", 5, 1, "free")
    assert (tmp_path / "runs/lm-eval/addition.yaml").exists()
    capsys.readouterr()
    *_, imported, trained, data, rows = blocks("python", DOCS["hugging_face"])
    page = {"AutoModelForCausalLM": transformers.AutoModelForCausalLM, "torch": torch}
    exec(compile(imported, "hugging_face.md", "exec"), page)
    assert page["output"].shape[1] > page["length"]
    exec(compile(trained, "hugging_face.md", "exec"), page)
    import_hf("runs/parity-12", "runs/parity-imported")
    capsys.readouterr()
    exec(compile(data, "hugging_face.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:] for line in lines if line.startswith("'='")] == [[str(len(lines) // 2)] * 2]
    exec(compile(rows, "hugging_face.md", "exec"), {})
    assert capsys.readouterr().out == "(2, 3)\n"


@pytest.mark.slow
def test_needles_are_found_as_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(with_model(tmp_path))
    write_texts(tmp_path, manual="md")
    # At most 600 positions; the numbers of examples are those of the reader.
    commands = [
        f"{command} --num-examples 4" if "evaluate" in command else command for command in commands_of(DOCS["needles"])
    ]
    run_commands(quickly(commands), tmp_path)
    assert capsys.readouterr().out.count("text tokens") == 3


def section(title):
    """A part of the page about one's own, up to the next title."""
    return DOCS["your_own"].split(f"\n## {title}\n")[1].split("\n## ")[0]


def results(folder):
    """Length and exact match of what was measured there."""
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return [(row["length"], row["exact_match"]) for row in rows]


@pytest.mark.slow
def test_a_file_of_rows_is_trained_on_and_evaluated_by_length_as_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = section("A task as a file")
    script, example = blocks("python", text)
    exec(compile(script, "rows.py", "exec"), {})
    # Quick training ends at length 4, of which the page's test file has no rows for the diagnosis to begin with.
    commands = [command.replace("train --task", "train --train-lengths 1:10 --task") for command in commands_of(text)]
    run_commands(quickly(commands), tmp_path)
    assert [length for length, _ in results(tmp_path / "runs/rows")] == [10, 20, 40]
    assert {length for length, _ in results(tmp_path / "runs/rows-compared")} == {10, 20}
    capsys.readouterr()
    exec(compile(example, "your_own.md", "exec"), {})
    assert len(eval(capsys.readouterr().out)) == 2


def test_a_task_of_ones_own_is_trained_and_evaluated_by_length_as_the_page_says(
    tmp_path, monkeypatch, capsys, own_modules
):
    monkeypatch.chdir(tmp_path)
    text = section("A task as a class")
    (module,) = blocks("python", text)
    (tmp_path / "my_tasks.py").write_text(module)
    run_commands(quickly(commands_of(text)), tmp_path)
    assert [length for length, _ in results(tmp_path / "runs/increment")] == [10, 20, 40]
    (decorated,) = re.findall(r"^@dataclass.*", module, flags=re.DOTALL | re.MULTILINE)
    assert len(decorated.strip().splitlines()) <= 40
    task = importlib.import_module("my_tasks").Increment()
    assert task.name not in TASKS
    tokens = task.example_from_prompt("093").tokens[0]
    assert " ".join(task.vocabulary[token] for token in tokens) == "0 9 3 = > 1 0 4 end"
    with pytest.raises(lw.LengthwiseError, match="invalid prompt 'x' for increment"):
        task.example_from_prompt("x")


@pytest.mark.slow
@pytest.mark.parametrize(("title", "run"), [("A task as a file", "rows"), ("A task as a class", "increment")])
def test_a_task_of_ones_own_is_right_at_longer_lengths_than_it_was_trained_on(
    title, run, tmp_path, monkeypatch, capsys, own_modules
):
    monkeypatch.chdir(tmp_path)
    code = blocks("python", section(title))[0]
    (tmp_path / "my_tasks.py").write_text(code)
    if run == "rows":
        exec(compile(code, "rows.py", "exec"), {})
    # Comparing and coupling the rows once more repeats the training; their commands run at the quick size above.
    repeats = re.compile("compare|lengthwise couple|coupled[.-]")
    commands = [command for command in commands_of(section(title)) if not repeats.search(command)]
    run_commands(commands, tmp_path)
    assert all(exact_match >= 0.95 for _, exact_match in results(tmp_path / "runs" / run))


@pytest.mark.slow
def test_a_scheme_and_an_encoding_of_ones_own_work_as_the_page_says(tmp_path, monkeypatch, capsys, own_modules):
    monkeypatch.chdir(tmp_path)
    text = section("A scheme or an encoding")
    module, example = blocks("python", text)
    (tmp_path / "mine.py").write_text(module)
    run_commands(quickly(commands_of(text)), tmp_path)
    assert (tmp_path / "runs/mine-compared/figure.png").exists()
    capsys.readouterr()
    exec(compile(example, "your_own.md", "exec"), {})
    assert len(eval(capsys.readouterr().out)) == 2
    # Each class by itself is no longer than 15 lines.
    mine = importlib.import_module("mine")
    assert {mine.Pairs.name, mine.Root.name}.isdisjoint({*SCHEMES, *ENCODINGS})
    assert all(len(part.strip().splitlines()) <= 15 for part in re.split(r"\n\n\n", module)[1:])


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:'pin_memory' argument:UserWarning")
def test_a_data_set_is_coupled_and_trained_on_as_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({"<s>": 0, "<pad>": 1, **{byte: i + 2 for i, byte in enumerate(alphabet)}}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", pad_token="<pad>").save_pretrained(
        "my-model"
    )
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=300, max_position_embeddings=128, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained("my-model")
    example = next(each for each in blocks("python", DOCS["hugging_face"]) if "PositionCollator" in each)
    page: dict = {}
    exec(compile(example, "hugging_face.md", "exec"), page)
    assert page["trainer"].state.global_step == 2
    row = page["sums"][0]
    assert (row["prompt_length"], len(row["input_ids"])) == (6, 8)
    # <s>90+5=59, units first: the units of both numbers and the token before the units of the sum are together.
    given = replace(page["collator"], training=False, pack_to=None)([row])
    assert given["position_ids"].tolist() == [[0, 2, 1, 2, 1, 1, 2, 3]]
    assert given["labels"].tolist() == [[-100] * 6 + row["input_ids"][6:]]
    callback = next(each for each in blocks("python", DOCS["hugging_face"]) if "EvaluateByLength" in each)
    exec(compile(callback, "hugging_face.md", "exec"), page)
    rows = page["callback"].measure(page["trainer"].state)
    assert [(row["length"], row["num_examples"]) for row in rows] == [(2, 16), (3, 16)]
    own = next(each for each in blocks("python", DOCS["hugging_face"]) if "from_examples" in each)
    capsys.readouterr()
    exec(compile(own, "hugging_face.md", "exec"), page)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["6", "7", "8"]
    # The model and the scheme of the page for PPC.
    model = PredictivePositionModel.wrap(page["model"], segments=True)
    scheme = Predicted(num_position_ids=model.config.num_position_ids, max_gaps=3)
    batch = PositionCollator.for_model(model, scheme, page["tokenizer"])([row])
    assert model(**batch).position_loss > 0


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_model_is_wrapped_as_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    example = next(each for each in blocks("python", DOCS["hugging_face"]) if "wrap(llama" in each)
    page: dict = {}
    exec(compile(example, "hugging_face.md", "exec"), page)
    assert page["output"].sequences.shape == page["output"].position_ids.shape
    assert page["output"].position_ids[0, :4].tolist() == [10, 12, 12, 17]
    assert type(page["model"]).__name__ == "PredictivePositionModel"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:'pin_memory' argument:UserWarning")
def test_the_tutorial_finds_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page: dict = {}
    *parts, last = blocks("python", DOCS["hugging_face_tutorial"])
    both, settings = "(LlamaConfig, GPTNeoXConfig), (ppc_scheme, plain_scheme)", "**settings)"
    assert last.count(both) == last.count(settings) == 1
    # One model per task, and few steps where the page expects a failure or where training takes minutes.
    one = "(LlamaConfig if name == 'parity' else GPTNeoXConfig,), (ppc_scheme, plain_scheme)"
    few = "**settings | ({} if name == 'parity' and scheme.predicts_ids else {'steps': 50}))"
    for number, block in enumerate([*parts, last.replace(both, one).replace(settings, few)]):
        exec(compile(block, f"tutorial, part {number}", "exec"), page)
    assert len(page["results"]) == 4
    assert page["results"]["llama", "parity", "predicted"][200] >= 0.99
    # The longest length is missing where nothing was exact before.
    assert page["results"]["llama", "parity", "sequential"].get(200, 0.0) <= 0.5


@pytest.mark.slow
def test_the_page_of_couplings_leads_from_a_file_to_a_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (script,) = blocks("python", DOCS["couple"])
    exec(compile(script, "couple.md", "exec"), {})
    # The last command trains a model, as tests/experiments/test_coupling_methods.py does with a smaller task.
    *commands, _ = quickly(commands_of(DOCS["couple"]))
    run_commands(commands, tmp_path)
    text = capsys.readouterr().out
    assert "every answer depends on 2 tokens: prompt token first + place; the previous answer" in text
    assert "ID range" in text


@pytest.mark.slow
def test_runs_are_configured_extended_and_fine_tuned_as_the_page_says(tmp_path, capsys):
    (settings,) = blocks("toml", DOCS["train"])
    (tmp_path / "settings.toml").write_text(settings)
    run_commands(quickly(commands_of(DOCS["train"])), tmp_path)
    runs = {name: lw.load_run(tmp_path / "runs" / name) for name in ("from-file", "parity-extended", "parity-longer")}
    training = runs["from-file"].experiment.training
    assert (training.learning_rate, training.betas, training.clip) == (1e-3, (0.9, 0.95), 0.5)
    assert [run.facts["steps"] for run in runs.values()] == [20, 300, 100]
    assert lw.load_run(tmp_path / "runs/parity-extended/earlier/200-steps").facts["steps"] == 200
    assert runs["parity-longer"].experiment.train_lengths == (1, 24)
    # The error of the page.
    (tmp_path / "settings.toml").write_text(settings.replace("learning_rate", "lerning_rate"))
    (error,) = blocks("text", DOCS["train"])
    capsys.readouterr()
    with pytest.raises(SystemExit):
        run_commands(["lengthwise train parity --config settings.toml"], tmp_path)
    assert capsys.readouterr().err.startswith(error.removesuffix("...\n"))


@pytest.mark.slow
def test_the_sweeps_of_the_page_run(tmp_path, monkeypatch, capsys, own_modules):
    monkeypatch.chdir(tmp_path)
    (grid,), (script,) = blocks("json", DOCS["sweep"]), blocks("python", DOCS["sweep"])
    assert grid == (ROOT / "docs/sweep.json").read_text()
    (tmp_path / "sweep.json").write_text(grid)
    (tmp_path / "widths.py").write_text(script)
    run_commands(commands_of(DOCS["sweep"]), tmp_path)
    assert len({path.name for path in (tmp_path / "runs/grid").glob("parity-*")}) == 8
    assert len(results(tmp_path / "runs/widths")) == 8


@pytest.mark.parametrize("name", ["README", "your_own"])
def test_what_a_page_imports_is_public(name):
    lines = [line for block in blocks("python", DOCS.get(name, README)) for line in block.splitlines()]
    public = r"import lengthwise as lw|from lengthwise\.(hf|tasks|positions|encodings) import [\w, ]+"
    assert [line for line in lines if "lengthwise" in line and not re.fullmatch(public, line)] == []


def test_what_a_class_of_ones_own_is_made_of_is_public():
    contracts = {"Encoding", "EncodingSettings", "EncodingSize", "PositionScheme", "Assignment", "Task", "Examples"}
    assert contracts | {"make_assignment", "UntrainedDistanceWarning", "LengthwiseError"} <= set(lw.__all__)
    assert all(hasattr(lw, name) for name in lw.__all__)


@pytest.mark.slow
def test_drope_continues_a_rotary_run_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lw.train(small_experiment(scheme=Sequential(), steps=60), "runs/rotary", report=None)
    (script,) = blocks("python", DOCS["encodings"])
    exec(compile(script, "encodings.md", "exec"), {})
    dropped = lw.load_run("runs/dropped")
    assert (dropped.experiment.encoding.name, dropped.facts["steps"]) == ("nope", 50)
    assert Path("runs/dropped/start.safetensors").read_bytes() == Path("runs/rotary/model.safetensors").read_bytes()


def test_the_page_of_schemes_has_a_row_for_every_scheme():
    first_table = DOCS["schemes"].split("---|\n")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", first_table, flags=re.MULTILINE) == list(SCHEMES)


def test_the_table_of_encodings_follows_from_the_classes():
    fill_table = runpy.run_path(str(ROOT / "docs/site/encodings_table.py"))["fill_table"]
    assert fill_table(DOCS["encodings"]) == DOCS["encodings"], "run: python docs/site/encodings_table.py"


def test_the_description_for_a_package_index_links_only_to_other_hosts():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / project["readme"]).read_text())
    assert links
    assert all(link.startswith("https://") for link in links)


def test_the_readme_maps_every_file_at_the_top_of_the_tree():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    top = {f"{path.split('/')[0]}/" if "/" in path else path for path in tracked}
    named = set(re.findall(r"^\| `([^`]+)` \|", README.split("## Map of files")[1], flags=re.MULTILINE))
    hidden_or_itself = {path for path in top if path.startswith(".")} | {"README.md"}
    assert {"src/" if path.startswith("src/") else path for path in named} == top - hidden_or_itself


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_and_paths_in_documents_lead_somewhere(document):
    text = (ROOT / document).read_text()
    links = re.findall(r"\]\(([^)#]+)\)", text)
    local = [link for link in links if not link.startswith("http")]
    paths = re.findall(r"`((?:src|tests|docs|benchmarks|encodings)/[\w./]+\.\w+)`", text)
    for path in [*local, *(f"src/lengthwise/{path}" if path.startswith("encodings") else path for path in paths)]:
        # A link is relative to its page, a path to the root.
        assert (ROOT / path).exists() or (ROOT / document).parent.joinpath(path).exists(), f"{document} names {path}"


def test_the_rooms_of_the_architecture_page_are_those_that_are_tested():
    assert re.findall(r"^\| `(\w+)/` \|", ARCHITECTURE, flags=re.MULTILINE) == list(ROOMS)


def test_the_makefile_has_the_targets_that_the_readme_names():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    named = re.findall(r"`(\w+)`", next(line for line in README.splitlines() if line.startswith("| `Makefile`")))
    assert set(named) - {"Makefile"} <= set(targets)


@pytest.mark.slow
def test_the_demo_ends_well_from_a_clean_clone(tmp_path):
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "clone")], check=True)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    ended = subprocess.run(
        ["make", "demo", "DEMO_SEEDS=1 --quick"],
        cwd=tmp_path / "clone",
        env=plain,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert (tmp_path / "clone/runs/demo/figure.png").exists()
    assert "discovered (PPC)" in ended.stdout

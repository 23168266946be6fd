"""Language models on the command line: prepare, train, evaluate and compare, with tables and figures of losses."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from tests.support.small_runs import folder_contents, small_experiment
from tests.support.text_runs import small_corpus, text_experiment

import lengthwise as lw
from lengthwise.cli import app as cli
from lengthwise.cli.experiment_options import override_corpus
from lengthwise.core.errors import LengthwiseError, UnknownNameError
from lengthwise.encodings import NoPE
from lengthwise.evaluation.tables_and_figures import (
    describe_fitting_seeds,
    describe_result,
    draw_result_figure,
    length_table,
    pool_seeds,
    result_tables,
    table_title,
)
from lengthwise.experiments.recipes import COMPARISONS, RECIPES
from lengthwise.experiments.run import load_run
from lengthwise.experiments.runner import compare
from lengthwise.tasks import GradedByLoss, Parity, Text

QUICK = ["--quick", "--device", "cpu"]
# Documented fields of a result row with losses.
RUN = {"task", "scheme", "encoding", "given", "seed", "variant", "train_lengths", "id_range", "trained_distance"}
TRAINING = {"num_layers", "steps", "fitted", "misfit", "train_s", "time"}
LOSS = {"loss", "low", "high", "perplexity", "bits_per_byte", "token_accuracy", "scored_tokens", "shortest_context"}
RESULT = {"length", "num_examples", "num_documents", "decode", "largest_distance", "wall_s"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with texts, a corpus and a quick run on it."""
    folder = tmp_path_factory.mktemp("folders")
    small_corpus(folder)
    cli.main(["train", "language_model", *QUICK, "--corpus", str(folder / "corpus"), "--out", str(folder / "run")])
    return folder


@pytest.fixture(autouse=True)
def _here(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Link the folders into the working folder; use one thread, because threads on busy cores wait for each other."""
    for path in folders.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


def output_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the standard output of a successful command."""
    capsys.readouterr()
    cli.main(arguments)
    return capsys.readouterr().out


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one-line error of a command that exits with status 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_info:
        cli.main(arguments)
    printed = capsys.readouterr()
    assert (exit_info.value.code, printed.out) == (2, "")
    return printed.err.removeprefix("error: ").rstrip("\n")


def test_prepare_prints_a_row_per_kind(capsys):
    out = output_of(["prepare", "tales", "letters=notes", "--vocabulary-size", "280", "--out", "new"], capsys)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    assert [row[0] for row in rows] == ["tales", "letters"]
    assert [row[1] for row in rows] == ["8", "8"]
    assert {path.name for path in Path("new").iterdir()} == {
        *("corpus.json", "tokenizer.json"),
        *(f"{split}.{ending}" for split in ("train", "held_out") for ending in ("tokens", "jsonl")),
    }


def test_prepare_json_is_one_document_with_the_facts_of_the_corpus(capsys):
    document = json.loads(output_of(["prepare", "tales", "--vocabulary-size", "280", "--out", "new", "--json"], capsys))
    assert document == {"folder": "new", **json.loads(Path("new/corpus.json").read_text(encoding="utf-8"))}
    assert document["settings"] == {"vocabulary_size": 280, "held_out": 0.1, "seed": 0}


@pytest.mark.filterwarnings("always::lengthwise.core.errors.SkippedTextWarning")
def test_prepare_warns_about_skipped_files(capsys):
    Path("more").mkdir()
    Path("more/good.txt").write_text("some text\n" * 9, encoding="utf-8")
    Path("more/bad.txt").write_bytes(b"\xff")
    cli.main(["prepare", "more", "--out", "new"])
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert warnings == ["warning: skipped 1 file(s) of more that are too large or not UTF-8 text, such as more/bad.txt"]


def test_a_run_saves_the_absolute_path_of_its_corpus(folders, capsys):
    document = json.loads(
        output_of(["train", "language_model", *QUICK, "--corpus", "corpus", "--out", "new", "--json"], capsys)
    )
    assert document["fitted"] is None
    saved = json.loads(Path("new/experiment.json").read_text(encoding="utf-8"))["experiment"]["task"]
    assert saved == {
        "name": "text",
        "corpus": str(Path("corpus").absolute()),
        "split": "train",
        "kind": None,
        "structure": False,
    }
    assert (Path("new") / "tokenizer.json").read_bytes() == (folders / "corpus/tokenizer.json").read_bytes()


def test_training_on_text_prints_no_exact_match(capsys):
    out = output_of(["train", "language_model", *QUICK, "--out", "new"], capsys)
    assert out.startswith("20 steps in ")
    assert "exact match" not in out
    assert out.endswith("saved in new\n")


def test_a_stopped_run_on_text_resumes_from_its_folder(capsys):
    flags = ["train", "language_model", *QUICK, "--corpus", "corpus", "--out", "new", "--json"]
    first = json.loads(output_of(flags, capsys))
    (Path("new") / "model.safetensors").unlink()
    again = json.loads(output_of(["train", "--resume", "--device", "cpu", "--out", "new", "--json"], capsys))
    assert {**again, "train_s": 0} == {**first, "train_s": 0}


def test_evaluate_appends_rows_with_losses_to_the_results(folders, capsys, monkeypatch):
    results = folders / "run" / "results.jsonl"
    results.unlink(missing_ok=True)
    out = output_of(
        ["evaluate", "run", "--lengths", "4,32", "--num-examples", "9", "--device", "cpu", "--json"], capsys
    )
    rows = json.loads(out)["results"]
    assert rows == [json.loads(line) for line in results.read_text().splitlines()]
    for row, length in zip(rows, (4, 32), strict=True):
        assert set(row) == RUN | TRAINING | LOSS | RESULT | {"corpus", "corpus_sha256"}
        assert (row["length"], row["num_examples"], row["scored_tokens"], row["shortest_context"]) == (
            length,
            9,
            4,
            length - 3,
        )
        assert row["low"] < row["loss"] < row["high"]
        assert row["perplexity"] == pytest.approx(math.exp(row["loss"]))
        assert (row["task"], row["decode"], row["fitted"]) == ("text", "forced", None)


def test_evaluate_measures_each_kind_of_text(capsys):
    flags = ["--variants", "tales,notes", "--lengths", "8", "--num-examples", "5", "--device", "cpu"]
    rows = json.loads(output_of(["evaluate", "run", *flags, "--json"], capsys))["results"]
    assert [row["variant"] for row in rows] == ["tales", "notes"]
    assert rows[0]["loss"] != rows[1]["loss"]
    table_text = output_of(["evaluate", "run", *flags], capsys)
    assert all(f"{row['loss']:.4f}" in table_text and row["variant"] in table_text for row in rows)


def test_a_moved_corpus_can_be_passed_again(folders, tmp_path, capsys):
    moved = tmp_path / "moved"
    moved.symlink_to(folders / "corpus")
    flags = ["evaluate", "run", "--lengths", "8", "--num-examples", "3", "--device", "cpu", "--json"]
    here, there = (json.loads(output_of([*flags, *more], capsys))["results"] for more in ([], ["--corpus", str(moved)]))
    assert [row["loss"] for row in here] == [row["loss"] for row in there]


def test_generate_continues_a_text_without_a_verdict(capsys):
    flags = ["generate", "run", "--prompt", "the bird ", "--max-new-tokens", "3", "--device", "cpu"]
    document = json.loads(output_of([*flags, "--json"], capsys))
    assert len(document["tokens"]) <= 3
    assert document["right"] is None
    out = output_of(flags, capsys)
    assert "correct" not in out
    assert "incorrect" not in out


@pytest.mark.slow
def test_compare_prints_and_draws_perplexities(folders, capsys):
    rows = "sequential/rotary,sequential/nope"
    flags = ["compare", "--task", "text", "--rows", rows, "--corpus", "corpus", *QUICK, "--lengths", "4,40"]
    out = output_of([*flags, "--num-examples", "6", "--workers", "1", "--out", "new"], capsys)
    assert out.startswith("perplexity by context length")
    found = [json.loads(line) for line in Path("new/results.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["row"], row["length"]) for row in found] == [
        (row, length) for row in rows.split(",") for length in (4, 40)
    ]
    assert all(f"{row['perplexity']:.2f}" in out for row in found)
    assert Path("new/figure.png").read_bytes().startswith(b"\x89PNG")
    # The folder of each row is a run on the corpus.
    (folder,) = Path("new").glob("*rotary/seed-0")
    assert load_run(folder, device="cpu").experiment.task == Text(corpus=str(Path("corpus").absolute()))


INVALID: list[tuple[list[str], str]] = [
    (
        ["prepare", "nowhere", "--out", "new"],
        "nowhere does not exist or is no regular file; use a file, a folder or dataset:NAME:SPLIT:CONFIG:COLUMN",
    ),
    (["prepare", "tales", "--out", "corpus"], "corpus already exists and is not an empty folder; choose another --out"),
    (["prepare", "tales", "--vocabulary-size", "9", "--out", "new"], "vocabulary size 9 is too small; use"),
    (["prepare", "tales", "--vocabulary-size", "x", "--out", "new"], "invalid number 'x'; use a whole number"),
    (
        ["prepare", "tales", "--held-out", "2", "--out", "new"],
        "invalid held-out share 2.0; use 0 or more and less than 1",
    ),
    (["prepare", "tales", "--held-out", "x", "--out", "new"], "invalid number 'x'; use a fraction such as 0.1"),
    (["prepare", "--out", "new"], "TEXT"),
    (["prepare", "tales"], "--out"),
    (
        ["train", "language_model", "--corpus", "nowhere"],
        "nowhere is not a corpus (it has no corpus.json); run lengthwise",
    ),
    (["train", "language_model", "--corpus", "tales"], "tales is not a corpus (it has no corpus.json); run lengthwise"),
    (["train", "language_model", "--corpus", "run"], "corpus run is damaged"),
    (["train", "parity", "--corpus", "corpus"], "--corpus corpus: unknown setting of task parity 'corpus'"),
    (
        ["train", "language_model", "--corpus", "corpus", "--train-lengths", "9:99999"],
        "length 99999 needs 100000 tokens, but this train text has",
    ),
    (["train", "--task", "text", "--scheme", "predicted"], "this task declares no coupling; use the scheme sequential"),
    (["train", "language_model", "--num-position-ids", "9"], "scheme sequential has no settings; leave it out"),
    (
        ["evaluate", "run", "--lengths", "90000"],
        "length 90000 needs 90001 tokens, but the longest held-out document has",
    ),
    (["evaluate", "run", "--decode", "free"], "requires teacher forcing at all lengths; leave out --decode free"),
    (["evaluate", "run", "--variants", "tails"], "unknown variant of text 'tails'; did you mean 'tales'? known: notes"),
    (["evaluate", "run", "--corpus", "nowhere"], "nowhere is not a corpus (it has no corpus.json)"),
    (["generate", "run", "--prompt", ""], "the prompt is empty; write some words to continue"),
    (["compare", "parity", "--corpus", "corpus"], "--corpus corpus: unknown setting of task parity 'corpus'"),
    (
        ["compare", "parity", "language_model", *QUICK],
        "tasks graded by loss cannot be compared with tasks graded by exact match",
    ),
    (
        ["compare", "context_length"],
        "length 2048 needs 2049 tokens, but the longest held-out document has 642 tokens; use lengths",
    ),
    (["compare", "context_length", "--corpus", "corpus"], "needs 2049 tokens, but the longest held-out document has"),
]


@pytest.mark.parametrize(("arguments", "text"), INVALID, ids=[" ".join(arguments) for arguments, _ in INVALID])
def test_invalid_input_prints_one_line_and_changes_no_file(arguments, text, tmp_path, capsys):
    before = folder_contents(tmp_path)
    line = error_of(arguments, capsys)
    assert text in line
    assert "\n" not in line
    assert folder_contents(tmp_path) == before


def test_experiment_for_starts_from_the_recipe_of_the_task():
    assert lw.experiment("addition", "predicted") == RECIPES["addition_by_hand"]()
    for task in ("parity", "copy", "reverse", "multi_addition"):
        scheme = RECIPES[task]().scheme.name
        assert lw.experiment(task, scheme) == RECIPES[task]()
    assert lw.experiment("text", "sequential") == RECIPES["language_model"]()
    assert lw.experiment("index_hints", "predicted").training == RECIPES["parity"]().training


def test_model_sizes_differ_only_in_size_and_comparison_rows_only_in_scheme_and_encoding():
    sizes = [RECIPES[f"language_model{size}"]() for size in ("_small", "", "_large")]
    widths = [(each.decoder.num_layers, each.decoder.d_model) for each in sizes]
    assert widths == sorted(widths)
    assert len({(each.training.steps, each.training.batch_size, each.train_lengths) for each in sizes}) == 1
    assert all(not each.decoder.previous_token_mix and not each.decoder.segments for each in sizes)
    rows = COMPARISONS["context_length"]()
    assert len(rows) == 6
    first = rows["rotary"]
    assert {replace(row, scheme=first.scheme, encoding=first.encoding) == first for row in rows.values()} == {True}
    assert [length / first.train_lengths[1] for length in first.evaluation.lengths] == [1, 2, 4, 8]
    # Training covers all IDs of the evaluation.
    assert rows["rotary + PoSE"].scheme.num_position_ids == max(first.evaluation.lengths) + 1


def test_only_the_text_task_accepts_a_corpus_which_is_checked_immediately():
    assert isinstance(override_corpus(RECIPES["language_model"](), Path("corpus")).task, GradedByLoss)
    assert override_corpus(small_experiment(), None) == small_experiment()
    with pytest.raises(
        UnknownNameError, match=r"--corpus corpus: unknown setting of task parity 'corpus'; .*known: coupling"
    ):
        override_corpus(small_experiment(Parity()), Path("corpus"))
    with pytest.raises(LengthwiseError, match=r"nowhere is not a corpus"):
        override_corpus(RECIPES["language_model"](), Path("nowhere"))


def test_a_comparison_on_text_reports_the_loss_of_each_run(tmp_path):
    task, messages = Text(corpus=str(Path("corpus").absolute())), []
    rows = {"rotary": text_experiment(task), "NoPE": text_experiment(task, encoding=NoPE())}
    comparison = compare(rows, tmp_path / "out", seeds=2, workers=1, device="cpu", report=messages.append)
    assert comparison.is_complete
    last = [row for row in comparison.rows if row["length"] == 32]
    assert [line.split(" s, ")[1] for line in messages] == [
        f"loss {row['loss']:.3f} at context length 32" for row in last
    ]
    assert len({row["loss"] for row in last}) == 4


def row(label: str = "rotary", length: int = 256, loss: float = 3.0, **changes: Any) -> dict[str, Any]:
    """Return a result row with the fields that reports use."""
    return {
        "row": label,
        "task": "text",
        "given": "nothing",
        "seed": 0,
        "length": length,
        "shortest_context": length - 31,
        "num_examples": 512,
        "num_documents": 40,
        "loss": loss,
        "low": loss - 0.1,
        "high": loss + 0.2,
        "perplexity": math.exp(loss),
        "bits_per_byte": loss / 2,
        "token_accuracy": 0.375,
        "variant": None,
        "fitted": None,
        "train_lengths": [256, 256],
        "id_range": [0, 256],
        "steps": 800,
        **changes,
    }


def test_pooling_seeds_gives_the_perplexity_of_the_mean_loss():
    pooled = pool_seeds([row(loss=2.0), row(loss=4.0, seed=1)])
    assert pooled == pytest.approx((math.exp(3.0), math.exp(2.9), math.exp(3.2)))
    assert pool_seeds([row(low=None, high=None)])[1:] == (None, None)
    # A mean over the seeds with bounds would not belong to the mean loss of all seeds.
    assert pool_seeds([row(), row(low=None, high=None, seed=1)])[1:] == (None, None)


def test_the_table_of_a_comparison_has_perplexities():
    ((_, header, body),) = result_tables([row(length=length, loss=loss) for length, loss in ((256, 3.0), (512, 2.5))])
    assert header[-2:] == ["256\nn=512", "512\nn=512"]
    assert body == [
        [
            "rotary",
            "nothing",
            "256-256",
            "0-256",
            "800",
            "-",
            "20.09\n18.17-24.53\n1 seed",
            "12.18\n11.02-14.88\n1 seed",
        ]
    ]
    assert describe_fitting_seeds([row()]) == "-"
    assert table_title([row()]).startswith("perplexity by context length")
    assert describe_result([row(), row(length=512, loss=2.5)]) == "loss 2.500 at context length 512"


def test_the_table_of_a_run_has_context_loss_and_interval():
    header, body = length_table([row(length=2048), row(low=None, high=None, bits_per_byte=None)])
    assert body[0] == ["2,017-2,048", "512", "40", "3.0000", "2.9000-3.2000", "20.09", "1.500", "0.3750"]
    assert [body[1][place] for place in (4, 6)] == ["-", "-"]
    assert len(header) == len(body[0])
    header, body = length_table([row(variant="code")])
    assert (header[0], body[0][0]) == ("kind", "code")


def test_a_figure_has_a_logarithmic_perplexity_axis(tmp_path, monkeypatch):
    curves: dict[str, tuple[list[int], list[float]]] = {}
    scales = set()
    plot = Axes.plot

    def record(axes: Axes, x: Any, y: Any, style: str, **how: Any) -> Any:
        curves[how["label"]] = (list(x), list(y))
        scales.add(axes)
        return plot(axes, x, y, style, **how)

    monkeypatch.setattr(Axes, "plot", record)
    rows = [row(label, length, loss) for label in ("rotary", "NoPE") for length, loss in ((256, 3.0), (512, 9.0))]
    assert draw_result_figure(rows, tmp_path, "text").read_bytes().startswith(b"\x89PNG")
    assert curves["NoPE"] == ([256, 512], [math.exp(3.0), math.exp(9.0)])
    (axes,) = scales
    assert (axes.get_yscale(), axes.get_xscale()) == ("log", "log")
    assert axes.get_ylim()[1] > math.exp(9.0)
    assert "perplexity" in axes.get_ylabel()

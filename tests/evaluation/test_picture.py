"""Pictures of examples: links, IDs and predictions equal independent results, and drawings show them safely."""

import json
import re
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from rich.cells import cell_len
from rich.console import Console
from tests.support.cases import randomize
from tests.support.small_runs import small_experiment

import lengthwise as lw
from lengthwise.cli import app as cli
from lengthwise.core.errors import DivergedError, SettingError
from lengthwise.encodings import NoPE
from lengthwise.evaluation.diagnosis.failures import measure_needed_attention
from lengthwise.evaluation.exact_match import iter_examples
from lengthwise.evaluation.grading import grade
from lengthwise.evaluation.picture.example_picture import COUPLED, FAR, GROUP_COLORS, MAX_TOKENS, PREVIOUS, token_label
from lengthwise.evaluation.picture.svg_drawing import draw_svg
from lengthwise.evaluation.picture.text_drawing import draw_text
from lengthwise.experiments.experiment import build_decoder
from lengthwise.experiments.run import Run
from lengthwise.positions import Predicted, Sequential
from lengthwise.tasks import TASKS, JSONLTask, MultiAddition, Parity, Text

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = [
    "</text><script>x</script>",
    "\x1b[31m",
    "a\nb",
    "\uffff\u202e",
    "漢字" * 9,
    "&lt;",
    " ",
    "[red]",
    "x" * 99,
]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def untrained_run(task=None, scheme=None, encoding=None) -> Run:
    """Return a run with random weights, which makes some predictions right and some wrong."""
    experiment = small_experiment(task, scheme, encoding)
    decoder = build_decoder(experiment).eval()
    randomize(decoder)
    return Run(folder=Path("run"), experiment=experiment, decoder=decoder, facts={"steps": 0})


def lines_of(picture, width=80) -> list[str]:
    return "\n".join(line.plain for line in draw_text(picture, width)).splitlines()


def row(picture, label, width=10_000) -> list[str]:
    """Return the cells of the first row with this label in the response."""
    lines = lines_of(picture, width)
    return next(line for line in lines[lines.index("response") :] if line.startswith(f"{label} ")).split()[1:]


def svg_texts(picture) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(draw_svg(picture)).iter(f"{SVG}text")]


@pytest.mark.first(3)
@pytest.mark.parametrize("name", TASKS)
def test_a_picture_shows_the_first_evaluation_example_of_a_task_and_what_its_answers_need(name):
    task = TASKS[name]()
    length = max(3, task.min_length)
    picture = lw.show(name, length)
    examples, batch = next(iter_examples(task, lw.SCHEMES[picture.scheme](), length, 1, 0))
    num_tokens = int(examples.response_end[0]) + 1
    assert picture.tokens == tuple(task.vocabulary[token] for token in examples.tokens[0, :num_tokens])
    assert np.array_equal(picture.position_ids, batch.position_ids[:, 0, :num_tokens])
    assert picture.scheme == ("sequential" if examples.coupling is None else "predicted")
    assert [answer.index for answer in picture.answers] == np.flatnonzero(examples.is_answer[0]).tolist()
    for answer in picture.answers:
        assert all(0 <= link.index < answer.index for link in answer.links)
        if examples.depends_on is not None:
            assert {link.index for link in answer.links} == set(examples.depends_on[0, answer.index].tolist()) - {-1}
    lines = lines_of(picture)
    assert max(map(cell_len, lines)) <= 80
    assert all(token_label(token) in svg_texts(picture) for token in picture.tokens)


def test_coupled_needs_are_at_id_distance_0_and_sequential_needs_are_not():
    coupled, sequential = (lw.show("parity", 7, scheme=scheme) for scheme in ("predicted", "sequential"))
    kinds = [
        Counter(answer.link_kind(link) for answer in each.answers for link in answer.links)
        for each in (coupled, sequential)
    ]
    assert kinds == [{COUPLED: 8, PREVIOUS: 7}, {FAR: 8, PREVIOUS: 7}]
    # Bit i of n is n + 1 tokens before the running parity that it is added to.
    assert row(sequential, "distance") == ["8"] * 8
    assert row(coupled, "distance") == ["0"] * 8
    assert row(coupled, "needs") == [str(index) for index in range(8)]


def test_training_ids_have_gaps_and_stay_coupled():
    with_gaps, without = (lw.show("parity", 6, scheme="predicted", training=training) for training in (True, False))
    assert with_gaps.tokens == without.tokens
    assert with_gaps.position_ids != without.position_ids
    assert with_gaps.color_group_numbers() == without.color_group_numbers()
    kinds = {answer.link_kind(link) for answer in with_gaps.answers for link in answer.links}
    assert kinds == {COUPLED, PREVIOUS}


def test_equal_ids_have_equal_colors_and_single_ids_have_none():
    picture = lw.show("multi_addition", 2)
    assert len(picture.position_ids) == 2
    for ids, numbers in zip(picture.position_ids, picture.color_group_numbers(), strict=True):
        for each, number in zip(ids, numbers, strict=True):
            assert (number is None) == (ids.count(each) == 1)
            assert [i for i, other in enumerate(ids) if other == each] == [
                i for i, (other, same) in enumerate(zip(ids, numbers, strict=True)) if same == number and other == each
            ]
    assert lw.show("parity", 4, scheme="sequential").color_group_numbers() == [[None] * 11]
    assert {"ID 1", "ID 2"} <= set(svg_texts(picture))


def test_a_task_without_support_is_linked_by_equal_ids():
    picture = lw.show("rows", 5)
    assert picture.links_from == "equal IDs"
    for answer in picture.answers[:-1]:
        # The built-in records reverse their prompt, so the linked token is the token to write.
        assert [picture.tokens[link.index] for link in answer.links] == [picture.tokens[answer.index]]
    assert "each link leads to a token with the ID of the token before the answer" in lines_of(picture)


def test_a_text_has_no_links(tmp_path):
    picture = lw.show(Text(), 5)
    assert picture.scheme == "sequential"
    assert not any(answer.links for answer in picture.answers)
    assert "needs" not in " ".join(lines_of(picture)[3:])
    run = untrained_run(Text(), Sequential(), NoPE())
    picture = lw.show(run, 5)
    assert "strongest earlier token" in lines_of(picture)[3]


@pytest.mark.parametrize("task", [Parity(), MultiAddition()], ids=["one level", "two levels"])
def test_a_run_is_shown_with_the_predictions_that_evaluation_grades(task):
    run = untrained_run(task)
    picture = lw.show(run, 3, seed=2)
    examples, batch = next(iter_examples(task, run.experiment.scheme, 3, 1, 2))
    grades = grade(run.decoder, batch, end=task.vocabulary.index("end"), decode="forced")
    predictions = [answer.prediction for answer in picture.answers]
    assert [each.token_correct for each in predictions] == grades.token_correct[0].tolist()
    assert not all(each.token_correct for each in predictions)
    assert [each.id_correct for each in predictions[:-1]] == grades.id_correct[0, :-1].tolist()
    assert predictions[-1].id_correct is None
    for answer, each in zip(picture.answers, predictions, strict=True):
        assert each.token_correct == (each.token == picture.tokens[answer.index])
    # The diagnosis computes attention with a cache, one answer at a time.
    head = picture.attention_head
    peaks = []
    for answer in picture.answers:
        mass = measure_needed_attention(run.decoder, batch, np.array([answer.index]), examples.depends_on)
        needed = [link.index for link in answer.links if answer.link_kind(link) != PREVIOUS]
        if needed:
            weights = [answer.prediction.attention[index] for index in needed]
            assert sum(weights) == pytest.approx(mass[0][head.layer, head.head], abs=1e-3)
            peaks.append(max(weights))
    assert head.weight == pytest.approx(np.mean(peaks), abs=1e-3)


def test_wrong_predictions_are_marked_in_both_drawings():
    picture = lw.show(untrained_run(), 6)
    marks = [not answer.prediction.token_correct for answer in picture.answers]
    assert [cell.startswith("!") for cell in row(picture, "predicts")] == marks
    assert sum(text.startswith("!") for text in svg_texts(picture)) == sum(marks) + sum(
        answer.prediction.id_correct is False for answer in picture.answers
    )


def test_hostile_tokens_stay_text(tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"prompt": HOSTILE, "response": HOSTILE}) + "\n")
    picture = lw.show(str(file), len(HOSTILE), out=tmp_path / "picture.svg")
    assert picture.tokens[: len(HOSTILE)] == tuple(HOSTILE)
    root = ElementTree.fromstring((tmp_path / "picture.svg").read_bytes())
    assert {each.tag.removeprefix(SVG) for each in root.iter()} == {
        "svg",
        "title",
        "desc",
        "style",
        "rect",
        "text",
    }
    lines = lines_of(picture)
    assert max(map(cell_len, lines)) <= 80
    assert not re.search(r"[\x00-\x1f\x7f\u202e]", "".join(lines))


@pytest.mark.parametrize(("name", "length"), [("multiplication", 20), ("parity", 62), ("sort", 60), ("addition", 40)])
def test_the_largest_pictures_have_less_than_100_kilobytes(name, length):
    run = untrained_run(TASKS[name](), Sequential(), NoPE())
    picture = lw.show(run, length)
    assert 0.6 * MAX_TOKENS < len(picture.tokens) <= MAX_TOKENS
    content = draw_svg(picture)
    assert len(content) < 100_000
    assert content == draw_svg(lw.show(run, length))


def test_an_svg_file_has_a_title_a_description_and_colors_for_dark_mode():
    root = ElementTree.fromstring(draw_svg(lw.show("parity", 5)))
    labels = {each.get("id"): each.text for each in root if each.get("id")}
    assert root.get("role") == "img"
    assert root.get("aria-labelledby").split() == ["title", "desc"]
    assert labels["title"] == "parity, length 5, scheme predicted, evaluation IDs, seed 0"
    assert "token 8: 0, ID 3; needs 1 at ID distance 0, 7 at ID distance 0" in labels["desc"]
    assert "prefers-color-scheme:dark" in root.find(f"{SVG}style").text


def test_black_text_is_readable_on_all_colors():
    for color in GROUP_COLORS:
        channels = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
        luminance = np.dot(linear, (0.2126, 0.7152, 0.0722))
        # The contrast of WCAG 2.2 for small text.
        assert (luminance + 0.05) / 0.05 >= 4.5


def test_boxes_of_tokens_do_not_overlap():
    root = ElementTree.fromstring(draw_svg(lw.show("multi_addition", 4)))
    boxes = [
        [float(each.get(name)) for name in ("x", "y", "width", "height")]
        for each in root.iter(f"{SVG}rect")
        if each.get("class") != "page"
    ]
    width, height = float(root.get("width")), float(root.get("height"))
    for index, (x, y, w, h) in enumerate(boxes):
        assert x >= 0
        assert y >= 0
        assert x + w <= width
        assert y + h <= height
        for other_x, other_y, other_w, other_h in boxes[:index]:
            assert x + w <= other_x or other_x + other_w <= x or y + h <= other_y or other_y + other_h <= y


def test_the_command_prints_plain_text_json_or_colors(tmp_path, capsys, monkeypatch):
    arguments = ["show", "parity", "--length", "5", "--out", str(tmp_path / "picture.svg")]
    picture = lw.show("parity", 5, scheme="predicted")
    cli.main(arguments)
    out = capsys.readouterr().out
    assert out.splitlines() == [*lines_of(picture), f"picture: {tmp_path / 'picture.svg'}"]
    assert "\x1b" not in out
    assert (tmp_path / "picture.svg").read_bytes() == draw_svg(picture)
    cli.main([*arguments, "--json"])
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(asdict(picture)))
    for no_color in (False, True):
        console = Console(force_terminal=True, no_color=no_color, color_system="truecolor", width=80)
        with console.capture() as capture:
            for line in draw_text(picture, 80):
                console.print(line)
        assert ("\x1b[38;2;0;0;0;48;2;86;180;233m1" in capture.get()) == (not no_color)


def test_the_picture_of_the_readme_is_made_by_its_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = re.search(r"^lengthwise (show .*)$", (ROOT / "README.md").read_text(), flags=re.MULTILINE).group(1)
    cli.main(command.split())
    (made,) = tmp_path.rglob("*.svg")
    assert made.read_bytes() == (ROOT / "docs/show.svg").read_bytes()


def nan_run() -> Run:
    run = untrained_run()
    with torch.no_grad():
        run.decoder.embedding.fill_(torch.nan)
    return run


ERRORS = [
    (
        lambda: lw.show("parity", 5, out="a.png"),
        SettingError,
        r"^out 'a.png' is not an SVG file; use a name that ends in ",
    ),
    (lambda: lw.show("parity", 0), SettingError, r"^length 0 is too small; use at least 1$"),
    (
        lambda: lw.show(untrained_run(), 5, scheme="coupled"),
        SettingError,
        r"^a run has a scheme; leave out scheme 'coup",
    ),
    (
        lambda: lw.show("parity", 63),
        SettingError,
        r"^the example of length 63 has 129 tokens, and a picture has at most",
    ),
    (
        lambda: lw.show(nan_run(), 5),
        DivergedError,
        r"^the predictions of the decoder are NaN; train the run again, or lo",
    ),
    (lambda: lw.show("rows", 21), SettingError, r"has no records of length 21; use one of 1-20$"),
    (
        lambda: lw.show(Parity(coupling="none"), 3, scheme="coupled"),
        lw.LengthwiseError,
        "declares no coupling; use the",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), ERRORS, ids=[text[:30] for _, _, text in ERRORS])
def test_invalid_input_raises_an_error_of_one_line(call, error, text):
    with pytest.raises(error, match=text) as error_info:
        call()
    assert "\n" not in str(error_info.value)


def test_shorter_records_of_a_batch_have_no_fill(tmp_path):
    file = tmp_path / "rows.jsonl"
    records = [{"prompt": ["a"], "response": ["a"] * count} for count in (1, 2, 3)]
    file.write_text("".join(json.dumps(each) + "\n" for each in records))
    shown = {lw.show(JSONLTask(file=str(file)), 1, seed=seed).tokens for seed in range(20)}
    assert shown == {("a", "<mark>", "<start>", *["a"] * count, "end") for count in (1, 2, 3)}


def test_a_discovered_coupling_is_shown_for_a_file_without_one(tmp_path):
    picture = lw.show("copy", 4, scheme="discovered")
    assert picture.scheme == "discovered"
    assert {answer.link_kind(link) for answer in picture.answers[:-1] for link in answer.links} <= {COUPLED, PREVIOUS}


def test_a_run_with_ids_beyond_its_encoding_raises_an_error():
    run = untrained_run(Parity(), Predicted(num_position_ids=48), lw.ENCODINGS["learned"](num_position_ids=48))
    assert lw.show(run, 20).tokens
    with pytest.raises(lw.LengthwiseError, match="length 60 requires ID"):
        lw.show(run, 60)
    assert replace(lw.show(run, 5), seed=1) != lw.show(run, 5)

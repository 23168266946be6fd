"""What certificates say of laws and tasks, and the verb that prints them."""

import json

import pytest

from lengthwise import cli
from lengthwise.errors import SettingError
from lengthwise.tasks import Addition, Copy, MultiAddition, Parity, Planted, Reverse
from lengthwise.tasks.placement import ByLength, Local, Subsets
from lengthwise.theory.certificate import certify_law
from lengthwise.theory.structure import certify_task

SINGLE = Planted(
    background=(0.6, 0.4, 0.0),
    tuples=((1,), (2,)),
    probabilities=(0.5, 0.5),
    labels=((1.0, 0.0), (0.0, 1.0)),
    placement=Local(shapes=((0,),), weights=(1.0,)),
)


@pytest.fixture(scope="module")
def certificate():
    return certify_law(SINGLE, trained=(1, 8), lengths=(12, 24), steps=60)


def test_no_bound_of_a_certificate_is_below_the_exact_risk(certificate):
    risk = {each.length: each.found.risk for each in certificate.risks}
    assert all(each.found.how == "exact" for each in certificate.risks)
    values = [(each.length, each.value) for each in certificate.bounds if each.value is not None]
    assert len(values) > 20
    assert all(value >= risk[length] - 1e-12 for length, value in values)
    assert all((each.value is None) == (each.refused is not None) for each in certificate.bounds)


def test_the_prediction_of_a_certificate_is_near_the_exact_risk(certificate):
    risk = {each.length: each.found.risk for each in certificate.risks}
    assert [each.length for each in certificate.predictions] == [12, 24]
    for each in certificate.predictions:
        assert each.odds == pytest.approx(risk[each.length], rel=0.1)


def test_every_assumption_of_a_local_law_holds_but_a_missing_room(certificate):
    assert all(each.holds for each in certificate.assumptions)
    short = certify_law(SINGLE, trained=(1, 3), lengths=(6,), steps=5)
    assert [each.name for each in short.assumptions if not each.holds] == ["room"]


@pytest.mark.parametrize(
    ("placement", "missing"),
    [
        (Subsets(num_planted=1), []),
        (
            Subsets(num_planted=2),
            ["locality of the data", "locality of the class", "room", "regularity", "light joints"],
        ),
        (
            ByLength(
                until=(8,),
                laws=(Local(shapes=((0, 1),), weights=(1.0,)), Local(shapes=((0, 2),), weights=(1.0,))),
            ),
            ["room", "regularity"],
        ),
    ],
    ids=["single", "subsets", "by_length"],
)
def test_a_condition_that_fails_is_named(placement, missing):
    pairs = tuple((1, 1) if placement.k == 2 else (1,) for _ in range(1))
    law = Planted(background=(1.0, 0.0), tuples=pairs, probabilities=(1.0,), labels=((1.0, 0.0),), placement=placement)
    found = certify_law(law, trained=(3, 8), lengths=(10,), steps=5)
    assert [each.name for each in found.assumptions if not each.holds] == missing
    refused = {each.bound for each in found.bounds if each.value is None}
    assert not missing or {"F0", "F1", "F2", "B_push"} <= refused


@pytest.mark.parametrize("task", [Parity(), Copy(), Reverse()], ids=["parity", "copy", "reverse"])
def test_tasks_whose_answers_need_one_id_may_lose_in_proportion_to_their_ids(task):
    found = certify_task(task, trained=10, lengths=(20, 100))
    held = {each.name: each.holds for each in found.assumptions}
    assert held == {
        "sparsity": True,
        "locality in token indexes": False,
        "locality in coupled IDs": True,
        "regularity in coupled IDs": True,
    }
    assert [each.id_reach for each in found.structures] == [1, 1, 1]
    for each, there in zip(found.growth, found.structures[1:], strict=True):
        assert each.per_answer == pytest.approx((there.num_ids - 1) / (found.structures[0].num_ids - 1))
        assert each.whole == pytest.approx(each.per_answer * there.answers)
        assert each.needed == pytest.approx(0.1 / each.whole)


def test_addition_needs_two_ids_and_several_numbers_one_on_each_level():
    assert certify_task(Addition(), trained=10, lengths=(20,)).structures[1].id_reach == 2
    assert certify_task(MultiAddition(), trained=4, lengths=(6,)).structures[1].id_reach == 1


def test_a_task_without_coupling_is_promised_nothing():
    found = certify_task(Parity(coupling="none"), trained=10, lengths=(20,))
    assert found.growth[0].per_answer is None
    assert [each.found for each in found.assumptions[2:]] == ["no coupling", "no coupling"]


def test_the_verb_prints_one_document_and_writes_a_figure(tmp_path, capsys):
    path = tmp_path / "law.json"
    law = {
        "background": [0.6, 0.4, 0.0],
        "tuples": [[1], [2]],
        "probabilities": [0.5, 0.5],
        "labels": [[1.0, 0.0], [0.0, 1.0]],
        "placement": {"name": "local", "shapes": [[0]], "weights": [1.0]},
    }
    path.write_text(json.dumps(law))
    flags = ["certify", str(path), "--train-lengths", "1:8", "--lengths", "12", "--steps", "5"]
    cli.main([*flags, "--json", "--out", str(tmp_path / "out")])
    shown = json.loads(capsys.readouterr().out)
    assert [each["length"] for each in shown["risks"]] == [8, 12]
    assert json.loads((tmp_path / "out" / "certificate.json").read_text())["bounds"] == shown["bounds"]
    assert (tmp_path / "out" / "figure.png").stat().st_size > 0
    cli.main(flags)
    assert "light joints" in capsys.readouterr().out


def test_the_verb_shows_what_a_task_depends_on(tmp_path, capsys):
    cli.main(["certify", "parity", "--lengths", "40", "--out", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "counterexample C2a" in shown
    assert "1.952" in shown
    assert (tmp_path / "figure.png").exists()


@pytest.mark.parametrize(
    ("what", "content", "line"),
    [
        ("law.json", "{", "cannot be read as JSON"),
        ("law.json", "[]", "holds no law"),
        ("law.json", '{"background": [0.5, 0.6]}', "add up to 1.1, not to 1"),
        ("law.json", '{"colour": 1}', "this is no task"),
        ("law.json", '{"placement": {"name": "nowhere"}}', "'nowhere' is in no table"),
        ("missing.json", None, "cannot be read as JSON"),
        ("", None, "is no run folder"),
        ("pariti", None, "did you mean 'parity'"),
    ],
)
def test_what_is_no_task_and_no_law_is_one_line(what, content, line, tmp_path, capsys):
    path = tmp_path / what
    if content is not None:
        path.write_text(content)
    asked = what if what == "pariti" else str(path)
    with pytest.raises(SystemExit) as ended:
        cli.main(["certify", asked])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert line in told
    assert told.count("\n") == 1


def test_a_task_that_hides_what_it_depends_on_is_refused():
    with pytest.raises(SettingError, match=r"task addition does not say which tokens .* use a task that does"):
        certify_task(Addition(order="most"), trained=10, lengths=(20,))

"""Options, output and errors of the influence command."""

import json
from pathlib import Path

import pytest
from tests.influence.test_influence_study import Letters
from tests.support.planted_model import PlantedModel, additive_log_prob

from lengthwise.cli import app as cli
from lengthwise.cli import influence_options
from lengthwise.core.errors import SettingError, UnknownNameError
from lengthwise.hf.language_models import LanguageModel
from lengthwise.influence.measures import AttentionWeight, GreedySelection, LeaveOneOut, PrefilteredMeasure
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.influence.targets import LONGPPL_RULE, ClearGainSelection


@pytest.mark.parametrize(
    ("name", "prefilter", "expected"),
    [
        ("greedy", None, GreedySelection()),
        ("attention", None, AttentionWeight()),
        ("leave_one_out", 0.2, PrefilteredMeasure(then=LeaveOneOut(), share=0.2)),
        ("screened", 0.3, PrefilteredMeasure(share=0.3)),
    ],
)
def test_prefilter_wraps_exact_measures(name, prefilter, expected):
    assert influence_options.build_measure(name, prefilter) == expected


def test_prefilter_rejects_measures_that_are_not_exact():
    with pytest.raises(SettingError, match=r"measure 'attention' computes no exact scores, .*leave out --prefilter"):
        influence_options.build_measure("attention", 0.1)
    with pytest.raises(UnknownNameError, match=r"unknown measure 'gredy'; did you mean 'greedy'"):
        influence_options.build_measure("gredy", None)


def test_rules_by_name():
    assert influence_options.parse_clear_gain_rule("gap", 0.3) == ClearGainSelection(gap=0.3)
    assert influence_options.parse_clear_gain_rule("gap", None) == ClearGainSelection()
    assert influence_options.parse_clear_gain_rule("longppl", None) == LONGPPL_RULE
    with pytest.raises(SettingError, match=r"rule longppl has a fixed gap of 2.0 nats; leave out --gap 0.3"):
        influence_options.parse_clear_gain_rule("longppl", 0.3)
    with pytest.raises(UnknownNameError, match=r"unknown rule 'longpl'; did you mean 'longppl'"):
        influence_options.parse_clear_gain_rule("longpl", 0.3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere/at/all", "text.txt"], "does not exist; use a folder written by save_pretrained"),
        (["model", "--k", "1,x"], "invalid --k '1,x'; use whole numbers"),
        (["model", "--k", "8", "--far", "4"], "k 8 exceeds the 1 far span of 8 tokens"),
        (["model", "--mode", "strictly"], "unknown mode 'strictly'; did you mean 'strict'"),
        (["model", "--controls", "others"], "unknown control 'others'; did you mean 'other'"),
        (["model", "--controls", "none,random"], "--controls none,random combines none with other controls; use"),
        (["model", "--targets", "10,20"], "invalid --targets 10,20; use one whole number, or all"),
        (["./model", "--compare-model", "other"], "./model does not exist; use a folder written by save_pretrained"),
    ],
)
def test_invalid_input_gives_one_line_and_status_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        cli.main(["influence", *arguments])
    output = capsys.readouterr()
    assert left.value.code == 2
    assert message in output.err
    assert output.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("positions", "far"), [(None, 1024), (2048, 1024), (1024, 959), (100, 35), (40, 1)])
def test_default_far_fits_the_positions_of_the_model(positions, far):
    planted = PlantedModel(additive_log_prob({}), 10)
    planted.num_positions = positions
    loaded = LanguageModel(model=planted, codec=Letters())
    assert influence_options.limit_far_tokens(InfluenceSettings(ks=(1,)), loaded).far == far


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 second"), (119.0, "119 seconds"), (120.0, "2 minutes"), (7200.0, "2 hours"), (1e6, "12 days")],
)
def test_durations_use_the_largest_unit_with_a_value_of_two(seconds, text):
    assert influence_options.format_duration(seconds) == text


@pytest.mark.slow
def test_two_models_are_compared_on_the_same_text(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    trained = ["train", "--task", "text", "--scheme", "sequential", "--encoding", "rotary", "--quick"]
    for name, seed in (("one", "0"), ("other", "1")):
        cli.main([*trained, "--seed", seed, "--out", name])
    capsys.readouterr()
    sizes = ["--near", "8", "--far", "16", "--k", "1,2", "--targets", "24", "--gap", "0.001", "--measure", "gradient"]
    with pytest.raises(SystemExit):
        cli.main(["influence", "one", "--compare-model", "./missing", *sizes, "--out", "both"])
    assert "unknown run './missing'; known: one, other" in capsys.readouterr().err
    assert not Path("both").exists()
    cli.main(
        ["influence", "one", "--compare-model", "other", *sizes, "--controls", "random", "--out", "both", "--json"]
    )
    document = json.loads(capsys.readouterr().out)
    assert [summary["model"] for summary in document["summaries"]] == ["one", "other"]
    assert {"0-one", "1-other", "scale.png", "scale.svg"} == {path.name for path in (tmp_path / "both").iterdir()}


@pytest.mark.slow
def test_last_process_joins_the_parts_and_reports(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cli.main(["train", "--task", "text", "--scheme", "sequential", "--encoding", "rotary", "--quick", "--out", "run"])
    sizes = ["--near", "8", "--far", "16", "--k", "1", "--targets", "40", "--gap", "0.001", "--measure", "gradient"]
    cli.main(["influence", "run", *sizes, "--out", "whole"])
    capsys.readouterr()
    cli.main(["influence", "run", *sizes, "--out", "parts", "--part", "2/2"])
    output = capsys.readouterr()
    assert output.out == ""
    assert "part 2/2 is complete; missing parts: 1/2" in output.err
    with pytest.raises(SystemExit):
        cli.main(["influence", "run", *sizes, "--seed", "1", "--out", "parts", "--part", "1/2"])
    assert "part-2-of-2 contains another study (different values: settings.seed" in capsys.readouterr().err
    assert not Path("parts/part-1-of-2").exists()
    cli.main(["influence", "run", *sizes, "--out", "parts", "--part", "1/2"])
    assert "page: parts" in capsys.readouterr().out
    assert Path("parts/influence.jsonl").read_bytes() == Path("whole/influence.jsonl").read_bytes()
    assert Path("parts/summary.json").read_bytes() == Path("whole/summary.json").read_bytes()

"""The graph of a run in onnxruntime generates the tokens and position IDs of the run."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from tests.support.small_runs import small_experiment

import lengthwise as lw
from lengthwise.core.errors import ModelError
from lengthwise.encodings import ALiBi, Learned
from lengthwise.experiments.run import train
from lengthwise.hf.onnx_export import export_onnx
from lengthwise.positions import Coupled, Sequential
from lengthwise.tasks import Addition

EXAMPLE = Path(__file__).parents[2] / "examples/onnx_decoding.py"
EXPERIMENTS = {
    **{head: small_experiment(head=head) for head in ("pointer", "state_pointer", "rank", "search")},
    "addition": small_experiment(Addition(), encoding=ALiBi()),
    "learned": small_experiment(scheme=Sequential(), encoding=Learned(num_position_ids=48)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXPERIMENTS)
def test_the_graph_generates_the_tokens_and_ids_of_the_run(kind, tmp_path):
    run = train(EXPERIMENTS[kind], tmp_path / "run")
    model = export_onnx(tmp_path / "run", tmp_path / "onnx")
    decode = runpy.run_path(str(EXAMPLE))["decode"]
    is_addition = isinstance(run.experiment.task, Addition)
    for prompt in ("3+4", "123+456") if is_addition else ("01", "1101001"):
        expected = lw.generate_from_prompt(run, prompt)
        example = run.experiment.task.example_from_prompt(prompt)
        length = example.prompt_length[0]
        symbols = [run.experiment.task.vocabulary[token] for token in example.tokens[0, :length]]
        ids = run.experiment.scheme.assign(example, np.random.default_rng(0), training=False).position_ids
        found = list(decode(str(model), symbols, ids[:, 0, :length].tolist(), len(expected.tokens)))
        assert [symbol for symbol, _ in found] == expected.tokens
        # The ID of the end token is never used.
        used = [ids for symbol, ids in found if symbol != "end"]
        assert used == [[each] for each in expected.position_ids[: len(used)]]


def test_ids_that_a_graph_cannot_continue_are_refused(tmp_path):
    train(small_experiment(scheme=Coupled(num_position_ids=48)), tmp_path / "run")
    with pytest.raises(ModelError, match="neither predicted nor consecutive"):
        export_onnx(tmp_path / "run", tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()

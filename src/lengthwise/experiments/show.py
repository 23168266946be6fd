"""Picture of one example of a task, a task file or a trained run."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lengthwise.core.errors import DefaultSettingsWarning, SettingError
from lengthwise.core.files import StrPath, check_output_file, write_atomically
from lengthwise.core.type_checks import check_arguments
from lengthwise.evaluation.exact_match import check_id_range
from lengthwise.evaluation.picture.example_picture import (
    ExamplePicture,
    PictureAnswer,
    find_links,
    predict_answers,
    sample_example,
)
from lengthwise.evaluation.picture.svg_drawing import MARK, draw_svg
from lengthwise.experiments import recipes
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.run import Run
from lengthwise.positions import Predicted, Sequential
from lengthwise.tasks import Task


@check_arguments
def show(
    source: Run | Task | str,
    length: int,
    *,
    scheme: str | None = None,
    seed: int = 0,
    training: bool = False,
    out: StrPath | None = None,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> ExamplePicture:
    """Return one example with tokens, position IDs and links, and write it to the SVG file ``out``.

    ``source`` is a run, a task, the name of a task, or the path of a JSONL file. Its example is the first that
    ``evaluate`` uses with this seed. With a run, the picture contains its predictions and its attention, with the
    correct tokens and IDs as input. ``scheme`` is the name of a position scheme for a task; by default, it is
    ``predicted`` for a task with a coupling, and ``sequential`` otherwise. ``report`` receives the metrics of a search
    for a coupling, which the scheme ``discovered`` needs. ``training`` shows IDs as in training, with random gaps.

    Raises ``SettingError`` for an example that is too long for a picture, for ``scheme`` together with a run, and for a
    file name that does not end in ``.svg``, and ``RunFolderError`` if ``out`` is a link or a file other than a picture.
    """
    if out is not None and Path(out).suffix != ".svg":
        raise SettingError(f"out {str(out)!r} is not an SVG file; use a name that ends in .svg")
    if out is not None:
        check_output_file(Path(out), MARK.encode())
    if length < 1:
        raise SettingError(f"length {length} is too small; use at least 1")
    if not isinstance(source, Run):
        picture = _picture_of(_experiment_of(source, scheme, length, seed, report), None, length, seed, training)
    elif scheme is None:
        picture = _picture_of(source.experiment, source, length, seed, training)
    else:
        raise SettingError(f"a run has a scheme; leave out scheme {scheme!r}, or load the run with overrides")
    if out is not None:
        write_atomically(Path(out), draw_svg(picture))
    return picture


def _experiment_of(
    task: Task | str,
    scheme: str | None,
    length: int,
    seed: int,
    report: Callable[[dict[str, Any]], None] | None,
) -> Experiment:
    """Return the experiment of a task with a scheme; without one, the coupling of an example decides."""
    with warnings.catch_warnings():
        # A picture needs only the task and the scheme.
        warnings.simplefilter("ignore", DefaultSettingsWarning)
        if scheme is not None:
            return recipes.experiment(task, scheme, report=report)
        experiment = recipes.experiment(task, Sequential.name)
        examples, _ = sample_example(experiment.task, experiment.scheme, length, seed, training=False)
        return experiment if examples.coupling is None else recipes.experiment(task, Predicted.name)


def _picture_of(experiment: Experiment, run: Run | None, length: int, seed: int, training: bool) -> ExamplePicture:
    task, scheme = experiment.task, experiment.scheme
    examples, batch = sample_example(task, scheme, length, seed, training=training)
    vocabulary, ids = task.vocabulary, batch.position_ids[:, 0]
    links_from, links = find_links(examples, ids.numpy())
    picture = ExamplePicture(
        task=task.name,
        scheme=scheme.name,
        length=length,
        seed=seed,
        training=training,
        prompt_length=int(batch.prompt_length[0]),
        tokens=tuple(vocabulary[token] for token in batch.tokens[0].tolist()),
        position_ids=tuple(map(tuple, ids.tolist())),
        links_from=links_from,
        answers=tuple(PictureAnswer(index=index, links=answer_links) for index, answer_links in links.items()),
    )
    if run is None:
        return picture
    check_id_range(run.decoder.check_ids.num_position_ids, batch, length)
    head, predictions = predict_answers(run.decoder, batch, links, vocabulary)
    answers = tuple(replace(answer, prediction=predictions[answer.index]) for answer in picture.answers)
    return replace(picture, answers=answers, encoding=experiment.encoding.name, attention_head=head)

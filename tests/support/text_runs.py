"""Small corpora and language models that take less than a second to prepare and train."""

from pathlib import Path
from typing import Any

import numpy as np

from lengthwise.encodings import EncodingSettings, Rotary
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import PositionScheme, Sequential
from lengthwise.tasks import Text
from lengthwise.tasks.text.corpus import prepare_corpus
from lengthwise.training.training_settings import TrainingSettings

WORDS = ["the", "a", "one", "of", "in", "bird", "stone", "river", "house", "sees", "holds", "leaves", "under", "and"]


def small_corpus(folder: Path, out: str = "corpus", *, documents: int = 8, held_out: float = 0.25) -> Path:
    """Prepare a corpus with two kinds of random text, and a number of documents per kind, and return its folder."""
    rng = np.random.default_rng(0)
    for kind, ending in (("tales", ".\n"), ("notes", "\n- ")):
        (folder / kind).mkdir(exist_ok=True)
        for number in range(documents):
            lines = [" ".join(rng.choice(WORDS, size=8)) for _ in range(20 + 5 * number)]
            (folder / kind / f"{number}.txt").write_text(ending.join(lines))
    prepare_corpus([str(folder / "tales"), str(folder / "notes")], folder / out, vocabulary_size=290, held_out=held_out)
    return folder / out


def text_experiment(
    task: Text,
    scheme: PositionScheme | None = None,
    encoding: EncodingSettings | None = None,
    *,
    lengths: tuple[int, ...] = (8, 16, 32),
    **training: Any,
) -> Experiment:
    """Return an experiment with 12 steps of a one-layer decoder on 16 tokens."""
    budget = {"steps": 12, "batch_size": 4, "warmup_steps": 3, "log_every": 4, "checkpoint_every": 4, **training}
    return Experiment(
        task=task,
        scheme=Sequential() if scheme is None else scheme,
        encoding=Rotary() if encoding is None else encoding,
        decoder=DecoderSettings(num_layers=1, d_model=16, num_heads=2, segments=False, tied_output=True),
        training=TrainingSettings(**budget),
        train_lengths=(16, 16),
        evaluation=EvaluationSettings(lengths=lengths, num_examples=(12,)),
    )

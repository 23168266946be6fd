"""What PPC is compared with: the same task, decoder options and lengths, other schemes and encodings."""

from dataclasses import replace

from lengthwise.encodings import FIRE, ALiBi, NoPE, Rotary
from lengthwise.experiments.experiment import Experiment
from lengthwise.positions import Coupled, Predicted, Randomized, RandomStart, Sequential, Skipwise


def with_baselines(predicted: Experiment, *, patience: int = 5, spread: int = 2) -> dict[str, Experiment]:
    """PPC, given IDs and the usual encodings.

    The usual ones get a second layer, up to ``patience`` times PPC's steps, and stop once they fit the training range.
    Where every token has an ID of its own, their range is ``spread`` times as large.
    """
    assert isinstance(predicted.scheme, Predicted)
    ids, gaps = predicted.scheme.num_position_ids, predicted.scheme.max_gaps
    usual = replace(
        predicted,
        scheme=Sequential(),
        encoding=Rotary(),  # as published
        decoder=replace(predicted.decoder, num_layers=2),
        training=replace(predicted.training, steps=patience * predicted.training.steps, fit_every=100),
    )
    return {
        "predicted (PPC)": predicted,
        "coupled, IDs given": replace(predicted, scheme=Coupled(num_position_ids=ids, max_gaps=gaps)),
        "coupled, no gaps": replace(predicted, scheme=Coupled(num_position_ids=ids, max_gaps=0)),
        "NoPE": replace(usual, encoding=NoPE()),
        "rotary": usual,
        "rotary + PoSE": replace(usual, scheme=Skipwise(num_position_ids=spread * ids)),
        "ALiBi": replace(usual, encoding=ALiBi()),
        "FIRE": replace(usual, encoding=FIRE()),
        "rotary, randomized": replace(usual, scheme=Randomized(num_position_ids=spread * ids)),
        "rotary, random start": replace(usual, scheme=RandomStart(num_position_ids=spread * ids)),
    }

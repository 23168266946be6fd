"""Configuration of the decoder of this library as a model of `transformers`."""

import hashlib
import json
from dataclasses import asdict
from typing import Any, no_type_check

import numpy as np
from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from lengthwise.core.errors import ModelError
from lengthwise.core.randomness import stream
from lengthwise.encodings import NoPE
from lengthwise.experiments.experiment import Experiment, build_entry, num_levels, to_dict
from lengthwise.model.decoder import Decoder
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import SCHEMES
from lengthwise.tasks import HasRunFiles
from lengthwise.tasks.examples import Examples

# What a saved configuration and its weights are bound by.
BOUND = (
    "decoder_settings",
    "encoding_settings",
    "symbols",
    "separators",
    "num_predicted_ids",
    "num_levels",
    "count_prompt_from",
    "run",
)


# What is saved has more than the fields, and the class takes it all.
@no_type_check
@strict
class LengthwiseConfig(PreTrainedConfig):
    """All that builds a `Decoder`, and the run it came from.

    ``symbols`` is the vocabulary in the order of its token numbers. ``run`` holds the experiment, the facts and the
    kept files of a run folder, for the way back; it is empty for a decoder that came from none. ``belongs_to`` is the
    digest of these and of the saved weights.
    ``count_prompt_from`` is the first ID of a prompt whose IDs count up at evaluation; None: a prompt has other IDs.
    """

    model_type = "lengthwise"
    keys_to_ignore_at_inference = ("past_key_values", "token_loss", "position_loss", "predicted_position_ids")

    decoder_settings: dict[str, Any] | None = None
    encoding_settings: dict[str, Any] | None = None
    symbols: list[str] | None = None
    separators: list[str] | None = None
    num_predicted_ids: int | None = None
    num_levels: int = 1
    id_weight: float = 1.0
    count_prompt_from: int | None = None
    run: dict[str, Any] | None = None
    belongs_to: str | None = None
    vocab_size: int = 0
    hidden_size: int = 0
    num_hidden_layers: int = 0
    num_attention_heads: int = 0
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None

    def digest_with(self, weights: str) -> str:
        """Digest of all that says how weights are read, and of theirs."""
        bound = {name: getattr(self, name) for name in BOUND} | {"weights": weights}
        return hashlib.sha256(json.dumps(bound, sort_keys=True).encode()).hexdigest()

    @property
    def predicts_ids(self) -> bool:
        """Whether the decoder has position heads."""
        return self.num_predicted_ids is not None

    @property
    def first_counted_id(self) -> int | None:
        """The first ID of a prompt that comes without any; None where a prompt has to have its own."""
        return self.count_prompt_from


def build_config(experiment: Experiment, run: dict[str, Any]) -> LengthwiseConfig:
    """The configuration of an experiment's decoder; ``run`` is kept as it is."""
    vocabulary, settings = list(experiment.task.vocabulary), experiment.decoder
    end = vocabulary.index("end") if "end" in vocabulary else None
    return LengthwiseConfig(
        decoder_settings=asdict(settings),
        encoding_settings=to_dict(experiment.encoding),
        symbols=vocabulary,
        separators=list(experiment.task.separators),
        num_predicted_ids=(experiment.scheme.num_position_ids or 1) if experiment.scheme.predicts_ids else None,
        num_levels=num_levels(experiment),
        id_weight=experiment.training.id_weight,
        count_prompt_from=find_first_counted_id(experiment),
        run=run,
        vocab_size=len(vocabulary),
        hidden_size=settings.d_model,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=settings.num_heads,
        eos_token_id=end,
        pad_token_id=end,
    )


def build_decoder(config: LengthwiseConfig) -> Decoder:
    """A decoder with fresh weights; ``ModelError`` where the configuration is that of none."""
    if config.decoder_settings is None or config.encoding_settings is None or config.symbols is None:
        raise ModelError("this configuration holds no decoder; make one with lengthwise export RUN --format hf")
    return Decoder(
        DecoderSettings(**config.decoder_settings),
        build_entry("encoding", config.encoding_settings),
        vocabulary_size=config.vocab_size,
        separators=tuple(config.symbols.index(separator) for separator in config.separators or ()),
        num_predicted_ids=config.num_predicted_ids,
        num_levels=config.num_levels,
    )


# Examples that are looked at for each length.
EXAMPLES = 16


def find_first_counted_id(experiment: Experiment) -> int | None:
    """Return the first ID of prompts whose IDs count up at evaluation, or None where they do anything else.

    Of a decoder that predicts no IDs, those of the response have to count on as well.
    """
    scheme = experiment.scheme
    if isinstance(experiment.encoding, NoPE) and not scheme.predicts_ids:
        # It reads no ID at all.
        return 0
    if scheme.draws_at_evaluation or scheme.real_valued:
        return None
    first: set[int] = set()
    for examples in _looked_at(experiment):
        rng = stream(experiment.seed, "IDs of prompts")
        ids = scheme.assign(examples, rng, training=False).position_ids
        index = np.arange(ids.shape[-1])
        last = examples.prompt_length - 1 if scheme.predicts_ids else examples.response_end
        if (((ids - index) != ids[..., :1]) & (index <= last[:, None])).any():
            return None
        first |= set(np.unique(ids[..., 0]).tolist())
    return first.pop() if len(first) == 1 else None


def _looked_at(experiment: Experiment) -> list[Examples]:
    task, lengths = experiment.task, experiment.train_lengths
    if isinstance(task, HasRunFiles):
        # Its files may be gone, and say of some examples nothing about the others.
        counts = experiment.scheme.needs is None and type(experiment.scheme) in SCHEMES.values()
        return [task.placeholder_example()] if counts else []
    chosen = sorted({lengths[0], lengths[len(lengths) // 2], lengths[-1]})
    return [task.sample(length=length, size=EXAMPLES, rng=stream(experiment.seed, "prompts")) for length in chosen]

"""Configuration of `LengthwiseForCausalLM`, the decoder of this library as a `transformers` model."""

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
from lengthwise.positions import SCHEMES, Discovered
from lengthwise.positions.scheme import HasLevels
from lengthwise.tasks import HasRunFiles
from lengthwise.tasks.examples import Examples

# Fields that must match the saved weights. The digest in ``belongs_to`` includes them.
DIGEST_FIELDS = (
    "decoder_settings",
    "encoding_settings",
    "symbols",
    "separators",
    "num_predicted_ids",
    "num_levels",
    "count_prompt_from",
    "run",
)
# Number of prompts per length from which `find_first_default_prompt_id` determines whether IDs are consecutive.
NUM_PROMPTS = 16


# The class accepts all entries of a saved configuration, including entries that are not fields.
@no_type_check
@strict
class LengthwiseConfig(PreTrainedConfig):
    """Settings of a `Decoder`, and the run that it was exported from.

    ``symbols`` is the vocabulary in the order of the tokens. ``run`` contains the experiment, the facts and the files
    of a run folder, for `import_hf`; it is None if the decoder does not come from a run. ``belongs_to`` is the digest
    of these fields and of the saved weights. ``count_prompt_from`` is the first prompt ID if evaluation IDs are
    consecutive, and None otherwise.
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

    def combine_digest(self, weights: str) -> str:
        """Return a digest that combines the fields in ``DIGEST_FIELDS`` with the digest of the weights."""
        fields = {name: getattr(self, name) for name in DIGEST_FIELDS} | {"weights": weights}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

    @property
    def predicts_ids(self) -> bool:
        """True if the decoder has position heads."""
        return self.num_predicted_ids is not None

    @property
    def prompt_scheme(self) -> Discovered | None:
        """Scheme whose rule gives the default prompt IDs, or None."""
        settings = (self.run or {}).get("experiment", {}).get("scheme", {})
        return build_entry("scheme", settings) if settings.get("name") == Discovered.name else None

    @property
    def first_default_prompt_id(self) -> int | None:
        """Default first ID of consecutive prompt IDs; None if the caller must pass the prompt IDs."""
        return self.count_prompt_from


def build_config(experiment: Experiment, run: dict[str, Any]) -> LengthwiseConfig:
    """Return the configuration of an experiment's decoder, with ``run`` as its field of the same name."""
    vocabulary, settings = list(experiment.task.vocabulary), experiment.decoder
    end_token = vocabulary.index("end") if "end" in vocabulary else None
    return LengthwiseConfig(
        decoder_settings=asdict(settings),
        encoding_settings=to_dict(experiment.encoding),
        symbols=vocabulary,
        separators=list(experiment.task.separators),
        num_predicted_ids=(experiment.scheme.num_position_ids or 1) if experiment.scheme.predicts_ids else None,
        num_levels=num_levels(experiment),
        id_weight=experiment.training.id_weight,
        count_prompt_from=find_first_default_prompt_id(experiment),
        run=run,
        vocab_size=len(vocabulary),
        hidden_size=settings.d_model,
        num_hidden_layers=settings.num_passes,
        num_attention_heads=settings.num_heads,
        eos_token_id=end_token,
        pad_token_id=end_token,
    )


def decoder_from_config(config: LengthwiseConfig) -> Decoder:
    """Build a decoder with initial weights. Raises ``ModelError`` for a configuration without decoder settings."""
    if config.decoder_settings is None or config.encoding_settings is None or config.symbols is None:
        raise ModelError("the configuration has no decoder settings; create it with lengthwise export RUN --format hf")
    return Decoder(
        DecoderSettings(**config.decoder_settings),
        build_entry("encoding", config.encoding_settings),
        vocabulary_size=config.vocab_size,
        separators=tuple(config.symbols.index(separator) for separator in config.separators or ()),
        num_predicted_ids=config.num_predicted_ids,
        num_levels=config.num_levels,
    )


def find_first_default_prompt_id(experiment: Experiment) -> int | None:
    """Return the first prompt ID if all evaluation prompts have consecutive IDs from it; otherwise None.

    If the decoder does not predict IDs, the IDs of the response must also be consecutive.
    """
    scheme = experiment.scheme
    if isinstance(experiment.encoding, NoPE) and not scheme.predicts_ids:
        # The decoder uses no IDs.
        return 0
    if scheme.random_at_evaluation or scheme.real_valued:
        return None
    first_ids: set[int] = set()
    for examples in _sample_examples(experiment):
        rng = stream(experiment.seed, "IDs of prompts")
        ids = scheme.assign(examples, rng, training=False).position_ids
        index = np.arange(ids.shape[-1])
        last_index = examples.prompt_length - 1 if scheme.predicts_ids else examples.response_end
        if (((ids - index) != ids[..., :1]) & (index <= last_index[:, None])).any():
            return None
        first_ids |= set(np.unique(ids[..., 0]).tolist())
    return first_ids.pop() if len(first_ids) == 1 else None


def _sample_examples(experiment: Experiment) -> list[Examples]:
    task, lengths = experiment.task, experiment.train_lengths
    if isinstance(task, HasRunFiles):
        # The files may be missing, and a few examples may not represent all examples.
        scheme = experiment.scheme
        # The placeholder does not have the tokens that a found rule counts from.
        counts_up = scheme.needs is None and type(scheme) in SCHEMES.values() and not isinstance(scheme, HasLevels)
        return [task.placeholder_example()] if counts_up else []
    chosen = sorted({lengths[0], lengths[len(lengths) // 2], lengths[-1]})
    return [task.sample(length=length, size=NUM_PROMPTS, rng=stream(experiment.seed, "prompts")) for length in chosen]

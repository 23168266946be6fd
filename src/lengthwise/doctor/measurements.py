"""Measurements of one document: the loss of its targets with one window and one change, and needles."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lengthwise.core.errors import ModelError
from lengthwise.core.randomness import random_stream
from lengthwise.doctor.cache_budget import measure_cache_budget
from lengthwise.doctor.changes import Change, build_edited_model, list_changes, rope_settings
from lengthwise.doctor.needles import ask_needles
from lengthwise.doctor.settings import DoctorSettings
from lengthwise.doctor.windows import TargetBlock
from lengthwise.evaluation.language_model import NextTokenModel
from lengthwise.hf.causal_lm import CausalLM
from lengthwise.hf.language_models import LanguageModel
from lengthwise.tasks import TokenizedDocument

# Kinds of measurements, the change without an effect, and the number of decimal digits of a stored loss.
LOSS, BAND, CACHE, NEEDLE = "loss", "band", "cache", "needle"
PUBLISHED = "as published"
NUM_DIGITS = 6
# Name of a measurement: its kind, the index of the block, the length, and more values of this kind.
Key = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Model under examination with its trained context, the limit of its position IDs, and its changes."""

    language_model: LanguageModel
    trained: int
    max_length: int | None
    changes: Sequence[Change]
    impossible: Sequence[str]

    def changes_at(self, length: int) -> list[Change]:
        """Return the changes that may explain a failure at this length."""
        return [
            change
            for change in self.changes
            if change.explains_length and (change.kept_first is None or length > self.trained)
        ]

    @classmethod
    def of(cls, language_model: LanguageModel, settings: DoctorSettings) -> "Subject":
        """Return the subject for a model. Raises ``ModelError`` if its trained context is unknown."""
        model = language_model.model
        if isinstance(model, CausalLM):
            config = model.model.config.get_text_config()
            claimed = getattr(config, "max_position_embeddings", None)
            # Only rotary angles exist for all IDs.
            max_length = None if rope_settings(config) is not None else claimed
            hf_model = model.model
        else:
            distance = model.trained_distance
            claimed = model.num_positions if distance is None else int(distance) + 1
            max_length, hf_model = model.num_positions, None
        trained = settings.trained if settings.trained is not None else claimed
        if trained is None:
            raise ModelError(f"the trained context of {model.name} is unknown; pass it with --trained")
        changes, impossible = list_changes(hf_model, trained, has_start=bool(language_model.codec.start))
        return cls(
            language_model=language_model,
            trained=trained,
            max_length=max_length,
            changes=changes,
            impossible=impossible,
        )


@dataclass(kw_only=True)
class Measurer:
    """Measurer of single keys. It keeps one edited model, for all documents in turn."""

    subject: Subject
    blocks: Sequence[TargetBlock]
    texts: Sequence[TokenizedDocument]
    seed: int
    _edited: tuple[str, NextTokenModel] | None = field(default=None, init=False)

    def measure(self, key: Key) -> Any:
        """Return the JSON value of a measurement. Raises ``ModelError`` for a loss that is not finite."""
        kind, index, length, *details = key
        methods: dict[str, Callable[..., Any]] = {
            LOSS: self._loss,
            BAND: self._band,
            CACHE: self._cache,
            NEEDLE: self._needle,
        }
        return methods[kind](self.blocks[index], length, *details)

    def _loss(self, block: TargetBlock, length: int, change_name: str) -> float:
        """Return the mean loss of the targets (nats) if the model reads ``length`` tokens."""
        window = block.window(length, len(self._start))
        if change_name == PUBLISHED:
            return self._mean_loss(self.subject.language_model.model, window, block.num_targets)
        change = next(each for each in self.subject.changes if each.name == change_name)
        if change.kept_first is not None:
            num_last = self.subject.trained - len(self._start) - change.kept_first + 1
            window = torch.cat([window[: change.kept_first], window[len(window) - num_last :]])
        if change.first_token is not None:
            window = torch.cat([torch.tensor([change.first_token]), window[1:]])
        shift = 0
        if change.shifts_ids:
            room = self.subject.trained - length
            shift = int(random_stream(self.seed, "shift", block.text.name).integers(1, room + 1)) if room > 0 else 0
        return self._mean_loss(self._model_with(change), window, block.num_targets, shift)

    def _band(self, block: TargetBlock, length: int, near: int, source: str) -> float | None:
        """Return the mean loss with other tokens from ``near`` on, or None if there are none."""
        num_start = len(self._start)
        replaced = block.with_other_band(self.texts, source, near - num_start, length - num_start, self.seed)
        if replaced is None:
            return None
        return self._mean_loss(self.subject.language_model.model, torch.from_numpy(replaced.tokens), block.num_targets)

    def _cache(self, block: TargetBlock, length: int) -> dict[str, Any] | None:
        """Return the divergences by selection of far tokens."""
        window = torch.cat([torch.tensor(self._start, dtype=torch.int64), block.window(length, len(self._start))])
        rng = random_stream(self.seed, CACHE, block.text.name)
        return measure_cache_budget(self.subject.language_model, window, block.num_targets, rng)

    def _needle(self, block: TargetBlock, length: int) -> list[bool] | None:
        """Return for each depth if the model finds the needle."""
        rng = random_stream(self.seed, NEEDLE, block.text.name)
        return ask_needles(self.subject.language_model, block.window(length, 0), length, rng)

    @property
    def _start(self) -> tuple[int, ...]:
        return self.subject.language_model.codec.start

    def _model_with(self, change: Change) -> NextTokenModel:
        model = self.subject.language_model.model
        if not isinstance(model, CausalLM) or change.is_of_input:
            return model
        if self._edited is None or self._edited[0] != change.name:
            # Free the last edited model first.
            self._edited = None
            self._edited = (change.name, build_edited_model(model.model, change, model.name))
        return self._edited[1]

    def _mean_loss(self, model: NextTokenModel, window: Any, num_targets: int, shift: int = 0) -> float:
        tokens = torch.cat([torch.tensor(self._start, dtype=torch.int64), torch.as_tensor(window)])
        ids = model.assign_position_ids(tokens[:-1]) + shift
        log_probs = model.last_log_probs(tokens[:-1], ids, num_targets)
        targets = tokens[-num_targets:].to(log_probs.device)
        loss = float(-log_probs.gather(1, targets[:, None]).double().mean())
        if not abs(loss) < float("inf"):
            raise ModelError(f"{model.name} has a loss of {loss} at {len(tokens) - 1:,} tokens; use --dtype float32")
        return round(loss, NUM_DIGITS)

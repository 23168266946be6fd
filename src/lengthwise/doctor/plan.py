"""Plan of an examination: groups of measurements in the order of their importance, and the time that they need."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from lengthwise.core.errors import SettingError
from lengthwise.doctor.measurements import BAND, CACHE, LOSS, NEEDLE, PUBLISHED, Key, Subject
from lengthwise.doctor.settings import EXTRAPOLATIONS, FRACTIONS, MIN_CONTEXT, DoctorSettings
from lengthwise.influence.report.bootstrap import MIN_DOCUMENTS

# Share of the time for the losses at all lengths as published, so that something remains for the other boxes.
LOSS_SHARE = 0.5
# Time of a search in the cache, and of the needles of a text, in passes over the same number of tokens.
PASSES_PER_SEARCH, PASSES_PER_NEEDLES = 6.0, 1.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds per pass: ``linear`` times the number of tokens plus ``quadratic`` times its square."""

    linear: float
    quadratic: float

    @classmethod
    def fit(cls, seconds: Mapping[int, float]) -> "Speed":
        """Fit the seconds of passes at two lengths."""
        (short, first), (long, second) = sorted(seconds.items())
        quadratic = max(0.0, (second / long - first / short) / (long - short))
        return cls(linear=max(0.0, second / long - quadratic * long), quadratic=quadratic)

    def seconds(self, length: int) -> float:
        """Return the expected seconds of a pass over ``length`` tokens."""
        return self.linear * length + self.quadratic * length**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Measurements of all documents that are useful only together. ``passes`` is the number of passes per key."""

    label: str
    keys: Sequence[Key]
    passes: float = 1.0

    def seconds(self, speed: Speed, done: Iterable[Key] = ()) -> float:
        """Return the expected seconds of the keys that are not done."""
        finished = set(done)
        return sum((self.passes * speed.seconds(key[2]) for key in self.keys if key not in finished), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Lengths (tokens that the model reads) and number of documents; ``omitted`` says what does not fit."""

    lengths: tuple[int, ...]
    documents: int
    trained: int
    num_targets: int
    omitted: tuple[str, ...] = ()

    def losses(self, length: int, change: str = PUBLISHED) -> list[Key]:
        """Return the keys of the losses at a length."""
        return [(LOSS, index, length, change) for index in range(self.documents)]

    def change_group(self, change: str, length: int) -> Group:
        """Return the losses with a change at a length."""
        return Group(label=f"{change} at {length:,} tokens", keys=self.losses(length, change))

    def band_groups(self) -> list[Group]:
        """Return the losses with replaced tokens, by distance."""
        groups = []
        for near, length in pairwise(self.lengths):
            if length <= self.trained:
                pairs = product(range(self.documents), ("other", "elsewhere"))
                keys = [(BAND, index, length, near, source) for index, source in pairs]
                groups.append(Group(label=f"replaced text from {near:,} to {length:,} tokens", keys=keys))
        return groups

    def cache_group(self) -> Group:
        """Return the search of the cache, at an eighth of the trained context or the nearest longer length."""
        length = min((length for length in self.lengths if 8 * length >= self.trained), default=self.lengths[-1])
        keys = [(CACHE, index, length) for index in range(self.documents)]
        return Group(label=f"cache of {length:,} tokens", keys=keys, passes=PASSES_PER_SEARCH)

    def needle_group(self, length: int) -> Group:
        """Return the needles at a length."""
        keys = [(NEEDLE, index, length) for index in range(self.documents)]
        return Group(label=f"needles in {length:,} tokens", keys=keys, passes=PASSES_PER_NEEDLES)


def list_lengths(settings: DoctorSettings, subject: Subject) -> tuple[int, ...]:
    """Return the lengths up to the trained context, or those of the settings."""
    num_start, limit = len(subject.language_model.codec.start), subject.max_length
    if settings.lengths is not None:
        if limit is not None and settings.lengths[-1] > limit:
            raise SettingError(
                f"length {settings.lengths[-1]} exceeds the {limit} positions of "
                f"{subject.language_model.model.name}; use --lengths of at most {limit}"
            )
        return settings.lengths
    trained, targets = subject.trained, settings.num_targets(subject.trained)
    short = [targets + num_start + MIN_CONTEXT * factor for factor in (1, 4)]
    lengths = [int(trained * fraction) for fraction in FRACTIONS]
    lengths = [*(length for length in short if 4 * length < 3 * lengths[0]), *lengths]
    lengths = [length for length in lengths if length >= targets + num_start + 1]
    if len(lengths) < 2:
        raise SettingError(f"a trained context of {trained} tokens is too short; choose a model with 64 or more")
    return tuple(lengths)


def longest_candidate(settings: DoctorSettings, subject: Subject, num_tokens: int) -> int:
    """Return the longest length that a plan may have for texts with ``num_tokens`` tokens."""
    lengths = list_lengths(settings, subject)
    if settings.lengths is not None:
        return lengths[-1]
    candidates = [int(subject.trained * factor) for factor in EXTRAPOLATIONS]
    limit = min(num_tokens - 1, subject.max_length or num_tokens)
    return next((length for length in candidates if length <= limit), min(lengths[-1], limit))


def make_plan(settings: DoctorSettings, subject: Subject, speed: Speed, documents: int, longest: int) -> Plan:
    """Choose lengths and documents that fit into the time. Raises ``SettingError`` if two lengths do not fit."""
    lengths, omitted = list(list_lengths(settings, subject)), list[str]()
    budget = LOSS_SHARE * 60 * settings.minutes
    fewest = min(documents, MIN_DOCUMENTS)

    def seconds(lengths: Sequence[int], number: int) -> float:
        return number * sum(map(speed.seconds, lengths))

    def leave_out(reason: str) -> None:
        omitted.append(f"{lengths.pop():,} tokens ({reason})")

    while lengths and lengths[-1] > longest:
        leave_out("the texts are too short")
    while len(lengths) > 2 and seconds(lengths, fewest) > 2 * budget:
        leave_out("no time; use more --minutes")
    if len(lengths) < 2 or seconds(lengths, fewest) > 2 * budget:
        needed = max(1, round(seconds(lengths, fewest) / 60 / LOSS_SHARE))
        raise SettingError(
            f"{settings.minutes:g} minutes are too few for {fewest} documents; use --minutes {needed}, or smaller "
            "--lengths"
        )
    if settings.lengths is None and lengths[-1] == subject.trained:
        # A longer length must leave time for one change at this length.
        beyond = [int(subject.trained * factor) for factor in EXTRAPOLATIONS]
        allowed = [length for length in beyond if length <= longest]
        fitting = [length for length in allowed if seconds([*lengths, length, length], fewest) <= 1.5 * budget]
        # If little time remains for the other boxes, the shortest length beyond the trained context is enough, and
        # half of the trained context is left out.
        without_half = [*lengths[:-2], lengths[-1]]
        tight = [length for length in allowed[-1:] if seconds([*without_half, length, length], fewest) <= 1.9 * budget]
        if not fitting and tight:
            omitted.append(f"{lengths.pop(-2):,} tokens (no time; use more --minutes)")
        chosen = next(iter(fitting or tight), None)
        if chosen is not None:
            lengths += sorted({chosen, *(length for length in allowed if length == 2 * subject.trained <= chosen)})
        reasons = {True: "no time; use more --minutes", False: "beyond the texts or the position IDs"}
        omitted += [f"{length:,} tokens ({reasons[length in allowed]})" for length in beyond if length > lengths[-1]]
    number = next((number for number in range(documents, fewest, -1) if seconds(lengths, number) <= budget / 2), fewest)
    return Plan(
        lengths=tuple(lengths),
        documents=number,
        trained=subject.trained,
        num_targets=settings.num_targets(subject.trained),
        omitted=tuple(omitted),
    )

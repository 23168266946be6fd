"""JSONLTask: a task that is a file of one's own, with a prompt and its response in each line."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import SettingError, TaskFileError
from lengthwise.core.json_parsing import parse_json
from lengthwise.core.randomness import stream
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.jsonl_table import ENDING, MARK, RESERVED, START, TOO_LARGE, JSONLTable, is_record, read_table
from lengthwise.tasks.task import Task, check_sizes, numbers_of

# What a run keeps of its rows.
KEPT = "rows.json"
# Room behind a prompt of no row, beside as many tokens as the prompt has.
ROOM = 64
OWN_LENGTHS, OWN_ROWS, OWN_LETTERS = range(1, 21), 64, "abcdefgh"


@dataclass(frozen=True, kw_only=True)
class JSONLTask:
    """Layout ``p_1 .. p_n <mark> <start> r_1 .. r_m end``: prompt and response of a row of ``file``.

    A row of a length is drawn as often as any other; its length is its prompt's number of tokens unless it says
    otherwise. Without a file the rows are some of our own, letters to be written backwards. ``digest`` is that of the
    file's content when it was first named. ``kept``, never saved, is the folder of the run that keeps the tokens.

    Where rows have a coupling, a response token's number is that of the prompt tokens that it comes from. The token
    before it is the one that it is predicted from and gets that number as its ID, ``<start>`` that of the first: what
    is needed is at ID distance 0, whatever the gaps. The last one has the ID of ``<mark>``, a number beyond all others:
    above them, or below where responses are read off downwards.
    """

    file: str | None = None
    digest: str | None = None
    kept: str | None = field(default=None, compare=False, repr=False)

    name: ClassVar[str] = "rows"
    summary: ClassVar[str] = "prompts and responses of your own, from a file that is named --task FILE.jsonl"
    paper: ClassVar[str] = ""
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_types(self)
        if self.file is None:
            return
        # A run is used from anywhere.
        object.__setattr__(self, "file", str(Path(self.file).absolute()))
        if self.digest is None:
            object.__setattr__(self, "digest", _digest(self.file))

    def __getstate__(self) -> dict[str, Any]:
        # Another process reads the file itself.
        return {part.name: getattr(self, part.name) for part in fields(self)}

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The tokens of all rows, in the order of their first appearance, and those that stand behind them."""
        return (*self._symbols, *RESERVED)

    @property
    def separators(self) -> tuple[str, ...]:
        """Two: the mark and the start token, side by side."""
        return (MARK, START)

    @property
    def available_lengths(self) -> tuple[int, ...]:
        """The lengths that the file has rows of."""
        return tuple(self._table.by_length)

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Draw rows uniformly, with replacement."""
        check_sizes(self.name, length, size)
        of_length = self._of(length, self._table.by_length)
        return self._lay_out(self._table, of_length[rng.integers(0, len(of_length), size=size)])

    def num_records(self, length: int) -> int:
        """Return the number of different rows of a length; rows that repeat prompt and response count once."""
        return len(self._of(length, self._table.distinct))

    def records_at(self, length: int, places: Int[np.ndarray, " batch"]) -> Examples:
        """Return different rows of a length by their place in the file."""
        return self._lay_out(self._table, self._of(length, self._table.distinct)[places])

    def from_prompt(self, prompt: str) -> Examples:
        """Read tokens with spaces between them, or a whole row as its file would have it.

        Of tokens alone, the answer and the coupling are those of the row with that prompt, or else not known.
        """
        if is_record(prompt):
            return self._lay_out(read_table([prompt.encode()], "the prompt", self._symbols), np.array([0]))
        words = prompt.split()
        words = words[:-2] if words[-2:] == [MARK, START] else words
        tokens = numbers_of(words, self._symbols, self.name, "tokens of its file with spaces between them")
        # A run is used without the file, too.
        if self.file is None or Path(self.file).exists():
            found = self._table.with_prompt(tokens)
            if len(found):
                return self._lay_out(self._table, found[:1])
        marks, end = len(self._symbols) + np.arange(2), len(self._symbols) + 2
        filled = np.concatenate([tokens, marks, np.full(ROOM + len(tokens), end)])[None]
        return Examples(
            tokens=filled, prompt_length=np.array([len(tokens) + 2]), is_answer=np.zeros(filled.shape, dtype=bool)
        )

    def variants(self) -> Mapping[str, Task]:
        """One distribution only."""
        return {}

    def placeholder_example(self) -> Examples:
        """A row of one token and one more, coupled if those of the run are."""
        table = JSONLTable(
            symbols=self._symbols,
            tokens=np.zeros(2, dtype=np.int64),
            starts=np.array([0, 2]),
            prompt_lengths=np.array([1]),
            lengths=np.array([1]),
            coupling=np.zeros(2, dtype=np.int64) if self._facts["coupled"] else None,
        )
        return self._lay_out(table, np.array([0]))

    def run_files(self) -> Mapping[str, bytes]:
        """The tokens' names, whether they are coupled, and in which direction."""
        return {KEPT: json.dumps(self._facts).encode() + b"\n"}

    def source(self) -> Mapping[str, str]:
        """Return the path of the file and the SHA-256 of its content."""
        return {} if self.file is None or self.digest is None else {"file": self.file, "file_sha256": self.digest}

    def from_run_folder(self, folder: Path) -> "JSONLTask":
        """The same rows, their tokens numbered as those of the run."""
        if not (folder / KEPT).is_file():
            raise TaskFileError(
                f"{folder} was not trained on a file of rows (it has no {KEPT}); name the task of that run"
            )
        kept = replace(self, kept=str(folder))
        # What is damaged is told of now.
        _ = kept._facts
        return kept

    def read(self) -> "JSONLTask":
        """The same rows, once their file has been read: what is wrong with it is told of now."""
        _ = self._table
        return self

    @cached_property
    def _facts(self) -> Mapping[str, Any]:
        if self.kept is None:
            table = self._table
            return {"symbols": table.symbols, "coupled": table.coupling is not None, "falls": table.falls}
        path = Path(self.kept) / KEPT
        try:
            facts = parse_json(path.read_bytes())
            symbols, coupled, falls = tuple(facts["symbols"]), facts["coupled"], facts["falls"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TaskFileError(f"{path} cannot be read ({error!r}); train the run again") from None
        if not all(isinstance(symbol, str) for symbol in symbols) or {type(coupled), type(falls)} != {bool}:
            raise TaskFileError(f"{path} cannot be read (it holds no names of tokens); train the run again")
        return {"symbols": symbols, "coupled": coupled, "falls": falls}

    @property
    def _symbols(self) -> tuple[str, ...]:
        symbols: tuple[str, ...] = self._facts["symbols"]
        return symbols

    @cached_property
    def _table(self) -> JSONLTable:
        symbols = None if self.kept is None else self._symbols
        if self.file is None:
            return read_table(_own_rows(), self._called, symbols)
        if _digest(self.file) != self.digest:
            raise TaskFileError(
                f"{self._called} has changed since it was named; name it anew with --task, or bring it back"
            )
        with open(self.file, "rb") as lines:
            return read_table(lines, self._called, symbols)

    def _of(self, length: int, by_length: Mapping[int, Any]) -> Int[np.ndarray, " rows_of_length"]:
        found: np.ndarray | None = by_length.get(length)
        if found is None:
            raise SettingError(f"{self._called} has no row of length {length}; use a length that it has: {self._spans}")
        return found

    @property
    def _called(self) -> str:
        return "our own file of rows" if self.file is None else self.file

    @property
    def _spans(self) -> str:
        """The lengths that there are, briefly."""
        spans: list[list[int]] = []
        for length in self.available_lengths:
            if spans and length == spans[-1][-1] + 1:
                spans[-1][1:] = [length]
            else:
                spans.append([length])
        told = ["-".join(map(str, span)) for span in spans]
        return ", ".join(told if len(told) <= 12 else [*told[:6], "...", *told[-6:]])

    def _lay_out(self, table: JSONLTable, rows: Int[np.ndarray, " batch"]) -> Examples:
        first, prompt = table.starts[rows, None], table.prompt_lengths[rows, None]
        response = table.starts[rows + 1, None] - first - prompt
        index = np.arange(int((prompt + response).max()) + 3)
        in_prompt, mark, last = index < prompt, prompt, prompt + response + 1
        in_response = (index > mark + 1) & (index <= last)
        held, place = in_prompt | in_response, first + np.where(in_prompt, index, index - 2)
        tokens = np.full(held.shape, len(table.symbols) + 2)
        tokens[held] = table.tokens[place[held]]
        tokens[index == mark] -= 2
        tokens[index == mark + 1] -= 1
        return Examples(
            tokens=tokens,
            prompt_length=prompt[:, 0].astype(np.int64) + 2,
            is_answer=in_response | (index == last + 1),
            coupling=None if table.coupling is None else self._groups(table.coupling, first, mark, last, index)[None],
        )

    def _groups(
        self,
        coupling: Int[np.ndarray, " tokens"],
        first: Int[np.ndarray, "batch 1"],
        mark: Int[np.ndarray, "batch 1"],
        last: Int[np.ndarray, "batch 1"],
        index: Int[np.ndarray, " seq"],
    ) -> Int[np.ndarray, "batch seq"]:
        """The prompt's numbers; from the start token on, each token has that of the one behind it."""
        shown = (index != mark) & (index < last)
        place = (first + np.where(index < mark, index, index - 1))[shown]
        groups = np.zeros(shown.shape, dtype=np.int64)
        # One more, so that there is room below.
        groups[shown] = coupling[place] + 1
        above = groups.max(axis=1, keepdims=True) + 1
        below = groups.min(axis=1, keepdims=True, where=shown, initial=TOO_LARGE) - 1
        # A reader that has read everything goes one number on.
        passed = below if self._facts["falls"] else above
        return np.where(shown, groups, np.where(index > last, above + 1, passed))


def is_task_file(name: str) -> bool:
    """Whether what is named as a task is a file of rows."""
    return name.endswith(ENDING)


def _digest(file: str) -> str:
    try:
        with open(file, "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise TaskFileError(
            f"{file} cannot be read ({error.strerror}); name one that can be, as --task FILE{ENDING}"
        ) from None


def _own_rows() -> Iterator[bytes]:
    """Letters to be written backwards."""
    rng = stream(0, "own rows")
    for length in OWN_LENGTHS:
        for _ in range(OWN_ROWS):
            prompt = [OWN_LETTERS[letter] for letter in rng.integers(0, len(OWN_LETTERS), size=length)]
            places = list(range(1, length + 1))
            yield json.dumps({"prompt": prompt, "response": prompt[::-1], "coupling": places + places[::-1]}).encode()

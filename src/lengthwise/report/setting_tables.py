"""Tables of the settings of runs, with the settings that differ highlighted."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lengthwise.report.chart import Table
from lengthwise.report.folders import RunRecord

# Maximum number of labels with their own column.
MAX_COLUMNS = 8
# Maximum number of distinct values in a cell.
MAX_VALUES = 8
SEED = "seed"


def setting_tables(runs: Sequence[RunRecord]) -> list[Table]:
    """Return a table of the settings that differ between labels, and a table of those that all labels share.

    Without differences, the first table is omitted. The seed is not a difference, because it differs in every run.
    """
    first_runs: dict[str, dict[str, str]] = {}
    for run in runs:
        if run.label not in first_runs:
            first_runs[run.label] = dict(flatten(run.description))
    names = list(dict.fromkeys(name for settings in first_runs.values() for name in settings if name != SEED))
    values = {name: [settings.get(name, "-") for settings in first_runs.values()] for name in names}
    differing = {name: row for name, row in values.items() if len(set(row)) > 1}
    shared_rows = [[name, row[0]] for name, row in values.items() if name not in differing]
    shared = Table(title="Settings that all runs share", header=["setting", "value"], body=shared_rows)
    if not differing:
        return [shared]
    return [_differences(differing, list(first_runs)), shared]


def _differences(differing: Mapping[str, Sequence[str]], labels: Sequence[str]) -> Table:
    """Return a table with a column per label, in which rare values are marked, or with counts for many labels."""
    title, body, marked = "Settings that differ", [], set()
    for index, (name, row) in enumerate(differing.items()):
        counts = Counter(row)
        if len(labels) > MAX_COLUMNS:
            frequent = [f"{value} ({count:,})" for value, count in counts.most_common(MAX_VALUES)]
            omitted = [f"{len(counts) - MAX_VALUES:,} more values"] if len(counts) > MAX_VALUES else []
            body.append([name, ", ".join(frequent + omitted)])
            continue
        most_common = counts.most_common(1)[0][0]
        marked |= {(index, column + 1) for column, value in enumerate(row) if value != most_common}
        body.append([name, *row])
    header = ["setting", "values (number of configurations)"] if len(labels) > MAX_COLUMNS else ["setting", *labels]
    return Table(title=title, header=header, body=body, marked=frozenset(marked))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted name and the text of each value of a nested mapping, such as ``training.steps``."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)

"""The claim about sparse parity (section 5.1): how far it holds falls with the number of bits trained on."""

from dataclasses import replace

from lengthwise.claims.claim import Claim, Size, Table
from lengthwise.encodings import Rotary
from lengthwise.experiment import Experiment
from lengthwise.positions import Skipwise
from lengthwise.recipes.sparse_parity import TESTED, sparse_parity_up_to
from lengthwise.report import FITTED, Rows, pooled

TRAINED = (4, 6, 8, 10, 12)
# Where the paper's figure has no known length, ours shows ten times the longest trained one.
SHOWN = 500


def _experiments() -> dict[str, Experiment]:
    rotary = replace(sparse_parity_up_to(6), encoding=Rotary())
    return {
        **{f"up to {most} bits": sparse_parity_up_to(most) for most in TRAINED},
        **{f"up to {most} bits among letters": sparse_parity_up_to(most, coding="letters") for most in TRAINED},
        "up to 6 bits within 16": sparse_parity_up_to(6, window=16),
        "up to 6 bits, rotary": rotary,
        "up to 6 bits, rotary + PoSE": replace(rotary, scheme=Skipwise(num_position_ids=8192)),
    }


def _tables(rows: Rows) -> list[Table]:
    """The heat map: bits trained on by bits tested, at the longest training length and ten times beyond."""
    trained = max(int(row["train_lengths"][1]) for row in rows)
    lengths = sorted({int(row["length"]) for row in rows})
    shown = [length for length in dict.fromkeys((lengths[0], SHOWN)) if length in lengths]
    return [_heat_map(rows, length, trained) for length in shown]


def _heat_map(rows: Rows, length: int, trained: int) -> Table:
    labels = list(dict.fromkeys(str(row["row"]).rpartition(", flagged-")[0] for row in rows))
    tested = [f"flagged-{number}" for number in TESTED if any(row["variant"] == f"flagged-{number}" for row in rows)]
    body = []
    for label in labels:
        cells = [
            [row for row in rows if row["row"] == f"{label}, {name}" and row["length"] == length] for name in tested
        ]
        seeds = {row["seed"]: row["fitted"] >= FITTED for cell in cells for row in cell}
        body.append(
            [
                label,
                f"{sum(seeds.values())} of {len(seeds)}",
                *(f"{pooled(cell)[0]:.3f}" if cell else "-" for cell in cells),
            ]
        )
    title = f"exact match at length {length:,}, by bits flagged; trained up to {trained}"
    return title, ["row", "seeds that fit", *(name.removeprefix("flagged-") for name in tested)], body


SPARSE_PARITY = Claim(
    name="sparse_parity",
    summary="sparse parity without scratchpad: bits trained on by bits tested, to 100 times the length",
    paper="section 5.1",
    experiments=_experiments,
    laptop=Size(num_seeds=2, rows=("up to 4 bits", "up to 6 bits"), longest=500),
    tables=_tables,
)

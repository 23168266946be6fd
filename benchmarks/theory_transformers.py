"""Test the theory on trained models: leakage, violated assumptions, and sparsity.

The script runs four parts with several seeds. Parts with rows in ``results/theory_transformers.jsonl`` are skipped.

* ``leakage``: one layer without positions reads one marked token. Its leakage at 4 and 16 times the training length
  should be within 15% of the prediction by odds linear in the length, fitted to training lengths.
* ``assumptions``: one layer reads the token at a distance from the separator. One assumption is violated: untrained
  IDs, a distance that grows with the length (which implies untrained IDs), or a distance that changes beyond training.
  With coupling, the separator has the ID of that token. The criterion is the ratio of measured to predicted odds of
  leakage at 4 times the training length, for the head with the least leakage. The ratio should be above 3 if the
  assumption is violated, and at most 1.3 with coupling.
  Runs with a risk above 0.05 at the training length have not learned the task and are not judged.
* ``functional``: a sparse functional attention fits the parity of k planted tokens, with the same number of samples for
  every k. Its exact risk at the training length should rise with k. The length from which the risk exceeds 0.1,
  predicted from training lengths, should fall.
* ``sparsity``: the same test with a two-layer transformer without positions and k marked bits.
"""

import argparse
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int

import lengthwise as lw
from lengthwise.core.provenance import collect_provenance
from lengthwise.core.randomness import random_stream
from lengthwise.encodings import EncodingSettings, KERPLELog, Learned, NoPE, Rotary
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.run import Run
from lengthwise.experiments.run_folder import append_rows, read_rows
from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Assignment, PositionScheme, Sequential
from lengthwise.tasks import PlantedCorrelations, SparseParity
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.planted.placement import LocalPlacement, OffsetDistribution
from lengthwise.theory.attention.sparse_attention import fit_tabular_attention
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.risk.exact_risk import TotalVariationLoss
from lengthwise.theory.risk.growth_curves import RiskGrowthCurve, asymptotic_risk, fit_growth_curve
from lengthwise.theory.risk.laplace_transform import laplace_risks
from lengthwise.training.batch import to_batch
from lengthwise.training.training_settings import TrainingSettings

RESULTS = Path(__file__).parent / "results" / "theory_transformers.jsonl"
# A function that trains an experiment in a folder of this name.
Train = Callable[[str, Experiment], Run]
LONGEST = 32
SHORT = (16, 20, 24, 28, 32)
SYMBOLS = 8
EXAMPLES = 512
# Risk that defines the horizon.
HORIZON_RISK = 0.1
# Replaces infinity, because JSON has no infinity.
INFINITE_LENGTH = 1e9
# The largest number of attention rows in memory.
MAX_ATTENTION_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class DistancePlacement:
    """Placement of one token at a distance before the separator that depends on the length."""

    rule: str
    name: ClassVar[str] = "at"
    summary: ClassVar[str] = "one token at a distance from the end"
    k: ClassVar[int] = 1
    max_span: ClassVar[None] = None
    min_length: ClassVar[int] = 8

    def distance(self, length: int) -> int:
        """Return 3 for ``fixed``, half the length for ``half``, and 3 or, beyond training, 6 for ``jump``."""
        return {"fixed": 3, "half": length // 2, "jump": 3 if length <= LONGEST else 6}[self.rule]

    def law(self, length: int) -> OffsetDistribution:
        """Return the distribution with all probability at one index."""
        probability = np.zeros((1, length))
        probability[0, length - self.distance(length)] = 1.0
        return OffsetDistribution(shapes=np.zeros((1, 1), dtype=np.int64), probability=probability)

    def sample(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size k"]:
        """Return the same index for every sequence."""
        return np.full((size, 1), length - self.distance(length))


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparatorCoupled(PositionScheme):
    """Position coupling of one token: IDs are token indexes, but the separator has the ID of the planted token."""

    name: ClassVar[str] = "shared"

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """Return IDs of shape (1, batch, seq)."""
        ids = np.tile(np.arange(examples.tokens.shape[1]), (1, len(examples), 1))
        separator = int(examples.prompt_length[0]) - 1
        assert examples.depends_on is not None
        ids[0, :, separator] = examples.depends_on[:, separator + 1, 0]
        return lw.make_assignment(examples, ids)


def planted_law(placement: LocalPlacement | DistancePlacement, *, marked: bool) -> PlantedCorrelations:
    """Build a law whose label is the planted token; ``marked`` tokens never occur in the background."""
    background = (0.5, 0.5, *[0.0] * SYMBOLS) if marked else (1 / SYMBOLS,) * SYMBOLS
    first = len(background) - SYMBOLS
    return PlantedCorrelations(
        background=background,
        tuples=tuple((first + symbol,) for symbol in range(SYMBOLS)),
        probabilities=(1 / SYMBOLS,) * SYMBOLS,
        labels=tuple(tuple(map(float, row)) for row in np.eye(SYMBOLS)),
        placement=placement,
    )


def experiment(
    task: PlantedCorrelations | SparseParity,
    encoding: EncodingSettings,
    scheme: PositionScheme,
    layers: int,
    steps: int,
) -> Experiment:
    """Build the experiment shared by the parts that train a transformer."""
    return Experiment(
        task=task,
        scheme=scheme,
        encoding=encoding,
        decoder=DecoderSettings(num_layers=layers, d_model=64, num_heads=2, length_scaling="none"),
        training=TrainingSettings(steps=steps, weight_decay=0.1),
        train_lengths=(8, LONGEST),
        evaluation=EvaluationSettings(lengths=(LONGEST,), num_examples=(64,)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The planted token, the total variation, and the leakage per head of each example."""

    planted: Int[np.ndarray, " examples"]
    risk: Float[np.ndarray, " examples"]
    leakage: Float[np.ndarray, "examples heads"]


@torch.no_grad()
def measure_first_layer(run: Run, length: int, num_examples: int = EXAMPLES) -> Measurement:
    """Measure the risk, and the leakage of every head of the first layer, in batches of examples."""
    task, parts = run.experiment.task, []
    for start in range(0, num_examples, step := max(1, MAX_ATTENTION_ROWS // (length + 3) ** 2)):
        rng = random_stream(1, "look", length, start)
        examples = task.sample(length=length, size=min(step, num_examples - start), rng=rng)
        parts.append(_measure_batch(run, examples, length, rng))
    return Measurement(
        planted=np.concatenate([part.planted for part in parts]),
        risk=np.concatenate([part.risk for part in parts]),
        leakage=np.concatenate([part.leakage for part in parts]),
    )


def _measure_batch(run: Run, examples: Examples, length: int, rng: np.random.Generator) -> Measurement:
    batch = to_batch(length, examples, run.experiment.scheme.assign(examples, rng, training=False))
    assert examples.depends_on is not None
    depends_on = torch.from_numpy(examples.depends_on[:, length + 1])
    layers: list[torch.Tensor] = []

    def record_leakage(weights: torch.Tensor) -> None:
        outside = torch.ones(len(depends_on), weights.shape[-1] + 1)
        # Padding of the support (-1) goes to the extra column, which is removed.
        outside = outside.scatter(1, torch.where(depends_on < 0, weights.shape[-1], depends_on), 0.0)[:, :-1]
        layers.append((weights[:, :, length] * outside[:, None]).sum(dim=-1))

    hidden, _ = run.decoder(batch.tokens, batch.position_ids, hooks=AttentionHooks(on_weights=record_leakage))
    log_probs = run.decoder.token_logits(hidden[:, length]).double().log_softmax(dim=-1)
    target_log_probs = log_probs.gather(1, batch.tokens[:, length + 1 : length + 2])[:, 0]
    return Measurement(
        planted=examples.tokens[np.arange(len(examples)), examples.depends_on[:, length + 1, 0]],
        risk=-torch.expm1(target_log_probs).numpy(),
        leakage=layers[0].double().numpy(),
    )


def leakage(seed: int, train: Train) -> Iterator[dict[str, Any]]:
    """Yield measured and predicted leakage; omit symbols with a leakage of 0.5 or more at length 32."""
    task = planted_law(LocalPlacement(shapes=((0,),), weights=(1.0,)), marked=True)
    run = train("leakage", replace(experiment(task, NoPE(), Sequential(), layers=1, steps=400), seed=seed))
    short = [measure_first_layer(run, length) for length in SHORT]
    head = int(short[-1].leakage.mean(axis=0).argmin())

    def symbol_leakage(measurement: Measurement, symbol: int) -> float:
        return float(measurement.leakage[measurement.planted == symbol, head].mean())

    symbols = [symbol for symbol in np.unique(short[-1].planted).tolist() if symbol_leakage(short[-1], symbol) < 0.5]
    curves = [fit_growth_curve(SHORT, [symbol_leakage(each, symbol) for each in short], 1.0) for symbol in symbols]
    for times in (4, 16):
        far = measure_first_layer(run, times * LONGEST)
        yield {
            "times": times,
            "read": len(symbols),
            "trained": float(np.mean([symbol_leakage(short[-1], symbol) for symbol in symbols])),
            "predicted": float(np.mean([curve.risk_at(times * LONGEST) for curve in curves])),
            "measured": float(np.mean([symbol_leakage(far, symbol) for symbol in symbols])),
        }


def assumptions(seed: int, train: Train) -> Iterator[dict[str, Any]]:
    """Yield the risk, and the leakage of the head with the least leakage, at 4 times the training length."""
    parts: dict[str, tuple[str, EncodingSettings, PositionScheme]] = {
        "IDs never met, learned": ("fixed", Learned(num_position_ids=1024), Sequential()),
        "half the length, learned": ("half", Learned(num_position_ids=1024), Sequential()),
        "half the length, rotary": ("half", Rotary(), Sequential()),
        "half the length, kerple_log": ("half", KERPLELog(), Sequential()),
        "half the length, coupled, kerple_log": ("half", KERPLELog(), SeparatorCoupled()),
        "half the length, coupled, rotary": ("half", Rotary(), SeparatorCoupled()),
        "a jump, rotary": ("jump", Rotary(), Sequential()),
        "a jump, kerple_log": ("jump", KERPLELog(), Sequential()),
        "a jump, coupled, kerple_log": ("jump", KERPLELog(), SeparatorCoupled()),
        "a jump, coupled, rotary": ("jump", Rotary(), SeparatorCoupled()),
    }
    for name, (rule, encoding, scheme) in parts.items():
        task = planted_law(DistancePlacement(rule), marked=False)
        run = train(name, replace(experiment(task, encoding, scheme, layers=1, steps=1500), seed=seed))
        short, far = [measure_first_layer(run, length) for length in SHORT], measure_first_layer(run, 4 * LONGEST)
        head = int(short[-1].leakage.mean(axis=0).argmin())
        risks = [float(each.risk.mean()) for each in short]
        leaks = [float(each.leakage[:, head].mean()) for each in short]
        yield {
            "name": name,
            "trained": risks[-1],
            "predicted": fit_growth_curve(SHORT, risks, 1 - 1 / SYMBOLS).risk_at(4 * LONGEST),
            "measured": float(far.risk.mean()),
            "leakage_trained": leaks[-1],
            "leakage_predicted": fit_growth_curve(SHORT, leaks, 1.0).risk_at(4 * LONGEST),
            "leakage_measured": float(far.leakage[:, head].mean()),
        }


def predicted_horizon(curve: RiskGrowthCurve, risk: float) -> float:
    """Return the length above which a curve exceeds ``risk``: infinite if it never does, 0 if it always does."""
    a, b, c = curve.parameters.tolist()
    if a >= risk:
        return 0.0
    return (risk - a) / (b - c * risk) if b > c * risk else math.inf


def horizon(lengths: list[int], risks: list[float]) -> float | None:
    """Return the length at which the risk first exceeds ``HORIZON_RISK``, by log-log interpolation."""
    for place, risk in enumerate(risks):
        if risk > HORIZON_RISK:
            if place == 0:
                return float(lengths[0])
            pair = slice(place - 1, place + 1)
            return float(np.exp(np.interp(np.log(HORIZON_RISK), np.log(risks[pair]), np.log(lengths[pair]))))
    return None


def sparse_attention(seed: int, train: Train) -> Iterator[dict[str, Any]]:
    """Yield exact risks up to length 4,096 for the class of the theory; no run folder is written."""
    for k in (1, 2, 3, 4):
        tuples = tuple(itertools.product((2, 3), repeat=k))
        law = PlantedCorrelations(
            background=(0.5, 0.5, 0.0, 0.0),
            tuples=tuples,
            probabilities=(2.0**-k,) * len(tuples),
            labels=tuple((1.0, 0.0) if sum(symbols) % 2 == 0 else (0.0, 1.0) for symbols in tuples),
            placement=LocalPlacement(shapes=(tuple(range(k)),), weights=(1.0,)),
        )
        attention = fit_tabular_attention(law, (4, 16), steps=400, seed=seed)
        assert isinstance(attention, TabularAttention)
        short, lengths = list(range(8, 17)), [16 * 2**step for step in range(9)]
        near, far = (laplace_risks(law, attention, each, TotalVariationLoss()).tolist() for each in (short, lengths))
        yield {
            "k": k,
            "trained": near[-1],
            "predicted": predicted_horizon(
                fit_growth_curve(short, near, asymptotic_risk(law, attention)), HORIZON_RISK
            ),
            "measured": horizon(lengths, far),
            "lengths": lengths,
            "risks": far,
        }


def sparsity(seed: int, train: Train) -> Iterator[dict[str, Any]]:
    """Yield the length from which the risk exceeds 0.1, predicted from training lengths and measured."""
    for k in (1, 2, 3, 4):
        task = SparseParity(fewest=k, most=k)
        run = train(f"k={k}", replace(experiment(task, NoPE(), Sequential(), layers=2, steps=1000), seed=seed))
        risks = [float(measure_first_layer(run, length).risk.mean()) for length in SHORT]
        lengths = [LONGEST * 2**step for step in range(6)]
        numbers = [max(64, EXAMPLES * LONGEST // length) for length in lengths]
        far = [float(measure_first_layer(run, *each).risk.mean()) for each in zip(lengths, numbers, strict=True)]
        yield {
            "k": k,
            "trained": risks[-1],
            "predicted": min(predicted_horizon(fit_growth_curve(SHORT, risks, 0.5), HORIZON_RISK), INFINITE_LENGTH),
            "measured": horizon(lengths, far),
            "lengths": lengths,
            "risks": far,
        }


PARTS: dict[str, Callable[[int, Train], Iterator[dict[str, Any]]]] = {
    "leakage": leakage,
    "assumptions": assumptions,
    "functional": sparse_attention,
    "sparsity": sparsity,
}


def summary_lines(part: str, rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a Markdown table of all rows."""
    if part in ("functional", "sparsity"):
        yield f"| seed | k | risk at trained length | risk above {HORIZON_RISK} from: predicted | measured |"
        yield "|---|---|---|---|---|"
        for row in rows:
            measured = f"{row['measured']:,.0f}" if row["measured"] else f"beyond {row['lengths'][-1]:,}"
            predicted = f"{row['predicted']:,.0f}" if row["predicted"] < INFINITE_LENGTH else "never"
            yield f"| {row['seed']} | {row['k']} | {row['trained']:.2g} | {predicted} | {measured} |"
    elif part == "leakage":
        yield "| seed | times | tokens read | leakage at 32 | predicted | measured | ratio |"
        yield "|---|---|---|---|---|---|---|"
        for row in rows:
            ratio = row["measured"] / row["predicted"]
            values = " | ".join(f"{row[name]:.3g}" for name in ("trained", "predicted", "measured"))
            yield f"| {row['seed']} | {row['times']} | {row['read']} of {SYMBOLS} | {values} | {ratio:.2f} |"
    else:
        yield "| | seed | risk at 32 | at 128 | leakage at 32 | predicted at 128 | measured | ratio of odds | |"
        yield "|---|---|---|---|---|---|---|---|---|"
        for row in sorted(rows, key=lambda row: (row["name"], row["seed"])):
            ratio = _odds(row["leakage_measured"]) / _odds(row["leakage_predicted"])
            names = ("trained", "measured", "leakage_trained", "leakage_predicted", "leakage_measured")
            cells = [row["name"], f"{row['seed']}", *(f"{row[name]:.3g}" for name in names), f"{ratio:.3g}"]
            yield f"| {' | '.join(cells)} | {_verdict(row, ratio)} |"


def _odds(share: float) -> float:
    return share / max(1e-9, 1 - share)


def _verdict(row: dict[str, Any], ratio: float) -> str:
    if row["trained"] > 0.05:
        return "not learned"
    return (
        ("restored" if ratio <= 1.3 else "not restored")
        if "coupled" in row["name"]
        else "broken"
        if ratio > 3
        else "no"
    )


def main() -> None:
    """Run missing parts, or print the existing rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="7200,7201,7202,7203,7204")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--out", type=Path, default=Path("runs/theory-transformers"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="Print existing rows without running parts.")
    arguments = parser.parse_args()
    rows = read_rows(arguments.results) if arguments.results.exists() else []
    parts = arguments.parts.split(",")
    if arguments.table:
        for part in parts:
            print("\n".join([f"{part}:", "", *summary_lines(part, [row for row in rows if row["part"] == part]), ""]))
        return
    torch.set_num_threads(1)
    existing = {(row["part"], row["seed"]) for row in rows}
    for seed in map(int, arguments.seeds.split(",")):
        for part in parts:
            if (part, seed) in existing:
                continue

            def train(name: str, settings: Experiment) -> Run:
                folder = arguments.out / name.replace(", ", "-").replace(" ", "-") / f"seed-{settings.seed}"
                run = lw.train(settings, folder, resume=folder.exists(), device="cpu")
                assert run is not None
                run.decoder.eval()
                return run

            new_rows = [{"part": part, "seed": seed, **row, **collect_provenance()} for row in PARTS[part](seed, train)]
            append_rows(arguments.results, new_rows)
            print("\n".join(summary_lines(part, new_rows)))


if __name__ == "__main__":
    main()

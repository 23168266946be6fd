"""Does the theory say what trained models do? Leakage, the assumptions one by one, and sparsity.

Four parts, each with several seeds; what stands in ``results/theory_transformers.jsonl`` is not done again.

* ``leakage`` (V1): one layer without positions reads one marked token. Its attention off that token, at 4 and 16 times
  the trained length, beside what odds linear in the length make of the trained lengths: within 15%.
* ``assumptions`` (V3): one layer reads the token at a distance from the separator. An assumption is broken: IDs that
  were never met, a distance that grows with the length (which brings such IDs too), a distance that jumps beyond
  training. Then the separator gets the ID of that token. Judged by the odds of leakage, of the head that leaks least,
  at 4 times the trained length, measured over predicted: above 3 where broken, at most 1.3 where coupled. A run whose
  risk at the trained length is above 0.05 has not learned the task and is not judged.
* ``functional`` (V4): a sparse functional attention fits the parity of k planted tokens, the number of samples the
  same for every k. Its exact risk at the trained length should rise with k, and the length from which on it is above
  0.1, foretold from trained lengths, should fall.
* ``sparsity`` (V4): the same of two layers of a transformer without positions and k marked bits.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int

import lengthwise as lw
from lengthwise.core.provenance import provenance
from lengthwise.core.randomness import stream
from lengthwise.encodings import EncodingSettings, KERPLELog, Learned, NoPE, Rotary
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.run import Run
from lengthwise.experiments.run_folder import append_rows, read_rows
from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Assignment, PositionScheme, Sequential
from lengthwise.tasks import Planted, SparseParity
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.planted.placement import Local, ShapeLaw
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.attention.training import fitted
from lengthwise.theory.risk.exact_risk import TotalVariation
from lengthwise.theory.risk.growth_curves import fit_odds, limit_risk
from lengthwise.theory.risk.laplace_risk import laplace_risks
from lengthwise.training.batch import to_batch
from lengthwise.training.trainer import TrainingSettings

RESULTS = Path(__file__).parent / "results" / "theory_transformers.jsonl"
# Trains an experiment in a folder of this name.
Train = Callable[[str, Experiment], Run]
LONGEST = 32
SHORT = (16, 20, 24, 28, 32)
SYMBOLS = 8
EXAMPLES = 512
# Above this risk a length is beyond the horizon.
RISK = 0.1
# JSON has no infinity.
FOREVER = 1e9
# Rows of scores held at once.
HELD = 1 << 16


@dataclass(frozen=True, slots=True)
class At:
    """One token, so many before the separator as ``distance`` says of the length."""

    rule: str
    name: ClassVar[str] = "at"
    summary: ClassVar[str] = "one token at a distance from the end"
    k: ClassVar[int] = 1
    span: ClassVar[None] = None
    min_length: ClassVar[int] = 8

    def distance(self, length: int) -> int:
        """``fixed``: 3. ``half``: half of the length. ``jump``: 3, beyond training 6."""
        return {"fixed": 3, "half": length // 2, "jump": 3 if length <= LONGEST else 6}[self.rule]

    def law(self, length: int) -> ShapeLaw:
        """All of the probability at one place."""
        probability = np.zeros((1, length))
        probability[0, length - self.distance(length)] = 1.0
        return ShapeLaw(shapes=np.zeros((1, 1), dtype=np.int64), probability=probability)

    def sample(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size k"]:
        """The same place in each."""
        return np.full((size, 1), length - self.distance(length))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared(PositionScheme):
    """The token index, but the separator has the ID of the planted token."""

    name: ClassVar[str] = "shared"

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """Position coupling (section 4) of one token."""
        ids = np.tile(np.arange(examples.tokens.shape[1]), (1, len(examples), 1))
        separator = int(examples.prompt_length[0]) - 1
        assert examples.support is not None
        ids[0, :, separator] = examples.support[:, separator + 1, 0]
        return lw.score_all_answers(examples, ids)


def planted(placement: Local | At, *, marked: bool) -> Planted:
    """The label names the planted token, which is marked or looks like all others."""
    background = (0.5, 0.5, *[0.0] * SYMBOLS) if marked else (1 / SYMBOLS,) * SYMBOLS
    first = len(background) - SYMBOLS
    return Planted(
        background=background,
        tuples=tuple((first + symbol,) for symbol in range(SYMBOLS)),
        probabilities=(1 / SYMBOLS,) * SYMBOLS,
        labels=tuple(tuple(map(float, row)) for row in np.eye(SYMBOLS)),
        placement=placement,
    )


def experiment(
    task: Planted | SparseParity, encoding: EncodingSettings, scheme: PositionScheme, layers: int, steps: int
) -> Experiment:
    """What the three parts have in common."""
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
class Answers:
    """Of the label, per example: what is lost of its probability, and attention off its support, per head."""

    planted: Int[np.ndarray, " examples"]
    risk: Float[np.ndarray, " examples"]
    leakage: Float[np.ndarray, "examples heads"]


@torch.no_grad()
def look(run: Run, length: int, examples: int = EXAMPLES) -> Answers:
    """Of the first layer; a part of the examples at a time."""
    task, found = run.experiment.task, []
    for start in range(0, examples, step := max(1, HELD // (length + 3) ** 2)):
        rng = stream(1, "look", length, start)
        drawn = task.sample(length=length, size=min(step, examples - start), rng=rng)
        found.append(_part(run, drawn, length, rng))
    return Answers(
        planted=np.concatenate([part.planted for part in found]),
        risk=np.concatenate([part.risk for part in found]),
        leakage=np.concatenate([part.leakage for part in found]),
    )


def _part(run: Run, drawn: Examples, length: int, rng: np.random.Generator) -> Answers:
    batch = to_batch(length, drawn, run.experiment.scheme.assign(drawn, rng, training=False))
    assert drawn.support is not None
    support = torch.from_numpy(drawn.support[:, length + 1])
    layers: list[torch.Tensor] = []

    def watch(weights: torch.Tensor) -> None:
        off = torch.ones(len(support), weights.shape[-1] + 1)
        # Where less is planted than there is room for, -1 stands for the column that is cut off.
        off = off.scatter(1, torch.where(support < 0, weights.shape[-1], support), 0.0)[:, :-1]
        layers.append((weights[:, :, length] * off[:, None]).sum(dim=-1))

    hidden, _ = run.decoder(batch.tokens, batch.position_ids, hooks=AttentionHooks(on_weights=watch))
    log_probs = run.decoder.token_logits(hidden[:, length]).double().log_softmax(dim=-1)
    right = log_probs.gather(1, batch.tokens[:, length + 1 : length + 2])[:, 0]
    return Answers(
        planted=drawn.tokens[np.arange(len(drawn)), drawn.support[:, length + 1, 0]],
        risk=-torch.expm1(right).numpy(),
        leakage=layers[0].double().numpy(),
    )


def leakage(seed: int, train: Train) -> Iterator[dict[str, Any]]:
    """V1. One of the marked tokens may go unread: that nothing is found then says that it was there."""
    task = planted(Local(shapes=((0,),), weights=(1.0,)), marked=True)
    run = train("leakage", replace(experiment(task, NoPE(), Sequential(), layers=1, steps=400), seed=seed))
    short = [look(run, length) for length in SHORT]
    head = int(short[-1].leakage.mean(axis=0).argmin())

    def of(answers: Answers, symbol: int) -> float:
        return float(answers.leakage[answers.planted == symbol, head].mean())

    read = [symbol for symbol in np.unique(short[-1].planted).tolist() if of(short[-1], symbol) < 0.5]
    laws = [fit_odds(SHORT, [of(answers, symbol) for answers in short], 1.0) for symbol in read]
    for times in (4, 16):
        far = look(run, times * LONGEST)
        yield {
            "times": times,
            "read": len(read),
            "trained": float(np.mean([of(short[-1], symbol) for symbol in read])),
            "predicted": float(np.mean([law.at(times * LONGEST) for law in laws])),
            "measured": float(np.mean([of(far, symbol) for symbol in read])),
        }


def assumptions(seed: int, train: Train) -> Iterator[dict[str, Any]]:
    """V3. The risk at 4 times the trained length, and the leakage of the head that leaks least."""
    parts: dict[str, tuple[str, EncodingSettings, PositionScheme]] = {
        "IDs never met, learned": ("fixed", Learned(num_position_ids=1024), Sequential()),
        "half the length, learned": ("half", Learned(num_position_ids=1024), Sequential()),
        "half the length, rotary": ("half", Rotary(), Sequential()),
        "half the length, kerple_log": ("half", KERPLELog(), Sequential()),
        "half the length, coupled, kerple_log": ("half", KERPLELog(), Shared()),
        "half the length, coupled, rotary": ("half", Rotary(), Shared()),
        "a jump, rotary": ("jump", Rotary(), Sequential()),
        "a jump, kerple_log": ("jump", KERPLELog(), Sequential()),
        "a jump, coupled, kerple_log": ("jump", KERPLELog(), Shared()),
        "a jump, coupled, rotary": ("jump", Rotary(), Shared()),
    }
    for name, (rule, encoding, scheme) in parts.items():
        task = planted(At(rule), marked=False)
        run = train(name, replace(experiment(task, encoding, scheme, layers=1, steps=1500), seed=seed))
        short, far = [look(run, length) for length in SHORT], look(run, 4 * LONGEST)
        head = int(short[-1].leakage.mean(axis=0).argmin())
        risks = [float(answers.risk.mean()) for answers in short]
        leaks = [float(answers.leakage[:, head].mean()) for answers in short]
        yield {
            "name": name,
            "trained": risks[-1],
            "predicted": fit_odds(SHORT, risks, 1 - 1 / SYMBOLS).at(4 * LONGEST),
            "measured": float(far.risk.mean()),
            "leakage_trained": leaks[-1],
            "leakage_predicted": fit_odds(SHORT, leaks, 1.0).at(4 * LONGEST),
            "leakage_measured": float(far.leakage[:, head].mean()),
        }


def crossed(lengths: list[int], risks: list[float]) -> float | None:
    """The length at which the risk is first above ``RISK``, between two lengths on a straight line of logarithms."""
    for place, risk in enumerate(risks):
        if risk > RISK:
            if place == 0:
                return float(lengths[0])
            pair = slice(place - 1, place + 1)
            return float(np.exp(np.interp(np.log(RISK), np.log(risks[pair]), np.log(lengths[pair]))))
    return None


def functional(seed: int, train: Train) -> Iterator[dict[str, Any]]:
    """V4 in the class of the theory: risks are exact, up to 4,096, and nothing is kept in a folder."""
    for k in (1, 2, 3, 4):
        tuples = tuple(itertools.product((2, 3), repeat=k))
        law = Planted(
            background=(0.5, 0.5, 0.0, 0.0),
            tuples=tuples,
            probabilities=(2.0**-k,) * len(tuples),
            labels=tuple((1.0, 0.0) if sum(symbols) % 2 == 0 else (0.0, 1.0) for symbols in tuples),
            placement=Local(shapes=(tuple(range(k)),), weights=(1.0,)),
        )
        attention = fitted(law, (4, 16), steps=400, seed=seed)
        assert isinstance(attention, TabularAttention)
        short, lengths = list(range(8, 17)), [16 * 2**step for step in range(9)]
        known, far = (laplace_risks(law, attention, asked, TotalVariation()).tolist() for asked in (short, lengths))
        yield {
            "k": k,
            "trained": known[-1],
            "predicted": fit_odds(short, known, limit_risk(law, attention)).horizon(RISK),
            "measured": crossed(lengths, far),
            "lengths": lengths,
            "risks": far,
        }


def sparsity(seed: int, train: Train) -> Iterator[dict[str, Any]]:
    """V4. The length from which on the risk is above 0.1, predicted from trained lengths and measured."""
    for k in (1, 2, 3, 4):
        task = SparseParity(fewest=k, most=k)
        run = train(f"k={k}", replace(experiment(task, NoPE(), Sequential(), layers=2, steps=1000), seed=seed))
        risks = [float(look(run, length).risk.mean()) for length in SHORT]
        lengths = [LONGEST * 2**step for step in range(6)]
        numbers = [max(64, EXAMPLES * LONGEST // length) for length in lengths]
        far = [float(look(run, *asked).risk.mean()) for asked in zip(lengths, numbers, strict=True)]
        yield {
            "k": k,
            "trained": risks[-1],
            "predicted": min(fit_odds(SHORT, risks, 0.5).horizon(RISK), FOREVER),
            "measured": crossed(lengths, far),
            "lengths": lengths,
            "risks": far,
        }


PARTS: dict[str, Callable[[int, Train], Iterator[dict[str, Any]]]] = {
    "leakage": leakage,
    "assumptions": assumptions,
    "functional": functional,
    "sparsity": sparsity,
}


def summary(part: str, rows: list[dict[str, Any]]) -> Iterator[str]:
    """Lines of Markdown: every row."""
    if part in ("functional", "sparsity"):
        yield f"| seed | k | risk at trained length | risk above {RISK} from: predicted | measured |"
        yield "|---|---|---|---|---|"
        for row in rows:
            measured = f"{row['measured']:,.0f}" if row["measured"] else f"beyond {row['lengths'][-1]:,}"
            predicted = f"{row['predicted']:,.0f}" if row["predicted"] < FOREVER else "never"
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
    """Do what is missing, or print what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="7200,7201,7202,7203,7204")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--out", type=Path, default=Path("runs/theory-transformers"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="Print what is there and do nothing.")
    asked = parser.parse_args()
    there = read_rows(asked.results) if asked.results.exists() else []
    parts = asked.parts.split(",")
    if asked.table:
        for part in parts:
            print("\n".join([f"{part}:", "", *summary(part, [row for row in there if row["part"] == part]), ""]))
        return
    torch.set_num_threads(1)
    done = {(row["part"], row["seed"]) for row in there}
    for seed in map(int, asked.seeds.split(",")):
        for part in parts:
            if (part, seed) in done:
                continue

            def train(name: str, wanted: Experiment) -> Run:
                folder = asked.out / name.replace(", ", "-").replace(" ", "-") / f"seed-{wanted.seed}"
                run = lw.train(wanted, folder, resume=folder.exists(), device="cpu")
                assert run is not None
                run.decoder.eval()
                return run

            rows = [{"part": part, "seed": seed, **row, **provenance()} for row in PARTS[part](seed, train)]
            append_rows(asked.results, rows)
            print("\n".join(summary(part, rows)))


if __name__ == "__main__":
    main()

"""Files that are whole, digests and all, and say what cannot be: wrong facts, shapes, types, names and numbers."""

import copy
import hashlib
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from attacks.attack import Call, Tally, copy_of, leftovers, rng_of, run
from attacks.folders import KINDS, resume
from lengthwise.core.checkpoint import load_tensors, save_tensors
from lengthwise.experiments.run_folder import BOUND, SEAL, experiment_digest
from lengthwise.tasks.text.corpus import with_digest

DEEP: Any = []
for _ in range(900):
    DEEP = [DEEP]
NUMBERS = (-1, 0, 3, 2**31, 2**62, 2**70, 1e308, math.nan, math.inf, 0.5)
VALUES: tuple[Any, ...] = (*NUMBERS, None, True, "", "x", "softmax", [], [1], {}, {"name": "x"}, DEEP)
Tree = dict[str, Any]


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a tree of JSON, itself included."""
    yield path
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree[:3]) if isinstance(tree, list) else ()
    for key, value in parts:
        yield from leaves(value, (*path, key))


def changed(tree: Tree, rng: random.Random) -> tuple[Tree, str]:
    """The tree with one value that is another, missing, or beside one of an unknown name; and what was done."""
    lied = copy.deepcopy(tree)
    *way, last = rng.choice([path for path in leaves(tree) if path])
    parent = lied
    for key in way:
        parent = parent[key]
    name = ".".join(map(str, (*way, last)))
    how = rng.random()
    if how < 0.1 and isinstance(parent, dict):
        del parent[last]
        return lied, f"without {name}"
    if how < 0.15 and isinstance(parent, dict):
        parent["unknown"] = 1
        return lied, f"unknown beside {name}"
    value = rng.choice(VALUES)
    parent[last] = value
    return lied, f"{name} = {str(value)[:30]}"


def _json(path: Path) -> Tree:
    tree: Tree = json.loads(path.read_text())
    return tree


def _rebind(run: Path) -> None:
    """Sign weights and checkpoints for the experiment as it is now."""
    for path in [*run.glob("model.safetensors"), *run.rglob("step-*.safetensors")]:
        tensors, facts = load_tensors(path)
        save_tensors(path, tensors, {**facts, BOUND: experiment_digest(run)})


def lie_in_experiment(folder: Path, rng: random.Random) -> str:
    """Another experiment than was trained, and weights that are signed for it."""
    path = folder / "run" / "experiment.json"
    tree, what = changed(_json(path), rng)
    path.write_text(json.dumps(tree))
    try:
        _rebind(folder / "run")
    except Exception as error:
        return f"{what}, not signed: {type(error).__name__}"
    return what


def lie_in_facts(folder: Path, rng: random.Random) -> str:
    """Facts about a training that never was."""
    path = rng.choice([*(folder / "run").glob("model.safetensors"), *(folder / "run").rglob("step-*.safetensors")])
    tensors, facts = load_tensors(path)
    lied, what = changed(facts, rng)
    save_tensors(path, tensors, lied)
    return f"{path.name}: {what}"


def lie_in_tensors(folder: Path, rng: random.Random) -> str:
    """Another shape, type, name or number of tensors."""
    path = rng.choice([*(folder / "run").glob("model.safetensors"), *(folder / "run").rglob("step-*.safetensors")])
    tensors, facts = load_tensors(path)
    name = rng.choice(sorted(tensors))
    tensor = tensors.pop(name)
    what = rng.choice(["removed", "renamed", "added", "shape", "double", "whole", "empty", "infinite", "scalar"])
    made: dict[str, dict[str, torch.Tensor]] = {
        "removed": {},
        "renamed": {name + "x": tensor},
        "added": {name: tensor, "more": tensor.clone()},
        "shape": {name: torch.cat([tensor.reshape(-1), tensor.reshape(-1)])},
        "double": {name: tensor.double()},
        "whole": {name: tensor.long()},
        "empty": {name: tensor.reshape(-1)[:0]},
        "infinite": {name: torch.full_like(tensor, math.inf)},
        "scalar": {name: torch.zeros((), dtype=tensor.dtype)},
    }
    save_tensors(path, {**tensors, **made[what]}, facts)
    return f"{path.name}: {name} {what}"


def lie_in_kept(folder: Path, rng: random.Random) -> str:
    """What a run keeps of its task's files, signed."""
    run_folder = folder / "run"
    tree = _json(run_folder / "experiment.json")
    name = rng.choice(sorted(tree["files"]))
    lied, what = changed(_json(run_folder / name), rng)
    content = json.dumps(lied).encode()
    (run_folder / name).write_bytes(content)
    tree["files"][name] = hashlib.sha256(content).hexdigest()
    (run_folder / "experiment.json").write_text(json.dumps(tree))
    _rebind(run_folder)
    return f"{name}: {what}"


def lie_in_corpus(folder: Path, rng: random.Random) -> str:
    """The facts of a corpus, or one of the files whose digests they hold."""
    facts = _json(folder / "corpus" / "corpus.json")
    name = rng.choice(["corpus.json", "tokenizer.json", "train.jsonl", "held_out.jsonl"])
    path = folder / "corpus" / name
    if name == "corpus.json":
        facts, what = changed(facts, rng)
    elif name == "tokenizer.json":
        lied, what = changed(_json(path), rng)
        path.write_text(json.dumps(lied))
    else:
        lines = path.read_text().splitlines()
        lied, what = changed(json.loads(lines[0]), rng)
        path.write_text("\n".join([json.dumps(lied), *lines[1:]]) + "\n")
    if name != "corpus.json":
        facts["files"][name] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "corpus" / "corpus.json").write_text(json.dumps(with_digest(facts)))
    return f"{name}: {what}"


def lie_in_comparison(folder: Path, rng: random.Random) -> str:
    """What is compared, or sealed rows of another measurement."""
    if rng.random() < 0.3:
        path = folder / "both" / "comparison.json"
        tree, what = changed(_json(path), rng)
        path.write_text(json.dumps(tree))
        return what
    path = rng.choice(sorted(folder.rglob("compared.jsonl")))
    rows = [json.loads(line) for line in path.read_text().splitlines()[:-1]]
    rows[0], what = changed(rows[0], rng)
    content = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(content + json.dumps({SEAL: hashlib.sha256(content.encode()).hexdigest()}) + "\n")
    return f"{path.name}: {what}"


def lie_in_study(folder: Path, rng: random.Random) -> str:
    """What a study is of."""
    path = folder / "study" / "influence.json"
    tree, what = changed(_json(path), rng)
    path.write_text(json.dumps(tree))
    return what


def lie_in_export(folder: Path, rng: random.Random) -> str:
    """The configuration, signed; or the tokenizer."""
    name = rng.choice(
        ["config.json", "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
    )
    path = folder / "hf" / name
    tree = _json(path)
    lied, what = changed(tree, rng)
    path.write_text(json.dumps(lied))
    return f"{name}: {what}"


LIES: tuple[tuple[str, Callable[[Path, random.Random], str], tuple[Call, ...]], ...] = (
    ("run", lie_in_experiment, KINDS[0].uses),
    ("begun run", lie_in_experiment, (resume,)),
    ("run on rows", lie_in_experiment, KINDS[2].uses),
    ("run on text", lie_in_experiment, KINDS[4].uses),
    ("run", lie_in_facts, KINDS[0].uses),
    ("begun run", lie_in_facts, (resume,)),
    ("run", lie_in_tensors, KINDS[0].uses),
    ("begun run", lie_in_tensors, (resume,)),
    ("run on rows", lie_in_kept, KINDS[2].uses),
    ("run on text", lie_in_kept, KINDS[4].uses),
    ("corpus", lie_in_corpus, KINDS[3].uses),
    ("comparison", lie_in_comparison, KINDS[5].uses),
    ("study", lie_in_study, KINDS[6].uses),
    ("export", lie_in_export, KINDS[7].uses),
)


def attack(number: int, seed: int, scratch: Path) -> Tally:
    """Tell so many lies, and use what holds them: they are refused in one line, or harmless."""
    from attacks.mutations import made_of  # noqa: PLC0415

    tally, made = Tally("lies"), made_of(scratch)
    for each in range(number):
        rng = rng_of(seed, "lie", each)
        name, lie, uses = LIES[each % len(LIES)]
        folder = copy_of(made[name][0], scratch / "copy")
        what = lie(folder, rng)
        for call in uses:
            outcome = run(call, folder)
            faults = outcome.faults() + [f"leaves {left}" for left in leftovers(folder)]
            tally.add(f"{each}: {name}, {lie.__name__}: {what}", faults, outcome)
    return tally

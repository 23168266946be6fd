"""Forged files: valid digests with false facts, shapes, types, names and numbers."""

import copy
import hashlib
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tests.attacks.attack import Call, Tally, copy_of, leftovers, rng_of, run
from tests.attacks.folders import KINDS, resume

from lengthwise.core.checkpoint import load_tensors, save_tensors
from lengthwise.experiments.run_folder import EXPERIMENT_DIGEST_KEY, ROWS_DIGEST_KEY, experiment_digest
from lengthwise.tasks.text.corpus import add_metadata_digest

DEEP: Any = []
for _ in range(900):
    DEEP = [DEEP]
NUMBERS = (-1, 0, 3, 2**31, 2**62, 2**70, 1e308, math.nan, math.inf, 0.5)
VALUES: tuple[Any, ...] = (*NUMBERS, None, True, "", "x", "softmax", [], [1], {}, {"name": "x"}, DEEP)
Tree = dict[str, Any]


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in a JSON tree, including the root."""
    yield path
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree[:3]) if isinstance(tree, list) else ()
    for key, value in parts:
        yield from leaves(value, (*path, key))


def change(tree: Tree, rng: random.Random) -> tuple[Tree, str]:
    """Replace, remove or add one value of a tree; return the tree and a description."""
    forged = copy.deepcopy(tree)
    *parents, last = rng.choice([path for path in leaves(tree) if path])
    parent = forged
    for key in parents:
        parent = parent[key]
    name = ".".join(map(str, (*parents, last)))
    how = rng.random()
    if how < 0.1 and isinstance(parent, dict):
        del parent[last]
        return forged, f"without {name}"
    if how < 0.15 and isinstance(parent, dict):
        parent["unknown"] = 1
        return forged, f"unknown beside {name}"
    value = rng.choice(VALUES)
    parent[last] = value
    return forged, f"{name} = {str(value)[:30]}"


def _json(path: Path) -> Tree:
    tree: Tree = json.loads(path.read_text(encoding="utf-8"))
    return tree


def _update_digests(run: Path) -> None:
    """Update the experiment digest in the model and the checkpoints."""
    for path in [*run.glob("model.safetensors"), *run.rglob("step-*.safetensors")]:
        tensors, facts = load_tensors(path)
        save_tensors(path, tensors, {**facts, EXPERIMENT_DIGEST_KEY: experiment_digest(run)})


def forge_experiment(folder: Path, rng: random.Random) -> str:
    """Change the experiment, with valid digests in the weights."""
    path = folder / "run" / "experiment.json"
    tree, what = change(_json(path), rng)
    path.write_text(json.dumps(tree))
    try:
        _update_digests(folder / "run")
    except Exception as error:
        return f"{what}, no digest: {type(error).__name__}"
    return what


def forge_facts(folder: Path, rng: random.Random) -> str:
    """Change training facts."""
    path = rng.choice([*(folder / "run").glob("model.safetensors"), *(folder / "run").rglob("step-*.safetensors")])
    tensors, facts = load_tensors(path)
    forged, what = change(facts, rng)
    save_tensors(path, tensors, forged)
    return f"{path.name}: {what}"


def forge_tensors(folder: Path, rng: random.Random) -> str:
    """Change the shape, dtype, name or number of tensors."""
    path = rng.choice([*(folder / "run").glob("model.safetensors"), *(folder / "run").rglob("step-*.safetensors")])
    tensors, facts = load_tensors(path)
    name = rng.choice(sorted(tensors))
    tensor = tensors.pop(name)
    what = rng.choice(["removed", "renamed", "added", "shape", "double", "whole", "empty", "infinite", "scalar"])
    changes: dict[str, dict[str, torch.Tensor]] = {
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
    save_tensors(path, {**tensors, **changes[what]}, facts)
    return f"{path.name}: {name} {what}"


def forge_task_files(folder: Path, rng: random.Random) -> str:
    """Change a task file in a run folder, with a valid digest."""
    run_folder = folder / "run"
    tree = _json(run_folder / "experiment.json")
    name = rng.choice(sorted(tree["files"]))
    forged, what = change(_json(run_folder / name), rng)
    content = json.dumps(forged).encode()
    (run_folder / name).write_bytes(content)
    tree["files"][name] = hashlib.sha256(content).hexdigest()
    (run_folder / "experiment.json").write_text(json.dumps(tree))
    _update_digests(run_folder)
    return f"{name}: {what}"


def forge_corpus(folder: Path, rng: random.Random) -> str:
    """Change the facts of a corpus, or one of its files with a valid digest."""
    facts = _json(folder / "corpus" / "corpus.json")
    name = rng.choice(["corpus.json", "tokenizer.json", "train.jsonl", "held_out.jsonl"])
    path = folder / "corpus" / name
    if name == "corpus.json":
        facts, what = change(facts, rng)
    elif name == "tokenizer.json":
        forged, what = change(_json(path), rng)
        path.write_text(json.dumps(forged))
    else:
        lines = path.read_text().splitlines()
        forged, what = change(json.loads(lines[0]), rng)
        path.write_text("\n".join([json.dumps(forged), *lines[1:]]) + "\n")
    if name != "corpus.json":
        facts["files"][name] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "corpus" / "corpus.json").write_text(json.dumps(add_metadata_digest(facts)))
    return f"{name}: {what}"


def forge_comparison(folder: Path, rng: random.Random) -> str:
    """Change the description of a comparison, or its sealed rows."""
    if rng.random() < 0.3:
        path = folder / "both" / "comparison.json"
        tree, what = change(_json(path), rng)
        path.write_text(json.dumps(tree))
        return what
    path = rng.choice(sorted(folder.rglob("compared.jsonl")))
    rows = [json.loads(line) for line in path.read_text().splitlines()[:-1]]
    rows[0], what = change(rows[0], rng)
    content = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(content + json.dumps({ROWS_DIGEST_KEY: hashlib.sha256(content.encode()).hexdigest()}) + "\n")
    return f"{path.name}: {what}"


def forge_study(folder: Path, rng: random.Random) -> str:
    """Change the description of a study."""
    path = folder / "study" / "influence.json"
    tree, what = change(_json(path), rng)
    path.write_text(json.dumps(tree))
    return what


def forge_export(folder: Path, rng: random.Random) -> str:
    """Change the configuration or the tokenizer of an export."""
    name = rng.choice(
        ["config.json", "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
    )
    path = folder / "hf" / name
    tree = _json(path)
    forged, what = change(tree, rng)
    path.write_text(json.dumps(forged))
    return f"{name}: {what}"


FORGERIES: tuple[tuple[str, Callable[[Path, random.Random], str], tuple[Call, ...]], ...] = (
    ("run", forge_experiment, KINDS[0].uses),
    ("begun run", forge_experiment, (resume,)),
    ("run on rows", forge_experiment, KINDS[2].uses),
    ("run on text", forge_experiment, KINDS[4].uses),
    ("run", forge_facts, KINDS[0].uses),
    ("begun run", forge_facts, (resume,)),
    ("run", forge_tensors, KINDS[0].uses),
    ("begun run", forge_tensors, (resume,)),
    ("run on rows", forge_task_files, KINDS[2].uses),
    ("run on text", forge_task_files, KINDS[4].uses),
    ("corpus", forge_corpus, KINDS[3].uses),
    ("comparison", forge_comparison, KINDS[5].uses),
    ("study", forge_study, KINDS[6].uses),
    ("export", forge_export, KINDS[7].uses),
)


def attack(number: int, seed: int, scratch: Path) -> Tally:
    """Forge files and use them: they must cause a one-line error or have no effect."""
    from tests.attacks.mutations import prepare_folders  # noqa: PLC0415

    tally, folders = Tally("lies"), prepare_folders(scratch)
    for each in range(number):
        rng = rng_of(seed, "lie", each)
        name, forge, uses = FORGERIES[each % len(FORGERIES)]
        folder = copy_of(folders[name][0], scratch / "copy")
        what = forge(folder, rng)
        for call in uses:
            outcome = run(call, folder)
            faults = outcome.faults() + [f"leaves {left}" for left in leftovers(folder)]
            tally.add(f"{each}: {name}, {forge.__name__}: {what}", faults, outcome)
    return tally

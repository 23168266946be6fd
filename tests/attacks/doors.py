"""Hostile files for commands that read files of others: views, tables, sweep files, models, archives and streams.

A command must end with a result or a one-line error, keep every file of the user, and show the sound runs beside a
damaged one.
"""

import gzip
import io
import json
import os
import random
import shutil
import signal
import string
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.attacks.attack import Tally, attempts, copy_of, leftovers, rng_of, run
from tests.attacks.folders import compare_again, make_run, make_text
from tests.attacks.lies import leaves
from tests.attacks.machine import SMALL_STUDY

import lengthwise as lw
from lengthwise.cli import app as cli

# Time limit of a command that reads hostile data and does its usual work.
WORK_S = 25.0
MARKUP = '<img src=x onerror="document.title=1">'
# Values that no row or file of ours holds.
HOSTILE: tuple[Any, ...] = (
    *(None, True, "", "x", [], {}, [1, "x"], -1, 0.5, 2**63, 10**400, float("nan"), float("inf"), -1e308),
    *("\0", "\x1b[2J", "[/red]", MARKUP, "</script>", "\u202e", "a" * 5000, "../x", [[]] * 3, {"a": {"b": 1}}),
)


def forge(tree: Any, rng: random.Random) -> tuple[Any, str]:
    """Replace one value of a JSON tree by a hostile one, or remove it; return the tree and a description."""
    paths = [path for path in leaves(tree) if path]
    if not paths:
        return rng.choice(HOSTILE), "root"
    *parents, last = rng.choice(paths)
    parent = tree
    for key in parents:
        parent = parent[key]
    if rng.random() < 0.1 and isinstance(parent, dict):
        del parent[last]
        return tree, f"without {last}"
    value = rng.choice(HOSTILE)
    parent[last] = value
    return tree, f"{'.'.join(map(str, (*parents, last)))} = {value!r:.30}"


def forge_file(path: Path, rng: random.Random) -> str:
    """Forge one value in a JSON file, or in one line of a file of rows."""
    lines = (
        path.read_text(encoding="utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_text(encoding="utf-8")]
    )
    place = rng.randrange(len(lines)) if lines else 0
    tree, what = forge(json.loads(lines[place]) if lines else {}, rng)
    path.write_text("\n".join([*lines[:place], json.dumps(tree), *lines[place + 1 :]]) + "\n", encoding="utf-8")
    return f"{path.name}: {what}"


def replace_by_pipe(path: Path) -> str:
    """Replace a file by a named pipe, which blocks a careless reader for ever."""
    path.unlink()
    os.mkfifo(path)
    return f"{path.name} is a named pipe"


def prepare(scratch: Path, make: Callable[[], Any]) -> Path:
    """Make the folder that every attack begins with."""
    begin = scratch / "begin"
    begin.mkdir()
    outcome = run(make, begin, seconds=300)
    assert outcome.status == 0, outcome.err
    return begin


def page_faults(path: Path) -> list[str]:
    """Return the faults of an HTML page: markup of a file that is not escaped."""
    if not path.exists():
        return []
    content = path.read_text(encoding="utf-8", errors="replace")
    return ["writes markup of a file into the page"] if MARKUP in content else []


def make_views() -> None:
    """Make a folder of runs: a damaged one later, and a sound one; a comparison and a study."""
    make_run(0)
    Path("all").mkdir()
    shutil.copytree("run", "all/sound")
    Path("run").rename("all/other")
    compare_again()
    Path("both").rename("all/both")
    make_text(0)
    cli.main(["influence", "run", "tales/0.txt", "tales/1.txt", *SMALL_STUDY, "--out", "study"])
    Path("study").rename("all/study")
    Path("run").rename("all/text")


VIEWS: tuple[tuple[str, ...], ...] = (
    ("watch", "all", "--once"),
    ("watch", "all", "--once", "--json"),
    ("report", "all/other", "all/sound", "all/text", "--no-diagnosis", "--out", "page.html"),
    ("report", "all/both", "all/study", "--no-diagnosis", "--out", "page.html"),
    ("show", "all/other", "--length", "4", "--out", "shown.svg"),
)


def attack_views(number: int, seed: int, scratch: Path) -> Tally:
    """Forge a value in a file of a run, comparison or study, and look at the folder."""
    tally, begin = Tally("views"), prepare(scratch, make_views)
    files = sorted(
        path.relative_to(begin)
        for path in (begin / "all").rglob("*.json*")
        if path.is_file() and "sound" not in path.parts
    )
    for each in range(number):
        rng = rng_of(seed, "view", each)
        folder = copy_of(begin, scratch / "work")
        path, line = folder / rng.choice(files), VIEWS[each % len(VIEWS)]
        what = replace_by_pipe(path) if rng.random() < 0.1 else forge_file(path, rng)
        outcome = run(line, folder, seconds=WORK_S)
        faults = outcome.faults() + page_faults(folder / "page.html")
        if "\x1b[2J" in outcome.out + outcome.err:
            faults.append("prints a control sequence")
        if line[0] == "watch" and "sound" not in outcome.out:
            faults.append("does not show the sound run")
        faults += [f"leaves {left}" for left in leftovers(folder)]
        tally.add(f"{each}: {path.relative_to(folder)}: {what}, then {' '.join(line)}", faults, outcome)
    return tally


# Records for couple: each function returns prompts and responses.
Rows = list[dict[str, Any]]


def random_rows(rng: random.Random) -> Rows:
    """Return rows of a random kind: rules, noise, permutations, large vocabularies, or rows of very unequal length."""
    symbols = string.ascii_lowercase[: rng.choice((2, 5, 26))]
    number, longest = rng.choice((1, 5, 60, 400, 2000)), rng.choice((1, 4, 12, 40))
    prompts = [[rng.choice(symbols) for _ in range(rng.randint(1, longest))] for _ in range(number)]
    kind = rng.choice(("copy", "reverse", "labels", "permutations", "vocabulary", "one long", "noise", "empty"))
    match kind:
        case "copy" | "reverse":
            return [{"prompt": p, "response": p[:: 1 if kind == "copy" else -1]} for p in prompts]
        case "labels":
            return [{"prompt": p, "response": [rng.choice("01")]} for p in prompts]
        case "permutations":
            return [{"prompt": p, "response": rng.sample(p, len(p))} for p in prompts]
        case "vocabulary":
            return [{"prompt": [str(rng.randrange(10**9)) for _ in p], "response": p} for p in prompts]
        case "one long":
            long = [rng.choice(symbols) for _ in range(rng.choice((1000, 20_000)))]
            return [{"prompt": p, "response": p} for p in [*prompts, long]]
        case "noise":
            return [{"prompt": p, "response": [s if rng.random() < 0.9 else symbols[0] for s in p]} for p in prompts]
        case _:
            return [{"prompt": p, "response": []} for p in prompts]


def write_rows(path: Path, rng: random.Random) -> str:
    """Write rows for ``couple``, perhaps with a forged record; return a description."""
    rows, what = random_rows(rng), "rows"
    for _ in range(rng.choice((0, 0, 1, 3))):
        place = rng.randrange(len(rows))
        rows[place], what = forge(rows[place], rng)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return f"{len(rows)} rows, {what}"


def attack_tables(number: int, seed: int, scratch: Path) -> Tally:
    """Couple random tables, and write the result to places that belong to the user."""
    tally = Tally("tables")
    for each, rng, folder in attempts("table", number, seed, scratch):
        what = write_rows(folder / "rows.jsonl", rng)
        (folder / "mine.jsonl").write_text('{"prompt": ["a"], "response": ["b"]}\n', encoding="utf-8")
        (folder / "page.html").write_text("mine", encoding="utf-8")
        (folder / "link.jsonl").symlink_to("mine.jsonl")
        out = rng.choice(("new.jsonl", "rows.jsonl", "./rows.jsonl", "mine.jsonl", "link.jsonl", "page.html", ".", ""))
        before = contents(folder)
        line = ["couple", "rows.jsonl", "--minutes", rng.choice(("0.02", "0.1"))]
        line += ["--out", out] if out else []
        line += ["--lengths", "2,3"] if rng.random() < 0.3 else []
        outcome = run(line, folder, seconds=WORK_S)
        after = contents(folder)
        faults = outcome.faults(allowed=(0, 1, 2))
        faults += [f"changes {name}" for name, content in before.items() if after.get(name) != content]
        faults += [f"leaves {left}" for left in leftovers(folder)]
        tally.add(f"{each}: {what}, then {' '.join(line)}", faults, outcome)
    return tally


def contents(folder: Path) -> dict[str, object]:
    """Return the content of every file and the target of every link."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


SWEEP: dict[str, Any] = {
    "base": {"task": "parity", "scheme": "sequential", "training.steps": 2, "evaluation.lengths": [4]},
    "grid": {"encoding": ["nope"], "training.learning_rate": [0.001]},
    "seeds": 1,
}
CONFIG = 'task = "parity"\nscheme = "sequential"\n[training]\nsteps = 2\nbatch_size = 4\n[evaluation]\nlengths = [4]\n'


def attack_settings(number: int, seed: int, scratch: Path) -> Tally:
    """Train from forged sweep files and configuration files."""
    tally = Tally("settings")
    for each, rng, folder in attempts("setting", number, seed, scratch):
        line, what = (forged_sweep if each % 2 else forged_config)(folder, rng)
        outcome = run(partial(with_alarm, line), folder, seconds=WORK_S)
        faults = outcome.faults(allowed=(0, 1, 2)) + [f"leaves {left}" for left in leftovers(folder)]
        tally.add(f"{each}: {what}", faults, outcome)
    return tally


def with_alarm(line: Sequence[str]) -> None:
    """Run a command, and interrupt it like Ctrl-C if a forged value asked for long work."""
    signal.signal(signal.SIGALRM, lambda number, frame: os.kill(os.getpid(), signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 8.0)
    cli.main(list(line))


def forged_sweep(folder: Path, rng: random.Random) -> tuple[list[str], str]:
    """Write a sweep file with one or two forged values."""
    tree, what = forge(json.loads(json.dumps(SWEEP)), rng)
    path = folder / "sweep.json"
    path.write_text(json.dumps(tree), encoding="utf-8")
    if rng.random() < 0.1:
        what = replace_by_pipe(path)
    return ["sweep", "sweep.json", "--workers", "1", "--out", "out"], what


def forged_config(folder: Path, rng: random.Random) -> tuple[list[str], str]:
    """Write a configuration file with a forged line, a deep key, or damage."""
    lines = CONFIG.splitlines()
    place = rng.randrange(len(lines))
    value = json.dumps(rng.choice(HOSTILE)).replace("null", '"null"')
    changes = (
        f"{lines[place].partition('=')[0]} = {value}",
        ".".join(["a"] * rng.choice((3, 1500, 100_000))) + " = 1",
        "[" * rng.choice((1, 3000)),
        "x = " + "[" * 3000 + "]" * 3000,
        "steps = " + "9" * rng.choice((20, 5000)),
        "\0",
        lines[place][: len(lines[place]) // 2],
    )
    lines[place] = rng.choice(changes)
    path = folder / "config.toml"
    path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    what = replace_by_pipe(path) if rng.random() < 0.05 else lines[place][:60]
    return ["train", "--config", "config.toml", "--out", "out"], what


# Values for fields of a model's configuration.
LARGE = (0, -1, 3, 10**5, 10**8, 2**31, 2**63, 1.5, "x", None, [1], {"a": 1})
MODEL_FIELDS = (
    *("num_hidden_layers", "decoder_layers", "encoder_layers", "n_layer", "hidden_size", "intermediate_size"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings"),
    *("n_positions", "num_labels", "id2label", "rope_parameters", "rope_scaling", "sliding_window", "torch_dtype"),
    *("model_type", "architectures", "auto_map", "quantization_config", "tie_word_embeddings", "layer_types"),
)
MODEL_TYPES = ("llama", "gpt2", "bart", "gpt_neox", "mistral", "lengthwise", "bert", "../x", "t5", "bloom")


def make_model() -> None:
    """Make a small Llama folder in two shards, with a tokenizer, beside a file that it must not read."""
    import torch  # noqa: PLC0415
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: PLC0415

    make_text(0)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=290,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained("model", max_shard_size="12KB")
    PreTrainedTokenizerFast(tokenizer_file="corpus/tokenizer.json").save_pretrained("model")
    shutil.copy(sorted(Path("model").glob("model-*.safetensors"))[0], "outside.safetensors")


def load_model() -> str:
    """Load the model and its tokenizer, and encode a text."""
    loaded = lw.load_language_model("./model", device="cpu")
    return str(len(loaded.codec.encode("the bird sees a stone")))


def forged_model(folder: Path, rng: random.Random) -> str:
    """Forge the configuration, the index of the shards, or the tokenizer."""
    model = folder / "model"
    match rng.choice(("config", "config", "index", "tokenizer", "any", "pipe")):
        case "config":
            tree = json.loads((model / "config.json").read_text())
            name = rng.choice(MODEL_FIELDS)
            tree[name] = rng.choice(MODEL_TYPES) if name == "model_type" else rng.choice(LARGE)
            if rng.random() < 0.3:
                tree["model_type"] = rng.choice(MODEL_TYPES)
            (model / "config.json").write_text(json.dumps(tree))
            return f"{name} = {tree[name]}, {tree['model_type']}"
        case "index":
            path = model / "model.safetensors.index.json"
            tree = json.loads(path.read_text())
            name = rng.choice(sorted(tree["weight_map"]))
            places = (
                "../outside.safetensors",
                str(folder / "outside.safetensors"),
                "",
                ".",
                "x",
                1,
                None,
                "config.json",
            )
            value = rng.choice(places)
            keys = sorted(tree["weight_map"]) if rng.random() < 0.5 else [name]
            tree["weight_map"] |= dict.fromkeys(keys, value)
            path.write_text(json.dumps(tree))
            return f"weight_map: {value} for {len(keys)}"
        case "tokenizer":
            path = model / "tokenizer.json"
            tree = json.loads(path.read_text())
            tree |= rng.choice(TOKENIZERS)
            path.write_text(json.dumps(tree))
            return f"tokenizer: {str(tree.get('normalizer'))[:40]} {str(tree.get('pre_tokenizer'))[:60]}"
        case "any":
            return forge_file(rng.choice(sorted(model.glob("*.json"))), rng)
        case _:
            return replace_by_pipe(rng.choice(sorted(model.glob("*"))))


def _replaced(times: int, by: int) -> dict[str, Any]:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * by}
    return {"normalizer": {"type": "Sequence", "normalizers": [step] * times}}


def _split(pattern: str) -> dict[str, Any]:
    return {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}}


TOKENIZERS: tuple[dict[str, Any], ...] = (
    *(_replaced(times, by) for times, by in ((1, 2), (3, 1000), (4, 1000), (60, 2))),
    *(_split(pattern) for pattern in ("(x+x+)+y", "(.*a){25}", "(", "(a|a?)+$", "(?R)", "\\p{X}")),
    *({"model": value} for value in HOSTILE[:8]),
    {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}]}},
    {"truncation": {"max_length": 0, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}},
    {"padding": {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}},
    {"added_tokens": [{"id": 10**12, "content": "a", "special": True}]},
)


def attack_models(number: int, seed: int, scratch: Path) -> Tally:
    """Load forged model folders; nothing outside the folder may be read."""
    tally, begin = Tally("models"), prepare(scratch, make_model)
    assert run(load_model, begin, seconds=WORK_S).status == 0
    for each in range(number):
        rng = rng_of(seed, "model", each)
        folder = copy_of(begin, scratch / "work")
        what = forged_model(folder, rng)
        outcome = run(load_model, folder, seconds=WORK_S)
        faults = outcome.faults()
        if outcome.status == 0 and "outside" in what:
            faults.append("reads a file outside the folder")
        tally.add(f"{each}: {what}", faults, outcome)
    return tally


def make_gguf() -> None:
    """Write a small model as a GGUF file."""
    from tests.hf.test_gguf import write_gguf  # noqa: PLC0415  (skips the module without the package gguf)

    write_gguf(Path("model.gguf"))


def load_gguf() -> str:
    """Load the GGUF file with its tokenizer, and encode a text."""
    return str(len(lw.load_language_model("model.gguf", device="cpu").codec.encode("the bird")))


def forged_gguf(path: Path, rng: random.Random) -> str:
    """Change, cut or exchange bytes of a GGUF file, most of them in its header."""
    content = bytearray(path.read_bytes())
    place = rng.randrange(rng.choice((64, 512, 8192, len(content))))
    kind = rng.choice(("flip", "number", "number", "cut", "insert", "garbage"))
    match kind:
        case "flip":
            content[place] ^= 1 << rng.randrange(8)
        case "number":
            size = rng.choice((4, 8))
            value = rng.choice((0, 1, 2**31 - 1, 2**32 - 1, 10**9, 257)) % (1 << 8 * size)
            content[place : place + size] = value.to_bytes(size, "little")
        case "cut":
            del content[place:]
        case "insert":
            content[place:place] = rng.randbytes(rng.choice((1, 8, 100)))
        case _:
            content[4:] = rng.randbytes(2000)
    path.write_bytes(content)
    return f"{kind} at {place}"


def attack_gguf(number: int, seed: int, scratch: Path) -> Tally:
    """Load forged GGUF files."""
    tally, begin = Tally("gguf"), prepare(scratch, make_gguf)
    assert run(load_gguf, begin, seconds=WORK_S).status == 0
    for each in range(number):
        folder = copy_of(begin, scratch / "work")
        what = forged_gguf(folder / "model.gguf", rng_of(seed, "gguf", each))
        outcome = run(load_gguf, folder, seconds=WORK_S)
        tally.add(f"{each}: {what}", outcome.faults(), outcome)
    return tally


RECORDS = b'{"text": "the bird sees a stone under the river"}\n' * 200


def archive(kind: str, rng: random.Random) -> bytes:
    """Return a gzip file of records: a bomb, a cut or changed one, one with unusual text, or a sound one."""
    times = rng.choice((1, 12))
    content = {
        "one line": b'{"text": "' + b"a" * (64 << 20),
        "blank": b" " * (64 << 20),
        "lines": b'{"text": "a b"}\n' * (4 << 20),
        "empty lines": b"\n" * (64 << 20),
        "bytes": b'{"text": "' + rng.randbytes(3000) + b'"}\n' + RECORDS,
        "nested": gzip.compress(RECORDS),
        "empty": b"",
    }
    # Members of a gzip file are read one after the other.
    packed = gzip.compress(content.get(kind, RECORDS), 6) * (times if kind in ("one line", "blank", "lines") else 1)
    place = rng.randrange(len(packed))
    match kind:
        case "cut":
            return packed[:place]
        case "flip":
            return packed[:place] + bytes([packed[place] ^ 1 << rng.randrange(8)]) + packed[place + 1 :]
        case "garbage":
            return rng.randbytes(500)
        case _:
            return packed


ARCHIVES = ("one line", "blank", "lines", "empty lines", "bytes", "nested", "empty", "cut", "flip", "garbage", "sound")


def attack_archives(number: int, seed: int, scratch: Path) -> Tally:
    """Prepare corpora from compressed records."""
    tally = Tally("archives")
    for each, rng, folder in attempts("archive", number, seed, scratch):
        kind, name = ARCHIVES[each % len(ARCHIVES)], rng.choice(("a.jsonl.gz", "a.ndjson.gz", "a.json.gz"))
        (folder / name).write_bytes(archive(kind, rng))
        (folder / "b.txt").write_text("the river holds a house\n" * 300, encoding="utf-8")
        line = ["prepare", name, "b.txt", "--vocabulary-size", "280", "--out", "corpus"]
        # Millions of short records are long work, which has to stop after Ctrl-C.
        call = partial(with_alarm, line) if kind in ("lines", "empty lines") else line
        outcome = run(call, folder, seconds=2 * WORK_S)
        faults = outcome.faults(allowed=(0, 1, 2)) + [f"leaves {left}" for left in leftovers(folder)]
        if kind == "sound" and name != "a.json.gz" and outcome.status:
            faults.append("refuses a sound file")
        tally.add(f"{each}: {name}, {kind}", faults, outcome)
    return tally


STREAMED: tuple[tuple[str, ...], ...] = (
    ("list", "tasks"),
    ("train", "--task", "parity", "--scheme", "sequential", "--steps", "2", "--out", "out"),
    ("evaluate", "run", "--lengths", "2", "--num-examples", "4"),
    ("generate", "run", "--prompt", "0110"),
    ("couple", "rows.jsonl", "--minutes", "0.05"),
    ("watch", ".", "--once"),
    ("report", "run", "--no-diagnosis", "--out", "page.html"),
    ("evaluate", "missing"),
    ("generate", "run", "--prompt", "é漢"),
)
ENCODINGS = ("ascii", "latin-1", "cp1252", "utf-8", "shift_jis")


def make_streamed() -> None:
    """Make a run with letters of other alphabets in its name, a table, and a file that is always full."""
    make_run(0)
    shutil.copytree("run", "läufe-漢字")
    os.mkdir(b"not-utf-8-\xff")
    shutil.copytree("run", os.fsdecode(b"not-utf-8-\xff/run"))
    rows = [{"prompt": ["漢", "é", "a"][:n], "response": ["漢", "é", "a"][:n]} for n in (1, 2, 3)] * 20
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def attack_streams(number: int, seed: int, scratch: Path) -> Tally:
    """Run commands with closed, full and foreign streams; unusual names of folders."""
    tally, begin = Tally("streams"), prepare(scratch, make_streamed)
    for each in range(number):
        rng = rng_of(seed, "stream", each)
        folder = copy_of(begin, scratch / "work")
        line = list(rng.choice(STREAMED))
        name = rng.choice(("run", "run", "läufe-漢字", os.fsdecode(b"not-utf-8-\xff/run")))
        line = [name if word == "run" else word for word in line]
        what = rng.choice(("encoding", "encoding", "full out", "full err", "closed out", "closed err", "closed in"))
        encoding = rng.choice(ENCODINGS)
        outcome = run(partial(with_stream, line, what, encoding), folder, seconds=WORK_S)
        # A run of two steps does not fit: status 1.
        may_fail = line[0] == "train" or what in ("full out", "closed out")
        faults = outcome.faults(allowed=(0, 1, 2) if may_fail else (0, 2))
        if what in ("full err", "closed err", "full out", "closed out"):
            faults = [fault for fault in faults if fault != "has no one-line error"]
        if what == "closed err" and "error: " in outcome.out:
            faults.append("prints an error among the results")
        if what == "full err" and line[0] == "train" and not (folder / "out/model.safetensors").exists():
            faults.append("a full stderr ends the training")
        tally.add(f"{each}: {what} {encoding}: {' '.join(line)!a}", faults, outcome)
    return tally


def with_stream(line: Sequence[str], what: str, encoding: str) -> None:
    """Run a command with a changed standard stream."""
    kind, _, name = what.partition(" ")
    if kind == "encoding":
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(encoding=encoding, errors="strict" if stream is sys.stdout else "backslashreplace")
        cli.main(list(line))
        return
    number = {"in": 0, "out": 1, "err": 2}[name]
    if kind == "full":
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, number)
        os.close(full)
        cli.main(list(line))
        return
    os.close(number)
    setattr(sys, f"std{name}", None)
    try:
        cli.main(list(line))
    finally:
        # The end of the child flushes both streams.
        setattr(sys, f"std{name}", io.StringIO())

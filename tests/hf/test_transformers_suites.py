"""Test suites of `transformers`, run on exported decoders and on wrapped models.

pip downloads the source distribution of `transformers`, which contains the suites, into ``~/.cache/lengthwise``.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from filelock import FileLock
from tests.support.transformers_suites import KINDS

ROOT = Path(__file__).parents[2]
# Kinds, tests that fail by design, and the reason. Every matching test must fail or skip itself, and each kind of an
# entry must have a failure.
REFUSALS = [
    (
        ".*",
        "test_generation_tester_mixin_inheritance",
        "it looks for the suite of generate, which is not in the source distribution",
    ),
    (".*", "test_inputs_embeds", "position IDs depend on tokens, so inputs_embeds raises"),
    (
        ".*",
        "test_causal_lm_loss_honors_shift_labels",
        "shift_labels is for sequences that are split over devices, but a position head reads the whole prompt",
    ),
    (
        ".*",
        "test_can_init_all_missing_weights|test_model_weights_reload_no_missing_tied_weights",
        "from_pretrained raises for missing weights; it does not replace them by random weights",
    ),
    ("decoder.*", "test_model_get_set_embeddings", "the embedding of a decoder is a parameter instead of a module"),
    (
        "decoder.*",
        "test_(training_)?gradient_checkpointing(_enable_disable|_use_reentrant_true|_use_reentrant_false)?",
        "the blocks of a decoder do not depend on transformers, so its class GradientCheckpointingLayer is missing",
    ),
    ("(?!decoder).*", "test_correct_missing_keys", "wrap adds a head to another model; from_pretrained raises"),
    (
        ".*_log",
        "test_can_set_attention_dynamically(_composite_model)?",
        "scaling is an attention implementation, so replacing it would disable the scaling",
    ),
    (".*_log", "test_capture_outputs_decorator", "scaled attention computes no attention weights"),
]


@pytest.fixture(scope="module")
def suites() -> tuple[Path, Path]:
    """Return the folder of the suites, and a file with the module `parameterized`, which they import."""
    constraints = ROOT / "constraints.txt"
    pin = re.search(r"^transformers==.*$", constraints.read_text(encoding="utf-8"), re.MULTILINE)[0]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lengthwise" / pin.replace("==", "-")
    cache.mkdir(parents=True, exist_ok=True)
    folder, patterns = cache / "suites", ("transformers-*.tar.gz", "parameterized-*.whl")
    with FileLock(cache / "lock"):
        if not all(list(cache.glob(pattern)) for pattern in patterns):
            packages = ["--no-binary", "transformers", "transformers", "parameterized"]
            options = ["--quiet", "--no-deps", "--constraint", str(constraints), "--dest", str(cache)]
            command = [sys.executable, "-m", "pip", "download", *options, *packages]
            if subprocess.run(command, check=False).returncode:
                pytest.skip(f"the suites are missing, and their download failed: {' '.join(command)}")
        archive, module = (next(cache.glob(pattern)) for pattern in patterns)
        if not folder.exists():
            partial = cache / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            with tarfile.open(archive) as files:
                for member in files:
                    if member.isfile() and re.fullmatch(r"[^/]+/tests/\w+\.py", member.name):
                        (partial / Path(member.name).name).write_bytes(files.extractfile(member).read())
            # A suite reads this file, which the source distribution lacks.
            (partial / "__init__.py").touch()
            partial.rename(folder)
    return folder, module


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_passes_the_suites_of_transformers_except_the_refusals(kind, suites):
    folder, module = suites
    command = [sys.executable, "-m", "tests.support.transformers_suites", str(folder), kind]
    path = os.pathsep.join([*sys.path, str(module)])
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True
    )
    outcomes = json.loads(done.stdout.splitlines()[-1])
    failed, passed = outcomes["failed"], outcomes["passed"]
    refusals = [tests for kinds, tests, _ in REFUSALS if re.fullmatch(kinds, kind)]
    refused = {name for name in failed | passed if any(re.fullmatch(tests, name) for tests in refusals)}
    defects = {name: error for name, error in failed.items() if name not in refused}
    assert not defects, "\n".join(defects.values())
    assert not refused & passed.keys()
    assert not [tests for tests in refusals if not any(re.fullmatch(tests, name) for name in failed)]
    # The other tests skip themselves, most of them for lack of a GPU or of a package.
    assert len(passed) > 60

"""Names of the folders in which runs are saved."""

import hashlib
import json
import re
from pathlib import Path

from lengthwise.experiments.experiment import Experiment, to_dict

# Number of hexadecimal digits of the digest in a folder name.
NAME_DIGEST_LENGTH = 12


def content_folder_name(experiment: Experiment) -> str:
    """Return a folder name that depends only on the settings of the experiment, its seed included."""
    parts = (experiment.task.name, experiment.scheme.name, experiment.encoding.name)
    digest = hashlib.sha256(json.dumps(to_dict(experiment), sort_keys=True).encode()).hexdigest()
    return f"{to_folder_name('-'.join(parts))}-seed-{experiment.seed}-{digest[:NAME_DIGEST_LENGTH]}"


def run_folder(out: Path, label: str, seed: int) -> Path:
    """Return the folder of the run with this label and seed in a comparison."""
    return out / to_folder_name(label) / f"seed-{seed}"


def to_folder_name(label: str) -> str:
    """Convert a label to a folder name of lower-case letters, digits and hyphens."""
    return re.sub(r"[\W_]+", "-", label.lower()).strip("-")

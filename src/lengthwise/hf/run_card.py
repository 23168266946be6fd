"""Model card of an exported run: what it was trained on, its results by length, and their limits."""

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from lengthwise.evaluation.result_rows import Rows, is_skipped, uses_loss
from lengthwise.evaluation.tables_and_figures import length_table
from lengthwise.experiments.experiment import Experiment

PAPER = "arXiv 2502.16792"
NO_RESULTS = "The run was not evaluated before its export. `lengthwise evaluate RUN` measures it at any lengths."
LICENSE_ADVICE = "The license of the weights is your choice: add `license:` to the header of this file."
# Characters with a meaning in Markdown.
MARKDOWN = re.compile(r"([\\`*_\[\]|~#])")


def run_card(experiment: Experiment, facts: Mapping[str, Any], result_rows: Rows) -> str:
    """Return the header and the first sections of a model card; ``result_rows`` are those of the run folder.

    The card has the latest row of each length, variant and way of decoding. Rows of an evaluation with another task,
    scheme or encoding are left out. Markdown and HTML in names have no effect.
    """
    rows = _latest_rows(experiment, result_rows)
    metadata = ModelCardData(
        library_name="lengthwise",
        pipeline_tag="text-generation",
        tags=["length-generalization", experiment.task.name, experiment.scheme.name, experiment.encoding.name],
        model_name=f"{experiment.task.name}, {experiment.scheme.name}, {experiment.encoding.name}",
        eval_results=_eval_results(experiment, rows) or None,
    )
    first, last = experiment.train_lengths
    settings = {
        "task": f"{experiment.task.name} ({experiment.task.summary})",
        "position scheme": f"{experiment.scheme.name} ({experiment.scheme.summary})",
        "encoding": experiment.encoding.name,
        "training lengths": f"{first:,} to {last:,}",
        "training steps": f"{facts['steps']:,}",
        "seed": str(experiment.seed),
    }
    lines = [
        f"---\n{metadata.to_yaml()}\n---\n",
        f"# {_plain(str(metadata.model_name))}\n",
        f"A decoder trained on short sequences with the library lengthwise, which implements {PAPER}.\n",
        *_table(["setting", "value"], [[name, value] for name, value in settings.items()]),
        "\n## Results by length\n",
        *(_results(last, rows) if rows else [NO_RESULTS]),
        f"\n{LICENSE_ADVICE}\n\n",
    ]
    return "\n".join(lines)


def _latest_rows(experiment: Experiment, rows: Rows) -> Rows:
    names = (experiment.task.name, experiment.scheme.name, experiment.encoding.name)
    own_rows = [row for row in rows if (row["task"], row["scheme"], row["encoding"]) == names]
    latest = {(str(row["variant"]), row["length"], str(row.get("decode"))): row for row in own_rows}
    return [latest[key] for key in sorted(latest)]


def _results(longest: int, rows: Rows) -> list[str]:
    unit = "Loss in nats" if uses_loss(rows) else "Exact match: the share of sequences with no wrong token or ID"
    told = f" The method was told: {_plain(str(rows[0]['told']))}." if rows[0].get("told") else ""
    return [
        f"{unit}, with a 95% interval over examples. Lengths above {longest:,} were not in training.{told}\n",
        *_table(*length_table(rows)),
        "\nOther lengths and other data were not measured. This is one seed, and other seeds may differ.",
    ]


def _eval_results(experiment: Experiment, rows: Rows) -> list[EvalResult]:
    metric, key = ("loss", "loss") if rows and uses_loss(rows) else ("exact_match", "exact_match")
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=experiment.task.name,
            dataset_name=f"{experiment.task.name}, length {row['length']}",
            # The Hub groups results by type, configuration and split.
            dataset_config=" ".join(str(row[part]) for part in ("length", "variant", "decode") if row.get(part)),
            dataset_args={"length": row["length"], "num_examples": row["num_examples"], "variant": row["variant"]},
            metric_type=metric,
            metric_value=row[key],
        )
        for row in rows
        # A skipped length was not measured.
        if not is_skipped(row)
    ]


def _table(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *body]
    return ["| " + " | ".join(cell if cell == "---" else _plain(cell) for cell in line) + " |" for line in lines]


def _plain(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return MARKDOWN.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))

"""Model cards, and a mixin of the saved models that registers them, writes a card and checks loaded weights."""

import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from huggingface_hub import EvalResult, ModelCardData
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lengthwise.core.errors import ModelError
from lengthwise.core.randomness import random_stream
from lengthwise.evaluation.result_rows import Rows, is_skipped, uses_loss
from lengthwise.evaluation.tables_and_figures import length_table
from lengthwise.experiments.experiment import Experiment
from lengthwise.tasks import GradedByLoss, HasFilesToSave

CARD_FILE = "README.md"
# First sentence of the default cards that `transformers` writes.
DEFAULT_CARD_SENTENCE = "This model card has been automatically generated"
LOADING_SECTION = """## How to load this model

This model was created with the library [lengthwise](https://pypi.org/project/lengthwise/). `transformers`
does not include the model type `{model_type}`. Install `lengthwise` and import `lengthwise.hf` first:

```bash
pip install 'lengthwise[hf]'
```

```python
import lengthwise.hf  # registers the model type with the Auto classes
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("PATH_OR_NAME")
```

`python -m lengthwise.hf PROGRAM ...` starts another program with the model type, such as a Python file, `lm_eval` or
`transformers serve`.

{prompt_ids}

Do not load this model with another class, such as `LlamaForCausalLM`. It would drop weights and give wrong answers.
"""
REQUIRED_IDS_SENTENCE = "`generate` needs the `position_ids` of the prompt, assigned as in training."
RULE_IDS_SENTENCE = "Without `position_ids`, prompts get the position IDs of the rule found in the training data."
DEFAULT_IDS_SENTENCE = "Without `position_ids`, prompts get the position IDs {first}, {first} + 1, {first} + 2, ..."
PAPER = "arXiv 2502.16792"
NO_RESULTS = "The run was not evaluated before its export. `lengthwise evaluate RUN` measures it at any lengths."
LICENSE_ADVICE = "The license of the weights is your choice: add `license:` to the header of this file."
# Characters with a meaning in Markdown.
MARKDOWN = re.compile(r"([\\`*_\[\]|~#])")


EXAMPLE_SECTION = """## An example

The prompt contains the symbols of the task and ends with `{end}`:

```python
import torch

prompt = torch.tensor([{tokens}])  # {prompt}
ids = torch.tensor({ids})
print(model.generate(prompt, position_ids=ids, max_new_tokens={num_new}, do_sample=False)[0, {length}:].tolist())
# {answer}
```

The model generates `{text}`. A correct answer is `{correct}`. The model was trained on single examples, so evaluate it
without solved examples in the prompt: `lengthwise export RUN --format lm-eval` writes tasks with 0 shots.

"""


def describe_example(model: Any, experiment: Experiment) -> str:
    """Return the section of a card with a prompt, its IDs and the tokens that the exported model generates from them.

    It is empty for a model that needs the IDs of the whole text or real-valued IDs, and for a task whose files may be
    missing or that has no correct answer.
    """
    task = experiment.task
    has_ids = model.num_position_heads or model.config.count_prompt_from is not None
    if isinstance(task, HasFilesToSave | GradedByLoss) or experiment.scheme.real_valued or not has_ids:
        return ""
    rng = random_stream(experiment.seed, "example of a card")
    examples = task.sample(length=experiment.train_lengths[-1], size=1, rng=rng)
    length, num_new = int(examples.prompt_length[0]), int(examples.response_end[0] - examples.prompt_length[0] + 1)
    position_ids = experiment.scheme.assign(examples, rng, training=False).position_ids[..., :length]
    tokens, ids = torch.tensor(examples.tokens[:, :length]), torch.tensor(position_ids)
    ids = ids[0] if len(ids) == 1 else ids
    was_training = model.training
    generated = model.eval().generate(tokens, position_ids=ids, max_new_tokens=num_new, do_sample=False)[0, length:]
    model.train(was_training)
    symbols = [task.vocabulary[token] for token in examples.tokens[0]]
    return EXAMPLE_SECTION.format(
        end=" ".join(model.config.prompt_end or symbols[length - 1 : length]),
        tokens=tokens[0].tolist(),
        prompt=" ".join(symbols[:length]),
        ids=ids.tolist(),
        num_new=num_new,
        length=length,
        answer=generated.tolist(),
        text=" ".join(task.vocabulary[token] for token in generated.tolist()),
        correct=" ".join(symbols[length : length + num_new]),
    )


def build_model_card(experiment: Experiment, facts: Mapping[str, Any], result_rows: Rows) -> str:
    """Return the header and the first sections of a model card; ``result_rows`` are those of the run folder.

    The card has the latest row of each length, variant and way of decoding. Rows of an evaluation with another task,
    scheme or encoding are left out. Markdown and HTML in names have no effect.
    """
    names = [experiment.task.name, experiment.scheme.name, experiment.encoding.name]
    own_rows = [row for row in result_rows if [row["task"], row["scheme"], row["encoding"]] == names]
    latest = {(str(row["variant"]), row["length"], str(row.get("decode"))): row for row in own_rows}
    rows = [latest[key] for key in sorted(latest)]
    header = _header(
        ", ".join(names),
        tags=["length-generalization", *names],
        model_name=", ".join(names),
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
        f"{header}A decoder trained on short sequences with the library lengthwise, which implements {PAPER}.\n",
        *_table(["setting", "value"], [[name, value] for name, value in settings.items()]),
        "\n## Results by length\n",
        *(_results(last, rows) if rows else [NO_RESULTS]),
        f"\n{LICENSE_ADVICE}\n\n",
    ]
    return "\n".join(lines)


def _header(title: str, **metadata: Any) -> str:
    """Return the YAML header and the title of a card."""
    data = ModelCardData(library_name="lengthwise", pipeline_tag="text-generation", **metadata)
    return f"---\n{data.to_yaml()}\n---\n\n# {_plain(title)}\n\n"


def _results(longest: int, rows: Rows) -> list[str]:
    unit = "Loss in nats" if uses_loss(rows) else "Exact match: the share of sequences with no wrong token or ID"
    given = f" The method was given: {_plain(str(rows[0]['given']))}." if rows[0].get("given") else ""
    return [
        f"{unit}, with a 95% interval over examples. Lengths above {longest:,} were not in training.{given}\n",
        *_table(*length_table(rows)),
        "\nOther lengths and other data were not measured. This is one seed, and other seeds may differ.",
    ]


def _eval_results(experiment: Experiment, rows: Rows) -> list[EvalResult]:
    metric = "loss" if rows and uses_loss(rows) else "exact_match"
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=experiment.task.name,
            dataset_name=f"{experiment.task.name}, length {row['length']}",
            # The Hub groups results by type, configuration and split.
            dataset_config=" ".join(str(row[part]) for part in ("length", "variant", "decode") if row.get(part)),
            dataset_args={"length": row["length"], "num_examples": row["num_examples"], "variant": row["variant"]},
            metric_type=metric,
            metric_value=row[metric],
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


class ModelCardMixin(PreTrainedModel):
    """Mixin that registers the model type, writes a model card, and rejects weights that do not match the options."""

    model_description: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        assert cls.config_class is not None
        AutoConfig.register(cls.config_class.model_type, cls.config_class, exist_ok=True)
        AutoModelForCausalLM.register(cls.config_class, cls, exist_ok=True)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save the model as in `transformers`, with a model card."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", True):
            self._write_card(Path(save_directory))

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """Load as in `transformers`; raise ``ModelError`` if the saved head or segment does not match the options."""
        result: Any = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        model, loading_info = result
        for keys, verb in (("missing_keys", "has no"), ("unexpected_keys", "has")):
            if names := sorted(name for name in loading_info[keys] if name.startswith(("position_head", "segment"))):
                raise ModelError(
                    f"the saved model {verb} {names[0]}, so it was saved with other options; load it without options, "
                    "or wrap the original model again"
                )
        return (model, loading_info) if output_loading_info else model

    # `push_to_hub`, and `save_pretrained` with ``push_to_hub=True``, write their own card before this call.
    def _upload_modified_files(self, working_dir: Any, *args: Any, **kwargs: Any) -> Any:
        self._write_card(Path(working_dir))
        return super()._upload_modified_files(working_dir, *args, **kwargs)

    def describe_loading(self) -> str:
        """Return the section of the model card that explains how to load and use the model."""
        first_id = self.config.first_default_prompt_id
        prompt_ids = REQUIRED_IDS_SENTENCE if first_id is None else DEFAULT_IDS_SENTENCE.format(first=first_id)
        if getattr(self.config, "prompt_scheme", None) is not None:
            prompt_ids = RULE_IDS_SENTENCE
        if end := getattr(self.config, "prompt_end", None):
            prompt_ids = f"Every prompt ends with `{' '.join(end)}`. {prompt_ids}"
        return LOADING_SECTION.format(model_type=self.config.model_type, prompt_ids=prompt_ids)

    def _write_card(self, folder: Path) -> None:
        card_file = folder / CARD_FILE
        text = card_file.read_text(encoding="utf-8") if card_file.is_file() else DEFAULT_CARD_SENTENCE
        if DEFAULT_CARD_SENTENCE in text:
            text = _header(self.model_description) + self.describe_loading()
        elif self.config.model_type not in text:
            text = text.rstrip("\n") + "\n\n" + self.describe_loading()
        card_file.write_text(text, encoding="utf-8")

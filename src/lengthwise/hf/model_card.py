"""Mixin of the saved models: registration with `transformers`, model card, and checks of loaded weights."""

from pathlib import Path
from typing import Any, ClassVar

from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lengthwise.core.errors import ModelError

CARD_FILE = "README.md"
# First sentence of the default cards that `transformers` writes.
DEFAULT_CARD_SENTENCE = "This model card has been automatically generated"
CARD_HEADER = """---
library_name: lengthwise
pipeline_tag: text-generation
---

# {kind}

"""
CARD_BODY = """## How to load this model

This model was created with the library [lengthwise](https://pypi.org/project/lengthwise/). `transformers`
does not include the model type `{model_type}`. Install `lengthwise` and import the model class first:

```bash
pip install 'lengthwise[hf]'
```

```python
from lengthwise.hf import {model_class}  # registers the model type with the Auto classes
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("PATH_OR_NAME")
```

{prompt_ids}

Do not load this model with another class, such as `LlamaForCausalLM`. It would drop weights and give wrong answers.
"""
REQUIRED_IDS_SENTENCE = "`generate` needs the `position_ids` of the prompt, assigned as in training."
RULE_IDS_SENTENCE = "Without `position_ids`, prompts get the position IDs of the rule found in the training data."
DEFAULT_IDS_SENTENCE = "Without `position_ids`, prompts get the position IDs {first}, {first} + 1, {first} + 2, ..."


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

    def _describe_prompt_ids(self) -> str:
        if getattr(self.config, "prompt_scheme", None) is not None:
            return RULE_IDS_SENTENCE
        first_id = self.config.first_default_prompt_id
        return REQUIRED_IDS_SENTENCE if first_id is None else DEFAULT_IDS_SENTENCE.format(first=first_id)

    def describe_loading(self) -> str:
        """Return the section of the model card that explains how to load and use the model."""
        return CARD_BODY.format(
            model_type=self.config.model_type,
            model_class=type(self).__name__,
            prompt_ids=self._describe_prompt_ids(),
        )

    def _write_card(self, folder: Path) -> None:
        body = self.describe_loading()
        card_file = folder / CARD_FILE
        text = card_file.read_text(encoding="utf-8") if card_file.is_file() else DEFAULT_CARD_SENTENCE
        if DEFAULT_CARD_SENTENCE in text:
            text = CARD_HEADER.format(kind=self.model_description) + body
        elif self.config.model_type not in text:
            text = text.rstrip("\n") + "\n\n" + body
        card_file.write_text(text, encoding="utf-8")

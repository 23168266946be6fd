"""Saving and loading of our models: a model card that says how to load them, and no weight lost without an error."""

from pathlib import Path
from typing import Any, ClassVar

from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lengthwise.core.errors import ModelError

CARD = "README.md"
# What `transformers` writes where a repository has no card.
GENERATED = "This model card has been automatically generated"
HEADER = """---
library_name: lengthwise
pipeline_tag: text-generation
---

# {kind}

"""
BODY = """## How to load it

This model was made with the library [lengthwise](https://pypi.org/project/lengthwise/). `transformers` alone does not
know the model type `{model_type}`: install `lengthwise` and import the model class first.

```bash
pip install 'lengthwise[hf]'
```

```python
from lengthwise.hf import {model_class}  # registers the model type with the Auto classes
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("PATH_OR_NAME")
```

{prompt_ids}

Do not load it with another class, such as `LlamaForCausalLM`: that leaves out weights, and its answers are wrong.
"""
GIVEN = "`generate` needs the `position_ids` of the prompt, as the model met them in training."
COUNTED = "Prompts get the position IDs {first}, {first} + 1, {first} + 2, ... unless `position_ids` are given."


class ModelCardMixin(PreTrainedModel):
    """Base class of our models: registers them, writes a model card, and refuses weights saved under other options."""

    card_kind: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        assert cls.config_class is not None
        AutoConfig.register(cls.config_class.model_type, cls.config_class, exist_ok=True)
        AutoModelForCausalLM.register(cls.config_class, cls, exist_ok=True)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As in `transformers`, with a model card that says what to install."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", True):
            self._write_card(Path(save_directory))

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As in `transformers`; ``ModelError`` where the saved head or segment does not fit the options."""
        loaded: Any = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        model, found = loaded
        for keys, fault in (("missing_keys", "has no"), ("unexpected_keys", "has a")):
            if other := sorted(name for name in found[keys] if name.startswith(("position_head", "segment"))):
                raise ModelError(
                    f"the saved model {fault} {other[0]}: it was saved with other options; load it with its own, or "
                    "wrap the model within anew"
                )
        return (model, found) if output_loading_info else model

    # Called by `push_to_hub`, and by `save_pretrained` that pushes, after they have put a card of their own there.
    def _upload_modified_files(self, working_dir: Any, *args: Any, **kwargs: Any) -> Any:
        self._write_card(Path(working_dir))
        return super()._upload_modified_files(working_dir, *args, **kwargs)

    def _write_card(self, folder: Path) -> None:
        first = self.config.first_counted_id
        body = BODY.format(
            model_type=self.config.model_type,
            model_class=type(self).__name__,
            prompt_ids=GIVEN if first is None else COUNTED.format(first=first),
        )
        card = folder / CARD
        text = card.read_text(encoding="utf-8") if card.is_file() else GENERATED
        if GENERATED in text:
            text = HEADER.format(kind=self.card_kind) + body
        elif self.config.model_type not in text:
            text = text.rstrip("\n") + "\n\n" + body
        card.write_text(text, encoding="utf-8")

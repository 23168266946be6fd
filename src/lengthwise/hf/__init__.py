"""Models of the `transformers` library; nothing else in this package imports it."""

# First: our model types are registered when it is imported, and their modules import from it.
import transformers.models.auto.modeling_auto  # noqa: F401

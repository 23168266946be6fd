"""Our model types, for the Auto classes of `transformers`."""


def register_configs() -> None:
    """For ``AutoConfig``."""
    # Imported here and below: each is called while `transformers` is being imported, when only a part of it is there.
    from transformers import AutoConfig  # noqa: PLC0415

    from lengthwise.hf.lengthwise_config import LengthwiseConfig  # noqa: PLC0415
    from lengthwise.hf.predictive_config import PredictivePositionConfig  # noqa: PLC0415

    for config in (LengthwiseConfig, PredictivePositionConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)


def register_models() -> None:
    """For ``AutoModelForCausalLM``."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    from lengthwise.hf.lengthwise_model import LengthwiseForCausalLM  # noqa: PLC0415
    from lengthwise.hf.predictive import PredictivePositionModel  # noqa: PLC0415

    for model in (LengthwiseForCausalLM, PredictivePositionModel):
        AutoModelForCausalLM.register(model.config_class, model, exist_ok=True)

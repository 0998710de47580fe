"""AutoGen's `ModelInfo`, inferred from a model's configuration and chat template."""

from __future__ import annotations

from autogen_core.models import ModelFamily, ModelInfo

from flashagents_runtime.chat_probe import TemplateCapabilities
from flashagents_runtime.model_card import ModelCard

# AutoGen has constants for few open models; for the others the family is transformers' model type
# without its version suffixes, a plain string as its documentation allows.
_FAMILIES = {
    "mistral": ModelFamily.MISTRAL,
    "mixtral": ModelFamily.MISTRAL,
    "ministral": ModelFamily.MINISTRAL,
    "pixtral": ModelFamily.PIXTRAL,
}


def infer_model_info(card: ModelCard, template: TemplateCapabilities) -> ModelInfo:
    """What the model can do. Calls and JSON are held by grammar, so every chat model can do them."""
    return ModelInfo(
        vision=card.vision and template.images,
        function_calling=True,
        json_output=True,
        structured_output=True,
        family=_family(card),
        # Placed by what the template can take, see flashagents_runtime.chat_normalise.
        multiple_system_messages=True,
    )


def _family(card: ModelCard) -> str:
    name = card.name.lower()
    if "deepseek" in name and "r1" in name:
        return ModelFamily.R1
    if "codestral" in name:
        return ModelFamily.CODESRAL
    return _FAMILIES.get(card.model_type, card.model_type or ModelFamily.UNKNOWN)


__all__ = ["infer_model_info"]

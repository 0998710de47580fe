"""The client's component config: what `dump_component` writes and AutoGen Studio edits."""

from __future__ import annotations

from typing import Any

from autogen_core.models import ModelInfo
from pydantic import ConfigDict, Field, SecretStr, ValidationInfo, field_validator, model_validator

from flashagents_runtime.redact import MASK, without_secrets

from ._elsewhere import instead_of
from ._sampling import CreateArgs


class FlashAgentsClientConfig(CreateArgs):
    """Config of `FlashAgentsChatCompletionClient`: its own arguments and those of a call, flat.

    Attributes:
        model: a Hugging Face folder or a hub id; left out, the default small model.
        engine_args: SGLang's `ServerArgs` by name, plain JSON values.
        engine_url: a running SGLang server instead of an engine of one's own.
        api_key: that server's key. A secret, as `cache_salt`.
        tls_ca_file: PEM file that its certificate is checked with.
        model_info: overrides what is inferred from the model.
        lora: name of the LoRA adapter that this client speaks through.
        cache_salt: namespace of the prefix cache. A secret: written out as text it is masked, and a
            masked one is refused on loading.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)  # an input may be a secret

    model: str | None = None
    engine_args: dict[str, Any] = Field(default_factory=dict)
    engine_url: str | None = None
    api_key: SecretStr | None = None
    tls_ca_file: str | None = None
    model_info: ModelInfo | None = None
    lora: str | None = None
    cache_salt: SecretStr | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_another_client(cls, values: Any) -> Any:
        for name in values if isinstance(values, dict) else ():
            if name not in cls.model_fields and isinstance(name, str) and (advice := instead_of(name)):
                raise ValueError(f"unknown argument {name!r}: {advice}")
        return values

    @field_validator("cache_salt", "api_key")
    @classmethod
    def _no_mask(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if value is not None and value.get_secret_value() == MASK:
            raise ValueError(
                f"{info.field_name} was masked when this config was written; set it again before loading"
            )
        return value


__all__ = ["FlashAgentsClientConfig", "without_secrets"]

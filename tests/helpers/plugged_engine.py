"""A scripted engine that says of itself what one with our plug-in would."""

from __future__ import annotations

from typing import Any

from flashagents_runtime import ScriptedEngine

SERVER: dict[str, Any] = {
    "internal_states": [
        {
            "flashagents": {
                "features": {
                    "soft_pins": {"active": True, "pins": 3, "expired": 0},
                    "warmup_budget": {"active": True, "share": None, "held": 1.5},
                    "sjf": {"active": False, "reason": "off"},
                    "lora_sharing": {"active": True, "scheme": "base_lr", "token_bytes_rows": 1024},
                }
            }
        }
    ]
}
FIGURES = {
    "soft_pins": {"pins": 3, "expired": 0},
    "warmup_budget": {"held": 1.5},
    "lora_sharing": {"token_bytes_rows": 1024},
}


class PluggedEngine(ScriptedEngine):
    """`ScriptedEngine` with the plug-in's figures."""

    async def internal_state(self) -> dict[str, Any]:
        """As a server would answer."""
        return SERVER


__all__ = ["FIGURES", "SERVER", "PluggedEngine"]

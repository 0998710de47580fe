"""Write gallery.json, the file that AutoGen Studio imports: our model clients, and a team on them.

    python examples/autogen_studio/make_gallery.py

In Studio: Gallery -> New -> Upload. Nothing is started before a run: the first one downloads the model
and starts the engine; all agents of the team share it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat

from flashagents_autogen import FlashAgentsChatCompletionClient

FILE = Path(__file__).with_name("gallery.json")
DATE = "2026-11-30T00:00:00Z"


def component(obj: Any, label: str, description: str) -> dict[str, Any]:
    """A component as Studio shows it."""
    dumped = obj.dump_component()
    dumped.label, dumped.description = label, description
    out: dict[str, Any] = json.loads(dumped.model_dump_json(exclude_none=True))
    return out


def gallery() -> dict[str, Any]:
    """The gallery's content."""
    small = FlashAgentsChatCompletionClient(temperature=0.7, max_tokens=400)
    qwen = FlashAgentsChatCompletionClient("Qwen/Qwen2.5-7B-Instruct", temperature=0.7, max_tokens=1000)
    served = FlashAgentsChatCompletionClient(engine_url="http://127.0.0.1:30000", temperature=0.7)
    writer = AssistantAgent(
        "writer", small, model_client_stream=True, system_message="Draft a short text on the task."
    )
    critic = AssistantAgent(
        "critic", small, model_client_stream=True, system_message="Improve the text in one paragraph."
    )
    team = RoundRobinGroupChat([writer, critic], termination_condition=MaxMessageTermination(3))
    return {
        "id": "flashagents",
        "name": "FlashAgents",
        "url": None,
        "metadata": {
            "author": "FlashAgents for AutoGen",
            "version": "1.0.0",
            "description": "Model clients on an embedded SGLang engine, and a team that shares one.",
            "tags": ["sglang", "local"],
            "license": "Apache-2.0",
            "category": "models",
            "created_at": DATE,
            "updated_at": DATE,
        },
        "components": {
            "models": [
                component(small, "FlashAgents: default small model", "SmolLM2-135M, runs without a GPU."),
                component(qwen, "FlashAgents: Qwen2.5 7B", "Needs a CUDA GPU and the model hub."),
                component(
                    served, "FlashAgents: a server", "What `flashagents serve` serves on this machine."
                ),
            ],
            "agents": [component(writer, "Writer", "Drafts a short text.")],
            "teams": [component(team, "Writer and critic", "Two agents in turn, on one engine.")],
            "tools": [],
            "terminations": [],
            "workbenches": [],
        },
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(gallery(), indent=2) + "\n")

"""Write gallery.json, the file that AutoGen Studio imports: our model clients, teams and workflows on them.

    python examples/autogen_studio/make_gallery.py

In Studio: Gallery -> New -> Upload. Nothing is started before a run: the first one downloads the model
and starts the engine; all agents of the team share it.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import DiGraphBuilder, RoundRobinGroupChat

from flashagents_autogen import (
    FlashAgentsChatCompletionClient,
    FlashGraphFlow,
    FlashRoundRobinGroupChat,
    FlashSelectorGroupChat,
)

FILE = Path(__file__).with_name("gallery.json")
DATE = "2026-11-30T00:00:00Z"


def component(obj: Any, label: str, description: str) -> dict[str, Any]:
    """A component as Studio shows it."""
    dumped = obj.dump_component()
    dumped.label, dumped.description = label, description
    out: dict[str, Any] = json.loads(dumped.model_dump_json(exclude_none=True))
    return out


def _graph(steps: list[Any]) -> FlashGraphFlow:
    """A graph of agents in turn; a list among them is a fan-out to all of it, and a fan-in after it."""
    layers = [step if isinstance(step, list) else [step] for step in steps]
    builder = DiGraphBuilder()
    for layer in layers:
        for node in layer:
            builder.add_node(node)
    for before, after in itertools.pairwise(layers):
        for source, target in itertools.product(before, after):
            builder.add_edge(source, target)
    return FlashGraphFlow(builder.get_participants(), builder.build(), parallel=True)


def gallery() -> dict[str, Any]:
    """The gallery's content."""
    small = FlashAgentsChatCompletionClient(temperature=0.7, max_tokens=400)
    qwen = FlashAgentsChatCompletionClient("Qwen/Qwen2.5-7B-Instruct", temperature=0.7, max_tokens=1000)
    served = FlashAgentsChatCompletionClient(engine_url="http://127.0.0.1:30000", temperature=0.7)

    def agent(name: str, task: str) -> AssistantAgent:
        return AssistantAgent(
            name, small, model_client_stream=True, system_message=task, description=task.rstrip(".")
        )

    writer = agent("writer", "Draft a short text on the task.")
    critic = agent("critic", "Improve the text in one paragraph.")
    pair, three = MaxMessageTermination(3), MaxMessageTermination(4)
    team = RoundRobinGroupChat([writer, critic], termination_condition=pair)
    flash = FlashRoundRobinGroupChat([writer, critic], termination_condition=pair)
    selector = FlashSelectorGroupChat([writer, critic], small, termination_condition=three)
    chain = _graph([writer, critic, agent("editor", "Give the final text, nothing else.")])
    reviewers = [
        agent("clarity", "Say in two sentences how clear the text is."),
        agent("facts", "Say in two sentences what should be checked in the text."),
    ]
    review = _graph([writer, reviewers, agent("summary", "Sum the reviews up in one paragraph.")])
    return {
        "id": "flashagents",
        "name": "FlashAgents",
        "url": None,
        "metadata": {
            "author": "FlashAgents for AutoGen",
            "version": "1.0.0",
            "description": "Model clients on an embedded SGLang engine; teams and workflows that share one.",
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
            "agents": [
                component(writer, "Writer", "Drafts a short text."),
                component(critic, "Critic", "Improves a text."),
            ],
            "teams": [
                component(team, "Writer and critic", "Two agents in turn, on one engine."),
                component(flash, "Writer and critic, overlapping", "The same as a Flash team."),
                component(selector, "Writer or critic", "A model chooses who speaks."),
                component(chain, "Workflow: draft, improve, edit", "A graph of three agents in turn."),
                component(review, "Workflow: reviews side by side", "Two reviewers at once, then a summary."),
            ],
            "tools": [],
            "terminations": [],
            "workbenches": [],
        },
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(gallery(), indent=2) + "\n")

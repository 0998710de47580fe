"""The gallery file for AutoGen Studio loads, and is what its script writes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.base import Team
from autogen_core import ComponentLoader, ComponentModel

from flashagents_autogen import FlashAgentsChatCompletionClient

FOLDER = Path(__file__).parents[2] / "examples" / "autogen_studio"
GALLERY: dict[str, Any] = json.loads((FOLDER / "gallery.json").read_text())
ENTRIES = [entry for entries in GALLERY["components"].values() for entry in entries]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["label"])
def test_each_component_loads(entry: dict[str, Any]) -> None:
    loaded = ComponentLoader.load_component(ComponentModel(**entry), object)
    assert type(loaded).__name__ == entry["provider"].rsplit(".")[-1]
    if entry["component_type"] == "model":
        assert isinstance(loaded, FlashAgentsChatCompletionClient)


@pytest.mark.parametrize("entry", GALLERY["components"]["teams"], ids=lambda entry: entry["label"])
def test_the_agents_of_a_loaded_team_share_one_engine(entry: dict[str, Any]) -> None:
    team = ComponentLoader.load_component(ComponentModel(**entry), Team)
    engines = {id(agent._model_client.engine.engine) for agent in team._participants}  # type: ignore[attr-defined]
    assert len(engines) == 1


def test_the_file_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("make_gallery", FOLDER / "make_gallery.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.gallery() == GALLERY

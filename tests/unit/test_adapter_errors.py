"""SGLang's words about adapters and grammars become errors that say what to do."""

from __future__ import annotations

import json
from collections import OrderedDict

import pytest

from flashagents_runtime import RequestRejectedError, UnknownAdapterError
from flashagents_runtime.adapter_errors import rejection, unknown_adapter


def of_registry(name: str, *loaded: str) -> str:
    keys = OrderedDict.fromkeys(loaded).keys()
    return f"The following requested LoRA adapters are not loaded: {name}\nLoaded adapters: {keys}."


def of_cache(name: str, *loaded: str) -> str:
    keys = dict.fromkeys(loaded).keys()
    return f"Got LoRA adapter that has never been loaded: {name}\nAll loaded adapters: {keys}."


OFF = "LoRA adapter 'nobody' was requested, but LoRA is not enabled. Please launch the server with ..."


@pytest.mark.parametrize("say", [of_registry, of_cache])
def test_it_names_those_that_are_loaded(say: object) -> None:
    error = rejection(say("nobody", "planner", "v1.2 (a)", "actor"))  # type: ignore[operator]
    assert isinstance(error, UnknownAdapterError)
    assert error.name == "nobody" and error.loaded == ("actor", "planner", "v1.2 (a)")
    assert "'nobody'; it has 'actor', 'planner', 'v1.2 (a)'" in str(error)


@pytest.mark.parametrize("message", [of_cache("nobody"), OFF])
def test_an_engine_without_adapters(message: str) -> None:
    error = rejection(message)
    assert isinstance(error, UnknownAdapterError)
    assert error.name == "nobody" and error.loaded == ()
    assert '"lora_paths": {' in str(error)


def test_as_a_server_writes_it() -> None:
    body = json.dumps({"error": {"message": of_cache("nobody", "actor"), "code": 400}})
    error = unknown_adapter(f"http://localhost:1/generate answered 400: {body}")
    assert error is not None and (error.name, error.loaded) == ("nobody", ("actor",))


@pytest.mark.parametrize(
    "message", ["", "temperature must be non-negative", of_cache("x").replace("All loaded", "Other")]
)
def test_other_words_stay_what_they_are(message: str) -> None:
    error = rejection(message)
    assert type(error) is RequestRejectedError and str(error) == message


def test_names_that_cannot_be_read_are_left_out() -> None:
    error = unknown_adapter(of_cache("x", "y").replace("['y']", "[<y>, " + "[" * 500 + "])"))
    assert error is not None and error.loaded == ()


@pytest.mark.parametrize(
    ("kind", "names"), [("regex", "of regex: "), ("json", "json_output"), ("structural_tag", "the tools")]
)
def test_a_grammar_that_cannot_be_is_named_without_source_lines(kind: str, names: str) -> None:
    why = "Regex parsing error at position 2: The parenthesis is not closed."
    words = f"Failed to compile {kind} grammar: [19:11:32] /project/cpp/regex_converter.cc:75: {why}\n"
    for message in (words, 'http://x answered 400: {"error": {"message": ' + json.dumps(words) + "}}"):
        error = rejection(message)
        assert str(error).startswith("no grammar can be made of ") and names in str(error)
        assert str(error).endswith(why) and "/project" not in str(error)
    plain = rejection(f"Failed to compile {kind} grammar: Grammar preprocessing timed out")
    assert str(plain).endswith(": Grammar preprocessing timed out")


def test_an_adapter_to_unload_that_is_not_there() -> None:
    error = unknown_adapter("LoRA with name xx does not exist. Loaded LoRAs: odict_keys(['plan', 'act'])")
    assert error is not None
    assert (error.name, error.loaded) == ("xx", ("act", "plan"))

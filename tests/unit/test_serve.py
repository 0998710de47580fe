"""The command line that `flashagents serve` hands to SGLang's launcher."""

from __future__ import annotations

from flashagents_runtime.serve import server_argv

DEFAULTS = {"device": "cpu", "disable_cuda_graph": True, "max_total_tokens": 16, "skip": None, "off": False}


def test_defaults_come_as_flags() -> None:
    assert server_argv("/m", DEFAULTS, ["--port", "1"]) == [
        *("--model-path", "/m", "--device", "cpu", "--disable-cuda-graph", "--max-total-tokens", "16"),
        *("--port", "1"),
    ]


def test_the_users_arguments_take_the_place_of_defaults() -> None:
    argv = server_argv("/m", DEFAULTS, ["--device=cuda", "--max-total-tokens", "99"])
    assert argv == ["--model-path", "/m", "--disable-cuda-graph", "--device=cuda", "--max-total-tokens", "99"]

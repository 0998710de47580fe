"""The command line that `flashagents serve` hands to SGLang's launcher."""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from flashagents_runtime.errors import UnsupportedFeatureError
from flashagents_runtime.serve import check_address, parsed, server_argv

DEFAULTS = {"device": "cpu", "disable_cuda_graph": True, "max_total_tokens": 16, "skip": None, "off": False}


def test_defaults_come_as_flags() -> None:
    assert server_argv("/m", DEFAULTS, ["--port", "1"]) == [
        *("--model-path", "/m", "--device", "cpu", "--disable-cuda-graph", "--max-total-tokens", "16"),
        *("--port", "1"),
    ]


def test_the_users_arguments_take_the_place_of_defaults() -> None:
    argv = server_argv("/m", DEFAULTS, ["--device=cuda", "--max-total-tokens", "99"])
    assert argv == ["--model-path", "/m", "--disable-cuda-graph", "--device=cuda", "--max-total-tokens", "99"]


def test_an_argument_that_sglang_refuses_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser(prog="sglang serve")
    parser.add_argument("--port", type=int)
    for i in range(50):
        parser.add_argument(f"--option-{i}")

    def parse(argv: Sequence[str]) -> Any:
        sys.stderr.write("a warning\n")
        return parser.parse_args(argv)

    with pytest.raises(UnsupportedFeatureError) as refused:
        parsed(parse, ["--port", "abc"])
    assert str(refused.value) == "SGLang refuses an argument: argument --port: invalid int value: 'abc'"
    assert capsys.readouterr().err == ""
    assert parsed(parse, ["--port", "7"]).port == 7
    assert capsys.readouterr().err == "a warning\n"


def test_help_of_sglang_ends_as_it_would() -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(argparse.ArgumentParser().parse_args, ["--help"])
    assert ended.value.code == 0


def test_a_port_in_use_is_refused_before_anything_is_loaded() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        with pytest.raises(UnsupportedFeatureError, match=f"port {port} of 127.0.0.1 is in use"):
            check_address(["--port", port])
    check_address(["--port", port, "--host", "localhost"])  # and it is left free
    check_address([f"--port={port}"])


@pytest.mark.parametrize("port", ["0", "65536", "99999", "abc", "-1", "", "٣"])
def test_what_is_no_port(port: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match="from 1 to 65535"):
        check_address([f"--port={port}"])


def test_a_host_that_is_another_machine_s() -> None:
    with pytest.raises(UnsupportedFeatureError, match=r"192\.0\.2\.1 cannot be had"):
        check_address(["--host", "192.0.2.1", "--port", "31999"])

"""Builds SGLang's engine with arguments that fit the machine."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from typing import Any

from .. import sglang_seams as seams
from ..lora_sharing.arguments import take_arguments
from ..plugin import CACHE_BACKEND, register
from . import guards
from .children import run_detokenizer_process, run_scheduler_process
from .ranks import bind_cores, meet_in_a_file

_ENGINE = "sglang.srt.entrypoints.engine.Engine"

# A machine without CUDA: plain torch kernels in fp32. The KV pool is sized for a small model.
_CPU_ARGS: dict[str, Any] = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "lora_backend": "torch_native",
    "dtype": "float32",
    "disable_cuda_graph": True,
    "max_total_tokens": 16384,
    # An idle scheduler polls in a loop otherwise, and takes one of the few cores from whoever works.
    "sleep_on_idle": True,
}

# On every machine. The client takes deltas, and keeps the log for error messages.
_COMMON_ARGS: dict[str, Any] = {
    "radix_cache_backend": CACHE_BACKEND,
    "incremental_streaming_output": True,
    "log_level": "info",
    # Recognised from the chat template; none where it shows neither thoughts nor tools.
    "reasoning_parser": "auto",
    "tool_call_parser": "auto",
}

# SGLang looks into its scheduler for 65 s before a host whose child has failed ends, and all that time the
# application would wait to hear of it. Whoever wants the dumps sets them to 1.
_SLOW_DUMPS = ("SGLANG_PYSPY_DUMP_BEFORE_CRASH", "SGLANG_CUDA_COREDUMP_BEFORE_CRASH")


def default_args(cuda: bool) -> dict[str, Any]:
    """The arguments of `ServerArgs` that we set where the user does not."""
    return {**_COMMON_ARGS, **({} if cuda else _CPU_ARGS)}


class BadArgumentError(ValueError):
    """An engine argument is at fault; the message says all there is to say, a traceback adds nothing."""


def build_engine(
    model: str, user_args: dict[str, Any], token: str, report: Callable[[str, float], None]
) -> Any:
    """Start SGLang's engine: returns `sglang.srt.entrypoints.engine.Engine`, ready to serve.

    The names of all its shared memory will contain `token`, so that whoever survives it can remove them.
    Raises BadArgumentError for an argument that cannot be had, and whatever SGLang raises. The names of the
    arguments are known to be SGLang's (`engine_args`).
    """
    import torch

    seams.require_version()
    engine_class = seams.symbol(_ENGINE)
    try:
        args = {
            **default_args(torch.cuda.is_available()),
            **take_arguments(user_args, cuda=torch.cuda.is_available()),
        }
    except ValueError as e:
        raise BadArgumentError(str(e)) from e
    register()
    guards.install()
    if args.get("incremental_streaming_output") is not True:
        raise BadArgumentError("incremental_streaming_output=False cannot be had: the client takes deltas")
    if not torch.cuda.is_available():
        bind_cores(args)
        if os.environ.get("FLASHAGENTS_START_METHOD", "fork") == "fork":
            _fork_children()
    for name in _SLOW_DUMPS:
        os.environ.setdefault(name, "0")
    _name_shared_memory(token)
    meet_in_a_file(args, f"{tempfile.gettempdir()}/{token}-ranks")
    report("Starting the scheduler", 0.3)

    class HostedEngine(engine_class):  # type: ignore[misc, valid-type]  # known at run time only
        run_scheduler_process_func = staticmethod(run_scheduler_process)
        run_detokenizer_process_func = staticmethod(run_detokenizer_process)

    try:
        return HostedEngine(model_path=model, **args)
    except (TypeError, ValueError) as e:
        given = f" (engine arguments given: {', '.join(sorted(user_args))})" if user_args else ""
        raise type(e)(f"{e}{given}") from e


def _fork_children() -> None:
    """Let SGLang fork its scheduler and detokenizer instead of spawning them.

    SGLang spawns because CUDA does not survive a fork. Without CUDA a forked child needs not import
    torch and SGLang anew, which is most of the time that a small engine takes to start. At that point the
    host has no thread but the parent watch, which holds no locks, and no thread pool of torch.
    FLASHAGENTS_START_METHOD=spawn leaves it as SGLang has it.
    """
    engine_module = seams.symbol("sglang.srt.entrypoints.engine")
    set_envs_and_config = engine_module._set_envs_and_config

    def then_fork(server_args: Any) -> None:
        set_envs_and_config(server_args)
        multiprocessing.set_start_method("fork", force=True)

    engine_module._set_envs_and_config = then_fork


def _name_shared_memory(token: str) -> None:
    port_args_class = seams.symbol("sglang.srt.server_args.PortArgs")
    init_new = port_args_class.init_new

    def with_token(*args: Any, **kwargs: Any) -> Any:
        ports = init_new(*args, **kwargs)
        ports.instance_id = f"{token}-{ports.instance_id}"
        return ports

    port_args_class.init_new = staticmethod(with_token)

"""`flashagents serve`: SGLang's own HTTP server with our plug-in, for applications on other machines.

Everything that SGLang's launcher takes may be given, and `--lora-sharing` and `--lora-groups` (as JSON);
our defaults are those of an embedded engine. It
listens on the loopback unless `--host` says otherwise, and asks for no key unless `--api-key` sets one.
What one key may ask for is limited (`serve_limits.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import ipaddress
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

from .errors import UnsupportedFeatureError
from .serve_limits import LimitLayer, Limits

NO_LIMITS = Limits(body_bytes=0, requests_per_key=0, sessions_per_key=0)

# An embedded engine makes its JSON grammars itself; a server's let a small model write white space
# without end.
_SERVER_ARGS = {"constrained_json_disable_any_whitespace": True}


def server_argv(model: str, defaults: Mapping[str, Any], user: Sequence[str]) -> list[str]:
    """The command line of SGLang's launcher: the user's arguments come last and win.

    A default that the user gives too is left out: SGLang's switches cannot be given twice with effect.
    """
    given = {arg.split("=", 1)[0] for arg in user}
    argv = ["--model-path", model]
    for name, value in defaults.items():
        flag = "--" + name.replace("_", "-")
        if flag in given or f"--{name}" in given or value is False or value is None:
            continue
        argv += [flag] if value is True else [flag, str(value)]
    return [*argv, *user]


def check_exposure(host: str, api_key: str | None) -> str | None:
    """A warning where a server is open to others than this machine's users; None where it is not."""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host in ("localhost", "")
    if local or api_key:
        return None
    return (
        f"anyone who reaches {host} can use this server, and end what others do on it: set --api-key, or"
        " listen on the loopback"
    )


def check_address(argv: Sequence[str]) -> None:
    """Refuse an address at which nothing can listen: SGLang would load the model first, and then hang.

    Args:
        argv: arguments of SGLang's launcher; its defaults are 127.0.0.1 and 30000.

    Raises:
        UnsupportedFeatureError: the port is no port or in use, or the host is not this machine's.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--host", nargs="?", default="127.0.0.1")
    parser.add_argument("--port", nargs="?", default="30000")
    given, _ = parser.parse_known_args(list(argv))
    host, port = given.host or "127.0.0.1", given.port or ""
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise UnsupportedFeatureError(f"--port takes a number from 1 to 65535, not {port!r:.80}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server will
            probe.bind(address)
    except OSError as e:
        why = (
            "is in use: choose another --port"
            if e.errno == errno.EADDRINUSE
            else f"cannot be had: {e.strerror or e}"
        )
        raise UnsupportedFeatureError(f"port {port} of {host} {why}") from None


def parsed(parse: Callable[[Sequence[str]], Any], argv: Sequence[str]) -> Any:
    """What SGLang's parser makes of a command line.

    Raises:
        UnsupportedFeatureError: it refuses an argument. Its own way is to print all its options first.
    """
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            found = parse(argv)
    except SystemExit as e:
        if not e.code:
            raise
        last = told.getvalue().strip().rpartition("\n")[2]
        raise UnsupportedFeatureError(
            f"SGLang refuses an argument: {last.partition('error: ')[2] or last}"
        ) from None
    sys.stderr.write(told.getvalue())
    return found


def serve(model: str, user_args: Sequence[str], limits: Limits | None = None) -> None:
    """Serve a model until the process is ended.

    Args:
        model: a model folder, prepared and checked.
        user_args: arguments of SGLang's launcher.
        limits: what one client may ask for; None for the defaults.

    Raises:
        UnsupportedFeatureError: arguments with which the limits would not hold.
        ModelError: a LoRA adapter is broken or is not of this model.
        ImportError: SGLang's HTTP server lacks a package.
        SeamError: the installed SGLang is not the one that this release extends.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the model is here already
    from . import cpu_shims

    cpu_shims.install()
    import torch

    from . import sglang_seams as seams
    from .adapter_check import check_adapters
    from .host import guards
    from .host.build import default_args
    from .host.children import run_detokenizer_process, run_scheduler_process
    from .host.ranks import bind_cores, meet_in_a_file
    from .lora_sharing.arguments import (
        adapter_names,
        doubtful_members,
        sharing_of,
        take_arguments,
        take_argv,
    )
    from .plugin import register

    seams.require_version()
    cuda = torch.cuda.is_available()
    user_args, sharing = take_argv(user_args)
    check_adapters(sharing.get("lora_paths"), model)
    defaults = {**default_args(cuda), **_SERVER_ARGS}
    if "lora_sharing" in sharing:
        needed = take_arguments(sharing, cuda=cuda)
        if doubt := doubtful_members(sharing_of(sharing), adapter_names(sharing.get("lora_paths"))):
            sys.stderr.write(f"flashagents: warning: {doubt}\n")
        defaults |= {k: v for k, v in needed.items() if k != "lora_paths"}
    register()
    guards.install()
    if not cuda:
        os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    argv = server_argv(model, defaults, user_args)
    server_args = parsed(seams.symbol("sglang.srt.server_args.prepare_server_args"), argv)
    limits = Limits() if limits is None else limits
    keyed = bool(server_args.api_key or server_args.admin_api_key)
    if server_args.tokenizer_worker_num > 1 and (keyed or limits != NO_LIMITS):
        raise UnsupportedFeatureError(
            "with --tokenizer-worker-num above 1 SGLang's workers ask for no --api-key and keep no limits:"
            " leave it at 1, or give no key and switch all limits off (0)"
        )
    if warning := check_exposure(server_args.host, server_args.api_key):
        sys.stderr.write(f"flashagents: warning: {warning}\n")
    try:
        launch_server = seams.symbol("sglang.srt.entrypoints.http_server.launch_server")
        app = seams.symbol("sglang.srt.entrypoints.http_server.app")
    except AttributeError as e:  # its module is there, so an import inside it has failed
        raise ImportError(
            "SGLang's HTTP server cannot be imported: it needs more packages than its engine does; on a "
            "machine without CUDA, `pip install jsonschema soundfile`"
        ) from e
    if limits != NO_LIMITS:
        app.add_middleware(LimitLayer, limits=limits)
    private = tempfile.mkdtemp(prefix="flashagents-serve-")
    meet_in_a_file(vars(server_args), f"{private}/ranks")
    if not cuda:
        bind_cores(vars(server_args))
    try:
        launch_server(
            server_args,
            run_scheduler_process_func=run_scheduler_process,
            run_detokenizer_process_func=run_detokenizer_process,
        )
    finally:  # as SGLang's own launcher does: its children outlive it otherwise
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        shutil.rmtree(private, ignore_errors=True)


__all__ = ["check_address", "check_exposure", "parsed", "serve", "server_argv"]

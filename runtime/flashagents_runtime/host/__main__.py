"""Entry point of the host process; see the package's docstring."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from typing import Any

from .. import cpu_shims, wire
from ..types import Progress


def main() -> None:
    """Serve one engine until the application closes the socket or dies."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)  # the engine's own children must not keep it open
    reader = wire.FrameReader(wire.ToHost)
    setup, rest = _receive_setup(sock, reader)
    _die_with(setup.parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _settle_without_gpu()
    tempfile.tempdir = setup.run_dir
    tempfile.template = setup.token + "-"  # SGLang names its shared memory after these

    def report(stage: str, fraction: float) -> None:
        sock.sendall(wire.encode(wire.Progressed(Progress(stage, fraction))))

    try:
        report("Importing torch", 0.05)
        cpu_shims.install()
        report("Importing SGLang", 0.15)
        from .build import build_engine

        engine = build_engine(setup.model, setup.engine_args, setup.token, report)
    except BaseException as e:
        if type(e).__name__ != "BadArgumentError":  # its module may be what failed to import
            traceback.print_exc()
        sock.sendall(wire.encode(wire.Refused(_reason(e))))
        _end(1)
        raise
    from .server import serve

    sock.setblocking(False)
    try:
        engine.loop.run_until_complete(serve(engine, sock, reader, rest, setup.model))
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    _end(code)


def _receive_setup(sock: socket.socket, reader: wire.FrameReader) -> tuple[wire.Setup, list[Any]]:
    """The first frame, and the messages that came with it."""
    while True:
        data = sock.recv(1 << 16)
        if not data:
            sys.exit("the application closed the connection before it said what to serve")
        messages = reader.feed(data)
        if messages:
            if not isinstance(messages[0], wire.Setup):
                sys.exit(f"the first message was {type(messages[0]).__name__}, not Setup")
            return messages[0], messages[1:]


def _die_with(parent_pid: int) -> None:
    """End this process and its children when the application is gone, however it went.

    The closed socket tells most times, but not while SGLang starts, nor where a forked child of the
    application has inherited its end. PR_SET_PDEATHSIG would fire when the *thread* that started us ends.
    """

    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(0.5)
        _end(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _settle_without_gpu() -> None:
    """Settings of torch for a machine without a GPU, read at its import; the user's own win.

    Half of the cores: the application and the engine's other processes need the rest, and OpenMP's
    threads wait for each other by spinning, so one core too few makes a decode step many times slower.

    No torch.compile: SGLang compiles its penalties at their first use, which takes ten seconds and a
    C++ compiler that a user may not have, for a few element-wise operations.
    """
    if not os.path.exists("/dev/nvidiactl"):
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // 2)))
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")


def _reason(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: {text}"


def _end(code: int) -> None:
    """End this process at once, with everything it has started, and remove what SGLang leaves behind."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    from ..embedded.run_dir import remove

    if os.path.basename(tempfile.template) != "tmp":
        remove(tempfile.gettempdir(), tempfile.template.rstrip("-"))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()

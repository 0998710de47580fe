"""A host process without SGLang: speaks the wire and misbehaves as its model's name says.

Run as ``python stub_host.py FD``, in place of ``python -m flashagents_runtime.host FD``. Each request
is answered with as many tokens as it asks for; "slow" waits between them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from flashagents_runtime import wire
from flashagents_runtime.types import Delta, EngineInfo, GenerateRequest, GenerateResult, Progress, Usage

INFO = EngineInfo(
    kind="embedded",
    model="stub",
    context_length=1000,
    max_total_tokens=2000,
    device="none",
    versions={},
    features=[],
)

FEATURES = {"soft_pins": {"active": True, "pins": 3}, "sjf": {"active": False}}


def log(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class StubHost:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reader = wire.FrameReader(wire.ToHost)
        self.inbox: list[Any] = []
        self.aborted: set[str] = set()

    def send(self, message: wire.FromHost) -> None:
        self.sock.sendall(wire.encode(message))

    def receive(self, seconds: float | None = None) -> bool:
        """Read what has come; False at the end of the stream."""
        self.sock.settimeout(seconds)
        try:
            data = self.sock.recv(1 << 16)
        except TimeoutError:
            return True
        self.inbox += self.reader.feed(data)
        return bool(data)

    def run(self) -> None:
        while not self.inbox:
            self.receive()
        setup = self.inbox.pop(0)
        self.mode = setup.model
        (Path(setup.run_dir) / f"{setup.token}-socket").touch()
        log(f"stub host: mode {self.mode}")
        if self.mode == "refuse":
            self.send(wire.Refused("this model is not to my taste"))
            sys.exit(1)
        if self.mode == "die-at-start":
            log("no such weights")
            sys.exit(3)
        if self.mode == "die-of-an-exception":
            log("Ignore import error when loading x: No module named 'y'")
            log("[2026-01-01 00:00:00] Applied 1 hook(s) to sglang.x.Y.z (from: flashagents_runtime.plugin)")
            log("Traceback (most recent call last):")
            log("ValueError: the pool is too small")
            os.kill(os.getpid(), signal.SIGKILL)
        if self.mode == "never-ready":
            self.send(wire.Progressed(Progress("Thinking about it", 0.4)))
            time.sleep(600)
        if self.mode == "with-child":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.send(wire.Ready(INFO))
        while True:
            while self.inbox:
                self.on_message(self.inbox.pop(0))
            if not self.receive():
                if self.mode == "ignores-the-end":
                    time.sleep(600)
                return

    def on_message(self, message: wire.ToHost) -> None:
        if isinstance(message, wire.Generate):
            self.generate(message.request)
        elif isinstance(message, wire.Abort):
            self.aborted.add(message.rid)
        elif isinstance(message, wire.Call):
            if self.mode == "bad-call":
                self.send(wire.Answer(message.id, error="no figures today"))
            elif self.mode != "no-answer":
                figures = dict(
                    kv_total=9, kv_used=len(self.aborted), kv_cached=0, kv_free=9, running=0, waiting=0
                )
                plugged = {"flashagents": {"kv": figures, "features": FEATURES}}
                says = plugged if message.method == "internal_state" and self.mode == "plugged" else figures
                self.send(wire.Answer(message.id, says))

    def generate(self, request: GenerateRequest) -> None:
        n = request.sampling.max_new_tokens or 3
        for i in range(n):
            if self.mode.startswith("die-after-two") and i == 2:
                log("about to die")
                if self.mode.endswith("sigkill"):
                    os.kill(os.getpid(), signal.SIGKILL)
                os._exit(7)
            if self.mode == "garbage" and i == 1:
                self.sock.sendall(b"\x05\x00\x00\x00junk!")
                time.sleep(600)
            if self.mode == "reject":
                self.send(wire.Failed(request.rid, "too silly", True))
                return
            if request.lora is not None:
                has = "All loaded adapters: dict_keys(['actor'])."
                says = f"Got LoRA adapter that has never been loaded: {request.lora}\n{has}"
                self.send(wire.Failed(request.rid, says, True))
                return
            if self.mode == "slow":
                self.receive(0.02)
                for message in [m for m in self.inbox if isinstance(m, wire.Abort)]:
                    self.inbox.remove(message)
                    self.on_message(message)
            stop = request.rid in self.aborted
            last = stop or i == n - 1
            usage = Usage(prompt_tokens=len(request.input_ids), completion_tokens=i + 1)
            result = GenerateResult(finish_reason="abort" if stop else "stop", usage=usage) if last else None
            self.send(wire.Deltas([(request.rid, Delta(f"t{i} ", [i], result))]))
            if last:
                return


if __name__ == "__main__":
    StubHost(socket.socket(fileno=int(sys.argv[1]))).run()

"""Tensor parallelism in tests: rank 0 is stepped in this process, the others in children that do the same.

Nothing is broadcast: each rank is handed the same requests, and what SGLang reduces over the ranks joins
them. After each step the ranks are compared: their batches, outputs, trees and pools must be the same, slot
by slot.

    with Ranks(2) as ranks, RankedHarness(ranks, model, "base", adapters) as s:
        s.ask("plan", [5, 6, 7])
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flashagents_runtime import plugin
from flashagents_runtime.intra_turn import check_integrity
from flashagents_runtime.intra_turn.integrity import nodes
from helpers.scheduler_harness import Request, Step
from helpers.sharing_harness import SharingHarness


class RankError(Exception):
    """Another rank than the first failed."""


class Ranks:
    """The processes of all ranks but the first; they serve one harness after another.

    Args:
        size: number of ranks.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._opened = 0
        self._pipes, self._children = [], []
        context = multiprocessing.get_context("spawn")
        for rank in range(1, size):
            ours, theirs = context.Pipe()
            child = context.Process(target=_serve, args=(theirs, rank), daemon=True)
            child.start()
            self._pipes.append(ours)
            self._children.append(child)

    def environment(self) -> dict[str, str]:
        """Of all ranks of a harness to come."""
        self._opened += 1
        return {
            "SGLANG_CPU_OMP_THREADS_BIND": "|".join(["0"] * self.size),
            "SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE": f"file://{self.folder.name}/{self._opened}",
            "GLOO_SOCKET_IFNAME": "lo",
            "SGLANG_USE_MESSAGE_QUEUE_BROADCASTER": "0",  # its sockets are never closed
        }

    def tell(self, what: str, *args: Any) -> None:
        """Let the others begin with a method of their harness."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # it has ended: `hear` says so
                pipe.send((what, args))

    def hear(self) -> list[Any]:
        """What it gave in each; raises RankError where it failed."""
        try:
            answers = [pipe.recv() for pipe in self._pipes]
        except (EOFError, OSError):
            raise RankError("a rank has ended") from None
        for rank, answer in enumerate(answers, 1):
            if isinstance(answer, _Failure):
                raise RankError(f"rank {rank}: {answer.text}")
        return answers

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for child in self._children:
            child.kill()
            child.join()
        self.folder.cleanup()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class RankHarness(SharingHarness):
    """One rank of several.

    Args:
        environment: `Ranks.environment`.
        pads: SGLang's CPU engine may add heads to the model until the ranks divide them; if not, ranks keep
            the same KV heads as on a GPU.
    """

    def __init__(
        self, environment: Mapping[str, str], pads: bool, *args: Any, rank: int, **server_args: Any
    ) -> None:
        before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        try:
            with _Padding(pads):
                super().__init__(*args, rank=rank, check=check_integrity, **server_args)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    def step_and_tell(self) -> Any:
        """One step, and all that the ranks must have in common after it."""
        step = self.step()
        return step, common(self)


class RankedHarness(RankHarness):
    """A `SharingHarness` over several ranks; this process has the first one's.

    Args:
        ranks: the others.
        pads: see `RankHarness`.
    """

    def __init__(
        self,
        ranks: Ranks,
        model: Path,
        scheme: str,
        adapters: Mapping[str, Path],
        groups: Mapping[str, Sequence[str]] | None = None,
        *,
        pads: bool = True,
        **server_args: Any,
    ) -> None:
        self.ranks = ranks
        server_args["tp_size"] = ranks.size
        environment = ranks.environment()
        ranks.tell("open", environment, pads, model, scheme, adapters, groups, server_args)
        try:
            super().__init__(environment, pads, model, scheme, adapters, groups, rank=0, **server_args)
        except Exception:
            with contextlib.suppress(RankError):  # as the first one has
                ranks.hear()
            raise
        ranks.hear()

    def submit(self, *requests: Request) -> None:
        self.ranks.tell("submit", *requests)
        super().submit(*requests)
        self.ranks.hear()

    def send(self, *messages: Any) -> None:
        self.ranks.tell("send", *messages)
        super().send(*messages)
        self.ranks.hear()

    def step(self) -> Step:
        self.ranks.tell("step_and_tell")
        step, mine = super().step(), common(self)
        for rank, (other, theirs) in enumerate(self.ranks.hear(), 1):
            assert other == step, f"rank {rank} has run {other}, rank 0 {step}"
            assert theirs == mine, f"rank {rank} differs from rank 0 after {step}"
        return step

    def flush(self) -> None:
        self.run()
        self.ranks.tell("flush")
        assert self.scheduler.flush_cache()
        self.ranks.hear()

    def load(self, name: str, path: Path) -> Any:
        return self._update("load", name, path)

    def unload(self, name: str) -> Any:
        return self._update("unload", name)

    def _update(self, what: str, *args: Any) -> Any:
        self.ranks.tell(what, *args)
        mine = getattr(super(), what)(*args)
        for theirs in self.ranks.hear():
            assert (theirs.success, theirs.error_message) == (mine.success, mine.error_message)
        return mine

    def rows(self) -> list[Any]:
        """The low-rank rows of each rank."""
        self.ranks.tell("own_rows")
        return [self.own_rows(), *self.ranks.hear()]

    def close(self) -> None:
        self.ranks.tell("close")
        super().close()
        with contextlib.suppress(RankError):  # whoever asked it for something was told
            self.ranks.hear()


def common(s: SharingHarness) -> Any:
    """What all ranks of a scheduler must agree on: requests, tree, free slots and figures."""
    tree, found = s.scheduler.tree_cache, []
    for node in nodes(tree):
        space = re.sub(r":\d+$", "", node.key.extra_key or "")  # generations are counted by process
        marks = [getattr(node, name, None) for name in ("writer", "seen")]
        found.append((space, list(node.key.token_ids), node.value.tolist(), node.lock_ref, *marks))
    outputs = {rid: list(req.output_ids) for rid, req in s.reqs.items()}
    features = plugin.state(tree)["features"]
    free = s.scheduler.token_to_kv_pool_allocator.free_pages.tolist()
    return outputs, found, free, features.get("intra_turn"), features.get("lora_sharing")


class _Failure:
    def __init__(self, text: str) -> None:
        self.text = text


class _Padding:
    """SGLang's CPU engine pads heads while a scheduler is built, or does not."""

    def __init__(self, pads: bool) -> None:
        self.pads = pads

    def __enter__(self) -> None:
        from flashagents_runtime import cpu_shims

        cpu_shims.install()
        from sglang.srt.model_executor import model_runner

        self.module, self.stock = model_runner, model_runner.adjust_config_with_unaligned_cpu_tp
        if not self.pads:
            model_runner.adjust_config_with_unaligned_cpu_tp = lambda config, *args: config

    def __exit__(self, *exc: object) -> None:
        self.module.adjust_config_with_unaligned_cpu_tp = self.stock


def _serve(pipe: Any, rank: int) -> None:
    """A child: does what it is told until its pipe closes or something fails."""
    harness: Any = None
    while True:
        try:
            what, args = pipe.recv()
        except EOFError:
            return
        try:
            if what == "open":
                *args, server_args = args
                harness, answer = RankHarness(*args, rank=rank, **server_args), None
            else:
                answer = getattr(harness, what)(*args)
        except BaseException:
            pipe.send(_Failure(traceback.format_exc()))
            if what != "open":
                os._exit(1)  # or the other ranks wait for it
        else:
            pipe.send(answer)


__all__ = ["RankedHarness", "Ranks", "common"]

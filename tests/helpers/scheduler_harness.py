"""A real SGLang scheduler, stepped in this process: the way to test caches and scheduling.

`SchedulerHarness` builds a `Scheduler` over a tiny random model and runs SGLang's own event loop (normal
or overlapped) in a worker thread that waits before each iteration, so a test sees and changes the
state between two steps. Nothing of the loop is copied here.

Several schedulers with different arguments can follow each other in one process (0.2-0.3 s each, after
about 20 s of imports): SGLang's global state holds one at a time, so `close()` one before the next.

    with SchedulerHarness(tiny_model(tmp_path), page_size=16) as s:
        s.submit(Request("a", [5, 6, 7], max_new_tokens=4))
        s.run()
        assert len(s.output("a")) == 4
"""

from __future__ import annotations

import hashlib
import json
import os
import pkgutil
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flashagents_runtime import cpu_shims, plugin

VOCAB = 512
BOS, EOS = 1, 2


@dataclass
class Request:
    """What a test asks of the scheduler; greedy without a temperature, never stopped by an end token."""

    rid: str
    ids: Sequence[int]
    max_new_tokens: int = 8
    extra_key: str | None = None
    cache_salt: str | None = None
    lora_id: str | None = None
    logprob_start_len: int | None = None
    top_logprobs: int = 0
    priority: int | None = None
    session_id: str | None = None
    session_params: dict[str, Any] | None = None
    temperature: float = 0.0
    penalties: dict[str, float] = field(default_factory=dict)


@dataclass
class Step:
    """One iteration of the event loop: the batch that it launched, None where it was idle."""

    mode: str | None
    rids: list[str] = field(default_factory=list)
    prefix_lens: list[int] = field(default_factory=list)
    extend_lens: list[int] = field(default_factory=list)

    @property
    def computed(self) -> int:
        """Prompt tokens whose KV this step computed."""
        return sum(self.extend_lens)


def tiny_model(folder: Path, *, seed: int = 0, layers: int = 2, heads: int = 4, kv_heads: int = 2) -> Path:
    """A random Qwen2 of 0.2 M parameters below `folder`, made once; returns its path."""
    path = folder / f"tiny-qwen2-{layers}-{seed}-{heads}-{kv_heads}"
    if path.exists():
        return path
    import torch
    from safetensors.torch import save_file

    hidden, inner, head_dim = 16 * heads, 128, 16
    g = torch.Generator().manual_seed(seed)

    def weight(*shape: int) -> Any:
        return torch.randn(*shape, generator=g) * 0.2

    tensors: dict[str, Any] = {
        "model.embed_tokens.weight": weight(VOCAB, hidden),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": weight(VOCAB, hidden),
    }
    for i in range(layers):
        p = f"model.layers.{i}."
        for name, rows in (("q", heads * head_dim), ("k", kv_heads * head_dim), ("v", kv_heads * head_dim)):
            tensors[f"{p}self_attn.{name}_proj.weight"] = weight(rows, hidden)
            tensors[f"{p}self_attn.{name}_proj.bias"] = weight(rows)
        tensors[f"{p}self_attn.o_proj.weight"] = weight(hidden, heads * head_dim)
        for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            tensors[f"{p}mlp.{name}_proj.weight"] = weight(*shape)
        tensors[f"{p}input_layernorm.weight"] = torch.ones(hidden)
        tensors[f"{p}post_attention_layernorm.weight"] = torch.ones(hidden)
    path.mkdir(parents=True)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": VOCAB,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 8192,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "torch_dtype": "float32",
        "use_sliding_window": False,
        "transformers_version": "4.51.0",
    }
    (path / "config.json").write_text(json.dumps(config))
    return path


def tiny_lora(folder: Path, name: str, *, layers: int = 2, rank: int = 8) -> Path:
    """A random adapter (q_proj, v_proj) for `tiny_model` below `folder`, made once; returns its path."""
    path = folder / name
    if path.exists():
        return path
    import torch
    from safetensors.torch import save_file

    g = torch.Generator().manual_seed(int(hashlib.sha256(name.encode()).hexdigest()[:8], 16))
    tensors = {}
    for i in range(layers):
        for module, rows in (("q_proj", 64), ("v_proj", 32)):
            p = f"base_model.model.model.layers.{i}.self_attn.{module}"
            tensors[f"{p}.lora_A.weight"] = torch.randn(rank, 64, generator=g) * 0.2
            tensors[f"{p}.lora_B.weight"] = torch.randn(rows, rank, generator=g) * 0.2
    path.mkdir(parents=True)
    save_file(tensors, path / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": ["q_proj", "v_proj"],
        "base_model_name_or_path": "tiny",
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
    }
    (path / "adapter_config.json").write_text(json.dumps(config))
    return path


class _Stop(BaseException):
    """Unwinds the event loop's thread."""


class SchedulerHarness:
    """One scheduler. `check`, if given, is called with the scheduler between any two steps.

    `rank` is its own of `tp_size` ranks, each in a process of its own (`helpers.ranks`).
    """

    def __init__(
        self,
        model: Path,
        *,
        overlap: bool = False,
        check: Callable[[Any], None] | None = None,
        rank: int = 0,
        **server_args: Any,
    ) -> None:
        cpu_shims.install()
        _only_small_models()
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        # SGLang's own checks, after each busy step too
        os.environ.setdefault("SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY", "2")
        import torch
        from sglang.srt.managers import scheduler as scheduler_module
        from sglang.srt.runtime_context import publish
        from sglang.srt.server_args import PortArgs, ServerArgs

        torch.set_num_threads(1)
        plugin.register()
        self.server_args = ServerArgs(
            **{
                "model_path": str(model),
                "device": "cpu",
                "attention_backend": "torch_native",
                "sampling_backend": "pytorch",
                "grammar_backend": "none",
                "dtype": "float32",
                "disable_cuda_graph": True,
                "skip_tokenizer_init": True,
                "max_total_tokens": 4096,
                "log_level": "error",
                "watchdog_timeout": 1e6,  # its threads outlive the scheduler and would kill this process
                "random_seed": 0,
                "disable_overlap_schedule": not overlap,
                "radix_cache_backend": plugin.CACHE_BACKEND,
                **server_args,
            }
        )
        ports = PortArgs.init_new(self.server_args)
        publish(self.server_args, role="scheduler")
        self.scheduler: Any = object.__new__(scheduler_module.Scheduler)
        try:
            self.scheduler.__init__(self.server_args, ports, 0, rank, 0, 0, 0, 0, None)
        except BaseException:
            _hang_up(self.scheduler)
            _take_down()
            raise
        self.check = check
        self.sent: list[Any] = []
        """Outputs for the detokenizer, in order."""
        self.reqs: dict[str, Any] = {}
        """Every request seen, by rid (SGLang's Req)."""
        self.steps: list[Step] = []
        self._inbox: list[Any] = []
        self._failure: BaseException | None = None
        self._closed = False
        self._launched: Any = None
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._plug_in(scheduler_module)

    def _plug_in(self, scheduler_module: Any) -> None:
        s = self.scheduler
        s.request_receiver = SimpleNamespace(recv_requests=self._next_requests)
        for channel in (s.ipc_channels.send_to_detokenizer, s.ipc_channels.send_to_tokenizer):
            channel.send_output = lambda output, recv_obj=None: self.sent.append(output)
        run_batch = s.run_batch

        def run(batch: Any, *args: Any, **kwargs: Any) -> Any:
            self._launched = batch
            self.steps[-1] = _describe(batch)
            return run_batch(batch, *args, **kwargs)

        s.run_batch = run

        def loop() -> None:
            self._go.acquire()
            try:
                scheduler_module.dispatch_event_loop(s)
            except _Stop:
                pass
            except BaseException as e:
                self._failure = e
            self._paused.release()

        if s.enable_overlap:
            s.schedule_stream = s.device_module.Stream(priority=0)
            s.schedule_stream.synchronize = lambda: None
            s._war_barrier_enabled = False
        self._thread = threading.Thread(target=loop, daemon=True)
        self._thread.start()
        self._resume()  # to the first wait

    # ---- the loop's thread

    def _next_requests(self) -> list[Any]:
        self._paused.release()
        self._go.acquire()
        if self._closed:
            raise _Stop
        requests, self._inbox = self._inbox, []
        return requests

    def _resume(self) -> None:
        self._go.release()
        self._paused.acquire()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._closed = True
            raise failure

    # ---- the test's side

    def submit(self, *requests: Request) -> None:
        """Queue requests, which the next step receives together."""
        self._inbox += [self._tokenized(r) for r in requests]

    def send(self, *messages: Any) -> None:
        """Queue other messages of SGLang (AbortReq, OpenSessionReqInput, ...) for the next step."""
        self._inbox += messages

    def abort(self, rid: str) -> None:
        """Queue an abort."""
        from sglang.srt.managers.io_struct import AbortReq

        self.send(AbortReq(rid=rid))

    def step(self) -> Step:
        """One iteration of the event loop; raises what it raises."""
        self.steps.append(Step(None))
        self._resume()
        for req in self.scheduler.waiting_queue:
            self.reqs.setdefault(req.rid, req)
        for req in self._launched.reqs if self._launched is not None else ():
            self.reqs.setdefault(req.rid, req)
        if self.check is not None:
            self.check(self.scheduler)
        return self.steps[-1]

    def run(self, max_steps: int = 2000) -> list[Step]:
        """Step until nothing is left to do; returns the steps. Raises AssertionError after `max_steps`."""
        first = len(self.steps)
        for _ in range(max_steps):
            if self.step().mode is None and not self._inbox and self.idle:
                return self.steps[first:]
        raise AssertionError(f"not idle after {max_steps} steps")

    @property
    def idle(self) -> bool:
        """Nothing waits, runs or is in flight."""
        s = self.scheduler
        busy = s.waiting_queue or s.chunked_req is not None or not s.running_batch.is_empty()
        return not busy and not s.last_batch and not getattr(s, "result_queue", None)

    def flush(self) -> None:
        """Empty the cache; the scheduler must be idle."""
        self.run()
        assert self.scheduler.flush_cache(), "flush_cache was refused"

    def output(self, rid: str) -> list[int]:
        """Output token ids of a request so far."""
        return list(self.reqs[rid].output_ids)

    def computed(self, since: int = 0) -> int:
        """Prompt tokens computed in the steps from index `since`."""
        return sum(step.computed for step in self.steps[since:])

    def close(self) -> None:
        """End the event loop and take down SGLang's global state; idempotent."""
        if not self._closed:
            self._closed = True
            self._go.release()
            self._paused.acquire()
        self._thread.join(10)
        _hang_up(self.scheduler)
        # SGLang's watchdogs never end and keep the scheduler: 64 MB each, and a run has hundreds.
        self.scheduler.req_to_token_pool.req_to_token.untyped_storage().resize_(0)
        _take_down()

    def __enter__(self) -> SchedulerHarness:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _tokenized(self, r: Request) -> Any:
        from sglang.srt.managers.io_struct import SessionParams, TokenizedGenerateReqInput
        from sglang.srt.sampling.sampling_params import SamplingParams

        params = SamplingParams(
            max_new_tokens=r.max_new_tokens,
            temperature=r.temperature,
            ignore_eos=True,
            top_k=-1 if r.temperature else 1,
            **r.penalties,
        )
        params.normalize(None)
        return TokenizedGenerateReqInput(
            rid=r.rid,
            input_text=None,
            input_ids=array("q", r.ids),
            input_embeds=None,
            mm_inputs=None,
            token_type_ids=None,
            sampling_params=params,
            return_logprob=r.logprob_start_len is not None,
            logprob_start_len=-1 if r.logprob_start_len is None else r.logprob_start_len,
            top_logprobs_num=r.top_logprobs,
            token_ids_logprob=None,
            stream=False,
            extra_key=r.extra_key,
            cache_salt=r.cache_salt,
            lora_id=r.lora_id,
            priority=r.priority,
            session_id=r.session_id,
            session_params=SessionParams(**r.session_params) if r.session_params else None,
        )


def _describe(batch: Any) -> Step:
    extend = batch.forward_mode.is_extend()
    return Step(
        batch.forward_mode.name,
        [req.rid for req in batch.reqs],
        list(batch.prefix_lens) if extend else [],
        list(batch.extend_lens) if extend else [],
    )


def _hang_up(scheduler: Any) -> None:
    """Close the sockets of a scheduler, which may not have been built to its end."""
    channels = getattr(scheduler, "ipc_channels", None)
    if channels is None:
        return
    for wrapper in (channels.send_to_tokenizer, channels.send_to_detokenizer):
        if wrapper.socket is not None:  # the first rank's
            wrapper.socket.context.destroy(linger=0)  # or its garbage collection waits for a peer


def _take_down() -> None:
    """Undo SGLang's process-wide set-up, so that another scheduler can be built."""
    from sglang.srt.distributed import parallel_state

    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()


def _only_small_models() -> None:
    """Keep SGLang's model registry from importing every model file (3 s)."""
    import sglang.srt.models as models

    keep = {"llama", "qwen2", "registry", "utils"}
    names = {module.name for module in pkgutil.iter_modules(models.__path__)}
    os.environ.setdefault("SGLANG_DISABLED_MODEL_ARCHS", ",".join(sorted(names - keep)))

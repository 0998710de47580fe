"""A server that speaks SGLang's HTTP API, with a scripted engine behind it; no SGLang needed.

Knows `/model_info`, `/server_info`, `/generate` (streaming), `/abort_request`, `/flush_cache`, `/v1/loads`,
`/separate_reasoning` and `/parse_function_call`, in the form of SGLang 0.5.18.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer

from flashagents_runtime import Delta, GenerateRequest, RequestRejectedError, SamplingParams, ScriptedEngine

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|$)", re.DOTALL)


def _as_text(delta: Delta, as_array: bool) -> Delta:
    """A scripted delta as a model would say it: thoughts and calls in the text.

    `as_array`: calls were demanded by a JSON schema.
    """
    text = f"<think>\n{delta.thought}\n</think>\n\n{delta.text}" if delta.thought else delta.text
    result = delta.result
    if result is not None:
        calls = [(call.name, json.loads(call.arguments)) for call in result.tool_calls]
        if as_array and calls:
            text += json.dumps([{"name": name, "parameters": arguments} for name, arguments in calls])
        else:
            for name, arguments in calls:
                entry = json.dumps({"name": name, "arguments": arguments})
                text += f"<tool_call>\n{entry}\n</tool_call>"
        text += result.broken_call or ""
    return Delta(text, delta.token_ids, result, delta.logprobs)


class FakeSGLang:
    """The server's handlers, and switches for what goes wrong.

    Attributes:
        engine: answers the requests.
        incremental: as `--incremental-streaming-output`.
        api_key: demanded where set.
        plugin: the state that our plug-in would report, None for an ordinary server.
        failures: statuses to answer the next `/generate` requests with, before any is served.
        split: cut the stream into pieces of so many bytes.
        break_after: close the connection after so many events.
        silent: no `/generate` is answered before it is set.
        parsers: what `/model_info` says of `tool_call_parser` and `reasoning_parser`.
    """

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.incremental = True
        self.api_key: str | None = None
        self.plugin: dict[str, Any] | None = None
        self.failures: list[int] = []
        self.split: int | None = None
        self.break_after: int | None = None
        self.parsers: dict[str, str | None] = {"tool_call_parser": None, "reasoning_parser": None}
        self.bodies: list[dict[str, Any]] = []
        self.aborts: list[str] = []
        self.silent: asyncio.Event | None = None

    async def serve(self, *, tls: ssl.SSLContext | None = None, port: int | None = None) -> TestServer:
        """A running server on a port of the loopback (a free one); close it with `await server.close()`."""
        app = web.Application(middlewares=[self._authorise])
        app.router.add_get("/model_info", self._model_info)
        app.router.add_get("/server_info", self._server_info)
        app.router.add_get("/v1/loads", self._loads)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_post("/flush_cache", self._flush)
        app.router.add_post("/close_session", self._close_session)
        app.router.add_post("/separate_reasoning", self._separate)
        app.router.add_post("/parse_function_call", self._parse)
        server = TestServer(app, scheme="http" if tls is None else "https", port=port)
        await server.start_server(ssl=tls)
        return server

    @web.middleware
    async def _authorise(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.api_key and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        response: web.StreamResponse = await handler(request)
        return response

    async def _model_info(self, _: web.Request) -> web.Response:
        return web.json_response({"model_path": self.engine.model, **self.parsers})

    async def _server_info(self, _: web.Request) -> web.Response:
        state = {} if self.plugin is None else {"flashagents": self.plugin}
        return web.json_response(
            {
                "version": "0.5.18",
                "context_length": self.engine.context_length,
                "max_total_num_tokens": self.engine.max_total_tokens,
                "incremental_streaming_output": self.incremental,
                "device": "cpu",
                "internal_states": [state],
            }
        )

    async def _loads(self, _: web.Request) -> web.Response:
        state = await self.engine.state()
        load = {"num_used_tokens": state.kv_used, "num_running_reqs": state.running, "num_waiting_reqs": 0}
        return web.json_response({"loads": [load]})

    async def _abort(self, request: web.Request) -> web.Response:
        rid = (await request.json())["rid"]
        self.aborts.append(rid)
        await self.engine.abort(rid)
        return web.Response()

    async def _close_session(self, request: web.Request) -> web.Response:
        await self.engine.close_session((await request.json())["session_id"])
        return web.Response()

    async def _flush(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if await self.engine.flush_cache() else 400)

    async def _separate(self, request: web.Request) -> web.Response:
        text = (await request.json())["text"].removeprefix("<think>")
        thought, found, rest = text.partition("</think>")
        parts = {"reasoning_text": thought, "text": rest} if found else {"reasoning_text": "", "text": text}
        return web.json_response(parts)

    async def _parse(self, request: web.Request) -> web.Response:
        """As SGLang's hermes parser: a call that is no JSON, or has no end, leaves all as text."""
        body = await request.json()
        calls = []
        try:
            for found in _CALL.findall(body["text"]):
                parsed = json.loads(found)
                arguments = json.dumps(parsed["arguments"])
                calls.append({"tool_index": len(calls), "name": parsed["name"], "parameters": arguments})
        except ValueError:
            calls = []
        text = body["text"].partition("<tool_call>")[0] if calls else body["text"]
        return web.json_response({"normal_text": text, "calls": calls})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if self.silent is not None:
            await self.silent.wait()
        if self.failures:
            status = self.failures.pop(0)
            return web.json_response({"error": {"message": "not now"}}, status=status)
        ours = GenerateRequest(
            rid=body["rid"],
            input_ids=body["input_ids"],
            sampling=msgspec.convert(body["sampling_params"], SamplingParams),
            logprobs=body.get("return_logprob", False),
            image_data=body.get("image_data"),
            lora=body.get("lora_path"),
            extra_key=body.get("extra_key"),
            cache_salt=body.get("cache_salt"),
        )
        schema = json.loads(ours.sampling.json_schema or "{}")
        as_array = isinstance(schema, dict) and schema.get("type") == "array"
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        seen: list[Delta] = []
        try:
            async for scripted in self.engine.generate(ours):
                delta = _as_text(scripted, as_array)
                seen.append(delta)
                await self._write(response, self._output(seen if not self.incremental else [delta], delta))
                if self.break_after is not None and len(seen) >= self.break_after:
                    assert request.transport is not None
                    request.transport.abort()
                    return response
        except RequestRejectedError as e:
            await self._write(response, {"error": {"message": str(e), "code": 400}})
        await self._send(response, b"data: [DONE]\n\n")
        return response

    def _output(self, deltas: list[Delta], last: Delta) -> dict[str, Any]:
        meta: dict[str, Any] = {"finish_reason": None}
        if last.result is not None:
            usage = last.result.usage
            meta = {
                "finish_reason": {"type": last.result.finish_reason, "matched": None},
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": usage.cached_tokens,
                "completion_tokens": usage.completion_tokens,
            }
        logprobs = [p for d in deltas for p in d.logprobs or []]
        meta["output_token_logprobs"] = [[p.logprob, p.token_id, p.token] for p in logprobs]
        text = "".join(d.text for d in deltas)
        return {"text": text, "output_ids": [i for d in deltas for i in d.token_ids], "meta_info": meta}

    async def _write(self, response: web.StreamResponse, event: dict[str, Any]) -> None:
        await self._send(response, b"data: " + json.dumps(event).encode() + b"\n\n")

    async def _send(self, response: web.StreamResponse, data: bytes) -> None:
        step = self.split or len(data)
        for i in range(0, len(data), step):
            await response.write(data[i : i + step])
            if self.split:
                await asyncio.sleep(0)

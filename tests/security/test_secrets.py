"""Secrets are never in logs, spans, configs, errors or reprs."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from opentelemetry import trace

from flashagents_autogen import FlashAgentsChatCompletionClient, FlashGroupChatRuntime
from flashagents_runtime import EngineError, EngineStartError, FlashAgentsError, GenerateRequest, Reply, wire
from flashagents_runtime.embedded import EmbeddedEngine, host_process
from flashagents_runtime.redact import is_secret, masked, secret_values, without_secrets
from flashagents_runtime.remote import RemoteEngine
from helpers import stub_host
from helpers.clients import scripted, user

SECRET = "s3cret-Zq7"


def chain(error: BaseException | None) -> str:
    """All that a traceback would show of an error and its causes."""
    texts = []
    while error is not None:
        texts.append(f"{error!r} {error}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(texts)


@pytest.mark.parametrize(
    "name",
    [
        *("api_key", "admin_api_key", "admin-api-key", "ssl_keyfile_password", "hf_token", "auth_token"),
        *("AWS_SECRET_ACCESS_KEY", "access_key", "client_secret", "credentials", "private_key"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["max_total_tokens", "tokenizer_path", "skip_tokenizer_init", "ssl_keyfile"])
def test_names_of_no_secrets(name: str) -> None:
    assert not is_secret(name)


def test_a_short_secret_is_masked_where_it_is_a_value_and_not_inside_of_words() -> None:
    secrets = secret_values({"api_key": "s", "password": "42", "hf_token": ""})
    assert secrets == ["42", "s"]
    for text in ("a server's answers", "is 42 s late? 420", "max_tokens=428", "http://localhost:42"):
        assert masked(text, secrets) == text
    for text in ("{}", "api_key='{}', x", 'x="{}"', '{{"api_key": "{}"}}', "api_key={}", "ValueError: {}"):
        for secret in secrets:
            assert masked(text.format(secret), secrets) == text.format("**********")
    assert masked("a\ns\nb, Authorization: Bearer s", secrets) == (
        "a\n**********\nb, Authorization: Bearer **********"
    )


def test_secrets_inside_of_values_are_found() -> None:
    args = {
        "api_key": SECRET,
        "extra_config": json.dumps({"url": "x", "access_key": SECRET + "2"}),
        "nested": {"list": [{"password": SECRET + "3"}], "kept": 1},
        "tp_size": 2,
    }
    assert SECRET not in repr(without_secrets({k: v for k, v in args.items() if k != "nested"}))
    assert without_secrets({"a": {"password": SECRET, "b": 1}}) == {"a": {"b": 1}}
    assert without_secrets({"a": [{"password": SECRET}, 2]}) == {"a": [{}, 2]}
    odd = {"broken": "{no json", "deep": '{"a":' * 9999}
    assert without_secrets(odd) == odd
    assert set(secret_values(args)) == {SECRET, SECRET + "2", SECRET + "3"}
    assert SECRET not in masked(f"ServerArgs(api_key='{SECRET}', x='{SECRET}2')", secret_values(args))


def test_nothing_shows_in_reprs() -> None:
    request = GenerateRequest(input_ids=[1], cache_salt=SECRET, extra_key=SECRET, session_id=SECRET)
    frame = wire.Setup("m", {"api_key": SECRET}, 1, "/run", "token")
    engine = EmbeddedEngine("m", api_key=SECRET)
    remote = RemoteEngine("http://localhost:1", api_key=SECRET)
    client = FlashAgentsChatCompletionClient("m", engine_args={"api_key": SECRET}, cache_salt=SECRET)
    for value in (request, frame, wire.Generate(request), engine, remote, client, [request], client.engine):
        assert SECRET not in f"{value!r} {value}"


@pytest.mark.parametrize(
    "config",
    [
        {"api_key": [SECRET]},
        {"cache_salt": {"a": SECRET}},
        {"engine_args": SECRET},
        {"temperature": "hot", "api_key": SECRET},
        {"unknown": 1, "cache_salt": SECRET, "engine_url": "http://localhost:1"},
    ],
)
def test_a_config_that_is_refused_does_not_show_what_was_in_it(config: dict[str, object]) -> None:
    with pytest.raises(ValueError) as refused:
        FlashAgentsChatCompletionClient.load_component(
            {"provider": "flashagents_autogen.FlashAgentsChatCompletionClient", "config": config}
        )
    assert SECRET not in chain(refused.value)


def test_a_config_holds_no_secret_of_nested_engine_arguments() -> None:
    args = {"hicache_storage_backend_extra_config": json.dumps({"access_key": SECRET, "bucket": "b"})}
    dumped = FlashAgentsChatCompletionClient("m", engine_args=args, cache_salt=SECRET).dump_component()
    text = dumped.model_dump_json()
    assert SECRET not in text + repr(dumped)
    assert "bucket" in text


@pytest.mark.parametrize(
    "url",
    [
        f"http://user:{SECRET}@localhost:1",
        f"http://{SECRET}@localhost:1",
        f"http://localhost:1/?key={SECRET}",
        f"http://localhost:1/#{SECRET}",
    ],
)
def test_a_url_with_a_secret_in_it_is_refused_without_repeating_it(url: str) -> None:
    """It would be in every error, in the repr and in the component config."""
    with pytest.raises(ValueError, match="give the key as api_key") as refused:
        FlashAgentsChatCompletionClient(engine_url=url)
    assert SECRET not in chain(refused.value)


@pytest.mark.parametrize("url", ["localhost:1", "ftp://x", "http://", "http://host:port", "http://[::1", ""])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="no URL of a server"):
        RemoteEngine(url)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 500])
async def test_a_server_that_repeats_our_key_does_not_put_it_into_our_errors(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.Response(status=status, text=f"no: {request.headers['Authorization']}")

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", echo)
    server = TestServer(app)
    await server.start_server()
    engine = RemoteEngine(str(server.make_url("")), api_key=SECRET)
    with caplog.at_level(logging.DEBUG), pytest.raises(FlashAgentsError) as refused:
        await engine.start()
    await engine.close()
    await server.close()
    assert "no: Bearer ***" in str(refused.value)
    assert SECRET not in chain(refused.value) + caplog.text


async def test_the_key_goes_to_no_other_address() -> None:
    """A redirect would take the prompt, and with some clients the key, wherever a server likes."""
    seen: list[str] = []

    async def steal(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.json_response({"model_path": "m"})

    async def redirect(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(str(thief.make_url(request.path)))

    servers = []
    for handler in (steal, redirect):
        app = web.Application()
        app.router.add_route("*", "/{any:.*}", handler)
        servers.append(TestServer(app))
        await servers[-1].start_server()
    thief, honest = servers
    engine = RemoteEngine(str(honest.make_url("")), api_key=SECRET)
    with pytest.raises(EngineStartError, match="redirects are not followed"):
        await engine.start()
    await engine.close()
    for server in servers:
        await server.close()
    assert seen == []


@pytest.fixture
def telltale_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A host that logs all its arguments, as SGLang does, and then dies or refuses."""
    folder = Path(tempfile.mkdtemp(prefix="fa-test"))
    script = folder / "host.py"
    script.write_text(
        "import socket, sys\n"
        "from flashagents_runtime import wire\n"
        "sock = socket.socket(fileno=int(sys.argv[1]))\n"
        "[setup] = wire.FrameReader(wire.ToHost).feed(sock.recv(1 << 16))\n"
        "print('server_args=ServerArgs(%r)' % (setup.engine_args,), flush=True)\n"
        "if setup.model == 'refuse':\n"
        "    sock.sendall(wire.encode(wire.Refused('bad: %r' % (setup.engine_args,))))\n"
        "print('ValueError: %s' % setup.engine_args['api_key'], flush=True)\n"
        "sys.exit(1)\n"
    )
    monkeypatch.setattr(host_process, "host_command", lambda fd: [sys.executable, str(script), str(fd)])
    monkeypatch.setattr(EmbeddedEngine, "_resolve_model", lambda self: self.model)
    yield
    script.unlink()
    folder.rmdir()


@pytest.mark.parametrize("model", ["die", "refuse"])
async def test_the_log_of_an_engine_is_shown_without_its_secrets(
    telltale_host: None, model: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = EmbeddedEngine(model, api_key=SECRET, ssl_keyfile_password=SECRET + "2", tp_size=2)
    with caplog.at_level(logging.DEBUG), pytest.raises(EngineStartError) as failed:
        await engine.start()
    await engine.close()
    assert "server_args=ServerArgs(" in caplog.text and "'tp_size': 2" in caplog.text
    # Kilobytes of arguments would hide what an error is about.
    assert "server_args=ServerArgs(" not in str(failed.value)
    assert "ValueError: ***" in str(failed.value)
    assert SECRET not in chain(failed.value) + caplog.text + repr(failed.value.log_tail)


async def test_the_application_passes_no_secret_on_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Command lines can be read by everybody on the machine."""
    engine = EmbeddedEngine("ok", api_key=SECRET)
    assert SECRET not in " ".join(host_process.host_command(3))
    assert stub_host.__file__  # what the other tests put in its place takes the same frame
    await engine.close()


async def test_spans_and_events_hold_neither_salt_nor_key(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []

    class Span(trace.NonRecordingSpan):
        def is_recording(self) -> bool:
            return True

        def set_attribute(self, *args: object) -> None:
            told.append(args)

        set_attributes = set_status = record_exception = add_event = set_attribute  # type: ignore[assignment]

    class Tracer(trace.NoOpTracer):
        def start_span(self, *args: object, **kwargs: object) -> Span:  # type: ignore[override]
            told.append((args, kwargs))
            return Span(trace.INVALID_SPAN_CONTEXT)

    monkeypatch.setattr(trace, "get_tracer", lambda *args: Tracer())
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    client, _ = scripted("fine", Reply(text="a", error=EngineError("gone")), cache_salt=SECRET)
    with caplog.at_level(logging.DEBUG):
        await client.create([user()])
        with pytest.raises(EngineError) as failed:
            await client.create([user()])
    assert told and SECRET not in chain(failed.value) + caplog.text + repr(told)


async def test_turns_of_a_team_show_no_salt_and_no_prompt() -> None:
    client, _ = scripted("One. " * 20, "Two.", "Three.", cache_salt=SECRET)
    team = RoundRobinGroupChat([AssistantAgent(name, client) for name in ("a", "b")], max_turns=3)
    async with FlashGroupChatRuntime() as runtime:
        runtime.attach(team)
        await team.run(task="A private question.")
        shown = repr(list(runtime.turns)) + repr(list(runtime.events)) + repr(runtime)
    assert [turn.right for turn in runtime.turns if turn.after] == [True, True]
    assert SECRET not in shown and "private question" not in shown

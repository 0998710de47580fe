"""https: a certificate is checked, by the system's authorities or by the one that was given."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme
from aiohttp.test_utils import TestServer

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_runtime import EngineDiedError, EngineStartError, GenerateRequest, ScriptedEngine
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer
from flashagents_runtime.remote import RemoteEngine
from helpers.clients import user
from helpers.sglang_server import FakeSGLang


class Secure:
    """An https server, and the certificates in files.

    Attributes:
        ca: the authority that issued the server's certificate.
        own: the server's certificate itself.
        other: an authority that has nothing to do with it.
    """

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        authority, stranger = trustme.CA(), trustme.CA()
        certificate = authority.issue_cert(host)
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        certificate.configure_cert(self.context)
        self.ca, self.own, self.other = folder / "ca.pem", folder / "own.pem", folder / "other.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        certificate.cert_chain_pems[0].write_to_path(str(self.own))
        stranger.cert_pem.write_to_path(str(self.other))
        self.fake = FakeSGLang(ScriptedEngine(["Hello!"] * 3))
        self.server: TestServer | None = None

    async def start(self) -> str:
        self.server = await self.fake.serve(self.context)
        return str(self.server.make_url("")).rstrip("/")


@pytest.fixture
async def secure(tmp_path: Path) -> AsyncIterator[Secure]:
    built = Secure(tmp_path)
    yield built
    if built.server is not None:
        await built.server.close()


async def test_the_authority_is_given(secure: Secure) -> None:
    url = await secure.start()
    assert url.startswith("https://")
    secure.fake.api_key = "s3cret"
    client = FlashAgentsChatCompletionClient(
        engine_url=url, api_key="s3cret", tls_ca_file=secure.ca, tokenizer=ByteChatTokenizer()
    )
    assert (await client.create([user()])).content == "Hello!"
    await client.close()
    pinned = RemoteEngine(url, tls=ssl.create_default_context(cafile=secure.ca), api_key="s3cret")
    assert (await pinned.start()).kind == "remote"
    await pinned.close()


@pytest.mark.parametrize("trusted", ["other", None], ids=["another authority", "the system's authorities"])
async def test_a_certificate_that_is_not_trusted(secure: Secure, trusted: str | None) -> None:
    url = await secure.start()
    engine = RemoteEngine(url, tls_ca_file=getattr(secure, trusted) if trusted else None)
    with pytest.raises(EngineStartError, match=r"certificate of https://.* is not trusted.*tls_ca_file"):
        await engine.start()
    assert secure.fake.bodies == [] and secure.fake.engine.info is None, "not a byte of a request was sent"
    await engine.close()


async def test_a_self_signed_certificate_is_pinned(tmp_path: Path) -> None:
    """The server's own certificate as the only one that is trusted: `openssl req -x509` makes such."""
    secure = Secure(tmp_path)
    context = ssl.create_default_context(cafile=secure.own)
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN  # trustme's has an issuer
    url = await secure.start()
    engine = RemoteEngine(url, tls=context)
    assert (await engine.start()).model == "scripted"
    await engine.close()
    assert secure.server is not None
    await secure.server.close()


async def test_a_certificate_for_another_host(tmp_path: Path) -> None:
    secure = Secure(tmp_path, host="example.invalid")
    url = await secure.start()
    engine = RemoteEngine(url, tls_ca_file=secure.ca)
    with pytest.raises(EngineStartError, match=r"is not trusted: .*(mismatch|doesn't match)"):
        await engine.start()
    await engine.close()
    assert secure.server is not None
    await secure.server.close()


async def test_a_certificate_that_changes_while_the_engine_is_in_use(secure: Secure, tmp_path: Path) -> None:
    url = await secure.start()
    engine = RemoteEngine(url, tls_ca_file=secure.ca)
    await engine.start()
    (tmp_path / "b").mkdir()
    other = Secure(tmp_path / "b")
    engine._server.url = await other.start()  # the same address in real life
    with pytest.raises(EngineDiedError, match="is not trusted"):
        async for _ in engine.generate(GenerateRequest(input_ids=[1])):
            pass
    assert other.fake.bodies == []
    await engine.close()
    assert other.server is not None
    await other.server.close()


async def test_https_to_a_server_without_tls_and_http_to_one_with_it(secure: Secure) -> None:
    plain = await FakeSGLang(ScriptedEngine()).serve()
    engine = RemoteEngine(str(plain.make_url("")).replace("http:", "https:"))
    with pytest.raises(EngineStartError, match="does the server speak https"):
        await engine.start()
    await engine.close()
    await plain.close()
    url = await secure.start()
    engine = RemoteEngine(url.replace("https:", "http:"))
    with pytest.raises(EngineStartError, match="cannot be reached"):
        await engine.start()
    await engine.close()


def test_a_file_that_holds_no_certificate(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for name in ("absent.pem", "empty.pem"):
        with pytest.raises(ValueError, match=f"{name}' cannot be read as PEM"):
            RemoteEngine("https://127.0.0.1:9", tls_ca_file=tmp_path / name)
    with pytest.raises(ValueError, match="give one of them"):
        RemoteEngine("https://127.0.0.1:9", tls_ca_file="a", tls=ssl.create_default_context())
    with pytest.raises(ValueError, match="give its engine_url"):
        FlashAgentsChatCompletionClient(tls_ca_file="a")


def test_the_file_is_in_the_config(secure: Secure) -> None:
    client = FlashAgentsChatCompletionClient(engine_url="https://127.0.0.1:9", tls_ca_file=secure.ca)
    dumped = client.dump_component()
    assert dumped.config["tls_ca_file"] == str(secure.ca)
    assert FlashAgentsChatCompletionClient.load_component(dumped).dump_component() == dumped

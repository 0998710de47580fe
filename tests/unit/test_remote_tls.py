"""https: a certificate is checked, by the system's authorities or by the one that was given."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest
import trustme
from aiohttp.test_utils import TestServer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

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
        other: an authority that has nothing to do with it.
    """

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        authority, stranger = trustme.CA(), trustme.CA()
        certificate = authority.issue_cert(host)
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        certificate.configure_cert(self.context)
        self.ca, self.other = folder / "ca.pem", folder / "other.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        stranger.cert_pem.write_to_path(str(self.other))
        self.fake = FakeSGLang(ScriptedEngine(["Hello!"] * 3))
        self.server: TestServer | None = None

    async def start(self) -> str:
        self.server = await self.fake.serve(tls=self.context)
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


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Files of a certificate without any authority, and of its key, as `openssl req -x509` makes them."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    private = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "self.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *private))
    return folder / "self.pem", folder / "key.pem"


async def test_a_self_signed_certificate_is_pinned(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    server = await FakeSGLang(ScriptedEngine()).serve(tls=context)
    url = str(server.make_url(""))
    pinned = RemoteEngine(url, tls_ca_file=certificate)
    assert (await pinned.start()).model == "scripted"
    await pinned.close()
    unknown = RemoteEngine(url)
    with pytest.raises(EngineStartError, match=r"is not trusted: .*self-signed"):
        await unknown.start()
    await unknown.close()
    await server.close()


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

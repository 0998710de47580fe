"""One engine for all who ask with the same arguments."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest

from flashagents_runtime import Engine, EngineClosedError, UnsupportedFeatureError
from flashagents_runtime.embedded import EmbeddedEngine, acquire_engine, pooled_engines
from flashagents_runtime.embedded.pool import pool_key


@pytest.fixture(autouse=True)
def empty_pool() -> object:
    assert pooled_engines() == []
    yield
    gc.collect()
    assert pooled_engines() == []


async def test_equal_arguments_share_and_the_last_to_leave_closes() -> None:
    one = acquire_engine(None, {"max-total-tokens": 64, "tp_size": None})
    two = acquire_engine(None, {"max_total_tokens": 64})
    other = acquire_engine(None, {"max_total_tokens": 65})
    assert isinstance(one, Engine)
    assert one.engine is two.engine is not other.engine
    assert len(pooled_engines()) == 2
    shared = two.engine
    await one.close()
    await one.close()
    assert shared in pooled_engines()
    with pytest.raises(EngineClosedError, match="given back"):
        one.generate(None)  # type: ignore[arg-type]
    await two.close()
    with pytest.raises(EngineClosedError):
        await shared.start()
    await other.close()


async def test_a_closed_engine_is_not_handed_out_again() -> None:
    first = acquire_engine()
    engine = first.engine
    await first.close()
    second = acquire_engine()
    assert second.engine is not engine
    await second.close()


def test_a_lost_lease_gives_its_share_back() -> None:
    lease = acquire_engine()
    kept = acquire_engine()
    del lease
    gc.collect()
    assert len(pooled_engines()) == 1
    del kept


def test_a_folder_by_any_path_is_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    keys = {pool_key(m, {}) for m in (folder, str(folder) + "/", "model", "link", "~/model")}
    assert len(keys) == 1
    assert pool_key("org/name", {}) != pool_key(os.fspath(folder), {})


def test_bad_arguments_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match="JSON"):
        acquire_engine(None, {"dtype": object()})
    with pytest.raises(TypeError, match="twice"):
        acquire_engine(None, {"tp-size": 1, "tp_size": 2})
    with pytest.raises(TypeError, match="as `model`"):
        acquire_engine(None, {"model_path": "x"})
    with pytest.raises(UnsupportedFeatureError, match=r"max_total_token'; did you mean 'max_total_tokens'"):
        acquire_engine(None, {"max-total-token": 64})
    with pytest.raises(ValueError, match=r"no engine argument 'zzz'$"):
        EmbeddedEngine(zzz=1)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"mem_fraction_static": "lots"}, "float"),
        ({"max_total_tokens": 0.5}, "int"),
        ({"max_total_tokens": True}, "int"),
        ({"skip_tokenizer_init": 1}, "bool"),
        ({"attention_backend": 3}, "str"),
    ],
)
def test_an_argument_of_another_type_is_refused_at_once(arguments: dict[str, Any], kind: str) -> None:
    with pytest.raises(TypeError, match=f"'{next(iter(arguments))}' takes a value of type {kind}, not "):
        EmbeddedEngine("ok", **arguments)


def test_arguments_of_the_right_type_are_taken() -> None:
    EmbeddedEngine(
        "ok",
        mem_fraction_static=1,
        max_total_tokens=None,
        skip_tokenizer_init=True,
        cuda_graph_bs_decode=[1, 2],
        lora_paths={"plan": "plan"},
    )

"""Nothing from outside is ever run: no pickle, no eval, no shell, no code out of a model's folder."""

from __future__ import annotations

import ast
import json
import pickle
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

import flashagents_runtime
from flashagents_runtime import ModelIntegrityError, TemplateError
from flashagents_runtime.chat import ChatMessage
from flashagents_runtime.chat_template import JinjaTemplate
from flashagents_runtime.chat_tokenizer import HFChatTokenizer
from flashagents_runtime.hub import _SMALL_FILES
from flashagents_runtime.model_card import read_model_card
from flashagents_runtime.model_check import check_model_folder
from flashagents_runtime.model_store import resolve_model

ROOT = Path(flashagents_runtime.__file__).parents[2]
SOURCES = sorted(
    path
    for folder in ("flashagents_autogen", "runtime/flashagents_runtime", "kernels/flashagents_kernels")
    for path in (ROOT / folder).rglob("*.py")
)
FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "xmlrpc"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "torch.load", "os.system", "os.popen", "np.load"}
"""Calls by name; `triton.compile` and methods such as `re.compile` are other names."""


def name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{name_of(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sources(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not {alias.name.partition(".")[0] for alias in node.names} & FORBIDDEN_MODULES
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert (node.module or "").partition(".")[0] not in FORBIDDEN_MODULES
        elif isinstance(node, ast.Call):
            assert name_of(node.func) not in FORBIDDEN_CALLS
            for keyword in node.keywords:
                on = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
                assert not (keyword.arg in ("shell", "trust_remote_code", "allow_pickle") and on)


def test_no_code_is_fetched_from_the_hub() -> None:
    assert not any(pattern.endswith(("py", "*")) for pattern in _SMALL_FILES)


@pytest.fixture
def booby_trapped(tmp_path: Path) -> tuple[Path, Path]:
    """A model folder all of whose code and pickles would leave a mark; the folder and the mark."""
    folder, mark = tmp_path / "model", tmp_path / "mark"
    folder.mkdir()
    code = f"open({str(mark)!r}, 'w').write('run')\n"
    for name in (
        "tokenization_evil.py",
        "configuration_evil.py",
        "modeling_evil.py",
        "__init__.py",
        "evil.pth",
    ):
        (folder / name).write_text(code)
    auto_map = {
        "AutoConfig": "configuration_evil.EvilConfig",
        "AutoTokenizer": ["tokenization_evil.Evil", None],
        "AutoModelForCausalLM": "modeling_evil.Evil",
    }
    config = {"model_type": "evil", "architectures": ["Evil"], "auto_map": auto_map}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer_config = {"tokenizer_class": "Evil", "auto_map": auto_map, "chat_template": "{{ messages }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    tokenizer = Tokenizer(models.BPE({"h": 0, "i": 1}, []))
    tokenizer.save(str(folder / "tokenizer.json"))

    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.write_text, (mark, "run"))

    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    return folder, mark


def test_a_model_folder_runs_nothing(booby_trapped: tuple[Path, Path]) -> None:
    folder, mark = booby_trapped
    path = list(sys.path)
    assert resolve_model(folder) == folder.resolve()
    check_model_folder(folder)
    card = read_model_card(folder)
    tokenizer = HFChatTokenizer(folder)
    tokenizer.render([ChatMessage(role="user", content="hi")])
    assert card.model_type == "evil" and tokenizer.encode("hi")
    assert not mark.exists(), "code from a model's folder was run"
    assert sys.path == path


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% for x in messages.__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}",
        "{{ ''.__class__ }}",
        "{{ self._TemplateReference__context }}{{ self.__init__.__globals__ }}",
        "{% set _ = messages.append(1) %}{{ messages }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{% include '/etc/hostname' %}",
        "{% import 'os' as os %}",
        "{{ range(10**9) | list }}",
        "{{ raise_exception('no') }}",
    ],
)
def test_a_chat_template_reaches_nothing_of_python(template: str) -> None:
    """transformers renders in Jinja's immutable sandbox: a template that wants out gets a TemplateError."""
    with pytest.raises(TemplateError):
        text = JinjaTemplate(template).render([ChatMessage(role="user", content="hi")])
        # Jinja renders an attribute that it does not give out as nothing at all: no leak either.
        assert "class" not in text and "function" not in text
        raise TemplateError("rendered as nothing")


def test_a_pickle_in_the_place_of_safetensors_is_refused(booby_trapped: tuple[Path, Path]) -> None:
    folder, mark = booby_trapped
    (folder / "pytorch_model.bin").rename(folder / "model.safetensors")
    with pytest.raises(ModelIntegrityError, match=r"model\.safetensors"):
        resolve_model(folder)
    assert not mark.exists()

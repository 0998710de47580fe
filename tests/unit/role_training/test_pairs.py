"""What can be trained on, and how: pairs, their tokens, recipes, the command's words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from flashagents_runtime import TrainingError, cli
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer
from flashagents_runtime.role_training import Pair, Recipe, read_pairs, train_roles
from flashagents_runtime.role_training.command import pair_files, sharing_note
from flashagents_runtime.role_training.modules import check_modules
from flashagents_runtime.role_training.pairs import end_token, examples

END = 300


def write(folder: Path, text: str) -> Path:
    file = folder / "pairs.json"
    file.write_text(text)
    return file


def test_a_list_and_lines_are_read_alike(tmp_path: Path) -> None:
    objects = [{"input": "a", "output": "b", "more": 1}, {"input": "ä", "output": "c\n"}]
    expected = [Pair("a", "b"), Pair("ä", "c\n")]
    assert read_pairs(write(tmp_path, json.dumps(objects))) == expected
    assert read_pairs(write(tmp_path, "\n\n".join(json.dumps(o) for o in objects) + "\n")) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "holds no pair"),
        ("", "holds no pair"),
        ('{"input": "a"}', "JSON list of.*missing required field `output`"),
        ('[{"input": "a", "output": "b"}, {"input": 3, "output": "b"}]', r"\$\[1\].input"),
        ('[{"input": "a", "output": ""}]', "output of pair 0 is empty"),
        ("no JSON", "must be a JSON list"),
    ],
)
def test_what_is_no_list_of_pairs_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=message):
        read_pairs(write(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"nowhere\.json cannot be read"):
        read_pairs(tmp_path / "nowhere.json")


def test_tokens_are_input_output_and_end() -> None:
    [found] = examples([Pair("ab", "c")], ByteChatTokenizer(), END, max_tokens=10)
    assert (found.ids, found.answer) == ([97, 98, 99, END], 2)


def test_a_long_input_loses_its_beginning() -> None:
    [found] = examples([Pair("abcdef", "xy")], ByteChatTokenizer(), END, max_tokens=5)
    assert (found.ids, found.answer) == ([101, 102, 120, 121, END], 3)
    with pytest.raises(TrainingError, match="output of pair 0 has 2 tokens, and max_tokens is 3"):
        examples([Pair("a", "xy")], ByteChatTokenizer(), END, max_tokens=3)
    with pytest.raises(TrainingError, match="input of pair 0 is empty"):
        examples([Pair("", "xy")], ByteChatTokenizer(), END, max_tokens=9)


def test_an_input_can_be_what_a_user_says() -> None:
    [found] = examples([Pair("hi", "x")], ByteChatTokenizer(), END, max_tokens=99, chat=True)
    text = bytes(found.ids[: -found.answer]).decode()
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_the_end_token_is_the_models(tmp_path: Path) -> None:
    from helpers.tiny_tokenizer import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    with pytest.raises(TrainingError, match="names no end token"):
        end_token(tmp_path, tokenizer)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "!"}}')
    assert end_token(tmp_path, tokenizer) == tokenizer.token_to_id("!")
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    assert end_token(tmp_path, tokenizer) == 7
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [9, 7]}')
    assert end_token(tmp_path, tokenizer) == 9


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rank": 0}, "rank must be more than 0"),
        ({"batch_size": 6}, "micro_batch 4 must divide batch_size 6"),
        ({"targets": ()}, "targets names no module"),
        ({"dropout": 1.0}, r"must be in \[0, 1\)"),
        ({"dtype": "float16"}, "dtype must be"),
        ({"max_pairs": 0}, "max_pairs"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        Recipe(**wrong)  # type: ignore[arg-type]


def test_a_target_that_the_model_has_not_lists_those_it_has() -> None:
    layer, linear = SimpleNamespace(), SimpleNamespace(in_features=4)
    modules = [
        ("", layer),
        ("layers.0", layer),
        ("layers.0.q_proj", linear),
        ("layers.0.mlp.up_proj", linear),
    ]
    model = SimpleNamespace(named_modules=lambda: iter(modules))
    check_modules(model, ["q_proj", "mlp.up_proj"])
    with pytest.raises(TrainingError, match=r"no module foo, v_proj; it has q_proj, up_proj$"):
        check_modules(model, ["foo", "q_proj", "v_proj"])


def test_roles_are_seeded_apart() -> None:
    assert Recipe(seed=1).role_seed("plan") == Recipe(seed=1).role_seed("plan")
    assert len({Recipe(seed=s).role_seed(r) for s in (0, 1) for r in ("plan", "action")}) == 4


def test_the_commands_words() -> None:
    assert pair_files(["plan=a.json", "act=b=c.json"]) == {"plan": Path("a.json"), "act": Path("b=c.json")}
    for words, message in ((["plan"], "must be a role's name"), (["a=b", "a=c"], "there twice")):
        with pytest.raises(TrainingError, match=message):
            pair_files(words)


def test_which_schemes_take_the_adapters_is_said() -> None:
    assert sharing_note(Recipe(), shared_a=True) is None
    assert "--shared-a" in str(sharing_note(Recipe(), shared_a=False))
    for recipe in (
        Recipe(targets=("q_proj", "k_proj", "v_proj")),
        Recipe(rank=128),
        Recipe(targets=("v_proj",)),
    ):
        assert "only `full`" in str(sharing_note(recipe, shared_a=True))


@pytest.mark.parametrize("role", ["../plan", ".plan", "", "a/b"])
def test_a_role_is_a_folders_name(role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashagents_runtime.role_training.run.check_installed", lambda: None)
    with pytest.raises(TrainingError, match="a folder's name"):
        train_roles(tmp_path, {role: [Pair("a", "b")]}, tmp_path / "out", plot=False)


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("flashagents_runtime.role_training.trainer.find_missing", lambda modules: ["peft"])
    with pytest.raises(ImportError, match=r"peft is not installed.*flashagents-autogen\[train\]"):
        train_roles(tmp_path, {"plan": [Pair("a", "b")]}, tmp_path / "out")


def test_the_command_trains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, object] = {}

    def train(
        model: Path, roles: dict[str, Path], out: Path, recipe: Recipe, **kwargs: object
    ) -> list[object]:
        seen.update(kwargs, roles=roles, recipe=recipe)
        return []

    monkeypatch.setattr("flashagents_runtime.model_store.resolve_model", lambda name, progress: tmp_path)
    monkeypatch.setattr("flashagents_runtime.role_training.train_roles", train)
    words = ["train-roles", "plan=p.json", "act=a.json", "--out", str(tmp_path), "--shared-a", "--rank", "4"]
    result = CliRunner().invoke(cli.app, [*words, "--targets", "q_proj, v_proj", "--cpu", "--quiet"])
    assert result.exit_code == 0, result.output
    assert seen["roles"] == {"plan": Path("p.json"), "act": Path("a.json")}
    assert seen["recipe"] == Recipe(rank=4)
    assert (seen["shared_a"], seen["device"]) == (True, "cpu")


def test_importing_it_is_light() -> None:
    code = (
        "import sys, flashagents_runtime.role_training as r; "
        "print([m for m in ('torch', 'transformers', 'peft', 'matplotlib') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"

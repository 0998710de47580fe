"""The tasks of `benchmarks/role_quality`: what each role reads and writes, and what is held out."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from benchmarks.role_quality import agent_text, facts, prepare
from benchmarks.role_quality.trajectories import ROLES, is_test, load, tokens_of
from flashagents_runtime.role_training import Pair, read_pairs
from helpers.tiny_tokenizer import tiny_tokenizer

REACT = """Solve it with Thought, Action, Observation.
Question: Who painted the {thing}?
Thought 1: I look it up.
Action 1: Retrieve[{thing}]
Observation 1: A painting. {more}
Thought 2: It was Vermeer.
Action 2: Finish[Vermeer]
Observation 2: Please reflect your answer.
Thought 3: I believe that is right.
Action 3: Reflect[right]
Observation 3: Answer is CORRECT"""
ENDED = (
    "Solve it.\nQuestion:Is ice cold?\nOptions:(A) yes (B) no\nThought: Easy.\nAciton: Finish[A]\n"
    "Obversation: Please reflect your answer.\nThought: Good.\n"
)


class Tokenizer:
    def encode(self, text: str) -> list[int]:
        ids: list[int] = tiny_tokenizer().encode(text, add_special_tokens=False).ids
        return ids


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files as AutoAct's and LRAgent's are, on many questions."""
    react = [
        {"prompt": REACT.format(thing=f"thing {i}", more="word " * 60), "correct": True} for i in range(30)
    ]
    (tmp_path / "hotpotqa_react_200.json").write_text(json.dumps(react))
    (tmp_path / "scienceqa_reflect.json").write_text(
        json.dumps([{"input": ENDED, "output": "Reflect[right]"}])
    )
    plans = [
        {"input": f"Head\nQuestion:Is {i} odd?\nThought: ", "output": "Let us see."} for i in range(30)
    ] + [{"input": ENDED.removesuffix("Good.\n"), "output": "Good."}]
    (tmp_path / "scienceqa_plan.json").write_text(json.dumps(plans))
    actions = [
        {"input": f"Head\nQuestion:Is {i} odd?\nThought: Hm.\nAciton: Finish", "output": "yes"}
        for i in range(30)
    ]
    (tmp_path / "hotpotqa_action.json").write_text(json.dumps(actions))
    return tmp_path


def test_a_trajectory_in_parts() -> None:
    text = agent_text.normalise(REACT.format(thing="Milkmaid", more="word " * 60), 40)
    parts = [(s.role, s.text) for s in agent_text.segments_of(text)]
    assert parts[0] == ("", agent_text.HEAD + "Question: Who painted the Milkmaid?")
    assert [p for p in parts if p[0]] == [
        ("plan", " I look it up."),
        ("plan", " Retrieve"),
        ("action", "[Milkmaid]"),
        ("plan", " It was Vermeer."),
        ("plan", " Finish"),
        ("action", "[Vermeer]"),
        ("reflect", " I believe that is right."),
        ("reflect", " Reflect[right]"),
    ]
    [observation] = [t for role, t in parts if "painting" in t]
    assert observation == "\nObservation: A painting. word word word word word ..."
    assert "".join(t for _, t in parts) == text.removesuffix("\nObservation: Answer is CORRECT")


def test_pairs_in_the_one_form() -> None:
    reads = agent_text.HEAD + "Question:Is ice cold?\nOptions:(A) yes (B) no\nThought: Easy.\nAction: Finish"
    begin = ENDED.partition("[A]")[0]
    assert agent_text.pair_of(begin, "A", "action", 600) == Pair(reads, "[A]")
    end = agent_text.pair_of(ENDED, "Reflect[right]", "reflect", 600)
    assert (
        end is not None
        and end.input.endswith("\nThought: Good.\nAction:")
        and end.output == " Reflect[right]"
    )
    assert agent_text.pair_of(ENDED.removesuffix("Good.\n"), "Good.", "plan", 600) is None


def test_what_is_held_out_is_not_trained_on(folder: Path, tmp_path: Path) -> None:
    prepare.prepare_agents(tmp_path, folder, 600, None)
    held_out = load(tmp_path / "data/agents/test.json")
    questions = {t.question.partition(" ")[2] for t in held_out}
    assert len(held_out) > 3 and all(is_test(q) for q in questions)
    for role in ROLES[:2]:
        pairs = read_pairs(tmp_path / f"data/agents/{role}.json")
        assert not {agent_text.question_of(p.input) for p in pairs} & questions
        assert len(pairs) > 10
    again = {t.question: t for t in load(tmp_path / "data/agents/test.json")}
    prepare.prepare_agents(tmp_path, folder, 600, None)
    assert again == {t.question: t for t in load(tmp_path / "data/agents/test.json")}


def test_only_the_adapter_knows_a_roles_word() -> None:
    words = facts.code_words()
    assert len({w for of_role in words.values() for w in of_role.values()}) == 36
    for trajectory in facts.make(20, seed=5):
        head, speakers = trajectory.segments[0].text, [s.role for s in trajectory.segments if s.role]
        assert not any(word in head.split() for of_role in words.values() for word in of_role.values())
        assert all(a != b for a, b in itertools.pairwise(speakers))
        for role, pair in trajectory.pairs():
            box = pair.input.rsplit("\nbox ", 1)[1][0]
            [thing] = [t for t in facts.THINGS if f"box {box}: {t}\n" in head]
            assert pair.output == f" {words[role][thing]}"
            assert pair.output not in pair.input
    assert facts.make(3, seed=1) == facts.make(3, seed=1)


def test_a_context_is_a_prefix_of_the_next() -> None:
    trajectory = facts.make(1, seed=1)[0]
    found = tokens_of(trajectory, Tokenizer())
    written = [s for s in trajectory.segments if s.role]
    assert [t.role for t in found.turns] == [s.role for s in written]
    for turn, segment in zip(found.turns, written, strict=True):
        assert tiny_tokenizer().decode(found.ids[turn.start : turn.stop]) == segment.text

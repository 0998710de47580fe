"""No chat template raises, and nothing of a conversation is lost: all templates, any conversation."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashagents_runtime import TemplateError
from flashagents_runtime.chat import ChatMessage, ImagePart
from flashagents_runtime.chat_normalise import CONTINUE, EMPTY, LATE_SYSTEM, normalise
from flashagents_runtime.chat_probe import TemplateCapabilities
from flashagents_runtime.chat_template import JinjaTemplate, Template
from flashagents_runtime.chat_tokenizer import ByteChatTokenizer, load_chat_tokenizer
from helpers import chat_templates, npm_tokenizers
from helpers.conversations import SEARCH, conversations, mark

FETCHED = ("llama3_1", "gemma3")  # their templates are not ours to ship


@pytest.fixture(scope="module", params=[*chat_templates.NAMES, *npm_tokenizers.fetched(FETCHED), "bytes"])
def template(request: pytest.FixtureRequest) -> Template:
    if request.param == "bytes":
        return ByteChatTokenizer()
    if request.param in FETCHED:
        return load_chat_tokenizer(npm_tokenizers.tokenizer_folder_or_skip(request.param))
    return chat_templates.template(request.param)


relaxed = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def places(text: str, n: int) -> list[int]:
    """Where each message's mark stands; every mark must stand exactly once."""
    assert [text.count(mark(i)) for i in range(n)] == [1] * n, text
    return [text.index(mark(i)) for i in range(n)]


@relaxed
@given(messages=conversations(), with_tools=st.booleans(), cue=st.booleans())
def test_any_conversation_comes_out_whole_and_in_order(
    template: Template, messages: list[ChatMessage], with_tools: bool, cue: bool
) -> None:
    tools = [SEARCH] if with_tools else []
    text = template.render(messages, tools=tools, generation_prompt=cue)
    found = places(text, len(messages))
    assert found == sorted(found), text
    for message in messages:
        if message.role != "tool":
            assert message.text.strip() in text
        if message.role == "user" and message.source != "user":
            assert message.source in text
    if with_tools:
        assert "query" in text


@relaxed
@given(messages=conversations(min_size=2), cut=st.integers(1, 6))
def test_a_longer_conversation_keeps_the_beginning(
    template: Template, messages: list[ChatMessage], cut: int
) -> None:
    """Up to the last text of the shorter one: this is what the KV cache lives on."""
    shorter = messages[: min(cut, len(messages) - 1)]
    last = shorter[-1]
    qwen3 = isinstance(template, JinjaTemplate) and "last_query_index" in template.chat_template
    if qwen3 and any(m.role != "user" for m in messages[len(shorter) - 1 :]):
        return  # it renders an assistant turn in another way once a user has spoken after it
    a = template.render(shorter, generation_prompt=False)
    b = template.render(messages, generation_prompt=False)
    end = a.index(mark(len(shorter) - 1)) + len(mark(len(shorter) - 1))
    if last.role != "tool" and not last.tool_calls:
        end = a.index(last.text.strip(), a.index(mark(len(shorter) - 1))) + len(last.text.strip())
    assert b[:end] == a[:end]


def user(text: str, source: str = "user") -> ChatMessage:
    return ChatMessage(role="user", content=text, source=source)


def assistant(text: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=text, source="me")


def system(text: str) -> ChatMessage:
    return ChatMessage(role="system", content=text)


CROWD = [system("Be brief."), user("Plan a trip."), user("Day 1: Rome.", "planner"), user("Go on.")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "qwen3",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nPlan a trip.<|im_end|>\n"
            "<|im_start|>user\nplanner said:\nDay 1: Rome.<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        (
            "alternating",
            "<s>[INST] Be brief.\n\nPlan a trip.\n\nplanner said:\nDay 1: Rome.\n\n"
            "user said:\nGo on. [/INST]",
        ),
        (
            "strict",
            "<system>Be brief.</system>\n<user>Plan a trip.\n\nplanner said:\nDay 1: Rome.\n\n"
            "user said:\nGo on.</user>\n<assistant>",
        ),
        (
            "named",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user name=user\nPlan a trip.<|im_end|>\n"
            "<|im_start|>user name=planner\nDay 1: Rome.<|im_end|>\n"
            "<|im_start|>user name=user\nGo on.<|im_end|>\n<|im_start|>assistant\n",
        ),
    ],
)
def test_several_speakers_in_a_row(name: str, expected: str) -> None:
    assert chat_templates.template(name).render(CROWD) == expected


@pytest.mark.parametrize("name", chat_templates.NAMES)
def test_a_late_system_message_stays_in_its_place(name: str) -> None:
    template = chat_templates.template(name)
    text = template.render(
        [system("First."), user("Hello."), assistant("Yes?"), system("Late."), user("Go.")]
    )
    assert text.index("Yes?") < text.index("Late.") < text.index("Go.")
    # Where the template has no place for it, it says what it is, and no source can say the same.
    assert (LATE_SYSTEM in text) is not template.capabilities.system_late


def test_several_leading_system_messages_are_one() -> None:
    text = chat_templates.template("qwen3").render([system("One."), system("Two."), user("Hi.")])
    assert text.startswith("<|im_start|>system\nOne.\nTwo.<|im_end|>\n<|im_start|>user\n")


def test_the_conversation_may_end_with_the_assistant() -> None:
    messages = [user("Hi."), assistant("Hello!")]
    native = chat_templates.template("qwen3").render(messages)
    assert native.endswith("Hello!<|im_end|>\n<|im_start|>assistant\n")
    asked = chat_templates.template("alternating").render(messages)
    assert asked.endswith(f" Hello!</s>[INST] {CONTINUE} [/INST]")
    assert CONTINUE not in chat_templates.template("alternating").render(messages, generation_prompt=False)


def test_the_conversation_may_start_with_the_assistant() -> None:
    text = chat_templates.template("no_system").render([assistant("I begin."), user("Fine.")])
    assert text.startswith("<s><turn>user\n</turn>\n<turn>assistant\nI begin.</turn>\n<turn>user\nFine.")


def test_empty_texts_go_through_where_a_template_refuses_them() -> None:
    text = chat_templates.template("strict").render([user("Hi."), assistant(""), user("")])
    assert text == f"<user>Hi.</user>\n<assistant>{EMPTY}</assistant>\n<user>{EMPTY}</user>\n<assistant>"


def test_no_messages_render_to_nothing() -> None:
    for name in chat_templates.NAMES:
        assert chat_templates.template(name).render([]) == ""


def test_images_keep_their_place() -> None:
    picture = ChatMessage(role="user", content=["Look:", ImagePart("data:,"), "Well?"], source="user")
    template = chat_templates.template("parts_only")
    assert template.capabilities.images
    assert template.render([picture]) == "<user>Look:<image>Well?</user>\n<assistant>"
    assert not chat_templates.template("qwen3").capabilities.images


def test_template_arguments_reach_the_template() -> None:
    text = chat_templates.template("qwen3").render([user("Hi.")], template_args={"enable_thinking": False})
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_a_template_that_takes_nothing_raises_one_clear_error() -> None:
    broken = JinjaTemplate("{{ raise_exception('no chat here') }}")
    with pytest.raises(TemplateError, match="no chat here"):
        broken.render([user("Hi.")])


def test_messages_are_not_changed() -> None:
    messages = [system("S"), user("U", "planner"), assistant("A")]
    before = [repr(m) for m in messages]
    for name in chat_templates.NAMES:
        chat_templates.template(name).render(messages)
    assert [repr(m) for m in messages] == before


EXPECTED_CAPABILITIES = {
    "smollm2": {"system", "system_alone", "system_late", "turns"},
    "qwen3": {"system", "system_alone", "system_late", "turns", "tools", "thinking"},
    "deepseek_v3": {"system", "system_alone", "turns"},
    "alternating": set(),
    "no_system": set(),
    "strict": {"system", "system_alone"},
}


@pytest.mark.parametrize("name", EXPECTED_CAPABILITIES)
def test_what_a_template_can_take_is_found_out(name: str) -> None:
    can = chat_templates.template(name).capabilities
    found = {
        field
        for field in ("system", "system_alone", "system_late", "tools", "thinking")
        if getattr(can, field)
    }
    if can.user_twice and can.assistant_twice and can.assistant_first:
        found.add("turns")
    assert found == EXPECTED_CAPABILITIES[name]


def test_probing_happens_once_a_template() -> None:
    a, b = chat_templates.template("qwen3"), chat_templates.template("qwen3")
    assert a.capabilities is b.capabilities


@pytest.mark.parametrize("name", ["Ärztin", "日本", "Dr. Who", "x" * 200, "a{{b}}%|'\"\\"])
def test_a_name_changes_nothing_but_itself(template: Template, name: str) -> None:
    def text(source: str) -> str:
        return template.render([user("Hi."), user("Day 1.", source), assistant("Ho."), user("On.", source)])

    assert text("nobody_else").count("nobody_else") == 2
    assert text(name) == text("nobody_else").replace("nobody_else", name)


def test_a_source_never_speaks_as_the_system() -> None:
    """What stands for a late system message cannot be written by a source name."""
    dicts, _ = normalise([user("Hi.", "System")], TemplateCapabilities())
    assert not dicts[0]["content"].startswith(LATE_SYSTEM)

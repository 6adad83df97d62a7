"""What is sent, what can be typed, and how it reads in words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

import msgspec
import pytest

from antwort.chat.answer import CallPart, ChatAnswer, Status
from antwort.chat.commands import COMMANDS, CommandRunner, TypedCommand, completions, parse, unknown
from antwort.chat.conversation import ApprovalDecision, ChatConversation
from antwort.chat.formatting import format_arguments, format_result, format_seconds
from antwort.chat.screen import Interrupts
from antwort.chat.server import ChatServer, Report
from chat_screen_kit import ThoughtOf

ITEM = msgspec.Raw(b'{"type":"message"}')


def ended(status: Status = "completed", response_id: str = "resp_1") -> ChatAnswer:
    return ChatAnswer(0.0, status=status, response_id=response_id, output=[ITEM])


def user(text: str) -> dict[str, object]:
    return {"type": "message", "role": "user", "content": text}


# ---- what is sent ----


def test_the_first_request_has_what_was_said_and_what_is_chosen() -> None:
    assert ChatConversation().request("Hi") == {"stream": True, "input": [user("Hi")]}
    request = ChatConversation(model="m", labels=["demo"], system="Be brief.").request("Hi")
    assert (request["model"], request["instructions"]) == ("m", "Be brief.")
    assert request["tools"] == [{"type": "mcp", "server_label": "demo", "require_approval": "never"}]


def test_the_next_request_goes_on_from_the_last_answer_that_came_to_its_end() -> None:
    conversation = ChatConversation()
    conversation.add("One", ended(response_id="resp_1"))
    conversation.add("Two", ended("failed", "resp_2"))
    conversation.add("Three", ended("cancelled", "resp_3"))
    request = conversation.request("Four")
    assert (request["previous_response_id"], request["input"]) == ("resp_1", [user("Four")])
    conversation.add("Four", ended("incomplete", "resp_4"))
    assert conversation.request("Five")["previous_response_id"] == "resp_4"


@pytest.mark.parametrize(
    ("code", "param"),
    [("previous_response_not_found", "previous_response_id"), ("", "previous_response_id"), ("response_not_found", "")],
)
def test_a_server_that_has_forgotten_is_sent_all_from_then_on(code: str, param: str) -> None:
    conversation = ChatConversation()
    conversation.add("One", ended())
    assert conversation.is_forgotten(code, param)
    request = conversation.request("Two")
    assert "previous_response_id" not in request
    assert request["input"] == [user("One"), ITEM, user("Two")]
    assert not conversation.is_forgotten(code, param)  # all was sent: it would not help to send it again


def test_an_error_about_something_else_is_no_forgetting() -> None:
    conversation = ChatConversation()
    assert not conversation.is_forgotten("previous_response_not_found", "previous_response_id")
    conversation.add("One", ended())
    assert not conversation.is_forgotten("model_not_found", "model")


def test_a_new_conversation_knows_nothing_and_keeps_what_is_chosen() -> None:
    conversation = ChatConversation(model="m", labels=["demo"])
    conversation.add("One", ended())
    conversation.is_forgotten("previous_response_not_found", "")
    conversation.clear()
    assert conversation.turns == []
    assert conversation.request("Hi")["input"] == [user("Hi")]
    conversation.add("Hi", ended(response_id="resp_2"))
    assert conversation.request("Two")["previous_response_id"] == "resp_2"
    assert (conversation.model, conversation.labels) == ("m", ["demo"])


def test_tools_are_switched_each_once() -> None:
    conversation = ChatConversation()
    for on in (True, True):
        conversation.switch("demo", on=on)
    assert conversation.labels == ["demo"]
    for on in (False, False):
        conversation.switch("demo", on=on)
    assert conversation.labels == []


# ---- what can be typed ----


@pytest.mark.parametrize(
    ("line", "typed"),
    [
        ("Hello", None),
        (" /help is a command", None),
        ("/etc/passwd\nis a file", None),
        ("/help", TypedCommand("/help")),
        ("/HELP ", TypedCommand("/help")),
        ("/exit", TypedCommand("/quit")),
        ("/model  qwen3 ", TypedCommand("/model", "qwen3")),
        ("/save! my file.md", TypedCommand("/save", "my file.md", is_forced=True)),
        ("/nonsense", TypedCommand("/nonsense")),
    ],
)
def test_a_line_is_a_command_or_for_the_model(line: str, typed: TypedCommand | None) -> None:
    assert parse(line) == typed


def test_what_is_no_command_is_told_with_what_may_be_meant() -> None:
    assert unknown("/tool") == "There is no command /tool; did you mean /tools?"
    assert unknown("/xyzzy") == "There is no command /xyzzy; /help lists what there is."


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("/", [command.name for command in COMMANDS]),
        ("/s", ["/system", "/save"]),
        ("/model ", ["small", "large"]),
        ("/model la", ["large"]),
        ("/tools ", ["demo"]),
        ("/tools demo o", ["on", "off"]),
        ("/new ", []),
        ("hello /m", []),
        ("/m\n", []),
    ],
)
def test_commands_and_what_they_take_are_completed(before: str, words: list[str]) -> None:
    assert list(completions(before, ["small", "large"], ["demo"])) == words


async def test_every_command_that_is_listed_is_known() -> None:
    class Nowhere:
        models: tuple[str, ...] = ()
        tools: Mapping[str, tuple[str, ...]] = MappingProxyType({})

        async def refresh(self, report: Report) -> None: ...

    terminal = ThoughtOf()
    runner = CommandRunner(terminal.screen, cast("ChatServer", Nowhere()), ChatConversation(), Interrupts())
    for command in COMMANDS:
        assert await runner.run(TypedCommand(command.name)) is (command.name != "/quit")
    assert "There is no command" not in terminal.written


# ---- in words ----


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"expression": "17 * 23", "digits": 4}', 'expression: "17 * 23", digits: 4'),
        ('{"deep": {"a": [1, null]}}', 'deep: {"a":[1,null]}'),
        ("", ""),
        ("{}", ""),
        ('{"half": "wri', '{"half": "wri'),
        ("[1, 2]", "[1, 2]"),
        ('{"text": "two\\nlines"}', 'text: "two\\nlines"'),
    ],
)
def test_arguments_read_as_a_person_would_write_them(arguments: str, shown: str) -> None:
    assert format_arguments(arguments) == shown


def test_long_arguments_and_results_are_shortened() -> None:
    assert len(format_arguments('{"a": "' + "x" * 9999 + '"}')) < 100
    assert len(format_arguments("x" * 9999)) == 240
    assert format_result("one\ntwo\n") == "one\ntwo"
    assert format_result("\n".join("x" * 7)) == "\n".join([*"xxxxxx", "… 1 more line"])
    assert len(format_result("y" * 9999)) == 400


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0, "0 ms"), (0.0042, "4 ms"), (0.0999, "0.1 s"), (1.26, "1.3 s"), (59.99, "60.0 s"), (125.2, "2 min 05 s")],
)
def test_seconds_are_as_exact_as_they_need_to_be(seconds: float, shown: str) -> None:
    assert format_seconds(seconds) == shown


# ---- what becomes of calls ----


def test_what_was_decided_is_sent_as_such_and_told_in_words() -> None:
    ship, wipe = CallPart("ship", "depot", approval="mcpr_1"), CallPart("wipe", "depot", approval="mcpr_2")
    given = [ApprovalDecision(ship, is_approved=True), ApprovalDecision(wipe, is_approved=False)]
    conversation = ChatConversation()
    conversation.add("Ship it.", ended())
    request = conversation.request(given)
    sent = [
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_2", "approve": False},
    ]
    assert (request["previous_response_id"], request["input"]) == ("resp_1", sent)
    conversation.add(given, ended(response_id=""))
    assert conversation.turns[-1][0] == "approved: depot.ship\ndenied: depot.wipe"
    assert conversation.request("And?")["input"] == [user("Ship it."), ITEM, *sent, ITEM, user("And?")]

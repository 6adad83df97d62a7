"""How somebody is asked about a call that waits for approval."""

from __future__ import annotations

import json

import pytest

from antwort.chat.answer import CallPart
from antwort.chat.prompt import Confirmation, confirmations


def asked(arguments: str, name: str = "run") -> Confirmation:
    (question,) = confirmations([CallPart(name=name, label="shell", arguments=arguments)])
    return question


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"command": "ls"}', 'command: "ls"'),
        ('{"a": 1, "b b": [true, null]}', 'a: 1, "b b": [true,null]'),
        ("", ""),
        ("[1]", "[1]"),
        ('{"half', '{"half'),
    ],
)
def test_what_is_short_stands_in_the_question(arguments: str, shown: str) -> None:
    assert asked(arguments) == Confirmation("", f"Run shell.run({shown})?")


@pytest.mark.parametrize("length", [101, 1000, 3000])
def test_what_is_longer_stands_above_it_to_its_last_character(length: int) -> None:
    command = "x" * length + "; rm -rf ~"
    question = asked(json.dumps({"command": command, "folder": "/"}))
    assert question == Confirmation(f'command: "{command}"\nfolder: "/"', "Run shell.run with this?")


def test_of_what_is_too_long_it_is_said_how_much_there_is_and_all_can_be_seen() -> None:
    question = asked(json.dumps({"command": "x" * 5000}))
    assert question.whole == f'command: "{"x" * 5000}"'
    assert question.above.endswith("\n… 1011 more characters, which `all` shows")
    assert len(question.above.split("\n")[0]) == 4000


def test_calls_of_one_turn_are_numbered() -> None:
    calls = [CallPart(name="run", arguments='{"n": 1}'), CallPart(name="run", arguments='{"n": 2}')]
    assert [each.question for each in confirmations(calls)] == ["Run run(n: 1), 1 of 2?", "Run run(n: 2), 2 of 2?"]


def test_no_argument_passes_for_the_question_or_for_an_order_to_the_terminal() -> None:
    question = asked(json.dumps({"command": "rm\nRun shell.run(ls)? [y/n] y \x1b[2K\u202e" + "z" * 200}))
    assert "\n" not in question.above
    assert "\x1b" not in question.above
    assert "\u202e" not in question.above

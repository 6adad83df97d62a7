"""The tools and the questions, read from their files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import yaml

from antwort.providers.base import ChatTool, ChatToolFunction

HERE = Path(__file__).parent
HALVES = ("dev", "test")
Kind: TypeAlias = Literal["none", "one", "two"]
KINDS: tuple[Kind, ...] = ("none", "one", "two")


class Expected(NamedTuple):
    """A call that a question asks for: its arguments in the words of `questions.yaml`."""

    name: str
    arguments: Mapping[str, Any]


class Question(NamedTuple):
    id: str
    ask: str
    calls: tuple[Expected, ...]

    @property
    def kind(self) -> Kind:
        return KINDS[len(self.calls)]


def load_tools(path: Path = HERE / "tools.yaml") -> tuple[ChatTool, ...]:
    return tuple(
        ChatTool(
            function=ChatToolFunction(name=tool["name"], description=tool["description"], parameters=tool["parameters"])
        )
        for tool in yaml.safe_load(path.read_text(encoding="utf-8"))
    )


def load_questions(half: str, path: Path = HERE / "questions.yaml") -> tuple[Question, ...]:
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))[half]
    return tuple(
        Question(f"{half}-{number}", entry["ask"], tuple(_expected(call) for call in entry.get("calls", ())))
        for number, entry in enumerate(entries, start=1)
    )


def _expected(call: Mapping[str, Mapping[str, Any]]) -> Expected:
    ((name, arguments),) = call.items()
    return Expected(name, arguments)

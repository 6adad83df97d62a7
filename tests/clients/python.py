"""The Python clients, imported when they are wanted: each takes seconds."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from clients.records import CASES
from clients.trying import Client


class Place(NamedTuple):
    module: str
    name: str
    extras: tuple[str, ...]
    """What this one is taken through besides what all are."""

    @property
    def cases(self) -> tuple[str, ...]:
        return (*CASES, *self.extras)


PYTHON_CLIENTS = {
    "openai-python": Place(
        "clients.with_openai_more",
        "OPENAI",
        (
            *("toolset", "sealed-reasoning", "item-reference", "slow-tool", "custom-tool"),
            *("namespace", "tool-image", "retries"),
        ),
    ),
    "openai-agents": Place(
        "clients.with_agents_more", "AGENTS", ("handoff", "toolset", "session", "sealed-reasoning", "slow-tool")
    ),
    "langchain-openai": Place("clients.with_langchain", "LANGCHAIN", ("toolset", "sealed-reasoning", "slow-tool")),
    "pydantic-ai": Place("clients.with_pydantic_ai", "PYDANTIC_AI", ("toolset", "sealed-reasoning", "slow-tool")),
}


def python_client(name: str) -> Client:
    place = PYTHON_CLIENTS[name]
    found = getattr(import_module(place.module), place.name)
    assert isinstance(found, Client)
    assert tuple(found.plays) == place.cases, f"the cases of {name} are not those that are told of it"
    return found

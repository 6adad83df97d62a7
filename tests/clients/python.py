"""The Python clients, imported when they are wanted: each takes seconds."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from clients.records import AS_IS, cases_of
from clients.trying import Client


class Place(NamedTuple):
    module: str
    name: str


PYTHON_CLIENTS = {
    "openai-python": Place("clients.with_openai_long", "OPENAI"),
    "openai-agents": Place("clients.with_agents_long", "AGENTS"),
    "langchain-openai": Place("clients.with_langchain_long", "LANGCHAIN"),
    "pydantic-ai": Place("clients.with_pydantic_ai_long", "PYDANTIC_AI"),
}


def plays_of(name: str) -> tuple[str, ...]:
    """The cases that this client plays itself."""
    return tuple(case for case in cases_of(name) if case != AS_IS)


def python_client(name: str) -> Client:
    place = PYTHON_CLIENTS[name]
    found = getattr(import_module(place.module), place.name)
    assert isinstance(found, Client)
    assert tuple(found.plays) == plays_of(name), f"the cases of {name} are not those that are told of it"
    return found

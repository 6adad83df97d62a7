"""What the runs of the chaos suite are about: five turns, each of which asks for tools. Pure.

All that the model says and asks for follows from the messages it is shown: whoever asks it again after a crash hears
the same. A call is told from all others by its place, such as `17.2.0`: story, turn, number.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

TURNS = 5
"""Turns that ask for tools; what the model says in the one behind them is the end."""
LABEL = "ledger"
"""Of the MCP server."""

Kind: TypeAlias = Literal["read", "put", "pay"]
"""What may be done with a call of which nobody knows what came of it. `read` changes nothing, `put` may be repeated;
`pay` may not."""

KINDS: tuple[Kind, ...] = ("read", "put", "pay")
_WORDS = ("the", "ship", "sails", "along", "a", "coast", "that", "no", "map", "shows", "and", "nobody", "can", "say")


class Call(NamedTuple):
    kind: Kind
    place: str


class Turn(NamedTuple):
    words: tuple[str, ...]
    calls: tuple[Call, ...]


def opening(number: int) -> str:
    """The user's message, which says which story it is."""
    return f"Tell story {number}."


def turn_of(number: int, at: int) -> Turn:
    """A turn of a story as it is told for the first time. No turn pays twice, and each story pays."""
    fate = random.Random(f"{number}.{at}")
    words = tuple(f"{fate.choice(_WORDS)} " for _ in range(fate.randint(2, 6)))
    kinds: list[Kind] = [fate.choice(KINDS[:2]) for _ in range(fate.randint(0, 2))]
    if at == number % TURNS or not kinds or fate.random() < 0.4:
        kinds.insert(fate.randint(0, len(kinds)), "pay")
    return Turn(words, tuple(Call(kind, f"{number}.{at}.{n}") for n, kind in enumerate(kinds)))


def last_words(number: int) -> tuple[str, ...]:
    return ("That ", "was ", f"story {number}.")


def told(messages: Sequence[Mapping[str, Any]]) -> tuple[int, set[str]]:
    """The story that messages are about, and the places that were asked for already, whatever came of it."""
    number, asked = -1, set[str]()
    for message in messages:
        if message["role"] == "user" and isinstance(message["content"], str):
            number = int(message["content"].removeprefix("Tell story ").rstrip("."))
        for call in message.get("tool_calls") or ():
            asked.add(place_in(call["function"]["arguments"]))
    return number, asked


def place_in(arguments: str) -> str:
    return arguments.split('"')[3]


def arguments_at(place: str) -> str:
    return f'{{"place": "{place}"}}'


def answer(messages: Sequence[Mapping[str, Any]]) -> Turn:
    """What the model says next: the first turn of which something was not asked for yet, as far as it was not."""
    number, asked = told(messages)
    for at in range(TURNS):
        turn = turn_of(number, at)
        if left := tuple(call for call in turn.calls if call.place not in asked):
            return Turn(turn.words, left)
    return Turn(last_words(number), ())

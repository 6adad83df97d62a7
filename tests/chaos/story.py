"""What the runs of the chaos suite are about: turns that ask for tools. Pure.

There are three scenes. A `story` has five turns and is told in the background. A `loop` has three, in the foreground,
and its turns also call functions that the request declares and the server runs. A `pause` has one turn, with a call to
a function of the client beside calls that the server runs.

All that the model says and asks for follows from the messages it is shown: whoever asks it again after a crash hears
the same. A call is told from all others by its place, such as `17.2.0`: story, turn, number.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, cast

Scene: TypeAlias = Literal["story", "loop", "pause"]
TURNS: Mapping[Scene, int] = {"story": 5, "loop": 3, "pause": 1}
"""Turns that ask for tools; what the model says in the one behind them is the end."""
LABEL = "ledger"
"""Of the MCP server."""

Kind: TypeAlias = Literal["read", "put", "pay", "look", "order", "ask"]
"""The tool, which says what may be done with a call whose outcome is not known. `read` and `look` change nothing, `put`
may be repeated; `pay` and `order` may not. `ask` is the client's."""

KINDS: tuple[Kind, ...] = ("read", "put", "pay")
"""The tools of the MCP server."""
FUNCTIONS: tuple[Kind, ...] = ("look", "order")
"""Functions that a request declares and the server runs."""
UNSAFE = frozenset[str]({"pay", "order"})
CLIENTS: Kind = "ask"
_WORDS = ("the", "ship", "sails", "along", "a", "coast", "that", "no", "map", "shows", "and", "nobody", "can", "say")


class Call(NamedTuple):
    kind: Kind
    place: str


class Turn(NamedTuple):
    words: tuple[str, ...]
    calls: tuple[Call, ...]


class Heard(NamedTuple):
    """What the model makes of the messages it is shown."""

    scene: Scene
    number: int
    asked: frozenset[str]
    """The places that were asked for, whatever came of it."""
    results: dict[str, str]
    """What each of them came to, by its place."""


def opening(number: int, scene: Scene = "story") -> str:
    """The user's message, which says which story it is."""
    return f"Tell {scene} {number}."


def turn_of(number: int, at: int, scene: Scene = "story") -> Turn:
    """A turn of a story as it is told for the first time."""
    fate = random.Random(f"{number}.{at}")
    words = tuple(f"{fate.choice(_WORDS)} " for _ in range(fate.randint(2, 6)))
    kinds = _KINDS_OF[scene](number, at, fate)
    return Turn(words, tuple(Call(kind, f"{number}.{at}.{n}") for n, kind in enumerate(kinds)))


def _story_kinds(number: int, at: int, fate: random.Random) -> list[Kind]:
    """No turn pays twice, and each story pays."""
    kinds: list[Kind] = [fate.choice(KINDS[:2]) for _ in range(fate.randint(0, 2))]
    if at == number % TURNS["story"] or not kinds or fate.random() < 0.4:
        kinds.insert(fate.randint(0, len(kinds)), "pay")
    return kinds


def _loop_kinds(_number: int, _at: int, fate: random.Random) -> list[Kind]:
    """One call in each turn must not be repeated."""
    safe: tuple[Kind, ...] = ("read", "put", "look")
    unsafe: tuple[Kind, ...] = ("pay", "order")
    kinds: list[Kind] = [fate.choice(safe) for _ in range(fate.randint(0, 2))]
    kinds.insert(fate.randint(0, len(kinds)), fate.choice(unsafe))
    return kinds


def _pause_kinds(_number: int, _at: int, fate: random.Random) -> list[Kind]:
    """The client's call, one of a declared function, one of the MCP server, and perhaps one that may be repeated."""
    safe: tuple[Kind, ...] = ("read", "put", "look")
    kinds: list[Kind] = [CLIENTS, "order", "pay", *fate.sample(safe, fate.randint(0, 1))]
    fate.shuffle(kinds)
    return kinds


_KINDS_OF: Mapping[Scene, Callable[[int, int, random.Random], list[Kind]]] = {
    "story": _story_kinds,
    "loop": _loop_kinds,
    "pause": _pause_kinds,
}


def calls_of(number: int, scene: Scene) -> list[Call]:
    """All calls of a story, in order."""
    return [call for at in range(TURNS[scene]) for call in turn_of(number, at, scene).calls]


def last_words(number: int) -> tuple[str, ...]:
    return ("That ", "was ", f"story {number}.")


def heard(messages: Sequence[Mapping[str, Any]]) -> Heard:
    scene, number = "story", -1
    asked: dict[str, str] = {}
    results: dict[str, str] = {}
    for message in messages:
        if message["role"] == "user" and (told := _OPENING.fullmatch(_text(message["content"]))):
            scene, number = told[1], int(told[2])
        for call in message.get("tool_calls") or ():
            asked[call["id"]] = place_in(call["function"]["arguments"])
        if message["role"] == "tool":
            results[asked[message["tool_call_id"]]] = _text(message["content"])
    return Heard(cast("Scene", scene), number, frozenset(asked.values()), results)


_OPENING = re.compile(r"Tell (story|loop|pause) (\d+)\.")


def _text(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())


def place_in(arguments: str) -> str:
    return arguments.split('"')[3]


def arguments_at(place: str) -> str:
    return f'{{"place": "{place}"}}'


def story_of(place: str) -> int:
    return int(place.partition(".")[0])


def answer(known: Heard) -> Turn:
    """What the model says next: the first turn of which something was not asked for yet, as far as it was not."""
    for at in range(TURNS[known.scene]):
        turn = turn_of(known.number, at, known.scene)
        if left := tuple(call for call in turn.calls if call.place not in known.asked):
            return Turn(turn.words, left)
    return Turn(last_words(known.number), ())

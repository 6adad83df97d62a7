"""What one step of the fuzz is: a request for a response as it is drawn, and what follows it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fuzz.backend import Play
from fuzz.bodies import ITEM, RESPONSE, bodies
from fuzz.plays import scripts
from fuzz.values import deepened, texts
from hypothesis import strategies as st

_KEPT = 40


class Pool:
    """Ids that there are, for requests to come, and whose they are."""

    def __init__(self) -> None:
        self.responses: list[str] = []
        self.items: list[str] = []
        self.owners: dict[str, str] = {}

    def learn(self, response: dict[str, Any], owner: str = "") -> None:
        self.responses = [response["id"], *self.responses][:_KEPT]
        self.items = [*(item["id"] for item in response["output"]), *self.items][:_KEPT]
        self.owners[response["id"]] = owner

    def filled(self, value: Any) -> Any:
        """The value with ids in the place of what stands for them."""
        match value:
            case dict():
                return {key: self.filled(entry) for key, entry in value.items()}
            case list():
                return [self.filled(entry) for entry in value]
            case str() if value.startswith((f"{RESPONSE}:", f"{ITEM}:")):
                what, _, place = value.partition(":")
                there = self.responses if what == RESPONSE else self.items
                return there[int(place) % len(there)] if there else value
        return value


_BROKEN = 7
"""One body in twenty is damaged: those whose number ends so."""
KEYED = ("", "", "", "own", "shared")
"""Which `Idempotency-Key` comes with a request: none, one of its own and then both once more, or one of a few."""
BEARERS = ("ann", "ann", "ann", "ann", "bob", "bob", "plain", "nobody", "wrong")
"""Whose API key comes with a request to a server that asks for one, or what else."""
strays = st.tuples(
    st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "HEAD"]),
    st.sampled_from(["/", "/v1/responses", "/v1/responses/", "/v1/models/", "/v1", "/openapi.json/", "/docs"]),
    st.lists(texts, max_size=3),
)
"""Methods and paths that may lead nowhere."""


@dataclass(frozen=True)
class Scene:
    """One request for a response, and one that follows it."""

    body: Any
    script: list[Play]
    after: str
    place: int
    damage: int
    stray: tuple[str, str, list[str]]


scenes: st.SearchStrategy[Scene] = st.builds(
    Scene,
    bodies,
    scripts,
    st.sampled_from(["", "", "", "read", "items", "list", "cancel", "delete", "model", "stray"]),
    st.integers(0, 1000),
    st.integers(0, 10_000),
    strays,
)


def encoded(plain: Any, damage: int) -> bytes:
    """The JSON of it; a little broken, for some values of `damage`."""
    body = deepened(json.dumps(plain).encode())
    if damage % 20 != _BROKEN:
        return body
    at = damage % len(body)
    match damage // 20 % 5:
        case 0:
            return body[:at]
        case 1:
            return body[:at] + b"\x00" + body[at:]
        case 2:
            return body[:at] + b"\xff" + body[at:]
        case 3:
            return body + body
    return body[:at] + b"," + body[at + 1 :]

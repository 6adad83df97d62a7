"""A request with all that it takes to send it once more: what the backend did then, and what must have been before."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuzz.backend import Call, Play, Refusal, Turn
from fuzz.server import Reply

_ID = re.compile(r"\b[a-z]{2,5}_[A-Za-z0-9]{8,}\b")


@dataclass(frozen=True)
class Asked:
    """`address` is the path as the document has it."""

    kind: str
    method: str
    address: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    script: Sequence[Play] | None = None
    must: int = 0
    """The one status that is right; 0: any that is described."""
    mark: str = ""
    """A word in the request that the backend knows its script by; empty: there is no other under way."""

    def told(self, ids: Mapping[str, str]) -> Asked:
        """The same with other ids."""
        body = None if self.body is None else _replaced(self.body.decode("latin-1"), ids).encode("latin-1")
        return dataclasses.replace(self, path=_replaced(self.path, ids), body=body)

    def ids(self) -> Iterator[str]:
        """What it names that may be the id of something."""
        yield from _ID.findall(self.path)
        yield from _ID.findall("" if self.body is None else self.body.decode("latin-1"))


def _replaced(text: str, ids: Mapping[str, str]) -> str:
    return _ID.sub(lambda found: ids.get(found[0], found[0]), text)


class Past:
    """Which request has made which response, for as long as the run takes."""

    def __init__(self) -> None:
        self._makers: dict[str, tuple[int, Asked, Sequence[str]]] = {}

    def learn(self, asked: Asked, response: Mapping[str, Any]) -> None:
        ids = [response["id"], *(item["id"] for item in response["output"])]
        for each in ids:
            self._makers.setdefault(each, (len(self._makers), asked, ids))

    def before(self, requests: Iterable[Asked]) -> list[tuple[Asked, Sequence[str]]]:
        """The requests that made what these name, and what those name in turn, in order; each with the ids it made."""
        found: dict[int, tuple[Asked, Sequence[str]]] = {}
        new = [*requests]
        while new:
            for each in {*new.pop().ids()} & self._makers.keys():
                _, asked, ids = self._makers[each]
                first = self._makers[ids[0]][0]
                if first not in found:
                    found[first] = (asked, ids)
                    new.append(asked)
        return [found[at] for at in sorted(found)]


def responses(reply: Reply) -> Iterator[dict[str, Any]]:
    """The response that a reply carries in the end, if it is one: what is wrong with it is judged elsewhere."""
    if reply.status != 200:
        return
    if reply.kind == "application/json" and _is_response(found := read(reply.body)):
        yield found
    for line in reply.body.split(b"\n") if reply.kind == "text/event-stream" else ():
        if line.startswith((b'data: {"type":"response.completed"', b'data: {"type":"response.incomplete"')):
            event = read(line.removeprefix(b"data: "))
            if isinstance(event, dict) and _is_response(event.get("response")):
                yield event["response"]


def read(body: bytes) -> Any:
    """The JSON of it, or None."""
    try:
        return json.loads(body)
    except ValueError:
        return None


def _is_response(value: Any) -> bool:
    """As far as requests that follow rely on it."""
    if not isinstance(value, dict) or not value.keys() >= {"id", "model", "output", "status", "store", "tools"}:
        return False
    return all(isinstance(item, dict) and item.keys() >= {"id", "type"} for item in value["output"])


# ---- on record ----


def as_json(asked: Asked) -> dict[str, Any]:
    plain = {each.name: getattr(asked, each.name) for each in dataclasses.fields(asked)}
    script = None if asked.script is None else [_play(play) for play in asked.script]
    body = None if asked.body is None else asked.body.decode("latin-1")
    return {**plain, "body": body, "headers": dict(asked.headers), "script": script}


def from_json(plain: Mapping[str, Any]) -> Asked:
    script = None if plain["script"] is None else [_played(play) for play in plain["script"]]
    body = None if plain["body"] is None else plain["body"].encode("latin-1")
    return Asked(**{**plain, "body": body, "script": script})


def _play(play: Play) -> dict[str, Any]:
    plain = dataclasses.asdict(play)
    return {key: value.decode("latin-1") if isinstance(value, bytes) else value for key, value in plain.items()}


def _played(plain: dict[str, Any]) -> Play:
    if "status" in plain:
        headers = tuple((name, value) for name, value in plain["headers"])
        return Refusal(plain["status"], plain["body"].encode("latin-1"), headers)
    calls = [Call(**call) for call in plain["calls"]]
    return Turn(**{**plain, "calls": calls, "junk": plain["junk"].encode("latin-1")})

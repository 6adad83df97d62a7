"""Requests that are more like those of clients, and backends that behave and do not."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import quote

from fuzz.backend import Backstage, Play
from fuzz.bodies import ITEM, RESPONSE, bodies
from fuzz.judge import Judge
from fuzz.plays import misbehaves, scripts
from fuzz.server import FuzzServer, Hang, Reply
from fuzz.tally import Tally, curl
from fuzz.values import deepened, texts
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

CREATE = "/v1/responses"
ONE = "/v1/responses/{id}"
_KEPT = 40


class Pool:
    """Ids that there are, for requests to come."""

    def __init__(self) -> None:
        self.responses: list[str] = []
        self.items: list[str] = []

    def learn(self, response: dict[str, Any]) -> None:
        self.responses = [response["id"], *self.responses][:_KEPT]
        self.items = [*(item["id"] for item in response["output"]), *self.items][:_KEPT]

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


damages = st.integers(0, 10_000)
_BROKEN = 7
"""One body in twenty is damaged: those whose number ends so."""
KEYS = ("", "", "", "own", "shared")
"""Which `Idempotency-Key` comes with a request: none, one of its own and then both once more, or one of a few."""
follow_ups = st.sampled_from(["", "", "", "read", "items", "list", "cancel", "delete", "model", "stray"])
strays = st.tuples(
    st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "HEAD"]),
    st.sampled_from(["/", "/v1/responses", "/v1/responses/", "/v1/models/", "/v1", "/openapi.json/", "/docs"]),
    st.lists(texts, max_size=3),
)
"""Methods and paths that may lead nowhere."""


def fuzz_by_hand(
    server: FuzzServer, stage: Backstage, document: dict[str, Any], count: int, start: int, tally: Tally
) -> None:
    """Send about `count` requests, some of them about responses that came of others."""
    driver = _Driver(server, stage, Judge(document), tally)
    end = tally.requests + count

    @seed(start)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(bodies, scripts, follow_ups, st.integers(0, 40), damages, strays)
    def ask(
        body: Any, script: list[Play], after: str, place: int, damage: int, stray: tuple[str, str, list[str]]
    ) -> None:
        if tally.requests < end:
            driver.create(body, script, damage, KEYS[place % len(KEYS)])
            driver.follow(after, place)
            if after == "stray":
                driver.stray(*stray)

    ask()


class _Driver:
    def __init__(self, server: FuzzServer, stage: Backstage, judge: Judge, tally: Tally) -> None:
        self._server, self._stage, self._judge, self._tally = server, stage, judge, tally
        self._pool = Pool()
        self._number = 0

    def create(self, plain: Any, script: list[Play], damage: int, key: str) -> None:
        body = encoded(self._pool.filled(plain), damage)
        self._stage.play(script)
        kind = "stream" if isinstance(plain, dict) and plain.get("stream") is True else "whole"
        headers = {"idempotency-key": self._key(key, damage)} if key else None
        reply = self._send(f"by hand: {kind}", "POST", CREATE, CREATE, body, script, headers)
        if reply is not None and reply.status == 200:
            self._learn(reply)
            self._compare(reply)
            if key == "own":
                self._repeat(reply, body, script, headers)

    def _compare(self, reply: Reply) -> None:
        """What is on record is what was answered."""
        for response in _responses(reply):
            if not response["store"]:
                continue
            kept = self._send("by hand: on record", "GET", ONE, f"{CREATE}/{response['id']}")
            if kept is not None and kept.body and json.loads(kept.body) != response:
                command = partial(curl, "GET", f"{self._server.url}{CREATE}/{response['id']}", None)
                self._tally.fail("by hand: on record", [f"{kept.body[:1500]!r} is not {response}"[:3000]], command)

    def stray(self, method: str, path: str, segments: list[str]) -> None:
        """A request for something that may not be there."""
        tail = "/".join(quote(segment.encode("utf-8", "replace"), safe="?&=%;") for segment in segments)
        began = time.perf_counter()
        command = partial(curl, method, f"{self._server.url}{path}{tail}", None)
        try:
            reply = self._server.send(method, f"{path}{tail}")
        except Hang as hang:
            self._tally.count("by hand: stray", "none", time.perf_counter() - began)
            self._tally.fail("by hand: stray", [f"no answer: {hang}"], command)
            return
        self._tally.count("by hand: stray", str(reply.status), time.perf_counter() - began)
        self._tally.fail("by hand: stray", self._judge.stray_faults(reply), command)

    def _key(self, key: str, number: int) -> str:
        self._number += 1
        return f"{key}-{self._number}" if key == "own" else f"{key}-{number % 7}"

    def _repeat(self, first: Reply, body: bytes, script: list[Play], headers: dict[str, str] | None) -> None:
        """The same once more is the same response, whatever the backend would do now."""
        kind = "by hand: again"
        again = self._send(kind, "POST", CREATE, CREATE, body, script, headers)
        if again is None:
            return
        ids = [[response["id"] for response in _responses(reply)] for reply in (first, again)]
        if ids[0] != ids[1]:
            command = partial(curl, "POST", f"{self._server.url}{CREATE}", body, headers)
            self._tally.fail(
                kind, [f"another response: {ids}, {again.status} {again.body[:300]!r}"], command, repr(script)
            )

    def _learn(self, reply: Reply) -> None:
        for response in _responses(reply):
            if response.get("store"):
                self._pool.learn(response)

    def follow(self, after: str, place: int) -> None:
        """Ask about a response that there is, maybe."""
        there = self._pool.responses
        one = there[place % len(there)] if there else f"resp_{place}"
        match after:
            case "read":
                self._send("by hand: read", "GET", ONE, f"{CREATE}/{one}")
            case "items":
                self._send("by hand: items", "GET", f"{ONE}/input_items", f"{CREATE}/{one}/input_items?limit={place}")
            case "list":
                self._send("by hand: list", "GET", CREATE, f"{CREATE}?limit=100&after={one}")
            case "cancel":
                self._send("by hand: cancel", "POST", f"{ONE}/cancel", f"{CREATE}/{one}/cancel")
            case "delete":
                self._send("by hand: delete", "DELETE", ONE, f"{CREATE}/{one}")
            case "model":
                self._send("by hand: model", "GET", "/v1/models/{name}", "/v1/models/other%2Fmodel")

    def _send(
        self,
        kind: str,
        method: str,
        address: str,
        path: str,
        body: bytes | None = None,
        script: list[Play] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply | None:
        began = time.perf_counter()
        command = partial(curl, method, f"{self._server.url}{path}", body, headers)
        told = "" if script is None else repr(script)[:2000]
        try:
            reply = self._server.send(method, path, body, headers)
        except Hang as hang:
            self._tally.count(kind, "none", time.perf_counter() - began)
            self._tally.fail(kind, [f"no answer: {hang}"], command, told)
            return None
        self._tally.count(kind, str(reply.status), time.perf_counter() - began)
        may_fail = script is not None and misbehaves(script)
        self._tally.fail(kind, self._judge.faults(method, address, reply, may_fail=may_fail), command, told)
        return reply


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


def _responses(reply: Reply) -> Iterator[dict[str, Any]]:
    """The response that the reply carries in the end."""
    if reply.kind == "application/json":
        yield json.loads(reply.body)
    for line in reply.body.split(b"\n") if reply.kind == "text/event-stream" else ():
        if line.startswith((b'data: {"type":"response.completed"', b'data: {"type":"response.incomplete"')):
            yield json.loads(line.removeprefix(b"data: "))["response"]

"""Requests that are more like those of clients, and backends that behave and do not."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from fuzz.backend import Backstage, Play
from fuzz.bodies import ITEM, RESPONSE, bodies
from fuzz.judge import Judge
from fuzz.plays import misbehaves, scripts
from fuzz.server import FuzzServer, Hang, Reply
from fuzz.tally import Tally, curl
from fuzz.values import deepened
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
follow_ups = st.sampled_from(["", "", "", "read", "items", "list", "cancel", "delete", "model", "raw"])


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
    @given(bodies, scripts, follow_ups, st.integers(0, 40), damages)
    def ask(body: Any, script: list[Play], after: str, place: int, damage: int) -> None:
        if tally.requests < end:
            driver.create(body, script, damage)
            driver.follow(after, place)

    ask()


class _Driver:
    def __init__(self, server: FuzzServer, stage: Backstage, judge: Judge, tally: Tally) -> None:
        self._server, self._stage, self._judge, self._tally = server, stage, judge, tally
        self._pool = Pool()

    def create(self, plain: Any, script: list[Play], damage: int) -> None:
        body = encoded(self._pool.filled(plain), damage)
        self._stage.play(script)
        kind = "stream" if isinstance(plain, dict) and plain.get("stream") is True else "whole"
        reply = self._send(f"by hand: {kind}", "POST", CREATE, CREATE, body, script)
        if reply is not None and reply.status == 200:
            self._learn(reply)

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
    ) -> Reply | None:
        began = time.perf_counter()
        command = curl(method, f"{self._server.url}{path}", body)
        told = "" if script is None else repr(script)[:2000]
        try:
            reply = self._server.send(method, path, body)
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

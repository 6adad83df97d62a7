"""Requests that are more like those of clients, and backends that behave and do not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from fuzz.asked import Asked, read, responses
from fuzz.backend import HELLO, Backstage
from fuzz.judge import Judge
from fuzz.plays import misbehaves
from fuzz.scenes import BEARERS, KEYED, Pool, Scene, encoded, scenes
from fuzz.server import KEYS, FuzzServer, Hang, Reply
from fuzz.tally import Tally
from fuzz.together import AT_ONCE, send_together
from hypothesis import HealthCheck, Phase, given, seed, settings

CREATE = "/v1/responses"
ONE = "/v1/responses/{id}"
_SAME = 2
"""So often is the same body sent at most; a strategy makes some of them again and again."""
_ROUNDS = 4
"""So often are more made in the place of those that were left out."""


def fuzz_by_hand(
    server: FuzzServer,
    stage: Backstage,
    document: dict[str, Any],
    count: int,
    start: int,
    tally: Tally,
    *,
    has_keys: bool = False,
) -> None:
    """Send about `count` requests, some of them about responses that came of others. With keys, several at once."""
    driver = Driver(server, stage, Judge(document), tally, has_keys=has_keys)
    end = tally.requests + count
    for turn in range(_ROUNDS):
        if tally.requests < end:
            _round(driver, tally, end, start + 1000 * turn, AT_ONCE if has_keys else 1)


def _round(driver: Driver, tally: Tally, end: int, start: int, at_once: int) -> None:
    waiting: list[Scene] = []

    @seed(start)
    @settings(
        max_examples=max(end - tally.requests, 1),
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(scenes)
    def ask(scene: Scene) -> None:
        if tally.requests < end and driver.is_new(scene):
            waiting.append(scene)
        if len(waiting) == at_once:
            driver.play(waiting[:])
            waiting.clear()

    ask()


class Driver:
    def __init__(
        self, server: FuzzServer, stage: Backstage, judge: Judge, tally: Tally, *, has_keys: bool = False
    ) -> None:
        self._server, self._stage, self._judge, self._tally = server, stage, judge, tally
        self._has_keys = has_keys
        self._pool = Pool()
        self._number = 0
        self._sent: Counter[bytes] = Counter()

    def is_new(self, scene: Scene) -> bool:
        """Whether its body has not been sent often enough."""
        self._sent[encoded(scene.body, scene.damage)] += 1
        return self._sent[encoded(scene.body, scene.damage)] <= _SAME

    def play(self, several: Sequence[Scene]) -> None:
        """Each step of all of them at once."""
        asked = [self._create(scene, is_alone=len(several) == 1) for scene in several]
        drawn = [encoded(scene.body, scene.damage) for scene in several]
        made = [*zip(asked, self._send(asked, drawn), strict=True)]
        for each, reply in made:
            if reply is not None:
                self._look_back(each, reply)
        self._send([follow for scene in several for follow in self._follow(scene)])

    # ---- asking for a response ----

    def _create(self, scene: Scene, *, is_alone: bool) -> Asked:
        self._number += 1
        plain = self._pool.filled(scene.body)
        mark = "" if is_alone else f"fuzz-mark-{self._number}"
        if mark and isinstance(plain, dict):
            plain = {**plain, "instructions": mark}
        kind = "stream" if isinstance(plain, dict) and plain.get("stream") is True else "whole"
        headers, must = self._credentials(self._number)
        if which := KEYED[scene.place % len(KEYED)]:
            headers["idempotency-key"] = f"own-{self._number}" if which == "own" else f"shared-{scene.damage % 7}"
        return Asked(
            self._kind(kind, is_alone=is_alone),
            "POST",
            CREATE,
            CREATE,
            encoded(plain, scene.damage),
            headers,
            scene.script,
            must,
            mark,
        )

    def _kind(self, kind: str, *, is_alone: bool) -> str:
        return f"by hand: {kind}" if is_alone else f"at once: {kind}"

    def _credentials(self, place: int) -> tuple[dict[str, str], int]:
        """The headers, and the status that they lead to, if it is known."""
        match BEARERS[place % len(BEARERS)] if self._has_keys else "":
            case "ann" | "bob" as name:
                return {"authorization": f"Bearer {KEYS[name]}"}, 0
            case "plain":
                return {"x-api-key": KEYS["ann"]}, 0
            case "nobody":
                return {}, 401
            case "wrong":
                return {"authorization": "Bearer sk-antwort-of-a-stranger"}, 401
        return {}, 0

    # ---- what came of it ----

    def _look_back(self, asked: Asked, reply: Reply) -> None:
        for response in responses(reply):
            if response["store"]:
                self._pool.learn(response, _bearer(asked))
                self._tally.past.learn(asked, response)
                self._compare(asked, response)
            is_own = asked.headers.get("idempotency-key", "").startswith("own-")
            if is_own and response["status"] != "failed":  # a failure may free the key
                self._repeat(asked, response)
            self._answer_calls(asked, response)

    def _compare(self, asked: Asked, response: dict[str, Any]) -> None:
        """What is on record is what was answered."""
        reading = Asked("by hand: on record", "GET", ONE, f"{CREATE}/{response['id']}", headers=_without_key(asked))
        [kept] = self._send([reading])
        if kept is not None and kept.body and read(kept.body) != response:
            self._tally.fail(reading, [f"{kept.body[:1500]!r} is not {response}"[:3000]])

    def _repeat(self, asked: Asked, response: dict[str, Any]) -> None:
        """The same once more is the same response, whatever the backend would do now."""
        again = replace(asked, kind="by hand: again", script=[HELLO])
        [reply] = self._send([again])
        ids = [] if reply is None else [each["id"] for each in responses(reply)]
        if reply is not None and ids != [response["id"]]:
            fault = f"another response: {ids}, not {response['id']}; {reply.status} {reply.body[:300]!r}"
            self._tally.fail(again, [fault], first=[asked])

    def _answer_calls(self, asked: Asked, response: dict[str, Any]) -> None:
        """As a client does that has run what it was asked to."""
        outputs = [*_outputs(response)]
        if not outputs or not response["store"]:
            return
        body: dict[str, Any] = {"model": response["model"], "input": outputs, "tools": response["tools"]}
        body |= {"previous_response_id": response["id"], "stream": len(outputs) % 2 == 1}
        follow = Asked(
            "by hand: results", "POST", CREATE, CREATE, json.dumps(body).encode(), _without_key(asked), [HELLO]
        )
        drawn = json.dumps([[{**output, "call_id": ""} for output in outputs], body["tools"]]).encode()
        [reply] = self._send([follow], [drawn])
        for each in responses(reply) if reply is not None else ():
            self._tally.past.learn(follow, each)

    # ---- what follows ----

    def _follow(self, scene: Scene) -> Iterator[Asked]:
        """A request about a response that there is, maybe; maybe one of somebody else's."""
        there, place = self._pool.responses, scene.place
        one = there[place % len(there)] if there else f"resp_{place}"
        headers, must = self._credentials(self._number + place)
        if self._has_keys and not must and self._pool.owners.get(one, _name(headers)) != _name(headers):
            must = 404
        path = f"{CREATE}/{one}"
        match scene.after:
            case "read":
                yield Asked("by hand: read", "GET", ONE, path, headers=headers, must=must)
            case "items":
                limit = place % 101
                must = must if limit or must == 401 else 400
                items = f"{path}/input_items?limit={limit}"
                yield Asked("by hand: items", "GET", f"{ONE}/input_items", items, headers=headers, must=must)
            case "list":
                listed = f"{CREATE}?limit=100&after={one}"
                yield Asked("by hand: list", "GET", CREATE, listed, headers=headers, must=must if must == 401 else 0)
            case "cancel":
                yield Asked("by hand: cancel", "POST", f"{ONE}/cancel", f"{path}/cancel", headers=headers, must=must)
            case "delete":
                yield Asked("by hand: delete", "DELETE", ONE, path, headers=headers, must=must)
            case "model":
                must = must if must == 401 else 200
                yield Asked(
                    "by hand: model", "GET", "/v1/models/{name}", "/v1/models/other%2Fmodel", None, headers, None, must
                )
            case "stray":
                yield self._stray(*scene.stray)

    def _stray(self, method: str, path: str, segments: list[str]) -> Asked:
        """A request for something that may not be there."""
        tail = "/".join(quote(segment.encode("utf-8", "replace"), safe="?&=%;") for segment in segments)
        return Asked("by hand: stray", method, "", f"{path}{tail}")

    # ---- sending ----

    def _send(self, requests: Sequence[Asked], drawn: Sequence[bytes] | None = None) -> list[Reply | None]:
        """The replies, which have been counted and judged. `drawn`: the bodies as they are counted."""
        replies: list[Reply | None] = []
        if not requests:
            return replies
        for at, (asked, reply, seconds) in enumerate(send_together(self._server, self._stage, requests)):
            body = asked.body if drawn is None else drawn[at]
            if isinstance(reply, Hang):
                self._tally.count(asked.kind, "none", seconds, body)
                self._tally.fail(asked, [f"no answer: {reply}"], beside=requests)
                replies.append(None)
                continue
            self._tally.count(asked.kind, str(reply.status), seconds, body)
            may_fail = asked.script is not None and misbehaves(asked.script)
            self._tally.fail(asked, self._judge.all_faults(asked, reply, may_fail=may_fail), beside=requests)
            replies.append(reply)
        return replies


def _without_key(asked: Asked) -> dict[str, str]:
    return {name: value for name, value in asked.headers.items() if name != "idempotency-key"}


def _bearer(asked: Asked) -> str:
    return _name(asked.headers)


def _name(headers: Any) -> str:
    """Whose key the request brings; empty where none is asked for."""
    given = headers.get("authorization", "").removeprefix("Bearer ") or headers.get("x-api-key", "")
    return next((name for name, key in KEYS.items() if key == given), "")


def _outputs(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Results of the calls that are the client's."""
    answered = {item.get("call_id") for item in response["output"] if item["type"].endswith("_output")}
    for item in response["output"]:
        if item["type"] in ("function_call", "custom_tool_call") and item.get("call_id", "") not in {*answered, ""}:
            yield {
                "type": f"{item['type']}_output",
                "call_id": item["call_id"],
                "output": f"the result of {item['name']}",
            }

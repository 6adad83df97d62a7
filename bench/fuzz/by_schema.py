"""Requests made of the server's own document by schemathesis: right ones, and wrong ones."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

import requests
import schemathesis
from fuzz.asked import Asked, responses
from fuzz.backend import HELLO, MODELS, Backstage
from fuzz.judge import Judge
from fuzz.server import PATIENCE, FuzzServer, Hang, Reply
from fuzz.tally import Tally
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
MODES = {"right": GenerationMode.POSITIVE, "wrong": GenerationMode.NEGATIVE}
_SHARE = 0.6
"""Of the requests that ask for a response."""
_PLAIN = 10
"""So many requests are sent at most to what takes nothing but headers: each is like the other."""
_SAME = 3
"""So often is the same request sent at most."""
_ROUNDS = 4
"""So often are more requests made in the place of those that were left out."""
_CONVERSATIONS = "/v1/conversations"
_SAID = b'{"items": [{"role": "user", "content": "Hello", "id": "msg_said"}]}'
_HELLO = b'{"input": [{"role": "user", "content": "Hello"}]}'


def fuzz_by_schema(
    server: FuzzServer, stage: Backstage, document: dict[str, Any], count: int, start: int, tally: Tally
) -> None:
    """Send about `count` requests: each operation gets its share of right ones and of wrong ones."""
    schema = schemathesis.openapi.from_dict(_with_streams(document))
    operations = [each.ok() for each in schema.get_all_operations() if isinstance(each, Ok)]
    with requests.Session() as session:
        driver = _Driver(server, stage, Judge(document), tally, session)
        for mode in MODES:
            there = [each for each in operations if mode == "right" or not _is_plain(each)]
            for operation, number in _shares(there, count // 2):
                driver.run(mode, operation, number, start)


def _with_streams(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the items of streams where schemathesis looks for them: as OpenAPI 3.2 has it."""
    changed: dict[str, Any] = json.loads(json.dumps(document))
    for path in changed["paths"].values():
        for method in path.keys() & {"get", "post"}:
            content = path[method]["responses"].get("200", {}).get("content", {})
            if "text/event-stream" in content:
                content["text/event-stream"] = {"itemSchema": content["text/event-stream"]["x-itemSchema"]}
    return changed


def _shares(operations: Sequence[Any], count: int) -> Iterator[tuple[Any, int]]:
    """What is left of the share of others goes to the one that asks for a response."""
    others = [operation for operation in operations if not _is_main(operation)]
    share = max(1, int(count * (1 - _SHARE)) // len(others))
    left = count
    for operation in others:
        number = min(share, _PLAIN) if _is_plain(operation) else share
        left -= number
        yield operation, number
    yield next(filter(_is_main, operations)), left


def _is_plain(operation: Any) -> bool:
    """Whether it takes nothing but headers or the name of a model, in which no text is wrong."""
    return "{id}" not in operation.path and not operation.query and not operation.body


def _is_main(operation: Any) -> bool:
    return bool((operation.method.upper(), operation.path) == ("POST", "/v1/responses"))


class _Driver:
    def __init__(
        self, server: FuzzServer, stage: Backstage, judge: Judge, tally: Tally, session: requests.Session
    ) -> None:
        self._server, self._stage, self._judge, self._tally, self._session = server, stage, judge, tally, session
        self._number = 0
        self._sent: Counter[bytes] = Counter()

    def run(self, mode: str, operation: Any, count: int, start: int) -> None:
        """More are made for those that would only repeat others."""
        kind = f"{mode}: {operation.method.upper()} {operation.path}"
        known = {"name": MODELS[0]} if mode == "right" and "{name}" in operation.path else None
        cases = operation.as_strategy(generation_mode=MODES[mode], path_parameters=known)
        end = self._tally.requests + count
        for turn in range(_ROUNDS):
            if self._tally.requests < end:
                self._round(kind, cases, end, start + 1000 * turn)

    def _round(self, kind: str, cases: Any, end: int, start: int) -> None:
        @seed(start)
        @settings(
            max_examples=end - self._tally.requests,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(cases)
        def check(case: Case[Any]) -> None:
            if self._tally.requests < end and self._is_new(case):
                self._number += 1
                self._check(kind, self._prepared(kind, case))

        check()

    def _is_new(self, case: Case[Any]) -> bool:
        given = (case.method, case.path, case.path_parameters, case.query, case.body)
        said = repr(given).encode("utf-8", "replace")
        is_headed = case.operation.path != "/v1/responses" and bool(case.headers)
        seen = sha256(said + repr(case.headers).encode("utf-8", "replace") if is_headed else said).digest()
        self._sent[seen] += 1
        return self._sent[seen] <= _SAME

    def _prepared(self, kind: str, case: Case[Any]) -> Case[Any]:
        """With the ids of what there is: schemathesis would never guess them. Keys are no other request's."""
        if kind.startswith("right") and "{id}" in case.operation.path and (made := self._made(kind, case)):
            case.path_parameters = {**case.path_parameters, **made}
        if kind.startswith("right") and self._number % 5:
            case.body = _saying_something(case.body)
        key = case.headers.get("Idempotency-Key") if case.headers else None
        if isinstance(key, str) and _KEY.fullmatch(key):
            if self._number % 5:
                del case.headers["Idempotency-Key"]
            else:
                case.headers["Idempotency-Key"] = f"{key[:100]}-{self._number}"
        return case

    def _made(self, kind: str, case: Case[Any]) -> dict[str, str]:
        """The parameters of the path: of a response, or of a conversation and its item."""
        if not case.operation.path.startswith(_CONVERSATIONS):
            made = self._make(kind)
            return {} if made is None else {"id": made}
        reply = self._server.send("POST", _CONVERSATIONS, _SAID)
        ids = {"id": json.loads(reply.body)["id"], "item_id": "msg_said"}
        return {name: value for name, value in ids.items() if f"{{{name}}}" in case.operation.path}

    def _make(self, kind: str) -> str | None:
        asked = Asked(f"{kind}: its response", "POST", "/v1/responses", "/v1/responses", _HELLO, script=[HELLO])
        self._stage.play([HELLO])
        try:
            reply = self._server.send(asked.method, asked.path, asked.body)
        except Hang as hang:
            self._tally.fail(asked, [f"no answer: {hang}"])
            return None
        made = [*responses(reply)]
        if not made:
            self._tally.fail(asked, [f"no response could be made: {reply.status} {reply.body[:300]!r}"])
            return None
        self._tally.past.learn(asked, made[0])
        found: str = made[0]["id"]
        return found

    def _check(self, kind: str, case: Case[Any]) -> None:
        began = time.perf_counter()
        try:
            answer = case.call(base_url=self._server.url, session=self._session, timeout=PATIENCE)
        except requests.RequestException as exc:
            self._tally.count(kind, "none", time.perf_counter() - began)
            self._tally.fail(_asked(kind, case, exc.request), [f"no answer: {type(exc).__name__}: {exc}"])
            return
        asked = _asked(kind, case, answer.request)
        self._tally.count(kind, str(answer.status_code), time.perf_counter() - began, asked.body)
        self._tally.fail(asked, [*self._faults(case, answer), *self._own_faults(asked, answer)])

    def _faults(self, case: Case[Any], answer: Any) -> Iterator[str]:
        try:
            case.validate_response(answer, checks=CHECKS)
        except FailureGroup as group:
            yield from (_words(each, answer) for each in group.exceptions)
        except Failure as exc:
            yield _words(exc, answer)

    def _own_faults(self, asked: Asked, answer: Any) -> Iterator[str]:
        """Streams, which schemathesis takes for texts."""
        headers = {name: values[0] for name, values in answer.headers.items()}
        reply = Reply(answer.status_code, headers, answer.content)
        if reply.kind == "text/event-stream":
            yield from self._judge.all_faults(asked, reply)


def _saying_something(body: Any) -> Any:
    """The body with an input: without, it may be refused before anybody is asked."""
    if isinstance(body, dict) and not (body.get("input") or body.get("instructions")):
        return {**body, "input": "Hello"}
    return body


def _words(failure: Failure, answer: Any) -> str:
    return f"{type(failure).__name__}: {failure.message[:400]} ({answer.status_code} {answer.content[:300]!r})"


_KEY = re.compile("[!-~]{1,255}")


def _asked(kind: str, case: Case[Any], sent: Any) -> Asked:
    """The request as it went out."""
    body = sent.body.encode() if isinstance(sent.body, str) else sent.body
    headers = {_text(name): _text(value) for name, value in sent.headers.items() if name.lower() not in _OF_HTTP}
    return Asked(kind, case.method, case.operation.path, sent.path_url, body, headers, [HELLO])


_OF_HTTP = ("content-length", "host", "connection", "accept-encoding")


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value

"""`make fuzz`, a little of it; and that it would find what it looks for."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import pytest
from fuzz.by_hand import Pool, encoded
from fuzz.judge import Judge
from fuzz.run import fuzz
from fuzz.server import Reply
from fuzz.tally import Tally, curl
from fuzz.values import deepened

from openapi_kit import described

JUDGE = Judge(described())
ERROR = b'{"error": {"message": "no", "type": "t", "param": null, "code": "c"}}'


@pytest.mark.xdist_group("fuzz")
def test_a_few_hundred_requests_find_nothing() -> None:
    tally = fuzz(240, 20261115)
    assert not tally.failures, "\n".join(tally.lines())
    assert 240 <= tally.requests < 250
    statuses = {status for counted in tally.answers.values() for status in counted}
    assert {"200", "400", "404"} <= statuses


def judged(
    status: int, body: bytes, kind: str = "application/json", *, may_fail: bool = False, path: str = "/v1/responses"
) -> list[str]:
    headers: Mapping[str, str] = {"content-type": kind}
    method = "POST" if path == "/v1/responses" else "GET"
    return [*JUDGE.faults(method, path, Reply(status, headers, body), may_fail=may_fail)]


def test_an_answer_that_is_described_is_right() -> None:
    assert judged(400, ERROR) == []
    assert judged(200, b'{"status": "ok"}', path="/healthz") == []
    assert judged(502, ERROR, may_fail=True) == []


@pytest.mark.parametrize(
    ("status", "body", "kind", "fault"),
    [
        (500, ERROR, "application/json", "status 500"),
        (502, ERROR, "application/json", "status 502"),
        (418, ERROR, "application/json", "not described"),
        (400, ERROR, "text/plain", "content type"),
        (400, b"{", "application/json", "no JSON"),
        (400, b"{}", "application/json", "not as described"),
        (200, b'{"id": "resp_1"}', "application/json", "not as described"),
        (200, b'data: {"type":"response.created"}\n\ndata: [DONE]\n\n', "text/event-stream", "not grammatical"),
    ],
)
def test_an_answer_that_is_not_is_a_fault(status: int, body: bytes, kind: str, fault: str) -> None:
    assert any(fault in found for found in judged(status, body, kind))


def test_a_500_is_a_fault_whatever_the_backend_did() -> None:
    assert judged(500, ERROR, may_fail=True) != []


@pytest.mark.parametrize("body", [b'{"a": "it\'s"}', b'{"a": "\xc3\xa9\\n"}', b"\x00\xff'"])
def test_a_failure_can_be_repeated_in_a_shell(body: bytes) -> None:
    tally = Tally()
    tally.count("whole", "500", 0.1)
    tally.fail("whole", ["status 500"], lambda: curl("POST", "http://127.0.0.1:1/v1/responses", body), "a script")
    [failure] = tally.failures
    assert "failures: 1" in "\n".join(tally.lines())
    assert failure.command in "\n".join(tally.lines())
    words = failure.command.partition("--data-binary ")[2]
    given = words[2:-1].encode().decode("unicode_escape") if words[0] == "$" else shlex.split(words)[0]
    assert given.encode("latin-1") == body


def test_what_stands_for_ids_is_filled_in() -> None:
    pool = Pool()
    assert pool.filled({"a": ["@item:1"]}) == {"a": ["@item:1"]}
    response: dict[str, Any] = {"id": "resp_1", "output": [{"id": "msg_1"}, {"id": "msg_2"}]}
    pool.learn(response)
    assert pool.filled({"a": ["@item:3", "@response:9", "x"]}) == {"a": ["msg_2", "resp_1", "x"]}


def test_deep_values_are_as_deep_as_they_say_and_some_bodies_are_damaged() -> None:
    assert json.loads(deepened(b'{"x": "@deep:4"}')) == {"x": {"a": [{"a": [1]}]}}
    assert encoded({"a": 1}, 0) == b'{"a": 1}'
    assert all(encoded({"a": 1}, 7 + 20 * each) != b'{"a": 1}' for each in range(5))

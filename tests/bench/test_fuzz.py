"""`make fuzz`, a little of it; and that it would find what it looks for."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from fuzz.again import again
from fuzz.asked import Asked, as_json, from_json
from fuzz.backend import Backstage, Play, Turn
from fuzz.by_hand import CREATE
from fuzz.by_schema import _Driver
from fuzz.judge import Judge
from fuzz.plays import scripts
from fuzz.run import fuzz
from fuzz.scenes import Pool, encoded
from fuzz.server import FuzzServer, Reply
from fuzz.tally import Tally
from fuzz.values import deepened
from hypothesis import Phase, given, settings

from openapi_kit import described

JUDGE = Judge(described())
SERVER = {"tool_calling": "native", "default_model": None, "has_keys": False}
ERROR = b'{"error": {"message": "no", "type": "t", "param": null, "code": "c"}}'


@pytest.mark.xdist_group("fuzz")
def test_a_few_requests_find_nothing() -> None:
    tally = fuzz(100, 20261115)
    assert not tally.failures, "\n".join(tally.lines())
    assert 100 <= tally.requests < 150
    assert tally.distinct > 30
    statuses = {status for counted in tally.answers.values() for status in counted}
    assert {"200", "400", "401", "404"} <= statuses
    assert {kind.partition(":")[0] for kind in tally.answers} == {"right", "wrong", "by hand", "at once", "socket"}


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


def kept(tally: Tally) -> Path:
    """What the one failure was kept in, as its command names it."""
    [failure] = tally.failures
    assert failure.command in "\n".join(tally.lines())
    *_, module, path = shlex.split(failure.command)
    assert module == "fuzz.again"
    return Path(path)


def test_a_failure_is_sent_again_by_its_command_with_what_was_before_it(tmp_path: Path) -> None:
    """The ids are others then."""
    tally = Tally(server=SERVER, folder=tmp_path)
    create = Asked("whole", "POST", CREATE, CREATE, b'{"model": "test-model", "input": "Hi"}', script=[Turn()])
    tally.past.learn(create, {"id": "resp_0123456789", "output": [{"id": "msg_0123456789"}]})
    item = b'[{"type": "item_reference", "id": "msg_0123456789"}]'
    body = b'{"model": "test-model", "previous_response_id": "resp_0123456789", "input": %b}' % item
    second = Asked("whole", "POST", CREATE, CREATE, body, script=[Turn(words=["It's \u00e9"])])
    tally.past.learn(second, {"id": "resp_9876543210", "output": []})
    tally.fail(Asked("read", "GET", f"{CREATE}/{{id}}", f"{CREATE}/resp_9876543210", must=418), ["status 200"])
    assert "failures: 1" in "\n".join(tally.lines())
    [line] = again(json.loads(kept(tally).read_text()))
    assert line.startswith(f"FAILED GET {CREATE}/resp_")
    assert "resp_9876543210" not in line
    assert "status 200, not 418" in line


def test_a_repeat_that_is_another_response_is_found_again(tmp_path: Path) -> None:
    tally = Tally(server=SERVER, folder=tmp_path)
    one = Asked("whole", "POST", CREATE, CREATE, b'{"model": "test-model", "input": "Hi"}', script=[Turn()])
    tally.fail(one, ["another response"], first=[one])
    assert again(json.loads(kept(tally).read_text()))[-1].startswith("FAILED another response: [['resp_")
    kept_key = replace(one, headers={"idempotency-key": "own-1"})
    tally.failures.clear()
    tally.fail(kept_key, ["another response"], first=[kept_key])
    assert not [line for line in again(json.loads(kept(tally).read_text())) if line.startswith("FAILED")]


def test_what_was_sent_at_once_is_sent_at_once_again_each_with_its_own_script(tmp_path: Path) -> None:
    several = [
        Asked(
            "at once: whole",
            "POST",
            CREATE,
            CREATE,
            b'{"model": "test-model", "input": "Hi", "instructions": "fuzz-mark-%d"}' % number,
            script=[Turn(words=[f"number {number}"])],
            mark=f"fuzz-mark-{number}",
        )
        for number in range(4)
    ]
    tally = Tally(server=SERVER, folder=tmp_path)
    tally.fail(several[2], ["status 500"], beside=several)
    lines = again(json.loads(kept(tally).read_text()))
    assert [number for line in lines for number in range(4) if f"number {number}" in line] == [2, 0, 1, 3]


@given(scripts)
@settings(max_examples=30, phases=[Phase.generate], derandomize=True)
def test_a_request_is_read_as_it_was_kept(script: list[Play]) -> None:
    asked = Asked("k", "POST", CREATE, CREATE, b"\x00\xff'", {"x": "\xe9"}, script, 401, "fuzz-mark-1")
    read = from_json(json.loads(json.dumps(as_json(asked))))
    assert read.script is not None
    assert [type(play) for play in read.script] == [type(play) for play in script]
    assert replace(read, script=None) == replace(asked, script=None)
    assert json.dumps(as_json(read)) == json.dumps(as_json(asked))


def test_a_server_that_makes_no_responses_is_told_of_and_ends_nothing(tmp_path: Path) -> None:
    class Broken(FuzzServer):
        def __init__(self) -> None: ...

        def send(self, *_: object, **__: object) -> Reply:
            return Reply(500, {"content-type": "application/json"}, ERROR)

    tally = Tally(folder=tmp_path)
    with Backstage() as stage, requests.Session() as session:
        driver = _Driver(Broken(), stage, JUDGE, tally, session)
        assert driver._make("right: GET /v1/responses/{id}") is None
    assert "no response could be made: 500" in "\n".join(tally.lines())


def test_bodies_are_counted_once() -> None:
    tally = Tally()
    for body in (b"{}", b"{}", b"[]", None):
        tally.count("whole", "200", 0.1, body)
    tally.count("stream", "200", 0.1, b"{}")
    assert (tally.requests, tally.distinct) == (5, 2)
    assert "whole         4        2" in "\n".join(tally.lines())


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

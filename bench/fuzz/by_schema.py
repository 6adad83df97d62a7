"""Requests made of the server's own document by schemathesis: right ones, and wrong ones."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import requests
import schemathesis
from fuzz.backend import MODELS
from fuzz.judge import Judge
from fuzz.server import PATIENCE, FuzzServer, Reply
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


def fuzz_by_schema(server: FuzzServer, document: dict[str, Any], count: int, start: int, tally: Tally) -> None:
    """Send about `count` requests: each operation gets its share of right ones and of wrong ones."""
    schema = schemathesis.openapi.from_dict(_with_streams(document))
    operations = [each.ok() for each in schema.get_all_operations() if isinstance(each, Ok)]
    with requests.Session() as session:
        driver = _Driver(server, Judge(document), tally, session)
        _drive(driver, operations, count, start)


def _drive(driver: _Driver, operations: Sequence[Any], count: int, start: int) -> None:
    for mode, (operation, number) in ((mode, share) for mode in MODES for share in _shares(operations, count // 2)):
        kind = f"{mode}: {operation.method.upper()} {operation.path}"
        known = driver.known(operation.path) if mode == "right" else None
        cases = operation.as_strategy(generation_mode=MODES[mode], path_parameters=known)
        driver.run(kind, cases, number, start)


def _with_streams(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the items of streams where schemathesis looks for them: as OpenAPI 3.2 has it."""
    changed: dict[str, Any] = json.loads(json.dumps(document))
    content = changed["paths"]["/v1/responses"]["post"]["responses"]["200"]["content"]
    content["text/event-stream"] = {"itemSchema": content["text/event-stream"]["x-itemSchema"]}
    return changed


def _shares(operations: Sequence[Any], count: int) -> Iterator[tuple[Any, int]]:
    main = int(count * _SHARE)
    for operation in operations:
        is_main = (operation.method.upper(), operation.path) == ("POST", "/v1/responses")
        yield operation, main if is_main else max(1, (count - main) // (len(operations) - 1))


class _Driver:
    def __init__(self, server: FuzzServer, judge: Judge, tally: Tally, session: requests.Session) -> None:
        self._server, self._judge, self._tally, self._session = server, judge, tally, session

    def known(self, address: str) -> dict[str, str] | None:
        """What there is of the kind that the address names: schemathesis would never guess it."""
        if "{name}" in address:
            return {"name": MODELS[0]}
        if "{id}" not in address:
            return None
        made = self._server.send("POST", "/v1/responses", b'{"input": [{"role": "user", "content": "Hello"}]}')
        return {"id": json.loads(made.body)["id"]}

    def run(self, kind: str, cases: Any, count: int, start: int) -> None:
        @seed(start)
        @settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(cases)
        def check(case: Case[Any]) -> None:
            self._check(kind, case)

        check()

    def _check(self, kind: str, case: Case[Any]) -> None:
        began = time.perf_counter()
        try:
            answer = case.call(base_url=self._server.url, session=self._session, timeout=PATIENCE)
        except requests.RequestException as exc:
            self._tally.count(kind, "none", time.perf_counter() - began)
            self._tally.fail(kind, [f"no answer: {type(exc).__name__}: {exc}"], partial(self._command, case))
            return
        self._tally.count(kind, str(answer.status_code), time.perf_counter() - began)
        faults = [*self._faults(case, answer), *self._own_faults(case, answer)]
        self._tally.fail(kind, faults, partial(self._command, case))

    def _faults(self, case: Case[Any], answer: Any) -> Iterator[str]:
        try:
            case.validate_response(answer, checks=CHECKS)
        except FailureGroup as group:
            yield from (f"{type(each).__name__}: {each.message[:400]}" for each in group.exceptions)
        except Failure as exc:
            yield f"{type(exc).__name__}: {exc.message[:400]}"

    def _own_faults(self, case: Case[Any], answer: Any) -> Iterator[str]:
        """Streams, which schemathesis takes for texts."""
        headers = {name: values[0] for name, values in answer.headers.items()}
        reply = Reply(answer.status_code, headers, answer.content)
        if reply.kind == "text/event-stream":
            yield from self._judge.faults(case.method, case.operation.path, reply)

    def _command(self, case: Case[Any]) -> str:
        return case.as_curl_command(base_url=self._server.url)

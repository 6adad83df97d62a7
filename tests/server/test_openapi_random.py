"""Requests of all kinds: what is read is described, and what is described is read."""

from __future__ import annotations

import json
from typing import Any

import schemathesis
from fuzz.bodies import bodies
from fuzz.scenes import encoded
from hypothesis import HealthCheck, Phase, assume, given, settings
from schemathesis import Case

from antwort.api.decoding import Limits
from antwort.api.requests import parse_request
from antwort.errors import InvalidField
from openapi_kit import described, faults

OPERATION = schemathesis.openapi.from_dict(described())["/v1/responses"]["POST"]
BEYOND_SCHEMAS = {"duplicate_tool", "too_many_tools", "string_above_max_length"}
"""What no schema can say, or does not: sizes in bytes, sums, and names that stand twice."""


RANDOM = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
"""The same each time. A failure is told as it is: to find its smallest form would take minutes."""


def refusal(body: bytes) -> InvalidField | None:
    try:
        parse_request(body, Limits())
    except InvalidField as fault:
        return fault
    return None


def is_readable(body: bytes) -> bool:
    """Whether it is JSON that a validator can be given: half a character is no text."""
    try:
        json.loads(body).__repr__().encode()
        return b"\\ud800" not in body
    except (ValueError, RecursionError):
        return False


@RANDOM
@given(bodies)
def test_what_is_read_is_described(body: dict[str, Any]) -> None:
    written = encoded(body, 0)
    assume(is_readable(written) and refusal(written) is None)
    assert faults("CreateResponse", json.loads(written)) == []


@RANDOM
@given(OPERATION.as_strategy())
def test_what_is_described_is_read(case: Case[Any]) -> None:
    found = refusal(json.dumps(case.body).encode())
    if found is not None and "expected `int" not in found.message:  # to a schema, 1.0 is whole
        assert found.code in BEYOND_SCHEMAS, found.message

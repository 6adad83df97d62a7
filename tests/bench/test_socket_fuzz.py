"""WebSockets on which anything is said, a little of it; and that it would find what it looks for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from connections.frames import CLOSE, TEXT
from fuzz.backend import Backstage
from fuzz.by_socket import BREACHES, _error_faults, fuzz_by_socket
from fuzz.server import FuzzServer, serving
from fuzz.tally import Tally
from fuzz.wire import Closed, SocketWire, fragmented, framed

pytestmark = pytest.mark.xdist_group("fuzz")

CREATE = b'{"type": "response.create", "model": "test-model", "input": "Hello", "store": false}'


@pytest.fixture(scope="module")
def stage() -> Iterator[Backstage]:
    with Backstage() as running:
        yield running


@pytest.fixture(scope="module")
def server(stage: Backstage) -> Iterator[FuzzServer]:
    with serving(stage.port, tool_calling="native", default_model=None) as running:
        yield running
        assert "Traceback" not in running.log()


def completes(wire: SocketWire) -> bool:
    wire.write(framed(TEXT, CREATE))
    return bool(wire.turn()[-1]["type"] == "response.completed")


@pytest.mark.parametrize("breach", sorted(BREACHES))
def test_a_breach_of_the_protocol_ends_in_a_close_and_the_server_lives(server: FuzzServer, breach: str) -> None:
    with SocketWire(server.port) as wire:
        assert completes(wire)
        wire.write(BREACHES[breach])
        assert wire.ending() in {"too large": {1009}, "no UTF-8": {1007}, "a surrogate": {1007}}.get(breach, {1002})
        with pytest.raises(Closed):
            wire.next()
    with SocketWire(server.port) as wire:
        assert completes(wire)


def test_a_message_in_pieces_is_one_message_whatever_comes_between_them(server: FuzzServer) -> None:
    with SocketWire(server.port) as wire:
        wire.write(fragmented(CREATE, 5, [framed(9, b"between")]))
        assert wire.turn()[-1]["type"] == "response.completed"


def test_a_close_in_the_middle_of_a_turn_is_answered(server: FuzzServer) -> None:
    with SocketWire(server.port) as wire:
        wire.write(framed(TEXT, CREATE) + framed(CLOSE, (1000).to_bytes(2, "big")))
        assert wire.ending() == 1000


def test_a_few_connections_find_nothing(server: FuzzServer, stage: Backstage) -> None:
    tally = Tally()
    document = json.loads(server.send("GET", "/openapi.json").body)
    fuzz_by_socket(server, stage, document, 60, 20261115, tally)
    assert not tally.failures, "\n".join(tally.lines())
    assert tally.requests >= 60
    assert "socket: create" in tally.answers


def error(**changed: Any) -> dict[str, Any]:
    return {"type": "error", "status": 400, "error": {"code": "c", "message": "m"}, **changed}


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        ([error(status=500)], "status 500"),
        ([error(status=502)], "status 502"),
        ([error(status=None)], "not in its shape"),
        ([error(error={"message": "m"})], "not in its shape"),
        ([error(error={"code": None, "message": "m"})], "too little"),
        ([{"type": "response.created"}, error()], "after response.created"),
    ],
)
def test_an_error_that_is_not_right_is_a_fault(events: list[dict[str, Any]], fault: str) -> None:
    assert any(fault in found for found in _error_faults(events, may_fail=False))


def test_an_error_of_the_backend_is_right_where_it_has_failed() -> None:
    assert [*_error_faults([error(status=502)], may_fail=True)] == []

"""WebSockets on which anything may be said: each message is answered, each breach of the protocol ends in a close."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from connections.frames import CLOSE, PING, TEXT
from fuzz.backend import Backstage, Play
from fuzz.bodies import bodies
from fuzz.judge import BACKEND_FAILED, Judge
from fuzz.plays import misbehaves, scripts
from fuzz.scenes import Pool, encoded
from fuzz.server import FuzzServer, Hang, Reply
from fuzz.tally import Tally
from fuzz.values import anything, texts
from fuzz.wire import Closed, SocketWire, fragmented, framed
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

BINARY = 2
NORMAL = 1000
_FLOOD = 300
_HUGE = 1 << 40
Doing: TypeAlias = Literal[
    "create", "odd", "fragments", "binary", "ping", "flood", "breach", "leave", "close", "pipeline"
]
_DOINGS: tuple[Doing, ...] = (
    *("create", "create", "create", "odd", "odd", "fragments", "fragments", "binary"),
    *("ping", "flood", "breach", "breach", "leave", "close", "pipeline"),
)
BREACHES = {
    "no mask": framed(TEXT, b"{}", is_masked=False),
    "reserved bits": framed(TEXT, b"{}", reserved=5),
    "compressed, unasked": framed(TEXT, b"{}", reserved=4),
    "unknown opcode": framed(3, b"{}"),
    "unknown control opcode": framed(11, b""),
    "long ping": framed(PING, b"x" * 126),
    "ping in pieces": framed(PING, b"x", is_final=False),
    "continuation of nothing": framed(0, b"{}"),
    "text inside a text": framed(TEXT, b"{", is_final=False) + framed(TEXT, b"}"),
    "no UTF-8": framed(TEXT, b'{"type": "\xff"}'),
    "a surrogate": framed(TEXT, b"\xed\xa0\x80"),
    "too large": framed(TEXT, b"x", size=_HUGE),
    "a close of one byte": framed(CLOSE, b"\x03"),
    "a close with an unknown code": framed(CLOSE, (5).to_bytes(2, "big")),
    "HTTP": b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
}
"""What ends a connection."""


@dataclass(frozen=True)
class Act:
    """One thing that a client does."""

    doing: Doing
    body: Any
    script: list[Play]
    odd: Any
    breach: str
    damage: int
    pieces: int


def _acts(doing: Doing) -> st.SearchStrategy[Act]:
    """Only what is needed is drawn: bodies take their time."""
    asks = doing in ("create", "fragments", "binary", "leave", "close")
    return st.builds(
        Act,
        st.just(doing),
        bodies if asks else st.none(),
        scripts if asks else st.just([]),
        st.one_of(anything, texts) if doing == "odd" else st.none(),
        st.sampled_from(sorted(BREACHES)) if doing == "breach" else st.just(""),
        st.integers(0, 10_000),
        st.integers(2, 5),
    )


acts = st.sampled_from(_DOINGS).flatmap(_acts)


def fuzz_by_socket(
    server: FuzzServer, stage: Backstage, document: dict[str, Any], count: int, start: int, tally: Tally
) -> None:
    """Do about `count` things, a few on each connection."""
    end = tally.requests + count
    driver = _Driver(server, stage, Judge(document), tally)

    @seed(start)
    @settings(
        max_examples=max(count, 1),
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(acts, min_size=1, max_size=4))
    def play(scene: list[Act]) -> None:
        if tally.requests < end:
            driver.play(scene)

    play()


class _Driver:
    def __init__(self, server: FuzzServer, stage: Backstage, judge: Judge, tally: Tally) -> None:
        self._server, self._stage, self._judge, self._tally = server, stage, judge, tally
        self._pool = Pool()

    def play(self, scene: Sequence[Act]) -> None:
        """One connection, until it is over or nothing is left to do."""
        try:
            with SocketWire(self._server.port) as wire:
                for act in scene:
                    if not self._done(wire, act):
                        return
                wire.write(framed(CLOSE, NORMAL.to_bytes(2, "big")))
                self._judged("socket: end", [] if wire.ending() == NORMAL else ["a close was not answered"])
        except Hang as hang:
            self._fail("socket: open", str(hang))

    def _done(self, wire: SocketWire, act: Act) -> bool:
        """Whether the connection goes on."""
        kind, began = f"socket: {act.doing}", time.perf_counter()
        outcome, faults, goes_on = "closed", list[str](), False
        try:
            outcome, faults = self._act(wire, act)
            goes_on = outcome not in ("closed", "left")
        except Closed as closed:
            faults = [f"closed with {closed.code} after {act.doing}"]
        except (Hang, ValueError, AssertionError) as exc:
            faults = [f"{type(exc).__name__}: {exc}"]
        self._tally.count(kind, outcome, time.perf_counter() - began, repr(act).encode("utf-8", "replace"))
        for fault in faults:
            self._fail(kind, f"{fault} ({act!r})"[:2000])
        return goes_on and not faults

    def _judged(self, kind: str, faults: list[str]) -> None:
        for fault in faults:
            self._fail(kind, fault)

    def _fail(self, kind: str, fault: str) -> None:
        self._tally.fail_alone(kind, fault, "make fuzz with the same COUNT and SEED")

    # ---- what a client does ----

    def _act(self, wire: SocketWire, act: Act) -> tuple[str, list[str]]:
        self._stage.play(act.script)
        match act.doing:
            case "create":
                return self._said(wire, self._message(act), act)
            case "odd":
                return self._said(wire, json.dumps(act.odd).encode(), act)
            case "fragments":
                return self._in_pieces(wire, act)
            case "binary":
                wire.write(framed(BINARY, self._message(act)))
                return self._told(wire.turn(), act)
            case "ping" | "flood":
                return self._pinged(wire, 1 if act.doing == "ping" else _FLOOD)
            case "breach":
                wire.write(BREACHES[act.breach])
                return self._ended(wire.ending(), may_be_silent=act.breach == "HTTP")
            case "leave":
                data = framed(TEXT, self._message(act))
                wire.write(data[: 1 + act.damage % len(data)])
                return "left", []
            case "close":
                wire.write(framed(TEXT, self._message(act)) + framed(CLOSE, NORMAL.to_bytes(2, "big")))
                return self._ended(wire.ending(), may_be_silent=False)
            case "pipeline":
                return self._piped(wire)

    def _message(self, act: Act) -> bytes:
        body = self._pool.filled(act.body)
        plain = {"type": "response.create", **body} if isinstance(body, dict) else body
        return encoded(plain, act.damage)

    def _said(self, wire: SocketWire, text: bytes, act: Act) -> tuple[str, list[str]]:
        wire.write(framed(TEXT, text))
        if not _is_utf8(text):
            return self._ended(wire.ending(), may_be_silent=False)
        return self._told(wire.turn(), act)

    def _in_pieces(self, wire: SocketWire, act: Act) -> tuple[str, list[str]]:
        text = self._message(act)
        wire.write(fragmented(text, act.pieces, [framed(PING, b"between")]))
        if not _is_utf8(text):
            return self._ended(wire.ending(), may_be_silent=False)
        return self._told(wire.turn(), act)

    def _pinged(self, wire: SocketWire, number: int) -> tuple[str, list[str]]:
        """The last of them is answered; a server need not answer each of many."""
        payloads = [b"%d" % at for at in range(number)]
        wire.write(b"".join(framed(PING, payload) for payload in payloads))
        while wire.pong() != payloads[-1]:
            pass
        return "pong", []

    def _piped(self, wire: SocketWire) -> tuple[str, list[str]]:
        """Three at once: they are answered one after the other."""
        self._stage.play([])
        text = b'{"type": "response.create", "model": "test-model", "input": "Hello", "store": false}'
        wire.write(framed(TEXT, text) * 3)
        calm = Act("create", None, [], None, "", 0, 2)
        answers = [self._told(wire.turn(), calm) for _ in range(3)]
        statuses = [outcome for outcome, _ in answers]
        faults = [fault for _, found in answers for fault in found]
        return statuses[0], faults + ([] if statuses == ["completed"] * 3 else [f"three at once came to {statuses}"])

    # ---- what it comes to ----

    def _ended(self, code: int, *, may_be_silent: bool) -> tuple[str, list[str]]:
        return "closed", [] if code or may_be_silent else ["the connection ended without a close"]

    def _told(self, events: list[dict[str, Any]], act: Act) -> tuple[str, list[str]]:
        last = events[-1]
        if last["type"] == "error":
            return str(last.get("status")), [*_error_faults(events, may_fail=misbehaves(act.script))]
        body = "".join(f"event: {event['type']}\ndata: {_written(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        reply = Reply(200, {"content-type": "text/event-stream"}, body.encode())
        if last["response"]["store"] and last["response"]["status"] == "completed":
            self._pool.learn(last["response"])
        status = last["response"]["status"]
        return status, [*self._judge.faults("POST", "/v1/responses", reply)]


def _written(event: dict[str, Any]) -> str:
    """Without the name of the lane, which only a WebSocket has."""
    return json.dumps({name: value for name, value in event.items() if name != "stream_id"})


def _error_faults(events: Sequence[dict[str, Any]], *, may_fail: bool) -> Iterator[str]:
    if len(events) > 1:
        yield f"an error after {events[-2]['type']}"
    error, status = events[-1].get("error"), events[-1].get("status")
    if not isinstance(status, int) or not isinstance(error, dict) or not {"code", "message"} <= error.keys():
        yield f"an error that is not in its shape: {events[-1]}"
    elif not isinstance(error["code"], str) or not error["message"]:
        yield f"an error that says too little: {events[-1]}"
    elif status >= 500 and not (may_fail and status in BACKEND_FAILED):
        yield f"status {status}: {events[-1]}"


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True

"""What a client says on a WebSocket, and the events that it hears. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from antwort.api.decoding import Limits, Steps, body_steps, kind_of, known_fields
from antwort.api.events import Event, StreamEvent
from antwort.api.payload import CUT_FROM, json_pieces, payload
from antwort.api.requests import REQUEST_FIELDS, CreateRequest, read_steps
from antwort.api.standard import OPENAI, STANDARD, Wording
from antwort.api.wire import Plain, Wire, encode, replace
from antwort.engine.runs.event_log import NumberedBatch
from antwort.errors import InvalidField

CREATE = "response.create"
_STEER = "response.steer"
_IGNORED = frozenset({"response.processed"})
"""What some clients say and expect no answer to."""
LONGEST_NAME = 64
_BODY = known_fields(*REQUEST_FIELDS, "type", "stream_id")
_BINARY = "Messages are JSON, in text frames; this one is binary."


class Heard(msgspec.Struct, frozen=True):
    """A message that wants a response, as far as it is understood: what is wrong with its body comes later."""

    body: Plain
    raw: bytes

    @property
    def previous(self) -> str | None:
        """The response that it is to continue."""
        given = self.body.get("previous_response_id")
        return given if isinstance(given, str) else None

    @property
    def lane(self) -> str | None:
        """What OpenAI's clients name a stream of responses by; its events carry it."""
        given = self.body.get("stream_id")
        if given is not None and (not isinstance(given, str) or not 0 < len(given) <= LONGEST_NAME):
            raise InvalidField("stream_id", f"expected a text of 1 to {LONGEST_NAME} characters.")
        return given

    def request_steps(self, limits: Limits) -> Steps[CreateRequest]:
        """The request, which is streamed. Raises `InvalidField`."""
        self._check_transport()
        request = yield from read_steps(self.body, limits, raw=self.raw)
        return replace(request, stream=True)

    def _check_transport(self) -> None:
        """The standard wants neither of these fields here. What only repeats what is so anyway does no harm, and some
        clients send it.
        """
        if self.body.get("stream") is False:
            raise InvalidField("stream", "a response over WebSocket is always streamed; leave it out.")
        if self.body.get("background"):
            raise InvalidField("background", "there are no background responses over WebSocket; leave it out.")


class Steered(Wire):
    """Input for a response that is under way, as it came."""

    input: Any
    previous_response_id: str


class SteerError(Wire):
    code: str = "steering_not_supported"
    message: str = "A response that is under way takes no input here; send it with the next response.create."
    type: str = "invalid_request_error"


class SteerFailed(Event, tag="response.steer.failed", kw_only=True):
    """Gives it back, for the client to send it with its next turn. It belongs to no stream, and is the only one."""

    sequence_number: int = 0
    error: SteerError = SteerError()
    steer: Steered


def _read_steer(body: Plain) -> SteerFailed:
    previous, given = body.get("previous_response_id"), body.get("input")
    if not isinstance(previous, str):
        raise InvalidField("previous_response_id", f"expected a string, got {kind_of(previous)}.")
    if not given or not isinstance(given, str | list):
        raise InvalidField("input", "expected a text or a list of items, not empty.")
    return SteerFailed(steer=Steered(input=given, previous_response_id=previous))


def message_steps(message: str | bytes, limits: Limits) -> Steps[Heard | SteerFailed | None]:
    """What was said, or the answer where that can only be one; nothing, when none is expected. Raises
    `InvalidField` and `TooManyValues`.
    """
    if isinstance(message, bytes):
        raise InvalidField("", _BINARY, code="invalid_json")
    body, raw = yield from body_steps(message.encode(), _BODY, limits)
    kind: Any = body.get("type")
    if kind == CREATE:
        return Heard(body, raw)
    if kind == _STEER:
        return _read_steer(body)
    if isinstance(kind, str) and kind in _IGNORED:
        return None
    if kind is None:
        raise InvalidField("type", f"missing; send '{CREATE}'.", code="missing_required_parameter")
    said = f" {kind[:LONGEST_NAME]!r}" if isinstance(kind, str) else ""
    raise InvalidField("type", f"a message of the type{said} is not known here; send '{CREATE}'.")


# ---- events ----

_heads: dict[Wording, dict[type, tuple[bytes, int]]] = {OPENAI: {}, STANDARD: {}}


def _head(kind: type[StreamEvent], wording: Wording) -> tuple[bytes, int]:
    """How a message of this kind begins, up to its number; and how much of the event's JSON that replaces."""
    opening = f'{{"type":"{wording.name(kind)}"'
    _heads[wording][kind] = found = f'{opening},"sequence_number":'.encode(), len(opening)
    return found


def written(
    batches: Sequence[NumberedBatch], wording: Wording, lane: str | None = None
) -> Iterator[bytes | Iterator[bytes]]:
    """A message for each event, a large one piece by piece; for a tick without events, none."""
    heads, write = _heads[wording], wording.encode
    mark = b"" if lane is None else b',"stream_id":%b' % encode(lane)
    for batch in batches:
        for number, event in enumerate(batch.events, batch.first):
            head, cut = heads.get(event.__class__) or _head(event.__class__, wording)
            opening = b"%b%d%b" % (head, number, mark)
            if payload(event) > CUT_FROM:
                yield _large(event, wording, opening, cut)
            else:
                yield opening + write(event)[cut:]


def _large(event: StreamEvent, wording: Wording, opening: bytes, cut: int) -> Iterator[bytes]:
    pieces = json_pieces(wording.plain(event))
    yield opening + next(pieces)[cut:]
    yield from pieces

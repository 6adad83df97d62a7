"""Parse the messages of WebSocket clients, and encode events as messages. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from antwort.api.decoding import KnownFields, Limits, Steps, body_steps, kind_of
from antwort.api.events import Event, StreamEvent
from antwort.api.payload import CUT_FROM, json_pieces, payload
from antwort.api.requests import REQUEST_FIELDS, CreateRequest, read_steps
from antwort.api.standard import OPENAI, STANDARD, Wording
from antwort.api.wire import Plain, Wire, encode, replace
from antwort.engine.runs.event_log import NumberedBatch
from antwort.errors import InvalidField
from antwort.suggestions import WITHOUT_EFFECT

CREATE = "response.create"
_STEER = "response.steer"
_IGNORED = frozenset({"response.processed"})
"""Types of messages that need no answer."""
MAX_NAME = 64
_BODY = KnownFields(*REQUEST_FIELDS, "type", "stream_id", without_effect=WITHOUT_EFFECT)
_BINARY = "Messages are JSON, in text frames; this one is binary."


class CreateMessage(msgspec.Struct, frozen=True):
    """A message that asks for a response. Its body is decoded and not checked."""

    body: Plain
    raw: bytes

    @property
    def previous(self) -> str | None:
        """The response that the request continues."""
        given = self.body.get("previous_response_id")
        return given if isinstance(given, str) else None

    @property
    def stream_id(self) -> str | None:
        """The name that OpenAI's clients give to a stream of responses. Its events repeat it. Raises `InvalidField`."""
        given = self.body.get("stream_id")
        if given is not None and (not isinstance(given, str) or not 0 < len(given) <= MAX_NAME):
            raise InvalidField("stream_id", f"expected a text of 1 to {MAX_NAME} characters.")
        return given

    def request_steps(self, limits: Limits) -> Steps[CreateRequest]:
        """Parse the request, in pieces; it is always streamed. Raises `InvalidField`."""
        # The standard allows neither field here. Values without effect are accepted, because some clients send them.
        if self.body.get("stream") is False:
            raise InvalidField("stream", "a response over WebSocket is always streamed; leave it out.")
        if self.body.get("background"):
            raise InvalidField("background", "there are no background responses over WebSocket; leave it out.")
        request = yield from read_steps(self.body, limits, raw=self.raw)
        return replace(request, stream=True)


class Steer(Wire):
    """Input for a response in progress, as the client sent it."""

    input: Any
    previous_response_id: str


class SteerError(Wire):
    code: str = "steering_not_supported"
    message: str = "A response that is under way takes no input here; send it with the next response.create."
    type: str = "invalid_request_error"


class SteerFailed(Event, tag="response.steer.failed", kw_only=True):
    """Return the input, for the client to send it with its next request. The event belongs to no stream."""

    sequence_number: int = 0
    error: SteerError = SteerError()
    steer: Steer


def _read_steer(body: Plain) -> SteerFailed:
    previous, given = body.get("previous_response_id"), body.get("input")
    if not isinstance(previous, str):
        raise InvalidField("previous_response_id", f"expected a string, got {kind_of(previous)}.")
    if not given or not isinstance(given, str | list):
        raise InvalidField("input", "expected a text or a list of items, not empty.")
    return SteerFailed(steer=Steer(input=given, previous_response_id=previous))


def message_steps(message: str | bytes, limits: Limits) -> Steps[CreateMessage | SteerFailed | None]:
    """Parse a message, in pieces. Return a request, or the only possible answer, or None if none is expected. Raises
    `InvalidField` and `TooManyValues`.
    """
    if isinstance(message, bytes):
        raise InvalidField("", _BINARY, code="invalid_json")
    body, raw = yield from body_steps(message.encode(), _BODY, limits)
    kind: Any = body.get("type")
    if kind == CREATE:
        return CreateMessage(body, raw)
    if kind == _STEER:
        return _read_steer(body)
    if isinstance(kind, str) and kind in _IGNORED:
        return None
    if kind is None:
        raise InvalidField("type", f"missing; send '{CREATE}'.", code="missing_required_parameter")
    said = f" {kind[:MAX_NAME]!r}" if isinstance(kind, str) else ""
    raise InvalidField("type", f"a message of the type{said} is not known here; send '{CREATE}'.")


# ---- events ----

_heads: dict[Wording, dict[type, tuple[bytes, int]]] = {OPENAI: {}, STANDARD: {}}


def _head(kind: type[StreamEvent], wording: Wording) -> tuple[bytes, int]:
    """Return the beginning of such a message, up to its number, and how many bytes of the event's JSON it replaces."""
    opening = f'{{"type":"{wording.name(kind)}"'
    _heads[wording][kind] = found = f'{opening},"sequence_number":'.encode(), len(opening)
    return found


def written(
    batches: Sequence[NumberedBatch], wording: Wording, stream_id: str | None = None
) -> Iterator[bytes | Iterator[bytes]]:
    """Yield a message for each event, a large one as an iterator of pieces."""
    heads, write = _heads[wording], wording.encode
    mark = b"" if stream_id is None else b',"stream_id":%b' % encode(stream_id)
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

"""WebSocket on the address of responses, said as the standard's own document says it: OpenAPI has no word for it."""

from __future__ import annotations

from antwort.api.wire import Plain
from antwort.server.messages import CREATE, MAX_NAME
from antwort.server.openapi.schemas import Schemas, any_of, ref

ADDRESS = "/v1/responses"
KEY = "x-openresponses-websocket"
MESSAGE, ERROR = "WebSocketResponseCreateEvent", "WebSocketErrorEvent"
LANE: Plain = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_NAME,
    "description": "A name for a stream of responses on a WebSocket: its events carry it where the client gives one.",
}

IN_A_SENTENCE = (
    f"The same address speaks WebSocket, for many responses on one connection: each message is a `{MESSAGE}`, and the"
    f" events come back as messages, each a `StreamEvent`. What goes wrong before the first of them is a `{ERROR}`."
)
SOCKET: Plain = {
    "description": (
        f"Open a WebSocket to `{ADDRESS}`. A message makes a response; those that come meanwhile wait for their turn."
        f" The events are those of a stream, one message each, without a `[DONE]`; an error is a `{ERROR}`, and the"
        " connection goes on. `response.steer` is answered with `response.steer.failed`, which gives the input back."
    ),
    "clientMessage": ref(MESSAGE),
    "errorMessage": ref(ERROR),
    "x-openresponses-added-in": "2026-04-24",
}


def socket_schemas() -> Schemas:
    """What a client sends. What it hears is made with the other answers."""
    own: Plain = {
        "type": {"enum": [CREATE]},
        "stream": {"enum": [True, None], "description": "Can be left out: it is always one."},
        "stream_id": any_of(LANE, {"type": "null"}),
        "background": {"enum": [False, None], "description": "Can be left out: there is none."},
    }
    return {
        MESSAGE: {
            "type": "object",
            "description": "Asks for a response on a WebSocket: a `CreateResponse` that says what it is.",
            "properties": own,
            "required": ["type"],
            "allOf": [ref("CreateResponse")],
        }
    }

"""Chunks as backends send them, in few words, and what a parser makes of them."""

from __future__ import annotations

import json
from typing import Any

from antwort.providers.base import Delta, Finished
from antwort.providers.chat_parser import ChatParser

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"


def event(chunk: Json) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def delta(finish: str | None = None, **fields: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def calls(*pieces: Json, finish: str | None = None, **fields: Any) -> bytes:
    return delta(finish, tool_calls=list(pieces), **fields)


def piece(name: str | None = None, arguments: object = None, **fields: Any) -> Json:
    function = {"name": name, "arguments": arguments}
    return {"function": {key: value for key, value in function.items() if value is not None}, **fields}


def read(*events: bytes) -> list[Delta]:
    parser = ChatParser()
    return [found for data in events for found in parser.feed(data)] + parser.finish()


def before_the_end(*events: bytes) -> list[Delta]:
    *deltas, last = read(*events, delta("stop"), DONE)
    assert last == Finished("stop")
    return deltas

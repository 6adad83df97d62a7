"""A Chat Completions backend that does as it is told, well or badly, in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias

from replay_backend import Answer, Backend, Seen, sse, whole

MODELS = ("test-model", "other/model")
Json: TypeAlias = dict[str, Any]
Damage: TypeAlias = Literal["", "cut", "garbage", "odd chunk", "no end", "early end", "split"]


@dataclass(frozen=True)
class Call:
    """A call of the tool in this place of the request's list, or of one that it does not know."""

    place: int
    arguments: str
    is_unknown: bool = False


@dataclass(frozen=True)
class Turn:
    """One answer of the model."""

    thoughts: Sequence[str] = ()
    words: Sequence[str] = ("Hello",)
    refusal: str = ""
    calls: Sequence[Call] = ()
    finish: str | None = "stop"
    usage: Json | None = field(default_factory=lambda: {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12})
    damage: Damage = ""
    junk: bytes = b""


@dataclass(frozen=True)
class Refusal:
    """An error in its place."""

    status: int
    body: bytes = b'{"error": {"message": "no", "type": "error", "code": null}}'
    headers: tuple[tuple[str, str], ...] = ()


Play: TypeAlias = Turn | Refusal
HELLO = Turn()
MARK = re.compile("fuzz-mark-[0-9]+")


class FuzzBackend(Backend):
    """Plays the `script`, one entry for each inference, and then says hello. Requests with a mark have their own."""

    def __init__(self) -> None:
        super().__init__((sse(),))
        self.script: list[Play] = []
        self.marked: dict[str, list[Play]] = {}

    def chosen(self) -> Answer:
        asked = self.requests.pop()
        if asked.method == "GET":
            listed = [{"id": name, "object": "model", "created": 1, "owned_by": "fuzz"} for name in MODELS]
            return whole(json.dumps({"object": "list", "data": listed}).encode())
        script = self._script(asked.body)
        return _answer(script.pop(0) if script else HELLO, asked)

    def _script(self, body: bytes) -> list[Play]:
        """That of the mark in the request, of several that are under way."""
        found = MARK.search(body.decode("utf-8", "replace"))
        return self.script if found is None else self.marked.get(found[0], [])


def _answer(play: Play, asked: Seen) -> Answer:
    if isinstance(play, Refusal):
        return whole(play.body, play.status, dict(play.headers))
    body = json.loads(asked.body)
    names = [tool["function"]["name"] for tool in body.get("tools") or ()]
    calls = [_call(at, call, names) for at, call in enumerate(play.calls)]
    return _streamed(play, calls) if body.get("stream") else _whole(play, calls)


def _call(at: int, call: Call, names: Sequence[str]) -> Json:
    name = "nobody" if call.is_unknown or not names else names[call.place % len(names)]
    function = {"name": name, "arguments": call.arguments}
    return {"index": at, "id": f"call_{at}", "type": "function", "function": function}


def _streamed(play: Turn, calls: Sequence[Json]) -> Answer:
    deltas: list[Json] = [{"reasoning_content": thought} for thought in play.thoughts]
    deltas += [{"content": word} for word in play.words]
    deltas += [{"refusal": play.refusal}] if play.refusal else []
    deltas += [{"tool_calls": [call]} for call in calls]
    frames = [_frame({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) for delta in deltas]
    end: Json = {"choices": [{"index": 0, "delta": {}, "finish_reason": play.finish}], "usage": play.usage}
    return _damaged([*frames, _frame(end), b"data: [DONE]\n\n"], play)


def _frame(chunk: Json) -> bytes:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return f"data: {json.dumps({**head, **chunk})}\n\n".encode()


def _damaged(frames: list[bytes], play: Turn) -> Answer:
    half = len(frames) // 2
    match play.damage:
        case "cut":
            return sse(*frames[:half], ending="cut")
        case "garbage":
            return sse(*frames[:half], play.junk, *frames[half:])
        case "odd chunk":
            return sse(*frames[:half], b"data: " + play.junk.replace(b"\n", b"") + b"\n\n", *frames[half:])
        case "no end":
            return sse(*frames[:-1])
        case "early end":
            return sse(*frames[:half])
        case "split":
            return sse(b"".join(frames)).split(7)
    return sse(*frames)


def _whole(play: Turn, calls: Sequence[Json]) -> Answer:
    message: Json = {"role": "assistant", "content": "".join(play.words) or None}
    if play.thoughts:
        message["reasoning_content"] = "".join(play.thoughts)
    if play.refusal:
        message["refusal"] = play.refusal
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": play.finish}
    body = json.dumps({"id": "c", "object": "chat.completion", "choices": [choice], "usage": play.usage}).encode()
    match play.damage:
        case "cut" | "early end":
            return Answer((body[: len(body) // 2],), headers={"content-length": str(len(body))}, framing="eof")
        case "garbage" | "odd chunk":
            return whole(play.junk)
    return whole(body)


class Backstage:
    """Use as a context: the backend runs in a thread."""

    def __init__(self) -> None:
        self.backend = FuzzBackend()
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def play(self, script: Sequence[Play]) -> None:
        """The next inferences are answered so. Nothing is under way by then."""
        self.backend.script = list(script)

    def play_marked(self, scripts: dict[str, list[Play]]) -> None:
        """The next inferences for requests with these marks are answered so."""
        self.backend.marked = scripts

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self.backend.accept, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self.backend.close())
        self._loop.close()

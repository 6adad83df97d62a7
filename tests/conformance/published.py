"""What the published compliance tests of the standard ask of a server, in our own words, and one more that is proposed
there. Each check is handed a server that answers; all it sees is held against the standard's types and the grammar.

Published tests are lax about order, numbers and names. These are not: streams go through the grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

from antwort.api.items import Message, OutputText, Phase
from antwort.api.responses import Response
from antwort.api.standard import wording
from antwort.api.wire import decode
from antwort.testing import check_frames
from raw_http import Reply, ask
from scenes import data_of
from socket_kit import Socket, connected
from standard import validate_compaction, validate_event, validate_response, validate_socket_error

Json: TypeAlias = dict[str, Any]

KEY = {"authorization": "Bearer any-key"}
HEART = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4"
    "//8/w38GIAXDIBKE0DHxgljNBAAO9TXL0Y4OHwAAAABJRU5ErkJggg=="
)
WEATHER: Json = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}


@dataclass(frozen=True)
class Place:
    """Where the server is, and what it writes."""

    port: int
    model: str
    strict: bool = False

    async def post(self, path: str, **body: Any) -> Reply:
        return await ask(self.port, "POST", f"/v1/responses{path}", body, KEY)

    async def answer(self, **body: Any) -> Json:
        """A response that is not streamed: completed, and with an output."""
        reply = await self.post("", model=self.model, **body)
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json"), reply.body
        response: Json = reply.json()
        validate_response(response)
        assert response["output"]
        return response

    async def completed(self, **body: Any) -> None:
        assert (await self.answer(**body))["status"] == "completed"

    async def events(self, **body: Any) -> list[Json]:
        """A streamed response, event by event."""
        reply = await self.post("", model=self.model, stream=True, **body)
        assert reply.status == 200, reply.body
        check_frames(reply.body, strict=self.strict)
        return [checked(event) for event in data_of(reply.body)]

    async def window(self, *items: Json) -> Json:
        """What was said, compacted."""
        reply = await self.post("/compact", model=self.model, input=list(items), prompt_cache_key="published")
        assert reply.status == 200, reply.body
        window: Json = reply.json()
        validate_compaction(window)
        assert window["object"] == "response.compaction"
        assert "compaction" in [item["type"] for item in window["output"]]
        return window

    def socket(self) -> AbstractAsyncContextManager[Socket]:
        return connected(self.port, headers=KEY, strict=self.strict)

    async def turn(self, socket: Socket, **body: Any) -> Response:
        """A turn on the connection, which must be completed."""
        already = len(socket.heard)
        response = await socket.ask(**{"model": self.model, **body})
        events = [checked(event) for event in socket.heard[already:]]
        assert events[-1]["response"]["status"] == "completed"
        assert events[-1]["response"]["output"]
        return response


def checked(event: Json) -> Json:
    validate_event(event)
    if "response" in event:
        validate_response(event["response"])
    return event


def said(role: str, content: Any, **more: Any) -> Json:
    return {"type": "message", "role": role, "content": content, **more}


def user(text: str) -> Json:
    return said("user", text)


# ---- HTTP ----


async def basic_response(place: Place) -> None:
    await place.completed(input=[user("Say hello in exactly 3 words.")])


async def assistant_phase(place: Place) -> None:
    thinking = said("assistant", "I will look at it step by step.", phase="commentary")
    await place.completed(input=[user("2 + 2?"), thinking, said("assistant", "4", phase="final_answer"), user("Why?")])


async def output_phase_schema(place: Place) -> None:
    """Nothing is sent: a response with both phases is written as the standard has it, and read again."""
    phases: tuple[Phase, ...] = ("commentary", "final_answer")
    output = tuple(
        Message(id=f"msg_{phase}", role="assistant", content=(OutputText(text="Hm."),), phase=phase) for phase in phases
    )
    response = Response(id="resp_1", created_at=1, completed_at=2, status="completed", model="m", output=output)
    written = wording(strict=place.strict).encode(response)
    validate_response(decode(written, dict[str, Any]))
    assert decode(written, Response) == response


async def streaming_response(place: Place) -> None:
    events = await place.events(input=[user("Count from 1 to 5.")])
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["status"] == "completed"


async def system_prompt(place: Place) -> None:
    await place.completed(input=[said("system", "You are a pirate."), user("Say hello.")])


async def tool_calling(place: Place) -> None:
    response = await place.answer(input=[user("What's the weather like in San Francisco?")], tools=[WEATHER])
    assert "function_call" in [item["type"] for item in response["output"]]


async def tool_calling_streaming(place: Place) -> None:
    """Proposed, and not among the 17: a call as it comes in a stream."""
    events = await place.events(input=[user("What's the weather like in San Francisco?")], tools=[WEATHER])
    kinds = [event["type"] for event in events]
    items = [event["item"] for event in events if event.get("item", {}).get("type") == "function_call"]
    added, done = items
    assert (added["name"], added["status"], added["arguments"]) == ("get_weather", "in_progress", "")
    assert (done["name"], done["status"]) == ("get_weather", "completed")
    pieces = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    [whole] = [event["arguments"] for event in events if event["type"] == "response.function_call_arguments.done"]
    assert "".join(pieces) == whole == done["arguments"]
    assert kinds.index("response.function_call_arguments.delta") < kinds.index("response.function_call_arguments.done")


async def image_input(place: Place) -> None:
    parts = [{"type": "input_text", "text": "What do you see?"}, {"type": "input_image", "image_url": HEART}]
    await place.completed(input=[said("user", parts)])


async def multi_turn(place: Place) -> None:
    hello = said("assistant", "Hello Alice! Nice to meet you.")
    await place.completed(input=[user("My name is Alice."), hello, user("What is my name?")])


async def compact_response(place: Place) -> None:
    await place.window(user("Plan a trip to Lisbon."), said("assistant", "Three days: Alfama, Belém, Sintra."))


async def compact_missing_model(place: Place) -> None:
    reply = await place.post("/compact", input=[user("Hello")])
    assert reply.status in (400, 422)
    assert reply.error["param"] == "model"


# ---- WebSocket ----


async def websocket_response(place: Place) -> None:
    async with place.socket() as socket:
        await place.turn(socket, input=[user("Say hello.")])


async def websocket_sequential_responses(place: Place) -> None:
    async with place.socket() as socket:
        first = await place.turn(socket, store=False, input="Say one.")
        second = await place.turn(socket, store=False, input="Say two.")
    assert first.id != second.id


async def websocket_continuation(place: Place) -> None:
    async with place.socket() as socket:
        first = await place.turn(socket, store=False, input="Remember the word ember.")
        second = await place.turn(socket, store=False, previous_response_id=first.id, input="Which word?")
    assert second.previous_response_id == first.id


async def websocket_reconnect_recovery(place: Place) -> None:
    """What only a connection remembered is gone with it; the next one says so, and goes on."""
    async with place.socket() as socket:
        first = await place.turn(socket, store=False, input="Remember the word ember.")
    async with place.socket() as socket:
        await is_not_found(place, socket, first.id)
        await place.turn(socket, store=False, input="Then let us start anew.")


async def websocket_previous_response_not_found(place: Place) -> None:
    async with place.socket() as socket:
        await is_not_found(place, socket, "resp_00000000000000000000000000000000")


async def websocket_failed_continuation_evicts(place: Place) -> None:
    async with place.socket() as socket:
        first = await place.turn(socket, store=False, input="Say hello.")
        result = {"type": "function_call_output", "call_id": "call_nobody_made", "output": "{}"}
        await socket.create(model=place.model, store=False, previous_response_id=first.id, input=[result])
        failed = await socket.hear()
        assert failed["type"] == "error"
        validate_socket_error(failed)
        await is_not_found(place, socket, first.id)


async def is_not_found(place: Place, socket: Socket, response_id: str) -> None:
    await socket.create(model=place.model, store=False, previous_response_id=response_id, input="Go on.")
    error = await socket.hear()
    assert (error["type"], error["error"]["code"]) == ("error", "previous_response_not_found")
    validate_socket_error(error)


async def websocket_compact_new_chain(place: Place) -> None:
    window = await place.window(
        said("user", [{"type": "input_text", "text": "Plan a trip to Lisbon."}]),
        said("assistant", [{"type": "output_text", "text": "Three days.", "annotations": []}]),
    )
    async with place.socket() as socket:
        await place.turn(socket, input=[*window["output"], user("And for rain?")], tools=[])


CHECKS: dict[str, Callable[[Place], Coroutine[None, None, None]]] = {
    "basic-response": basic_response,
    "assistant-phase": assistant_phase,
    "response-output-phase-schema": output_phase_schema,
    "streaming-response": streaming_response,
    "system-prompt": system_prompt,
    "tool-calling": tool_calling,
    "image-input": image_input,
    "multi-turn": multi_turn,
    "compact-response": compact_response,
    "compact-missing-model": compact_missing_model,
    "websocket-response": websocket_response,
    "websocket-sequential-responses": websocket_sequential_responses,
    "websocket-continuation": websocket_continuation,
    "websocket-reconnect-store-false-recovery": websocket_reconnect_recovery,
    "websocket-previous-response-not-found": websocket_previous_response_not_found,
    "websocket-failed-continuation-evicts-cache": websocket_failed_continuation_evicts,
    "websocket-compact-new-chain": websocket_compact_new_chain,
    "tool-calling-streaming": tool_calling_streaming,
}
"""By the ids that they are published under; the last one is proposed."""

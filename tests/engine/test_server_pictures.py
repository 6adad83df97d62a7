"""What a server's tool gives besides text: clients see it named, and the model sees it."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.items import InputFile, InputImage, InputText, McpCall
from antwort.api.wire import UNSET, to_plain
from antwort.providers.base import Capabilities
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.base import Output, ToolCall, ToolContext, ToolResult
from engine_kit import SERVER, Outcome, ask, engine_of, only, sent, stream

PICTURE = "data:image/png;base64,AA=="
PARTS: Output = (InputText(text="A map:"), InputImage(image_url=PICTURE), InputText(text="North is up."))
SHOWN = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]}
SAID = "A map:\n[input_image: shown in the next message]\nNorth is up."


def depot(output: Output, *, is_error: bool = False) -> ToolServerFake:
    async def draw(asked: ToolCall, context: ToolContext) -> ToolResult:
        return ToolResult(asked.id, output, is_error=is_error)

    return ToolServerFake("depot", draw=draw)


async def drawn(output: Output, *, is_error: bool = False, vision: bool = True) -> tuple[Outcome, list[Any]]:
    """What comes of a call that is answered so, and the messages that the model sees after it."""
    takes = Capabilities(vision=vision)
    provider = ScriptedProvider(answer(call("draw")), answer(say("Nice.")), capabilities=takes)
    outcome = await stream(engine_of(provider, depot(output, is_error=is_error)), ask(tools=[SERVER], stream=True))
    messages: list[Any] = sent(provider.requests[1])["messages"]
    return outcome, messages


async def test_the_model_sees_the_picture_after_the_result() -> None:
    outcome, messages = await drawn(PARTS)
    assert messages[2]["content"] == SAID
    assert messages[3] == SHOWN
    item = only(outcome.response, McpCall)
    assert (item.output, item.content) == ("A map:\n[input_image]\nNorth is up.", PARTS)


async def test_a_model_that_takes_no_pictures_is_told_in_words() -> None:
    _, messages = await drawn(PARTS, vision=False)
    assert messages[2]["content"] == "A map:\n[input_image: the model does not take it]\nNorth is up."
    assert len(messages) == 3


async def test_a_failure_may_show_a_picture_too() -> None:
    outcome, messages = await drawn(PARTS, is_error=True)
    assert only(outcome.response, McpCall).output is None
    assert (messages[2]["content"], messages[3]) == (SAID, SHOWN)


@pytest.mark.parametrize("output", ["text", (InputText(text="text"),), ()])
async def test_text_alone_has_no_parts(output: Output) -> None:
    outcome, messages = await drawn(output)
    item = only(outcome.response, McpCall)
    assert item.content is UNSET
    assert item.output == messages[2]["content"] == ("text" if output else "")


async def test_the_picture_is_still_seen_by_id_and_in_a_history_of_the_clients() -> None:
    store, server = MemoryStore(), depot(PARTS)
    first = await engine_of(ScriptedProvider(answer(call("draw")), answer(say("Nice."))), server, store=store).create(
        ask(tools=[SERVER])
    )
    again = [to_plain(item) for item in first.output]
    for request in (
        ask("And?", previous_response_id=first.id, tools=[SERVER]),
        ask([{"role": "user", "content": "Hello"}, *again, {"role": "user", "content": "And?"}], tools=[SERVER]),
    ):
        provider = ScriptedProvider(answer(say("Ok.")))
        await engine_of(provider, server, store=store).create(request)
        messages = sent(provider.requests[0])["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user", "assistant", "user"]
        assert messages[3] == SHOWN


async def test_a_file_that_the_model_does_not_take_is_named() -> None:
    _, messages = await drawn((InputFile(file_data="data:text/plain;base64,AA=="),))
    assert messages[2]["content"] == "[input_file: the model does not take it]"

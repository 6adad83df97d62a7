"""How much there is in a request to make tokens of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.engine.context.text_sizes import Size, message_size, size_of, text_size
from antwort.providers.base import ChatCall, ChatFunction, ChatMessage, ChatRequest


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (ChatMessage(role="user", content="Hello"), Size(5, 0, 1, 0)),
        (ChatMessage(role="user", content="Größe"), Size(7, 4, 1, 0)),
        (ChatMessage(role="assistant", content=None), Size(0, 0, 1, 0)),
        (ChatMessage(role="assistant", content=None, reasoning_content="Hmm", refusal="No"), Size(5, 0, 1, 0)),
        (
            ChatMessage(
                role="assistant", tool_calls=[ChatCall(id="c", function=ChatFunction(name="f", arguments='{"a":1}'))]
            ),
            Size(8, 0, 1, 0),
        ),
        (
            ChatMessage(
                role="user",
                content=[
                    {"type": "text", "text": "See"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                    {"type": "file", "file": {"file_data": "BBBB"}},
                ],
            ),
            Size(3, 0, 1, 2),
        ),
    ],
)
def test_all_that_is_said_in_a_message_is_counted(message: ChatMessage, size: Size) -> None:
    assert message_size(message) == size
    assert size_of(ChatRequest(model="m", messages=[message])) == size


@given(st.text(st.characters()))
def test_a_text_is_as_long_as_its_bytes(text: str) -> None:
    encoded = text.encode("utf-8", "surrogatepass")
    size = message_size(ChatMessage(role="user", content=text))
    assert text_size(text) == size.text == len(encoded)
    assert size.wide == sum(byte >= 128 for byte in encoded)

"""Whatever items a conversation is made of: what reaches the backend fits, and is a conversation that it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCallOutput,
    InputImage,
    InputItem,
    InputText,
    McpCall,
    Message,
    OpaqueItem,
)
from antwort.engine.context.token_counter import TokenEstimator
from antwort.engine.context.window import Window
from antwort.engine.prompt.chat_request import chat_request
from antwort.errors import ContextTooLong
from antwort.providers.base import ChatMessage, ChatRequest
from antwort.testing.demo import words_in
from engine_kit import SERVER, WEATHER, ask
from fitting_kit import refused, text_of
from plan_kit import STEADY, called, depot, plan_of, run_of, said, server_called, thought
from window_kit import SmallModel, words

_numbers = st.integers(1, 4)
_lengths = st.sampled_from([1, 10, 200, 3000])
_texts = st.builds(words, _lengths)


def _message(role: Literal["user", "system", "developer"], text: str) -> Message:
    return Message(id="msg_1", role=role, content=(InputText(text=text),))


def _server_call(n: int, text: str, is_there: bool) -> McpCall:
    return server_called(n, status="completed", output=text if is_there else None)


def _parts(n: int, text: str, is_picture: bool) -> FunctionCallOutput:
    picture = InputImage(image_url="data:image/png;base64,AAAA", detail="auto")
    parts = (InputText(text=text), picture) if is_picture else (InputText(text=text), InputText(text=text))
    return FunctionCallOutput(id=f"fco_{n}", call_id=f"call_{n}", output=parts)


def _foreign(n: int, text: str, is_result: bool) -> OpaqueItem:
    kind = "x_call_output" if is_result else "x_call"
    said_there = {"output": text} if is_result else {"arguments": "{}"}
    return OpaqueItem(kind, f"x_{n}_{is_result}", {"type": kind, "call_id": f"call_{n}", **said_there})


_items: st.SearchStrategy[InputItem] = st.one_of(
    st.builds(_message, st.sampled_from(["user", "user", "system", "developer"]), _texts),
    st.builds(said, _texts),
    st.builds(thought, _texts),
    st.builds(called, _numbers),
    st.builds(_server_call, _numbers, _texts, st.booleans()),
    st.builds(
        lambda n: CustomToolCall(id=f"ctc_{n}", call_id=f"call_{n}", name="patch", input="x", status="completed"),
        _numbers,
    ),
    st.builds(lambda n, text: FunctionCallOutput(id=f"fco_{n}", call_id=f"call_{n}", output=text), _numbers, _texts),
    st.builds(lambda n, text: CustomToolCallOutput(id=f"cto_{n}", call_id=f"call_{n}", output=text), _numbers, _texts),
    st.builds(_parts, _numbers, _texts, st.booleans()),
    st.builds(_foreign, _numbers, _texts, st.booleans()),
)
_histories = st.lists(st.lists(_items, max_size=8).map(tuple), max_size=6).map(tuple)


async def _sent(
    earlier: tuple[tuple[InputItem, ...], ...], length: int, *, has_tokenizer: bool
) -> tuple[ChatRequest, ChatRequest | None]:
    """The whole request, and what is sent of it; None: it is refused."""
    plan = await plan_of(ask("Well?", tools=[WEATHER, SERVER]), depot(), earlier=earlier)
    whole = chat_request(run_of(plan), plan)
    model = SmallModel(length, has_tokenizer=has_tokenizer)
    window = Window(estimator=TokenEstimator(model), length=length, reserve=100, truncates=True)
    try:
        return whole, await window.fit(whole)
    except ContextTooLong:
        return whole, None


@STEADY
@given(_histories, st.sampled_from([500, 2000, 8000]), st.booleans())
def test_a_backend_takes_what_it_gets(
    earlier: tuple[tuple[InputItem, ...], ...], length: int, has_tokenizer: bool
) -> None:
    whole, sent = asyncio.run(_sent(earlier, length, has_tokenizer=has_tokenizer))
    kept = _fixed(whole.messages)
    if sent is None:
        must = words_in(ChatRequest(model="m", messages=[*kept, whole.messages[-1]]))
        assert must > length / 4, "it is refused though there is not much that must stay"
        return
    assert refused(sent.messages) is None
    assert _unanswered(sent.messages) == _unanswered(whole.messages) == []
    assert _fixed(sent.messages) == kept
    assert text_of(sent.messages[-1]).endswith("Well?")
    assert words_in(sent) < length or not has_tokenizer or _has_pictures(sent.messages)


def _fixed(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    return [message for message in messages if message.role in ("system", "developer")]


def _has_pictures(messages: Sequence[ChatMessage]) -> bool:
    parts = [part for message in messages if isinstance(message.content, list) for part in message.content]
    return any("text" not in part for part in parts)


def _unanswered(messages: Sequence[ChatMessage]) -> list[str]:
    """Calls that have no result right behind them."""
    missing: list[str] = []
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            waiting.remove(str(message.tool_call_id))
        else:
            missing += waiting
            waiting = [call.id for call in message.tool_calls or ()]
    return missing + waiting

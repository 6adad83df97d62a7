"""What the tests of fitting share: messages in few words, random conversations, and a backend's view of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from antwort.api.wire import UNSET, encode
from antwort.engine.context.message_text import Pictures, Recap
from antwort.providers.base import ChatCall, ChatFunction, ChatMessage

PICTURE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
GONE = "[Left out here, to fit into the model's context:"
CUT = re.compile(r"\[… ([\d,]+) characters left out …\]")


def size(message: ChatMessage) -> int:
    return len(encode(message))


def total(messages: Sequence[ChatMessage]) -> int:
    return sum(map(size, messages))


def system(text: str) -> ChatMessage:
    return ChatMessage(role="system", content=text)


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def assistant(text: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=text)


def step(call_id: str, output: str = "done", *, name: str = "work") -> list[ChatMessage]:
    """The model calls, and the tool answers."""
    return answer({call_id: output}, name=name)


def answer(outputs: dict[str, str], *, name: str = "work", thought: str = "") -> list[ChatMessage]:
    """The model calls side by side, and each call is answered."""
    calls = [ChatCall(id=call_id, function=ChatFunction(name=name, arguments="{}")) for call_id in outputs]
    asked = ChatMessage(role="assistant", content=None, tool_calls=calls, reasoning_content=thought or UNSET)
    results = [ChatMessage(role="tool", tool_call_id=each, content=text) for each, text in outputs.items()]
    return [asked, *results]


def text_of(message: ChatMessage) -> str:
    if isinstance(message.content, list):
        return "\n".join(part.get("text", "") for part in message.content)
    return message.content or ""


# ---- random conversations: each message has a number, by which it is found again ----

_sizes = st.sampled_from([0, 3, 40, 300, 2500])


@st.composite
def _answers(draw: st.DrawFn, number: int) -> list[ChatMessage]:
    """Of one call or several, not all of them answered; ids repeat."""
    ids = draw(st.lists(st.sampled_from(["a", "b", "c"]), max_size=3, unique=True))
    if not ids:
        return [ChatMessage(role="assistant", content=f"#{number}# " + "said " * draw(_sizes))]
    calls = [ChatCall(id=each, function=ChatFunction(name=f"#{number}#", arguments="{}")) for each in ids]
    thought = "hm " * 50 if draw(st.booleans()) else UNSET
    said = [ChatMessage(role="assistant", content=None, tool_calls=calls, reasoning_content=thought)]
    for each in draw(st.sampled_from([ids, ids, ids[:1]])):
        text = f"#{number + len(said)}# " + "out " * draw(_sizes)
        is_parts = draw(st.booleans())
        content: str | list[dict[str, Any]] = [{"type": "text", "text": text}, PICTURE] if is_parts else text
        said.append(ChatMessage(role="tool", tool_call_id=each, content=content))
    if len(said) > 1 and draw(st.booleans()):
        said.append(Pictures(role="user", content=[PICTURE]))
    return said


@st.composite
def conversations(draw: st.DrawFn) -> list[ChatMessage]:
    """In any order: some of it is what no client would send."""
    messages: list[ChatMessage] = []
    for kind in draw(st.lists(st.sampled_from(["system", "developer", "user", "answer", "answer"]), max_size=24)):
        number = len(messages)
        if kind == "answer":
            messages += draw(_answers(number))
            continue
        text = f"#{number}# " + "word " * draw(_sizes)
        is_parts = kind == "user" and draw(st.booleans())
        content: str | list[dict[str, Any]] = [PICTURE, {"type": "text", "text": text}] if is_parts else text
        messages.append(ChatMessage(role=kind, content=content))
    return [Recap(role="user", content="[Summary]"), *messages] if draw(st.booleans()) else messages


def numbers(messages: Sequence[ChatMessage]) -> list[int]:
    """Which messages of a random conversation these are; pictures have none."""
    found = (re.search(r"#(\d+)#", encode(message).decode()) for message in messages)
    return [int(number[1]) for number in found if number is not None]


# ---- what a backend would say ----


def refused(messages: Sequence[ChatMessage]) -> str | None:
    """What a strict backend finds fault with in the order and the contents, if anything. It knows nothing of how they
    came about.
    """
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in waiting:
                return f"a result without its call: {message.tool_call_id}"
            waiting.remove(str(message.tool_call_id))
        else:
            waiting = [call.id for call in message.tool_calls or ()]
        thought = (message.reasoning_content or "") or (message.reasoning or "")
        if not (message.content or message.tool_calls or thought or message.role == "tool"):
            return f"an empty message of the {message.role}"
    return None

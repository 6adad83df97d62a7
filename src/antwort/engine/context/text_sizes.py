"""How much there is in a request to make tokens of: bytes of text, and what is no text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from antwort.api.wire import UNSET, encode
from antwort.providers.base import ATTACHMENT_TOKENS, ChatMessage, ChatRequest, ChatTool

PER_MESSAGE = 4
"""Tokens of a template around each message."""
PER_REQUEST = 8
"""And around them all."""
_LONGEST = 16
"""Bytes of a token, on the average of any text."""


class Size(msgspec.Struct, frozen=True, gc=False):
    text: int = 0
    """Bytes, in UTF-8."""
    wide: int = 0
    """Those of them that are no ASCII: tokenizers cut up some scripts finely, and others coarsely."""
    messages: int = 0
    attachments: int = 0

    @property
    def fixed(self) -> int:
        """Tokens that do not depend on the text."""
        return self.messages * PER_MESSAGE + self.attachments * ATTACHMENT_TOKENS


def size_of(request: ChatRequest) -> Size:
    text = wide = attachments = 0
    for message in request.messages:
        if (said := plain_text(message)) is not None and said.isascii():
            text += len(said)
            continue
        size = message_size(message)
        text += size.text
        wide += size.wide
        attachments += size.attachments
    if request.tools is not UNSET:
        text += tools_size(request.tools)
    return Size(text, wide, len(request.messages), attachments)


def message_size(message: ChatMessage) -> Size:
    text = wide = attachments = 0
    for said in texts_of(message):
        if said is None:
            attachments += 1
        elif said.isascii():
            text += len(said)
        else:
            size = text_size(said)
            text += size
            wide += size - len(said.encode("ascii", "ignore"))
    return Size(text, wide, 1, attachments)


def plain_text(message: ChatMessage) -> str | None:
    """All that is in it, where that is one text: most messages are so, and there are many."""
    if (
        isinstance(message.content, str)
        and message.tool_calls is UNSET
        and message.reasoning_content is UNSET
        and message.reasoning is UNSET
        and message.refusal is UNSET
    ):
        return message.content
    return None


def texts_of(message: ChatMessage) -> Iterator[str | None]:
    """All that is in it; None for a part that is no text."""
    yield from _said(message)
    for more in (message.reasoning_content, message.reasoning, message.refusal):
        if more is not UNSET:
            yield more


def _said(message: ChatMessage) -> Iterator[str | None]:
    content = message.content
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            said = part.get("text")
            yield said if isinstance(said, str) else None
    if message.tool_calls is not UNSET:
        for call in message.tool_calls:
            yield call.function.name
            yield call.function.arguments


def tools_size(tools: Sequence[ChatTool]) -> int:
    """Bytes of their JSON."""
    return sum(len(encode(tool)) for tool in tools)


def text_size(text: str) -> int:
    """Bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def least_tokens(request: ChatRequest) -> int:
    """What it has for certain, whatever the tokenizer and the template: no text has fewer, but for gaps, and there are
    templates that leave out what the model thought. Neither is counted.
    """
    texts = (text for message in request.messages for text in _said(message) if text)
    return sum(text_size("".join(text.split())) for text in texts) // _LONGEST
